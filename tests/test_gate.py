"""The gate against a brute force written from the contract, and against changes of its own text."""

import ast
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import brute_gate
import numpy as np
import numpy.typing as npt
import pytest
from brute_gate import Side
from gate_rows import NOTHING, SOURCE, Row, admitted, counted, disagreements, flat_row, keeps, mutate
from hypothesis import given, settings
from hypothesis import strategies as st

from toppgate import codes, gate

# --- every code, by hand --------------------------------------------------------------------------------------------

FORCED_ROW = Row([0.0, 9.0, 9.0], stock=NOTHING, patch=keeps(1), token=1)
FORCED = {
    "forced_nan": dataclasses.replace(FORCED_ROW, patch=Side(frozenset({1}), altered=1, nan=True)),
    "output_altered": dataclasses.replace(FORCED_ROW, patch=Side(frozenset({1}), altered=1)),
    "forced_all_masked": dataclasses.replace(FORCED_ROW, patch=NOTHING),
    "forced_token_dropped": dataclasses.replace(FORCED_ROW, patch=keeps(0)),
    "forced_argmax_wrong": dataclasses.replace(FORCED_ROW, patch=keeps(1, 2), token=2),
    "forced_extra_tokens": dataclasses.replace(FORCED_ROW, patch=keeps(0, 1)),
}

ORDINARY_ROW = Row([2.0, 1.0, 1.0, 0.0, -1.0, -2.0], stock=keeps(0, 1), patch=keeps(0, 1), count=2)
ORDINARY = {
    "output_altered": dataclasses.replace(ORDINARY_ROW, stock=Side(frozenset({0, 1}), altered=1)),
    "oracle_boundary_ambiguous": dataclasses.replace(ORDINARY_ROW, certified=False),
    "stock_under_keep": dataclasses.replace(ORDINARY_ROW, stock=keeps(0)),
    "patch_noncanonical_tie": dataclasses.replace(ORDINARY_ROW, patch=keeps(0, 2)),
    "patch_hole": dataclasses.replace(ORDINARY_ROW, patch=keeps(0, 1, 3)),
    "patch_under_keep": dataclasses.replace(ORDINARY_ROW, patch=keeps(0)),
    "count_bound_exceeded": dataclasses.replace(ORDINARY_ROW, patch=keeps(*range(6))),
    "symmetric_difference_regression": dataclasses.replace(ORDINARY_ROW, patch=keeps(0, 1, 2)),
}

ADMISSIBILITY: dict[str, tuple[list[float], float]] = {
    "nonfinite_logits": ([0.0, math.nan], math.nan),
    "invalid_p": ([0.0, 1.0], math.nan),
}


@pytest.mark.parametrize(("table", "examples"), [(codes.FORCED, FORCED), (codes.ORDINARY, ORDINARY)])
def test_every_row_code_has_an_example(table: dict[str, str], examples: dict[str, Row]) -> None:
    """Each code of a forced and of an ordinary row is given by its hand-made example, the brute force agreeing."""
    assert {code: (example.judged()[0], example.expected()[0]) for code, example in examples.items()} == {
        code: (code, code) for code in table
    }


def test_the_examples_differ_from_a_row_that_passes() -> None:
    """The rows that the examples were spoiled from pass, so each code is the spoiling's doing."""
    assert FORCED_ROW.judged() == ("pass", None, (), "forced_all_masked")
    assert ORDINARY_ROW.judged() == ("pass", None, (), "pass")


def test_every_admissibility_code_has_an_example() -> None:
    """Logits are looked at before p, and a NaN p is invalid."""
    got = {code: admitted(gate, *example) for code, example in ADMISSIBILITY.items()}
    assert got == {code: code for code in codes.ADMISSIBILITY}


def test_later_findings_are_listed_in_rule_order() -> None:
    """One row that breaks rules 1, 4, 5, 6 and 7 names the first and lists the others."""
    row = Row([float(-i) for i in range(12)], keeps(*range(6)), Side(frozenset({11}), altered=1), count=6)
    later = ("patch_hole", "patch_under_keep", "count_bound_exceeded", "symmetric_difference_regression")
    assert row.judged() == ("output_altered", None, later, "pass")


@pytest.mark.parametrize("certified", [True, False])
def test_an_empty_oracle_prefix_never_passes(certified: bool) -> None:
    """A count of 0 is no boundary, even if it calls itself certified and both sides keep nothing."""
    assert Row([1.0, 0.0], NOTHING, NOTHING, count=0, certified=certified).judged()[0] == "oracle_boundary_ambiguous"


# --- rule 6 at its edges --------------------------------------------------------------------------------------------


