"""Counts of the verdict that decide nothing but are read first."""

import pytest

from toppgate import judge


@pytest.mark.parametrize(
    ("code", "stock_code", "alone"),
    [
        ("pass", "pass", False),
        ("pass", "patch_hole", False),
        ("patch_hole", "patch_hole", False),
        ("patch_hole", "pass", True),
        ("count_bound_exceeded", "patch_hole", True),
        ("symmetric_difference_regression", "pass", True),
        ("forced_all_masked", "forced_all_masked", False),
        ("forced_token_dropped", "forced_all_masked", True),
        ("stock_under_keep", "patch_under_keep", False),
        ("timeout", None, False),
    ],
)
def test_stops_of_the_patch_alone(code: str, stock_code: str | None, alone: bool) -> None:
    """A stop is the patch's alone if stock, by the same rules, has none or another; stock's own fault never is."""
    assert judge._unshared({"code": code, "stock_code": stock_code}) is alone
