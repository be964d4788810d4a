"""Pictures of one explored row.  Plots only draw: every number in them was computed by ``explore`` or ``trace``.

Colours are Okabe and Ito's, as in ``figures``; line styles and markers say the same without colour.
"""

from itertools import groupby
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toppgate.explore import Cut, Explored
from toppgate.trace import Trace

#: Of each set: colour and line style.
CUTS: Final = {"oracle": ("#4d4d4d", "-"), "stock": ("#d55e00", "--"), "patch": ("#0072b2", ":")}


def logits(explored: Explored) -> Figure:
    """Draw the sorted logits around the boundary, who of them is kept, the ties, and where each set ends."""
    figure, axes = _panel(3.8)
    window, ties = explored.window, explored.ties
    ranks = np.arange(window.first, window.first + window.logits.size)
    tied = window.logits == np.float32(ties.logit)
    named = {"s": (tied, "#009e73", f"the boundary's logit, {ties.last - ties.first + 1:,} tokens")}
    for marker, (those, colour, label) in {**named, "o": (~tied, "#4d4d4d", "other tokens")}.items():
        for kept, face in ((True, colour), (False, "white")):
            here = those & (window.kept == kept)
            style: dict[str, Any] = {"color": colour, "markerfacecolor": face, "markersize": 4, "linestyle": "none"}
            axes.plot(ranks[here], window.logits[here], marker=marker, **style)
        axes.plot([], [], marker=marker, color=colour, linestyle="none", markersize=4, label=label)
    axes.plot(
        [],
        [],
        marker="o",
        color="#4d4d4d",
        markerfacecolor="white",
        linestyle="none",
        markersize=4,
        label=f"hollow: {explored.row.side} masks it",
    )
    _cuts(axes, explored)
    axes.set_ylabel("logit")
    axes.legend(loc="lower left", frameon=False, fontsize=9)
    return figure


def mass(explored: Explored) -> Figure:
    """Draw how far the mass of each prefix around the boundary is from p."""
    figure, axes = _panel(3.6)
    window = explored.window
    ranks = np.arange(window.first, window.first + window.spare.size)
    axes.axhline(0.0, color="#009e73", linewidth=1.2, label="target: exactly p")
    axes.step(ranks, window.spare, where="post", color="#4d4d4d", linewidth=1.2, label="mass of the prefix, less p")
    _cuts(axes, explored)
    axes.set_ylabel("mass less p")
    axes.ticklabel_format(axis="y", scilimits=(-3, 3), useMathText=True)
    axes.legend(loc="lower right", frameon=False, fontsize=9)
    return figure


def search(trace: Trace) -> Figure:
    """Draw the search, a line a round: bracket, ladder, which pivots reach p, which one ended it or serves."""
    rounds = trace.rounds
    figure, axes = _panel(1.5 + 0.45 * max(len(rounds), 1))
    for number, found in enumerate(rounds, 1):
        axes.plot(
            [found.low, found.high], [number, number], color="#b0b0b0", linewidth=5, solid_capstyle="butt", zorder=1
        )
        reaches = found.mass >= trace.p
        for kind, marker, face in ((reaches, "o", "#0072b2"), (~reaches, "o", "white")):
            at = np.full(np.count_nonzero(kind), number)
            axes.plot(found.pivots[kind], at, marker, color="#0072b2", markerfacecolor=face, markersize=6, zorder=2)
    axes.plot([], [], "o", color="#0072b2", label="mass above reaches p")
    axes.plot([], [], "o", color="#0072b2", markerfacecolor="white", label="does not")
    if trace.pivot is not None:
        label = "pivot" if trace.ending == "converged" else "fallback pivot"
        axes.plot(trace.pivot, len(rounds), "*", color="#d55e00", markersize=15, zorder=3, label=label)
    axes.set_xscale("log")
    axes.set_ylim(len(rounds) + 0.6, 0.4)
    axes.set_yticks(range(1, len(rounds) + 1))
    axes.set_ylabel("round")
    axes.set_xlabel("probability; the bar is the bracket")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3, frameon=False, fontsize=9)
    return figure


def _panel(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(9.0, height), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e0e0e0", linewidth=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _cuts(axes: Axes, explored: Explored) -> None:
    """Draw where the sets end, between two ranks, and name them above the panel; some may share a line."""
    window = explored.window
    end = window.first + window.logits.size
    axes.set_xlim(window.first - 1, end)
    axes.set_xlabel("rank in canonical order: logit falling, then token id")
    for line, (last, cuts) in enumerate(groupby(sorted(explored.cuts, key=_last), key=_last)):
        same = list(cuts)
        colour, style = CUTS[same[0].name]
        inside = window.first <= last < end
        if inside:
            axes.axvline(last + 0.5, color=colour, linestyle=style, linewidth=1.8)
        place = last + 0.5 if inside else (window.first if last < window.first else end)
        names = ", ".join(f"{cut.name} keeps {cut.count:,}{'' if cut.prefix else ' with gaps'}" for cut in same)
        axes.annotate(
            names + ("" if inside else " (ends outside the picture)"),
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4 + 13 * line),
            textcoords="offset points",
            ha="right" if place > (window.first + end) / 2 else "left",
            color=colour,
            fontsize=9,
        )


def _last(cut: Cut) -> int:
    return cut.last
