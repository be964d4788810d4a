"""Finished rows, verdict and params to HTML fragments, by jinja2 with autoescape.

Nothing is judged here.  Each function returns one fragment that is complete without JavaScript and without its
style sheet; ``pages`` adds the style.  Values are plain JSON; a key that is missing is shown as missing, never as
passed.  Contract, sections 6 and 7, says what the columns mean.
"""

import base64
import io
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

import numpy as np
from jinja2 import ChainableUndefined, Environment, PackageLoader
from markupsafe import Markup
from matplotlib.figure import Figure

from toppgate import codes, figures

Record = Mapping[str, Any]

#: CSS pixels in an inch; the picture has more, for dense screens.
CSS_PIXELS: Final = 96

MISSING: Final = "–"


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
    Column("Masks equal", "stock, oracle", ("equal_stock",), "flag"),
    Column("Masks equal", "patch, oracle", ("equal_patch",), "flag"),
    Column("", "Patch over-keeps", ("over_keep",), "flag"),
    Column("", "Stock by rules 4–6", ("stock_code",), "text"),
    Column("", "Oracle's ids, SHA-256", ("oracle_ids_sha256",), "digest"),
)


def verdict(record: Record, params: Record, evidence: Record | None = None) -> Markup:
    """Return the verdict in words, the first stop, counts, banners, the kind of evidence and what a PASS says.

    Acceptance is positive: only a record that says PASS and holds no stop is shown as one; a PASS that lists stops
    is shown as STOP, with a banner that says why.
    """
    title = str(params.get("title", ""))
    stops = list(record.get("stops") or [])
    first = record.get("first_stop")
    clean = not stops and not first
    contradiction = record.get("verdict") == "PASS" and not clean
    banners = [*(record.get("banners") or [])]
    if contradiction:
        banners.insert(0, "The verdict record contradicts itself: it says PASS and lists stops. It is shown as STOP.")
    return _fragment(
        "verdict",
        record=record,
        params=params,
        evidence=evidence or {},
        device=_device(evidence or {}),
        passed=record.get("verdict") == "PASS" and clean,
        first=first or (stops[0] if stops else None),
        banners=banners,
        demonstration="demonstration" in title.lower(),
        title=re.sub(r"^demonstration\W*", "", title, flags=re.IGNORECASE),
        statement=record.get("statement") or codes.STATEMENT,
    )


def stops(record: Record) -> Markup:
    """Return the list of all stops in frozen order, each with its plain sentence and a link to its row."""
    return _fragment("stops", stops=list(record.get("stops") or []))


def summary(rows: Sequence[Record], record: Record) -> Markup:
    """Return one line a case: rows, mask equality, the largest differences, the envelope against vLLM's sort.

    The envelope, and the number of stops that stock does not share, are the verdict's own (contract, section 6,
    Diagnostics); nothing here decides.
    """
    envelope = record.get("envelope") or {}
    cases = [_case_summary(case, group) | {"envelope": envelope.get(case)} for case, group in _by_case(rows)]
    return _fragment("summary", cases=cases, unshared=record.get("unshared_stops"))


def row_table(rows: Sequence[Record]) -> Markup:
    """Return all rows, one table a case, each row with the id ``row_id(case, row)``.

    A column in which a case has no value is left out of that case's table.  Where a row stopped, a check box that
    needs only the style sheet hides the rows that passed.
    """
    cases = [_case_rows(case, group) for case, group in _by_case(rows)]
    stopped = sum(not passed(row) for row in rows)
    return _fragment("rows", cases=cases, total=len(rows), stopped=stopped)


def case_table(params: Record) -> Markup:
    """Return the frozen case matrix: role, generator, shape, p, slices and the pinned digest of each input."""
    return _fragment("cases", cases=[_case(case) for case in params.get("cases") or []])


