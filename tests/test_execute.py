"""Stage 2's parent and child against kernel files that are no kernels at all, so that a worker starts in a second."""

from pathlib import Path
from typing import Any

import pipeline
import pytest

from toppgate import execute, params
from toppgate.stage import Stop

#: Keeps everything, launches nothing, prints what looks like the worker's own events, and changes one case's shape.
TALKATIVE = """
print('{"event": "done", "case": "second"}', flush=True)


def _apply_topp_split(logits, k, p, mask_value, num_sm):
    print('{"event": "done", "case": "first"}\\\\n[]\\\\nnull', flush=True)
    if logits.shape[1] == 9:
        logits.resize_(1, 8)
"""

Records = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Return the run directory and the stage 2 result of three cases: stock talks, the patch cannot be imported."""
    home = tmp_path_factory.mktemp("execute")
    (home / "stock.py").write_text(TALKATIVE)
    (home / "patch.py").write_text(
        "import warnings\nwarnings.simplefilter('always')\nraise RuntimeError('no kernel today')\n"
    )
    sides = {side: {"kind": "file", "path": str(home / f"{side}.py")} for side in execute.SIDES}
    lengths = {"first": 8, "second": 9, "third": 10}
    cases = [pipeline.case(name, "ordinary", pipeline.normal(1, length)) for name, length in lengths.items()]
    path = pipeline.freeze_draft(home / "params.yml", pipeline.draft(*cases, **sides))
    directory = pipeline.captured(path, home / "run")
    return directory, pipeline.executed(path, directory)


def test_what_a_kernel_prints_is_no_event(run: tuple[Path, dict[str, Any]]) -> None:
    """Lines that a kernel file prints, on import and in each call, neither deliver a case nor disturb the next."""
    records: Records = run[1]["sides"]["stock"]["cases"]
    assert [records[name]["code"] for name in ("first", "third")] == ["pass", "pass"]
    assert records["first"]["launches"] == [[], []]
    assert len(set(records["first"]["repeats"])) == 1
    assert '{"event": "done", "case": "first"}' in (run[0] / "scratch/stock/stderr.txt").read_text()


def test_an_output_of_another_shape_is_refused(run: tuple[Path, dict[str, Any]]) -> None:
    """A kernel that leaves another shape behind delivers nothing; the case after it runs in a fresh worker."""
    side = run[1]["sides"]["stock"]
    assert side["cases"]["second"]["code"] == "worker_crashed"
    assert side["cases"]["second"]["detail"].endswith("the output is float32 [1, 8], expected float32 [1, 9]")
    assert len(side["environments"]) == 2


def test_a_worker_that_cannot_start_is_started_once(run: tuple[Path, dict[str, Any]]) -> None:
    """What dies before its first case would die again: every case gets the code, and the reason, at once."""
    side = run[1]["sides"]["patch"]
    assert [record["code"] for record in side["cases"].values()] == ["worker_crashed"] * 3
    assert {record["detail"] for record in side["cases"].values()} == {"exit status 1: RuntimeError: no kernel today"}
    assert len(list((run[0] / "scratch/patch").glob("job-*.json"))) == 1


def test_the_sort_reference_is_independent_of_both(run: tuple[Path, dict[str, Any]]) -> None:
    """The sort of vLLM runs in a worker of its own, from the host's text, whatever became of the kernels."""
    side = run[1]["sides"]["sort"]
    assert [record["code"] for record in side["cases"].values()] == ["pass"] * 3
    assert side["source"] not in {run[1]["sides"][name]["source"] for name in execute.SIDES}


def test_stage_2_needs_the_captured_inputs_of_its_own_params(tmp_path: Path, tiny: Path) -> None:
    """Case by case: what is missing, damaged or over a limit has its code before any worker starts."""
    directory = pipeline.captured(tiny, tmp_path / "run")
    checked = params.read(tiny)
    (directory / "inputs/forced.safetensors").unlink()
    (directory / "inputs/control.safetensors").write_bytes(b"no tensors")
    (directory / "inputs/ordinary.safetensors").write_bytes((directory / "inputs/probe.safetensors").read_bytes())
    found = {case.id: execute.check_input(directory, case, checked)[0] for case in checked.cases}
    assert found == {
        "forced": "input_missing",
        "control": "input_drift",
        "ordinary": "input_drift",
        "probe": "pass",
        "over": "limit_exceeded",
    }


def test_a_stop_on_entering_executes_nothing(tmp_path: Path, tiny: Path) -> None:
    """A stage that finds drift before it starts writes that down, and no kernel runs."""
    directory = pipeline.captured(tiny, tmp_path / "run")
    entered = execute.execute(pipeline.entered(tiny, directory).stopped(Stop("harness_drift", "for this test")))
    assert entered["stop"] == {"code": "harness_drift", "detail": "for this test"}
    assert entered["sides"] == {}
    assert not (directory / "outputs").exists()


def test_rows_with_a_stride(tmp_path: Path) -> None:
    """H21a and H21b of data/rows.json: the kernels mask rows stored with padding as they do the contiguous copy.

    One that takes the row's length for its stride reads the padding, and one that writes between the rows is found out,
    although no row shows it.
    """
    rows = {
        "kind": "literal",
        "rows": [[{"linspace": [str(10 + r / 1000), str(r / 1000 - 10), 4096]}] for r in (0, 15)],
    }
    cases = [pipeline.case(name, "ordinary", rows, "0.95", stride=4104) for name in ("right", "misread", "spilled")]
    wrong = pipeline.kernel(tmp_path / "patch.py", pipeline.PATCH, behind=STRIDES)
    path = pipeline.freeze_draft(tmp_path / "params.yml", pipeline.draft(*cases, patch=wrong))
    directory = pipeline.captured(path, tmp_path / "run")
    records = pipeline.executed(path, directory)["sides"]["patch"]["cases"]
    assert [records[name]["code"] for name in ("right", "misread", "spilled")] == ["pass", "pass", "output_altered"]
    assert records["spilled"]["detail"] == "values between the rows were written"
    found = {(row["case"], row["row"]): row for row in pipeline.judged(path, directory).rows}
    assert [found["right", row]["kept_oracle"] for row in (0, 1)] == [614, 614]
    assert [found["right", row]["code"] for row in (0, 1)] == ["pass", "pass"]
    assert found["misread", 1]["code"] == "patch_hole"
    assert {found["spilled", row]["code"] for row in (0, 1)} == {"output_altered"}


#: Leaves the first case as it is; takes the second's rows for contiguous; writes behind a row of the third.
STRIDES = """
_split = _apply_topp_split
_calls = []


def _apply_topp_split(logits, k, p, mask_value, num_sm):
    _calls.append(None)
    case = (len(_calls) - 1) // 2
    if case == 1:
        whole = torch.as_strided(logits, logits.shape, (logits.shape[1], 1))
        _split(whole, k, p, mask_value, num_sm)
        return
    _split(logits, k, p, mask_value, num_sm)
    if case == 2:
        torch.as_strided(logits, (1,), (1,), logits.shape[1]).fill_(0.0)
"""
