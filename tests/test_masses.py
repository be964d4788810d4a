"""Masses, margins, reach and ties against Fractions and integers."""

import math
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from strategies import Row, rows
from truth import Case, cases, nucleus, ranked, units

from toppgate import masses, oracle

ONE = np.float32(1)

admissible = pytest.mark.parametrize("case", [c for c in cases() if c.reject is None], ids=lambda c: c.id)


def hexes(values: NDArray[np.float64]) -> list[str]:
    """Return binary64 values so that equal means equal in every bit."""
    return [value.hex() for value in values.tolist()]


@settings(max_examples=500, deadline=None)
@given(st.lists(st.floats(0, allow_infinity=False, allow_nan=False), max_size=60))
@example([5e-324, 2.0**-1022, 2.0**-1022 - 5e-324, 1.7976931348623157e308])
def test_exact_sum_is_exact(values: list[float]) -> None:
    """The integer sum equals the sum of the terms' own integers, over all of binary64."""
    values = [abs(value) for value in values]  # -0.0 is refused, below
    assert masses.exact_sum(np.array(values, np.float64)) == sum(units(value) for value in values)


def test_exact_sum_of_many_full_significands_is_exact() -> None:
    """A million terms with all significand bits set add up without a rounding."""
    largest = 2.0 - 2.0**-52
    assert masses.exact_sum(np.full(1_000_000, largest)) == 1_000_000 * units(largest)


@pytest.mark.parametrize("bad", [-1.0, -0.0, math.inf, -math.inf, math.nan])
def test_exact_sum_refuses_what_it_cannot_add(bad: float) -> None:
    """A weight that is negative, infinite or NaN raises."""
    with pytest.raises(ValueError, match=r"finite values of 0\.0 or more expected"):
        masses.exact_sum(np.array([1.0, bad]))


def test_exact_sum_refuses_more_terms_than_it_adds_exactly() -> None:
    """Beyond 2**26 terms the halves could be rounded, so the sum is refused before anything is read."""
    too_many = np.broadcast_to(np.float64(1.0), (1 << 26) + 1)
    with pytest.raises(ValueError, match=r"^weights: 67108865 values, at most 67108864 expected$"):
        masses.exact_sum(too_many)


@settings(max_examples=500, deadline=None)
@given(rows(), st.randoms(use_true_random=False))
def test_masses_are_rounded_exact_quotients(drawn: tuple[Row, np.float32], random: Random) -> None:
    """The mass of any set is the correctly rounded quotient of exact sums."""
    row, p = drawn
    chosen = np.array([random.random() < 0.5 for _ in row], np.bool_)
    order, weights = ranked(row)
    part = sum(weight for token, weight in zip(order, weights, strict=True) if chosen[token])
    assert masses.mass(oracle.reference(row, p), chosen).hex() == float(Fraction(part, sum(weights))).hex()


def test_masses_of_two_rows_do_not_share_a_normalizer() -> None:
    """Masses taken alternately on two rows are those taken one row at a time."""
    first = oracle.reference(np.array([0.0, 0.0], np.float32), ONE)
    second = oracle.reference(np.array([0.0, 0.0, 0.0, 0.0], np.float32), ONE)
    for _ in range(2):
        assert masses.mass(first, np.array([True, False])) == 0.5
        assert masses.mass(second, np.array([True, False, False, False])) == 0.25


@pytest.mark.parametrize("tokens", [np.ones(3, np.int64), np.ones(2, np.bool_), np.ones((1, 3), np.bool_)])
def test_mass_refuses_a_set_of_another_kind(tokens: NDArray[np.bool_]) -> None:
    """Token ids, or a mask of another length, are no set by token id."""
    with pytest.raises(ValueError, match=r"bool \[3\] expected"):
        masses.mass(oracle.reference(np.zeros(3, np.float32), ONE), tokens)


