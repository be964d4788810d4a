"""``toppgate hunt``: drawn rows, many of them, in search of those that break a kernel.

Blocks of rows are drawn, run and screened in float64 by processes of their own (``hunting``), on the params' device.
Of each finding and kind of row the first few are judged here, by the oracle and the gate's rules.  Of each code and
cause the smallest are made smaller still (``smaller``) and written as a frozen params file with literal rows, which is
then run: a row that does not stop there by the same code is left out, and said to be.  All of it is exploratory: it
finds rows for a matrix to come, is no evidence, and adapts no frozen matrix.  Rows of a hunt carry ``selected_by:
hunt`` and are no controls.

What comes out depends on params, rows and seed, and on the kind of device, not on how many processes share the work;
but for how small a row gets in the seconds that it is given.
"""

import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toppgate import codes, engines, execute, host, inputs, outputs, progress, published, smaller, source, trophies
from toppgate import run as runner
from toppgate.errors import RunError
from toppgate.execute import Told
from toppgate.processes import Worker
from toppgate.schema import Params
from toppgate.smaller import Trophy
from toppgate.source import Source
from toppgate.suspect import KNOWN, Suspect, judged

Record = dict[str, Any]

#: ``engines.each`` on the engine that was asked for.
_Each = Callable[..., list[Any]]

#: (tokens, slices) that blocks go through, by device: on the interpreter small ones, with one block of the mask kernel
#: (8,192 tokens) and two; on CUDA a sampler's row, cut as a batch of 64 is on 132 multiprocessors.
Shapes = tuple[tuple[int, int], ...]
SHAPES: Final[dict[str, Shapes]] = {
    "interpreter": ((257, 2), (1000, 1), (9001, 1), (61, 2), (2049, 1)),
    "cuda": ((32000, 2),),
}

#: Rows of a block, and of a launch in it.
ROWS: Final = {"interpreter": (16, 16), "cuda": (1024, 64)}

#: Rows kept of each finding and kind.
MOST: Final = 4

#: Seconds until all is imported and, on CUDA, compiled.
START: Final = 600.0

#: A block counts as hanging when nothing came of it in so many times the frozen limit of a launch, or in so many
#: seconds, whichever is shorter: on an H200 one takes 15 ms.
LAUNCHES: Final = 2
HANGING: Final = {"interpreter": 600.0, "cuda": 10.0}

#: Seconds between two looks at whether somebody still waits for what is hunted.
ORPHANED: Final = 2.0

#: Processes that may break, one after the other, before what is left of a share is given up.
BROKEN: Final = 16

#: Seconds between two lines of a process for whoever watches.
PAUSE: Final = 5.0


@dataclass(frozen=True)
class Job:
    """One process's share of the blocks: ``without`` some of their rows; ``narrow``, row by row.

    ``home`` is a directory for what is temporary, where the machine has it.
    """

    device: str
    number: int
    blocks: tuple[int, ...]
    rows: int
    batch: int
    shapes: Shapes
    seed: int
    stock: bytes
    patch: bytes
    host: Mapping[str, Any]
    captured: tuple[tuple[str, str], ...]
    silence: float
    home: str = ""
    without: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    narrow: bool = False


@dataclass(frozen=True)
class Share:
    """What came of one share: events of blocks, the suspects' tensors, and the blocks that broke a process.

    ``problem`` says why blocks are missing, neither screened nor among ``broken``; None where none is.
    """

    blocks: tuple[Mapping[str, Any], ...]
    suspects: tuple[Mapping[str, Any], ...] = field(repr=False)
    environment: Mapping[str, Any] = field(default_factory=dict)
    broken: tuple[Mapping[str, Any], ...] = ()
    problem: str | None = None


