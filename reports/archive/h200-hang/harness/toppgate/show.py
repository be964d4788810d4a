"""``toppgate show``: a sealed run, one case or one row of it, as text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from toppgate import codes, evidence, inputs, judge, oracle, outputs, params, stage
from toppgate.errors import RunError

#: Tokens shown on each side of a boundary.
AROUND = 4


def rows(directory: Path, case: str | None, row: int | None) -> list[dict[str, Any]]:
    """Return the rows asked for.  Raises ``RunError`` where the run holds none such."""
    try:
        table = [json.loads(line) for line in (directory / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{directory}: rows.jsonl cannot be read: {error}") from None
    found = [r for r in table if case in {None, r["case"]} and row in {None, r["row"]}]
    if not found:
        known = ", ".join(dict.fromkeys(r["case"] for r in table))
        raise RunError(f"{directory}: no row {'' if row is None else row} of case {case}; cases: {known}")
    return found


def verdict(directory: Path) -> dict[str, Any]:
    """Return the verdict of a run directory.  Raises ``RunError``."""
    found = stage.result(directory, "verdict")
    if found is None:
        raise RunError(f"{directory}: holds no verdict.json")
    return found


def boundary(directory: Path, case_id: str, row: int) -> list[dict[str, Any]]:
    """Return the tokens around one row's boundary: position, id, logit, prefix share, and who keeps it.

    Empty where the row has no usable evidence or is inadmissible.
    """
    frozen = params.read(directory / "params.yml")
    case = next((c for c in frozen.cases if c.id == case_id), None)
    if case is None:
        return []
    held = evidence.gather(directory).case(case)
    p = case.ps()[row]
    if held.code != codes.PASS or held.inputs is None or not _admissible(held.inputs, row, float(p)):
        return []
    reference = oracle.reference(held.inputs.logits[row], p)
    shares = reference.weights.cumsum() / reference.normalizer
    middle = reference.count
    return [
        {
            "position": at,
            "token": int(reference.order[at]),
            "logit": float(held.inputs.logits[row, reference.order[at]]),
            "share": float(shares[at]),
            "oracle": at < reference.count,
            "stock": _keeps(held.stock, row, int(reference.order[at])),
            "patch": _keeps(held.patch, row, int(reference.order[at])),
        }
        for at in range(max(0, middle - AROUND), min(len(shares), middle + AROUND))
    ]


def _admissible(held: inputs.Inputs, row: int, p: float) -> bool:
    return bool((abs(held.logits[row]) < float("inf")).all()) and 0.0 < p < 1.0


def _keeps(masks: outputs.Masks | None, row: int, token: int) -> bool:
    return masks is not None and bool(masks.kept[row, token])


def lines(directory: Path, case: str | None, row: int | None) -> Iterator[str]:
    """Yield the text of ``toppgate show``."""
    if case is None:
        yield from verdict_lines(verdict(directory))
        return
    for found in rows(directory, case, row):
        yield f"{found['case']} row {found['row']} ({found['role']}): {found['code']}"
        if row is None:
            continue
        if found["code"] != codes.PASS:
            yield f"  {codes.SENTENCES[found['code']]}"
        for key in judge.COLUMNS:
            if key not in {"case", "row", "role", "code"} and found.get(key) not in (None, []):
                yield f"  {key} {found[key]}"
        yield from boundary_lines(boundary(directory, found["case"], found["row"]))


def boundary_lines(tokens: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a small table of the tokens around a boundary."""
    if tokens:
        yield f"  {'position':>9} {'token':>8} {'logit':>15} {'prefix share':>19}  oracle stock patch"
    for t in tokens:
        kept = "  ".join("kept" if t[side] else " -  " for side in ("oracle", "stock", "patch"))
        yield f"  {t['position']:>9} {t['token']:>8} {t['logit']:>15.8g} {t['share']:>19.15f}  {kept}"


def verdict_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield verdict, first stop and counts, for a terminal."""
    yield f"verdict     {found['verdict']}"
    first = found["first_stop"]
    if first is None:
        yield "first stop  none"
    else:
        where = "the run" if first["case"] is None else f"{first['case']} row {first['row']}"
        yield f"first stop  {where}: {first['code']}: {codes.SENTENCES[first['code']]}"
        detail = found["stops"][0].get("detail")
        if detail:
            yield f"            {detail}"
    yield "counts      " + ", ".join(f"{name} {found['counts'].get(name)}" for name in judge.COUNTS)
