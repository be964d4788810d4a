"""Worker processes end with everything they started, however they try to stay."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from toppgate import progress
from toppgate.processes import Worker

Start = Callable[[str], Worker]

#: Generous, for a busy machine; nothing waits for it unless something is wrong.
PATIENCE = 120.0

#: A worker starts children in the ways below, says their process ids, and hangs; it ignores what can be ignored.
HANGS = """
import json, os, signal, subprocess, sys, time
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
sleep = [sys.executable, "-c", "import time; time.sleep(1000)"]
started = {
    "in the group": subprocess.Popen(sleep),
    "in a session of its own": subprocess.Popen(sleep, start_new_session=True),
    "without the mark": subprocess.Popen(sleep, start_new_session=True, env={}),
    "stopped": subprocess.Popen(sleep, start_new_session=True),
}
os.kill(started["stopped"].pid, signal.SIGSTOP)
pids = {how: child.pid for how, child in started.items()}
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    if (orphan := os.fork()) == 0:
        time.sleep(1000)
    os.write(writing, str(orphan).encode())
    os._exit(0)
os.wait()
pids["an orphan in a session of its own"] = int(os.read(reading, 20))
print(json.dumps({"event": "started", "pids": pids}), flush=True)
time.sleep(1000)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts a worker from the text of its module; what it started is killed in the end."""
    workers = []

    def started(text: str) -> Worker:
        (tmp_path / "program.py").write_text(text)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        workers.append(Worker("program", tmp_path / "argument", environment, tmp_path / "log"))
        return workers[-1]

    yield started
    for worker in workers:
        worker.kill()


def deadline() -> float:
    """Return the moment at which a test gives up."""
    return time.monotonic() + PATIENCE


def running(pid: int) -> bool:
    """Return whether a process is there and is no zombie."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_hanging_worker_is_killed_with_everything_it_started(start: Start) -> None:
    """Children in and out of the group, orphaned, stopped or unmarked are gone when ``kill`` returns."""
    worker = start(HANGS)
    event = worker.event(deadline())
    assert event is not None
    assert len(event["pids"]) == 5
    assert all(map(running, event["pids"].values()))
    worker.kill()
    assert [how for how, pid in event["pids"].items() if running(pid)] == []
    assert not running(worker.child.pid)


@pytest.mark.parametrize(
    ("last", "ending"),
    [
        ("pass", None),
        ("sys.exit('out of luck')", "exit status 1: out of luck"),
        ("sys.exit('torch.OutOfMemoryError' + 500 * '.')", "exit status 1: torch.OutOfMemoryError" + 278 * "."),
        ("os.kill(os.getpid(), signal.SIGKILL)", "signal SIGKILL; last on standard error: last words"),
        ("ctypes.string_at(0)", "signal SIGSEGV; last on standard error: last words"),
        ("time.sleep(1000)", "it did not end"),
    ],
)
def test_how_a_worker_ended_is_said(start: Start, last: str, ending: str | None) -> None:
    """Status, signal and the last line on standard error; None only for exit status 0."""
    said = "import ctypes, os, signal, sys, time\nprint('last words', file=sys.stderr, flush=True)\n"
    worker = start(f"{said}print('{{}}', flush=True)\n{last}\n")
    assert worker.event(deadline()) == {}
    assert worker.end(grace=1 if ending == "it did not end" else PATIENCE) == ending
    assert not running(worker.child.pid)


def test_what_a_worker_left_behind_is_killed_when_it_ends(start: Start) -> None:
    """A child that outlives its parent by leaving the group does not outlive ``end``."""
    worker = start(
        "import json, subprocess, sys\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'], start_new_session=True)\n"
        "print(json.dumps({'pid': child.pid}), flush=True)\n"
    )
    event = worker.event(deadline())
    assert event is not None
    worker.child.wait(PATIENCE)
    assert running(event["pid"])
    assert worker.end(grace=0) is None
    assert not running(event["pid"])


def test_only_json_objects_are_events(start: Start) -> None:
    """What foreign code prints is passed over; the end of output is None; a late event is a ``TimeoutError``."""
    worker = start(
        "import sys\nprint('warning: {', '[1]', '3', 'null', b'\\xff', sep='\\n')\n"
        "print('{\"event\": 1}', flush=True)\nsys.stdin.read()\n"
    )
    assert worker.event(deadline()) == {"event": 1}
    assert worker.event(deadline()) is None
    hanging = start("import time\ntime.sleep(1000)\n")
    with pytest.raises(TimeoutError):
        hanging.event(time.monotonic() + 0.01)


#: Starts a worker, says its process id, and waits to be killed.
RUNNER = """
import os, sys, time
from pathlib import Path
from toppgate.processes import Worker
here = Path(sys.argv[1])
worker = Worker("program", here, {**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])}, here / "log")
print(worker.event(time.monotonic() + 1000)["pid"], flush=True)
time.sleep(1000)
"""


def test_a_worker_does_not_outlive_its_runner(tmp_path: Path) -> None:
    """A runner that is killed cannot clean up; its workers are killed with it."""
    (tmp_path / "program.py").write_text(
        "import json, os, time\nprint(json.dumps({'pid': os.getpid()}), flush=True)\ntime.sleep(1000)\n"
    )
    runner = subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path)], stdout=subprocess.PIPE)
    assert runner.stdout is not None
    worker = psutil.Process(int(runner.stdout.readline()))
    assert running(worker.pid)
    runner.kill()
    runner.communicate()
    psutil.wait_procs([worker], timeout=PATIENCE)
    assert not running(worker.pid)


def test_a_command_whose_parent_is_gone_does_not_start() -> None:
    """Between fork and prctl the parent may have died; then nothing is run."""
    orphan = [sys.executable, "-P", "-m", "toppgate.leash", str(2**22 + 1), sys.executable, "-c", "print('ran')"]
    done = subprocess.run(orphan, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "the process that started this one is gone\n"


def test_what_processes_say_is_told_by_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of a child, in its order, soon or at the end; and whoever watched before watches again."""
    monkeypatch.setenv(progress.VARIABLE, "before")
    lines: list[str] = []
    said = "from toppgate import progress\nfor number in range(3): progress.say(f'line {number}')"
    with progress.told(lines.append):
        subprocess.run([sys.executable, "-c", said], check=True)
        progress.say("mine")
    assert lines == ["line 0", "line 1", "line 2", "mine"]
    assert os.environ[progress.VARIABLE] == "before"
