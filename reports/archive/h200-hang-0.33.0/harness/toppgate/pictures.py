"""Figures as fragments: an inline image, a caption, and a text alternative that states the finding."""

import base64
import io
from collections import Counter
from collections.abc import Sequence
from typing import Final

from markupsafe import Markup
from matplotlib.figure import Figure
from PIL import Image

from toppgate import diagnostics, figures
from toppgate.diagnostics import Bound, Margins, Tail
from toppgate.fragments import Record, fragment, plural

#: CSS pixels in an inch; the picture has more, for dense screens.
CSS_PIXELS: Final = 96

#: Colours of a picture, shades at edges included: a fifth of the bytes, and each within 13 of 255 on the pages drawn so
#: far.  Covering all colours, rather than the frequent ones, keeps those of a few marks among thousands.
PALETTE: Final = 128


def figure(drawing: Figure, alt: str, caption: str = "") -> Markup:
    """Return a figure as an inline PNG, the same bytes for the same drawing, with a text alternative."""
    whole, file = io.BytesIO(), io.BytesIO()
    drawing.savefig(whole, format="png")
    with Image.open(whole) as image:
        drawn = image.convert("RGB").quantize(PALETTE, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    drawn.save(file, format="png", optimize=True)
    width, height = (round(inches * CSS_PIXELS) for inches in drawing.get_size_inches())
    data = base64.b64encode(file.getvalue()).decode("ascii")
    return fragment("figure", data=data, alt=alt, caption=caption, width=width, height=height)


def gallery(rows: Sequence[Record]) -> Markup:
    """Return all pictures, the wide one first and the others side by side where there is room."""
    others = [difference_figure(rows), bound_figure(rows), mass_figure(rows), margin_figure(rows)]
    return fragment("gallery", wide=kept_figure(rows), others=others)


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


def bound_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of count differences beside the bound that rule 6 sets."""
    found = diagnostics.count_bound(rows)
    drawn = plural(found.points.total(), "ordinary row")
    caption = (
        f"How many tokens more or fewer the patch keeps than the oracle, {drawn}. Accepted are at most 3, or less than "
        "0.5 % of the oracle's count."
    )
    return figure(figures.bound(found), bound_finding(found), caption)


def mass_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of the probability mass of the differences."""
    tails = diagnostics.mass_tails(rows)
    caption = (
        "Probability mass of the tokens on which two masks differ: in how many ordinary rows it is at least so "
        "large. A row that differs in no token is in no curve. A mark ends each curve at its largest mass."
    )
    return figure(figures.mass_tails(tails), mass_finding(tails), caption)


def margin_figure(rows: Sequence[Record]) -> Markup:
    """Return the figure of boundary margins against outcomes."""
    found = diagnostics.margins(rows)
    caption = (
        "Ordinary rows by outcome, and by how near p is to a prefix that would move the oracle's boundary: the "
        "smaller of its two margins. Far left the sums all but tie; a stop further right has another cause."
    )
    return figure(figures.margins(found), margin_finding(found), caption)


def bound_finding(found: Bound) -> str:
    """Say in words what the figure of the count bound shows."""
    if not found.points:
        return "No row has both counts: nothing is drawn."
    (oracle, difference, _), _ = max(found.points.items(), key=lambda item: item[0][1])
    none = sum(number for (_, gap, _), number in found.points.items() if gap == 0)
    return (
        f"Of {plural(found.points.total(), 'row')}, the patch keeps as many tokens as the oracle in {none:,} and is "
        f"over the count bound in {found.over:,}. The largest difference is {plural(difference, 'token')}, where the "
        f"oracle keeps {oracle:,}."
    )


def mass_finding(tails: Sequence[Tail]) -> str:
    """Say in words what the figure of masses shows."""
    said = [
        f"{tail.name} differ in {tail.rows - tail.zero:,} of {plural(tail.rows, 'row')}, by a mass of at most "
        f"{tail.largest:.2g}"
        for tail in tails
    ]
    return f"{'; '.join(said).capitalize()}."


def margin_finding(found: Margins) -> str:
    """Say in words what the figure of margins shows."""
    if not found.cells:
        return "No row has a boundary margin: nothing is drawn."
    said = []
    for outcome in found.outcomes:
        known = [decade for name, decade in found.cells if name == outcome and decade is not None]
        where = f", margins from 1e{min(known)} to below 1e{max(known) + 1}" if known else ", no margin above 0"
        said.append(f"{outcome}: {plural(found.of(outcome), 'row')}{where}")
    return f"Boundary margin by outcome. {'; '.join(said)}."


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
