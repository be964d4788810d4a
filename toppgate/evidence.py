"""Run- and case-level evidence: what of a run may be judged (contract, sections 4 and 7).

Everything is read from the run directory; nothing is believed that can be recomputed.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from toppgate import codes, digests, harness, inputs, outputs, params, stage
from toppgate.errors import InputError, RunError, ToppgateError
from toppgate.inputs import Inputs
from toppgate.outputs import Masks
from toppgate.schema import CALLABLE, Case, Params
from toppgate.stage import Stop

SIDES = ("stock", "patch")

#: Written by seal where a stage notebook is not accepted: ``{"failed": [{"stage", "code", "detail"}]}``.
STAGES = "stages"


@dataclass(frozen=True)
class CaseEvidence:
    """One case: ``code`` is ``pass`` or the evidence code; the masks are there only where it is ``pass``.

    ``sort`` is vLLM's sort implementation, for readers: None where it delivered nothing usable.
    """

    code: str
    detail: str
    inputs: Inputs | None = None
    stock: Masks | None = None
    patch: Masks | None = None
    sort: Masks | None = None


@dataclass(frozen=True)
class Evidence:
    """What a run directory holds: run-level stops, in the order of ``codes.EVIDENCE``, and a way to each case."""

    params: Params
    params_sha256: str
    run: str | None
    harness: str | None
    stops: tuple[Stop, ...]
    captured: Mapping[str, Any] = field(repr=False)
    executed: Mapping[str, Any] = field(repr=False)
    directory: Path = field(default=Path())

    def case(self, case: Case, patch: str = "patch") -> CaseEvidence:
        """Read and check one case; large arrays live only as long as the caller keeps them.

        ``patch`` names the side that is judged as the patch: a wrong kernel is, by the same rules.
        """
        return _case(self, case, patch)

    def environment(self) -> dict[str, Any] | None:
        """Return what the first worker of stock said of where it ran; all others agree, or the run is stopped."""
        seen = _list(_side_of(self, "stock").get("environments"))
        return seen[0] if seen and isinstance(seen[0], dict) else None

    def only(self, case: Case) -> "Evidence":
        """Return the same evidence without the records of other cases, so that it is small to send to a process."""
        sides = {
            name: {**side, "cases": {case.id: _mapping(side.get("cases")).get(case.id)}, "binaries": {}}
            for name, side in _mapping(self.executed.get("sides")).items()
            if isinstance(side, dict)
        }
        return replace(self, executed={**self.executed, "sides": sides, "timing": None})


def gather(directory: Path, gate_stop: Stop | None = None, gate_harness: str | None = None) -> Evidence:
    """Read a run directory.

    Parameters
    ----------
    directory : a run directory in which stage 1 has run
    gate_stop : what stage 3 found on entering, if anything
    gate_harness : the harness digest at stage 3; None where it is not known, which skips that comparison

    Raises
    ------
    ParamsError, RunError : where there are no readable params, so not even the rows are known
    """
    checked = params.read(directory / "params.yml")
    data = (directory / "params.yml").read_bytes()
    failed = _failed(directory)
    captured, executed, stops = _results(directory, failed=bool(failed))
    digest = digests.sha256(data)
    recorded = captured.get("harness")
    found = [*stops, *([gate_stop] if gate_stop else [])]
    found += _stage_stops(captured, executed, *({"stop": failure} for failure in failed))
    found += _params_stops(checked, data, (captured, executed))
    found += _source_stops(checked, executed)
    if captured:
        others = [executed.get("harness")] if executed else []
        found += _harness_stops(directory, recorded, [*others, gate_harness or recorded])
    found += _environment_stops(executed)
    return Evidence(
        checked, digest, captured.get("run"), recorded, _ordered(found), captured, executed, directory.resolve()
    )


def _ordered(stops: list[Stop]) -> tuple[Stop, ...]:
    """One stop a code, in the order of the contract."""
    first: dict[str, Stop] = {}
    for stop in stops:
        first.setdefault(stop.code, stop)
    return tuple(first[code] for code in codes.EVIDENCE if code in first)


def _results(directory: Path, *, failed: bool) -> tuple[dict[str, Any], dict[str, Any], list[Stop]]:
    """Return both stages' results, empty where unusable, and why; a stage that failed has its own stop."""
    found: list[dict[str, Any]] = []
    stops: list[Stop] = []
    for name, code in (("1_capture", "input_missing"), ("2_execute", "output_missing")):
        try:
            result = stage.result(directory, name)
        except RunError as error:
            result, stops = None, [*stops, Stop(code, str(error))]
        if result is None and not stops and not failed:
            stops.append(Stop(code, f"{name}.json is not there: the stage did not finish"))
        found.append(result or {})
    captured, executed = found
    if captured and executed and (executed.get("run") != captured.get("run") or captured.get("run") is None):
        stops.append(Stop("output_unreadable", "2_execute.json belongs to another run"))
        executed = {}
    return captured, executed, stops


