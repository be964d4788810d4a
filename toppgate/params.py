"""The params file: schema, reading, freeze's own form, and the frozen digest (contract, section 3).

A file is YAML 1.2 without duplicate keys, anchors or tags.  Decimals and 64-bit seeds are strings.  freeze writes
one form only, which YAML 1.1 and 1.2 read alike, so that papermill's reader and ours see the same values.
"""

import difflib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pydantic
from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from toppgate import codes, digests, fp32
from toppgate.errors import ParamsError

#: A params file is read whole and checked; larger ones are refused unread.
MAX_BYTES = 4 * 2**20

Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Hex8 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{8}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,79}$")]
Text = Annotated[str, StringConstraints(max_length=4000)]
Line = Annotated[str, StringConstraints(min_length=1, max_length=300, pattern=r"^[^\x00-\x1f\x7f]+$")]
Count = Annotated[int, Field(ge=1, lt=2**31)]
Natural = Annotated[int, Field(ge=0, lt=2**31)]
Decimal = Annotated[str, StringConstraints(min_length=1, max_length=64), pydantic.AfterValidator(lambda s: _decimal(s))]
Seed = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,39}$")]
Rounding = Literal["none", "bfloat16", "float16"]
Role = Literal["forced", "control", "reproduction", "ordinary", "probe"]


def _decimal(text: str) -> str:
    try:
        fp32.binary64(text)
    except ParamsError as error:
        raise ValueError(str(error)) from None
    return text


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


# ---------------------------------------------------------------------------------------------- sources and host


class Release(_Model):
    """One member of a published distribution at an exact version."""

    kind: Literal["release"]
    distribution: Name
    version: Name
    member: Line
    sha256: Hex64 | None = None


