"""fp32 values: decimal -> binary64 -> fp32 as vLLM's tensors do it, their bits, and rounding to 16-bit formats.

The bits decide, not the decimal (contract, section 3).
"""

import re
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from toppgate.errors import ParamsError

Float32 = NDArray[np.float32]

_DECIMAL = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,4})?|nan|[+-]?inf")


def binary64(text: str) -> float:
    """Return the binary64 number nearest to a decimal such as ``"1e-3"``; ``nan`` and ``inf`` are allowed.

    Raises ``ParamsError`` for anything else that Python's ``float`` would accept, such as ``1_000``.
    """
    if len(text) > 400 or not _DECIMAL.fullmatch(text):
        raise ParamsError(f"not a decimal number: {text[:40]!r}")
    return float(text)


def rounded(value: float) -> np.float32:
    """Return ``value`` rounded once to fp32, to nearest, ties to even; beyond the range it is an infinity."""
    with np.errstate(over="ignore"):
        return np.float32(value)


def bits(value: np.float32) -> str:
    """Return the bits of an fp32 value as eight hex digits."""
    return f"{int(np.float32(value).view(np.uint32)):08x}"


def decimal_bits(text: str) -> str:
    """Return the bits of the fp32 value that a decimal stands for: decimal -> binary64 -> fp32."""
    return bits(rounded(binary64(text)))


def round_to(array: Float32, name: str) -> Float32:
    """Return ``array`` rounded to ``none`` (itself), ``bfloat16`` or ``float16`` and widened again to fp32."""
    if name == "none":
        return array
    narrow: Any = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16}[name]
    with np.errstate(over="ignore", invalid="ignore"):  # a NaN stays one
        return array.astype(narrow).astype(np.float32)
