"""Rows that are hard for a top-p implementation, as hypothesis strategies.

``rows()`` draws (logits float32 [V], p float32): finite logits, any finite p that the oracle's core admits, and often
a p that is an fp32 neighbour of a true prefix ratio of that very row.
"""

import math
from fractions import Fraction
from itertools import accumulate

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray
from truth import ranked

Row = NDArray[np.float32]

HUGE = float(np.finfo(np.float32).max)
TINY = float(np.finfo(np.float32).smallest_subnormal)
LONGEST = 80


def _array(values: list[float]) -> Row:
    return np.array(values, np.float32)


def _lists(values: st.SearchStrategy[float]) -> st.SearchStrategy[Row]:
    return st.lists(values, min_size=1, max_size=LONGEST).map(_array)


def bfloat16(row: Row) -> Row:
    """Round to bfloat16, ties to even, and widen again; finite values well inside the range."""
    bits = row.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _ulps_from(base: float, steps: list[int]) -> Row:
    """Return values some fp32 steps above ``base``, a normal number."""
    return (np.full(len(steps), base, np.float32).view(np.uint32) + np.array(steps, np.uint32)).view(np.float32)


def _fp32(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(float(np.float32(low)), float(np.float32(high)), width=32)


any_finite = _lists(_fp32(-HUGE, HUGE))
ordinary = _lists(_fp32(-20, 20))
bf16 = ordinary.map(bfloat16)
few_valued = st.lists(_fp32(-9, 9), min_size=1, max_size=3).flatmap(lambda values: _lists(st.sampled_from(values)))
signed_zeros = _lists(st.sampled_from([0.0, -0.0, TINY, -TINY, 1.0, -1.0]))
extremes = _lists(
    st.sampled_from([HUGE, -HUGE, 1e9, 0.0, -0.0, 1.0, float(np.nextafter(np.float32(HUGE), np.float32(0)))])
)
adjacent = st.builds(
    _ulps_from,
    st.sampled_from([1.0, -1.0, 19.9, 1e-3, 3e7, -88.0]),
    st.lists(st.integers(0, 4), min_size=1, max_size=LONGEST),
)
#: exp leaves the normal range at -708.4, and the subnormal one at -745.13.
underflowing = st.lists(_fp32(-747, -700), max_size=LONGEST).map(lambda values: _array([0.0, *values]))
#: Sums of powers of two (nearly): the hardest for a compensated sum.
geometric = _lists(st.integers(0, 200).map(lambda power: -power * math.log(2)))
single = _fp32(-HUGE, HUGE).map(lambda value: _array([value]))

logits: st.SearchStrategy[Row] = st.one_of(
    ordinary, bf16, few_valued, adjacent, signed_zeros, underflowing, geometric, extremes, any_finite, single
)

FIXED_P = (0.0, TINY, 1e-6, 0.5, 0.9, 0.999, 1 - 2.0**-24, 1.0, float(np.nextafter(np.float32(1), np.float32(2))), -0.5)


def prefix_ratio(row: Row, count: int, step: int) -> np.float32:
    """Return the fp32 nearest to the true share of the first ``count`` tokens, moved by ``step`` fp32 neighbours."""
    prefixes = list(accumulate(ranked(row)[1]))
    p = np.float32(float(Fraction(prefixes[count - 1], prefixes[-1])))
    return np.nextafter(p, np.float32(2 * step)) if step else p


def _with_p(row: Row) -> st.SearchStrategy[tuple[Row, np.float32]]:
    near = st.builds(prefix_ratio, st.just(row), st.integers(1, row.size), st.sampled_from([-1, 0, 1]))
    anywhere = st.one_of(st.sampled_from(FIXED_P), _fp32(0, 1)).map(np.float32)
    return st.tuples(st.just(row), st.one_of(near, anywhere))


def rows() -> st.SearchStrategy[tuple[Row, np.float32]]:
    """Return the strategy of (logits, p)."""
    return logits.flatmap(_with_p)
