"""``toppgate verify``: re-derive everything in a sealed run from its bytes, on a CPU without torch.

Written against the contract, section 7: digests are recomputed here, from the bytes on disk, and not by the code that
wrote them.
The checks, in order; the first that fails is named:

 1. the receipt is a receipt, and its digest over the rest of itself holds;
 2. the directory holds the files that the receipt names, byte for byte, and no others;
 3. params are in freeze's own form, their frozen digest holds, and the notebooks were given those values;
 4. the kept copy of the harness is what the stages recorded;
 5. each input is what a generator, or the captured file, gives again, and its digest is the frozen one;
 6. each notebook counts as done, or the run says that it does not;
 7. rows and verdict follow from the retained masks, judged again here;
 8. the receipt says what the verdict says, word for word, and no more;
 9. summary, notebooks and pages say what the run's results give, written again where the same toppgate and libraries
    wrote them.

Between 2 and 3, a signature: an envelope that is there must hold this receipt, and be signed by the key that is given.

It proves that the files are consistent and that the judgement follows from the masks.  It cannot prove that a GPU, or
anything else, produced them; signed, that the holder of a key says so.
"""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rfc8785

import toppgate
from toppgate import agreement, codes, fingerprint, harness, inputs, judge, notebooks, params, redraw, signing, summary
from toppgate.errors import RunError, SigningError, ToppgateError, printable
from toppgate.judge import Judgement
from toppgate.schema import Case, Params
from toppgate.stage import Stop

#: Where ``toppgate run`` works until the run is sealed and whole (contract, section 2).
PARTIAL = re.compile(r"\.partial-[0-9a-f]{8}$")

#: What a receipt holds, and nothing else (contract, section 7): in-toto's vocabulary, and the predicate's own keys.
_TYPES = {
    "_type": "https://in-toto.io/Statement/v1",
    "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
}
_KEYS = {*_TYPES, "subject", "predicate"}
_PREDICATE_KEYS = {
    *("schema", "result", "configuration", "toppgate", "statement", "verdict", "sources", "change", "host", "inputs"),
    *("environments", "git", "mathematics", "rendering", "sealed", "sha256"),
}


@dataclass(frozen=True)
class Verified:
    """``difference`` is None where everything agrees, and names the first difference otherwise; each text is one line.

    They quote the directory, which may hold names and values that a terminal would obey.
    """

    verdict: str
    difference: str | None
    notes: tuple[str, ...] = ()


def verify(directory: Path, key: Path | None = None) -> Verified:
    """Verify a sealed run directory; with ``key``, a public key in a PEM file, it must be signed by it.

    Raises ``RunError`` where it is unsealed or its receipt cannot be read at all, and ``SigningError`` where the key
    cannot be used; a difference is a value.
    """
    receipt = _receipt(directory)
    said = str(_at(receipt, "predicate", "verdict", "verdict"))
    notes: list[str] = []
    try:
        difference = next(_differences(directory, receipt, key, notes), None)
    except SigningError:
        raise
    except (ToppgateError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        difference = f"cannot be re-derived: {type(error).__name__}: {' '.join(str(error).split())}"
    return Verified(printable(said), difference and printable(difference), tuple(map(printable, notes)))


def _receipt(directory: Path) -> dict[str, Any]:
    path = directory / "receipt.json"
    if PARTIAL.search(directory.resolve().name):
        raise RunError(f"{directory}: left behind by a run that was interrupted, so it is not a run")
    if not path.is_file() or path.is_symlink():
        raise RunError(f"{directory}: unsealed: holds no receipt.json, so it is not a run")
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path}: not a receipt: {error}") from None
    if not isinstance(found, dict) or _at(found, "predicate", "schema") != "toppgate/receipt/1":
        got = _at(found, "predicate", "schema") if isinstance(found, dict) else type(found).__name__
        raise RunError(f"{path}: schema: got {got!r}, expected 'toppgate/receipt/1'")
    return found


def _differences(directory: Path, receipt: dict[str, Any], key: Path | None, notes: list[str]) -> Iterator[str]:
    yield from _self_digest(directory, receipt)
    yield from _files(directory, receipt)
    yield from signing.differences(directory, key)
    if key is None and (directory / signing.NAME).exists():
        notes.append("signed, but the signature was not checked: no key was given")
    frozen = params.read(directory / "params.yml")
    yield from _params(directory, frozen)
    yield from _harness(directory, receipt)
    yield from _inputs(directory, frozen)
    yield from _stages(directory)
    same_exp = _at(receipt, "predicate", "mathematics", "exp_sha256") == fingerprint.exp_sha256()
    if not same_exp:
        notes.append("this C library's exp has other bits than the run's: masses and margins were not compared")
    judged = _judged(directory)
    yield from agreement.differences(directory, judged, notes, same_exp=same_exp)
    yield from _receipt_says(directory, receipt, frozen)
    yield from _pages(directory, receipt, frozen, judged, notes)
    ours, theirs = toppgate.__version__, _at(receipt, "predicate", "toppgate")
    notes.append(f"made by toppgate {theirs}, verified by toppgate {ours}{_other_harness(receipt)}")


