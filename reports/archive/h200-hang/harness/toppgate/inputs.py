"""Captured inputs: logits and p as bytes, the same on every platform (contract, section 3, "Captured inputs")."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray

from toppgate import digests, fp32
from toppgate.errors import InputDriftError, InputError
from toppgate.fp32 import Float32
from toppgate.order import canonical_rows
from toppgate.schema import Captured, Case, Forced, Normal, Part, Written

#: safetensors' names of the types that NumPy, with ml_dtypes, can hold.
_TYPES: Final[dict[str, Any]] = {"BF16": ml_dtypes.bfloat16, "BOOL": np.bool_} | {
    f"{letter}{8 * size}": np.dtype(f"{letter.lower()}{size}")
    for letter, sizes in (("F", (2, 4, 8)), ("I", (1, 2, 4, 8)), ("U", (1, 2, 4, 8)))
    for size in sizes
}


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
    try:
        logits = rows(case.rows, files)
    except InputError as error:
        raise type(error)(f"cases[{case.id}].rows: {error}") from None
    logits.flags.writeable = False
    p = case.p if isinstance(case.p, list) else [case.p] * len(logits)
    return Inputs(logits, np.array([fp32.rounded(fp32.binary64(text)) for text in p], dtype=np.float32))


def rows(spec: Normal | Captured | Written | Forced, files: Path | None = None) -> Float32:
    """Return the logits, float32 [B, V], of a row generator.  Raises ``InputError``."""
    if isinstance(spec, Normal):
        if spec.seed is None:
            raise InputError("seed: got nothing, since it is not selected yet")
        drawn = normal(int(spec.seed), fp32.binary64(spec.scale), spec.rows, spec.vocabulary)
        return fp32.round_to(drawn, spec.round)
    if isinstance(spec, Captured):
        taken = captured(spec, files)
        first, last = spec.rows or (0, len(taken))
        if not 0 <= first < last <= len(taken):
            raise InputError(f"rows: got [{first}, {last}], but {spec.path} has {len(taken)} rows")
        return fp32.round_to(np.tile(taken[first:last], (spec.tile, 1)), spec.round)
    if isinstance(spec, Written):
        written = [_concatenate(row) for row in spec.rows]
        return np.repeat(np.stack(written), spec.copies, axis=0)
    base = rows(spec.base, files).copy()
    if spec.token >= base.shape[1]:
        raise InputError(f"token: got {spec.token}, expected a token below {base.shape[1]}")
    base[:, spec.token] = fp32.rounded(fp32.binary64(spec.value))
    return base


def normal(seed: int, scale: float, count: int, vocabulary: int) -> Float32:
    """Return bell-shaped logits, float32 [count, vocabulary], the same bits on every platform.

    Twelve 32-bit words w of NumPy's ``Philox(key=seed, counter=0)`` stream make one value: the raw 64-bit words, low
    half first, in order row, token, word.  With S = sum(w) - 6 * 2**32, an exact integer of at most 36 bits, the value
    is ``S * scale * 2**-32`` rounded once to fp32: the product is exact in binary64 since ``scale`` has at most 16
    significant bits (checked by ``rules``).  For scale 1, before that rounding, the values lie in [-6, 6), with mean
    -6 * 2**-32 and variance 1 - 2**-64: bell-shaped, but not Gaussian in the tails (contract, section 3).
    """
    stream = np.random.Philox(key=seed, counter=0)
    logits = np.empty((count, vocabulary), dtype=np.float32)
    for row in logits:
        raw = stream.random_raw(vocabulary * 6).reshape(vocabulary, 6)
        low, high = raw & np.uint64(0xFFFFFFFF), raw >> np.uint64(32)
        centred = (low.sum(axis=1) + high.sum(axis=1)).astype(np.int64) - 6 * 2**32
        with np.errstate(over="ignore"):
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


def captured(spec: Captured, files: Path | None = None) -> Float32:
    """Return the whole tensor that ``spec`` names, float32 [rows, vocabulary].

    ``files`` is as for ``generate``; messages name the path that params name, whichever copy is read.
    Raises ``InputError``, and ``InputDriftError`` where the file's bytes have not the frozen digest.
    """
    data = read(found(spec, files), spec.path)
    if spec.sha256 is not None and digests.sha256(data) != spec.sha256:
        raise InputDriftError(f"{spec.path}: input_drift: SHA-256 is {digests.sha256(data)}, expected {spec.sha256}")
    tensors = load(data, spec.path)
    if spec.tensor not in tensors:
        raise InputError(f"{spec.path}: got tensors {sorted(tensors)}, expected one named {spec.tensor!r}")
    return matrix(tensors[spec.tensor], f"{spec.path}: tensor {spec.tensor!r}")


def read(path: Path, name: str) -> bytes:
    """Return the bytes of a regular file.  Raises ``InputError`` that calls it ``name``."""
    try:
        if path.exists() and not path.is_file():
            raise InputError(f"{name}: not a regular file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{name}: cannot be read: {error.strerror}; a path starts at the working directory") from None


def load(data: bytes, name: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of safetensors bytes.  Raises ``InputError`` for bytes that are not a safetensors file."""
    try:
        return {key: _tensor(stored) for key, stored in _stored(data)}
    except safetensors.SafetensorError as error:
        raise InputError(f"{name}: not a readable safetensors file: {error}") from None
    except KeyError as error:
        raise InputError(f"{name}: holds a tensor of type {error.args[0]}, expected F32") from None


def _stored(data: bytes) -> list[tuple[str, Mapping[str, Any]]]:
    return safetensors.deserialize(data)  # type: ignore[no-untyped-call, no-any-return]


def _tensor(stored: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """Unlike the library's own loader, this reads bfloat16, so that a wrong type can be named."""
    return np.frombuffer(stored["data"], dtype=_TYPES[stored["dtype"]]).reshape(stored["shape"])


def matrix(array: np.ndarray[Any, Any], what: str) -> Float32:
    """Return ``array`` if it is float32 of rank 2 and not empty.  Raises ``InputError``."""
    if array.dtype != np.float32 or array.ndim != 2 or array.size == 0:
        raise InputError(f"{what}: got {array.dtype.name} {list(array.shape)}, expected float32 [rows, vocabulary]")
    return array


def _concatenate(parts: list[Part]) -> Float32:
    """Values in binary64, left to right, each rounded once to fp32; a range to infinity may hold a NaN."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.concatenate([_part(part) for part in parts]).astype(np.float32)


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
