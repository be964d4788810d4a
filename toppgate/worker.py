"""Stage 2, child side: one process, one side, a list of cases.  The only module that imports torch and triton.

Started as ``python -P -m toppgate.worker JOB``.  Standard output carries one JSON event a line, for ``execute``:
``ready`` with the environment, ``start`` before each repeat, ``done`` with a case's result.  Everything that foreign
code prints goes to standard error.
"""

import importlib.metadata
import importlib.util
import inspect
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import numpy as np

from toppgate import digests, inputs, outputs, sourceonly
from toppgate.order import canonical_rows

#: The name that vLLM's own dispatch and caches know the kernel file by.
MODULE = "vllm.v1.sample.ops.topk_topp_triton"

#: Variables that can change what a kernel does; recorded, and compared between the sides.
PREFIXES = ("TRITON_", "CUDA_", "VLLM_")

Kernel = Callable[[Any, Any, dict[str, Any]], Any]


def main(job_path: str) -> None:
    """Run the job of a JSON file and report on standard output."""
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    job = json.loads(Path(job_path).read_text())
    import torch

    torch.set_num_threads(1)
    launches: list[dict[str, Any]] = []
    sourceonly.require("vllm")
    if job["host"] is not None:
        sys.path.insert(0, job["host"])
    source = Path(job["source"])
    run = sort_reference(source) if job["side"] == "sort" else split_kernel(source, launches)
    _say(events, event="ready", source=digests.sha256(source.read_bytes()), environment=_environment(job))
    for case in job["cases"]:
        _case(events, job, case, run, launches)


def _say(events: TextIO, **event: Any) -> None:
    events.write(json.dumps(event) + "\n")


def _case(events: TextIO, job: dict[str, Any], case: dict[str, Any], run: Kernel, launches: list[Any]) -> None:
    """Run all repeats of a case, write the first one's output, report every repeat's digest and launches."""
    import torch

    seconds, repeats, paths = [], [], []
    for repeat in range(job["repeat"]):
        _say(events, event="start", case=case["id"], repeat=repeat)
        captured = inputs.from_bytes(Path(case["input"]).read_bytes(), case["input"])
        launches.clear()
        began = time.perf_counter()
        result = run(torch.from_numpy(captured.logits.copy()), torch.from_numpy(captured.p.copy()), case)
        seconds.append(time.perf_counter() - began)
        raw = np.ascontiguousarray(result.detach().cpu().numpy())
        paths.append(list(launches))
        repeats.append(digests.sha256(raw.tobytes()))
        if repeat == 0:
            logits, first = captured.logits, raw
    if first.shape != logits.shape or first.dtype != np.float32:
        raise ValueError(f"the output is {first.dtype.name} {list(first.shape)}, expected float32 {list(logits.shape)}")
    binding = {"run": job["run"], "side": job["side"], "case": case["id"], "source": job["sha256"]}
    binding |= {"input": captured.sha256, "shape": list(logits.shape), "repeats": repeats}
    _write(Path(case["output"]), outputs.to_bytes(outputs.compare(logits, first), canonical_rows(logits), binding))
    _say(events, event="done", case=case["id"], input=captured.sha256, repeats=repeats, launches=paths, seconds=seconds)


def _write(path: Path, data: bytes) -> None:
    partial = path.with_suffix(".partial")
    partial.write_bytes(data)
    partial.replace(path)


# ---------------------------------------------------------------------------------------------- what is run


def split_kernel(path: Path, launches: list[dict[str, Any]]) -> Kernel:
    """Import a kernel file under vLLM's name and return how to call it; launches are recorded as they happen.

    Up to the split limit the interpreter calls ``_apply_topp_split`` with the stated compute units, since vLLM's
    dispatch takes that path on CUDA only; beyond it, or with k, the public function decides (contract, section 4).
    """
    module = _load(path)
    _watch(module, path, launches)

    def run(logits: Any, p: Any, case: dict[str, Any]) -> Any:
        import torch

        if case["k"] is None and len(logits) <= getattr(module, "_SPLIT_MAX_BATCH", len(logits)):
            module._apply_topp_split(logits, None, p, float("-inf"), case["compute_units"])
            return logits
        k = None if case["k"] is None else torch.full((len(logits),), case["k"], dtype=torch.int32)
        return module.apply_top_k_top_p_triton(logits, k, p)

    return run


def sort_reference(path: Path) -> Kernel:
    """Return vLLM's sort implementation, from the text of that one function (contract, section 4)."""
    import torch

    namespace: dict[str, Any] = {"torch": torch}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), namespace)  # noqa: S102 - pinned by digest
    function = namespace["apply_top_k_top_p_pytorch"]
    return lambda logits, p, _case: function(logits, None, p)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path}: no module can be made of it")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    spec.loader.exec_module(module)
    return module


def _watch(module: ModuleType, path: Path, launches: list[dict[str, Any]]) -> None:
    """Wrap ``run`` on every jitted object of the module: dispatchers hold the object, so its name proves nothing."""
    text = path.read_text(encoding="utf-8")
    for kernel in vars(module).values():
        function = getattr(kernel, "fn", None)
        if inspect.isfunction(function) and callable(getattr(kernel, "run", None)):
            kernel.run = _recorded(kernel.run, function, path, text, launches)


def _recorded(
    run: Callable[..., Any], function: Callable[..., Any], path: Path, text: str, launches: list[dict[str, Any]]
) -> Callable[..., Any]:
    source = inspect.getsource(function)
    where = inspect.getsourcefile(function)
    seen = {
        "kernel": function.__name__,
        "function": digests.sha256(source.encode()),
        "ours": where is not None and Path(where).samefile(path) and source in text,
    }

    def launch(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        size = grid(kwargs) if callable(grid) else grid
        constants = {key: _plain(value) for key, value in sorted(kwargs.items()) if not hasattr(value, "data_ptr")}
        launches.append({**seen, "grid": list(size), "slices": constants.get("S"), "constants": constants})
        return run(*args, grid=grid, warmup=warmup, **kwargs)

    return launch


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


# ---------------------------------------------------------------------------------------------- where it is run


def _environment(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the two sides must share."""
    variables = {key: value for key, value in sorted(os.environ.items()) if key.startswith(PREFIXES)}
    variables.pop("TRITON_CACHE_DIR", None)  # fresh for each side, by design
    found = {name: _version(name) for name in ("torch", "triton", "numpy")}
    return {
        **found,
        "device": "Triton interpreter on the CPU" if job["device"] == "interpreter" else job["device"],
        "driver": None,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "host": job["host_sha256"],
        "variables": variables,
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    main(sys.argv[1])
