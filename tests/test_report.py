"""Fragments of the report: what they say, what they escape, what they never call a pass."""

import io
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from report_data import Record, make_around, make_evidence, make_params, make_rows, make_small_rows, make_verdict

from toppgate import codes, figures, fragments, origin, pictures, report, summary

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
    page = Page(report.verdict(make_verdict(make_rows()), make_params(), make_evidence(), make_rows()))
    assert "✓ PASS" in page.text
    assert f"What this PASS says {codes.STATEMENT}" in page.text
    assert "Triton interpreter on the CPU: not CUDA evidence." in page.text
    assert "STOP" not in page.text


def test_stop_names_its_first_stop() -> None:
    """A STOP gives case, row, code and sentence of the first stop, and links to a row that exists."""
    rows = make_rows(stop=True)
    page = Page(report.verdict(make_verdict(rows), make_params(), {}, rows))
    assert "■ STOP" in page.text
    for words in ("case control-normal-p50, row 3", "patch_under_keep", codes.SENTENCES["patch_under_keep"]):
        assert words in page.text.partition("Evidence")[0]
    assert f"What a PASS would have said {codes.STATEMENT}" in page.text
    targets = Page(report.row_table(rows, {})).values("id")
    assert [link for link in page.values("href") if link.removeprefix("#") not in targets] == []


@pytest.mark.parametrize("word", ["PASS ", "pass", None, "", "STOP"])
def test_only_the_word_pass_passes(word: str | None) -> None:
    """Any verdict but the exact word is shown as STOP."""
    assert "■ STOP" in Page(report.verdict(make_verdict(make_rows()) | {"verdict": word}, make_params(), {}, [])).text


def test_pass_with_stops_is_a_stop() -> None:
    """A record that says PASS and lists a stop is shown as STOP, and says why."""
    text = Page(report.verdict(make_verdict(make_rows(stop=True)) | {"verdict": "PASS"}, make_params(), {}, [])).text
    assert "■ STOP" in text
    assert "contradicts itself" in text


def test_empty_records_never_pass() -> None:
    """Fragments of empty records are written, with dashes, and none shows a pass."""
    assert "✓" not in report.verdict({}, {}, {}, []) + origin.provenance({}, {}, {}) + origin.case_table({})
    assert "not CUDA evidence" in report.verdict({}, {}, {}, [])
    assert "Freeze not witnessed" in origin.provenance({}, {}, {})
    assert "✓" not in report.row_table([{}], {}) + report.summary([{}], {}) + report.stops({}, [])


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
    text = Page(origin.provenance({}, {}, {"git": git})).text
    assert ("Freeze not witnessed" not in text) is witnessed


def test_run_level_stop_has_no_row() -> None:
    """A stop of the whole run is named so, and links nowhere."""
    stop = {"case": None, "row": None, "code": "harness_drift"}
    verdict = {"verdict": "STOP", "first_stop": stop, "stops": [stop]}
    both = report.verdict(verdict, {}, {}, []) + report.stops(verdict, [])
    assert "the run as a whole" in Page(both).text
    assert codes.SENTENCES["harness_drift"] in Page(both).text
    assert Page(both).values("href") == []


@pytest.mark.parametrize(
    "listed", [[{"device": "NVIDIA <H200>"}], {"stock": [{}, {"device": "NVIDIA <H200>"}], "patch": []}]
)
def test_cuda_names_its_device(listed: object) -> None:
    """CUDA evidence names the device of its environments, listed for each side or for all."""
    text = Page(report.verdict(make_verdict([]), {"device": "cuda"}, {"environments": listed}, [])).text
    assert "CUDA (NVIDIA <H200>), through vLLM's own dispatch." in text
    assert "not CUDA evidence" not in text


def test_demonstration_is_marked() -> None:
    """A params title that says demonstration gives a heading that says so; another does not."""
    record = make_verdict(make_rows())
    assert "not a review of the patch" in report.verdict(record, make_params("Demonstration: planted faults"), {}, [])
    assert "not a review of the patch" not in report.verdict(record, make_params(), {}, [])


