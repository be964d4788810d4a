"""CUDA only, in a further process after the evidence is complete: launch times, and each row alone.

Started as ``python -P -m toppgate.timing JOB``.  Every output is discarded: nothing here is evidence (contract,
section 4).  Stock and patch are timed in turn, with CUDA events, so that a drifting clock touches both alike.
"""

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toppgate import inputs, sourceonly
from toppgate.kernels import Kernel, load, split_kernel
from toppgate.worker import environment, say, tensor

#: Timed calls of each side a case; the first few, which load binaries, are not counted.
WARM, TIMED = 3, 15


def main(job_path: str) -> None:
    """Measure the job's cases and report one event each."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.loads(Path(job_path).read_text())
    sourceonly.require("vllm")
    if job["host"] is not None:
        sys.path.insert(0, job["host"])
    sources = {side: Path(path) for side, path in job["sources"].items()}
    sides = {side: split_kernel(load(path.read_text("utf-8"), path), "cuda") for side, path in sources.items()}
    say(events, event="ready", environment=environment(job))
    for case in job["cases"]:
        say(events, event="start", case=case["id"])
        held = inputs.from_bytes(Path(case["input"]).read_bytes(), case["input"])
        found = {"microseconds": _interleaved(sides, held, case), "alone": _alone(sides["patch"], held, case)}
        say(events, event="done", case=case["id"], **found)
    if job["cases"]:
        say(events, event="profile", kernels=_profile(sides["patch"], held, case))


def _interleaved(sides: dict[str, Kernel], held: inputs.Inputs, case: dict[str, Any]) -> dict[str, float]:
    """Return the median time of one call, microseconds, of each side; copies are outside the timed region."""
    times: dict[str, list[float]] = {side: [] for side in sides}
    logits, p = tensor(held.logits, "cuda"), tensor(held.p, "cuda")
    for turn in range(WARM + TIMED):
        for side, run in sides.items():
            fresh = logits.clone()
            torch.cuda.synchronize()
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            run(fresh, p, case)
            stop.record()
            torch.cuda.synchronize()
            if turn >= WARM:
                times[side].append(start.elapsed_time(stop) * 1000)
    return {side: round(statistics.median(taken), 1) for side, taken in times.items()}


def _alone(run: Kernel, held: inputs.Inputs, case: dict[str, Any]) -> list[bool]:
    """Return, for each row, whether the patch masks it alone as it does in its batch."""
    together = _masked(run, held.logits, held.p, case)
    each = (_masked(run, held.logits[r : r + 1], held.p[r : r + 1], case) for r in range(len(held.p)))
    return [bool(np.array_equal(alone[0], row)) for alone, row in zip(each, together, strict=True)]


def _masked(run: Kernel, logits: Any, p: Any, case: dict[str, Any]) -> Any:
    return np.isneginf(run(tensor(logits, "cuda"), tensor(p, "cuda"), case).cpu().numpy())


def _profile(run: Kernel, held: inputs.Inputs, case: dict[str, Any]) -> list[str] | None:
    """Return the device kernels that torch's profiler saw in one call, in order of start; None where it has none."""
    logits, p = tensor(held.logits, "cuda"), tensor(held.p, "cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        run(logits, p, case)
    kernels = [event for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in sorted(kernels, key=lambda event: event.time_range.start)] or None


if __name__ == "__main__":
    main(sys.argv[1])
