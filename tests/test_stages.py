"""What papermill and a notebook kernel hide: each is provoked for real, and becomes a STOP that a reader cannot miss.

Most provocations edit a stage notebook in a copied checkout and run ``toppgate run`` there.  They take seconds each and
wait most of the time, so those that were asked for run two at a time.
"""

import ast
import html
import json
import re
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import pipeline
import pytest
from pipeline import edit_cell, edit_file

from toppgate import harness, notebooks
from toppgate.seal import seal
from toppgate.verify import verify

Run = tuple[Path, subprocess.CompletedProcess[str]]

#: The code cells of 1_capture: parameters, entering, capturing, showing.
ENTER, CAPTURE, SHOW = 1, 2, 3

KILL = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
STOP = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
THREAD = "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"
HANG = "import time\ntime.sleep(1000)"
STUBBORN = (
    "import signal, subprocess, sys, time\n"
    "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
    "time.sleep(1000)"
)


def cell(number: int, code: str, *tags: str) -> Callable[[Path], None]:
    """Return an edit: ``code`` in front of a code cell of 1_capture, and tags on it."""
    return lambda checkout: edit_cell(checkout, "1_capture", number, code, tags)


def hurried(edit: Callable[[Path], None]) -> Callable[[Path], None]:
    """Return an edit that also takes away the time that ``run`` allows on top of the frozen total."""

    def both(checkout: Path) -> None:
        edit(checkout)
        edit_file(checkout / "toppgate/run.py", "OVERHEAD_SECONDS = 600", "OVERHEAD_SECONDS = 0")

    return both


def dawdling(checkout: Path) -> None:
    """Have each cell take less than the total time, and all of them more."""
    for number in (ENTER, CAPTURE, SHOW):
        edit_cell(checkout, "1_capture", number, "import time\ntime.sleep(4)")


def untagged(checkout: Path) -> None:
    """Take the tag ``parameters`` away."""
    path = checkout / "notebooks/1_capture.ipynb"
    notebook = nbformat.read(path, as_version=4)
    for found in notebook.cells:
        found.metadata["tags"] = [tag for tag in found.metadata.get("tags", []) if tag != "parameters"]
    nbformat.write(notebook, path)


@dataclass(frozen=True)
class Provocation:
    """An edit of a checkout, the code of the STOP, and words of the banner.

    A hanging cell has none: on a busy machine the runner's own deadline may come before papermill's.
    """

    edit: Callable[[Path], None]
    code: str
    words: str


PROVOCATIONS = {
    "kernel killed at its start": Provocation(
        cell(ENTER, KILL),
        "worker_crashed",
        "papermill: exit status",
    ),
    "kernel killed at its end": Provocation(
        cell(SHOW, KILL),
        "worker_crashed",
        "papermill: exit status",
    ),
    "kernel faults": Provocation(cell(CAPTURE, "import ctypes\nctypes.string_at(0)"), "worker_crashed", "papermill: "),
    "cell hangs": Provocation(hurried(cell(CAPTURE, HANG)), "timeout", "was killed after "),
    "cell hangs, deaf, with a child in its own session": Provocation(
        hurried(cell(SHOW, STUBBORN)), "timeout", "was killed after "
    ),
    "the total time is over": Provocation(hurried(dawdling), "timeout", "was killed after "),
    "unknown kernel": Provocation(
        lambda checkout: edit_file(checkout / "toppgate/notebooks.py", '"-k", "python3"', '"-k", "no-such-kernel"'),
        "worker_crashed",
        "no-such-kernel",
    ),
    "cell exits with status 0": Provocation(cell(SHOW, "import sys\nsys.exit(0)"), "worker_crashed", "SystemExit"),
    "cell exits with status 0 before the stage's work": Provocation(
        cell(CAPTURE, "import sys\nsys.exit(0)"), "worker_crashed", "SystemExit"
    ),
    "kernel ends with status 0": Provocation(
        cell(CAPTURE, "import os\nos._exit(0)"), "worker_crashed", "papermill: exit status"
    ),
    "kernel is stopped": Provocation(
        hurried(cell(CAPTURE, "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)")),
        "timeout",
        "was killed after ",
    ),
    "cell interrupts itself": Provocation(cell(SHOW, "raise KeyboardInterrupt"), "worker_crashed", "papermill: "),
    "cell raises": Provocation(cell(SHOW, "raise RuntimeError('out of luck')"), "worker_crashed", "out of luck"),
    "tag raises-exception": Provocation(cell(SHOW, "", "raises-exception"), "worker_crashed", "raises-exception"),
    "tag skip-execution": Provocation(cell(SHOW, "", "skip-execution"), "worker_crashed", "skip-execution"),
    "no parameters tag": Provocation(untagged, "worker_crashed", "papermill: exit status 1"),
    "200,000 printed lines": Provocation(
        cell(CAPTURE, "for number in range(200_000): print(number)"), "worker_crashed", "wrote to stdout: 0 1 2 3"
    ),
    "a warning": Provocation(
        cell(CAPTURE, "import warnings\nwarnings.warn('beware')"), "worker_crashed", "wrote to stderr"
    ),
    "an exception in a thread": Provocation(
        cell(
            CAPTURE, "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()"
        ),
        "worker_crashed",
        "wrote to stderr",
    ),
}