def test_count_bound_edges() -> None:
    """A difference of 3 is always accepted, of 4 from 801 tokens on, of 5 from 1001; exactly 0.5 % is not."""
    counts = [*range(599, 802), 1000, 1001]
    accepted = {count: [d for d in (3, 4, 5) if flat_row(count, d).judged()[0] == "pass"] for count in counts}
    assert accepted == {n: [3, 4, 5] if n >= 1001 else [3, 4] if n >= 801 else [3] for n in counts}


# --- probes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", codes.PROBE_CODES)
def test_a_probe_that_gives_its_code_passes(code: str) -> None:
    """The declared code becomes a pass that says what was observed."""
    assert gate.judge_probe(code, gate.Judged(code)) == gate.Judged("pass", observed=code)


def test_a_probe_for_stock_under_keep_wants_a_clean_patch() -> None:
    """What rules 4 to 6 find on the patch spoils a probe that otherwise gives its code."""
    row = dataclasses.replace(ORDINARY["stock_under_keep"], patch=keeps(0, 1, 3))
    answer = gate.judge_probe("stock_under_keep", gate.Judged(*row.judged()))
    assert answer == gate.Judged("probe_unexpected", "stock_under_keep", ("patch_hole",), "patch_under_keep")


@pytest.mark.parametrize("code", sorted(set(codes.SENTENCES) - set(codes.PROBE_CODES)))
def test_a_probe_may_not_name_another_code(code: str) -> None:
    """Only the contract's list may be declared."""
    with pytest.raises(ValueError, match=f"'{code}', expected one of pass"):
        gate.judge_probe(code, gate.Judged(code))


# --- the brute force ------------------------------------------------------------------------------------------------


def test_the_gate_agrees_with_the_brute_force_on_every_small_world() -> None:
    """All kept sets of both sides over small tied rows, all probes, p at the ends of its range."""
    assert list(disagreements(gate)) == []


PALETTE = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 2.0**-23, -1.0, 1e9, 2.0**-149])
LOGIT = PALETTE | st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def a_side(draw: st.DrawFn, logits: list[float]) -> Side:
    """Draw a canonical prefix with a few tokens flipped, now and then with altered entries."""
    prefix = brute_gate.canonical(logits)[: draw(st.integers(0, len(logits)))]
    kept = frozenset(prefix) ^ draw(st.frozensets(st.integers(0, len(logits) - 1), max_size=2))
    altered = min(draw(st.sampled_from((0, 0, 0, 1, 9))), len(logits) - len(kept))
    return Side(kept, altered, nan=altered > 0 and draw(st.booleans()))


@st.composite
def a_row(draw: st.DrawFn) -> Row:
    """Draw an ordinary or a forced row."""
    logits = draw(st.lists(LOGIT, min_size=1, max_size=9))
    token = draw(st.none() | st.integers(0, len(logits) - 1))
    count = draw(st.integers(0, len(logits)))
    certified = draw(st.sampled_from((True, True, True, False)))
    return Row(logits, draw(a_side(logits)), draw(a_side(logits)), count, certified, token)


@settings(max_examples=1500, deadline=None, database=None)
@given(a_row())
def test_the_gate_agrees_with_the_brute_force_on_drawn_rows(row: Row) -> None:
    """Codes, later findings, stock's code and all counts, with ties and signed zeros."""
    assert row.judged() == row.expected()
    assert row.compared() == counted(row)


# --- the door -------------------------------------------------------------------------------------------------------


def kept_of(*values: int) -> npt.NDArray[np.bool_]:
    """Return a bool vector."""
    return np.array(values, dtype=np.bool_)


def order_of(*ids: int) -> npt.NDArray[np.int32]:
    """Return an int32 vector."""
    return np.array(ids, dtype=np.int32)


def logits_of(*values: float) -> npt.NDArray[np.float32]:
    """Return an fp32 vector."""
    return np.array(values, dtype=np.float32)


BOTH = gate.Output(kept_of(1, 1))
THREE = gate.Output(kept_of(1, 1, 1))
SORTED = gate.Boundary(order_of(0, 1), 1, certified=True)
WRONG: Any = math.nan  # what a type checker would not let through

