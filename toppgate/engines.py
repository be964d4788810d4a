"""Where independent jobs run: this machine's cores, or workers of a cluster that another library schedules.

``loky`` is joblib's own; ``dask`` is joblib's backend of that library, an extra, for a running cluster by its address
or for workers started here.  What a job returns depends on the job alone, so the engine changes when and where, never
what.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from typing import Final, TypeVar

import joblib

from toppgate.errors import RunError

#: Engines by name, and the module that each needs.
NEEDS: Final = {"loky": "joblib", "dask": "distributed"}

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def check(name: str) -> None:
    """Raise ``RunError`` where an engine is not known, or its library is not installed."""
    if name not in NEEDS:
        raise RunError(f"engine: got {name!r}, expected one of {', '.join(NEEDS)}")
    if importlib.util.find_spec(NEEDS[name]) is None:
        raise RunError(f"engine: {name} needs the extra {name}, which is not installed")


def each(
    work: Callable[[_Job], _Result], jobs: Sequence[_Job], name: str, workers: int, address: str | None = None
) -> list[_Result]:
    """Return ``work`` of each job, in the order of the jobs.

    Parameters
    ----------
    work : a function of a module, of one job; it may be run again if a worker is lost
    name, workers : the engine, and how many jobs run at a time; with an address, how many are asked for
    address : of a running cluster; None to start workers on this machine

    Raises
    ------
    RunError : the engine is not there, or loses a worker and with it a job
    """
    check(name)
    try:
        with _engine(name, workers, address):
            found: list[_Result] = joblib.Parallel(n_jobs=workers)(joblib.delayed(work)(job) for job in jobs)
    except BrokenExecutor as error:
        raise RunError(f"engine: a worker of {name} was lost: {error}") from None
    return found


@contextlib.contextmanager
def _engine(name: str, workers: int, address: str | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if name == "dask":
            from distributed import Client, LocalCluster  # noqa: PLC0415 - an extra

            own = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": None}
            cluster = LocalCluster(**own) if address is None else contextlib.nullcontext(address)
            stack.enter_context(Client(stack.enter_context(cluster)))
        stack.enter_context(joblib.parallel_config(backend=name))
        yield
