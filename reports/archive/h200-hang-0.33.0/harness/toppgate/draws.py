"""Launches for a search: rows of many kinds, each with a p that is meant to meet its boundary.

A launch is a function of its number and of NumPy's generators; nothing here is frozen or judged.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toppgate.fp32 import Float32

Float64 = NDArray[np.float64]

#: (vocabulary, slices): one and two slices; one block and two of the search (2,048 tokens) and of the mask (8,192).
SHAPES: Final = ((61, 1), (257, 2), (1000, 2), (2049, 1), (4097, 2), (9001, 1))

#: The largest p that is not 1.
MOST: Final = np.nextafter(np.float32(1), np.float32(0))


@dataclass(frozen=True)
class Launch:
    """``logits`` float32 [B, V], finite; ``p`` float32 [B], 0 < p < 1; ``slices`` that each row is cut into."""

    kind: str
    slices: int
    logits: Float32
    p: Float32


def draw(number: int, batch: int) -> Launch:
    """Return a launch: the shape goes round fastest, then the kind; everything else is drawn from the number."""
    vocabulary, slices = SHAPES[number % len(SHAPES)]
    kind = list(KINDS)[number // len(SHAPES) % len(KINDS)]
    generator = np.random.Generator(np.random.Philox(key=number))
    logits = KINDS[kind](generator, batch, vocabulary).astype(np.float32)
    return Launch(kind, slices, logits, _p(generator, logits))


# ---------------------------------------------------------------------------------------------- rows


def _normal(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """Gaussian logits, half of the rows rounded to bfloat16, which ties them."""
    rows: Float64 = generator.standard_normal((batch, vocabulary)) * generator.choice([1.0, 3.0, 8.0], (batch, 1))
    rows[::2] = rows[::2].astype(ml_dtypes.bfloat16)
    return rows


def _few(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """Two to eight values, in any number and place: ties within blocks, across blocks and across slices."""
    values = generator.standard_normal((batch, 8)) * generator.choice([0.1, 1.0, 4.0], (batch, 1))
    chosen = (generator.random((batch, vocabulary)) ** 3 * generator.integers(2, 9, (batch, 1))).astype(np.intp)
    return np.take_along_axis(values, chosen, axis=1)


def _halves(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """Probabilities near powers of two that add up to one: what is above a pivot has a short mass."""
    rows = np.full((batch, vocabulary), -200.0)
    for row in rows:
        whole, level, taken = 1, 0, 0
        while whole:
            room = (vocabulary - taken) // whole - 1  # each part may be halved as long as all fit
            halved = int(generator.integers(1, whole + 1)) if room > 0 and level < 24 else 0
            row[taken : taken + whole - halved] = -level * np.log(2)
            taken, whole, level = taken + whole - halved, 2 * halved, level + 1
        generator.shuffle(row)
    return rows


def _ladder(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """Geometric steps, ninths of the row's range or ninths of those: tokens on the pivots of the search."""
    steps = 9 ** generator.integers(1, 3, (batch, 1))
    place = (generator.random((batch, vocabulary)) ** 0.5 * (steps + 1)).astype(np.int64)
    place[:, :2] = np.concatenate([np.zeros_like(steps), steps], axis=1)
    return generator.uniform(0.1, 40.0, (batch, 1)) * -place / steps


def _tail(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """A long fall to probabilities below 1e-9, half of the rows with the lowest first."""
    rows = -generator.uniform(15.0, 60.0, (batch, 1)) * generator.random((batch, vocabulary))
    rows[::2].sort(axis=1)
    return rows


def _dense(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """Values within 1e-1 to 1e-7 of each other, with a few above and below: more than the search can part."""
    rows = generator.random((batch, vocabulary)) * 10.0 ** -generator.uniform(1, 7, (batch, 1))
    few = generator.integers(0, 3, batch)
    for row, count in zip(rows, few, strict=True):
        row[generator.integers(0, vocabulary, 2 * count)] += np.repeat([6.0, -6.0], count)
    return rows


def _huge(generator: np.random.Generator, batch: int, vocabulary: int) -> Float64:
    """Logits up to 1e9, in spread or in offset: what a threshold in logit space cannot hold."""
    rows = generator.standard_normal((batch, vocabulary))
    size = 10.0 ** generator.uniform(2, 9, (batch, 1))
    return np.where(np.arange(batch)[:, None] % 2, rows * size, rows + size)


KINDS: Final[dict[str, Callable[[np.random.Generator, int, int], Float64]]] = {
    "normal": _normal,
    "few values": _few,
    "halves": _halves,
    "on the ladder": _ladder,
    "long tail": _tail,
    "dense": _dense,
    "huge": _huge,
}


# ---------------------------------------------------------------------------------------------- p


def _p(generator: np.random.Generator, logits: Float32) -> Float32:
    """Half of the rows get the mass of a prefix, rounded to fp32, or its neighbour; the others any p, or one near 1."""
    ordered = -np.sort(-logits.astype(np.float64), axis=1)
    weights = np.exp(ordered - ordered[:, :1])
    masses = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    batch, vocabulary = logits.shape
    place = (vocabulary ** generator.random(batch)).astype(np.intp) - 1
    exact = masses[np.arange(batch), place].astype(np.float32)
    beside = np.nextafter(exact, generator.choice([0.0, 1.0], batch).astype(np.float32))
    near = 1 - 2.0 ** -generator.uniform(4, 24, batch)
    drawn = np.stack([exact, exact, beside, generator.random(batch), near, near])
    chosen: Float32 = drawn[generator.integers(0, len(drawn), batch), np.arange(batch)].astype(np.float32)
    return chosen.clip(np.float32(1e-6), MOST)
