"""Captured inputs: the same bits everywhere, against exact arithmetic that shares nothing with NumPy's; and bad files.

The truth is in integers and Fractions: a Philox generator written from its paper, and one rounding rule.
"""

import hashlib
import json
import struct
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, pairwise, product
from math import inf, isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import truth
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray
from refusals import refusal

from toppgate import capture, digests, fp32, inputs, params, rules
from toppgate.errors import InputDriftError, InputError
from toppgate.schema import Captured, Case, Written
from toppgate.stage import Run

PARAMS = Path("params")


# ---------------------------------------------------------------------------------------------- exact truth


def nearest(value: Fraction, digits: int, smallest: int, largest: int) -> Fraction | float:
    """Return the nearest number of a binary format, ties to even.

    ``digits`` counts the significant bits, ``smallest`` is the exponent of the smallest positive number, and from the
    power of two ``largest`` on there are infinities.
    """
    if value == 0:
        return value
    top = abs(value).numerator.bit_length() - value.denominator.bit_length()
    top -= abs(value) < Fraction(2) ** top  # now 2**top <= |value| < 2**(top + 1)
    unit = Fraction(2) ** max(top + 1 - digits, smallest)
    rounded = round(value / unit) * unit
    if abs(rounded) >= 2**largest:
        return inf if rounded > 0 else -inf
    return rounded


FLOAT32 = (24, -149, 128)
BFLOAT16 = (8, -133, 128)
FLOAT16 = (11, -24, 16)


def philox(key: int) -> Iterator[int]:
    """Yield the 64-bit words of Philox4x64-10 (Salmon et al., SC 2011, section 3.3), its counter from 1 as in NumPy."""
    word = 2**64 - 1
    counter = 1
    while True:
        a, b, c, d = (counter >> 64 * n & word for n in range(4))
        low, high = key & word, key >> 64
        for _ in range(10):
            x, y = 0xD2E7470EE14C6C93 * a, 0xCA5A826395121157 * c
            a, b, c, d = y >> 64 ^ b ^ low, y & word, x >> 64 ^ d ^ high, x & word
            low, high = low + 0x9E3779B97F4A7C15 & word, high + 0xBB67AE8584CAA73B & word
        yield from (a, b, c, d)
        counter += 1


def drawn(seed: int, scale: Fraction, count: int) -> list[Fraction | float]:
    """Return the first values of the contract's ``normal`` generator, from its definition."""
    words = philox(seed)
    sums = [sum((w & 2**32 - 1) + (w >> 32) for w in islice(words, 6)) for _ in range(count)]
    return [nearest(Fraction(s - 6 * 2**32, 2**32) * scale, *FLOAT32) for s in sums]


def exact(array: NDArray[np.float32]) -> list[Fraction | float]:
    """Return fp32 values as Fractions; infinities stay."""
    return [Fraction(x) if abs(x) < inf else x for x in array.ravel().tolist()]


def bits(array: NDArray[np.float32]) -> list[int]:
    """Return the bits of fp32 values."""
    return [int(x) for x in array.ravel().view(np.uint32)]


# ---------------------------------------------------------------------------------------------- normal


#: The bits of the first four values of a row; a 64-bit and a 128-bit seed besides the one that the params files use.
FIRST = {
    (42, "1"): (0x3E223E08, 0xC002C494, 0x3FE8AD96, 0x3F2624D6),
    (42, "3"): (0x3EF35D0C, 0xC0C426DD, 0x40AE8230, 0x3FF93741),
    (42, "8"): (0x3FA23E08, 0xC182C494, 0x4168AD96, 0x40A624D6),
    (0x9E3779B97F4A7C15, "1"): (0x3F07093E, 0xBE4015EA, 0x3F635B8F, 0x3F3E6A93),
    (2**128 - 1, "1"): (0x3ED32AFE, 0xBFFFC8C4, 0x3F7DC747, 0xBFDAE9C9),
}


@pytest.mark.parametrize(("seed", "scale"), FIRST)
def test_the_first_values_of_normal_are_pinned(seed: int, scale: str) -> None:
    """As integers, so that no printing of decimals is in between."""
    assert tuple(bits(inputs.normal(seed, float(scale), 1, 4))) == FIRST[seed, scale]