def test_every_row_has_its_place() -> None:
    """Each row has one id and one line, whatever its code; stopped ones carry their code in words."""
    rows = make_rows(stop=True)
    page = Page(report.row_table(rows, {}))
    ids = page.values("id")
    assert len(ids) == len(set(ids))
    assert [id_ for id_ in ids if re.search(r"-\d+$", id_) and not id_.startswith("case:")] == [
        fragments.row_id(row["case"], row["row"]) for row in rows
    ]
    assert page.text.count("✓ pass") == 57
    assert page.text.count("✗ ") == 3
    assert page.text.count("Why row") == 3


def test_ids_of_different_rows_differ() -> None:
    """Case names that differ in one odd character, or end like a row, never share an id."""
    names = ["a", "a-1", "a_20_", "a ", "a\n", "a_", "case:a", "case", "ä", "A"]
    ids = [fragments.row_id(name, row) for name in names for row in (0, 1, 11)] + [
        fragments.row_id(name) for name in names
    ]
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
    html = report.row_table([row, {**row, "row": 1, "mass_patch": None}], {})
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
    around = make_around(rows)
    launches = [[{"kernel": HOSTILE, "slices": HOSTILE}]]
    found = {"code": HOSTILE, "detail": HOSTILE, "repeats": [HOSTILE], "launches": launches}
    sides = {HOSTILE: {"cases": {HOSTILE: found}}}
    evidence["kernels"] = HOSTILE
    html = report.verdict(verdict, params, evidence, rows, around) + report.stops(verdict, rows, around)
    html += (
        report.summary(rows, verdict)
        + report.row_table(rows, params, around)
        + origin.case_table(params)
        + origin.provenance(verdict, params, evidence)
    )
    html += origin.input_table(params, {HOSTILE: HOSTILE}) + origin.execution_table(sides)
    html += pictures.figure(figures.kept_counts(rows), HOSTILE, HOSTILE)
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
    known |= {"hidden", "tabindex", "role", "aria-label", "aria-labelledby", "aria-hidden", "open"}
    known |= {"viewbox", "x", "y", "d"}
    assert {name for _, attributes in page.tags for name in attributes} <= known


def test_findings_count_exactly() -> None:
    """The text alternatives state counts that follow from the rows."""
    rows = make_rows(stop=True)
    pairs = [(row["symdiff_stock"], row["symdiff_patch"]) for row in rows if row["symdiff_stock"] is not None]
    further = sum(patch > stock for stock, patch in pairs)
    assert further == 3
    assert (
        f"Of 52 rows, patch is closer to the oracle than stock in {sum(p < s for s, p in pairs)}"
        in pictures.difference_finding(rows)
    )
    assert f"and further in {further}." in pictures.difference_finding(rows)
    assert "Of 8 forced rows stock masks everything in 8 and patch in 0; patch keeps exactly one token in 8." in (
        pictures.kept_finding(rows)
    )
    assert "8 rows omitted" in pictures.difference_figure(rows)
    assert f'alt="{pictures.difference_finding(rows)}"' in pictures.difference_figure(rows)


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


def test_captured_inputs_are_compared_with_the_frozen_ones() -> None:
    """Stage 1's table marks an input as frozen only where both digests are there and equal."""
    case = make_params()["cases"][0]
    for frozen, captured, marked in [("a", "a", 1), ("a", "b", 0), ("a", None, 0), (None, None, 0), (None, "a", 0)]:
        table = origin.input_table({"cases": [case | {"input": frozen}]}, {case["id"]: captured})
        assert table.count("✓ as frozen") == marked


def lines_of(html: str) -> list[list[str]]:
    """Return the text of every cell of a fragment's table rows, heads left out."""
    bodies = re.findall(r"<tr[^>]*>(.*?)</tr>", html, re.DOTALL)
    return [[Page(cell).text for cell in re.split("</t[hd]>", body)[:-1]] for body in bodies if "<td" in body]


