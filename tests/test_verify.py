"""``verify`` trusts nothing: damage of every kind to a sealed run is refused, and what differs is named.

The last part is an attacker who knows the format: whatever is edited, every digest that can be computed again is.
"""

import hashlib
import json
import os
import random
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pipeline
import pytest
import rfc8785

from toppgate import inputs, outputs, pages, params
from toppgate.errors import RunError
from toppgate.verify import verify

Run = tuple[Path, subprocess.CompletedProcess[str]]
Damage = Callable[[Path], object]

#: Random bits flipped in one session; the seed is fixed, so that a failure can be seen again.
FLIPS = int(os.environ.get("TOPPGATE_TEST_FLIPS", "60"))


@pytest.fixture
def run(run_by_command: Run, tmp_path: Path) -> Path:
    """Return a copy of a sealed run that passes."""
    return Path(shutil.copytree(run_by_command[0], tmp_path / "run"))


def names(run: Path) -> list[str]:
    """Return the names of all files of a run."""
    return sorted(path.relative_to(run).as_posix() for path in run.rglob("*") if path.is_file())


def refused(run: Path) -> str:
    """Return why ``verify`` refuses: a difference, or an error where the receipt cannot be read at all."""
    try:
        difference = verify(run).difference
    except RunError as error:
        return str(error)
    assert difference is not None, "verify agrees"
    return difference


