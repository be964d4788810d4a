"""The schema of a params file: frozen pydantic models, strict, without unknown keys (contract, section 3).

What a schema cannot say is in ``rules``.
"""

from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field

from toppgate import fp32
from toppgate.errors import ParamsError
from toppgate.scalars import (
    Count,
    Decimal,
    Hex8,
    Hex12,
    Hex64,
    Hunk,
    Line,
    Name,
    Natural,
    OneOrEach,
    Role,
    Rounding,
    Seed,
    Target,
    Text,
    Version,
)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# ---------------------------------------------------------------------------------------------- sources and host


class Release(_Model):
    """One member of a published distribution at an exact version."""

    kind: Literal["release"]
    distribution: Name
    version: Version
    member: Line
    sha256: Hex64 | None = None


class Installed(_Model):
    """One file of an installed distribution."""

    kind: Literal["installed"]
    distribution: Name
    version: Version
    member: Line
    sha256: Hex64 | None = None


class File(_Model):
    """A file, by a path relative to the working directory."""

    kind: Literal["file"]
    path: Line
    sha256: Hex64 | None = None


class Git(_Model):
    """A path at a revision of a local clone."""

    kind: Literal["git"]
    repository: Line
    revision: Line
    path: Line
    sha256: Hex64 | None = None


class Pick(_Model):
    """A base source plus chosen hunks of its diff towards a donor."""

    kind: Literal["pick"]
    base: "FileSource"
    donor: "FileSource"
    hunks: Annotated[list[Hunk], Field(min_length=1)]
    sha256: Hex64 | None = None


FileSource = Annotated[Release | Installed | File | Git | Pick, Field(discriminator="kind")]
Pick.model_rebuild(force=True)  # so that its fields name the models, not their names


class Function(_Model):
    """A Python function of logits and p: a whole module's, or, with ``of``, one cut out of that file.

    ``requires`` names distributions that it imports, with the exact versions that must be installed.
    """

    kind: Literal["callable"]
    callable: Target
    of: Annotated[Release | Installed | File | Git, Field(discriminator="kind")] | None = None
    requires: Annotated[dict[Name, Version], Field(min_length=1)] | None = None
    sha256: Hex64 | None = None


KernelSource = Annotated[Release | Installed | File | Git | Pick | Function, Field(discriminator="kind")]


class Wants(_Model):
    """The versions that the host's release asks for; a run under others says so."""

    torch: Version
    triton: Version


class Sdist(_Model):
    """The pure Python files of a release's source distribution; ``tree`` is the digest over them."""

    kind: Literal["sdist"]
    distribution: Name
    version: Version
    sha256: Hex64
    tree: Hex64 | None = None


class InstalledHost(_Model):
    """The installed distribution, as it is."""

    kind: Literal["installed"]
    distribution: Name
    version: Version
    tree: Hex64 | None = None


Host = Annotated[Sdist | InstalledHost, Field(discriminator="kind")]


# ---------------------------------------------------------------------------------------------- rows of a case


class Normal(_Model):
    """Bell-shaped logits by exact arithmetic: ``inputs.normal``."""

    kind: Literal["normal"]
    seed: Seed | None = None
    scale: Decimal
    rows: Count
    vocabulary: Count
    round: Rounding = "none"


class Captured(_Model):
    """Rows ``[first, after the last)`` of one tensor of a captured safetensors file, repeated ``tile`` times."""

    kind: Literal["file"]
    path: Line
    tensor: Line
    rows: Annotated[list[Natural], Field(min_length=2, max_length=2)] | None = None
    round: Rounding = "none"
    tile: Count = 1
    sha256: Hex64 | None = None


