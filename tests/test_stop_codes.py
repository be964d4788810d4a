"""Every stop code, made to happen from outside: a kernel file that is wrong, a process that dies, a damaged file.

``TABLE`` says for each code what provokes it and which test does.  Two runs carry most of the weight.  In the first,
both kernel files hold planted outputs, put behind the real kernels, which run before (rows and plants of
``data/rows.json``).  In the second, each case makes one side's kernel file misbehave in its own way.
"""

import html
import json
import os
import shutil
import subprocess
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pipeline
import psutil
import pytest
from deeds import DEADLY, DEEDS, deed_case, misbehaving
from engine_rows import AMBIGUOUS, row_of
from plants import PLANTS, planted_case, planting

from toppgate import codes, digests, gate, inputs, oracle, outputs, params

Run = tuple[Path, subprocess.CompletedProcess[str]]

#: code: (test in this module, what provokes it)
TABLE = {
    "params_drift": ("test_another_value_in_stage_3", "papermill -p gives stage 3 another repeat count"),
    "source_drift": (
        "test_a_source_changes",
        "a kernel file changes: after freeze, between the sides, between workers",
    ),
    "patch_drift": (
        "test_a_patch_that_is_none",
        "the rebuilt patch is not the pinned one; stock and patch are one file",
    ),
    "harness_drift": ("test_the_package_changes_between_stages", "a package file is edited between stages 2 and 3"),
    "environment_drift": ("test_a_side_changes_its_environment", "the patch's file sets a VLLM_ variable on import"),
    "input_missing": ("test_inputs_change_after_capture", "a captured file is deleted between stages 1 and 2"),
    "input_drift": ("test_inputs_change_after_capture", "a captured file is rewritten between stages 1 and 2"),
    "limit_exceeded": ("test_misbehaviour", "a kernel returns so many values that the retained bytes are spent"),
    "timeout": ("test_misbehaviour", "a kernel hangs, with a child in a session of its own"),
    "worker_crashed": ("test_misbehaviour", "a kernel is killed, faults, runs out of memory, or raises"),
    "output_missing": ("test_misbehaviour", "a kernel ends its process with exit status 0"),
    "output_unreadable": ("test_misbehaviour", "what a worker writes is cut short, or is another case's"),
    "output_nondeterministic": ("test_planted_outputs", "the second repeat keeps one token more"),
    "path_mismatch": (
        "test_misbehaviour",
        "a kernel file launches four rounds, the monolithic kernel, or foreign text",
    ),
    "nonfinite_logits": ("test_planted_outputs", "an ordinary row holds a NaN"),
    "invalid_p": (
        "test_an_invalid_p",
        "p is 1 in fp32: on a probe it is observed, on any other row params are refused",
    ),
    "forced_nan": ("test_planted_outputs", "the patch returns a NaN for the forced token"),
    "output_altered": ("test_planted_outputs", "0, NaN, inf, -1e30 for a masked entry; one ulp more for a kept one"),
    "forced_all_masked": ("test_planted_outputs", "the patch masks every token"),
    "forced_token_dropped": ("test_planted_outputs", "the patch keeps token 0 only"),
    "forced_argmax_wrong": ("test_planted_outputs", "the patch keeps an equal logit with a lower id too"),
    "forced_extra_tokens": ("test_planted_outputs", "the patch keeps both tokens"),
    "oracle_boundary_ambiguous": (
        "test_an_ambiguous_boundary",
        "no admissible row is known; rows at p = 1, on the oracle's core only, and none is planted end to end",
    ),
    "stock_under_keep": ("test_planted_outputs", "stock masks a token of the oracle's"),
    "patch_noncanonical_tie": ("test_planted_outputs", "the patch keeps the higher of two tied ids"),
    "patch_hole": ("test_planted_outputs", "the patch leaves out a token between two that it keeps"),
    "patch_under_keep": ("test_planted_outputs", "the patch masks a token of the oracle's, or all"),
    "count_bound_exceeded": ("test_planted_outputs", "both sides keep five tokens too many"),
    "symmetric_difference_regression": ("test_planted_outputs", "the patch keeps one token too many, stock none"),
    "probe_unexpected": ("test_planted_outputs", "a probe names a code that its row does not give"),
}


