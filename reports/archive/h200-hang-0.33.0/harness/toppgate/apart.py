"""``toppgate row``: one row of a run, run again and taken apart; and, if asked, exported."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from toppgate import explore, export, rerun, row, show, trace
from toppgate.explore import Explored
from toppgate.rerun import Kernel
from toppgate.shrink import Bench, Examined, Stopped, shrink
from toppgate.trace import Explained, Round, Trace


@dataclass(frozen=True)
class Told:
    """What the command says: lines of text, and the same as JSON-like data."""

    lines: tuple[str, ...]
    plain: dict[str, Any]


def traced(directory: Path, case: str, number: int) -> Told:
    """Run a row again on the kernel that it is about, and tell how its search went.

    Raises the errors of ``row.find``, of ``explore`` and of sources.  Side effects: a process, gone on return.
    """
    found = row.find(directory, case, number)
    with Kernel(found.side, row.texts(found.params)[found.side], row.provided(found.params)) as kernel:
        explored = explore.explore(found, kernel)
    searched = explored.searched
    if searched is None:
        raise AssertionError("a kernel was given, so there is a search")
    plain = _plain(searched.trace, searched.explained)
    plain |= {
        "side": searched.side,
        "same_mask": searched.same_mask,
        "exact_mass": searched.exact_mass,
        "moved": [asdict(each) for each in searched.moved],
    }
    return Told(tuple(_traced(directory, explored, searched)), {**_row(found), **plain})


def exported(directory: Path, case: str, number: int, target: Path, *, shrinking: bool) -> Told:
    """Export a row, small if asked, and tell what was written.

    Raises the errors of ``row.find``, ``shrink`` and ``export``.  Side effects: the directory ``target``; processes,
    gone on return.
    """
    export.check(target)
    found = row.find(directory, case, number)
    stopped = Stopped.of(found)
    with rerun.started(row.texts(found.params), row.provided(found.params)) as kernels:
        bench = Bench(stopped, kernels)
        shrunk = shrink(bench) if shrinking else None
        examined = bench.alone() if shrunk is None else shrunk.small
    written = export.export(found, examined, target, shrunk)
    lines = [] if shrunk is None else list(export.shrunk_lines(shrunk))
    lines.append(
        f"{found.side} keeps {examined.outputs[found.side].size} tokens, the oracle {examined.reference.count}"
    )
    lines += [f"wrote {target / name}" for name in written]
    sizes: dict[str, Any] = {"size": examined.size, "passing": sorted(examined.passing)}
    if shrunk is not None:
        sizes |= {"whole": shrunk.whole.size, "tried": shrunk.tried, "seconds": round(shrunk.seconds, 1)}
    return Told(
        tuple(lines), {**_row(found), **_fault(examined), **sizes, "export": str(target), "files": list(written)}
    )


def _row(found: row.Row) -> dict[str, Any]:
    return {"notice": trace.NOTICE, "case": found.case.id, "row": found.number, "code": found.table["code"]}


def _fault(examined: Examined) -> dict[str, Any]:
    return {"fault": asdict(examined.fault), "cause": asdict(examined.explained.cause)}


def _traced(directory: Path, explored: Explored, searched: explore.Searched) -> Iterator[str]:
    found = explored.row
    yield from show.lines(directory, found.case.id, found.number)
    ties = explored.ties
    kept = ", ".join(f"{name} keeps {count}" for name, count in ties.kept.items())
    yield f"  ranks {ties.first} to {ties.last} have the boundary's logit {ties.logit:.9g}; of these {kept}"
    same = "the mask is the run's" if searched.same_mask else "the mask is NOT the run's"
    yield f"{searched.side} again, alone, in Triton's interpreter: {same}"
    yield from trace.lines(searched.trace, searched.explained)
    if searched.exact_mass is not None:
        yield f"  the mass above that pivot is {searched.exact_mass:.9g} in binary64"
    for block in searched.blocks:
        yield f"  ties in slice {block.slice_number}, block from token {block.first}: {block.kept} kept of {block.ties}"
    for each in searched.moved:
        yield f"  p {each.by}, {each.p:.9g}: the oracle keeps {each.oracle}, {searched.side} {each.kernel}"


def _plain(found: Trace, explained: Explained) -> dict[str, Any]:
    numbers = {name: _number(getattr(found, name)) for name in ("p", "maximum", "normalizer", "pivot", "mass", "tie")}
    return {
        "trace": {**numbers, "ending": found.ending, "ties": found.ties, "budget": found.budget}
        | {"slice_ties": _listed(found.slice_ties), "rounds": [_round(each) for each in found.rounds]},
        "rules": [asdict(rule) for rule in explained.rules],
        "cause": asdict(explained.cause),
    }


def _round(found: Round) -> dict[str, Any]:
    return {name: _listed(value) for name, value in vars(found).items()}


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
