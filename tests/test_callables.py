"""Python functions in a kernel's place: their text is pinned, their call is their path, and they pass the same gate."""

import importlib.util
import json
import time
from pathlib import Path
from typing import Any

import pipeline
import pytest

from toppgate import digests, execute, freeze, host, judge, oracle, outputs, params, published, source
from toppgate.errors import ParamsError, SourceError
from toppgate.execute import Side
from toppgate.inputs import Inputs, from_bytes
from toppgate.outputs import Masks
from toppgate.stage import Run

VLLM_SORT = {
    "kind": "callable",
    "callable": "vllm.v1.sample.ops.topk_topp_sampler:apply_top_k_top_p_pytorch",
    "of": {
        "kind": "release",
        "distribution": "vllm",
        "version": "0.31.0",
        "member": "vllm/v1/sample/ops/topk_topp_sampler.py",
        "sha256": "c5c7de950e4e1380c97328057aa6a39c86e734c8b2de35beffa9695b705fbba3",
    },
}
TRANSFORMERS = {"kind": "callable", "callable": "examples.transformers_top_p:top_p"}

#: Functions as a stranger might bring them: a kept mask, and one that launches a kernel which nobody froze.
BROUGHT = """
import torch
import triton
import triton.language as tl


def all_but_the_least(logits, p):
    return logits > logits.min(dim=-1, keepdim=True).values


@triton.jit
def touch(x):
    tl.store(x, tl.load(x))


def with_a_kernel(logits, p):
    touch[(1,)](logits)
    return logits


def nothing(logits, p):
    return None
"""


@pytest.fixture(scope="module")
def brought(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory that holds a module with three functions."""
    home = tmp_path_factory.mktemp("brought")
    (home / "brought.py").write_text(BROUGHT)
    return home


def spec(function: str) -> dict[str, Any]:
    """Return the source spec of a function of that module."""
    return {"kind": "callable", "callable": f"brought:{function}"}


# ---------------------------------------------------------------------------------------------- the source


def test_a_module_is_found_by_name_and_not_imported(brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole file is the source; a module that would raise when imported is read all the same."""
    monkeypatch.chdir(brought)
    found = source.resolve(spec("nothing"), published.cache())
    assert found.data.decode() == BROUGHT
    assert found.callable == "brought:nothing"
    (brought / "package").mkdir(exist_ok=True)
    (brought / "package" / "raises.py").write_text("raise SystemExit\ndef f(logits, p): ...\n")
    assert source.resolve({"kind": "callable", "callable": "package.raises:f"}, published.cache()).data


def test_a_function_is_cut_out_of_a_pinned_file() -> None:
    """The sort of vLLM is the text of that one function, and named by function and file."""
    found = source.resolve(VLLM_SORT, published.cache())
    assert found.data.startswith(b"def apply_top_k_top_p_pytorch(")
    assert found.sha256 == "275eb41831b2e43964366495abfc8d222aac121da40245760d36537ac5449f40"
    assert source.describe(VLLM_SORT).startswith("function apply_top_k_top_p_pytorch of vllm/v1/sample/ops/")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"callable": "absent:f"}, "callable absent:f: no file absent.py in the working directory or on sys.path"),
        ({"callable": "brought:absent"}, "callable brought:absent: the module defines absent not exactly once"),
        ({"callable": "brought"}, "source of kind callable: callable: got 'brought', expected module:function"),
        ({"requires": {"numpy": "0.1"}}, "installed numpy 0.1: got version"),
        ({"requires": {"no-such-thing": "1"}}, "installed no-such-thing 1: the distribution is not installed"),
        ({"requires": {}}, "source of kind callable: requires: got {}, expected a mapping"),
        ({"of": {"kind": "file", "path": "brought.py"}}, "source of kind callable: of: sha256: missing"),
        ({"of": {"kind": "callable", "callable": "a:b"}}, "source: kind: got 'callable', expected one of release"),
        ({"sha256": "0" * 64}, "source_drift: callable brought:nothing: got sha256"),
    ],
)
def test_what_cannot_be_had_is_one_line(
    change: dict[str, Any], said: str, brought: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module, function, distribution or pin that is not there is named."""
    monkeypatch.chdir(brought)
    with pytest.raises(SourceError) as refused:
        source.resolve({**spec("nothing"), **change}, published.cache())
    assert str(refused.value).startswith(said)


def test_no_cherry_pick_is_made_of_functions() -> None:
    """A base or donor that is a callable is refused, by the schema and by the source."""
    pick = {**pipeline.PATCH, "donor": VLLM_SORT}
    with pytest.raises(SourceError, match="kind: got 'callable'"):
        source.resolve(pick, published.cache())
    with pytest.raises(ParamsError, match=r"patch\.donor\.kind: got str 'callable'"):
        params.check(pipeline.draft(pipeline.control(), patch=pick), "draft")


@pytest.mark.parametrize(
    ("drafted", "frozen"),
    [
        (None, ["callable"]),
        ([{"kernel": "step", "times": 2}], ["callable"]),
        ([{"kernel": "callable", "times": 1}, {"kernel": "own", "times": 2}], ["callable", "own", "own"]),
        ([{"kernel": "own", "times": 1}, {"kernel": "callable", "times": 1}], ["callable"]),
    ],
)
def test_a_functions_path_is_its_call_and_what_is_declared(drafted: Any, frozen: list[str], tmp_path: Path) -> None:
    """A kernel file's path is not kept for a function; kernels that it launches can be declared behind its call."""
    values = pipeline.draft(pipeline.control(), patch=VLLM_SORT)
    if drafted is not None:
        values["path"] = {"stock": [{"kernel": "callable", "times": 1}], "patch": drafted}
    found = params.read(pipeline.freeze_draft(tmp_path / "p.yml", values)).path
    assert [step.kernel for step in found.patch for _ in range(step.times)] == frozen
    assert [step.times for step in found.stock] == [1, 5, 1]


# ---------------------------------------------------------------------------------------------- executed and judged


@pytest.fixture(scope="module")
def sorted_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run of vLLM's sort in the patch's place: forced, control, and eight tied tokens of which half stay."""
    tied = pipeline.case("tied", "ordinary", pipeline.literal([0.0] * 8), "0.5")
    home = tmp_path_factory.mktemp("sorted")
    values = pipeline.draft(pipeline.forced(rows=1), pipeline.control(), tied, patch=VLLM_SORT)
    path = pipeline.freeze_draft(home / "p.yml", values)
    pipeline.executed(path, pipeline.captured(path, home / "run"))
    return home / "run"


def test_vllms_sort_keeps_the_highest_ids_of_a_tie(sorted_run: Path) -> None:
    """It passes forced and control rows, and among equal logits keeps the last ones: the gate says so."""
    found = judge.judge(sorted_run)
    assert [(row["case"], row["code"]) for row in found.rows] == [
        ("forced", "pass"),
        ("control", "pass"),
        ("control", "pass"),
        ("tied", "patch_noncanonical_tie"),
    ]
    assert found.verdict["first_stop"] == {"case": "tied", "row": 0, "code": "patch_noncanonical_tie"}


def test_a_function_and_a_kernel_file_ran_in_one_environment(sorted_run: Path) -> None:
    """The function's path is one call of the pinned text; both sides saw the same variables and versions."""
    sides = json.loads((sorted_run / "2_execute.json").read_bytes())["sides"]
    launches = sides["patch"]["cases"]["tied"]["launches"]
    assert [[(call["kernel"], call["ours"]) for call in repeat] for repeat in launches] == [[("callable", True)]] * 2
    assert sides["patch"]["environments"] == sides["stock"]["environments"]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory, brought: Path) -> Path:
    """Return a captured run of one small case, with a function of the module as its patch."""
    home = tmp_path_factory.mktemp("captured")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(brought)
        one = pipeline.case("one", "control", pipeline.normal(2, vocabulary=16), ["0.3", "0.95"])
        path = pipeline.freeze_draft(home / "p.yml", pipeline.draft(one, patch=spec("nothing")))
    return pipeline.captured(path, home / "run")


