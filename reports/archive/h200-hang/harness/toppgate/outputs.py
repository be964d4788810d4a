"""One side's output of a case, kept without loss and small.

An output logit is *kept* (finite and bit-identical to the input logit), *masked* (−inf), or an *exception*.  Kept sets
are packed as the length of a canonical prefix plus the tokens that differ from it; with the list of exceptions they
give back every bit of the output, given the input.  So the digest of the raw output can be checked from the retained
file and the input alone (contract, sections 4 and 7).
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

Orders = NDArray[np.int32]

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


def to_bytes(masks: Masks, orders: Orders, binding: dict[str, Any]) -> bytes:
    """Return the retained file: each kept set packed against ``orders``, exceptions, and what the output belongs to."""
    length = masks.kept.sum(axis=1, dtype=np.int32)
    row, token = np.nonzero(masks.kept ^ _prefixes(orders, length))
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "length": length,
        "differ": np.stack([row.astype(np.uint32), token.astype(np.uint32)], axis=1),
        "exceptions": np.ascontiguousarray(masks.exceptions),
    }
    return safetensors.numpy.save(tensors, {_KEY: digests.canonical(binding).decode()})


def _prefixes(orders: Orders, length: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Return the canonical prefixes of the given lengths, bool [B, V] by token id."""
    prefixes = np.zeros(orders.shape, dtype=np.bool_)
    for kept, order, count in zip(prefixes, orders, length, strict=True):
        kept[order[:count]] = True
    return prefixes


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


def from_bytes(data: bytes, orders: Orders, name: str) -> Masks:
    """Return the masks of a retained file, given the canonical order of each row of the case's logits.

    Raises ``InputError`` for anything that ``to_bytes`` does not write.
    """
    tensors = inputs.load(data, name)
    batch, vocabulary = orders.shape
    length = _tensor(tensors, "length", np.int32, (batch,), name)
    differ = _tensor(tensors, "differ", np.uint32, (None, 2), name)
    exceptions = _tensor(tensors, "exceptions", np.uint32, (None, 3), name)
    if tensors.keys() != {"length", "differ", "exceptions"}:
        raise InputError(f"{name}: got tensors {sorted(tensors)}, expected length, differ and exceptions")
    beyond = np.array([batch, vocabulary], dtype=np.uint32)
    if not ((length >= 0) & (length <= vocabulary)).all() or (differ >= beyond).any():
        raise InputError(f"{name}: names tokens beyond [{batch}, {vocabulary}]")
    if (exceptions[:, :2] >= beyond).any():
        raise InputError(f"{name}: exceptions: names tokens beyond [{batch}, {vocabulary}]")
    kept = _prefixes(orders, length)
    kept[differ[:, 0], differ[:, 1]] ^= True
    if (kept.sum(axis=1) != length).any() or kept[exceptions[:, 0], exceptions[:, 1]].any():
        raise InputError(f"{name}: contradicts itself")
    return Masks(kept, exceptions)


def _tensor(
    tensors: dict[str, np.ndarray[Any, Any]],
    key: str,
    dtype: type[np.generic],
    shape: tuple[int | None, ...],
    name: str,
) -> np.ndarray[Any, Any]:
    found = tensors.get(key)
    fits = found is not None and found.dtype == dtype and found.ndim == len(shape)
    if found is None or not fits or any(want not in {None, got} for want, got in zip(shape, found.shape, strict=True)):
        got = "nothing" if found is None else f"{found.dtype.name} {list(found.shape)}"
        raise InputError(f"{name}: {key}: got {got}, expected {np.dtype(dtype).name} {list(shape)}")
    return found
