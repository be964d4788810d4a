"""Whether a reference's boundary is the true one in the reals, and whether a stop lies within reach of fp32 sums.

*Certified* says that the binary64 scan and ``math.fsum`` agree.  Both use ``math.exp``'s rounded weights, so a
certified boundary can still be off by one in the reals.  There, of a row of finite fp32 logits x_1 >= ... >= x_V, with
W_i = exp(x_i - x_1), P_c = W_1 + ... + W_c and N = P_V, the true boundary is the smallest c with P_c >= p N.
``certify`` compares the two.  Both words are reported; neither replaces the other, and this one never decides the gate.

Let M_c = P_c - p N = (1 - p) P_c - p (N - P_c), 0 < p < 1, and let the first n0 logits be the ties of the maximum.

Theorem 1 (no endless search).  M_c is a sum of rational multiples of exp(d) over the distinct d = x_i - x_1, which are
rational.  By the Lindemann-Weierstrass theorem it is zero only if every multiple is, which needs all logits equal and
c = p V.  With that case settled by rational arithmetic, a ball around M_c excludes zero once its precision suffices.

Lemma 2 (ties of the maximum).  Let p n0 = w + f, w whole, 0 <= f < 1, and T = N - n0 > 0.  If f + p T <= 1 then p N is
in (w, w + 1] and P_c = c for c <= n0, so the true boundary is w + 1.  This settles rows that binary64 cannot see: at
f = 0 and with the other logits 1e9 below, M_w is about -exp(-1e9), and the binary64 boundary is w.

Theorem 3 (the cheap test).  Assume

(A1) on [-746, 0] ``math.exp`` is within 1 ulp of exp, subnormal results included; below -746 it returns 0.

glibc's source states an analysis, not a promise: less than 0.5 + 1.11/128 ulp plus the polynomial's error, and 0.25/128
more without FMA (sysdeps/ieee754/dbl-64/e_exp.c).  The largest errors that anyone found are listed by B. Gladman,
V. Innocente, J. Mather and P. Zimmermann, *Accuracy of Mathematical Functions in Single, Double, Double Extended, and
Quadruple Precision* (HAL hal-03141101).  On another C library (A1) is an assumption; a test samples it.

Let w_i be the binary64 weights, s_c Neumaier's total plus compensation after c of them, eps = 2**-52 (1 + 2**-13), and
r_i the exact error of the binary64 difference x_i - x_1.  Then abs(M_c - (s_c - p s_V)) <= E_c, the sum of

- eps ((1 - p) h + p t), h = max(s_c - n0, 0), t = (s_V - n0) - h: by (A1) a weight is off by at most eps w_i, those of
  the maximum by nothing, and an error before the boundary counts 1 - p times, one behind it p times;
- 1.01 sum(w_i abs(r_i)): a shift of the argument by r multiplies a weight by exp(r), and abs(r) < 2**-43;
- 2 (c**2 s_c + p V**2 s_V) 2**-106: the sums themselves, by the lemma in ``oracle``; the factor 2 covers their use in
  the first part, and whatever underflows, at most 4 V 2**-1074 in all.

If s_c - p s_V > E_c the prefix reaches p N, and if it is below -E_c it does not.  Everything but sum(w abs(r)) is
computed in rational arithmetic, so no rounding of the test itself has to be argued about.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from toppgate import masses
from toppgate.oracle import CumulativeScan, Scan
from toppgate.spec import Reference

#: Ball arithmetic starts with so many bits, doubles them, and gives up beyond MOST_BITS.
FIRST_BITS: Final = 128
MOST_BITS: Final = 8192

_EPS: Final = Fraction(1, 2**52) * (1 + Fraction(1, 2**13))
_SHIFT: Final = Fraction(101, 100)

#: fp32's unit roundoff.
_UNIT32: Final = 2.0**-24


@dataclass(frozen=True)
class RealBoundary:
    """What can be said of a reference's boundary in the reals.

    Parameters
    ----------
    verdict : "equal", "differs" or "undecided"
        Whether ``reference.count`` is the true boundary.
    ratio : float or None
        The cheap test's margin as a multiple of its error bound, at the boundary or one token before it, whichever is
        smaller; the test is conclusive above 1.  None where the row was settled exactly.
    how : "exact", "cheap", "ball" or None
        What decided: rational arithmetic, Theorem 3, ball arithmetic, or nothing.
    """

    verdict: Literal["equal", "differs", "undecided"]
    ratio: float | None
    how: Literal["exact", "cheap", "ball"] | None


def certify(logits: NDArray[np.float32], reference: Reference, most_bits: int = MOST_BITS) -> RealBoundary:
    """Compare a reference's boundary with the true one in the reals.

    Parameters
    ----------
    logits : float32 [V]
        The logits that the reference was made from.  Only the shape is checked.
    reference : Reference
        Certified or not.
    most_bits : int
        The most precision that ball arithmetic may use.

    Returns
    -------
    RealBoundary
        ``undecided`` where the cheap test cannot tell and ball arithmetic cannot either, or python-flint (the extra
        ``exact``) is not installed; never a guess.

    Raises
    ------
    ValueError
        The shapes differ, or the reference has no boundary: its scan never reached the target.
    """
    if logits.shape != reference.order.shape:
        raise ValueError(f"logits: shape {list(logits.shape)}, {list(reference.order.shape)} expected")
    if reference.count < 1:
        raise ValueError("reference: the scan never reached the target, so there is no boundary")
    ranked = logits[reference.order].astype(np.float64)
    boundary = _degenerate(ranked, reference)
    if boundary is not None:
        return _settled(boundary, reference)
    sums = _Sums.of(ranked, reference)
    longer, shorter = sums.quotient(reference.count), sums.quotient(reference.count - 1)
    verdict = _verdict(_sign(longer, 1), _sign(shorter, 1))
    ratio = float(min(abs(longer), abs(shorter)))
    if verdict is not None:
        return RealBoundary(verdict, ratio, "cheap")
    boundary = sums.among_ties()
    if boundary is not None:
        return _settled(boundary, reference)
    for longer, shorter in _balls(ranked, reference, most_bits):
        verdict = _verdict(_sign(longer, 0), _sign(shorter, 0))
        if verdict is not None:
            return RealBoundary(verdict, ratio, "ball")
    return RealBoundary("undecided", ratio, None)


def _settled(boundary: int, reference: Reference) -> RealBoundary:
    return RealBoundary("equal" if boundary == reference.count else "differs", None, "exact")


def _sign(value: Any, beyond: int) -> int:
    """Return 1 or -1 where the value, a number or a ball, is certainly beyond that far from zero, and 0 elsewhere."""
    return 1 if value > beyond else -1 if value < -beyond else 0


def _verdict(longer: int, shorter: int) -> Literal["equal", "differs"] | None:
    """Return what the signs of M_c and M_(c-1) say of c."""
    if longer < 0 or shorter > 0:
        return "differs"
    return "equal" if longer > 0 and shorter < 0 else None


def _degenerate(ranked: NDArray[np.float64], reference: Reference) -> int | None:
    """Return the true boundary where no exponential takes part: p outside (0, 1), or all logits equal."""
    p, size = Fraction(reference.p), ranked.size
    if p <= 0:
        return 1
    if p >= 1:
        return size
    # ceil(p V), of a positive number.
    return -(-p.numerator * size // p.denominator) if ranked[0] == ranked[-1] else None


@dataclass(frozen=True, eq=False)
class _Sums:
    """What Theorem 3 and Lemma 2 take from a row with 0 < p < 1."""

    scan: Scan
    p: Fraction
    ties: int
    shift: Fraction  # the second part of E

    @classmethod
    def of(cls, ranked: NDArray[np.float64], reference: Reference) -> "_Sums":
        """Scan the weights again, and add up what rounding the differences did."""
        weights = reference.weights
        moved = float(np.sum(weights * np.abs(_lost(ranked))))
        ties = int(np.count_nonzero(ranked == ranked[0]))
        return cls(CumulativeScan.over(weights), Fraction(reference.p), ties, _SHIFT * Fraction(moved))

    @property
    def size(self) -> int:
        return self.scan.weights.size

    def prefix(self, count: int) -> Fraction:
        """Return s_c, exact; the empty prefix has 0."""
        if count == 0:
            return Fraction(0)
        total, compensation = self.scan.state(count)
        return Fraction(total) + Fraction(compensation)

    def radius(self, count: int) -> Fraction:
        """Return how far s_c can be from the sum of its weights."""
        return Fraction(count**2, 2**106) * self.prefix(count)

    def margin(self, count: int) -> tuple[Fraction, Fraction]:
        """Return the computed M of a prefix and its error bound E."""
        p, part, whole = self.p, self.prefix(count), self.prefix(self.size)
        head = max(part - self.ties, Fraction(0))
        tail = whole - self.ties - head
        sums = self.radius(count) + p * self.radius(self.size)
        error = _EPS * ((1 - p) * head + p * tail) + self.shift + 2 * sums
        return part - p * whole, error

    def quotient(self, count: int) -> Fraction:
        """Return M as a multiple of E, with its sign."""
        margin, error = self.margin(count)
        return margin / error

    def among_ties(self) -> int | None:
        """Return the true boundary where Lemma 2 places it among the ties of the maximum."""
        rest = self.prefix(self.size) - self.ties
        most = (1 + _EPS) * rest + self.shift + 2 * self.radius(self.size)
        whole, left = divmod(self.p * self.ties, 1)
        return int(whole) + 1 if left + self.p * most <= 1 else None


def _lost(ranked: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the exact errors of the binary64 differences to the first value: Knuth's TwoSum, of x and -x_1."""
    top = ranked[0]
    difference = ranked - top
    part = difference - ranked
    lost: NDArray[np.float64] = (ranked - (difference - part)) - (top + part)
    return lost


