"""Fragments of the report: what they say, what they escape, what they never call a pass."""

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from report_data import Record, make_evidence, make_params, make_rows, make_verdict

from toppgate import codes, figures, report

HOSTILE = "<script>alert(1)</script>\n\"quoted\" & 'more' $x^2$"


class Page(HTMLParser):
    """The tags, attributes and text of a fragment."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep a tag."""
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Keep text."""
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, spaces collapsed."""
        return " ".join("".join(self.words).split())

    def values(self, name: str) -> list[str]:
        """All values of one attribute."""
        return [value for _, attributes in self.tags if (value := attributes.get(name)) is not None]


def test_pass_says_what_it_says() -> None:
    """A PASS is in words, with the statement word for word, and marks interpreter evidence."""
    page = Page(report.verdict(make_verdict(make_rows()), make_params(), make_evidence()))
    assert "✓ PASS" in page.text
    assert f"What this PASS says {codes.STATEMENT}" in page.text
    assert "Triton interpreter on the CPU: not CUDA evidence." in page.text
    assert "STOP" not in page.text


def test_stop_names_its_first_stop() -> None:
    """A STOP gives case, row, code and sentence of the first stop, and links to a row that exists."""
    rows = make_rows(stop=True)
    page = Page(report.verdict(make_verdict(rows), make_params()))
    assert "■ STOP" in page.text
    for words in ("case control-normal-p50, row 3", "patch_under_keep", codes.SENTENCES["patch_under_keep"]):
        assert words in page.text.partition("Evidence")[0]
    assert f"What a PASS would have said {codes.STATEMENT}" in page.text
    targets = Page(report.row_table(rows)).values("id")
    assert [link for link in page.values("href") if link.removeprefix("#") not in targets] == []


@pytest.mark.parametrize("word", ["PASS ", "pass", None, "", "STOP"])
def test_only_the_word_pass_passes(word: str | None) -> None:
    """Any verdict but the exact word is shown as STOP."""
    assert "■ STOP" in Page(report.verdict(make_verdict(make_rows()) | {"verdict": word}, make_params())).text


def test_pass_with_stops_is_a_stop() -> None:
    """A record that says PASS and lists a stop is shown as STOP, and says why."""
    text = Page(report.verdict(make_verdict(make_rows(stop=True)) | {"verdict": "PASS"}, make_params())).text
    assert "■ STOP" in text
    assert "contradicts itself" in text


def test_empty_records_never_pass() -> None:
    """Fragments of empty records are written, with dashes, and none shows a pass."""
    assert "✓" not in report.verdict({}, {}) + report.provenance({}, {}, {}) + report.case_table({})
    assert "not CUDA evidence" in report.verdict({}, {})
    assert "Freeze not witnessed" in report.provenance({}, {}, {})
    assert "✓" not in report.row_table([{}]) + report.summary([{}], {}) + report.stops({})


@pytest.mark.parametrize(
    ("git", "witnessed"),
    [
        ({"revision": "34af7a4", "dirty": False, "params_path": "params/a.yml"}, True),
        ({"revision": "34af7a4", "dirty": False, "params_path": None}, False),
        ({"revision": None, "params_path": "params/a.yml"}, False),
    ],
)
def test_freeze_needs_a_witness(git: Record, witnessed: bool) -> None:
    """The freeze is witnessed only by a revision together with the params file's path in it."""
    text = Page(report.provenance({}, {}, {"git": git})).text
    assert ("Freeze not witnessed" not in text) is witnessed


def test_run_level_stop_has_no_row() -> None:
    """A stop of the whole run is named so, and links nowhere."""
    stop = {"case": None, "row": None, "code": "harness_drift"}
    verdict = {"verdict": "STOP", "first_stop": stop, "stops": [stop]}
    both = report.verdict(verdict, {}) + report.stops(verdict)
    assert "the run as a whole" in Page(both).text
    assert codes.SENTENCES["harness_drift"] in Page(both).text
    assert Page(both).values("href") == []


