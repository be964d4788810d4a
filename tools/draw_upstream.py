"""Draws what upstream's own top-p test draws with seed 42 on CUDA, once, to be kept as bytes: needs a GPU and torch.

vLLM's test (TestTritonTopkTopp, top-p only, batch 8, vocabulary 32,000) draws, in this order, from one generator on the
device: the logits with randn; p with rand, scaled to [0.1, 1.0]; and which rows are switched off, p = 1.0, with
randint.  Other devices and torch versions give other bits, so the file is never drawn again.
"""

import sys
from pathlib import Path

import safetensors.numpy
import torch


def main(path: Path) -> None:
    """Write logits float32 [8, 32000] and p float32 [8] to a new safetensors file."""
    generator = torch.Generator(device="cuda").manual_seed(42)
    logits = torch.randn(8, 32000, generator=generator, device="cuda", dtype=torch.float32)
    p = torch.rand(8, generator=generator, device="cuda") * 0.9 + 0.1
    p[torch.randint(0, 4, (8,), generator=generator, device="cuda") == 0] = 1.0
    data = safetensors.numpy.save({"logits": logits.cpu().numpy(), "p": p.cpu().numpy()})
    with path.open("xb") as file:
        file.write(data)
    sys.stdout.write(f"torch {torch.__version__}, {torch.cuda.get_device_name()}: p {p.tolist()}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
