"""``toppgate diff``: what changed between two sealed runs, and what is refused."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from pipeline import edit, toppgate

from toppgate import diff
from toppgate.errors import RunError

Row = dict[str, Any]
Run = tuple[Path, subprocess.CompletedProcess[str]]


def make_row(case: str, row: int, code: str = "pass", **columns: Any) -> Row:
    """Return a row of the table, as far as ``diff`` reads it."""
    return {"case": case, "row": row, "code": code, "role": "ordinary", **dict.fromkeys(diff.COUNTS, 5), **columns}


def make_run(directory: Path, rows: list[Row], **more: Any) -> Path:
    """Write what ``diff`` reads of a sealed run."""
    directory.mkdir()
    inputs = more.pop("inputs", {row["case"]: f"input of {row['case']}" for row in rows})
    verdict = {"schema": "toppgate/verdict/1", "verdict": "STOP", "first_stop": None, "device": "interpreter", **more}
    files = {"rows.jsonl": b"".join(rfc8785.dumps(row) + b"\n" for row in rows), "verdict.json": rfc8785.dumps(verdict)}
    for name, data in files.items():
        (directory / name).write_bytes(data)
    subject: Any = [
        {"name": name, "digest": {"sha256": hashlib.sha256(data).hexdigest()}} for name, data in files.items()
    ]
    environments: Any = {"patch": [{"torch": more.get("torch", "2.13.0")}]}
    predicate: Any = {"inputs": inputs, "sources": {"patch": "a" * 64}, "host": None, "environments": environments}
    (directory / "receipt.json").write_bytes(rfc8785.dumps({"subject": subject, "predicate": predicate}))
    return directory


def test_rows_are_sorted_by_what_became_of_them(tmp_path: Path) -> None:
    """Changed codes, changed counts, appeared, vanished and the same are told apart."""
    before = [make_row("a", 0), make_row("a", 1), make_row("a", 2), make_row("gone", 0, "patch_hole")]
    after = [make_row("a", 0), make_row("a", 1, "patch_hole", kept_patch=6), make_row("a", 2, kept_stock=4)]
    after.append(make_row("new", 0))
    stop = {"case": "gone", "row": 0, "code": "patch_hole"}
    more = {"verdict": "PASS", "first_stop": stop}
    found = diff.diff(make_run(tmp_path / "one", before), make_run(tmp_path / "two", after, **more))
    assert found.codes == [diff.Changed("a", 1, {"code": ["pass", "patch_hole"], "kept_patch": [5, 6]})]
    assert found.counts == [diff.Changed("a", 2, {"kept_stock": [5, 4]})]
    assert (found.appeared, found.vanished) == ([["new", 0, "pass"]], [["gone", 0, "patch_hole"]])
    assert (found.same, found.run) == (
        1,
        {"verdict": ["STOP", "PASS"], "first stop": ["none", "gone row 0: patch_hole"]},
    )
    assert list(diff.lines(found)) == [
        "verdict        STOP -> PASS",
        "first stop     none -> gone row 0: patch_hole",
        "code           pass -> patch_hole in 1",
        "rows           1 changed code",
        "  a row 1: code pass -> patch_hole, kept_patch 5 -> 6",
        "rows           1 changed in counts",
        "  a row 2: kept_stock 5 -> 4",
        "rows           1 appeared",
        "  new row 0: pass",
        "rows           1 vanished",
        "  gone row 0: patch_hole",
        "rows           1 the same in code and counts",
    ]


def test_what_stops_now_comes_first(tmp_path: Path) -> None:
    """Changes of code are counted by what they were, and rows that passed before head the list."""
    one = [make_row("a", 0, "patch_hole"), make_row("a", 1, "patch_hole"), make_row("a", 2)]
    other = [make_row("a", 0), make_row("a", 1), make_row("a", 2, "patch_hole")]
    found = diff.diff(make_run(tmp_path / "one", one), make_run(tmp_path / "two", other))
    assert list(diff.lines(found))[:4] == [
        "code           patch_hole -> pass in 2",
        "code           pass -> patch_hole in 1",
        "rows           3 changed code",
        "  a row 2: code pass -> patch_hole",
    ]


def test_a_row_over_other_bytes_is_another_row(tmp_path: Path) -> None:
    """Where the digest of a case's input changed, its rows vanished and others appeared, though their codes agree."""
    rows = [make_row("a", 0), make_row("b", 0)]
    one = make_run(tmp_path / "one", rows)
    other = make_run(tmp_path / "two", rows, inputs={"a": "another", "b": "input of b"})
    found = diff.diff(one, other)
    assert (found.vanished, found.appeared, found.same) == ([["a", 0, "pass"]], [["a", 0, "pass"]], 1)
    assert found.rows


