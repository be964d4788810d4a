"""Pictures of one explored row.  Plots only draw: every number in them was computed by ``explore`` or ``trace``.

Colours are Okabe and Ito's, as in ``figures``; line styles and markers say the same without colour.
"""

from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from toppgate.explore import Explored
from toppgate.trace import Trace

#: Of each set: colour, line style, and the height of its label.
CUTS: Final = {
    "oracle": ("#4d4d4d", "-", 0),
    "stock": ("#d55e00", "--", 1),
    "patch": ("#0072b2", ":", 2),
}


def logits(explored: Explored) -> Figure:
    """Draw the sorted logits around the boundary, the ties among them, and where each set ends."""
    figure, axes = _panel(3.6)
    window, ties = explored.window, explored.ties
    ranks = np.arange(window.first, window.first + window.logits.size)
    tied = window.logits == np.float32(ties.logit)
    axes.plot(ranks[~tied], window.logits[~tied], "o", color="#4d4d4d", markersize=3, label="other tokens")
    label = f"the boundary's logit, {ties.last - ties.first + 1:,} tokens"
    axes.plot(ranks[tied], window.logits[tied], "s", color="#009e73", markersize=3.5, label=label)
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
    """Draw where each set ends, between two ranks, with its name above the panel, each name on a line of its own."""
    window = explored.window
    end = window.first + window.logits.size
    axes.set_xlim(window.first - 1, end)
    axes.set_xlabel("rank in canonical order: logit falling, then token id")
    for cut in explored.cuts:
        colour, style, line = CUTS[cut.name]
        inside = window.first <= cut.last < end
        if inside:
            axes.axvline(cut.last + 0.5, color=colour, linestyle=style, linewidth=1.8)
        place = cut.last + 0.5 if inside else (window.first if cut.last < window.first else end)
        text = f"{cut.name} keeps {cut.count:,}" + ("" if inside else " (its end is not shown)")
        side = "right" if place > (window.first + end) / 2 else "left"
        axes.annotate(
            text,
            (place, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 4 + 12 * line),
            textcoords="offset points",
            ha=side,
            color=colour,
            fontsize=9,
        )