def hunt(
    path: Path,
    out: Path | None,
    rows: int,
    seed: int,
    *,
    engine: str = "loky",
    address: str | None = None,
    workers: int | None = None,
    told: Told = str,
) -> tuple[Path, Record]:
    """Hunt at least ``rows`` rows that break the patch of a params file; write and return ``hunt.json``.

    Parameters
    ----------
    path : a frozen params file, both of whose sides are kernel files; of its cases only captured files are looked at
    out : a directory for ``hunt.json`` and, where rows were found, ``rows.yml``; None for ``reports/<stem>-hunt``
    rows, seed : how many rows, and which
    engine, address, workers : where processes run (``engines``); by default one a core, or one a GPU.  What GPUs found
        is made smaller on all cores, whatever ``workers`` is
    told : is given a line as the work goes on

    Raises
    ------
    ToppgateError : the params, a source or the engine cannot be used, or no process brought anything back
    """
    target = (out or Path("reports") / f"{path.stem}-hunt").absolute()
    checked = runner.prepare(path, target)
    if "callable" in (checked.stock.kind, checked.patch.kind):
        raise RunError(f"{path}: a Python function is not hunted; expected two kernel files")
    engines.check(engine, address)
    runner.partial_of(target).rmdir()  # else a place that cannot be written is found out at the end
    began = time.monotonic()
    texts = {side: _resolve(checked, side).data for side in execute.SIDES}
    each = partial(engines.each, name=engine, address=address)
    with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch, progress.told(told):
        asked = _jobs(checked, texts, rows, seed, workers or _workers(checked.device))
        jobs = [replace(job, home=scratch) for job in asked]
        shares = each(share, jobs, workers=len(jobs))
        if not any(one.blocks or one.broken for one in shares):
            raise RunError(f"nothing was hunted: {shares[0].problem}")
        seconds = {"screened": time.monotonic() - began}
        suspects = [judged(suspect) for suspect in _first(shares)]
        record = _record(checked, seed, rows, shares, suspects)
        broken = sorted((found for one in shares for found in one.broken), key=lambda found: int(found["block"]))
        record["broken"] = [_named(found, jobs[0].rows) for found in broken]
        chosen = trophies.chosen(suspects)
        told(f"screened {record['rows']} rows in {seconds['screened']:.0f} s; making {len(chosen)} rows smaller")
        job = smaller.Job((), texts, jobs[0].host, smaller.SECONDS, scratch)
        cores = os.cpu_count() or 1
        small = _small(chosen, job, cores if checked.device == "cuda" else workers or cores, each)
        record["written"], file = trophies.written(checked, small, seed, Path(scratch))
        seconds["in all"] = time.monotonic() - began
        record["seconds"] = {name: round(value, 1) for name, value in seconds.items()}
        tensors = {line["file"]: found["tensors"] for line, found in zip(record["broken"], broken, strict=True)}
        _write(target, record, {"rows.yml": file, **tensors})
    return target, record


