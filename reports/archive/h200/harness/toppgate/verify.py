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
 8. the receipt says what the verdict says, word for word, and no more.

It proves that the files are consistent and that the judgement follows from the masks.  Unsigned, it cannot prove that a
GPU, or anything else, produced them.
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
from toppgate import codes, fingerprint, harness, inputs, judge, notebooks, params
from toppgate.errors import RunError, ToppgateError
from toppgate.schema import Case, Params
from toppgate.stage import Stop

#: Where ``toppgate run`` works until the run is sealed and whole (contract, section 2).
PARTIAL = re.compile(r"\.partial-[0-9a-f]{8}$")


#: The columns that every run has (contract, section 7); others came later, and an older run may lack them.
REQUIRED = frozenset(
    (
        *("case", "row", "role", "code", "observed", "also", "after_stop", "p_fp32"),
        *("kept_oracle", "kept_stock", "kept_patch", "kept_sort"),
        *("symdiff_stock", "symdiff_patch", "symdiff_stock_patch", "mass_stock", "mass_patch", "mass_stock_patch"),
        *("equal_stock", "equal_patch", "stock_code", "over_keep", "margin", "tie_group", "oracle_ids_sha256"),
    )
)

#: What a verdict of another version of toppgate must say exactly; stops too, without their wording.
ESSENTIAL = (
    "schema",
    "run",
    "params",
    "harness",
    "device",
    "verdict",
    "first_stop",
    "counts",
    "statement",
    "gate_stop",
)


@dataclass(frozen=True)
class Verified:
    """``difference`` is None where everything agrees, and names the first difference otherwise."""

    verdict: str
    difference: str | None
    notes: tuple[str, ...] = ()


def verify(directory: Path) -> Verified:
    """Verify a sealed run directory.

    Raises ``RunError`` where it is unsealed or its receipt cannot be read at all; a difference is a value.
    """
    receipt = _receipt(directory)
    said = str(_at(receipt, "predicate", "verdict", "verdict"))
    notes: list[str] = []
    try:
        difference = next(_differences(directory, receipt, notes), None)
    except (ToppgateError, OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        difference = f"cannot be re-derived: {type(error).__name__}: {' '.join(str(error).split())}"
    return Verified(said, difference, tuple(notes))


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


def _differences(directory: Path, receipt: dict[str, Any], notes: list[str]) -> Iterator[str]:
    yield from _self_digest(directory, receipt)
    yield from _files(directory, receipt)
    frozen = params.read(directory / "params.yml")
    yield from _params(directory, frozen)
    yield from _harness(directory, receipt)
    yield from _inputs(directory, frozen)
    yield from _stages(directory)
    same_exp = _at(receipt, "predicate", "mathematics", "exp_sha256") == fingerprint.exp_sha256()
    if not same_exp:
        notes.append("this C library's exp has other bits than the run's: masses and margins were not compared")
    yield from _judgement(directory, notes, same_exp=same_exp)
    yield from _receipt_says(directory, receipt, frozen)
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
    for name in sorted(here - set(said) - {"receipt.json"}):
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


def _judgement(directory: Path, notes: list[str], *, same_exp: bool) -> Iterator[str]:
    said = json.loads((directory / "verdict.json").read_bytes())
    stop = said.get("gate_stop")
    entered = None if stop is None else Stop(str(stop["code"]), str(stop["detail"]))
    if entered is not None and entered.code not in codes.EVIDENCE:
        yield f"verdict.json: gate_stop: unknown code {entered.code!r}"
    ran = said.get("harness")
    judged = judge.judge(directory, entered, ran if isinstance(ran, str) else None)
    rows = [_canonical_json(line) for line in (directory / "rows.jsonl").read_bytes().splitlines()]
    if len(rows) != len(judged.rows):
        yield f"rows.jsonl: holds {len(rows)} rows, judged again there are {len(judged.rows)}"
    pairs = [(have, _canonical_json(rfc8785.dumps(want))) for have, want in zip(rows, judged.rows, strict=False)]
    for have, want in pairs:
        yield from _row(have, want, same_exp=same_exp)
    one_sided = sum(_one_sided(have[judge.OPTIONAL], want[judge.OPTIONAL]) for have, want in pairs)
    if one_sided:
        notes.append(f"{judge.OPTIONAL}: decided on one side only in {one_sided} rows: it may take python-flint")
    if (directory / "rows.jsonl").read_bytes() != b"".join(rfc8785.dumps(row) + b"\n" for row in rows):
        yield "rows.jsonl: not in canonical form"
    yield from _verdict(directory, said, json.loads(judged.verdict_bytes()), same_harness=ran == harness.digest())
    absent = sorted({key for have, want in pairs for key in want if key not in have})
    if absent:
        notes.append(f"columns that the run's toppgate did not have yet: {', '.join(absent)}")


def _verdict(directory: Path, said: dict[str, Any], want: dict[str, Any], *, same_harness: bool) -> Iterator[str]:
    if (directory / "verdict.json").read_bytes() != rfc8785.dumps(said) + b"\n":
        yield "verdict.json: not in canonical form"
    if not same_harness:
        said, want = _essential(said), _essential(want)
    for key in sorted(set(said) | set(want)):
        if key not in said or key not in want or said[key] != want[key]:
            yield f"verdict.json: {key}: the run says {said.get(key)}, judged again it is {want.get(key)}"


def _essential(verdict: dict[str, Any]) -> dict[str, Any]:
    """Return what two versions of toppgate must agree on; the wording of banners and details is each one's own."""
    stops = [{key: stop.get(key) for key in ("case", "row", "code")} for stop in verdict["stops"]]
    return {key: verdict.get(key) for key in ESSENTIAL} | {"stops": stops}


def _canonical_json(text: bytes) -> Any:
    """Parse canonical JSON, which writes a large float without a point: what no safe integer holds was one."""
    return json.loads(text, parse_int=lambda digits: float(digits) if abs(int(digits)) >= 1 << 53 else int(digits))


def _row(have: dict[str, Any], want: dict[str, Any], *, same_exp: bool) -> Iterator[str]:
    where = f"rows.jsonl: case {want['case']} row {want['row']}"
    for key in sorted(set(have) | set(want)):
        if key not in want or (key not in have and key in REQUIRED):
            yield f"{where}: {key}: on one side only"
        elif key not in have:
            continue  # a column that came later; said in a note
        elif key == judge.OPTIONAL and _one_sided(have[key], want[key]):
            continue
        elif have[key] != want[key] and (
            same_exp or key not in judge.FLOATS or (have[key] is None) != (want[key] is None)
        ):
            yield f"{where}: {key}: the run says {have[key]}, judged again it is {want[key]}"


def _one_sided(have: Any, want: Any) -> bool:
    """Whether two answers about a boundary in the reals differ only in that one of them is none."""
    return have != want and "undecided" in (have, want) and {str(have), str(want)} < {"equal", "differs", "undecided"}


# 8 ---------------------------------------------------------------------------------------------------------------


def _receipt_says(directory: Path, receipt: dict[str, Any], frozen: Params) -> Iterator[str]:
    verdict = json.loads((directory / "verdict.json").read_bytes())
    captured, executed = _optional(directory / "1_capture.json"), _optional(directory / "2_execute.json")
    said = receipt["predicate"]
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
        if said.get(key) != value:
            yield f"receipt.json: {key}: says {said.get(key)}, the run's files say {value}"


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