def test_the_table_names_every_code() -> None:
    """A code without a provocation, or one that names no test, does not pass."""
    assert TABLE.keys() == codes.SENTENCES.keys()
    assert {name for name, _ in TABLE.values()} <= globals().keys()
    assert {plant.code for plant in PLANTS.values()} >= named("test_planted_outputs")
    assert {deed.code for deed in DEEDS.values()} >= named("test_misbehaviour")


def named(test: str) -> set[str]:
    """Return the codes that a test provokes, as the table has it."""
    return {code for code, (name, _) in TABLE.items() if name == test}


# ---------------------------------------------------------------------------------------------- planted outputs

#: H11 of data/rows.json.
INVALID = pipeline.case("H11", "probe", pipeline.literal([2.0, 1.0, 0.0]), "0.99999999", expect="invalid_p")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the rows of one run over all plants, by case."""
    home = tmp_path_factory.mktemp("plants")
    sides = {
        "stock": pipeline.kernel(home / "stock.py", pipeline.STOCK, behind=planting("stock")),
        "patch": pipeline.kernel(home / "patch.py", pipeline.PATCH, behind=planting("patch")),
    }
    cases = [*(planted_case(name, plant) for name, plant in PLANTS.items()), INVALID]
    path = pipeline.freeze_draft(home / "params.yml", pipeline.draft(*cases, compute_units=1, **sides))
    run = pipeline.captured(path, home / "run")
    pipeline.executed(path, run)
    judged = pipeline.judged(path, run)
    assert judged.verdict["verdict"] == "STOP"
    assert [stop for stop in judged.verdict["stops"] if stop["case"] is None] == []
    return {row["case"]: row for row in judged.rows}


@pytest.mark.parametrize("name", PLANTS)
def test_planted_outputs(planted: dict[str, dict[str, Any]], name: str) -> None:
    """A planted output gives the code that it must give first, and nothing else passes for it."""
    assert planted[name]["code"] == PLANTS[name].code


# ---------------------------------------------------------------------------------------------- misbehaviour


@dataclass(frozen=True)
class Misbehaved:
    """One run over all deeds: its stage 2 result, rows and stops, and the processes that were left when it was over."""

    executed: dict[str, Any]
    rows: dict[str, dict[str, Any]]
    stops: list[dict[str, Any]]
    left: list[psutil.Process]


@pytest.fixture(scope="module")
def misbehaved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Misbehaved]:
    """Run all deeds once."""
    home = tmp_path_factory.mktemp("deeds")
    sides = {
        "stock": pipeline.kernel(home / "stock.py", pipeline.STOCK, behind=misbehaving("stock")),
        "patch": pipeline.kernel(home / "patch.py", pipeline.PATCH, behind=misbehaving("patch", VLLM_OF_ONE_SIDE="1")),
    }
    cases = [deed_case(name) for name in ("first", *DEEDS, "last")]
    limits = {"launch_seconds": 8, "retained_bytes": 80_000}
    path = pipeline.freeze_draft(home / "params.yml", pipeline.draft(*cases, compute_units=1, limits=limits, **sides))
    run = pipeline.captured(path, home / "run")
    mine = f"TOPPGATE_TEST_{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(mine, "1")
        found = pipeline.executed(path, run)
        left = [process for process in pipeline.living(mine) if process.pid != os.getpid()]
    judged = pipeline.judged(path, run)
    yield Misbehaved(found, {row["case"]: row for row in judged.rows}, judged.verdict["stops"], left)
    for process in left:
        process.kill()


@pytest.mark.parametrize("name", DEEDS)
def test_misbehaviour(misbehaved: Misbehaved, name: str) -> None:
    """Each deed gives its code, and one line that says which side and what was seen."""
    assert misbehaved.rows[name]["code"] == DEEDS[name].code
    (said,) = [stop["detail"] for stop in misbehaved.stops if stop["case"] == name]
    assert said.startswith(f"{DEEDS[name].side}: ") or DEEDS[name].code == "input_drift"
    assert DEEDS[name].words in said


def test_the_others_are_not_held_liable(misbehaved: Misbehaved) -> None:
    """A worker that dies costs its own case: what came before and what comes after is judged, and passes."""
    assert [misbehaved.rows[name]["code"] for name in ("first", "last")] == ["pass", "pass"]


def test_a_fresh_worker_is_started_for_each_that_died(misbehaved: Misbehaved) -> None:
    """As many workers as deadly deeds, and one more; the killed case is not repeated."""
    for side in ("stock", "patch"):
        deadly = [name for name in DEADLY if DEEDS[name].side == side]
        assert len(misbehaved.executed["sides"][side]["environments"]) == len(deadly) + 1
        records = misbehaved.executed["sides"][side]["cases"]
        assert [records[name]["repeats"] for name in deadly] == [[]] * len(deadly)


def test_nothing_is_left_running(misbehaved: Misbehaved) -> None:
    """The hanging worker, and its child in a session of its own, are gone when stage 2 returns."""
    assert misbehaved.left == []


def test_a_side_changes_its_environment(misbehaved: Misbehaved) -> None:
    """A variable that only the patch's workers had is an environment drift of the whole run."""
    stops = {stop["code"]: stop["detail"] for stop in misbehaved.stops if stop["case"] is None}
    assert stops.keys() == {"environment_drift", "source_drift"}
    assert "VLLM_OF_ONE_SIDE" in stops["environment_drift"]