DOOR: dict[str, Callable[[], object]] = {
    r"kept: uint8 of shape \(2,\)": lambda: gate.Output(np.ones(2, dtype=np.uint8)),
    r"kept: bool of shape \(0,\)": lambda: gate.Output(kept_of()),
    r"altered: 2, expected 0 \(nan is False\) to 1": lambda: gate.Output(kept_of(1, 0), 2),
    r"altered: -1, expected 0": lambda: gate.Output(kept_of(1, 0), -1),
    r"altered: nan, expected 0": lambda: gate.Output(kept_of(1, 0), WRONG),
    r"altered: 0, expected 1 \(nan is True\)": lambda: gate.Output(kept_of(1, 0), 0, nan=True),
    r"order: int64 of shape": lambda: gate.Boundary(np.arange(2), 1, certified=True),  # type: ignore[arg-type]
    r"order: expected each of the ids 0 to 1 once": lambda: gate.Boundary(order_of(1, 1), 1, certified=True),
    r"count: 3, expected 0 to 2": lambda: gate.Boundary(order_of(0, 1), 3, certified=True),
    r"count: nan, expected 0 to 2": lambda: gate.Boundary(order_of(0, 1), WRONG, certified=True),
    r"certified: nan, expected True or False": lambda: gate.Boundary(order_of(0, 1), 1, certified=WRONG),
    r"p: 0.9, expected a numpy.float32": lambda: gate.admissible(logits_of(0), 0.9),  # type: ignore[arg-type]
    r"logits: float32 of shape \(0,\)": lambda: gate.admissible(logits_of(), np.float32(0.9)),
    r"logits: float32 of shape \(1, 2\)": lambda: gate.judge_forced(logits_of(1, 0)[None], 0, stock=BOTH, patch=BOTH),
    r"token: -1, expected 0 to 1": lambda: gate.judge_forced(logits_of(1, 0), -1, stock=BOTH, patch=BOTH),
    r"stock: 3 tokens, expected 2": lambda: gate.judge_forced(logits_of(1, 0), 0, stock=THREE, patch=BOTH),
    r"patch: 3 tokens, expected 2": lambda: gate.compare(SORTED, stock=BOTH, patch=THREE),
    r"order: 2 tokens, expected 3": lambda: gate.judge_ordinary(logits_of(2, 1, 0), SORTED, stock=THREE, patch=THREE),
    r"order: not by \(logit": lambda: gate.judge_ordinary(logits_of(0, 1), SORTED, stock=BOTH, patch=BOTH),
    r"logits: a NaN or": lambda: gate.judge_ordinary(logits_of(math.inf, 1), SORTED, stock=BOTH, patch=BOTH),
}


@pytest.mark.parametrize("message", DOOR)
def test_what_does_not_fit_is_refused_at_the_door(message: str) -> None:
    """A wrong shape, type or range is one line that says what was got and expected, never a verdict."""
    with pytest.raises(ValueError, match=message) as refusal:
        DOOR[message]()
    assert "\n" not in str(refusal.value)


def test_a_tie_in_the_wrong_order_is_refused() -> None:
    """Equal logits, zeros of either sign too, must come by ascending id."""
    boundary = gate.Boundary(order_of(1, 0), 1, certified=True)
    with pytest.raises(ValueError, match="canonical order"):
        gate.judge_ordinary(logits_of(-0.0, 0.0), boundary, stock=BOTH, patch=BOTH)


def test_the_gate_imports_numpy_and_codes_only() -> None:
    """The judge does not know who computed what (contract, section 8)."""
    imports = [node for node in ast.walk(ast.parse(SOURCE)) if isinstance(node, (ast.Import, ast.ImportFrom))]
    named = {f"{getattr(node, 'module', '')}:{alias.name}" for node in imports for alias in node.names}
    assert {name for name in named if "toppgate" in name} == {"toppgate:codes"}
    assert {name.split(":")[0] or name[1:] for name in named} == {
        "collections.abc", "dataclasses", "numpy", "numpy.typing", "toppgate", "typing"
    }  # fmt: skip


# --- these tests can fail -------------------------------------------------------------------------------------------


def swapped(first: str, second: str) -> tuple[str, str]:
    """Return the mutation that exchanges two neighbouring rules."""
    indent = " " * 12
    return f"{first},\n{indent}{second},", f"{second},\n{indent}{first},"


