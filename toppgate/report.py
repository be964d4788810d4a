"""Finished rows and their verdict, to HTML fragments.

Nothing is judged here.  Contract, sections 6 and 7, says what the columns mean.
"""

import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from toppgate import codes, reasons, strips
from toppgate.fragments import MISSING, Record, at, fragment, named, passed, row_id, runs
from toppgate.neighbourhood import Neighbourhood

#: Neighbouring cases with at most so many rows share one table.
SMALL: Final = 3


class Column(NamedTuple):
    """One column of the row table: the heading over it, its own heading, where its value is, how it is written."""

    group: str
    label: str
    path: tuple[str, ...]
    kind: str


COLUMNS: Final = (
    Column("", "p, as fp32", ("p_fp32",), "p"),
    Column("Tokens kept", "oracle", ("kept_oracle",), "count"),
    Column("Tokens kept", "stock", ("kept_stock",), "count"),
    Column("Tokens kept", "patch", ("kept_patch",), "count"),
    Column("Tokens kept", "vLLM's sort", ("kept_sort",), "count"),
    Column("Tokens that differ", "stock, oracle", ("symdiff_stock",), "count"),
    Column("Tokens that differ", "patch, oracle", ("symdiff_patch",), "count"),
    Column("Tokens that differ", "stock, patch", ("symdiff_stock_patch",), "count"),
    Column("Probability mass of that difference", "stock, oracle", ("mass_stock",), "real"),
    Column("Probability mass of that difference", "patch, oracle", ("mass_patch",), "real"),
    Column("Probability mass of that difference", "stock, patch", ("mass_stock_patch",), "real"),
    Column("Oracle's boundary", "margin below", ("margin", "below"), "real"),
    Column("Oracle's boundary", "margin above", ("margin", "above"), "real"),
    Column("Oracle's boundary", "tied tokens", ("tie_group",), "count"),
    Column("Oracle's boundary", "true in the reals", ("real_boundary",), "text"),
    Column("Oracle's boundary", "margin ÷ error bound", ("real_ratio",), "real"),
    Column("Stop and boundary", "within fp32 reach", ("boundary_reach",), "text"),
    Column("Stop and boundary", "margin", ("reach_margin",), "real"),
    Column("Stop and boundary", "fp32 error", ("reach_error",), "real"),
    Column("Masks equal", "stock, oracle", ("equal_stock",), "flag"),
    Column("Masks equal", "patch, oracle", ("equal_patch",), "flag"),
    Column("", "Patch over-keeps", ("over_keep",), "flag"),
    Column("", "Stock in the patch's place", ("stock_code",), "text"),
    Column("", "Oracle's ids, SHA-256", ("oracle_ids_sha256",), "digest"),
)

#: What a reader wants to know of a stop before the whole row.
STOP_COLUMNS: Final = tuple(
    column for column in COLUMNS if column.label in {"oracle", "stock", "patch"} or column.path == ("stock_code",)
)

#: How many stopped rows the page takes apart, and how many stops it lists: its size is bounded whatever the matrix.
MOST_DETAILED: Final = 200
MOST_LISTED: Final = 400

Name = tuple[Any, Any]
Neighbourhoods = Mapping[Name, Neighbourhood]

NOTHING_KNOWN: Final[Neighbourhoods] = {}

#: What each class of rows is called, the roles in it, and what its rows must do.
CLASSES: Final = (
    ("Forced rows", ("forced",)),
    ("Ordinary rows", codes.ORDINARY_ROLES),
    ("Probes", ("probe",)),
)


def verdict(
    record: Record,
    params: Record,
    evidence: Record,
    rows: Sequence[Record],
    around: Neighbourhoods = NOTHING_KNOWN,
) -> Markup:
    """Return the verdict in words, the first stop, counts, banners, the kind of evidence and what a PASS says.

    Acceptance is positive: only a record that says PASS and holds no stop is shown as one; a PASS that lists stops
    is shown as STOP, with a banner that says why.
    """
    title = str(params.get("title") or "")
    stops = list(record.get("stops") or [])
    first = record.get("first_stop")
    clean = not stops and not first
    banners = [*(record.get("banners") or [])]
    if record.get("verdict") == "PASS" and not clean:
        banners.insert(0, "The verdict record contradicts itself: it says PASS and lists stops. It is shown as STOP.")
    first = first or (stops[0] if stops else None)
    row = next((row for row in rows if first and _name(row) == _name(first)), {})
    return fragment(
        "verdict",
        record=record,
        params=params,
        evidence=evidence,
        device=environment(evidence).get("device"),
        passed=record.get("verdict") == "PASS" and clean,
        first=first,
        numbers=reasons.numbers(row, around.get(_name(row))),
        tally=list(tally(rows)),
        owners=owners(rows) if stops else {},
        alone=record.get("unshared_stops"),
        banners=banners,
        demonstration="demonstration" in title.lower(),
        title=re.sub(r"^demonstration\W*", "", title, flags=re.IGNORECASE),
        statement=record.get("statement") or codes.STATEMENT,
    )


