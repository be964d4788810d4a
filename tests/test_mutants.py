"""Wrong kernels: edits that fit the pinned text once, real kernels caught, and what is never relabelled."""

import ast
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pipeline
import pytest
from click.testing import CliRunner, Result
from markupsafe import escape

from toppgate import (
    cli,
    codes,
    digests,
    draws,
    evidence,
    host,
    judge,
    kills,
    mutants,
    mutate,
    mutations,
    params,
    published,
    search,
)
from toppgate.errors import RunError, SourceError
from toppgate.mutate import Mutant
from toppgate.mutations import MUTANTS
from toppgate.search import Searched

PARAMS = pipeline.ROOT / "params" / "mutants.yml"
MASK = "_topp_sb_mask_kernel"

#: The families that the issue names; the tie budget has four.
FAMILIES = {
    *("mask predicate", "pivot search", "normalizer", "bounds and tails", "row parameters", "early returns"),
    *(f"tie budget {where}" for where in ("within a block", "across blocks", "across slices")),
    *("tie budget, order", "output values"),
}

NOTHING = Mutant("nothing", "none", MASK, r"prob > pivot", r"prob > (pivot)", "It does nothing wrong.")
SOURCE = digests.Sha256("0" * 64)
CRASH = Mutant("crash", "none", MASK, r"prob > pivot", r"prob > no_such_name", "It raises.")


@pytest.fixture(scope="module")
def patch() -> str:
    """Return the pinned text of commit 0a1276e."""
    return pipeline.text(pipeline.PATCH)


def named(*names: str) -> tuple[Mutant, ...]:
    """Return mutants of the catalogue."""
    found = tuple(mutant for mutant in MUTANTS if mutant.name in names)
    assert len(found) == len(names)
    return found


# ---------------------------------------------------------------------------------------------- located edits


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_an_edit_fits_the_pinned_text_once_and_makes_another_python_text(mutant: Mutant, patch: str) -> None:
    """Every mutant of the catalogue matches, differs from the patch in one line of its function, and parses."""
    wrong = mutate.apply(patch, mutant)
    pairs = zip(patch.splitlines(), wrong.splitlines(), strict=True)
    changed = [number for number, (old, new) in enumerate(pairs, 1) if old != new]
    functions = [node for node in ast.parse(wrong).body if isinstance(node, ast.FunctionDef)]
    (function,) = [node for node in functions if node.name == mutant.function]
    assert len(changed) == 1
    assert function.lineno <= changed[0] <= (function.end_lineno or 0)
    assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(patch))


