"""Inside a searching process: two kernel texts over the same drawn launches, outputs compared bit for bit.

Started as ``python -P -m toppgate.searching JOB``.  Both texts are called as the split path calls them, with the
compute units that give a launch its slices, on CUDA as well: a search is no evidence of dispatch.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from toppgate import draws
from toppgate.draws import Launch
from toppgate.kernels import load
from toppgate.worker import begin, environment, say, tensor

#: A launch -> its masked logits, on the device.
Masker = Callable[[Launch], Any]


def main(job_path: str) -> None:
    """Compare over the job's launches, one event each; the first that differs is the last."""
    events, job = begin(job_path)
    original, mutant = (_masker(Path(job[side]), job["device"]) for side in ("original", "mutant"))
    say(events, environment=environment(job))
    for number in job["launches"]:
        launch = draws.draw(number, job["batch"])
        one, other = original(launch), mutant(launch)
        rows = (one.view(torch.int32) != other.view(torch.int32)).any(dim=1).nonzero()
        row = int(rows[0]) if len(rows) else None
        difference = None if row is None else _describe(number, launch, row, one, other)
        masked = int(torch.isneginf(one).any(dim=1).sum())
        say(events, launch=number, rows=len(one), masked=masked, difference=difference)
        if difference is not None:
            return


def _masker(path: Path, device: str) -> Masker:
    module = load(path.read_text(encoding="utf-8"), path)

    def masked(launch: Launch) -> Any:
        logits = tensor(launch.logits, device)
        units = launch.slices * len(launch.logits)
        module._apply_topp_split(logits, None, tensor(launch.p, device), float("-inf"), units)
        return logits

    return masked


def _describe(number: int, launch: Launch, row: int, one: Any, other: Any) -> str:
    kept = " and ".join(str(int(torch.isfinite(side[row]).sum())) for side in (one, other))
    shape = f"{launch.kind}, {len(one[row])} tokens in {launch.slices} slices"
    return f"launch {number}, row {row}: {shape}, p {float(launch.p[row])!r}: {kept} tokens kept"


if __name__ == "__main__":
    main(sys.argv[1])
