"""Where independent jobs run: this machine's cores, or workers of a cluster that another library schedules.

``loky`` is joblib's own; ``dask`` and ``ray`` are extras, for a running cluster by its address or for workers started
here.  What a job returns depends on the job alone, so the engine changes when and where, never what.  No job vanishes
with its worker: dask and ray do it once more (a cluster of dask as often as it is set to), and what is lost again, or
at once with loky, ends in an error.

Both are called directly, not as backends of joblib: with a worker lost for good, joblib waits for dask for ever, and
ray's backend does one worker's jobs in this very process and wants a CPU for each job at once.
"""

import contextlib
import importlib.util
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

import joblib

from toppgate.errors import RunError

#: Engines by name, and the module that each needs.
NEEDS: Final = {"loky": "joblib", "dask": "distributed", "ray": "ray"}

#: Seconds in which a cluster must answer at its address.
ANSWER: Final = 10

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


def here(home: str) -> Path | None:
    """Return the directory that whoever asked keeps for what is temporary, and removes; None on another machine."""
    return Path(home) if home and Path(home).is_dir() else None


def check(name: str, address: str | None = None) -> None:
    """Raise ``RunError`` where an engine is not known, not installed, or has no use for an address."""
    if name not in NEEDS:
        raise RunError(f"engine: got {name!r}, expected one of {', '.join(NEEDS)}")
    if importlib.util.find_spec(NEEDS[name]) is None:
        raise RunError(f"engine: {name} needs the extra {name}, which is not installed")
    if name == "loky" and address is not None:
        raise RunError(f"address: got {address!r} with loky, which runs here alone; expected --engine dask or ray")


def each(
    work: Callable[[_Job], _Result], jobs: Sequence[_Job], name: str, workers: int, address: str | None = None
) -> list[_Result]:
    """Return ``work`` of each job, in the order of the jobs.

    Parameters
    ----------
    work : a function of a module, of one job; it may be run again if a worker is lost
    name, workers : the engine, and how many jobs run at a time; with an address, as many as the cluster has room for
    address : of a running cluster; None to start workers on this machine

    Raises
    ------
    RunError : the engine is not there, or loses a worker and with it a job
    Exception : what a job raised
    """
    check(name, address)
    return {"loky": _loky, "dask": _dask, "ray": _ray}[name](work, jobs, workers, address)


def _loky(work: Callable[[_Job], _Result], jobs: Sequence[_Job], workers: int, _address: str | None) -> list[_Result]:
    try:
        found: list[_Result] = joblib.Parallel(n_jobs=workers)(joblib.delayed(work)(job) for job in jobs)
    except BrokenExecutor as error:
        raise _lost("loky", error) from None
    return found


def _dask(work: Callable[[_Job], _Result], jobs: Sequence[_Job], workers: int, address: str | None) -> list[_Result]:
    from distributed import Client, KilledWorker, LocalCluster  # noqa: PLC0415 - an extra

    # An address of a page of its own, any that is free; a job may lose one worker, and is done again.
    own = {"n_workers": workers, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with contextlib.ExitStack() as stack:
        try:
            cluster: Any = address
            if address is None:
                cluster = stack.enter_context(LocalCluster(**own, scheduler_kwargs={"allowed_failures": 1}))
            client = stack.enter_context(Client(cluster, timeout=ANSWER))
        except (OSError, RuntimeError, ValueError) as error:
            raise _absent("dask", address, error) from None
        try:
            found: list[_Result] = client.gather(client.map(work, jobs, pure=False))
        except KilledWorker as error:
            raise _lost("dask", error) from None
        return found


def _ray(work: Callable[[_Job], _Result], jobs: Sequence[_Job], workers: int, address: str | None) -> list[_Result]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else it reports to its makers
    import ray  # noqa: PLC0415 - an extra

    with contextlib.ExitStack() as stack:
        # What ray says of a lost worker goes to standard output, where this tool's JSON may be.
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        own: dict[str, Any] = {}
        if address is None:
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True))
            own = {"num_cpus": workers, "include_dashboard": False, "_temp_dir": home}
        try:
            if address is not None:
                _answers(address)
            with _kept_handler():
                context = ray.init(address or "local", **own, log_to_driver=False, logging_level=logging.CRITICAL)
            stack.enter_context(context)
        except Exception as error:  # noqa: BLE001 - a bare one is how ray says that it timed out
            raise _absent("ray", address, error) from None
        task = ray.remote(num_cpus=1, max_retries=1)(work)
        try:
            found: list[_Result] = ray.get([task.remote(job) for job in jobs])
        except ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except ray.exceptions.RayError as error:
            raise _lost("ray", error) from None
        return found


def _answers(address: str) -> None:
    """Raise ``OSError`` or ``ValueError`` where nothing listens; ray itself would try for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if not (host and port.isdecimal()):
        raise ValueError("expected HOST:PORT")
    socket.create_connection((host, int(port)), timeout=ANSWER).close()


@contextlib.contextmanager
def _kept_handler() -> Iterator[None]:
    """Keep what this process does on SIGTERM, which ``ray.init`` replaces in the main thread."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _absent(name: str, address: str | None, error: Exception) -> RunError:
    what = f"no workers of {name} start here" if address is None else f"no cluster of {name} at {address}"
    return RunError(f"engine: {what}: {error}")


def _lost(name: str, error: Exception) -> RunError:
    return RunError(f"engine: a worker of {name} was lost: {error}")