def test_the_catalogue_has_its_families_and_no_mutant_twice(patch: str) -> None:
    """At least 24 mutants in the issue's families, each with a name, a sentence and a text of its own."""
    assert len(MUTANTS) >= 24
    assert {mutant.family for mutant in MUTANTS} == FAMILIES
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({mutate.apply(patch, mutant) for mutant in MUTANTS}) == len(MUTANTS)
    assert all(mutant.about.endswith(".") for mutant in MUTANTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"pattern": "no such expression"}, "mutant nothing: matches 0 times in _topp_sb_mask_kernel, expected once"),
        ({"pattern": "pid"}, "mutant nothing: matches 3 times in _topp_sb_mask_kernel, expected once"),
        ({"function": "absent"}, "mutant nothing: absent is defined 0 times, expected once"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused(change: dict[str, str], said: str, patch: str) -> None:
    """No match, more than one, or no such function: one line, and no text."""
    with pytest.raises(SourceError) as refused:
        mutate.apply(patch, replace(NOTHING, **change))
    assert str(refused.value) == said


def test_an_edit_stays_inside_its_function() -> None:
    """The same expression in another function, in the line before or behind it, is neither changed nor counted."""
    text = "def f(x):\n    return x > 1\n\n\ndef g(x):\n    return x > 1\n\n\ny = 2 > 1\n"
    found = mutate.apply(text, replace(NOTHING, function="g", pattern="(.) > 1", replacement=r"1 > \1"))
    assert found == "def f(x):\n    return x > 1\n\n\ndef g(x):\n    return 1 > x\n\n\ny = 2 > 1\n"


def test_no_committed_line_is_a_line_of_vllm() -> None:
    """No text file of the repository holds a line of the three pinned kernel files, trivial lines aside."""
    specs = (pipeline.STOCK, pipeline.PATCH, pipeline.release("0.33.0"))
    foreign = {line for spec in specs for line in telling(pipeline.text(spec))}
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=pipeline.ROOT, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    texts = {name: readable(pipeline.ROOT / name) for name in names}
    assert len(foreign) > 500
    assert "toppgate/mutate.py" in texts
    assert {name: found for name, text in texts.items() if (found := foreign & set(telling(text)))} == {}


def telling(text: str) -> Iterator[str]:
    """Yield the lines of more than twelve characters that are no import, no single word and no bare return."""
    for line in map(str.strip, text.splitlines()):
        if len(line) > 12 and re.search(r"\s", line) and not re.match(r"import |from |return \w+$", line):
            yield line


def readable(path: Path) -> str:
    """Return a file's text; nothing of a file that is none, or is not in the working tree."""
    try:
        return path.read_text(encoding="utf-8")
    except (UnicodeDecodeError, FileNotFoundError):
        return ""


# ---------------------------------------------------------------------------------------------- the frozen matrix


def test_the_shipped_matrix_is_frozen_and_compact() -> None:
    """The file is frozen in its own form, over commit 0a1276e, with at least 9 cases and at most 25."""
    checked = params.read(PARAMS)
    params.check_frozen(checked, "mutants.yml")
    assert params.dump(checked) == PARAMS.read_bytes()
    assert checked.patch.sha256 == pipeline.PATCH["sha256"]
    assert 9 <= len(checked.cases) <= 25


def test_the_readme_says_how_many() -> None:
    """Rows and mutants that the README names are those of the shipped matrix and of the catalogue."""
    text = (pipeline.ROOT / "README.md").read_text(encoding="utf-8")
    assert f"same {sum(case.batch for case in params.read(PARAMS).cases)} frozen rows" in text
    assert f"Of {len(MUTANTS)} wrong kernels" in text


@pytest.mark.parametrize(
    "path",
    sorted((pipeline.ROOT / "reports" / "archive").glob("mutants*/mutants.json")),
    ids=lambda path: path.parent.name,
)
def test_an_archived_page_is_of_the_catalogue_and_the_readme_says_its_counts(path: Path) -> None:
    """Where a search was run elsewhere, its page is kept whole: the whole catalogue over the shipped matrix."""
    found = json.loads(path.read_bytes())
    assert [line["name"] for line in found["table"]] == [mutant.name for mutant in MUTANTS]
    assert found["params"] == digests.sha256_file(PARAMS)
    text = " ".join((pipeline.ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"**Of {found['mutants']} wrong kernels {found['killed']} are killed**" in text
    assert all(f"{found[name]} {name}" in text for name in ("equivalent", "survived") if found[name])


# ---------------------------------------------------------------------------------------------- real kernels


@pytest.fixture(scope="module")
def matrix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return frozen params of small cases: forced, p that differs by row, a tie over two slices, and a long tail.

    On the tail the patch itself stops: its search cannot part the last values (vLLM issue #59964).
    """
    tied = pipeline.literal([2.0, *[0.0] * 40, *[-9.0] * 23])
    tail: Any = {"kind": "literal", "rows": [[{"linspace": ["0.0", "-30.0", 8001]}]]}
    cases = [
        pipeline.forced(rows=1),
        pipeline.control(),
        pipeline.case("tied", "ordinary", tied, "0.5", compute_units=2),
        pipeline.case("tail", "ordinary", tail, "0.9999999", compute_units=2),
    ]
    return pipeline.freeze_draft(tmp_path_factory.mktemp("matrix") / "tiny.yml", pipeline.draft(*cases))


def called(path: Path, out: Path, catalogue: tuple[Mutant, ...], *more: str) -> Result:
    """Run ``toppgate mutants`` in this process over another catalogue."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mutations, "MUTANTS", catalogue)
        return CliRunner().invoke(cli.cli, ["mutants", str(path), "--out", str(out), *more])


@pytest.fixture(scope="module")
def run(matrix: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """Return the run of four mutants of a larger catalogue, of which one does nothing."""
    out = tmp_path_factory.mktemp("mutants") / "run"
    chosen = ("highest-ids", "mask-p-of-another-row", "crash", "nothing")
    only = [word for name in chosen for word in ("--only", name)]
    return out, called(matrix, out, (*MUTANTS, CRASH, NOTHING), *only)


def record(out: Path) -> dict[str, Any]:
    """Return what a run wrote."""
    found: dict[str, Any] = json.loads((out / "mutants.json").read_bytes())
    return found


def first_kills(out: Path) -> dict[str, Any]:
    """Return {mutant: its first kill}."""
    return {line["name"]: next(iter(line["kills"]), None) for line in record(out)["table"]}


def test_wrong_kernels_are_caught_by_the_rows_made_for_them(run: tuple[Path, Result]) -> None:
    """Highest ids die on the tied row, another row's p on the second row, a crash by evidence in every row."""
    first = first_kills(run[0])
    assert first["highest-ids"] == {"case": "tied", "row": 0, "code": "patch_noncanonical_tie"}
    assert (first["mask-p-of-another-row"]["case"], first["mask-p-of-another-row"]["row"]) == ("control", 1)
    assert first["crash"] == {"case": "forced", "row": 0, "code": "worker_crashed"}
    assert record(run[0])["killed_by_evidence_alone"] == 1


def test_a_stop_that_the_patch_has_too_is_no_kill(run: tuple[Path, Result]) -> None:
    """The patch's own stop on the tail is listed, and kills none of the mutants that stop there with the same code."""
    own = {"case": "tail", "row": 0, "code": "count_bound_exceeded"}
    found = record(run[0])
    assert found["patch_stops"] == [own]
    assert all(own not in line["kills"] for line in found["table"])


def test_a_mutant_that_does_nothing_survives_and_is_said_to(run: tuple[Path, Result]) -> None:
    """It is counted, named on the terminal and on the page, and the exit status is 1."""
    out, done = run
    found = record(out)
    assert [found[key] for key in ("mutants", "killed", "equivalent", "survived")] == [4, 3, 0, 1]
    assert [line["name"] for line in found["table"] if line["outcome"] == "survived"] == ["nothing"]
    assert done.exit_code == 1
    assert "survived    nothing (none): It does nothing wrong." in done.output.splitlines()
    page = (out / "mutants.html").read_text(encoding="utf-8")
    assert "1 mutant survived" in page
    assert "<title>Wrong kernels: 3 of 4 killed</title>" in page
    assert "<script" not in page
    assert all(str(escape(line["about"])) in page for line in found["table"])


def test_nothing_is_overwritten(run: tuple[Path, Result], matrix: Path) -> None:
    """A second run into the same place is refused before anything runs."""
    with pytest.raises(RunError, match="never overwritten"):
        mutants.mutants(matrix, run[0], (NOTHING,))


def test_equivalent_needs_an_argument_and_a_search(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With both, a mutant that does nothing is equivalent, and the exit status 0."""
    monkeypatch.setattr(search, "BATCH", 2)
    monkeypatch.setattr(search, "ROWS", 4)
    monkeypatch.setattr(search, "device", lambda: "interpreter")
    small = pipeline.draft(pipeline.case("one", "ordinary", pipeline.normal(1)))
    path = pipeline.freeze_draft(tmp_path_factory.mktemp("one") / "one.yml", small)
    argued = replace(NOTHING, equivalence="Parentheses around a name mean nothing.")
    done = called(path, tmp_path / "run", (argued,), "--search", "--json")
    said = json.loads(done.output)
    assert (done.exit_code, said["equivalent"], said["survived"]) == (0, 1, 0)
    searched = said["table"][0]["searched"]
    assert (searched["rows"], searched["difference"]) == (4, None)
    assert searched["masked"] > 0
    assert searched["device"].startswith("Triton interpreter on the CPU, torch ")


@pytest.fixture
def searched(matrix: Path, patch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Searched]:
    """Return a search of two launches of two rows, on the interpreter, for a mutant."""
    monkeypatch.setattr(search, "BATCH", 2)
    monkeypatch.setattr(search, "device", lambda: "interpreter")
    provided = host.provide(params.read(matrix).host.model_dump(mode="json", exclude_unset=True), published.cache())
    return lambda mutant: search.search(
        provided, patch.encode(), mutate.apply(patch, mutant).encode(), scratch=tmp_path, rows=4
    )


def test_a_search_names_the_first_row_that_differs(searched: Callable[..., Searched]) -> None:
    """Two kernels that mask differently are told apart by the first launch and row that show it."""
    found = searched(*named("finite-mask"))
    assert str(found.difference).startswith("launch 0, row 0: normal, 61 tokens in 1 slices, p 0.")


def test_a_search_that_fails_is_a_difference(searched: Callable[..., Searched]) -> None:
    """A mutant that raises, or a process that is silent for too long, was not compared, and so is not alike."""
    found = searched(CRASH)
    assert found.rows == 0
    assert str(found.difference).startswith("could not be compared: exit status 1: ")
    with pytest.MonkeyPatch.context() as hurried:
        hurried.setattr(search, "SILENCE", 0)
        assert searched(NOTHING).difference == "could not be compared: no launch in 0 s"


def test_chosen_mutants_are_said_to_be_chosen(run: tuple[Path, Result], matrix: Path, tmp_path: Path) -> None:
    """With --only, the terminal, the page and the record name both numbers; a name that is none is one line."""
    out, done = run
    assert done.output.splitlines()[0] == f"chosen      4 of the {len(MUTANTS) + 2} of the catalogue"
    assert record(out)["catalogue"] == len(MUTANTS) + 2
    assert f"chosen from the {len(MUTANTS) + 2} of the catalogue" in (out / "mutants.html").read_text(encoding="utf-8")
    with pytest.raises(RunError, match="--only no-such: no mutant of this name"):
        mutants.mutants(matrix, tmp_path / "other", MUTANTS, only=["no-such"])


@pytest.mark.parametrize("number", range(len(draws.SHAPES) * len(draws.KINDS)))
def test_every_drawn_launch_is_admissible(number: int) -> None:
    """Logits are finite, p lies between 0 and 1, and the same number draws the same bits."""
    one, again = draws.draw(number, 8), draws.draw(number, 8)
    assert one.logits.shape == (8, draws.SHAPES[number % len(draws.SHAPES)][0])
    assert one.logits.dtype == one.p.dtype == np.float32
    assert np.isfinite(one.logits).all()
    assert ((one.p > 0) & (one.p < 1)).all()
    assert (one.logits.tobytes(), one.p.tobytes()) == (again.logits.tobytes(), again.p.tobytes())


@pytest.mark.parametrize("kind", range(len(draws.KINDS)))
def test_drawn_rows_meet_their_boundaries(kind: int) -> None:
    """On a quarter of a launch's rows at least, p is the mass of a prefix, rounded to fp32."""
    launch = draws.draw(len(draws.SHAPES) * kind, 64)
    ordered = -np.sort(-launch.logits.astype(np.float64), axis=1)
    weights = np.exp(ordered - ordered[:, :1])
    masses = np.cumsum(weights, axis=1) / weights.sum(axis=1, keepdims=True)
    rounded = masses.astype(np.float32).clip(max=draws.MOST)
    assert (rounded == launch.p[:, None]).any(axis=1).sum() >= 16


# ---------------------------------------------------------------------------------------------- what decides


@pytest.mark.parametrize(
    ("rows", "difference", "argument", "outcome"),
    [
        (search.ROWS, None, "because", "equivalent"),
        (search.ROWS - 1, None, "because", "survived"),
        (search.ROWS, "seed 1", "because", "survived"),
        (search.ROWS, None, "", "survived"),
    ],
)
def test_what_lives_is_survived_unless_argued_and_searched(
    rows: int, difference: str | None, argument: str, outcome: str
) -> None:
    """An argument alone, a search alone, a short search or a difference found do not make a mutant equivalent."""
    mutant = replace(NOTHING, equivalence=argument)
    assert mutants.Outcome(mutant, SOURCE, (), Searched(rows, rows, "here", difference)).outcome == outcome
    assert mutants.Outcome(mutant, SOURCE, ()).outcome == "survived"
    assert mutants.Outcome(mutant, SOURCE, (mutants.Stop("a", 0, "patch_hole"),)).outcome == "killed"


def test_codes_alone_are_the_row_tables_codes(run_by_command: tuple[Path, Any]) -> None:
    """``judge.decide`` gives, row by row, what stage 3 wrote."""
    directory, _ = run_by_command
    found = evidence.gather(directory)
    seen = [judged.code for case in found.params.cases for judged in judge.decide(case, found.case(case))]
    rows = [json.loads(line) for line in (directory / "rows.jsonl").read_bytes().splitlines()]
    assert seen == [row["code"] for row in rows]
    assert codes.PASS in seen


def test_the_page_counts_by_family_and_case() -> None:
    """A mutant killed by two cases counts in both; one killed by a single case counts as killed by it alone."""
    both = [{"case": "a", "row": 0, "code": "patch_hole"}, {"case": "b", "row": 0, "code": "patch_hole"}]
    line = {"name": "m", "family": "f", "about": "It errs.", "outcome": "killed", "searched": None}
    table = [{**line, "kills": both}, {**line, "name": "n", "kills": both[:1]}]
    cases = [{"id": name, "about": "", "rows": 1, "vocabulary": 2} for name in "ab"]
    found = list(kills._cases({"table": table, "cases": cases}))
    assert [(case["id"], case["killed"], case["alone"]) for case in found] == [("a", 2, 1), ("b", 1, 0)]
    assert list(kills._families({"table": table})) == [{"name": "f", "mutants": 2, "killed": 2}]
