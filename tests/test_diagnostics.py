"""The numbers behind the pictures, counted by hand; and the pictures of none and of very many rows."""

import base64
import io
import re
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from report_data import make_rows

from toppgate import diagnostics, figures, pictures

Row = dict[str, Any]


def make_row(**columns: Any) -> Row:
    """Return an ordinary row that passed, with some columns."""
    return {"role": "ordinary", "code": "pass", **columns}


def test_the_count_bound_leaves_forced_rows_out() -> None:
    """Points are counted by oracle's count and absolute difference, and say what the rule says of them."""
    rows = [make_row(kept_oracle=3637, kept_patch=patch) for patch in (3637, 3655, 3656, 3619, 3618)]
    rows += [make_row(role="probe", kept_oracle=1, kept_patch=900), make_row(kept_oracle=5), make_row(kept_patch=5)]
    found = diagnostics.count_bound(rows)
    assert found.points == {(3637, 0, True): 1, (3637, 18, True): 2, (3637, 19, False): 2}
    assert found.over == 2
    assert pictures.bound_finding(found) == (
        "Of 5 rows, the patch keeps as many tokens as the oracle in 1 and is over the count bound in 2. The largest "
        "difference is 19 tokens, where the oracle keeps 3,637."
    )


def test_tails_count_rows_with_at_least_a_mass() -> None:
    """A curve falls from the number of rows that differ at all to that of rows with the largest mass."""
    rows = [make_row(mass_stock=mass, mass_patch=0) for mass in (1e-6, 0, 3e-6, 1e-6, 2e-6)]
    rows += [make_row(role="forced", mass_stock=1.0), make_row(mass_stock=None)]
    stock, patch, both = diagnostics.mass_tails(rows)
    assert (stock.rows, stock.zero, stock.largest) == (5, 1, 3e-6)
    assert stock.curve == ((1e-6, 4), (1e-6, 3), (2e-6, 2), (3e-6, 1))
    assert (patch.rows, patch.zero, patch.curve, patch.largest) == (5, 5, (), 0.0)
    assert (both.rows, both.curve) == (0, ())
    assert pictures.mass_finding([stock, patch, both]) == (
        "Stock and oracle differ in 4 of 5 rows, by a mass of at most 3e-06; patch and oracle differ in 0 of 5 rows, "
        "by a mass of at most 0; stock and patch differ in 0 of 0 rows, by a mass of at most 0."
    )


def test_a_long_curve_is_thinned_and_keeps_its_ends() -> None:
    """Of 5,000 rows a few hundred points are kept, the first and the last among them."""
    stock, *_ = diagnostics.mass_tails([make_row(mass_stock=1e-9 * (1 + index)) for index in range(5000)])
    assert len(stock.curve) <= diagnostics.MOST_POINTS + 1
    assert (stock.curve[0], stock.curve[-1]) == ((1e-9, 5000), (1e-9 * 5000, 1))


def test_margins_by_outcome_and_decade() -> None:
    """The smaller margin counts; an exact mask, another mask and each code are kept apart, in this order."""
    rows = [
        make_row(margin={"below": 2e-6, "above": 5e-5}, equal_patch=True),
        make_row(margin={"below": 3e-5, "above": 1.5e-5}, equal_patch=False),
        make_row(margin={"below": 3e-5, "above": 1e-5}, equal_patch=False),
        make_row(margin={"below": 0.5, "above": -1e-20}, code="patch_hole"),
        make_row(margin={"below": 4e-9, "above": 4e-9}, code="stock_under_keep"),
        make_row(margin=None, code="patch_hole"),
        make_row(margin={"below": 0.5, "above": 0.5}, role="forced"),
    ]
    found = diagnostics.margins(rows)
    assert found.cells == {
        (diagnostics.EXACT, -6): 1,
        (diagnostics.NEAR, -5): 2,
        ("patch_hole", None): 1,
        ("stock_under_keep", -9): 1,
    }
    assert found.outcomes == (diagnostics.EXACT, diagnostics.NEAR, "stock_under_keep", "patch_hole")
    said = pictures.margin_finding(found)
    assert "pass, another mask: 2 rows, margins from 1e-5 to below 1e-4" in said
    assert "patch_hole: 1 row, no margin above 0" in said


@pytest.mark.parametrize("rows", [[], [{}, *make_rows()[:8]]])
def test_pictures_of_few_rows(rows: list[Row]) -> None:
    """No row, a row without values, forced rows: each picture is drawn, with words that say what it shows."""
    assert pictures.gallery(rows).count("<img") == 5
    assert 'alt=""' not in pictures.gallery(rows)


def test_pictures_do_not_grow_with_rows() -> None:
    """All pictures of 5,040 rows take less than 600 kB, and the same bytes twice."""
    rows = make_rows(copies=84, stop=True)
    gallery = pictures.gallery(rows)
    assert len(gallery) < 600_000
    assert gallery == pictures.gallery(rows)


def test_rare_colours_are_kept() -> None:
    """Few colours are left in a picture, and one that a single mark has is among them, to a shade."""
    figure = Figure(dpi=100)
    axes = figure.add_subplot()
    axes.scatter(np.arange(3000) % 60, np.arange(3000) // 60, c=np.linspace(0, 1, 3000), s=9)
    axes.scatter([30], [70], c="#d55e00", s=30)
    data = re.findall('base64,([^"]*)"', pictures.figure(figure, "alt"))[0]
    with Image.open(io.BytesIO(base64.b64decode(data))) as image:
        colours = np.array([colour for _, colour in image.convert("RGB").getcolors() or []], dtype=int)
    assert len(colours) <= pictures.PALETTE
    assert np.abs(colours - [0xD5, 0x5E, 0x00]).max(axis=1).min() <= 16


def test_each_curve_ends_in_its_own_mark() -> None:
    """The three curves differ in line and mark, not in colour alone."""
    axes = figures.mass_tails(diagnostics.mass_tails(make_rows())).axes[0]
    looks = {(line.get_linestyle(), line.get_marker()) for line in axes.lines}
    assert len(looks) == len(axes.lines) == 3
