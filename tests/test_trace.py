"""The trace explains what real kernels kept, and says so when it does not."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pipeline
import pytest

from toppgate import emulate, fp32, host, inputs, oracle, published, trace
from toppgate.rerun import Kernel, Ran
from toppgate.schema import Captured
from toppgate.trace import Explained, Rule, Trace

ROWS = pipeline.ROOT / "params/inputs/smollm2-135m-logits.safetensors"

#: What each kernel's mask does, read in its text.
RULES = {
    "0.31.0": Rule("logit", "from each block's start"),
    "0a1276e": Rule("probability", "from each block's start"),
    "0.33.0": Rule("probability", "on from block to block"),
}


@dataclass(frozen=True)
class Seen:
    """A row that a kernel masked, and what the trace makes of it."""

    logits: fp32.Float32
    ran: Ran
    trace: Trace
    explained: Explained


@pytest.fixture(scope="module", params=RULES)
def kernel(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """Give a published kernel in a process of its own."""
    spec = pipeline.PATCH if request.param == "0a1276e" else pipeline.release(request.param)
    with Kernel(request.param, pipeline.text(spec).encode(), host.provide(pipeline.HOST, published.cache())) as found:
        yield found


def real_rows(rounding: str) -> fp32.Float32:
    """Return the 8 real rows, rounded."""
    spec = {"kind": "file", "path": str(ROWS), "tensor": "logits", "round": rounding}
    return inputs.rows(Captured.model_validate(spec))


def seen(kernel: Kernel, logits: fp32.Float32, ps: list[str]) -> list[Seen]:
    """Run rows in two slices, all in one launch, and trace each."""
    p = np.array([fp32.rounded(fp32.binary64(text)) for text in ps])
    found = []
    for row, each, ran in zip(logits, p, kernel.run(logits, p, 2), strict=True):
        searched = trace.replay(ran.workspace, each)
        wanted = oracle.reference(row, each).kept()
        explained = trace.explain(searched, row, ran.output.kept, wanted, ran.workspace.layout.mask_block)
        found.append(Seen(row, ran, searched, explained))
    return found


def test_real_rows_are_explained(kernel: Kernel) -> None:
    """The replay gives the mask of real rows by the kernel's own rule, and the emulation has the kernel's numbers."""
    rows = real_rows("bfloat16")
    for each in seen(kernel, rows, ["0.9", "0.95", "0.99", "0.9", "0.95", "0.99", "0.99", "0.9"]):
        assert RULES[kernel.name] in each.explained.rules
        assert each.explained.cause.unexplained == 0
        emulated = emulate.search(each.logits, each.trace.p, each.ran.workspace.layout)
        assert [parts_of(found) for found in emulated.rounds] == [parts_of(found) for found in each.trace.rounds]
        assert (emulated.normalizer, emulated.budget, emulated.tie) == (
            each.trace.normalizer,
            each.trace.budget,
            each.trace.tie,
        )


def parts_of(found: trace.Round) -> bytes:
    """Return a round's measurements, bit for bit."""
    return b"".join(part.tobytes() for part in (found.slice_mass, found.slice_smallest, found.slice_ties))
