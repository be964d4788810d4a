"""The catalogue of wrong kernels: edits of the patched kernel, commit 0a1276e, in families.

Patterns are short expressions of the kernel's own names; ``mutate`` refuses one that does not match exactly once.

An argument that no row can tell a mutant from the patch stands in the mutant, and counts only beside a search.  Four
more were once left out on such arguments, and rows kill all four: in fp32, above a pivot need not lie what arithmetic
says.
"""

from typing import Final

from toppgate.mutate import Mutant

_STATS: Final = "_topp_sb_stats_kernel"
_ROW: Final = "_topp_sb_row_stats"
_LADDER: Final = "_topp_sb_ladder"
_COMBINE: Final = "_topp_sb_combine"
_STEP: Final = "_topp_sb_step_kernel"
_MASK: Final = "_topp_sb_mask_kernel"


def _family(name: str, *mutants: tuple[str, ...]) -> tuple[Mutant, ...]:
    """Each mutant is given as its name, function, pattern, replacement and sentence, and an argument if it has one."""
    return tuple(Mutant(each[0], name, *each[1:]) for each in mutants)


#: Why ``maximum-unguarded`` is the patch.
_MONOTONE: Final = (
    "A row is masked only with a pivot whose mass, the sum of the probabilities above it, reached p; p > 0, so at "
    "least one token's probability is above the pivot.  The mask computes the probability by the expression of the "
    "search, from the same logits, maximum and normalizer.  The maximum's is exp(0) / Z = 1 / Z, and no token's is "
    "larger: its exponent is below 0, exp does not exceed 1 there, and a division does not turn the order of its "
    "numerators.  So each token that equals the maximum is above the pivot by its probability, and the guard adds "
    "nothing; the tie budget, which comes after it, is the same.  It would add something only where exp or the "
    "division were not monotonic near the maximum, or where a comparison took a subnormal p for 0."
)

_PREDICATE = _family(
    "mask predicate",
    (
        "defect-restored",
        _MASK,
        r"\(prob > pivot\) \|.*",
        "x > tl.log(pivot) + tl.log(Z) + M",
        "The threshold is rebuilt in logit space, where fp32 cancels: the defect that the patch removes.",
    ),
    (
        "logit-threshold",
        _MASK,
        "prob > pivot",
        "x > M + tl.log(pivot * Z)",
        "The threshold is rebuilt in logit space; only the maximum is safe.",
    ),
    ("pivot-kept", _MASK, "prob > pivot", "prob >= pivot", "A token that sits on the pivot is kept."),
    (
        "maximum-unguarded",
        _MASK,
        r"\(prob > pivot\) \|.*",
        "prob > pivot",
        "Nothing but its probability keeps the maximum.",
        _MONOTONE,
    ),
)

_WITHIN = _family(
    "tie budget within a block",
    ("one-short", _MASK, "cum <= numkeep", "cum < numkeep", "One tied token too few is kept."),
    ("one-over", _MASK, "cum <= numkeep", "cum <= numkeep + 1.0", "One tied token too many is kept."),
    ("no-budget", _MASK, "numkeep < numdup", "numkeep > numdup", "Every tied token is kept."),
    (
        "ties-within-1e-9",
        _MASK,
        "prob == dup",
        "tl.abs(prob - dup) < 1e-9",
        "Probabilities that differ by less than 1e-9 count as tied.",
    ),
    (
        "surplus-rounded",
        _COMBINE,
        r"0\.0\) / dup",
        "0.0) / dup + 0.5",
        "The surplus in tokens is rounded to nearest, not down.",
    ),
    ("none-of-group", _COMBINE, r"numkeep, 1\.0", "numkeep, 0.0", "The whole tie group may be dropped."),
    ("group-of-one", _COMBINE, r"gmin \* nmin", "gmin", "A pivot qualifies by one token of its tie group."),
)

_ORDER = _family(
    "tie budget, order",
    (
        "highest-ids",
        _MASK,
        r"cumsum\((dmask\S+)\)\.to",
        r"cumsum(\1, reverse=True).to",
        "Within a block, the highest ids of a tie are kept.",
    ),
    ("last-slices-first", _MASK, "sidx < slice_id", "sidx > slice_id", "The last slice is served first."),
)

_BLOCKS = _family(
    "tie budget across blocks",
    (
        "slices-forgotten-after-block",
        _MASK,
        r"\+ num_preceding",
        "+ tl.where(i == start, num_preceding, 0.0)",
        "Ties of earlier slices count against a slice's first block only.",
    ),
    (
        "kept-counted-as-ties",
        _MASK,
        r"(keep = keep & .*)",
        r"\1; num_preceding += tl.sum(keep.to(tl.int32))",
        "After each block the budget is charged for every kept token.",
    ),
    ("block-ties-not-added", _STEP, "is_same, tcnt", "is_same, 0.0", "Ties are counted in one block of a slice."),
    (
        "block-ties-carried",
        _STEP,
        "is_new, tcnt",
        "is_new, nmin + tcnt",
        "A block with a smaller value inherits the count of the larger one.",
    ),
)

_SLICES = _family(
    "tie budget across slices",
    ("own-slice-counted", _MASK, "sidx < slice_id", "sidx <= slice_id", "A slice's own ties count as preceding."),
    ("slices-forgotten", _MASK, r" \+ num_preceding", "", "Every slice has the whole budget."),
    (
        "any-value-counted",
        _MASK,
        r"tl\.abs\(minl_s - dup\) < 1e-9",
        "minl_s > 0.0",
        "Earlier slices' counts are charged whatever value they counted.",
    ),
    ("round-forgotten", _MASK, r"j \* F \+ sel_fidx", "sel_fidx", "Counts are read from the search's first round."),
    ("slot-forgotten", _MASK, r"fin - tl.* \* F", "0.0 * fin", "Counts are read from the ladder's first pivot."),
    (
        "fallback-slot-forgotten",
        _MASK,
        r"j \* F \+ best_sel",
        "best_sel",
        "After a fallback, counts are read from the search's first round.",
    ),
)

