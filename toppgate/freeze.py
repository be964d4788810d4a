"""``toppgate freeze``: resolves and writes every digest of a params file, before anything is executed.

What can be derived is: digests, shapes, slices, fp32 bits, and the seed of a case with ``select``.  Nothing else that a
draft says is changed, and the pins of its sources, host and captured files are checked (contract, section 3).
"""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from toppgate import digests, execute, fp32, host, hunks, inputs, outputs, params, published, source
from toppgate.errors import InputError, ParamsError, SourceError
from toppgate.order import canonical_rows
from toppgate.schema import CALLABLE, CALLABLE_PATH, SPLIT_PATH, Case, Launches, Params
from toppgate.source import Plan, Source
from toppgate.stage import Run

#: While a reproduction row is searched for, by device: seeds in one launch, and launches a worker makes.  A GPU's plan
#: depends on the batch, so there each seed is launched alone, as it will be in its case.
SCREENED = {"interpreter": (8, 16), "cuda": (1, 512)}


@dataclass(frozen=True)
class Sources:
    """The two sides' sources."""

    stock: Source
    patch: Source

    @cached_property
    def plans(self) -> dict[str, Plan | None]:
        """Each side's own split plan."""
        return {side: source.plan(getattr(self, side).data) for side in execute.SIDES}


def freeze(path: Path) -> Params:
    """Rewrite a params file with every digest in place, and return it.

    Side effects: replaces ``path``; its comments are not kept (``notes`` and ``about`` are for prose).  A case with
    ``select`` runs both kernels over the declared seeds until their masks differ, but for a file that is frozen and
    unedited: its seeds stand, and anything that comes out otherwise than it was frozen is refused.
    Raises ``ParamsError``, ``SourceError``, ``InputError``.
    """
    draft = params.read_draft(path)
    values = draft.values()
    sources = Sources(*(source.resolve(values[side], published.cache()) for side in execute.SIDES))
    for side in execute.SIDES:
        _check_text(f"{path}: {side}: {source.describe(values[side])}", getattr(sources, side))
    values |= {side: pinned(values[side], getattr(sources, side)) for side in execute.SIDES}
    values["change"] = change_of(sources)
    values["host"]["tree"] = host.provide(values["host"], published.cache()).sha256
    values["path"] = {side: path_of(values[side], getattr(draft.path, side)) for side in execute.SIDES}
    values["cases"] = [case_of(case, sources, values) for case in draft.cases]
    values["frozen"] = params.freeze_digest(in_order(values))
    frozen = params.check(in_order(values), str(path))
    params.check_frozen(frozen, str(path))
    if draft.frozen is not None and draft.frozen.model_dump() != values["frozen"]:
        first = params.first_difference(draft.frozen.model_dump(), values["frozen"])
        raise ParamsError(f"{path}: {first} comes out otherwise than it was frozen; to freeze it anew, drop frozen")
    replace(path.resolve(), params.dump(frozen))
    return frozen


def _check_text(name: str, found: Source) -> None:
    try:
        source.plan(found.data)
    except SourceError as error:
        raise ParamsError(f"{name}: {error}") from None


def replace(path: Path, data: bytes) -> None:
    """Replace a file as a whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    except OSError as error:
        raise ParamsError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with suppress(OSError):
            partial.unlink()


def in_order(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a params file's values in the order of its keys."""
    return {name: values[name] for name in Params.model_fields if name in values}


def pinned(spec: dict[str, Any], found: Source) -> dict[str, Any]:
    """Return a source spec with its pin."""
    return {**spec, "sha256": found.sha256}


def path_of(spec: Mapping[str, Any], drafted: list[Launches]) -> list[dict[str, Any]]:
    """Return the launch path of a side: as drafted, unless that is another kind of source's."""
    path = [launches.model_dump(mode="json") for launches in drafted]
    function = spec["kind"] == "callable"
    names = [each["kernel"] for each in path for _ in range(each["times"])]
    calls = [at for at, name in enumerate(names) if name == CALLABLE]
    fits = calls == ([0] if function else [])
    return path if fits else CALLABLE_PATH if function else SPLIT_PATH


def change_of(sources: Sources) -> dict[str, Any]:
    """Return the diff from stock to patch, hunk by hunk.  Raises ``ParamsError`` for a patch that changes nothing."""
    if sources.stock.sha256 == sources.patch.sha256:
        raise ParamsError("patch_drift: stock and patch are the same file")
    found = hunks.diff(sources.stock.data.decode(), sources.patch.data.decode())
    return {"sha256": hunks.digest(found), "hunks": [hunk.sha256 for hunk in found]}


