"""Figures as fragments: an inline image, a caption, and a text alternative that states the finding."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from matplotlib.figure import Figure

from toppgate import figures
from toppgate.fragments import Record, fragment, plural

#: CSS pixels in an inch; the picture has more, for dense screens.
CSS_PIXELS: Final = 96


def figure(drawing: Figure, alt: str, caption: str = "") -> Markup:
    """Return a figure as an inline PNG, the same bytes for the same drawing, with a text alternative."""
    file = io.BytesIO()
    drawing.savefig(file, format="png", metadata={"Software": None}, pil_kwargs={"optimize": True})
    width, height = (round(inches * CSS_PIXELS) for inches in drawing.get_size_inches())
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return fragment("figure", data=data, alt=alt, caption=caption, width=width, height=height)


def kept_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of kept counts by row."""
    shown = sum(any(row.get(key) is not None for key, *_ in figures.KEPT) for row in rows)
    caption = (
        f"Tokens kept by row, {shown:,} of {plural(len(rows), 'row')}. A cross in a circle is a row on which patch and "
        "oracle keep equally many; 0 means that every token was masked."
    )
    return figure(figures.kept_counts(rows), kept_finding(rows), caption)


def difference_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of stock's and patch's symmetric differences from the oracle."""
    omitted = sum(not _comparable(row) for row in rows)
    caption = (
        f"Tokens in which a mask differs from the oracle's, {plural(len(rows) - omitted, 'row')}; a number beside a "
        "point counts the rows there."
    )
    if omitted:
        why = "no value for stock or patch (not evaluated, or stock cannot be compared)"
        caption += f" {plural(omitted, 'row')} omitted: {why}."
    return figure(figures.differences(rows), difference_finding(rows), caption)


def kept_finding(rows: Sequence[Record]) -> str:
    """Say in words what the figure of kept counts shows."""
    forced = [row for row in rows if row.get("role") == "forced"]
    if not rows:
        return "There is no row: nothing is drawn."
    both = [row for row in rows if row.get("kept_oracle") is not None and row.get("kept_patch") is not None]
    gaps = [abs(row["kept_patch"] - row["kept_oracle"]) for row in both]
    return (
        f"Tokens kept in {plural(len(rows), 'row')}. Of {plural(len(forced), 'forced row')} stock masks everything in "
        f"{_number(forced, 'kept_stock', 0)} and patch in {_number(forced, 'kept_patch', 0)}; patch keeps exactly one "
        f"token in {_number(forced, 'kept_patch', 1)}. Where oracle and patch both have a count "
        f"({plural(len(both), 'row')}), patch keeps as many tokens as the oracle in {gaps.count(0):,}; the largest gap "
        f"is {max(gaps, default=0):,}."
    )


def difference_finding(rows: Sequence[Record]) -> str:
    """Say in words what the figure of symmetric differences shows."""
    pairs = [(row["symdiff_stock"], row["symdiff_patch"]) for row in rows if _comparable(row)]
    if not pairs:
        return "No row has a symmetric difference for both stock and patch: nothing is drawn."
    signs = Counter((patch > stock) - (patch < stock) for stock, patch in pairs)
    return (
        f"Of {plural(len(pairs), 'row')}, patch is closer to the oracle than stock in {signs[-1]:,}, equally close in "
        f"{signs[0]:,} and further in {signs[1]:,}. The largest difference from the oracle is "
        f"{max(stock for stock, _ in pairs):,} tokens for stock and {max(patch for _, patch in pairs):,} for patch."
    )


def _comparable(row: Record) -> bool:
    return row.get("symdiff_stock") is not None and row.get("symdiff_patch") is not None


def _number(rows: Sequence[Record], key: str, value: int) -> int:
    return sum(row.get(key) == value and row.get(key) is not None for row in rows)
