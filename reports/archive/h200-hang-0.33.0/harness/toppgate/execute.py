"""Stage 2, parent side: stock and patch, each in its own process, and vLLM's sort in a third (contract, section 4).

A worker that hangs, dies or delivers nothing costs its case only: the case gets a stop code, and the remaining cases
run in a fresh worker.  The killed case is not repeated.
"""

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toppgate import codes, cuda, digests, host, inputs, progress, published, source
from toppgate.errors import InputError, RunError, SourceError
from toppgate.processes import Worker
from toppgate.schema import Case, Params
from toppgate.stage import Run, Stop, finish

SIDES = ("stock", "patch")
SORT = "sort"
SORT_MEMBER = "vllm/v1/sample/ops/topk_topp_sampler.py"
SORT_FUNCTION = "apply_top_k_top_p_pytorch"
SORT_CALLABLE = f"vllm.v1.sample.ops.topk_topp_sampler:{SORT_FUNCTION}"

#: Is given a name, for whoever watches.
Told = Callable[[str], object]


@dataclass
class Side:
    """What one side delivered, case by case; grows while its workers run.

    ``resolved`` is the SHA-256 of the side's text, ``read`` what each worker found it to be; ``callable`` is
    ``module:function`` where the text is a Python function's, None where it is a kernel file's.
    """

    name: str
    resolved: str
    callable: str | None = None
    read: list[str] = field(default_factory=list)
    environments: list[dict[str, Any]] = field(default_factory=list)
    cases: dict[str, dict[str, Any]] = field(default_factory=dict)
    binaries: dict[str, Any] = field(default_factory=dict)
    compile_seconds: float | None = None

    @property
    def source(self) -> str:
        """What ran: one that differs is not forgotten when the next worker reads the right one."""
        return next((source for source in self.read if source != self.resolved), self.resolved)


def execute(run: Run) -> dict[str, Any]:
    """Run stage 2 in a run directory and return its result, which it also writes as ``2_execute.json``.

    Side effects: worker processes; ``outputs/``; ``scratch/``, which holds the workers' copies of foreign text and is
    removed by seal.  Raises ``SourceError`` where a source cannot be had at all, while a drifted one is a stop, and
    ``RunError`` where stage 2 has run before: outputs, once seen, are not drawn again (contract, section 3).
    """
    if (run.directory / "outputs").exists() or (run.directory / "2_execute.json").exists():
        raise RunError(f"{run.directory}: stage 2 has run here already; a rerun needs another run, from stage 1 on")
    if run.stop is not None:
        return finish(run, "2_execute", {"sides": {}})
    deadline = time.monotonic() + run.params.limits.total_seconds
    try:
        clock = [time.monotonic()]
        provided = host.provide(run.params.host.model_dump(exclude_unset=True), published.cache())
        sides = run_sides(run, provided, deadline)
        clock.append(time.monotonic())
        sides.append(run_sort(run, provided, deadline))
        clock.append(time.monotonic())
        timing = _measure(run, sides, provided, deadline)
        clock.append(time.monotonic())
    except SourceError as error:
        code = str(error).split(":")[0]
        if code not in codes.EVIDENCE:
            raise
        return finish(run.stopped(Stop(code, str(error))), "2_execute", {"sides": {}})
    return finish(
        run,
        "2_execute",
        {
            "host": describe(provided),
            "sides": {side.name: plain(side) for side in sides},
            "timing": timing,
            "seconds": _split(sides, clock),
        },
    )


def _split(sides: list[Side], clock: list[float]) -> dict[str, float]:
    """Return where the wall time went: compiling and running both sides side by side, sorting, timing."""
    taken = [after - before for before, after in itertools.pairwise(clock)]
    compiling = max(side.compile_seconds or 0.0 for side in sides)
    named = {"compile": compiling, "stock and patch": taken[0] - compiling, "sort reference": taken[1]}
    return {name: round(value, 1) for name, value in {**named, "launch times": taken[2]}.items()}


def describe(provided: host.Host) -> dict[str, Any]:
    """Return what ``2_execute.json`` says of the host."""
    return {"version": provided.version, "sha256": provided.sha256, "stand_ins": list(provided.stand_ins)}


def plain(side: Side) -> dict[str, Any]:
    """Return what ``2_execute.json`` says of a side."""
    more = {"compile_seconds": side.compile_seconds, "binaries": side.binaries}
    return {"source": side.source, "environments": side.environments, "cases": side.cases, **more}


