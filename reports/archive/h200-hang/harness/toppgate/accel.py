"""The oracle's references at the speed of compiled loops, bit for bit, where the extra ``fast`` (numba) is installed.

Before its first use in a process the compiled engine is compared with ``oracle`` on 10,000 values of exp and 50 rows.
Where a bit differs, or numba is there but does not work, a ``FallbackWarning`` says so and ``oracle`` does the work:
the results are the same, only later.  The loops are in ``compiled``; they check no length, so every array that they
are given is made here, to the length of its row.
"""

import importlib.util
import os
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray

from toppgate import oracle
from toppgate.oracle import Reference, Scan


class FallbackWarning(UserWarning):
    """The compiled engine is installed but may not be used."""


def reference(logits: NDArray[np.float32], p: np.float32 | float) -> Reference:
    """Return the reference of one row, bit for bit that of ``oracle.reference``, and raise as it does."""
    loops = engine()
    if loops is None:
        return oracle.reference(logits, p)
    rows = [(logits, oracle.admitted(logits, p))]
    return next(_rows(loops, rows, _Arrays.of(loops, 1, logits.size)))


def references(
    logits: NDArray[np.float32], p: NDArray[np.float32], threads: int | None = None
) -> tuple[Reference, ...]:
    """Return the references of a batch, bit for bit those of ``oracle.references``.

    Parameters
    ----------
    logits : float32 [B, V]
        Rows as ``oracle.reference`` takes them.
    p : float32 [B]
        One p a row.
    threads : int, optional
        How many threads share the rows; one for each core if not given.  The default engine has only one.

    Raises
    ------
    ValueError
        As ``oracle.references`` raises it.
    """
    loops = engine()
    if loops is None:
        return oracle.references(logits, p)
    rows = list(oracle.batch(logits, p))
    workers = max(1, min(threads or joblib.cpu_count(), len(rows)))
    made = _Arrays.of(loops, *logits.shape)

    def every(worker: int) -> list[Reference]:
        share = slice(worker, None, workers)
        return list(_rows(loops, rows[share], made.share(share)))

    with ThreadPoolExecutor(workers) as pool:
        done = list(pool.map(every, range(workers)))
    return tuple(done[number % workers][number // workers] for number in range(len(rows)))


@cache
def engine() -> ModuleType | None:
    """Return the compiled loops; None, with a warning if numba is installed, where they may not be used."""
    if importlib.util.find_spec("numba") is None:
        return None
    try:
        os.environ.setdefault("NUMBA_DISABLE_INTEL_SVML", "1")
        from toppgate import compiled  # noqa: PLC0415 - needs the extra, and the line above

        difference = _difference(compiled)
    except Exception as error:  # noqa: BLE001 - whatever ails it, there is another engine
        difference = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    if difference is None:
        return compiled
    warnings.warn(f"the compiled oracle is not used: {difference}", FallbackWarning, stacklevel=3)
    return None


def _difference(loops: ModuleType) -> str | None:
    """Return where the compiled engine differs from ``oracle``, or None."""
    if loops.svml():
        return "numba was imported before, with SVML, whose exp is not the C library's"
    for number, (row, p) in enumerate(_checks()):
        (made,) = _rows(loops, [(row, p)], _Arrays.of(loops, 1, row.size))
        if _bits(made) != _bits(oracle.reference(row, p)):
            return f"its bits are not the oracle's on check {number}, {row.size} tokens"
    return None


def _checks() -> Iterator[tuple[NDArray[np.float32], float]]:
    """Yield 50 rows and their p: 10,000 arguments of exp at once, then what is hard for order, scan and sums."""
    rng = np.random.default_rng(50)
    yield rng.uniform(-750, 0, 10_000).astype(np.float32), 0.5
    yield np.array([0, 0xBE4B7DF5, 0xC2A49463], np.uint32).view(np.float32), 1.0  # the scan never reaches its target
    for size in (1, 2, 3, 255, 256, 257, 512, 1000):
        normal = (rng.standard_normal(size) * 3).astype(np.float32)
        tied = np.round(normal * 4) / np.float32(4)  # -0.0 among them
        tiny = rng.integers(0, 9, size).astype(np.uint32).view(np.float32)
        wide = rng.choice(np.array([3.4e38, -3.4e38, 1e9, 0], np.float32), size)
        geometric = (-np.arange(size) * np.log(2)).astype(np.float32)
        for row in (normal, tied, tiny, wide, geometric, np.full(size, -1.5, np.float32)):
            yield row, float(np.float32(rng.choice([0.5, 0.9, 0.999, 1.0])))


def _bits(reference: Reference) -> tuple[bytes, bytes, bytes, int, bool]:
    sums = np.array([reference.normalizer, reference.target]).tobytes()
    return reference.order.tobytes(), reference.weights.tobytes(), sums, reference.count, reference.certified


@dataclass(frozen=True, eq=False)
class _BlockScan(Scan):
    """The scan with its state kept before each block of terms."""

    loops: ModuleType
    weights: NDArray[np.float64]
    blocks: NDArray[np.float64]
    last: tuple[float, float]

    def state(self, count: int) -> tuple[float, float]:
        """Return total and compensation after ``count`` terms."""
        if count == self.weights.size:
            return self.last
        found: tuple[float, float] = self.loops.state(self.weights, self.blocks, count)
        return found

    def first(self, target: float) -> int:
        """Return the length of the shortest prefix that reaches the target, or 0."""
        return int(self.loops.first(self.weights, self.blocks, target))


class _Arrays(NamedTuple):
    """What the loops fill, for all rows at once: memory in one piece costs threads fewer page faults."""

    order: NDArray[np.int32]
    weights: NDArray[np.float64]
    blocks: NDArray[np.float64]

    @classmethod
    def of(cls, loops: ModuleType, rows: int, size: int) -> "_Arrays":
        """Return arrays for so many rows of so many tokens."""
        return cls(
            np.empty((rows, size), np.int32),
            np.empty((rows, size), np.float64),
            np.empty((rows, size // loops.BLOCK + 1, 2)),
        )

    def share(self, rows: slice) -> "_Arrays":
        """Return the arrays of some rows."""
        return _Arrays(self.order[rows], self.weights[rows], self.blocks[rows])


def _rows(loops: ModuleType, rows: list[tuple[NDArray[np.float32], float]], made: _Arrays) -> Iterator[Reference]:
    """Yield the references of admitted rows of one length, in their arrays; the scratch is this thread's."""
    size = made.order.shape[1]
    pairs, offsets = np.empty((2, size), np.uint64), np.empty((3, 2048), np.int64)
    for (row, p), order, weights, blocks in zip(rows, *made, strict=True):
        bits = np.ascontiguousarray(row).view(np.uint32)
        loops.weigh(bits, order, weights, pairs, offsets)
        last = loops.scan(weights, blocks)
        yield _BlockScan(loops, weights, blocks, last).reference(order, p)
