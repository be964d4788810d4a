"""Whether a run's rows and verdict are those of a judgement made again (contract, section 7)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rfc8785

from toppgate import codes, harness, judge
from toppgate.judge import Judgement

#: The columns that every run has (contract, section 7); others came later, and an older run may lack them.
REQUIRED = frozenset(
    (
        *("case", "row", "role", "code", "observed", "also", "after_stop", "p_fp32"),
        *("kept_oracle", "kept_stock", "kept_patch", "kept_sort"),
        *("symdiff_stock", "symdiff_patch", "symdiff_stock_patch", "mass_stock", "mass_patch", "mass_stock_patch"),
        *("equal_stock", "equal_patch", "stock_code", "over_keep", "margin", "tie_group", "oracle_ids_sha256"),
    )
)

#: What a verdict of another version of toppgate must say exactly; stops too, without their wording.
ESSENTIAL = (
    "schema",
    "run",
    "params",
    "harness",
    "device",
    "verdict",
    "first_stop",
    "counts",
    "statement",
    "gate_stop",
)


def differences(directory: Path, judged: Judgement, notes: list[str], *, same_exp: bool) -> Iterator[str]:
    """Yield what ``rows.jsonl`` and ``verdict.json`` say otherwise than ``judged``, the run judged again.

    Counts, ids, codes and the verdict must agree exactly; float columns bitwise where the C library's exp is the run's
    (``same_exp``).  What is no difference, but should be known, goes to ``notes``.
    """
    said = json.loads((directory / "verdict.json").read_bytes())
    if said.get("gate_stop") is not None and said["gate_stop"]["code"] not in codes.EVIDENCE:
        yield f"verdict.json: gate_stop: unknown code {said['gate_stop']['code']!r}"
    rows = [_canonical_json(line) for line in (directory / "rows.jsonl").read_bytes().splitlines()]
    if len(rows) != len(judged.rows):
        yield f"rows.jsonl: holds {len(rows)} rows, judged again there are {len(judged.rows)}"
    pairs = [(have, _canonical_json(rfc8785.dumps(want))) for have, want in zip(rows, judged.rows, strict=False)]
    for have, again in pairs:
        yield from _row(have, again, same_exp=same_exp)
    one_sided = sum(_one_sided(have.get(judge.OPTIONAL), want[judge.OPTIONAL]) for have, want in pairs)
    if one_sided:
        notes.append(f"{judge.OPTIONAL}: decided on one side only in {one_sided} rows: it may take python-flint")
    if (directory / "rows.jsonl").read_bytes() != b"".join(rfc8785.dumps(row) + b"\n" for row in rows):
        yield "rows.jsonl: not in canonical form"
    yield from _verdict(
        directory, said, json.loads(judged.verdict_bytes()), same_harness=said.get("harness") == harness.digest()
    )
    absent = sorted({key for have, want in pairs for key in want if key not in have})
    if absent:
        notes.append(f"columns that the run's toppgate did not have yet: {', '.join(absent)}")


def _verdict(directory: Path, said: dict[str, Any], want: dict[str, Any], *, same_harness: bool) -> Iterator[str]:
    if (directory / "verdict.json").read_bytes() != rfc8785.dumps(said) + b"\n":
        yield "verdict.json: not in canonical form"
    if not same_harness:
        said, want = _essential(said), _essential(want)
    for key in sorted(set(said) | set(want)):
        if key not in said or key not in want or not alike(said[key], want[key]):
            yield f"verdict.json: {key}: the run says {said.get(key)}, judged again it is {want.get(key)}"


def _essential(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what two versions of toppgate must agree on; the wording of banners and details is each one's own."""
    stops = [{key: stop.get(key) for key in ("case", "row", "code")} for stop in verdict["stops"]]
    return {key: verdict.get(key) for key in ESSENTIAL} | {"stops": stops}


def _canonical_json(text: bytes) -> Any:
    """Parse canonical JSON, which writes a large float without a point: what no safe integer holds was one."""
    return json.loads(text, parse_int=lambda digits: float(digits) if abs(int(digits)) >= 1 << 53 else int(digits))


def _row(have: dict[str, Any], want: dict[str, Any], *, same_exp: bool) -> Iterator[str]:
    where = f"rows.jsonl: case {want['case']} row {want['row']}"
    for key in sorted(set(have) | set(want)):
        if key not in want or (key not in have and key in REQUIRED):
            yield f"{where}: {key}: on one side only"
        elif key not in have:
            continue  # a column that came later; said in a note
        elif key == judge.OPTIONAL and _one_sided(have[key], want[key]):
            continue
        elif not alike(have[key], want[key]) and (
            same_exp or key not in judge.FLOATS or (have[key] is None) != (want[key] is None)
        ):
            yield f"{where}: {key}: the run says {have[key]}, judged again it is {want[key]}"


def alike(one: Any, other: Any) -> bool:
    """Whether two values are the same JSON: to Python, true is 1."""
    return bool(one == other) and rfc8785.dumps(one) == rfc8785.dumps(other)


def _one_sided(have: Any, want: Any) -> bool:
    """Whether two answers about a boundary in the reals differ only in that one of them is none."""
    return have != want and "undecided" in (have, want) and {str(have), str(want)} < {"equal", "differs", "undecided"}