@pytest.mark.parametrize(
    "listed", [[{"device": "NVIDIA <H200>"}], {"stock": [{}, {"device": "NVIDIA <H200>"}], "patch": []}]
)
def test_cuda_names_its_device(listed: object) -> None:
    """CUDA evidence names the device of its environments, listed for each side or for all."""
    text = Page(report.verdict(make_verdict([]), {"device": "cuda"}, {"environments": listed})).text
    assert "CUDA (NVIDIA <H200>), through vLLM's own dispatch." in text
    assert "not CUDA evidence" not in text


def test_demonstration_is_marked() -> None:
    """A params title that says demonstration gives a heading that says so; another does not."""
    record = make_verdict(make_rows())
    assert "not a review of the patch" in report.verdict(record, make_params("Demonstration: planted faults"))
    assert "not a review of the patch" not in report.verdict(record, make_params())


def test_every_row_has_its_place() -> None:
    """Each row has one id and one line, whatever its code; stopped ones carry their code in words."""
    rows = make_rows(stop=True)
    page = Page(report.row_table(rows))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert [id_ for id_ in ids if re.search(r"-\d+$", id_) and not id_.startswith("case:")] == [
        report.row_id(row["case"], row["row"]) for row in rows
    ]
    assert page.text.count("✓ pass") == 57
    assert page.text.count("✗ ") == 3


def test_ids_of_different_rows_differ() -> None:
    """Case names that differ in one odd character, or end like a row, never share an id."""
    names = ["a", "a-1", "a_20_", "a ", "a\n", "a_", "case:a", "case", "ä", "A"]
    ids = [report.row_id(name, row) for name in names for row in (0, 1, 11)] + [report.row_id(name) for name in names]
    assert len(ids) == len(set(ids))
    assert all(re.fullmatch(r"[A-Za-z0-9._:-]+", id_) for id_ in ids)


def test_numbers_keep_their_whole_value() -> None:
    """A rounded mass has its whole value in the title; a count has thousands separators; a null is a dash."""
    row = {
        "case": "a",
        "row": 0,
        "code": "pass",
        "kept_oracle": 18_000,
        "mass_patch": 9.87654321e-7,
        "mass_stock": 0.0,
        "mass_stock_patch": 1.0,
    }
    html = report.row_table([row, {**row, "row": 1, "mass_patch": None}])
    assert '<td><span title="9.87654321e-07">9.877e-07</span></td>' in html
    assert "<td>18,000</td>" in html
    assert "<td>0</td>" in html
    assert "<td>1</td>" in html
    assert "<td>–</td>" in html


def test_hostile_text_is_escaped() -> None:
    """A case name, title, detail or host value that is HTML stays text, in every fragment."""
    rows = [{**row, "case": HOSTILE} for row in make_rows(stop=True)]
    rows[19]["code"] = HOSTILE
    verdict = make_verdict(rows) | {"banners": [HOSTILE], "run": HOSTILE}
    verdict["stops"][0]["detail"] = HOSTILE
    params = make_params(f"Demonstration {HOSTILE}")
    params["cases"] = [
        {**case, "id": HOSTILE, "about": HOSTILE, "rows": {"kind": HOSTILE, HOSTILE: 1}} for case in params["cases"]
    ]
    evidence = make_evidence() | {"host": {HOSTILE: [HOSTILE]}}
    launches = [[{"kernel": HOSTILE, "slices": HOSTILE}]]
    found = {"code": HOSTILE, "detail": HOSTILE, "repeats": [HOSTILE], "launches": launches}
    sides = {HOSTILE: {"cases": {HOSTILE: found}}}
    html = report.verdict(verdict, params, evidence) + report.stops(verdict) + report.summary(rows, verdict)
    html += report.row_table(rows) + report.case_table(params) + report.provenance(verdict, params, evidence)
    html += report.input_table(params, {HOSTILE: HOSTILE}) + report.execution_table(sides)
    html += report.figure(figures.kept_counts(rows), HOSTILE, HOSTILE)
    page = Page(html)
    assert "<script" not in html
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "iframe", "object", "link"})
    assert " ".join(HOSTILE.split()) in page.text
    assert all("\n" not in id_ and " " not in id_ for id_ in page.values("id"))
    known = {
        "id",
        "class",
        "href",
        "title",
        "scope",
        "colspan",
        "rowspan",
        "src",
        "alt",
        "width",
        "height",
        "type",
        "for",
    }
    known |= {"hidden", "tabindex", "role", "aria-label", "aria-labelledby", "aria-hidden"}
    assert {name for _, attributes in page.tags for name in attributes} <= known


