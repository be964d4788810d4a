"""Engines: the same results from each, in the order of the jobs, and no job that vanishes with its worker.

Ray's cluster here has two nodes of one CPU each, dask's two workers; both are joined by address, as strangers' are.
"""

import importlib.util
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pipeline
import pytest
from engine_jobs import Job, killed_always, killed_once, met

from toppgate import engines, hunt, mutate, trophies
from toppgate.errors import RunError, SourceError
from toppgate.mutate import Mutant

#: A kernel that keeps too little.
STRICT = Mutant("strict", "none", "_topp_sb_mask_kernel", r"prob > pivot", r"prob > 2 * pivot", "It keeps too little.")

#: Engine, workers, and whether they run already.
WAYS = [
    pytest.param(("loky", 1, False), id="loky, one process"),
    pytest.param(("loky", 2, False), id="loky, two processes"),
    pytest.param(("dask", 2, False), id="dask, started here"),
    pytest.param(("dask", 2, True), id="dask, two workers by address"),
    pytest.param(("ray", 2, False), id="ray, started here"),
    pytest.param(("ray", 2, True), id="ray, two nodes by address"),
]
Way = tuple[str, int, str | None]


def _needs(name: str) -> None:
    """Skip, with the reason, where the library of an engine is not installed."""
    if importlib.util.find_spec(engines.NEEDS[name]) is None:
        pytest.skip(f"needs the extra {name}")


@pytest.fixture(scope="module", autouse=True)
def _jobs_are_found() -> Iterator[None]:
    """Put this directory where ray's workers look for modules; of this process's own path they get but a part."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        yield


@pytest.fixture(scope="module")
def dask_address() -> Iterator[str]:
    """Yield the address of two workers of dask."""
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="module")
def ray_address() -> Iterator[str]:
    """Yield the address of two nodes of ray, of one CPU each."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("RAY_USAGE_STATS_ENABLED", "0")
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        try:
            cluster.add_node(num_cpus=1)
            yield cluster.address
        finally:
            cluster.shutdown()


@pytest.fixture
def way(request: pytest.FixtureRequest) -> Way:
    """Return an engine, its workers and their address, where they run already."""
    name, workers, running = request.param
    _needs(name)
    return name, workers, request.getfixturevalue(f"{name}_address") if running else None


@pytest.mark.parametrize("way", WAYS, indirect=True)
def test_an_engine_changes_nothing_but_where(way: Way, tmp_path: Path) -> None:
    """Results come in the order of the jobs, two at a time where there are two workers; SIGTERM does what it did."""
    handler = signal.getsignal(signal.SIGTERM)
    jobs = [Job(number, way[1], tmp_path) for number in (3, 1, 2, 0)]
    assert engines.each(met, jobs, *way) == [(3, "9"), (1, "1"), (2, "4"), (0, "0")]
    assert signal.getsignal(signal.SIGTERM) == handler


# ---------------------------------------------------------------------------------------------- what is lost


@pytest.mark.parametrize("way", [WAYS[2], WAYS[5]], indirect=True)
def test_a_lost_workers_jobs_are_done_once_more(way: Way, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One worker killed in the middle of a job: every result is there, and nothing is on standard output."""
    assert engines.each(killed_once, [Job(number, 2, tmp_path) for number in range(5)], *way) == [0, 1, 2, 3, 4]
    assert (tmp_path / "killed").exists()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("way", [WAYS[1], WAYS[2], WAYS[5]], indirect=True)
def test_a_job_that_loses_every_worker_ends_in_one_line(way: Way, tmp_path: Path) -> None:
    """What is lost for good is an error of one line, not a result that is missing."""
    with pytest.raises(RunError, match=rf"^engine: a worker of {way[0]} was lost: [^\n]+$"):
        engines.each(killed_always, [Job(number, 2, tmp_path) for number in range(5)], *way)


def _refused(_job: int) -> None:
    raise SourceError("not to be had")


@pytest.mark.parametrize("way", [WAYS[1], WAYS[3], WAYS[5]], indirect=True)
def test_what_a_job_raises_is_raised(way: Way) -> None:
    """An error of a job is the same error here, without its worker's traceback for a text."""
    with pytest.raises(SourceError, match=r"^not to be had$"):
        engines.each(_refused, [1, 2], *way)


# ---------------------------------------------------------------------------------------------- what is not there


@pytest.mark.parametrize("name", ["dask", "ray"])
def test_a_cluster_that_is_not_there_is_said(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address at which nothing listens, and one that is none."""
    _needs(name)
    monkeypatch.setattr(engines, "ANSWER", 1)
    with socket.socket() as bound:  # bound and not listening: nobody else has the port
        bound.bind(("127.0.0.1", 0))
        closed = f"127.0.0.1:{bound.getsockname()[1]}"
        for address in (closed, "nonsense:port"):
            with pytest.raises(RunError, match=rf"^engine: no cluster of {name} at {address}: [^\n]+$"):
                engines.each(abs, [1], name, 1, address)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cobalt", "got 'cobalt', expected one of loky, dask, ray"),
        ("dask", "dask needs the extra dask, which is not installed"),
        ("ray", "ray needs the extra ray, which is not installed"),
    ],
)
def test_an_engine_that_is_not_there_is_named(name: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is none, and a library that is missing."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(RunError, match=said):
        engines.check(name)


# ---------------------------------------------------------------------------------------------- a hunt


def _hunt(home: Path, way: Way) -> dict[str, Any]:
    """Return the record of a hunt of two blocks for a kernel that keeps too little, without times and processes."""
    (home / "wrong.py").write_text(mutate.apply(pipeline.text(pipeline.PATCH), STRICT))
    wrong = {"kind": "file", "path": str(home / "wrong.py")}
    path = pipeline.freeze_draft(home / "p.yml", pipeline.draft(pipeline.control(), patch=wrong))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hunt, "SHAPES", {"interpreter": ((40, 1),)})
        patched.setattr(hunt, "ROWS", {"interpreter": (2, 2)})
        patched.setattr(trophies, "written", lambda *_: ([], None))  # the rows, run once more: not the engine's
        name, workers, address = way
        out, _ = hunt.hunt(path, home / "out", 4, 1, engine=name, workers=workers, address=address)
    record: dict[str, Any] = json.loads((out / "hunt.json").read_bytes())
    del record["seconds"]
    record["sources"]["patch"] = None  # names the file's path
    return record


@pytest.fixture(scope="module")
def first_hunt(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what two processes of this machine find."""
    pytest.importorskip("torch", reason="needs the extra kernel")
    return _hunt(tmp_path_factory.mktemp("hunt"), ("loky", 2, None))


@pytest.mark.parametrize("way", [WAYS[0], WAYS[3], WAYS[5]], indirect=True)
def test_a_hunt_finds_the_same_whatever_runs_it(way: Way, first_hunt: dict[str, Any], tmp_path: Path) -> None:
    """The record is the same but for its seconds, and something was found."""
    assert first_hunt["rows"] == 4
    assert first_hunt["findings"]
    assert _hunt(tmp_path, way) == first_hunt


def test_loky_takes_no_address() -> None:
    """Whoever gives one means a cluster, and would not see that it was not used."""
    with pytest.raises(RunError, match=r"^address: got '127.0.0.1:1' with loky, which runs here alone; expected"):
        engines.each(abs, [1], "loky", 1, "127.0.0.1:1")
