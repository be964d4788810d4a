"""What the pictures show, as numbers: computed from finished rows, small whatever their number.

Nothing here decides (contract, section 6, Diagnostics).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from toppgate import codes, gate

Row = Mapping[str, Any]

#: The pairs of kept sets whose difference has a mass: column, name.
MASSES: Final = (
    ("mass_stock", "stock and oracle"),
    ("mass_patch", "patch and oracle"),
    ("mass_stock_patch", "stock and patch"),
)

#: Outcomes of a row that did not stop: both masks are exactly the oracle's or not.
EXACT: Final = "pass, the oracle's mask"
NEAR: Final = "pass, another mask"

#: The most points of a curve: beyond, it is thinned evenly, its ends kept.
MOST_POINTS: Final = 400


@dataclass(frozen=True)
class Bound:
    """The count bound: of each ordinary row the oracle's count and the patch's difference from it.

    Attributes
    ----------
    points : (oracle's count, difference, whether it is accepted) to the number of such rows
    over : rows that are over the bound
    """

    points: Counter[tuple[int, int, bool]]

    @property
    def over(self) -> int:
        """How many rows are over the bound."""
        return sum(number for (_, _, within), number in self.points.items() if not within)


def count_bound(rows: Sequence[Row]) -> Bound:
    """Return what rule 6 sees in every ordinary row that has both counts."""
    points: Counter[tuple[int, int, bool]] = Counter()
    for row in rows:
        oracle, patch = row.get("kept_oracle"), row.get("kept_patch")
        if _ordinary(row) and oracle is not None and patch is not None:
            difference = abs(patch - oracle)
            points[oracle, difference, gate.count_within(difference, oracle)] += 1
    return Bound(points)


@dataclass(frozen=True)
class Tail:
    """How the mass of a difference is spread over the rows.

    Attributes
    ----------
    name : which two masks
    rows, zero : rows in which the mass is known; those in which it is 0
    curve : ascending masses above 0, each with the number of rows whose mass is at least that
    """

    name: str
    rows: int
    zero: int
    curve: tuple[tuple[float, int], ...]

    @property
    def largest(self) -> float:
        """The largest mass, 0 where no row differs."""
        return self.curve[-1][0] if self.curve else 0.0


def mass_tails(rows: Sequence[Row]) -> list[Tail]:
    """Return the tails of the three masses, over ordinary rows: forced ones and probes differ by design."""
    return [_tail(name, [row.get(key) for row in rows if _ordinary(row)]) for key, name in MASSES]


def _tail(name: str, values: Sequence[Any]) -> Tail:
    known = sorted(value for value in values if value is not None and math.isfinite(value))
    above = [value for value in known if value > 0]
    curve = [(value, len(above) - index) for index, value in enumerate(above)]
    step = max(1, math.ceil(len(curve) / MOST_POINTS))
    thin = curve[::step] + (curve[-1:] if curve and (len(curve) - 1) % step else [])
    return Tail(name, len(known), len(known) - len(above), tuple(thin))


@dataclass(frozen=True)
class Margins:
    """The oracle's boundary margin, the smaller of its two sides, against the row's outcome.

    Attributes
    ----------
    cells : (outcome, decade) to the number of rows; decade e holds margins from 10**e up to 10**(e + 1), and None
        those that are not above 0
    outcomes : the outcomes that occur, passes first, then stop codes in the order of the contract
    """

    cells: Counter[tuple[str, int | None]]
    outcomes: tuple[str, ...]

    def of(self, outcome: str) -> int:
        """How many rows have an outcome."""
        return sum(number for (name, _), number in self.cells.items() if name == outcome)


def margins(rows: Sequence[Row]) -> Margins:
    """Return margin and outcome of every ordinary row that has a boundary."""
    cells: Counter[tuple[str, int | None]] = Counter()
    for row in rows:
        margin = row.get("margin")
        if _ordinary(row) and margin:
            least = min(margin["below"], margin["above"])
            cells[_outcome(row), math.floor(math.log10(least)) if least > 0 else None] += 1
    known = (EXACT, NEAR, *codes.SENTENCES)
    found = {outcome for outcome, _ in cells}
    return Margins(cells, (*(name for name in known if name in found), *sorted(found - set(known))))


def _ordinary(row: Row) -> bool:
    return row.get("role") in codes.ORDINARY_ROLES


def _outcome(row: Row) -> str:
    if row.get("code") != codes.PASS:
        return str(row.get("code"))
    return EXACT if row.get("equal_patch") is True else NEAR
