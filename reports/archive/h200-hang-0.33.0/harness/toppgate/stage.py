"""Entering a stage from a notebook: injected values checked, the run directory bound, one result file written.

A stage raises only where it cannot do its work.  A finding is a ``Stop``: it travels in the stage's result file, and
stage 3 turns it into the verdict.
"""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from toppgate import digests, harness, params
from toppgate.errors import ParamsError, RunError
from toppgate.schema import Params

#: What a notebook's namespace holds besides parameters when its first cell has run.
_SHELL = {"In", "Out", "exit", "quit", "get_ipython", "open", "stage"}


@dataclass(frozen=True)
class Stop:
    """A run-level stop: an evidence code and one sentence with what was found."""

    code: str
    detail: str


@dataclass(frozen=True)
class Run:
    """One run, as a stage sees it; ``id`` is the random name that binds the stages' results to each other."""

    directory: Path
    params: Params
    params_sha256: str
    harness: str
    id: str | None
    stop: Stop | None = None
    began: float = field(default_factory=time.monotonic)

    def stopped(self, stop: Stop) -> "Run":
        """Return the run with a stop, unless it has one."""
        return self if self.stop is not None else replace(self, stop=stop)


def enter(namespace: Mapping[str, Any]) -> Run:
    """Return the run of a notebook's injected parameters.

    Parameters
    ----------
    namespace : the notebook's ``globals()`` in its first code cell after the parameters

    Raises
    ------
    ParamsError, RunError : where no run can be made of the values at all; a value that is not the frozen one is a
        ``params_drift`` stop instead
    """
    known = set(Params.model_fields) | {"run_dir"}
    names = {name for name in namespace if not name.startswith("_")} - _SHELL
    if names - known:
        raise ParamsError(
            f"unknown parameter {sorted(names - known)[0]!r}; papermill only logs it, toppgate refuses it"
        )
    directory = namespace.get("run_dir")
    if not isinstance(directory, str) or not directory:
        raise RunError(f"run_dir: got {directory!r}, expected the path of a run directory (papermill -r run_dir DIR)")
    values = {name: namespace[name] for name in Params.model_fields if namespace.get(name) is not None}
    checked = params.check(values, "injected parameters")
    stop = None
    try:
        params.check_frozen(checked, "injected parameters")
    except ParamsError as error:
        if checked.frozen is None:
            raise
        stop = Stop("params_drift", str(error))
    return _bind(Path(directory).resolve(), checked, stop)


def _bind(directory: Path, checked: Params, stop: Stop | None) -> Run:
    """Bind to what capture wrote, if it has run: same params, same harness, same run."""
    written = params.dump(checked)
    run = Run(directory, checked, digests.sha256(written), harness.digest(), None, stop)
    try:
        captured = result(directory, "1_capture")
    except RunError as error:
        return run.stopped(Stop("input_missing", str(error)))
    if captured is None:
        return run
    run = replace(run, id=captured.get("run"))
    file = directory / "params.yml"
    if not file.is_file() or file.read_bytes() != written:
        run = run.stopped(Stop("params_drift", "the injected values are not those of the run's params.yml"))
    if captured.get("harness") != run.harness:
        run = run.stopped(Stop("harness_drift", "the package or a notebook changed since the run was captured"))
    return run


def result(directory: Path, name: str) -> dict[str, Any] | None:
    """Return a stage's result, or None where it is missing.  Raises ``RunError`` where it is not that of this name."""
    path = directory / f"{name}.json"
    if not path.is_file():
        return None
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, OSError, RecursionError) as error:
        raise RunError(f"{path}: not a stage result: {error}") from None
    if not isinstance(found, dict):
        raise RunError(f"{path}: got {type(found).__name__}, expected a JSON object")
    if found.get("schema") != schema_of(name):
        raise RunError(f"{path}: schema: got {found.get('schema')!r}, expected {schema_of(name)!r}")
    return found


def schema_of(name: str) -> str:
    """Return what a result file says that it is."""
    return f"toppgate/{name}/1"


def finish(run: Run, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write a stage's result file, bound to the run, and return what a reader of the file gets."""
    bound = {"schema": schema_of(name), "run": run.id, "params": run.params_sha256, "harness": run.harness}
    stop = {} if run.stop is None else {"stop": {"code": run.stop.code, "detail": run.stop.detail}}
    found = {**bound, **stop, **content, "wall_seconds": round(time.monotonic() - run.began, 1)}
    data = digests.canonical(found)
    path = run.directory / f"{name}.json"
    partial = path.with_suffix(".partial")
    partial.write_bytes(data + b"\n")
    partial.replace(path)
    written: dict[str, Any] = json.loads(data)
    return written
