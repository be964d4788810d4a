"""Why a row stopped, in numbers: what follows the plain sentence of its code.

Nothing is judged here.  Where a number is missing, nothing is said: a sentence with a gap would mislead.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np

from toppgate import gate
from toppgate.neighbourhood import Neighbourhood, Place, Side

Row = Mapping[str, Any]


def numbers(row: Row, around: Neighbourhood | None) -> str:
    """Return one or two sentences to go behind the plain one of a row's code; empty where there is nothing to add.

    Parameters
    ----------
    row : a row of ``rows.jsonl``
    around : what lies around its boundary, if it is known
    """
    code = str(row.get("code"))
    try:
        if code in BY_COUNTS:
            return BY_COUNTS[code](row)
        return BY_TOKENS[code](around) if code in BY_TOKENS and around is not None else ""
    except (KeyError, TypeError):
        return ""


def _under_keep(around: Neighbourhood) -> str:
    return _lost("It", around.patch, around.count)


def _stock_under_keep(around: Neighbourhood) -> str:
    stock, patch = around.stock, around.patch
    alike = stock.missing == patch.missing == 1 and stock.lost == patch.lost
    more = "So does the patch." if alike else _lost("The patch", patch, around.count)
    return f"{_lost('It', stock, around.count)} {more}"


def _lost(who: str, side: Side, count: int) -> str:
    if side.lost is None:
        more = f", and {side.extra:,} more" if side.extra else ""
        return f"{who} keeps all of the oracle's {count:,}{more}."
    first = f"{'that' if side.missing == 1 else 'the first'} is token {side.lost.id} at position {side.lost.position:,}"
    return f"{who} masks {side.missing:,} of the oracle's {count:,}: {first}."


def _tie(around: Neighbourhood) -> str:
    hole, last = _gap(around.patch)
    return (
        f"It keeps {around.patch.size:,} tokens, the oracle {around.count:,}. It masks token {hole.id} and keeps token "
        f"{last.id}, which has the same logit, {_logit(hole)}, and a higher id."
    )


def _hole(around: Neighbourhood) -> str:
    hole, last = _gap(around.patch)
    return (
        f"It masks token {hole.id} at position {hole.position:,}, logit {_logit(hole)}, and keeps token "
        f"{last.id} at position {last.position:,}, logit {_logit(last)}."
    )


def _gap(side: Side) -> tuple[Place, Place]:
    if side.hole is None or side.last is None:
        raise KeyError("no gap is known")
    return side.hole, side.last


def _logit(place: Place) -> str:
    return str(np.float32(place.logit))


def _bound(row: Row) -> str:
    patch, oracle = row["kept_patch"], row["kept_oracle"]
    more = "more" if patch > oracle else "fewer"
    most = gate.count_bound(oracle)
    return (
        f"It keeps {patch:,} tokens, the oracle {oracle:,}: {abs(patch - oracle):,} {more}, where at most {most:,} "
        "are accepted."
    )


def _regression(row: Row) -> str:
    patch, stock = row["symdiff_patch"], row["symdiff_stock"]
    return (
        f"It differs in {_tokens(patch)} (mass {row['mass_patch']:.2g}), stock in {stock:,} "
        f"(mass {row['mass_stock']:.2g})."
    )


def _forced(row: Row) -> str:
    return f"It keeps {_tokens(row['kept_patch'])}, stock {row['kept_stock']:,}; only the forced one may stay."


def _probe(row: Row) -> str:
    return f"It gave {row['observed']}." if row["observed"] else ""


def _p(row: Row) -> str:
    return f"p is {row['p_fp32']!r}." if row["p_fp32"] is not None else "p is not finite."


def _tokens(number: int) -> str:
    return f"{number:,} {'token' if number == 1 else 'tokens'}"


BY_COUNTS: Final[dict[str, Callable[[Row], str]]] = {
    "invalid_p": _p,
    "forced_all_masked": _forced,
    "forced_token_dropped": _forced,
    "forced_argmax_wrong": _forced,
    "forced_extra_tokens": _forced,
    "count_bound_exceeded": _bound,
    "symmetric_difference_regression": _regression,
    "probe_unexpected": _probe,
}

BY_TOKENS: Final[dict[str, Callable[[Neighbourhood], str]]] = {
    "stock_under_keep": _stock_under_keep,
    "patch_noncanonical_tie": _tie,
    "patch_hole": _hole,
    "patch_under_keep": _under_keep,
}
