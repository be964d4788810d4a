"""The oracle: the specification against exact sums, the fast engine against the specification."""

import math
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from engine_rows import AMBIGUOUS, DISTRIBUTIONS, ONE, normal, probabilities, row_of, same_bits
from hypothesis import example, given, settings
from safetensors.numpy import load_file
from strategies import Row, bfloat16, rows
from truth import UNITS_IN_ONE, Case, cases, nucleus, ranked, rejection

from toppgate import oracle, spec

REAL_LOGITS = Path(__file__).parents[1] / "params" / "inputs" / "smollm2-135m-logits.safetensors"

admissible = pytest.mark.parametrize("case", [c for c in cases() if c.reject is None], ids=lambda c: c.id)
rejected = pytest.mark.parametrize("case", [c for c in cases() if c.reject], ids=lambda c: c.id)

# ---------------------------------------------------------------- rows.json


@admissible
def test_truth_agrees_with_the_stated_answers(case: Case) -> None:
    """Exact sums give the kept set of rows.json, and its margins to the digits that it states."""
    exact = nucleus(case.logits, case.p)
    assert exact.kept == case.kept
    assert math.isclose(exact.below, case.margin["below"], rel_tol=1e-5)
    assert math.isclose(exact.above, case.margin["above"], rel_tol=1e-5)


@admissible
def test_specification_keeps_what_exact_sums_keep(case: Case) -> None:
    """The specification is certified on every admissible case and keeps exactly the stated tokens."""
    literal = spec.specification(case.logits, case.p)
    assert literal.certified is True
    assert literal.count == len(case.kept)
    assert set(np.flatnonzero(literal.kept()).tolist()) == case.kept


@rejected
def test_rejected_cases_do_not_pass_silently(case: Case) -> None:
    """A row that rows.json rejects for its logits is refused; one rejected for p = 1 is the gate's to reject."""
    assert rejection(case.logits, case.p) == case.reject
    if case.reject == "nonfinite_logits":
        with pytest.raises(ValueError, match="a finite number expected"):
            oracle.reference(case.logits, case.p)
    else:
        assert case.p == ONE
        same_bits(oracle.reference(case.logits, case.p), spec.specification(case.logits, case.p))


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.id)
def test_fast_engine_has_the_specifications_bits_on_rows_json(case: Case) -> None:
    """The fast engine equals the specification on every case with finite logits."""
    if np.isfinite(case.logits).all():
        same_bits(oracle.reference(case.logits, case.p), spec.specification(case.logits, case.p))
    else:
        assert case.reject == "nonfinite_logits"


# ---------------------------------------------------------------- the fast engine against the specification


@settings(max_examples=1500, deadline=None)
@given(rows())
@example((np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32), np.float32(0.7)))
@example((np.array([-0.0], np.float32), ONE))
def test_fast_engine_has_the_specifications_bits(drawn: tuple[Row, np.float32]) -> None:
    """Order, weights, normalizer, target, count and certificate agree bit for bit on hard small rows."""
    row, p = drawn
    same_bits(oracle.reference(row, p), spec.specification(row, p))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_fast_engine_has_the_specifications_bits_on_seeded_rows(name: str) -> None:
    """The two engines agree bit for bit on seeded rows of a few to 3,000 tokens, p near true prefix ratios included."""
    rng = np.random.default_rng(list(name.encode()))
    for v in (1, 2, 5, 64, 1000, 3000):
        row = DISTRIBUTIONS[name](rng, v)
        assert row.dtype == np.float32
        for p in probabilities(rng, row):
            same_bits(oracle.reference(row, p), spec.specification(row, p))


@pytest.mark.parametrize("name", ["normal 3", "normal 3 in bfloat16"])
def test_fast_engine_has_the_specifications_bits_at_a_real_vocabulary(name: str) -> None:
    """The two engines agree bit for bit on a row of 32,000 tokens."""
    row = DISTRIBUTIONS[name](np.random.default_rng(32_000), 32_000)
    same_bits(oracle.reference(row, np.float32(0.9)), spec.specification(row, np.float32(0.9)))


