"""Rows that a hunt found, as a frozen params file of literal rows; and whether they stop there as they did.

Rows of a hunt carry ``selected_by: hunt`` and are never controls, which the rules of a params file see to.
"""

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from toppgate import codes, execute, freeze, host, judge, params, published, seats, source
from toppgate.fp32 import Float32
from toppgate.schema import Params
from toppgate.suspect import Suspect

#: Rows written of each code and cause, and numbers in all, bits included; a params file holds 131,072 values at most.
WRITTEN, NUMBERS = 2, 120_000

#: Rows of a launch on CUDA: each row stands so many times, so that it is cut as it was.
COPIES: Final = 64


def chosen(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return the smallest confirmed rows of each code and cause, as many as a params file holds."""
    groups: dict[tuple[str, str], list[tuple[int, Suspect]]] = {}
    for suspect in suspects:
        if suspect.code != codes.PASS:
            size = sum(1 + len(part.get("numbers", "v")) for part in parts(suspect.logits))
            groups.setdefault((suspect.code, suspect.cause), []).append((size, suspect))
    found, room = [], NUMBERS
    for turn in range(WRITTEN):
        for group in groups.values():
            ranked = sorted(group, key=lambda item: (item[0], item[1].at))
            if turn < len(ranked) and 2 * ranked[turn][0] <= room:  # freeze puts the bits beside each number
                room -= 2 * ranked[turn][0]
                found.append(ranked[turn][1])
    return sorted(found, key=lambda suspect: (list(codes.ORDINARY).index(suspect.code), suspect.at))


def parts(logits: Float32) -> list[dict[str, Any]]:
    """Return a row as parts of a params file: runs of one value, and numbers, each the shortest decimal of its fp32."""
    return list(_joined((value, len(list(run))) for value, run in groupby(map(str, logits))))


def _joined(runs: Iterator[tuple[str, int]]) -> Iterator[dict[str, Any]]:
    """Yield long runs as they are, and short ones joined to one list of numbers."""
    for long, group in groupby(runs, key=lambda run: run[1] > 2):
        if long:
            yield from ({"value": value, "repeat": count} for value, count in group)
        else:
            yield {"numbers": [value for value, count in group for _ in range(count)]}


def written(
    checked: Params, rows: Sequence[Suspect], seed: int, scratch: Path
) -> tuple[list[dict[str, Any]], bytes | None]:
    """Freeze a params file of rows and run it; return what each gave, and the file of those that gave the same again.

    Parameters
    ----------
    checked : the params that were hunted, whose sources, host and device the file gets
    rows : judged suspects, none of which passes
    seed : the hunt's
    scratch : an empty directory

    Raises ``ToppgateError`` as freezing and running do.
    """
    if not rows:
        return [], None
    path = scratch / "rows.yml"
    _freeze(path, checked, rows, seed)
    got = _run(params.read(path), scratch / "run")
    again = [suspect for suspect in rows if got[name(suspect)] == suspect.code]
    if again and len(again) < len(rows):
        _freeze(path, checked, again, seed)
    lines = [
        {"case": name(s), "row": s.at, "kind": s.kind, "code": s.code, "cause": s.cause, "again": got[name(s)]}
        for s in rows
    ]
    return lines, path.read_bytes() if again else None


def name(suspect: Suspect) -> str:
    """Return the id of a suspect's case."""
    return f"{suspect.code}-{suspect.at}"


def _run(frozen: Params, directory: Path) -> dict[str, str]:
    """Return {case: the code of its first row}."""
    provided = host.provide(frozen.host.model_dump(mode="json", exclude_unset=True), published.cache())
    run = seats.captured(directory, frozen)
    values = frozen.values()
    texts = {side: source.resolve(values[side], published.cache()).data for side in execute.SIDES}
    found = seats.evidence_of(run, execute.run_texts(run, texts, provided), provided)
    return {case.id: next(judge.decide(case, found.case(case))).code for case in frozen.cases}


def _freeze(path: Path, checked: Params, rows: Sequence[Suspect], seed: int) -> None:
    """Write and freeze a params file of rows."""
    copies = COPIES if checked.device == "cuda" else 1
    values = {key: value for key, value in checked.values().items() if key not in {"frozen", "change", "cases"}}
    values["title"] = "rows that a hunt found: exploratory"
    values["notes"] = f"Found by toppgate hunt, seed {seed}; chosen because they stop. No evidence about ordinary rows."
    widest = max(suspect.logits.size for suspect in rows)
    values["limits"] = {**values["limits"], "vocabulary": widest, "batch": copies, "rows": len(rows) * copies}
    values["cases"] = [_case(suspect, copies) for suspect in rows]
    path.write_text(json.dumps(values))
    freeze.freeze(path)


def _case(suspect: Suspect, copies: int) -> dict[str, Any]:
    case = {
        "id": name(suspect),
        "about": f"Row {suspect.at} of the hunt, {suspect.kind}: {suspect.code}; {suspect.cause}.",
        "role": "ordinary",
        "rows": {"kind": "literal", "rows": [parts(suspect.logits)], "copies": copies},
        "p": str(suspect.p),
        "selected_by": "hunt",
    }
    return case if copies > 1 else {**case, "compute_units": suspect.slices}
