"""Stage notebooks: running one with papermill, and what counts as done (contract, section 2).

papermill's own status is not evidence: after a killed kernel or ``sys.exit(0)`` every cell may say completed.
"""

import ast
import contextlib
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from toppgate import harness
from toppgate.processes import Process

#: Tags that let a cell fail, or not run, without a word.
FORBIDDEN_TAGS = frozenset({"raises-exception", "skip-execution"})


#: What nbformat, and whoever reads its nodes, raises for JSON that is no notebook; of some it only logs or warns.
MALFORMED = (
    *(ValueError, TypeError, AttributeError, KeyError, IndexError, RecursionError),
    *(nbformat.ValidationError, Warning),
)

#: What is kept of a cell's printed output, in characters.
PRINTED = 10_000


@dataclass(frozen=True)
class Failure:
    """Why a stage is not done: an evidence code and a sentence that names the cell where there is one."""

    stage: str
    code: str
    detail: str

    def plain(self) -> dict[str, str]:
        """Return the failure as JSON-like data."""
        return {"stage": self.stage, "code": self.code, "detail": self.detail}


def execute(name: str, params: Path | None, directory: Path, seconds: float) -> Failure | None:
    """Run one notebook by the documented papermill call; return why it failed, if it did.

    ``params`` is None for a notebook that wants nothing but the run directory.

    The kernel and everything that it started are gone when this returns.  A cell may take as long as the whole stage.
    """
    source = harness.NOTEBOOKS / f"{name}.ipynb"
    command = [sys.executable, "-m", "papermill", str(source), str(directory / f"{name}.ipynb"), "-k", "python3"]
    command += [*([] if params is None else ["-f", str(params)]), "-r", "run_dir", str(directory)]
    command += ["--no-progress-bar", "--execution-timeout", str(int(seconds))]
    environment = {**os.environ, "JUPYTER_PREFER_ENV_PATH": "1", "PYTHONWARNINGS": "default"}
    log = directory / "scratch" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    process = Process(command, environment, log, subprocess.DEVNULL)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.child.wait(timeout=seconds + 5)
    finally:
        late = process.child.poll() is None
        ending = process.end(grace=0)
    where = _reached(directory / f"{name}.ipynb")
    if late:
        return Failure(name, "timeout", f"the stage was killed after {int(seconds)} s{where}")
    if ending is None:
        return None
    if "CellTimeoutError" in log.read_text(errors="replace"):
        return Failure(name, "timeout", f"a cell was killed after {int(seconds)} s{where}")
    return Failure(name, "worker_crashed", f"papermill: {ending}{where}")


def _reached(path: Path) -> str:
    """Say which cell a notebook that papermill left came to; nothing where it came to none."""
    try:
        cells = _read(path).cells
    except (OSError, *MALFORMED):
        return ""
    begun = [number for number, cell in enumerate(cells) if isinstance(cell.get("execution_count"), int)]
    return f", in cell {begun[-1]}" if begun else ""


def acceptance(name: str, directory: Path, template: Path | None = None) -> Failure | None:
    """Return why an executed stage notebook does not count as done; None if it does.

    Accepted only if it can be read; it is the harness's notebook plus one injected-parameters cell; every code cell
    has an execution count; nothing was printed, no output is an error, and the last cell has shown its result, which is
    the last thing that a kernel does; no cell carries a forbidden tag; papermill recorded no exception.  The stage's
    own result file is looked for elsewhere, by ``evidence``.
    """
    path = directory / f"{name}.ipynb"
    if not path.is_file():
        return Failure(name, "worker_crashed", "the notebook was not executed")
    try:
        executed, source = _read(path), _read(template or harness.NOTEBOOKS / path.name)
        problem = next(_problems(executed, source), None)
    except (OSError, *MALFORMED) as error:
        return Failure(name, "worker_crashed", f"the notebook cannot be read: {type(error).__name__}")
    return None if problem is None else Failure(name, "worker_crashed", problem)