@pytest.mark.parametrize("seed", [0, 1, 42, 2**64 - 1, 2**64, 0x9E3779B97F4A7C15, 2**128 - 1])
@pytest.mark.parametrize("scale", ["1", "3", "8", "0.001953125", "65535", "0"])
def test_normal_is_what_its_definition_says_in_exact_arithmetic(seed: int, scale: str) -> None:
    """Every value equals the exact sum of twelve words of an independent Philox, scaled and rounded once."""
    found = inputs.normal(seed, float(scale), 3, 7)
    assert exact(found) == drawn(seed, Fraction(scale), 21)


@given(st.integers(0, 2**128 - 1), st.integers(-(2**16) + 1, 2**16 - 1), st.integers(-40, 110))
def test_scaling_in_binary64_is_exact_for_every_scale_that_is_allowed(seed: int, mantissa: int, power: int) -> None:
    """Sixteen significant bits times the sum fit in 53, so the one rounding to fp32 is the only one; beyond is inf."""
    scale = Fraction(mantissa) * Fraction(2) ** power
    assert exact(inputs.normal(seed, float(scale), 1, 3)) == drawn(seed, scale, 3)


@given(st.integers(0, 2**128 - 1), st.integers(1, 4), st.integers(1, 4), st.integers(1, 9))
def test_a_row_of_normal_does_not_depend_on_how_many_follow(seed: int, few: int, more: int, vocabulary: int) -> None:
    """Fewer rows are the first of more rows, bit for bit; and rows follow one another in one stream."""
    whole = inputs.normal(seed, 3.0, few + more, vocabulary)
    assert bits(inputs.normal(seed, 3.0, few, vocabulary)) == bits(whole[:few])
    assert bits(inputs.normal(seed, 3.0, 1, (few + more) * vocabulary)) == bits(whole)


def test_range_mean_and_variance_of_normal_are_those_of_its_docstring() -> None:
    """Over 400,000 values, summed exactly: all within [-6, 6], both moments within five standard errors."""
    values = inputs.normal(42, 1.0, 8, 50_000).astype(np.float64).ravel()
    count = values.size
    # Every fp32 value here is a whole number of 2**-149, and those above 2**-20 of 2**-43: sums stay exact as integers.
    units = [int(x) for x in np.round(values * 2.0**43)]
    mean = Fraction(sum(units), count * 2**43)
    variance = Fraction(sum(u * u for u in units), count * 2**86) - mean * mean
    assert -6 <= min(values) < -3.5
    assert 3.5 < max(values) <= 6
    assert abs(mean) * isqrt(count) < 5
    # The fourth moment of a sum of twelve uniforms is 2.9, so its variance's own standard error is sqrt(1.9 / count).
    assert (variance - 1) ** 2 * count < 25 * Fraction(19, 10)


# ---------------------------------------------------------------------------------------------- rounding


#: Below, above and at every place where rounding to bfloat16 turns, for every upper half: the whole format.
LOWER_HALVES = (0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF)


def test_rounding_to_bfloat16_is_exact_everywhere() -> None:
    """For all 65,536 upper halves: to the nearest, ties to the even one, by integers; NaN stays NaN."""
    every = np.arange(2**16, dtype=np.uint64) << np.uint64(16)
    for lower in LOWER_HALVES:
        given_bits = every + np.uint64(lower)
        odd = given_bits >> np.uint64(16) & np.uint64(1)
        expected = given_bits + np.uint64(0x7FFF) + odd & np.uint64(0xFFFF0000)
        found = fp32.round_to(given_bits.astype(np.uint32).view(np.float32), "bfloat16")
        nan = (given_bits & np.uint64(0x7FFFFFFF)) > np.uint64(0x7F800000)
        assert (found.view(np.uint32)[~nan] == expected[~nan]).all()
        assert np.isnan(found[nan]).all()