def test_findings_count_exactly() -> None:
    """The text alternatives state counts that follow from the rows."""
    rows = make_rows(stop=True)
    pairs = [(row["symdiff_stock"], row["symdiff_patch"]) for row in rows if row["symdiff_stock"] is not None]
    further = sum(patch > stock for stock, patch in pairs)
    assert further == 3
    assert (
        f"Of 52 rows, patch is closer to the oracle than stock in {sum(p < s for s, p in pairs)}"
        in report.difference_finding(rows)
    )
    assert f"and further in {further}." in report.difference_finding(rows)
    assert "Of 8 forced rows stock masks everything in 8 and patch in 0; patch keeps exactly one token in 8." in (
        report.kept_finding(rows)
    )
    assert "8 rows omitted" in report.difference_figure(rows)
    assert f'alt="{report.difference_finding(rows)}"' in report.difference_figure(rows)


@pytest.mark.parametrize(
    "rows", [[], [{}], make_rows()[:8], [{"symdiff_stock": 0, "symdiff_patch": 0, "kept_stock": 0}]]
)
def test_figures_of_few_rows(rows: list[Record]) -> None:
    """Figures of no rows, of rows without values and of zeros are drawn without a warning."""
    for draw in (figures.kept_counts, figures.differences):
        draw(rows).savefig(io.BytesIO())


def test_figure_leaves_null_out() -> None:
    """Only rows with both values are drawn, and each at its own numbers."""
    rows: list[Record] = [
        {"symdiff_stock": 4, "symdiff_patch": 2, "code": "pass"},
        {"symdiff_stock": None, "symdiff_patch": 1},
    ]
    (points,) = figures.differences(rows).axes[0].collections[1:]
    assert np.asarray(points.get_offsets()).tolist() == [[4.0, 2.0]]


def test_figures_are_the_same_bytes_twice_and_bounded() -> None:
    """The same rows give the same bytes; 5,040 rows take less than 400 kB a figure."""
    rows = make_rows(copies=84, stop=True)
    for draw in (report.kept_figure, report.difference_figure):
        assert draw(rows) == draw(rows)
        assert len(draw(rows)) < 400_000


def test_captured_inputs_are_compared_with_the_frozen_ones() -> None:
    """Stage 1's table marks an input as frozen only where both digests are there and equal."""
    case = make_params()["cases"][0]
    for frozen, captured, marked in [("a", "a", 1), ("a", "b", 0), ("a", None, 0), (None, None, 0), (None, "a", 0)]:
        table = report.input_table({"cases": [case | {"input": frozen}]}, {case["id"]: captured})
        assert table.count("✓ as frozen") == marked


def test_executions() -> None:
    """Stage 2's table shows the launches in order, whether the repeats agree, and dashes for what is not there."""
    steps = [{"kernel": "step", "slices": 2}] * 5
    path = [{"kernel": "stats", "slices": 2}, *steps, {"kernel": "mask", "slices": None}]
    good = {"code": "pass", "repeats": ["a", "a"], "launches": [path, path], "seconds": [1.25, 0.5]}
    bad = good | {"code": "path_mismatch", "repeats": ["a", "b"], "launches": [path, path[:1]], "detail": "why"}
    html = report.execution_table({"stock": {"cases": {"c": good}}, "patch": {"cases": {"c": bad, "d": {}}}})
    lines = [[Page(cell).text for cell in re.split("</t[hd]>", line)] for line in html.split("<tr>")[2:]]
    assert lines[0][:7] == ["c", "stock", "✓ pass", "2, equal", "stats, step × 5, mask", "2", "1.25, 0.50"]
    assert lines[1][2:6] == ["✗ path_mismatchwhy", "2, different", "stats, step × 5, mask; stats", "2"]
    assert lines[2][:7] == ["d", "patch", "✗ –", "–", "–", "–", "–"]
