"""Rules across the keys of a params file: what its schema cannot say (contract, sections 3 and 6).

A draft is held to them as far as it goes: what only ``toppgate freeze`` knows, it holds to them once it is known.
"""

import math
from collections.abc import Iterator
from typing import Any

from toppgate import codes, fp32
from toppgate.schema import Captured, Case, Forced, Limits, Normal, Params, Part, Written

#: Batches over this many rows do not take the split path: for probes only (contract, section 6).
SPLIT_BATCH = 64

#: No case is larger, whatever a file's own limits say, so that a mistyped size is refused and not allocated: 1 GiB.
MOST_VALUES = 2**28


def problems(params: Params) -> Iterator[str]:
    """Yield one line for each rule that is broken, beginning with the key; lazily, sizes before what needs them."""
    yield from _id_problems(params)
    for case in params.cases:
        yield from (f"cases[{case.id}].{problem}" for problem in _size_problems(case, params.limits))
    rows = sum(size(case)[0] or 0 for case in params.cases)
    if rows > params.limits.rows:
        yield f"limits.rows: got {rows} rows in all cases, expected at most {params.limits.rows}"
    for case in params.cases:
        yield from (f"cases[{case.id}].{problem}" for problem in _case_problems(case))


def size(case: Case) -> tuple[int | None, int | None]:
    """Return rows and vocabulary of a case, as frozen or as its rows say; None for what only a captured file says."""
    return (case.shape[0], case.shape[1]) if case.shape is not None else _declared(case.rows)


def base(case: Case) -> Normal | Captured | Written:
    """Return what a case's rows are made from, before a token is forced."""
    return case.rows.base if isinstance(case.rows, Forced) else case.rows


def _id_problems(params: Params) -> Iterator[str]:
    """Ids name files, and a file system may not tell upper case from lower case."""
    seen: dict[str, str] = {}
    for case in params.cases:
        name = case.id.lower()
        if name in seen:
            yield f"cases[{case.id}].id: stands twice, as {seen[name]} before; expected ids that differ in letters"
        seen[name] = case.id


# ---------------------------------------------------------------------------------------------- sizes


def _size_problems(case: Case, limits: Limits) -> Iterator[str]:
    """A case over a frozen limit is refused, unless it is there to be refused."""
    rows, vocabulary = size(case)
    written = base(case)
    if isinstance(written, Written):
        lengths = [sum(map(_length, row)) for row in written.rows]
        if len(set(lengths)) > 1:
            yield f"rows.rows: got lengths {lengths}, expected one length"
    for got, expected, what in zip((rows, vocabulary), _declared(case.rows), ("rows", "tokens"), strict=True):
        if got is not None and expected not in (None, got):
            yield f"shape: got {got} {what}, expected {expected}"
    if case.stride is not None and vocabulary is not None and case.stride <= vocabulary:
        yield f"stride: got {case.stride}, expected more than the {vocabulary} tokens of a row, or none"
    if (rows or 1) * max(vocabulary or 1, case.stride or 1) > MOST_VALUES:
        yield f"rows: got {rows} rows of {vocabulary} tokens, expected at most {MOST_VALUES} values in a case"
    if set(_listed(case.expect)) == {"limit_exceeded"}:
        return
    if vocabulary is not None and vocabulary > limits.vocabulary:
        yield f"rows: vocabulary {vocabulary}, expected at most limits.vocabulary {limits.vocabulary}"
    if rows is not None and rows > limits.batch:
        yield f"rows: batch {rows}, expected at most limits.batch {limits.batch}"


def _declared(rows: Normal | Captured | Written | Forced) -> tuple[int | None, int | None]:
    if isinstance(rows, Normal):
        return rows.rows, rows.vocabulary
    if isinstance(rows, Captured):
        return None if rows.rows is None else (rows.rows[1] - rows.rows[0]) * rows.tile, None
    if isinstance(rows, Written):
        return len(rows.rows) * rows.copies, sum(map(_length, rows.rows[0]))
    return _declared(rows.base)


def _length(part: Part) -> int:
    if part.numbers is not None:
        return len(part.numbers)
    if part.linspace is not None:
        return part.linspace[2]
    return part.affine.count if part.affine is not None else part.repeat or 0


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


# ---------------------------------------------------------------------------------------------- one case


def _case_problems(case: Case) -> Iterator[str]:
    rows = size(case)[0]
    yield from _base_problems(base(case))
    yield from _seed_problems(case)
    yield from _forced_problems(case)
    for key in ("role", "p", "p_bits", "token", "expect"):
        value = getattr(case, key)
        if isinstance(value, list) and rows is not None and len(value) != rows:
            yield f"{key}: got {len(value)} values, expected one, or one for each of {rows} rows"
    roles = set(_listed(case.role))
    if case.k is not None and roles != {"probe"}:
        yield f"k: got {case.k}, expected none: a call with k is allowed on probes only"
    if rows is not None and rows > SPLIT_BATCH and roles != {"probe"}:
        yield f"rows: batch {rows}, expected at most {SPLIT_BATCH}: a larger one leaves the split path, for probes only"
    if case.selected_by == "hunt" and "control" in roles:
        yield "selected_by: got hunt, expected no control among the roles, since it comes from a hunt"
    if rows is not None:
        yield from _row_problems(case, rows)


