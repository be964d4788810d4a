"""An executed notebook to one self-contained HTML page, by nbconvert and a template of its own.

The page holds no script and asks the network for nothing (a content security policy says so to the browser); it
follows the reader's light or dark scheme and prints.  Cell ids, times and prompts are not written, so the bytes
depend on sources and outputs alone.  Formulas in LaTeX are not typeset: write them in HTML.
"""

import re
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

import nbformat
from nbconvert.exporters import HTMLExporter, TemplateExporter
from traitlets.config import Config

TEMPLATES: Final = Path(__file__).parent / "templates"

#: The richest type that needs no script comes first; other types are not shown.
TYPES: Final = ("text/html", "image/svg+xml", "image/png", "text/markdown", "text/plain")


def render(notebook: Path | str | nbformat.NotebookNode, banner: str | None = None) -> str:
    """Return an executed notebook as one HTML page.

    Inputs of cells tagged ``remove-input`` or ``hide`` are left out; the cell that papermill injected is folded.
    With a banner, headings and texts behind the last cell that showed something are left out as well.
    The title is the first Markdown heading of level 1, else the notebook's ``metadata.title``, else the file's name.

    Parameters
    ----------
    notebook
        A path, or a notebook of nbformat 4.  It is not changed.
    banner
        One plain sentence for the top of the page: why it is no result.  Escaped.

    Returns
    -------
    str
        The page; the same bytes each time, for the same sources and outputs.

    Raises
    ------
    OSError, nbformat.reader.NotJSONError
        The path cannot be read as a notebook.

    Not checked: the HTML that cells displayed.  It is written as it is, under the page's content security policy.
    """
    name = "toppgate" if isinstance(notebook, nbformat.NotebookNode) else Path(notebook).stem
    node = deepcopy(notebook) if isinstance(notebook, nbformat.NotebookNode) else nbformat.read(notebook, as_version=4)
    heading = _heading(node)
    title = heading or str(node.metadata.get("title") or name)
    page = {"title": title, "banner": banner, "headed": heading is not None}
    node.cells = list(_shown(node.cells, died=banner is not None))
    # HTMLExporter's own method would parse the page and write it anew (15 s for 5,000 rows) to add alt texts.
    body, _ = TemplateExporter.from_notebook_node(_exporter(), node, resources={"toppgate": page})
    return str(body)


def compose(title: str, *parts: str) -> str:
    """Return a page, in the same dress, of HTML parts that no notebook displayed.

    ``title`` is plain text; the parts are written as they are.
    """
    node = nbformat.v4.new_notebook(metadata={"title": title})
    shown = [nbformat.v4.new_output("display_data", {"text/html": part}) for part in parts]
    node.cells.append(nbformat.v4.new_code_cell(outputs=shown, metadata={"tags": ["remove-input"]}))
    return render(node)


def _shown(cells: list[Any], *, died: bool) -> Iterator[Any]:
    """Yield the cells of a page: without papermill's own banners and, where a stage died, without empty sections."""
    ours = [cell for cell in cells if "papermill-error-cell-tag" not in cell.metadata.get("tags", [])]
    last = max((at for at, cell in enumerate(ours) if cell.get("outputs")), default=-1)
    for at, cell in enumerate(ours):
        if not died or at <= last or cell.cell_type == "code" or re.match("# ", cell.source):
            yield cell


def _exporter() -> Any:
    config = Config()
    config.NbConvertBase.display_data_priority = list(TYPES)
    return HTMLExporter(
        config=config,
        template_name="page",
        extra_template_basedirs=[str(TEMPLATES)],
        exclude_anchor_links=True,
    )


def _heading(node: nbformat.NotebookNode) -> str | None:
    """Return the text of the first level-1 heading of a Markdown cell, or None."""
    for cell in node.cells:
        found = re.search(r"^# +(.+?) *#*$", cell.source, re.MULTILINE) if cell.cell_type == "markdown" else None
        if found:
            return re.sub(r"[*_`]", "", found[1])
    return None
