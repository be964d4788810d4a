"""Captured inputs: logits and p as bytes, the same on every platform (contract, section 3, "Captured inputs")."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from toppgate import digests, fp32
from toppgate.errors import InputError
from toppgate.fp32 import Float32
from toppgate.order import canonical_rows
from toppgate.schema import Captured, Case, Forced, Normal, Part, Written

_TOO_MANY = 2**31


@dataclass(frozen=True)
class Inputs:
    """One launch: ``logits`` float32 [B, V] and ``p`` float32 [B], read-only."""

    logits: Float32
    p: Float32

    @property
    def sha256(self) -> digests.Sha256:
        """The digest that a params file freezes: over names, dtypes, shapes and little-endian values."""
        return digests.sha256_arrays({"logits": self.logits, "p": self.p})

    @cached_property
    def orders(self) -> NDArray[np.int32]:
        """The canonical order of each row, int32 [B, V]."""
        return canonical_rows(self.logits)


def generate(case: Case, files: Path | None = None) -> Inputs:
    """Return a case's inputs.  Raises ``InputError`` where a captured file cannot be read or is not the frozen one.

    ``files`` is where a run keeps its copies of captured files, each named by its SHA-256; they are looked for there
    first.  Not checked here: the frozen digest of the result, limits, and whether values are admissible.
    """
    logits = rows(case.rows, case.id, files)
    logits.flags.writeable = False
    p = case.p if isinstance(case.p, list) else [case.p] * len(logits)
    return Inputs(logits, np.array([fp32.rounded(fp32.binary64(text)) for text in p], dtype=np.float32))


def rows(spec: Normal | Captured | Written | Forced, where: str, files: Path | None = None) -> Float32:
    """Return the logits, float32 [B, V], of a row generator."""
    if isinstance(spec, Normal):
        if spec.seed is None:
            raise InputError(f"cases[{where}].rows.seed: not frozen yet")
        drawn = normal(int(spec.seed), fp32.binary64(spec.scale), spec.rows, spec.vocabulary)
        return fp32.round_to(drawn, spec.round)
    if isinstance(spec, Captured):
        taken = captured(found(spec, files), spec.tensor, spec.sha256)
        first, last = spec.rows or (0, len(taken))
        if not 0 <= first < last <= len(taken):
            raise InputError(f"cases[{where}].rows.rows: got [{first}, {last}], expected rows within {len(taken)}")
        return fp32.round_to(np.tile(taken[first:last], (spec.tile, 1)), spec.round)
    if isinstance(spec, Written):
        written = [_concatenate(row) for row in spec.rows]
        if len({row.size for row in written}) != 1:
            raise InputError(f"cases[{where}].rows.rows: lengths {[row.size for row in written]}, expected one length")
        return np.repeat(np.stack(written), spec.copies, axis=0)
    base = rows(spec.base, where, files).copy()
    if spec.token >= base.shape[1]:
        raise InputError(f"cases[{where}].rows.token: got {spec.token}, expected a token below {base.shape[1]}")
    base[:, spec.token] = fp32.rounded(fp32.binary64(spec.value))
    return base


def normal(seed: int, scale: float, count: int, vocabulary: int) -> Float32:
    """Return bell-shaped logits, float32 [count, vocabulary], the same bits on every platform.

    Twelve 32-bit words w of NumPy's ``Philox(key=seed, counter=0)`` stream make one value: the raw 64-bit words, low
    half first, in order row, token, word.  With S = sum(w) - 6 * 2**32, an exact integer of at most 36 bits, the value
    is ``S * scale * 2**-32`` rounded once to fp32: the product is exact in binary64 since ``scale`` has at most 16
    significant bits (checked by ``params``).  For scale 1 the values lie in [-6, 6), mean -6 * 2**-32, variance
    1 - 2**-64: bell-shaped, but not Gaussian in the tails (contract, section 3).
    """
    stream = np.random.Philox(key=seed, counter=0)
    logits = np.empty((count, vocabulary), dtype=np.float32)
    for row in logits:
        raw = stream.random_raw(vocabulary * 6).reshape(vocabulary, 6)
        low, high = raw & np.uint64(0xFFFFFFFF), raw >> np.uint64(32)
        centred = (low.sum(axis=1) + high.sum(axis=1)).astype(np.int64) - 6 * 2**32
        row[:] = centred.astype(np.float64) * scale * 2.0**-32
    return logits


def found(spec: Captured, files: Path | None) -> Path:
    """Return where a captured file lies: a run's own copy if there is one, else the path that params name."""
    copy = None if files is None or spec.sha256 is None else files / f"{spec.sha256}.safetensors"
    return copy if copy is not None and copy.is_file() else Path(spec.path)


