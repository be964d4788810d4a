"""What only a GPU can show: a launch that hangs, faults or finds no memory costs its own case, and nothing else.

Skipped where there is no NVIDIA device, which is so in CI.  Run where there is one: ``pytest tests/test_on_gpu.py``.
"""

import shutil
import subprocess
from typing import Any

import pipeline
import pytest

from toppgate import cuda

pytestmark = pytest.mark.skipif(shutil.which("nvidia-smi") is None, reason="this machine has no NVIDIA device")

#: Put behind the patch: what it does is told by the vocabulary of its launch.
WRONG = """
@triton.jit
def _for_ever(ZERO):
    while tl.load(ZERO, volatile=True) == 0:
        pass


@triton.jit
def _far_away(P):
    tl.store(P + (1 << 40), 1)


_right = apply_top_k_top_p_triton


def apply_top_k_top_p_triton(logits, k, p):
    tokens = logits.shape[1]
    if tokens == 1001:
        _for_ever[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
    if tokens == 1002:
        _far_away[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"))
    if tokens == 1003:
        torch.empty(1 << 45, dtype=torch.uint8, device="cuda")
    return _right(logits, k, p)
"""

CASES = {"before": 1000, "hangs": 1001, "faults": 1002, "exhausts": 1003, "after": 1004}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the patch's records of one run over all cases."""
    home = tmp_path_factory.mktemp("gpu")
    cases = [pipeline.case(name, "ordinary", pipeline.normal(2, tokens)) for name, tokens in CASES.items()]
    patch = pipeline.kernel(home / "patch.py", pipeline.PATCH, behind=WRONG)
    limits = {"launch_seconds": 30, "total_seconds": 500}
    frozen = pipeline.freeze_draft(
        home / "params.yml", pipeline.draft(*cases, patch=patch, device="cuda", limits=limits)
    )
    executed = pipeline.executed(frozen, pipeline.captured(frozen, home / "run"))
    assert executed["timing"]["problem"] is None
    assert executed["timing"]["cases"].keys() == {"before", "after"}
    assert {record["code"] for record in executed["sides"]["stock"]["cases"].values()} == {"pass"}
    return dict(executed["sides"]["patch"]["cases"])


@pytest.mark.parametrize(
    ("case", "code", "words"),
    [
        ("before", "pass", ""),
        ("hangs", "timeout", "killed after 30 s"),
        ("faults", "worker_crashed", "illegal memory access"),
        ("exhausts", "worker_crashed", "out of memory"),
        ("after", "pass", ""),
    ],
)
def test_a_launch_that_fails_costs_its_own_case(records: dict[str, Any], case: str, code: str, words: str) -> None:
    """The hung launch is killed at the frozen timeout; the cases behind run in fresh workers."""
    assert records[case]["code"] == code
    assert words in records[case]["detail"]


def test_what_was_killed_holds_no_memory(records: dict[str, Any]) -> None:
    """No process of the run is left on the device."""
    assert records
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    listed = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    assert listed == []
    assert cuda.free_bytes() is not None
