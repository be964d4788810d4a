"""The canonical order of a row: (logit descending, token id ascending), −0.0 equal to +0.0 (contract, section 5).

fp32 bits mapped to an unsigned key grow as the logit falls; a stable sort by the key's low half, then by its high
half, is the stable sort by the whole key.  NumPy sorts 16-bit keys by radix, so this is linear in the vocabulary.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

#: The bits of -0.0, which ties with +0.0, whose bits are 0.
_MINUS_ZERO: Final = np.int32(-1 << 31)


def canonical(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the token ids of one row, int32 [V], in canonical order.

    Finite logits [V] are ordered as said; a row with NaN or infinities gets some fixed permutation.
    """
    bits = np.array(logits, order="C").view(np.int32)
    bits[bits == _MINUS_ZERO] = 0
    key = (bits ^ (~(bits >> 31) & 0x7FFFFFFF)).view(np.uint32)  # bits >> 31 is all ones where the sign is set
    by_low = np.argsort(key.astype(np.uint16), kind="stable")
    high = (key >> np.uint32(16)).astype(np.uint16)
    return by_low[np.argsort(high[by_low], kind="stable")].astype(np.int32)


def canonical_rows(logits: NDArray[np.float32]) -> NDArray[np.int32]:
    """Return the canonical order of each row, int32 [B, V]."""
    return np.stack([canonical(row) for row in logits])
