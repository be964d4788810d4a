"""The cases of params/mutants.yml: few rows, each made for a way in which a kernel can be wrong.

Slices: compute units of 2 a row give 2 slices, 1 a row one slice.  Blocks: the statistics and the mask go through a
slice in blocks of 8,192 tokens, the search in blocks of 2,048.
"""

from collections.abc import Iterator
from typing import Any

Rows = list[list[dict[str, Any]]]


def mutant_cases(captured: Any) -> Iterator[dict[str, Any]]:
    """Yield the cases in order; ``captured`` makes a generator over a file of params/inputs."""
    yield forced()
    yield control()
    yield ties_across_slices()
    yield ties_across_blocks()
    yield ties_in_second_block()
    yield long_tail()
    yield near_uniform()
    yield dense_ties()
    yield adjacent()
    yield on_a_pivot()
    yield at_prefix_sums()
    yield offset()
    yield real(captured)


def lessons() -> Iterator[dict[str, Any]]:
    """Yield the cases that a comparison takes over: small, each made for wrong kernels that other rows let live."""
    taken = (ties_across_slices, ties_in_second_block, long_tail, near_uniform, dense_ties, on_a_pivot, at_prefix_sums)
    for case in (*(make() for make in taken), offset()):
        yield {**case, "id": f"mutants-{case['id']}"}


def written(name: str, about: str, rows: Rows, p: Any, slices: int = 2) -> dict[str, Any]:
    """Return a case of rows that are written out."""
    literal, units = {"kind": "literal", "rows": rows}, slices * len(rows)
    return {"id": name, "about": about, "role": "ordinary", "rows": literal, "p": p, "compute_units": units}


def same(value: float, repeat: int) -> dict[str, Any]:
    """Return a run of equal logits."""
    return {"value": repr(float(value)), "repeat": repeat}


def even(start: float, stop: float, count: int) -> dict[str, Any]:
    """Return logits in even steps."""
    return {"linspace": [repr(float(start)), repr(float(stop)), count]}


def forced() -> dict[str, Any]:
    """Return the defect's own rows."""
    base = {"kind": "normal", "seed": "42", "scale": "3", "rows": 2, "vocabulary": 4001}
    rows = {"kind": "forced", "base": base, "token": 13, "value": "1e9"}
    about = "One token forced over ordinary competitors; it alone must be kept."
    return {
        "id": "forced",
        "about": about,
        "role": "forced",
        "rows": rows,
        "p": ["0.95", "0.999"],
        "compute_units": 2,
    }


def control() -> dict[str, Any]:
    """Return bell-shaped rows of an odd vocabulary, whose p differ by row."""
    rows = {"kind": "normal", "seed": "42", "scale": "3", "rows": 2, "vocabulary": 4001}
    about = "An odd vocabulary; p differs by row."
    return {
        "id": "control",
        "about": about,
        "role": "control",
        "rows": rows,
        "p": ["0.999", "0.5"],
        "compute_units": 4,
    }


def ties_across_slices() -> dict[str, Any]:
    """Return ties in both slices, in both with other counts, and in the second alone, with a neighbour in the first."""
    rows = [
        [same(4, 1), same(0, 300), same(-4, 700), same(0, 300), same(-4, 701)],
        [same(-4, 901), same(0, 100), same(0, 500), same(-4, 500), same(4, 1)],
        [same(4, 1), same(1, 50), same(-4, 950), same(-4, 400), same(0, 300), same(-4, 301)],
    ]
    about = "The boundary lies inside a tie that spans slices; the last row's first slice holds none of it."
    return written("ties-across-slices", about, rows, ["0.8", "0.7", "0.6"])


def ties_across_blocks() -> dict[str, Any]:
    """Return a tie of which one part ends the second block of the second slice."""
    rows = [[same(0, 300), same(-4, 8400), same(-4, 8400), same(0, 300)]]
    return written("ties-across-blocks", "Slices of two blocks; the tie opens the row and ends it.", rows, "0.5")


def ties_in_second_block() -> dict[str, Any]:
    """Return one slice of three blocks whose tie lies in the second."""
    rows = [[same(2, 5), same(-6, 8300), same(0, 400), same(-6, 7700)]]
    return written("ties-in-second-block", "One slice of three blocks; kept tokens before the tie.", rows, "0.5", 1)


