"""The package keeps to docs/architecture.md: who may import whom, read from the source and seen in a fresh process.

Imports are collected from the syntax trees, so one inside a function or under TYPE_CHECKING counts as well.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "toppgate"
HEAVY = {"torch", "triton", "papermill"}
#: The modules of worker processes, which alone import torch and Triton, and the script that is copied out.
CHILDREN = {"worker", "kernels", "timing", "searching", "hunting", "prospect", "workspace", "reproduce"}
#: The reference and the judge, which share no code with what they judge (contract, section 8).
PURE = ("oracle", "spec", "masses", "real", "gate")


@dataclass(frozen=True)
class Imports:
    """What one module imports: modules of toppgate, and the top-level names of everything else."""

    own: frozenset[str]
    foreign: frozenset[str]


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the dotted names that one statement or call imports; what is computed at run time is not seen."""
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = "toppgate" if level else ""
            stem = ".".join(part for part in (base, module) if part)
            yield from (f"{stem}.{alias.name}" for alias in names)
        case ast.Call(
            func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
            args=[ast.Constant(value=str(name)), *_],
        ):
            yield name


def collect(package: Path) -> dict[str, Imports]:
    """Return the imports of every module of the flat package at ``package``, ``__init__`` included."""
    trees = {path.stem: ast.parse(path.read_text("utf-8"), path.name) for path in package.glob("*.py")}
    imports = {}
    for module, tree in trees.items():
        names = [name.split(".") for node in ast.walk(tree) for name in _imported(node)]
        own = {[*name, "__init__"][1] for name in names if name[0] == "toppgate"}
        # `from toppgate import __version__` names no module: it reads the package itself.
        own = {name if name in trees else "__init__" for name in own}
        imports[module] = Imports(frozenset(own), frozenset(name[0] for name in names if name[0] != "toppgate"))
    return imports


def reach(module: str, imports: dict[str, Imports]) -> set[str]:
    """Return the modules of toppgate that importing ``module`` brings in: itself and, always, the package's own."""
    reached: set[str] = set()
    waiting = {module, "__init__"}
    while waiting:
        name = waiting.pop()
        reached.add(name)
        waiting |= imports[name].own - reached
    return reached


def reach_foreign(module: str, imports: dict[str, Imports]) -> set[str]:
    """Return the top-level foreign names that importing ``module`` brings in, directly or through toppgate."""
    return {name for reached in reach(module, imports) for name in imports[reached].foreign}


def rows() -> dict[str, str]:
    """Return {module: its third cell} of the table under "Modules"."""
    section = (ROOT / "docs/architecture.md").read_text("utf-8").partition("## Modules")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", section, re.MULTILINE))


def allowed(cell: str) -> set[str] | None:
    """Return the modules that a cell allows; None where it names no closed set."""
    if "…" in cell or cell in ("the above", "everything"):
        return None
    return set() if cell == "–" else set(cell.split(", "))


IMPORTS = collect(PACKAGE)
MODULES = sorted(IMPORTS.keys() - {"__init__"})
ROWS = rows()


def test_the_table_is_read_whole() -> None:
    """Every line of the table is understood, and every module that it allows has a row of its own."""
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    assert len(ROWS) == len(re.findall(r"^\| `", text, re.MULTILINE)) > len(PURE)
    assert set().union(*(allowed(cell) or set() for cell in ROWS.values())) <= ROWS.keys()


def test_the_package_is_flat() -> None:
    """No module lies in a folder of its own, where the tests below would not look."""
    assert {path.parent for path in PACKAGE.rglob("*.py")} == {PACKAGE}


@pytest.mark.parametrize("module", sorted({*ROWS, *MODULES}))
def test_imports_are_those_of_the_table(module: str) -> None:
    """A module has a row and a row has a module, which imports from toppgate nothing that its row does not name."""
    assert module in ROWS, f"toppgate/{module}.py has no row in docs/architecture.md"
    assert module in IMPORTS, f"docs/architecture.md has a row for toppgate/{module}.py, which does not exist"
    may = allowed(ROWS[module])
    if may is not None:
        assert IMPORTS[module].own - {"__init__"} <= may
    if banned := re.search(r"never (\w+)", ROWS[module]):
        assert banned[1] not in reach(module, IMPORTS)


@pytest.mark.parametrize("module", [module for module in PURE if module in IMPORTS])
def test_the_reference_and_the_judge_reach_nothing_heavy(module: str) -> None:
    """Neither directly nor through another module do they reach torch, Triton or papermill."""
    assert not HEAVY & reach_foreign(module, IMPORTS)


@pytest.mark.parametrize("module", [module for module in [*MODULES, "__init__"] if module not in CHILDREN])
def test_torch_and_triton_stay_in_the_worker(module: str) -> None:
    """No other module imports torch or Triton, nor the worker that does."""
    assert not {"torch", "triton"} & reach_foreign(module, IMPORTS)


def test_there_is_no_cycle() -> None:
    """Modules can be put in an order in which each imports only earlier ones."""
    order = list(TopologicalSorter({module: imports.own for module, imports in IMPORTS.items()}).static_order())
    assert set(order) == IMPORTS.keys()


def test_every_module_is_named_for_what_it_does() -> None:
    """No module is a drawer for things without a place."""
    assert not {"utils", "util", "helpers", "helper", "common", "misc"} & set(MODULES)


def _python(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this interpreter in the checkout; fails where the interpreter does."""
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=True)


def test_importing_the_package_loads_nothing_heavy() -> None:
    """``import toppgate`` loads none of the libraries that take long to import."""
    log = _python("-X", "importtime", "-c", "import toppgate").stderr
    loaded = set(re.findall(r"\| +([\w.]+)$", log, re.MULTILINE))
    assert "toppgate" in loaded
    assert not (HEAVY | {"numpy", "matplotlib", "nbconvert", "pydantic"}) & loaded


@pytest.mark.skipif(not set(PURE) <= set(MODULES), reason="the reference and the judge do not all exist yet")
def test_importing_the_reference_and_the_judge_loads_nothing_heavy() -> None:
    """In a process that imported oracle, spec, masses and gate there is no torch, Triton or papermill."""
    names = ", ".join(f"toppgate.{module}" for module in PURE)
    loaded = _python("-c", f"import sys, {names}; print(*sys.modules)").stdout.split()
    assert "toppgate.gate" in loaded
    assert not HEAVY & set(loaded)


def test_the_collector_sees_every_form_of_import(tmp_path: Path) -> None:
    """Absolute, relative, late, guarded and dynamic imports are all seen, and followed."""
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "a.py").write_text("from toppgate import b, __version__\nimport numpy as np\n")
    (tmp_path / "b.py").write_text("def f():\n    from . import c\n    from .d import g\n    import toppgate.e\n")
    (tmp_path / "c.py").write_text("import importlib\nimportlib.import_module('torch.nn')\n__import__('triton')\n")
    (tmp_path / "d.py").write_text("if TYPE_CHECKING:\n    from papermill.execute import x\n")
    (tmp_path / "e.py").write_text("import toppgate\n")
    imports = collect(tmp_path)
    assert imports["a"].own == {"b", "__init__"}
    assert imports["b"].own == {"c", "d", "e"}
    assert imports["e"].own == {"__init__"}
    assert reach("a", imports) == {"__init__", "a", "b", "c", "d", "e"}
    assert reach_foreign("a", imports) == {"numpy", "importlib", "torch", "triton", "papermill"}
