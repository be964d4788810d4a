"""Where a run comes from: frozen cases, captured inputs, executions and provenance, to HTML fragments."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from toppgate import codes
from toppgate.fragments import MISSING, Record, fragment, listed, runs, short

SIDES: Final = ("stock", "patch")


def case_table(params: Record) -> Markup:
    """Return the frozen case matrix: role, generator, shape, p, slices and the pinned digest of each input.

    Where no captured file fills the slot of the retained local case, it is said to be *not supplied* (contract,
    section 6, Roles).
    """
    cases = [_case(case) for case in params.get("cases") or []]
    retained = [case for case in cases if "reproduction" in listed(case.get("role"))]
    supplied = any((case.get("rows") or {}).get("kind") == "file" for case in retained)
    return fragment("cases", cases=cases, supplied=supplied, stand_in=bool(retained))


def input_table(params: Record, inputs: Record) -> Markup:
    """Return stage 1's captured inputs: each frozen case beside ``inputs[id]``, the SHA-256 of what was captured."""
    cases = [_case(case) | {"captured": inputs.get(case["id"])} for case in params.get("cases") or []]
    frozen = sum(bool(case["captured"]) and case["captured"] == case.get("input") for case in cases)
    return fragment("inputs", cases=cases, frozen=frozen)


def execution_table(sides: Record) -> Markup:
    """Return stage 2's executions, a table a side, one line a case.

    Parameters
    ----------
    sides
        The ``sides`` of ``2_execute.json``: side to ``cases``, each with ``code``, ``detail``, ``repeats`` (digests),
        ``launches`` (for each repeat, records with ``kernel`` and ``slices`` in order) and ``seconds``.
    """
    return fragment("executions", sides=[_side(side, record.get("cases") or {}) for side, record in sides.items()])


def kernels_seen(sides: Record) -> str | None:
    """Return in words the launches that most cases have alike on both sides, and in how many; None if none was seen."""
    lines = [
        {line["case"]: line["launches"] for line in _side(side, _cases_of(sides, side))["lines"]} for side in SIDES
    ]
    alike = [path for case, path in lines[0].items() if path and path == lines[1].get(case)]
    if not alike:
        return None
    path, number = Counter(alike).most_common(1)[0]
    cases = len({case for side in lines for case in side})
    where = "in every case" if number == cases else f"in {number} of {cases} cases; stage 2's page has the others"
    return f"{path}: on both sides, {where}"


def _cases_of(sides: Record, side: str) -> Record:
    cases: Record = (sides.get(side) or {}).get("cases") or {}
    return cases


def provenance(record: Record, params: Record, evidence: Record) -> Markup:
    """Return sources and hunks, digests, host, environments, git revision, timing, and how to verify the run.

    *Freeze not witnessed* is said unless a revision and the path of the committed params file are both recorded.
    """
    git = evidence.get("git") or {}
    return fragment(
        "provenance",
        record=record,
        params=params,
        evidence=evidence,
        git=git,
        witnessed=bool(git.get("revision")) and bool(git.get("params_path")),
        sources={side: _source(side, params, evidence) for side in SIDES},
        hunks=(evidence.get("sources") or {}).get("hunks") or (params.get("change") or {}).get("hunks") or [],
    )


def _case(case: Record) -> dict[str, Any]:
    slices = [(case.get("slices") or {}).get(side) for side in SIDES]
    return {
        **case,
        "roles": runs(listed(case.get("role"))),
        "probabilities": runs(listed(case.get("p"))),
        "bits": runs(listed(case.get("p_bits"))),
        "expected": "; ".join(_expected(listed(case.get("expect")))),
        "generator": short(_generator(case.get("rows"))),
        "shape": tuple(case.get("shape") or (None, None)),
        "cut": runs(slices) if slices[0] == slices[1] else f"{slices[0]} and {slices[1]}",
    }


def _expected(values: Sequence[Any]) -> Iterator[str]:
    """Say which code a probe must give, row by row where only some are probes."""
    if len(set(values)) == 1 and values[0] is not None:
        yield f"must give {values[0]}"
        return
    for row, value in enumerate(values):
        if value is not None:
            yield f"row {row} must give {value}"