class Part(_Model):
    """A run of numbers: exactly one of ``numbers``, ``value`` with ``repeat``, ``linspace`` and ``affine``."""

    numbers: Annotated[list[Decimal], Field(min_length=1)] | None = None
    value: Decimal | None = None
    repeat: Count | None = None
    linspace: tuple[Decimal, Decimal, Annotated[int, Field(ge=2, lt=2**31)]] | None = None
    affine: "Affine | None" = None
    bits: Annotated[list[Hex8], Field(min_length=1)] | None = None

    @pydantic.field_validator("linspace", mode="before")
    @classmethod
    def _tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @pydantic.model_validator(mode="after")
    def _one(self) -> "Part":
        given = [name for name in ("numbers", "value", "linspace", "affine") if getattr(self, name) is not None]
        if len(given) != 1 or (self.repeat is None) == (self.value is not None):
            raise ValueError("exactly one of numbers, value with repeat, linspace, affine")
        return self


class Affine(_Model):
    """``start + step * i`` for i = 0 … count − 1, in binary64."""

    start: Decimal
    step: Decimal
    count: Count


Part.model_rebuild()


class Written(_Model):
    """Rows written out; each is a concatenation of parts, and stands ``copies`` times."""

    kind: Literal["literal"]
    rows: Annotated[list[Annotated[list[Part], Field(min_length=1)]], Field(min_length=1)]
    copies: Count = 1


class Forced(_Model):
    """A base whose ``token`` is set to ``value`` in every row."""

    kind: Literal["forced"]
    base: Annotated[Normal | Captured | Written, Field(discriminator="kind")]
    token: Natural
    value: Decimal
    value_bits: Hex8 | None = None


Rows = Annotated[Normal | Captured | Written | Forced, Field(discriminator="kind")]


class Slices(_Model):
    """Slices a row by each side's own split plan; null where the source has no plan."""

    stock: Natural | None
    patch: Natural | None


class Select(_Model):
    """A declared seed sequence: the first seed from ``first`` on whose stock and patched masks differ."""

    first: Seed
    at_most: Count


class Case(_Model):
    """One launch: rows of equal length, each with its role and its p.

    With ``stride`` the rows are handed over as a view of a wider tensor: so many values from the start of one to the
    next, and what lies between them is none of the kernel's business.
    """

    id: Name
    about: Text = ""
    role: OneOrEach[Role]
    rows: Rows
    p: OneOrEach[Decimal]
    p_bits: OneOrEach[Hex8] | None = None
    token: OneOrEach[Natural | None] = None
    expect: OneOrEach[str | None] = None
    k: Count | None = None
    compute_units: Count | None = None
    stride: Count | None = None
    select: Select | None = None
    selected_by: Text | None = None
    shape: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    slices: Slices | None = None
    input: Hex64 | None = None

    @property
    def batch(self) -> int:
        """Rows in the launch, as frozen."""
        return self._shape()[0]

    @property
    def vocabulary(self) -> int:
        """Tokens in a row, as frozen."""
        return self._shape()[1]

    def roles(self) -> list[str]:
        """The role of each row."""
        return self.each(self.role)

    def ps(self) -> list[np.float32]:
        """The fp32 p of each row."""
        return [fp32.rounded(fp32.binary64(text)) for text in self.each(self.p)]

    def tokens(self) -> list[int | None]:
        """The forced token of each row; null where none is named."""
        default = self.rows.token if isinstance(self.rows, Forced) else None
        return self.each(default if self.token is None else self.token)

    def expected(self) -> list[str | None]:
        """The code that each probe must give; null on other rows."""
        return self.each(self.expect)

    def _shape(self) -> list[int]:
        if self.shape is None:
            raise ParamsError(f"cases[{self.id}].shape: not frozen yet; run toppgate freeze")
        return self.shape

    def each(self, value: Any) -> list[Any]:
        """Return one value for each row: a list as it is, anything else repeated."""
        return list(value) if isinstance(value, list) else [value] * self.batch


# ---------------------------------------------------------------------------------------------- the whole file


class Launches(_Model):
    """One kernel of the expected launch path and how often it runs in a row."""

    kernel: Line
    times: Count