def test_executions() -> None:
    """Stage 2's tables show codes, whether the repeats agree, the launches in order, and dashes for what is missing."""
    steps = [{"kernel": "step", "slices": 2}] * 5
    path = [{"kernel": "stats", "slices": 2}, *steps, {"kernel": "mask", "slices": None}]
    good = {"code": "pass", "repeats": ["a", "a"], "launches": [path, path], "seconds": [1.25, 0.5]}
    bad = good | {"code": "path_mismatch", "repeats": ["a", "b"], "launches": [path, path[:1]], "detail": "why"}
    html = origin.execution_table({"stock": {"cases": {"c": good}}, "patch": {"cases": {"c": bad, "d": {}}}})
    first, second, third = lines_of(html)
    assert first == ["c", "✓ pass", "2, equal", "2", "1.25, 0.50"]
    assert second == ["c", "✗ path_mismatchwhy", "2, different", "stats, step × 5, mask; stats", "2", "1.25, 0.50"]
    assert third == ["d", "✗ –", "–", "–", "–", "–"]
    text = Page(html).text
    assert "Stock ✓ All 1 case delivered. Launches seen, in every repeat: stats, step × 5, mask." in text
    assert "Patch ✗ 0 of 2 cases delivered. Case" in text


def test_no_execution_is_never_all() -> None:
    """A side without a case is not shown as delivered, nor a matrix without a case as captured."""
    assert "✓" not in origin.execution_table({"stock": {"cases": {}}}) + origin.input_table({}, {})


def test_classes_are_judged_apart() -> None:
    """The head counts forced and ordinary rows and probes apart, with what stock itself would pass."""
    rows = make_rows(stop=True)
    rows[0] |= {"stock_code": "pass"}
    text = Page(report.verdict(make_verdict(rows), make_params(), {}, rows)).text
    assert "Forced rows 8 of 8 passed; stock in the place of the patch passes 1 Ordinary" in text
    stock = sum(row["stock_code"] == "pass" for row in rows[8:56])
    passed = "Ordinary rows 45 of 48 passed (16 control, 8 reproduction, 24 ordinary)"
    assert f"{passed}; stock in the place of the patch passes {stock} Probes 4 of 4 gave" in text
    assert "Stops3: 0 shared with stock, 3 the patch's alone, 0 stock's own" in text
    assert "Forced rows none" in Page(report.verdict({}, {}, {}, [])).text


def test_stops_carry_their_counts() -> None:
    """Each stop of a row has the row's kept counts and stock's own code beside its sentence; others have dashes."""
    rows = make_rows(stop=True)
    verdict = make_verdict(rows)
    verdict["stops"].insert(0, {"case": None, "row": None, "code": "harness_drift"})
    first, second, *_ = lines_of(report.stops(verdict, rows))
    assert first == ["the run", f"✗ harness_drift{codes.SENTENCES['harness_drift']}", "–", "–", "–", "–"]
    counts = [f"{rows[19][key]:,}" for key in ("kept_oracle", "kept_stock", "kept_patch")]
    where, why = "control-normal-p50, row 3", f"✗ patch_under_keep{codes.SENTENCES['patch_under_keep']}"
    assert second == [where, why, *counts, rows[19]["stock_code"]]


def test_small_neighbours_share_a_table() -> None:
    """Small cases next to each other share a table, each named with what it is about; a large one stands alone."""
    rows = make_rows()[:8] + make_small_rows() + make_rows()[8:16] + make_small_rows()[:1]
    params = {"cases": [{"id": "tiny-pair", "about": "two rows"}, {"id": "forced-1e4", "about": "eight rows"}]}
    html = report.row_table(rows, params)
    captions = [Page(caption).text for caption in re.findall("<caption.*?</caption>", html, re.DOTALL)]
    assert captions == [
        "forced-1e4: forced, 8 rows, all passedeight rows",
        "3 small cases: 4 rows, 1 stopped, after the first stop",
        "control-torch-cpu-42: control, 8 rows, all passed",
        "tiny-tie: ordinary, 1 row, all passed, after the first stop",
    ]
    names = [Page(name).text for name in re.findall('<tr[^>]* class="case.*?</tr>', html, re.DOTALL)]
    assert names == ["tiny-tie", "tiny-pair: two rows", "tiny-last"]


