"""A params file as a whole: reading it, freeze's own form, and the frozen digest."""

import ast
import copy
from pathlib import Path
from typing import Any

import nbformat
import params_data
import pytest
import yaml
from hypothesis import given, settings
from papermill.iorw import read_yaml_file
from papermill.translators import PythonTranslator
from params_data import Edit, draft, edited, put, yaml_1_2
from refusals import bounded, refusal

from toppgate import harness, params, plain_yaml
from toppgate.schema import Params

# ---------------------------------------------------------------------------------------------- reading


def test_a_large_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """5 MiB are not looked at, and neither is a device that never ends."""
    large = tmp_path / "large.yml"
    large.write_bytes(b"- 1\n" * (5 * 2**18))
    with bounded(calls=1000):
        assert refusal(lambda: params.read(large)) == f"{large}: more than 4194304 bytes, expected at most as many"
        assert "more than 4194304 bytes" in refusal(lambda: params.read(Path("/dev/zero")))


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A missing file, a directory and bytes that are no UTF-8 are named, with the reason."""
    latin = tmp_path / "latin.yml"
    latin.write_bytes(b"title: \xe9t\xe9")
    assert refusal(lambda: params.read(latin)) == f"{latin}: byte 7: expected UTF-8"
    assert refusal(lambda: params.read(tmp_path)) == f"{tmp_path}: cannot be read: Is a directory"
    assert "cannot be read: No such file" in refusal(lambda: params.read(tmp_path / "none.yml"))


# ---------------------------------------------------------------------------------------------- freeze's own form


@given(params_data.drafts())
@settings(max_examples=60, deadline=None)
def test_freezes_own_form_is_read_back_as_it_was_and_alike_by_every_reader(values: dict[str, Any]) -> None:
    """Ours, YAML 1.2 and YAML 1.1 read the same values of the same types, whatever characters they hold."""
    checked = params.check(values, "x.yml")
    data = params.dump(checked)
    assert data.isascii()
    assert plain_yaml.parse(data.decode(), "x.yml") == checked.values() == values
    assert yaml_1_2(data) == values
    assert yaml.safe_load(data) == values
    assert params.dump(params.check(plain_yaml.parse(data.decode(), "x.yml"), "x.yml")) == data


@given(params_data.drafts())
@settings(max_examples=60, deadline=None)
def test_values_come_out_of_papermills_injection_as_they_went_in(values: dict[str, Any]) -> None:
    """The injected cell, evaluated as the literals that it is, holds the frozen values."""
    cell = PythonTranslator.codify(values)
    injected = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell).body}
    assert injected == values


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(Path("params").glob("*.yml")) if not path.stem.startswith("ladder")],
    ids=lambda path: path.stem,
)
def test_shipped_files_are_frozen_in_freezes_own_form_and_read_alike(path: Path) -> None:
    """Papermill reads each shipped file as toppgate does, byte for byte what freeze would write."""
    checked = params.read(path)
    params.check_frozen(checked, path.name)
    assert params.dump(checked) == path.read_bytes()
    assert read_yaml_file(str(path)) == checked.values() == yaml_1_2(path.read_bytes())
    cell = PythonTranslator.codify(checked.values())
    injected = {node.targets[0].id: ast.literal_eval(node.value) for node in ast.parse(cell).body}
    assert params.dump(params.check(injected, "injected")) == path.read_bytes()


@pytest.mark.parametrize("name", harness.STAGES)
def test_a_stage_notebook_names_every_parameter(name: str) -> None:
    """Papermill logs a name that the parameters cell lacks as unknown, and goes on."""
    notebook = nbformat.read(harness.NOTEBOOKS / f"{name}.ipynb", as_version=4)
    (cell,) = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    named = {node.id for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Name)}
    assert named == set(Params.model_fields) | {"run_dir"}


# ---------------------------------------------------------------------------------------------- the frozen digest


def frozen(values: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return values with all that freeze would add, invented, and the digests over them."""
    pin = "1" * 64
    values = copy.deepcopy(draft() if values is None else values)
    for side in ("stock", "patch"):
        values[side]["sha256"] = pin
    values["host"]["tree"] = pin
    values["change"] = {"sha256": pin, "hunks": [pin]}
    for one, bits in zip(values["cases"], ("3f733333", "3f666666"), strict=True):
        one |= {"p_bits": bits, "shape": [2, 8], "slices": {"stock": 2, "patch": 2}, "input": pin}
    return values | {"frozen": params.freeze_digest(values)}


def drift(values: dict[str, Any]) -> str:
    """Return why values are not accepted as frozen."""
    return refusal(lambda: params.check_frozen(params.check(values, "x.yml"), "x.yml"))