def test_what_the_runs_rest_on_is_named_and_decides_nothing(tmp_path: Path) -> None:
    """Another torch is said, and is no difference of rows."""
    rows = [make_row("a", 0)]
    found = diff.diff(make_run(tmp_path / "one", rows), make_run(tmp_path / "two", rows, torch="2.14.0"))
    assert (found.run, found.rows) == ({"torch": ["2.13.0", "2.14.0"]}, False)


def test_a_long_list_is_cut_in_text_only(tmp_path: Path) -> None:
    """Of 100 changed rows the text shows some and says how many more; the record has all."""
    one = make_run(tmp_path / "one", [make_row("a", row) for row in range(100)])
    other = make_run(tmp_path / "two", [make_row("a", row, "patch_hole") for row in range(100)])
    found = diff.diff(one, other)
    assert len(found.codes) == len(found.plain()["codes"]) == 100
    assert f"  … and {100 - diff.MOST} more; --json has all" in list(diff.lines(found))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "receipt.json").unlink(), "unsealed: holds no receipt.json"),
        (lambda run: (run / "receipt.json").write_text("[]"), "not a sealed run: TypeError"),
        (lambda run: (run / "receipt.json").write_text("{"), "not a sealed run: JSONDecodeError"),
        (lambda run: (run / "rows.jsonl").unlink(), "not a sealed run: FileNotFoundError"),
        (lambda run: (run / "rows.jsonl").write_bytes(b"{}\n"), "rows.jsonl: is not the file that the receipt names"),
        (lambda run: (run / "verdict.json").write_bytes(b"{}"), "verdict.json: is not the file that the receipt names"),
    ],
)
def test_what_is_no_sealed_run_is_refused(tmp_path: Path, damage: Callable[[Path], object], words: str) -> None:
    """Unsealed, damaged or edited runs are refused, on either side."""
    one, other = make_run(tmp_path / "one", [make_row("a", 0)]), make_run(tmp_path / "two", [make_row("a", 0)])
    damage(other)
    for pair in ((one, other), (other, one)):
        with pytest.raises(RunError, match=words):
            diff.diff(*pair)


def test_the_command(run_by_command: Run, run_by_papermill: Run, stopped_run: Run, tmp_path: Path) -> None:
    """Exit status 0 where no row differs, 1 where some do, 2 in one line where a run is not sealed."""
    (one, _), (other, _), (stopped, _) = run_by_command, run_by_papermill, stopped_run
    done = toppgate("diff", one, other, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    said = json.loads(done.stdout)
    assert (said["changed"], said["run"], said["codes"], said["same"]) == (False, {}, [], 7)
    assert len(json.loads(toppgate("diff", one, stopped, "--json").stdout)["codes"]) == 2
    done = toppgate("diff", one, stopped)
    assert done.returncode == 1
    assert "verdict        PASS -> STOP\n" in done.stdout
    copy = Path(shutil.copytree(one, tmp_path / "copy"))
    edit(copy, "verdict.json", lambda verdict: verdict.update(verdict="STOP"))
    done = toppgate("diff", one, copy)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"toppgate: {copy}: verdict.json: is not the file that the receipt names\n"
