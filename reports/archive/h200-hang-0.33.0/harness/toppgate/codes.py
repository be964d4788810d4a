"""Stop codes, their order and their plain sentences; and what a PASS says (contract, sections 1, 6 and 7)."""

from typing import Final

PASS: Final = "pass"  # noqa: S105 - a code, no password

#: Run- and case-level evidence, in the order in which it is looked for: the first that applies is the code.
EVIDENCE: Final[dict[str, str]] = {
    "params_drift": "The run's params, or the values injected into a notebook, are not the frozen ones.",
    "source_drift": "A kernel's source is not the pinned one.",
    "patch_drift": "The rebuilt patch is not the pinned one, or stock and patch are the same file.",
    "harness_drift": "toppgate's own files changed between two stages.",
    "environment_drift": "The two sides did not run in the same environment.",
    "input_missing": "A captured input is missing.",
    "input_drift": "A captured input, or what a worker read, is not the frozen one.",
    "limit_exceeded": "The case is beyond a frozen limit.",
    "timeout": "The frozen time was over before the work was done; it was killed.",
    "worker_crashed": "A process died, or raised, before it delivered its result.",
    "output_missing": "An output is missing.",
    "output_unreadable": "An output is damaged, or belongs to another run, side, case, source or input.",
    "output_nondeterministic": "Repeats over the same bytes gave different outputs.",
    "path_mismatch": "The kernels that were launched are not the frozen launch path.",
}

ADMISSIBILITY: Final[dict[str, str]] = {
    "nonfinite_logits": "The row's logits hold a NaN or an infinity.",
    "invalid_p": "p, in fp32, is not a finite number strictly between 0 and 1.",
}

FORCED: Final[dict[str, str]] = {
    "forced_nan": "The patch returned a NaN on a forced row.",
    "output_altered": "An output value is neither the input logit, bit for bit, nor -inf.",
    "forced_all_masked": "The patch masked every token of a forced row.",
    "forced_token_dropped": "The patch masked the forced token.",
    "forced_argmax_wrong": "The patch's largest kept logit is not at the forced token.",
    "forced_extra_tokens": "The patch kept more than the forced token.",
}

ORDINARY: Final[dict[str, str]] = {
    "output_altered": FORCED["output_altered"],
    "oracle_boundary_ambiguous": "The binary64 scan and its certificate disagree on the boundary.",
    "stock_under_keep": "Stock masks a token that the oracle keeps, so it cannot serve as the comparison.",
    "patch_noncanonical_tie": "The patch keeps the logits of a prefix, but among tied tokens not the lowest ids.",
    "patch_hole": "The tokens that the patch keeps are not a prefix of the sorted row.",
    "patch_under_keep": "The patch masks a token that the oracle keeps.",
    "count_bound_exceeded": "The patch's count differs from the oracle's by more than 3 and by 0.5 % or more.",
    "symmetric_difference_regression": "The patch differs from the oracle in more tokens than stock does.",
}

PROBE: Final[dict[str, str]] = {
    "probe_unexpected": "A declared probe did not give the code that it names.",
}

SENTENCES: Final[dict[str, str]] = {**EVIDENCE, **ADMISSIBILITY, **FORCED, **ORDINARY, **PROBE}

#: The roles of ordinary rows, to which the codes in ``ORDINARY`` belong.
ORDINARY_ROLES: Final = ("control", "reproduction", "ordinary")

#: What a probe may name (contract, section 6).
PROBE_CODES: Final = (PASS, "nonfinite_logits", "invalid_p", "path_mismatch", "limit_exceeded", "stock_under_keep")

#: Said with every PASS, word for word (contract, section 1).
STATEMENT: Final = (
    "PASS proves only that the forced masking defect is fixed without a detected regression against these bounded "
    "ordinary rows. It does not prove exact top-p behaviour, and authorizes no model contact, lifecycle or routing "
    "change, or promotion. Not covered: rows with −inf (grammar masks), p = 1, calls with k, batches over 64, other "
    "GPUs and compilers. It is no model inference result."
)


def owner(code: str, stock_code: str | None) -> str:
    """Return whose a row's code is: ``none`` (it passed), ``shared``, ``patch``, ``stock`` or ``neither``.

    ``shared``: stock in the patch's place would get the same code.  ``patch``: it would get none, or another, so the
    stop is the patch's alone.  ``stock``: ``stock_under_keep``, which is stock's own fault, never the patch's.
    ``neither``: stock was not judged, as where evidence stopped the row.
    """
    if code == PASS:
        return "none"
    if code == "stock_under_keep":
        return "stock"
    if stock_code is None:
        return "neither"
    return "shared" if stock_code == code else "patch"


def side(code: str) -> str:
    """Return the side that a row with this code is about: stock where stock lost a token, else the patch."""
    return "stock" if code == "stock_under_keep" else "patch"
