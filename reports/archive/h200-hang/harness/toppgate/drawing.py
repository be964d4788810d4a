"""Stage notebooks as they are once executed, drawn from a run's results: a sweep runs its stages once for all kernels.

No kernel is started: a cell that shows something shows what ``view`` gives for the run, the same call that ``verify``
makes when it draws a page again.
"""

from pathlib import Path
from typing import Any

import nbformat
from papermill.iorw import load_notebook_node
from papermill.parameterize import parameterize_notebook

from toppgate import harness, redraw, view
from toppgate.judge import Judgement
from toppgate.schema import Params


def draw(directory: Path, frozen: Params, judged: Judgement) -> None:
    """Write the three stage notebooks of a run that holds its results; not checked: that they are there."""
    values = redraw.values_of(directory, frozen, judged)
    for name in harness.STAGES:
        template = load_notebook_node(str(harness.NOTEBOOKS / f"{name}.ipynb"))
        node = parameterize_notebook(template, {**frozen.values(), "run_dir": "."})
        for number, cell in enumerate([cell for cell in node.cells if cell.cell_type == "code"], 1):
            cell.execution_count = number
            cell.outputs = _outputs(cell.source, values, number)
        nbformat.write(node, directory / f"{name}.ipynb")


def _outputs(source: str, values: dict[str, Any], number: int) -> list[Any]:
    call = redraw.shown(source)
    if call is None:
        return []
    html = getattr(view, call[0])(*(values[name] for name in call[1]))
    data = {"text/html": html, "text/plain": "<IPython.core.display.HTML object>"}
    return [nbformat.v4.new_output("execute_result", data, execution_count=number)]
