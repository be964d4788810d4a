"""Which exp this machine has: glibc chooses between two by CPU, and a few values differ in the last bit.

Counts, order, codes and verdicts do not depend on it in any row known; the bits of normalizers, masses and margins
may.  ``verify`` compares those bitwise only where the fingerprints agree (contract, section 7).
"""

import hashlib
import math
import platform
import struct


def exp_sha256() -> str:
    """Return a digest over ``math.exp`` at 20,000 fixed points of [-746, 0]: -746 * (k / 20000)**2."""
    digest = hashlib.sha256()
    for k in range(20_000):
        digest.update(struct.pack("<d", math.exp(-746.0 * (k / 20_000.0) ** 2)))
    return digest.hexdigest()


def mathematics() -> dict[str, str]:
    """Return what identifies the C library's mathematics: platform, library, version, digest of exp."""
    library, version = platform.libc_ver()
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "library": library or "unknown",
        "version": version or "unknown",
        "exp_sha256": exp_sha256(),
    }
