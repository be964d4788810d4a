"""A row that a hunt's screen found: judged by oracle and gate, its cause, and the known faults that it shows."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toppgate import codes, gate, masses, oracle, real
from toppgate.fp32 import Float32

#: Logits beyond this are no sampler's.
ORDINARY: Final = 100.0

#: The kernel's absolute tie bands in probability (vLLM issue #59964).
BAND: Final = 1e-9


@dataclass(frozen=True, eq=False)
class Suspect:
    """A row that the screen found, and what became of it.

    Attributes
    ----------
    at
        Its number among all rows of the hunt, from 0.
    kind, slices, finding
        How it was drawn and cut, and what the screen called it.
    logits, p
        float32 [V] and fp32.
    stock, patch
        What each side kept, bool [V].
    code, cause
        The gate's code for an ordinary row, and what kind of boundary it has; ``pass`` and empty until it is judged.
    """

    at: int
    kind: str
    slices: int
    finding: str
    logits: Float32
    p: np.float32
    stock: NDArray[np.bool_]
    patch: NDArray[np.bool_]
    code: str = codes.PASS
    cause: str = ""


def judged(suspect: Suspect) -> Suspect:
    """Judge a suspect by the oracle and the gate's rules for an ordinary row.

    An output value that is neither kept nor masked counts as masked here.
    """
    reference = oracle.reference(suspect.logits, suspect.p)
    boundary = gate.Boundary(reference.order, reference.count, reference.certified)
    stock, patch = gate.Output(suspect.stock), gate.Output(suspect.patch)
    code = gate.judge_ordinary(suspect.logits, boundary, stock=stock, patch=patch).code
    return replace(suspect, code=code, cause=_cause(suspect, reference, code) if reference.certified else "")


def _cause(suspect: Suspect, reference: oracle.Reference, code: str) -> str:
    """Say what kind of boundary a row has, and whether fp32 sums alone could have missed it."""
    tied = masses.tie_group(reference, suspect.logits) > 1
    reach = real.reach(reference, getattr(suspect, codes.side(code))).verdict
    return f"{'tied' if tied else 'single'} boundary token, {reach} the reach of fp32 sums"


def _tie_budget(suspect: Suspect) -> bool:
    return suspect.code == "patch_noncanonical_tie"


def _stock_loses(suspect: Suspect) -> bool:
    return suspect.code == "stock_under_keep" and bool(np.abs(suspect.logits).max() <= ORDINARY)


def _over_in_tie(suspect: Suspect) -> bool:
    reference = oracle.reference(suspect.logits, suspect.p)
    size = int(suspect.patch.sum())
    if not reference.certified or size <= reference.count or not suspect.patch[reference.order[:size]].all():
        return False
    return bool(suspect.logits[reference.order[size - 1]] == suspect.logits[reference.order[reference.count - 1]])


def _within_band(suspect: Suspect) -> bool:
    """The likeliest token that was passed over is nearly as likely as the least likely that was kept."""
    if suspect.code != "patch_hole":
        return False
    reference = oracle.reference(suspect.logits, suspect.p)
    shares, kept = reference.weights / reference.normalizer, suspect.patch[reference.order]
    return bool(kept.any() and shares[~kept].max() - shares[kept].min() <= BAND)


#: Faults that are known: what shows each, in words and as a test of a judged suspect.
KNOWN: Final[dict[str, tuple[str, Callable[[Suspect], bool]]]] = {
    "tie budget": ("a prefix's logits, but among exact ties not the lowest ids", _tie_budget),
    "stock under-keep": ("stock loses an oracle token, and no logit is beyond 100", _stock_loses),
    "over-keep in the lowest tie group": ("a prefix too long by tokens tied with the boundary's", _over_in_tie),
    "choice within 1e-9 bands": ("no prefix; what was passed over is within 1e-9 of what was kept", _within_band),
}
