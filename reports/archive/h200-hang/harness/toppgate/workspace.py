"""Inside a process of its own: one row at a time through a split kernel, and the workspace that it leaves.

Started as ``python -P -m toppgate.workspace JOB``; each request is a JSON line on standard input, each answer one on
standard output.  Imports torch, which no process but a worker does.

The kernel keeps two arrays of fp32 between its launches, and keeps them for the next call: per slice of a row what
the softmax needs (*stats*), and per round, slice and pivot what lies above that pivot (*parts*).  Both are made for the
largest batch and split, but are indexed flat with the slices that a launch really has.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

import safetensors.numpy
import torch

from toppgate import inputs
from toppgate.kernels import Launched, load, split_kernel
from toppgate.worker import begin, say

#: Where the kernel file keeps its workspace, by device, and the two arrays' names there.
CACHE: Final = "_TRITON_SPLIT_CACHE"
ARRAYS: Final = ("stats", "parts")

#: What the launches tell of the layout: the constant's name, and the launch, of stats, rounds and mask, that has it.
LAYOUT: Final = {
    "slices": ("S", -1),
    "fanout": ("F", -1),
    "rounds": ("NUM_ROUNDS", -1),
    "stats_block": ("BLOCK", 0),
    "step_block": ("BLOCK", 1),
    "mask_block": ("BLOCK", -1),
}


def main(job_path: str) -> None:
    """Answer requests until standard input ends."""
    events, job = begin(job_path)
    path = Path(job["source"])
    text = path.read_bytes().decode().replace("\r\n", "\n")
    module, launched = load(text, path), Launched("interpreter")
    launched.watch(module, text, path)
    run = split_kernel(module, "interpreter")
    run(torch.zeros((1, 8)), torch.full((1,), 0.5), {"k": None, "compute_units": 1})  # makes the workspace
    say(events, event="ready")
    for line in sys.stdin:
        request = json.loads(line)
        captured = inputs.from_bytes(Path(request["input"]).read_bytes(), request["input"])
        left = _workspace(module)
        for array in left.values():
            array.fill_(float("nan"))  # so that what this row did not write is not taken for its own
        launched.clear()
        logits, p = (torch.from_numpy(array.copy()) for array in (captured.logits, captured.p))
        masked = run(logits, p, {"k": None, "compute_units": request["compute_units"]})
        tensors = {"masked": masked.numpy(), **{name: array.numpy().reshape(-1) for name, array in left.items()}}
        safetensors.numpy.save_file(tensors, request["output"])
        layout = {name: launched.calls[launch]["constants"][key] for name, (key, launch) in LAYOUT.items()}
        say(events, event="ran", layout=layout)


def _workspace(module: Any) -> dict[str, Any]:
    """Return the two arrays of the only device, which the kernel uses again for the next row."""
    (held,) = getattr(module, CACHE).values()
    return {name: held[name] for name in ARRAYS}


if __name__ == "__main__":
    main(sys.argv[1])