_SEARCH = _family(
    "pivot search",
    ("pivot-counted-above", _STEP, "pr2 > pivs", "pr2 >= pivs", "The search counts a token on a pivot as above it."),
    ("group-not-needed", _COMBINE, "nmin < p", "nmin <= p", "A pivot qualifies though p is reached without its group."),
    ("qualifies-above-p", _COMBINE, r"\(mass >= p\)", "(mass > p)", "A pivot whose mass is p does not qualify."),
    ("bracket-above-p", _COMBINE, "= mass >= p", "= mass > p", "A pivot whose mass is p counts as too high."),
    (
        "lowest-qualifying",
        _COMBINE,
        "ok, fidx",
        "ok & (tl.cumsum(ok.to(tl.int32)) == 1), fidx",
        "Of the pivots that qualify in a round, the lowest is taken.",
    ),
    ("one-round-fewer", _MASK, "NUM_ROUNDS - 1", "NUM_ROUNDS - 2", "The fallback is taken one round early."),
    ("no-last-round", _MASK, "== NUM_ROUNDS - 1", "== NUM_ROUNDS", "The fallback is never taken."),
    ("fallback-to-bracket", _COMBINE, "pivot = best", "pivot = lo", "The fallback takes the bracket's old lower end."),
    ("fallback-without-ties", _COMBINE, "numdup = best_nmin", "numdup = 1.0", "The fallback forgets its tie group."),
    ("gives-up-early", _COMBINE, "1e-7", "1e-3", "A bracket narrower than 0.1 % counts as collapsed."),
    (
        "arithmetic-ladder",
        _LADDER,
        r"lo \* tl\.exp\(tl\.log\(hi / lo\)",
        "(lo + (hi - lo)",
        "Pivots are spaced evenly, not geometrically.",
    ),
)

_NORMALIZER = _family(
    "normalizer",
    ("no-rescale", _STATS, r"exp_sum \* rescale", "exp_sum", "A new maximum does not rescale the sum so far."),
    ("slices-unweighted", _ROW, r"exp_s \* w", "exp_s", "Slices are summed without regard to their maxima."),
    ("one-per-mille-high", _ROW, r"(exp_s \* w\))", r"\1 * 1.001", "The normalizer is 0.1 % too high."),
    (
        "probabilities-in-bfloat16",
        _STEP,
        r"(tl\.exp\(x - M\) / Z)",
        r"(\1).to(tl.bfloat16).to(tl.float32)",
        "The search rounds probabilities to bfloat16.",
    ),
)

_BOUNDS = _family(
    "bounds and tails",
    (
        "stats-tail-lost",
        _STATS,
        r"\(VOCAB_SIZE \+ S - 1\)",
        "VOCAB_SIZE",
        "The statistics miss an odd row's last token.",
    ),
    ("mask-tail-lost", _MASK, r"\(VOCAB_SIZE \+ S - 1\)", "VOCAB_SIZE", "An odd row's last token is never masked."),
    ("mask-first-block", _MASK, "start, end, BLOCK", "start, start + 1, BLOCK", "Only the first block is masked."),
    (
        "slice-end-lost",
        _STATS,
        r"start \+ slice_len",
        "start + slice_len - 1",
        "The statistics miss a slice's last token.",
    ),
    ("padding-counts", _STATS, r'-float\("inf"\)\)$', "0.0)", "Padding behind a slice counts as a logit of 0."),
    ("highest-minimum", _ROW, r"min\(mn_s", "max(mn_s", "A row's minimum is the highest of its slices' minima."),
)

_PARAMETERS = _family(
    "row parameters",
    ("mask-p-of-another-row", _MASK, r"P \+ row", "P + row // 2", "The mask uses another row's p."),
    ("stats-of-first-row", _ROW, r"STATS \+ row \* S \* 4", "STATS", "Every row has the first row's statistics."),
    (
        "ties-of-first-row",
        _MASK,
        r"row \* NUM_ROUNDS \+ fin_round",
        "fin_round",
        "The mask charges the first row's ties against the budget.",
    ),
)

_RETURNS = _family(
    "early returns",
    ("high-p-is-off", _MASK, r"p >= 1\.0", "p >= 0.999", "p from 0.999 on counts as switched off."),
    ("near-uniform-is-uniform", _MASK, "1e-6", "1e-4", "A row within 0.01 % of uniform is kept whole."),
    ("high-pivot-is-off", _COMBINE, r"Z >= 1\.0", "Z >= 0.5", "A pivot above half the maximum keeps the whole row."),
    ("peaked-is-off", _MASK, r"Z <= 0\.0", "Z <= 1.0", "A row that is all in its maximum is kept whole."),
)

_OUTPUT = _family(
    "output values",
    ("finite-mask", _MASK, "x, MASK_VALUE", "x, -1e30", "Masked tokens get -1e30."),
    ("nan-mask", _MASK, "x, MASK_VALUE", 'x, float("nan")', "Masked tokens get NaN."),
    ("one-ulp", _MASK, "keep, x,", "keep, x * 1.0000001,", "Kept logits are off by an ulp."),
)

#: In the order of the page.
MUTANTS: Final[tuple[Mutant, ...]] = (
    *(_PREDICATE + _WITHIN + _ORDER + _BLOCKS + _SLICES),
    *(_SEARCH + _NORMALIZER + _BOUNDS + _PARAMETERS + _RETURNS + _OUTPUT),
)