def run_sides(run: Run, provided: host.Host, deadline: float) -> list[Side]:
    """Run stock and patch side by side, each source read anew: what changed since ``run`` looked is seen.

    Side effects: ``outputs/`` and ``scratch/`` of the run directory.  Raises ``SourceError``.
    """
    (run.directory / "outputs").mkdir(exist_ok=True)
    specs = {name: getattr(run.params, name).model_dump(exclude_unset=True) for name in SIDES}
    found = {name: source.resolve(spec, published.cache()) for name, spec in specs.items()}
    sides = [Side(name, found[name].sha256, found[name].callable) for name in SIDES]
    threads = [
        threading.Thread(target=work, args=(run, side, found[side.name].data, provided, deadline)) for side in sides
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sides


def run_texts(run: Run, texts: Mapping[str, bytes], provided: host.Host, told: Told = str) -> list[Side]:
    """Run kernels by name and text, each with the frozen total time to itself; tell of each one done.

    As many run at a time as there are cores, but two on a GPU.
    Side effects: ``outputs/`` and ``scratch/`` of the run directory.
    """
    (run.directory / "outputs").mkdir(exist_ok=True)
    sides = [Side(name, digests.sha256(text)) for name, text in texts.items()]

    def one(side: Side) -> None:
        work(run, side, texts[side.name], provided, time.monotonic() + run.params.limits.total_seconds)
        told(side.name)

    pool = ThreadPoolExecutor(len(SIDES) if run.params.device == "cuda" else os.cpu_count())
    try:
        for done in [pool.submit(one, side) for side in sides]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
    return sides


def run_sort(run: Run, provided: host.Host, deadline: float) -> Side:
    """Run vLLM's own sort implementation, cut out of the host; side effects as for ``work``."""
    text = source.function(host.member(provided, SORT_MEMBER), SORT_FUNCTION).encode()
    side = Side(SORT, digests.sha256(text), SORT_CALLABLE)
    work(run, side, text, provided, deadline)
    return side


def work(run: Run, side: Side, text: bytes, provided: host.Host, deadline: float) -> None:
    """Take a side, whose text is ``text``, through its cases, one worker after another until none is left.

    Side effects: ``outputs/``, which must be there, and ``scratch/<side>`` of the run directory; ``side`` grows.
    """
    scratch = run.directory / "scratch" / side.name
    scratch.mkdir(parents=True, exist_ok=True)
    kernel = scratch / "topk_topp_triton.py"
    kernel.write_bytes(text)
    waiting = list(_runnable(run, side))
    start = _starter(run.params, scratch)
    if run.params.device == "cuda" and side.callable is None and waiting:
        seat = side.name if side.name in SIDES else "patch"
        groups = [[case.id for case in group] for group in cuda.shapes(waiting, seat)]
        job = _job(run, side, kernel, provided, waiting)
        seconds = run.params.limits.launch_seconds
        most = max(1, cuda.processes(run.params.limits, cuda.free_bytes() or 0, os.cpu_count() or 1))
        side.compile_seconds = cuda.compile_all(job, groups, scratch, start, deadline, most=most, seconds=seconds)
    while waiting:
        job = _job(run, side, kernel, provided, waiting)
        path = scratch / f"job-{len(side.environments)}-{len(waiting)}.json"
        path.write_text(json.dumps(job))
        worker = start("toppgate.worker", path, {})
        done = _follow(run, side, worker, waiting, deadline)
        waiting = waiting[done:]


def _starter(params: Params, scratch: Path) -> cuda.Start:
    """Return how to start a process of a side."""

    def start(module: str, job: Path, more: Mapping[str, str]) -> Worker:
        return Worker(module, job, {**environment(params.device, scratch / "triton"), **more}, scratch / "stderr.txt")

    return start


def _measure(run: Run, sides: list[Side], provided: host.Host, deadline: float) -> dict[str, Any] | None:
    """Time launches on CUDA, once the evidence is complete, of the cases that all delivered; None elsewhere.

    None too where a side is a Python function, which no CUDA graph need be able to hold.
    """
    if run.params.device != "cuda" or any(side.callable for side in sides if side.name in SIDES):
        return None
    scratch = run.directory / "scratch" / "timing"
    scratch.mkdir(parents=True, exist_ok=True)
    sources = {name: scratch.parent / name / "topk_topp_triton.py" for name in SIDES}
    cases = [case for case in run.params.cases if all(side.cases[case.id]["code"] == codes.PASS for side in sides)]
    job = _job(run, Side("patch", ""), sources["patch"], provided, cases)
    job["sources"] = {name: str(path) for name, path in sources.items()}
    seconds = run.params.limits.launch_seconds
    return cuda.measure(job, scratch, _starter(run.params, scratch), deadline, seconds=seconds)


def _runnable(run: Run, side: Side) -> Iterator[Case]:
    """Yield the cases whose input is there and the frozen one; the others get their code."""
    for case in run.params.cases:
        code, detail = check_input(run.directory, case, run.params)
        if code == codes.PASS:
            yield case
        else:
            _record(side, case, code, detail)


def check_input(directory: Path, case: Case, params: Params) -> tuple[str, str]:
    """Return ``pass`` or the stop code of a case's captured input, and why."""
    if case.vocabulary > params.limits.vocabulary or case.batch > params.limits.batch:
        return "limit_exceeded", f"{case.batch} x {case.vocabulary} is over the frozen limits"
    path = directory / "inputs" / f"{case.id}.safetensors"
    try:
        found = inputs.from_bytes(path.read_bytes(), path.name).sha256
    except FileNotFoundError:
        return "input_missing", f"{path.name} is not there"
    except (InputError, OSError) as error:
        return "input_drift", str(error)
    return (codes.PASS, "") if found == case.input else ("input_drift", f"SHA-256 is {found}, expected {case.input}")


def _record(side: Side, case: Case, code: str, detail: str, **more: Any) -> None:
    empty: dict[str, Any] = {"input": None, "file": None, "repeats": [], "launches": [], "hooks": [], "seconds": []}
    side.cases[case.id] = {"code": code, "detail": detail, **empty, **more}


def _job(run: Run, side: Side, kernel: Path, provided: host.Host, cases: list[Case]) -> dict[str, Any]:
    return {
        "run": run.id,
        "side": side.name,
        "device": run.params.device,
        "source": str(kernel),
        "sha256": side.resolved,
        "callable": side.callable,
        "host": None if provided.path is None or side.name == SORT else str(provided.path),
        "host_sha256": provided.sha256,
        "repeat": run.params.repeat,
        "cases": [_case_job(run, side, case) for case in cases],
    }


def _case_job(run: Run, side: Side, case: Case) -> dict[str, Any]:
    return {
        "id": case.id,
        "input": str(run.directory / "inputs" / f"{case.id}.safetensors"),
        "output": str(output_path(run.directory, case.id, side.name)),
        "compute_units": case.compute_units or run.params.compute_units,
        "k": case.k,
        "stride": case.stride,
    }


def output_path(directory: Path, case: str, side: str) -> Path:
    """Return where a side's output of a case lies."""
    return directory / "outputs" / f"{case}.{side}.safetensors"


def environment(device: str, compiled: Path) -> dict[str, str]:
    """Return a worker's environment: this one, with the device chosen, and a place for what is compiled."""
    chosen = {"TRITON_CACHE_DIR": str(compiled)}
    if device == "interpreter":
        chosen |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **chosen}


