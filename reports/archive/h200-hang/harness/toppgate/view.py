"""What the stage notebooks show: stage results and rows, handed to the modules that write them."""

from collections.abc import Mapping
from typing import Any

from toppgate import device, origin, pictures, report, source, stage
from toppgate.judge import Judgement
from toppgate.stage import Run


def captured(run: Run, result: Mapping[str, Any]) -> str:
    """Return stage 1's table: every frozen case and the digest of the input that was captured."""
    return str(origin.input_table(run.params.values(), result["inputs"]))


def executed(result: Mapping[str, Any]) -> str:
    """Return stage 2's table: what each side delivered, case by case."""
    return str(origin.execution_table(result["sides"]) + device.details(result))


def evidence(run: Run) -> dict[str, Any]:
    """Return what the verdict page says of the run's origin, from the stages' results."""
    first, second = stage.result(run.directory, "1_capture") or {}, stage.result(run.directory, "2_execute") or {}
    values, sides = run.params.values(), second.get("sides", {})
    described = {side: {"describe": source.describe(values[side])} for side in ("stock", "patch")}
    for side in described.keys() & sides.keys():
        described[side]["sha256"] = sides[side]["source"]
    return {
        "git": first.get("git"),
        "host": second.get("host"),
        "environments": {name: side["environments"][:1] for name, side in sides.items()},
        "sources": described,
        "kernels": origin.kernels_seen(sides),
        "seconds": {name: _seconds(side) for name, side in sides.items()},
    }


def _seconds(side: Mapping[str, Any]) -> float:
    """Seconds inside launches, all repeats, in tenths: no digit beyond that means anything."""
    return round(sum(sum(record["seconds"]) for record in side["cases"].values()), 1)


def verdict(run: Run, judged: Judgement) -> str:
    """Return the page's head: the verdict, and the stops where there are any."""
    around = judged.neighbourhoods
    head = report.verdict(judged.verdict, run.params.values(), evidence(run), judged.rows, around)
    return str(head + report.stops(judged.verdict, judged.rows, around) if judged.verdict["stops"] else head)


def figures(judged: Judgement) -> str:
    """Return the pictures."""
    return str(pictures.gallery(judged.rows))


def rows(run: Run, judged: Judgement) -> str:
    """Return one line a case, then all rows."""
    table = report.row_table(judged.rows, run.params.values(), judged.neighbourhoods)
    return str(report.summary(judged.rows, judged.verdict) + table)


def cases(run: Run) -> str:
    """Return the frozen case table."""
    return str(origin.case_table(run.params.values()))


def ran(run: Run, judged: Judgement) -> str:
    """Return how it ran: device, wall time and, on CUDA, what the change costs."""
    first, second = stage.result(run.directory, "1_capture") or {}, stage.result(run.directory, "2_execute") or {}
    return str(device.summary(first, second, len(judged.rows)))


def provenance(run: Run, judged: Judgement) -> str:
    """Return where everything came from, and how to verify it."""
    return str(origin.provenance(judged.verdict, run.params.values(), evidence(run)))
