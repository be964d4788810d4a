"""The canonical order of a row: (logit descending, token id ascending), −0.0 equal to +0.0 (contract, section 5).

fp32 bits mapped to an unsigned key grow as the logit falls; a stable sort by the key's low half, then by its high
half, is the stable sort by the whole key.  NumPy sorts 16-bit keys by radix, so this is linear in the vocabulary.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

_SIGN_BIT: Final = np.uint32(1 << 31)


def canonical(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the token ids of one row, int32 [V], in canonical order.

    Finite logits [V] are ordered as said; a row with NaN or infinities gets some fixed permutation.
    """
    bits = np.ascontiguousarray(logits).view(np.uint32)
    bits = np.where(bits == _SIGN_BIT, np.uint32(0), bits)  # -0.0 ties with +0.0
    key = np.where(bits < _SIGN_BIT, bits ^ (_SIGN_BIT - np.uint32(1)), bits)
    by_low = np.argsort((key & np.uint32(0xFFFF)).astype(np.uint16), kind="stable")
    high = (key >> np.uint32(16)).astype(np.uint16)
    return by_low[np.argsort(high[by_low], kind="stable")].astype(np.int32)


def canonical_rows(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the canonical order of each row, int32 [B, V]."""
    return np.stack([canonical(row) for row in logits])
