"""Exact answers for ``data/rows.json``: Fractions and integers, written from its ``rule`` and ``format`` alone.

Nothing here comes from toppgate, and no sum is rounded: only the weights are, since the rule defines them by
``math.exp``.
"""

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = Path(__file__).parent / "data" / "rows.json"

#: Every binary64 number is a whole number of these.
UNITS_IN_ONE = 1 << 1074


@dataclass(frozen=True, eq=False)
class Case:
    """One case of rows.json: its row in fp32, and the answer that the file states."""

    id: str
    logits: NDArray[np.float32]
    p: np.float32
    kept: frozenset[int]
    reject: str | None
    margin: dict[str, float]


@dataclass(frozen=True)
class Nucleus:
    """The kept set by exact sums, and the exact distance of its boundary from p on either side."""

    kept: frozenset[int]
    below: Fraction
    above: Fraction


@cache
def cases() -> tuple[Case, ...]:
    """Return every case of rows.json."""
    return tuple(_case(entry) for entry in json.loads(ROWS.read_text())["cases"])


def _case(entry: dict[str, Any]) -> Case:
    expect = entry["expect"]
    ranges = expect.get("kept_ranges") or [[token, token + 1] for token in expect.get("kept", [])]
    return Case(
        id=entry["id"],
        logits=expand(entry["logits"]),
        p=fp32([entry["p"]])[0],
        kept=frozenset(token for first, end in ranges for token in range(first, end)),
        reject=expect.get("reject"),
        margin=entry.get("margin", {}),
    )


def fp32(values: list[Any]) -> NDArray[np.float32]:
    """Return decimals, numbers or the strings for NaN and infinity as fp32, by way of binary64."""
    with np.errstate(over="ignore"):
        return np.array([float(value) for value in values], np.float64).astype(np.float32)


def expand(logits: list[Any] | dict[str, Any]) -> NDArray[np.float32]:
    """Return the fp32 row that a ``logits`` entry describes."""
    parts = logits["concat"] if isinstance(logits, dict) else [{"list": logits}]
    return fp32([value for part in parts for value in _part(part)])


def _part(part: dict[str, Any]) -> list[Any]:
    match part:
        case {"list": values}:
            return list(values)
        case {"value": value, "repeat": repeat}:
            return [value] * repeat
        case {"linspace": [a, b, n]}:
            return [a + (b - a) * i / (n - 1) for i in range(n)]
        case {"affine": {"start": start, "step": step, "count": count}}:
            return [start + step * i for i in range(count)]
    raise AssertionError(f"a part that the format does not know: {part}")


def rejection(logits: NDArray[np.float32], p: np.float32) -> str | None:
    """Return the code that an inadmissible row is rejected with, or None."""
    if not all(math.isfinite(x) for x in logits.tolist()):
        return "nonfinite_logits"
    return None if 0.0 < float(p) < 1.0 else "invalid_p"


def units(value: float) -> int:
    """Return a binary64 number as a whole number of 2**-1074, exactly."""
    whole = Fraction(value) * UNITS_IN_ONE
    assert whole.denominator == 1
    return whole.numerator


def ranked(logits: NDArray[np.float32]) -> tuple[list[int], list[int]]:
    """Return the token ids in order, and their weights in that order, in units."""
    x = logits.tolist()
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    exact = {shift: units(math.exp(shift)) for shift in {value - x[order[0]] for value in x}}
    return order, [exact[x[token] - x[order[0]]] for token in order]


def nucleus(logits: NDArray[np.float32], p: np.float32) -> Nucleus:
    """Return the shortest prefix whose exact share of the exact sum reaches the exact p; 0 < p < 1."""
    order, weights = ranked(logits)
    prefixes = [0, *accumulate(weights)]
    whole, share = prefixes[-1], Fraction(float(p))
    count = bisect_left(prefixes, share * whole)
    return Nucleus(
        kept=frozenset(order[:count]),
        below=share - Fraction(prefixes[count - 1], whole),
        above=Fraction(prefixes[count], whole) - share,
    )