def stops(record: Record, rows: Sequence[Record], around: Neighbourhoods = NOTHING_KNOWN) -> Markup:
    """Return the stops in frozen order, each with its plain sentence, its numbers, its strip and a link to its row.

    Beyond ``MOST_LISTED`` lines only their number is said: the table of all rows has them too.
    """
    found = {_name(row): row for row in rows}
    drawn = {name for name, _ in _detailed(rows)}
    shown, more = listed(list(record.get("stops") or []), MOST_LISTED)
    lines = [_stop(alike, found.get(_name(alike[0]), {}), around, drawn) for alike in shown]
    return fragment("stops", stops=lines, more=more, columns=STOP_COLUMNS)


def listed(stops: Sequence[Record], most: int) -> tuple[list[list[Record]], int]:
    """Return the first lines of a list of stops, and how many stops are in none of them."""
    lines = list(islice(together(stops), most))
    return lines, len(stops) - sum(map(len, lines))


def together(stops: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield the stops of a case without evidence together, since one cause stopped all its rows; others one by one."""
    for _, alike in groupby(stops, _cause):
        yield list(alike)


def _cause(stop: Record) -> tuple[Any, ...]:
    what = (stop["code"], stop.get("detail")) if stop["code"] in codes.EVIDENCE else (stop.get("row"),)
    return (stop.get("case"), *what)


def _stop(alike: Sequence[Record], row: Record, around: Neighbourhoods, drawn: set[Name]) -> Record:
    stop = alike[0]
    seen = around.get(_name(stop)) if _name(stop) in drawn else None
    strip = seen and strips.strip(seen, _strip_id(row))
    where = None if stop.get("row") is None else named([each["row"] for each in alike])
    return {**stop, "rows": where, "values": row, "numbers": reasons.numbers(row, seen), "strip": strip}


def owners(rows: Sequence[Record]) -> Counter[str]:
    """Return how many stopped rows are ``shared`` with stock, the ``patch``'s, ``stock``'s own, or ``neither``."""
    return Counter(codes.owner(str(row.get("code")), row.get("stock_code")) for row in rows if not passed(row))


def summary(rows: Sequence[Record], record: Record) -> Markup:
    """Return one line a case: what this gate says beside what upstream's own test would have said, and differences.

    The envelope is the verdict's own (contract, section 6, Diagnostics); nothing here decides.
    """
    envelope = record.get("envelope") or {}
    cases = [_case_summary(case, group) | {"envelope": envelope.get(case)} for case, group in _by_case(rows)]
    return fragment("summary", cases=cases, upstream=upstream(rows, record), owners=owners(rows))


def upstream(rows: Sequence[Record], record: Record) -> dict[str, int]:
    """Return how many cases upstream's envelope was computed for, accepts, and accepts although rows of it stop."""
    stopped = {row.get("case") for row in rows if not passed(row)}
    envelope = record.get("envelope") or {}
    accepted = [case for case, found in envelope.items() if found.get("within") is True]
    return {"cases": len(envelope), "accepted": len(accepted), "stopped": sum(case in stopped for case in accepted)}


def row_table(rows: Sequence[Record], params: Record, around: Neighbourhoods = NOTHING_KNOWN) -> Markup:
    """Return all rows, one table a case, small neighbouring cases together; each row has the id ``row_id(case, row)``.

    A column in which a table has no value is left out of it.  Where a row stopped, check boxes that need only the
    style sheet hide the rows that passed, and put cases with stops first; below the row is why it stopped, folded.

    Parameters
    ----------
    rows
        Finished rows, in frozen order.
    params
        The frozen params: what each case is about.
    around
        What lies around the boundary of stopped rows, by case and row.
    """
    about = {str(case.get("id")): case.get("about") for case in params.get("cases") or []}
    cases = [{"id": case, "about": about.get(case), **_case(group)} for case, group in _by_case(rows)]
    stopped = [_name(row) for row in rows if not passed(row)]
    detailed = {name: _why(row, around.get(name)) for name, row in _detailed(rows)}
    tables = list(_tables(cases))
    return fragment("rows", tables=tables, total=len(rows), stopped=len(stopped), why=detailed, first=stopped[:1])


def _detailed(rows: Sequence[Record]) -> list[tuple[Name, Record]]:
    """Return the rows that the page takes apart: the first stops, so that its size is bounded."""
    return [(_name(row), row) for row in rows if not passed(row)][:MOST_DETAILED]


def _why(row: Record, around: Neighbourhood | None) -> Markup:
    """Return why a row stopped: its rule with its numbers, the tokens around its boundary, how to see it again."""
    case, number = shlex.quote(str(row.get("case"))), row.get("row")
    return fragment(
        "why",
        row=row,
        numbers=reasons.numbers(row, around),
        around=around,
        strip=around and strips.again(around, _strip_id(row)),
        ties=around and around.ties[1] - around.ties[0],
        again=f"toppgate row . {case} {number}" if around else None,
        show=f"toppgate show . --case {case} --row {number}",
    )


def _name(row: Record) -> Name:
    return row.get("case"), row.get("row")


def _strip_id(row: Record) -> str:
    return f"{row_id(row.get('case'), row.get('row'))}:strip"


def _by_case(rows: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    return [(case, list(group)) for case, group in groupby(rows, key=lambda row: str(row.get("case")))]


def _case(rows: Sequence[Record]) -> dict[str, Any]:
    return {"rows": rows, "roles": runs(row.get("role") for row in rows), "stopped": sum(not passed(r) for r in rows)}


def _tables(cases: Sequence[Record]) -> Iterator[Record]:
    """Yield the tables: large cases alone, neighbouring small ones together."""
    for small, group in groupby(cases, key=lambda case: len(case["rows"]) <= SMALL):
        neighbours = list(group)
        yield from map(_table, [neighbours] if small else [[case] for case in neighbours])


def _table(cases: Sequence[Record]) -> Record:
    rows = [row for case in cases for row in case["rows"]]
    columns = [column for column in COLUMNS if any(at(row, column.path) is not None for row in rows)]
    return {
        "cases": cases,
        "rows": len(rows),
        "stopped": sum(case["stopped"] for case in cases),
        "mixed": len({str(row.get("role")) for row in rows}) > 1,
        "after": all(row.get("after_stop") is True for row in rows),
        "columns": columns,
        "heads": [(name, list(members)) for name, members in groupby(columns, key=lambda column: column.group)],
    }


def tally(rows: Sequence[Record]) -> Iterator[Record]:
    """Yield each class of rows, judged apart: how many there are, of which roles, how many passed, and stock's."""
    for name, roles in CLASSES:
        members = [row for row in rows if row.get("role") in roles]
        yield {
            "name": name,
            "rows": len(members),
            "roles": [(role, sum(row.get("role") == role for row in members)) for role in roles],
            "passed": sum(map(passed, members)),
            "stock": sum(row.get("stock_code") == codes.PASS for row in members),
        }


def _case_summary(case: str, rows: Sequence[Record]) -> dict[str, Any]:
    return {
        "id": case,
        "roles": runs(row.get("role") for row in rows),
        "rows": len(rows),
        "passed": sum(map(passed, rows)),
        "owners": owners(rows),
        "equal_patch": _share(rows, "equal_patch"),
        "equal_stock": _share(rows, "equal_stock"),
        "differ": _largest(rows, "symdiff_stock_patch"),
        "mass": _largest(rows, "mass_stock_patch"),
        "over_keep": _share(rows, "over_keep"),
    }


def environment(evidence: Record) -> Record:
    """Return the first environment that names its device; environments are listed, for each side or for all."""
    found = evidence.get("environments") or []
    listed = [item for group in found.values() for item in group] if isinstance(found, Mapping) else found
    return next((item for item in listed if item.get("device")), {})


def _known(rows: Iterable[Record], key: str) -> list[Any]:
    return [row[key] for row in rows if row.get(key) is not None]


def _share(rows: Sequence[Record], key: str) -> str:
    known = _known(rows, key)
    return f"{sum(value is True for value in known):,} of {len(known):,}" if known else MISSING


def _largest(rows: Sequence[Record], key: str) -> Any:
    return max(_known(rows, key), default=None)
