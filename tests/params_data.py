"""Params as plain values: small ones to edit, and a strategy over all that the schema and the rules accept."""

import copy
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from ruamel.yaml import YAML

from toppgate import codes

Edit = Callable[[dict[str, Any]], object]

SHA = "0" * 64
KERNEL = "vllm/v1/sample/ops/topk_topp_triton.py"


def case(name: str = "control", **more: Any) -> dict[str, Any]:
    """Return a control of two rows of eight tokens."""
    rows = {"kind": "normal", "seed": "7", "scale": "3", "rows": 2, "vocabulary": 8}
    return {"id": name, "role": "control", "rows": rows, "p": "0.9"} | more


def forced(name: str = "forced", **more: Any) -> dict[str, Any]:
    """Return a forced case of two rows of eight tokens."""
    rows = {"kind": "forced", "base": case()["rows"], "token": 3, "value": "1e9"}
    return {"id": name, "role": "forced", "rows": rows, "p": "0.95"} | more


def literal(*rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Return a generator of written rows."""
    return {"kind": "literal", "rows": list(rows)} | more


def draft(*cases: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a draft of a forced case and a control, or of the cases given."""
    release = {"kind": "release", "distribution": "vllm", "version": "0.31.0", "member": KERNEL}
    limits = {"vocabulary": 64, "batch": 8, "rows": 32}
    return {
        "schema_version": 1,
        "title": "two small cases",
        "device": "interpreter",
        "compute_units": 4,
        "repeat": 2,
        "stock": {**release, "sha256": SHA},
        "patch": {**release, "version": "0.33.0"},
        "host": {"kind": "sdist", "distribution": "vllm", "version": "0.31.0", "sha256": SHA},
        "limits": limits | {"launch_seconds": 60, "total_seconds": 300, "retained_bytes": 1_000_000},
        "cases": list(cases) or [forced(), case()],
    } | more


# ---------------------------------------------------------------------------------------------- everything accepted

#: All characters but control, format, unassigned and private ones, and line separators.
_shown = st.characters(exclude_categories=("C", "Zl", "Zp"))
_lines = st.text(_shown, min_size=1, max_size=40)
_texts = st.text(st.one_of(_shown, st.just("\n")), max_size=60)
_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,11}", fullmatch=True)
_hex = st.text("0123456789abcdef", min_size=64, max_size=64)
_counts = st.integers(1, 2**31 - 1)
_seeds = st.integers(0, 2**128 - 1).map(str)
_roundings = st.sampled_from(["none", "bfloat16", "float16"])

_decimals = st.one_of(
    st.floats(width=64).map(repr),
    st.sampled_from(["1e9", "-.5", "5.", "+0", "1E-46", "nan", "-inf", "0.30000000000000004", "00.10"]),
)
#: p of ordinary rows, which fp32 keeps strictly between 0 and 1.
_ps = st.floats(2.0**-149, 1 - 2.0**-24).map(repr)
_scales = st.integers(-(2**16), 2**16).map(lambda n: repr(n / 2**9))


def _maybe(**keys: st.SearchStrategy[Any]) -> dict[str, Any]:
    return {"optional": keys}


_release = st.fixed_dictionaries(
    {
        "kind": st.sampled_from(["release", "installed"]),
        "distribution": _names,
        "version": _names,
        "member": _lines,
    },
    **_maybe(sha256=_hex),
)
_file = st.fixed_dictionaries({"kind": st.just("file"), "path": _lines}, **_maybe(sha256=_hex))
_git = st.fixed_dictionaries({"kind": st.just("git"), "repository": _lines, "revision": _lines, "path": _lines})
_pick = st.fixed_dictionaries(
    {"kind": st.just("pick"), "base": _release, "donor": _git, "hunks": st.lists(_hex, min_size=1, max_size=3)}
)
_sources = st.one_of(_release, _file, _git, _pick)
_hosts = st.one_of(
    st.fixed_dictionaries({"kind": st.just("sdist"), "distribution": _names, "version": _names, "sha256": _hex}),
    st.fixed_dictionaries({"kind": st.just("installed"), "distribution": _names, "version": _names}),
)
_parts = st.one_of(
    st.fixed_dictionaries({"numbers": st.lists(_decimals, min_size=8, max_size=8)}),
    st.fixed_dictionaries({"value": _decimals, "repeat": st.just(8)}),
    st.fixed_dictionaries({"linspace": st.tuples(_decimals, _decimals, st.just(8)).map(list)}),
    st.fixed_dictionaries(
        {"affine": st.fixed_dictionaries({"start": _decimals, "step": _decimals, "count": st.just(8)})}
    ),
)


