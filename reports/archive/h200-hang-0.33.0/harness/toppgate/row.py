"""One row of a run, with everything that is known of it, and the kernels that its params name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from toppgate import codes, evidence, gate, host, oracle, params, published, show, source
from toppgate.errors import RunError
from toppgate.fp32 import Float32
from toppgate.gate import Output
from toppgate.schema import Case, Params


@dataclass(frozen=True, eq=False)
class Row:
    """A row that was judged.

    Attributes
    ----------
    directory, params, case, number
        Where it is from.
    table
        Its object in ``rows.jsonl``.
    logits, p
        float32 [V] and fp32.
    reference
        The oracle's.
    outputs
        By side, ``stock`` and ``patch``.
    """

    directory: Path
    params: Params
    case: Case
    number: int
    table: Mapping[str, Any]
    logits: Float32 = field(repr=False)
    p: np.float32
    reference: oracle.Reference = field(repr=False)
    outputs: Mapping[str, Output] = field(repr=False)

    @property
    def code(self) -> str:
        """``pass`` or the stop code; on a probe, what was seen."""
        return str(self.table["observed"] or self.table["code"])

    @property
    def side(self) -> str:
        """The side that the row is about: stock where stock lost a token, else the patch."""
        return codes.side(self.code)

    @property
    def name(self) -> str:
        """Case and row, in words."""
        return f"{self.case.id} row {self.number}"

    def slices(self, side: str) -> int:
        """Return the slices that the side cut the row into.  Raises ``RunError`` where its text has no split plan."""
        count = None if self.case.slices is None else getattr(self.case.slices, side)
        if count is None:
            raise RunError(f"{self.name}: {side} has no split plan, so its search cannot be replayed")
        return int(count)


def find(directory: Path, case: str, number: int) -> Row:
    """Return a row of a run directory.

    Raises
    ------
    RunError
        There is no such row, or it was not judged: its evidence does not hold, it is not admissible, it was called with
        k, or its oracle has no certified boundary.
    """
    (table,) = show.rows(directory, case, number)
    frozen = params.read(directory / "params.yml")
    found = next(c for c in frozen.cases if c.id == case)
    held = evidence.gather(directory).case(found)
    name = f"{directory}: {case} row {number}"
    if held.code != codes.PASS or held.inputs is None or held.stock is None or held.patch is None:
        raise RunError(f"{name}: was not judged: {held.code}: {held.detail}")
    logits, p = held.inputs.logits[number], found.ps()[number]
    code = gate.admissible(logits, p)
    if code != codes.PASS or found.k is not None:
        raise RunError(f"{name}: is not taken apart: {code if code != codes.PASS else 'it was called with k'}")
    reference = oracle.reference(logits, p)
    if not reference.certified:
        raise RunError(f"{name}: is not taken apart: the oracle has no certified boundary")
    masks = {"stock": held.stock, "patch": held.patch}
    outputs = {side: Output(each.kept[number], each.altered(number), each.nan(number)) for side, each in masks.items()}
    return Row(directory, frozen, found, number, table, logits, p, reference, outputs)


def specs(checked: Params) -> dict[str, dict[str, Any]]:
    """Return the source specs of the kernels that params name: stock, patch, and the donor of picked hunks."""
    values = checked.values()
    found = {"stock": values["stock"], "patch": values["patch"]}
    return {**found, "donor": values["patch"]["donor"]} if "donor" in values["patch"] else found


def texts(checked: Params) -> dict[str, bytes]:
    """Return the kernels' texts by name, a donor that is stock or patch itself left out.

    Raises ``SourceError`` where one cannot be had.
    """
    found = {name: source.resolve(spec, published.cache()).data for name, spec in specs(checked).items()}
    sides = (found["stock"], found["patch"])
    return {name: text for name, text in found.items() if name != "donor" or text not in sides}


def provided(checked: Params) -> host.Host:
    """Return the host that params name.  Raises ``SourceError`` where it cannot be had."""
    return host.provide(checked.host.model_dump(exclude_unset=True), published.cache())