def _other_harness(receipt: dict[str, Any]) -> str:
    ran = _at(receipt, "predicate", "verdict", "harness")
    same = harness.NOTEBOOKS.is_dir() and harness.digest() == ran
    return " (the same files)" if same else f" (other files than the run's harness {str(ran)[:12]})"


# 1 ---------------------------------------------------------------------------------------------------------------


def _self_digest(directory: Path, receipt: dict[str, Any]) -> Iterator[str]:
    rest = json.loads(json.dumps(receipt))
    said = rest["predicate"].pop("sha256", None)
    found = hashlib.sha256(rfc8785.dumps(rest)).hexdigest()
    if said != found:
        yield f"receipt.json: its digest over the rest of itself is {found}, but it says {said}"
    if (directory / "receipt.json").read_bytes() != rfc8785.dumps(receipt) + b"\n":
        yield "receipt.json: not in canonical form"


# 2 ---------------------------------------------------------------------------------------------------------------


def _files(directory: Path, receipt: dict[str, Any]) -> Iterator[str]:
    said = {entry["name"]: entry["digest"]["sha256"] for entry in receipt["subject"]}
    if len(said) != len(receipt["subject"]):
        yield "receipt.json: names a file twice"
    here = set()
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            yield f"{name}: neither a file nor a directory"
        elif path.is_file():
            here.add(name)
        elif not any(path.iterdir()):
            yield f"{name}: an empty directory, which no run has"
    for name in sorted(set(said) - here):
        yield f"{name}: named by the receipt, but not there"
    for name in sorted(here - set(said) - {"receipt.json", signing.NAME}):
        yield f"{name}: there, but not named by the receipt"
    for name, digest in sorted(said.items()):
        found = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        if found != digest:
            yield f"{name}: SHA-256 is {found}, the receipt says {digest}"
    yield from _expected_files(here)


def _expected_files(here: set[str]) -> Iterator[str]:
    """Every executed notebook has its page, and what is not a page, a result or evidence has no place in a run."""
    needed = {"params.yml", "rows.jsonl", "verdict.json"}
    needed |= {name.replace(".ipynb", ".html") for name in here if name in {f"{s}.ipynb" for s in harness.STAGES}}
    for name in sorted(needed - here):
        yield f"{name}: a run has one, this has none"


# 3 ---------------------------------------------------------------------------------------------------------------


def _params(directory: Path, frozen: Params) -> Iterator[str]:
    if params.dump(frozen) != (directory / "params.yml").read_bytes():
        yield "params.yml: not in freeze's own form"
    if "params_drift" in _stops(directory):
        return  # a stop, and judged again below
    params.check_frozen(frozen, "params.yml")
    for name in harness.STAGES:
        given = notebooks.injected(directory / f"{name}.ipynb") or {}
        values = {key: value for key, value in given.items() if key != "run_dir"}
        if values != frozen.values() and name not in _unfinished(directory):
            yield f"{name}.ipynb: was given other values than params.yml holds"


def _unfinished(directory: Path) -> set[str]:
    """Return the stages of which the run itself says that they did not finish."""
    return {failure["stage"] for failure in _optional(directory / "stages.json").get("failed", [])}


def _stops(directory: Path) -> set[str]:
    verdict = json.loads((directory / "verdict.json").read_bytes())
    return {stop["code"] for stop in verdict["stops"] if stop["case"] is None}


# 4 ---------------------------------------------------------------------------------------------------------------


def _harness(directory: Path, receipt: dict[str, Any]) -> Iterator[str]:
    """The copy is checked against what capture recorded; a drift between stages is a stop, and judged again below."""
    root = directory / "harness"
    copied = {p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in _all(root)}
    found = hashlib.sha256(rfc8785.dumps(copied)).hexdigest()
    captured = _optional(directory / "1_capture.json")
    recorded = captured.get("harness")
    known = "harness_drift" in _stops(directory) or not captured
    if not known and not found == recorded == _at(receipt, "predicate", "verdict", "harness"):
        yield f"harness: the kept copy has digest {found}, the run recorded {recorded}"


