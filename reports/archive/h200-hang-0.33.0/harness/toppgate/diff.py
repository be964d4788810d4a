"""``toppgate diff``: what is otherwise in one sealed run than in another.

Rows are matched by case, row and the digest of the case's input, so a row over other bytes is another row.  Only what
the receipts bind is compared, and that is checked; whether a run's judgement holds is ``verify``'s question.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from toppgate import codes, digests, show
from toppgate.errors import RunError

Record = Mapping[str, Any]
Name = tuple[str, int]

#: Columns that say what was kept; everything else in a row follows from them and the input.
COUNTS: Final = ("kept_oracle", "kept_stock", "kept_patch", "symdiff_stock", "symdiff_patch", "symdiff_stock_patch")

#: Lines of one kind that the text shows; ``--json`` has all.
MOST: Final = 40


@dataclass(frozen=True)
class Sealed:
    """What of a sealed run is compared; ``rows`` by case, row and input digest."""

    directory: Path
    receipt: Record
    verdict: Record
    rows: Mapping[tuple[str, int, str | None], Record]


@dataclass(frozen=True)
class Changed:
    """A row that is in both runs, and the values of what is not the same: column to [before, after]."""

    case: str
    row: int
    columns: dict[str, list[Any]]


@dataclass(frozen=True)
class Difference:
    """What differs.

    Attributes
    ----------
    run : what is said of the whole run and is not the same, by name: [before, after]
    codes : rows of both runs whose code changed, with every other change in them
    counts : rows of both runs with the same code in which a count changed
    appeared, vanished : rows of one run only, each [case, row, code]; a row over another input is both
    same : rows of both runs in which neither changed
    """

    run: dict[str, list[Any]]
    codes: list[Changed]
    counts: list[Changed]
    appeared: list[list[Any]]
    vanished: list[list[Any]]
    same: int

    @property
    def rows(self) -> bool:
        """Whether a row changed, appeared or vanished, or the verdict did."""
        return bool(self.codes or self.counts or self.appeared or self.vanished or "verdict" in self.run)

    def plain(self) -> dict[str, Any]:
        """Return the difference as JSON-like data."""
        return asdict(self)


def diff(before: Path, after: Path) -> Difference:
    """Return what differs between two sealed runs.

    Raises ``RunError`` where one is unsealed, cannot be read, or is not what its receipt names.
    """
    one, other = sealed(before), sealed(after)
    both = [key for key in one.rows if key in other.rows]
    found = [_changed(one.rows[key], other.rows[key]) for key in both]
    moved = [change for change in found if change.columns]
    return Difference(
        run=dict(_run(one, other)),
        codes=[change for change in moved if "code" in change.columns],
        counts=[change for change in moved if "code" not in change.columns],
        appeared=[_named(row) for key, row in other.rows.items() if key not in one.rows],
        vanished=[_named(row) for key, row in one.rows.items() if key not in other.rows],
        same=len(found) - len(moved),
    )


def sealed(directory: Path) -> Sealed:
    """Read a sealed run: its rows and verdict are the bytes that its receipt names.  Raises ``RunError``."""
    path = directory / "receipt.json"
    if not path.is_file():
        raise RunError(f"{directory}: unsealed: holds no receipt.json, so it is not a run")
    try:
        receipt = json.loads(path.read_bytes())
        named = {entry["name"]: entry["digest"]["sha256"] for entry in receipt["subject"]}
        for name in ("rows.jsonl", "verdict.json"):
            if digests.sha256_file(directory / name) != named[name]:
                raise RunError(f"{directory}: {name}: is not the file that the receipt names")
        inputs = receipt["predicate"]["inputs"] or {}
        rows = {(row["case"], row["row"], inputs.get(row["case"])): row for row in show.rows(directory, None, None)}
        return Sealed(directory, receipt["predicate"], show.verdict(directory), rows)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"{directory}: not a sealed run: {type(error).__name__}: {error}") from None


def _changed(before: Record, after: Record) -> Changed:
    columns = ("code", "role", *COUNTS)
    pairs = {key: [before.get(key), after.get(key)] for key in columns if before.get(key) != after.get(key)}
    return Changed(before["case"], before["row"], pairs)


def _named(row: Record) -> list[Any]:
    return [row["case"], row["row"], row["code"]]


def _run(one: Sealed, other: Sealed) -> Iterator[tuple[str, list[Any]]]:
    before, after = _said(one), _said(other)
    for name in before:
        if before[name] != after.get(name):
            yield name, [before[name], after.get(name)]


def _said(run: Sealed) -> dict[str, Any]:
    """Return what a run says of itself as a whole, and what it rests on, by name."""
    verdict, receipt = run.verdict, run.receipt
    first = verdict.get("first_stop") or {}
    where = "the run" if first.get("case") is None else f"{first['case']} row {first.get('row')}"
    sources = receipt.get("sources") or {}
    seen = ((receipt.get("environments") or {}).get("patch") or [{}])[0]
    return {
        "verdict": verdict.get("verdict"),
        "first stop": f"{where}: {first.get('code')}" if first else "none",
        **(verdict.get("counts") or {}),
        "patch's alone": verdict.get("unshared_stops"),
        "device": verdict.get("device"),
        "params": verdict.get("params"),
        "stock": sources.get("stock"),
        "patch": sources.get("patch"),
        "host": (receipt.get("host") or {}).get("sha256"),
        "harness": (receipt.get("verdict") or {}).get("harness"),
        **{name: seen.get(name) for name in ("torch", "triton", "driver")},
    }


def lines(found: Difference) -> Iterator[str]:
    """Yield the text of ``toppgate diff``."""
    for name, (before, after) in found.run.items():
        yield f"{name:<14} {_short(before)} -> {_short(after)}"
    ways = Counter(" -> ".join(change.columns["code"]) for change in found.codes)
    yield from (f"{'code':<14} {way} in {number}" for way, number in ways.most_common())
    # What passed before and stops now is what a reader looks for.
    stopped_now = sorted(found.codes, key=lambda change: change.columns["code"][0] != codes.PASS)
    yield from _rows("changed code", [_line(change) for change in stopped_now])
    yield from _rows("changed in counts", [_line(change) for change in found.counts])
    yield from _rows("appeared", [f"{case} row {row}: {code}" for case, row, code in found.appeared])
    yield from _rows("vanished", [f"{case} row {row}: {code}" for case, row, code in found.vanished])
    yield f"{'rows':<14} {found.same} the same in code and counts"


def _rows(what: str, texts: list[str]) -> Iterator[str]:
    if texts:
        yield f"{'rows':<14} {len(texts)} {what}"
    yield from (f"  {text}" for text in texts[:MOST])
    if len(texts) > MOST:
        yield f"  … and {len(texts) - MOST} more; --json has all"


def _line(change: Changed) -> str:
    said = ", ".join(f"{name} {before} -> {after}" for name, (before, after) in change.columns.items())
    return f"{change.case} row {change.row}: {said}"


def _short(value: Any) -> str:
    """Write a value of the run, a digest by its first digits."""
    text = str(value)
    return text[:12] if len(text) == 64 and " " not in text else text
