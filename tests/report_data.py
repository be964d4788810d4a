"""Finished rows, verdicts, params and evidence for the tests of pages: made up, but consistent with the contract."""

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from toppgate import codes, oracle
from toppgate.neighbourhood import Neighbourhood, neighbourhood

Record = dict[str, Any]

#: id, role, rows, vocabulary, p, kept by the oracle in row 0.
CASES = (
    ("forced-1e4", "forced", 8, 32_000, 0.9, 1),
    ("control-torch-cpu-42", "control", 8, 32_000, 0.9, 7_000),
    ("control-normal-p50", "control", 8, 49_152, 0.5, 300),
    ("reproduction-scale1", "reproduction", 8, 32_000, 0.9, 18_000),
    ("smollm2-bf16", "ordinary", 8, 49_152, 0.95, 40),
    ("smollm2-p999", "ordinary", 8, 49_152, 0.999, 2_500),
    ("tied-plateau", "ordinary", 8, 1_024, 0.75, 12),
    ("probe-huge-finite", "probe", 4, 4_096, 0.9, 9),
)
EMPTY = dict.fromkeys(
    [
        *(
            "kept_oracle",
            "kept_stock",
            "kept_patch",
            "kept_sort",
            "symdiff_stock",
            "symdiff_patch",
            "symdiff_stock_patch",
        ),
        *("mass_stock", "mass_patch", "mass_stock_patch", "equal_stock", "equal_patch", "stock_code", "over_keep"),
        *("margin", "tie_group", "real_boundary", "real_ratio"),
        *("boundary_reach", "reach_margin", "reach_error", "oracle_ids_sha256"),
    ]
)


