"""Stage 2 on a GPU, parent side: what is planned before anything is launched.  Needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pipeline
import pytest

from toppgate import cuda, params
from toppgate.schema import Limits

LIMITS = Limits(vocabulary=262_144, batch=64, rows=64, launch_seconds=1, total_seconds=1, retained_bytes=1)
GIB = 2**30


def test_memory_is_planned_from_the_limits() -> None:
    """A context of 1 GiB and twelve tensors of 64 MiB for each process, two sides at once; never more than cores."""
    assert cuda.process_bytes(LIMITS) == GIB + 12 * 64 * 2**20
    assert [cuda.processes(LIMITS, free, 8) for free in (0, 3 * GIB, 4 * GIB, 8 * GIB, 100 * GIB)] == [0, 0, 1, 2, 8]
    assert cuda.processes(LIMITS, 1000 * GIB, 1000) == cuda.MOST


@pytest.mark.parametrize(
    ("says", "end"),
    [
        (
            "echo 2500",
            "limits: batch 65 x vocabulary 262144 need 3.5 GiB of device memory for both sides, got 2.4 GiB free",
        ),
        ("echo none; exit 3", None),
    ],
)
def test_limits_beyond_the_devices_memory_end_before_the_first_stage(
    tmp_path: Path, says: str, end: str | None
) -> None:
    """One line and exit status 2, and no directory; a driver that does not say how much is free refuses nothing."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(f"#!/bin/sh\n{says}\n")
    smi.chmod(0o755)
    path = f"{smi.parent}{os.pathsep}{os.environ['PATH']}"
    frozen = pipeline.ROOT / "params" / "h200.yml"
    command = [sys.executable, "-c", CHECK, str(frozen), str(tmp_path / "run")]
    ran = subprocess.run(command, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False)
    assert ran.stdout.strip() == (f"{frozen}: {end}" if end else "nothing refused"), ran.stderr
    assert not (tmp_path / "run").exists()


#: What ``toppgate run`` does before its first stage.
CHECK = """
import sys
from pathlib import Path
from toppgate import errors, run
try:
    run.prepare(Path(sys.argv[1]), Path(sys.argv[2]))
    print("nothing refused")
except errors.ToppgateError as error:
    print(error)
"""


def test_cases_that_share_their_kernels_are_compiled_once(tmp_path: Path) -> None:
    """Same vocabulary, same slices, k or none: one group, in the order in which they come."""
    cases = [
        pipeline.control("a"),
        pipeline.control("b"),
        pipeline.case("longer", "control", pipeline.normal(vocabulary=128)),
        pipeline.case("with-k", "probe", pipeline.normal(), k=3, expect="path_mismatch"),
    ]
    frozen = params.read(pipeline.freeze_draft(tmp_path / "params.yml", pipeline.draft(*cases)))
    groups = [[case.id for case in group] for group in cuda.shapes(list(frozen.cases), "stock")]
    assert groups == [["a", "b"], ["longer"], ["with-k"]]