def test_only_a_mixed_table_marks_rows_after_the_stop() -> None:
    """Where a table holds the first stop, its later rows say so; where all come later, the caption does."""
    rows = make_rows(stop=True)
    text = Page(report.row_table(rows, {})).text
    assert text.count("after the stop") == sum(row["after_stop"] for row in rows if row["case"] == "control-normal-p50")
    assert text.count("after the first stop") == 5


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ({"kind": "normal", "seed": "42", "scale": "8", "rows": 2, "vocabulary": 9}, "normal: seed 42, scale 8"),
        (
            {"kind": "file", "path": "a.safetensors", "tensor": "t", "rows": [2, 5], "round": "bfloat16", "tile": 8},
            "rows 2 to 4 of t in a.safetensors, rounded to bfloat16, 8 times",
        ),
        ({"kind": "file", "path": "a", "tensor": "t", "rows": None, "round": "none"}, "all rows of t in a"),
        (
            {"kind": "forced", "base": {"kind": "normal", "seed": "1", "scale": "3"}, "token": 13, "value": "1e9"},
            "token 13 set to 1e9; normal: seed 1, scale 3",
        ),
        (
            {
                "kind": "literal",
                "rows": [[{"numbers": ["1.0", "-inf"], "bits": []}], [{"value": "0.0", "repeat": 512}]],
            },
            "written out: [1.0, -inf]; [0.0 × 512]",
        ),
        (
            {"kind": "literal", "rows": [[{"value": "2", "repeat": 1}, {"linspace": ["4", "-4", 9]}]], "copies": 3},
            "written out: [2, 4 to -4 in 9 even steps] × 3",
        ),
        (
            {"kind": "literal", "rows": [[{"affine": {"start": "0", "step": "0.5", "count": "7"}}]]},
            "written out: [0 + 0.5 i, i below 7]",
        ),
        ({"kind": "dice", "sides": 6, "none": None}, "dice: sides 6"),
        (None, "–"),
    ],
)
def test_how_rows_are_made(rows: Record | None, text: str) -> None:
    """Each generator is written as a person would, without the digits that pin it."""
    (line,) = lines_of(origin.case_table({"cases": [{"id": "c", "rows": rows}]}))
    assert line[2] == text


def test_what_cases_are_about_is_a_column_only_where_one_says() -> None:
    """The case table has a column for what cases are about where at least one says so, or how it was selected."""
    plain, about, selected = ({"id": name} for name in "abc")
    about |= {"about": "why"}
    selected |= {"selected_by": "hunt"}
    assert "About" not in Page(origin.case_table({"cases": [plain]})).text
    for case, text in ((about, "why"), (selected, "Selected by: hunt")):
        lines = lines_of(origin.case_table({"cases": [plain, case]}))
        assert [line[2] for line in lines] == ["", text]


def test_nothing_is_said_of_no_omitted_row() -> None:
    """The caption speaks of omitted rows only where there are some."""
    row = {"symdiff_stock": 1, "symdiff_patch": 0}
    assert "omitted" not in Page(pictures.difference_figure([row])).text
    assert "1 row omitted" in Page(pictures.difference_figure([row, {}])).text