def worked(directory: Path, function: dict[str, Any], monkeypatch: pytest.MonkeyPatch, home: Path) -> dict[str, Any]:
    """Run a function over a captured case, as the patch, and return what is recorded of the case."""
    monkeypatch.chdir(home)
    found = source.resolve(function, published.cache())
    checked = params.read(directory / "params.yml")
    held = json.loads((directory / "1_capture.json").read_bytes())
    run = Run(directory, checked, held["params"], held["harness"], held["run"])
    (directory / "outputs").mkdir(exist_ok=True)
    side = Side("patch", found.sha256, found.callable)
    provided = host.provide(checked.host.model_dump(mode="json", exclude_unset=True), published.cache())
    execute.work(run, side, found.data, provided, time.monotonic() + 120)
    assert side.source == digests.sha256(found.data)
    return side.cases["one"]


def kept(directory: Path) -> tuple[Inputs, Masks]:
    """Return the captured input and what the function kept of it."""
    held = from_bytes((directory / "inputs" / "one.safetensors").read_bytes(), "one")
    data = (directory / "outputs" / "one.patch.safetensors").read_bytes()
    return held, outputs.from_bytes(data, held.orders, "one")


def test_a_kept_mask_masks_the_input(captured: Path, brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a function returns a mask, kept tokens have their logit, bit for bit, and the others are masked."""
    record = worked(captured, spec("all_but_the_least"), monkeypatch, brought)
    held, masks = kept(captured)
    assert record["code"] == "pass"
    assert (masks.kept == (held.logits > held.logits.min(axis=1, keepdims=True))).all()
    assert masks.exceptions.size == 0


def test_every_triton_launch_is_seen(captured: Path, brought: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that a function launches stands in its path, so one that nobody froze is a path_mismatch."""
    record = worked(captured, spec("with_a_kernel"), monkeypatch, brought)
    assert [(call["kernel"], call["ours"]) for call in record["launches"][0]] == [("callable", True), ("touch", True)]


def test_a_function_that_returns_nothing_crashes_its_worker(
    captured: Path, brought: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no tensor is no output."""
    assert worked(captured, spec("nothing"), monkeypatch, brought)["code"] == "worker_crashed"


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs the extra transformers")
def test_the_shipped_warper_warps_each_row_by_its_own_p(captured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The warper keeps what the oracle keeps, for a small and a large p in one batch."""
    record = worked(captured, TRANSFORMERS, monkeypatch, pipeline.ROOT)
    held, masks = kept(captured)
    assert (record["code"], record["detail"]) == ("pass", "")
    for row in range(2):
        assert (masks.kept[row] == oracle.reference(held.logits[row], held.p[row]).kept()).all()
    assert masks.kept[0].sum() < masks.kept[1].sum()


@pytest.mark.parametrize("name", ["vllm-sort", "transformers"])
def test_shipped_params_of_functions_are_frozen(name: str) -> None:
    """Both files hold, and expect a call and nothing else."""
    path = pipeline.ROOT / "params" / f"{name}.yml"
    checked = params.read(path)
    params.check_frozen(checked, str(path))
    assert [step.kernel for step in checked.path.patch] == ["callable"]
    assert freeze.path_of({"kind": "callable"}, checked.path.patch) == [{"kernel": "callable", "times": 1}]