# ---------------------------------------------------------------------------------------------- how rows are made


def _generator(rows: Any) -> str:
    """Write how rows are made; of a kind that is not known here, every setting."""
    if not isinstance(rows, Mapping):
        return MISSING if rows is None else str(rows)
    writer = GENERATORS.get(str(rows.get("kind")))
    if writer is not None:
        return writer(rows)
    settings = [f"{key} {_generator(value)}" for key, value in rows.items() if key != "kind" and value is not None]
    return f"{rows.get('kind', MISSING)}: {', '.join(settings)}"


def _normal(rows: Record) -> str:
    return f"normal: seed {rows.get('seed', MISSING)}, scale {rows.get('scale', MISSING)}{_rounded(rows)}"


def _captured(rows: Record) -> str:
    first, last = rows.get("rows") or (None, None)
    which = "all rows" if first is None or last is None else f"rows {first} to {last - 1}"
    tiled = f", {rows['tile']} times" if rows.get("tile", 1) != 1 else ""
    return f"{which} of {rows.get('tensor', MISSING)} in {rows.get('path', MISSING)}{_rounded(rows)}{tiled}"


def _rounded(rows: Record) -> str:
    return f", rounded to {rows['round']}" if rows.get("round", "none") != "none" else ""


def _written(rows: Record) -> str:
    text = "; ".join(f"[{', '.join(_part(part) for part in row)}]" for row in rows.get("rows") or [])
    return f"written out: {text}" + (f" × {rows['copies']}" if rows.get("copies", 1) != 1 else "")


def _part(part: Record) -> str:
    """Write one run of numbers of a written row."""
    match part:
        case {"numbers": numbers}:
            return ", ".join(map(str, numbers))
        case {"value": value, "repeat": repeat}:
            return f"{value} × {repeat}" if repeat != 1 else f"{value}"
        case {"linspace": (first, last, count)}:
            return f"{first} to {last} in {count} even steps"
        case {"affine": affine}:
            return f"{affine.get('start')} + {affine.get('step')} i, i below {affine.get('count')}"
    return str(part)


def _forced(rows: Record) -> str:
    return f"token {rows.get('token', MISSING)} set to {rows.get('value', MISSING)}; {_generator(rows.get('base'))}"


GENERATORS: Final[dict[str, Callable[[Record], str]]] = {
    "normal": _normal,
    "file": _captured,
    "literal": _written,
    "forced": _forced,
}


# ---------------------------------------------------------------------------------------------- executions, sources


def _side(side: str, cases: Record) -> Record:
    """Put one side's executions together; a launch path that all cases share is said once."""
    lines = [_execution(case, found) for case, found in cases.items()]
    paths = {line["launches"] for line in lines}
    return {
        "name": side,
        "lines": lines,
        "delivered": sum(line["code"] == codes.PASS for line in lines),
        "paths": len(paths) > 1,
        "path": paths.pop() if len(paths) == 1 else None,
        "sliced": any(line["slices"] for line in lines),
    }


def _execution(case: str, found: Record) -> Record:
    """Put one case's repeats together; paths that differ are all shown."""
    repeats, paths, seconds = (found.get(key) or [] for key in ("repeats", "launches", "seconds"))
    names = [runs(launch.get("kernel") for launch in path) for path in paths if path]
    slices = {launch.get("slices") for path in paths for launch in path} - {None}
    return {
        "case": case,
        "code": found.get("code"),
        "detail": found.get("detail"),
        "repeats": f"{len(repeats)}, {'equal' if len(set(repeats)) == 1 else 'different'}" if repeats else None,
        "launches": "; ".join(dict.fromkeys(names)) or None,
        "slices": ", ".join(sorted(map(str, slices))) or None,
        "seconds": ", ".join(f"{value:.2f}" for value in seconds) or None,
    }


def _source(side: str, params: Record, evidence: Record) -> Record:
    frozen = params.get(side) or {}
    found = (evidence.get("sources") or {}).get(side) or {}
    return {"frozen": frozen.get("sha256"), **found}
