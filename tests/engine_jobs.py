"""Jobs for engines: functions of a module, which worker processes import, and the frozen record that they take."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Job:
    """One job of several: its number, how many there are, and a directory that all of them see."""

    number: int
    together: int
    home: Path


def met(job: Job) -> tuple[int, str]:
    """Return number and what a child process prints, once as many jobs as are to run together have begun."""
    (job.home / f"{job.number}").touch()
    deadline = time.monotonic() + 60
    while len(list(job.home.iterdir())) < job.together:
        if time.monotonic() > deadline:
            raise TimeoutError(f"job {job.number} met nobody")
        time.sleep(0.01)
    command = [sys.executable, "-c", f"print({job.number} ** 2)"]
    return job.number, subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def killed_once(job: Job) -> int:
    """Return the number; the worker that is first to do job 2 is killed."""
    if job.number == 2 and not (job.home / "killed").exists():
        (job.home / "killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return job.number


def killed_always(job: Job) -> int:
    """Return the number; whichever worker does job 2 is killed."""
    if job.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return job.number
