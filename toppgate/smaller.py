"""Rows that a hunt found, made small: some a job, since each takes seconds on the interpreter.

What is made smaller is confirmed there, whatever device the hunt was on; whether it stops on that device as well is
seen when the rows that are written are run (``trophies``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from toppgate import codes, engines, host, published, rerun
from toppgate.errors import ToppgateError
from toppgate.fp32 import Float32
from toppgate.rerun import Kernel
from toppgate.shrink import Bench, Stopped, shrink
from toppgate.suspect import Suspect

#: Seconds after which nothing further is tried on a row.
SECONDS: Final = 20.0


@dataclass(frozen=True, eq=False)
class Job:
    """Judged suspects, the texts of ``stock`` and ``patch``, the spec of their host, and the time for each row.

    ``home`` is a directory for what is temporary, where the machine has it.
    """

    suspects: tuple[Suspect, ...]
    texts: Mapping[str, bytes] = field(repr=False)
    host: Mapping[str, Any]
    seconds: float
    home: str = ""


@dataclass(frozen=True, eq=False)
class Trophy:
    """A suspect, the logits that are written of it, float32 [V], and in words how they came to be so."""

    suspect: Suspect
    logits: Float32 = field(repr=False)
    how: str

    @property
    def name(self) -> str:
        """The id of its case."""
        return f"{self.suspect.code}-{self.suspect.at}"

    def whole(self, how: str) -> "Trophy":
        """Return it as it was drawn."""
        return Trophy(self.suspect, self.suspect.logits, how)


def smaller(job: Job) -> list[Trophy]:
    """Return, for each suspect, the smallest row found with its code and cause; the row as drawn where there is none.

    Side effects: processes, gone on return.
    """
    provided = host.provide(dict(job.host), published.cache())
    with rerun.started(job.texts, provided, engines.here(job.home)) as kernels:
        return [_smaller(suspect, kernels, job.seconds) for suspect in job.suspects]


def _smaller(found: Suspect, kernels: Mapping[str, Kernel], seconds: float) -> Trophy:
    row = Stopped(f"row {found.at}", found.code, codes.side(found.code), found.slices, found.logits, found.p)
    try:
        shrunk = shrink(Bench(row, kernels), seconds)
    except ToppgateError as error:
        return Trophy(found, found.logits, f"as drawn: {error}")
    return Trophy(found, shrunk.small.logits, shrunk.sizes)