def _all(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


# 5 ---------------------------------------------------------------------------------------------------------------


def _inputs(directory: Path, frozen: Params) -> Iterator[str]:
    """Make every input again, from exact arithmetic or the run's copy of a captured file, without what was kept."""
    known = _stops(directory) & {"input_drift", "input_missing"} or not _optional(directory / "1_capture.json")
    for spec in filter(None, map(inputs.source_of, frozen.cases)):
        copy = inputs.files_of(directory) / f"{spec.sha256}.safetensors"
        if not known and hashlib.sha256(copy.read_bytes()).hexdigest() != spec.sha256:
            yield f"inputs/captured/{copy.name}: not the file that params name by this digest"
    for case in frozen.cases:
        if known or not _made(case, frozen):
            continue  # a missing or drifted input is a stop, and judged again below
        made = inputs.generate(case, inputs.files_of(directory)).sha256
        path = directory / "inputs" / f"{case.id}.safetensors"
        held = inputs.from_bytes(path.read_bytes(), path.name).sha256 if path.is_file() else made
        if not made == held == case.input:
            yield f"inputs/{case.id}.safetensors: made again it is {made}, the file holds {held}, frozen {case.input}"


def _made(case: Case, frozen: Params) -> bool:
    return case.vocabulary <= frozen.limits.vocabulary and case.batch <= frozen.limits.batch


# 6 ---------------------------------------------------------------------------------------------------------------


def _stages(directory: Path) -> Iterator[str]:
    """A stage that is not done must be known to the run; the template is the run's own copy of the notebook."""
    named = _unfinished(directory)
    for name in harness.STAGES:
        template = directory / "harness" / "notebooks" / f"{name}.ipynb"
        failure = notebooks.acceptance(name, directory, template)
        if failure is not None and name not in named:
            yield f"{name}.ipynb: does not count as done: {failure.detail}; the run does not say so"


# 7 ---------------------------------------------------------------------------------------------------------------


def _judged(directory: Path) -> Judgement:
    """Judge the run again, with what stage 3 found on entering, which nothing else in the run tells."""
    said = json.loads((directory / "verdict.json").read_bytes())
    stop, ran = said.get("gate_stop"), said.get("harness")
    entered = None if stop is None else Stop(str(stop["code"]), str(stop["detail"]))
    return judge.judge(directory, entered, ran if isinstance(ran, str) else None)


# 8 ---------------------------------------------------------------------------------------------------------------


def _receipt_says(directory: Path, receipt: dict[str, Any], frozen: Params) -> Iterator[str]:
    verdict = json.loads((directory / "verdict.json").read_bytes())
    captured, executed = _optional(directory / "1_capture.json"), _optional(directory / "2_execute.json")
    said = receipt["predicate"]
    yield from _vocabulary(receipt)
    sides = executed.get("sides", {})
    want = {
        "result": "PASSED" if verdict["verdict"] == "PASS" else "FAILED",
        "verdict": {key: verdict[key] for key in ("verdict", "first_stop", "counts", "run", "harness")},
        "statement": codes.STATEMENT,
        "sources": {"stock": frozen.stock.sha256, "patch": frozen.patch.sha256},
        "change": None if frozen.change is None else frozen.change.sha256,
        "configuration": [{"name": "params.yml", "digest": {"sha256": verdict["params"]}}],
        "host": executed.get("host"),
        "inputs": captured.get("inputs"),
        "environments": {name: side.get("environments") for name, side in sides.items() if isinstance(side, dict)},
        "git": captured.get("git"),
    }
    for key, value in want.items():
        if not agreement.alike(said.get(key), value):
            yield f"receipt.json: {key}: says {said.get(key)}, the run's files say {value}"


def _vocabulary(receipt: dict[str, Any]) -> Iterator[str]:
    """A receipt holds what a receipt holds: a key more would be taken for a statement of toppgate's."""
    for where, found, known in (("", receipt, _KEYS), ("predicate.", receipt["predicate"], _PREDICATE_KEYS)):
        for key in sorted(found.keys() - known):
            yield f"receipt.json: {where}{key}: a receipt has no such key"
    for key, value in _TYPES.items():
        if receipt.get(key) != value:
            yield f"receipt.json: {key}: got {receipt.get(key)!r}, expected {value!r}"
    for entry in receipt["subject"]:
        if entry != {"name": entry["name"], "digest": {"sha256": entry["digest"]["sha256"]}}:
            yield f"receipt.json: subject {entry['name']}: says more than a name and a SHA-256"


# 9 ---------------------------------------------------------------------------------------------------------------


def _pages(
    directory: Path, receipt: dict[str, Any], frozen: Params, judged: Judgement, notes: list[str]
) -> Iterator[str]:
    same = harness.digest() == judged.verdict["harness"]
    if not same:
        notes.append("the wording of banners, and of what a stop was for, was not compared: another toppgate's")
    same = same and (directory / "rows.jsonl").read_bytes() == judged.rows_bytes()
    drawn_by_others = _stops(directory) & {"params_drift", "harness_drift"}
    if same and not drawn_by_others:
        yield from _summary(directory, frozen, judged)
    else:
        notes.append("summary.md was not written again and compared")
    if not same or redraw.libraries() != _at(receipt, "predicate", "rendering"):
        notes.append("pages were not drawn again: another toppgate, other libraries or another machine drew them")
        return
    failures = _optional(directory / "stages.json").get("failed", [])
    if not drawn_by_others:
        yield from redraw.differences(directory, frozen, judged, failures)


def _summary(directory: Path, frozen: Params, judged: Judgement) -> Iterator[str]:
    path = directory / summary.NAME
    if not path.is_file():
        yield f"{summary.NAME}: a run has one, this has none"
    elif path.read_bytes() != redraw.summarised(directory, frozen, judged).encode():
        yield f"{summary.NAME}: says something else than the run's results give"


def _optional(path: Path) -> dict[str, Any]:
    """Return a result, empty where it is missing or damaged: that is a stop, and judged again."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _at(value: Any, *keys: str) -> Any:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value
