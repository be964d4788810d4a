"""The small rows of ``data/rows.json`` and the faults planted into them: the gate gives the code that each names."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from brute_gate import Side
from gate_rows import NOTHING, Row, admitted, keeps, mutate

from toppgate import gate

ROWS = json.loads((Path(__file__).parent / "data" / "rows.json").read_text())


def fp32(values: Sequence[float]) -> list[float]:
    """Round to fp32; what is out of range becomes an infinity."""
    with np.errstate(over="ignore"):
        rounded: list[float] = np.array(values, dtype=np.float64).astype(np.float32).tolist()
    return rounded


def expand(logits: Any) -> list[float]:
    """Return a row of ``rows.json`` in the way that its ``format`` says."""
    if isinstance(logits, list):
        return fp32([float(value) for value in logits])
    parts: list[float] = []
    for part in logits["concat"]:
        if "linspace" in part:
            a, b, n = part["linspace"]
            parts += [a + (b - a) * i / (n - 1) for i in range(n)]
        elif "affine" in part:
            affine = part["affine"]
            parts += [affine["start"] + affine["step"] * i for i in range(affine["count"])]
        else:
            parts += [float(part["value"])] * part["repeat"]
    return fp32(parts)


CASES = {case["id"]: case for case in ROWS["cases"]}


def right(case: dict[str, Any]) -> Side:
    """Return the right answer of a case of ``rows.json``."""
    ranges = [range(*ends) for ends in case["expect"].get("kept_ranges", [])]
    return keeps(*case["expect"].get("kept", []), *itertools.chain(*ranges))


def case_row(name: str, stock: Side | None = None, patch: Side | None = None, token: int | None = None) -> Row:
    """Return a case as a row; a side that is not given is right, and a forced stage's token is its right answer."""
    case = CASES[name]
    truth = right(case)
    if token is None and case["stage"] == "forced":
        (token,) = truth.kept
    return Row(expand(case["logits"]), stock or truth, patch or truth, count=len(truth.kept), token=token)


#: Plant → case, and what differs from the right answer.
PLANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "P01": ("H14", {"patch": keeps(0, 1, 3)}),
    "P02": ("H04", {"patch": keeps(0, 1, 2, 4)}),
    "H01p1": ("H01a1", {"patch": NOTHING}),
    "H01p2": ("H01a1", {"patch": Side(altered=1, nan=True)}),
    "H01p3": ("H01a1", {"patch": keeps(0)}),
    "H01p4": ("H01c", {"patch": keeps(0, 1)}),
    "H02p1": ("H02b", {"patch": keeps(0, 1), "token": 1}),
    "H02p2": ("H02a", {"patch": keeps(0), "token": 1}),
    "H03p": ("H03b", {"patch": keeps(0, 1, 2)}),
    "H04p": ("H04", {"patch": keeps(*range(6))}),
    "H05p": ("H05a", {"patch": keeps(0, 1)}),
    "H06p1": ("H06b", {"stock": NOTHING}),
    "H06p2": ("H06b", {"patch": NOTHING}),
    "H07p": ("H07", {"stock": keeps(*range(11)), "patch": keeps(*range(11))}),
    "H08p": ("H08", {"stock": keeps(*range(601)), "patch": keeps(*range(601))}),
    "H09p": ("H09", {"stock": keeps(0)}),
    "H12p": ("H12a", {"patch": NOTHING}),
    "H13p": ("H13", {"patch": keeps(0, 3)}),
    "H14p": ("H14", {"patch": keeps(0, 1)}),
    "H15p": ("H15", {"patch": keeps(2)}),
    "H16p": ("H16b", {"patch": Side(altered=3, nan=True)}),
    "H18p2": ("H18b", {"stock": keeps(*range(32_000)), "patch": keeps(*range(32_000))}),
    "H20p1": ("H20", {"patch": keeps(0, 1, 2)}),
    "H20p2": ("H20", {"patch": NOTHING}),
    "H22p1": ("H22a", {"patch": keeps(0, 1, 2)}),
    "H22p2": ("H22b", {"patch": keeps(0)}),
    "H24p": ("H24", {"patch": keeps(0, 1, 2)}),
    "H27p": ("H21a", {"patch": keeps(*range(613))}),
    "H28p1": ("H14", {"patch": Side(frozenset({0, 1, 2}), altered=1)}),
}
#: Plants that are more than a kept set, each in the test of that name below.
OWN_TEST = {"P03": "probe", "H21p": "stride", "H29p": "NaN difference"}
#: Plants that the gate never sees: their code is found before a row is judged.
NOT_A_ROW = {
    "H10p": "the worker dies, there is no output",
    "H18p1": "the launch record is wrong",
    "H19p": "the captured file was rewritten",
    "H23p": "one of five repeats differs",
    "H28p2": "the output file has another shape",
}


def test_every_plant_has_a_place() -> None:
    """No planted fault is left out silently, and none is counted twice."""
    assert sorted([*PLANTS, *OWN_TEST, *NOT_A_ROW]) == sorted(plant["id"] for plant in ROWS["plants"])


@pytest.mark.parametrize("plant", [plant for plant in ROWS["plants"] if plant["id"] in PLANTS], ids=lambda p: p["id"])
def test_plant(plant: dict[str, str]) -> None:
    """A planted kept set gives the code that the fixture names; the same row without the plant passes."""
    case, fault = PLANTS[plant["id"]]
    assert case_row(case, **fault).judged()[0] == plant["expect_code"]
    assert case_row(case).judged()[0] == "pass"


def test_plant_p03_probe() -> None:
    """A declared rejection that does not happen is a stop that says what was seen instead."""
    judged = gate.judge_probe("nonfinite_logits", gate.Judged(*case_row("H14").judged()))
    assert judged == gate.Judged("probe_unexpected", observed="pass", stock_code="pass")


def test_plant_h21p_stride() -> None:
    """Row 1 of a batch padded to 4104 and read with a stride of 4096 holds values that are not its own."""
    batch = np.zeros((16, 4104), dtype=np.float32)
    for row in range(16):
        batch[row, :4096] = fp32([10.0 + row / 1000 - 20.0 * i / 4095 for i in range(4096)])
    logits, read = batch[1, :4096], batch.ravel()[4096:8192]
    same = logits.view(np.uint32) == read.view(np.uint32)
    patch = Side(frozenset(np.flatnonzero(same).tolist()), altered=int(np.count_nonzero(~same)))
    truth = right(CASES["H21a"])
    assert Row(logits.tolist(), truth, patch, count=len(truth.kept)).judged()[0] == "output_altered"


def test_plant_h29p_nan_difference() -> None:
    """A count difference that became a NaN fails the comparison with the bound."""
    mutant = mutate("abs(output.size - boundary.count)", 'float("nan")')
    assert case_row("H07").judged(mutant)[0] == "count_bound_exceeded"


@pytest.mark.parametrize("name", CASES)
def test_right_answers_pass_and_rejected_rows_are_rejected(name: str) -> None:
    """Each small row is admitted or rejected as it says, and passes when both sides return its right answer."""
    case = CASES[name]
    with np.errstate(over="ignore"):
        p = float(np.float32(float(case["p"])))
    assert admitted(gate, expand(case["logits"]), p) == case["expect"].get("reject", "pass")
    if "reject" not in case["expect"] and name != "H02b":  # H02b has no single forced token and is judged as ordinary
        row = case_row(name)
        assert row.judged()[0] == row.expected()[0] == "pass"
