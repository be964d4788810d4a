"""The columns about the reals and fp32 reach: what a row gets, and how a verifier compares them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pipeline import literal

from toppgate import agreement, inputs, judge, real
from toppgate.evidence import CaseEvidence
from toppgate.judge import Judgement, Row
from toppgate.outputs import Masks
from toppgate.schema import Case

Kept = NDArray[np.bool_]
Compare = Callable[[dict[str, Any], dict[str, Any]], tuple[list[str], list[str]]]
ROW = np.array([3, 2, 1, 0, -1, -2], np.float32)
P = np.float32(0.9)


def first(count: int, *more: int) -> Kept:
    """Return the set of ROW's first tokens, and of some others."""
    kept = np.arange(ROW.size) < count
    kept[list(more)] = True
    return kept


def columns(stock: Kept, patch: Kept, role: str = "ordinary", expect: str | None = None, altered: int = 0) -> Row:
    """Return the row table's entry for ROW with these two outputs, as stage 3 makes it."""
    rows = literal(ROW.tolist())
    if role == "forced":
        rows = {"kind": "forced", "base": rows, "token": 0, "value": "3"}
    values = {"id": "one", "role": role, "rows": rows, "p": "0.9", "expect": expect, "shape": [1, ROW.size]}
    case = Case.model_validate(values)
    exceptions = np.array([[0, 5, 0]] * altered, np.uint32).reshape(-1, 3)
    sides = Masks(stock[None], exceptions[:0]), Masks(patch[None], exceptions)
    evidence = CaseEvidence("pass", "", inputs.generate(case), *sides)
    ((row, _),) = judge._case_rows(case, evidence, judge._engine(case))
    return row


def test_a_judged_row_says_what_its_boundary_is_in_the_reals() -> None:
    """A row that passes has its real boundary and ratio, and nothing about reach."""
    row = columns(first(3), first(3))
    assert (row["code"], row["kept_oracle"], row["real_boundary"]) == ("pass", 3, "equal")
    assert row["real_ratio"] > 1e6
    assert row["boundary_reach"] is row["reach_margin"] is row["reach_error"] is None


def test_a_stopped_row_shows_its_distance_beside_what_fp32_can_do() -> None:
    """A patched prefix that is too short is measured at its own end, not at the oracle's boundary."""
    row = columns(first(3), first(2))
    shares = np.exp(ROW.astype(float)) / np.exp(ROW.astype(float)).sum()
    assert (row["code"], row["boundary_reach"]) == ("patch_under_keep", "outside")
    assert row["reach_margin"] == pytest.approx(float(P) - shares[:2].sum())
    assert 0 < row["reach_error"] < 1e-5


def test_a_stop_of_stocks_is_measured_on_stock() -> None:
    """Where stock under-keeps, the distance is that of stock's set."""
    row = columns(first(1), first(3))
    assert row["code"] == "stock_under_keep"
    assert row["reach_margin"] == pytest.approx(0.9 - 0.6337, abs=1e-4)


def test_a_hole_is_outside_without_a_distance() -> None:
    """No move of the boundary makes a hole."""
    row = columns(first(3), first(3, 4))
    assert (row["code"], row["boundary_reach"], row["reach_margin"]) == ("patch_hole", "outside", None)


def test_forced_rows_and_probes_have_them_too() -> None:
    """A forced row that stops, and a probe that was to stop, show their distance."""
    row = columns(first(1), first(0), role="forced")
    assert (row["code"], row["boundary_reach"], row["reach_margin"]) == ("forced_all_masked", "outside", float(P))
    row = columns(first(1), first(3), role="probe", expect="stock_under_keep")
    assert (row["code"], row["observed"], row["boundary_reach"]) == ("pass", "stock_under_keep", "outside")


def test_an_altered_output_has_no_distance() -> None:
    """What stopped the row is not about which tokens were kept."""
    row = columns(first(3), first(3), altered=1)
    assert row["code"] == "output_altered"
    assert row["boundary_reach"] is row["reach_margin"] is row["reach_error"] is None


