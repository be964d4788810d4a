"""The rules for one row: values in, stop codes out (contract, section 6).

The gate is pure and knows neither the oracle nor the kernels: it is given a boundary and two outputs by value.
Every rule is stated as what must hold, so a NaN, an empty set or a missing certificate fails.

A row's *findings* are the codes of all rules that fail, in the order of the rules; the first decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from toppgate import codes

Logits = npt.NDArray[np.float32]
Kept = npt.NDArray[np.bool_]
Order = npt.NDArray[np.int32]

#: Rule 6 (contract, section 6): a count difference of at most 3 is accepted, and so is one strictly below
#: 0.005 of the oracle's count, that is 1/200, in integers.
COUNT_SLACK: Final = 3
COUNT_RATIO: Final = 200


@dataclass(frozen=True, eq=False)
class Output:
    """One row of one side's output.

    Attributes
    ----------
    kept : bool [V]
        Where the output is finite and bit-identical to the input logit.  Not copied.
    altered : int
        How many entries are neither kept nor −inf.
    nan : bool
        Whether one of them is a NaN.

    Raises ``ValueError`` if ``kept`` is no non-empty bool vector, or the three do not fit together.
    """

    kept: Kept
    altered: int = 0
    nan: bool = False

    def __post_init__(self) -> None:
        _check_vector("kept", self.kept, np.bool_)
        masked = self.kept.size - self.size
        if not int(self.nan) <= self.altered <= masked:
            raise ValueError(f"altered: {self.altered}, expected {int(self.nan)} (nan is {self.nan}) to {masked}")

    @property
    def size(self) -> int:
        """How many tokens are kept."""
        return int(np.count_nonzero(self.kept))


@dataclass(frozen=True, eq=False)
class Boundary:
    """What the oracle says about one row, by value: its kept set is ``order[:count]``.

    Attributes
    ----------
    order : int32 [V]
        Token ids by (logit descending, id ascending).  Not copied.
    count : int
        Size of the oracle's prefix; 0 where its scan never reached the target.
    certified : bool
        Whether the oracle's scan and its certificate agree (contract, section 5).

    Raises ``ValueError`` if ``order`` is no int32 permutation, ``count`` is not in 0..V, or ``certified`` is no bool.
    """

    order: Order
    count: int
    certified: bool

    def __post_init__(self) -> None:
        _check_vector("order", self.order, np.int32)
        if not np.array_equal(np.sort(self.order), np.arange(self.order.size)):
            raise ValueError(f"order: expected each of the ids 0 to {self.order.size - 1} once")
        if not 0 <= self.count <= self.order.size:
            raise ValueError(f"count: {self.count}, expected 0 to {self.order.size}")
        # A NaN is truthy, so what is no bool may not stand for a certificate.
        if not isinstance(self.certified, bool):
            raise ValueError(f"certified: {self.certified!r}, expected True or False")

    @property
    def usable(self) -> bool:
        """Whether outputs can be judged against it: certified, and the prefix is not empty."""
        return self.certified and self.count >= 1

    @property
    def kept(self) -> Kept:
        """The oracle's kept set, bool [V], a new array."""
        kept = np.zeros(self.order.size, dtype=np.bool_)
        kept[self.order[: self.count]] = True
        return kept


@dataclass(frozen=True)
class Judged:
    """One row's codes.

    Attributes
    ----------
    code : str
        ``pass`` or the stop code that decides.
    observed : str or None
        On a probe, the code that was seen; otherwise None.
    also : tuple of str
        On an ordinary row, the codes of the later rules that fail too, in rule order.
    stock_code : str or None
        What stock alone would get: the forced checks on a forced row, rules 4 to 6 on an ordinary one, under the
        same names (there, ``patch_hole`` speaks of stock); None where stock was not judged.
    """

    code: str
    observed: str | None = None
    also: tuple[str, ...] = ()
    stock_code: str | None = None


@dataclass(frozen=True)
class Comparison:
    """The row table's counts and equalities: reported, never deciding.

    None where nothing can be said: what needs the oracle, if its boundary is not usable.  An altered entry counts as
    not kept.

    Attributes
    ----------
    kept_oracle, kept_stock, kept_patch : int
        Sizes of the kept sets, in tokens.
    symdiff_stock, symdiff_patch, symdiff_stock_patch : int
        |stock Δ oracle|, |patch Δ oracle|, |stock Δ patch|, in tokens.
    equal_stock, equal_patch : bool
        Whether the set is the oracle's.
    prefix_stock, prefix_patch : bool
        Whether the set is a canonical prefix; the empty set is one.
    """

    kept_oracle: int | None
    kept_stock: int
    kept_patch: int
    symdiff_stock: int | None
    symdiff_patch: int | None
    symdiff_stock_patch: int
    equal_stock: bool | None
    equal_patch: bool | None
    prefix_stock: bool
    prefix_patch: bool