def provenance(record: Record, params: Record, evidence: Record) -> Markup:
    """Return sources and hunks, digests, host, environments, git revision, timing, and how to verify the run.

    *Freeze not witnessed* is said unless a revision and the path of the committed params file are both recorded.
    """
    git = evidence.get("git") or {}
    return _fragment(
        "provenance",
        record=record,
        params=params,
        evidence=evidence,
        git=git,
        witnessed=bool(git.get("revision")) and bool(git.get("params_path")),
        sources={side: _source(side, params, evidence) for side in ("stock", "patch")},
        hunks=(evidence.get("sources") or {}).get("hunks") or (params.get("change") or {}).get("hunks") or [],
    )


def input_table(params: Record, inputs: Record) -> Markup:
    """Return stage 1's captured inputs: each frozen case beside ``inputs[id]``, the SHA-256 of what was captured."""
    cases = [_case(case) for case in params.get("cases") or []]
    return _fragment("inputs", cases=[case | {"captured": inputs.get(case["id"])} for case in cases])


def execution_table(sides: Record) -> Markup:
    """Return stage 2's executions, one line a side and case.

    Parameters
    ----------
    sides
        The ``sides`` of ``2_execute.json``: side to ``cases``, each with ``code``, ``detail``, ``repeats`` (digests),
        ``launches`` (for each repeat, records with ``kernel`` and ``slices`` in order) and ``seconds``.
    """
    lines = [
        _execution(side, case, found)
        for side, record in sides.items()
        for case, found in (record.get("cases") or {}).items()
    ]
    return _fragment("executions", lines=lines)


def kept_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of kept counts by row; its text alternative states what it shows."""
    shown = sum(any(row.get(key) is not None for key, *_ in figures.KEPT) for row in rows)
    caption = f"Tokens kept by row, {shown:,} of {len(rows):,} rows; 0 means that every token was masked."
    return figure(figures.kept_counts(rows), kept_finding(rows), caption)


def difference_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of stock's and patch's symmetric differences from the oracle."""
    omitted = sum(not _comparable(row) for row in rows)
    caption = (
        f"Tokens that differ from the oracle, {len(rows) - omitted:,} rows; a number beside a point counts the rows "
        f"there. {_rows(omitted)} omitted: no value for stock or patch (not evaluated, or stock cannot be compared)."
    )
    return figure(figures.differences(rows), difference_finding(rows), caption)


def figure(drawing: Figure, alt: str, caption: str = "") -> Markup:
    """Return a figure as an inline PNG, the same bytes for the same drawing, with a text alternative."""
    file = io.BytesIO()
    drawing.savefig(file, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})
    width, height = (round(inches * CSS_PIXELS) for inches in drawing.get_size_inches())
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return _fragment("figure", data=data, alt=alt, caption=caption, width=width, height=height)


def kept_finding(rows: Sequence[Record]) -> str:
    """Say in words what the figure of kept counts shows."""
    forced = [row for row in rows if row.get("role") == "forced"]
    if not rows:
        return "There is no row: nothing is drawn."
    both = [row for row in rows if row.get("kept_oracle") is not None and row.get("kept_patch") is not None]
    gaps = [abs(row["kept_patch"] - row["kept_oracle"]) for row in both]
    return (
        f"Tokens kept in {_rows(len(rows))}. Of {len(forced):,} forced rows stock masks everything in "
        f"{_number(forced, 'kept_stock', 0)} and patch in {_number(forced, 'kept_patch', 0)}; patch keeps exactly one "
        f"token in {_number(forced, 'kept_patch', 1)}. Where oracle and patch both have a count ({_rows(len(both))}), "
        f"patch keeps as many tokens as the oracle in {gaps.count(0):,}; the largest gap is {max(gaps, default=0):,}."
    )


