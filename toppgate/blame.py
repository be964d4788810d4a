"""The record of ``toppgate bisect`` to one HTML page, and as text: which hunks turn which rows."""

from collections.abc import Iterator
from typing import Any, Final

from toppgate import pages
from toppgate.fragments import Record, fragment, named

#: What happened to a row between the two ends, in words.
CHANGES: Final = {"fixed": "fixed", "broken": "broken", "stops": "stopped at both ends"}


def page(record: Record) -> str:
    """Return ``bisection.html``.  Nothing is decided here."""
    return pages.compose("Which hunk did it", fragment("bisection", record=record, findings=findings(record)))


def findings(record: Record) -> list[dict[str, Any]]:
    """Return rows with the same fate and the same hunks behind it together, each with a sentence, in frozen order."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for row in record["rows"]:
        told = (row["change"], row["stock"], row["patch"], tuple(row["alone"]), tuple(row["needed"]), row["together"])
        groups.setdefault(told, []).append(row)
    return [{**rows[0], "rows": len(rows), "where": _where(rows), "said": said(rows[0])} for rows in groups.values()]


def said(row: Record) -> str:
    """Say in one sentence which hunks turn a row."""
    alone, needed = " or ".join(row["alone"]), " and ".join(row["needed"])
    turn = "lifts" if row["stock"] != "pass" else "makes"
    if row["change"] == "stops" and not alone and not needed:
        return "No hunk, alone or left out, lifts the stop."
    if row["change"] == "stops":
        parts = [f"alone {alone} lifts it" if alone else "", f"leaving out {needed} lifts it" if needed else ""]
        return f"It stops at both ends; {', '.join(filter(None, parts))}."
    parts = [f"{alone} alone {turn} the stop" if alone else f"no hunk alone {turn} the stop"]
    parts += [f"the patch needs {needed} for it" if needed else "the patch needs no single one of them for it"]
    if row["together"] is not None:
        parts += [f"together these {'do' if row['together'] else 'do not do'} it"]
    return f"{'; '.join(parts)}.".capitalize() if not alone else f"{'; '.join(parts)}."


def lines(record: Record) -> Iterator[str]:
    """Yield the record as text for a terminal: hunks, what could not be run, findings."""
    for hunk in record["hunks"]:
        where = f"{hunk['sha256'][:12]} line {hunk['start']}, {hunk['function'] or 'between functions'}"
        comment = "" if hunk["code"] else ", comments alone"
        yield f"hunk        {where}: -{hunk['removed']} +{hunk['added']}{comment}"
    for pick in record["picks"]:
        if pick["problem"]:
            yield f"not run     {pick['how']} {' '.join(pick['hunks'])}: {pick['problem']}"
        elif pick["others"]:
            yield f"with        {pick['how']} {' '.join(pick['hunks'])}: only with {' '.join(pick['others'])}"
    for found in findings(record):
        yield f"{found['change']:11} {found['where']}: {found['stock']} to {found['patch']}. {found['said']}"


def _where(rows: list[Record]) -> str:
    """Name rows by their cases: ``case rows 0 to 3; other row 1``."""
    cases: dict[str, list[int]] = {}
    for row in rows:
        cases.setdefault(row["case"], []).append(row["row"])
    return "; ".join(f"{case} {named(n)}" for case, n in cases.items())
