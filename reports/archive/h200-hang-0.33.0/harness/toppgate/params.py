"""The params file: reading, freeze's own form, and the frozen digest (contract, section 3).

Decimals and 64-bit seeds are strings.  A file is frozen when its ``frozen`` block holds the digests of everything
else; an edit makes it a draft again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic

from toppgate import digests, faults, plain_yaml, rules
from toppgate.errors import ParamsError
from toppgate.schema import Captured, Params

#: A params file is read whole and checked; larger ones are refused unread.
MAX_BYTES = 4 * 2**20

HEADER = b"# Written by toppgate freeze.  An edit makes it a draft again.\n"

#: What freeze derives from the rest, wherever it stands in a file.
DERIVED = frozenset({"frozen", "change", "shape", "slices", "input", "p_bits", "value_bits", "bits"})


def read(path: Path) -> Params:
    """Read and check a params file.  Raises ``ParamsError``; does not check the frozen digest."""
    return check(values_of(path), str(path))


def read_draft(path: Path) -> Params:
    """Read and check a params file that is to be frozen.

    Of an edited file, what freeze derives is left out, since it says what was true before the edit: also the seed that
    was selected from a declared sequence.  Raises ``ParamsError``.
    """
    values = values_of(path)
    drafted = _validated(values, str(path))
    if drafted.frozen is not None and drafted.frozen.model_dump() == freeze_digest(drafted.values()):
        return check(values, str(path))
    values = given(values)
    for case in values["cases"]:
        if "select" in case:
            case.pop("selected_by", None)
            case["rows"].pop("seed", None)
    return check(values, str(path))


def given(value: Any) -> Any:
    """Return a file's values without what freeze derives from the rest."""
    if isinstance(value, dict):
        return {key: given(item) for key, item in value.items() if key not in DERIVED}
    return [given(item) for item in value] if isinstance(value, list) else value


def values_of(path: Path) -> Any:
    """Return a file's plain data, unchecked; no more of it is read than a params file may have."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        text = data.decode("utf-8")
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path}: byte {error.start}: expected UTF-8") from None
    if len(data) > MAX_BYTES:
        raise ParamsError(f"{path}: more than {MAX_BYTES} bytes, expected at most as many")
    return plain_yaml.parse(text, str(path))


def check(values: Any, name: str) -> Params:
    """Return the checked params.  Raises ``ParamsError`` that names file, key, value got and value expected."""
    params = _validated(values, name)
    problem = next(rules.problems(params), None)
    if problem is not None:
        raise ParamsError(f"{name}: {problem}")
    return params


def _validated(values: Any, name: str) -> Params:
    if isinstance(values, dict) and "kernels" in values and "patch" not in values:
        raise ParamsError(f"{name}: kernels: got a ladder, expected one patch; toppgate sweep runs a ladder")
    try:
        return Params.model_validate(values)
    except pydantic.ValidationError as error:
        raise ParamsError(f"{name}: {faults.explain(error, values)}") from None


def dump(params: Params) -> bytes:
    """Return the file in freeze's own form; a function of the values only."""
    return HEADER + plain_yaml.dump(params.values())


# ---------------------------------------------------------------------------------------------- the frozen digest


def freeze_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``frozen`` block for a file's values: a digest over all other keys, and one for each part."""
    rest = {key: value for key, value in values.items() if key != "frozen"}
    parts = {key: value for key, value in rest.items() if key != "cases"}
    parts |= {f"cases[{case['id']}]": case for case in rest["cases"]}
    short = {name: digests.sha256_json(value)[:12] for name, value in parts.items()}
    return {"sha256": digests.sha256_json(rest), "parts": short}


def check_frozen(params: Params, name: str) -> None:
    """Accept only params whose digest matches and that pin all that freeze pins.

    Raises ``ParamsError`` that names the first part that differs, or the first pin that is not there.
    """
    if params.frozen is None:
        raise ParamsError(f"{name}: frozen: got nothing, expected the digests that toppgate freeze writes")
    want, have = freeze_digest(params.values()), params.frozen.model_dump()
    if have != want:
        first = first_difference(have, want)
        raise ParamsError(f"{name}: params_drift: {first} differs from what was frozen; freeze again, as a new file")
    missing = next((key for key, pin in _pins(params) if pin is None), None)
    if missing is not None:
        raise ParamsError(f"{name}: {missing}: got nothing, expected what toppgate freeze writes")


def first_difference(have: Mapping[str, Any], want: Mapping[str, Any]) -> str:
    """Return the first part in which two ``frozen`` blocks differ, such as ``cases[forced]``."""
    names = [*want["parts"], *(name for name in have["parts"] if name not in want["parts"])]
    differing = (name for name in names if have["parts"].get(name) != want["parts"].get(name))
    return next(differing, "the order of cases, or frozen.sha256 itself,")


def _pins(params: Params) -> Iterator[tuple[str, Any]]:
    yield from (("stock.sha256", params.stock.sha256), ("patch.sha256", params.patch.sha256))
    yield from (("change", params.change), ("host.tree", params.host.tree))
    for case in params.cases:
        yield from ((f"cases[{case.id}].{key}", getattr(case, key)) for key in ("p_bits", "shape", "slices", "input"))
        rows = rules.base(case)
        if isinstance(rows, Captured):
            yield f"cases[{case.id}].rows.sha256", rows.sha256