def admissible(logits: Logits, p: np.float32) -> str:
    """Return ``pass``, or the code with which a row is rejected before anything else is looked at.

    Parameters
    ----------
    logits : float32 [V]
        Every one must be finite, else ``nonfinite_logits``.
    p : numpy.float32
        Must be strictly between 0 and 1, else ``invalid_p``.  The type is checked because the rule is about p after
        its conversion: decimal 0.99999999 is 1 in fp32.

    Raises ``ValueError`` if ``logits`` is no non-empty float32 vector, or ``p`` is no ``numpy.float32``.
    """
    _check_vector("logits", logits, np.float32)
    if not isinstance(p, np.float32):
        raise ValueError(f"p: {p!r}, expected a numpy.float32")
    return _first(_failed({"nonfinite_logits": bool(np.isfinite(logits).all()), "invalid_p": bool(0 < p < 1)}))


def judge_forced(logits: Logits, token: int, *, stock: Output, patch: Output) -> Judged:
    """Return a forced row's codes: the patch is judged, stock's outcome is shown beside it.

    Parameters
    ----------
    logits : float32 [V]
        Finite; ``admissible`` comes first.
    token : int
        The forced token's id.  That its logit is the largest is not checked.
    stock, patch : Output
        The two sides' rows.

    Raises ``ValueError`` if shapes, dtypes or the token do not fit, or a logit is not finite.
    """
    _check_row(logits, stock, patch)
    if not 0 <= token < logits.size:
        raise ValueError(f"token: {token}, expected 0 to {logits.size - 1}")
    return Judged(
        code=_first(_forced_findings(logits, token, patch)),
        stock_code=_first(_forced_findings(logits, token, stock)),
    )


def judge_ordinary(logits: Logits, boundary: Boundary, *, stock: Output, patch: Output) -> Judged:
    """Return the codes of a control, reproduction or ordinary row: rules 1 to 7, in their order.

    Without a usable boundary rules 3 to 7 have nothing to say.  Where stock lost an oracle token, rule 7 is
    not evaluated.  An altered entry counts as not kept.

    Parameters
    ----------
    logits : float32 [V]
        Finite; ``admissible`` comes first.
    boundary : Boundary
        The oracle's answer.  That ``order`` is the canonical order of ``logits`` is checked, ``count`` is trusted.
    stock, patch : Output
        The two sides' rows.

    Raises ``ValueError`` if shapes or dtypes do not fit, a logit is not finite, or the order is not canonical.
    """
    _check_row(logits, stock, patch)
    _check_canonical(logits, boundary.order)
    findings = _failed(
        {
            "output_altered": stock.altered == 0 and patch.altered == 0,
            "oracle_boundary_ambiguous": boundary.usable,
        }
    )
    if boundary.usable:
        findings += _ordinary_findings(logits, boundary, stock, patch)
    return Judged(code=_first(findings), also=findings[1:], stock_code=_stock_code(logits, boundary, stock))


def judge_probe(declared: str, seen: Judged) -> Judged:
    """Return a probe's codes: ``pass`` if it gave the code that it names, with ``observed`` saying what was seen.

    A probe for ``stock_under_keep`` asks more: nothing else may be found, so rules 4 to 6 hold for the patch.

    Parameters
    ----------
    declared : str
        One of ``codes.PROBE_CODES``.
    seen : Judged
        The row judged by its rules, or ``Judged(code)`` where evidence or admissibility stopped it.

    Raises ``ValueError`` if a probe may not name ``declared``.
    """
    if declared not in codes.PROBE_CODES:
        raise ValueError(f"probe: {declared!r}, expected one of {', '.join(codes.PROBE_CODES)}")
    met = seen.code == declared and (declared != "stock_under_keep" or seen.also == ())
    return replace(seen, code=codes.PASS if met else "probe_unexpected", observed=seen.code)


def compare(boundary: Boundary, *, stock: Output, patch: Output) -> Comparison:
    """Return the counts of one row, of any role.

    Raises ``ValueError`` if the three do not have the same vocabulary.
    """
    _check_vocabulary(boundary.order.size, stock, patch)
    oracle = boundary.kept
    usable = boundary.usable
    symdiff_stock = _symdiff(stock.kept, oracle) if usable else None
    symdiff_patch = _symdiff(patch.kept, oracle) if usable else None
    return Comparison(
        kept_oracle=boundary.count if usable else None,
        kept_stock=stock.size,
        kept_patch=patch.size,
        symdiff_stock=symdiff_stock,
        symdiff_patch=symdiff_patch,
        symdiff_stock_patch=_symdiff(stock.kept, patch.kept),
        equal_stock=None if symdiff_stock is None else symdiff_stock == 0,
        equal_patch=None if symdiff_patch is None else symdiff_patch == 0,
        prefix_stock=_is_prefix(stock, boundary.order),
        prefix_patch=_is_prefix(patch, boundary.order),
    )


