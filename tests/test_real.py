"""True in the reals, or not: every answer against brute force in ball arithmetic, and what fp32 sums can do."""

import itertools
import math
import sys
from collections import Counter
from fractions import Fraction

import flint
import numpy as np
import pytest
import reals
from engine_rows import DISTRIBUTIONS, ONE, normal, probabilities
from numpy.random import Generator
from safetensors.numpy import load_file
from strategies import Row, bfloat16, prefix_ratio
from test_oracle import REAL_LOGITS
from truth import cases

from toppgate import masses, oracle, real
from toppgate.real import RealBoundary

HALF = np.float32(0.5)


def certified(row: Row, p: np.float32) -> tuple[oracle.Reference, RealBoundary]:
    """Return a row's reference and what is said of its boundary."""
    reference = oracle.reference(row, p)
    return reference, real.certify(row, reference)


def right(row: Row, p: np.float32) -> RealBoundary:
    """Return what is said of a row's boundary, once brute force agrees with it."""
    reference, said = certified(row, p)
    true = reals.boundary(row, p)
    assert said.verdict == ("equal" if reference.count == true else "differs"), (reference.count, true, row.tobytes())
    return said


# ---------------------------------------------------------------- against brute force


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_every_answer_is_right_on_seeded_rows(name: str) -> None:
    """On 45 rows of each kind, p near true prefix ratios included, the answer is brute force's, and never undecided."""
    rng = np.random.default_rng(list(b"real" + name.encode()))
    for v in (1, 2, 3, 5, 17, 64, 200, 400, 700):
        row = DISTRIBUTIONS[name](rng, v)
        for p in probabilities(rng, row):
            if 0 < p < 1:
                right(row, p)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("above", [True, False], ids=["just reached", "just missed"])
def test_every_answer_is_right_on_near_coincidences(steps: int, above: bool) -> None:
    """On 100 rows whose real margin is as small as 1e-40 and less, the answer is brute force's, and never undecided."""
    rng = np.random.default_rng([steps, above])
    said: Counter[str | None] = Counter()
    for _ in range(100):
        row, p, head = reals.near_coincidence(rng, steps, above)
        assert reals.boundary(row, p) == (head if above else head + 1)
        said[right(row, p).how] += 1
    assert said["ball"] > 90 if steps > 2 else said["cheap"] > 0


def off_by_one(count: int) -> list[tuple[Row, np.float32]]:
    """Return rows whose certified boundary is not the true one."""
    rng = np.random.default_rng(40)
    found: list[tuple[Row, np.float32]] = []
    while len(found) < count:
        row, p, head = reals.near_coincidence(rng, 4, above=False)
        reference = oracle.reference(row, p)
        if reference.certified and reference.count == head:
            assert 0 < -reals.margin(row, p, head) < flint.arb(2) ** -60
            found.append((row, p))
    return found


def test_certified_is_not_true() -> None:
    """Rows whose certified boundary is off by one in the reals are found out."""
    assert {certified(row, p)[1].verdict for row, p in off_by_one(50)} == {"differs"}


def test_without_flint_nothing_is_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without python-flint those rows are undecided, with a ratio below 1; ordinary rows are decided all the same."""
    rows = off_by_one(20)
    monkeypatch.setitem(sys.modules, "flint", None)
    for row, p in rows:
        said = certified(row, p)[1]
        assert (said.verdict, said.how) == ("undecided", None)
        assert said.ratio is not None
        assert said.ratio <= 1
    assert certified(normal(3)(np.random.default_rng(5), 300), np.float32(0.9))[1].verdict == "equal"


def test_precision_has_an_end() -> None:
    """Where the bits allowed do not suffice the answer is undecided; with a bit more of them it is right."""
    rng = np.random.default_rng(9)
    row, p, _ = reals.near_coincidence(rng, 9, above=True)
    reference = oracle.reference(row, p)
    assert real.certify(row, reference, most_bits=128).verdict == "undecided"
    assert real.certify(row, reference).how == "ball"


def test_the_callers_precision_is_left_alone() -> None:
    """Ball arithmetic gives flint's global precision back."""
    before = flint.ctx.prec
    row, p = off_by_one(1)[0]
    assert certified(row, p)[1].how == "ball"
    assert flint.ctx.prec == before