def test_an_intact_copy_is_accepted(run: Path) -> None:
    """A run verifies wherever it lies, and pages are among what was derived again."""
    found = verify(run)
    assert (found.verdict, found.difference) == ("PASS", None)
    assert found.notes == ("made by toppgate 0.1.0, verified by toppgate 0.1.0 (the same files)",)


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file; an empty one gets a byte."""
    if path.stat().st_size == 0:
        path.write_bytes(b"\0")
        return
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_one_changed_byte_in_each_file_is_refused(run: Path) -> None:
    """Each file of a run, with one byte changed in its middle, is refused by its name."""
    for name in names(run):
        kept = (run / name).read_bytes()
        flip(run / name, len(kept) // 2 * 8)
        assert name in refused(run)
        (run / name).write_bytes(kept)
    assert verify(run).difference is None


def test_random_flipped_bits_are_refused(run: Path) -> None:
    """Bits drawn by file, weighted by size, notebooks and pages included, are all noticed, and the file is named."""
    draw = random.Random(42)  # noqa: S311 - a reproducible draw, no secret
    files = {name: (run / name).read_bytes() for name in names(run)}
    sizes = [len(data) for data in files.values()]
    for _ in range(FLIPS):
        (name,) = draw.choices(list(files), weights=sizes)
        flip(run / name, draw.randrange(len(files[name]) * 8))
        assert name in refused(run)
        (run / name).write_bytes(files[name])


def swap(run: Path, one: str, other: str) -> None:
    """Exchange two files."""
    (run / one).rename(run / "kept")
    (run / other).rename(run / one)
    (run / "kept").rename(run / other)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (lambda run: (run / "rows.jsonl").unlink(), "rows.jsonl"),
        (lambda run: (run / "inputs/control.safetensors").unlink(), "inputs/control.safetensors"),
        (lambda run: (run / "notes.txt").write_text(""), "notes.txt"),
        (lambda run: (run / "harness/toppgate/more.py").write_text(""), "harness/toppgate/more.py"),
        (lambda run: (run / "outputs/more").mkdir(), "outputs/more"),
        (lambda run: (run / "more.html").symlink_to("3_gate.html"), "more.html"),
        (lambda run: (run / "verdict.json").rename(run / "verdict.jso"), "verdict.json"),
        (lambda run: swap(run, "1_capture.html", "2_execute.html"), "1_capture.html"),
        (
            lambda run: swap(run, *(f"outputs/control.{side}.safetensors" for side in ("patch", "stock"))),
            "control.patch",
        ),
        (lambda run: os.truncate(run / "2_execute.json", 100), "2_execute.json"),
        (lambda run: os.truncate(run / "3_gate.html", 0), "3_gate.html"),
        (lambda run: os.truncate(run / "receipt.json", 100), "receipt.json: not a receipt"),
        (lambda run: (run / "receipt.json").write_bytes((run / "receipt.json").read_bytes() + b" "), "receipt.json"),
        (lambda run: (run / "receipt.json").unlink(), "unsealed"),
        (lambda run: (run / "receipt.json").write_text("[]"), "schema: got 'list', expected 'toppgate/receipt/1'"),
    ],
)
def test_damage_is_refused(run: Path, damage: Damage, named: str) -> None:
    """Files deleted, added, renamed, exchanged, cut short, or linked: refused, and the first of them is named."""
    damage(run)
    assert named in refused(run)


def test_the_receipt_of_another_run_is_refused(run: Path, run_by_papermill: Run) -> None:
    """A receipt that is whole, of a run over the same params with the same rows, does not fit."""
    shutil.copy(run_by_papermill[0] / "receipt.json", run / "receipt.json")
    assert refused(run).startswith("1_capture.")


def test_what_an_interrupted_run_left_is_no_run(run: Path) -> None:
    """The directory in which ``run`` works never verifies, not even when it is sealed and was not renamed yet."""
    left = run.rename(run.with_name("run.partial-0123abcd"))
    with pytest.raises(RunError, match="interrupted"):
        verify(left)


def test_a_downgraded_schema_is_refused(run: Path) -> None:
    """A receipt of a version that this toppgate does not know is not read by the rules of another."""
    for schema in ("toppgate/receipt/0", "toppgate/receipt/2", None, 1):
        pipeline.edit(run, "receipt.json", lambda receipt: receipt["predicate"].update(schema=schema))  # noqa: B023
        reseal(run)
        assert "schema: got " in refused(run)


# ---------------------------------------------------------------------------------------------- an attacker


def edit_rows(run: Path, change: Callable[[list[Any]], object]) -> None:
    """Change the rows of a run and write them in canonical form."""
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_bytes().splitlines()]
    change(rows)
    (run / "rows.jsonl").write_bytes(b"".join(rfc8785.dumps(row) + b"\n" for row in rows))


def sha256(data: bytes) -> str:
    """Return a digest without asking toppgate."""
    return hashlib.sha256(data).hexdigest()


def reseal(run: Path) -> None:
    """Compute everything in the receipt again, its digest over the rest of itself included."""
    receipt = json.loads((run / "receipt.json").read_bytes())
    verdict = json.loads((run / "verdict.json").read_bytes())
    said = receipt["predicate"]
    said["verdict"] = {key: verdict[key] for key in ("verdict", "first_stop", "counts", "run", "harness")}
    said["result"] = "PASSED" if verdict["verdict"] == "PASS" else "FAILED"
    receipt["subject"] = [
        {"name": name, "digest": {"sha256": sha256((run / name).read_bytes())}}
        for name in names(run)
        if name != "receipt.json"
    ]
    said.pop("sha256")
    said["sha256"] = sha256(rfc8785.dumps(receipt))
    (run / "receipt.json").write_bytes(rfc8785.dumps(receipt) + b"\n")


def turn_to_pass(run: Path) -> None:
    """Make a STOP a PASS in every row, count, stop and page, as far as text goes."""

    def rows(found: list[Any]) -> None:
        for row in found:
            row.update(code="pass", also=[], after_stop=False)

    def verdict(found: Any) -> None:
        counts = found["counts"]
        found.update(verdict="PASS", first_stop=None, stops=[], unshared_stops=0)
        counts.update(passed=counts["rows"], stopped=0)

    edit_rows(run, rows)
    pipeline.edit(run, "verdict.json", verdict)
    for name in ("3_gate.ipynb", "3_gate.html"):
        page = (run / name).read_text()
        (run / name).write_text(page.replace("■</span> STOP", "✓</span> PASS"))


def change_masks(run: Path) -> None:
    """Have the patch's retained output say that one more token was kept, in the file and in what is said of it."""
    path = run / "outputs/control.patch.safetensors"
    case = next(case for case in params.read(run / "params.yml").cases if case.id == "control")
    held = inputs.held(run, case, retained=True)
    masks = outputs.from_bytes(path.read_bytes(), held.orders, path.name)
    masks.kept[0, held.orders[0][masks.kept[0].sum()]] = True
    binding = outputs.binding_of(path.read_bytes(), path.name)
    binding["repeats"] = [sha256(masks.raw(held.logits).tobytes())] * 2
    path.write_bytes(outputs.to_bytes(masks, held.orders, binding))

    def record(executed: Any) -> None:
        found = executed["sides"]["patch"]["cases"]["control"]
        found.update(repeats=binding["repeats"], file=sha256(path.read_bytes()))

    pipeline.edit(run, "2_execute.json", record)


def change_input(run: Path) -> None:
    """Write another input, with its digest in stage 1's result."""
    path = run / "inputs/control.safetensors"
    held = inputs.from_bytes(path.read_bytes(), path.name)
    logits = held.logits.copy()
    logits[0, 0] = np.float32(0.5)
    other = inputs.Inputs(logits, held.p)
    inputs.save(other, path)
    pipeline.edit(run, "1_capture.json", lambda captured: captured["inputs"].update(control=other.sha256))


def replace_text(name: str, old: str, new: str) -> Damage:
    """Return an edit of a text file."""

    def replace(run: Path) -> None:
        text = (run / name).read_text()
        assert old in text
        (run / name).write_text(text.replace(old, new))

    return replace


def change_notebook_and_page(run: Path) -> None:
    """Have the notebook say another verdict, and its page as well, drawn by our own code."""
    replace_text("3_gate.ipynb", "</span> PASS", "</span> STOP")(run)
    (run / "3_gate.html").write_text(pages.render(run / "3_gate.ipynb"))


