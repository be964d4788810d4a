"""The block for a pull request: it says what the verdict record says, and cannot be written by a case's name."""

import re

from report_data import make_around, make_evidence, make_params, make_rows, make_verdict

from toppgate import codes, summary

HOSTILE = "a|b <script>x</script> `c` [d](e) @f #1 **g**"


def test_a_stop_says_where_why_and_whose() -> None:
    """Verdict, first stop with its numbers, counts by class, shared and own stops, device, versions, digests."""
    rows = make_rows(stop=True)
    verdict, evidence = make_verdict(rows), make_evidence()
    said = summary.text(verdict, make_params(), evidence, rows, make_around(rows))
    assert said.startswith(
        "### toppgate: STOP – vLLM 0.31.0 against PR \\#58231\n\nFirst stop: case control-normal-p50, "
    )
    assert "row 3: `patch_under_keep`. The patch masks a token that the oracle keeps. It masks 1 of" in said
    for line in (
        "| Forced rows | 8 of 8 passed; stock itself 0 |",
        "| Ordinary rows | 45 of 48 passed; stock itself 36 |",
        "| Probes | 4 of 4 passed |",
        "| Stopped rows | 3: 0 shared with stock, 3 the patch's alone, 0 stock's own |",
        "| Upstream's own test | accepts 8 of 8 cases |",
        "| Evidence | Triton interpreter, **not CUDA evidence**, cpu |",
        "| Versions | torch 2.13.0, triton 3.7.1, python 3.11.7 |",
        f"| Params | SHA-256 `{verdict['params']}` |",
        f"| Harness | SHA-256 `{verdict['harness']}` |",
        "| control-normal-p50 | 3 | patch_under_keep | count_bound_exceeded |",
    ):
        assert line in said.splitlines()
    for side in ("stock", "patch"):
        assert f"SHA-256 `{evidence['sources'][side]['sha256']}`" in said
    assert said.endswith(f"\n*What a PASS would have said:*\n{codes.STATEMENT}\n")


def test_a_pass_says_what_it_says() -> None:
    """A PASS carries the statement word for word, and lists no stop."""
    rows = make_rows()
    said = summary.text(make_verdict(rows), make_params(), make_evidence(), rows, {})
    assert said.startswith("### toppgate: PASS – ")
    assert "No row, case or run was stopped." in said
    assert said.endswith(f"\n*What this PASS says:*\n{codes.STATEMENT}\n")
    assert "Stops" not in said


def test_many_stops_are_counted() -> None:
    """Of 60 stops a dozen are listed and the rest counted."""
    rows = [{**row, "code": "patch_hole"} for row in make_rows()]
    said = summary.text(make_verdict(rows), make_params(), make_evidence(), rows, {})
    assert said.count("| patch_hole |") == summary.MOST
    assert f"| … | | {60 - summary.MOST} more | |" in said


def test_a_stop_of_the_run_has_no_row() -> None:
    """A run-level stop with no evidence at hand is said, with its detail."""
    verdict = make_verdict([])
    stop = {"case": None, "row": None, "code": "harness_drift", "detail": "because"}
    verdict |= {"verdict": "STOP", "stops": [stop], "first_stop": stop, "envelope": {}}
    said = summary.text(verdict, {}, {}, [], {})
    assert f"First stop: the run as a whole: `harness_drift`. {codes.SENTENCES['harness_drift']} because" in said
    assert "| the run |  | harness_drift: because |  |" in said
    assert "not recorded" in said


def test_hostile_names_stay_text() -> None:
    """Names, titles and details that are Markdown or HTML are escaped, and stay inside their cell."""
    rows = [{**row, "case": HOSTILE} for row in make_rows(stop=True)]
    verdict, evidence = make_verdict(rows), make_evidence()
    verdict["stops"][0]["detail"] = HOSTILE
    verdict["banners"] = [HOSTILE]
    evidence["environments"][0]["device"] = HOSTILE
    evidence["sources"]["stock"]["describe"] = HOSTILE
    said = summary.text(verdict, make_params(HOSTILE), evidence, rows, {})
    bare = re.sub(r"\\.", "", said.replace("<details><summary>Stops</summary>", "").replace("</details>", ""))
    assert "<" not in bare
    assert "[" not in bare
    assert "@" not in bare
    cells = {line.count("|") for line in bare.splitlines() if line.startswith("|")}
    assert cells == {3, 5}
