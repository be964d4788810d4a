"""Archived runs lie here as they were sealed, byte for byte; ``toppgate verify`` derives the rest, in minutes."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest

from toppgate import evidence, params, suspect

ARCHIVE = Path(__file__).resolve().parent.parent / "reports" / "archive"
RUNS = sorted(path.parent for path in ARCHIVE.glob("*/receipt.json"))
#: The ladder's runs, each below the page of all.
RUNGS = sorted(path.parent for path in ARCHIVE.glob("ladder/*/receipt.json"))
#: The H200 ladder's, of which only page and receipt are here.
PAGES = sorted(path.parent for path in ARCHIVE.glob("ladder-h200/*/receipt.json"))

#: Issue of the CUDA evidence: an archived run is at most this large.
MOST_BYTES = 16 * 2**20


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


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
    found = {path.relative_to(run).as_posix(): _sha256(path) for path in files}
    assert found == said
    assert sum(path.stat().st_size for path in run.rglob("*") if path.is_file()) <= MOST_BYTES


def test_the_archived_ladders_record_names_its_runs() -> None:
    """Every run is there, with the receipt that the record names, and reports/README.md counts its rows."""
    record = json.loads((ARCHIVE / "ladder" / "ladder.json").read_bytes())
    found = {run.name: _sha256(run / "receipt.json") for run in RUNGS}
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


def test_the_h200_ladder_is_its_record_and_its_pages() -> None:
    """Each page is the one that its receipt names, each receipt one that the record names; the table counts rows."""
    record = json.loads((ARCHIVE / "ladder-h200" / "ladder.json").read_bytes())
    assert {run.name: _sha256(run / "receipt.json") for run in PAGES} == record["receipts"]
    for run in PAGES:
        receipt = json.loads((run / "receipt.json").read_bytes())
        said = {entry["name"]: entry["digest"]["sha256"] for entry in receipt["subject"]}
        assert {path.name for path in run.iterdir()} == {"3_gate.html", "receipt.json"}
        assert said["3_gate.html"] == _sha256(run / "3_gate.html")
    text = (ARCHIVE.parent / "README.md").read_text(encoding="utf-8").partition("## The ladder on an H200")[2]
    columns = [[row["code"] for row in kernel["rows"]] for kernel in record["kernels"]]
    assert columns[0] == columns[1] == columns[2]
    for code in {code for column in columns for code in column} - {"pass"}:
        counts = [columns[number].count(code) or "–" for number in (0, 3, 4, 5)]
        said_line = next(line for line in text.splitlines() if line.startswith(f"| `{code}`"))
        assert said_line.endswith(f"| {' | '.join(map(str, counts))} |")


@pytest.mark.parametrize(("kernel", "run"), [("0a1276e", "h200"), ("0.33.0", "h200-0.33.0")])
def test_the_h200_ladder_gives_the_rows_of_the_runs_the_same_codes(kernel: str, run: str) -> None:
    """Another day, another launch: every row of an archived run has its code and its count again."""
    record = json.loads((ARCHIVE / "ladder-h200" / "ladder.json").read_bytes())
    (column,) = (each["rows"] for each in record["kernels"] if each["id"] == kernel)
    again = {(row["case"], row["row"]): (row["code"], row["kept"]) for row in column}
    rows = [json.loads(line) for line in (ARCHIVE / run / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 2560
    assert all(again[row["case"], row["row"]] == (row["code"], row["kept_patch"]) for row in rows)


def test_the_worst_regression_of_0_33_0_is_the_one_that_is_told() -> None:
    """The largest of the ten symmetric differences and the largest mass, as reports/README.md has them."""
    rows = [json.loads(line) for line in (ARCHIVE / "h200-0.33.0" / "rows.jsonl").read_text().splitlines()]
    worse = [row for row in rows if row["code"] == "symmetric_difference_regression"]
    most = max(worse, key=lambda row: row["symdiff_patch"])
    said = (
        f"by {most['symdiff_patch']} of {most['kept_oracle']:,} tokens against stock's {most['symdiff_stock']} at most"
    )
    text = (ARCHIVE.parent / "README.md").read_text(encoding="utf-8")
    assert len(worse) == 10
    assert f"{said} (mass {max(row['mass_patch'] for row in worse):.1e} at most" in text


def test_the_ties_that_0_33_0_gets_wrong_on_the_h200_are_split_by_half_warps() -> None:
    """Of the lowest logit that is kept, all tokens on one half of the lanes are, and on the other half the lowest ids.

    A launch of the mask kernel has 8 warps, 32 lanes each, and a lane has 4 tokens in a row.  The normalizers of S
    slices are added by a butterfly over S lanes whose first step is between lanes that differ in bit log2(S) - 1.
    """
    run = ARCHIVE / "h200-0.33.0"
    found, checked = evidence.gather(run), params.read(run / "params.yml")
    cases = {case.id: case for case in checked.cases}
    rows = [json.loads(line) for line in (run / "rows.jsonl").read_text().splitlines()]
    wrong = [row for row in rows if row["code"] == "patch_noncanonical_tie"]
    held = {case: found.case(cases[case]) for case in {row["case"] for row in wrong}}
    assert len(wrong) == 50
    for row in wrong:
        case, number = cases[row["case"]], row["row"]
        inputs, patch = held[case.id].inputs, held[case.id].patch
        assert inputs is not None
        assert patch is not None
        slices = case.slices and case.slices.patch
        assert slices
        logits = inputs.logits[number]
        tied = np.flatnonzero(logits == logits[patch.kept[number]].min())
        lane = tied % -(-logits.size // slices) // 4 % 32
        half = lane // (slices // 2) % 2
        kept = [patch.kept[number][tied[half == each]] for each in (0, 1)]
        assert sorted(each.size > 0 and bool(each.all()) for each in kept) == [False, True]
        assert all((each[:-1] >= each[1:]).all() for each in kept)


def test_the_archived_hunt_found_what_is_told() -> None:
    """The first row of each known fault, and the rows screened, stand in reports/README.md; all rows stopped again."""
    record = json.loads((ARCHIVE / "hunt" / "hunt.json").read_bytes())
    text = " ".join(
        (ARCHIVE.parent / "README.md").read_text(encoding="utf-8").partition("## What the hunt found")[2].split()
    )
    known = {name: (found["after"], found["kind"]) for name, found in record["known"].items()}
    assert set(known) == set(suspect.KNOWN)
    assert f"screened {record['rows']:,} rows in {record['seconds']['screened']:.0f} s" in text
    assert all(f"after {after}" in text for after, _ in known.values())
    assert all(line["again"] == line["code"] for line in record["written"])
    assert f"{len(record['written'])} rows were made smaller or left as drawn" in text
    checked = params.read(ARCHIVE / "hunt" / "rows.yml")
    assert [case.id for case in checked.cases] == [line["case"] for line in record["written"]]


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
