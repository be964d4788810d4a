"""Inside a worker process: the kernels themselves, and a record of every launch (contract, section 4).

Names are not identity: stock, patch and an installed vLLM share them.  So each launched function's text is looked for
in the pinned file, and on CUDA the compiled binary that was launched is named by its digest.
"""

import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from triton import JITFunction, knobs
from triton.runtime.interpreter import InterpretedFunction

from toppgate import digests

#: The name that vLLM's own dispatch and caches know the kernel file by.
MODULE = "vllm.v1.sample.ops.topk_topp_triton"

#: (logits, p, case of the job) -> masked logits; works in place.
Kernel = Callable[[Any, Any, dict[str, Any]], Any]

Launches = list[dict[str, Any]]


class Launched:
    """What was launched since ``clear``, seen from two sides.

    ``calls`` are the calls of ``run`` on the jitted objects, with grid, constants and, on CUDA, the binary; ``hooked``
    are the names that Triton's own launch hook reported, None under the interpreter, which never calls it.
    ``binaries`` collects each compiled binary once, by the SHA-256 of its cubin.
    """

    def __init__(self, device: str) -> None:
        self.calls: Launches = []
        self.hooked: list[str] | None = None
        self.binaries: dict[str, dict[str, Any]] = {}
        if device == "cuda":
            self.hooked = []
            knobs.runtime.launch_enter_hook.add(self._hook)

    def _hook(self, metadata: Any) -> None:
        if self.hooked is not None:
            self.hooked.append(str(metadata.get()["name"]))

    def clear(self) -> None:
        """Forget the launches, not the binaries."""
        self.calls.clear()
        if self.hooked is not None:
            self.hooked.clear()

    def watch(self, module: ModuleType, text: str, path: Path) -> None:
        """Wrap ``run`` on every jitted object: dispatchers hold the object, so replacing a name does nothing."""
        for kernel in list(vars(module).values()):
            function = getattr(kernel, "fn", None)
            if inspect.isfunction(function) and callable(getattr(kernel, "run", None)):
                kernel.run = self._recorded(kernel.run, function, path, text)

    def watch_every(self, text: str, path: Path) -> None:
        """Wrap ``run`` of every jitted object there will be, whichever module it comes from."""
        for kind in (JITFunction, InterpretedFunction):
            kind.run = self._recorded_of(kind.run, text, path)

    def _recorded_of(self, run: Callable[..., Any], text: str, path: Path) -> Callable[..., Any]:
        def launch(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            return self._recorded(partial(run, kernel), kernel.fn, path, text)(*args, **kwargs)

        return launch

    def called(self, function: Callable[..., Any], text: str, path: Path, batch: int) -> None:
        """Record the call of a Python function, as what it is."""
        seen = _identity(function, text, path)
        self.calls.append({**seen, "kernel": "callable", "grid": [batch], "slices": None, "constants": {}})

    def _recorded(
        self, run: Callable[..., Any], function: Callable[..., Any], path: Path, text: str
    ) -> Callable[..., Any]:
        seen = _identity(function, text, path)

        def launch(*args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
            size = grid(kwargs) if callable(grid) else grid
            constants = {key: _plain(value) for key, value in sorted(kwargs.items()) if not hasattr(value, "data_ptr")}
            call = {**seen, "grid": list(size), "slices": constants.get("S"), "constants": constants}
            self.calls.append(call)
            compiled = run(*args, grid=grid, warmup=warmup, **kwargs)
            if self.hooked is not None:
                call["binary"] = self._binary(compiled)
            return compiled

        return launch

    def _binary(self, compiled: Any) -> str:
        cubin = compiled.asm["cubin"]
        name = digests.sha256(cubin)
        if name not in self.binaries:
            meta = compiled.metadata
            self.binaries[name] = {
                "kernel": compiled.name,
                "triton_hash": compiled.hash,
                "registers": compiled.n_regs,
                "spills": compiled.n_spills,
                "shared_bytes": meta.shared,
                "target": f"{meta.target.backend} {meta.target.arch}",
                "num_warps": meta.num_warps,
                "num_stages": meta.num_stages,
                "bytes": len(cubin),
            }
        return name


def _identity(function: Callable[..., Any], text: str, path: Path) -> dict[str, Any]:
    """Say which function it is, and whether its text stands in the pinned file, of which ``path`` is the copy."""
    source, where = inspect.getsource(function), inspect.getsourcefile(function)
    ours = where is not None and Path(where).exists() and Path(where).samefile(path) and source.rstrip("\n") in text
    return {"kernel": function.__name__, "function": digests.sha256(source.encode()), "ours": ours}


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, bool | int | str) else repr(value)


def load(text: str, path: Path, name: str = MODULE) -> ModuleType:
    """Import a text under the name that others know it by; ``torch`` is there for one that is a single function.

    The text is what was hashed; ``path`` is where it lies, since Triton reads each function's source from there.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ImportError(f"{path}: no module can be made of it")
    module = importlib.util.module_from_spec(spec)
    vars(module)["torch"] = torch
    sys.modules[name] = module
    exec(compile(text, str(path), "exec"), vars(module))  # noqa: S102 - pinned by digest
    return module


def split_kernel(module: ModuleType, device: str) -> Kernel:
    """Return how to call a kernel file's top-p.

    On CUDA the public function is called, and vLLM's own dispatch picks the path.  Under the interpreter that dispatch
    would never take the split path, so up to the split limit ``_apply_topp_split`` is called with the stated compute
    units; beyond it, or with k, the public function decides there too (contract, section 4).
    """

    def run(logits: Any, p: Any, case: dict[str, Any]) -> Any:
        k = _top_k(logits, case["k"])
        if device == "cuda":
            masked = module.apply_top_k_top_p_triton(logits, k, p)
            torch.cuda.synchronize()
            return masked
        if k is None and len(logits) <= getattr(module, "_SPLIT_MAX_BATCH", len(logits)):
            module._apply_topp_split(logits, None, p, float("-inf"), case["compute_units"])
            return logits
        return module.apply_top_k_top_p_triton(logits, k, p)

    return run


def _top_k(logits: Any, k: int | None) -> Any:
    return None if k is None else torch.full((len(logits),), k, dtype=torch.int32, device=logits.device)


def function_kernel(module: ModuleType, name: str, text: str, path: Path, launched: Launched) -> Kernel:
    """Return how to call a Python function of a module: (logits, p), or vLLM's own order, (logits, k, p).

    It returns masked logits, or the kept mask, bool [B, V]; then the logits are masked by it.
    """
    function = getattr(module, name)
    with_k = [*inspect.signature(function).parameters][1:2] == ["k"]

    def run(logits: Any, p: Any, case: dict[str, Any]) -> Any:
        if case["k"] is not None and not with_k:
            raise ValueError(f"{name} takes no k")
        k = () if not with_k else (_top_k(logits, case["k"]),)
        before = logits.clone()
        launched.called(function, text, path, len(logits))
        found = function(logits, *k, p)
        masked = torch.where(found, before, float("-inf")) if found.dtype == torch.bool else found
        if masked.is_cuda:
            torch.cuda.synchronize()
        return masked

    return run
