"""``toppgate sweep``: every kernel of a frozen ladder over one matrix, each a sealed run of its own, and a page of all.

Captured once; stock and vLLM's sort executed once, and their outputs copied into every run, since one capture is one
run to which all outputs are bound; kernels two at a time; one oracle pass.  What decides is the same code as in
``toppgate run``, and ``toppgate verify`` holds each run to its own bytes.  Only the stage notebooks are drawn, not
executed.  The kernel that is stock itself has no run, since it is no patch; its column is what the rules say of stock.
"""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import joblib

from toppgate import (
    capture,
    digests,
    drawing,
    execute,
    harness,
    host,
    judge,
    ladder,
    notebooks,
    pages,
    params,
    published,
    seal,
    source,
)
from toppgate import run as runner
from toppgate.errors import RunError
from toppgate.execute import SORT, Side, Told
from toppgate.judge import Judgement
from toppgate.schema import Ladder, Rung
from toppgate.stage import Run, finish

#: The notebook that shows all kernels, and the record that it shows.
NAME = "ladder"

#: The page's notebook only reads results.
PAGE_SECONDS = 300

Record = dict[str, Any]


@dataclass(frozen=True)
class _Kernel:
    """One kernel with its text and, unless it is stock itself, its run."""

    rung: Rung
    text: source.Source
    run: Run


def sweep(path: Path, out: Path | None, told: Told = str) -> tuple[Path, Record]:
    """Run a frozen ladder; return the directory that it leaves, one run below it for each kernel, and its record.

    Parameters
    ----------
    path : a frozen ladder file
    out : where all goes; None for ``reports/<stem>``.  Nothing is overwritten
    told : is given the name of each kernel that is executed

    Raises
    ------
    ToppgateError : whatever is found before the first kernel starts, or an input that cannot be had; no directory is
        left behind then
    """
    target = (out or Path("reports") / path.stem).absolute()
    checked = ladder.read(path)
    runner.check_place(path, target, checked.device, checked.limits)
    texts = {each.id: _resolve(each.source) for each in checked.kernels}
    stock = _resolve(checked.stock)
    provided = host.provide(checked.host.model_dump(mode="json", exclude_unset=True), published.cache())
    partial = runner.partial_of(target)
    try:
        kernels = [_Kernel(each, texts[each.id], run) for each, run in _captured(checked, partial)]
        shared = _execute(kernels, stock, provided, told)
        judged = judge.judge_together([each.run.directory for each in kernels], harness.digest())
        sealing = joblib.Parallel(n_jobs=-1)
        sealed = sealing(joblib.delayed(_seal)(each, one) for each, one in zip(kernels, judged, strict=True))
        record = _record(checked, kernels, judged, shared["stock"])
        record["receipts"] = {each.rung.id: one for each, one in zip(kernels, sealed, strict=True)}
        _write(partial, checked, record)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target, record


def _resolve(spec: Any) -> source.Source:
    return source.resolve(spec.model_dump(mode="json", exclude_unset=True), published.cache())


def _captured(checked: Ladder, directory: Path) -> Iterator[tuple[Rung, Run]]:
    """Capture for the first kernel, and give the others the same inputs under the same random name.

    Raises ``RunError`` where an input cannot be had, or no kernel but stock is there.
    """
    first: Run | None = None
    for each in checked.kernels:
        if ladder.is_stock(checked, each):
            continue
        own = ladder.rung(checked, each)
        run = Run(directory / each.id, own, digests.sha256(params.dump(own)), harness.digest(), None)
        if first is None:
            found = capture.capture(run, ladder.dump(checked))
            if "stop" in found:
                raise RunError(f"{found['stop']['code']}: {found['stop']['detail']}")
            run = first = replace(run, id=found["run"])
        else:
            run = replace(run, id=first.id)
            _share(first, run)
        yield each, run
    if first is None:
        raise RunError("kernels: got stock alone, expected one that can be compared with it")


def _share(first: Run, run: Run) -> None:
    """Give a run what the first one captured; inputs that are dropped in the end are linked until then."""
    link: Callable[[str, str], object] = shutil.copyfile if run.params.retain_inputs else os.link
    shutil.copytree(first.directory / "inputs", run.directory / "inputs", copy_function=link)
    shutil.copytree(first.directory / "harness", run.directory / "harness")
    (run.directory / "params.yml").write_bytes(params.dump(run.params))
    found = json.loads((first.directory / "1_capture.json").read_bytes())
    finish(run, "1_capture", {key: found[key] for key in ("inputs", "git")})


# ---------------------------------------------------------------------------------------------- executing