def test_a_frozen_file_is_accepted() -> None:
    """What the tests below edit is accepted as it is."""
    params.check_frozen(params.check(frozen(), "x.yml"), "x.yml")


def test_a_draft_is_not_frozen() -> None:
    """A file without digests is refused in one line."""
    assert drift(draft()) == "x.yml: frozen: got nothing, expected the digests that toppgate freeze writes"


CHANGES: dict[str, Edit] = {
    "title": put("title", "another"),
    "notes": put("notes", "added"),
    "device": put("device", "cuda"),
    "compute_units": put("compute_units", 5),
    "repeat": put("repeat", 3),
    "retain_inputs": put("retain_inputs", False),
    "stock": put("stock", "version", "0.30.0"),
    "patch": put("patch", "sha256", "2" * 64),
    "change": put("change", "hunks", ["2" * 64]),
    "host": put("host", "tree", "2" * 64),
    "wants": put("wants", {"torch": "2.13.0", "triton": "3.7.1"}),
    "path": put("path", {side: [{"kernel": "one", "times": 1}] for side in ("stock", "patch")}),
    "limits": put("limits", "launch_seconds", 61),
    "cases[forced]": put("cases", 0, "about", "edited"),
    "cases[control]": put("cases", 1, "input", "2" * 64),
}


def test_every_key_of_a_params_file_has_a_change_below() -> None:
    """A key that the schema gains must be tried too; the version cannot change."""
    tried = {name.split("[")[0] for name in CHANGES}
    assert tried == set(Params.model_fields) - {"schema_version", "frozen"}


@pytest.mark.parametrize("part", CHANGES)
def test_an_edit_is_named_by_the_part_that_differs(part: str) -> None:
    """Each key, and each case by its id."""
    assert drift(edited(CHANGES[part], frozen())) == (
        f"x.yml: params_drift: {part} differs from what was frozen; freeze again, as a new file"
    )


def test_the_first_of_several_edits_is_named() -> None:
    """In the order of the file."""
    values = edited(put("limits", "batch", 9), edited(put("cases", 0, "about", "edited"), frozen()))
    assert "params_drift: limits differs" in drift(values)


def test_cases_in_another_order_are_named_as_that() -> None:
    """The first stop is the first in frozen order, so the order is frozen."""
    values = frozen()
    values["cases"].reverse()
    assert "params_drift: the order of cases, or frozen.sha256 itself, differs" in drift(values)


def test_a_case_that_is_added_or_gone_is_named() -> None:
    """Both ways."""
    gone, added = frozen(), frozen()
    gone["cases"].pop(0)
    added["cases"].append({**added["cases"][1], "id": "another"})
    assert "params_drift: cases[forced] differs" in drift(gone)
    assert "params_drift: cases[another] differs" in drift(added)


def test_an_edited_digest_is_found() -> None:
    """The whole, a part, and a part of something that is not there."""
    assert "frozen.sha256 itself" in drift(edited(put("frozen", "sha256", "2" * 64), frozen()))
    assert "device differs" in drift(edited(put("frozen", "parts", "device", "2" * 12), frozen()))
    assert "more differs" in drift(edited(put("frozen", "parts", "more", "2" * 12), frozen()))


PINS = (
    ("stock", "sha256"),
    ("patch", "sha256"),
    ("change",),
    ("host", "tree"),
    ("cases", 0, "p_bits"),
    ("cases", 1, "shape"),
    ("cases", 1, "slices"),
    ("cases", 1, "input"),
)


@pytest.mark.parametrize("path", PINS)
def test_a_digest_over_values_that_pin_too_little_is_refused(path: tuple[Any, ...]) -> None:
    """A digest that somebody computed over a draft does not make it frozen: what freeze pins must be there."""
    values = frozen()
    *steps, last = path
    here: Any = values
    for step in steps:
        here = here[step]
    here.pop(last)
    values["frozen"] = params.freeze_digest(values)
    name = ".".join(map(str, path)).replace("cases.0", "cases[forced]").replace("cases.1", "cases[control]")
    assert drift(values) == f"x.yml: {name}: got nothing, expected what toppgate freeze writes"


def test_the_frozen_digest_does_not_depend_on_the_order_of_keys() -> None:
    """It is over the canonical form, so a file that was sorted by an editor has the same digest."""
    values = frozen()
    turned = dict(reversed(values.items()))
    assert params.freeze_digest(turned)["sha256"] == values["frozen"]["sha256"]


def test_the_digest_of_known_values_is_pinned() -> None:
    """So that the canonical form, which every frozen file rests on, cannot change unseen."""
    assert params.freeze_digest(draft())["sha256"] == "cf4266d40d6910ef02c83ee57688ed90fbe3ee4d49c116efc0b0539af714f87f"
