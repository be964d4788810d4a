"""The trace explains what real kernels kept, and says so when it does not."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace

import numpy as np
import pipeline
import pytest

from toppgate import emulate, fp32, host, inputs, oracle, published, trace
from toppgate.errors import RunError
from toppgate.rerun import Kernel, Ran
from toppgate.schema import Captured
from toppgate.trace import Cause, Explained, Layout, Rule, Trace, Workspace

ROWS = pipeline.ROOT / "params/inputs/smollm2-135m-logits.safetensors"

#: What each kernel's mask does, read in its text.  That of 0.31.0 is run by the tests of ``toppgate row``.
RULES = {
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


@pytest.fixture(scope="module")
def kernels() -> Iterator[dict[str, Kernel]]:
    """Give the published kernels, each in a process of its own; they start side by side."""
    specs = {"0a1276e": pipeline.PATCH, "0.33.0": pipeline.release("0.33.0")}
    provided = host.provide(pipeline.HOST, published.cache())
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(Kernel(name, pipeline.text(spec).encode(), provided))
            for name, spec in specs.items()
        }


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


@pytest.mark.parametrize("name", RULES)
def test_real_rows_are_explained(name: str, kernels: dict[str, Kernel]) -> None:
    """The replay gives the mask of real rows by the kernel's own rule, and the emulation has the kernel's numbers."""
    for each in seen(kernels[name], real_rows("bfloat16")[[6, 6, 0]], ["0.9", "0.99", "0.95"]):
        assert RULES[name] in each.explained.rules
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


# ---------------------------------------------------------------------------------------------- without a kernel

P = np.float32(0.9)
LAYOUT = Layout(slices=2, fanout=8, rounds=5, stats_block=8, step_block=4, mask_block=8)


def left_by(logits: fp32.Float32, layout: Layout = LAYOUT) -> Workspace:
    """Return the workspace of a row, as the emulation measures it; what is not measured is NaN."""
    found = emulate.search(logits, P, layout)
    parts = np.full((layout.rounds, layout.slices, layout.fanout, 3), np.nan, np.float32)
    for number, each in enumerate(found.rounds):
        parts[number] = np.stack([each.slice_mass, each.slice_smallest, each.slice_ties], axis=-1)
    stats = np.stack([emulate.stats(part, layout.stats_block) for part in np.split(logits, layout.slices)])
    return Workspace(stats, parts, layout)


def tied(first: int, second: int) -> fp32.Float32:
    """Return a row of two slices of two blocks of 8: a largest token, and ties in both blocks of the first slice."""
    logits = np.full(32, -30, np.float32)
    logits[[0, *range(1, 1 + first), *range(8, 8 + second)]] = [0, *([-3] * (first + second))]
    return logits


def test_ties_are_counted_anew_in_each_block() -> None:
    """By hand: 1 + 4w >= 0.9 (1 + 7w) needs k = 0.9 * 7 - 0.1 / w = 4.3 of 7 ties, so 5; blocks of 4 and 3 keep 7."""
    logits = tied(4, 3)
    found = trace.replay(left_by(logits), P)
    assert (found.ending, found.ties, found.budget) == ("converged", 7, 5)
    kept = [trace.kept(found, logits, rule, LAYOUT.mask_block) for rule in trace.RULES]
    assert [int(each.sum()) for each in kept] == [8, 6, 8, 6]
    wanted = oracle.reference(logits, P).kept()
    assert np.array_equal(kept[1], wanted)
    explained = trace.explain(found, logits, kept[0], wanted, LAYOUT.mask_block)
    assert explained == Explained((trace.RULES[0], trace.RULES[2]), Cause(counting=2))
    assert explained.cause.main == ("counting", 1)
    blocks = [(each.first, each.ties, each.kept) for each in trace.tied_blocks(found, logits, kept[0], 8)]
    assert blocks == [(0, 4, 4), (8, 3, 3)]


@pytest.mark.parametrize("seed", range(20))
def test_a_cause_adds_up_to_the_difference(seed: int) -> None:
    """Whatever mask is to be explained, its parts are the whole difference, and a rule's own mask is all explained."""
    random = np.random.default_rng(seed)
    logits = np.round(random.normal(scale=2, size=64), int(random.integers(3))).astype(np.float32)
    found, wanted = trace.replay(left_by(logits), P), oracle.reference(logits, P).kept()
    for observed in (*(trace.kept(found, logits, rule, 8) for rule in trace.RULES), random.random(64) < 0.5):
        explained = trace.explain(found, logits, observed, wanted, 8)
        assert explained.cause.total == int(observed.sum()) - int(wanted.sum())
        assert not (explained.rules and explained.cause.unexplained)
    assert not explained.rules  # a mask drawn at random is no rule's


def test_a_search_that_is_another_is_refused() -> None:
    """A round that should have been measured, and one that should not, both say that the kernel searches otherwise."""
    left = left_by(tied(4, 3))
    missing, more = left.parts.copy(), left.parts.copy()
    missing[0], more[1] = np.nan, 0
    with pytest.raises(RunError, match="round 1 was never measured"):
        trace.replay(replace(left, parts=missing), P)
    with pytest.raises(RunError, match="measured more than the 1 rounds"):
        trace.replay(replace(left, parts=more), P)


def test_the_workspace_is_cut_by_the_slices_of_the_launch() -> None:
    """Rows lie behind each other with the launch's own slices, whatever room there is; too little room is refused."""
    layout = replace(LAYOUT, slices=3)
    stats, parts = np.arange(999, dtype=np.float32), np.arange(9999, dtype=np.float32)
    first, second = Workspace.of(stats, parts, 2, layout)
    assert (first.stats[0, 1], first.stats[1, 0], first.stats[2, 3], second.stats[0, 0]) == (1, 4, 11, 12)
    assert (first.parts[1, 0, 0, 0], first.parts[0, 1, 2, 1], second.parts[0, 0, 0, 0]) == (72, 31, 360)
    with pytest.raises(RunError, match="expected 24 and 720"):
        Workspace.of(stats[:20], parts, 2, layout)


@pytest.mark.parametrize(
    ("logits", "ending"),
    [
        ([0.0] * 32, "uniform"),
        ([0.0, *[-2.0] * 31], "nothing reaches p"),
        ([0.0, *[-40.0] * 31], "converged"),
        ([-0.05 * token for token in range(32)], "converged"),
    ],
)
def test_endings(logits: list[float], ending: str) -> None:
    """How a search ends, on rows on which it can be said beforehand."""
    row = np.array(logits, np.float32)
    found = trace.replay(left_by(row), P)
    assert found.ending == ending
    assert found.whole_row is (ending in trace.WHOLE_ROW)
    wanted = np.ones(32, np.bool_) if found.whole_row else oracle.reference(row, P).kept()
    assert np.array_equal(trace.kept(found, row, RULES["0.33.0"], 8), wanted)


def test_slices_are_of_one_length_but_the_last() -> None:
    """The last slice takes what is left, which may be nothing."""
    assert trace.slice_bounds(10, 3) == [(0, 4), (4, 8), (8, 10)]
    assert trace.slice_bounds(4, 3) == [(0, 2), (2, 4), (4, 4)]
    assert trace.slice_bounds(8, 2) == [(0, 4), (4, 8)]
