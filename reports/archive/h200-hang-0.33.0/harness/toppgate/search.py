"""A search for rows that tell two kernels apart: many drawn rows, outputs compared bit for bit.

Equality on searched rows proves nothing by itself: a mutant is *equivalent* only with a written argument beside it.
"""

import json
import os
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toppgate import draws, execute, host
from toppgate.processes import Worker

#: Rows to search before two kernels may be called equivalent.
ROWS: Final = 100_000

#: Rows of a launch, the most that the split path takes.
BATCH: Final = 64

#: Seconds without a launch, compiling included, after which a searching process counts as hanging.
SILENCE: Final = 600


@dataclass(frozen=True)
class Searched:
    """How many rows were compared, on what, and the first that differs; None where all are the same bits.

    ``masked`` counts the rows of which the original masked something, so that two kernels that do nothing are seen.
    """

    rows: int
    masked: int
    device: str
    difference: str | None


def device() -> str:
    """Return what a search runs on: ``cuda`` where there is an NVIDIA device, else ``interpreter``."""
    return "cuda" if shutil.which("nvidia-smi") else "interpreter"


def search(provided: host.Host, original: bytes, mutant: bytes, rows: int, scratch: Path) -> Searched:
    """Compare two kernel texts on at least ``rows`` drawn rows, or up to the first launch that differs.

    Side effects: one process a core, at most one a shape of ``draws``, and files in ``scratch``.  What is compiled is
    kept in it by text, so searches that share it compile the original once.  A process that dies or hangs is a
    difference.
    """
    home = scratch / f"search-{len(list(scratch.glob('search-*')))}"
    home.mkdir()
    (home / "original.py").write_bytes(original)
    (home / "mutant.py").write_bytes(mutant)
    chosen, launches = device(), range(-(-rows // BATCH))
    count = min(os.cpu_count() or 1, len(draws.SHAPES))
    workers = []
    for number in range(count):
        share = [launch for launch in launches if launch % len(draws.SHAPES) % count == number]
        job = {"device": chosen, "batch": BATCH, "launches": share, "host_sha256": provided.sha256}
        job["host"] = None if provided.path is None else str(provided.path)
        path = home / f"job-{number}.json"
        path.write_text(json.dumps(job | {side: str(home / f"{side}.py") for side in ("original", "mutant")}))
        environment = execute.environment(chosen, scratch / "triton")
        workers.append(Worker("toppgate.searching", path, environment, home / f"stderr-{number}.txt"))
    try:
        found = [_follow(worker) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    events = [event for each in found for event in each if "launch" in event]
    environments = [event["environment"] for each in found for event in each if "environment" in event]
    differing = sorted((event["launch"], event["difference"]) for event in events if event["difference"])
    return Searched(
        rows=sum(event["rows"] for event in events),
        masked=sum(event["masked"] for event in events),
        device=_describe(environments[0]) if environments else chosen,
        difference=differing[0][1] if differing else None,
    )


def _describe(environment: dict[str, Any]) -> str:
    return ", ".join([environment["device"], *(f"{name} {environment[name]}" for name in ("torch", "triton"))])


def _follow(worker: Worker) -> list[dict[str, Any]]:
    """Return a process's events, and how it failed, if it did, as one more."""
    events, problem = [], None
    try:
        while (event := worker.event(time.monotonic() + SILENCE)) is not None:
            events.append(event)
    except TimeoutError:
        problem = f"no launch in {SILENCE} s"
    problem = problem or worker.end(grace=5)
    if problem is not None:
        events.append({"launch": -1, "rows": 0, "masked": 0, "difference": f"could not be compared: {problem}"})
    return events
