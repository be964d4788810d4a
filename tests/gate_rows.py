"""Rows in plain values, as the gate's tests state them, and how a gate module answers them."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import brute_gate
import numpy as np
import numpy.typing as npt
from brute_gate import Answer, Side

from toppgate import codes, gate

SOURCE = Path(gate.__file__).read_text()
NOTHING = Side()


def keeps(*ids: int) -> Side:
    """Return an output that keeps these ids and masks the rest."""
    return Side(frozenset(ids))


@dataclasses.dataclass(frozen=True)
class Row:
    """An ordinary row in plain values, or a forced one where ``token`` is given."""

    logits: Sequence[float]
    stock: Side
    patch: Side
    count: int = 0
    certified: bool = True
    token: int | None = None

    def expected(self) -> Answer:
        """Return what the brute force says."""
        if self.token is not None:
            return brute_gate.forced(self.logits, self.token, self.stock, self.patch)
        return brute_gate.ordinary(self.logits, self.count, self.certified, self.stock, self.patch)

    def arrays(self, module: ModuleType) -> tuple[npt.NDArray[np.float32], Any, dict[str, Any]]:
        """Return logits, boundary and the two outputs as a gate module takes them."""
        logits = np.array(self.logits, dtype=np.float32)
        order = np.array(brute_gate.canonical(self.logits), dtype=np.int32)
        sides = {}
        for name, side in (("stock", self.stock), ("patch", self.patch)):
            kept = np.zeros(logits.size, dtype=np.bool_)
            kept[list(side.kept)] = True
            sides[name] = module.Output(kept, side.altered, side.nan)
        return logits, module.Boundary(order, self.count, self.certified), sides

    def judged(self, module: ModuleType = gate) -> Answer:
        """Return what a gate module says."""
        logits, boundary, sides = self.arrays(module)
        if self.token is not None:
            judged = module.judge_forced(logits, self.token, **sides)
        else:
            judged = module.judge_ordinary(logits, boundary, **sides)
        return (judged.code, judged.observed, judged.also, judged.stock_code)

    def compared(self, module: ModuleType = gate) -> dict[str, object]:
        """Return a gate module's counts."""
        _, boundary, sides = self.arrays(module)
        counts: dict[str, object] = dataclasses.asdict(module.compare(boundary, **sides))
        return counts


def flat_row(count: int, difference: int) -> Row:
    """Return a row of 1010 equal logits whose two sides keep ``difference`` more tokens than the oracle."""
    side = Side(frozenset(range(count + difference)))
    return Row([0.0] * 1010, side, side, count=count)


def admitted(module: ModuleType, logits: Sequence[float], p: float) -> str:
    """Return what a gate module says of a row's admissibility."""
    code: str = module.admissible(np.array(logits, dtype=np.float32), np.float32(p))
    return code


def sets_of(size: int) -> list[Side]:
    """Return every kept set over a vocabulary."""
    return [keeps(*ids) for n in range(size + 1) for ids in itertools.combinations(range(size), n)]


def spoiled_sides() -> list[Side]:
    """Return outputs over two tokens, with and without altered entries."""
    plain = sets_of(2)
    altered = [Side(side.kept, 1, nan) for side in plain for nan in (False, True) if len(side.kept) < 2]
    return [*plain, *altered, Side(altered=2, nan=True)]


def small_rows() -> Iterator[Row]:
    """Yield every pair of kept sets over a few tied and untied rows, then altered outputs, then rule 6's edges."""
    for logits in ([0.0, 0.0, 1.0], [1.0, -0.0, 0.0, -0.0], [0.0, 1.0, 1.0, 0.5]):
        sets = sets_of(len(logits))
        for count, stock, patch in itertools.product(range(len(logits) + 1), sets, sets):
            yield Row(logits, stock, patch, count=count)
    for stock, patch in itertools.product(spoiled_sides(), spoiled_sides()):
        for count, certified in itertools.product(range(3), (True, False)):
            yield Row([1.0, 2.0], stock, patch, count=count, certified=certified)
        for token in range(2):
            yield Row([1.0, 1.0], stock, patch, token=token)
    for token, patch in itertools.product(range(3), sets_of(3)):
        yield Row([-0.0, 0.0, -1.0], NOTHING, patch, token=token)
    for count, difference in itertools.product((7, 599, 600, 601, 797, 799, 800, 801, 804, 1000, 1001), range(-6, 7)):
        yield flat_row(count, difference)


def counted(row: Row) -> dict[str, object]:
    """Return the brute force's counts of a row."""
    return brute_gate.compare(row.logits, row.count, row.certified, row.stock, row.patch)


@functools.cache
def small_worlds() -> list[tuple[Row, Answer, dict[str, object]]]:
    """Return the small rows with the brute force's answers and counts."""
    return [(row, row.expected(), counted(row)) for row in small_rows()]


def disagreements(module: ModuleType) -> Iterator[object]:
    """Yield where a gate module differs from the brute force over the small worlds."""
    numbers = (math.nan, math.inf, -math.inf, -0.5, -0.0, 0.0, 2.0**-149, 0.5, 1 - 2.0**-24, 1.0, 1.5)
    for logit, p in itertools.product(numbers, numbers):
        if admitted(module, [0.0, logit], p) != brute_gate.admissible([0.0, logit], p):
            yield (logit, p)
    for declared, code, also in itertools.product(codes.PROBE_CODES, codes.PROBE_CODES, ((), ("patch_hole",))):
        answer = module.judge_probe(declared, module.Judged(code, also=also))
        if dataclasses.astuple(answer) != brute_gate.probe(declared, (code, None, also, None)):
            yield (declared, code, also)
    for row, answer, counts in small_worlds():
        if row.judged(module) != answer or row.compared(module) != counts:
            yield row


def mutate(old: str, new: str) -> ModuleType:
    """Return the gate with one place of its text changed."""
    assert SOURCE.count(old) == 1, f"{old!r}: {SOURCE.count(old)} places, expected 1"
    module = ModuleType("mutant")
    exec(compile(SOURCE.replace(old, new), "mutant", "exec"), module.__dict__)  # noqa: S102
    return module
