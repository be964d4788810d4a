"""One row on which vLLM's split top-p kernel keeps other tokens than a binary64 reference.

    python reproduce.py                             the installed vLLM, on a GPU
    TRITON_INTERPRET=1 python reproduce.py          the same on a CPU, in Triton's interpreter
    python reproduce.py topk_topp_triton.py         another file in the place of vLLM's

Reads ``row.safetensors`` beside it; needs torch, triton and vLLM, and nothing of the tool that wrote it.  Exit status 1
where the kernel does not keep exactly the expected tokens.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

if os.environ.get("TRITON_INTERPRET") == "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then takes the machine for one without a GPU, and leaves Triton on

import torch
from safetensors.torch import load_file

NAME = "vllm.v1.sample.ops.topk_topp_triton"


def load(path: str | None) -> ModuleType:
    """Return the kernel file at a path, or the installed vLLM's."""
    if path is None:
        return importlib.import_module(NAME)
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        sys.exit(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Run the row and compare."""
    row = load_file(Path(__file__).with_name("row.safetensors"))
    kernel = load(sys.argv[1] if len(sys.argv) > 1 else None)
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    logits, p = row["logits"].to(device), row["p"].to(device)
    # For one row, as many compute units as slices give so many slices.
    kernel._apply_topp_split(logits, None, p, float("-inf"), int(row["slices"]))
    kept = set(torch.isfinite(logits[0].cpu()).nonzero().flatten().tolist())
    expected, observed = (set(row[name].tolist()) for name in ("expected", "observed"))
    lines = [
        f"expected {len(expected)} tokens, kept {len(kept)}; when this was written {len(observed)} were kept",
        f"kept and not expected: {sorted(kept - expected)[:20]}",
        f"expected and not kept: {sorted(expected - kept)[:20]}",
    ]
    sys.stdout.write("\n".join(lines) + "\n")
    return int(kept != expected)


if __name__ == "__main__":
    sys.exit(main())