def _bases(batch: int) -> st.SearchStrategy[Any]:
    """Rows of eight tokens, so that every token below eight may be forced."""
    size: dict[str, st.SearchStrategy[Any]] = {"rows": st.just(batch), "vocabulary": st.just(8)}
    normal = {"kind": st.just("normal"), "seed": _seeds, "scale": _scales, **size}
    captured = {"kind": st.just("file"), "path": _lines, "tensor": _lines, "rows": st.just([3, 3 + batch])}
    return st.one_of(
        st.fixed_dictionaries(normal, **_maybe(round=_roundings)),
        st.fixed_dictionaries(captured, **_maybe(round=_roundings, sha256=_hex)),
        _parts.map(lambda part: literal([part], copies=batch)),
    )


def _one_or_each(value: st.SearchStrategy[Any], batch: int) -> st.SearchStrategy[Any]:
    return st.one_of(value, st.lists(value, min_size=batch, max_size=batch))


@st.composite
def _cases(draw: st.DrawFn) -> dict[str, Any]:
    batch = draw(st.integers(1, 4))
    role = draw(st.sampled_from(["forced", "control", "reproduction", "ordinary", "probe"]))
    rows = draw(_bases(batch))
    found: dict[str, Any] = {"id": draw(_names), "role": role, "rows": rows, "p": draw(_one_or_each(_ps, batch))}
    if role == "forced":
        found["rows"] = {"kind": "forced", "base": rows, "token": draw(st.integers(0, 7)), "value": draw(_decimals)}
    if role == "probe":
        found["p"] = draw(_one_or_each(_decimals, batch))
        found["expect"] = draw(_one_or_each(st.sampled_from(codes.PROBE_CODES), batch))
        found |= draw(st.fixed_dictionaries({}, **_maybe(k=_counts)))
    return found | draw(st.fixed_dictionaries({}, **_maybe(about=_texts, compute_units=_counts)))


@st.composite
def drafts(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the values of a params file that is accepted."""
    cases = draw(st.lists(_cases(), min_size=1, max_size=3, unique_by=lambda found: found["id"].lower()))
    more = st.fixed_dictionaries({"title": _lines}, **_maybe(notes=_texts, retain_inputs=st.booleans()))
    sources = {"stock": draw(_sources), "patch": draw(_sources), "host": draw(_hosts)}
    limits = {"vocabulary": 8, "batch": 4, "rows": 12, "launch_seconds": 1, "total_seconds": 2, "retained_bytes": 3}
    return draft(*cases, limits=limits, device=draw(st.sampled_from(["interpreter", "cuda"])), **sources, **draw(more))


# ---------------------------------------------------------------------------------------------- edits


def put(*path: Any) -> Edit:
    """Return an edit that sets the value, last, at a path of keys and indices."""
    *steps, last, value = path

    def edit(values: Any) -> None:
        for step in steps:
            values = values[step]
        values[last] = value

    return edit


def edited(edit: Edit, values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a draft, or the values given, after an edit."""
    values = copy.deepcopy(draft() if values is None else values)
    edit(values)
    return values


def yaml_1_2(data: bytes) -> Any:
    """Return what ruamel, a YAML 1.2 reader, makes of a file; nothing of toppgate's own reader is in it."""
    return YAML(typ="safe", pure=True).load(data.decode())