class Paths(_Model):
    """The launch path each side must take, in order; a kernel that is not named must not run."""

    stock: Annotated[list[Launches], Field(min_length=1)]
    patch: Annotated[list[Launches], Field(min_length=1)]


class Limits(_Model):
    """Frozen resource limits."""

    vocabulary: Count
    batch: Count
    rows: Annotated[int, Field(ge=1, le=1_000_000)]
    launch_seconds: Count
    total_seconds: Count
    retained_bytes: Annotated[int, Field(ge=1, lt=2**53)]


class Change(_Model):
    """The diff from stock to patch: the digest over its zero-context hunks, and each hunk's."""

    sha256: Hex64
    hunks: Annotated[list[Hex64], Field(min_length=1)]


class Freeze(_Model):
    """The digest over everything else, and twelve digits of it for each part, so that a change can be named."""

    sha256: Hex64
    parts: dict[str, Hex12]


def _version(value: int) -> int:
    if value != 1:
        raise ValueError("1, the version that this toppgate reads")
    return value


#: The launch path of the split kernels (contract, section 4).
SPLIT_PATH = [
    {"kernel": "_topp_sb_stats_kernel", "times": 1},
    {"kernel": "_topp_sb_step_kernel", "times": 5},
    {"kernel": "_topp_sb_mask_kernel", "times": 1},
]

#: The name under which the call of a Python function is recorded, and the path of one that launches nothing else.
CALLABLE = "callable"
CALLABLE_PATH = [{"kernel": CALLABLE, "times": 1}]


class Params(_Model):
    """A params file.  ``frozen`` is null in a draft."""

    schema_version: Annotated[int, pydantic.AfterValidator(_version)]
    title: Line
    notes: Text = ""
    device: Literal["interpreter", "cuda"]
    compute_units: Count
    repeat: Annotated[int, Field(ge=2, le=100)]
    retain_inputs: bool = True
    stock: KernelSource
    patch: KernelSource
    change: Change | None = None
    host: Host
    wants: Wants | None = None
    path: Paths = Field(default_factory=lambda: Paths.model_validate({"stock": SPLIT_PATH, "patch": SPLIT_PATH}))
    limits: Limits
    cases: Annotated[list[Case], Field(min_length=1, max_length=10_000)]
    frozen: Freeze | None = None

    def values(self) -> dict[str, Any]:
        """The file's values as plain JSON-like data, without keys that were left out."""
        return self.model_dump(mode="json", exclude_unset=True)


# ---------------------------------------------------------------------------------------------- a ladder


class Rung(_Model):
    """One kernel of a ladder; ``slices`` a row in each case by its own plan, ``frozen`` the digest of its own params.

    ``change`` is null where the kernel is stock itself, with which nothing can be compared.
    """

    id: Name
    source: KernelSource
    path: Annotated[list[Launches], Field(min_length=1)] = Field(
        default_factory=lambda: [Launches.model_validate(step) for step in SPLIT_PATH]
    )
    change: Change | None = None
    slices: list[Natural | None] | None = None
    frozen: Hex64 | None = None


class Ladder(_Model):
    """A ladder file: many kernels, each in the patch's place, over one matrix and against one stock."""

    schema_version: Annotated[int, pydantic.AfterValidator(_version)]
    title: Line
    notes: Text = ""
    device: Literal["interpreter", "cuda"]
    compute_units: Count
    repeat: Annotated[int, Field(ge=2, le=100)]
    retain_inputs: bool = True
    stock: KernelSource
    kernels: Annotated[list[Rung], Field(min_length=1, max_length=100)]
    host: Host
    wants: Wants | None = None
    limits: Limits
    slices: list[Natural | None] | None = None
    cases: Annotated[list[Case], Field(min_length=1, max_length=10_000)]
    frozen: Freeze | None = None

    def values(self) -> dict[str, Any]:
        """The file's values as plain JSON-like data, without keys that were left out."""
        return self.model_dump(mode="json", exclude_unset=True)
