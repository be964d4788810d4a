"""Why a split kernel kept what it kept: its search replayed in fp32 from the workspace that one row left.

Exploratory, and evidence of nothing: the gate judges masks, and no part of it knows this module.

The search looks for the *pivot*, a probability above which tokens are kept.  It holds a bracket ``(low, high)``, and
in each round measures a *ladder* of pivots, evenly spaced in the logarithm: for each, per slice, the mass of the tokens
above, the smallest probability above, and how many tokens have that one, all within 1e-9.  A pivot whose mass reaches
p, and would not without its smallest probability, ends the search.  Otherwise the bracket narrows; after the last
round, or when it cannot narrow, the *fallback* serves, the highest pivot seen whose mass reaches p.  Where the mass
above is more than p needs, of the tokens with the smallest probability (*ties*) only a *budget* is kept, lowest ids
first.

The mask kernels of vLLM 0.31.0, commit 0a1276e and 0.33.0 differ in two places, and a patch may differ in either: the
threshold is compared in logits or in probabilities, and in each block of a slice the ties are counted from the start of
the block or on from the block before.  No text is looked at: a ``Rule`` explains a row if it gives its mask exactly.
"""

from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from itertools import pairwise
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from toppgate.errors import RunError
from toppgate.fp32 import Float32

Kept = NDArray[np.bool_]

#: Constants of the kernels (vLLM 0.31.0 to 0.33.0): what counts as one probability, the least ratio of a bracket's ends
#: before and during the search, and the least probability that the bracket starts from.
BAND: Final = 1e-9
UNIFORM: Final = 1.0 + 1e-6
COLLAPSED: Final = 1.0 + 1e-7
FLOOR: Final = 1e-30

#: How a search can end, in words.
ENDINGS: Final = {
    "converged": "a pivot's mass reaches p, and would not without its ties",
    "collapsed": "the bracket cannot narrow; the fallback pivot serves",
    "out of rounds": "no pivot of the last round ends it; the fallback pivot serves",
    "nothing reaches p": "no pivot's mass reaches p, so the whole row is kept",
    "above the maximum": "the pivot is not below the largest probability, so the whole row is kept",
    "uniform": "all probabilities are nearly equal, so the whole row is kept",
}
WHOLE_ROW: Final = ("nothing reaches p", "above the maximum", "uniform")

NOTICE: Final = "exploratory, not evidence"

#: Slices that the text lists one by one.
FEW: Final = 4


@dataclass(frozen=True)
class Layout:
    """How a launch cuts its work: slices a row, pivots a round, rounds, and tokens a block of each of the kernels."""

    slices: int
    fanout: int
    rounds: int
    stats_block: int
    step_block: int
    mask_block: int


@dataclass(frozen=True, eq=False)
class Workspace:
    """What one row left behind.

    Attributes
    ----------
    stats : float32 [slices, 4]
        Of each slice the largest logit, the sum of ``exp(logit - largest)``, the smallest logit, how many are finite.
    parts : float32 [rounds, slices, fanout, 3]
        Of each round, slice and pivot the mass above, the smallest probability above, and how many tokens have it.
        NaN where the kernel wrote nothing, if the memory was NaN before.
    layout : Layout
        As launched.
    """

    stats: Float32
    parts: Float32
    layout: Layout

    @classmethod
    def of(cls, stats: Float32, parts: Float32, batch: int, layout: Layout) -> list[Self]:
        """Cut the rows of a batch out of the kernel's flat arrays, which are larger than what a launch uses."""
        each = (layout.slices * 4, layout.rounds * layout.slices * layout.fanout * 3)
        if stats.size < batch * each[0] or parts.size < batch * each[1]:
            want = f"{batch * each[0]} and {batch * each[1]}"
            raise RunError(f"workspace: {stats.size} and {parts.size} numbers, expected {want}")
        by_row = zip(
            stats[: batch * each[0]].reshape(batch, layout.slices, 4),
            parts[: batch * each[1]].reshape(batch, layout.rounds, layout.slices, layout.fanout, 3),
            strict=True,
        )
        return [cls(*row, layout) for row in by_row]


