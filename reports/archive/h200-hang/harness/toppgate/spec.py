"""The oracle's specification, literally: contract, section 5, steps 1 to 5, in Python floats.

This module is the definition and the tests' truth; ``oracle`` returns the same bits faster.  It imports nothing
from toppgate, so that it can be read, copied and checked alone.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Reference:
    """The reference nucleus of one row.

    Parameters
    ----------
    order : int32 [V]
        Token ids by (logit descending, id ascending); -0.0 and +0.0 are equal logits.
    weights : float64 [V]
        ``math.exp(logit - largest logit)``, in that order.
    normalizer : float
        ``math.fsum(weights)``.
    target : float
        ``p * normalizer``, rounded once.
    count : int
        Length of the shortest prefix that reaches the target by the scan; 0 where the scan never reaches it.
    certified : bool
        Whether ``math.fsum`` confirms the scan's boundary.  Not a statement about real numbers.
    p : float
        The fp32 p, widened.

    Notes
    -----
    Both arrays are made read-only.  Two references compare by identity.
    """

    order: NDArray[np.int32]
    weights: NDArray[np.float64]
    normalizer: float
    target: float
    count: int
    certified: bool
    p: float

    def __post_init__(self) -> None:
        self.order.setflags(write=False)
        self.weights.setflags(write=False)

    def kept(self) -> NDArray[np.bool_]:
        """Return the kept set, bool [V] by token id: the first ``count`` of ``order``; empty where count is 0."""
        mask = np.zeros(self.order.size, np.bool_)
        mask[self.order[: self.count]] = True
        return mask


def specification(logits: NDArray[np.float32], p: np.float32) -> Reference:
    """Return the reference of one row by the contract's own words.

    Parameters
    ----------
    logits : float32 [V]
        Finite logits, V >= 1.  Not checked here; ``oracle.reference`` checks.
    p : float32
        p after its conversion to fp32, never the decimal.  Not checked here.

    Notes
    -----
    The scan is Neumaier's compensated sum (ZAMM 54 (1974) 39-51), cut at the first prefix that reaches the target.
    """
    x: list[float] = logits.tolist()  # fp32 widened to binary64 is exact
    order = sorted(range(len(x)), key=lambda token: (-x[token], token))
    largest = x[order[0]]
    weights = [math.exp(x[token] - largest) for token in order]
    normalizer = math.fsum(weights)
    target = float(p) * normalizer

    count = 0
    total = compensation = 0.0
    for position, weight in enumerate(weights, start=1):
        rounded = total + weight
        if abs(total) >= abs(weight):
            compensation += (total - rounded) + weight
        else:
            compensation += (weight - rounded) + total
        total = rounded
        if total + compensation >= target:
            count = position
            break

    reached = count > 0 and math.fsum(weights[:count]) >= target
    certified = reached and (count == 1 or math.fsum(weights[: count - 1]) < target)
    return Reference(
        order=np.array(order, np.int32),
        weights=np.array(weights, np.float64),
        normalizer=normalizer,
        target=target,
        count=count,
        certified=certified,
        p=float(p),
    )