def case_of(case: Case, sources: Sources, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case's values with shape, bits, slices and input digest; finds the seed first where one is declared.

    Raises ``ParamsError``, ``SourceError``, ``InputError``.
    """
    found = case.model_dump(mode="json", exclude_unset=True)
    if case.select is not None and "seed" not in found["rows"]:
        found |= _selected(case, values)
    found["rows"] = _with_bits(found["rows"], f"cases[{case.id}].rows")
    bits = fp32.decimal_bits
    found["p_bits"] = list(map(bits, case.p)) if isinstance(case.p, list) else bits(case.p)
    made = inputs.generate(Case.model_validate(found))
    rows, vocabulary = made.logits.shape
    units = case.compute_units or values["compute_units"]
    slices = {side: plan and plan(rows, vocabulary, units) for side, plan in sources.plans.items()}
    found |= {"shape": [rows, vocabulary], "slices": slices, "input": made.sha256}
    return {name: found[name] for name in Case.model_fields if name in found}


def _with_bits(rows: dict[str, Any], where: str) -> dict[str, Any]:
    """Put fp32 bits beside each literal, and a file's digest beside its path unless it is pinned there already."""
    kind = rows["kind"]
    if kind == "forced":
        base = _with_bits(rows["base"], f"{where}.base")
        return {**rows, "base": base, "value_bits": fp32.decimal_bits(rows["value"])}
    if kind == "file":
        return {**rows, "sha256": rows.get("sha256") or _file_digest(rows["path"], where)}
    if kind == "literal":
        return {**rows, "rows": [[_part_bits(part) for part in row] for row in rows["rows"]]}
    return rows


def _file_digest(path: str, where: str) -> str:
    try:
        return digests.sha256(inputs.read(Path(path), path))
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _part_bits(part: dict[str, Any]) -> dict[str, Any]:
    """Ranges are computed in binary64, so only written values have bits of their own; the input's digest pins all."""
    numbers = part.get("numbers") or ([part["value"]] if "value" in part else [])
    bits = [fp32.decimal_bits(text) for text in numbers]
    return {**part, "bits": bits} if bits else part


# ---------------------------------------------------------------------------------------------- the seed sequence


def _selected(case: Case, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first declared seed whose stock and patched masks differ, and the record of those passed over.

    Masks are compared; the oracle is not run (contract, section 6, Roles).  Under the interpreter several seeds are
    screened in one launch, with as many slices a row as the case itself has; the kernels' own masks of the case decide.
    """
    rows = case.rows.model_dump(mode="json", exclude_unset=True)
    if rows["kind"] != "normal" or rows["rows"] != 1 or case.select is None:
        raise ParamsError(f"cases[{case.id}].select: expected rows of kind normal with rows: 1")
    first, units = int(case.select.first), case.compute_units or values["compute_units"]
    every = range(first, first + case.select.at_most)
    together, launches = SCREENED[values["device"]]
    for start in range(0, len(every), launches * together):
        chunk = every[start : start + launches * together]
        groups = [list(chunk[at : at + together]) for at in range(0, len(chunk), together)]
        for seed in _differing(case, values, groups, units):
            if _differing(case, values, [[seed]], units):
                found = {"rows": {"kind": "normal", "seed": str(seed), **{k: rows[k] for k in rows if k != "kind"}}}
                return {**found, "selected_by": _record(first, seed)}
    raise ParamsError(f"cases[{case.id}].select: the masks agree on all of {len(every)} seeds from {first}")


def _record(first: int, seed: int) -> str:
    over = f"seeds {first} to {seed - 1} were passed over" if seed > first else "no seed was passed over"
    return f"the first seed from {first} on whose stock and patched masks differ, oracle not run; {over}"


def _differing(case: Case, values: Mapping[str, Any], groups: list[list[int]], units: int) -> list[int]:
    """Run both kernels over one row a seed, a launch a group, and return the seeds whose masks differ."""
    with tempfile.TemporaryDirectory(prefix="toppgate-") as scratch:
        directory = Path(scratch)
        (directory / "inputs").mkdir()
        cases = []
        for seeds in groups:
            drawn = [inputs.generate(_seeded(case, seed)) for seed in seeds]
            made = inputs.Inputs(np.concatenate([d.logits for d in drawn]), np.concatenate([d.p for d in drawn]))
            cases.append(_screen(case, made, seeds, units))
            inputs.save(made, directory / "inputs" / f"{cases[-1]['id']}.safetensors")
        kept = {key: values[key] for key in values if key not in {"cases", "frozen"}}
        run = Run(directory, Params.model_validate(in_order({**kept, "cases": cases})), "", "", "screen")
        provided = host.provide(values["host"], published.cache())
        execute.run_sides(run, provided, time.monotonic() + run.params.limits.total_seconds)
        return [seed for seeds, c in zip(groups, run.params.cases, strict=True) for seed in _seeds(run, c, seeds)]


def _seeded(case: Case, seed: int) -> Case:
    values = case.model_dump(mode="json", exclude_unset=True)
    return Case.model_validate({**values, "rows": {**values["rows"], "seed": str(seed)}})


def _screen(case: Case, made: inputs.Inputs, seeds: list[int], units: int) -> dict[str, Any]:
    """Return a case over rows drawn elsewhere: only its id, shape, p and input digest matter."""
    rows = {"kind": "normal", "seed": "0", "scale": "1", "rows": len(made.p), "vocabulary": made.logits.shape[1]}
    named = {"id": f"screen-{seeds[0]}", "role": "ordinary", "rows": rows, "p": case.p}
    return {**named, "compute_units": units * len(seeds), "shape": list(made.logits.shape), "input": made.sha256}


def _seeds(run: Run, case: Case, seeds: list[int]) -> Iterator[int]:
    stock, patch = (_kept(run, case, side) for side in execute.SIDES)
    for seed, a, b in zip(seeds, stock, patch, strict=True):
        if not np.array_equal(a, b):
            yield seed


def _kept(run: Run, case: Case, side: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    path = execute.output_path(run.directory, case.id, side)
    held = inputs.from_bytes((run.directory / "inputs" / f"{case.id}.safetensors").read_bytes(), case.id)
    if not path.is_file():
        raise ParamsError(f"cases[{case.id}]: {side} delivered no masks to compare")
    return outputs.from_bytes(path.read_bytes(), canonical_rows(held.logits), path.name).kept