def test_a_source_changes_between_two_workers(misbehaved: Misbehaved) -> None:
    """A worker that read another text than the first is remembered, though it is the same side's."""
    stops = {stop["code"]: stop["detail"] for stop in misbehaved.stops if stop["case"] is None}
    assert stops["source_drift"].startswith("patch ran source ")


# ---------------------------------------------------------------------------------------------- sources


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    """Return params whose sides are kernel files of this test's own."""
    sides = {
        "stock": pipeline.kernel(tmp_path / "stock.py", pipeline.STOCK),
        "patch": pipeline.kernel(tmp_path / "patch.py", pipeline.PATCH),
    }
    return pipeline.freeze_draft(
        tmp_path / "params.yml", pipeline.draft(pipeline.forced(), pipeline.control(), **sides)
    )


def run_stops(path: Path, directory: Path) -> list[tuple[str, str]]:
    """Run all three stages in this process and return the run-level stops."""
    pipeline.executed(path, pipeline.captured(path, directory) if not directory.exists() else directory)
    judged = pipeline.judged(path, directory)
    assert judged.verdict["verdict"] == "STOP"
    assert {row["observed"] or row["code"] for row in judged.rows} == {judged.verdict["first_stop"]["code"]}
    return [(stop["code"], stop["detail"]) for stop in judged.verdict["stops"] if stop["case"] is None]


@pytest.mark.parametrize("how", ["stock", "patch", "swapped"])
def test_a_source_changes(two_files: Path, tmp_path: Path, how: str) -> None:
    """A kernel file that changed after freeze, or both exchanged: ``run`` refuses, and a stage that meets it stops."""
    stock, patch = tmp_path / "stock.py", tmp_path / "patch.py"
    run = pipeline.captured(two_files, tmp_path / "run")
    if how == "swapped":
        stock.rename(tmp_path / "kept.py")
        patch.rename(stock)
        (tmp_path / "kept.py").rename(patch)
    else:
        (tmp_path / f"{how}.py").write_text((tmp_path / f"{how}.py").read_text() + "# changed\n")
    ((code, detail),) = run_stops(two_files, run)
    assert code == "source_drift"
    assert f"file {stock if how == 'swapped' else tmp_path / f'{how}.py'}: got sha256 " in detail
    done = pipeline.toppgate("run", two_files, "--out", tmp_path / "other")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("toppgate: source_drift: ")
    assert not (tmp_path / "other").exists()


