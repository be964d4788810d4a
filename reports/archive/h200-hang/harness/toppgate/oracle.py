"""The reference of one row, fast: the bits of ``spec.specification``, with NumPy and ``math`` only.

Why each step keeps the bits:

- *Order.*  ``order.canonical``: two stable passes over 16 bits each.
- *Weights.*  ``math.exp`` itself, once for each distinct shifted logit where ties are many.  ``np.exp`` and
  ``torch.exp`` round otherwise for some arguments and may not be used.
- *Scan.*  ``np.cumsum`` adds strictly from left to right, so it is the scan's running total.  The first weight is
  1.0 and the largest, so Neumaier's branch is always the same one after the first step, whose residue is 0; the
  residues, and their own cumsum, are then whole-array expressions.
- *Sums.*  The three ``math.fsum`` values are read off the scan where the following lemma allows it.

Lemma.  Let n terms be non-negative, the first the largest, u = 2**-53, and (s, c) Neumaier's total and compensation.
Each residue e_i is exact (Dekker's Fast2Sum: the total is never below the term) and at most u s in size, so the exact
sum is s + sum e_i.  c adds the residues with one rounding each, of at most u abs(c_k) <= u (k - 1) u s (1 + u)**k;
over k these add up to less than n**2 u**2 s / 2 times (1 + u)**n, so the exact sum is within B = n**2 u**2 (s + c) of
s + c, with a factor of nearly 2 to spare for every n that fits in memory.  Let hi + lo = s + c (Knuth's TwoSum, exact).
If lo - B and lo + B are both strictly inside the half-ulps around hi, every number in the enclosure rounds to hi, so
hi is the correctly rounded sum, which is what ``math.fsum`` returns.  The comparisons are safe in floating point:
rounding is monotonic, so a sum that is not strictly inside cannot round to one that is.  Elsewhere ``math.fsum``
itself is called.

An engine is an order and a ``Scan``; the sums and the certificate are read off any scan in one way.  ``accel`` has
another.  Masses and margins of a reference are in ``masses``.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toppgate.order import canonical
from toppgate.spec import Reference

__all__ = ["CumulativeScan", "Reference", "Scan", "admitted", "reference", "references", "rounded_sum"]

#: exp(x) is below half the least subnormal, 2**-1075, for x < -745.14: libm then returns +0.0.
_UNDERFLOW: Final = -746.0


def reference(logits: NDArray[np.float32], p: np.float32 | float) -> Reference:
    """Return the reference of one row, bit for bit that of ``spec.specification``.

    Parameters
    ----------
    logits : float32 [V]
        Finite logits, V >= 1, in native byte order; any stride.
    p : float32, or a float that is one
        p after its conversion to fp32, never the decimal.  Any finite value: p = 1 and values outside 0..1 are
        admitted here and rejected by the gate.

    Raises
    ------
    ValueError
        The row is empty, not float32 or not one-dimensional, a logit is not finite, or p is not a finite fp32 value.

    Notes
    -----
    The bits of weights depend on the C library's ``exp``; order does not.
    """
    widened = admitted(logits, p)
    order = canonical(logits)
    ranked = logits[order].astype(np.float64)
    return CumulativeScan.over(_weights(ranked - ranked[0])).reference(order, widened)


def references(logits: NDArray[np.float32], p: NDArray[np.float32]) -> tuple[Reference, ...]:
    """Return the references of a batch, one row after another: threads would wait for each other inside ``math.exp``.

    Parameters
    ----------
    logits : float32 [B, V]
        Rows as ``reference`` takes them.
    p : float32 [B]
        One p a row.

    Raises
    ------
    ValueError
        The shapes do not fit, or a row is refused; then the message names it.
    """
    return tuple(reference(row, each) for row, each in batch(logits, p))


def batch(logits: NDArray[np.float32], p: NDArray[np.float32]) -> Iterable[tuple[NDArray[np.float32], float]]:
    """Return the rows of a batch with each p, widened; raise as ``references`` does."""
    if logits.ndim != 2 or p.shape != logits.shape[:1]:
        raise ValueError(f"batch: logits {list(logits.shape)} and p {list(p.shape)}, [B, V] and [B] expected")
    widened = []
    for number, (row, each) in enumerate(zip(logits, p, strict=True)):
        try:
            widened.append(admitted(row, each))
        except ValueError as error:
            raise ValueError(f"row {number}: {error}") from None
    return zip(logits, widened, strict=True)


def admitted(logits: NDArray[np.float32], p: np.float32 | float) -> float:
    """Return p as a float, or raise as ``reference`` does where the row or p is not what an engine takes."""
    _check(logits)
    return _widened(p)


def _check(logits: NDArray[np.float32]) -> None:
    if logits.dtype != np.float32 or logits.ndim != 1 or logits.size == 0:
        raise ValueError(f"logits: {logits.dtype} {list(logits.shape)}, float32 [V] with V >= 1 expected")
    finite = np.isfinite(logits)
    if not finite.all():
        token = int(np.argmin(finite))
        raise ValueError(f"logits: token {token} is {logits[token]}, a finite number expected")


def _widened(p: np.float32 | float) -> float:
    """Return p as a float; refuse one that is not an fp32 value, which can only be the decimal."""
    with np.errstate(over="ignore"):
        widened = float(np.float32(p))
    if not (math.isfinite(widened) and widened == p):
        raise ValueError(f"p: {float(p)!r}, a finite fp32 value expected")
    return widened


def _weights(shifted: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``math.exp`` of a descending array that starts at 0.0: one call for each distinct value.

    Where three quarters of the values are distinct, sharing would cost more than it saves.
    """
    live = shifted[: np.count_nonzero(shifted >= _UNDERFLOW)]
    changes = live[1:] != live[:-1]
    if np.count_nonzero(changes) > 0.75 * live.size:
        weights = np.fromiter(map(math.exp, live.data), np.float64, live.size)
    else:
        starts = np.append(0, np.flatnonzero(changes) + 1)
        distinct = np.fromiter(map(math.exp, live[starts].data), np.float64, starts.size)
        weights = np.repeat(distinct, np.diff(starts, append=live.size))
    return weights if live.size == shifted.size else np.append(weights, np.zeros(shifted.size - live.size))


