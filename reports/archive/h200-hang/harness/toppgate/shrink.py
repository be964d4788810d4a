"""A smaller row with the same fault: the same stop code, for the same cause.

Shrinking on the code alone slips to other faults.  So a smaller row counts only if, run again on the interpreter, it is
stopped by the same code; its kept count is off in the same direction; ``trace`` explains the mask, and blames the same
part of the kernel; and every kernel that passed on the whole row passes on it.

Three ideas make it fast.  *Level*: tokens that lie together in the sorted row all get the logit at which their mass is
what it was, so the boundary stays where it is.  *Thin*: of the tokens on one level few are left, raised by what the
others weighed.  *Pack*: what is left keeps its slice and its order of blocks, and all else goes.  Rows are tried on an
emulation, and what comes of each step is run on the kernels themselves; a step that they do not confirm is undone.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from toppgate import codes, emulate, gate, oracle, trace
from toppgate.errors import RunError
from toppgate.fp32 import Float32
from toppgate.gate import Boundary, Output
from toppgate.rerun import Kernel
from toppgate.row import Row
from toppgate.trace import Explained, Layout, Rule, Trace

Tokens = NDArray[np.int64]

#: Seconds after which nothing further is tried.
SECONDS: Final = 45.0

#: Tokens a block and level to try, in turn.
FEW: Final = (1, 2, 4, 8)

#: Decimals to try for the logits of the result, in turn.
DECIMALS: Final = (0, 1, 2, 3)


@dataclass(frozen=True)
class Fault:
    """What must stay: the stop code, the part of the kernel to blame, the direction, and how a blamed search ended."""

    code: str
    part: str
    sign: int
    ending: str | None


@dataclass(frozen=True, eq=False)
class Examined:
    """Logits, float32 [V], and what the kernels make of them; ``block`` is how many tokens are masked at a time."""

    logits: Float32
    block: int
    reference: oracle.Reference
    outputs: Mapping[str, Output]
    trace: Trace
    explained: Explained
    fault: Fault
    passing: frozenset[str]

    @property
    def size(self) -> dict[str, int]:
        """How small the row is: its tokens, those that are not the commonest logit, and the distinct logits."""
        values, counts = np.unique(self.logits, return_counts=True)
        return {
            "vocabulary": self.logits.size,
            "tokens off background": self.logits.size - int(counts.max()),
            "distinct logits": values.size,
        }


@dataclass(frozen=True, eq=False)
class Shrunk:
    """The whole row, the smallest with the same fault, and how many rows were tried in how many seconds."""

    whole: Examined
    small: Examined
    tried: int
    seconds: float

    @property
    def sizes(self) -> str:
        """Each size before and after, in words."""
        before, after = self.whole.size, self.small.size
        return ", ".join(f"{name} {before[name]} to {after[name]}" for name in before)


@dataclass(frozen=True, eq=False)
class _Seen:
    """What one kernel made of one row."""

    output: Output
    trace: Trace
    layout: Layout


#: (name of a kernel, logits) -> what it makes of them; None where that cannot be said.
_See = Callable[[str, Float32], _Seen | None]


@dataclass(frozen=True, eq=False)
class Stopped:
    """An ordinary row that stops.

    Attributes
    ----------
    name, code
        The row in words, and its stop code.
    side, slices
        The kernel that is to blame, ``stock`` or ``patch``, and in how many slices it cuts the row.
    logits, p
        float32 [V] and fp32.
    """

    name: str
    code: str
    side: str
    slices: int
    logits: Float32 = field(repr=False)
    p: np.float32

    @classmethod
    def of(cls, row: Row) -> Self:
        """Take a row of a run.  Raises ``RunError`` where it is not an ordinary row that stopped."""
        if row.code in (codes.PASS, *codes.EVIDENCE) or row.case.roles()[row.number] == "forced":
            raise RunError(f"{row.name}: is not exported: only an ordinary row that stopped is")
        side = row.side
        return cls(row.name, row.code, side, row.slices(side), row.logits, row.p)


class Bench:
    """A row and its kernels, started by name, stock and patch among them: ready to run other logits in its place.

    ``subject`` names the kernel that is to blame, ``slices`` says in how many it cuts the row.
    """

    def __init__(self, row: Stopped, kernels: Mapping[str, Kernel]) -> None:
        self._row = row
        self.subject = row.side
        self.slices = row.slices
        self._kernels = kernels
        self._models: dict[str, tuple[Rule, Layout]] = {}

    def alone(self) -> Examined:
        """Examine the row as it is, and learn how each kernel masks.  Raises ``RunError`` where it stops otherwise."""
        row = self._row
        found = self.examine(row.logits)
        if found is None or found.fault.code != row.code:
            gives = "nothing" if found is None else found.fault.code
            raise RunError(f"{row.name}: is not exported: alone, on the interpreter, it gives {gives}, not {row.code}")
        return found

    def examine(self, logits: Float32, like: Fault | None = None) -> Examined | None:
        """Run logits through all kernels; None, as soon as it is seen, where the fault is not ``like`` that one."""
        return self._examine(logits, like, self._run)

    def predict(self, logits: Float32, like: Fault) -> Examined | None:
        """Examine on the emulation what was learned of; kernels whose mask it does not explain are left out."""
        return self._examine(logits, like, self._emulate)

    def _examine(self, logits: Float32, like: Fault | None, see: _See) -> Examined | None:
        reference = oracle.reference(logits, self._row.p)
        seen = see(self.subject, logits) if reference.certified else None
        if seen is None:
            return None
        explained = trace.explain(seen.trace, logits, seen.output.kept, reference.kept(), seen.layout.mask_block)
        part, sign = explained.cause.main
        fault = Fault("", part, sign, seen.trace.ending if part == "search" else None)
        if like is not None and fault != replace(like, code=""):
            return None
        others = {name: see(name, logits) for name in self._kernels if name != self.subject}
        outputs = {name: other.output for name, other in {**others, self.subject: seen}.items() if other is not None}
        if not {"stock", "patch"} <= outputs.keys():
            return None
        boundary = Boundary(reference.order, reference.count, reference.certified)
        given = {
            name: gate.judge_ordinary(logits, boundary, stock=outputs["stock"], patch=output).code
            for name, output in outputs.items()
        }
        passing = frozenset(name for name, code in given.items() if code == codes.PASS)
        return Examined(
            logits,
            seen.layout.mask_block,
            reference,
            outputs,
            seen.trace,
            explained,
            replace(fault, code=given["patch"]),
            passing,
        )

    def _run(self, name: str, logits: Float32) -> _Seen:
        """Run the kernel, and learn from the first row how it masks."""
        (ran,) = self._kernels[name].run(logits[np.newaxis], np.array([self._row.p]), self.slices)
        layout = ran.workspace.layout
        found = trace.replay(ran.workspace, self._row.p)
        explained = trace.explain(found, logits, ran.output.kept, ran.output.kept, layout.mask_block)
        if explained.rules:
            self._models.setdefault(name, (explained.rules[0], layout))
        return _Seen(ran.output, found, layout)

    def _emulate(self, name: str, logits: Float32) -> _Seen | None:
        """Say what the kernel would make of logits, by its own split plan and the rule that was learned."""
        plan, model = self._kernels[name].plan, self._models.get(name)
        if plan is None or model is None:
            return None
        rule, layout = model[0], replace(model[1], slices=plan(1, logits.size, self.slices))
        found = emulate.search(logits, self._row.p, layout)
        return _Seen(Output(trace.kept(found, logits, rule, layout.mask_block)), found, layout)


def shrink(bench: Bench, seconds: float = SECONDS) -> Shrunk:
    """Return a small row with the fault of the bench's row.

    Raises ``RunError`` where the row does not stop as it did when it is run alone, or its mask is not explained.
    """
    began = time.monotonic()
    whole = bench.alone()
    if not whole.explained.rules or not whole.explained.cause.total:
        raise RunError("the row is not shrunk: the trace does not explain why it stopped")
    search = _Search(bench, whole, began + seconds, whole)
    for step in (search.level, search.thin, search.pack, search.drop, search.pack, search.cut, search.tidy):
        confirmed = search.best
        step()
        if search.best is not confirmed:
            found = bench.examine(search.best.logits, whole.fault)
            search.best = found if found is not None and search.holds(found) else confirmed
    return Shrunk(whole, search.best, search.tried, time.monotonic() - began)


# ---------------------------------------------------------------------------------------------- levels


@dataclass(frozen=True, eq=False)
class Levels:
    """A row as levels: ``tokens[i]`` have ``logits[i]``, which fall; all others have ``background``, the lowest."""

    vocabulary: int
    background: float
    tokens: tuple[Tokens, ...]
    logits: tuple[float, ...]

    @classmethod
    def of(cls, logits: Float32) -> Self:
        """Take a row apart."""
        values = np.unique(logits)[::-1]
        tokens = tuple(np.flatnonzero(logits == value) for value in values[:-1])
        return cls(logits.size, float(values[-1]), tokens, tuple(map(float, values[:-1])))

    def row(self) -> Float32 | None:
        """Return the row, float32 [V]; None where it has no longer these levels in this order."""
        values = np.array([*self.logits, self.background], np.float32)
        if not (np.diff(values) < 0).all() or not np.isfinite(values).all():
            return None
        made = np.full(self.vocabulary, self.background, np.float32)
        for tokens, logit in zip(self.tokens, self.logits, strict=True):
            made[tokens] = logit
        return made

    def with_level(self, at: int, tokens: Tokens, logit: float) -> Self:
        """Return the row with fewer tokens on one level, or without it; the background weighs what it did."""
        below = self.vocabulary - sum(each.size for each in self.tokens)
        lower = math.log(below / (below + self.tokens[at].size - tokens.size))
        changed = [*zip(self.tokens, self.logits, strict=True)]
        changed[at : at + 1] = [(tokens, logit)] if tokens.size else []
        levels, logits = tuple(t for t, _ in changed), tuple(x for _, x in changed)
        return replace(self, tokens=levels, logits=logits, background=self.background + lower)

    def thinned(self, at: int, tokens: Tokens, p: float) -> "Iterator[Levels]":
        """Yield rows with fewer tokens on a level: of the same mass, then with the boundary at each of them.

        With H the mass above the level, T that below, and t tokens of weight w on it, the k-th of them is the boundary
        iff H + (k - 1) w < p (H + T + t w) <= H + k w; w = ((1 - p) H - p T) / (p t - k + 1/2) is in the middle.
        """
        left = tokens.size
        if not left:
            yield self.with_level(at, tokens, 0.0)
            return
        yield self.with_level(at, tokens, self.logits[at] + math.log(self.tokens[at].size / left))
        if at == 0:
            return
        top = self.logits[0]
        sizes = [each.size for each in self.tokens]
        masses = [size * math.exp(logit - top) for size, logit in zip(sizes, self.logits, strict=True)]
        above, below = sum(masses[:at]), sum(masses[at + 1 :])
        lowest = math.log((1 - p) * above / (100 * self.vocabulary))  # 1 % of what may lie below
        background = min(self.background, top + lowest)
        below += (self.vocabulary - sum(sizes)) * math.exp(background - top)
        spare = (1 - p) * above - p * below
        for k in range(left, 0, -1):
            weight = spare / (p * left - k + 0.5) if p * left - k + 0.5 > 0 else 0.0
            if weight > 0:
                yield replace(self.with_level(at, tokens, top + math.log(weight)), background=background)


@dataclass
class _Search:
    """The smallest row so far; every step tries rows that are smaller in one way."""

    bench: Bench
    whole: Examined
    due: float
    best: Examined
    tried: int = 0
    _seen: set[bytes] = field(default_factory=set)

    def attempt(self, logits: Float32 | None) -> bool:
        """Take a row for the best if it has the fault, and all that passed still passes."""
        if logits is None or self.over or logits.tobytes() in self._seen:
            return False
        self._seen.add(logits.tobytes())
        self.tried += 1
        found = self.bench.predict(logits, self.whole.fault)
        if found is None or not self.holds(found):
            return False
        self.best = found
        return True

    def holds(self, found: Examined) -> bool:
        """Whether a row has the fault, and every kernel that passed on the whole row passes on it."""
        return found.fault == self.whole.fault and found.passing >= self.whole.passing

    @property
    def over(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.due

    def first(self, candidates: Iterator[Levels]) -> bool:
        """Try rows in turn, up to the first that has the fault."""
        return any(self.attempt(levels.row()) for levels in candidates)

    @property
    def block(self) -> int:
        """Tokens that the kernel masks at a time."""
        return self.whole.block

    @property
    def levels(self) -> Levels:
        """The best row, as levels."""
        return Levels.of(self.best.logits)

    # ------------------------------------------------------------------------------------------ the steps

    def level(self) -> None:
        """Give the tokens below what the sets differ in one logit, then those above, then those between."""
        order = self.best.reference.order
        ranked = self.best.logits[order]
        differ = self.best.outputs[self.bench.subject].kept ^ self.best.reference.kept()
        ranks = [*np.flatnonzero(differ[order]), self.best.reference.count - 1]
        high, low = ranked[min(ranks)], ranked[max(ranks)]
        first, last = int(np.argmax(ranked <= high)), ranked.size - int(np.argmax(ranked[::-1] >= low))
        for tokens in (order[last:], order[:first], order[first:last]):
            self._level(tokens, depth=6)

    def _level(self, tokens: NDArray[np.int32], depth: int) -> None:
        """Level tokens in canonical order, or halves of them where the whole does not do."""
        logits = self.best.logits
        changes = np.flatnonzero(np.diff(logits[tokens])) + 1
        if not changes.size:
            return
        made = logits.copy()
        mean = np.exp(logits[tokens].astype(np.float64) - float(logits[tokens[0]])).mean()
        made[tokens] = float(logits[tokens[0]]) + math.log(mean)
        if not self.attempt(made) and depth:
            middle = int(changes[changes.size // 2])
            self._level(tokens[:middle], depth - 1)
            self._level(tokens[middle:], depth - 1)

    def thin(self) -> None:
        """Leave a few tokens on each level: one, where blocks do not matter, or some in each block."""
        for at in range(len(self.levels.tokens)):
            if self.over:
                return
            levels = self.levels
            p = self.best.reference.p
            ways = [*self._few(levels, at)]
            fewer = [tokens for tokens in ways if tokens.size < levels.tokens[at].size]
            any(self.first(levels.thinned(at, tokens, p)) for tokens in fewer)

    def _few(self, levels: Levels, at: int) -> Iterator[Tokens]:
        """Yield the first token of a level; then some of each of two blocks of a slice; then some of all blocks."""
        tokens = levels.tokens[at]
        yield tokens[:1]
        slices, blocks = self._places(tokens, levels.vocabulary)
        pairs = [(number, np.unique(blocks[slices == number])[:2]) for number in np.unique(slices)]
        within = [tokens[(slices == number) & np.isin(blocks, pair)] for number, pair in pairs if pair.size == 2]
        for those, few in product([*within, tokens], FEW):
            groups = self._blocks(those, levels.vocabulary)
            yield np.concatenate([those[groups == group][:few] for group in np.unique(groups)])

    def _places(self, tokens: Tokens, vocabulary: int) -> tuple[Tokens, Tokens]:
        """Return each token's slice, and its block there."""
        length = -(-vocabulary // self.bench.slices)
        return tokens // length, tokens % length // self.block

    def _blocks(self, tokens: Tokens, vocabulary: int) -> Tokens:
        """Return a number for each token's slice and block, in order."""
        slices, blocks = self._places(tokens, vocabulary)
        return slices * vocabulary + blocks

    def drop(self) -> None:
        """Drop the tokens of a block, then single tokens, from each level, as long as anything can go."""
        for whole_blocks in (True, False):
            for at in reversed(range(len(self.levels.tokens))):
                if not self.over:
                    self._drop(at, whole_blocks=whole_blocks)

    def _drop(self, at: int, *, whole_blocks: bool) -> None:
        position = 0
        while not self.over:
            levels = self.levels
            if at >= len(levels.tokens):
                return
            tokens = levels.tokens[at]
            groups = self._blocks(tokens, levels.vocabulary) if whole_blocks else np.arange(tokens.size)
            names = np.unique(groups)
            if position >= names.size:
                return
            left = tokens[groups != names[position]]
            if not self.first(levels.thinned(at, left, self.best.reference.p)):
                position += 1

    def pack(self) -> None:
        """Cut the vocabulary: tokens keep the order of their slices and blocks; what is empty goes, or else stays."""
        for levels in (_led(self.levels), self.levels):
            tokens = np.sort(np.concatenate([*levels.tokens, np.empty(0, np.int64)]))
            for blocks, slices in ((True, True), (True, False), (False, False)) if tokens.size else ():
                packed = self._packed(levels, tokens, close_blocks=blocks, close_slices=slices)
                if self.attempt(packed.row()):
                    return

    def cut(self) -> None:
        """Cut the background, which may be what stops the row: behind the last other token, as far as it goes."""
        levels = self.levels
        used = int(max((tokens.max() for tokens in levels.tokens), default=0)) + 1
        if self.bench.slices > 1:
            return  # each slice would begin elsewhere
        for left in (used + 2**power for power in range(levels.vocabulary.bit_length())):
            if left < levels.vocabulary and self.attempt(replace(levels, vocabulary=left).row()):
                return

    def _packed(self, levels: Levels, tokens: Tokens, *, close_blocks: bool, close_slices: bool) -> Levels:
        slices, blocks = self._places(tokens, levels.vocabulary)
        if close_slices:
            slices = np.unique(slices, return_inverse=True)[1]
        places = np.empty_like(tokens)
        for number in np.unique(slices):
            here = slices == number
            known = np.unique(blocks[here])
            for rank, block in enumerate(known if close_blocks else range(int(known[-1]) + 1)):
                those = here & (blocks == block)
                places[those] = rank * self.block + np.arange(np.count_nonzero(those))
        length = int(places.max()) + 1
        ids = slices * length + places
        vocabulary = max(int(ids.max()) + 1, self.bench.slices * (length - 1) + 1)
        moved = dict(zip(tokens.tolist(), ids.tolist(), strict=True))
        packed = tuple(np.array([moved[token] for token in each.tolist()]) for each in levels.tokens)
        raised = math.log((levels.vocabulary - tokens.size) / max(vocabulary - tokens.size, 1))
        return replace(levels, vocabulary=vocabulary, tokens=packed, background=levels.background + raised)

    def tidy(self) -> None:
        """Write the logits with few decimals, the largest being 0."""
        levels = self.levels
        shifted = [logit - levels.logits[0] for logit in (*levels.logits, levels.background)] if levels.logits else []
        for decimals in DECIMALS if shifted else ():
            *logits, background = (round(logit, decimals) for logit in shifted)
            if self.attempt(replace(levels, logits=tuple(logits), background=background).row()):
                return


def _led(levels: Levels) -> Levels:
    """Return the row with tokens that are alone on their level moved in front, as far as ids below are free."""
    if not levels.tokens:
        return levels
    taken = np.concatenate(levels.tokens)
    first = int(taken.min())
    free = iter(range(first - 1, -1, -1))
    alone = [next(free, int(each[0])) if each.size == 1 else None for each in levels.tokens]
    moved = (each if to is None else np.array([to]) for each, to in zip(levels.tokens, alone, strict=True))
    return replace(levels, tokens=tuple(moved))
