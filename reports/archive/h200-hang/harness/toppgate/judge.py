"""Stage 3: a run directory becomes rows and a verdict.  ``judge`` is pure: it reads the directory and writes nothing.

``verify`` calls it too, on a machine without torch.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import joblib
import numpy as np

from toppgate import accel, codes, digests, gate, masses, oracle, real
from toppgate.errors import ParamsError
from toppgate.evidence import CaseEvidence, Evidence, gather
from toppgate.gate import Boundary, Judged, Output
from toppgate.neighbourhood import Neighbourhood, neighbourhood
from toppgate.outputs import Masks
from toppgate.schema import Case
from toppgate.stage import Run, Stop

#: The columns of ``rows.jsonl`` (contract, section 7), in the order in which the page shows them.
COLUMNS = (
    *("case", "row", "role", "code", "observed", "also", "after_stop", "p_fp32"),
    *("kept_oracle", "kept_stock", "kept_patch", "kept_sort"),
    *("symdiff_stock", "symdiff_patch", "symdiff_stock_patch", "mass_stock", "mass_patch", "mass_stock_patch"),
    *("equal_stock", "equal_patch", "stock_code", "over_keep", "margin", "tie_group"),
    *("real_boundary", "real_ratio", "boundary_reach", "reach_margin", "reach_error", "oracle_ids_sha256"),
)

#: Columns that depend on the last bits of the C library's exp.
FLOATS = (
    *("mass_stock", "mass_patch", "mass_stock_patch", "margin"),
    *("real_ratio", "boundary_reach", "reach_margin", "reach_error"),
)

#: A column that may be undecided where an extra library is not installed; decided, it is the same everywhere.
OPTIONAL = "real_boundary"

#: Null on a row whose stock cannot serve as the comparison (rule 3).  The difference of the two masks stays: it is a
#: fact about them alone, and what a reproduction row is there to show.
STOCK_RELATIVE = ("symdiff_stock", "mass_stock", "equal_stock")

#: Codes that are not about which tokens were kept, so no distance from the boundary goes with them.
NOT_ABOUT_TOKENS = (codes.PASS, "output_altered", "forced_nan")

#: What the verdict counts, in the order in which it is said.
COUNTS = ("rows", "forced", "control", "ordinary", "probe", "passed", "stopped")

Row = dict[str, Any]
RowAndAround = tuple[Row, Neighbourhood | None]
Logits = np.ndarray[Any, np.dtype[np.float32]]
ReferenceOf = Callable[[Logits, np.float32], oracle.Reference]

#: A case's detail and rows.
_Judged = tuple[str, list[RowAndAround]]

#: From this many logits on, the cases are judged by a pool of processes, whose start then costs less than it saves.
PARALLEL = 20_000_000


#: From this many logits on, a case is worth the compiled engine, where the extra ``fast`` is installed.
COMPILED = 4_000_000


@dataclass(frozen=True)
class Judgement:
    """Every row in frozen order, and the verdict, as ``rows.jsonl`` and ``verdict.json`` hold them.

    ``neighbourhoods`` has, by case and row, what lies around the boundary of each stopped row that has one.  It is for
    the page, follows from the same masks, and is in no file.
    """

    rows: tuple[Row, ...]
    verdict: dict[str, Any]
    neighbourhoods: Mapping[tuple[str, int], Neighbourhood] = field(default_factory=dict)

    def rows_bytes(self) -> bytes:
        """Return ``rows.jsonl``: one canonical JSON object a line."""
        return b"".join(digests.canonical(row) + b"\n" for row in self.rows)

    def verdict_bytes(self) -> bytes:
        """Return ``verdict.json``."""
        return digests.canonical(self.verdict) + b"\n"

    def write(self, directory: Path) -> None:
        """Write both files."""
        (directory / "rows.jsonl").write_bytes(self.rows_bytes())
        (directory / "verdict.json").write_bytes(self.verdict_bytes())

    def is_in(self, directory: Path) -> bool:
        """Return whether both files are there and say this, whatever ``FLOATS`` and ``OPTIONAL`` hold."""
        try:
            rows = [json.loads(line) for line in (directory / "rows.jsonl").read_bytes().splitlines()]
            same = (directory / "verdict.json").read_bytes() == self.verdict_bytes()
        except (OSError, ValueError, RecursionError):
            return False
        return same and [_exact(row) for row in rows] == [_exact(row) for row in self.rows]


def _exact(row: Any) -> Any:
    return {key: row[key] for key in row if key not in (*FLOATS, OPTIONAL)} if isinstance(row, dict) else row


def judge(directory: Path, stop: Stop | None = None, harness: str | None = None) -> Judgement:
    """Judge a run directory.

    Parameters
    ----------
    directory : where stages 1 and 2 have run, or died
    stop : what stage 3 found on entering, if anything
    harness : the harness digest at stage 3; None to take the one that capture recorded

    Raises
    ------
    ParamsError : where the directory holds no readable params, so not even the rows are known
    """
    found = gather(directory, stop, harness)
    (judged,) = _judge_cases([found])
    return _judgement(found, judged, stop, harness)


def judge_together(directories: Sequence[Path], harness: str | None = None) -> list[Judgement]:
    """Judge runs whose cases are the same rows, each as ``judge`` does; the oracle is asked once a row for all.

    Not checked: that the cases are the same; where they are not, the oracle is asked again.  Raises as ``judge`` does.
    """
    found = [gather(directory, None, harness) for directory in directories]
    judged = _judge_cases(found)
    return [_judgement(each, cases, None, harness) for each, cases in zip(found, judged, strict=True)]


def _judgement(found: Evidence, judged: list[_Judged], stop: Stop | None, harness: str | None) -> Judgement:
    details = {case.id: detail for case, (detail, _) in zip(found.params.cases, judged, strict=True)}
    pairs = [pair for _, group in judged for pair in group]
    rows = [row for row, _ in pairs]
    _mark_after_stop(rows, stopped=bool(found.stops))
    verdict = _verdict(found, rows, details, harness or found.harness)
    verdict["gate_stop"] = None if stop is None else {"code": stop.code, "detail": stop.detail}
    around = {(row["case"], row["row"]): seen for row, seen in pairs if seen is not None}
    return Judgement(tuple(rows), verdict, around)


def _judge_cases(found: Sequence[Evidence]) -> list[list[_Judged]]:
    """Return, for each run, detail and rows of each case, in frozen order; much work is judged on all cores."""
    groups = list(zip(*(each.params.cases for each in found), strict=True))
    work = sum(case.batch * case.vocabulary for group in groups for case in group)
    if work < PARALLEL:
        judged = [_judge_case(found, group) for group in groups]
    else:
        small = ([each.only(case) for each, case in zip(found, group, strict=True)] for group in groups)
        jobs = (joblib.delayed(_judge_case)(only, group) for only, group in zip(small, groups, strict=True))
        judged = joblib.Parallel(n_jobs=-1)(jobs)
    return [list(cases) for cases in zip(*judged, strict=True)]


def _judge_case(found: Sequence[Evidence], cases: Sequence[Case]) -> list[_Judged]:
    """Return detail and rows of one case of each run; where there are more, the oracle's answers are kept for them."""
    engine = _engine(cases[0])
    reference = engine if len(found) == 1 else Remembered(engine)
    judged = []
    for each, case in zip(found, cases, strict=True):
        evidence = each.case(case)
        judged.append((evidence.detail, list(_case_rows(case, evidence, reference))))
    return judged


