"""Truth in the reals for tests: balls of at least 256 bits, and rows made to lie as near to it as one likes.

Independent of ``toppgate.real``: one exponential a token and not a distinct logit, prefix sums and bisection and not
two signs.  Needs python-flint.
"""

from bisect import bisect_left
from fractions import Fraction
from itertools import accumulate

import flint
import numpy as np
from numpy.random import Generator
from strategies import Row

FIRST_BITS = 256
MOST_BITS = 1 << 14


def boundary(logits: Row, p: np.float32) -> int:
    """Return the length of the shortest prefix whose real mass reaches p of the real whole; 0 < p < 1.

    Prefix c reaches it iff (t - p n) + (P - t) - p T >= 0, where t of the n ties of the maximum are in the prefix and T
    is the mass of the rest: the first part is rational, and the only one that can be exactly zero.
    """
    x = sorted(logits.tolist(), reverse=True)
    share = Fraction(float(p))
    ties = x.count(x[0])
    if ties == len(x):
        return next(c for c in range(1, ties + 1) if c >= share * ties)
    bits = FIRST_BITS
    while bits <= MOST_BITS:
        with flint.ctx.workprec(bits):
            try:
                return _bisected(x, share, ties)
            except _TooFewBitsError:
                bits *= 2
    raise AssertionError(f"undecided at {MOST_BITS} bits: {logits.tobytes().hex()} p {p!r}")


class _TooFewBitsError(Exception):
    pass


def _bisected(x: list[float], share: Fraction, ties: int) -> int:
    rest = [(flint.arb(value) - flint.arb(x[0])).exp() for value in x[ties:]]
    prefixes = [flint.arb(0), *accumulate(rest)]
    tail = _ball(share) * prefixes[-1]

    def reaches(count: int) -> bool:
        among = min(count, ties) - share * ties
        margin = _ball(among) + (prefixes[max(count - ties, 0)] - tail)
        if margin > 0:
            return True
        if margin < 0:
            return False
        raise _TooFewBitsError

    return bisect_left(range(1, len(x) + 1), True, key=reaches) + 1


def _ball(value: Fraction) -> flint.arb:
    return flint.arb(flint.fmpq(value.numerator, value.denominator))


def margin(logits: Row, p: np.float32, count: int, bits: int = 400) -> flint.arb:
    """Return a ball around the real P_count - p N."""
    x = sorted(logits.tolist(), reverse=True)
    with flint.ctx.workprec(bits):
        weights = [(flint.arb(value) - flint.arb(x[0])).exp() for value in x]
        return sum(weights[:count], flint.arb(0)) - _ball(Fraction(float(p))) * sum(weights, flint.arb(0))


def near_coincidence(rng: Generator, steps: int, above: bool) -> tuple[Row, np.float32, int]:
    """Return a row, p, and a prefix whose real margin is tiny: about 2**-18 times smaller with each step.

    From a few random tokens and a p below the share of a prefix on, append the largest fp32 logit whose weight the
    margin still allows, again and again; with ``above`` False the last one is the next larger fp32 value, so that the
    prefix just misses p.  The tokens are shuffled.
    """
    while True:
        size = int(rng.integers(3, 30))
        head = int(rng.integers(1, size))
        row = np.sort((rng.standard_normal(size) * rng.choice([0.5, 2, 4])).astype(np.float32))[::-1]
        p = _share_below(row, head, float(rng.uniform(1e-4, 0.05)))
        if not 0 < p < 1:
            continue
        for step in range(steps):
            row = np.append(row, _allowed(row, p, head, overshoot=step == steps - 1 and not above))
        if np.isfinite(row).all() and (row[head:] < row[head - 1]).all():
            return rng.permutation(row), p, head


def _share_below(row: Row, head: int, gap: float) -> np.float32:
    weights = np.exp(row.astype(np.float64) - float(row[0]))
    return np.float32(weights[:head].sum() / weights.sum() * (1 - gap))


def _allowed(row: Row, p: np.float32, head: int, *, overshoot: bool) -> np.float32:
    """Return the largest fp32 logit that leaves the margin of the prefix positive, or the next larger."""
    with flint.ctx.workprec(600):
        left = margin(row, p, head, bits=600) / flint.arb(float(p))
        logit = np.float32(float((left.log() + flint.arb(float(row.max()))).mid()))
        while (flint.arb(float(logit)) - flint.arb(float(row.max()))).exp() > left:
            logit = np.nextafter(logit, np.float32(-np.inf))
    return np.nextafter(logit, np.float32(np.inf)) if overshoot else logit