def difference_finding(rows: Sequence[Record]) -> str:
    """Say in words what the figure of symmetric differences shows."""
    pairs = [(row["symdiff_stock"], row["symdiff_patch"]) for row in rows if _comparable(row)]
    if not pairs:
        return "No row has a symmetric difference for both stock and patch: nothing is drawn."
    signs = Counter((patch > stock) - (patch < stock) for stock, patch in pairs)
    return (
        f"Of {_rows(len(pairs))}, patch is closer to the oracle than stock in {signs[-1]:,}, equally close in "
        f"{signs[0]:,} and further in {signs[1]:,}. The largest difference from the oracle is "
        f"{max(stock for stock, _ in pairs):,} tokens for stock and {max(patch for _, patch in pairs):,} for patch."
    )


def row_id(case: object, row: object = None) -> str:
    """Return the HTML id of a row, or of a case's table; different rows have different ids.

    Letters, digits, ``.``, ``-`` stay; any other character becomes ``_`` and its code point in hex and ``_``.
    """
    slug = re.sub(r"[^A-Za-z0-9.-]", lambda match: f"_{ord(match[0]):x}_", str(case))
    return f"case:{slug}" if row is None else f"{slug}-{row}"


def passed(row: Record) -> bool:
    """Tell whether a row's code is exactly ``pass``."""
    return row.get("code") == codes.PASS


def sentence(code: object) -> str:
    """Return the plain sentence of a stop code."""
    return codes.SENTENCES.get(str(code), "This version of toppgate does not know the code.")


def _by_case(rows: Sequence[Record]) -> list[tuple[str, list[Record]]]:
    return [(case, list(group)) for case, group in groupby(rows, key=lambda row: str(row.get("case")))]


def _case_rows(case: str, rows: Sequence[Record]) -> Record:
    columns = [column for column in COLUMNS if any(_at(row, column.path) is not None for row in rows)]
    return {
        "id": case,
        "rows": rows,
        "roles": _runs(row.get("role") for row in rows),
        "mixed": len({str(row.get("role")) for row in rows}) > 1,
        "columns": columns,
        "heads": [(name, list(members)) for name, members in groupby(columns, key=lambda column: column.group)],
        "stopped": sum(not passed(row) for row in rows),
    }


def _case_summary(case: str, rows: Sequence[Record]) -> dict[str, Any]:
    return {
        "id": case,
        "roles": _runs(row.get("role") for row in rows),
        "rows": len(rows),
        "passed": sum(map(passed, rows)),
        "equal_patch": _share(rows, "equal_patch"),
        "equal_stock": _share(rows, "equal_stock"),
        "differ": _largest(rows, "symdiff_stock_patch"),
        "mass": _largest(rows, "mass_stock_patch"),
        "over_keep": _share(rows, "over_keep"),
    }


def _case(case: Record) -> dict[str, Any]:
    return {
        **case,
        "id": case.get("id", case.get("case")),
        "roles": _runs(_list(case.get("role"))),
        "probabilities": _runs(_list(case.get("p"))),
        "bits": _runs(_list(case.get("p_bits"))),
        "expected": _runs(_list(case.get("expect") or case.get("code"))),
        "generator": _generator(case.get("rows")),
        "shape": tuple(case.get("shape") or (case.get("batch"), case.get("vocabulary"))),
    }


def _generator(rows: Any) -> str:
    """Write how rows are made: the kind, then its settings; literal numbers are cut short."""
    if not isinstance(rows, Mapping):
        return _short("–" if rows is None else rows)
    settings = [f"{key} {_generator(value)}" for key, value in rows.items() if key != "kind" and value is not None]
    return _short(f"{rows.get('kind', '–')}: {', '.join(settings)}" if settings else rows.get("kind", "–"))


def _execution(side: str, case: str, found: Record) -> Record:
    """Put one case's repeats together; paths that differ are all shown."""
    repeats, paths, seconds = (found.get(key) or [] for key in ("repeats", "launches", "seconds"))
    names = [_runs(launch.get("kernel") for launch in path) for path in paths if path]
    slices = {launch.get("slices") for path in paths for launch in path} - {None}
    return {
        "case": case,
        "side": side,
        "code": found.get("code"),
        "detail": found.get("detail"),
        "repeats": f"{len(repeats)}, {'equal' if len(set(repeats)) == 1 else 'different'}" if repeats else None,
        "launches": "; ".join(dict.fromkeys(names)) or None,
        "slices": ", ".join(sorted(map(str, slices))) or None,
        "seconds": ", ".join(f"{value:.2f}" for value in seconds) or None,
    }