MUTATIONS = [
    ("COUNT_SLACK: Final = 3", "COUNT_SLACK: Final = 2"),
    ("COUNT_SLACK: Final = 3", "COUNT_SLACK: Final = 4"),
    ("COUNT_RATIO: Final = 200", "COUNT_RATIO: Final = 199"),
    ("COUNT_RATIO: Final = 200", "COUNT_RATIO: Final = 201"),
    ("difference <= COUNT_SLACK", "difference < COUNT_SLACK"),
    ("* difference < reference", "* difference <= reference"),
    ("count_within(difference, boundary.count)", "count_within(difference, output.size)"),
    ("COUNT_SLACK or COUNT_RATIO", "COUNT_SLACK and COUNT_RATIO"),
    ("abs(output.size - boundary.count)", "output.size - boundary.count"),
    ("bool(0 < p < 1)", "bool(0 <= p < 1)"),
    ("bool(0 < p < 1)", "bool(0 < p <= 1)"),
    ("bool(0 < p < 1)", "not (p <= 0 or p >= 1)"),
    ("bool(np.isfinite(logits).all()), ", "not np.isnan(logits).any(), "),
    ("bool(np.isfinite(logits).all()), ", "not np.isinf(logits).any(), "),
    ('"nonfinite_logits": bool(np.isfinite(logits).all()), "invalid_p": bool(0 < p < 1)',
     '"invalid_p": bool(0 < p < 1), "nonfinite_logits": bool(np.isfinite(logits).all())'),
    swapped('"forced_nan": not output.nan', '"output_altered": output.altered == 0'),
    swapped('"output_altered": output.altered == 0', '"forced_all_masked": output.size > 0'),
    swapped('"forced_all_masked": output.size > 0', '"forced_token_dropped": bool(output.kept[token])'),
    swapped('"forced_token_dropped": bool(output.kept[token])', '"forced_argmax_wrong": largest == token'),
    swapped('"forced_argmax_wrong": largest == token', '"forced_extra_tokens": output.size == 1'),
    ("np.argmax(np.where(output.kept, logits, np.float32(-np.inf)))", "np.argmax(logits)"),
    ("np.argmax(np.where(output.kept, logits, np.float32(-np.inf)))",
     "logits.size - 1 - np.argmax(np.where(output.kept, logits, np.float32(-np.inf))[::-1])"),
    ("output.size == 1", "output.size >= 1"),
    ("code=_first(_forced_findings(logits, token, patch))", "code=_first(_forced_findings(logits, token, stock))"),
    ("stock_code=_first(_forced_findings(logits, token, stock))", "stock_code=None"),
    swapped('"output_altered": stock.altered == 0 and patch.altered == 0',
            '"oracle_boundary_ambiguous": boundary.usable'),
    ("stock.altered == 0 and patch.altered == 0", "patch.altered == 0"),
    ("stock.altered == 0 and patch.altered == 0", "stock.altered == 0"),
    ("stock.altered == 0 and patch.altered == 0", "(stock.altered == 0 or patch.altered == 0)"),
    ("self.certified and self.count >= 1", "self.certified"),
    ("self.certified and self.count >= 1", "self.count >= 1"),
    ("also=findings[1:]", "also=findings[2:]"),
    ("also=findings[1:]", "also=()"),
    ('_failed({"stock_under_keep": stock_keeps}) + _set_findings(logits, boundary, patch)',
     '_set_findings(logits, boundary, patch) + _failed({"stock_under_keep": stock_keeps})'),
    ('_failed({"stock_under_keep": stock_keeps}) + _set', '_failed({"stock_under_keep": True}) + _set'),
    ("+ _set_findings(logits, boundary, patch)", "+ _set_findings(logits, boundary, stock)"),
    ("    if stock_keeps:", "    if True:"),
    ("_symdiff(patch.kept, oracle) <= _symdiff", "_symdiff(patch.kept, oracle) < _symdiff"),
    ("_symdiff(patch.kept, oracle) <= _symdiff(stock.kept, oracle)", "patch.size <= stock.size"),
    ("np.sort(logits[output.kept])[::-1]", "logits[output.kept]"),
    ("np.sort(logits[output.kept])[::-1], logits[head]",
     "np.sort(logits[output.kept])[::-1].view(np.int32), logits[head].view(np.int32)"),
    ('"patch_noncanonical_tie" if tied else "patch_hole"', '"patch_noncanonical_tie"'),
    ('"patch_noncanonical_tie" if tied else "patch_hole"', '"patch_hole"'),
    ('"patch_under_keep": _contains(output.kept, boundary)', '"patch_under_keep": output.size >= boundary.count'),
    swapped('"patch_noncanonical_tie" if tied else "patch_hole": _is_prefix(output, boundary.order)',
            '"patch_under_keep": _contains(output.kept, boundary)'),
    ("_first(unfit or _set", "_first(_set"),
    ("kept[boundary.order[: boundary.count]].all()", "kept[boundary.order[: boundary.count - 1]].all()"),
    ("output.kept[order[: output.size]].all()", "output.kept[order[: output.size - 1]].all()"),
    ("or seen.also == ()", "or True"),
    ('or seen.also == ()', "and seen.also == ()"),
    ("seen.code == declared and", "seen.code != codes.PASS and"),
    ("observed=seen.code", "observed=declared"),
    ("symdiff_stock_patch=_symdiff(stock.kept, patch.kept)", "symdiff_stock_patch=_symdiff(stock.kept, oracle)"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), MUTATIONS)
def test_a_changed_gate_is_caught(old: str, new: str) -> None:
    """Every small change of the gate's own text makes it differ from the brute force somewhere."""
    assert next(disagreements(mutate(old, new)), None) is not None
