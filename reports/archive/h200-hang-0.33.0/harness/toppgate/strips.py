"""A neighbourhood as a strip: who keeps which tokens around a row's boundary, as a small inline SVG.

Colours come from the page's style sheet; what they say is said by place and shape too: what a side keeps beyond the
oracle lies past the boundary's line, and what it has lost is hollow.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from markupsafe import Markup

from toppgate.fragments import fragment, plural
from toppgate.neighbourhood import Neighbourhood, Side

#: In CSS pixels: room for the sides' names, for the positions, and a lane's top and height.
LEFT: Final = 40
WIDTH: Final = 230
LANES: Final = {"oracle": 6, "stock": 18, "patch": 30}
LANE: Final = 8
HEIGHT: Final = 52

#: A run of one token among thousands is still drawn so wide.
LEAST: Final = 1.5

Runs = Iterable[tuple[int, int]]


def strip(around: Neighbourhood, name: str) -> Markup:
    """Return the strip, whose drawing has the id ``name``, with a text alternative that states the finding."""
    first, last = around.window
    count = around.count
    lanes = []
    for side, runs in (("oracle", ((0, count),)), ("stock", around.stock.runs), ("patch", around.patch.runs)):
        kept = list(runs)
        lost = _gaps(kept, first, min(count, last))
        parts = {"kept": _cut(kept, first, count), "extra": _cut(kept, max(first, count), last), "lost": lost}
        paths = {part: _path(around, found, LANES[side]) for part, found in parts.items()}
        lanes.append({"side": side, "y": LANES[side] + LANE - 1, **paths})
    edge = _x(around, count)
    ties = _path(around, _cut([around.ties], first, last), 0, 3) if around.ties[1] - around.ties[0] > 1 else ""
    return fragment(
        "strip",
        drawing=name,
        lanes=lanes,
        edge=f"{edge:.1f}",
        middle=LEFT + 50 < edge < WIDTH - 50,
        ties=ties,
        around=around,
        first=first,
        last=last - 1,
        finding=finding(around),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        foot=HEIGHT - 3,
        bottom=LANES["patch"] + LANE + 2,
    )


def again(around: Neighbourhood, name: str) -> Markup:
    """Return the strip once more, by reference to the drawing ``name`` on the same page."""
    return fragment("strip_again", drawing=name, finding=finding(around), width=WIDTH, height=HEIGHT)


def finding(around: Neighbourhood) -> str:
    """Say in words what the strip shows."""
    first, last = around.window
    ties = around.ties[1] - around.ties[0]
    tied = f" {ties:,} tokens are tied at the boundary." if ties > 1 else ""
    outside = f" {plural(around.outside, 'token')} that differ lie outside." if around.outside else ""
    return (
        f"Positions {first:,} to {last - 1:,} of the sorted row. The oracle keeps those below {around.count:,}; stock "
        f"{_side(around.stock)}; patch {_side(around.patch)}.{tied}{outside}"
    )


def _side(side: Side) -> str:
    if not side.missing and not side.extra:
        return "keeps the same"
    said = [f"loses {side.missing:,} of them"] if side.missing else []
    return " and ".join([*said, f"keeps {side.extra:,} beyond"] if side.extra else said)


def _cut(runs: Runs, first: int, last: int) -> list[tuple[int, int]]:
    """Return the runs as far as they lie inside [first, last)."""
    return [(max(first, begin), min(last, end)) for begin, end in runs if begin < last and end > first]


def _gaps(runs: Runs, first: int, last: int) -> list[tuple[int, int]]:
    """Return what lies between the runs inside [first, last)."""
    return list(_between(_cut(runs, first, last), first, last))


def _between(runs: Runs, first: int, last: int) -> Iterator[tuple[int, int]]:
    for begin, end in runs:
        if begin > first:
            yield first, begin
        first = end
    if first < last:
        yield first, last


def _x(around: Neighbourhood, position: int) -> float:
    first, last = around.window
    return LEFT + (WIDTH - LEFT) * (position - first) / (last - first)


def _path(around: Neighbourhood, runs: Runs, top: int, height: int = LANE) -> str:
    """Return the runs as rectangles of one SVG path."""
    parts = []
    for begin, end in runs:
        left = _x(around, begin)
        width = max(LEAST, _x(around, end) - left)
        parts.append(f"M{left:.1f} {top}h{width:.1f}v{height}h-{width:.1f}z")
    return "".join(parts)