@dataclass(frozen=True, eq=False)
class Round:
    """One round: the bracket that it began with, what it measured, and what it chose.

    ``mass``, ``smallest`` and ``ties`` are float32 [pivots], over all slices; the same with ``slice_`` in front are
    [slices, pivots].  ``chosen`` is the pivot that ended the search, ``fallback`` the best so far; None is none.
    """

    low: float
    high: float
    pivots: Float32
    mass: Float32
    smallest: Float32
    ties: Float32
    slice_mass: Float32
    slice_smallest: Float32
    slice_ties: Float32
    chosen: int | None
    fallback: float | None


@dataclass(frozen=True, eq=False)
class Trace:
    """A whole search.

    Attributes
    ----------
    p, maximum, normalizer
        fp32: p, the largest logit, the sum of ``exp(logit - maximum)``.
    rounds
        Those that the search used; later ones are stale memory to the kernel.
    ending
        A key of ``ENDINGS``.
    pivot, mass, tie, ties, budget
        fp32: the pivot, the mass above, the smallest probability above, how many tokens count as having it, and how
        many of them may be kept.  None where the whole row is kept.
    slice_ties : float32 [slices]
        Ties that each slice reported.
    """

    p: np.float32
    maximum: np.float32
    normalizer: np.float32
    rounds: tuple[Round, ...]
    ending: str
    pivot: np.float32 | None = None
    mass: np.float32 | None = None
    tie: np.float32 | None = None
    ties: int = 0
    budget: int = 0
    slice_ties: Float32 | None = None

    @property
    def whole_row(self) -> bool:
        """Whether the kernel left the row as it was."""
        return self.ending in WHOLE_ROW


@dataclass(frozen=True)
class _Best:
    """The state that rounds hand on: the tightest pivot whose mass reaches p, and where it was measured."""

    pivot: np.float32
    at: tuple[int, int]


#: (round, pivots float32 [fanout], maximum, normalizer) -> parts of that round, float32 [slices, fanout, 3].
Measure = Callable[[int, Float32, np.float32, np.float32], Float32]


def replay(workspace: Workspace, p: np.float32) -> Trace:
    """Return the search that the kernel made, in its own arithmetic.

    Raises
    ------
    RunError
        The kernel wrote other rounds than the replay needs, so it searches in another way.
    """

    def measure(number: int, *_: object) -> Float32:
        if np.isnan(workspace.parts[number]).any():
            raise RunError(f"trace: round {number + 1} was never measured, but the replay did not end before it")
        parts: Float32 = workspace.parts[number]
        return parts

    found = search(workspace.stats, measure, p, workspace.layout)
    if not np.isnan(workspace.parts[len(found.rounds) :]).all():
        raise RunError(f"trace: the kernel measured more than the {len(found.rounds)} rounds that the replay needs")
    return found


def search(stats: Float32, measure: Measure, p: np.float32, layout: Layout) -> Trace:
    """Return the search over a row with these stats, whose rounds ``measure`` measures; fp32 as in the kernel."""
    largest, sums, smallest, _ = stats.T
    with np.errstate(all="ignore"):
        maximum = largest.max()
        normalizer = np.sum(sums * np.where(largest == -np.inf, np.float32(0), np.exp(largest - maximum)))
        low = np.maximum(np.exp(smallest.min() - maximum) / normalizer, np.float32(FLOOR))
        high = np.float32(1) / normalizer
        begun = Trace(p, maximum, normalizer, (), "uniform")
        return begun if high <= low * UNIFORM else _rounds(begun, (low, high), measure, layout)


