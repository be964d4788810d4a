"""The record of ``toppgate sweep`` to HTML fragments and text: cases by kernels, and which release brought which code.

Nothing is judged here.  The *lineage* is the list without its callables, which are no releases of the kernel.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from markupsafe import Markup

from toppgate import codes
from toppgate.errors import RunError
from toppgate.fragments import Record, fragment, spans


def read(directory: str) -> dict[str, Any]:
    """Return the record of a sweep's directory.  Raises ``RunError`` where there is none."""
    try:
        found = json.loads((Path(directory) / "ladder.json").read_bytes())
    except (OSError, ValueError) as error:
        raise RunError(f"{directory}: holds no ladder.json that can be read: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != "toppgate/ladder/1":
        raise RunError(f"{directory}: ladder.json: expected schema 'toppgate/ladder/1'")
    return found


def summary(record: Record) -> Markup:
    """Return one line a kernel: what it is, its verdict, how many rows pass, with a link to its run."""
    return fragment("ladder_kernels", record=record, kernels=[_line(kernel) for kernel in record["kernels"]])


def table(record: Record) -> Markup:
    """Return one line a case and one column a kernel: codes, and the largest differences from the oracle."""
    cases = [{**case, "cells": [_cell(kernel, case["id"]) for kernel in record["kernels"]]} for case in record["cases"]]
    return fragment("ladder_cases", record=record, cases=cases)


def history(record: Record) -> Markup:
    """Return, for each code, its rows kernel by kernel, and where along the lineage it comes and goes."""
    return fragment("ladder_codes", record=record, codes=list(_codes(record)), rows=list(_changes(record)))


def lines(record: Record) -> Iterator[str]:
    """Yield the record as text for a terminal."""
    for kernel in map(_line, record["kernels"]):
        stops = ", ".join(f"{code} {number}" for code, number in kernel["stops"].items()) or "no stop"
        said = f"{kernel['passed']} of {kernel['total']} rows pass"
        yield f"{kernel['id']:20} {kernel['verdict'] or 'stock':6} {said}; {stops}"
    for found in _codes(record):
        yield f"{found['code']}: {found['story']}"


def _line(kernel: Record) -> dict[str, Any]:
    stops = Counter(row["code"] for row in kernel["rows"] if row["code"] != codes.PASS)
    return {**kernel, "total": len(kernel["rows"]), "passed": len(kernel["rows"]) - stops.total(), "stops": dict(stops)}


def _cell(kernel: Record, case: str) -> dict[str, Any]:
    """Put one kernel's rows of one case together."""
    rows = [row for row in kernel["rows"] if row["case"] == case]
    stops = Counter(row["code"] for row in rows if row["code"] != codes.PASS)
    counted = [row["kept"] - row["kept_oracle"] for row in rows if None not in (row["kept"], row["kept_oracle"])]
    masses = [row["mass"] for row in rows if row["mass"] is not None]
    return {
        "kernel": kernel["id"],
        "linked": kernel["verdict"] is not None,
        "rows": len(rows),
        "stops": dict(stops),
        "least": min(counted, default=None),
        "most": max(counted, default=None),
        "mass": max(masses, default=None),
    }


# ---------------------------------------------------------------------------------------------- the lineage


def _lineage(record: Record) -> list[Record]:
    return [kernel for kernel in record["kernels"] if kernel["lineage"]]


def _codes(record: Record) -> Iterator[dict[str, Any]]:
    """Yield each code that is seen, in the order of ``codes``, with its rows in every kernel and its story."""
    seen = {row["code"] for kernel in record["kernels"] for row in kernel["rows"]}
    for code in (code for code in codes.SENTENCES if code in seen):
        count = {kernel["id"]: sum(row["code"] == code for row in kernel["rows"]) for kernel in record["kernels"]}
        along = [(kernel["id"], count[kernel["id"]]) for kernel in _lineage(record)]
        yield {"code": code, "rows": count, "story": _story(along)}


def _story(along: Sequence[tuple[str, int]]) -> str:
    """Say where a code comes and where it goes, kernel by kernel."""
    said = []
    for present, group in groupby(along, key=lambda item: item[1] > 0):
        first = next(group)[0]
        said.append(f"{'in' if present else 'gone from'} {first}{' on' if present else ''}")
    if said and said[0].startswith("gone"):
        said = said[1:]
    return ", ".join(said) or "in no release"


def _changes(record: Record) -> Iterator[dict[str, Any]]:
    """Yield the rows whose code changes along the lineage; rows of one case with the same story together."""
    lineage = _lineage(record)
    stories: dict[tuple[str, tuple[str, ...]], list[int]] = {}
    for rows in zip(*(kernel["rows"] for kernel in lineage), strict=True):
        story = tuple(row["code"] for row in rows)
        if len(set(story)) > 1:
            stories.setdefault((rows[0]["case"], story), []).append(rows[0]["row"])
    for (case, story), numbers in stories.items():
        steps = [
            {"code": code, "first": next(group)[0]["id"]}
            for code, group in groupby(zip(lineage, story, strict=True), key=lambda item: item[1])
        ]
        yield {"case": case, "rows": spans(numbers), "steps": steps}
