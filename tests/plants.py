"""Outputs planted behind real kernels: the plants of data/rows.json that only an output can carry, and some more."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pipeline

from toppgate import digests, inputs
from toppgate.schema import Case

ROWS = {row["id"]: row for row in json.loads((Path(__file__).parent / "data/rows.json").read_text())["cases"]}


@dataclass(frozen=True)
class Plant:
    """One row and what is planted in its output: ids that a side keeps, and values given as fp32 bits.

    ``stock`` and ``patch`` are None where the side returns the right answer; ``values`` belong to the other one.
    """

    code: str
    row: str
    stock: tuple[int, ...] | None = None
    patch: tuple[int, ...] | None = None
    values: tuple[tuple[int, int], ...] = ()
    token: int | None = None
    calls: tuple[int, ...] = (1, 2)
    probe: str | None = None


NAN, INFINITE, LARGE, ZERO = 0x7FC00000, 0x7F800000, 0xF149F2CA, 0
ULP_MORE = int(np.float32(np.nextafter(np.float32(2), np.float32(3))).view(np.uint32))

#: By the plant's id in data/rows.json where it has one.  H01 is cut to 64 tokens; the answer does not depend on it.
PLANTS = {
    "P01": Plant("patch_hole", "H14", patch=(0, 1, 3)),
    "P02": Plant("patch_noncanonical_tie", "H04", patch=(0, 1, 2, 4)),
    "P03": Plant("probe_unexpected", "H14", probe="nonfinite_logits"),
    "H01p1": Plant("forced_all_masked", "H01a1", patch=(), token=13),
    "H01p2": Plant("forced_nan", "H01a1", patch=(), values=((13, NAN),), token=13),
    "H01p3": Plant("forced_token_dropped", "H01a1", patch=(0,), token=13),
    "H01p4": Plant("forced_extra_tokens", "H01c", patch=(0, 1), token=0),
    "H01-altered": Plant("output_altered", "H01a1", patch=(13,), values=((5, ZERO),), token=13),
    "H02p1": Plant("forced_argmax_wrong", "H02b", patch=(0, 1), token=1),
    "H02p2": Plant("forced_token_dropped", "H02a", patch=(0,), token=1),
    "H03p": Plant("symmetric_difference_regression", "H03b", patch=(0, 1, 2)),
    "H06p1": Plant("stock_under_keep", "H06b", stock=()),
    "H06p2": Plant("patch_under_keep", "H06b", patch=()),
    "H07p": Plant("count_bound_exceeded", "H07", stock=tuple(range(11)), patch=tuple(range(11))),
    "H09p": Plant("stock_under_keep", "H09", stock=(0,)),
    "H14p": Plant("patch_under_keep", "H14", patch=(0, 1)),
    "H16a": Plant("nonfinite_logits", "H16a"),
    "H16p": Plant("output_altered", "H16b", patch=(), values=((0, NAN), (1, NAN), (2, NAN))),
    "H23p": Plant("output_nondeterministic", "H14", patch=(0, 1, 2, 3), calls=(2,)),
    "H28p1": Plant("output_altered", "H14", patch=(0, 1, 2), values=((3, ZERO),)),
    "nan": Plant("output_altered", "H09", patch=(0, 1), values=((3, NAN),)),
    "infinite": Plant("output_altered", "H09", patch=(0, 1), values=((3, INFINITE),)),
    "large": Plant("output_altered", "H09", patch=(0, 1), values=((3, LARGE),)),
    "ulp": Plant("output_altered", "H04", patch=(1, 2, 3), values=((0, ULP_MORE),)),
    "stock-ulp": Plant("output_altered", "H04", stock=(1, 2, 3), values=((0, ULP_MORE),)),
}

PLANTING = """
import hashlib as _hashlib

_PLANTS = {plants!r}
_CALLS = {{}}
_kernels = _apply_topp_split


def _apply_topp_split(logits, k, p, mask_value, num_sm):
    given = logits.clone()
    key = _hashlib.sha256(given.numpy().tobytes() + p.numpy().tobytes()).hexdigest()
    _CALLS[key] = _CALLS.get(key, 0) + 1
    _kernels(logits, k, p, mask_value, num_sm)
    if key in _PLANTS and _CALLS[key] in _PLANTS[key]["calls"]:
        logits[0] = mask_value
        for token in _PLANTS[key]["kept"]:
            logits[0, token] = given[0, token]
        bits = logits.view(torch.int32)
        for token, value in _PLANTS[key]["values"]:
            bits[0, token] = value - 2**32 if value >= 2**31 else value
"""


def numbers(name: str) -> list[float | str]:
    """Return the logits of a row of data/rows.json; a row of H01a1 is cut after 64 tokens."""
    logits = ROWS[name]["logits"]
    if isinstance(logits, list):
        return list(logits)
    made: list[float | str] = []
    for part in logits["concat"]:
        if "linspace" in part:
            start, stop, count = part["linspace"]
            made += [start + (stop - start) * i / (count - 1) for i in range(min(count, 64))]
        else:
            made += [part["value"]] * min(part["repeat"], 512)
    return made[:64] if name == "H01a1" else made


def planted_case(name: str, plant: Plant) -> dict[str, Any]:
    """Return a plant's case; one more token, of weight 0, makes each case's bytes its own."""
    role = "probe" if plant.probe else "ordinary" if plant.token is None else "forced"
    more = {"token": plant.token} if plant.token is not None else {"expect": plant.probe} if plant.probe else {}
    row = [*numbers(plant.row), -20000.0 - list(PLANTS).index(name)]
    return pipeline.case(name, role, pipeline.literal(row), ROWS[plant.row]["p"], **more)


def kept(plant: Plant, side: str) -> tuple[int, ...]:
    """Return the ids that a side keeps: what is planted there, or the right answer."""
    planted = plant.stock if side == "stock" else plant.patch
    if planted is not None:
        return planted
    answer = ROWS[plant.row]["expect"]
    return tuple(answer.get("kept") or (i for first, last in answer["kept_ranges"] for i in range(first, last)))


def planting(side: str) -> str:
    """Return the lines that go behind a side's kernels."""
    plan = {}
    for name, plant in PLANTS.items():
        made = inputs.generate(Case.model_validate(planted_case(name, plant)))
        key = digests.sha256(made.logits.tobytes() + made.p.tobytes())
        if plant.row == "H16a":
            continue
        own = plant.values if (plant.stock is None) == (side == "patch") else ()
        calls = plant.calls if (plant.stock if side == "stock" else plant.patch) is not None else (1, 2)
        plan[key] = {"kept": kept(plant, side), "values": own, "calls": calls}
    return PLANTING.format(plants=plan)