def _execute(kernels: Sequence[_Kernel], stock: source.Source, provided: host.Host, told: Told) -> dict[str, Side]:
    """Execute stock, sort and each kernel, two at a time; leave every run with all its outputs and its result."""
    first = kernels[0].run
    for each in kernels:
        (each.run.directory / "outputs").mkdir()
    shared = {"stock": Side("stock", stock.sha256, stock.callable)}
    own = {each.rung.id: Side("patch", each.text.sha256, each.text.callable) for each in kernels}
    seconds: dict[str, float] = {}

    def one(name: str, work: Callable[[float], object]) -> None:
        began = time.monotonic()
        work(began + first.params.limits.total_seconds)
        seconds[name] = round(time.monotonic() - began, 1)
        told(name)

    def sort(deadline: float) -> None:
        shared[SORT] = execute.run_sort(first, provided, deadline)

    jobs: list[tuple[str, Callable[[float], object]]] = [
        ("stock", lambda deadline: execute.work(first, shared["stock"], stock.data, provided, deadline)),
        *((each.rung.id, _work(each, own[each.rung.id], provided)) for each in kernels),
        (SORT, sort),
    ]
    pool = ThreadPoolExecutor(len(execute.SIDES))
    try:
        for done in [pool.submit(one, name, work) for name, work in jobs]:
            done.result()
    finally:
        pool.shutdown(cancel_futures=True)
    for each in kernels:
        took = {name: seconds[key] for name, key in (("stock", "stock"), ("patch", each.rung.id), (SORT, SORT))}
        sides = {"stock": shared["stock"], "patch": own[each.rung.id], SORT: shared[SORT]}
        _finish(first, each.run, sides, provided, took)
    return shared


def _work(each: _Kernel, side: Side, provided: host.Host) -> Callable[[float], object]:
    return lambda deadline: execute.work(each.run, side, each.text.data, provided, deadline)


def _finish(first: Run, run: Run, sides: dict[str, Side], provided: host.Host, seconds: dict[str, float]) -> None:
    """Copy the outputs that all share, and write the result of stage 2."""
    for name in ("stock", SORT):
        for file in first.directory.glob(f"outputs/*.{name}.safetensors"):
            if run is not first:
                shutil.copyfile(file, run.directory / "outputs" / file.name)
    plain = {name: execute.plain(side) for name, side in sides.items()}
    finish(
        run,
        "2_execute",
        {"host": execute.describe(provided), "sides": plain, "timing": None, "seconds": seconds},
    )


def _seal(each: _Kernel, judged: Judgement) -> str:
    """Write rows, verdict and notebooks of one run, seal it, and return the digest of its receipt."""
    judged.write(each.run.directory)
    drawing.draw(each.run.directory, each.run.params, judged)
    return seal.seal(each.run.directory, (), judged).receipt_sha256


# ---------------------------------------------------------------------------------------------- the record


def _record(checked: Ladder, kernels: Sequence[_Kernel], judged: Sequence[Judgement], stock: Side) -> Record:
    """Return the record: what each kernel is, and what became of it row by row."""
    own = {each.rung.id: one for each, one in zip(kernels, judged, strict=True)}
    captured = json.loads((kernels[0].run.directory / "1_capture.json").read_bytes())
    return {
        "schema": "toppgate/ladder/1",
        "title": checked.title,
        "device": checked.device,
        "ladder": digests.sha256(ladder.dump(checked)),
        **{key: captured[key] for key in ("run", "harness", "git")},
        "environment": stock.environments[0] if stock.environments else {},
        "stock": {"describe": _described(checked.stock), "sha256": checked.stock.sha256},
        "cases": [
            {"id": case.id, "about": case.about, "rows": case.batch, "vocabulary": case.vocabulary}
            for case in checked.cases
        ],
        "kernels": [_kernel(each, own.get(each.id), judged[0]) for each in checked.kernels],
    }


def _described(spec: Any) -> str:
    return source.describe(spec.model_dump(mode="json", exclude_unset=True))


def _kernel(each: Rung, own: Judgement | None, other: Judgement) -> Record:
    """Return one kernel's record; without a judgement of its own it is stock, which any other run shows as well."""
    found: Record = {
        "id": each.id,
        "describe": _described(each.source),
        "sha256": each.source.sha256,
        "lineage": each.source.kind != "callable",
    }
    if own is None:
        return {**found, "verdict": None, "rows": [_row(row, "stock") for row in other.rows]}
    said = {key: own.verdict[key] for key in ("verdict", "first_stop", "counts")}
    return {**found, **said, "rows": [_row(row, "patch") for row in own.rows]}


def _row(row: judge.Row, side: str) -> Record:
    code = row["code"] if side == "patch" else _stock_code(row)
    return {
        "case": row["case"],
        "row": row["row"],
        "role": row["role"],
        "code": code,
        "kept_oracle": row["kept_oracle"],
        "kept": row[f"kept_{side}"],
        "symdiff": row[f"symdiff_{side}"],
        "mass": row[f"mass_{side}"],
    }


def _stock_code(row: judge.Row) -> str:
    """Return what stock would get in the patch's place; a probe, and a row without outputs, says what it says."""
    if row["role"] == "probe" or row["stock_code"] is None:
        return str(row["code"])
    kept: str = row["stock_code"]
    return "stock_under_keep" if kept == "patch_under_keep" or row["code"] == "stock_under_keep" else kept


def _write(directory: Path, checked: Ladder, record: Record) -> None:
    """Write the ladder, its record and its page.  Raises ``RunError`` where the page's notebook does not run."""
    (directory / f"{NAME}.yml").write_bytes(ladder.dump(checked))
    (directory / f"{NAME}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    relative = Path(os.path.relpath(directory))
    failure = notebooks.execute(NAME, None, relative, PAGE_SECONDS)
    failure = failure or notebooks.acceptance(NAME, relative)
    if failure is not None:
        raise RunError(f"{NAME}.ipynb: {failure.detail}")
    path = directory / f"{NAME}.ipynb"
    notebooks.settle(path)
    path.with_suffix(".html").write_text(pages.render(path), encoding="utf-8")
    shutil.rmtree(directory / "scratch")
