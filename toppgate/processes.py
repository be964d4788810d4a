"""Worker processes: started in their own group, read line by line, killed with everything they started."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from toppgate import leash

#: A process is marked by a variable of its own, so that whatever it starts is found, even outside its process group.
MARK = "TOPPGATE_MARK_"


class Process:
    """A child in its own process group, with standard error going to a file; killed with everything it started.

    It does not outlive the thread that started it.  What left its group is found by its mark, or by its parents if it
    wiped its environment; only what did both, and lost its parents too, is not found.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        stdout: int,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        self._mark = MARK + uuid.uuid4().hex
        self._log = log
        with log.open("ab") as errors:
            self.child = subprocess.Popen(
                leash.command(*command),
                env={**environment, self._mark: "1"},
                stdin=stdin,
                stdout=stdout,
                stderr=errors,
                start_new_session=True,
            )

    def kill(self) -> None:
        """Kill the process group, every descendant, and all that carries the mark; return when none is left."""
        family = self._descendants()  # looked up first: what dies takes its place in the tree with it
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child.pid, signal.SIGKILL)
        while left := [process for process in {*family, *self._marked()} if _runs(process)]:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, timeout=1)
        self.child.wait()

    def end(self, grace: float) -> str | None:
        """Give the process ``grace`` seconds to end, kill what is left, and say how it ended; None for status 0."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(timeout=grace)
        status = self.child.poll()
        self.kill()
        if status == 0:
            return None
        if status is None:
            return "it did not end"
        words = self._last_words()
        if status > 0:
            return f"exit status {status}: {words}"
        return f"signal {signal.Signals(-status).name}; last on standard error: {words}"  # need not be about the signal

    def _descendants(self) -> list[psutil.Process]:
        if self.child.poll() is not None:
            return []  # its number may be another's by now
        try:
            return list(psutil.Process(self.child.pid).children(recursive=True))
        except psutil.Error:
            return []

    def _marked(self) -> Iterator[psutil.Process]:
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if self._mark in process.environ():
                    yield process

    def _last_words(self) -> str:
        """Return how the last line begins that the process wrote to standard error: that names the exception."""
        try:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1][:300] if lines else "no message"


def _runs(process: psutil.Process) -> bool:
    """A zombie is dead: it waits for its parent to notice, which may be nobody's business."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


class Worker(Process):
    """A Python module that reports JSON events, one a line, on standard output; ``asked``, it is also told some."""

    def __init__(
        self, module: str, argument: Path, environment: Mapping[str, str], log: Path, *, asked: bool = False
    ) -> None:
        command = [sys.executable, "-P", "-m", module, str(argument)]
        stdin = subprocess.PIPE if asked else subprocess.DEVNULL
        super().__init__(command, environment, log, subprocess.PIPE, stdin)
        self._events: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        if self.child.stdout is not None:
            with self.child.stdout as stream:
                for line in stream:
                    self._events.put(line.decode("utf-8", "replace"))
        self._events.put(None)

    def ask(self, **request: Any) -> None:
        """Write one JSON object to the process's standard input.  Raises ``OSError`` where it no longer reads."""
        if self.child.stdin is not None:
            self.child.stdin.write(json.dumps(request).encode() + b"\n")
            self.child.stdin.flush()

    def kill(self) -> None:
        """Kill it as ``Process`` does, and close what it was asked through."""
        super().kill()
        if self.child.stdin is not None:
            with contextlib.suppress(OSError):
                self.child.stdin.close()

    def event(self, deadline: float) -> dict[str, Any] | None:
        """Return the next event, or None once the process has closed its output.

        Raises ``TimeoutError`` when ``time.monotonic()`` passes ``deadline`` first.  A line that is no JSON object, as
        foreign code might print, is no event and is passed over.
        """
        while True:
            try:
                line = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError from None
            if line is None:
                return None
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict):
                    return event
