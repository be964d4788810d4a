"""Finished rows to matplotlib figures.  Plots only draw: every number in them stands in the row table.

The size in bytes is bounded whatever the number of rows, because the figures are made to be saved as PNG.
Colours are Okabe and Ito's, told apart by colour-blind readers; the marker says the same without colour.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

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
    figure, axes = _panel(width=6.4, height=5.6)
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


def _plain(name: str) -> str:
    """Keep matplotlib's markup out of a name, and a long name short."""
    printable = "".join(letter if letter.isprintable() else " " for letter in name)
    short = printable if len(printable) <= 28 else printable[:27] + "…"
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
