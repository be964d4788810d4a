"""Hunks taken apart: which only compile together, and which the rows hold to account."""

import json
from pathlib import Path
from typing import Any

import pipeline
import pytest
from click.testing import CliRunner, Result

from toppgate import bisection, blame, cli, dependence, hunks
from toppgate.errors import RunError

#: Commit 0a1276e's hunks: the logit-space threshold goes, the predicate in probability space comes, ties follow it.
THRESHOLD, PREDICATE, TIES = pipeline.PATCH["hunks"]

BASE = """
def helper(a):
    return a


def use(x):
    y = 1
    return helper(x) + y
"""


# ---------------------------------------------------------------------------------------------- what compiles together


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (BASE, set()),
        (BASE.replace("    y = 1\n", ""), {"y"}),
        (BASE.replace("helper(a)", "helper(a, b)"), {"helper"}),
        (BASE.replace("helper(a)", "helper(a, b=2)"), set()),
        (BASE.replace("helper(x)", "helper[(1,)](x, num_warps=4)"), set()),
        (BASE.replace("helper(x)", "helper(x, num_warps=4)"), {"helper"}),
        (BASE.replace("helper(x)", "helper(*x)"), set()),
        (BASE + "\nimport os\nhelper = os.path.join\nz = len([w for w in missing])\n", {"missing"}),
        (BASE.replace("return a", "return (a"), {dependence.SYNTAX}),
    ],
)
def test_names_and_calls_that_do_not_fit_are_found(text: str, found: set[str]) -> None:
    """Undefined names, calls of another shape, and what is no Python."""
    assert dependence.problems(text) == found


def apart(old: str, new: str) -> tuple[tuple[hunks.Hunk, ...], dependence.TextOf]:
    """Return the hunks between two texts, and the text that some of them make."""
    found = hunks.diff(old, new)
    return found, lambda chosen: hunks.splice(old, [found[at] for at in chosen])


def test_hunks_that_need_each_other_are_taken_together() -> None:
    """A parameter that a caller must pass brings its caller; an unrelated hunk stays out."""
    new = BASE.replace("(a):", "(a, b):").replace("helper(x)", "helper(x, 2)").replace("y = 1", "y = 3")
    found, text_of = apart(BASE.replace("    y = 1\n", "    y = 1\n\n"), new.replace("    y = 3\n", "    y = 3\n\n"))
    assert len(found) == 3
    assert dependence.together(frozenset({0}), found, text_of) == frozenset({0, 2})
    assert dependence.together(frozenset({1}), found, text_of) == frozenset({1})


def test_a_hunk_that_nothing_helps_is_reported() -> None:
    """A text that does not compile with any other hunk gives no group."""
    old = "def f(x):\n    return x\n"
    found = (hunks.Hunk(1, ("def f(x):\n",), ("def f(x:\n",)), hunks.Hunk(2, ("    return x\n",), ("    return 1\n",)))
    assert dependence.together(frozenset({0}), found, lambda s: hunks.splice(old, [found[at] for at in s])) is not None
    only = {frozenset[int](): old, frozenset({0, 1}): old, frozenset({0}): "def f(:\n", frozenset({1}): old}
    broken: dict[frozenset[int], str] = {**only, frozenset({0, 1}): "x = undefined_both\n"}
    broken[frozenset({0})] = "x = undefined_here\n"
    assert dependence.together(frozenset({0}), found, lambda chosen: broken[chosen]) is None


def test_comments_and_docstrings_are_no_code() -> None:
    """Texts that differ in these alone are the same code; any other difference is one."""
    assert dependence.code('def f():\n    """a"""\n    return 1  # b\n') == dependence.code("def f():\n    return 1\n")
    assert dependence.code("def f():\n    return 1\n") != dependence.code("def f():\n    return 2\n")


def test_the_commits_hunks_depend_on_each_other_as_read() -> None:
    """The threshold cannot go without the predicate, nor can ties follow a probability that nothing computes."""
    found, text_of = apart(pipeline.text(pipeline.STOCK), pipeline.text(pipeline.PATCH))
    groups = [dependence.together(frozenset({at}), found, text_of) for at in range(3)]
    assert groups == [frozenset({0, 1}), frozenset({1}), frozenset({1, 2})]


