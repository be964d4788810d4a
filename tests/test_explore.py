"""The exploring notebook: under papermill for one row, without widgets; and in a live JupyterLab, in a browser."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pipeline
import pytest

from toppgate import explore, picker, row, sketch
from toppgate.errors import RunError
from toppgate.leash import command

NOTEBOOK = pipeline.ROOT / "notebooks/explore_row.ipynb"
CHROMIUM = Path("/usr/bin/chromium")


def test_statistics_of_a_row(rows_run: Path) -> None:
    """Cuts, ties and the window of a row of which everything can be said by hand, without a kernel."""
    found = explore.explore(row.find(rows_run, "ties", 0))
    assert [(cut.name, cut.count, cut.last, cut.prefix) for cut in found.cuts] == [
        ("oracle", 5, 5, True),
        ("stock", 9, 9, True),
        ("patch", 9, 9, True),
    ]
    assert (found.ties.logit, found.ties.first, found.ties.last) == (-6.0, 2, 9)
    assert found.ties.kept == {"oracle": 4, "stock": 8, "patch": 8}
    oracle, _, patch = found.cuts
    assert oracle.shorter < 0 <= oracle.spare < patch.shorter < patch.spare
    assert (found.window.first, found.window.logits[0], found.window.kept[:10].sum()) == (1, 0.0, 9)
    assert np.flatnonzero(found.window.spare >= 0)[0] == 4  # the fifth token reaches p
    assert found.searched is None
    assert len(sketch.logits(found).axes) == len(sketch.mass(found).axes) == 1


def test_stopped_rows_come_first(rows_run: Path) -> None:
    """The rows that can be picked, and what is refused."""
    assert explore.stopped_first(rows_run)[0] == ("real", 0, "count_bound_exceeded")
    with pytest.raises(RunError, match="nonfinite_logits"):
        row.find(rows_run, "nan", 0)
    with pytest.raises(RunError, match="holds no run"):
        picker.show("nowhere")
    with pytest.raises(RunError, match="no row 7 of case ties"):
        picker.show(str(rows_run), "ties", 7)


def test_papermill_shows_one_row_without_widgets(rows_run: Path, tmp_path: Path) -> None:
    """Where ipywidgets cannot be imported, every section of one row is HTML with its picture, and says what it is."""
    (tmp_path / "ipywidgets.py").write_text("raise ImportError('not installed')\n")
    output = tmp_path / "out.ipynb"
    call = [sys.executable, "-m", "papermill", str(NOTEBOOK), str(output), "-k", "python3", "--no-progress-bar"]
    call += ["-r", "run_dir", str(rows_run), "-r", "case", "ties", "-p", "row", "0"]
    environment = {**pipeline.environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{pipeline.ROOT}"}
    done = subprocess.run(call, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    outputs = [output for cell in nbformat.read(output, 4).cells for output in cell.get("outputs", [])]
    assert {output.output_type for output in outputs} == {"execute_result"}
    shown = ["".join(output.data["text/html"]) for output in outputs]
    assert len(shown) == 6
    assert [text.count("<img") for text in shown] == [0, 1, 1, 0, 0, 1]
    assert "count_bound_exceeded" in shown[0]
    assert "Exploratory, not evidence." in shown[5]
    assert "+4 by counting" in shown[5]


@contextmanager
def lab(home: Path) -> Iterator[str]:
    """Give the address of a JupyterLab server of the checkout's notebooks, with settings of its own."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    places = {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    places |= {f"JUPYTERLAB_{name}_DIR": str(home / name.lower()) for name in ("SETTINGS", "WORKSPACES")}
    environment = {**pipeline.environment(), **places, "JUPYTER_PREFER_ENV_PATH": "1", "JUPYTER_TOKEN": "token"}
    words = [sys.executable, "-m", "jupyterlab", "--no-browser", f"--port={port}", "--allow-root"]
    words += [f"--ServerApp.root_dir={home}", "--ServerApp.port_retries=0", "--LabApp.extension_manager=readonly"]
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command(*words), env=environment, cwd=home, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}/lab/tree/{NOTEBOOK.name}?token=token"
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.mark.browser
def test_the_notebook_in_jupyterlab(rows_run: Path, tmp_path: Path) -> None:
    """Open it, run all cells, pick another row: every section follows, the picture among them."""
    pytest.importorskip("jupyterlab")
    pytest.importorskip("ipywidgets")
    from playwright.sync_api import expect, sync_playwright

    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    (parameters,) = [cell for cell in notebook["cells"] if "parameters" in cell["metadata"].get("tags", [])]
    parameters["source"] += f"\nrun_dir = {str(rows_run)!r}"
    (tmp_path / NOTEBOOK.name).write_text(json.dumps(notebook), encoding="utf-8")
    with lab(tmp_path) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1300, "height": 4000})
        page.set_default_timeout(120_000)
        expect.set_options(timeout=120_000)
        _visit(page, address)
        page.get_by_text("Run", exact=True).first.click()
        page.get_by_text("Run All Cells", exact=True).click()
        heading, pictures = page.locator(".jp-Notebook h3"), page.locator(".jp-Notebook figure img")
        expect(heading).to_have_text("real row 0: count_bound_exceeded")
        expect(pictures).to_have_count(3)
        before = pictures.first.get_attribute("src")
        page.locator(".widget-dropdown select").nth(1).select_option(label="good")
        expect(heading).to_have_text("good row 0: pass")
        expect(pictures).to_have_count(3)
        expect(pictures.first).not_to_have_attribute("src", str(before))
        browser.close()


def _visit(page: Any, address: str) -> None:
    """Open the page as soon as the server listens, and wait for the notebook and its kernel."""
    from playwright.sync_api import Error

    while True:
        try:
            page.goto(address)
            break
        except Error as error:
            if "ERR_CONNECTION_REFUSED" not in str(error):
                raise
            page.wait_for_timeout(200)
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()  # run earlier, cells would ask for a kernel