def test_real_logits_have_their_known_counts() -> None:
    """Real next-token logits keep the counts that were recorded for them at p = 0.9, and both engines agree."""
    real = load_file(REAL_LOGITS)["logits"]
    p = np.float32(0.9)
    references = [oracle.reference(row, p) for row in real]
    assert [r.count for r in references] == [10, 3, 19, 143, 1, 1, 315, 4]
    assert all(r.certified for r in references)
    same_bits(references[3], spec.specification(real[3], p))
    tied = bfloat16(real[6])
    same_bits(oracle.reference(tied, p), spec.specification(tied, p))


def test_a_strided_row_is_read_in_its_own_order() -> None:
    """A column of a matrix gives the reference of its contiguous copy."""
    matrix = normal(3)(np.random.default_rng(7), 300).reshape(100, 3)
    same_bits(oracle.reference(matrix[:, 1], np.float32(0.9)), oracle.reference(matrix[:, 1].copy(), np.float32(0.9)))


# ---------------------------------------------------------------- where scan and sums disagree


@pytest.mark.parametrize(("bits", "count"), AMBIGUOUS)
def test_ambiguous_boundaries_are_not_certified(bits: str, count: int) -> None:
    """Where the scan and the sums disagree both engines say so and adjust nothing."""
    fast = oracle.reference(row_of(bits), ONE)
    same_bits(fast, spec.specification(row_of(bits), ONE))
    assert fast.count == count
    assert fast.certified is False
    assert np.count_nonzero(fast.kept()) == count


@pytest.mark.parametrize(("bits", "count"), AMBIGUOUS)
def test_ambiguous_boundaries_are_ambiguous_for_the_stated_reason(bits: str, count: int) -> None:
    """Exact sums place the certificate's boundary elsewhere than the scan's count."""
    weights = ranked(row_of(bits))[1]
    target = float(Fraction(sum(weights), UNITS_IN_ONE))
    reaching = [c for c in range(1, len(weights) + 1) if float(Fraction(sum(weights[:c]), UNITS_IN_ONE)) >= target]
    assert reaching[0] != count


def test_the_scan_alone_would_round_a_sum_wrongly() -> None:
    """The three-token row needs the fallback: the scan's state rounds to another number than the exact sum."""
    weights = oracle.reference(row_of("00000000 BE4B7DF5 C2A49463"), ONE).weights.tolist()
    total = weights[0] + weights[1]
    residue = (weights[0] - total) + weights[1]
    assert total + weights[2] == total  # so the third token is all residue
    compensation = residue + weights[2]
    assert total + compensation != math.fsum(weights)
    assert oracle.rounded_sum(total, compensation, 3) is None


@settings(max_examples=500, deadline=None)
@given(rows())
def test_sums_read_off_the_scan_are_fsums(drawn: tuple[Row, np.float32]) -> None:
    """Wherever the lemma decides, at every prefix of a row, its sum is math.fsum's."""
    weights = spec.specification(*drawn).weights.tolist()
    total, compensation = weights[0], 0.0
    for count, weight in enumerate(weights[1:], start=2):
        rounded = total + weight
        compensation += (total - rounded) + weight
        total = rounded
        assert oracle.rounded_sum(total, compensation, count) in (None, math.fsum(weights[:count]))


def test_ordinary_sums_need_no_fallback() -> None:
    """The lemma decides all three sums of an ordinary row of 3,000 tokens."""
    weights = oracle.reference(normal(3)(np.random.default_rng(3), 3000), np.float32(0.9)).weights
    total = np.cumsum(weights)
    compensation = np.cumsum(np.append(0.0, (total[:-1] - total[1:]) + weights[1:]))
    assert oracle.rounded_sum(float(total[-1]), float(compensation[-1]), 3000) == math.fsum(weights.tolist())