def _small(chosen: Sequence[Suspect], job: smaller.Job, workers: int, each: _Each) -> list[Trophy]:
    """Return the chosen suspects made smaller, in their order; ``job`` is what all jobs have in common."""
    dealt = [tuple(chosen[number::workers]) for number in range(min(workers, len(chosen)))]
    found = each(smaller.smaller, [replace(job, suspects=some) for some in dealt], workers=len(dealt)) if dealt else []
    return [found[number % workers][number // workers] for number in range(len(chosen))]


def _workers(device: str) -> int:
    """Return how many processes share the work by default."""
    if device == "interpreter":
        return os.cpu_count() or 1
    return max(1, len(list(Path("/proc/driver/nvidia/gpus").glob("*"))))


def _jobs(checked: Params, texts: Mapping[str, bytes], rows: int, seed: int, workers: int) -> Iterator[Job]:
    together, batch = ROWS[checked.device]
    blocks = range(-(-rows // together))
    spec = checked.host.model_dump(mode="json", exclude_unset=True)
    files = filter(None, map(inputs.source_of, checked.cases))
    captured = tuple(dict.fromkeys((str(Path(file.path).resolve()), file.tensor) for file in files))
    for number in range(min(workers, len(blocks))):
        yield Job(
            device=checked.device,
            number=number,
            blocks=tuple(blocks[number::workers]),
            rows=together,
            batch=batch,
            shapes=SHAPES[checked.device],
            seed=seed,
            stock=texts["stock"],
            patch=texts["patch"],
            host=spec,
            captured=captured,
            silence=min(float(LAUNCHES * checked.limits.launch_seconds), HANGING[checked.device]),
        )


def _resolve(checked: Params, side: str) -> Source:
    return source.resolve(getattr(checked, side).model_dump(mode="json", exclude_unset=True), published.cache())


# ---------------------------------------------------------------------------------------------- one process


class OrphanedError(Exception):
    """Nobody waits for what is done here."""


def share(job: Job) -> Share:
    """Do one process's share; a block that breaks its process is narrowed down to a row, and done without it.

    Side effects: processes one after the other, each with a temporary directory; where the process that asked is
    killed, this one ends.
    """
    try:
        return _share(job)
    except OrphanedError:
        os._exit(1)  # an engine's process would keep an exception for whoever asked, and wait for more work


def _share(job: Job) -> Share:
    done, left, broken = Share((), ()), job.blocks, list[Mapping[str, Any]]()
    without: dict[str, tuple[int, ...]] = {}
    while left:
        one = _followed(replace(job, blocks=left, without=without))
        done = Share(done.blocks + one.blocks, done.suspects + one.suspects, done.environment or one.environment)
        left = left[len(one.blocks) :]
        if left and (not one.environment or len(broken) == BROKEN):
            return replace(done, broken=tuple(broken), problem=one.problem or "it ended before its blocks did")
        if left:
            found = _narrowed(replace(job, without=without), left[0], one.problem or "it ended without a word")
            broken.append(found)
            if found["row"] is None:
                left = left[1:]  # no row of it alone: the block is passed over
            else:
                without[str(left[0])] = (*without.get(str(left[0]), ()), found["row"])
    return replace(done, broken=tuple(broken))


@contextmanager
def _process(job: Job) -> Iterator[Worker]:
    """Start a hunting process, and end it."""
    provided = host.provide(dict(job.host), published.cache())
    around = engines.here(job.home)
    with tempfile.TemporaryDirectory(prefix="toppgate-", dir=around) as scratch:
        home = Path(scratch)
        named = ("device", "blocks", "rows", "batch", "shapes", "seed", "without", "narrow")
        content = {
            **{key: getattr(job, key) for key in named},
            "most": MOST,
            "captured": job.captured,
            "host": None if provided.path is None else str(provided.path),
            "host_sha256": provided.sha256,
            "scratch": scratch,
        }
        for side, text in (("stock", job.stock), ("patch", job.patch)):
            (home / f"{side}.py").write_bytes(text)
            content[side] = str(home / f"{side}.py")
        (home / "job.json").write_text(json.dumps(content))
        environment = execute.environment(job.device, (around or home) / "triton")  # compiled once for all
        if job.device == "cuda" and "CUDA_VISIBLE_DEVICES" not in os.environ:
            environment["CUDA_VISIBLE_DEVICES"] = str(job.number % _workers(job.device))
        worker = Worker("toppgate.hunting", home / "job.json", environment, home / "stderr.txt")
        try:
            yield worker
        finally:
            worker.kill()


def _events(job: Job, worker: Worker) -> Iterator[dict[str, Any]]:
    """Yield a process's events; the last one says how it ended, where that was not well: ``problem``."""
    parent, patience, loading = os.getppid(), START, None
    while True:
        try:
            event = _event(worker, patience, parent)
        except TimeoutError:
            yield {"problem": f"nothing came of it in {patience:.0f} s"}
            return
        if event is None:
            ending = worker.end(grace=5)
            if ending is not None:
                yield {"problem": ending if loading is None else f"{loading}: {ending}"}
            return
        loading = event.get("loading")
        if loading is not None:
            continue
        patience = job.silence
        yield event


def _event(worker: Worker, patience: float, parent: int) -> dict[str, Any] | None:
    """Return the next event, or None at the end.

    Raises ``TimeoutError``, and ``OrphanedError`` where this process's own parent is gone: an engine's processes
    outlive a hunt that is killed, and would go on for nobody.
    """
    deadline = time.monotonic() + patience
    while True:
        try:
            return worker.event(min(deadline, time.monotonic() + ORPHANED))
        except TimeoutError:
            if os.getppid() != parent:
                raise OrphanedError from None
            if time.monotonic() >= deadline:
                raise


def _followed(job: Job) -> Share:
    blocks, suspects, environment, problem = [], [], {}, None
    told = time.monotonic()
    with _process(job) as worker:
        for event in _events(job, worker):
            if "environment" in event:
                environment = event["environment"]
            elif "problem" in event:
                problem = event["problem"]
            else:
                suspects += [_read(event, file, event["block"] * job.rows) for file in event.pop("files")]
                blocks.append(event)
                if time.monotonic() > told + PAUSE:
                    told = time.monotonic()
                    progress.say(f"process {job.number}: {len(blocks)} of {len(job.blocks)} blocks of {job.rows} rows")
    return Share(tuple(blocks), tuple(suspects), environment, problem=problem)


def _narrowed(job: Job, number: int, problem: str) -> dict[str, Any]:
    """Try a block's rows alone, one after the other; return which row of which side breaks the process as well.

    ``row`` is None where none does alone.
    """
    progress.say(f"process {job.number}: block {number} broke it: {problem}")
    found: dict[str, Any] = {"block": number, "problem": problem, "side": None, "row": None, "tensors": None}
    trying: dict[str, Any] = {}
    with _process(replace(job, blocks=(number,), narrow=True)) as worker:
        for event in _events(job, worker):
            if "problem" in event and "row" in trying:
                found |= {"problem": event["problem"], "side": trying["side"], "row": trying["row"]}
                found["tensors"] = Path(trying["file"]).read_bytes()
            trying |= event
            if "problem" in event:
                break
    return found | {key: trying[key] for key in ("kind", "tokens", "slices") if key in trying}


def _read(block: Mapping[str, Any], file: Mapping[str, Any], first: int) -> dict[str, Any]:
    """Return a suspect's tensors, and where it stands among all rows; the block's are counted from ``first``."""
    data = Path(file["file"]).read_bytes()
    Path(file["file"]).unlink()
    named = {"at": first + file["row"], "kind": block["kind"], "slices": block["slices"], "finding": file["finding"]}
    return named | inputs.load(data, file["file"])


# ---------------------------------------------------------------------------------------------- the record


def _first(shares: Sequence[Share]) -> Iterator[Suspect]:
    """Yield the first suspects of each finding and kind, in the order of rows: the same however the work was shared."""
    seen: Counter[tuple[str, str]] = Counter()
    for each in sorted((one for found in shares for one in found.suspects), key=lambda one: int(one["at"])):
        seen[each["finding"], each["kind"]] += 1
        if seen[each["finding"], each["kind"]] <= MOST:
            logits = each["logits"]
            kept = {side: outputs.compare(logits, each[side]).kept[0] for side in execute.SIDES}
            named = {key: each[key] for key in ("at", "kind", "slices", "finding")}
            yield Suspect(**named, logits=logits[0], p=each["p"][0], **kept)


def _record(checked: Params, seed: int, asked: int, shares: Sequence[Share], suspects: Sequence[Suspect]) -> Record:
    blocks = sorted((block for one in shares for block in one.blocks), key=lambda block: int(block["block"]))
    values = checked.values()
    rows = sum(block["rows"] for block in blocks)
    return {
        "schema": "toppgate/hunt/1",
        "title": checked.title,
        "device": checked.device,
        "environment": next((one.environment for one in shares if one.environment), {}),
        "sources": {side: source.describe(values[side]) for side in execute.SIDES},
        "seed": seed,
        "asked": asked,
        "rows": rows,
        "lost": [one.problem for one in shares if one.problem is not None],
        "kinds": _tally((block["kind"], block["rows"]) for block in blocks),
        "findings": list(_findings(blocks, suspects)),
        "known": {name: _first_shown(name, suspects, rows) for name in KNOWN},
    }


def _tally(pairs: Any) -> dict[str, int]:
    counted: Counter[str] = Counter()
    for name, number in pairs:
        counted[name] += number
    return dict(counted)


def _findings(blocks: Sequence[Mapping[str, Any]], suspects: Sequence[Suspect]) -> Iterator[dict[str, Any]]:
    """Yield, for each finding of the screen, its rows by kind, the first, and how oracle and gate judged some."""
    names = {name for block in blocks for name in block["findings"]}
    for name in (name for name in (*codes.ORDINARY, "over_keep_in_tie") if name in names):
        kinds = _tally((block["kind"], block["findings"].get(name, 0)) for block in blocks)
        mine = [suspect for suspect in suspects if suspect.finding == name]
        yield {
            "finding": name,
            "rows": sum(kinds.values()),
            "kinds": {kind: number for kind, number in kinds.items() if number},
            "first": min(suspect.at for suspect in mine) + 1,
            "judged": _tally((suspect.code, 1) for suspect in mine),
        }


def _first_shown(name: str, suspects: Sequence[Suspect], rows: int) -> dict[str, Any]:
    """Return after how many rows a known fault was first shown, and by which kind of row; or in how many it was not."""
    what, shows = KNOWN[name]
    showing = sorted((suspect.at, suspect.kind) for suspect in suspects if shows(suspect))
    found = {"after": showing[0][0] + 1, "kind": showing[0][1]} if showing else {"after": None, "kind": None}
    return {"what": what, **found, "rows": rows}


def _named(found: Mapping[str, Any], rows: int) -> dict[str, Any]:
    """Return what the record says of a block that broke its process; ``at`` is the row's number in the hunt, or its."""
    alone = found["row"] is not None
    at = found["block"] * rows + (found["row"] if alone else 0)
    named = {key: value for key, value in found.items() if key != "tensors"}
    return {**named, "at": at, "file": f"broken-{at}.safetensors" if alone else None}


def _write(target: Path, record: Record, files: Mapping[str | None, bytes | None]) -> None:
    """Write the record, and what files there are, into a directory that appears whole."""
    partial = runner.partial_of(target)
    try:
        (partial / "hunt.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        for name, data in files.items():
            if name is not None and data is not None:
                (partial / name).write_bytes(data)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def lines(record: Record) -> Iterator[str]:
    """Yield the record as text for a terminal."""
    yield "exploratory: rows chosen because they break something; no evidence, and no controls"
    seconds = record["seconds"]
    yield f"screened    {record['rows']} rows in {seconds['screened']:.0f} s: {_listed(record['kinds']) or 'none'}"
    if record["rows"] < record["asked"]:
        yield f"missing     {record['asked'] - record['rows']} of {record['asked']} rows were not screened"
    for problem in record["lost"]:
        yield f"lost        a process ended badly: {problem}; blocks that it had not done were not screened"
    for found in record["broken"]:
        yield f"broken      {_blamed(found)}: {found['problem']}"
    for found in record["findings"]:
        said = f"{found['rows']} rows, the first after {found['first']}"
        yield f"finding     {found['finding']}: {said}: {_listed(found['kinds'])}"
        yield f"            judged by oracle and gate: {_listed(found['judged'])}"
    for name, known in record["known"].items():
        said = (
            f"found after {known['after']} rows, {known['kind']}"
            if known["after"]
            else f"not found in {known['rows']} rows"
        )
        yield f"known       {name} ({known['what']}): {said}"
    for line in record["written"]:
        yield f"row         {line['case']}, {line['kind']}: {line['cause']}: {_kept(line)}"
        yield f"            {line['how']}"
    yield f"in all      {seconds['in all']:.0f} s"


def _blamed(found: Mapping[str, Any]) -> str:
    if found["row"] is None:
        return f"block {found['block']}, from row {found['at']}, broke its process, no row of it alone; passed over"
    return f"{found['side']} on row {found['at']}, {found['kind']}, alone; the row is in {found['file']}"


def _kept(line: Mapping[str, Any]) -> str:
    if line["again"] == line["code"]:
        return "written"
    return "left out: " + ("too large" if line["again"] is None else f"run alone it gives {line['again']}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counts.items())