def count_within(difference: int, reference: int) -> bool:
    """Return whether rule 6 accepts a count difference against a reference count."""
    return difference <= COUNT_SLACK or COUNT_RATIO * difference < reference


def count_bound(reference: int) -> int:
    """Return the largest difference that rule 6 accepts against a reference count of 0 or more."""
    return max(COUNT_SLACK, (reference - 1) // COUNT_RATIO)


def _forced_findings(logits: Logits, token: int, output: Output) -> tuple[str, ...]:
    # argmax returns the first of equal values, which is the lowest id.
    largest = int(np.argmax(np.where(output.kept, logits, np.float32(-np.inf))))
    return _failed(
        {
            "forced_nan": not output.nan,
            "output_altered": output.altered == 0,
            "forced_all_masked": output.size > 0,
            "forced_token_dropped": bool(output.kept[token]),
            "forced_argmax_wrong": largest == token,
            "forced_extra_tokens": output.size == 1,
        }
    )


def _ordinary_findings(logits: Logits, boundary: Boundary, stock: Output, patch: Output) -> tuple[str, ...]:
    """Rules 3 to 7."""
    stock_keeps = _contains(stock.kept, boundary)
    findings = _failed({"stock_under_keep": stock_keeps}) + _set_findings(logits, boundary, patch)
    if stock_keeps:
        oracle = boundary.kept
        no_regression = _symdiff(patch.kept, oracle) <= _symdiff(stock.kept, oracle)
        findings += _failed({"symmetric_difference_regression": no_regression})
    return findings


def _set_findings(logits: Logits, boundary: Boundary, output: Output) -> tuple[str, ...]:
    """Rules 4 to 6, which look at one side's set alone."""
    head = boundary.order[: output.size]
    tied = np.array_equal(np.sort(logits[output.kept])[::-1], logits[head])
    difference = abs(output.size - boundary.count)
    return _failed(
        {
            "patch_noncanonical_tie" if tied else "patch_hole": _is_prefix(output, boundary.order),
            "patch_under_keep": _contains(output.kept, boundary),
            "count_bound_exceeded": count_within(difference, boundary.count),
        }
    )


def _stock_code(logits: Logits, boundary: Boundary, stock: Output) -> str:
    unfit = _failed({"output_altered": stock.altered == 0, "oracle_boundary_ambiguous": boundary.usable})
    return _first(unfit or _set_findings(logits, boundary, stock))


def _is_prefix(output: Output, order: Order) -> bool:
    return bool(output.kept[order[: output.size]].all())


def _contains(kept: Kept, boundary: Boundary) -> bool:
    return bool(kept[boundary.order[: boundary.count]].all())


def _symdiff(left: Kept, right: Kept) -> int:
    return int(np.count_nonzero(left != right))


def _failed(rules: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the codes of the rules that do not hold, in their order; ``rules`` says of each whether it holds."""
    return tuple(code for code, holds in rules.items() if not holds)


def _first(findings: tuple[str, ...]) -> str:
    return findings[0] if findings else codes.PASS


def _check_vector(name: str, array: npt.NDArray[Any], dtype: type[np.generic]) -> None:
    if array.dtype != dtype or array.ndim != 1 or array.size == 0:
        expected = f"a non-empty vector of {np.dtype(dtype)}"
        raise ValueError(f"{name}: {array.dtype} of shape {array.shape}, expected {expected}")


def _check_vocabulary(vocabulary: int, stock: Output, patch: Output) -> None:
    for side, output in (("stock", stock), ("patch", patch)):
        if output.kept.size != vocabulary:
            raise ValueError(f"{side}: {output.kept.size} tokens, expected {vocabulary}")


def _check_row(logits: Logits, stock: Output, patch: Output) -> None:
    _check_vector("logits", logits, np.float32)
    _check_vocabulary(logits.size, stock, patch)
    if not np.isfinite(logits).all():
        raise ValueError("logits: a NaN or an infinity, expected an admissible row")


def _check_canonical(logits: Logits, order: Order) -> None:
    if order.size != logits.size:
        raise ValueError(f"order: {order.size} tokens, expected {logits.size}")
    values = logits[order]
    tie = (values[:-1] == values[1:]) & (order[:-1] < order[1:])
    if not ((values[:-1] > values[1:]) | tie).all():
        raise ValueError("order: not by (logit descending, id ascending), expected the canonical order")