@dataclass(frozen=True)
class Provoked:
    """What came of a provocation: the run, what the command said, and the processes that were left."""

    directory: Path
    done: subprocess.CompletedProcess[str]
    left: list[Any]


@pytest.fixture(scope="module")
def provoked(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Provoked]]]:
    """Run the provocations that were asked for, two at a time."""
    home = tmp_path_factory.mktemp("provoked")
    limits = {"total_seconds": 5}  # counts where the allowance on top is taken away
    path = pipeline.freeze_draft(home / "params.yml", pipeline.draft(pipeline.forced(), limits=limits))

    def provoke(name: str) -> Provoked:
        place, mine = home / name.replace(" ", "-"), f"TOPPGATE_TEST_{uuid.uuid4().hex}"
        checkout = pipeline.copied_checkout(place / "checkout")
        PROVOCATIONS[name].edit(checkout)
        done = pipeline.toppgate("run", path, "--out", place / "run", "--json", checkout=checkout, mark=mine)
        return Provoked(place / "run", done, pipeline.living(mine))

    asked = {item.callspec.params["name"] for item in request.session.items if "provoked" in item.fixturenames}  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(provoke, name) for name in asked}


@pytest.mark.parametrize("name", PROVOCATIONS)
def test_what_papermill_hides_is_a_stop(provoked: dict[str, Future[Provoked]], name: str) -> None:
    """Exit status 1, the right code first, a banner on every page from that stage on; the sealed STOP verifies."""
    found, wanted = provoked[name].result(), PROVOCATIONS[name]
    assert (found.done.returncode, found.done.stderr) == (1, "")
    said = json.loads(found.done.stdout)
    assert (said["verdict"], said["first_stop"]) == ("STOP", {"case": None, "row": None, "code": wanted.code})
    assert said["counts"]["passed"] == 0
    for stage in harness.STAGES:
        page = (found.directory / f"{stage}.html").read_text()
        banner = html.unescape(page.partition('role="alert"')[2].partition("</section>")[0])
        assert "STOP. Stage 1_capture did not finish: " in banner
        assert wanted.words in banner
        assert re.search(r"cell \d", banner) or not name.startswith(("kernel killed", "cell raises", "cell exits"))
    assert verify(found.directory).difference is None
    assert found.left == []


@pytest.mark.parametrize("name", ["cell raises"])
def test_the_partial_notebook_is_kept(provoked: dict[str, Future[Provoked]], name: str) -> None:
    """A stage that raised leaves its notebook as far as it came, with the traceback, and a page of it."""
    directory = provoked[name].result().directory
    notebook = nbformat.read(directory / "1_capture.ipynb", as_version=4)
    errors = [output.ename for found in notebook.cells for output in found.get("outputs", []) if "ename" in output]
    assert errors == ["RuntimeError"]
    assert "RuntimeError" in (directory / "1_capture.html").read_text()


@pytest.mark.parametrize("name", ["200,000 printed lines"])
def test_output_is_capped(provoked: dict[str, Future[Provoked]], name: str) -> None:
    """1.3 MB of printed lines are cut to their beginning, which says how much is missing."""
    directory = provoked[name].result().directory
    printed = sum(len(f"{number}\n") for number in range(200_000))
    for kind in ("ipynb", "html"):
        path = directory / f"1_capture.{kind}"
        assert path.stat().st_size < 200_000
        assert f"[{printed - notebooks.PRINTED} more characters were not kept]" in path.read_text()