def _follow(run: Run, side: Side, worker: Worker, waiting: list[Case], deadline: float) -> int:
    """Follow one worker to its end; return how many of the waiting cases have their record."""
    limit = run.params.limits.launch_seconds
    done, running, due = 0, None, min(deadline, time.monotonic() + max(limit, cuda.START_SECONDS))
    try:
        while done < len(waiting):
            event = worker.event(due)
            if event is None:
                break
            if event.get("event") == "ready":
                side.environments.append(event["environment"])
                side.read.append(event["source"])
            elif event.get("event") == "start":
                running = event["case"]
            elif event.get("event") == "done" and event["case"] == waiting[done].id:
                _deliver(run, side, waiting[done], event)
                done, running = done + 1, None
            due = min(deadline, time.monotonic() + limit)
    except TimeoutError:
        worker.kill()
        return done + _timed_out(side, waiting[done:], running, limit, over=time.monotonic() >= deadline)
    ending = worker.end(grace=5)
    if done == len(waiting):
        return done
    code = "output_missing" if ending is None else "worker_crashed"
    detail = ending or "the worker ended with exit status 0 before it delivered the case"
    started = running is not None or done > 0
    lost = waiting[done : done + 1] if started else waiting[done:]  # what dies before its first case would die again
    for case in lost:
        _record(side, case, code, detail)
    return done + len(lost)


def _timed_out(side: Side, waiting: list[Case], running: str | None, limit: int, *, over: bool) -> int:
    lost = waiting if over or running is None else waiting[:1]
    why = "the frozen total time was over" if over else f"killed after {limit} s"
    for case in lost:
        _record(side, case, "timeout", why)
    return len(lost)


def _deliver(run: Run, side: Side, case: Case, event: dict[str, Any]) -> None:
    """Record what a worker says it delivered; ``evidence`` judges it later, from the file."""
    path = output_path(run.directory, case.id, side.name)
    kept = sum(file.stat().st_size for file in (run.directory / "outputs").glob("*.safetensors"))
    more = {key: event[key] for key in ("input", "repeats", "launches", "hooks", "seconds")}
    side.binaries.update(event["binaries"])
    if not path.exists():
        _record(side, case, "output_missing", f"{path.name} is not there", **more)
    elif event["spilled"]:
        _record(side, case, "output_altered", "values between the rows were written", **more)
    elif kept > run.params.limits.retained_bytes:
        path.unlink()
        _record(side, case, "limit_exceeded", f"{kept} bytes retained, over the frozen limit", **more)
    else:
        _record(side, case, codes.PASS, "", **{**more, "file": digests.sha256_file(path)})
    progress.say(f"{side.name:5} {case.id}: {sum(event['seconds']):.1f} s")