def _rounds(begun: Trace, bracket: tuple[np.float32, np.float32], measure: Measure, layout: Layout) -> Trace:
    best: _Best | None = None
    rounds: list[Round] = []
    low, high = bracket
    for number in range(layout.rounds):
        pivots = ladder(low, high, layout.fanout)
        parts = measure(number, pivots, begun.maximum, begun.normalizer)
        found, best = _round(parts, (low, high), begun.p, best, number)
        rounds.append(found)
        if found.chosen is not None:
            return _at(begun, rounds, "converged", (number, found.chosen))
        reaches = found.mass >= begun.p
        low = np.maximum(low, np.max(pivots[reaches], initial=-np.inf))
        high = np.minimum(high, np.min(pivots[~reaches], initial=np.inf))
        if not high > low * COLLAPSED:
            break
    if best is None:
        return replace(begun, rounds=tuple(rounds), ending="nothing reaches p")
    return _at(begun, rounds, "out of rounds" if high > low * COLLAPSED else "collapsed", best.at)


def ladder(low: np.float32, high: np.float32, count: int) -> Float32:
    """Return ``count`` pivots between the ends of a bracket, evenly spaced in the logarithm, in fp32."""
    steps = np.arange(count, dtype=np.float32) + np.float32(1)
    pivots: Float32 = low * np.exp(np.log(high / low) * steps / np.float32(count + 1))
    return pivots


def _round(
    parts: Float32, bracket: tuple[np.float32, np.float32], p: np.float32, best: _Best | None, number: int
) -> tuple[Round, _Best | None]:
    slice_mass, slice_smallest, slice_ties = np.moveaxis(parts, -1, 0)
    mass, smallest = np.sum(slice_mass, axis=0), np.min(slice_smallest, axis=0)
    ties = np.sum(np.where(np.abs(slice_smallest - smallest) < BAND, slice_ties, np.float32(0)), axis=0)
    low, high = bracket
    pivots = ladder(low, high, len(mass))
    ends = np.flatnonzero((mass >= p) & (mass - smallest * ties < p))
    reaching = np.flatnonzero(mass >= p)
    if reaching.size and (best is None or pivots[reaching[-1]] > best.pivot):
        best = _Best(pivots[reaching[-1]], (number, int(reaching[-1])))
    chosen = int(ends[-1]) if ends.size else None
    fallback = None if best is None else float(best.pivot)
    measured = (mass, smallest, ties, slice_mass, slice_smallest, slice_ties)
    return Round(float(low), float(high), pivots, *measured, chosen, fallback), best


def _at(begun: Trace, rounds: list[Round], ending: str, at: tuple[int, int]) -> Trace:
    """Return the trace of a search that ended at a pivot, with the tie budget that follows from its mass."""
    number, slot = at
    found = rounds[number]
    pivot, mass, tie, ties = (array[slot] for array in (found.pivots, found.mass, found.smallest, found.ties))
    trace = replace(begun, rounds=tuple(rounds), ending=ending)
    if pivot * trace.normalizer >= 1.0:
        return replace(trace, ending="above the maximum")
    spare = np.trunc(np.maximum(mass - trace.p, np.float32(0)) / tie)
    budget = np.minimum(np.maximum(ties - spare, np.float32(1)), ties)
    reported = found.slice_ties[:, slot]
    per_slice = np.where(np.abs(found.slice_smallest[:, slot] - tie) < BAND, reported, np.float32(0))
    return replace(trace, pivot=pivot, mass=mass, tie=tie, ties=int(ties), budget=int(budget), slice_ties=per_slice)


# ---------------------------------------------------------------------------------------------- the mask


@dataclass(frozen=True)
class Rule:
    """How a mask kernel uses what the search found: two choices in which the known kernels differ."""

    threshold: Literal["probability", "logit"]
    counting: Literal["from each block's start", "on from block to block"]


#: Those of commit 0a1276e, vLLM 0.33.0, vLLM 0.31.0, and the fourth that could be.
RULES: Final = (
    Rule("probability", "from each block's start"),
    Rule("probability", "on from block to block"),
    Rule("logit", "from each block's start"),
    Rule("logit", "on from block to block"),
)


