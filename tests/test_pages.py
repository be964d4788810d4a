"""Whole pages: offline, the same bytes twice, small, accessible, and readable in a real browser."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from PIL import Image
from report_data import Record, make_around, make_evidence, make_params, make_rows, make_small_rows, make_verdict

from toppgate import origin, pages, pictures, report

CHROMIUM = Path("/usr/bin/chromium")
MIB = 1 << 20

#: The parts of a strip.
PARTS = ("kept", "extra", "lost")


def make_notebook(rows: list[Record]) -> Any:
    """Return a gate notebook as papermill would leave it: injected values, then one fragment a cell."""
    verdict, params, evidence = make_verdict(rows), make_params(), make_evidence()
    around = make_around(rows)
    fragments = [report.verdict(verdict, params, evidence, rows, around), report.stops(verdict, rows, around)]
    fragments += [pictures.gallery(rows)]
    fragments += [origin.provenance(verdict, params, evidence), origin.case_table(params)]
    fragments += [report.summary(rows, verdict) + report.row_table(rows, params, around)]
    injected = new_code_cell('run_dir = "runs/<a>"', metadata={"tags": ["injected-parameters"]}, execution_count=1)
    cells = [new_markdown_cell("# Gate: *stock* against patch"), injected, *map(show, fragments)]
    cells.insert(-1, new_markdown_cell("## Rows"))
    return new_notebook(cells=cells)


def show(html: str) -> Any:
    """Return an executed cell that displayed ``html`` and whose input is not shown."""
    output = new_output("display_data", {"text/html": str(html), "text/plain": "<HTML>"})
    return new_code_cell("hidden_input()", outputs=[output], metadata={"tags": ["remove-input"]}, execution_count=1)


@pytest.fixture(scope="module")
def passing() -> str:
    """Return the page of 60 rows that pass."""
    return pages.render(make_notebook(make_rows()))


@pytest.fixture(scope="module")
def stopping() -> str:
    """Return the page of 64 rows of which four stop, small cases among them, with a banner."""
    rows = make_rows(stop=True) + make_small_rows()
    return pages.render(make_notebook(rows), banner="Stage 3 did not end: its kernel died.")


def test_page_is_html_with_title_language_main_and_policy(passing: str) -> None:
    """The page has a title from its heading, a language, one main, one h1 and a policy that allows no request."""
    assert passing.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<title>Gate: stock against patch</title>" in passing
    assert passing.count("<main") == passing.count("<h1") == 1
    assert "default-src 'none'; img-src data:; style-src 'unsafe-inline'" in passing


def test_page_asks_for_nothing(passing: str, stopping: str) -> None:
    """No script, no import, and no address but data in images and fragments in links."""
    for page in (passing, stopping):
        assert "<script" not in page
        assert "@import" not in page
        assert not re.search(r"\son\w+=", page)
        addresses = re.findall(r"""(?:src|href|srcset|action|data)\s*=\s*["']?([^"'\s>]+)|url\(([^)]*)\)""", page)
        assert len(addresses) > 60
        assert [a or b for a, b in addresses if not (a or b).startswith(("#", "data:image/png;base64,"))] == []


def test_page_is_the_same_bytes_twice(stopping: str) -> None:
    """Two renderings agree, though every cell has another random id."""
    rows = make_rows(stop=True) + make_small_rows()
    again = pages.render(make_notebook(rows), banner="Stage 3 did not end: its kernel died.")
    assert again == stopping


def test_page_sizes() -> None:
    """100 rows stay below 1 MiB and 5,040 below 6 MiB, also where every one of them stopped."""
    assert len(pages.render(make_notebook([row | {"code": "patch_hole"} for row in make_rows(2)[:100]])).encode()) < MIB
    rows = [row | {"code": "patch_hole"} for row in make_rows(copies=84)]
    assert len(pages.render(make_notebook(rows)).encode()) < 6 * MIB


def test_inputs_are_hidden_folded_or_shown() -> None:
    """Tagged inputs are left out, injected parameters folded at the end, others shown; all of them escaped."""
    cells = [
        new_code_cell("secret = 1", metadata={"tags": ["remove-input"]}),
        new_code_cell("secret = 2", metadata={"tags": ["hide"]}),
        new_code_cell("seed = '<b>'", metadata={"tags": ["injected-parameters"]}),
        new_code_cell("shown = '<i>'"),
    ]
    page = pages.render(new_notebook(cells=cells))
    assert "secret" not in page
    assert re.search(r"<details[^>]*><summary>Parameters injected[^<]*</summary><pre><code>seed = &#39;&lt;b&gt;", page)
    assert "<code>shown = &#39;&lt;i&gt;" in page.partition("<summary>Parameters injected")[0]
    assert page.count("seed = ") == 1


def test_outputs_without_html_are_text() -> None:
    """Streams, errors and plain results are escaped text without terminal colours; scripts and widgets vanish."""
    outputs = [
        new_output("stream", name="stdout", text="\x1b[31m<b>red</b>\x1b[0m"),
        new_output("stream", name="stderr", text="<i>warned</i>"),
        new_output("execute_result", {"text/plain": "<u>7</u>"}),
        new_output("display_data", {"application/javascript": "alert(1)", "text/plain": "plain"}),
        new_output("display_data", {"image/png": "QUJD\n"}, metadata={"image/png": {"alt": 'says "so"'}}),
        new_output("error", ename="ValueError", evalue="<p>", traceback=["\x1b[1mline <p>\x1b[0m"]),
    ]
    page = pages.render(new_notebook(cells=[new_code_cell("f()", outputs=outputs, execution_count=1)]))
    for text in (
        "&lt;b&gt;red&lt;/b&gt;",
        "&lt;i&gt;warned",
        "&lt;u&gt;7",
        "plain",
        "line &lt;p&gt;",
        "Error: ValueError",
    ):
        assert text in page
    assert "\x1b" not in page
    assert "alert(1)" not in page
    assert 'src="data:image/png;base64,QUJD" alt="says &#34;so&#34;"' in page


def test_banner_is_an_alert_and_escaped(passing: str) -> None:
    """A banner comes first on the page, as an alert, escaped; without one there is no alert."""
    page = pages.render(new_notebook(), banner="died <script>")
    assert re.search(r'<main>\s*<section role="alert"[^>]*>.*died &lt;script&gt;', page)
    assert 'role="alert"' not in passing


def test_a_stage_that_died_says_so_first(died: str) -> None:
    """The banner is on top, then heading and error; papermill's own banners and empty sections are left out."""
    words = ["did not finish: in cell 4", "<h1>Gate</h1>", "Error: ValueError", "&lt;b&gt;lost", "Parameters injected"]
    assert sorted(words, key=died.index) == words
    for gone in ("An Exception was encountered", "papermill-error-cell", "Rows", "\x1b"):
        assert gone not in died


def test_title_falls_back_to_the_file(tmp_path: Path) -> None:
    """Without a heading the title is the file's name, and the page gets it as its h1; the file is not changed."""
    path = tmp_path / "3_gate.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("# not a heading")]), path)
    before = path.read_bytes()
    page = pages.render(path)
    assert "<title>3_gate</title>" in page
    assert "<h1>3_gate</h1>" in page
    assert path.read_bytes() == before


@pytest.fixture(scope="module")
def died() -> str:
    """Return the page of a stage that raised in its third code cell, with papermill's own banners and traces."""
    tagged = {"tags": ["papermill-error-cell-tag"]}
    link = '<a href="#papermill-error-cell">In [3]</a>'
    red = f'<span style="color:red; font-size:2em;">An Exception was encountered at {link}</span>'
    trace = [
        "\x1b[31m-----\x1b[39m",
        "\x1b[31mValueError\x1b[39m: <b>lost</b>",
        "\x1b[32m----> 1\x1b[39m gate_run(run)",
    ]
    error = new_output("error", ename="ValueError", evalue="<b>lost</b>", traceback=trace)
    cells = [new_markdown_cell(red, metadata=tagged), new_markdown_cell("# Gate")]
    cells += [new_code_cell("seed = 1", metadata={"tags": ["injected-parameters"]}, execution_count=1)]
    cells += [new_markdown_cell(red, metadata=tagged)]
    cells += [new_code_cell("gate_run(run)", outputs=[error], metadata={"tags": ["remove-input"]}, execution_count=3)]
    cells += [new_markdown_cell("## Rows"), new_code_cell("HTML(view.rows())", metadata={"tags": ["remove-input"]})]
    return pages.render(new_notebook(cells=cells), banner="STOP. Stage 3_gate did not finish: in cell 4: ValueError.")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield Debian's Chromium, headless; skip where it is missing."""
    if not CHROMIUM.exists():
        pytest.skip(f"{CHROMIUM} is missing: apt-get install chromium")
    api = pytest.importorskip("playwright.sync_api", reason="playwright is missing: pip install playwright")
    with api.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Yield a function that opens a page (a fragment and context options) and gives page and requests.

    It is the stopping one, unless a test names another.
    """
    file = tmp_path / "3_gate.html"
    file.write_text(request.getfixturevalue(getattr(request, "param", "stopping")), encoding="utf-8")
    contexts = []

    def open_page(fragment: str = "", **options: Any) -> tuple[Any, list[str]]:
        contexts.append(browser.new_context(**options))
        page, requests = contexts[-1].new_page(), []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(file.as_uri() + fragment)
        return page, requests

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.browser
def test_browser_requests_the_file_only(opened: Any) -> None:
    """Opening the page asks for the file, then for its own inline images, and nothing else; all images are shown."""
    page, requests = opened()
    assert [url for url in requests if not url.startswith("data:")] == [page.url]
    assert page.evaluate("[...document.images].map(image => image.naturalWidth > 0)") == [True] * 5


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    ("opened", "width"), [("stopping", 380), ("stopping", 1280), ("passing", 1280), ("died", 380)], indirect=["opened"]
)
def test_browser_accessibility(opened: Any, scheme: str, width: int) -> None:
    """No violation is found by axe in either colour scheme, wide or narrow, with every fold open."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # axe is injected by the driver, past the page's own policy.
    page, _ = opened(color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    found = axe.Axe().run(page).response["violations"]
    assert [(rule["id"], [node["html"] for node in rule["nodes"]][:3]) for rule in found] == []


@pytest.mark.browser
@pytest.mark.parametrize("opened", ["passing", "died"], indirect=True)
def test_browser_other_pages_ask_for_nothing(opened: Any) -> None:
    """A PASS and a stage that died are pages of one file, too, and do not scroll sideways on a phone."""
    page, requests = opened(viewport={"width": 380, "height": 800})
    assert [url for url in requests if not url.startswith("data:")] == [page.url]
    assert page.evaluate("document.documentElement.scrollWidth") <= 380


@pytest.mark.browser
def test_browser_without_javascript(opened: Any) -> None:
    """With JavaScript off the page has the same accessible content."""
    texts = [opened(java_script_enabled=enabled)[0].locator("body").aria_snapshot() for enabled in (True, False)]
    assert texts[0] == texts[1]
    assert "symmetric_difference_regression" in texts[0]


@pytest.mark.browser
def test_browser_filter(opened: Any) -> None:
    """The filter leaves the four stopped rows and the names of their cases; print shows all rows again."""
    page, _ = opened(java_script_enabled=False)
    visible, names = page.locator(".rows tr[id]:not(.case):visible"), page.locator(".rows tr.case:visible")
    assert (visible.count(), names.count()) == (64, 3)
    page.get_by_label("Show the 4 stopped rows only").check()
    assert (visible.count(), names.all_inner_texts()) == (4, ["tiny-pair"])
    assert page.locator(".rows .box:visible").count() == page.locator(".rows .more:visible").count() == 4
    page.emulate_media(media="print")
    assert (visible.count(), names.count()) == (64, 3)


@pytest.mark.browser
@pytest.mark.parametrize("row", ["#tied-plateau-2", "#smollm2-p999-5", "#tiny-tie-0"])
def test_browser_deep_link(opened: Any, row: str) -> None:
    """A link to a row brings it into view and marks it, also a passed row of a passed case under the filter."""
    page, _ = opened(row)
    page.get_by_label("Show the 4 stopped rows only").check()
    page.evaluate("location.hash = location.hash")
    target = page.locator("tr:target")
    assert target.get_attribute("id") == row[1:]
    assert target.is_visible()
    target.locator("a").first.scroll_into_view_if_needed()
    assert target.evaluate("row => getComputedStyle(row.cells[1]).backgroundColor") != "rgba(0, 0, 0, 0)"


@pytest.mark.browser
def test_browser_deep_link_scrolls(opened: Any) -> None:
    """Opening the page at a row scrolls to it."""
    page, _ = opened("#tied-plateau-2", viewport={"width": 1280, "height": 700})
    page.wait_for_function("scrollY > 0")
    box = page.locator("tr:target").bounding_box()
    assert 0 <= box["y"] < 700


@pytest.mark.browser
def test_browser_order(opened: Any) -> None:
    """A second check box puts tables with stops first, keeping the frozen order among them; without JavaScript."""
    page, _ = opened(java_script_enabled=False)
    boxes = page.locator(".rows .box")
    frozen = [boxes.nth(at).get_attribute("id") for at in range(boxes.count())]
    stopped = [name for name in frozen if "all-passed" not in page.locator(f'[id="{name}"]').get_attribute("class")]
    page.get_by_label("Cases with stops first").check()
    heights = {name: page.locator(f'[id="{name}"]').bounding_box()["y"] for name in frozen}
    assert sorted(frozen, key=heights.__getitem__) == [*stopped, *(name for name in frozen if name not in stopped)]
    assert 0 < len(stopped) < len(frozen)


@pytest.mark.browser
def test_browser_details(opened: Any) -> None:
    """Only the first stop is open; the row of a link shows why it stopped; print shows every one."""
    page, _ = opened("#tied-plateau-2", java_script_enabled=False)
    tokens = page.locator(".why .tokens")
    shown = [
        tokens.nth(at).evaluate("table => table.checkVisibility({contentVisibilityAuto: true})") for at in range(4)
    ]
    assert shown == [True, False, True, False]
    page.emulate_media(media="print")
    assert all(tokens.nth(at).evaluate("table => table.checkVisibility()") for at in range(4))


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_strips_used_again_look_the_same(opened: Any, scheme: str) -> None:
    """A strip in the details looks like its drawing in the list of stops, whose parts differ from each other."""
    page, _ = opened("#tied-plateau-2", color_scheme=scheme)
    drawn = page.locator('g[id="tied-plateau-2:strip"]')
    fills = {part: drawn.locator(f".s-{part}").first.evaluate("path => getComputedStyle(path).fill") for part in PARTS}
    assert len(set(fills.values())) == len(PARTS)
    where = ('svg:has(g[id="tied-plateau-2:strip"])', '.why svg:has(use[href="#tied-plateau-2:strip"])')
    first, again = (colours(page.locator(selector).screenshot()) for selector in where)
    assert first == again
    assert len(first) > len(PARTS)


def colours(screenshot: bytes) -> set[Any]:
    """Return the colours that cover more than a few pixels, so without the shades at edges."""
    with Image.open(io.BytesIO(screenshot)) as image:
        return {colour for number, colour in image.convert("RGB").getcolors(1 << 16) or [] if number >= 40}


@pytest.mark.browser
@pytest.mark.parametrize("width", [380, 800])
def test_browser_narrow(opened: Any, width: int) -> None:
    """A narrow page does not scroll sideways, folds open or not; wide tables scroll in their own box."""
    page, _ = opened(viewport={"width": width, "height": 800})
    page.evaluate("document.querySelectorAll('details').forEach(fold => fold.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".rows .box").nth(1).evaluate("box => box.scrollWidth > box.clientWidth")