@pytest.mark.parametrize(
    ("expect", "text"),
    [
        (None, "probe"),
        ("invalid_p", "probemust give invalid_p"),
        (["invalid_p", "invalid_p"], "probemust give invalid_p"),
        ([None, "pass"], "proberow 1 must give pass"),
    ],
)
def test_probes_name_their_code(expect: object, text: str) -> None:
    """A probe's case says which code it must give, and which row where they differ."""
    (line,) = lines_of(origin.case_table({"cases": [{"id": "c", "role": "probe", "expect": expect}]}))
    assert line[1] == text


@pytest.mark.parametrize(
    ("cases", "said"),
    [
        ([], "not supplied, and nothing stands in for it"),
        (
            [{"role": "reproduction", "rows": {"kind": "normal"}}],
            "not supplied; the reproduction case stands in for it",
        ),
        ([{"role": "reproduction", "rows": {"kind": "file"}}], ""),
    ],
)
def test_the_retained_case(cases: list[Record], said: str) -> None:
    """The retained local case is said to be not supplied unless a captured file fills its slot."""
    text = Page(origin.case_table({"cases": cases})).text
    assert said in text
    assert ("not supplied" in text) is bool(said)


def test_case_names_keep_apart() -> None:
    """On the axis no two names are nearer than a 24th of it, and large cases are all named."""
    large = [{"case": f"large-{index}", "kept_oracle": 1} for index in range(10) for _ in range(8)]
    small = [{"case": f"small-{index}", "kept_oracle": 1} for index in range(30)]
    axes = figures.kept_counts(large + small).axes[0]
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names[:10] == [f"large-{index}" for index in range(10)]
    assert names[10:] == [f"small-{index}" for index in range(1, 30, 5)]
    assert min(np.diff(axes.get_xticks())) >= 110 / 24


def test_a_stopped_row_is_taken_apart() -> None:
    """Below it are its rule with numbers, its ties, tokens with who keeps them, and commands that show it again."""
    rows = make_rows(stop=True)
    around = make_around(rows)
    html = report.row_table(rows, make_params(), around)
    details = re.findall(r"<details.*?</details>", html, re.DOTALL)
    assert [Page(part).text.split(" stopped ")[0] for part in details] == ["Why row 3", "Why row 6", "Why row 2"]
    assert ["open" in Page(part).tags[0][1] for part in details] == [True, False, False]
    (first, *_) = details
    seen = around["control-normal-p50", 3]
    text = Page(first).text
    assert f"patch_under_keep. {codes.SENTENCES['patch_under_keep']} It masks 1 of the oracle's {seen.count}: " in text
    assert f"{seen.ties[1] - seen.ties[0]} tokens have the boundary token's logit (positions {seen.ties[0]} to " in text
    assert "In the run's directory: toppgate row . control-normal-p50 3 runs exactly this row again" in text
    assert "toppgate show . --case control-normal-p50 --row 3 shows it as it was judged." in text
    tokens = [line for line in lines_of(first) if len(line) == 9]
    assert [line[0] for line in tokens] == [f"{token.position:,}" for token in seen.tokens]
    words = {True: "kept", False: "masked"}
    assert [line[2:5] for line in tokens] == [
        [words[kept] for kept in (t.oracle, t.stock, t.patch)] for t in seen.tokens
    ]
    (edge,) = re.findall(r'<tr class="edge"><td>(\d+)', first)
    assert int(edge) == seen.count - 1
    assert "Found as well: count_bound_exceeded" in Page(details[2]).text


def test_only_so_many_rows_are_taken_apart() -> None:
    """Of 500 stopped rows the first are taken apart and listed, and the page says how many are not."""
    rows = [row | {"row": 8 * copy + row["row"], "code": "patch_hole"} for copy in range(9) for row in make_rows()]
    html = report.row_table(rows, {}, make_around(rows))
    assert html.count("<details") == report.MOST_DETAILED
    assert f"The first {report.MOST_DETAILED} stopped rows are taken apart below" in Page(html).text
    stops = report.stops(make_verdict(rows), rows, make_around(rows))
    assert stops.count("<g id=") == report.MOST_DETAILED
    assert f"{len(rows) - report.MOST_LISTED} further stops are not listed here" in Page(stops).text


