"""The gate's rules once more, from the contract's text, over Python sets, sorted lists, Counters and Fractions.

Written to be read against contract section 6, not to be fast; it shares no code with ``toppgate.gate``.
"""

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction


@dataclass(frozen=True)
class Side:
    """One side's output: the ids that it keeps, how many other entries are not −inf, whether one is a NaN."""

    kept: frozenset[int] = field(default_factory=frozenset)
    altered: int = 0
    nan: bool = False


#: code, observed, also, stock_code
Answer = tuple[str, str | None, tuple[str, ...], str | None]


def canonical(logits: Sequence[float]) -> list[int]:
    """Token ids by (logit descending, id ascending)."""
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def admissible(logits: Sequence[float], p: float) -> str:
    """Decide on the fp32 bits: an exponent of all ones is no number; 0 < p < 1 is a range of bit patterns."""
    bits = [struct.unpack("<I", struct.pack("<f", logit))[0] for logit in logits]
    if any((word >> 23) & 0xFF == 0xFF for word in bits):
        return "nonfinite_logits"
    word = struct.unpack("<I", struct.pack("<f", p))[0]
    return "pass" if word in range(0x0000_0001, 0x3F80_0000) else "invalid_p"


def forced(logits: Sequence[float], token: int, stock: Side, patch: Side) -> Answer:
    """Judge a forced row."""
    return (_forced_code(logits, token, patch), None, (), _forced_code(logits, token, stock))


def _forced_code(logits: Sequence[float], token: int, side: Side) -> str:
    if side.nan:
        return "forced_nan"
    if side.altered:
        return "output_altered"
    if side.kept == frozenset():
        return "forced_all_masked"
    if token not in side.kept:
        return "forced_token_dropped"
    top = max(logits[kept] for kept in side.kept)
    if min(kept for kept in side.kept if logits[kept] == top) != token:
        return "forced_argmax_wrong"
    if side.kept != {token}:
        return "forced_extra_tokens"
    return "pass"


def ordinary(logits: Sequence[float], count: int, certified: bool, stock: Side, patch: Side) -> Answer:
    """Judge an ordinary row: collect what every rule says, in rule order."""
    said: list[str] = []
    if stock.altered or patch.altered:
        said.append("output_altered")
    if not certified or count == 0:
        said.append("oracle_boundary_ambiguous")
        return (said[0], None, tuple(said[1:]), "output_altered" if stock.altered else "oracle_boundary_ambiguous")
    oracle = set(canonical(logits)[:count])
    lost = oracle - stock.kept
    if lost:
        said.append("stock_under_keep")
    said.extend(rules_4_to_6(logits, oracle, patch.kept))
    if not lost and len(oracle ^ patch.kept) > len(oracle ^ stock.kept):
        said.append("symmetric_difference_regression")
    alone = ["output_altered"] if stock.altered else rules_4_to_6(logits, oracle, stock.kept)
    code, *also = said or ["pass"]
    return (code, None, tuple(also), [*alone, "pass"][0])


def rules_4_to_6(logits: Sequence[float], oracle: set[int], kept: frozenset[int]) -> list[str]:
    """Say which of the rules about one set alone are broken."""
    said = []
    if not is_prefix(logits, kept):
        prefix = canonical(logits)[: len(kept)]
        same = Counter(logits[token] for token in kept) == Counter(logits[token] for token in prefix)
        said.append("patch_noncanonical_tie" if same else "patch_hole")
    if not oracle <= kept:
        said.append("patch_under_keep")
    off = max(len(kept), len(oracle)) - min(len(kept), len(oracle))
    if off > 3 and Fraction(off, len(oracle)) >= Fraction("0.005"):
        said.append("count_bound_exceeded")
    return said


def is_prefix(logits: Sequence[float], kept: frozenset[int]) -> bool:
    """Say whether every token that is kept comes before every one that is masked."""
    masked = set(range(len(logits))) - kept
    if not kept or not masked:
        return True
    return max((-logits[token], token) for token in kept) < min((-logits[token], token) for token in masked)


def probe(declared: str, seen: Answer) -> Answer:
    """Judge a probe."""
    code, _, also, alone = seen
    if declared != code or (code == "stock_under_keep" and also):
        return ("probe_unexpected", code, also, alone)
    return ("pass", code, also, alone)


def compare(logits: Sequence[float], count: int, certified: bool, stock: Side, patch: Side) -> dict[str, object]:
    """Count the sets of one row; None where the contract leaves a field empty."""
    oracle = set(canonical(logits)[:count]) if certified and count else None
    stock_off = None if oracle is None else sorted(oracle ^ stock.kept)
    patch_off = None if oracle is None else sorted(oracle ^ patch.kept)
    return {
        "kept_oracle": None if oracle is None else len(oracle),
        "kept_stock": len(stock.kept),
        "kept_patch": len(patch.kept),
        "symdiff_stock": None if stock_off is None else len(stock_off),
        "symdiff_patch": None if patch_off is None else len(patch_off),
        "symdiff_stock_patch": len(stock.kept ^ patch.kept),
        "equal_stock": None if stock_off is None else stock_off == [],
        "equal_patch": None if patch_off is None else patch_off == [],
        "prefix_stock": is_prefix(logits, stock.kept),
        "prefix_patch": is_prefix(logits, patch.kept),
    }
