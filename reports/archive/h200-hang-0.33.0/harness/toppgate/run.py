"""``toppgate run``: everything before the first stage, the three stages, then seal (contract, section 2)."""

import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

from toppgate import cuda, harness, host, notebooks, params, progress, published, seal, source
from toppgate.errors import ParamsError, RunError
from toppgate.notebooks import Failure
from toppgate.schema import Limits, Params
from toppgate.seal import Sealed

#: On top of the frozen total time: notebook kernels start, the oracle and the gate run, the page is made.
OVERHEAD_SECONDS = 600

#: The smallest run takes about this many bytes.
ROOM = 2**20


def run(path: Path, out: Path | None, *, show: bool) -> Sealed:
    """Run a frozen params file and return the sealed run.

    Works in ``OUT.partial-…`` and renames when sealed; from then on SIGINT and SIGTERM stay blocked.  Raises
    ``ToppgateError`` for anything that is found before the first stage starts; no directory is left behind then.
    """
    target = (out or Path("reports") / path.stem).absolute()
    checked = prepare(path, target)
    partial = partial_of(target)
    try:
        failures = list(_stages(path, partial, checked, show=show))
        if not (partial / "params.yml").is_file():  # stage 1 died before it could write what it was given
            (partial / "params.yml").write_bytes(params.dump(checked))
        sealed = seal.seal(partial, failures)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # now it is too late to interrupt
        partial.rename(target)
    except OSError as error:
        raise RunError(f"{error.filename or partial}: {error.strerror}") from None
    finally:
        if partial.exists():
            shutil.rmtree(partial, ignore_errors=True)
    return Sealed(target, sealed.verdict, sealed.receipt_sha256)


def prepare(path: Path, target: Path) -> Params:
    """Check all that can be checked before anything runs: params, target, device, sources, host."""
    checked = params.read(path)
    params.check_frozen(checked, str(path))
    if params.dump(checked) != path.read_bytes():
        raise ParamsError(f"{path}: not in freeze's own form, so it was edited; freeze it again, as a new file")
    check_place(path, target, checked.device, checked.limits)
    for side in ("stock", "patch"):
        source.resolve(getattr(checked, side).model_dump(mode="json", exclude_unset=True), published.cache())
    host.provide(checked.host.model_dump(mode="json", exclude_unset=True), published.cache())
    return checked


def check_place(path: Path, target: Path, device: str, limits: Limits) -> None:
    """Raise ``RunError`` where something is at the target already, or the device is not there or has no room."""
    if os.path.lexists(target):
        raise RunError(f"{target}: is there already, and a run is never overwritten; choose another place")
    if device == "cuda" and shutil.which("nvidia-smi") is None:
        raise RunError(f"{path}: device: got cuda, but this machine has no NVIDIA device")
    if device == "cuda":
        _check_memory(limits, path)


def _check_memory(limits: Limits, path: Path) -> None:
    """Refuse limits that allow a launch the device has no room for; what it does not say is left to the launch."""
    free = cuda.free_bytes()
    needed = 2 * cuda.process_bytes(limits)
    if free is not None and cuda.processes(limits, free, cores=1) == 0:
        raise RunError(
            f"{path}: limits: batch {limits.batch} x vocabulary {limits.vocabulary} need "
            f"{needed / 2**30:.1f} GiB of device memory for both sides, got {free / 2**30:.1f} GiB free"
        )


def partial_of(target: Path) -> Path:
    """Make the directory to work in, and see that something can be written there before minutes are spent."""
    partial = target.with_name(f"{target.name}.partial-{uuid.uuid4().hex[:8]}")
    try:
        partial.mkdir(parents=True)
        (partial / "room").write_bytes(bytes(ROOM))
        (partial / "room").unlink()
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(f"{partial.parent}: cannot be written: {error.strerror}") from None
    return partial


def _stages(path: Path, directory: Path, checked: Params, *, show: bool) -> Iterator[Failure]:
    """Execute the stage notebooks in order; what fails ends the run, but is sealed all the same."""
    relative = Path(os.path.relpath(directory))
    seconds = checked.limits.total_seconds + OVERHEAD_SECONDS
    began = time.monotonic()
    with progress.told(_show if show else str):
        for name in harness.STAGES:
            left = seconds - (time.monotonic() - began)
            failure = notebooks.execute(name, path, relative, left) or notebooks.acceptance(name, relative)
            if failure is not None:
                yield failure
                return


def _show(line: str) -> None:
    sys.stderr.write(line + "\n")
    sys.stderr.flush()
