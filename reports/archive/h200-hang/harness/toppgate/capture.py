"""Stage 1: frozen params become input bytes (contract, sections 2 and 3)."""

import shutil
import subprocess
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from toppgate import digests, harness, inputs, params, progress
from toppgate.errors import InputDriftError, InputError, RunError
from toppgate.schema import Case
from toppgate.stage import Run, Stop, finish


def capture(run: Run, witness: bytes | None = None) -> dict[str, Any]:
    """Write ``params.yml``, the harness copy and every captured input; return the result, ``1_capture.json``.

    ``witness`` is the file that froze the values, to be looked for in git, where that is not their own params file.

    Side effects: creates the run directory.  Raises ``RunError`` where the directory already holds a run: a second
    run into the same place is a rerun by the back door (contract, section 2).
    """
    if run.id is not None or any(run.directory.glob("*.json")) or (run.directory / "inputs").exists():
        raise RunError(f"{run.directory}: already holds a run; choose another directory")
    run = replace(run, id=uuid.uuid4().hex)
    (run.directory / "inputs").mkdir(parents=True)
    (run.directory / "params.yml").write_bytes(params.dump(run.params))
    harness.copy(run.directory / "harness")
    _copy_files(run)
    found: dict[str, str | None] = {}
    for case in run.params.cases:
        found[case.id], stop = _capture_case(run, case)
        if stop is not None:
            run = run.stopped(stop)
    progress.say(f"captured {len(found)} cases")
    return finish(run, "1_capture", {"inputs": found, "git": git_state(witness or params.dump(run.params))})


def _copy_files(run: Run) -> None:
    """Keep each captured file once, named by its digest, so that every input can be made again from the run alone."""
    for spec in filter(None, map(inputs.source_of, run.params.cases)):
        target = inputs.files_of(run.directory) / f"{spec.sha256}.safetensors"
        target.parent.mkdir(exist_ok=True)
        if Path(spec.path).is_file() and not target.exists():
            shutil.copyfile(spec.path, target)


def _capture_case(run: Run, case: Case) -> tuple[str | None, Stop | None]:
    """Write one case's inputs; what cannot be read, or is not the frozen one, is a stop."""
    limits = run.params.limits
    if case.vocabulary > limits.vocabulary or case.batch > limits.batch:
        return None, None
    try:
        made = inputs.generate(case, inputs.files_of(run.directory))
    except InputDriftError as error:
        return None, Stop("input_drift", str(error))
    except InputError as error:
        return None, Stop("input_missing", str(error))
    inputs.save(made, run.directory / "inputs" / f"{case.id}.safetensors")
    if made.sha256 != case.input:
        return made.sha256, Stop("input_drift", f"cases[{case.id}]: SHA-256 is {made.sha256}, expected {case.input}")
    return made.sha256, None


def git_state(frozen: bytes) -> dict[str, Any]:
    """Return revision, dirty flag, and the path of a frozen file in HEAD's tree if it is committed as it is.

    Looked for by git blob id, so it does not matter how the values reached the notebook (contract, section 3).
    """
    revision = _git("rev-parse", "HEAD")
    if revision is None:
        return {"revision": None, "dirty": None, "params_path": None}
    blob = digests.git_blob(frozen)
    entries = (_git("ls-tree", "-r", "HEAD") or "").splitlines()
    path = next((line.split("\t", 1)[1] for line in entries if line.split()[2] == blob), None)
    dirty = bool(_git("status", "--porcelain", "--untracked-files=no"))
    return {"revision": revision, "dirty": dirty, "params_path": path}


def _git(*arguments: str) -> str | None:
    """Return what git says of the working directory, or None where it has nothing to say."""
    try:
        done = subprocess.run(
            ["git", "-C", str(Path.cwd()), *arguments], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
