"""Archived runs lie here as they were sealed, byte for byte; ``toppgate verify`` derives the rest, in minutes."""

import csv
import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from toppgate import evidence, inputs, oracle, params, prospect, suspect

ARCHIVE = Path(__file__).resolve().parent.parent / "reports" / "archive"
RUNS = sorted(path.parent for path in ARCHIVE.glob("*/receipt.json"))
#: The ladder's runs, each below the page of all.
RUNGS = sorted(path.parent for path in ARCHIVE.glob("ladder/*/receipt.json"))
#: The H200 ladder's, of which only page and receipt are here.
PAGES = sorted(path.parent for path in ARCHIVE.glob("ladder-h200/*/receipt.json"))

#: Hunts on H200s: a record and a line for each block of each.
HUNTS = ("0a1276e", "0.33.0", "0.33.0-unfused")

#: Issue of the CUDA evidence: an archived run is at most this large.
MOST_BYTES = 16 * 2**20


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_there_are_archived_runs() -> None:
    """The four H200 runs are there, and the README of reports names each."""
    assert {run.name for run in RUNS} == {"h200", "h200-0.33.0", "h200-hang", "h200-hang-0.33.0"}
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
    assert not counts["forced"] or f"{counts['forced']} of {counts['forced']}" in text


def _blocks(name: str) -> list[dict[str, str]]:
    with (ARCHIVE / "hunt-h200" / f"{name}.csv").open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def test_the_h200_hunts_are_what_is_told_of_them() -> None:
    """Each record's findings are the sums of its blocks, and the table gives them."""
    records = {name: json.loads((ARCHIVE / "hunt-h200" / f"{name}.json").read_bytes()) for name in HUNTS}
    told = (ARCHIVE.parent / "README.md").read_text(encoding="utf-8").partition("## What the hunt found")[2]
    for name, record in records.items():
        blocks, found = _blocks(name), {each["finding"]: each["rows"] for each in record["findings"]}
        assert sum(int(block["rows"]) for block in blocks) == record["rows"]
        assert {code: sum(int(block[code]) for block in blocks) for code in prospect.FINDINGS} == {
            code: found.get(code, 0) for code in prospect.FINDINGS
        }
        for each in record["findings"]:
            expected = "pass" if each["finding"] == "over_keep_in_tie" else each["finding"]
            assert set(each["judged"]) == {expected}
    each = list(records.values())
    stood = [[found["side"] for found in record["broken"]] for record in each]
    rows: dict[str, list[int]] = {
        "rows screened": [record["rows"] for record in each],
        "seconds": [round(record["seconds"]["screened"]) for record in each],
        "rows on which stock's launch never ended": [sides.count("stock") for sides in stood],
        "rows on which the patch's did, and stock's not": [sides.count("patch") for sides in stood],
    }
    for code in prospect.FINDINGS[1:-1]:
        found_in = [{found["finding"]: found["rows"] for found in record["findings"]} for record in each]
        rows[f"`{code}`"] = [found.get(code, 0) for found in found_in]
    for what, numbers in rows.items():
        assert f"| {what} | {' | '.join(f'{number:,}' for number in numbers)} |" in told
    after = {name: found["after"] for name, found in each[0]["known"].items()}
    assert after == {
        "tie budget": 9,
        "stock under-keep": 3,
        "over-keep in the lowest tie group": 17,
        "choice within 1e-9 bands": 4102,
    }


def test_without_fused_multiply_add_no_tie_is_wrong_and_nothing_stands_still() -> None:
    """Blocks that both hunts of 0.33.0 did hold the same rows; with fusion off none of the two faults is left."""
    fused, unfused = ({block["block"]: block for block in _blocks(name)} for name in HUNTS[1:])
    shared = sorted(fused.keys() & unfused.keys(), key=int)
    assert len(shared) == 3444
    assert [fused[at]["kind"] for at in shared] == [unfused[at]["kind"] for at in shared]
    wrong = [sum(int(blocks[at]["patch_noncanonical_tie"]) for at in shared) for blocks in (fused, unfused)]
    assert wrong == [32652, 0]
    records = [json.loads((ARCHIVE / "hunt-h200" / f"{name}.json").read_bytes()) for name in HUNTS[1:]]
    stood = [[found["side"] for found in record["broken"] if str(found["block"]) in shared] for record in records]
    assert [sorted(sides) for sides in stood] == [["patch"] * 4 + ["stock"], []]
    assert [record["environment"]["variables"].get("TRITON_DEFAULT_FP_FUSION") for record in records] == [None, "0"]
    assert [record["environment"]["device"] for record in records] == ["NVIDIA H200"] * 2


def test_the_rows_that_never_end_are_what_is_told_of_them() -> None:
    """Nine rows lie beside the records, nearly uniform, with a nucleus of one to three tokens; two are matrices."""
    files = sorted((ARCHIVE / "hunt-h200").glob("broken-*.safetensors"))
    records = [json.loads((ARCHIVE / "hunt-h200" / f"{name}.json").read_bytes()) for name in HUNTS]
    assert {path.name for path in files} == {found["file"] for record in records for found in record["broken"]}
    held = [safetensors.numpy.load_file(path) for path in files]
    widths = [float(np.ptp(each["logits"].astype(np.float64))) for each in held]
    shares = [float(each["p"][0]) * each["logits"].size for each in held]
    counts = [oracle.reference(each["logits"][0], each["p"][0]).count for each in held]
    assert len(files) == 9
    assert 0.00055 < min(widths) < max(widths) < 0.0023
    assert 1 < min(shares) < max(shares) < 2.01
    assert set(counts) == {1, 2, 3}
    for name, at in (("h200-hang", 1695313), ("h200-hang-0.33.0", 1462286)):
        case = next(case for case in params.read(ARCHIVE / name / "params.yml").cases if case.id == "never-ends")
        row = inputs.generate(case, inputs.files_of(ARCHIVE / name))
        broken = held[[path.name for path in files].index(f"broken-{at}.safetensors")]
        assert (row.logits == broken["logits"]).all()
        assert (row.p == broken["p"]).all()


@pytest.mark.parametrize(
    ("run", "sides", "others"),
    [
        ("h200-hang", {"stock": "timeout", "patch": "timeout"}, {}),
        ("h200-hang-0.33.0", {"stock": "pass", "patch": "timeout"}, {("normal-after", 6): "patch_under_keep"}),
    ],
)
def test_a_launch_that_never_ended_was_killed_and_the_batch_behind_it_judged(
    run: str, sides: dict[str, str], others: dict[tuple[str, int], str]
) -> None:
    """``timeout`` of the sides that are told, on that case alone; every other row has its own code."""
    execution = json.loads((ARCHIVE / run / "2_execute.json").read_bytes())
    ended = {side: execution["sides"][side]["cases"]["never-ends"] for side in sides}
    assert {side: case["code"] for side, case in ended.items()} == sides
    assert {case["detail"] for case in ended.values() if case["code"] == "timeout"} == {"killed after 20 s"}
    rows = [json.loads(line) for line in (ARCHIVE / run / "rows.jsonl").read_text(encoding="utf-8").splitlines()]
    codes = {(row["case"], row["row"]): row["code"] for row in rows}
    assert [code for (case, _), code in codes.items() if case == "never-ends"] == ["timeout"] * 64
    stopped = {at: code for at, code in codes.items() if at[0] != "never-ends" and code != "pass"}
    assert stopped == others
    assert len(codes) == 192
