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
from toppgate.plain_yaml import MAX_VALUES
from toppgate.schema import Params
from toppgate.smaller import Trophy
from toppgate.suspect import Suspect

#: Rows written of each code and cause.
WRITTEN: Final = 2

#: Values of a params file that are left for rows; what else is in it is a few hundred.
ROOM: Final = MAX_VALUES - 4096

#: Rows of a launch on CUDA: each row stands so many times, so that it is cut as it was.
COPIES: Final = 64


def chosen(suspects: Sequence[Suspect]) -> list[Suspect]:
    """Return the smallest confirmed rows of each code and cause, in the order of the gate's rules."""
    groups: dict[tuple[str, str], list[Suspect]] = {}
    for suspect in suspects:
        if suspect.code != codes.PASS:
            groups.setdefault((suspect.code, suspect.cause), []).append(suspect)
    found = [each for group in groups.values() for each in sorted(group, key=_smallest)[:WRITTEN]]
    return sorted(found, key=lambda suspect: (list(codes.ORDINARY).index(suspect.code), suspect.at))


def _smallest(suspect: Suspect) -> tuple[int, int]:
    return values(suspect.logits), suspect.at


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


def values(logits: Float32) -> int:
    """Return how many YAML values a row is once frozen: each key, number and collection is one; bits are put beside."""
    return sum(5 + 2 * len(part["numbers"]) if "numbers" in part else 8 for part in parts(logits))


def fitting(trophies: Sequence[Trophy]) -> list[Trophy]:
    """Return, in their order, as many as a params file holds."""
    room, found = ROOM, []
    for trophy in trophies:
        size = values(trophy.logits)
        if size <= room:
            room -= size
            found.append(trophy)
    return found


def written(
    checked: Params, trophies: Sequence[Trophy], seed: int, scratch: Path
) -> tuple[list[dict[str, Any]], bytes | None]:
    """Freeze a params file of rows and run it; return what each gave, and the file of those that gave the same again.

    A smaller row that gives another code on this device is tried once more as it was drawn.

    Parameters
    ----------
    checked : the params that were hunted, whose sources, host and device the file gets
    trophies : rows none of which passes
    seed : the hunt's
    scratch : an empty directory

    Raises ``ToppgateError`` as freezing and running do.
    """
    tried = fitting(trophies)
    gave = _tried(checked, tried, seed, scratch / "small") if tried else {}
    if [each for each in tried if gave[each.name] != each.suspect.code and each.logits is not each.suspect.logits]:
        tried = fitting([_again(each, gave[each.name]) for each in tried])
        gave |= _tried(checked, tried, seed, scratch / "whole") if tried else {}
    same = [each for each in tried if gave[each.name] == each.suspect.code]
    found = {each.name: each for each in tried}
    lines = [
        _line(found.get(each.name, each), gave.get(each.name) if each.name in found else None) for each in trophies
    ]
    return lines, _frozen(scratch / "rows.yml", checked, same, seed).read_bytes() if same else None


def _again(trophy: Trophy, gave: str) -> Trophy:
    if gave == trophy.suspect.code:
        return trophy
    return trophy.whole(f"as drawn: made smaller, it gives {gave} here")


def _line(trophy: Trophy, again: str | None) -> dict[str, Any]:
    """Return what the record says of a row; ``again`` is None where a params file has no room for it."""
    found = trophy.suspect
    named = {"case": trophy.name, "row": found.at, "kind": found.kind, "code": found.code, "cause": found.cause}
    return {**named, "tokens": trophy.logits.size, "how": trophy.how, "again": again}


def _tried(checked: Params, trophies: Sequence[Trophy], seed: int, scratch: Path) -> dict[str, str]:
    """Run rows as a params file would; return {case: the code of its first row}."""
    scratch.mkdir()
    frozen = params.read(_frozen(scratch / "rows.yml", checked, trophies, seed))
    provided = host.provide(frozen.host.model_dump(mode="json", exclude_unset=True), published.cache())
    run = seats.captured(scratch / "run", frozen)
    values = frozen.values()
    texts = {side: source.resolve(values[side], published.cache()).data for side in execute.SIDES}
    found = seats.evidence_of(run, execute.run_texts(run, texts, provided), provided)
    return {case.id: next(judge.decide(case, found.case(case))).code for case in frozen.cases}


def _frozen(path: Path, checked: Params, trophies: Sequence[Trophy], seed: int) -> Path:
    """Write and freeze a params file of rows."""
    copies = COPIES if checked.device == "cuda" else 1
    kept = {key: value for key, value in checked.values().items() if key not in {"frozen", "change", "cases"}}
    kept["title"] = "rows that a hunt found: exploratory"
    kept["notes"] = f"Found by toppgate hunt, seed {seed}; chosen because they stop. No evidence about ordinary rows."
    widest = max(each.logits.size for each in trophies)
    kept["limits"] = {**kept["limits"], "vocabulary": widest, "batch": copies, "rows": len(trophies) * copies}
    kept["cases"] = [_case(each, copies) for each in trophies]
    path.write_text(json.dumps(kept))
    freeze.freeze(path)
    return path


def _case(trophy: Trophy, copies: int) -> dict[str, Any]:
    found = trophy.suspect
    case = {
        "id": trophy.name,
        "about": f"Row {found.at} of the hunt, {found.kind}: {found.code}; {found.cause}. {trophy.how}"[:500],
        "role": "ordinary",
        "rows": {"kind": "literal", "rows": [parts(trophy.logits)], "copies": copies},
        "p": str(found.p),
        "selected_by": "hunt",
    }
    return case if copies > 1 else {**case, "compute_units": found.slices}
