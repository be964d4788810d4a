"""The tokens around one row's boundary, and who keeps them: what a reader needs to see why a row stopped.

Positions count from 0 in the canonical order (logit descending, id ascending), so the oracle keeps the positions
below its count.  A neighbourhood is small whatever the vocabulary, and nothing in it decides.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from toppgate import masses
from toppgate.spec import Reference

#: Tokens listed on each side of the oracle's boundary, and on each side of the first and last token that differ.
AROUND: Final = 4
BESIDE: Final = 2

#: A strip shows every token that differs while no side's kept set falls into more runs; else only so many tokens on
#: each side of the boundary.
MOST_RUNS: Final = 32

#: The least number of tokens that a strip shows on each side of what it is about.
ROOM: Final = 4

Kept = NDArray[np.bool_]


@dataclass(frozen=True)
class Token:
    """One token: who keeps it, its binary64 weight, and the mass of the prefix that ends with it.

    ``beyond`` is that mass less p, exact before it is rounded: negative while the prefix has not reached p.
    """

    position: int
    id: int
    logit: float
    weight: float
    share: float
    beyond: float
    oracle: bool
    stock: bool
    patch: bool


@dataclass(frozen=True)
class Place:
    """A token by position, id and logit."""

    position: int
    id: int
    logit: float


@dataclass(frozen=True)
class Side:
    """One side's kept set beside the oracle's.

    Attributes
    ----------
    size, missing, extra : tokens that it keeps; that it masks and the oracle keeps; that it keeps and the oracle masks
    tied : how many it keeps of the tokens with the boundary token's logit
    lost : the first of the missing tokens, None where there is none
    hole, last : where the set is no canonical prefix, the first token that it masks although it keeps a later one, and
        the last one that it keeps; else None
    runs : the runs of kept positions inside the strip's window, each [first, past the last)
    """

    size: int
    missing: int
    extra: int
    tied: int
    lost: Place | None
    hole: Place | None
    last: Place | None
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Neighbourhood:
    """What lies around one row's boundary.

    Attributes
    ----------
    count : the oracle's count
    ties : positions [first, past the last) of the tokens with the boundary token's logit
    window : positions [first, past the last) that a strip shows
    outside : tokens outside the window on which two of the three sets differ
    stock, patch : the two sides
    tokens : some of the tokens, by position; where positions are left out, nothing is said of them
    """

    count: int
    ties: tuple[int, int]
    window: tuple[int, int]
    outside: int
    stock: Side
    patch: Side
    tokens: tuple[Token, ...]


def neighbourhood(reference: Reference, logits: NDArray[np.float32], stock: Kept, patch: Kept) -> Neighbourhood:
    """Return the neighbourhood of a row's boundary.

    Parameters
    ----------
    reference : Reference
        The row's reference, made from ``logits``; not checked.  It has a boundary.
    logits : float32 [V]
        The row, finite.
    stock, patch : bool [V]
        Kept sets, by token id.

    Raises
    ------
    ValueError
        The reference has no boundary: its scan never reached the target.
    """
    if reference.count < 1:
        raise ValueError("reference: the scan never reached the target, so there is no boundary")
    count, order = reference.count, reference.order
    ranked = logits[order]
    sets = {"oracle": np.arange(order.size) < count, "stock": stock[order], "patch": patch[order]}
    differ = np.flatnonzero((sets["stock"] != sets["oracle"]) | (sets["patch"] != sets["oracle"]))
    window = _window(count, differ, sets)
    equal = np.flatnonzero(ranked == ranked[count - 1])
    ties = (int(equal[0]), int(equal[-1]) + 1)
    listed = _listed(count, differ, order.size)

    def place(at: int) -> Place:
        return Place(at, int(order[at]), float(ranked[at]))

    return Neighbourhood(
        count=count,
        ties=ties,
        window=window,
        outside=int(np.count_nonzero((differ < window[0]) | (differ >= window[1]))),
        stock=_side(sets["stock"], place, count, ties, window),
        patch=_side(sets["patch"], place, count, ties, window),
        tokens=tuple(_tokens(reference, ranked, sets, listed)),
    )


def _window(count: int, differ: NDArray[Any], sets: dict[str, Kept]) -> tuple[int, int]:
    """Return the positions that a strip shows: all that differ, with some room, while it stays readable."""
    size = sets["oracle"].size
    first, last = (count, count) if differ.size == 0 else (min(count, int(differ[0])), max(count, int(differ[-1]) + 1))
    room = max(ROOM, (last - first) // 8)
    first, last = max(0, first - room), min(size, last + room)
    if max(len(_runs(kept[first:last])) for kept in sets.values()) > MOST_RUNS:
        first, last = max(0, count - MOST_RUNS), min(size, count + MOST_RUNS)
    return first, last


def _runs(kept: Kept) -> list[tuple[int, int]]:
    """Return the runs of True, each [first, past the last)."""
    edges = np.flatnonzero(np.diff(kept.astype(np.int8), prepend=0, append=0))
    return [(int(first), int(last)) for first, last in edges.reshape(-1, 2)]


def _listed(count: int, differ: NDArray[Any], size: int) -> list[int]:
    """Return the positions to list: around the boundary, around the first and around the last token that differ."""
    places = {at for at in range(count - AROUND, count + AROUND) if 0 <= at < size}
    for end in differ[[0, -1]].tolist() if differ.size else ():
        places |= {at for at in range(end - BESIDE + 1, end + BESIDE + 1) if 0 <= at < size}
    return sorted(places)


def _side(
    kept: Kept, place: Callable[[int], Place], count: int, ties: tuple[int, int], window: tuple[int, int]
) -> Side:
    held, lost = np.flatnonzero(kept), np.flatnonzero(~kept[:count])
    masked = np.flatnonzero(~kept[: held[-1]]) if held.size else held
    first, last = window
    return Side(
        size=int(held.size),
        missing=int(lost.size),
        extra=int(np.count_nonzero(kept[count:])),
        tied=int(np.count_nonzero(kept[slice(*ties)])),
        lost=place(int(lost[0])) if lost.size else None,
        hole=place(int(masked[0])) if masked.size else None,
        last=place(int(held[-1])) if masked.size else None,
        runs=tuple((begin + first, end + first) for begin, end in _runs(kept[first:last])),
    )


def _tokens(
    reference: Reference, ranked: NDArray[np.float32], sets: dict[str, Kept], listed: list[int]
) -> Iterator[Token]:
    found = masses.prefixes(reference, [at + 1 for at in listed])
    for at, (share, beyond) in zip(listed, found, strict=True):
        yield Token(
            position=at,
            id=int(reference.order[at]),
            logit=float(ranked[at]),
            weight=float(reference.weights[at]),
            share=share,
            beyond=beyond,
            **{side: bool(kept[at]) for side, kept in sets.items()},
        )
