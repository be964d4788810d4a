"""The params file: reading, rules across keys, freeze's own form, and the frozen digest (contract, section 3).

A file is YAML 1.2 without duplicate keys, anchors or tags.  Decimals and 64-bit seeds are strings.  freeze writes
one form only, which YAML 1.1 and 1.2 read alike, so that papermill's reader and ours see the same values.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pydantic
from pydantic import BaseModel
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from toppgate import codes, digests, fp32, schema
from toppgate.errors import ParamsError
from toppgate.schema import Case, Forced, Limits, Normal, Params

#: A params file is read whole and checked; larger ones are refused unread.
MAX_BYTES = 4 * 2**20


def read(path: Path) -> Params:
    """Read and check a params file.  Raises ``ParamsError``; does not check the frozen digest."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(f"{path}: {path.stat().st_size} bytes, expected at most {MAX_BYTES}")
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: cannot be read: {error}") from None
    return check(parse(text, str(path)), str(path))


def parse(text: str, name: str) -> Any:
    """Return the plain data of YAML 1.2 text.  Raises ``ParamsError``: also for duplicate keys, anchors and tags."""
    yaml = YAML(typ="safe", pure=True)
    try:
        for event in yaml.parse(text):
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                line = event.start_mark.line + 1
                raise ParamsError(f"{name}: line {line}: anchors, aliases and tags are not allowed")
        return yaml.load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or type(error).__name__
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ParamsError(f"{name}: {where}not YAML 1.2: {problem}") from None


def check(values: Any, name: str) -> Params:
    """Return the checked params.  Raises ``ParamsError`` that names file, key, value got and value expected."""
    try:
        params = Params.model_validate(values)
    except pydantic.ValidationError as error:
        raise ParamsError(f"{name}: {_explain(error, values)}") from None
    for problem in _problems(params):
        raise ParamsError(f"{name}: {problem}")
    return params


def _explain(error: pydantic.ValidationError, values: Any) -> str:
    """One line for the first fault; the number of further ones is said."""
    faults = error.errors(include_url=False)
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = _place(fault["loc"], values)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    if fault["type"] == "extra_forbidden":
        known = difflib.get_close_matches(str(fault["loc"][-1]), _known_keys(), n=1, cutoff=0.6)
        hint = f"; did you mean {known[0]!r}?" if known else ""
        return f"{where}: unknown key{hint}{more}"
    got = "nothing" if fault["type"] == "missing" else f"{type(fault['input']).__name__} {_short(fault['input'])}"
    expected = fault["msg"].removeprefix("Value error, ")
    hint = ""
    if fault["type"] == "string_type" and isinstance(fault["input"], int | float):
        hint = "; write the number in quotes, since YAML 1.1 and 1.2 read bare decimals differently"
    return f"{where}: got {got}, expected: {expected}{hint}{more}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _place(loc: tuple[int | str, ...], values: Any) -> str:
    """The path of a fault; a case is named by its id, and pydantic's union tags, which are no keys, are left out."""
    parts: list[str] = []
    here = values
    for step in loc:
        if isinstance(step, int) and isinstance(here, list) and step < len(here):
            here = here[step]
            name = here.get("id") if isinstance(here, dict) else None
            parts.append(f"[{name if isinstance(name, str) else step}]")
        elif isinstance(here, dict) and step in here:
            here = here[step]
            parts.append(f".{step}")
        elif step == loc[-1]:
            parts.append(f".{step}")
    return "".join(parts).lstrip(".") or "the file"


def _known_keys() -> list[str]:
    models = [model for model in vars(schema).values() if isinstance(model, type) and issubclass(model, BaseModel)]
    return sorted({name for model in models for name in model.model_fields})


# ---------------------------------------------------------------------------------------------- rules across keys


def _problems(params: Params) -> Iterator[str]:
    """What the schema cannot say; only of cases whose shape is known, so a draft is checked again by freeze."""
    for case in params.cases:
        where = f"cases[{case.id}]"
        yield from _seed_problems(case, where)
        if case.shape is not None:
            yield from (f"{where}.{problem}" for problem in _row_problems(case))
            yield from (f"{where}.{problem}" for problem in _limit_problems(case, params.limits))
    rows = sum(case.shape[0] for case in params.cases if case.shape is not None)
    if rows > params.limits.rows:
        yield f"limits.rows: got {rows} rows in all, expected at most {params.limits.rows}"


