"""One side's output of a case, kept without loss and small.

An output logit is *kept* (finite and bit-identical to the input logit), *masked* (−inf), or an *exception*.  Bits for
kept plus a list of exceptions give back every bit of the output, given the input; so the digest of the raw output can
be checked from the retained file alone (contract, section 4).
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from toppgate import digests, inputs
from toppgate.errors import InputError
from toppgate.fp32 import Float32

#: The bits of fp32 −inf.
MASKED = np.uint32(0xFF800000)

_KEY = "toppgate"


@dataclass(frozen=True)
class Masks:
    """A side's output of one case: ``kept`` bool [B, V]; ``exceptions`` uint32 [n, 3]: row, token, bits."""

    kept: NDArray[np.bool_]
    exceptions: NDArray[np.uint32]

    def raw(self, logits: Float32) -> Float32:
        """Return the output, float32 [B, V], bit for bit."""
        output = np.where(self.kept, logits, np.float32(-np.inf))
        row, token, bits = self.exceptions.T
        output.view(np.uint32)[row, token] = bits
        return output

    def altered(self, row: int) -> int:
        """Return how many entries of a row are neither kept nor masked."""
        return int(np.count_nonzero(self.exceptions[:, 0] == row))

    def nan(self, row: int) -> bool:
        """Return whether a row of the output holds a NaN."""
        bits = self.exceptions[self.exceptions[:, 0] == row, 2]
        return bool(np.isnan(bits.copy().view(np.float32)).any())


def compare(logits: Float32, output: Float32) -> Masks:
    """Return what a kernel made of ``logits``; both float32 [B, V], C order."""
    before, after = logits.view(np.uint32), output.view(np.uint32)
    kept = (before == after) & np.isfinite(logits)
    row, token = np.nonzero(~kept & (after != MASKED))
    exceptions = np.stack([row.astype(np.uint32), token.astype(np.uint32), after[row, token]], axis=1)
    return Masks(kept, exceptions)


def to_bytes(masks: Masks, binding: dict[str, Any]) -> bytes:
    """Return the retained file: packed bits, exceptions, and what the output belongs to."""
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "kept": np.packbits(masks.kept, axis=1),
        "exceptions": np.ascontiguousarray(masks.exceptions),
    }
    return safetensors.numpy.save(tensors, {_KEY: digests.canonical(binding).decode()})


def binding_of(data: bytes, name: str) -> dict[str, Any]:
    """Return the metadata of a retained file.  Raises ``InputError`` where there is none."""
    try:
        size = int.from_bytes(data[:8], "little")
        found = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"{name}: says nothing of what it belongs to") from None
    if not isinstance(found, dict):
        raise InputError(f"{name}: says nothing of what it belongs to")
    return found


def from_bytes(data: bytes, shape: tuple[int, int], name: str) -> Masks:
    """Return the masks of a retained file for ``shape`` [B, V].  Raises ``InputError`` for anything unexpected."""
    tensors = inputs.load(data, name)
    if set(tensors) != {"kept", "exceptions"}:
        raise InputError(f"{name}: got tensors {sorted(tensors)}, expected kept and exceptions")
    packed, exceptions = tensors["kept"], tensors["exceptions"]
    want = (shape[0], (shape[1] + 7) // 8)
    if packed.dtype != np.uint8 or packed.shape != want:
        raise InputError(f"{name}: kept: got {packed.dtype.name} {list(packed.shape)}, expected uint8 {list(want)}")
    if exceptions.dtype != np.uint32 or exceptions.ndim != 2 or exceptions.shape[1] != 3:
        raise InputError(
            f"{name}: exceptions: got {exceptions.dtype.name} {list(exceptions.shape)}, expected uint32 [n, 3]"
        )
    bits = np.unpackbits(packed, axis=1)
    if bits[:, shape[1] :].any() or (exceptions[:, :2] >= np.array(shape, dtype=np.uint32)).any():
        raise InputError(f"{name}: names tokens beyond {list(shape)}")
    kept = bits[:, : shape[1]].astype(np.bool_)
    if kept[exceptions[:, 0], exceptions[:, 1]].any():
        raise InputError(f"{name}: an exception stands on a kept token")
    return Masks(kept, exceptions)