def _balls(ranked: NDArray[np.float64], reference: Reference, most_bits: int) -> Iterator[tuple[Any, Any]]:
    """Yield balls around multiples of M_c and M_(c-1), with growing precision; nothing without python-flint.

    With p = a / b, b M_c is the sum of (b k(d) - a n(d)) exp(d), of whole multiples: n(d) logits have the distance d,
    k(d) of them are in the prefix.
    """
    try:
        import flint  # noqa: PLC0415 - an extra
    except ImportError:
        return
    starts = np.flatnonzero(np.append(True, ranked[1:] != ranked[:-1]))
    sizes = np.diff(starts, append=ranked.size)
    inside = np.clip(reference.count - starts, 0, sizes)
    a, b = reference.p.as_integer_ratio()
    multiples = [b * k - a * n for k, n in zip(inside.tolist(), sizes.tolist(), strict=True)]
    last = int(np.searchsorted(starts, reference.count)) - 1  # the boundary token's distance
    bits = FIRST_BITS
    while bits <= most_bits:
        with flint.ctx.workprec(bits):
            top = flint.arb(float(ranked[0]))
            exps = [(flint.arb(value) - top).exp() for value in ranked[starts].tolist()]
            longer = sum((m * e for m, e in zip(multiples, exps, strict=True)), flint.arb(0))
            shorter = longer - b * exps[last]
        yield longer, shorter
        bits *= 2