def test_a_kernel_file_kills_the_notebook_kernel(tmp_path: Path) -> None:
    """A patch whose import kills the notebook kernel of stage 2: STOP, a banner from that stage on, nothing left."""
    lines = "import os, signal, time\nos.kill(os.getppid(), signal.SIGKILL)\ntime.sleep(1000)"
    patch = pipeline.kernel(tmp_path / "patch.py", pipeline.PATCH, behind=lines)
    path = pipeline.freeze_draft(tmp_path / "params.yml", pipeline.draft(pipeline.forced(), patch=patch))
    mine = f"TOPPGATE_TEST_{uuid.uuid4().hex}"
    done = pipeline.toppgate("run", path, "--out", tmp_path / "run", "--json", mark=mine)
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["first_stop"] == {"case": None, "row": None, "code": "worker_crashed"}
    pages = [(tmp_path / "run" / f"{stage}.html").read_text() for stage in harness.STAGES]
    assert ["STOP. Stage 2_execute did not finish: papermill" in page for page in pages] == [False, True, True]
    assert verify(tmp_path / "run").difference is None
    assert pipeline.living(mine) == []


def test_stage_2_runs_once(tiny: Path, run_by_papermill: Run, tmp_path: Path) -> None:
    """Outputs that were seen are not drawn again: a second stage 2 in the same run fails, and seals as a STOP."""
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (run / "outputs").iterdir()}
    done = pipeline.papermill("2_execute", tiny, run)
    assert done.returncode == 1
    assert "stage 2 has run here already" in done.stderr
    assert {path.name: path.read_bytes() for path in (run / "outputs").iterdir()} == before
    assert pipeline.papermill("3_gate", tiny, run).returncode == 0
    assert pipeline.toppgate("seal", run).returncode == 1


# ---------------------------------------------------------------------------------------------- executed, and edited


def edited(change: Callable[[Any], object]) -> Callable[[Path], None]:
    """Return an edit of a notebook as papermill left it."""

    def edit(path: Path) -> None:
        notebook = nbformat.read(path, as_version=4)
        change(notebook)
        nbformat.write(notebook, path)

    return edit


def last(notebook: Any) -> Any:
    """Return the cell that shows a stage's result."""
    return notebook.cells[-1]


def insert(notebook: Any, tags: list[str]) -> None:
    """Put one more executed cell behind the first."""
    more = nbformat.v4.new_code_cell("repeat = 3", execution_count=1, metadata={"tags": tags})
    notebook.cells.insert(1, more)


#: What is done to an executed notebook, and what its banner says then.
EDITED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a cell taken out": (edited(lambda notebook: notebook.cells.pop(-2)), "cells are not those of the stage notebook"),
    "a cell put in": (
        edited(lambda notebook: insert(notebook, [])),
        "cells are not those of the stage notebook",
    ),
    "values injected twice": (
        edited(lambda notebook: insert(notebook, ["injected-parameters"])),
        "there is not exactly one injected-parameters cell",
    ),
    "a cell rewritten": (
        edited(lambda notebook: last(notebook).update(source="None")),
        "cells are not those of the stage notebook",
    ),
    "never executed": (edited(lambda notebook: last(notebook).update(execution_count=None)), "was never executed"),
    "its result taken out": (edited(lambda notebook: last(notebook).update(outputs=[])), "has not shown its result"),
    "an exception on record": (
        edited(lambda notebook: notebook.metadata.update(papermill={"exception": True})),
        "papermill recorded an exception",
    ),
    "half a notebook": (lambda path: path.write_text(path.read_text()[:2000]), "the notebook cannot be read"),
    "no notebook in the file": (lambda path: path.write_text("{}"), "the notebook cannot be read"),
    "no file": (lambda path: path.unlink(), "the notebook was not executed"),
}