@dataclass
class Remembered:
    """An oracle asked once a row: its answer is the same for every kernel."""

    engine: ReferenceOf = oracle.reference
    known: dict[tuple[str, float], oracle.Reference] = field(default_factory=dict)

    def __call__(self, logits: Logits, p: np.float32) -> oracle.Reference:
        """Return the reference of logits and p."""
        key = digests.sha256(logits.tobytes()), float(p)
        if key not in self.known:
            self.known[key] = self.engine(logits, p)
        return self.known[key]


def _mark_after_stop(rows: list[Row], *, stopped: bool) -> None:
    """The first stop ends the experiment; what comes later is diagnosis (contract, section 6)."""
    for row in rows:
        row["after_stop"] = stopped
        stopped = stopped or row["code"] != codes.PASS


def _case_rows(case: Case, evidence: CaseEvidence, reference: ReferenceOf = oracle.reference) -> Iterator[RowAndAround]:
    for row, (role, p) in enumerate(zip(case.roles(), case.ps(), strict=True)):
        table: Row = dict.fromkeys(COLUMNS)
        table |= {"case": case.id, "row": row, "role": role, "p_fp32": float(p) if np.isfinite(p) else None}
        seen = _see(case, evidence, row, reference)
        judged = seen if isinstance(seen, Judged) else _rules(case, row, seen)
        if isinstance(seen, _Seen):
            table |= _diagnostics(seen, judged)
        judged = _as_declared(case, row, judged)
        table |= {"code": judged.code, "observed": judged.observed, "also": list(judged.also)}
        table["stock_code"] = judged.stock_code
        yield table, _around(seen) if judged.code != codes.PASS and isinstance(seen, _Seen) else None