def _problems(executed: Any, source: Any) -> Iterator[str]:
    for number, cell in enumerate(executed.cells):
        yield from (f"cell {number} {problem}" for problem in _cell_problems(cell))
    shown = [output.output_type for output in executed.cells[-1].get("outputs", [])] if executed.cells else []
    if "execute_result" not in shown:
        yield "its last cell has not shown its result"
    if executed.metadata.get("papermill", {}).get("exception"):
        yield "papermill recorded an exception"
    own = [cell.source for cell in executed.cells if "injected-parameters" not in _tags(cell)]
    if len(own) != len(executed.cells) - 1:
        yield "there is not exactly one injected-parameters cell"
    if own != [cell.source for cell in source.cells]:
        yield "its cells are not those of the stage notebook"


def _cell_problems(cell: Any) -> Iterator[str]:
    if FORBIDDEN_TAGS & _tags(cell):
        yield f"carries the tag {min(FORBIDDEN_TAGS & _tags(cell))}"
    for output in cell.get("outputs", []):
        if output.output_type == "error":
            yield f"raised {output.ename}: {' '.join(output.evalue.split())[:300]}"
        if output.output_type == "stream":
            yield f"wrote to {output.name}: {' '.join(output.text[:1000].split())[:300]}"
    if cell.cell_type == "code" and cell.source.strip() and not isinstance(cell.execution_count, int):
        yield "was never executed"


def banner(failures: Sequence[Mapping[str, str]]) -> str | None:
    """Return what a page says on top of all, where stages did not finish; None where all did."""
    said = " ".join(f"Stage {failure['stage']} did not finish: {failure['detail']}." for failure in failures)
    return f"STOP. {said} What could be judged all the same is in summary.md." if failures else None


def _read(path: Path) -> Any:
    """Return a notebook; what nbformat would mend with a warning, such as an id that stands twice, is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


def readable(path: Path) -> bool:
    """Return whether a file is there and is a notebook."""
    try:
        _read(path)
    except (OSError, *MALFORMED):
        return False
    return True


def injected(path: Path) -> dict[str, Any] | None:
    """Return the values that papermill injected into an executed notebook, or None where they cannot be read."""
    try:
        notebook = _read(path)
        (cell,) = [cell for cell in notebook.cells if "injected-parameters" in _tags(cell)]
        statements = ast.parse(cell.source).body
        return {s.targets[0].id: ast.literal_eval(s.value) for s in statements}
    except (OSError, SyntaxError, MemoryError, *MALFORMED):
        return None


def _tags(cell: Mapping[str, Any]) -> set[str]:
    return set(cell.get("metadata", {}).get("tags", []))


def settle(path: Path) -> None:
    """Rewrite an executed notebook without times, hosts, paths and random ids, so that it depends on the run only."""
    notebook = _read(path)
    exception = notebook.metadata.get("papermill", {}).get("exception")
    notebook.metadata.pop("papermill", None)
    if exception:
        notebook.metadata["papermill"] = {"exception": True}
    for number, cell in enumerate(notebook.cells):
        cell.metadata.pop("execution", None)
        cell.metadata.pop("papermill", None)
        _cap(cell)
        if "injected-parameters" in _tags(cell):
            once = not any("injected-parameters" in _tags(before) for before in notebook.cells[:number])
            cell["id"] = "injected-parameters" if once else f"injected-{number}"
            cell["source"] = re.sub(r"(?m)^run_dir = .*$", 'run_dir = "."', cell["source"])
        elif "papermill-error-cell-tag" in _tags(cell):
            cell["id"] = f"error-{number}"
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def _cap(cell: Any) -> None:
    """Shorten what a cell printed: our notebooks print nothing, so it is a symptom, and its beginning tells."""
    streams = [output for output in cell.get("outputs", []) if output.output_type == "stream"]
    printed = "".join(output.text for output in streams)
    if len(printed) > PRINTED:
        more = f"\n[{len(printed) - PRINTED} more characters were not kept]\n"
        streams[0]["text"] = printed[:PRINTED] + more
        cell["outputs"] = [output for output in cell.outputs if output.output_type != "stream" or output is streams[0]]
