"""CUDA only, in a further process after the evidence is complete: launch times, and each row alone.

Started as ``python -P -m toppgate.timing JOB``.  Every output is discarded: nothing here is evidence (contract,
section 4).  Stock and patch are timed in turn, with CUDA events, so that a drifting clock touches both alike.
"""

import json
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toppgate import inputs, sourceonly
from toppgate.kernels import load
from toppgate.worker import environment, say, tensor

#: vLLM's public function: (logits, k, p) -> masked logits.
Masker = Callable[[Any, Any, Any], Any]

#: Timed calls of each side a case; the first few, which load binaries, are not counted.
WARM, TIMED = 3, 15


def main(job_path: str) -> None:
    """Measure the job's cases and report one event each; a call with k is no split call and is not measured."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.loads(Path(job_path).read_text())
    sourceonly.require("vllm")
    if job["host"] is not None:
        sys.path.insert(0, job["host"])
    sides = {side: _masker(Path(path)) for side, path in job["sources"].items()}
    say(events, event="ready", environment=environment(job))
    first = None
    for case in job["cases"]:
        if case["k"] is None:
            say(events, event="start", case=case["id"])
            held = inputs.from_bytes(Path(case["input"]).read_bytes(), case["input"])
            first = first or (case["id"], held)
            found = {"microseconds": _interleaved(sides, held), "alone": _alone(sides["patch"], held)}
            say(events, event="done", case=case["id"], **found)
    if first is not None:
        say(events, event="profile", profile={"case": first[0], "kernels": _profile(sides["patch"], first[1])})


def _masker(path: Path) -> Masker:
    masker: Masker = load(path.read_text(encoding="utf-8"), path).apply_top_k_top_p_triton
    return masker


def _interleaved(sides: dict[str, Masker], held: inputs.Inputs) -> dict[str, float]:
    """Return the median time of one call's kernels, microseconds, of each side.

    A call is recorded once as a CUDA graph and replayed, so the time is the GPU's and not the dispatcher's.
    """
    logits, p = tensor(held.logits, "cuda"), tensor(held.p, "cuda")
    replays = {side: _graph(run, logits, p) for side, run in sides.items()}
    times: dict[str, list[float]] = {side: [] for side in sides}
    for turn in range(WARM + TIMED):
        for side, (graph, fresh) in replays.items():
            fresh.copy_(logits)
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            torch.cuda.synchronize()
            start.record()
            graph.replay()
            stop.record()
            torch.cuda.synchronize()
            if turn >= WARM:
                times[side].append(start.elapsed_time(stop) * 1000)
    return {side: round(statistics.median(taken), 2) for side, taken in times.items()}


def _graph(run: Masker, logits: Any, p: Any) -> tuple[Any, Any]:
    """Return a graph of one call and the tensor that it masks in place."""
    fresh = logits.clone()
    run(fresh, None, p)  # compiles, loads and allocates the workspace, which a capture may not
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run(fresh, None, p)
    return graph, fresh


def _alone(run: Masker, held: inputs.Inputs) -> list[bool]:
    """Return, for each row, whether the patch masks it alone as it does in its batch."""
    together = _masked(run, held.logits, held.p)
    each = (_masked(run, held.logits[r : r + 1], held.p[r : r + 1]) for r in range(len(held.p)))
    return [bool(np.array_equal(alone[0], row)) for alone, row in zip(each, together, strict=True)]


def _masked(run: Masker, logits: Any, p: Any) -> Any:
    return np.isneginf(run(tensor(logits, "cuda"), None, tensor(p, "cuda")).cpu().numpy())


def _profile(run: Masker, held: inputs.Inputs) -> list[str] | None:
    """Return the device kernels that torch's profiler saw in one call, in order of start; None where it has none."""
    logits, p = tensor(held.logits, "cuda"), tensor(held.p, "cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        run(logits, None, p)
        torch.cuda.synchronize()
    kernels = [event for event in trace.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return [event.name for event in sorted(kernels, key=lambda event: event.time_range.start)] or None


if __name__ == "__main__":
    main(sys.argv[1])
