"""Stage 2 on a GPU, parent side: what is done before and after the evidence itself (contract, section 4).

Before: compilation, paid once a run and side; kernels of different shapes are compiled side by side, by processes that
launch them once and discard the output.  After: the further process that times launches.  Neither adds or lifts a stop.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toppgate.processes import Worker
from toppgate.schema import Case

#: Compiling processes at once: each holds a CUDA context.
MOST = 16

Start = Callable[[str, Path, Mapping[str, Any]], Worker]


def shapes(cases: list[Case], side: str) -> list[list[Case]]:
    """Group cases whose launches share their compiled kernels: same vocabulary, same slices, k or none."""
    groups: dict[tuple[Any, ...], list[Case]] = {}
    for case in cases:
        slices = None if case.slices is None else getattr(case.slices, side)
        groups.setdefault((case.vocabulary, slices, case.k is None), []).append(case)
    return list(groups.values())


def compile_all(job: Mapping[str, Any], groups: list[list[str]], scratch: Path, start: Start, deadline: float) -> float:
    """Compile one case of each group and return the seconds it took; what fails here is met again by the evidence.

    Parameters
    ----------
    job : the side's worker job, with all its cases
    groups : ids of cases that share their compiled kernels
    """
    began = time.monotonic()
    first = [next(case for case in job["cases"] if case["id"] == group[0]) for group in groups]
    count = min(MOST, os.cpu_count() or 1, len(first))
    workers = []
    for number in range(count):
        share = [{**case, "output": None} for case in first[number::count]]
        path = scratch / f"compile-{number}.json"
        path.write_text(json.dumps({**job, "repeat": 1, "cases": share}))
        workers.append(start("toppgate.worker", path, {}))
    for worker in workers:
        try:
            while worker.event(deadline) is not None:
                pass
        except TimeoutError:
            worker.kill()
        worker.end(grace=5)
    return time.monotonic() - began


def measure(job: Mapping[str, Any], scratch: Path, start: Start, deadline: float) -> dict[str, Any]:
    """Return launch times, rows alone and a profiler trace; empty where the process did not deliver.

    ``job`` names both sides' sources; their compile caches are joined, since Triton's keys hold the source.
    """
    cache = scratch / "triton"
    for side in job["sources"]:
        shutil.copytree(scratch.parent / side / "triton", cache, dirs_exist_ok=True)
    path = scratch / "job.json"
    path.write_text(json.dumps(job))
    worker = start("toppgate.timing", path, {"TRITON_CACHE_DIR": str(cache)})
    found: dict[str, Any] = {"cases": {}, "profile": None, "problem": None}
    try:
        while (event := worker.event(deadline)) is not None:
            if event.get("event") == "done":
                found["cases"][event["case"]] = {key: event[key] for key in ("microseconds", "alone")}
            elif event.get("event") == "profile":
                found["profile"] = event["profile"]
    except TimeoutError:
        worker.kill()
    found["problem"] = worker.end(grace=5)
    return found