def long_tail() -> dict[str, Any]:
    """Return a falling row, lowest logits first, with p near 1."""
    return written("long-tail", "Logits from -40 to 0 and p near 1.", [[even(-40, 0, 8001)]], "0.99999")


def near_uniform() -> dict[str, Any]:
    """Return a row that is uniform to 0.005 %, but not uniform."""
    return written("near-uniform", "Probabilities differ by 0.005 % over the row.", [[even(0, 0.00005, 64)]], "0.5", 1)


def dense_ties() -> dict[str, Any]:
    """Return pairs of equal tokens, one in each slice, too dense for the search to part: its fallback must decide."""
    row = [same(7, 1), even(0.05, -0.05, 2000), same(0, 1), even(0.05, -0.05, 2000)]
    about = "Values too dense for five rounds of the search, each once in either slice."
    return written("dense-ties", about, [row], "0.65")


def adjacent() -> dict[str, Any]:
    """Return six values that differ by one ulp, with the boundary behind them."""
    step = {"affine": {"start": "-1.0", "step": repr(2.0**-23), "count": 6}}
    row: list[dict[str, Any]] = [{"numbers": ["0.0"]}, step, same(-9, 3000)]
    return written("adjacent-fp32", "Six adjacent fp32 logits at the boundary.", [row], "0.7", 1)


def on_a_pivot() -> dict[str, Any]:
    """Return a row whose 170 equal tokens have, in fp32, the probability of the first ladder's highest pivot.

    The row's minimum is below the search's floor of 1e-30, so the ladder depends on the normalizer alone; number and
    value of the tokens were searched for such that both sides round to the same fp32 number under the interpreter.
    """
    row = [same(0, 1), same(-90, 99), same(-7.666778087615967, 170), same(-90, 3730)]
    about = "170 tokens whose probability is exactly a pivot; needed by the second row, not by the first."
    return written("on-a-pivot", about, [row, row], ["0.5", "0.95"], 1)


def at_prefix_sums() -> dict[str, Any]:
    """Return rows whose p is the mass of a prefix, rounded to fp32: there the search's comparisons with p decide.

    Found among drawn rows by two emulations of the kernel, one with NumPy's exp and one with the rounded exp of
    binary64, so that a kill does not hang on the last bit of an exp.  Mutants that "no row can tell" die on them.
    """
    rows = [
        [(0, 1), (-0.899, 1), (-1.798, 1), (-2.698, 1), (-3.147, 3), (-3.597, 6), (-4.046, 3)],
        [(0, 1), (-2.813, 1), (-5.626, 1), (-8.439, 1), (-14.064, 5), (-19.69, 2), (-22.503, 1), (-25.316, 4)],
        [(0.441, 2), (-0.284, 10), (-0.639, 4)],
        [(0, 1), (-7.123, 2), (-10.685, 3), (-14.247, 2), (-17.808, 1), (-21.37, 1), (-24.932, 1), (-28.493, 5)],
        [(0, 2), (-7.606, 1), (-15.212, 1), (-19.015, 4), (-26.621, 2), (-30.424, 2), (-34.227, 4)],
    ]
    ps = ["0.7919256", "0.9999963", "0.24385405", "0.99993014", "0.99999994"]
    parts = [[same(value, repeat) for value, repeat in row] for row in rows]
    return written("p-at-prefix-sums", "p is the mass of a prefix, to the last bit of fp32.", parts, ps, 1)


def offset() -> dict[str, Any]:
    """Return logits around 10,000, where a threshold in logit space is off by tokens."""
    step = {"affine": {"start": "10000.0", "step": repr(-(2.0**-10)), "count": 4001}}
    about = "Logits of 10,000 less steps of one ulp: stock loses tokens, the patch must not."
    return {**written("offset", about, [[step]], "0.6", 1), "role": "probe", "expect": "stock_under_keep"}


def real(captured: Any) -> dict[str, Any]:
    """Return one captured row, rounded as a bfloat16 head would: ties of a real row, three blocks a slice."""
    rows = captured("smollm2-135m-logits", rows=[0, 1], round="bfloat16")
    about = "Next-token logits of SmolLM2-135M-Instruct, captured beforehand elsewhere."
    return {"id": "real-bfloat16", "about": about, "role": "ordinary", "rows": rows, "p": "0.95", "compute_units": 2}