def test_the_real_boundary_never_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """With another answer about the reals every other column is the same."""
    rows = []
    for verdict in ("equal", "differs", "undecided"):
        monkeypatch.setattr(real, "certify", lambda *_, verdict=verdict: real.RealBoundary(verdict, 0.5, None))
        rows.append(columns(first(4), first(3)))
    assert [row.pop("real_boundary") for row in rows] == ["equal", "differs", "undecided"]
    assert rows[0] == rows[1] == rows[2]


# ---------------------------------------------------------------- verify


def table(**more: Any) -> dict[str, Any]:
    """Return a row of the table."""
    return (
        dict.fromkeys(judge.COLUMNS) | {"case": "one", "row": 0, "real_boundary": "equal", "real_ratio": 2.5e30} | more
    )


@pytest.fixture
def compared(tmp_path: Path) -> Compare:
    """Return the differences and the notes of a verifier that judges ``want`` where the run says ``have``."""

    def compare(have: Row, want: Row) -> tuple[list[str], list[str]]:
        verdict: Row = {"harness": "h", "gate_stop": None, "stops": []}
        Judgement((have,), verdict).write(tmp_path)
        notes: list[str] = []
        return list(agreement.differences(tmp_path, Judgement((want,), verdict), notes, same_exp=True)), notes

    return compare


@pytest.mark.parametrize(("ran", "again"), [("equal", "undecided"), ("differs", "undecided"), ("undecided", "equal")])
def test_an_answer_on_one_side_is_a_note(compared: Compare, ran: str, again: str) -> None:
    """A verifier that cannot decide, or can where the run could not, reports no difference but says so."""
    differences, notes = compared(table(real_boundary=ran), table(real_boundary=again))
    assert differences == []
    assert notes == ["real_boundary: decided on one side only in 1 rows: it may take python-flint"]


CONTRADICTIONS: list[tuple[Any, Any]] = [
    ("equal", "differs"),
    ("true", "undecided"),
    (None, "undecided"),
    ("equal", None),
    ([], "undecided"),
]


@pytest.mark.parametrize(("ran", "again"), CONTRADICTIONS)
def test_answers_that_contradict_are_a_difference(compared: Compare, ran: Any, again: Any) -> None:
    """Two decided answers must agree, and what is no answer is not excused."""
    differences, notes = compared(table(real_boundary=ran), table(real_boundary=again))
    assert differences == [f"rows.jsonl: case one row 0: real_boundary: the run says {ran}, judged again it is {again}"]
    assert notes == []


def test_a_run_from_before_these_columns_is_verified(compared: Compare) -> None:
    """A run that a toppgate without them made lacks the columns, which is a note; it may not lack an older one."""
    new = ("boundary_reach", "reach_error", "reach_margin", "real_boundary", "real_ratio")
    old = {key: value for key, value in table().items() if key not in new}
    differences, notes = compared(old, table())
    assert differences == []
    assert notes == [f"columns that the run's toppgate did not have yet: {', '.join(new)}"]
    del old["margin"]
    assert compared(old, table())[0] == ["rows.jsonl: case one row 0: margin: on one side only"]


def test_a_huge_ratio_survives_canonical_json(compared: Compare) -> None:
    """Ratios beyond 2**53, which canonical JSON writes as integers, are read back; a changed one is a difference."""
    for ratio in (2.5e30, 162227674578125984.0, float(2**53)):
        assert compared(table(real_ratio=ratio), table(real_ratio=ratio)) == ([], [])
        (difference,) = compared(table(real_ratio=ratio * 2), table(real_ratio=ratio))[0]
        assert "real_ratio" in difference


def test_rows_that_are_not_canonical_are_a_difference(compared: Compare, tmp_path: Path) -> None:
    """The same values in another spelling are not the file that the run wrote, whatever is compared of them."""
    assert compared(table(), table()) == ([], [])
    (tmp_path / "rows.jsonl").write_text(json.dumps(table()) + "\n")
    judged = Judgement((table(),), {"harness": "h", "gate_stop": None, "stops": []})
    assert list(agreement.differences(tmp_path, judged, [], same_exp=False)) == ["rows.jsonl: not in canonical form"]