@settings(max_examples=300, deadline=None)
@given(rows())
def test_margins_of_any_row_are_rounded_exact_margins(drawn: tuple[Row, np.float32]) -> None:
    """At the reference's own count, both margins are the correctly rounded exact differences to the exact p."""
    row, p = drawn
    found = oracle.reference(row, p)
    if found.count == 0:
        with pytest.raises(ValueError, match="no boundary"):
            masses.margin(found)
        return
    weights = ranked(row)[1]
    shares = [Fraction(sum(weights[:c]), sum(weights)) for c in (found.count - 1, found.count)]
    exact = (float(Fraction(float(p)) - shares[0]), float(shares[1] - Fraction(float(p))))
    assert hexes(np.array(masses.margin(found))) == hexes(np.array(exact))


def test_below_is_p_itself_where_one_token_is_kept() -> None:
    """For a single kept token the shorter prefix is empty."""
    p = np.float32(0.3)
    assert masses.margin(oracle.reference(np.array([5.0, 0.0], np.float32), p))[0] == float(p)


@admissible
def test_reaching_the_target_starts_at_the_boundary(case: Case) -> None:
    """The certified prefix reaches the target, one token fewer does not, all tokens do and none never does."""
    found = oracle.reference(case.logits, case.p)
    wanted = {0: False, found.count - 1: False, found.count: True, found.order.size: True}
    assert {count: masses.reaches_target(found, count) for count in wanted} == wanted


def test_reaching_follows_the_certificate_and_not_the_scan() -> None:
    """On a row whose scan is early the scan's own count does not reach the target by fsum."""
    bits = np.array([0, 0xC0332AA2, 0xC213C71C, 0xC246E68C, 0xC2812BD8, 0xC288C3A8], np.uint32)  # see test_oracle
    early = oracle.reference(bits.view(np.float32), ONE)
    assert [masses.reaches_target(early, count) for count in (early.count, early.count + 1)] == [False, True]


def test_the_empty_prefix_does_not_reach_a_target_of_zero() -> None:
    """Even p = 0 wants one token."""
    found = oracle.reference(np.zeros(2, np.float32), 0.0)
    assert [masses.reaches_target(found, count) for count in (0, 1)] == [False, True]


@pytest.mark.parametrize("count", [-1, 3])
def test_reaching_refuses_a_count_outside_the_row(count: int) -> None:
    """A prefix has 0 to V tokens."""
    with pytest.raises(ValueError, match=f"^count: {count}, 0 to 2 expected$"):
        masses.reaches_target(oracle.reference(np.zeros(2, np.float32), ONE), count)


def test_tie_group_counts_equal_logits_and_not_equal_weights() -> None:
    """Signed zeros tie; distinct logits whose weights are equal do not."""
    zeros = np.array([0.0, -0.0, 3.0, 0.0, -1.0], np.float32)
    assert masses.tie_group(oracle.reference(zeros, np.float32(0.8)), zeros) == 1
    assert masses.tie_group(oracle.reference(zeros, np.float32(0.95)), zeros) == 3
    tiny = np.array([1.0, 1e-30, 2e-30], np.float32)  # less than half an ulp away from 0 when 1 is subtracted
    last = oracle.reference(tiny, np.float32(0.9))
    assert last.count == 3
    assert last.weights[1] == last.weights[2]
    assert masses.tie_group(last, tiny) == 1


def test_tie_group_refuses_another_rows_logits_and_a_row_without_boundary() -> None:
    """The logits must have the reference's shape, and there must be a boundary token."""
    row = np.zeros(2, np.float32)
    with pytest.raises(ValueError, match=r"^logits: shape \[3\], \[2\] expected$"):
        masses.tie_group(oracle.reference(row, ONE), np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="no boundary"):
        masses.tie_group(oracle.reference(row, 2.0), row)


@admissible
def test_margins_are_the_rounded_exact_margins(case: Case) -> None:
    """Both margins are the correctly rounded exact rationals, and they agree with rows.json."""
    exact = nucleus(case.logits, case.p)
    below, above = masses.margin(oracle.reference(case.logits, case.p))
    assert (below.hex(), above.hex()) == (float(exact.below).hex(), float(exact.above).hex())
    assert math.isclose(below, case.margin["below"], rel_tol=1e-5)
    assert math.isclose(above, case.margin["above"], rel_tol=1e-5)