def _base_problems(rows: Normal | Captured | Written) -> Iterator[str]:
    if isinstance(rows, Normal):
        scale = fp32.binary64(rows.scale)
        if not math.isfinite(scale) or _significant_bits(scale) > 16:
            yield f"rows.scale: got {rows.scale}, expected a number of at most 16 significant bits"
    elif isinstance(rows, Captured):
        if rows.rows is not None and not rows.rows[0] < rows.rows[1]:
            yield f"rows.rows: got {rows.rows}, expected [first, after the last]"
        if rows.rows is None and rows.tile > 1:
            yield f"rows.tile: got {rows.tile} without rows, expected rows: [first, after the last]"
    else:
        for number, parts in enumerate(rows.rows):
            yield from (f"rows.rows[{number}].{problem}" for part in parts for problem in _bits_problems(part))


def _significant_bits(value: float) -> int:
    numerator = abs(value.as_integer_ratio()[0])
    return (numerator // (numerator & -numerator)).bit_length() if numerator else 0


def _bits_problems(part: Part) -> Iterator[str]:
    """Ranges are computed in binary64, so only written values have bits of their own."""
    written = part.numbers or ([part.value] if part.value is not None else [])
    expected = [fp32.decimal_bits(text) for text in written]
    if part.bits is not None and part.bits != expected:
        yield f"bits: got {part.bits[:4]}, expected {expected[:4] or 'none beside a range'}"


def _seed_problems(case: Case) -> Iterator[str]:
    rows = base(case)
    if isinstance(rows, Normal) and rows.seed is None and case.select is None:
        yield "rows.seed: got nothing, expected a seed, or select with a seed sequence"
    if case.select is None:
        return
    if not isinstance(case.rows, Normal) or case.rows.rows != 1:
        yield "select: expected rows of kind normal, with rows: 1"
    if int(case.select.first) + case.select.at_most > 2**128:
        yield f"select: got {case.select.at_most} seeds from {case.select.first}, expected seeds below 2**128"


def _forced_problems(case: Case) -> Iterator[str]:
    if not isinstance(case.rows, Forced):
        return
    vocabulary, bits = size(case)[1], fp32.decimal_bits(case.rows.value)
    if vocabulary is not None and case.rows.token >= vocabulary:
        yield f"rows.token: got {case.rows.token}, expected a token below {vocabulary}"
    if case.rows.value_bits not in (None, bits):
        yield f"rows.value_bits: got {case.rows.value_bits}, expected {bits}"


# ---------------------------------------------------------------------------------------------- one row


def _row_problems(case: Case, rows: int) -> Iterator[str]:
    keys = ("role", "p", "p_bits", "token", "expect")
    role, p, bits, token, expect = (_each(getattr(case, key), rows) for key in keys)
    if isinstance(case.rows, Forced) and case.token is None:
        token = [case.rows.token] * rows
    for row in range(rows):
        found = (
            _p_problem(role[row], p[row]),
            _p_bits_problem(p[row], bits[row]),
            _token_problem(role[row], token[row], size(case)[1]),
            _expect_problem(role[row], expect[row]),
        )
        yield from (f"{problem[0]}, row {row}: got {problem[1]}" for problem in found if problem is not None)


def _each(value: Any, rows: int) -> list[Any]:
    return value if isinstance(value, list) else [value] * rows


def _p_problem(role: str, text: str) -> tuple[str, str] | None:
    p = fp32.rounded(fp32.binary64(text))
    if role == "probe" or 0.0 < p < 1.0:
        return None
    return "p", f"{text}, which is {p} in fp32, expected 0 < p < 1 there (invalid_p) on a row that is not a probe"


def _p_bits_problem(text: str, bits: str | None) -> tuple[str, str] | None:
    expected = fp32.decimal_bits(text)
    return None if bits in (None, expected) else ("p_bits", f"{bits}, expected {expected}")


def _token_problem(role: str, token: int | None, vocabulary: int | None) -> tuple[str, str] | None:
    if role != "forced" or (token is not None and (vocabulary is None or token < vocabulary)):
        return None
    below = "" if vocabulary is None else f" below {vocabulary}"
    return "token", f"{_shown(token)}, expected a token{below} on a forced row"


def _expect_problem(role: str, expect: str | None) -> tuple[str, str] | None:
    if role != "probe":
        return None if expect is None else ("expect", f"{expect}, expected none on a row that is not a probe")
    if expect in codes.PROBE_CODES:
        return None
    return "expect", f"{_shown(expect)}, expected one of {', '.join(codes.PROBE_CODES)} on a probe"


def _shown(value: Any) -> str:
    return "nothing" if value is None else str(value)
