"""Many kernels over one captured matrix, each to be judged in the patch's seat: captured once, executed, read.

Wrong kernels and cherry-picks go this way: no notebook, no receipt, and a directory that is thrown away.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from toppgate import capture, digests, evidence, execute, harness, host, params
from toppgate.errors import RunError
from toppgate.evidence import Evidence
from toppgate.execute import Side
from toppgate.schema import Params
from toppgate.stage import Run, finish


def captured(directory: Path, checked: Params) -> Run:
    """Capture frozen params into a directory and return its run.  Raises ``RunError`` where an input cannot be had."""
    run = Run(directory, checked, digests.sha256(params.dump(checked)), harness.digest(), None)
    found = capture.capture(run)
    if "stop" in found:
        raise RunError(f"{found['stop']['code']}: {found['stop']['detail']}")
    return replace(run, id=found["run"])


def evidence_of(run: Run, sides: Sequence[Side], provided: host.Host) -> Evidence:
    """Return what a run of so many sides holds, stock and patch among them.

    Raises ``RunError`` where the run as a whole is stopped, or a worker read another text than it was given.
    """
    plain = {side.name: execute.plain(side) for side in sides}
    finish(run, "2_execute", {"host": execute.describe(provided), "sides": plain})
    found = evidence.gather(run.directory, None, harness.digest())
    drifted = [side.name for side in sides if side.source != side.resolved]
    for problem in [f"{stop.code}: {stop.detail}" for stop in found.stops] + [f"source_drift: {n}" for n in drifted]:
        raise RunError(f"nothing can be compared: {problem}")
    return found
