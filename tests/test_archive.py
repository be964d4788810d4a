"""Archived runs lie here as they were sealed, byte for byte; ``toppgate verify`` derives the rest, in minutes."""

import hashlib
import json
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).resolve().parent.parent / "reports" / "archive"
RUNS = sorted(path.parent for path in ARCHIVE.glob("*/receipt.json"))
#: The ladder's runs, each below the page of all.
RUNGS = sorted(path.parent for path in ARCHIVE.glob("ladder*/*/receipt.json"))

#: Issue of the CUDA evidence: an archived run is at most this large.
MOST_BYTES = 16 * 2**20


def test_there_are_archived_runs() -> None:
    """The two H200 runs are there, and the README of reports names each."""
    assert {"h200", "h200-0.33.0"} <= {run.name for run in RUNS}
    text = (ARCHIVE.parent / "README.md").read_text(encoding="utf-8")
    assert all(f"toppgate verify reports/archive/{run.name}\n" in text for run in RUNS)


@pytest.mark.parametrize("run", [*RUNS, *RUNGS], ids=lambda run: run.name)
def test_an_archived_run_is_whole(run: Path) -> None:
    """Its files are the ones that its receipt names, with those digests, and no others."""
    receipt = json.loads((run / "receipt.json").read_bytes())
    said = {entry["name"]: entry["digest"]["sha256"] for entry in receipt["subject"]}
    files = [path for path in run.rglob("*") if path.is_file() and path.name != "receipt.json"]
    found = {path.relative_to(run).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert found == said
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) <= MOST_BYTES


def test_the_archived_ladders_record_names_its_runs() -> None:
    """Every run is there, with the receipt that the record names, and reports/README.md counts its rows."""
    record = json.loads((ARCHIVE / "ladder" / "ladder.json").read_bytes())
    found = {run.name: hashlib.sha256((run / "receipt.json").read_bytes()).hexdigest() for run in RUNGS}
    assert found == record["receipts"]
    text = (ARCHIVE.parent / "README.md").read_text(encoding="utf-8").partition("## The ladder")[2]
    assert f"{len(record['kernels'][0]['rows'])} rows" in text
    columns = [[row["code"] for row in kernel["rows"]] for kernel in record["kernels"]]
    assert columns[0] == columns[1] == columns[2]
    assert columns[5] == columns[6]
    for code in {code for column in columns for code in column} - {"pass"}:
        counts = [columns[number].count(code) or "–" for number in (0, 3, 4, 5)]
        said = next(line for line in text.splitlines() if line.startswith(f"| `{code}`"))
        assert said.endswith(f"| {' | '.join(map(str, counts))} |")


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_the_page_of_findings_says_what_the_run_says(run: Path) -> None:
    """Verdict, first stop and counts in reports/README.md are those of the run."""
    verdict = json.loads((run / "verdict.json").read_bytes())
    text = (ARCHIVE.parent / "README.md").read_text(encoding="utf-8")
    first, counts = verdict["first_stop"], verdict["counts"]
    assert verdict["verdict"] == "STOP"
    assert f"`{first['case']}`, row {first['row']}: `{first['code']}`" in text
    assert f"| {counts['rows']:,}, {counts['stopped']} |" in text
    assert f"{counts['forced']} of {counts['forced']}" in text
