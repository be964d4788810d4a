"""What single keys of a params file hold: strings of a pattern, decimals, seeds, counts (contract, section 3)."""

from typing import Annotated, Literal, TypeVar

import pydantic
from pydantic import Discriminator, Field, StringConstraints, Tag

from toppgate import fp32
from toppgate.errors import ParamsError

#: Patterns of strings, and what they ask for in words.
_HEX64, _HEX12, _HEX8, _DIGITS = r"^[0-9a-f]{64}$", r"^[0-9a-f]{12}$", r"^[0-9a-f]{8}$", r"^[0-9]{1,39}$"
_HUNK, NAME = r"^[0-9a-f]{12,64}$", r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$"
_VERSION = r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,79}$"
_TARGET = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*$"
#: Prose and lines are shown to people, so they hold no control or format characters, such as a change of direction.
_PROSE, _LINE = r"^[\n\P{C}]*$", r"^[^\p{C}\p{Zl}\p{Zp}]+$"
WORDS = {
    _HEX64: "64 lower-case hex digits",
    _HEX12: "12 lower-case hex digits",
    _HEX8: "8 lower-case hex digits",
    _HUNK: "12 to 64 lower-case hex digits",
    _DIGITS: "a whole number of at most 128 bits, as a string of digits",
    NAME: "at most 80 letters, digits, dots, underscores and hyphens, of which the first is a letter or digit",
    _VERSION: "a version, such as 0.31.0 or 2.13.0+cu130",
    _TARGET: "module:function, such as package.module:top_p",
    _PROSE: "text without control or format characters",
    _LINE: "one line without control or format characters",
}

Hex64 = Annotated[str, StringConstraints(pattern=_HEX64)]
Hunk = Annotated[str, StringConstraints(pattern=_HUNK)]
Hex12 = Annotated[str, StringConstraints(pattern=_HEX12)]
Hex8 = Annotated[str, StringConstraints(pattern=_HEX8)]
Name = Annotated[str, StringConstraints(pattern=NAME)]
Version = Annotated[str, StringConstraints(pattern=_VERSION)]
Target = Annotated[str, StringConstraints(max_length=200, pattern=_TARGET)]
Text = Annotated[str, StringConstraints(max_length=4000, pattern=_PROSE)]
Line = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=_LINE)]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**31)]


def _decimal(text: str) -> str:
    try:
        fp32.binary64(text)
    except ParamsError:
        raise ValueError("a decimal number such as '0.95' or '1e9'") from None
    return text


def _seed(text: str) -> str:
    if int(text) >= 2**128:
        raise ValueError(WORDS[_DIGITS])
    return text


Decimal = Annotated[str, StringConstraints(min_length=1, max_length=64), pydantic.AfterValidator(_decimal)]
Seed = Annotated[str, StringConstraints(pattern=_DIGITS), pydantic.AfterValidator(_seed)]
Rounding = Literal["none", "bfloat16", "float16"]
Role = Literal["forced", "control", "reproduction", "ordinary", "probe"]

_Value = TypeVar("_Value")

#: One value for all rows of a case, or a list with one for each.
OneOrEach = Annotated[
    Annotated[_Value, Tag("one")] | Annotated[list[_Value], Field(min_length=1), Tag("each")],
    Discriminator(lambda value: "each" if isinstance(value, list) else "one"),
]
