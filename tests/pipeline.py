"""Tiny params, kernels made wrong on purpose, and real runs: what the tests of the pipeline share.

Kernels are vLLM's own, fetched by digest.  A wrong one is made at run time: small located edits of the fetched text,
or a few lines put behind it, so no line of vLLM is kept here.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import psutil
import rfc8785

from toppgate import execute, freeze, params, published, source, stage
from toppgate.capture import capture
from toppgate.judge import Judgement, gate_run

ROOT = Path(__file__).resolve().parent.parent

Values = dict[str, Any]

_PINS = {
    "0.31.0": "c19c0af6a55c72dcb845ca531586faacc987711fc7bf3c5288cc498f923752f4",
    "0.33.0": "6264a524884274824b65c3a3a91d4d34418561cde566c31879cb394acd85f2ef",
    "0a1276e": "5b64e1f938c1f5a106a12c7eb30d51e2e1045ead277f5933c0800f761e43c2ae",
}


def release(version: str) -> Values:
    """Return the source spec of a published kernel file."""
    member = "vllm/v1/sample/ops/topk_topp_triton.py"
    return {"kind": "release", "distribution": "vllm", "version": version, "member": member, "sha256": _PINS[version]}


#: vLLM 0.31.0, and commit 0a1276e rebuilt from two releases (contract, section 3).
STOCK = release("0.31.0")
PATCH = {
    "kind": "pick",
    "base": STOCK,
    "donor": release("0.33.0"),
    "hunks": ["31905c87d2b0", "2966b59403f6", "b62514e7f14e"],
    "sha256": _PINS["0a1276e"],
}
HOST = {
    "kind": "sdist",
    "distribution": "vllm",
    "version": "0.31.0",
    "sha256": "dde46f1efbe846e5bd0c5c4ec6ec71842c42254c7ff3d9bebb2a57028715d380",
}


# ---------------------------------------------------------------------------------------------- kernels


def text(spec: Values) -> str:
    """Return a kernel's text."""
    return source.resolve(spec, published.cache()).data.decode()


def kernel(path: Path, spec: Values, *edits: tuple[str, str], behind: str = "") -> Values:
    """Write a wrong kernel file and return its source spec.

    Each edit replaces a piece of the text that stands there exactly once; ``behind`` is put at the end.
    """
    made = text(spec)
    for old, new in edits:
        assert made.count(old) == 1, f"{old!r} stands {made.count(old)} times in the fetched text"
        made = made.replace(old, new)
    path.write_text(f"{made}\n\n{behind}")
    return {"kind": "file", "path": str(path)}


# ---------------------------------------------------------------------------------------------- params


def normal(rows: int = 2, vocabulary: int = 64, seed: int = 1, scale: str = "1") -> Values:
    """Return bell-shaped rows."""
    return {"kind": "normal", "seed": str(seed), "scale": scale, "rows": rows, "vocabulary": vocabulary}


def literal(*rows: Iterable[float | str]) -> Values:
    """Return rows that are written out."""
    return {"kind": "literal", "rows": [[{"numbers": [str(value) for value in row]}] for row in rows]}


def case(name: str, role: str, rows: Values, p: Any = "0.9", **more: Any) -> Values:
    """Return one case."""
    return {"id": name, "role": role, "rows": rows, "p": p, **more}


def forced(name: str = "forced", rows: int = 2, **more: Any) -> Values:
    """Return a case on which stock masks everything and the patch keeps the forced token."""
    base = normal(rows, more.pop("vocabulary", 64))
    return case(name, "forced", {"kind": "forced", "base": base, "token": 3, "value": "1e9"}, "0.95", **more)


def control(name: str = "control", **more: Any) -> Values:
    """Return an ordinary control."""
    return case(name, "control", normal(scale="3"), ["0.5", "0.9"], **more)


def draft(*cases: Values, **more: Any) -> Values:
    """Return the values of a params draft on the interpreter."""
    limits = {"vocabulary": 8192, "batch": 64, "rows": 200}
    limits |= {"launch_seconds": 60, "total_seconds": 300, "retained_bytes": 10_000_000}
    head = {"schema_version": 1, "title": "tiny", "device": "interpreter", "compute_units": 4, "repeat": 2}
    sides = {"stock": STOCK, "patch": PATCH, "host": HOST}
    return {**head, **sides, "limits": limits | more.pop("limits", {}), "cases": list(cases), **more}


