"""Sealing a run: pages rendered, every file hashed, the receipt written last (contract, sections 2 and 7).

A directory without ``receipt.json`` is not a run.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import toppgate
from toppgate import (
    codes,
    digests,
    evidence,
    fingerprint,
    harness,
    judge,
    notebooks,
    pages,
    params,
    redraw,
    stage,
    summary,
)
from toppgate.errors import RunError
from toppgate.judge import Judgement
from toppgate.notebooks import Failure
from toppgate.stage import Stop

RECEIPT = "receipt.json"

#: in-toto attestation vocabulary: a Statement v1 with a test-result predicate; unknown fields are ours.
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"


@dataclass(frozen=True)
class Sealed:
    """A sealed run: its directory, verdict and the SHA-256 of its receipt."""

    directory: Path
    verdict: dict[str, Any]
    receipt_sha256: str


def seal(directory: Path, failures: Sequence[Failure] = (), judged: Judgement | None = None) -> Sealed:
    """Seal a run directory and return what it says.

    Parameters
    ----------
    directory : where the stage notebooks were executed
    failures : what the runner knows of stages that did not finish; seal finds the rest itself
    judged : the judgement of just this directory, where the caller has made it; None to judge here

    Raises
    ------
    RunError : the directory is sealed already, or stage 1 left no params to judge by
    """
    if (directory / RECEIPT).exists():
        raise RunError(f"{directory}: already sealed")
    if not (directory / "params.yml").is_file():
        raise RunError(f"{directory}: holds no params.yml, so stage 1 did not run; nothing to judge")
    failed = _failed(directory, failures)
    judged = _judgement(directory, failed, judged)
    for number, name in enumerate(harness.STAGES):
        _render(directory, name, [failure for failure in failed if failure.stage in harness.STAGES[: number + 1]])
    (directory / summary.NAME).write_text(_summary(directory, judged), encoding="utf-8")
    shutil.rmtree(directory / "scratch", ignore_errors=True)
    _drop_inputs(directory)
    _drop_empty(directory)
    receipt = _receipt(directory, judged.verdict)
    partial = directory / (RECEIPT + ".partial")
    partial.write_bytes(receipt)
    partial.replace(directory / RECEIPT)
    return Sealed(directory, judged.verdict, digests.sha256(receipt))


def _failed(directory: Path, known: Sequence[Failure]) -> list[Failure]:
    """Return one failure for each stage that does not count as done."""
    named = {failure.stage: failure for failure in reversed(known)}
    found = [named.get(name) or notebooks.acceptance(name, directory) for name in harness.STAGES]
    return [failure for failure in found if failure is not None]


def _judgement(directory: Path, failed: list[Failure], judged: Judgement | None) -> Judgement:
    """Judge what is about to be sealed; where stage 3 did not leave the same rows and verdict, it is not done.

    Failures are written down, so that ``verify`` sees them; one more may be added to ``failed``.
    """
    left = directory / f"{evidence.STAGES}.json"
    left.unlink(missing_ok=True)
    judged = judged if judged is not None and not failed else _judged(directory)
    if not failed and not judged.is_in(directory):
        detail = "rows.jsonl and verdict.json are not what the run's files give"
        failed.append(Failure(harness.STAGES[-1], "output_unreadable", detail))
    if failed:
        content = {"schema": stage.schema_of(evidence.STAGES), "failed": [failure.plain() for failure in failed]}
        left.write_bytes(digests.canonical(content) + b"\n")
        judged = _judged(directory)
    judged.write(directory)
    return judged


def _judged(directory: Path) -> Judgement:
    """Judge as stage 3 did: with what it found on entering, and the harness that it had."""
    said = _result(directory, "verdict")
    stop, ran = said.get("gate_stop"), said.get("harness")
    entered = None
    if isinstance(stop, dict) and stop.get("code") in codes.EVIDENCE:
        entered = Stop(stop["code"], str(stop.get("detail")))
    return judge.judge(directory, entered, ran if isinstance(ran, str) else None)


def _result(directory: Path, name: str) -> dict[str, Any]:
    """Return a result file's content, empty where it is missing or damaged: ``evidence`` says so, as a stop."""
    try:
        return stage.result(directory, name) or {}
    except RunError:
        return {}


def _render(directory: Path, name: str, failures: Sequence[Failure]) -> None:
    """Render one executed notebook, with a banner on top where its stage, or one before it, is not done.

    A stage that left no readable notebook is shown as one that was not executed.
    """
    path = directory / f"{name}.ipynb"
    if failures and not notebooks.readable(path):
        shutil.copyfile(harness.NOTEBOOKS / path.name, path)
    try:
        notebooks.settle(path)
        html = pages.render(path, notebooks.banner([failure.plain() for failure in failures]))
    except notebooks.MALFORMED as error:
        raise RunError(f"{path}: cannot be rendered: {error}") from None
    path.with_suffix(".html").write_text(html, encoding="utf-8")


def _summary(directory: Path, judged: Judgement) -> str:
    return redraw.summarised(directory, params.read(directory / "params.yml"), judged)


def _drop_inputs(directory: Path) -> None:
    """Drop what can be made again, where the frozen params say so; what it was stays bound by its frozen digest."""
    frozen = params.read(directory / "params.yml")
    for case in () if frozen.retain_inputs else frozen.cases:
        (directory / "inputs" / f"{case.id}.safetensors").unlink(missing_ok=True)


def _drop_empty(directory: Path) -> None:
    """Drop directories that came to hold nothing: a receipt binds files, and says nothing of them."""
    for path in sorted(directory.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


# ---------------------------------------------------------------------------------------------- the receipt


def _receipt(directory: Path, verdict: dict[str, Any]) -> bytes:
    subject = [
        {"name": path.relative_to(directory).as_posix(), "digest": {"sha256": digests.sha256_file(path)}}
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    ]
    statement: dict[str, Any] = {
        "_type": STATEMENT_TYPE,
        "subject": subject,
        "predicateType": PREDICATE_TYPE,
        "predicate": _predicate(directory, verdict),
    }
    statement["predicate"]["sha256"] = digests.sha256_json(statement)
    return digests.canonical(statement) + b"\n"


def _predicate(directory: Path, verdict: dict[str, Any]) -> dict[str, Any]:
    """What the run rests on.  ``sha256`` is added last: the digest over the statement without it."""
    captured, executed = _result(directory, "1_capture"), _result(directory, "2_execute")
    frozen = params.read(directory / "params.yml")
    return {
        "schema": "toppgate/receipt/1",
        "result": "PASSED" if verdict["verdict"] == "PASS" else "FAILED",
        "configuration": [{"name": "params.yml", "digest": {"sha256": verdict["params"]}}],
        "toppgate": toppgate.__version__,
        "statement": codes.STATEMENT,
        "verdict": {key: verdict[key] for key in ("verdict", "first_stop", "counts", "run", "harness")},
        "sources": {"stock": frozen.stock.sha256, "patch": frozen.patch.sha256},
        "change": None if frozen.change is None else frozen.change.sha256,
        "host": executed.get("host"),
        "inputs": captured.get("inputs"),
        "environments": {
            name: side.get("environments") for name, side in executed.get("sides", {}).items() if isinstance(side, dict)
        },
        "git": captured.get("git"),
        "mathematics": fingerprint.mathematics(),
        "rendering": redraw.libraries(),
        "sealed": datetime.now(UTC).isoformat(timespec="seconds"),
    }
