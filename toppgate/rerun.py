"""Rows again: a kernel text in a process that stays, on Triton's interpreter, whatever the run's device was.

What comes of it explains a row and is evidence of nothing: it is exploratory, and nothing of it enters a run.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from toppgate import host, inputs, outputs, processes, source
from toppgate.errors import RunError
from toppgate.fp32 import Float32
from toppgate.gate import Output
from toppgate.inputs import Inputs
from toppgate.trace import Layout, Workspace

#: Seconds for one row, and for the process to import torch and the host before its first.
SECONDS: Final = 120

#: Seconds for a process that closed its output to end, before it is killed.
GRACE: Final = 10


@dataclass(frozen=True, eq=False)
class Ran:
    """One row's output, and the workspace that it left."""

    output: Output
    workspace: Workspace


class Kernel:
    """A kernel text in a process of its own, ready for one launch after another; a context manager.

    The process does not outlive the thread that made it.  Raises ``RunError`` where the text has no split kernel, or
    the process dies.  Side effects: the process, and a temporary directory.
    """

    def __init__(self, name: str, text: bytes, provided: host.Host, home: Path | None = None) -> None:
        self.name = name
        self.plan = source.plan(text)
        self._scratch = tempfile.TemporaryDirectory(prefix="toppgate-", dir=home)
        self._directory = Path(self._scratch.name)
        file, job = self._directory / "topk_topp_triton.py", self._directory / "job.json"
        file.write_bytes(text)
        job.write_text(json.dumps({"source": str(file), "host": None if provided.path is None else str(provided.path)}))
        environment = {**os.environ, "TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
        environment["TRITON_CACHE_DIR"] = str(self._directory / "triton")
        log = self._directory / "stderr.txt"
        self._worker = processes.Worker("toppgate.workspace", job, environment, log, asked=True)
        self._ready = False

    def run(self, logits: Float32, p: Float32, slices: int) -> list[Ran]:
        """Mask rows, float32 [B, V], p float32 [B], each in ``slices`` slices, or more where the text's plan wants so.

        Raises ``RunError``.
        """
        if not self._ready:
            self._expect("ready")
            self._ready = True
        given, taken = self._directory / "input.safetensors", self._directory / "output.safetensors"
        inputs.save(Inputs(np.ascontiguousarray(logits), p), given)
        try:
            # The plan doubles the slices as long as all of them have a compute unit.
            self._worker.ask(input=str(given), output=str(taken), compute_units=slices * len(logits))
        except OSError:
            raise RunError(f"{self.name}: the process is gone: {self._worker.end(GRACE)}") from None
        layout = Layout(**self._expect("ran")["layout"])
        found = inputs.load(taken.read_bytes(), taken.name)
        masks = outputs.compare(logits, found["masked"])
        workspaces = Workspace.of(found["stats"], found["parts"], len(logits), layout)
        each = enumerate(workspaces)
        return [Ran(Output(masks.kept[row], masks.altered(row), masks.nan(row)), left) for row, left in each]

    def _expect(self, event: str) -> dict[str, Any]:
        try:
            found = self._worker.event(time.monotonic() + SECONDS)
        except TimeoutError:
            self._worker.kill()
            raise RunError(f"{self.name}: nothing came of the row within {SECONDS} s") from None
        if found is None or found.get("event") != event:
            raise RunError(f"{self.name}: cannot be run again: {self._worker.end(GRACE)}")
        return found

    def close(self) -> None:
        """End the process and remove what it left."""
        self._worker.kill()
        self._scratch.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def started(texts: Mapping[str, bytes], provided: host.Host, home: Path | None = None) -> Iterator[dict[str, Kernel]]:
    """Start kernels by name, and end them all; what is temporary lies in ``home``, or where the machine wants it."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Kernel(name, text, provided, home)) for name, text in texts.items()}
