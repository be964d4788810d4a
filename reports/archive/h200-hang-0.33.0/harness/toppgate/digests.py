"""Canonical JSON and SHA-256: the only hashing code of the pipeline.

Canonical JSON is RFC 8785 (JCS).  It refuses NaN, infinities and integers of 2**53 and more, so 64-bit
seeds and bit patterns are written as strings.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NewType

import numpy as np
import rfc8785

Sha256 = NewType("Sha256", str)


def sha256(data: bytes) -> Sha256:
    """Return the SHA-256 of ``data`` as 64 lower-case hex digits."""
    return Sha256(hashlib.sha256(data).hexdigest())


def sha256_file(path: Path) -> Sha256:
    """Return the SHA-256 of a file's bytes.  Raises ``OSError`` when it cannot be read."""
    with path.open("rb") as file:
        return Sha256(hashlib.file_digest(file, "sha256").hexdigest())


def canonical(value: Any) -> bytes:
    """Return the RFC 8785 form of ``value``, without a final newline."""
    return rfc8785.dumps(value)


def sha256_json(value: Any) -> Sha256:
    """Return the SHA-256 of the canonical form of ``value``."""
    return sha256(canonical(value))


def sha256_tree(files: Mapping[str, str]) -> Sha256:
    """Return one digest over {relative POSIX path: SHA-256}, independent of order."""
    return sha256_json(dict(files))


def sha256_arrays(arrays: Mapping[str, np.ndarray[Any, Any]]) -> Sha256:
    """Return a framed digest of named arrays.

    For each, by name: one canonical JSON line of name, dtype and shape, then the values, C order, little-endian.
    Independent of how a file format lays them out, so a pin outlives the file format's library.
    """
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.asarray(arrays[name], order="C")  # unlike ascontiguousarray, this leaves rank 0 at rank 0
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        head = {"name": name, "dtype": array.dtype.name, "shape": list(array.shape)}
        digest.update(canonical(head) + b"\n")
        digest.update(array.tobytes())
    return Sha256(digest.hexdigest())


def git_blob(data: bytes) -> str:
    """Return the id that git gives a blob with this content (SHA-1 repositories)."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
