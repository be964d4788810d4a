"""Exact diagnostics of one reference: masses, margins, ties at the boundary (contract, section 6, *Diagnostics*).

Every binary64 number is an integer multiple of 2**-1074, so sums of weights are taken as Python integers in that
unit and are exact.  A mass or a margin is then one integer quotient, which CPython rounds correctly: the nearest
binary64 to the exact rational.  The weights themselves are ``math.exp``'s, already rounded.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from toppgate.spec import Reference

_INFINITY_BITS: Final = np.uint64(0x7FF0 << 48)
_HIDDEN_BIT: Final = np.uint64(1 << 52)
_SPLIT: Final = np.uint64(26)

#: A significand's halves are below 2**27; so many of them add up exactly in binary64, which is what bincount uses.
_MOST_TERMS: Final = 1 << 26


def exact_sum(weights: NDArray[np.float64]) -> int:
    """Return the sum of finite, non-negative weights, exact, as an integer in units of 2**-1074.

    Parameters
    ----------
    weights : float64 [N]
        At most 2**26 of them; N = 0 sums to 0.

    Raises
    ------
    ValueError
        A weight is negative (-0.0 included), infinite or NaN, or there are too many.
    """
    if weights.size > _MOST_TERMS:
        raise ValueError(f"weights: {weights.size} values, at most {_MOST_TERMS} expected")
    bits = np.ascontiguousarray(weights).view(np.uint64)
    if not np.all(bits < _INFINITY_BITS):
        raise ValueError("weights: finite values of 0.0 or more expected")
    exponent = (bits >> np.uint64(52)).astype(np.intp)
    significand = np.where(exponent > 0, bits & (_HIDDEN_BIT - np.uint64(1)) | _HIDDEN_BIT, bits)
    low = np.bincount(exponent, weights=significand & ((np.uint64(1) << _SPLIT) - np.uint64(1)))
    high = np.bincount(exponent, weights=significand >> _SPLIT)
    total = 0
    for e in np.flatnonzero(low + high).tolist():
        # Biased exponents 0 (subnormal) and 1 share the unit 2**-1074.
        total += ((int(high[e]) << int(_SPLIT)) + int(low[e])) << max(e - 1, 0)
    return total


@lru_cache(maxsize=1)  # the masses of one row share it; a Reference is immutable and hashes by identity
def _whole(reference: Reference) -> int:
    return exact_sum(reference.weights)


def mass(reference: Reference, tokens: NDArray[np.bool_]) -> float:
    """Return the mass of a set of tokens: its weights ÷ all weights, correctly rounded.

    Parameters
    ----------
    reference : Reference
        The row.
    tokens : bool [V]
        The set, by token id.

    Raises
    ------
    ValueError
        ``tokens`` is not bool [V].
    """
    if tokens.dtype != np.bool_ or tokens.shape != reference.order.shape:
        expected = f"bool {list(reference.order.shape)}"
        raise ValueError(f"tokens: {tokens.dtype} {list(tokens.shape)}, {expected} expected")
    return exact_sum(reference.weights[tokens[reference.order]]) / _whole(reference)


def margin(reference: Reference) -> tuple[float, float]:
    """Return how far the boundary is from moving, each side correctly rounded.

    Returns
    -------
    below : float
        p less the mass of the prefix one token shorter; for ``count == 1`` that is p itself.
    above : float
        The mass of the kept prefix less p.

    Raises
    ------
    ValueError
        The reference has no boundary: its scan never reached the target.

    Notes
    -----
    Both are taken against the exact p and the exact sum of the weights, not against the rounded target and
    normalizer, so a side may be negative on a row whose certificate failed.  Defined in ``tests/data/rows.json``.
    """
    boundary = _boundary(reference)
    numerator, denominator = reference.p.as_integer_ratio()
    target = numerator * _whole(reference)
    scale = denominator * _whole(reference)
    shorter = exact_sum(reference.weights[:boundary])
    kept = shorter + exact_sum(reference.weights[boundary : boundary + 1])
    return (target - denominator * shorter) / scale, (denominator * kept - target) / scale


def prefixes(reference: Reference, counts: Sequence[int]) -> list[tuple[float, float]]:
    """Return of each prefix its mass, and its mass less p, both correctly rounded.

    Parameters
    ----------
    reference : Reference
        The row.
    counts : int
        Lengths of the prefixes, ascending, each in 0..V.

    Raises
    ------
    ValueError
        The lengths do not ascend, or one is not in 0..V.
    """
    if list(counts) != sorted(counts) or not all(0 <= count <= reference.order.size for count in counts):
        raise ValueError(f"counts: {list(counts)}, ascending numbers from 0 to {reference.order.size} expected")
    numerator, denominator = reference.p.as_integer_ratio()
    whole = _whole(reference)
    found, total, at = [], 0, 0
    for count in counts:
        total += exact_sum(reference.weights[at:count])
        at = count
        found.append((total / whole, (denominator * total - numerator * whole) / (denominator * whole)))
    return found


def reaches_target(reference: Reference, count: int) -> bool:
    """Return whether the prefix of ``count`` tokens reaches the target by the certificate's rule, ``math.fsum``.

    The empty prefix never does, not even a target of 0.

    Raises
    ------
    ValueError
        ``count`` is not in 0..V.
    """
    if not 0 <= count <= reference.order.size:
        raise ValueError(f"count: {count}, 0 to {reference.order.size} expected")
    return count > 0 and math.fsum(reference.weights[:count].tolist()) >= reference.target


def tie_group(reference: Reference, logits: NDArray[np.float32]) -> int:
    """Return how many tokens of the row have the boundary token's logit, itself included (-0.0 equals +0.0).

    Weights cannot tell: distinct logits may have equal weights.

    Parameters
    ----------
    reference : Reference
        The row's reference.
    logits : float32 [V]
        The logits that it was made from.  Only the shape is checked.

    Raises
    ------
    ValueError
        The shapes differ, or the reference has no boundary.
    """
    if logits.shape != reference.order.shape:
        raise ValueError(f"logits: shape {list(logits.shape)}, {list(reference.order.shape)} expected")
    equal: NDArray[Any] = logits == logits[reference.order[_boundary(reference)]]
    return int(np.count_nonzero(equal))


def _boundary(reference: Reference) -> int:
    """Return the boundary token's position in ``order``."""
    if reference.count < 1:
        raise ValueError("reference: the scan never reached the target, so there is no boundary")
    return reference.count - 1