def _engine(case: Case) -> ReferenceOf:
    """Return the engine for a case: the bits are the same, and the compiled one takes a second to start.

    That it may not be used is no news here: on stderr it would end the stage.
    """
    if case.batch * case.vocabulary < COMPILED:
        return oracle.reference
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", accel.FallbackWarning)
        accel.engine()
    return accel.reference


def decide(case: Case, evidence: CaseEvidence, reference: ReferenceOf = oracle.reference) -> Iterator[Judged]:
    """Yield the codes of a case's rows, and nothing else.

    ``reference`` returns the reference of logits and p; one that remembers serves many kernels over the same rows.
    """
    for row in range(case.batch):
        seen = _see(case, evidence, row, reference)
        yield _as_declared(case, row, seen if isinstance(seen, Judged) else _rules(case, row, seen))


@dataclass(frozen=True)
class _Seen:
    """A row that evidence and admissibility let through."""

    logits: Logits
    reference: oracle.Reference
    boundary: Boundary
    stock: Output
    patch: Output
    kept_sort: int | None


def _see(case: Case, evidence: CaseEvidence, row: int, reference: ReferenceOf) -> _Seen | Judged:
    """Evidence, then admissibility."""
    if evidence.code != codes.PASS or evidence.inputs is None or evidence.stock is None or evidence.patch is None:
        return Judged(evidence.code if evidence.code != codes.PASS else "output_missing")
    logits, p = evidence.inputs.logits[row], case.ps()[row]
    code = gate.admissible(logits, p)
    if code != codes.PASS:
        return Judged(code)
    found = reference(logits, p)
    boundary = Boundary(found.order, found.count, found.certified)
    sort = None if evidence.sort is None else int(np.count_nonzero(evidence.sort.kept[row]))
    return _Seen(logits, found, boundary, _output(evidence.stock, row), _output(evidence.patch, row), sort)


def _rules(case: Case, row: int, seen: _Seen) -> Judged:
    """The rules of the row's role."""
    if case.roles()[row] == "forced":
        return gate.judge_forced(seen.logits, _token(case.tokens()[row]), stock=seen.stock, patch=seen.patch)
    return gate.judge_ordinary(seen.logits, seen.boundary, stock=seen.stock, patch=seen.patch)


def _as_declared(case: Case, row: int, judged: Judged) -> Judged:
    return gate.judge_probe(str(case.expected()[row]), judged) if case.roles()[row] == "probe" else judged


def _token(token: int | None) -> int:
    if token is None:
        raise ParamsError("params.yml: a forced row names no token")
    return token


def _output(masks: Masks, row: int) -> Output:
    return Output(masks.kept[row], masks.altered(row), masks.nan(row))


def _diagnostics(seen: _Seen, judged: Judged) -> Row:
    """Reported, never deciding (contract, section 6)."""
    reference, boundary, stock, patch = seen.reference, seen.boundary, seen.stock, seen.patch
    counts = gate.compare(boundary, stock=stock, patch=patch)
    table = {name: getattr(counts, name) for name in COLUMNS if hasattr(counts, name)} | {"kept_sort": seen.kept_sort}
    pairs = {"stock": (stock.kept, boundary.kept), "patch": (patch.kept, boundary.kept)}
    pairs["stock_patch"] = (stock.kept, patch.kept)
    for name, (left, right) in pairs.items():
        known = table[f"symdiff_{name}"] is not None
        table[f"mass_{name}"] = masses.mass(reference, left ^ right) if known else None
    if boundary.usable:
        table |= _at_boundary(seen, counts.prefix_patch)
    if judged.code == "stock_under_keep":
        table |= dict.fromkeys(STOCK_RELATIVE)
    if boundary.usable and judged.code not in NOT_ABOUT_TOKENS:
        table |= _reach(reference, stock if judged.code == "stock_under_keep" else patch)
    return table


def _at_boundary(seen: _Seen, prefix: bool) -> Row:
    reference = seen.reference
    below, above = masses.margin(reference)
    true = real.certify(seen.logits, reference)
    ids = np.sort(reference.order[: reference.count]).astype("<i4")
    return {
        "over_keep": masses.reaches_target(reference, max(seen.patch.size - 1, 0)) if prefix else None,
        "margin": {"below": below, "above": above},
        "tie_group": masses.tie_group(reference, seen.logits),
        "real_boundary": true.verdict,
        "real_ratio": true.ratio,
        "oracle_ids_sha256": digests.sha256(ids.tobytes()),
    }


def _around(seen: _Seen) -> Neighbourhood | None:
    """What lies around a row's boundary, if it has one."""
    if not seen.boundary.usable:
        return None
    return neighbourhood(seen.reference, seen.logits, seen.stock.kept, seen.patch.kept)


