"""``summary.md``: what a reviewer pastes into a pull request.  The verdict record in words, nothing computed.

Only what follows exactly from a run's files on any machine is in it, so ``verify`` compares it to the letter.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from toppgate import codes, reasons, report
from toppgate.fragments import spans
from toppgate.neighbourhood import Neighbourhood

Record = Mapping[str, Any]

NAME: Final = "summary.md"

#: Stops that are listed; the page has the others.
MOST: Final = 12

#: What would be read as Markdown or HTML in a table's cell.
SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|~#&@])")


def text(
    record: Record,
    params: Record,
    evidence: Record,
    rows: Sequence[Record],
    around: Mapping[tuple[Any, Any], Neighbourhood],
) -> str:
    """Return the summary.

    Parameters
    ----------
    record, params, rows : the verdict, the frozen values, every row
    evidence : as ``view.evidence`` gives it
    around : what lies around the boundary of stopped rows, by case and row
    """
    return "\n".join(_lines(record, params, evidence, rows, around)) + "\n"


def _lines(
    record: Record,
    params: Record,
    evidence: Record,
    rows: Sequence[Record],
    around: Mapping[tuple[Any, Any], Neighbourhood],
) -> Iterator[str]:
    title = _plain(params.get("title"))
    yield f"### toppgate: {record['verdict']}" + (f" – {title}" if title else "")
    yield ""
    stops = record["stops"]
    yield _first(stops[0], rows, around) if stops else "No row, case or run was stopped."
    yield from (f"\n> {_plain(banner)}" for banner in record["banners"])
    yield from ("", "| | |", "|---|---|")
    for name, value in _facts(record, params, evidence, rows):
        yield f"| {name} | {value} |"
    if stops:
        yield from ("", "<details><summary>Stops</summary>", "", "| case | row | code | stock in the patch's place |")
        yield "|---|---|---|---|"
        stock = {(row["case"], row["row"]): row["stock_code"] for row in rows}
        listed, more = report.listed(stops, MOST)
        for alike in listed:
            stop = alike[0]
            own = stock.get((stop["case"], stop["row"]))
            where = "the run" if stop["case"] is None else _plain(stop["case"])
            numbers = "" if stop["row"] is None else spans([each["row"] for each in alike])
            why = f": {_plain(stop['detail'])}" if stop.get("detail") else ""
            yield f"| {where} | {numbers} | {stop['code']}{why} | {own or ''} |"
        if more:
            yield f"| … | | {more:,} more | |"
        yield from ("", "</details>")
    yield from ("", f"*{'What this PASS says' if record['verdict'] == 'PASS' else 'What a PASS would have said'}:*")
    yield codes.STATEMENT


def _first(stop: Record, rows: Sequence[Record], around: Mapping[tuple[Any, Any], Neighbourhood]) -> str:
    name = stop["case"], stop["row"]
    row = next((row for row in rows if (row["case"], row["row"]) == name), {})
    where = "the run as a whole" if stop["case"] is None else f"case {_plain(stop['case'])}, row {stop['row']}"
    said = [codes.SENTENCES[stop["code"]], _plain(reasons.numbers(row, around.get(name))), _plain(stop.get("detail"))]
    return f"First stop: {where}: `{stop['code']}`. {' '.join(filter(None, said))}"


def _facts(record: Record, params: Record, evidence: Record, rows: Sequence[Record]) -> Iterator[tuple[str, str]]:
    for found in report.tally(rows):
        if found["rows"]:
            stock = "" if found["name"] == "Probes" else f"; stock itself {found['stock']:,}"
            yield found["name"], f"{found['passed']:,} of {found['rows']:,} passed{stock}"
    owners, upstream = report.owners(rows), report.upstream(rows, record)
    if owners:
        shared = f"{owners['shared']:,} shared with stock, {owners['patch']:,} the patch's alone"
        unjudged = f", {owners['neither']:,} on which stock was not judged" if owners["neither"] else ""
        yield "Stopped rows", f"{owners.total():,}: {shared}, {owners['stock']:,} stock's own{unjudged}"
    if upstream["cases"]:
        yield "Upstream's own test", f"accepts {upstream['accepted']:,} of {upstream['cases']:,} cases"
    environment = report.environment(evidence)
    device = environment.get("device") or "not recorded"
    cuda = "CUDA, " if params.get("device") == "cuda" else "Triton interpreter, **not CUDA evidence**, "
    yield "Evidence", cuda + _plain(device)
    versions = [f"{name} {environment[name]}" for name in ("torch", "triton", "python") if environment.get(name)]
    host = evidence.get("host") or {}
    versions += [f"host vllm {host['version']}"] if host.get("version") else []
    yield "Versions", _plain(", ".join(versions)) or "not recorded"
    for side in ("stock", "patch"):
        source = (evidence.get("sources") or {}).get(side)
        if source:
            yield side.capitalize(), f"{_plain(source.get('describe'))}, SHA-256 `{source.get('sha256')}`"
    yield "Params", f"SHA-256 `{record['params']}`"
    yield "Harness", f"SHA-256 `{record['harness']}`"
    yield "Run", f"`{record['run']}`; `toppgate verify DIR` derives all of it again from its files"


def _plain(value: object) -> str:
    """Write a text so that Markdown shows it as it is, on one line."""
    return "" if value is None else SPECIAL.sub(r"\\\1", " ".join(str(value).split()))