class Installed(_Model):
    """One file of an installed distribution."""

    kind: Literal["installed"]
    distribution: Name
    version: Name
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
    base: "KernelSource"
    donor: "KernelSource"
    hunks: Annotated[list[Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12,64}$")]], Field(min_length=1)]
    sha256: Hex64 | None = None


KernelSource = Annotated[Release | Installed | File | Git | Pick, Field(discriminator="kind")]


class Sdist(_Model):
    """The pure Python files of a release's source distribution; ``tree`` is the digest over them."""

    kind: Literal["sdist"]
    distribution: Name
    version: Name
    sha256: Hex64
    tree: Hex64 | None = None


class InstalledHost(_Model):
    """The installed distribution, as it is."""

    kind: Literal["installed"]
    distribution: Name
    version: Name
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
            raise ValueError("a part is one of numbers, value with repeat, linspace, affine")
        return self


class Affine(_Model):
    """``start + step * i`` for i = 0 … count − 1, in binary64."""

    start: Decimal
    step: Decimal
    count: Count


Part.model_rebuild()


class Literal_(_Model):
    """Rows written out; each is a concatenation of parts, and stands ``copies`` times."""

    kind: Literal["literal"]
    rows: Annotated[list[Annotated[list[Part], Field(min_length=1)]], Field(min_length=1)]
    copies: Count = 1


class Forced(_Model):
    """A base whose ``token`` is set to ``value`` in every row."""

    kind: Literal["forced"]
    base: Annotated[Normal | Captured | Literal_, Field(discriminator="kind")]
    token: Natural
    value: Decimal
    value_bits: Hex8 | None = None


Rows = Annotated[Normal | Captured | Literal_ | Forced, Field(discriminator="kind")]


class Slices(_Model):
    """Slices a row by each side's own split plan; null where the source has no plan."""

    stock: Natural | None
    patch: Natural | None


class Select(_Model):
    """A declared seed sequence: the first seed from ``first`` on whose stock and patched masks differ."""

    first: Seed
    at_most: Count


class Case(_Model):
    """One launch: rows of equal length, each with its role and its p."""

    id: Name
    about: Text = ""
    role: Role | list[Role]
    rows: Rows
    p: Decimal | Annotated[list[Decimal], Field(min_length=1)]
    p_bits: Hex8 | list[Hex8] | None = None
    token: Natural | list[Natural | None] | None = None
    expect: str | list[str | None] | None = None
    k: Count | None = None
    compute_units: Count | None = None
    select: Select | None = None
    selected_by: Text | None = None
    shape: Annotated[list[Count], Field(min_length=2, max_length=2)] | None = None
    slices: Slices | None = None
    input: Hex64 | None = None

    @property
    def batch(self) -> int:
        """Rows in the launch, as frozen."""
        return _frozen(self.shape, f"cases {self.id}: shape")[0]

    @property
    def vocabulary(self) -> int:
        """Tokens in a row, as frozen."""
        return _frozen(self.shape, f"cases {self.id}: shape")[1]

    def roles(self) -> list[str]:
        """The role of each row."""
        return self._each(self.role)

    def ps(self) -> list[np.float32]:
        """The fp32 p of each row."""
        return [fp32.rounded(fp32.binary64(text)) for text in self._each(self.p)]

    def tokens(self) -> list[int | None]:
        """The forced token of each row; null where none is named."""
        default = self.rows.token if isinstance(self.rows, Forced) else None
        return self._each(default if self.token is None else self.token)

    def expected(self) -> list[str | None]:
        """The code that each probe must give; null on other rows."""
        return self._each(self.expect)

    def _each(self, value: Any) -> list[Any]:
        return list(value) if isinstance(value, list) else [value] * self.batch


def _frozen(value: Any, what: str) -> Any:
    if value is None:
        raise ParamsError(f"{what}: not frozen yet; run toppgate freeze")
    return value


# ---------------------------------------------------------------------------------------------- the whole file


class Launches(_Model):
    """One kernel of the expected launch path and how often it runs in a row."""

    kernel: Line
    times: Count


class Path_(_Model):
    """The launch path each side must take, in order; a kernel that is not named must not run."""

    stock: Annotated[list[Launches], Field(min_length=1)]
    patch: Annotated[list[Launches], Field(min_length=1)]


class Limits(_Model):
    """Frozen resource limits."""

    vocabulary: Count
    batch: Count
    rows: Count
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
    parts: dict[str, Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{12}$")]]


#: The launch path of the split kernels (contract, section 4).
SPLIT_PATH = [
    {"kernel": "_topp_sb_stats_kernel", "times": 1},
    {"kernel": "_topp_sb_step_kernel", "times": 5},
    {"kernel": "_topp_sb_mask_kernel", "times": 1},
]


class Params(_Model):
    """A params file.  ``frozen`` is null in a draft."""

    schema_version: Literal[1]
    title: Line
    notes: Text = ""
    device: Literal["interpreter", "cuda"]
    compute_units: Count
    repeat: Annotated[int, Field(ge=2, le=100)]
    stock: KernelSource
    patch: KernelSource
    change: Change | None = None
    host: Host
    path: Path_ = Field(default_factory=lambda: Path_.model_validate({"stock": SPLIT_PATH, "patch": SPLIT_PATH}))
    limits: Limits
    cases: Annotated[list[Case], Field(min_length=1, max_length=10_000)]
    frozen: Freeze | None = None

    @pydantic.model_validator(mode="after")
    def _ids(self) -> "Params":
        ids = [case.id for case in self.cases]
        twice = sorted({name for name in ids if ids.count(name) > 1}) if len(set(ids)) < len(ids) else []
        if twice:
            raise ValueError(f"case id {twice[0]!r} stands twice")
        return self

    def values(self) -> dict[str, Any]:
        """The file's values as plain JSON-like data, without keys that were left out."""
        return self.model_dump(mode="json", exclude_unset=True)


def read(path: Path) -> Params:
    """Read and check a params file.  Raises ``ParamsError``; does not check the frozen digest."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(f"{path}: {path.stat().st_size} bytes, expected at most {MAX_BYTES}")
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ParamsError(f"{path}: cannot be read: {error}") from None
    return check(parse(text, str(path)), str(path))


def parse(text: str, name: str) -> Any:
    """Return the plain data of YAML 1.2 text.  Raises ``ParamsError``: also for duplicate keys, anchors and tags."""
    yaml = YAML(typ="safe", pure=True)
    try:
        for event in yaml.parse(text):
            if getattr(event, "anchor", None) or getattr(event, "tag", None):
                line = event.start_mark.line + 1
                raise ParamsError(f"{name}: line {line}: anchors, aliases and tags are not allowed")
        return yaml.load(text)
    except (YAMLError, ValueError, RecursionError) as error:
        problem = getattr(error, "problem", None) or type(error).__name__
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ParamsError(f"{name}: {where}not YAML 1.2: {problem}") from None


def check(values: Any, name: str) -> Params:
    """Return the checked params.  Raises ``ParamsError`` that names file, key, value got and value expected."""
    try:
        params = Params.model_validate(values)
    except pydantic.ValidationError as error:
        raise ParamsError(f"{name}: {_explain(error, values)}") from None
    for problem in _problems(params):
        raise ParamsError(f"{name}: {problem}")
    return params


def _explain(error: pydantic.ValidationError, values: Any) -> str:
    """One line for the first fault; the number of further ones is said."""
    faults = error.errors(include_url=False)
    fault = next((f for f in faults if f["type"] == "extra_forbidden"), faults[0])
    where = _place(fault["loc"], values)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    if fault["type"] == "extra_forbidden":
        known = difflib.get_close_matches(str(fault["loc"][-1]), _known_keys(), n=1, cutoff=0.6)
        hint = f"; did you mean {known[0]!r}?" if known else ""
        return f"{where}: unknown key{hint}{more}"
    got = "nothing" if fault["type"] == "missing" else f"{type(fault['input']).__name__} {_short(fault['input'])}"
    expected = fault["msg"].removeprefix("Value error, ")
    hint = ""
    if fault["type"] == "string_type" and isinstance(fault["input"], int | float):
        hint = "; write the number in quotes, since YAML 1.1 and 1.2 read bare decimals differently"
    return f"{where}: got {got}, expected: {expected}{hint}{more}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _place(loc: tuple[int | str, ...], values: Any) -> str:
    """The path of a fault; a case is named by its id, and pydantic's union tags, which are no keys, are left out."""
    parts: list[str] = []
    here = values
    for step in loc:
        if isinstance(step, int) and isinstance(here, list) and step < len(here):
            here = here[step]
            name = here.get("id") if isinstance(here, dict) else None
            parts.append(f"[{name if isinstance(name, str) else step}]")
        elif isinstance(here, dict) and step in here:
            here = here[step]
            parts.append(f".{step}")
        elif step == loc[-1]:
            parts.append(f".{step}")
    return "".join(parts).lstrip(".") or "the file"


def _known_keys() -> list[str]:
    models: list[type[BaseModel]] = [Params, Release, Git, Pick, Sdist, Normal, Captured, Literal_, Forced, Part, Case]
    models += [Limits, Select, Change, Affine]
    return sorted({name for model in models for name in model.model_fields})


# ---------------------------------------------------------------------------------------------- rules across keys


def _problems(params: Params) -> Iterator[str]:
    """What the schema cannot say; only of cases whose shape is known, so a draft is checked again by freeze."""
    for case in params.cases:
        where = f"cases[{case.id}]"
        yield from _seed_problems(case, where)
        if case.shape is not None:
            yield from (f"{where}.{problem}" for problem in _row_problems(case))
            yield from (f"{where}.{problem}" for problem in _limit_problems(case, params.limits))
    rows = sum(case.shape[0] for case in params.cases if case.shape is not None)
    if rows > params.limits.rows:
        yield f"limits.rows: got {rows} rows in all, expected at most {params.limits.rows}"


def _seed_problems(case: Case, where: str) -> Iterator[str]:
    base = case.rows.base if isinstance(case.rows, Forced) else case.rows
    if isinstance(base, Normal):
        if base.seed is None and case.select is None:
            yield f"{where}.rows.seed: got nothing, expected a seed, or select with a seed sequence"
        mantissa = abs(fp32.binary64(base.scale)).hex().split("p")[0].replace("0x", "").replace(".", "")
        if not np.isfinite(fp32.binary64(base.scale)) or int(mantissa, 16).bit_length() - _zeros(mantissa) > 16:
            yield f"{where}.rows.scale: got {base.scale}, expected a number of at most 16 significant bits"


def _zeros(mantissa: str) -> int:
    value = int(mantissa, 16)
    return (value & -value).bit_length() - 1 if value else 0


def _row_problems(case: Case) -> Iterator[str]:
    """Per-row lists have the batch's length; forced rows name a token; probes name a code; p is inside its domain."""
    for key in ("role", "p", "p_bits", "token", "expect"):
        value = getattr(case, key)
        if isinstance(value, list) and len(value) != case.batch:
            yield f"{key}: got {len(value)} values, expected one, or one for each of {case.batch} rows"
            return
    bits = [fp32.bits(p) for p in case.ps()]
    if case.p_bits is not None and case._each(case.p_bits) != bits:
        yield f"p_bits: got {case.p_bits}, expected {bits if isinstance(case.p_bits, list) else bits[0]}"
    for row, (role, p, token, expect) in enumerate(
        zip(case.roles(), case.ps(), case.tokens(), case.expected(), strict=True)
    ):
        if role != "probe" and not 0.0 < p < 1.0:
            yield f"p, row {row}: got {p} in fp32, expected 0 < p < 1 (invalid_p) on a row that is not a probe"
        if role == "forced" and not (token is not None and token < case.vocabulary):
            yield f"token, row {row}: got {token}, expected a token below {case.vocabulary} on a forced row"
        if (role == "probe") != (expect is not None):
            yield f"expect, row {row}: got {expect}, expected a code on a probe and none on another row"
        if expect is not None and expect not in codes.PROBE_CODES:
            yield f"expect, row {row}: got {expect!r}, expected one of {', '.join(codes.PROBE_CODES)}"
    if case.k is not None and set(case.roles()) != {"probe"}:
        yield "k: a call with k is allowed on probes only"
    if case.selected_by == "hunt" and "control" in case.roles():
        yield "selected_by: rows from a hunt may never be controls"


def _limit_problems(case: Case, limits: Limits) -> Iterator[str]:
    """A case over a limit is refused, unless it is there to be refused."""
    if set(case.expected()) == {"limit_exceeded"}:
        return
    if case.vocabulary > limits.vocabulary:
        yield f"rows: vocabulary {case.vocabulary}, expected at most limits.vocabulary {limits.vocabulary}"
    if case.batch > limits.batch:
        yield f"rows: batch {case.batch}, expected at most limits.batch {limits.batch}"


# ---------------------------------------------------------------------------------------------- the frozen digest


def freeze_digest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``frozen`` block for a file's values: a digest over all other keys, and one for each part."""
    rest = {key: value for key, value in values.items() if key != "frozen"}
    parts = {key: value for key, value in rest.items() if key != "cases"}
    parts |= {f"cases[{case['id']}]": case for case in rest["cases"]}
    short = {name: digests.sha256_json(value)[:12] for name, value in parts.items()}
    return {"sha256": digests.sha256_json(rest), "parts": short}


def check_frozen(params: Params, name: str) -> None:
    """Accept only params whose digest matches.  Raises ``ParamsError`` that names the first part that differs."""
    if params.frozen is None:
        raise ParamsError(f"{name}: frozen: got nothing, expected the digests that toppgate freeze writes")
    want = freeze_digest(params.values())
    have = params.frozen.model_dump()
    if have == want:
        return
    names = [*want["parts"], *(set(have["parts"]) - set(want["parts"]))]
    first = next((n for n in names if have["parts"].get(n) != want["parts"].get(n)), "cases, their order")
    raise ParamsError(f"{name}: params_drift: {first} differs from what was frozen; freeze again, as a new file")


# ---------------------------------------------------------------------------------------------- freeze's own form


def dump(params: Params) -> bytes:
    """Return the file in freeze's own form: block mappings, JSON scalars, ASCII; a function of the values only."""
    lines = ["# Written by toppgate freeze.  An edit makes it a draft again."]
    lines += _block(params.values(), "")
    return ("\n".join(lines) + "\n").encode("ascii")


def _block(value: Mapping[str, Any], indent: str) -> Iterator[str]:
    for key, item in value.items():
        name = key if key.isidentifier() else json.dumps(key)
        if isinstance(item, dict) and item:
            yield f"{indent}{name}:"
            yield from _block(item, indent + "  ")
        elif isinstance(item, list) and any(isinstance(entry, dict) for entry in item):
            yield f"{indent}{name}:"
            for entry in item:
                first, *rest = _block(entry, indent + "  ")
                yield f"{indent}- {first.lstrip()}"
                yield from rest
        else:
            yield f"{indent}{name}: {json.dumps(item)}"
