"""A search for rows that tell two kernels apart: many drawn rows, outputs compared bit for bit.

Equality on searched rows proves nothing by itself: a mutant is *equivalent* only with a written argument beside it.
"""

import itertools
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from toppgate import execute, host, inputs
from toppgate.schema import Case, Limits, Params
from toppgate.stage import Run

#: Rows to search before two kernels may be called equivalent.
ROWS: Final = 100_000

#: Rows a launch, and launches a worker makes before its outputs are compared.
BATCH, LAUNCHES = 64, 256

#: What the launches go through, side by side; their lengths share no factor, so every combination comes.
SCALES: Final = ("1", "3", "8")
ROUNDINGS: Final = ("none", "bfloat16")
VOCABULARIES: Final = (61, 257, 1000, 2049, 4096)
#: p of the last rows of a launch; those of the others are spread evenly.
HIGH: Final = ("0.999", "0.99999")

_ORIGINAL, _MUTANT = "patch", "mutant"


@dataclass(frozen=True)
class Searched:
    """How many rows were compared, and the first launch whose outputs differ; None where all are the same bits."""

    rows: int
    difference: str | None


def search(checked: Params, provided: host.Host, original: bytes, mutant: bytes, rows: int) -> Searched:
    """Compare two kernel texts on at least ``rows`` drawn rows, or up to the first launch that differs.

    On a GPU where there is one, else on the interpreter.  Side effects: worker processes and a temporary directory.
    """
    drawn = itertools.islice(draw(), -(-rows // BATCH))
    compared = 0
    while chunk := list(itertools.islice(drawn, LAUNCHES)):
        with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch:
            run = _run(Path(scratch), checked, chunk)
            sides = execute.run_texts(run, {_ORIGINAL: original, _MUTANT: mutant}, provided)
            for case in run.params.cases:
                compared += case.batch
                if not _same(*(side.cases[case.id] for side in sides)):
                    return Searched(compared, f"{case.about}, {case.batch} rows of {case.vocabulary}")
    return Searched(compared, None)


def draw() -> Iterator[Case]:
    """Yield launches without end: one p a row, the seed counting up, rows in one slice and in two."""
    for seed in itertools.count():
        scale, rounding, vocabulary = (each[seed % len(each)] for each in (SCALES, ROUNDINGS, VOCABULARIES))
        rows = {"kind": "normal", "seed": str(seed), "scale": scale, "rows": BATCH, "vocabulary": vocabulary}
        about = f"seed {seed}, scale {scale}, rounding {rounding}"
        case = {"id": f"seed-{seed}", "about": about, "role": "ordinary", "rows": rows | {"round": rounding}}
        spread = [str((row + 0.5) / BATCH) for row in range(BATCH - len(HIGH))]
        yield Case.model_validate({**case, "p": [*spread, *HIGH], "compute_units": BATCH << seed % 2})


def _run(directory: Path, checked: Params, drawn: list[Case]) -> Run:
    """Write the launches' inputs and return a run over them, without a frozen digest: nothing is judged."""
    (directory / "inputs").mkdir()
    cases = []
    for case in drawn:
        made = inputs.generate(case)
        inputs.save(made, directory / "inputs" / f"{case.id}.safetensors")
        cases.append(case.model_copy(update={"shape": list(made.logits.shape), "input": made.sha256}))
    device = "cuda" if shutil.which("nvidia-smi") else "interpreter"
    limits = Limits(
        vocabulary=max(VOCABULARIES),
        batch=BATCH,
        rows=BATCH * LAUNCHES,
        launch_seconds=600,
        total_seconds=86_400,
        retained_bytes=2**40,
    )
    update = {"cases": cases, "device": device, "limits": limits, "frozen": None}
    return Run(directory, checked.model_copy(update=update), "", "", "search")


def _same(original: dict[str, Any], mutant: dict[str, Any]) -> bool:
    """Both delivered, each the same output every time, and the two outputs are the same bits."""
    passed = original["code"] == mutant["code"] == "pass"
    outputs = {*original["repeats"], *mutant["repeats"]}
    return passed and len(outputs) == 1