# ---------------------------------------------------------------- settled exactly


@pytest.mark.parametrize("others", [0.0, -3.0, 999.0])
@pytest.mark.parametrize("ties", [2, 4, 6, 50])
def test_ties_of_a_huge_maximum_at_even_count(ties: int, others: float) -> None:
    """At p = 1/2 binary64 keeps half of an even number of ties of 1e9; in the reals the far tail asks for one more."""
    row = np.full(ties + 30, others, np.float32)
    row[3 : 3 + ties] = 1e9
    reference, said = certified(row, HALF)
    assert (reference.count, reference.certified) == (ties // 2, True)
    assert said == RealBoundary("differs", None, "exact")
    assert reals.boundary(row, HALF) == ties // 2 + 1


def test_ties_of_a_huge_maximum_at_odd_count() -> None:
    """Where p times the number of ties is not whole both boundaries agree."""
    row = np.zeros(30, np.float32)
    row[:7] = 1e9
    assert right(row, HALF).verdict == "equal"
    assert certified(row, HALF)[0].count == 4


def test_ties_with_a_tail_that_is_not_tiny() -> None:
    """The lemma on ties also settles p n0 whole and a tail below 1/p, and not a tail above it."""
    tail = np.full(40, -4.0, np.float32)  # 0.73 in all, 0.37 with p
    assert certified(np.append(np.zeros(8, np.float32), tail), HALF)[0].count == 5
    for copies in (1, 3):
        assert right(np.append(np.zeros(8, np.float32), np.tile(tail, copies)), HALF).verdict == "equal"


def test_equal_logits_have_a_rational_boundary() -> None:
    """With all logits equal the true boundary is the least c >= p V, whatever binary64 says."""
    for size, p in itertools.product((1, 2, 3, 10, 1000, 4097), (1e-45, 0.1, 0.3, 0.5, 0.9, 1 - 2.0**-24)):
        reference, said = certified(np.full(size, -7.25, np.float32), np.float32(p))
        true = next(c for c in range(1, size + 1) if c >= Fraction(float(np.float32(p))) * size)
        assert said == RealBoundary("equal" if reference.count == true else "differs", None, "exact")


def test_signed_zeros_are_equal_logits() -> None:
    """A row of zeros of both signs is settled as a row of equal logits."""
    assert certified(np.array([0.0, -0.0, 0.0], np.float32), HALF)[1] == RealBoundary("equal", None, "exact")


def test_p_of_one_asks_for_every_token() -> None:
    """At p = 1 the true boundary is V; binary64 certifies less once the rest is lost in rounding."""
    row = np.array([0, -1, -50], np.float32)
    reference, said = certified(row, ONE)
    assert (reference.count, reference.certified) == (2, True)
    assert said == RealBoundary("differs", None, "exact")
    assert certified(row[:2], ONE)[1] == RealBoundary("equal", None, "exact")


def test_p_of_zero_or_less_asks_for_one_token() -> None:
    """At p <= 0 the shortest non-empty prefix is the boundary."""
    for p in (0.0, -0.5):
        assert certified(np.array([0, -1], np.float32), np.float32(p))[1] == RealBoundary("equal", None, "exact")


# ---------------------------------------------------------------- the theorem


def one_far_above(rng: Generator, v: int) -> Row:
    """Return one logit far above tiny ones: binary64 differences are inexact, and the weights matter all the same."""
    return np.append(10.0 ** rng.uniform(-20, -5, v - 1) * rng.choice([-1, 1], v - 1), rng.uniform(17, 40)).astype(
        np.float32
    )


def ties_over_a_far_tail(rng: Generator, v: int) -> Row:
    """Return ties of the maximum, whose weights are exact, over a tail that is all compensation."""
    return np.append(np.zeros(3), rng.uniform(-60, -38, v - 3)).astype(np.float32)


BOUND_ROWS = DISTRIBUTIONS | {"one far above": one_far_above, "ties over a far tail": ties_over_a_far_tail}


def excess(row: Row, p: np.float32) -> float:
    """Return the largest share of its bound that the computed margin's real error takes, over all prefixes."""
    reference = oracle.reference(row, p)
    ranked = row[reference.order].astype(np.float64)
    sums = real._Sums.of(ranked, reference)
    with flint.ctx.workprec(1400):
        weights = [(flint.arb(x) - flint.arb(ranked[0])).exp() for x in ranked.tolist()]
        whole = flint.arb(float(p)) * sum(weights, flint.arb(0))
        worst = flint.arb(0)
        for count, prefix in enumerate(itertools.accumulate(weights), start=1):
            computed, bound = (flint.arb(flint.fmpq(f.numerator, f.denominator)) for f in sums.margin(count))
            worst = worst.max(abs(prefix - whole - computed) / bound)
        return float(worst)


@pytest.mark.parametrize("name", BOUND_ROWS)
def test_the_margins_error_is_within_its_bound(name: str) -> None:
    """At every prefix of small rows, p from tiny to near 1, the real error of the computed margin is below E."""
    rng = np.random.default_rng(list(b"bound" + name.encode()))
    for v in (4, 6, 20, 60):
        row = BOUND_ROWS[name](rng, v)
        for p in (1e-6, 0.02, 0.5, 0.98, 1 - 2.0**-24):
            assert excess(row, np.float32(p)) < 1


def test_the_bound_is_no_idle_one() -> None:
    """Some row takes a quarter of its bound, so that one a few times smaller would not hold."""
    rng = np.random.default_rng(4)
    assert max(excess(normal(2)(rng, 3), np.float32(0.3)) for _ in range(100)) > 0.25


def test_exp_is_within_the_assumed_ulp() -> None:
    """On 20,000 points of [-746, 0], subnormal results included, math.exp is within 1 ulp of exp: assumption (A1)."""
    rng = np.random.default_rng(1)
    points = np.concatenate(
        [-rng.uniform(0, 746, 8000), -rng.uniform(700, 746, 6000), -(10.0 ** rng.uniform(-20, 2, 6000))]
    )
    with flint.ctx.workprec(128):
        for point in points.tolist():
            exact, found = flint.arb(point).exp(), math.exp(point)
            assert abs(exact - flint.arb(found)) < flint.arb(math.ulp(found))
    assert math.exp(-746.0) == math.exp(-1e300) == 0.0


def test_ties_of_the_maximum_carry_no_error() -> None:
    """Their weights are exact, so a row of ties over a far tail has a margin far beyond eps."""
    said = right(ties_over_a_far_tail(np.random.default_rng(3), 40), np.float32(0.4))
    assert said.how == "cheap"
    assert said.ratio is not None
    assert said.ratio > 1e20


# ---------------------------------------------------------------- what it says


def test_real_logits_are_equal_by_the_cheap_test() -> None:
    """Every row of real logits, as float32 and rounded to bfloat16, is decided without ball arithmetic: equal."""
    for row in load_file(REAL_LOGITS)["logits"]:
        for logits, p in itertools.product((row, bfloat16(row)), (0.9, 0.95, 0.99)):
            said = certified(logits, np.float32(p))[1]
            assert (said.verdict, said.how) == ("equal", "cheap")
            assert said.ratio is not None
            assert said.ratio > 1e3


def test_the_ratio_is_the_deciding_margin_over_its_bound() -> None:
    """It is the smaller of the two sides; for a moved boundary that is the side that tells."""
    row = normal(2)(np.random.default_rng(8), 50)
    p = prefix_ratio(row, 20, 0)
    reference, said = certified(row, p)
    ranked = row[reference.order].astype(np.float64)
    sums = real._Sums.of(ranked, reference)
    sides = [abs(float(sums.quotient(count))) for count in (reference.count, reference.count - 1)]
    assert said.ratio == min(sides)
    for moved, telling in ((-2, -2), (2, 1)):  # the prefix does not reach p; one token fewer reaches it too
        other = oracle.Reference(**vars(reference) | {"count": reference.count + moved})
        ratio = abs(float(sums.quotient(reference.count + telling)))
        assert real.certify(row, other) == RealBoundary("differs", ratio, "cheap")


def test_rows_json_boundaries_are_decided() -> None:
    """Every admissible case of rows.json has an answer, brute force's."""
    for case in cases():
        if case.reject is None:
            right(case.logits, case.p)


def test_other_logits_and_a_row_without_boundary_are_refused() -> None:
    """The logits must have the reference's shape, and there must be a boundary to speak of."""
    row = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"^logits: shape \[3\], \[2\] expected$"):
        real.certify(np.zeros(3, np.float32), oracle.reference(row, HALF))
    with pytest.raises(ValueError, match="no boundary"):
        real.certify(row, oracle.reference(row, 2.0))


