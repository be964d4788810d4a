"""The pages of a sealed run, drawn again: a reader who trusts a page sees what the gate decided.

Only the toppgate that made a run draws it the same way, and only with the same libraries; ``verify`` asks for it then,
and says so where it cannot.  Nothing of a notebook is executed: a cell that shows something ends in
``HTML(view.NAME(arguments))``, and that call alone is made, with the run's own results.
"""

import ast
import importlib.metadata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from toppgate import harness, notebooks, pages, stage, summary, view
from toppgate.errors import RunError
from toppgate.judge import Judgement
from toppgate.schema import Params
from toppgate.stage import Run

#: What decides the bytes of a page, beside toppgate.
LIBRARIES = ("jinja2", "markupsafe", "matplotlib", "mistune", "nbconvert", "nbformat", "pillow", "pygments")


def libraries() -> dict[str, str]:
    """Return the versions of what draws pages, for the receipt."""
    return {name: importlib.metadata.version(name) for name in LIBRARIES}


def differences(
    directory: Path, frozen: Params, judged: Judgement, failures: Sequence[Mapping[str, str]]
) -> Iterator[str]:
    """Yield what a page or an executed notebook shows that the run's results do not give.

    Parameters
    ----------
    directory : a sealed run of this toppgate, drawn with these libraries
    frozen : its params
    judged : the run judged again, equal to what it holds
    failures : its stages that did not finish; what their notebooks show is not drawn again, their banners are
    """
    first = min((harness.STAGES.index(failure["stage"]) for failure in failures), default=len(harness.STAGES))
    for number, name in enumerate(harness.STAGES):
        path = directory / f"{name}.ipynb"
        if number < first:
            yield from _cells(path, values_of(directory, frozen, judged))
        before = [failure for failure in failures if failure["stage"] in harness.STAGES[: number + 1]]
        if path.with_suffix(".html").read_text(encoding="utf-8") != pages.render(path, notebooks.banner(before)):
            yield f"{name}.html: is not the page of {name}.ipynb"


def summarised(directory: Path, frozen: Params, judged: Judgement) -> str:
    """Return ``summary.md`` of a run; what a damaged stage result would have said is left out."""
    record = judged.verdict
    run = Run(directory, frozen, record["params"], str(record["harness"]), record["run"])
    try:
        evidence = view.evidence(run)
    except (RunError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        evidence = {}
    return summary.text(record, frozen.values(), evidence, judged.rows, judged.neighbourhoods)


def values_of(directory: Path, frozen: Params, judged: Judgement) -> dict[str, Any]:
    """Return what the cells of the stage notebooks hand to ``view``, by the names that they give it."""
    captured, executed = (stage.result(directory, name) or {} for name in ("1_capture", "2_execute"))
    run = Run(directory, frozen, str(captured.get("params")), str(captured.get("harness")), captured.get("run"))
    return {"run": run, "captured": captured, "executed": executed, "judged": judged}


def _cells(path: Path, values: Mapping[str, Any]) -> Iterator[str]:
    notebook = nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        call = shown(cell.source)
        want = [] if call is None else [getattr(view, call[0])(*(values[name] for name in call[1]))]
        if [output.get("data", {}).get("text/html") for output in cell.outputs] != want:
            yield f"{path.name}: cell {number} shows something else than the run's results give"


def shown(source: str) -> tuple[str, list[str]] | None:
    """Return the function of ``view`` that a cell's last expression shows, and the names of its arguments."""
    match ast.parse(source).body[-1:]:
        case [
            ast.Expr(
                value=ast.Call(
                    func=ast.Name(id="HTML"),
                    args=[
                        ast.Call(func=ast.Attribute(value=ast.Name(id="view"), attr=name), args=arguments, keywords=[])
                    ],
                    keywords=[],
                )
            )
        ]:
            return name, [argument.id for argument in arguments if isinstance(argument, ast.Name)]
    return None