def test_a_source_changes_between_the_sides(two_files: Path, tmp_path: Path) -> None:
    """The patch's file changes once stock's was read: stock's is a pipe, which gives its bytes when we say so."""
    stock = tmp_path / "stock.py"
    data = stock.read_bytes()
    stock.unlink()
    os.mkfifo(stock)

    def feed() -> None:
        with stock.open("wb") as pipe:
            (tmp_path / "patch.py").write_text("# changed\n")
            pipe.write(data)

    feeder = threading.Thread(target=feed)
    feeder.start()
    ((code, detail),) = run_stops(two_files, tmp_path / "run")
    feeder.join()
    assert code == "source_drift"
    assert f"file {tmp_path / 'patch.py'}" in detail


def test_a_patch_that_is_none(tmp_path: Path) -> None:
    """A cherry-pick that does not give its pin, and a patch that is stock itself, stop; ``run`` refuses the first."""
    right = pipeline.freeze_draft(tmp_path / "right.yml", pipeline.draft(pipeline.forced(), pipeline.control()))
    wrong, same = (Path(shutil.copy(right, tmp_path / name)) for name in ("wrong.yml", "same.yml"))
    pipeline.refrozen(wrong, {"patch": {**pipeline.PATCH, "sha256": "0" * 64}})
    pipeline.refrozen(same, {"patch": pipeline.STOCK})
    ((code, detail),) = run_stops(wrong, tmp_path / "wrong")
    assert code == "patch_drift"
    assert detail.endswith(f"expected {'0' * 64}")
    done = pipeline.toppgate("run", wrong, "--out", tmp_path / "other")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("toppgate: patch_drift: ")
    # Both sides run, and agree: nothing but the pins tells that there is no patch.  Its inputs are gone, to save time.
    run = pipeline.captured(same, tmp_path / "same")
    for path in (run / "inputs").iterdir():
        path.unlink()
    pipeline.executed(same, run)
    stops = pipeline.judged(same, run).verdict["stops"]
    assert (stops[0]["code"], stops[0]["case"]) == ("patch_drift", None)


# ---------------------------------------------------------------------------------------------- inputs


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda path: path.unlink(), "input_missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4] + bytes(4)), "input_drift"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4]), "input_drift"),
        (lambda path: path.write_bytes(b""), "input_drift"),
    ],
    ids=["deleted", "rewritten", "cut short", "emptied"],
)
def test_inputs_change_after_capture(tmp_path: Path, damage: Callable[[Path], object], code: str) -> None:
    """A captured file that is gone, or holds 0.0 where it held NaN (plant H19p), is seen by both sides and the gate."""
    rows = pipeline.literal(["nan"] * 8)
    case = pipeline.case("H19", "probe", rows, "0.9", expect="nonfinite_logits")
    path = pipeline.freeze_draft(tmp_path / "params.yml", pipeline.draft(case))
    run = pipeline.captured(path, tmp_path / "run")
    damage(run / "inputs/H19.safetensors")
    done = pipeline.executed(path, run)
    assert {done["sides"][side]["cases"]["H19"]["code"] for side in ("stock", "patch")} == {code}
    (row,) = pipeline.judged(path, run).rows
    assert (row["code"], row["observed"]) == ("probe_unexpected", code)


