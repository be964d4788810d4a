"""What the exploring notebook shows: one row, or, in JupyterLab with ipywidgets, whichever is picked.

A notebook asks for sections one by one, a cell each.  For one row a section is HTML and stays; with widgets it follows
the choice.  Kernels are run again on the interpreter, each in a process that stays until another run is picked.
"""

import contextlib
import importlib.util
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from toppgate import codes, dissect, explore, harness, row
from toppgate.errors import RunError, ToppgateError
from toppgate.explore import Explored
from toppgate.rerun import Kernel

#: Shown while a row is taken apart.
WAIT: Final = "<p><em>running the row again …</em></p>"


class Fragment(str):
    """HTML that a notebook shows as such."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


class Bench:
    """A run's kernels, each started when first needed; a context manager."""

    def __init__(self, directory: Path, root: Path) -> None:
        self._directory, self._root = directory, root
        self._kernels: dict[str, Kernel] = {}

    def explore(self, case: str, number: int) -> Explored:
        """Return a row of the run, explored, with the search of the kernel that it is about."""
        found = row.find(self._directory, case, number)
        if found.side not in self._kernels:
            with contextlib.chdir(self._root):  # paths in params start there
                text = row.texts(found.params)[found.side]
                self._kernels[found.side] = Kernel(found.side, text, row.provided(found.params))
        return explore.explore(found, self._kernels[found.side])

    def close(self) -> None:
        """End the processes."""
        for kernel in self._kernels.values():
            kernel.close()
        self._kernels.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class One:
    """One row, without widgets."""

    def __init__(self, directory: Path, root: Path, case: str, number: int) -> None:
        with Bench(directory, root) as bench:
            self._explored = bench.explore(case, number)

    def choice(self) -> Fragment:
        """Return which row it is."""
        return Fragment(dissect.head(self._explored))

    def section(self, name: str) -> Fragment:
        """Return a section of ``dissect.SECTIONS``."""
        return Fragment(dissect.SECTIONS[name](self._explored))


class Picked:
    """Whichever row is picked; needs ipywidgets.  Sections are widgets that follow the choice."""

    def __init__(self, directory: Path, root: Path) -> None:
        import ipywidgets as widgets  # noqa: PLC0415 - the extra ``lab``, which one row does without

        self._root = root
        self._bench: Bench | None = None
        self._taken: tuple[Bench | None, object] | None = None
        self._sections: dict[str, Any] = {}
        self._explored: Explored | ToppgateError | None = None
        self._html = widgets.HTML
        self._run = widgets.Dropdown(description="run", options=_runs(directory), value=directory)
        self._case = widgets.Dropdown(description="case", layout=widgets.Layout(width="30em"))
        self._row = widgets.Dropdown(description="row", layout=widgets.Layout(width="30em"))
        self._box = widgets.VBox([self._run, self._case, self._row, self._section("head")])
        self._run.observe(lambda _: self._open(), "value")
        self._case.observe(lambda _: self._list(), "value")
        self._row.observe(lambda _: self._take(), "value")
        self._open()

    def choice(self) -> Any:
        """Return the three menus, and which row it is."""
        return self._box

    def section(self, name: str) -> Any:
        """Return a section of ``dissect.SECTIONS``."""
        shown = self._section(name)
        shown.value = self._written(name)
        return shown

    def _section(self, name: str) -> Any:
        return self._sections.setdefault(name, self._html())

    def _open(self) -> None:
        """Another run: its cases, those that stopped first."""
        if self._bench is not None:
            self._bench.close()
        self._bench = Bench(self._run.value, self._root)
        table = explore.stopped_first(self._run.value)
        stops = Counter(case for case, _, code in table if code != codes.PASS)
        self._case.options = [
            (f"{case} ({stops[case]} stopped)" if stops[case] else case, case)
            for case in dict.fromkeys(case for case, *_ in table)
        ]
        self._case.value = self._case.options[0][1]  # a menu given other options selects none of them
        self._list()

    def _list(self) -> None:
        """Another case: its rows, those that stopped first."""
        table = [found for found in explore.stopped_first(self._run.value) if found[0] == self._case.value]
        self._row.options = [(f"{number}: {code}", (case, number)) for case, number, code in table]
        self._row.value = self._row.options[0][1] if table else None
        self._take()

    def _take(self) -> None:
        """Another row: take it apart, and write every section that is shown."""
        chosen = (self._bench, self._row.value)
        if self._row.value is None or self._bench is None or chosen == self._taken:
            return
        self._taken = chosen
        for shown in self._sections.values():
            shown.value = WAIT
        try:
            self._explored = self._bench.explore(*self._row.value)
        except ToppgateError as error:
            self._explored = error
        for name, shown in self._sections.items():
            shown.value = self._written(name)

    def _written(self, name: str) -> str:
        if isinstance(self._explored, Explored):
            return dissect.SECTIONS[name](self._explored)
        if isinstance(self._explored, ToppgateError) and name == "head":
            return dissect.failure(self._explored)
        return ""


def show(run_dir: str, case: str | None = None, number: int | None = None) -> One | Picked:
    """Return what a notebook shows of a run directory.

    With a case and a row, that one.  Without, menus to pick one where ipywidgets is installed, and elsewhere the first
    row that stopped.  A relative path is looked for in the working directory, then beside the notebooks' directory.

    Raises ``RunError`` and the other errors of ``explore``.  Side effects: processes, until another run is picked.
    """
    roots = [Path.cwd(), harness.NOTEBOOKS.parent]
    root = next((root for root in roots if (root / run_dir / "rows.jsonl").is_file()), None)
    if root is None:
        raise RunError(f"{run_dir}: holds no run; make one with toppgate run, or give another run_dir")
    directory = (root / run_dir).resolve()
    if case is None and importlib.util.find_spec("ipywidgets") is not None:
        return Picked(directory, root)
    table = explore.stopped_first(directory)
    wanted = [(name, at) for name, at, _ in table if case in (None, name) and number in (None, at)]
    if not wanted:
        raise RunError(f"{run_dir}: no row {number} of case {case}")
    return One(directory, root, *wanted[0])


def _runs(directory: Path) -> list[tuple[str, Path]]:
    """Return the runs beside a run, itself included, by name."""
    found = {path.parent.resolve() for path in directory.parent.glob("*/rows.jsonl")} | {directory}
    return [(path.name, path) for path in sorted(found)]