def source_of(case: Case) -> Captured | None:
    """Return the captured file that a case's rows come from, or None where exact arithmetic makes them."""
    base = case.rows.base if isinstance(case.rows, Forced) else case.rows
    return base if isinstance(base, Captured) else None


def captured(path: Path, tensor: str, sha256: str | None) -> Float32:
    """Return one float32 [rows, vocabulary] tensor of a safetensors file whose bytes have the frozen digest."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}; paths are relative to {Path.cwd()}") from None
    if sha256 is not None and digests.sha256(data) != sha256:
        raise InputError(f"{path}: input_drift: SHA-256 is {digests.sha256(data)}, expected {sha256}")
    tensors = load(data, str(path))
    if tensor not in tensors:
        raise InputError(f"{path}: got tensors {sorted(tensors)}, expected one named {tensor!r}")
    return matrix(tensors[tensor], f"{path}: tensor {tensor!r}")


def load(data: bytes, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of safetensors bytes.  Raises ``InputError`` for bytes that are not a safetensors file."""
    try:
        return safetensors.numpy.load(data)
    except (safetensors.SafetensorError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{name}: not a readable safetensors file: {error}") from None


def matrix(array: np.ndarray[Any, Any], what: str) -> Float32:
    """Return ``array`` if it is float32 of rank 2 and not empty.  Raises ``InputError``."""
    if array.dtype != np.float32 or array.ndim != 2 or array.size == 0:
        raise InputError(f"{what}: got {array.dtype.name} {list(array.shape)}, expected float32 [rows, vocabulary]")
    return array


def _concatenate(parts: list[Part]) -> Float32:
    """Values in binary64, left to right, each rounded once to fp32."""
    pieces = [_part(part) for part in parts]
    if sum(piece.size for piece in pieces) >= _TOO_MANY:
        raise InputError("a literal row of 2**31 tokens or more")
    with np.errstate(over="ignore"):
        return np.concatenate(pieces).astype(np.float32)


def _part(part: Part) -> np.ndarray[Any, np.dtype[np.float64]]:
    if part.numbers is not None:
        return np.array([fp32.binary64(text) for text in part.numbers])
    if part.value is not None:
        return np.full(part.repeat or 0, fp32.binary64(part.value))
    if part.linspace is not None:
        start, stop = map(fp32.binary64, part.linspace[:2])
        count = part.linspace[2]
        return start + (stop - start) * np.arange(count, dtype=np.float64) / (count - 1)
    if part.affine is not None:
        start, step = fp32.binary64(part.affine.start), fp32.binary64(part.affine.step)
        return start + step * np.arange(part.affine.count, dtype=np.float64)
    raise InputError("an empty part")


# ---------------------------------------------------------------------------------------------- files of a run


def save(inputs: Inputs, path: Path) -> None:
    """Write one case's inputs as ``inputs/<case>.safetensors``."""
    path.write_bytes(safetensors.numpy.save({"logits": inputs.logits, "p": inputs.p}))


def files_of(directory: Path) -> Path:
    """Return where a run directory keeps its copies of captured files."""
    return directory / "inputs" / "captured"


def held(directory: Path, case: Case, *, retained: bool) -> Inputs:
    """Return a case's inputs from a run directory.

    A run that does not retain inputs drops them when it is sealed: then they are made again, from exact arithmetic or
    the run's copy of the captured file.  Raises ``InputError``, ``FileNotFoundError``.
    """
    path = directory / "inputs" / f"{case.id}.safetensors"
    if not retained and not path.exists():
        return generate(case, files_of(directory))
    return from_bytes(path.read_bytes(), path.name)


def from_bytes(data: bytes, name: str) -> Inputs:
    """Return the inputs that ``save`` wrote.  Raises ``InputError`` for anything else."""
    tensors = load(data, name)
    if set(tensors) != {"logits", "p"}:
        raise InputError(f"{name}: got tensors {sorted(tensors)}, expected logits and p")
    logits, p = matrix(tensors["logits"], f"{name}: tensor 'logits'"), tensors["p"]
    if p.dtype != np.float32 or p.shape != (len(logits),):
        raise InputError(f"{name}: tensor 'p': got {p.dtype.name} {list(p.shape)}, expected float32 [{len(logits)}]")
    return Inputs(logits, p)
