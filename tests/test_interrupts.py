"""A run that is interrupted at any moment leaves nothing that counts as a run, and nothing that runs.

The moments are drawn from a seed over the time that an uninterrupted run takes here; what must hold does not depend on
what they hit.
"""

import os
import random
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pipeline
import psutil
import pytest

from toppgate.errors import RunError
from toppgate.verify import verify

Run = tuple[Path, subprocess.CompletedProcess[str]]

#: How often a run is interrupted in one session; a multiple of 3 gives each signal its share.
MOMENTS = int(os.environ.get("TOPPGATE_TEST_INTERRUPTS", "6"))

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)

#: Generous, for a busy machine; nothing waits for it unless something is wrong.
PATIENCE = 120.0


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Let the runs hear SIGINT: a shell has what it starts in the background ignore it, and a child inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def verified(directory: Path) -> bool:
    """Return whether ``verify`` takes a directory for a run at all."""
    try:
        verify(directory)
    except RunError:
        return False
    return True


def interrupted(path: Path, out: Path, moment: float, number: signal.Signals) -> tuple[int, str]:
    """Run, send a signal after ``moment`` seconds, and return exit status and standard error once all is over."""
    mine = f"TOPPGATE_TEST_{uuid.uuid4().hex}"
    command = [sys.executable, "-m", "toppgate", "run", str(path), "--out", str(out)]
    environment = pipeline.environment(mark=mine)
    with subprocess.Popen(
        command, cwd=pipeline.ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            run.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            run.send_signal(number)
        _, said = run.communicate(timeout=PATIENCE)
    left = pipeline.living(mine)
    if number is signal.SIGKILL:  # a killed runner cleans up nothing: what it started notices by itself
        _, left = psutil.wait_procs(left, timeout=PATIENCE)
    assert left == []
    return run.returncode, said


def test_an_interrupted_run_leaves_nothing_behind(tiny: Path, run_by_command: Run, tmp_path: Path) -> None:
    """Whatever the signal and the moment: no directory verifies, no process is left, and the next run works."""
    whole = run_by_command[0]
    seconds = 2 + (whole / "receipt.json").stat().st_mtime - (whole / "params.yml").stat().st_mtime
    draw = random.Random(20)  # noqa: S311 - a reproducible draw, no secret
    for turn in range(MOMENTS):
        number, moment = SIGNALS[turn % 3], draw.uniform(0, seconds)
        out = tmp_path / str(turn) / "run"
        status, said = interrupted(tiny, out, moment, number)
        if status == 0 or out.exists():
            assert verify(out).difference is None  # it was sealed before the signal came
            continue
        left = [] if not out.parent.exists() else list(out.parent.iterdir())
        assert [directory for directory in left if verified(directory)] == []
        if number is not signal.SIGKILL:
            assert left == []
            assert "Traceback" not in said or status in (-number, 130)  # Python itself was still starting
    again = out.with_name("again")  # beside what the last one left, be it whole
    done = pipeline.toppgate("run", tiny, "--out", again)
    assert done.returncode == 0
    assert verify(again).difference is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_says_so(tiny: Path, tmp_path: Path, number: signal.Signals) -> None:
    """Once a stage is running, an interrupt is one line and exit status 2, and the directory is gone."""
    out = tmp_path / "runs/run"
    command = [sys.executable, "-m", "toppgate", "run", str(tiny), "--out", str(out)]
    with subprocess.Popen(
        command, cwd=pipeline.ROOT, env=pipeline.environment(), stderr=subprocess.PIPE, text=True
    ) as run:
        while not list(tmp_path.glob("runs/run.partial-*/scratch/1_capture.log")):
            assert run.poll() is None
        run.send_signal(number)
        _, said = run.communicate(timeout=PATIENCE)
    assert (run.returncode, said.strip()) == (2, "toppgate: interrupted; nothing was left that counts as a run")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_killed_hunt_leaves_no_process(tmp_path: Path) -> None:
    """The engine's processes notice that the hunt is gone, though nobody told them, and end with what they started."""
    mine = f"TOPPGATE_TEST_{uuid.uuid4().hex}"
    path = pipeline.freeze_draft(tmp_path / "p.yml", pipeline.draft(pipeline.control()))
    command = [sys.executable, "-m", "toppgate", "hunt", str(path), "--rows", "100000", "--workers", "2"]
    with subprocess.Popen([*command, "--out", str(tmp_path / "out")], env=pipeline.environment(mark=mine)) as hunt:
        while sum("toppgate.hunting" in " ".join(each.cmdline()) for each in pipeline.living(mine)) < 2:
            assert hunt.poll() is None
        hunt.kill()
    _, left = psutil.wait_procs(pipeline.living(mine), timeout=PATIENCE)
    assert left == []