def freeze_draft(path: Path, values: Values) -> Path:
    """Write a draft, freeze it, return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    freeze.freeze(path)
    return path


def refrozen(path: Path, changed: Mapping[str, Any]) -> Path:
    """Change values of a frozen file that ``freeze`` would never write, and give it a frozen digest that holds."""
    values = {**params.read(path).values(), **changed}
    values["frozen"] = params.freeze_digest({key: values[key] for key in values if key != "frozen"})
    path.write_bytes(params.dump(params.check(values, str(path))))
    return path


# ---------------------------------------------------------------------------------------------- stages in this process


def namespace(path: Path, directory: Path) -> Values:
    """Return what a stage notebook's namespace holds."""
    return {**params.read(path).values(), "run_dir": str(directory)}


def entered(path: Path, directory: Path) -> stage.Run:
    """Return the run as a stage notebook's first cell does."""
    return stage.enter(namespace(path, directory))


def captured(path: Path, directory: Path) -> Path:
    """Run stage 1 and return the run directory."""
    capture(entered(path, directory))
    return directory


def executed(path: Path, directory: Path) -> Values:
    """Run stage 2 in a captured directory, with real workers, and return its result."""
    return execute.execute(entered(path, directory))


def judged(path: Path, directory: Path) -> Judgement:
    """Run stage 3."""
    return gate_run(entered(path, directory))


# ---------------------------------------------------------------------------------------------- the commands


def environment(checkout: Path = ROOT, mark: str | None = None) -> dict[str, str]:
    """Return this environment with the package of a checkout, and a variable to find every process by that has it."""
    return {**os.environ, "PYTHONPATH": str(checkout), **({} if mark is None else {mark: "1"})}


def toppgate(*arguments: object, checkout: Path = ROOT, mark: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of toppgate."""
    command = [sys.executable, "-m", "toppgate", *map(str, arguments)]
    return subprocess.run(
        command, cwd=checkout, env=environment(checkout, mark), capture_output=True, text=True, check=False
    )


def papermill(
    name: str, path: Path, directory: Path, *more: str, checkout: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Run one stage notebook with bare papermill, as the contract's section 2 says."""
    directory.mkdir(exist_ok=True)
    notebook = f"{name}.ipynb"
    command = [sys.executable, "-m", "papermill", f"notebooks/{notebook}", str(directory / notebook), "-k", "python3"]
    command += ["-f", str(path), "-r", "run_dir", str(directory), "--no-progress-bar", *more]
    return subprocess.run(command, cwd=checkout, env=environment(checkout), capture_output=True, text=True, check=False)


def unsealed(run: Path, target: Path) -> Path:
    """Return a copy of a sealed run as it was after stage 2."""
    copy = Path(shutil.copytree(run, target))
    for name in ("receipt.json", "rows.jsonl", "verdict.json", "3_gate.ipynb", "3_gate.html", "summary.md"):
        (copy / name).unlink()
    return copy


def copied_checkout(target: Path) -> Path:
    """Copy the package and its notebooks, so that they can be edited."""
    for name in ("toppgate", "notebooks"):
        shutil.copytree(ROOT / name, target / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    return target


def edit_cell(checkout: Path, name: str, number: int, code: str, tags: Iterable[str] = ()) -> None:
    """Put ``code`` in front of a code cell of a copied notebook, and add tags to the cell."""
    path = checkout / "notebooks" / f"{name}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    cell = [cell for cell in notebook.cells if cell.cell_type == "code"][number]
    cell["source"] = f"{code}\n{cell.source}"
    cell.metadata["tags"] = [*cell.metadata.get("tags", []), *tags]
    nbformat.write(notebook, path)


def edit_file(path: Path, old: str, new: str) -> None:
    """Replace a piece of a copied file that stands there exactly once."""
    found = path.read_text(encoding="utf-8")
    assert found.count(old) == 1, f"{path.name}: {old!r} stands {found.count(old)} times"
    path.write_text(found.replace(old, new), encoding="utf-8")


def edit(run: Path, name: str, change: Callable[[Any], object]) -> None:
    """Change a JSON file of a run and write it in canonical form."""
    content = json.loads((run / name).read_bytes())
    change(content)
    (run / name).write_bytes(rfc8785.dumps(content) + b"\n")


# ---------------------------------------------------------------------------------------------- what is left


def living(variable: str) -> list[psutil.Process]:
    """Return the processes, zombies aside, whose environment holds ``variable``."""
    found = []
    for process in psutil.process_iter():
        try:
            if variable in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def first_stop(directory: Path) -> str | None:
    """Return the code of a run's first stop."""
    stop = json.loads((directory / "verdict.json").read_bytes())["first_stop"]
    return None if stop is None else str(stop["code"])