def _failed(directory: Path) -> list[Mapping[str, Any]]:
    """Return the stages that seal did not accept; there is no such file before seal, nor where all is well."""
    stages = stage.result(directory, STAGES) or {}
    return [_mapping(failure) for failure in _list(stages.get("failed"))]


def _stage_stops(*results: Mapping[str, Any]) -> Iterator[Stop]:
    for result in results:
        stop = result.get("stop")
        if isinstance(stop, dict) and stop.get("code") in codes.EVIDENCE:
            yield Stop(stop["code"], str(stop.get("detail")))
        elif stop is not None:
            yield Stop("output_unreadable", "a stage result holds a stop that no stage writes")


def _params_stops(checked: Params, data: bytes, results: tuple[Mapping[str, Any], ...]) -> Iterator[Stop]:
    try:
        params.check_frozen(checked, "params.yml")
    except ToppgateError as error:
        yield Stop("params_drift", str(error))
    if params.dump(checked) != data:
        yield Stop("params_drift", "params.yml is not in freeze's own form")
    for result in results:
        if result and result.get("params") != digests.sha256(data):
            yield Stop("params_drift", f"{result.get('schema')} was made under other params")


def _source_stops(checked: Params, executed: Mapping[str, Any]) -> Iterator[Stop]:
    """Each side ran the pinned bytes, and the two are not the same."""
    if checked.stock.sha256 == checked.patch.sha256:
        yield Stop("patch_drift", "stock and patch are the same file")
    for name in SIDES:
        side = _mapping(executed.get("sides")).get(name)
        want = getattr(checked, name).sha256
        if side is not None and not (want is not None and _mapping(side).get("source") == want):
            yield Stop("source_drift", f"{name} ran source {_mapping(side).get('source')}, expected {want}")


def _harness_stops(directory: Path, recorded: Any, others: list[Any]) -> Iterator[Stop]:
    if any(other != recorded for other in others):
        yield Stop("harness_drift", "the package or a notebook changed between two stages")
    if harness.digest_of_copy(directory / "harness") != recorded:
        yield Stop("harness_drift", "the kept copy of the package is not what ran")


def _environment_stops(executed: Mapping[str, Any]) -> Iterator[Stop]:
    """All workers of both sides saw the same environment; the host is part of it."""
    sides = {name: _mapping(_mapping(executed.get("sides")).get(name)) for name in SIDES}
    seen = [_mapping(environment) for side in sides.values() for environment in _list(side.get("environments"))]
    for name, side in sides.items():
        delivered = [case for case in _mapping(side.get("cases")).values() if _mapping(case).get("code") == codes.PASS]
        if delivered and not _list(side.get("environments")):
            yield Stop("environment_drift", f"{name} recorded no environment")
    for other in seen[1:]:
        keys = [key for key in sorted(set(seen[0]) | set(other)) if seen[0].get(key) != other.get(key)]
        if keys:
            yield Stop(
                "environment_drift", f"{keys[0]}: one worker saw {seen[0].get(keys[0])}, another {other.get(keys[0])}"
            )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# ---------------------------------------------------------------------------------------------- one case

Finding = tuple[str, str]

#: What may be found of a case, in order: a kernel that writes between its rows has altered what no row's output shows.
CASE_CODES: Final = (*codes.EVIDENCE, "output_altered")


def _case(evidence: Evidence, case: Case, patch: str) -> CaseEvidence:
    limits = evidence.params.limits
    if case.vocabulary > limits.vocabulary or case.batch > limits.batch:
        return CaseEvidence("limit_exceeded", f"{case.batch} x {case.vocabulary} is over the frozen limits")
    held, findings = _inputs(evidence, case)
    masks: dict[str, Masks | None] = {}
    for seat, name in zip(SIDES, ("stock", patch), strict=True):
        masks[seat] = _collect(findings, name, partial(_side, evidence, case, name, held, seat))
    if findings:
        code = min((code for code, _ in findings), key=CASE_CODES.index)
        return CaseEvidence(code, "; ".join(detail for found, detail in findings if found == code), held)
    ignored: list[Finding] = []
    sort = _collect(ignored, "sort", partial(_side, evidence, case, "sort", held))
    return CaseEvidence(codes.PASS, "", held, masks["stock"], masks["patch"], sort)


def _collect(findings: list[Finding], name: str, read: Callable[[], Masks]) -> Masks | None:
    try:
        return read()
    except _FoundError as found:
        findings.append((found.code, f"{name}: {found.detail}"))
    return None


class _FoundError(Exception):
    def __init__(self, code: str, detail: str) -> None:
        super().__init__(code)
        self.code, self.detail = code, detail


def _inputs(evidence: Evidence, case: Case) -> tuple[Inputs | None, list[Finding]]:
    """Return the captured input if it is the frozen one, and what is wrong with it otherwise."""
    try:
        held = inputs.held(evidence.directory, case, retained=evidence.params.retain_inputs)
    except FileNotFoundError:
        return None, [("input_missing", f"{case.id}.safetensors is not there")]
    except (InputError, OSError) as error:
        return None, [("input_drift", str(error))]
    recorded = _mapping(evidence.captured.get("inputs")).get(case.id)
    if case.input is not None and held.sha256 == case.input == recorded:
        return held, []
    return None, [("input_drift", f"SHA-256 is {held.sha256}, expected {case.input}")]