@pytest.mark.parametrize("name", EDITED)
def test_an_executed_notebook_that_was_edited(run_by_command: Run, tmp_path: Path, name: str) -> None:
    """What papermill finished, changed before seal: a STOP, a banner that says what, and a run that verifies."""
    run = Path(shutil.copytree(run_by_command[0], tmp_path / "run"))
    (run / "receipt.json").unlink()
    change, words = EDITED[name]
    change(run / "2_execute.ipynb")
    sealed = seal(run)
    assert sealed.verdict["verdict"] == "STOP"
    assert sealed.verdict["first_stop"] == {"case": None, "row": None, "code": "worker_crashed"}
    pages = [html.unescape((run / f"{stage}.html").read_text()) for stage in harness.STAGES]
    assert ["STOP. Stage 2_execute did not finish: " in page for page in pages] == [False, True, True]
    assert words in pages[1]
    assert verify(run).difference is None


# ---------------------------------------------------------------------------------------------- bare papermill


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("-p", "no_such_parameter", "1"), "unknown parameter 'no_such_parameter'"),
        (("-r", "compute_units", "4"), "compute_units"),
        (("-p", "compute_units", "1e1"), "compute_units"),
        (("-r", "run_dir", ""), "run_dir"),
    ],
)
def test_a_parameter_that_is_wrong(
    tiny: Path, run_by_papermill: Run, tmp_path: Path, more: tuple[str, ...], words: str
) -> None:
    """An unknown parameter, or one of another type, which papermill passes on, fails the stage: sealed, a STOP."""
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    done = pipeline.papermill("3_gate", tiny, run, *more)
    assert done.returncode == 1
    assert words in done.stderr
    sealed = pipeline.toppgate("seal", run, "--json")
    assert sealed.returncode == 1
    assert json.loads(sealed.stdout)["first_stop"]["code"] == "worker_crashed"
    assert "STOP. Stage 3_gate did not finish: cell " in html.unescape((run / "3_gate.html").read_text())
    assert verify(run).difference is None


def test_a_value_that_papermill_would_turn_into_a_string(tiny: Path, tmp_path: Path) -> None:
    """``1e1`` is a string to papermill and a number to YAML 1.2: such params are refused before anything starts."""
    path = tmp_path / "params.yml"
    path.write_text(tiny.read_text().replace("compute_units: 4\n", "compute_units: 1e1\n", 1))
    done = pipeline.toppgate("run", path, "--out", tmp_path / "run")
    assert (done.returncode, done.stdout) == (2, "")
    assert "compute_units" in done.stderr
    assert not (tmp_path / "run").exists()
    stage = pipeline.papermill("1_capture", path, tmp_path / "run")
    assert stage.returncode == 1
    assert "ParamsError: injected parameters: compute_units: got str '1e1'" in stage.stderr
    sealed = pipeline.toppgate("seal", tmp_path / "run")
    assert (sealed.returncode, sealed.stdout) == (2, "")


def test_a_verdict_changed_before_seal_does_not_pass(tiny: Path, run_by_papermill: Run, tmp_path: Path) -> None:
    """``seal`` judges what it seals: rows and a verdict that say otherwise are a STOP, whatever they say."""
    run = pipeline.unsealed(run_by_papermill[0], tmp_path / "run")
    outputs = [run / "outputs" / f"forced.{side}.safetensors" for side in ("stock", "patch")]
    pipeline.papermill("3_gate", tiny, run)
    for path in outputs:
        path.write_bytes(path.read_bytes()[:-1])
    sealed = pipeline.toppgate("seal", run, "--json")
    assert sealed.returncode == 1
    assert json.loads(sealed.stdout)["first_stop"]["code"] == "output_unreadable"
    assert "STOP. Stage 3_gate did not finish: rows.jsonl and verdict.json" in (run / "3_gate.html").read_text()
    assert verify(run).difference is None


# ---------------------------------------------------------------------------------------------- our own notebooks


@pytest.mark.parametrize("path", sorted((pipeline.ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.stem)
def test_our_notebooks_hide_nothing(path: Path) -> None:
    """No shell line, no thread, no process: papermill would not notice that they failed; no forbidden tag."""
    cells = [found for found in nbformat.read(path, as_version=4).cells if found.cell_type == "code"]
    for found in cells:
        tree = ast.parse(found.source)  # which a shell line or a magic is not
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        modules |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & {"get_ipython", "exec", "eval", "__import__"}
        assert not {name.split(".")[0] for name in modules} & {"threading", "subprocess", "os", "concurrent", "asyncio"}
        assert not set(found.metadata.get("tags", [])) & notebooks.FORBIDDEN_TAGS
