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
from toppgate import codes, digests, evidence, fingerprint, harness, judge, notebooks, pages, params, stage
from toppgate.errors import RunError
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


def seal(directory: Path, failures: Sequence[Failure] = ()) -> Sealed:
    """Seal a run directory and return what it says.

    Parameters
    ----------
    directory : where the stage notebooks were executed
    failures : what the runner knows of stages that did not finish; seal finds the rest itself

    Raises
    ------
    RunError : the directory is sealed already, or stage 1 left no params to judge by
    """
    if (directory / RECEIPT).exists():
        raise RunError(f"{directory}: already sealed")
    if not (directory / "params.yml").is_file():
        raise RunError(f"{directory}: holds no params.yml, so stage 1 did not run; nothing to judge")
    failed = _failed(directory, failures)
    verdict = _verdict(directory, failed)
    for name in harness.STAGES:
        _render(directory, name, [failure for failure in failed if failure.stage == name])
    shutil.rmtree(directory / "scratch", ignore_errors=True)
    _drop_inputs(directory)
    receipt = _receipt(directory, verdict)
    partial = directory / (RECEIPT + ".partial")
    partial.write_bytes(receipt)
    partial.replace(directory / RECEIPT)
    return Sealed(directory, verdict, digests.sha256(receipt))


def _failed(directory: Path, known: Sequence[Failure]) -> list[Failure]:
    """Return one failure for each stage that does not count as done; written down so that ``verify`` sees them."""
    named = {failure.stage: failure for failure in reversed(known)}
    found = [named.get(name) or notebooks.acceptance(name, directory) for name in harness.STAGES]
    failed = [failure for failure in found if failure is not None]
    (directory / f"{evidence.STAGES}.json").unlink(missing_ok=True)
    if failed:
        content = digests.canonical({"failed": [failure.plain() for failure in failed]})
        (directory / f"{evidence.STAGES}.json").write_bytes(content + b"\n")
    return failed


def _verdict(directory: Path, failed: Sequence[Failure]) -> dict[str, Any]:
    """Return stage 3's verdict if every stage is done, and judge anew, with a stop, where one is not."""
    captured = stage.result(directory, "1_capture") or {}
    try:
        verdict = stage.result(directory, "verdict")
    except RunError:
        verdict = None
    bound = verdict is not None and verdict.get("run") == captured.get("run") and (directory / "rows.jsonl").is_file()
    if verdict is not None and bound and not failed:
        return verdict
    stop = None if failed else Stop("output_missing", "stage 3 left no verdict of this run")
    judged = judge.judge(directory, stop)
    (directory / "rows.jsonl").write_bytes(judged.rows_bytes())
    (directory / "verdict.json").write_bytes(judged.verdict_bytes())
    return judged.verdict


def _render(directory: Path, name: str, failures: Sequence[Failure]) -> None:
    """Render one executed notebook, with a banner on top where its stage is not done."""
    path = directory / f"{name}.ipynb"
    if not path.is_file():
        return
    banner = "".join(f"STOP. Stage {failure.stage} did not finish: {failure.detail}" for failure in failures) or None
    try:
        notebooks.settle(path)
        html = pages.render(path, banner)
    except (ValueError, AttributeError, KeyError) as error:
        raise RunError(f"{path}: cannot be rendered: {error}") from None
    path.with_suffix(".html").write_text(html, encoding="utf-8")


def _drop_inputs(directory: Path) -> None:
    """Drop what can be made again, where the frozen params say so; what it was stays bound by its frozen digest."""
    frozen = params.read(directory / "params.yml")
    for case in () if frozen.retain_inputs else frozen.cases:
        (directory / "inputs" / f"{case.id}.safetensors").unlink(missing_ok=True)


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
    captured = stage.result(directory, "1_capture") or {}
    executed = stage.result(directory, "2_execute") or {}
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
        "sealed": datetime.now(UTC).isoformat(timespec="seconds"),
    }
