"""Stage 2 on a GPU, parent side: what is done before and after the evidence itself (contract, section 4).

Before: device memory is planned from the frozen limits; compilation, paid once a run and side: kernels of different
shapes are compiled side by side, by processes that launch them once and discard the output.  After: the further process
that times launches.  None of this adds or lifts a stop.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from toppgate.processes import Worker
from toppgate.schema import Case, Limits

#: A process may take this long to import torch and the host before its first report, whatever the launch limit.
START_SECONDS = 120

#: Compiling processes of a side at once, whatever the memory.
MOST = 16

#: Device memory that a process takes before it holds a tensor: CUDA context, torch's and Triton's modules.
CONTEXT_BYTES = 2**30

#: Tensors of the largest launch that a process holds at once: the rows, a copy, the workspace, and room for the sort
#: reference, which holds indices and binary64 sums beside sorted rows.
COPIES = 12

Start = Callable[[str, Path, Mapping[str, Any]], Worker]


def free_bytes() -> int | None:
    """Return the free memory of the first visible device, or None where ``nvidia-smi`` does not say."""
    query = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    try:
        said = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout
        return int(said.splitlines()[0]) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None


def process_bytes(limits: Limits) -> int:
    """Return the device memory to plan for one process: a context, and what the largest launch allowed needs."""
    return CONTEXT_BYTES + COPIES * 4 * limits.batch * limits.vocabulary


def processes(limits: Limits, free: int, cores: int) -> int:
    """Return how many processes of each side may compile at once; 0 where not even stock and patch fit side by side."""
    return min(MOST, cores, free // (2 * process_bytes(limits)))


def shapes(cases: list[Case], side: str) -> list[list[Case]]:
    """Group cases whose launches share their compiled kernels: same vocabulary, same slices, k or none."""
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        slices = None if case.slices is None else getattr(case.slices, side)
        groups.setdefault((case.vocabulary, slices, case.k is None), []).append(case)
    return list(groups.values())


def compile_all(
    job: Mapping[str, Any],
    groups: list[list[str]],
    scratch: Path,
    start: Start,
    deadline: float,
    *,
    most: int,
    seconds: int,
) -> float:
    """Compile one case of each group and return the seconds it took; what fails here is met again by the evidence.

    Parameters
    ----------
    job : the side's worker job, with all its cases
    groups : ids of cases that share their compiled kernels
    most : processes at once
    seconds : what one launch may take; a process that takes longer is killed, with the shapes that it has not reached
    """
    began = time.monotonic()
    first = [next(case for case in job["cases"] if case["id"] == group[0]) for group in groups]
    count = min(most, len(first))
    workers = []
    for number in range(count):
        share = [{**case, "output": None} for case in first[number::count]]
        path = scratch / f"compile-{number}.json"
        path.write_text(json.dumps({**job, "repeat": 1, "cases": share}))
        workers.append(start("toppgate.worker", path, {}))
    for worker in workers:
        for _ in _events(worker, seconds, deadline):
            pass
        worker.end(grace=5)
    return time.monotonic() - began


def _events(worker: Worker, seconds: int, deadline: float) -> Iterator[Mapping[str, Any]]:
    """Yield what a process reports, and kill it where that takes longer than a launch may."""
    limit = max(seconds, START_SECONDS)
    try:
        while (event := worker.event(min(deadline, time.monotonic() + limit))) is not None:
            yield event
            limit = seconds
    except TimeoutError:
        worker.kill()


def measure(job: Mapping[str, Any], scratch: Path, start: Start, deadline: float, *, seconds: int) -> dict[str, Any]:
    """Return launch times, rows alone and a profiler trace; empty where the process did not deliver.

    ``job`` names both sides' sources; their compile caches are joined, since Triton's keys hold the source.
    ``seconds`` is what may pass between two reports: several launches of a case.
    """
    cache = scratch / "triton"
    for side in job["sources"]:
        shutil.copytree(scratch.parent / side / "triton", cache, dirs_exist_ok=True)
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    worker = start("toppgate.timing", path, {"TRITON_CACHE_DIR": str(cache)})
    found: dict[str, Any] = {"cases": {}, "profile": None, "problem": None}
    for event in _events(worker, seconds, deadline):
        if event.get("event") == "done":
            found["cases"][event["case"]] = {key: event[key] for key in ("microseconds", "alone")}
        elif event.get("event") == "profile":
            found["profile"] = event["profile"]
    found["problem"] = worker.end(grace=5)
    return found