class Scan(ABC):
    """Neumaier's scan over all weights of a row, float64 [V], and what the specification takes from it.

    Weights are those of a ``Reference``: non-negative, the first of them the largest, and 1.0.  Not checked.
    """

    weights: NDArray[np.float64]

    @abstractmethod
    def state(self, count: int) -> tuple[float, float]:
        """Return total and compensation after ``count`` terms, 1 to V."""

    @abstractmethod
    def first(self, target: float) -> int:
        """Return the length of the shortest prefix whose total plus compensation reaches the target, or 0."""

    def fsum(self, count: int) -> float:
        """Return ``math.fsum(weights[:count])``, count >= 1."""
        read = rounded_sum(*self.state(count), count)
        return math.fsum(self.weights[:count].tolist()) if read is None else read

    def reference(self, order: NDArray[np.int32], p: float) -> Reference:
        """Return the reference: normalizer, target, the scan's count, and its certificate."""
        normalizer = self.fsum(order.size)
        target = p * normalizer
        count = self.first(target)
        reached = count > 0 and self.fsum(count) >= target
        certified = reached and (count == 1 or self.fsum(count - 1) < target)
        return Reference(order, self.weights, normalizer, target, count, certified, p)


@dataclass(frozen=True, eq=False)
class CumulativeScan(Scan):
    """The scan as two cumulative sums: total and compensation, float64 [V], after each term."""

    weights: NDArray[np.float64]
    total: NDArray[np.float64]
    compensation: NDArray[np.float64]

    @classmethod
    def over(cls, weights: NDArray[np.float64]) -> "CumulativeScan":
        """Scan all weights."""
        total = np.cumsum(weights)
        residue = np.zeros_like(weights)
        residue[1:] = (total[:-1] - total[1:]) + weights[1:]
        return cls(weights, total, np.cumsum(residue))

    def state(self, count: int) -> tuple[float, float]:
        """Return total and compensation after ``count`` terms."""
        return float(self.total[count - 1]), float(self.compensation[count - 1])

    def first(self, target: float) -> int:
        """Return the length of the shortest prefix that reaches the target, or 0."""
        reached = self.total + self.compensation >= target
        position = int(np.argmax(reached))
        return position + 1 if reached[position] else 0


def rounded_sum(total: float, compensation: float, count: int) -> float | None:
    """Return the correctly rounded sum of the terms that led to a state of the scan, or None if it is too close.

    Parameters
    ----------
    total, compensation : float
        Neumaier's state after ``count`` non-negative terms, the first of them the largest and positive.
    count : int
        How many terms.

    Notes
    -----
    The lemma is in the module's docstring.
    """
    high = total + compensation
    part = high - total
    low = (total - (high - part)) + (compensation - part)
    bound = count * count * 2.0**-106 * high
    half_above = 0.5 * (math.nextafter(high, math.inf) - high)
    half_below = 0.5 * (high - math.nextafter(high, 0.0))
    return high if low + bound < half_above and low - bound > -half_below else None
