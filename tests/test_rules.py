"""Rules across the keys of a params file: each is broken once, and each ends where it says."""

from typing import Any

import pytest
from params_data import case, draft, forced, literal
from refusals import lines_of, refusal

from toppgate import codes, params, rules
from toppgate.schema import Params


def probe(**more: Any) -> dict[str, Any]:
    """Return a probe of two rows."""
    return case("probe", role="probe") | more


def normal(**more: Any) -> dict[str, Any]:
    """Return the control's rows with other keys."""
    return {**case()["rows"], **more}


CODES = "pass, nonfinite_logits, invalid_p, path_mismatch, limit_exceeded, stock_under_keep"
DOMAIN = "expected 0 < p < 1 there (invalid_p) on a row that is not a probe"
CAPTURED = {"kind": "file", "path": "x", "tensor": "logits"}

BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "p rounds to 1": (
        draft(case(p="0.99999999")),
        f"cases[control].p, row 0: got 0.99999999, which is 1.0 in fp32, {DOMAIN}",
    ),
    "p rounds to 0": (draft(case(p="1e-46")), f"cases[control].p, row 0: got 1e-46, which is 0.0 in fp32, {DOMAIN}"),
    "p of a later row": (
        draft(case(p=["0.9", "1"])),
        f"cases[control].p, row 1: got 1, which is 1.0 in fp32, {DOMAIN}",
    ),
    "p is NaN": (draft(case(p="nan")), f"cases[control].p, row 0: got nan, which is nan in fp32, {DOMAIN}"),
    "p is infinite": (draft(case(p="inf")), f"cases[control].p, row 0: got inf, which is inf in fp32, {DOMAIN}"),
    "p is negative": (draft(case(p="-0.5")), f"cases[control].p, row 0: got -0.5, which is -0.5 in fp32, {DOMAIN}"),
    "p of a forced row": (draft(forced(p="1.0")), f"cases[forced].p, row 0: got 1.0, which is 1.0 in fp32, {DOMAIN}"),
    "p's bits": (draft(case(p_bits="3f666667")), "cases[control].p_bits, row 0: got 3f666667, expected 3f666666"),
    "p for three of two rows": (
        draft(case(p=["0.5"] * 3)),
        "cases[control].p: got 3 values, expected one, or one for each of 2 rows",
    ),
    "a role too few": (
        draft(case(role=["control"])),
        "cases[control].role: got 1 values, expected one, or one for each of 2 rows",
    ),
    "expect for three": (
        draft(probe(expect=["pass"] * 3)),
        "cases[probe].expect: got 3 values, expected one, or one for each of 2 rows",
    ),
    "vocabulary over the limit": (
        draft(case(rows=normal(vocabulary=65))),
        "cases[control].rows: vocabulary 65, expected at most limits.vocabulary 64",
    ),
    "batch over the limit": (
        draft(case(rows=normal(rows=9))),
        "cases[control].rows: batch 9, expected at most limits.batch 8",
    ),
    "batch of a file over the limit": (
        draft(case(rows=CAPTURED | {"rows": [0, 3], "tile": 3})),
        "cases[control].rows: batch 9, expected at most limits.batch 8",
    ),
    "batch of a base over the limit": (
        draft(forced(rows={**forced()["rows"], "base": normal(rows=9)})),
        "cases[forced].rows: batch 9, expected at most limits.batch 8",
    ),
    "rows over the limit": (
        draft(*(case(f"c{n}", rows=normal(rows=8)) for n in range(5))),
        "limits.rows: got 40 rows in all cases, expected at most 32",
    ),
    "more than any limit may say": (
        draft(probe(rows=normal(rows=2**14, vocabulary=2**14 + 1), expect="limit_exceeded")),
        "cases[probe].rows: got 16384 rows of 16385 tokens, expected at most 268435456 values in a case",
    ),
    "copies beyond memory": (
        draft(case(rows=literal([{"value": "1", "repeat": 2**31 - 1}], copies=2**31 - 1))),
        f"cases[control].rows: got {2**31 - 1} rows of {2**31 - 1} tokens, expected at most 268435456 values in a case",
    ),
    "a batch that leaves the split path": (
        draft(case(rows=normal(rows=65)), limits={**draft()["limits"], "batch": 65, "rows": 65}),
        "cases[control].rows: batch 65, expected at most 64: a larger one leaves the split path, for probes only",
    ),
    "shape": (draft(case(shape=[2, 9])), "cases[control].shape: got 9 tokens, expected 8"),
    "shape of a file": (
        draft(case(rows=CAPTURED | {"rows": [0, 2]}, shape=[3, 8])),
        "cases[control].shape: got 3 rows, expected 2",
    ),
    "rows of two lengths": (
        draft(case(rows=literal([{"numbers": ["1", "2"]}], [{"value": "1", "repeat": 3}]))),
        "cases[control].rows.rows: got lengths [2, 3], expected one length",
    ),
    "an empty range of rows": (
        draft(case(rows=CAPTURED | {"rows": [3, 3]})),
        "cases[control].rows.rows: got [3, 3], expected [first, after the last]",
    ),
    "tile without rows": (
        draft(case(rows=CAPTURED | {"tile": 2})),
        "cases[control].rows.tile: got 2 without rows, expected rows: [first, after the last]",
    ),
    "scale of 17 bits": (
        draft(case(rows=normal(scale="65537"))),
        "cases[control].rows.scale: got 65537, expected a number of at most 16 significant bits",
    ),
    "scale of a third": (
        draft(case(rows=normal(scale="0.1"))),
        "cases[control].rows.scale: got 0.1, expected a number of at most 16 significant bits",
    ),
    "scale is NaN": (
        draft(case(rows=normal(scale="nan"))),
        "cases[control].rows.scale: got nan, expected a number of at most 16 significant bits",
    ),
    "no seed": (
        draft(case(rows={k: v for k, v in normal().items() if k != "seed"})),
        "cases[control].rows.seed: got nothing, expected a seed, or select with a seed sequence",
    ),
    "a sequence of rows": (
        draft(case(select={"first": "1", "at_most": 9})),
        "cases[control].select: expected rows of kind normal, with rows: 1",
    ),
    "a sequence over 128 bits": (
        draft(case(rows=normal(rows=1), select={"first": str(2**128 - 1), "at_most": 2})),
        f"cases[control].select: got 2 seeds from {2**128 - 1}, expected seeds below 2**128",
    ),
    "forced without a token": (
        draft(case(role="forced")),
        "cases[control].token, row 0: got nothing, expected a token below 8 on a forced row",
    ),
    "forced without a token in one row": (
        draft(case(role="forced", token=[1, None])),
        "cases[control].token, row 1: got nothing, expected a token below 8 on a forced row",
    ),
    "a token beyond the vocabulary": (
        draft(case(role="forced", token=8)),
        "cases[control].token, row 0: got 8, expected a token below 8 on a forced row",
    ),
    "a forced token beyond the vocabulary": (
        draft(forced(rows={**forced()["rows"], "token": 8})),
        "cases[forced].rows.token: got 8, expected a token below 8",
    ),
    "a forced value's bits": (
        draft(forced(rows={**forced()["rows"], "value_bits": "4e6e6b29"})),
        "cases[forced].rows.value_bits: got 4e6e6b29, expected 4e6e6b28",
    ),
    "a stride within the row": (
        draft(case(stride=8)),
        "cases[control].stride: got 8, expected more than the 8 tokens of a row, or none",
    ),
    "a stride beyond all bounds": (
        draft(case(stride=2**28 + 1)),
        "cases[control].rows: got 2 rows of 8 tokens, expected at most 268435456 values in a case",
    ),
    "a written number's bits": (
        draft(case(rows=literal([{"numbers": ["1", "2"], "bits": ["3f800000", "40000001"]}]))),
        "cases[control].rows.rows[0].bits: got ['3f800000', '40000001'], expected ['3f800000', '40000000']",
    ),
    "a range's bits": (
        draft(case(rows=literal([{"linspace": ["0", "1", 2], "bits": ["00000000", "3f800000"]}]))),
        "cases[control].rows.rows[0].bits: got ['00000000', '3f800000'], expected none beside a range",
    ),
    "a probe for a patch's fault": (
        draft(probe(expect="patch_hole")),
        f"cases[probe].expect, row 0: got patch_hole, expected one of {CODES} on a probe",
    ),
    "a probe for nothing": (
        draft(probe()),
        f"cases[probe].expect, row 0: got nothing, expected one of {CODES} on a probe",
    ),
    "a code on a control": (
        draft(case(expect="pass")),
        "cases[control].expect, row 0: got pass, expected none on a row that is not a probe",
    ),
    "k on a control": (
        draft(case(k=5)),
        "cases[control].k: got 5, expected none: a call with k is allowed on probes only",
    ),
    "k on a mixed batch": (
        draft(probe(role=["probe", "control"], expect=["pass", None], k=5)),
        "cases[probe].k: got 5, expected none: a call with k is allowed on probes only",
    ),
    "a hunted control": (
        draft(case(selected_by="hunt")),
        "cases[control].selected_by: got hunt, expected no control among the roles, since it comes from a hunt",
    ),
    "an id twice": (
        draft(case(), case()),
        "cases[control].id: stands twice, as control before; expected ids that differ in letters",
    ),
    "an id twice but for capitals": (
        draft(case(), case("Control")),
        "cases[Control].id: stands twice, as control before; expected ids that differ in letters",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_named_with_key_case_and_row(name: str) -> None:
    """What the schema cannot say is refused in a draft as well, as far as a draft says it."""
    values, expected = BROKEN[name]
    assert refusal(lambda: params.check(values, "x.yml")) == f"x.yml: {expected}"


ALLOWED: dict[str, dict[str, Any]] = {
    "p = 1 on a probe": draft(probe(p="1.0", expect="invalid_p")),
    "NaN beside a control": draft(probe(role=["probe", "control"], p=["nan", "0.5"], expect=["invalid_p", None])),
    "the largest p below 1": draft(case(p="0.99999997")),
    "the smallest p above 0": draft(case(p="1e-45")),
    "k on a probe": draft(probe(k=5, expect="path_mismatch")),
    "a probe over a limit": draft(probe(rows=normal(rows=9, vocabulary=65), expect="limit_exceeded")),
    "a batch of 65 probes": draft(
        probe(rows=normal(rows=65), expect="path_mismatch"), limits={**draft()["limits"], "batch": 65, "rows": 65}
    ),
    "scale of 16 bits": draft(case(rows=normal(scale="65535"))),
    "16 bits far from one": draft(case(rows=normal(scale="1.52587890625e-05"))),
    "scale zero": draft(case(rows=normal(scale="0"))),
    "a seed of 128 bits": draft(case(rows=normal(seed=str(2**128 - 1)))),
    "a hunted row": draft(case(role="ordinary", selected_by="hunt")),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_just_within_a_rule_is_accepted(name: str) -> None:
    """Each rule ends where it says, and probes may do what they are there for."""
    params.check(ALLOWED[name], "x.yml")


@pytest.mark.parametrize("code", codes.PROBE_CODES)
def test_a_probe_may_name_every_code_of_the_contract(code: str) -> None:
    """All six codes are accepted on a probe."""
    params.check(draft(probe(expect=code)), "x.yml")


def test_ten_thousand_cases_are_checked_in_linear_time() -> None:
    """Ten times the cases, the last of which stands twice, cost about ten times the calls and no list is searched."""
    few, many = (_work(draft(*(case(f"c{n}") for n in range(count)), case("c0"))) for count in (999, 9_999))
    assert many < 11 * few


def test_a_launch_of_many_rows_is_checked_in_linear_time() -> None:
    """Ten times the rows of one case cost about ten times the calls."""
    limits = {**draft()["limits"], "batch": 64_000, "rows": 64_000}
    rows = [probe(rows=normal(rows=count), p="0.5", expect=["pass"] * count) for count in (6400, 64_000)]
    few, many = (_work(draft(one, limits=limits)) for one in rows)
    assert many < 11 * few


def _work(values: dict[str, Any]) -> int:
    checked = Params.model_validate({**values, "limits": {**values["limits"], "rows": 1_000_000}})
    return lines_of(lambda: list(rules.problems(checked)))
