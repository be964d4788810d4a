"""What the stage notebooks show: stage results and rows, put into the shape that ``report`` draws."""

from collections.abc import Iterator, Mapping
from typing import Any

from toppgate import report, source, stage
from toppgate.judge import Judgement
from toppgate.stage import Run


def captured(run: Run, result: Mapping[str, Any]) -> str:
    """Return stage 1's table: every frozen case and the digest of the input that was captured."""
    cases = run.params.values()["cases"]
    return str(report.input_table([{**case, "sha256": result["inputs"].get(case["id"])} for case in cases]))


def executed(run: Run, result: Mapping[str, Any]) -> str:
    """Return stage 2's table: what each side delivered, case by case."""
    return str(report.execution_table(_executions(run, result)))


def _executions(run: Run, result: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for case in run.params.cases:
        for side, delivered in result["sides"].items():
            record = delivered["cases"].get(case.id)
            if record is not None:
                launches = record["launches"][0] if record["launches"] else []
                seen = {"launches": [launch["kernel"] for launch in launches]} if side != "sort" else {}
                slices = launches[0].get("slices") if launches else None
                yield {"case": case.id, "side": side, **record, **seen, "slices": slices}


def evidence(run: Run) -> dict[str, Any]:
    """Return what the verdict page says of the run's origin, from the stages' results."""
    first, second = stage.result(run.directory, "1_capture") or {}, stage.result(run.directory, "2_execute") or {}
    values = run.params.values()
    sides = second.get("sides", {})
    return {
        "git": first.get("git"),
        "host": second.get("host"),
        "environments": {name: side["environments"] for name, side in sides.items()},
        "sources": {
            **{side: {"describe": source.describe(values[side]), **_digest(sides, side)} for side in ("stock", "patch")},
            "hunks": values.get("change", {}).get("hunks", []),
        },
        "seconds": {name: _seconds(side) for name, side in sides.items()},
    }


def _digest(sides: Mapping[str, Any], side: str) -> dict[str, Any]:
    return {"sha256": sides[side]["source"], "blob": sides[side].get("blob")} if side in sides else {}


def _seconds(side: Mapping[str, Any]) -> float:
    """Seconds inside launches, all repeats; rounded, since no digit beyond that can be repeated."""
    return round(sum(sum(record["seconds"]) for record in side["cases"].values()), 1)


def verdict(run: Run, judged: Judgement) -> str:
    """Return the page's head: verdict, stops and what they say."""
    head = report.verdict(judged.verdict, run.params.values(), evidence(run))
    return str(head + report.stops(judged.verdict) if judged.verdict["stops"] else head)


def figures(judged: Judgement) -> str:
    """Return the two figures."""
    return str(report.kept_figure(judged.rows) + report.difference_figure(judged.rows))


def rows(judged: Judgement) -> str:
    """Return one line a case, then all rows."""
    return str(report.summary(judged.rows) + report.row_table(judged.rows))


def cases(run: Run) -> str:
    """Return the frozen case table."""
    return str(report.case_table(run.params.values()))


def provenance(run: Run, judged: Judgement) -> str:
    """Return where everything came from, and how to verify it."""
    return str(report.provenance(judged.verdict, run.params.values(), evidence(run)))
