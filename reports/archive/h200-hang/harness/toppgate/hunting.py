"""Inside a hunting process: blocks of drawn rows through both kernels, screened where they are; imports torch.

Started as ``python -P -m toppgate.hunting JOB``.  Both texts are called as the split path calls them, with the compute
units that give a launch its slices, on CUDA as well: a hunt is no evidence of dispatch.  One JSON event a block goes to
standard output; of each finding and kind the first few rows, with both masks, go to files.  Of a block that broke such
a process, another one is told to launch the rows alone, and says before each which one it is.
"""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

import safetensors.torch
import torch

from toppgate import prospect
from toppgate.kernels import load
from toppgate.prospect import Drawn
from toppgate.worker import begin, environment, say

#: Drawn rows -> their masked logits.
Masker = Callable[[Drawn], Any]


def main(job_path: str) -> None:
    """Hunt through the job's blocks."""
    events, job = begin(job_path)
    where = "cuda" if job["device"] == "cuda" else "cpu"
    stock, patch = (Path(job[side]) for side in ("stock", "patch"))
    captured = [safetensors.torch.load_file(path)[tensor].to(where) for path, tensor in job["captured"]]
    kept: Counter[tuple[str, str]] = Counter()
    masks = {}
    for name, path in (("stock", stock), ("patch", patch)):
        say(events, loading=name)
        masks[name] = _module(path)
        if where == "cuda":
            _compile(masks[name], job)
    say(events, environment=environment(job))
    for number in job["blocks"]:
        kind, tokens, slices = _shape(job, number)
        generator = prospect.seeded(where, job["seed"], number)
        real = captured[number // len(prospect.KINDS) % len(captured)] if captured else None
        drawn = prospect.draw(kind, generator, job["rows"], tokens, real)
        shape = {"kind": kind, "tokens": tokens, "slices": slices}
        without = job["without"].get(str(number), [])
        rows = [row for row in range(job["rows"]) if row not in without]
        if without:  # another row in their stead: a launch of another size would have to be compiled
            drawn = prospect.only(drawn, [*rows, *rows[:1] * len(without)])
        if job["narrow"]:
            _alone(events, job, (rows, drawn), masks, shape)
            continue
        outputs = {name: _masked(module, drawn, slices, job["batch"]) for name, module in masks.items()}
        found = prospect.screen(drawn, outputs["stock"], outputs["patch"]).tolist()[: len(rows)]
        files: list[dict[str, Any]] = []
        for place in (place for place, finding in enumerate(found) if finding >= 0):
            name = prospect.FINDINGS[found[place]]
            kept[name, kind] += 1
            if kept[name, kind] <= job["most"]:
                path = Path(job["scratch"]) / f"{number}-{rows[place]}.safetensors"
                _save(path, place, drawn, outputs)
                files.append({"row": rows[place], "finding": name, "file": str(path)})
        counts = Counter(prospect.FINDINGS[finding] for finding in found if finding >= 0)
        say(events, block=number, **shape, rows=len(rows), findings=counts, files=files)


def _alone(
    events: TextIO,
    job: dict[str, Any],
    block: tuple[list[int], Drawn],
    masks: dict[str, Any],
    shape: dict[str, Any],
) -> None:
    """Launch each row alone, as often as a launch has rows, and say first which one, and where it lies in a file."""
    path = Path(job["scratch"]) / "alone.safetensors"
    rows, drawn = block
    for side, module in masks.items():
        for place, row in enumerate(rows):
            _save(path, place, drawn, {})
            say(events, side=side, row=row, file=str(path), **shape)
            logits = drawn.logits[place : place + 1].repeat(job["batch"], 1)
            p = drawn.p[place : place + 1].repeat(job["batch"])
            _launch(module, logits, p, shape["slices"])
            if logits.is_cuda:
                torch.cuda.synchronize()


def _shape(job: dict[str, Any], number: int) -> tuple[str, int, int]:
    """Return a block's kind, tokens and slices: both go round, and their numbers share no factor, so all pairs come."""
    kinds = [kind for kind in prospect.KINDS if kind != "captured" or job["captured"]]
    tokens, slices = job["shapes"][number % len(job["shapes"])]
    return kinds[number % len(kinds)], tokens, slices


def _module(path: Path) -> Any:
    return load(path.read_text(encoding="utf-8"), path)


def _masked(module: Any, drawn: Drawn, slices: int, batch: int) -> Any:
    """Return the rows as a kernel masks them, a batch at a time."""
    logits = drawn.logits.clone()
    for first in range(0, len(logits), batch):
        part, p = logits[first : first + batch], drawn.p[first : first + batch]
        _launch(module, part, p, slices)
    return logits


def _launch(module: Any, logits: Any, p: Any, slices: int) -> None:
    """Mask rows in place, each in so many slices."""
    module._apply_topp_split(logits, None, p, float("-inf"), slices * len(logits))


def _compile(module: Any, job: dict[str, Any]) -> None:
    """Launch every shape once, on equal logits: from then on a launch that takes long is one that hangs."""
    for tokens, slices in job["shapes"]:
        logits = torch.zeros(job["batch"], tokens, device="cuda")
        _launch(module, logits, torch.full((job["batch"],), 0.5, device="cuda"), slices)
    torch.cuda.synchronize()


def _save(path: Path, row: int, drawn: Drawn, outputs: dict[str, Any]) -> None:
    """Write one row with both outputs."""
    tensors = {"logits": drawn.logits[row : row + 1], "p": drawn.p[row : row + 1]}
    tensors |= {side: output[row : row + 1] for side, output in outputs.items()}
    safetensors.torch.save_file({key: value.contiguous().cpu() for key, value in tensors.items()}, path)


if __name__ == "__main__":
    main(sys.argv[1])