ATTACKS: dict[str, tuple[Damage, str]] = {
    "a row's code": (
        lambda run: edit_rows(run, lambda rows: rows[0].update(code="forced_nan")),
        "rows.jsonl: case forced row 0: code: the run says forced_nan, judged again it is pass",
    ),
    "a row's count": (
        lambda run: edit_rows(run, lambda rows: rows[2].update(kept_patch=rows[2]["kept_patch"] + 1)),
        "rows.jsonl: case control row 0: kept_patch: the run says ",
    ),
    "a row's margin": (
        lambda run: edit_rows(run, lambda rows: rows[2]["margin"].update(below=rows[2]["margin"]["below"] * 2)),
        "rows.jsonl: case control row 0: margin: the run says ",
    ),
    "a row less": (lambda run: edit_rows(run, lambda rows: rows.pop()), "rows.jsonl: holds 6 rows"),
    "a row more": (lambda run: edit_rows(run, lambda rows: rows.append(rows[0])), "rows.jsonl: holds 8 rows"),
    "rows in another order": (
        lambda run: edit_rows(run, lambda rows: rows.reverse()),
        "rows.jsonl: case forced row 0: ",
    ),
    "the verdict": (
        lambda run: pipeline.edit(run, "verdict.json", lambda verdict: verdict.update(verdict="STOP")),
        "verdict.json: verdict: the run says STOP, judged again it is PASS",
    ),
    "the counts": (
        lambda run: pipeline.edit(run, "verdict.json", lambda verdict: verdict["counts"].update(control=3)),
        "verdict.json: counts: the run says ",
    ),
    "the statement": (
        lambda run: pipeline.edit(run, "verdict.json", lambda verdict: verdict.update(statement="All is well.")),
        "verdict.json: statement: the run says ",
    ),
    "the masks": (change_masks, "rows.jsonl: case control row 0: "),
    "an input": (change_input, "inputs/control.safetensors: made again it is "),
    "the harness": (
        lambda run: (run / "harness/toppgate/gate.py").write_text("# nothing to see here\n"),
        "harness: the kept copy has digest ",
    ),
    "the params": (replace_text("params.yml", 'title: "tiny"', 'title: "Tiny"'), "params.yml: params_drift: title"),
    "the params' form": (replace_text("params.yml", "repeat: 2", "repeat:  2"), "params.yml: not in freeze's own form"),
    "an injected value": (
        replace_text("2_execute.ipynb", "repeat = 2", "repeat = 3"),
        "2_execute.ipynb: was given other",
    ),
    "a cell": (replace_text("3_gate.ipynb", "judged = gate_run(run)", "judged = None"), "3_gate.ipynb: does not count"),
    "what a notebook shows": (
        replace_text("3_gate.ipynb", "</span> PASS", "</span> STOP"),
        "3_gate.ipynb: cell ",
    ),
    "a page": (
        replace_text("3_gate.html", "</span> PASS", "</span> STOP"),
        "3_gate.html: is not the page of 3_gate.ipynb",
    ),
    "a notebook and its page": (change_notebook_and_page, "3_gate.ipynb: cell "),
    "the summary": (replace_text("summary.md", "toppgate: PASS", "toppgate: STOP"), "summary.md: says something else"),
    "no summary": (lambda run: (run / "summary.md").unlink(), "summary.md: a run has one, this has none"),
    "the receipt's git revision": (
        lambda run: pipeline.edit(
            run, "receipt.json", lambda receipt: receipt["predicate"].update(git={"revision": "0" * 40})
        ),
        "receipt.json: git: says ",
    ),
    "a worker's environment": (
        lambda run: pipeline.edit(
            run, "2_execute.json", lambda found: found["sides"]["patch"]["environments"][0].update(torch="2.14.0")
        ),
        "rows.jsonl",
    ),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_edit_is_refused_though_all_is_hashed_again(run: Path, attack: str) -> None:
    """The judgement is made again from the masks, inputs from their generators, pages from the results."""
    damage, words = ATTACKS[attack]
    damage(run)
    reseal(run)
    assert refused(run).startswith(words) or words in refused(run)


def test_hashing_again_is_what_a_seal_does(run: Path) -> None:
    """The attacker's receipt of an untouched run is accepted: it is the edits that are refused, not the receipt."""
    reseal(run)
    assert verify(run).difference is None


def test_a_stop_made_a_pass_is_refused(stopped_run: Run, tmp_path: Path) -> None:
    """A STOP whose rows, counts, stops, pages and receipt all say PASS is judged again, and is a STOP."""
    run = Path(shutil.copytree(stopped_run[0], tmp_path / "run"))
    assert verify(run).difference is None
    turn_to_pass(run)
    reseal(run)
    assert json.loads((run / "receipt.json").read_bytes())["predicate"]["result"] == "PASSED"
    assert refused(run).startswith("rows.jsonl: case forced row 0: ")


def test_the_command_says_what_verify_says(run: Path) -> None:
    """Exit status 1 and the difference for a damaged run, 2 and one line for one without a receipt."""
    flip(run / "rows.jsonl", 100)
    done = pipeline.toppgate("verify", run, "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["difference"].startswith("rows.jsonl: SHA-256 is ")
    (run / "receipt.json").unlink()
    done = pipeline.toppgate("verify", run)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"toppgate: {run}: unsealed: holds no receipt.json, so it is not a run\n"
