"""Stage 2, child side: one process, one side, a list of cases.

Started as ``python -P -m toppgate.worker JOB``.  Standard output carries one JSON event a line, for ``execute``:
``ready`` with the environment, ``start`` before each repeat, ``done`` with a case's result.  Everything that foreign
code prints goes to standard error.  Imports torch and triton, which no other process of toppgate does.
"""

import atexit
import importlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch

from toppgate import digests, inputs, outputs, sourceonly
from toppgate.kernels import Kernel, Launched, function_kernel, load, split_kernel
from toppgate.order import canonical_rows

#: Variables that can change what a kernel does; recorded, and compared between the sides.
PREFIXES = ("TRITON_", "CUDA_", "VLLM_")

#: What lies between rows with a stride: finite, and above every logit, so that a kernel that reads it masks the row.
PADDING = np.float32(3.4e38)

#: Of those, the ones that toppgate sets for each worker anew.
OWN = ("TRITON_CACHE_DIR",)


def main(job_path: str) -> None:
    """Run the job of a JSON file and report on standard output."""
    events, job = begin(job_path)
    path = Path(job["source"])
    source = path.read_bytes()  # once: what is hashed is what runs
    text = source.decode().replace("\r\n", "\n")  # as Python reads a source
    launched = Launched(job["device"])
    run = _watched(text, path, job, launched)
    say(events, event="ready", source=digests.sha256(source), environment=environment(job))
    for case in job["cases"]:
        _case(events, job, case, run, launched)


def begin(job_path: str) -> tuple[TextIO, dict[str, Any]]:
    """Return where a child process reports, and its job: its standard output for events alone, the host on its path."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    atexit.register(events.close)  # else a warning about it may stand behind the exception that ends the process
    os.dup2(2, 1)
    job: dict[str, Any] = json.loads(Path(job_path).read_text())
    torch.set_num_threads(1)
    sourceonly.require("vllm")
    if job["host"] is not None:
        sys.path.insert(0, job["host"])
    return events, job


def say(events: TextIO, **event: Any) -> None:
    """Write one event."""
    events.write(json.dumps(event) + "\n")


def _watched(text: str, path: Path, job: dict[str, Any], launched: Launched) -> Kernel:
    """Return how to call a kernel file's top-p, or a Python function, with whatever Triton launches in it recorded."""
    if job["callable"] is not None:
        module, _, name = job["callable"].partition(":")
        if job["side"] != "sort":
            importlib.import_module("vllm")  # as a kernel file does: it sets variables, and both sides must share them
        launched.watch_every(text, path)
        return function_kernel(load(text, path, module), name, text, path, launched)
    loaded = load(text, path)
    launched.watch(loaded, text, path)
    return split_kernel(loaded, job["device"])


def _case(events: TextIO, job: dict[str, Any], case: dict[str, Any], run: Kernel, launched: Launched) -> None:
    """Run all repeats of a case, write the first one's output, report every repeat's digest and launches."""
    seconds, repeats, paths, hooks, read, spilled = [], [], [], [], [], False
    for repeat in range(job["repeat"]):
        say(events, event="start", case=case["id"], repeat=repeat)
        captured = inputs.from_bytes(Path(case["input"]).read_bytes(), case["input"])
        held = padded(captured.logits, case["stride"])
        wide, p = (tensor(array, job["device"]) for array in (held, captured.p))
        logits = wide[:, : captured.logits.shape[1]]
        read.append(captured.sha256)
        launched.clear()
        began = time.perf_counter()
        result = run(logits, p, case)
        seconds.append(time.perf_counter() - began)
        raw = np.ascontiguousarray(result.detach().cpu().numpy())
        paths.append(list(launched.calls))
        hooks.append(None if launched.hooked is None else list(launched.hooked))
        repeats.append(digests.sha256(raw.tobytes()))
        beside = (slice(None), slice(raw.shape[-1], None))
        spilled |= not np.array_equal(wide[beside].cpu().numpy(), held[beside])
        if repeat == 0:
            first = raw
    if first.shape != captured.logits.shape or first.dtype != np.float32:
        expected = f"float32 {list(captured.logits.shape)}"
        raise ValueError(f"the output is {first.dtype.name} {list(first.shape)}, expected {expected}")
    binding = {"run": job["run"], "side": job["side"], "case": case["id"], "source": job["sha256"]}
    read_in = next((digest for digest in read if digest != read[0]), read[0])  # one that differs is told of
    binding |= {"input": read_in, "shape": list(first.shape), "repeats": repeats}
    if case["output"] is not None:
        masks = outputs.compare(captured.logits, first)
        _write(Path(case["output"]), outputs.to_bytes(masks, canonical_rows(captured.logits), binding))
    delivered = {"input": read_in, "repeats": repeats, "launches": paths, "hooks": hooks, "seconds": seconds}
    say(events, event="done", case=case["id"], binaries=launched.binaries, spilled=spilled, **delivered)


def padded(logits: np.ndarray[Any, Any], stride: int | None) -> np.ndarray[Any, Any]:
    """Return rows as they lie in memory: float32 [B, stride], ``PADDING`` behind each; as they are without a stride."""
    if stride is None:
        return logits
    wide = np.full((len(logits), stride), PADDING, np.float32)
    wide[:, : logits.shape[1]] = logits
    return wide


def tensor(array: np.ndarray[Any, Any], device: str) -> Any:
    """Return a fresh copy of an array as a tensor on the device."""
    fresh = torch.from_numpy(array.copy())
    return fresh.cuda() if device == "cuda" else fresh


def _write(path: Path, data: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(path)


# ---------------------------------------------------------------------------------------------- where it is run


def environment(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the two sides must share."""
    variables = {key: value for key, value in sorted(os.environ.items()) if key.startswith(PREFIXES) and key not in OWN}
    return {
        **{name: _version(name) for name in ("torch", "triton", "numpy")},
        **(_gpu() if job["device"] == "cuda" else {"device": "Triton interpreter on the CPU", "driver": None}),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "host": job["host_sha256"],
        "variables": variables,
    }


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(0)
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    driver = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()[0]
    return {
        "device": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "driver": driver.strip(),
        "cuda_runtime": torch.version.cuda,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main(sys.argv[1])