def _side(evidence: Evidence, case: Case, name: str, held: Inputs | None, seat: str | None = None) -> Masks:
    """Check, in the order of the contract's codes, what one side delivered for a case, by the path of its seat."""
    record = _mapping(_mapping(_side_of(evidence, name).get("cases")).get(case.id))
    if not record:
        code = evidence.stops[0].code if evidence.stops else "output_missing"
        raise _FoundError(code, "nothing was delivered")
    if record.get("code") != codes.PASS:
        code = str(record.get("code"))
        raise _FoundError(code if code in CASE_CODES else "output_unreadable", str(record.get("detail")))
    if held is None or record.get("input") != case.input:
        raise _FoundError("input_drift", f"the worker read {record.get('input')}, expected {case.input}")
    masks = _masks(evidence, case, name, record, held)
    repeats = _list(record.get("repeats"))
    if len(repeats) != evidence.params.repeat or set(repeats) != {repeats[0]}:
        raise _FoundError("output_nondeterministic", f"{len(set(repeats))} different outputs in {len(repeats)} repeats")
    if seat is not None:
        _check_path(evidence.params, case, seat, record)
    return masks


def _side_of(evidence: Evidence, name: str) -> dict[str, Any]:
    return _mapping(_mapping(evidence.executed.get("sides")).get(name))


def _masks(evidence: Evidence, case: Case, name: str, record: Mapping[str, Any], held: Inputs) -> Masks:
    path = evidence.directory / "outputs" / f"{case.id}.{name}.safetensors"
    pinned = getattr(evidence.params, name).sha256 if name in SIDES else _side_of(evidence, name).get("source")
    want = {"run": evidence.run, "side": name, "case": case.id, "source": pinned, "input": case.input}
    want |= {"shape": [case.batch, case.vocabulary], "repeats": record.get("repeats")}
    try:
        data = path.read_bytes()
        binding = outputs.binding_of(data, path.name)
        for key in sorted(set(want) | set(binding)):
            if key not in want or binding.get(key) != want[key]:
                got = f"{key}: got {binding.get(key)}, expected {want.get(key)}"
                raise _FoundError("output_unreadable", f"{path.name}: {got}")
        masks = outputs.from_bytes(data, held.orders, path.name)
    except FileNotFoundError:
        raise _FoundError("output_missing", f"{path.name} is not there") from None
    except (InputError, OSError) as error:
        raise _FoundError("output_unreadable", str(error)) from None
    if digests.sha256(data) != record.get("file"):
        raise _FoundError("output_unreadable", f"{path.name}: SHA-256 is not the one recorded when it was delivered")
    raw = digests.sha256(masks.raw(held.logits).tobytes())
    if _list(record.get("repeats"))[:1] != [raw]:
        raise _FoundError("output_unreadable", f"{path.name}: does not give back the output whose digest was recorded")
    return masks


def _check_path(checked: Params, case: Case, name: str, record: Mapping[str, Any]) -> None:
    """Every repeat launched the frozen kernels, in order, with the side's own split, from the pinned file.

    A Python function's call stands among them under a name of its own, which Triton's hook does not know.
    """
    path = [step.kernel for step in getattr(checked.path, name) for _ in range(step.times)]
    slices = None if case.slices is None else getattr(case.slices, name)
    launches = _list(record.get("launches"))
    if len(launches) != checked.repeat:
        raise _FoundError("path_mismatch", f"launches of {len(launches)} repeats were seen, expected {checked.repeat}")
    hooks = _list(record.get("hooks"))
    for repeat, seen in enumerate(launches):
        names = [_mapping(launch).get("kernel") for launch in _list(seen)]
        if names != path:
            raise _FoundError("path_mismatch", f"launched {_counted(names)}, expected {_counted(path)}")
        launched = [launch for launch in names if launch != CALLABLE]
        if checked.device == "cuda" and hooks[repeat : repeat + 1] != [launched]:
            raise _FoundError("path_mismatch", f"Triton's launch hook saw {hooks[repeat : repeat + 1]}")
        for launch in seen:
            if launch.get("ours") is not True:
                raise _FoundError("path_mismatch", f"{launch.get('kernel')}: its text is not in the pinned file")
            if slices is not None and (launch.get("slices"), launch.get("grid")) != (slices, [case.batch * slices]):
                got = f"{launch.get('slices')} slices, grid {launch.get('grid')}"
                raise _FoundError("path_mismatch", f"{launch.get('kernel')}: {got}, expected {slices} slices")


def _counted(names: list[Any]) -> str:
    return ", ".join(f"{name} {names.count(name)}" for name in dict.fromkeys(names)) or "nothing"