@dataclass(frozen=True)
class Reach:
    """Whether fp32 accumulation could have put the boundary at the end of a set.

    Parameters
    ----------
    verdict : "inside" or "outside"
        ``inside``: the margin is at most the error.  ``outside``: no order of fp32 additions explains the set.
    margin : float or None
        The mass by which p would have to move for the set to be the nucleus; None where the set is no prefix, which
        no boundary makes it.
    error : float
        The mass by which fp32 accumulation over the row's vocabulary can move the comparison.
    """

    verdict: Literal["inside", "outside"]
    margin: float | None
    error: float


def reach(reference: Reference, kept: NDArray[np.bool_]) -> Reach:
    """Return how far the end of a kept set is from p, beside what fp32 accumulation can do: no tolerance.

    Parameters
    ----------
    reference : Reference
        The row.
    kept : bool [V]
        A kept set, by token id; usually that of a row which stopped.

    Raises
    ------
    ValueError
        ``kept`` is not bool [V], or V is 2**24 or more, where the bound says nothing.

    Notes
    -----
    In any order, with u = 2**-24, the fp32 sum of n non-negative terms has a relative error of at most gamma_(n-1),
    gamma_n = n u / (1 - n u): N. J. Higham, *Accuracy and Stability of Numerical Algorithms*, 2nd ed., SIAM 2002,
    section 4.2, and lemma 3.1 for gamma.  A prefix of mass P and p times the whole, one more rounding, are two such
    sums whose errors need not cancel, so their comparison can be off by (P + p) gamma_V of the whole.  It is the worst
    case over all orders: a tree of depth log2 V is far better, so ``outside`` says more than ``inside``.  The error of
    fp32 exponentials, and the kernel's own search, are not in it.
    """
    rounding = reference.order.size * _UNIT32
    if rounding >= 1:
        raise ValueError(f"reference: {reference.order.size} tokens, fewer than 2**24 expected")
    held = masses.mass(reference, kept)
    size = int(np.count_nonzero(kept))
    error = (held + reference.p) * rounding / (1 - rounding)
    if not kept[reference.order[:size]].all():
        return Reach("outside", None, error)
    shorter = kept.copy()
    shorter[reference.order[max(size - 1, 0)]] = False
    margin = max(0.0, reference.p - held, masses.mass(reference, shorter) - reference.p)
    return Reach("inside" if margin <= error else "outside", margin, error)