def kept(trace: Trace, logits: Float32, rule: Rule, block: int) -> Kept:
    """Return the tokens of a row, bool [V], that a mask kernel with this rule keeps.

    ``logits`` is float32 [V], the row that was traced; ``block`` the tokens that it takes at a time.
    """
    if trace.pivot is None or trace.slice_ties is None:
        return np.ones(logits.size, np.bool_)
    probability = probabilities(trace, logits)
    with np.errstate(all="ignore"):
        if rule.threshold == "probability":
            above: Kept = (probability > trace.pivot) | (logits == trace.maximum)
        else:
            above = logits > np.log(trace.pivot) + np.log(trace.normalizer) + trace.maximum
    if trace.budget >= trace.ties:
        return above
    tied = probability == trace.tie
    counted = np.empty(logits.size)
    before = np.cumsum([0.0, *trace.slice_ties])
    for number, (start, end) in enumerate(slice_bounds(logits.size, len(trace.slice_ties))):
        seen = before[number]
        for first in range(start, end, block):
            part = slice(first, min(first + block, end))
            counted[part] = seen + np.cumsum(tied[part])
            seen += np.count_nonzero(tied[part]) if rule.counting == "on from block to block" else 0
    above &= ~tied | (counted <= trace.budget)
    return above


def probabilities(trace: Trace, logits: Float32) -> Float32:
    """Return the row's probabilities as the kernel computes them, float32 [V]."""
    with np.errstate(all="ignore"):
        found: Float32 = np.exp(logits - trace.maximum) / trace.normalizer
    return found