# ---------------------------------------------------------------- p and the domain


def test_p_is_the_fp32_value_and_not_the_decimal() -> None:
    """At p = 0.8 the fp32 value lies above the decimal, so that one more token is needed."""
    case = next(c for c in cases() if c.id == "H13")
    assert oracle.reference(case.logits, np.float32(0.8)).count == 3
    assert oracle.reference(case.logits, float(np.float32(0.8))).count == 3
    with pytest.raises(ValueError, match=r"^p: 0\.8, a finite fp32 value expected$"):
        oracle.reference(case.logits, 0.8)


@pytest.mark.parametrize("p", [math.nan, math.inf, -math.inf, np.float32("nan"), np.float32("inf"), 1e300, 1e-46])
def test_p_that_is_no_finite_fp32_is_refused(p: float) -> None:
    """NaN, infinities and values that fp32 does not hold raise, with the value in the message."""
    with pytest.raises(ValueError, match=re.escape(f"p: {float(p)!r}, a finite fp32 value expected")):
        oracle.reference(np.zeros(3, np.float32), p)


@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(0, np.float32),
        np.zeros((2, 3), np.float32),
        np.float32(1) * np.ones((), np.float32),
        np.zeros(3, np.float64),
        np.zeros(3, np.float16),
        np.zeros(3, np.dtype(np.float32).newbyteorder()),
    ],
    ids=["empty", "rank 2", "scalar", "float64", "float16", "other byte order"],
)
def test_logits_of_another_kind_are_refused(logits: Row) -> None:
    """Only a non-empty float32 vector in native byte order is a row."""
    with pytest.raises(ValueError, match=r"float32 \[V\] with V >= 1 expected") as caught:
        oracle.reference(np.asarray(logits), ONE)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_nonfinite_logits_are_refused_by_token(bad: float) -> None:
    """The message names the first token that is not finite, and its value."""
    with pytest.raises(ValueError, match=f"^logits: token 2 is {bad}, a finite number expected$"):
        oracle.reference(np.array([0, 1, bad, bad], np.float32), ONE)


def test_p_of_zero_or_less_keeps_one_token_and_p_above_one_is_never_reached() -> None:
    """The core admits them; the gate is what rejects them."""
    row = np.array([1.0, 2.0], np.float32)
    for p in (0.0, -1.0):
        least = oracle.reference(row, p)
        assert (least.count, least.certified, least.kept().tolist()) == (1, True, [False, True])
    most = oracle.reference(row, 2.0)
    assert (most.count, most.certified, most.kept().tolist()) == (0, False, [False, False])


def test_a_reference_cannot_be_changed() -> None:
    """Its arrays are read-only, which the shared total of its masses relies on."""
    fixed = oracle.reference(np.array([1.0, 2.0], np.float32), ONE)
    with pytest.raises(ValueError, match="read-only"):
        fixed.weights[0] = 2.0
    with pytest.raises(ValueError, match="read-only"):
        fixed.order[0] = 0


# ---------------------------------------------------------------- imports


def test_the_reference_loads_nothing_of_what_it_judges() -> None:
    """A fresh interpreter that imports the oracle has loaded neither torch, triton, papermill nor other modules."""
    code = (
        "import sys, toppgate.spec\n"
        "assert {m for m in sys.modules if m.startswith('toppgate')} == {'toppgate', 'toppgate.spec'}, 'spec'\n"
        "import toppgate.oracle, toppgate.masses\n"
        "ours = {m for m in sys.modules if m.startswith('toppgate.')}\n"
        "assert ours == {'toppgate.order', 'toppgate.spec', 'toppgate.masses', 'toppgate.oracle'}, ours\n"
        "foreign = {'torch', 'triton', 'papermill', 'vllm', 'scipy'} & set(sys.modules)\n"
        "assert not foreign, foreign\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
