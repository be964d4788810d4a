"""What Triton makes of the fetched kernels for an H200, compiled here without one: two normalizers in one warp.

reports/README.md explains the ties that 0.33.0 gets wrong on CUDA by it.  Nothing is launched.
"""

import re
import subprocess
import sys
from pathlib import Path

import pipeline
import pytest

from toppgate import host, published

pytest.importorskip("triton", reason="needs the extra kernel")

#: Compiles the rounds' kernel of a text for compute capability 9.0, as the split path launches it for two slices.
COMPILE = """
import sys
text, path, host, fused = sys.argv[1:]
sys.path.insert(0, host)
import triton, triton.language
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
import vllm.triton_utils
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language  # without a GPU vLLM has stand-ins there
from pathlib import Path
from toppgate.kernels import load
module = load(Path(text).read_text(), Path(text))
constants = {"K": None, "HAS_K": False, "S": 2, "F": module._SPLIT_FANOUT, "NUM_ROUNDS": module._SPLIT_ROUNDS}
constants |= {"VOCAB_SIZE": 32000, "BLOCK": 2048}
types = {"LOGITS_STRIDE_0": "i32", "ROUND": "i32"}
kernel = module._topp_sb_step_kernel
names = kernel.arg_names
signature = {name: "constexpr" if name in constants else types.get(name, "*fp32") for name in names}
source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
options = {"num_warps": 8, "enable_fp_fusion": fused == "True"}
compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
Path(path).write_text(compiled.asm["ptx"])
"""

#: A product, its exchange with the neighbouring lane, and a sum that multiplies again instead of taking the product.
FUSED = re.compile(
    r"mul\.f32 \t(%r\d+), (%r\d+), (%r\d+);.{0,400}?"
    r"shfl\.sync\.bfly\.b32 \t(%r\d+), \1, 1, 31, -1;.{0,400}?"
    r"fma\.rn\.f32 \t%r\d+, \2, \3, \4;",
    re.DOTALL,
)


@pytest.mark.parametrize(
    ("spec", "fused", "found"),
    [(pipeline.STOCK, True, 1), (pipeline.release("0.33.0"), True, 1), (pipeline.release("0.33.0"), False, 0)],
    ids=["0.31.0", "0.33.0", "0.33.0 without fusion"],
)
def test_each_lane_adds_its_own_product_unrounded(
    spec: pipeline.Values, fused: bool, found: int, tmp_path: Path
) -> None:
    """So of two lanes one has fl(a + fl(b)), the other fl(b + fl(a)), so a row has two sums, unless fusion is off."""
    text, ptx = tmp_path / "kernel.py", tmp_path / "kernel.ptx"
    text.write_text(pipeline.text(spec))
    provided = host.provide(pipeline.HOST, published.cache())
    environment = {**pipeline.environment(), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-c", COMPILE, str(text), str(ptx), str(provided.path), str(fused)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(FUSED.findall(ptx.read_text())) == found
