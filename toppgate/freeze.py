"""``toppgate freeze``: resolves and writes every digest of a params file, before anything is executed.

The draft may leave out what can be computed: digests, shapes, slices, fp32 bits, and the seed of a case with
``select``.  What it says is checked; nothing of it is changed (contract, section 3).
"""

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from toppgate import codes, digests, execute, fp32, host, hunks, inputs, outputs, params, source
from toppgate.errors import ParamsError
from toppgate.params import Case, Params
from toppgate.source import Source
from toppgate.stage import Run

#: Seeds looked at in one launch while a reproduction row is searched for.
SCREENED = 8


@dataclass(frozen=True)
class _Sources:
    stock: Source
    patch: Source


def freeze(path: Path) -> Params:
    """Rewrite a params file with every digest in place, and return it.

    Side effects: replaces ``path``; its comments are not kept (``notes`` and ``about`` are for prose).  A case with
    ``select`` runs both kernels over the declared seeds until their masks differ.
    Raises ``ParamsError``, ``SourceError``, ``InputError``.
    """
    draft = params.read(path)
    values = draft.values()
    sources = _Sources(*(source.resolve(values[side], source.cache()) for side in ("stock", "patch")))
    values |= {side: _pinned(values[side], getattr(sources, side)) for side in ("stock", "patch")}
    values["change"] = _change(sources)
    values["host"]["tree"] = host.provide(values["host"], source.cache()).sha256
    values["path"] = draft.path.model_dump(mode="json")
    values["cases"] = [_case(case, draft, sources, values) for case in draft.cases]
    values["frozen"] = params.freeze_digest({key: values[key] for key in values if key != "frozen"})
    frozen = params.check(_in_order(values), str(path))
    params.check_frozen(frozen, str(path))
    partial = path.with_suffix(".partial")
    partial.write_bytes(params.dump(frozen))
    partial.replace(path)
    return frozen


def _in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in Params.model_fields if name in values}


def _pinned(spec: dict[str, Any], found: Source) -> dict[str, Any]:
    return {**spec, "sha256": found.sha256}


def _change(sources: _Sources) -> dict[str, Any]:
    """The diff from stock to patch, hunk by hunk; a patch that changes nothing is none."""
    if sources.stock.sha256 == sources.patch.sha256:
        raise ParamsError("patch_drift: stock and patch are the same file")
    found = hunks.diff(sources.stock.data.decode(), sources.patch.data.decode())
    return {"sha256": hunks.digest(found), "hunks": [hunk.sha256 for hunk in found]}