def test_rounding_to_float16_is_exact_at_every_number_and_every_tie() -> None:
    """Every float16, every midpoint of two, and the fp32 numbers next to each midpoint, both signs."""
    numbers = [_float16(code) for code in range(0x7C00)]
    for lower, upper in zip(numbers, [*numbers[1:], Fraction(2**16)], strict=True):
        middle = np.float32(float((lower + upper) / 2))
        assert Fraction(float(middle)) == (lower + upper) / 2
    middles = np.array([float((a + b) / 2) for a, b in pairwise(numbers)] + [65520.0], np.float32)
    below, above = np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))
    down = np.array([float(x) for x in numbers], np.float32)
    up = np.append(down[1:], np.float32(np.inf))
    even = np.where(np.arange(len(numbers)) % 2 == 0, down, up)
    for values, expected in ((down, down), (below, down), (middles, even), (above, up)):
        assert (fp32.round_to(values, "float16") == expected).all()
        assert bits(fp32.round_to(-values, "float16")) == bits(-expected)


def _float16(code: int) -> Fraction:
    """Return the float16 number of a code, from the format: 5 bits of exponent with bias 15, 10 of fraction."""
    exponent, fraction = code >> 10, code & 0x3FF
    return Fraction(fraction if exponent == 0 else 2**10 + fraction) * Fraction(2) ** (max(exponent, 1) - 25)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_rounding_any_number_agrees_with_one_rule_for_all_formats(value: float) -> None:
    """The rule by Fractions, for both narrow formats."""
    array = np.array([value], np.float32)
    assert exact(fp32.round_to(array, "bfloat16")) == [nearest(Fraction(value), *BFLOAT16)]
    assert exact(fp32.round_to(array, "float16")) == [nearest(Fraction(value), *FLOAT16)]
    assert bits(fp32.round_to(array, "none")) == bits(array)


@given(st.decimals(allow_nan=False, allow_infinity=False, places=30).map(str))
def test_a_decimal_becomes_binary64_and_then_fp32(text: str) -> None:
    """Two roundings, as vLLM's tensors do it."""
    if "E" in text or len(text) > 60:
        return
    wide = nearest(Fraction(text), 53, -1074, 1024)
    expected = nearest(wide, *FLOAT32) if isinstance(wide, Fraction) else wide
    assert exact(np.array([fp32.rounded(fp32.binary64(text))])) == [expected]


def test_the_two_roundings_differ_from_one() -> None:
    """Just above a tie of fp32 but nearer to it in binary64: two roundings give the even neighbour, one the upper."""
    text = "1.00000005960464477539062500001"
    assert nearest(Fraction(text), *FLOAT32) == 1 + Fraction(2) ** -23
    assert fp32.decimal_bits(text) == "3f800000"


def written(*parts: dict[str, Any]) -> Case:
    """Return a probe over one written row."""
    rows = {"kind": "literal", "rows": [list(parts)]}
    return Case.model_validate({"id": "c", "role": "probe", "rows": rows, "p": "0.5", "expect": "pass"})


