"""Freezing: what is derived, what is kept, what is refused, and the shipped files against their drafts.

Small files name two texts with a split plan as sources, and an installed distribution as host; the shipped ones name
published files, from the cache where it has them.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import safetensors.numpy
import yaml
from params_data import Edit, case, draft, edited, forced, literal, put, yaml_1_2
from refusals import refusal

from tools import compose
from toppgate import digests, freeze, inputs, params, plain_yaml
from toppgate.schema import Params

PARAMS = Path("params")
SHIPPED = [path for path in sorted(PARAMS.glob("*.yml")) if not path.stem.startswith("ladder")]

Write = Callable[[dict[str, Any]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes values as a draft, in JSON, which is YAML, and returns the path."""

    def function(values: dict[str, Any]) -> Path:
        path = tmp_path / "x.yml"
        path.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
        return path

    return function


STOCK, PATCH = Path(__file__).parent / "data" / "stock.txt", Path(__file__).parent / "data" / "patch.txt"


def local(*cases: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a draft whose sources and host are on this machine."""
    sources = {side: {"kind": "file", "path": str(path)} for side, path in (("stock", STOCK), ("patch", PATCH))}
    host = {"kind": "installed", "distribution": "click", "version": metadata.version("click")}
    return draft(*cases, **({**sources, "host": host} | more))


def refused(path: Path) -> str:
    """Return why a file is not frozen, once it is seen to be left as it was and nothing to be left beside it."""
    before = {p: p.read_bytes() for p in path.parent.iterdir() if p.is_file()}
    message = refusal(lambda: freeze.freeze(path))
    assert {p: p.read_bytes() for p in path.parent.iterdir() if p.is_file()} == before
    return message


# ---------------------------------------------------------------------------------------------- what is derived


def test_freezing_writes_every_digest_and_keeps_what_was_said(write: Write) -> None:
    """The draft's values stand; beside them stand bits, shapes, slices and digests, each as it can be worked out."""
    rows = literal([{"numbers": ["1", "-2.5"]}, {"value": "0.1", "repeat": 2}, {"linspace": ["0", "1", 4]}])
    written = case(
        "written", role=["ordinary", "probe"], p=["0.5", "1"], rows={**rows, "copies": 2}, expect=[None, "invalid_p"]
    )
    values = local(forced(), written, notes="prose")
    frozen = freeze.freeze(write(values)).values()
    pins = {"path": frozen["path"], "stock": {"sha256": ANY}, "patch": {"sha256": ANY}, "host": {"tree": ANY}}
    assert _without(frozen, params.DERIVED) == {**values, **{key: {**values.get(key, {}), **pins[key]} for key in pins}}
    assert frozen["cases"][0]["rows"]["value_bits"] == "4e6e6b28"
    assert frozen["cases"][0]["p_bits"] == "3f733333"
    assert frozen["cases"][1]["p_bits"] == ["3f000000", "3f800000"]
    parts = frozen["cases"][1]["rows"]["rows"][0]
    assert [part.get("bits") for part in parts] == [["3f800000", "c0200000"], ["3dcccccd"], None]
    for one, made in zip(frozen["cases"], map(inputs.generate, params.check(frozen, "x").cases), strict=True):
        assert one["shape"] == [2, 8]
        assert one["input"] == made.sha256
        assert one["slices"] == {"stock": 2, "patch": 4}  # 4 units for 2 rows, by the plan of each text
    assert len(frozen["change"]["hunks"]) == 2
    assert frozen["stock"]["sha256"] == digests.sha256_file(STOCK)


def _without(value: Any, keys: frozenset[str]) -> Any:
    """Return values without some keys, wherever they stand."""
    if isinstance(value, dict):
        return {key: _without(item, keys) for key, item in value.items() if key not in keys}
    return [_without(item, keys) for item in value] if isinstance(value, list) else value


def test_freezing_twice_gives_the_same_bytes(write: Write) -> None:
    """And once frozen, the file is accepted by run's own checks."""
    path = write(local())
    params.check_frozen(freeze.freeze(path), "x")
    once = path.read_bytes()
    freeze.freeze(path)
    assert path.read_bytes() == once
    assert params.dump(params.read(path)) == once
    assert yaml.safe_load(once) == yaml_1_2(once) == params.read(path).values()


def test_the_order_of_keys_and_the_layout_of_a_draft_do_not_matter(write: Write, tmp_path: Path) -> None:
    """The frozen bytes are a function of the values: keys turned round, block style and comments change nothing."""
    values = local()
    plain = write(values)
    other = tmp_path / "other.yml"
    other.write_bytes(b"# a comment\n" + plain_yaml.dump(dict(reversed(values.items()))))
    for path in (plain, other):
        freeze.freeze(path)
    assert plain.read_bytes() == other.read_bytes()


def test_characters_of_every_plane_survive(write: Write) -> None:
    """Prose may hold any letter or sign; YAML 1.1 reads it as it was written."""
    path = write(local(title="naïve 😀 \U0001d4af \\ \"quoted\" 'too' # no: comment", notes="two\nlines"))
    frozen = freeze.freeze(path)
    read = yaml.safe_load(path.read_bytes())
    assert (read["title"], read["notes"]) == (frozen.title, frozen.notes)


EDITS: dict[str, Edit] = {
    "p": put("cases", 1, "p", "0.5"),
    "a forced value": put("cases", 0, "rows", "value", "2e9"),
    "a seed": put("cases", 1, "rows", "seed", "8"),
    "the vocabulary": put("cases", 1, "rows", "vocabulary", 16),
    "the compute units": put("compute_units", 8),
    "the patch": put("patch", {"kind": "file", "path": __file__}),
    "the cases' order": lambda values: values["cases"].reverse(),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_file_is_a_draft_again(write: Write, name: str) -> None:
    """What was derived from the old values is derived anew: the result is that of the same edit to the draft."""
    path = write(local())
    freeze.freeze(path)
    path.write_bytes(plain_yaml.dump(edited(EDITS[name], yaml.safe_load(path.read_bytes()))))
    again = freeze.freeze(path)
    assert again == freeze.freeze(write(edited(EDITS[name], local())))
    params.check_frozen(again, "x")


def test_an_unedited_file_that_comes_out_otherwise_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """A generator that gives other bits than those frozen must be seen, and not be frozen over."""
    path = write(local())
    freeze.freeze(path)
    real = inputs.normal
    monkeypatch.setattr(inputs, "normal", lambda *given: real(*given) + 1)
    assert (
        refused(path) == f"{path}: cases[forced] comes out otherwise than it was frozen; to freeze it anew, drop frozen"
    )


def test_a_selected_seed_is_kept_in_an_unedited_file_and_dropped_from_an_edited_one(tmp_path: Path) -> None:
    """It was selected for those kernels and rows; in an edited file it would be a claim about others."""
    path = tmp_path / "cpu.yml"
    shutil.copyfile(PARAMS / "cpu.yml", path)
    (kept,) = [c for c in params.read_draft(path).cases if c.select is not None]
    assert kept.rows.seed is not None  # type: ignore[union-attr]
    assert kept.selected_by is not None
    path.write_bytes(path.read_bytes().replace(b"repeat: 2", b"repeat: 3"))
    (dropped,) = [c for c in params.read_draft(path).cases if c.select is not None]
    assert dropped.rows.seed is None  # type: ignore[union-attr]
    assert dropped.selected_by is None


# ---------------------------------------------------------------------------------------------- what is refused


def captured(path: Path, **more: Any) -> dict[str, Any]:
    """Return an ordinary case over a captured file."""
    return case("real", role="ordinary", rows={"kind": "file", "path": str(path), "tensor": "logits", **more})


def test_faults_of_captured_files_name_the_case(write: Write, tmp_path: Path) -> None:
    """Missing, no safetensors, rows beyond the tensor, another pin: the params file is left as it was."""
    path = tmp_path / "x.safetensors"
    missing = refused(write(local(captured(path))))
    assert missing.startswith(f"cases[real].rows: {path}: cannot be read: No such file or directory")
    path.write_bytes(b"no tensors")
    assert refused(write(local(captured(path)))).startswith(f"cases[real].rows: {path}: not a readable safetensors")
    path.write_bytes(safetensors.numpy.save({"logits": inputs.normal(1, 1.0, 2, 8)}))
    beyond = refused(write(local(captured(path, rows=[1, 3]))))
    assert beyond == f"cases[real].rows: rows: got [1, 3], but {path} has 2 rows"
    pinned = refused(write(local(captured(path, sha256="0" * 64))))
    assert pinned.startswith(f"cases[real].rows: {path}: input_drift: SHA-256 is ")


def test_what_only_a_captured_file_says_is_held_to_the_rules(write: Write, tmp_path: Path) -> None:
    """Its vocabulary, its batch, and how many p there are to be."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.numpy.save({"logits": inputs.normal(1, 1.0, 9, 65)}))
    file = write(local(captured(path)))
    assert refused(file) == f"{file}: cases[real].rows: vocabulary 65, expected at most limits.vocabulary 64"
    path.write_bytes(safetensors.numpy.save({"logits": inputs.normal(1, 1.0, 9, 8)}))
    assert refused(file) == f"{file}: cases[real].rows: batch 9, expected at most limits.batch 8"
    path.write_bytes(safetensors.numpy.save({"logits": inputs.normal(1, 1.0, 2, 8)}))
    file = write(local({**captured(path), "p": ["0.5"] * 3}))
    assert refused(file) == f"{file}: cases[real].p: got 3 values, expected one, or one for each of 2 rows"


def test_sources_that_are_not_the_pinned_ones_are_refused(write: Write) -> None:
    """A drifted source, a drifted host, and a patch that changes nothing."""
    drifted = edited(put("stock", "sha256", "0" * 64), local())
    assert refused(write(drifted)).startswith(f"source_drift: file {STOCK}: got sha256 ")
    drifted = edited(put("host", "tree", "0" * 64), local())
    assert refused(write(drifted)).startswith("source_drift: installed click ")
    same = edited(put("patch", "path", str(STOCK)), local())
    assert refused(write(same)) == "patch_drift: stock and patch are the same file"


def test_a_source_that_is_no_python_is_named(write: Write, tmp_path: Path) -> None:
    """By file, side and source, not by its digest alone."""
    path = tmp_path / "wrong.py"
    path.write_text("def _topp_split_count(:\n")
    file = write(edited(put("patch", "path", str(path)), local()))
    said = refused(file)
    assert said.startswith(f"{file}: patch: file {path}: source ")
    assert said.endswith("not a Python text: invalid syntax (<unknown>, line 1)")


def test_a_file_that_cannot_be_replaced_is_named_and_left(write: Write) -> None:
    """Where the new text would be written first, something else stands in the way."""
    path = write(local())
    (path.parent / ".x.yml.partial").mkdir()
    assert refused(path) == f"{path}: cannot be written: Is a directory"


def test_a_full_disk_leaves_the_draft_as_it_was(write: Write) -> None:
    """The new text is larger than a process may write: the draft stands, whole, and nothing beside it."""
    path = write(local())
    before = path.read_bytes()
    code = f"""
import resource
from importlib import metadata
from pathlib import Path
from toppgate import freeze
from toppgate.errors import ParamsError
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    freeze.freeze(Path({str(path)!r}))
except ParamsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    assert done.stdout == f"{path}: cannot be written: File too large\n"
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


# ---------------------------------------------------------------------------------------------- shipped files


def _drafted(name: str) -> dict[str, Any]:
    """Return the draft of a shipped file, with the seed that was selected put in, as only the kernels can find it."""
    values: dict[str, Any] = json.loads(json.dumps(compose.DRAFTS[name]()))
    selected = {c.id: c for c in params.read(PARAMS / f"{name}.yml").cases if c.select is not None}
    for one in values["cases"]:
        if one["id"] in selected:
            one["rows"]["seed"] = selected[one["id"]].rows.seed  # type: ignore[union-attr]
            one["selected_by"] = selected[one["id"]].selected_by
    return values


DRAFTED = [path.stem for path in SHIPPED if path.stem in compose.DRAFTS]


def test_every_shipped_file_but_the_demonstration_has_a_draft() -> None:
    """So that none can be edited by hand and stay so."""
    assert set(DRAFTED) == {path.stem for path in SHIPPED} - {"demo"}
    assert {"cpu", "cpu-0.33.0"} <= set(DRAFTED)


@pytest.mark.parametrize("name", DRAFTED)
def test_a_shipped_file_says_what_its_draft_says(name: str) -> None:
    """Every value but what freeze derives, pins of files and host, and the seed that the kernels select."""
    pins = params.DERIVED | {"tree", "path"}
    shipped = params.read(PARAMS / f"{name}.yml").values()
    ours, theirs = (_unpinned(_without(values, pins)) for values in (_drafted(name), shipped))
    assert ours == theirs


def _unpinned(value: Any) -> Any:
    """Drop the digests that freeze puts beside captured files."""
    if isinstance(value, dict):
        plain = {key: _unpinned(item) for key, item in value.items()}
        return {k: v for k, v in plain.items() if k != "sha256"} if value.get("kind") == "file" else plain
    return [_unpinned(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", ["demo", "cpu", "cpu-0.33.0"])
def test_freezing_a_shipped_file_gives_its_very_bytes(tmp_path: Path, name: str) -> None:
    """Every digest in it is resolved and computed again."""
    path = tmp_path / f"{name}.yml"
    shutil.copyfile(PARAMS / f"{name}.yml", path)
    freeze.freeze(path)
    assert path.read_bytes() == (PARAMS / f"{name}.yml").read_bytes()


def test_freezing_the_draft_gives_the_shipped_cases(write: Write) -> None:
    """From the draft alone, but for the case whose seed takes the kernels to find."""
    values = _drafted("cpu")
    values["cases"] = [one for one in values["cases"] if "select" not in one]
    found = freeze.freeze(write(values))
    shipped = params.read(PARAMS / "cpu.yml")
    assert found.cases == [c for c in shipped.cases if c.select is None]
    same = set(Params.model_fields) - {"cases", "frozen"}
    assert {key: getattr(found, key) for key in same} == {key: getattr(shipped, key) for key in same}
