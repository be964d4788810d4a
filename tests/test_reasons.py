"""Sentences with the numbers behind a code, and strips: what they say follows from the row."""

import re
from typing import Any

import numpy as np
import pytest

from toppgate import codes, oracle, reasons, strips
from toppgate.neighbourhood import Neighbourhood, neighbourhood

#: Six tokens, p 0.7: tokens 4 and 1 alone reach 0.64 of the mass; 0 and 5, equal, come next, and 0 is the boundary.
LOGITS = np.array([1.0, 2.0, -1.0, 0.0, 3.0, 1.0], np.float32)
P = np.float32(0.88)


def make_around(stock: list[int], patch: list[int]) -> Neighbourhood:
    """Return the neighbourhood of the row when these tokens are kept."""
    sets = [np.isin(np.arange(LOGITS.size), kept) for kept in (stock, patch)]
    return neighbourhood(oracle.reference(LOGITS, P), LOGITS, *sets)


def make_row(code: str, **columns: Any) -> dict[str, Any]:
    """Return a stopped row."""
    return {"code": code, "observed": None, **columns}


@pytest.mark.parametrize(
    ("row", "sets", "said"),
    [
        (
            make_row("count_bound_exceeded", kept_patch=3679, kept_oracle=3637),
            None,
            "It keeps 3,679 tokens, the oracle 3,637: 42 more, where at most 18 are accepted.",
        ),
        (
            make_row("count_bound_exceeded", kept_patch=0, kept_oracle=9),
            None,
            "It keeps 0 tokens, the oracle 9: 9 fewer, where at most 3 are accepted.",
        ),
        (
            make_row(
                "symmetric_difference_regression", symdiff_patch=1, symdiff_stock=0, mass_patch=9.26e-5, mass_stock=0
            ),
            None,
            "It differs in 1 token (mass 9.3e-05), stock in 0 (mass 0).",
        ),
        (
            make_row("patch_under_keep"),
            ([4, 1, 0], [4, 1]),
            "It masks 1 of the oracle's 3: that is token 0 at position 2.",
        ),
        (
            make_row("stock_under_keep"),
            ([4], [4, 1, 0, 5]),
            (
                "It masks 2 of the oracle's 3: the first is token 1 at position 1. "
                "The patch keeps all of the oracle's 3, and 1 more."
            ),
        ),
        (
            make_row("stock_under_keep"),
            ([4, 1], [4, 1]),
            "It masks 1 of the oracle's 3: that is token 0 at position 2. So does the patch.",
        ),
        (
            make_row("patch_noncanonical_tie"),
            ([4, 1, 0], [4, 1, 5]),
            (
                "It keeps 3 tokens, the oracle 3. It masks token 0 and keeps token 5, which has the same logit, "
                "1.0, and a higher id."
            ),
        ),
        (
            make_row("patch_hole"),
            ([4, 1, 0], [4, 0, 3]),
            "It masks token 1 at position 1, logit 2.0, and keeps token 3 at position 4, logit 0.0.",
        ),
        (
            make_row("forced_extra_tokens", kept_patch=3, kept_stock=0),
            None,
            "It keeps 3 tokens, stock 0; only the forced one may stay.",
        ),
        (make_row("probe_unexpected", observed="pass"), None, "It gave pass."),
        (make_row("invalid_p", p_fp32=1.0), None, "p is 1.0."),
        (make_row("timeout"), None, ""),
    ],
)
def test_numbers_behind_a_code(row: dict[str, Any], sets: tuple[list[int], list[int]] | None, said: str) -> None:
    """Each rule says which numbers it saw."""
    assert reasons.numbers(row, None if sets is None else make_around(*sets)) == said


@pytest.mark.parametrize("code", [*codes.SENTENCES, "unknown"])
def test_missing_numbers_are_not_made_up(code: str) -> None:
    """A row without columns, or with nulls, is given no sentence, whatever its code."""
    assert reasons.numbers({"code": code}, None) == ""
    nulls = dict.fromkeys(("kept_patch", "kept_stock", "kept_oracle", "symdiff_patch", "symdiff_stock", "observed"))
    assert reasons.numbers({**nulls, "code": code, "mass_patch": None, "mass_stock": None}, None) == ""


def spans(path: str) -> list[tuple[float, float]]:
    """Return where the rectangles of an SVG path begin and end."""
    return [(float(x), float(x) + float(w)) for x, w in re.findall(r"M([\d.]+) \d+h([\d.]+)v", path)]


def test_a_strip_is_to_scale() -> None:
    """Kept, extra and lost tokens lie where their positions are, beside the boundary's line."""
    around = make_around([4, 1, 0, 5, 3], [4, 0])
    assert around.window == (0, 6)
    html = strips.strip(around, "here")
    unit = (strips.WIDTH - strips.LEFT) / 6
    found = {
        part: spans("".join(re.findall(f'class="s-{part}" d="([^"]*)"', html))) for part in ("kept", "extra", "lost")
    }
    place: list[Any] = [pytest.approx(strips.LEFT + unit * at, abs=0.2) for at in range(7)]
    assert found["kept"] == [(place[0], place[3]), (place[0], place[3]), (place[0], place[1]), (place[2], place[3])]
    assert found["extra"] == [(place[3], place[5])]
    assert found["lost"] == [(place[1], place[2])]
    assert float(re.findall(r'class="s-edge" d="M([\d.]+) ', html)[0]) == place[3]
    assert '<g id="here">' in html
    assert '<use href="#here"/>' in strips.again(around, "here")


def test_a_strip_says_what_it_shows() -> None:
    """Its text alternative states who keeps what, and the ties."""
    assert strips.finding(make_around([4, 1, 0, 5, 3], [4, 0, 5])) == (
        "Positions 0 to 5 of the sorted row. The oracle keeps those below 3; stock keeps 2 beyond; patch loses 1 of "
        "them and keeps 1 beyond. 2 tokens are tied at the boundary."
    )
    assert "stock keeps the same; patch loses 3 of them." in strips.finding(make_around([4, 1, 0], []))