def test_an_invalid_p(planted: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    """A p that is 1 in fp32 is observed on a probe; params with such a row of any other role are refused."""
    assert (planted["H11"]["code"], planted["H11"]["observed"]) == ("pass", "invalid_p")
    path = pipeline.freeze_draft(tmp_path / "params.yml", pipeline.draft(INVALID))
    values = params.read(path).values()
    del values["cases"][0]["expect"]
    values["cases"][0]["role"] = "ordinary"
    path.write_text(json.dumps(values))
    done = pipeline.toppgate("run", path, "--out", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cases[H11].p, row 0: got 0.99999999" in done.stderr
    assert "(invalid_p)" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("bits", "count"), AMBIGUOUS)
def test_an_ambiguous_boundary(bits: str, count: int) -> None:
    """At p = 1, which the gate admits on no row, the scan and the certificate disagree: the count is not usable."""
    reference = oracle.reference(row_of(bits), np.float32(1))
    assert (reference.count, reference.certified) == (count, False)
    boundary = gate.Boundary(reference.order, reference.count, reference.certified)
    everything = gate.Output(np.ones(reference.order.size, dtype=np.bool_), 0, False)
    judged = gate.judge_ordinary(row_of(bits), boundary, stock=everything, patch=everything)
    assert judged.code == "oracle_boundary_ambiguous"


# ---------------------------------------------------------------------------------------------- time


def test_the_total_time_is_over(tmp_path: Path) -> None:
    """When the frozen total time is over, every case that is left is a timeout, of both sides."""
    sides = {
        side: pipeline.kernel(
            tmp_path / f"{side}.py", getattr(pipeline, side.upper()), behind="import time; time.sleep(1000)"
        )
        for side in ("stock", "patch")
    }
    path = pipeline.freeze_draft(
        tmp_path / "params.yml",
        pipeline.draft(pipeline.forced(), pipeline.control(), limits={"total_seconds": 2}, **sides),
    )
    run = pipeline.captured(path, tmp_path / "run")
    pipeline.executed(path, run)
    judged = pipeline.judged(path, run)
    assert [row["code"] for row in judged.rows] == ["timeout"] * 4
    over = "the frozen total time was over"
    assert {stop["detail"] for stop in judged.verdict["stops"]} == {f"stock: {over}; patch: {over}"}


# ---------------------------------------------------------------------------------------------- between the stages


def sealed_as_stop(run: Path, code: str) -> None:
    """Seal a run that must be a STOP with this code, and verify it."""
    done = pipeline.toppgate("seal", run, "--json")
    assert done.returncode == 1
    said = json.loads(done.stdout)
    assert (said["verdict"], said["first_stop"]) == ("STOP", {"case": None, "row": None, "code": code})
    checked = pipeline.toppgate("verify", run)
    assert (checked.returncode, checked.stderr) == (0, "")
    assert codes.SENTENCES[code] in html.unescape((run / "3_gate.html").read_text())


def test_another_value_in_stage_3(tiny: Path, run_by_papermill: Run, tmp_path: Path) -> None:
    """A value that papermill's -p changes in stage 3 alone is a params drift."""
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    assert pipeline.papermill("3_gate", tiny, run, "-p", "repeat", "3").returncode == 0
    sealed_as_stop(run, "params_drift")


def test_the_package_changes_between_stages(tiny: Path, run_by_papermill: Run, tmp_path: Path) -> None:
    """A file of the package that changes between stages 2 and 3, by a comment, is a harness drift."""
    checkout = pipeline.copied_checkout(tmp_path / "checkout")
    with (checkout / "toppgate/figures.py").open("a") as file:
        file.write("# changed\n")
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    assert pipeline.papermill("3_gate", tiny, run, checkout=checkout).returncode == 0
    sealed_as_stop(run, "harness_drift")


def exchanged(run: Path, one: str, other: str) -> None:
    """Exchange two files of a run."""
    first, second = (run / one).read_bytes(), (run / other).read_bytes()
    (run / one).write_bytes(second)
    (run / other).write_bytes(first)


def swapped(run: Path) -> None:
    """Exchange what stock and patch delivered for a case, with what stage 2 said of it."""
    exchanged(run, "outputs/control.stock.safetensors", "outputs/control.patch.safetensors")

    def records(executed: Any) -> None:
        stock, patch = (executed["sides"][side]["cases"] for side in ("stock", "patch"))
        stock["control"], patch["control"] = patch["control"], stock["control"]

    pipeline.edit(run, "2_execute.json", records)


def rewritten(run: Path, *, repeats: int = 2, more: bool = False, padding: bool = False) -> None:
    """Write the patch's output of a case anew, with its digest: other repeats, one more token kept, other layout."""
    path = run / "outputs/control.patch.safetensors"
    case = next(case for case in params.read(run / "params.yml").cases if case.id == "control")
    orders = inputs.held(run, case, retained=True).orders
    masks, binding = outputs.from_bytes(path.read_bytes(), orders, ""), outputs.binding_of(path.read_bytes(), "")
    binding["repeats"] = binding["repeats"][:repeats]
    masks.kept[0, orders[0][masks.kept[0].sum()]] |= more
    data = outputs.to_bytes(masks, orders, binding)
    if padding:  # the same tensors, said with eight spaces more
        size = int.from_bytes(data[:8], "little")
        data = (size + 8).to_bytes(8, "little") + data[8 : 8 + size] + b" " * 8 + data[8 + size :]
    path.write_bytes(data)

    def record(executed: Any) -> None:
        found = executed["sides"]["patch"]["cases"]["control"]
        found.update(repeats=binding["repeats"], **({} if padding else {"file": digests.sha256(data)}))

    pipeline.edit(run, "2_execute.json", record)


def without(*keys: str) -> Callable[[Path], None]:
    """Return the removal of something from stage 2's result."""

    def removed(run: Path) -> None:
        def remove(found: Any) -> None:
            for key in keys[:-1]:
                found = found[key]
            del found[keys[-1]]

        pipeline.edit(run, "2_execute.json", remove)

    return removed


#: What is done to a run after stage 2, and the code of the first stop.
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "sides swapped": (
        lambda run: exchanged(run, *(f"outputs/control.{side}.safetensors" for side in ("stock", "patch"))),
        "output_unreadable",
    ),
    "sides swapped with their records": (swapped, "output_unreadable"),
    "cases swapped": (
        lambda run: exchanged(run, *(f"outputs/{case}.patch.safetensors" for case in ("control", "forced"))),
        "output_unreadable",
    ),
    "one token more": (lambda run: rewritten(run, more=True), "output_unreadable"),
    "another layout": (lambda run: rewritten(run, padding=True), "output_unreadable"),
    "one repeat less": (lambda run: rewritten(run, repeats=1), "output_nondeterministic"),
    "output deleted": (lambda run: (run / "outputs/control.patch.safetensors").unlink(), "output_missing"),
    "record deleted": (without("sides", "patch", "cases", "control"), "output_missing"),
    "side deleted": (without("sides", "patch"), "output_missing"),
    "environments deleted": (without("sides", "patch", "environments"), "environment_drift"),
    "source deleted": (without("sides", "patch", "source"), "source_drift"),
    "run deleted": (without("run"), "output_unreadable"),
    "harness deleted": (without("harness"), "harness_drift"),
    "params deleted": (without("params"), "params_drift"),
    "results swapped": (lambda run: exchanged(run, "1_capture.json", "2_execute.json"), "input_missing"),
    "no capture": (lambda run: (run / "1_capture.json").unlink(), "input_missing"),
    "half a result": (lambda run: (run / "2_execute.json").write_text("{"), "output_missing"),
    "harness copy changed": (lambda run: (run / "harness/toppgate/gate.py").write_text(""), "harness_drift"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_evidence_is_damaged_between_stages(tiny: Path, run_by_papermill: Run, tmp_path: Path, name: str) -> None:
    """What stage 2 left is exchanged, deleted, or written anew: the gate stops on it, and says what it is."""
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    DAMAGES[name][0](run)
    judged = pipeline.judged(tiny, run)
    assert (judged.verdict["verdict"], judged.verdict["first_stop"]["code"]) == ("STOP", DAMAGES[name][1])


def test_outputs_of_another_run(tiny: Path, run_by_papermill: Run, run_by_command: Run, tmp_path: Path) -> None:
    """What another run over the same params delivered, whole, is not this run's."""
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    shutil.copy(run_by_command[0] / "2_execute.json", run)
    shutil.copytree(run_by_command[0] / "outputs", run / "outputs", dirs_exist_ok=True)
    stops = pipeline.judged(tiny, run).verdict["stops"]
    assert (stops[0]["code"], stops[0]["case"]) == ("output_unreadable", None)