def digest(text: str) -> str:
    """Return 64 hex digits that depend on ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()


def make_rows(copies: int = 1, stop: bool = False) -> list[Record]:
    """Return 60 rows per copy in frozen order; with ``stop`` three ordinary rows of the first copy stop."""
    rows = [row for copy in range(copies) for case in CASES for row in _case_rows(case, copy)]
    if stop:
        for index, code in ((19, "patch_under_keep"), (38, "symmetric_difference_regression"), (50, "patch_hole")):
            rows[index] |= {"code": code, "symdiff_patch": 9, "equal_patch": False, "mass_patch": 3.25e-5}
        for row in rows[20:]:
            row["after_stop"] = True
        rows[50]["also"] = ["count_bound_exceeded"]
    return rows


def make_small_rows() -> list[Record]:
    """Return the rows of three small cases after the first stop; the middle one holds a probe and a stop."""
    names = (("tiny-tie", "ordinary", 1), ("tiny-pair", "probe", 2), ("tiny-last", "ordinary", 1))
    rows = [row for name, role, batch in names for row in _case_rows((name, role, batch, 16, 0.5, 3), 0)]
    rows[2] |= {"role": "ordinary", "code": "patch_hole", "observed": None, "equal_patch": False}
    return [row | {"after_stop": True} for row in rows]


def _case_rows(case: tuple[str, str, int, int, float, int], copy: int) -> Iterator[Record]:
    name, role, batch, _, p, kept = case
    for index in range(batch):
        head = {"case": name + (f"-{copy}" if copy else ""), "row": index, "role": role, "code": codes.PASS}
        head |= {"observed": codes.PASS, "also": [], "after_stop": False, "p_fp32": p}
        if role == "forced":
            yield head | EMPTY | {"kept_stock": 0, "kept_patch": 1, "kept_sort": 1}
            continue
        oracle = kept + 7 * index
        stock = (index * 5) % 8
        patch = min(stock, index % 3)
        judged: Record = {
            "kept_oracle": oracle,
            "kept_stock": oracle + stock,
            "kept_patch": oracle + patch,
            "kept_sort": oracle,
        }
        judged |= {"symdiff_stock": stock, "symdiff_patch": patch, "symdiff_stock_patch": abs(stock - patch)}
        judged |= {"mass_stock": stock * 1.0123456789e-6, "mass_patch": patch * 9.87654321e-7}
        judged |= {"mass_stock_patch": abs(stock - patch) * 1.1e-6, "equal_stock": not stock, "equal_patch": not patch}
        judged |= {
            "stock_code": "pass" if stock < 6 else "count_bound_exceeded",
            "over_keep": patch > 0,
            "tie_group": 1 + index % 2,
            "real_boundary": "equal",
            "real_ratio": 1.25e9 * (1 + index),
        }
        judged |= {
            "margin": {"below": 1.5e-5 / (1 + index), "above": 2.25e-6},
            "oracle_ids_sha256": digest(f"{name}{index}"),
        }
        yield head | judged | ({"observed": "stock_under_keep"} if role == "probe" else {})


def make_verdict(rows: list[Record]) -> Record:
    """Return the verdict that belongs to ``rows``."""
    stops = [{"case": row["case"], "row": row["row"], "code": row["code"]} for row in rows if row["code"] != codes.PASS]
    roles = [row["role"] for row in rows]
    counts = {"rows": len(rows)} | {role: roles.count(role) for role in ("forced", "control", "ordinary", "probe")}
    return {
        "schema": "toppgate/verdict/1",
        "run": "5d0c6b1e",
        "params": digest("params"),
        "harness": digest("harness"),
        "verdict": "STOP" if stops else "PASS",
        "first_stop": stops[0] if stops else None,
        "stops": stops,
        "counts": counts | {"passed": len(rows) - len(stops), "stopped": len(stops)},
        "envelope": {str(row["case"]): {"rows": 8, "largest": 2, "within": True} for row in rows},
        "unshared_stops": len(stops),
        "banners": ["Stock and patch were launched with different slices in case smollm2-p999."] if stops else [],
        "statement": codes.STATEMENT,
    }


def make_around(rows: list[Record]) -> dict[tuple[Any, Any], Neighbourhood]:
    """Return a neighbourhood for each stopped row: a real one, with a token lost and six more."""
    logits = np.linspace(4, -4, 400, dtype=np.float32).round(1)
    reference = oracle.reference(logits, np.float32(0.9))
    stock, patch = (np.zeros(logits.size, np.bool_) for _ in range(2))
    stock[reference.order[: reference.count + 2]] = True
    patch[reference.order[: reference.count + 6]] = True
    patch[reference.order[reference.count - 2]] = False
    around = neighbourhood(reference, logits, stock, patch)
    return {(row["case"], row["row"]): around for row in rows if row["code"] != codes.PASS}


def make_generator(forced: bool, rows: int, vocabulary: int) -> Record:
    """Return a generator of rows, as a params file has it."""
    normal = {"kind": "normal", "seed": "42", "scale": "4", "rows": rows, "vocabulary": vocabulary}
    return {"kind": "forced", "base": normal, "token": 17, "value": "10000"} if forced else normal


def make_params(title: str = "vLLM 0.31.0 against PR #58231") -> Record:
    """Return frozen params whose cases are those of ``make_rows()``."""
    cases = [
        {
            "id": name,
            "role": role,
            "p": str(p),
            "p_bits": "3f666666",
            "rows": make_generator(role == "forced", batch, vocabulary),
            "shape": [batch, vocabulary],
            "slices": {"stock": 2, "patch": 2},
            "input": digest(name),
            "about": "The earlier retained local case: not supplied." if role == "reproduction" else None,
        }
        for name, role, batch, vocabulary, p, _ in CASES
    ]
    sides = {side: {"kind": "file", "sha256": digest(side)} for side in ("stock", "patch")}
    frozen = {"sha256": digest("frozen")}
    limits = {"vocabulary": 262_144, "batch": 65, "seconds": 600}
    return {
        "title": title,
        "device": "interpreter",
        "repeat": 2,
        "cases": cases,
        "limits": limits,
        "frozen": frozen,
    } | sides


def make_evidence() -> Record:
    """Return evidence of a run whose params file was not committed."""
    stock = {
        "describe": "vllm 0.31.0, vllm/v1/sample/ops/topk_topp_triton.py",
        "sha256": digest("stock"),
        "blob": "1" * 40,
    }
    patch = {"describe": "vllm 0.31.0 with 3 hunks towards 0.33.0", "sha256": digest("patch"), "blob": "d3e38fc6" * 5}
    return {
        "git": {"revision": "34af7a4" + "0" * 33, "dirty": True, "params_path": None},
        "environments": [{"python": "3.11.7", "torch": "2.13.0", "triton": "3.7.1", "device": "cpu"}],
        "sources": {"stock": stock, "patch": patch, "hunks": [digest("a"), digest("b"), digest("c")]},
        "host": {"package": "vllm 0.31.0", "stand_ins": []},
        "seconds": {"capture": 1.25, "execute": 412.5, "gate": 9.75},
    }
