"""The pipeline whole, on real kernels: through ``toppgate run`` and through bare papermill, then ``verify``."""

import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipeline import ROOT, environment, papermill, toppgate, unsealed

from toppgate import codes, harness, notebooks, params

Run = tuple[Path, subprocess.CompletedProcess[str]]

FILES = {
    "params.yml",
    *("1_capture.json", "1_capture.ipynb", "1_capture.html"),
    *("2_execute.json", "2_execute.ipynb", "2_execute.html"),
    *("3_gate.ipynb", "3_gate.html", "rows.jsonl", "verdict.json", "summary.md", "receipt.json"),
}


def files(directory: Path) -> set[str]:
    """Return the names of all files of a run, without its inputs, outputs and harness copy."""
    names = {path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()}
    return {name for name in names if name.split("/")[0] not in {"inputs", "outputs", "harness"}}


def test_run_passes_and_says_so(run_by_command: Run) -> None:
    """A right patch on a tiny matrix is a PASS: exit status 0, and one JSON object on standard output."""
    directory, done = run_by_command
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert said["verdict"] == "PASS"
    assert said["first_stop"] is None
    assert said["stops"] == []
    counts = {"rows": 7, "forced": 2, "control": 2, "ordinary": 3, "probe": 2, "passed": 7, "stopped": 0}
    assert said["counts"] == counts
    assert said["run_dir"] == str(directory)
    assert len(said["receipt_sha256"]) == 64


def test_a_run_directory_holds_what_it_should(tiny: Path, run_by_command: Run) -> None:
    """Params byte for byte, each stage's result and page, inputs and outputs of every case, the harness copy."""
    directory, _ = run_by_command
    assert files(directory) == FILES
    assert (directory / "params.yml").read_bytes() == tiny.read_bytes()
    cases = [case.id for case in params.read(tiny).cases if case.id != "over"]  # which is over a limit, so never made
    assert {path.stem for path in (directory / "inputs").iterdir()} == set(cases)
    sides = {f"{case}.{side}" for case in cases for side in ("stock", "patch", "sort")}
    assert {path.stem for path in (directory / "outputs").iterdir()} == sides
    assert harness.digest_of_copy(directory / "harness") == harness.digest()


def test_both_ways_of_calling_give_the_same_run(run_by_command: Run, run_by_papermill: Run) -> None:
    """Three bare papermill calls and ``seal`` give the rows, the verdict and the files that ``run`` gives."""
    (one, _), (other, done) = run_by_command, run_by_papermill
    assert done.returncode == 0
    assert json.loads(done.stdout)["verdict"] == "PASS"
    assert files(other) == FILES
    assert (one / "params.yml").read_bytes() == (other / "params.yml").read_bytes()
    assert (one / "rows.jsonl").read_bytes() == (other / "rows.jsonl").read_bytes()
    said, again = (json.loads((directory / "verdict.json").read_bytes()) for directory in (one, other))
    assert said.pop("run") != again.pop("run")
    assert said == again


def test_executed_notebooks_show_the_frozen_values(tiny: Path, run_by_papermill: Run) -> None:
    """The values that papermill injected are the frozen ones, to the last digit of every string."""
    for name in harness.STAGES:
        shown = notebooks.injected(run_by_papermill[0] / f"{name}.ipynb")
        assert shown == {**params.read(tiny).values(), "run_dir": "."}


def test_rows_say_what_both_kernels_did(run_by_command: Run) -> None:
    """Stock masks every token of a forced row, the patch keeps one; on the control both equal the oracle."""
    rows = [json.loads(line) for line in (run_by_command[0] / "rows.jsonl").read_text().splitlines()]
    by_role: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        by_role.setdefault(row["role"], []).append(row)
    assert [(row["kept_stock"], row["kept_patch"], row["stock_code"]) for row in by_role["forced"]] == [
        (0, 1, "forced_all_masked"),
        (0, 1, "forced_all_masked"),
    ]
    assert all(row["equal_stock"] and row["equal_patch"] for row in by_role["control"])
    assert [row["observed"] for row in by_role["probe"]] == ["nonfinite_logits", "limit_exceeded"]


def test_a_run_is_never_overwritten(tiny: Path, run_by_command: Run) -> None:
    """A second run into the same place is refused with exit status 2 before anything starts."""
    directory, _ = run_by_command
    before = (directory / "receipt.json").read_bytes()
    done = toppgate("run", tiny, "--out", directory)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"toppgate: {directory}: ")
    assert done.stderr.count("\n") == 1
    assert (directory / "receipt.json").read_bytes() == before
    assert [path for path in directory.parent.iterdir() if ".partial-" in path.name] == []


def test_verify_agrees_without_torch(run_by_command: Run, run_by_papermill: Run) -> None:
    """Both runs verify with exit status 0, in a process that never imports torch or Triton."""
    program = (
        "import sys; from toppgate import cli; sys.argv = ['toppgate', 'verify', '--json', sys.argv[1]]\n"
        "try: cli.main()\n"
        "finally: print(sorted({'torch', 'triton', 'papermill'} & sys.modules.keys()), file=sys.stderr)"
    )
    for directory, _ in (run_by_command, run_by_papermill):
        command = [sys.executable, "-c", program, str(directory)]
        done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "[]\n")
        said = json.loads(done.stdout)
        assert (said["agrees"], said["difference"], said["verdict"]) == (True, None, "PASS")


def test_a_wrong_patch_is_a_stop(stopped_run: Run) -> None:
    """With stock in the patch's place: exit status 1, the reason in words on the page; and it verifies."""
    directory, done = stopped_run
    assert (done.returncode, done.stderr) == (1, "")
    said = json.loads(done.stdout)
    assert said["verdict"] == "STOP"
    assert said["first_stop"] == {"case": "forced", "row": 0, "code": "forced_all_masked"}
    assert said["banners"][0] == "Defect not reproduced: stock passes every forced row, so a PASS shows no fix."
    assert files(directory) == FILES
    rows = [json.loads(line) for line in (directory / "rows.jsonl").read_text().splitlines()]
    assert [(row["code"], row["after_stop"]) for row in rows] == [
        ("forced_all_masked", False),
        ("forced_all_masked", True),
        ("pass", True),
        ("pass", True),
    ]
    page = html.unescape((directory / "3_gate.html").read_text())
    assert "■</span> STOP" in page
    assert page.count("<summary>Why row ") == 2
    summary = (directory / "summary.md").read_text()
    assert summary.startswith("### toppgate: STOP – tiny\n\nFirst stop: case forced, row 0: `forced_all_masked`. ")
    assert codes.SENTENCES["forced_all_masked"] in page
    assert toppgate("verify", directory).returncode == 0


def test_the_same_run_directory_gives_the_same_bytes(stopped_run: Run, tmp_path: Path) -> None:
    """Stage 3 executed and rendered twice from what stage 2 left: notebooks, pages and summary agree byte for byte."""
    (tmp_path / "params.yml").write_bytes((stopped_run[0] / "params.yml").read_bytes())
    copies = [unsealed(stopped_run[0], tmp_path / name) for name in ("one", "two")]
    for copy in copies:
        assert papermill("3_gate", tmp_path / "params.yml", copy).returncode == 0
        assert toppgate("seal", copy).returncode == 1
    names = sorted(path.name for path in copies[0].iterdir() if path.suffix in {".ipynb", ".html", ".md"})
    assert len(names) == 7
    one, two, first = ([(directory / name).read_bytes() for name in names] for directory in (*copies, stopped_run[0]))
    assert one == two == first