def _seed_problems(case: Case, where: str) -> Iterator[str]:
    base = case.rows.base if isinstance(case.rows, Forced) else case.rows
    if isinstance(base, Normal):
        if base.seed is None and case.select is None:
            yield f"{where}.rows.seed: got nothing, expected a seed, or select with a seed sequence"
        mantissa = abs(fp32.binary64(base.scale)).hex().split("p")[0].replace("0x", "").replace(".", "")
        if not np.isfinite(fp32.binary64(base.scale)) or int(mantissa, 16).bit_length() - _zeros(mantissa) > 16:
            yield f"{where}.rows.scale: got {base.scale}, expected a number of at most 16 significant bits"


def _zeros(mantissa: str) -> int:
    value = int(mantissa, 16)
    return (value & -value).bit_length() - 1 if value else 0


def _row_problems(case: Case) -> Iterator[str]:
    """Per-row lists have the batch's length; forced rows name a token; probes name a code; p is inside its domain."""
    for key in ("role", "p", "p_bits", "token", "expect"):
        value = getattr(case, key)
        if isinstance(value, list) and len(value) != case.batch:
            yield f"{key}: got {len(value)} values, expected one, or one for each of {case.batch} rows"
            return
    bits = [fp32.bits(p) for p in case.ps()]
    if case.p_bits is not None and case.each(case.p_bits) != bits:
        yield f"p_bits: got {case.p_bits}, expected {bits if isinstance(case.p_bits, list) else bits[0]}"
    for row in range(case.batch):
        yield from _one_row(case, row)
    if case.k is not None and set(case.roles()) != {"probe"}:
        yield "k: a call with k is allowed on probes only"
    if case.selected_by == "hunt" and "control" in case.roles():
        yield "selected_by: rows from a hunt may never be controls"


def _one_row(case: Case, row: int) -> Iterator[str]:
    role, p, token, expect = case.roles()[row], case.ps()[row], case.tokens()[row], case.expected()[row]
    if role != "probe" and not 0.0 < p < 1.0:
        yield f"p, row {row}: got {p} in fp32, expected 0 < p < 1 (invalid_p) on a row that is not a probe"
    if role == "forced" and not (token is not None and token < case.vocabulary):
        yield f"token, row {row}: got {token}, expected a token below {case.vocabulary} on a forced row"
    if (role == "probe") != (expect is not None):
        yield f"expect, row {row}: got {expect}, expected a code on a probe and none on another row"
    if expect is not None and expect not in codes.PROBE_CODES:
        yield f"expect, row {row}: got {expect!r}, expected one of {', '.join(codes.PROBE_CODES)}"


def _limit_problems(case: Case, limits: Limits) -> Iterator[str]:
    """A case over a limit is refused, unless it is there to be refused."""
    if set(case.expected()) == {"limit_exceeded"}:
        return
    if case.vocabulary > limits.vocabulary:
        yield f"rows: vocabulary {case.vocabulary}, expected at most limits.vocabulary {limits.vocabulary}"
    if case.batch > limits.batch:
        yield f"rows: batch {case.batch}, expected at most limits.batch {limits.batch}"


# ---------------------------------------------------------------------------------------------- the frozen digest


def freeze_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``frozen`` block for a file's values: a digest over all other keys, and one for each part."""
    rest = {key: value for key, value in values.items() if key != "frozen"}
    parts = {key: value for key, value in rest.items() if key != "cases"}
    parts |= {f"cases[{case['id']}]": case for case in rest["cases"]}
    short = {name: digests.sha256_json(value)[:12] for name, value in parts.items()}
    return {"sha256": digests.sha256_json(rest), "parts": short}


def check_frozen(params: Params, name: str) -> None:
    """Accept only params whose digest matches.  Raises ``ParamsError`` that names the first part that differs."""
    if params.frozen is None:
        raise ParamsError(f"{name}: frozen: got nothing, expected the digests that toppgate freeze writes")
    want = freeze_digest(params.values())
    have = params.frozen.model_dump()
    if have == want:
        return
    names = [*want["parts"], *(set(have["parts"]) - set(want["parts"]))]
    first = next((n for n in names if have["parts"].get(n) != want["parts"].get(n)), "cases, their order")
    raise ParamsError(f"{name}: params_drift: {first} differs from what was frozen; freeze again, as a new file")


# ---------------------------------------------------------------------------------------------- freeze's own form


def dump(params: Params) -> bytes:
    """Return the file in freeze's own form: block mappings, JSON scalars, ASCII; a function of the values only."""
    lines = ["# Written by toppgate freeze.  An edit makes it a draft again."]
    lines += _block(params.values(), "")
    return ("\n".join(lines) + "\n").encode("ascii")


def _block(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        name = key if key.isidentifier() else json.dumps(key)
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from _block(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(entry, dict) for entry in item):
            yield f"{indent}{name}:"
            for entry in item:
                first, *rest = _block(entry, indent + "  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{name}: {json.dumps(item)}"
