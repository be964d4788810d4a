"""What there is to see of one row: the tokens around its boundary, the ties, and how little would move it.

Every number that the exploring notebook draws or prints is computed here, or comes from ``trace``.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toppgate import codes, masses, oracle, trace
from toppgate.errors import RunError
from toppgate.fp32 import Float32
from toppgate.rerun import Kernel
from toppgate.row import Row
from toppgate.trace import Explained, TiedBlock, Trace

#: Ranks shown on each side of what lies between the cuts, and the most that are shown.
AROUND: Final = 12
MOST: Final = 400


@dataclass(frozen=True)
class Cut:
    """Where one kept set ends.

    ``count`` tokens, the lowest of them at ``last``, counted from 1 in canonical order; ``prefix``: no token above is
    missing.  ``spare`` is the set's mass less p, ``shorter`` the same without its lowest token; exact sums.
    """

    name: str
    count: int
    last: int
    prefix: bool
    spare: float
    shorter: float


@dataclass(frozen=True)
class Ties:
    """The tokens with the boundary's logit: ranks ``first`` to ``last`` from 1, and how many of them each set keeps."""

    logit: float
    first: int
    last: int
    kept: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Window:
    """The ranks from ``first`` on, counted from 1.

    ``logits`` is float32 [n]; ``spare``, float64 [n], is the mass of each prefix less p; ``kept``, bool [n], is what
    the side keeps whose search is shown.
    """

    first: int
    logits: Float32
    spare: NDArray[np.float64]
    kept: NDArray[np.bool_]


@dataclass(frozen=True)
class Moved:
    """What is kept when p is another: the oracle's count, and the kernel's."""

    p: float
    by: str
    oracle: int
    kernel: int


@dataclass(frozen=True, eq=False)
class Searched:
    """A kernel's search for this row, why its mask is as it is, whether it is the run's, and where the ties are.

    ``exact_mass`` is the mass above the pivot, which the kernel has as a sum in fp32; None where there is no pivot.
    """

    side: str
    trace: Trace
    exact_mass: float | None
    explained: Explained
    same_mask: bool
    blocks: tuple[TiedBlock, ...]
    moved: tuple[Moved, ...]


@dataclass(frozen=True, eq=False)
class Explored:
    """One row, explored."""

    row: Row
    cuts: tuple[Cut, ...]
    ties: Ties
    window: Window
    searched: Searched | None


def stopped_first(directory: Path) -> list[tuple[str, int, str]]:
    """Return (case, row, code) of a run's rows, those that stopped before the others.  Raises ``RunError``."""
    try:
        table = [json.loads(line) for line in (directory / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{directory}: rows.jsonl cannot be read: {error}") from None
    found = [(row["case"], row["row"], row["code"]) for row in table]
    return sorted(found, key=lambda row: row[2] == codes.PASS)


def explore(row: Row, kernel: Kernel | None = None) -> Explored:
    """Return what there is to see of a row; with a kernel, of its search too, which takes some seconds.

    Raises ``RunError`` where the kernel cannot be run, or searches in another way than ``trace`` knows.
    """
    sets = {"oracle": row.reference.kept(), **{side: output.kept for side, output in row.outputs.items()}}
    cuts = tuple(_cut(row, name, kept) for name, kept in sets.items())
    ties = _ties(row, sets)
    searched = None if kernel is None else search(row, kernel)
    return Explored(row, cuts, ties, _window(row, cuts, ties), searched)


def search(row: Row, kernel: Kernel) -> Searched:
    """Run the row again on a kernel, named for its side, and replay its search; also at the p next to the row's."""
    slices = row.slices(kernel.name if kernel.name in row.outputs else "patch")
    less, more = np.nextafter(row.p, np.float32(0)), np.nextafter(row.p, np.float32(1))
    ps = np.array([row.p, less, more])
    ran, *near = kernel.run(np.stack([row.logits] * ps.size), ps, slices)
    found = trace.replay(ran.workspace, row.p)
    explained = trace.explain(found, row.logits, ran.output.kept, row.reference.kept(), ran.workspace.layout.mask_block)
    moved = tuple(
        Moved(float(p), by, oracle.reference(row.logits, p).count, each.output.size)
        for by, p, each in (("one ulp less", less, near[0]), ("as it is", row.p, ran), ("one ulp more", more, near[1]))
    )
    had = row.outputs.get(kernel.name)
    same = had is not None and np.array_equal(had.kept, ran.output.kept)
    blocks = trace.tied_blocks(found, row.logits, ran.output.kept, ran.workspace.layout.mask_block)
    above = None if found.pivot is None else trace.probabilities(found, row.logits) > found.pivot
    mass = None if above is None else masses.mass(row.reference, above)
    return Searched(kernel.name, found, mass, explained, same, tuple(blocks), moved)


def _cut(row: Row, name: str, kept: NDArray[np.bool_]) -> Cut:
    ranks = np.flatnonzero(kept[row.reference.order])
    lowest = int(ranks[-1]) if ranks.size else -1
    shorter = kept.copy()
    shorter[row.reference.order[lowest]] &= lowest < 0
    p = row.reference.p
    spare = [masses.mass(row.reference, tokens) - p for tokens in (kept, shorter)]
    return Cut(name, ranks.size, lowest + 1, ranks.size == lowest + 1, *spare)


def _ties(row: Row, sets: Mapping[str, NDArray[np.bool_]]) -> Ties:
    ranked = row.logits[row.reference.order]
    logit = ranked[row.reference.count - 1]
    tied = np.flatnonzero(ranked == logit)
    tokens = row.reference.order[tied]
    kept = {name: int(np.count_nonzero(each[tokens])) for name, each in sets.items()}
    return Ties(float(logit), int(tied[0]) + 1, int(tied[-1]) + 1, kept)


def _window(row: Row, cuts: tuple[Cut, ...], ties: Ties) -> Window:
    """Return the ranks around the cuts, and around the ties as far as there is room."""
    size = row.reference.order.size
    ends = [cut.last for cut in cuts if cut.last] or [row.reference.count]
    first, last = min(ends), max(ends)
    first, last = max(min(first, ties.first), first - MOST // 4), min(max(last, ties.last), last + MOST // 4)
    middle = row.reference.count
    first, last = max(first - AROUND, middle - MOST, 1), min(last + AROUND, middle + MOST, size)
    tokens = row.reference.order[first - 1 : last]
    spare = row.reference.weights.cumsum() / row.reference.normalizer - row.reference.p
    return Window(first, row.logits[tokens], spare[first - 1 : last], row.outputs[row.side].kept[tokens])