def test_a_case_without_evidence_is_one_line() -> None:
    """Rows that one cause stopped stand together, on the page and in the summary; two causes and judged rows do not."""
    rows = make_rows()
    for row in rows[:60]:
        judged = row["case"] != rows[0]["case"]
        row.update({"code": "patch_hole"} if judged else {"code": "timeout", "stock_code": None})
    verdict = make_verdict(rows)
    first = [row["row"] for row in rows if row["code"] == "timeout"]
    others = len(rows) - len(first)
    lines = [Page(part).text.split() for part in report.stops(verdict, rows).split('<tr><th scope="row">')[1:]]
    assert " ".join(lines[0]).startswith(f"{rows[0]['case']}, rows {first[0]} to {first[-1]}✗ timeout")
    assert len(lines) == 1 + others
    said = summary.text(verdict, make_params(), make_evidence(), rows, {})
    assert f"| {first[0]} to {first[-1]} | timeout |" in said
    unjudged = f"{len(first)} on which stock was not judged"
    assert unjudged in said
    assert unjudged in Page(report.verdict(verdict, make_params(), make_evidence(), rows)).text
    assert f"| … | | {others - (summary.MOST - 1)} more | |" in said
    verdict["stops"][0]["detail"] = "another cause"
    assert [len(alike) for alike in report.together(verdict["stops"])][:3] == [1, len(first) - 1, 1]


def test_strips_are_used_where_they_are_drawn() -> None:
    """Each strip is drawn once, in the list of stops, and the details refer to that drawing."""
    rows = make_rows(stop=True)
    around = make_around(rows)
    drawn = re.findall('<g id="([^"]*)"', report.stops(make_verdict(rows), rows, around))
    used = re.findall('<use href="#([^"]*)"', report.row_table(rows, {}, around))
    assert drawn == used
    assert len(drawn) == 3


def test_what_upstream_would_have_said() -> None:
    """Cases that upstream's test accepts are counted, and those of them that hold stops; stops by whose they are."""
    rows = make_rows(stop=True)
    rows[38] |= {"stock_code": "symmetric_difference_regression"}
    rows[50] |= {"code": "stock_under_keep"}
    verdict = make_verdict(rows)
    verdict["envelope"]["smollm2-bf16"] = {"rows": 8, "largest": 9, "within": False}
    del verdict["envelope"]["forced-1e4"]
    html = report.summary(rows, verdict)
    text = Page(html).text
    assert "It would have accepted 6 of 7 cases; of those, 2 hold rows that stop here." in text
    assert "same code: 1. It is the patch's alone where stock would get none, or another: 1. It is stock's own" in text
    lines = {line[0]: line[2:9] for line in lines_of(html)}
    assert lines["forced-1e4"] == ["8", "✓ all", "", "", "", "–", "–"]
    assert lines["smollm2-bf16"] == ["8", "✗ 7 of 8", "1", "", "", "9", "rejects"]
    assert lines["control-normal-p50"] == ["8", "✗ 7 of 8", "", "1", "", "2", "accepts"]


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ({"c": "stats step", "d": "stats step"}, "stats, step: on both sides, in every case"),
        (
            {"c": "stats step", "d": "topk"},
            "stats, step: on both sides, in 1 of 2 cases; stage 2's page has the others",
        ),
        ({"c": "topk", "d": "topk"}, None),
        ({}, None),
    ],
)
def test_kernels_seen(patch: dict[str, str], said: str | None) -> None:
    """The head names the launches that most cases have on both sides, and says how many have others."""
    seen = {"stock": {"c": "stats step", "d": "stats step"}, "patch": patch}
    sides = {
        side: {
            "cases": {case: {"launches": [[{"kernel": name} for name in path.split()]]} for case, path in cases.items()}
        }
        for side, cases in seen.items()
    }
    assert origin.kernels_seen(sides) == said