# ---------------------------------------------------------------- within fp32 reach


def first(reference: oracle.Reference, size: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the set of a reference's first tokens."""
    kept = np.zeros(reference.order.size, np.bool_)
    kept[reference.order[:size]] = True
    return kept


def test_reach_measures_the_end_of_a_prefix() -> None:
    """A set's margin is what p would have to move by, and the error is (P + p) gamma_V."""
    row = np.log(np.array([1, 4, 2, 1], np.float32))  # shares 1/2, 1/4, 1/8, 1/8
    reference = oracle.reference(row, np.float32(0.75))
    assert reference.count == 2
    gamma = 4 * 2.0**-24 / (1 - 4 * 2.0**-24)
    for size, mass, expected in ((0, 0, 0.75), (1, 0.5, 0.25), (2, 0.75, 0), (3, 0.875, 0), (4, 1, 0.125)):
        found = real.reach(reference, first(reference, size))
        assert found.margin == pytest.approx(expected, abs=1e-7)
        assert found.error == pytest.approx((mass + 0.75) * gamma, rel=1e-6)
        assert found.verdict == ("inside" if expected == 0 else "outside")


def test_reach_is_inside_up_to_the_error() -> None:
    """A prefix too short by less than the error is inside, one too short by more is outside."""
    row = normal(1)(np.random.default_rng(2), 20_000)
    reference = oracle.reference(row, np.float32(0.9))
    verdicts = {}
    for missing in (1, 10, 50, 100, 1000, 5000):
        found = real.reach(reference, first(reference, reference.count - missing))
        assert found.margin is not None
        lost = masses.mass(reference, first(reference, reference.count - missing))
        assert found.margin == reference.p - lost
        assert (found.verdict == "inside") == (found.margin <= found.error)
        verdicts[missing] = found.verdict
    assert (verdicts[1], verdicts[5000]) == ("inside", "outside")


def test_a_set_with_a_hole_is_never_in_reach() -> None:
    """No boundary makes a set that is no prefix, however little its mass is off."""
    row = np.array([3, 2, 1, 0], np.float32)
    reference = oracle.reference(row, np.float32(0.9))
    kept = np.array([True, False, True, False])
    assert real.reach(reference, kept).verdict == "outside"
    assert real.reach(reference, kept).margin is None


def test_fp32_sums_stay_within_the_error() -> None:
    """In sequential, reversed, shuffled and pairwise order the fp32 comparison is off by less than the error."""
    rng = np.random.default_rng(6)
    for scale, v in ((1, 5_000), (4, 5_000), (8, 60_000)):
        reference = oracle.reference(normal(scale)(rng, v), np.float32(0.9))
        weights = reference.weights.astype(np.float32)
        said = real.reach(reference, reference.kept()).error
        exact = math.fsum(weights[: reference.count].tolist()) - reference.p * math.fsum(weights.tolist())
        for order in (np.arange(v), np.arange(v)[::-1], rng.permutation(v)):
            head = np.cumsum(weights[order[order < reference.count]])[-1]
            whole = np.float32(reference.p) * np.cumsum(weights[order])[-1]
            assert abs(float(head) - float(whole) - exact) < said * reference.normalizer


def test_reach_refuses_what_its_bound_does_not_cover() -> None:
    """Another shape, or so many tokens that the bound says nothing, raises."""
    reference = oracle.reference(np.zeros(3, np.float32), HALF)
    with pytest.raises(ValueError, match=r"^tokens: bool \[2\], bool \[3\] expected$"):
        real.reach(reference, np.zeros(2, np.bool_))
    many = 1 << 24
    long = oracle.Reference(
        np.broadcast_to(np.int32(0), many), np.broadcast_to(np.float64(1), many), 1.0, 0.5, 1, certified=True, p=0.5
    )
    with pytest.raises(ValueError, match=r"^reference: 16777216 tokens, fewer than 2\*\*24 expected$"):
        real.reach(long, np.broadcast_to(np.bool_(True), many))