def _source(side: str, params: Record, evidence: Record) -> Record:
    frozen = params.get(side) or {}
    found = (evidence.get("sources") or {}).get(side) or {}
    return {"frozen": frozen.get("sha256"), **found}


def _device(evidence: Record) -> Any:
    """Return the device that the first environment names; environments are listed, for each side or for all."""
    found = evidence.get("environments") or []
    listed = [item for group in found.values() for item in group] if isinstance(found, Mapping) else found
    return next((item["device"] for item in listed if item.get("device")), None)


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]


def _runs(values: Iterable[object]) -> str:
    """Write equal neighbours once: ``forced × 4, control``."""
    runs = [("–" if value is None else value, len(list(group))) for value, group in groupby(values)]
    if len(runs) == 1:
        return _short(runs[0][0])
    return _short(", ".join(f"{value} × {size}" if size > 1 else f"{value}" for value, size in runs), most=240)


def _short(value: object, most: int = 120) -> str:
    text = str(value)
    return text if len(text) <= most else text[: most - 1] + "…"


def _comparable(row: Record) -> bool:
    return row.get("symdiff_stock") is not None and row.get("symdiff_patch") is not None


def _number(rows: Sequence[Record], key: str, value: int) -> int:
    return sum(row.get(key) == value and row.get(key) is not None for row in rows)


def _share(rows: Sequence[Record], key: str) -> str:
    known = [row[key] for row in rows if row.get(key) is not None]
    return f"{sum(value is True for value in known):,} of {len(known):,}" if known else MISSING


def _largest(rows: Sequence[Record], key: str) -> Any:
    return max((row[key] for row in rows if row.get(key) is not None), default=None)


def _rows(number: int) -> str:
    return f"{number:,} row" if number == 1 else f"{number:,} rows"


def _at(row: Record, path: Sequence[str]) -> Any:
    value: Any = row
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _real(value: Any) -> str:
    """Write four digits, and the whole value a pointer away."""
    if not isinstance(value, float) or value in {0.0, 1.0}:
        return f"{value:g}" if isinstance(value, int | float) else str(value)
    return Markup('<span title="{}">{:.3e}</span>').format(repr(value), value)


def _probability(value: Any) -> str:
    """Write the shortest decimal of the fp32 number, and its binary64 value a pointer away."""
    if not isinstance(value, float):
        return str(value)
    return Markup('<span title="{}">{}</span>').format(repr(value), str(np.float32(value)))


WRITERS: Final[dict[str, Callable[[Any], str]]] = {
    "p": _probability,
    "count": _count,
    "real": _real,
    "flag": lambda value: {True: "yes", False: "no"}.get(value, str(value)),
    "text": str,
    "digest": lambda value: Markup('<code title="{}">{}</code>').format(value, str(value)[:12]),
}


def _write(value: Any, kind: str) -> str:
    """Write one value of a table; a null is a dash."""
    return MISSING if value is None or isinstance(value, _Missing) else WRITERS[kind](value)


class _Missing(ChainableUndefined):
    """A key that a record lacks: a dash on the page, false in a condition."""

    def __str__(self) -> str:
        return MISSING


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("toppgate", "templates/fragments"),
        autoescape=True,
        undefined=_Missing,
        finalize=lambda value: MISSING if value is None else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(write=_write, at=lambda row, column: _at(row, column.path))
    environment.globals.update(row_id=row_id, passed=passed, sentence=sentence)
    return environment


TEMPLATES: Final = _environment()


def _fragment(name: str, **values: Any) -> Markup:
    return Markup(TEMPLATES.get_template(f"{name}.html.j2").render(**values))  # noqa: S704 - autoescaped above