def _case(case: Case, draft: Params, sources: _Sources, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case's values with shape, bits, slices and input digest; finds the seed first where one is declared."""
    found = case.model_dump(mode="json", exclude_unset=True)
    if case.select is not None and "seed" not in found["rows"]:
        found |= _selected(case, draft, values)
    found["rows"] = _with_bits(found["rows"])
    bits = [fp32.bits(fp32.rounded(fp32.binary64(text))) for text in _as_list(case.p)]
    found["p_bits"] = bits if isinstance(case.p, list) else bits[0]
    made = inputs.generate(Case.model_validate(found))
    found["shape"] = list(made.logits.shape)
    units = case.compute_units or draft.compute_units
    found["slices"] = {side: _slices(getattr(sources, side), made.logits.shape, units) for side in ("stock", "patch")}
    if isinstance(case.p, list) and len(case.p) != len(made.logits):
        raise ParamsError(f"cases[{case.id}].p: got {len(case.p)} values, expected one, or {len(made.logits)}")
    found["input"] = inputs.generate(Case.model_validate(found)).sha256
    return {name: found[name] for name in Case.model_fields if name in found}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _slices(found: Source, shape: tuple[int, ...], units: int) -> int | None:
    plan = source.plan(found.data)
    return None if plan is None else plan(shape[0], shape[1], units)


def _with_bits(rows: dict[str, Any]) -> dict[str, Any]:
    """Put fp32 bits beside each literal, and a file's digest beside its path."""
    kind = rows["kind"]
    if kind == "forced":
        bits = fp32.bits(fp32.rounded(fp32.binary64(rows["value"])))
        return {**rows, "base": _with_bits(rows["base"]), "value_bits": bits}
    if kind == "file":
        return {**rows, "sha256": _file_digest(Path(rows["path"]))}
    if kind == "literal":
        return {**rows, "rows": [[_part_bits(part) for part in row] for row in rows["rows"]]}
    return rows


def _file_digest(path: Path) -> str:
    try:
        return digests.sha256_file(path)
    except OSError as error:
        raise ParamsError(f"{path}: cannot be read: {error.strerror}; paths are relative to {Path.cwd()}") from None


def _part_bits(part: dict[str, Any]) -> dict[str, Any]:
    """Ranges are computed in binary64, so only written values have bits of their own; the input's digest pins all."""
    numbers = part.get("numbers") or ([part["value"]] if "value" in part else [])
    bits = [fp32.bits(fp32.rounded(fp32.binary64(text))) for text in numbers]
    return {**part, "bits": bits} if bits else part


# ---------------------------------------------------------------------------------------------- the seed sequence


def _selected(case: Case, draft: Params, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first declared seed whose stock and patched masks differ, and the record of those passed over.

    Masks are compared; the oracle is not run (contract, section 6, Roles).  Seeds are screened ``SCREENED`` at a time
    in one launch with as many slices a row as the case itself has; the kernels' own masks of the case decide.
    """
    rows = case.rows.model_dump(mode="json", exclude_unset=True)
    if rows["kind"] != "normal" or rows["rows"] != 1 or case.select is None:
        raise ParamsError(f"cases[{case.id}].select: expected rows of kind normal with rows: 1")
    first, units = int(case.select.first), case.compute_units or draft.compute_units
    passed: list[int] = []
    for start in range(first, first + case.select.at_most, SCREENED):
        seeds = range(start, min(start + SCREENED, first + case.select.at_most))
        candidates = _differing(case, draft, values, rows, list(seeds), units * len(seeds))
        for seed in seeds:
            if seed in candidates and _differing(case, draft, values, rows, [seed], units):
                found = {"rows": {"kind": "normal", "seed": str(seed), **{k: rows[k] for k in rows if k != "kind"}}}
                return {**found, "selected_by": _record(first, seed)}
            passed.append(seed)
    raise ParamsError(f"cases[{case.id}].select: the masks agree on all of {len(passed)} seeds from {first}")


def _record(first: int, seed: int) -> str:
    over = f"seeds {first} to {seed - 1} were passed over" if seed > first else "no seed was passed over"
    return f"the first seed from {first} on whose stock and patched masks differ, oracle not run; {over}"


def _differing(
    case: Case, draft: Params, values: Mapping[str, Any], rows: dict[str, Any], seeds: list[int], units: int
) -> set[int]:
    """Run both kernels over one row a seed and return the seeds whose masks differ."""
    with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch:
        directory = Path(scratch)
        drawn = [inputs.generate(_seeded(case, rows, seed)) for seed in seeds]
        made = inputs.Inputs(np.concatenate([d.logits for d in drawn]), np.concatenate([d.p for d in drawn]))
        probe = _screen(case, made, units)
        run = _run(draft, values, directory, probe)
        (directory / "inputs").mkdir()
        inputs.save(made, directory / "inputs" / f"{probe['id']}.safetensors")
        stock, patch = _masks(run, made)
        return {seed for seed, a, b in zip(seeds, stock, patch, strict=True) if not np.array_equal(a, b)}


def _seeded(case: Case, rows: Mapping[str, Any], seed: int) -> Case:
    values = case.model_dump(mode="json", exclude_unset=True)
    return Case.model_validate({**values, "rows": {**rows, "seed": str(seed)}})


def _screen(case: Case, made: inputs.Inputs, units: int) -> dict[str, Any]:
    generator = {"kind": "normal", "seed": "0", "scale": "1", "rows": len(made.p), "vocabulary": made.logits.shape[1]}
    shape = {"shape": list(made.logits.shape), "input": made.sha256}
    return {"id": "screen", "role": "ordinary", "rows": generator, "p": case.p, "compute_units": units, **shape}


def _run(draft: Params, values: Mapping[str, Any], directory: Path, probe: dict[str, Any]) -> Run:
    kept = {key: values[key] for key in values if key not in {"cases", "frozen"}}
    screened = Params.model_validate({**_in_order({**kept, "cases": [probe]})})
    return Run(directory, screened, "", "", "screen")


def _masks(run: Run, made: inputs.Inputs) -> Iterator[np.ndarray[Any, np.dtype[np.bool_]]]:
    sides = execute.execute(run)["sides"]
    for side in execute.SIDES:
        record = sides[side]["cases"]["screen"]
        if record["code"] != codes.PASS:
            raise ParamsError(f"select: {side} could not be run: {record['code']}: {record['detail']}")
        data = execute.output_path(run.directory, "screen", side).read_bytes()
        yield outputs.from_bytes(data, (made.logits.shape[0], made.logits.shape[1]), side).kept