def _reach(reference: oracle.Reference, output: Output) -> Row:
    """How far the end of the set that stopped is from the boundary, beside what fp32 sums can do."""
    found = real.reach(reference, output.kept)
    return {"boundary_reach": found.verdict, "reach_margin": found.margin, "reach_error": found.error}


# ---------------------------------------------------------------------------------------------- the verdict


def _verdict(found: Evidence, rows: list[Row], details: dict[str, str], harness: str | None) -> dict[str, Any]:
    """PASS iff nothing stopped and at least one forced and one control row were judged; STOP otherwise."""
    stops = [{"case": None, "row": None, "code": stop.code, "detail": stop.detail} for stop in found.stops]
    for row in rows:
        if row["code"] != codes.PASS:
            detail = details[row["case"]]
            stops.append({"case": row["case"], "row": row["row"], "code": row["code"], "detail": detail})
    counts = _counts(rows)
    passed = not stops and counts["forced"] >= 1 and counts["control"] >= 1 and counts["passed"] == counts["rows"] >= 1
    first = {key: stops[0][key] for key in ("case", "row", "code")} if stops else None
    return {
        "schema": "toppgate/verdict/1",
        "run": found.run,
        "params": found.params_sha256,
        "harness": harness,
        "device": found.params.device,
        "verdict": "PASS" if passed else "STOP",
        "first_stop": first,
        "stops": stops,
        "counts": counts,
        "envelope": envelope(rows),
        "unshared_stops": sum(codes.owner(row["code"], row["stock_code"]) == "patch" for row in rows),
        "banners": list(_banners(found, rows, counts)),
        "statement": codes.STATEMENT,
    }


def _counts(rows: list[Row]) -> dict[str, int]:
    roles = [row["role"] for row in rows]
    passed = sum(row["code"] == codes.PASS for row in rows)
    return {
        "rows": len(rows),
        "forced": roles.count("forced"),
        "control": roles.count("control"),
        "ordinary": sum(role in codes.ORDINARY_ROLES for role in roles),
        "probe": roles.count("probe"),
        "passed": passed,
        "stopped": len(rows) - passed,
    }


def envelope(rows: list[Row]) -> dict[str, Any]:
    """Return upstream's batch envelope against vLLM's sort, case by case: a diagnostic, never part of the gate.

    Within when the largest count difference of a batch is at most 3, or else below 0.5 % of the batch's largest
    reference count (contract, section 6, Diagnostics).
    """
    cases: dict[str, Any] = {}
    for name in dict.fromkeys(row["case"] for row in rows):
        batch = [row for row in rows if row["case"] == name]
        known = [row for row in batch if row["kept_sort"] is not None and row["kept_patch"] is not None]
        if known:
            largest = max(abs(row["kept_patch"] - row["kept_sort"]) for row in known)
            within = gate.count_within(largest, max(row["kept_sort"] for row in known))
            cases[name] = {"rows": len(known), "largest": largest, "within": within}
    return cases


def _other_versions(found: Evidence) -> Iterator[str]:
    """Say which versions ran, where the host's release asks for others (contract, section 4)."""
    wants, ran = found.params.wants, found.environment()
    for name in ("torch", "triton") if wants is not None and ran is not None else ():
        wanted, got = getattr(wants, name), str((ran or {}).get(name))
        if got.partition("+")[0] != wanted:
            host = found.params.host
            yield f"{name} {got} ran; the host, {host.distribution} {host.version}, wants {wanted}."


def _banners(found: Evidence, rows: list[Row], counts: dict[str, int]) -> Iterator[str]:
    """What a reader must know before the rows."""
    forced = [row for row in rows if row["role"] == "forced"]
    if forced and all(row["stock_code"] == codes.PASS for row in forced):
        yield "Defect not reproduced: stock passes every forced row, so a PASS shows no fix."
    for role in ("forced", "control"):
        if counts[role] == 0:
            yield f"No {role} row was judged, so this cannot be a PASS."
    differ = sum(case.slices is not None and case.slices.stock != case.slices.patch for case in found.params.cases)
    if differ:
        yield f"Slices differ between the sides in {differ} of {len(found.params.cases)} cases: see the case table."
    yield from _other_versions(found)
    git = found.captured.get("git")
    if not (isinstance(git, dict) and git.get("params_path")):
        yield "Freeze not witnessed: the params file was not committed as it is when the run was captured."


def gate_run(run: Run) -> Judgement:
    """Judge a run on behalf of the stage 3 notebook and write ``rows.jsonl`` and ``verdict.json``.

    Side effects: those two files.  Raises as ``judge`` does.
    """
    judged = judge(run.directory, run.stop, run.harness)
    judged.write(run.directory)
    return judged
