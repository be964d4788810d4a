"""Whose a stop is: it decides nothing but is read first."""

import pytest

from toppgate import codes


@pytest.mark.parametrize(
    ("code", "stock_code", "owner"),
    [
        ("pass", "pass", "none"),
        ("pass", "patch_hole", "none"),
        ("patch_hole", "patch_hole", "shared"),
        ("patch_hole", "pass", "patch"),
        ("count_bound_exceeded", "patch_hole", "patch"),
        ("symmetric_difference_regression", "pass", "patch"),
        ("forced_all_masked", "forced_all_masked", "shared"),
        ("forced_token_dropped", "forced_all_masked", "patch"),
        ("stock_under_keep", "patch_under_keep", "stock"),
        ("timeout", None, "neither"),
    ],
)
def test_whose_a_stop_is(code: str, stock_code: str | None, owner: str) -> None:
    """A stop is the patch's alone if stock, by the same rules, has none or another; stock's own fault never is."""
    assert codes.owner(code, stock_code) == owner
