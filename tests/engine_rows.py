"""Rows for every engine of the oracle: distributions, p near true prefix ratios, the known ambiguous rows, equality."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray
from strategies import Row, bfloat16, prefix_ratio

from toppgate import spec

ONE = np.float32(1)

#: Rows of fp32 bits on which, at p = 1, the scan and the certificate disagree; with the scan's count.
#: Found by a seeded search: from one or two large tokens on, take greedily the largest fp32 logit whose weight does
#: not exceed what is missing to a half-way point between two binary64 sums; then one to three tokens of about one ulp
#: of the compensation.  Of the thousands found, these have weights that are within 0.4 ulp of the real exp, so that
#: glibc's exp gives the same bits with and without FMA (run both ways).
AMBIGUOUS = [
    pytest.param("00000000 BE4B7DF5 C2A49463", 0, id="never reaches, 3 tokens"),
    pytest.param("00000000 BEC7BA99 C29B8510 C29D70FA", 0, id="never reaches, 4 tokens"),
    pytest.param(
        "00000000 C0307BF1 C2003B31 C21CAAF3 C2506B24 C2820982 C29A19CE C2B1A074 C2B5036E C2BA93D9 C2D461DB C2ECAE9C",
        0,
        id="never reaches, 12 tokens",
    ),
    pytest.param("00000000 C0332AA2 C213C71C C246E68C C2812BD8 C288C3A8", 5, id="the scan is early, 6 tokens"),
    pytest.param(
        "00000000 C205E17B C213F3BF C25285E9 C28777CE C2A503F4 C2BDE469 C2D76379 C2EFE88E C2F2A02D C2F32836 C2F41DA7",
        5,
        id="the scan is early, 12 tokens",
    ),
    pytest.param("00000000 BF39D9C0 C215B845 C248A2C8 C27AD01E C28F6FAF C28F9DB9", 7, id="the scan is late, 7 tokens"),
]


def row_of(bits: str) -> Row:
    """Return the fp32 row with these bits, given in hex."""
    return np.array([int(word, 16) for word in bits.split()], np.uint32).view(np.float32)


def hexes(values: NDArray[np.float64]) -> list[str]:
    """Return binary64 values so that equal means equal in every bit."""
    return [value.hex() for value in values.tolist()]


def same_bits(fast: spec.Reference, literal: spec.Reference) -> None:
    """Assert that two references agree in every field, bit for bit."""
    assert fast.order.dtype == literal.order.dtype == np.int32
    assert fast.order.tolist() == literal.order.tolist()
    assert fast.weights.dtype == literal.weights.dtype == np.float64
    assert fast.weights.tobytes() == literal.weights.tobytes()
    assert hexes(np.array([fast.normalizer, fast.target])) == hexes(np.array([literal.normalizer, literal.target]))
    assert (fast.count, fast.certified, fast.p) == (literal.count, literal.certified, literal.p)


def normal(scale: float) -> Callable[[Generator, int], Row]:
    """Return a draw of normal logits."""
    return lambda rng, v: (rng.standard_normal(v) * scale).astype(np.float32)


def steps(base: float, most: int) -> Callable[[Generator, int], Row]:
    """Return a draw of fp32 neighbours above a base."""
    return lambda rng, v: (np.float32(base).view(np.uint32) + rng.integers(0, most, v).astype(np.uint32)).view(
        np.float32
    )


def finite_bits(rng: Generator, v: int) -> Row:
    """Return uniformly drawn finite fp32 bit patterns."""
    row = rng.integers(0, 1 << 32, v, dtype=np.uint32).view(np.float32)
    return np.where(np.isfinite(row), row, np.float32(0))


DISTRIBUTIONS: dict[str, Callable[[Generator, int], Row]] = {
    "normal 1": normal(1),
    "normal 3": normal(3),
    "normal 8": normal(8),
    "normal 3 in bfloat16": lambda rng, v: bfloat16(normal(3)(rng, v)),
    "normal 3 in float16": lambda rng, v: normal(3)(rng, v).astype(np.float16).astype(np.float32),
    "all equal": lambda rng, v: np.full(v, rng.standard_normal(), np.float32),
    "two values": lambda rng, v: rng.choice(np.array([0.25, -3.5], np.float32), v),
    "adjacent fp32": steps(17.5, 6),
    "adjacent fp32 at 3e7": steps(3e7, 40),
    "signed zeros and subnormals": lambda rng, v: (
        rng.integers(0, 5, v).astype(np.uint32) | rng.integers(0, 2, v).astype(np.uint32) << np.uint32(31)
    ).view(np.float32),
    "subnormal weights": lambda rng, v: np.append(rng.uniform(-746, -705, v - 1), 0.0).astype(np.float32),
    "wide, mostly underflow": lambda rng, v: rng.uniform(-4000, 0, v).astype(np.float32),
    "largest fp32, both signs": lambda rng, v: rng.choice(np.array([3.4028235e38, -3.4028235e38, 0], np.float32), v),
    "some 1e9": lambda rng, v: np.where(rng.random(v) < 0.01, np.float32(1e9), normal(1)(rng, v)),
    "geometric": lambda rng, v: -(rng.permutation(v) * math.log(2)).astype(np.float32),
    "log-uniform, tiny": lambda rng, v: (10.0 ** rng.uniform(-44, 0, v)).astype(np.float32),
    "offset 1e4": lambda rng, v: normal(3)(rng, v) + np.float32(1e4),
    "any bits": finite_bits,
}

P_VALUES = [0.0, 1e-6, 0.5, 0.9, 0.95, 0.999, 1 - 2.0**-24, 1.0]


def probabilities(rng: Generator, row: Row) -> Iterator[np.float32]:
    """Yield a fixed p, a uniform p and the fp32 neighbours of one true prefix ratio."""
    yield np.float32(rng.choice(P_VALUES))
    yield np.float32(rng.random())
    count = int(rng.integers(1, row.size + 1))
    for step in (-1, 0, 1):
        yield prefix_ratio(row, count, step)