NAN, INF = 0x7FC00000, 0x7F800000
WRITTEN: dict[str, tuple[dict[str, Any], list[int]]] = {
    "numbers": (
        {"numbers": ["1", "-0", "nan", "inf", "-inf", "1e39", "1e-46"]},
        [0x3F800000, 1 << 31, NAN, INF, 0xFF800000, INF, 0],
    ),
    "repeat": ({"value": "-1e9", "repeat": 2}, [0xCE6E6B28, 0xCE6E6B28]),
    "linspace": ({"linspace": ["0", "1", 4]}, [0, 0x3EAAAAAB, 0x3F2AAAAB, 0x3F800000]),
    "affine": ({"affine": {"start": "1", "step": "0.1", "count": 4}}, [0x3F800000, 0x3F8CCCCD, 0x3F99999A, 0x3FA66666]),
    "beyond binary64": ({"linspace": ["-1.7e308", "1.7e308", 3]}, [NAN, INF, INF]),
    "to infinity": ({"affine": {"start": "0", "step": "inf", "count": 2}}, [NAN, INF]),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_written_row_has_the_bits_that_its_parts_say(name: str) -> None:
    """Each kind of part, infinities and overflow included, without a warning, which would fail a notebook."""
    part, expected = WRITTEN[name]
    found = bits(inputs.generate(written(part)).logits)
    assert [NAN if x & 0x7FFFFFFF > INF else x for x in found] == expected


# ---------------------------------------------------------------------------------------------- digests of arrays


def framed(arrays: dict[str, NDArray[Any]]) -> bytes:
    """Return the bytes that a digest of arrays covers, from its description; only for C order."""
    out = b""
    for name, array in sorted(arrays.items()):
        head = {"dtype": array.dtype.name, "name": name, "shape": list(array.shape)}
        out += json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"
        out += array.astype(array.dtype.newbyteorder("<")).tobytes()
    return out


def parsed(data: bytes) -> list[tuple[str, str, tuple[int, ...], bytes]]:
    """Return what framed bytes say, reading from the front: possible for all of them, so no two inputs collide."""
    found = []
    while data:
        line, data = data.split(b"\n", 1)
        head = json.loads(line)
        size = np.dtype(head["dtype"]).itemsize * int(np.prod(head["shape"], dtype=int))
        found.append((head["name"], head["dtype"], tuple(head["shape"]), data[:size]))
        data = data[size:]
    return found


_arrays = st.dictionaries(
    st.sampled_from(["logits", "p", "", "a\n", "é"]),
    hnp.arrays(st.sampled_from([np.float32, np.uint8, np.int64]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)),
    max_size=3,
)


@given(_arrays)
def test_a_digest_of_arrays_covers_names_types_shapes_and_values_without_collision(
    arrays: dict[str, NDArray[Any]],
) -> None:
    """The bytes that are hashed can be read back, so two different inputs never give the same bytes."""
    data = framed(arrays)
    assert digests.sha256_arrays(arrays) == hashlib.sha256(data).hexdigest()
    assert parsed(data) == [(name, a.dtype.name, a.shape, a.tobytes()) for name, a in sorted(arrays.items())]


def test_arrays_that_a_concatenation_would_confuse_have_digests_of_their_own() -> None:
    """Values moved from one array to the next, a shape turned, a type with the same bytes, a name, a sign of zero."""
    ten = np.arange(1, 11, dtype=np.float32)
    variants: list[dict[str, NDArray[Any]]] = [
        {"logits": ten[:6], "p": ten[6:]},
        {"logits": ten[:5], "p": ten[5:]},
        {"logits": ten},
        {"p": ten},
        {"logits": ten[:6].reshape(2, 3), "p": ten[6:]},
        {"logits": ten[:6].reshape(3, 2), "p": ten[6:]},
        {"logits": ten[:6].reshape(1, 6), "p": ten[6:]},
        {"logits": ten[:6].view(np.uint32), "p": ten[6:]},
        {"logits": ten[6:], "p": ten[:6]},
        {"logits": ten[:0], "p": ten},
        {"logits": ten * 0},
        {"logits": -ten * 0},
        {},
    ]
    assert len({digests.sha256_arrays(one) for one in variants}) == len(variants)


def test_a_digest_of_arrays_does_not_depend_on_layout() -> None:
    """Strides, byte order and the order of names are not part of what is said."""
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    plain = digests.sha256_arrays({"a": array, "b": array})
    assert digests.sha256_arrays({"b": np.asfortranarray(array), "a": array.astype(">f4")}) == plain
    assert digests.sha256_arrays({"b": np.repeat(array, 2, axis=1)[:, ::2], "a": array}) == plain


# ---------------------------------------------------------------------------------------------- shipped params


def shipped(name: str) -> list[Case]:
    """Return the cases of a shipped params file."""
    return params.read(PARAMS / f"{name}.yml").cases


@pytest.mark.parametrize("name", ["demo", "cpu", "cpu-0.33.0"])
def test_every_captured_input_is_made_again_with_its_frozen_digest(name: str) -> None:
    """On this machine as on the one that froze it, without torch."""
    wrong = [case.id for case in shipped(name) if inputs.generate(case).sha256 != case.input]
    assert wrong == []


def test_the_digests_of_two_inputs_are_pinned_here_as_well() -> None:
    """So that generator and params file cannot change together unseen."""
    assert {case.id: case.input for case in shipped("demo")} == {
        "forced": "a4a73834ccfdb7f9d9d7beb915645c14393cacb0f5a4a1fe1bf6b74f2c36cc07",
        "control": "ad1d2a37b1b8b7741a82922d899ebe277a4b33f4254b09950ad23d3d84234e55",
    }


def test_the_captured_files_are_the_ones_that_the_contract_names() -> None:
    """Their SHA-256, and what they hold."""
    real, random = (PARAMS / "inputs" / f"{name}.safetensors" for name in ("smollm2-135m-logits", "torch-cpu-seed-42"))
    assert digests.sha256_file(real) == "6c92d7a2d1e86d0e7e794457c1840c5e40f9c86ae40351c36caa82f381e4dd7c"
    assert digests.sha256_file(random) == "e6bfd10a7e5f3e7b43030f2637c32aae50da70ee050890581549184bc47ad2e2"
    shapes = {path.stem: safetensors.numpy.load_file(path)["logits"].shape for path in (real, random)}
    assert shapes == {"smollm2-135m-logits": (8, 49152), "torch-cpu-seed-42": (8, 32000)}


def wanted() -> dict[str, list[tuple[list[int], int]]]:
    """Return, for each small row of rows.json that is no execution case, its bits and its p's, once for each copy."""
    entries = {entry["id"]: entry for entry in json.loads(truth.ROWS.read_text())["cases"]}
    small = [row for row in truth.cases() if row.logits.size <= 4096 and entries[row.id]["stage"] != "execution"]
    return {row.id: [(bits(row.logits), int(row.p.view(np.uint32)))] * entries[row.id]["batch"] for row in small}


def reported(name: str) -> list[Case]:
    """Return the written cases of a shipped file, without those with a stride and those made for wrong kernels."""
    written = [case for case in shipped(name) if isinstance(rules.base(case), Written)]
    return [case for case in written if case.stride is None and not case.id.startswith("mutants-")]


@pytest.mark.parametrize("name", ["cpu", "cpu-0.33.0", "h200-lessons"])
def test_the_rows_with_a_stride_begin_and_end_with_those_of_rows_json(name: str) -> None:
    """H21a and H21b, bit for bit, in one launch with eight columns of padding."""
    (case,) = (case for case in shipped(name) if case.stride is not None)
    made, rows = inputs.generate(case), {row.id: row for row in truth.cases()}
    assert bits(made.logits[0]) == bits(rows["H21a"].logits)
    assert bits(made.logits[-1]) == bits(rows["H21b"].logits)
    assert {p.view(np.uint32) for p in made.p} == {rows["H21a"].p.view(np.uint32)}
    assert case.stride == made.logits.shape[1] + 8


@pytest.mark.parametrize("name", ["cpu", "cpu-0.33.0"])
def test_the_written_rows_of_the_cpu_files_are_those_of_rows_json(name: str) -> None:
    """Bit for bit, logits and p, each exactly as often as its batch says, and no other."""
    found: list[tuple[list[int], int]] = []
    for case in reported(name):
        made = inputs.generate(case)
        found += [(bits(row), int(p.view(np.uint32))) for row, p in zip(made.logits, made.p, strict=True)]
    expected = [row for rows in wanted().values() for row in rows]
    assert sorted(found) == sorted(expected)
    assert len(wanted()) > 30


@pytest.mark.parametrize("name", ["cpu", "cpu-0.33.0"])
def test_the_written_rows_have_the_role_code_and_token_that_rows_json_gives_them(name: str) -> None:
    """A rejection is a probe with its code, a forced row names the token that must be kept, all others are ordinary."""
    entries = {entry["id"]: entry for entry in json.loads(truth.ROWS.read_text())["cases"]}
    known = {(tuple(rows[0][0]), rows[0][1]): entries[name] for name, rows in wanted().items()}
    for case in reported(name):
        made = inputs.generate(case)
        for row, (role, token, code) in enumerate(zip(case.roles(), case.tokens(), case.expected(), strict=True)):
            entry = known[tuple(bits(made.logits[row])), int(made.p[row].view(np.uint32))]
            assert role == {"input": "probe", "forced": "forced"}.get(entry["stage"], "ordinary")
            assert code == entry["expect"].get("reject")
            assert token == (entry["expect"]["kept"][0] if role == "forced" else None)


# ---------------------------------------------------------------------------------------------- bad files


SPEC = {"kind": "file", "path": "x.safetensors", "tensor": "logits"}


def spec(path: Path, **more: Any) -> Captured:
    """Return a captured generator over a file."""
    return Captured.model_validate({**SPEC, "path": str(path), **more})


def stored(dtype: str, shape: list[int], size: int) -> bytes:
    """Return a safetensors file of one tensor of zeros, written by hand: any type, any claim."""
    head = json.dumps({"logits": {"dtype": dtype, "shape": shape, "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(head)) + head + bytes(size)


GOOD = stored("F32", [2, 3], 24)

BAD_FILES = {
    "empty": (b"", "not a readable safetensors file: "),
    "text": (b"these are no tensors, only a line of text", "not a readable safetensors file: "),
    "truncated": (GOOD[:-1], "not a readable safetensors file: "),
    "truncated in the header": (GOOD[:40], "not a readable safetensors file: "),
    "too long": (GOOD + b"\0", "not a readable safetensors file: "),
    "a header of 2**60 bytes": (struct.pack("<Q", 2**60) + b"{}", "not a readable safetensors file: "),
    "offsets beyond the end": (GOOD.replace(b"24]", b"99]"), "not a readable safetensors file: "),
    "a shape that needs more": (GOOD.replace(b"[2, 3]", b"[9, 9]"), "not a readable safetensors file: "),
    "no tensors": (struct.pack("<Q", 2) + b"{}", "got tensors [], expected one named 'logits'"),
    "another name": (
        GOOD.replace(b"logits", b"Logits"),
        "got tensors ['Logits'], expected one named 'logits'",
    ),
    "float64": (stored("F64", [2, 3], 48), "tensor 'logits': got float64 [2, 3], expected float32 [rows, vocabulary]"),
    "float16": (stored("F16", [2, 3], 12), "tensor 'logits': got float16 [2, 3], expected float32 [rows, vocabulary]"),
    "bfloat16": (
        stored("BF16", [2, 3], 12),
        "tensor 'logits': got bfloat16 [2, 3], expected float32 [rows, vocabulary]",
    ),
    "int32": (stored("I32", [2, 3], 24), "tensor 'logits': got int32 [2, 3], expected float32 [rows, vocabulary]"),
    "float8": (stored("F8_E4M3", [2, 3], 6), "holds a tensor of type F8_E4M3, expected F32"),
    "rank 1": (stored("F32", [6], 24), "tensor 'logits': got float32 [6], expected float32 [rows, vocabulary]"),
    "rank 3": (
        stored("F32", [1, 2, 3], 24),
        "tensor 'logits': got float32 [1, 2, 3], expected float32 [rows, vocabulary]",
    ),
    "rank 0": (stored("F32", [], 4), "tensor 'logits': got float32 [], expected float32 [rows, vocabulary]"),
    "no rows": (stored("F32", [0, 3], 0), "tensor 'logits': got float32 [0, 3], expected float32 [rows, vocabulary]"),
    "no tokens": (stored("F32", [2, 0], 0), "tensor 'logits': got float32 [2, 0], expected float32 [rows, vocabulary]"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_captured_file_is_named_with_what_is_wrong(tmp_path: Path, name: str) -> None:
    """Truncated, no safetensors, another name, type or rank: one line with file and tensor."""
    data, expected = BAD_FILES[name]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    message = refusal(lambda: inputs.captured(spec(path)))
    assert message.startswith(f"{path}: {expected}")


def test_the_file_that_the_bad_ones_are_made_of_is_read(tmp_path: Path) -> None:
    """So that each is refused for its fault."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    assert inputs.captured(spec(path)).shape == (2, 3)


def test_a_captured_file_that_is_not_there_or_no_file_is_named(tmp_path: Path) -> None:
    """Missing, a directory, a device that never ends."""
    assert refusal(lambda: inputs.captured(spec(tmp_path / "none"))).startswith(
        f"{tmp_path / 'none'}: cannot be read: No such file or directory"
    )
    assert refusal(lambda: inputs.captured(spec(tmp_path))) == f"{tmp_path}: not a regular file"
    assert refusal(lambda: inputs.captured(spec(Path("/dev/zero")))) == "/dev/zero: not a regular file"


def test_a_captured_file_with_another_digest_is_drift_whatever_it_is_called(tmp_path: Path) -> None:
    """The kind of error says so, not a word in its text; and a file that merely has the word in its name is none."""
    path = tmp_path / "input_drift.safetensors"
    path.write_bytes(GOOD)
    with pytest.raises(InputDriftError, match=f"SHA-256 is {digests.sha256(GOOD)}, expected {'0' * 64}"):
        inputs.captured(spec(path, sha256="0" * 64))
    path.unlink()
    with pytest.raises(InputError) as caught:
        inputs.captured(spec(path, sha256="0" * 64))
    assert not isinstance(caught.value, InputDriftError)


def captured_case(path: Path, **more: Any) -> Case:
    """Return a frozen case over a file of two rows of three zeros."""
    rows = {**SPEC, "path": str(path), "sha256": digests.sha256(GOOD)} | more
    case = {"id": "c", "role": "ordinary", "rows": rows, "p": "0.5", "shape": [2, 3], "input": "0" * 64}
    return Case.model_validate(case)


def test_rows_beyond_the_tensor_are_named_with_the_case(tmp_path: Path) -> None:
    """The range got, and how many rows there are."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    message = refusal(lambda: inputs.generate(captured_case(path, rows=[1, 3])))
    assert message == f"cases[c].rows: rows: got [1, 3], but {path} has 2 rows"


def test_a_token_beyond_a_captured_file_is_named_with_the_case(tmp_path: Path) -> None:
    """What only the file says is checked when it is read."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    forced = {"kind": "forced", "base": {**SPEC, "path": str(path)}, "token": 3, "value": "1"}
    case = Case.model_validate({"id": "c", "role": "forced", "rows": forced, "p": "0.5"})
    assert refusal(lambda: inputs.generate(case)) == "cases[c].rows: token: got 3, expected a token below 3"


def test_tiled_rows_follow_one_another(tmp_path: Path) -> None:
    """The range as a whole, again and again."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(safetensors.numpy.save({"logits": np.arange(6, dtype=np.float32).reshape(3, 2)}))
    case = Case.model_validate(
        {"id": "c", "role": "ordinary", "rows": {**SPEC, "path": str(path), "rows": [1, 3], "tile": 2}, "p": "0.5"}
    )
    assert inputs.generate(case).logits.tolist() == [[2, 3], [4, 5], [2, 3], [4, 5]]


def test_generated_logits_cannot_be_changed(tmp_path: Path) -> None:
    """Nobody downstream alters what a digest was taken of."""
    path = tmp_path / "x.safetensors"
    path.write_bytes(GOOD)
    for case in (*shipped("demo"), captured_case(path)):
        with pytest.raises(ValueError, match="read-only"):
            inputs.generate(case).logits[0, 0] = 1.0


INPUT_STOPS = {
    "gone": (None, "input_missing"),
    "another file": (GOOD[:-1] + b"\1", "input_drift"),
    "truncated": (GOOD[:-1], "input_drift"),
    "the file, but another digest frozen": (GOOD, "input_drift"),
}


@pytest.mark.parametrize("name", INPUT_STOPS)
def test_what_capture_finds_is_a_stop_that_names_the_case(tmp_path: Path, name: str) -> None:
    """The contract draws the line: from the first stage on, a fault of an input is a stop with its code."""
    data, code = INPUT_STOPS[name]
    path = tmp_path / "x.safetensors"
    if data is not None:
        path.write_bytes(data)
    case = captured_case(path)
    checked = params.read(PARAMS / "demo.yml").model_copy(update={"cases": [case]})
    found = capture.capture(Run(tmp_path / "run", checked, "", "", None))
    assert found["stop"]["code"] == code
    assert found["stop"]["detail"].startswith("cases[c]")
    assert found["inputs"] == {"c": inputs.generate(case).sha256 if data == GOOD else None}


@pytest.mark.parametrize(("tensor", "fault"), list(product(["logits", "p"], ["gone", "more", "type", "rank"])))
def test_an_input_of_a_run_that_is_not_as_written_is_refused(tmp_path: Path, tensor: str, fault: str) -> None:
    """Both tensors, and no other, of float32 and of the right rank."""
    held = {"logits": np.zeros((2, 3), np.float32), "p": np.zeros(2, np.float32)}
    path = tmp_path / "c.safetensors"
    inputs.save(inputs.Inputs(**held), path)
    assert inputs.from_bytes(path.read_bytes(), "c").sha256 == digests.sha256_arrays(held)
    match fault:
        case "gone":
            del held[tensor]
        case "more":
            held["more"] = held[tensor]
        case "type":
            held[tensor] = held[tensor].astype(np.float64)
        case _:
            held[tensor] = held[tensor][None]
    data = safetensors.numpy.save(held)
    assert refusal(lambda: inputs.from_bytes(data, "c")).startswith("c: ")