# ---------------------------------------------------------------------------------------------- real kernels


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return what the command made of stock and commit over a forced case and a control."""
    home = tmp_path_factory.mktemp("bisect")
    path = pipeline.freeze_draft(home / "p.yml", pipeline.draft(pipeline.forced(rows=1), pipeline.control()))
    return home / "out", CliRunner().invoke(cli.cli, ["bisect", str(path), "--out", str(home / "out")])


def record(out: Path) -> dict[str, Any]:
    """Return what a bisection wrote."""
    found: dict[str, Any] = json.loads((out / "bisection.json").read_bytes())
    return found


def test_the_predicate_alone_fixes_the_forced_row(taken: tuple[Path, Result]) -> None:
    """It lifts the stop alone, and the patch needs it; neither of the other two hunks is needed."""
    out, done = taken
    assert done.exit_code == 0, done.output
    (row,) = record(out)["rows"]
    assert (row["case"], row["change"], row["stock"], row["patch"]) == ("forced", "fixed", "forced_all_masked", "pass")
    assert row["alone"] == row["needed"] == [PREDICATE]
    assert "fixed       forced row 0: forced_all_masked to pass." in done.output


def test_only_the_cases_that_stop_are_run_and_one_text_once(taken: tuple[Path, Result]) -> None:
    """Picks ran over the forced case alone; those that are one text share their digest and their rows."""
    picks = record(taken[0])["picks"]
    assert {row["case"] for pick in picks for row in pick["rows"]} == {"forced", "control"}  # one pick is stock itself
    assert [pick["others"] for pick in picks if pick["hunks"] == [THRESHOLD] and pick["how"] == "alone"] == [
        [PREDICATE]
    ]
    assert [pick["others"] for pick in picks if pick["hunks"] == [TIES] and pick["how"] == "alone"] == [[PREDICATE]]
    alone = [pick for pick in picks if pick["how"] == "alone"]
    assert len({pick["source"] for pick in alone}) == len(alone) == 3


def test_the_page_shows_findings_and_picks(taken: tuple[Path, Result]) -> None:
    """Without scripts, each hunk by digest, and no line of the kernel."""
    page = (taken[0] / "bisection.html").read_text(encoding="utf-8")
    assert "<script" not in page
    assert "pivot_logit" not in page
    assert all(digest in page for digest in (THRESHOLD, PREDICATE, TIES))


def test_functions_are_not_taken_apart(tmp_path: Path) -> None:
    """A Python function is no file with hunks."""
    function = {"kind": "callable", "callable": "examples.transformers_top_p:top_p"}
    path = pipeline.freeze_draft(tmp_path / "p.yml", pipeline.draft(pipeline.control(), patch=function))
    with pytest.raises(RunError, match="no hunks to take apart"):
        bisection.bisect(path, tmp_path / "out")


# ---------------------------------------------------------------------------------------------- the sentences


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (("fails", "pass", ["a"], ["a"], None), "a alone lifts the stop; the patch needs a for it."),
        (
            ("fails", "pass", [], ["a", "b"], True),
            "No hunk alone lifts the stop; the patch needs a and b for it; together these do it.",
        ),
        (
            ("pass", "fails", ["a", "b"], [], None),
            "a or b alone makes the stop; the patch needs no single one of them for it.",
        ),
        (("fails", "fails", [], [], None), "No hunk, alone or left out, lifts the stop."),
        (("fails", "fails", ["a"], [], None), "It stops at both ends; alone a lifts it."),
    ],
)
def test_a_finding_is_a_sentence(row: tuple[Any, ...], said: str) -> None:
    """Alone, needed, together, and rows that stop whatever is picked."""
    stock, patch, alone, needed, both = row
    change = bisection.Blamed("c", 0, "ordinary", stock, patch, (), ()).change
    found = {"stock": stock, "patch": patch, "alone": alone, "needed": needed, "together": both, "change": change}
    assert blame.said(found) == said