def slice_bounds(vocabulary: int, slices: int) -> list[tuple[int, int]]:
    """Return the first token of each slice, and the one after its last."""
    length = -(-vocabulary // slices)
    edges = [min(number * length, vocabulary) for number in range(slices + 1)]
    return list(pairwise(edges))


@dataclass(frozen=True)
class TiedBlock:
    """A block of a slice that has ties: its first token, how many have exactly the tie's probability, how many stay."""

    slice_number: int
    first: int
    ties: int
    kept: int


def tied_blocks(trace: Trace, logits: Float32, observed: Kept, block: int) -> list[TiedBlock]:
    """Return the blocks with ties, in order; none where the budget holds all ties or the whole row is kept."""
    if trace.slice_ties is None or trace.budget >= trace.ties:
        return []
    tied = probabilities(trace, logits) == trace.tie
    found = []
    for number, (start, end) in enumerate(slice_bounds(logits.size, len(trace.slice_ties))):
        for first in range(start, end, block):
            here = tied[first : min(first + block, end)]
            ids = first + np.flatnonzero(here)
            if ids.size:
                found.append(TiedBlock(number, first, ids.size, int(np.count_nonzero(observed[ids]))))
    return found


# ---------------------------------------------------------------------------------------------- the cause


@dataclass(frozen=True)
class Cause:
    """A kept count less the oracle's, by the part of the kernel that made it: too many are positive.

    Attributes
    ----------
    search
        The pivot where the search ended, with a tie budget as for exact ties.
    bands
        Probabilities within 1e-9 of the tie, counted as ties.
    counting
        Ties counted by slice and block instead of over the row.
    threshold
        The pivot compared in logits instead of probabilities.
    unexplained
        What the replay does not give.
    """

    search: int = 0
    bands: int = 0
    counting: int = 0
    threshold: int = 0
    unexplained: int = 0

    @property
    def total(self) -> int:
        """The whole difference, in tokens."""
        return sum(astuple(self))

    @property
    def main(self) -> tuple[str, int]:
        """The part with most of the difference in its direction, and that direction, 1 or -1; 0 where there is none."""
        sign = (self.total > 0) - (self.total < 0)
        name = max(PARTS, key=lambda part: sign * getattr(self, part))
        return name, sign


#: What each part of a cause is, in words.
PARTS: Final = {
    "search": "where the search ended, its ties counted exactly",
    "bands": "probabilities within 1e-9 of the tie counted as ties",
    "counting": "ties counted by slice and block, not over the row",
    "threshold": "the pivot compared in logits, not in probabilities",
    "unexplained": "what the replay does not give",
}


@dataclass(frozen=True)
class Explained:
    """What explains a mask: the rules that give it exactly, none if none does, and the cause of its difference."""

    rules: tuple[Rule, ...]
    cause: Cause


def explain(trace: Trace, logits: Float32, observed: Kept, oracle: Kept, block: int) -> Explained:
    """Return why a mask has another count than the oracle's; ``observed`` and ``oracle`` are bool [V]."""
    given = {rule: kept(trace, logits, rule, block) for rule in RULES}
    rules = tuple(rule for rule in RULES if np.array_equal(given[rule], observed))
    nearest = rules[0] if rules else min(RULES, key=lambda rule: int(np.count_nonzero(given[rule] != observed)))
    plain = Rule("probability", nearest.counting)
    sizes = [
        int(np.count_nonzero(oracle)),
        *_nominal(trace, logits),
        int(np.count_nonzero(given[plain])),
        int(np.count_nonzero(given[nearest])),
        int(np.count_nonzero(observed)),
    ]
    return Explained(rules, Cause(*(after - before for before, after in pairwise(sizes))))


def _nominal(trace: Trace, logits: Float32) -> tuple[int, int]:
    """Return how many tokens pivot and budget mean: with ties counted exactly, and with the kernel's own count."""
    above = kept(trace, logits, Rule("probability", "on from block to block"), logits.size)
    if trace.pivot is None or trace.tie is None or trace.mass is None:
        return above.size, above.size
    probability = probabilities(trace, logits)
    above = (probability > trace.pivot) | (logits == trace.maximum)
    exact = int(np.count_nonzero(above & (probability == trace.tie)))
    others = int(np.count_nonzero(above)) - exact
    spare = int(max(float(trace.mass) - float(trace.p), 0.0) / float(trace.tie))
    return others + min(max(exact - spare, min(exact, 1)), exact), others + min(trace.budget, exact)


# ---------------------------------------------------------------------------------------------- in words


def lines(trace: Trace, explained: Explained) -> Iterator[str]:
    """Yield the search as text, round by round."""
    yield f"trace ({NOTICE}): p {trace.p!s}, normalizer {trace.normalizer!s}, largest logit {trace.maximum!s}"
    for number, found in enumerate(trace.rounds, 1):
        yield f"  round {number}: bracket {found.low:.9g} to {found.high:.9g}"
        yield f"    {'pivot':>16} {'mass above':>13} {'less ties':>13} {'tie value':>16} {'ties':>7}  by slice"
        for slot in range(len(found.pivots)):
            yield f"    {' '.join(_measured(found, slot))}{_mark(found, slot, trace.p)}"
    yield f"  ended: {trace.ending}: {ENDINGS[trace.ending]}"
    if not trace.whole_row:
        yield f"  pivot {trace.pivot!s}, mass above {trace.mass!s}, budget {trace.budget} of {trace.ties} ties"
    yield from (f"  {line}" for line in verdict_lines(explained))


def verdict_lines(explained: Explained) -> Iterator[str]:
    """Yield which rules give the mask, and where its difference from the oracle's count comes from."""
    if explained.rules == RULES:
        yield "mask: as any of the known rules gives it"
    else:
        rules = "; or ".join(f"threshold in {rule.threshold}, ties counted {rule.counting}" for rule in explained.rules)
        yield f"mask: {rules or 'none of the known rules gives it'}"
    cause = explained.cause
    yield f"kept less the oracle's: {cause.total:+d}"
    for part, said in PARTS.items():
        if getattr(cause, part):
            yield f"{getattr(cause, part):+d} by {part}: {said}"


def _measured(found: Round, slot: int) -> list[str]:
    mass, smallest, ties = found.mass[slot], found.smallest[slot], found.ties[slot]
    by_slice = found.slice_mass[:, slot]
    few = " ".join(f"{value:.7g}" for value in by_slice)
    slices = few if by_slice.size <= FEW else f"{by_slice.min():.7g} to {by_slice.max():.7g}"
    numbers = [f"{found.pivots[slot]:>16.9g}", f"{mass:>13.9g}", f"{mass - smallest * ties:>13.9g}"]
    return [*numbers, f"{smallest:>16.9g}", f"{ties:>7.0f}", f" {slices}"]


def _mark(found: Round, slot: int, p: Any) -> str:
    if slot == found.chosen:
        return "  chosen"
    return "  reaches p" if found.mass[slot] >= p else ""
