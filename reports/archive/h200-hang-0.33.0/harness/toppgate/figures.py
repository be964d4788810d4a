"""Finished rows, and the numbers of ``diagnostics``, to matplotlib figures.  Plots only draw.

The size in bytes is bounded whatever the number of rows, because the figures are made to be saved as PNG.
Colours are Okabe and Ito's, told apart by colour-blind readers; the marker says the same without colour.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from toppgate import gate
from toppgate.diagnostics import Bound, Margins, Tail

Row = Mapping[str, Any]

#: Series of the first figure: key, label, marker, colour, relative area, filled.
KEPT: Final = (
    ("kept_oracle", "oracle (binary64)", "o", "#4d4d4d", 2.4, False),
    ("kept_stock", "stock", "v", "#d55e00", 1.0, True),
    ("kept_patch", "patch", "x", "#0072b2", 1.0, True),
)
MOST_LABELS: Final = 24
MOST_NUMBERS: Final = 24


def kept_counts(rows: Sequence[Row]) -> Figure:
    """Draw the number of tokens that oracle, stock and patch keep, by row in frozen order.

    Parameters
    ----------
    rows
        Finished rows; a null count is left out.

    Returns
    -------
    Figure
        One panel; the count axis is logarithmic above 1 and linear below, so that 0 (all masked) is on it.
    """
    figure, axes = _panel(width=10.0, height=4.6)
    area = max(4.0, min(34.0, 4000.0 / max(1, len(rows))))
    for key, label, marker, colour, scale, filled in KEPT:
        points = [(x, row[key]) for x, row in enumerate(rows) if _count(row.get(key))]
        face: dict[str, Any] = {"c": colour} if filled else {"facecolors": "none", "edgecolors": colour}
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.scatter(xs, ys, s=area * scale, marker=marker, linewidths=1.0, label=label, zorder=3, **face)
    _log_with_zero(axes, "y", [row.get(key) for row in rows for key, *_ in KEPT])
    axes.set_ylabel("tokens kept")
    axes.set_xlabel("rows in frozen order, by case")
    axes.set_xlim(-1, max(1, len(rows)))
    _case_axis(axes, rows)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


def differences(rows: Sequence[Row]) -> Figure:
    """Draw each row's symmetric difference from the oracle: stock across, patch up, and the line where both agree.

    Parameters
    ----------
    rows
        Finished rows; a row in which either value is null is left out.

    Returns
    -------
    Figure
        One panel.  Rows at the same point are drawn once, the area growing with their number, which is written
        beside the point while there are few of them.
    """
    figure, axes = _panel(width=6.4, height=5.0)
    drawn = [row for row in rows if _count(row.get("symdiff_stock")) and _count(row.get("symdiff_patch"))]
    values = [row[key] for row in drawn for key in ("symdiff_stock", "symdiff_patch")]
    top = _log_with_zero(axes, "x", values)
    _log_with_zero(axes, "y", values)
    axes.plot([0, top], [0, top], color="#4d4d4d", linewidth=1.0, zorder=2, label="equally far from the oracle")
    axes.fill_between([0, 1, top], [0, 1, top], top, color="#d55e00", alpha=0.08, linewidth=0)
    axes.text(0.11, 0.97, "patch is further: rule 7 stops", transform=axes.transAxes, va="top", color="#8a3d00")
    axes.text(0.97, 0.03, "patch is closer", transform=axes.transAxes, ha="right", color="#00527f")
    for passed, marker, colour, label in ((True, "o", "#0072b2", "row passed"), (False, "X", "#d55e00", "row stopped")):
        points = [
            (row["symdiff_stock"], row["symdiff_patch"]) for row in drawn if (row.get("code") == "pass") is passed
        ]
        _heaps(axes, Counter(points), marker, colour, label)
    axes.set_xlabel("tokens in which stock differs from the oracle")
    axes.set_ylabel("tokens in which patch differs from the oracle")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


def bound(found: Bound) -> Figure:
    """Draw how far the patch's count is from the oracle's, against the oracle's, beside what rule 6 accepts.

    Parameters
    ----------
    found
        ``diagnostics.count_bound`` of the rows.

    Returns
    -------
    Figure
        One panel; rows at the same point are drawn once.
    """
    figure, axes = _panel(width=6.4, height=5.0)
    points = found.points
    right = _log_with_zero(axes, "x", [oracle for oracle, _, _ in points])
    top = _log_with_zero(axes, "y", [difference for _, difference, _ in points])
    counts = sorted({1, *(step * 10**power for power in range(len(str(int(right)))) for step in range(1, 100))})
    counts = [count for count in counts if count <= right]
    accepted = [gate.count_bound(count) for count in counts]
    axes.plot(counts, accepted, color="#4d4d4d", linewidth=1.0, zorder=2, label="most that is accepted")
    axes.fill_between(counts, accepted, top, color="#d55e00", alpha=0.08, linewidth=0)
    axes.text(0.03, 0.97, "over the bound: rule 6 stops", transform=axes.transAxes, va="top", color="#8a3d00")
    for within, marker, colour, label in ((True, "o", "#0072b2", "within"), (False, "X", "#d55e00", "over")):
        heaps = Counter({(x, y): number for (x, y, inside), number in points.items() if inside is within})
        _heaps(axes, heaps, marker, colour, label)
    axes.set_xlim(0.8, right)
    axes.set_xlabel("tokens that the oracle keeps")
    axes.set_ylabel("tokens that the patch keeps more or fewer")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False)
    return figure


#: How the three curves of mass are told apart: colour, line, marker at the largest.
TAILS: Final = (("#d55e00", "--", "v"), ("#0072b2", "-", "x"), ("#4d4d4d", ":", "o"))


def mass_tails(tails: Sequence[Tail]) -> Figure:
    """Draw in how many rows two masks differ by at least a given probability mass.

    Parameters
    ----------
    tails
        ``diagnostics.mass_tails`` of the rows.

    Returns
    -------
    Figure
        One panel, both axes logarithmic; a curve ends, with its marker, at the largest mass.
    """
    figure, axes = _panel(width=6.4, height=5.0)
    for tail, (colour, line, marker) in zip(tails, TAILS, strict=True):
        masses, numbers = zip(*tail.curve, strict=True) if tail.curve else ((), ())
        label = f"{tail.name}: {tail.rows - tail.zero:,} of {tail.rows:,} rows"
        style: dict[str, Any] = {"color": colour, "linestyle": line, "linewidth": 1.8}
        axes.step(masses, numbers, where="pre", label=label, marker=marker, markevery=[-1] if masses else [], **style)
    drawn = [tail.curve for tail in tails if tail.curve]
    low = min((curve[0][0] for curve in drawn), default=1e-9)
    most = max((curve[0][1] for curve in drawn), default=1)
    axes.set(xscale="log", yscale="log", xlim=(low / 2, 1.5), ylim=(0.8, max(12.0, 2.0 * most)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel("probability mass of the difference")
    axes.set_ylabel("rows with at least that mass")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1, frameon=False)
    return figure


def margins(found: Margins) -> Figure:
    """Draw how many rows have which outcome, by the power of ten of the margin of the oracle's boundary.

    Parameters
    ----------
    found
        ``diagnostics.margins`` of the rows.

    Returns
    -------
    Figure
        One panel: a circle for each outcome and decade that occurs, its number written in it.
    """
    outcomes = found.outcomes
    figure, axes = _panel(width=6.4, height=5.0)
    decades = sorted({decade for _, decade in found.cells if decade is not None})
    drawn: list[int | None] = list(range(decades[0], decades[-1] + 1)) if decades else []
    drawn = [None, *drawn] if any(decade is None for _, decade in found.cells) else drawn
    places = {decade: at for at, decade in enumerate(drawn)}
    names = ["≤ 0" if decade is None else f"$10^{{{decade}}}$" for decade in drawn]
    for (outcome, decade), number in found.cells.items():
        x, y = places[decade], outcomes.index(outcome)
        colour = "#cfe3f1" if outcome.startswith("pass,") else "#f7d3b8"
        axes.scatter(
            [x], [y], s=170 + 110 * math.log10(number), c=colour, edgecolors="#4d4d4d", linewidths=0.6, zorder=3
        )
        axes.annotate(f"{number:,}", (x, y), ha="center", va="center", fontsize=8, color="#1b1f24", zorder=4)
    axes.set_xticks(range(len(drawn)), names)
    axes.set_yticks(range(len(outcomes)), [_wrapped(outcome) for outcome in outcomes], fontsize=9)
    axes.set(xlim=(-0.7, max(0.3, len(drawn) - 0.3)))
    axes.set(ylim=(max(1, len(outcomes)) - 0.4, -0.6))
    axes.set_xlabel("margin of the oracle's boundary, from this power of ten up")
    return figure


def _count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _panel(width: float, height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height), dpi=160, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e0e0e0", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _log_with_zero(axes: Axes, axis: str, values: Sequence[Any]) -> float:
    """Make one axis logarithmic above 1 and linear to 0; return its upper end, a power of ten."""
    largest = max((value for value in values if _count(value)), default=1)
    powers = len(str(largest))
    (axes.set_xscale if axis == "x" else axes.set_yscale)("symlog", linthresh=1, linscale=0.5)
    axes.set(**{f"{axis}lim": (-0.3, 10.0**powers)})
    ticks = {"x": axes.xaxis, "y": axes.yaxis}[axis]
    ticks.set_ticks([0, *(10**power for power in range(powers + 1))])
    ticks.set_minor_locator(NullLocator())
    ticks.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return float(10**powers)


def _case_axis(axes: Axes, rows: Sequence[Row]) -> None:
    """Name cases under the middle of their rows, as far as there is room, with lines between cases if there are few."""
    places, names, ends, start = [], [], [], 0
    for case, group in groupby(rows, key=lambda row: str(row.get("case"))):
        size = len(list(group))
        places.append(start + (size - 1) / 2)
        names.append(_plain(case))
        start += size
        ends.append(start - 0.5)
    for end in ends[:-1] if len(ends) <= MOST_LABELS else ():
        axes.axvline(end, color="#c8c8c8", linewidth=0.5, zorder=1)
    shown = list(_apart(places, start / MOST_LABELS))
    ticks, labels = [places[at] for at in shown], [names[at] for at in shown]
    axes.set_xticks(ticks, labels, rotation=30, ha="right", rotation_mode="anchor", fontsize=8)
    axes.grid(visible=False, axis="x")


def _apart(places: Sequence[float], least: float) -> Iterator[int]:
    """Yield the indices of places that are at least so far from the one before."""
    last = -least
    for index, place in enumerate(places):
        if place - last >= least:
            yield index
            last = place


def _wrapped(name: str, most: int = 18) -> str:
    """Break a long name after an underscore or a blank."""
    lines = [""]
    for part in re.split(r"(?<=[_ ])", _plain(name, 60)):
        lines = [*lines[:-1], lines[-1] + part] if len(lines[-1] + part) <= most else [*lines, part]
    return "\n".join(line.strip() for line in lines if line)


def _plain(name: str, most: int = 28) -> str:
    """Keep matplotlib's markup out of a name, and a long name short."""
    printable = "".join(letter if letter.isprintable() else " " for letter in name)
    short = printable if len(printable) <= most else printable[: most - 1] + "…"
    return short.replace("$", r"\$")


def _heaps(axes: Axes, points: Counter[tuple[int, int]], marker: str, colour: str, label: str) -> None:
    if not points:
        return
    xs, ys = zip(*points, strict=True)
    areas = [40.0 + 14.0 * min(12, number.bit_length() - 1) for number in points.values()]
    axes.scatter(xs, ys, s=areas, marker=marker, c=colour, alpha=0.8, linewidths=0, zorder=3, label=label)
    if len(points) > MOST_NUMBERS:
        return
    for (x, y), number in points.items():
        if number > 1:
            axes.annotate(f"{number:,}", (x, y), xytext=(7, 4), textcoords="offset points", fontsize=8, color="#333333")
