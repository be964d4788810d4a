"""The compiled engine: the specification's bits, and nothing but the default engine where they are not."""

import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from engine_rows import AMBIGUOUS, DISTRIBUTIONS, ONE, normal, probabilities, row_of, same_bits
from hypothesis import example, given, settings
from numpy.typing import NDArray
from pipeline import literal
from safetensors.numpy import load_file
from strategies import Row, bfloat16, rows
from test_oracle import REAL_LOGITS
from test_real_columns import columns, first
from truth import cases

from toppgate import accel, judge, oracle, spec
from toppgate.schema import Case

P = np.float32(0.9)


def one(row: Row, p: np.float32) -> oracle.Reference:
    """Return the compiled reference of one row."""
    assert accel.engine() is not None
    (made,) = accel.references(row[None], np.array([p], np.float32))
    return made


# ---------------------------------------------------------------- the same bits


@settings(max_examples=1000, deadline=None)
@given(rows())
@example((np.array([0.0, -0.0, 1.0, -0.0, 0.0], np.float32), np.float32(0.7)))
@example((np.array([-0.0], np.float32), ONE))
def test_compiled_engine_has_the_specifications_bits(drawn: tuple[Row, np.float32]) -> None:
    """Order, weights, normalizer, target, count and certificate agree bit for bit on hard small rows."""
    same_bits(one(*drawn), spec.specification(*drawn))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_compiled_engine_has_the_specifications_bits_on_seeded_rows(name: str) -> None:
    """The engines agree bit for bit on rows around the scan's blocks and up to 3,000 tokens, p near prefix ratios."""
    rng = np.random.default_rng(list(b"compiled" + name.encode()))
    for v in (1, 2, 5, 64, 255, 256, 257, 513, 1000, 3000):
        row = DISTRIBUTIONS[name](rng, v)
        for p in probabilities(rng, row):
            same_bits(one(row, p), spec.specification(row, p))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_batches_at_a_real_vocabulary_have_the_default_engines_bits(name: str) -> None:
    """A batch of five rows of 32,000 tokens, over all cores, comes back in its order with the default engine's bits."""
    rng = np.random.default_rng(list(b"batch" + name.encode()))
    logits = np.stack([DISTRIBUTIONS[name](rng, 32_000) for _ in range(5)])
    p = np.array([0.1, 0.9, 0.999, 1.0, rng.random()], np.float32)
    for made, expected in zip(accel.references(logits, p), oracle.references(logits, p), strict=True):
        same_bits(made, expected)


@pytest.mark.parametrize("case", cases(), ids=lambda c: c.id)
def test_compiled_engine_has_the_specifications_bits_on_rows_json(case: Any) -> None:
    """The engines agree on every case of rows.json with finite logits."""
    if np.isfinite(case.logits).all():
        same_bits(one(case.logits, case.p), spec.specification(case.logits, case.p))
    else:
        assert case.reject == "nonfinite_logits"


@pytest.mark.parametrize(("bits", "count"), AMBIGUOUS)
def test_ambiguous_boundaries_are_not_certified(bits: str, count: int) -> None:
    """Where the scan and the sums disagree this engine says so too, and adjusts nothing."""
    made = one(row_of(bits), ONE)
    same_bits(made, spec.specification(row_of(bits), ONE))
    assert (made.count, made.certified) == (count, False)


def test_real_logits_have_the_specifications_bits() -> None:
    """Real next-token logits, as float32 and as bfloat16, have the default engine's references."""
    real = load_file(REAL_LOGITS)["logits"]
    p = np.full(len(real), P)
    for logits in (real, bfloat16(real)):
        for made, expected in zip(accel.references(logits, p), oracle.references(logits, p), strict=True):
            same_bits(made, expected)


def test_strided_batches_are_read_in_their_own_order() -> None:
    """A transposed batch gives the references of its contiguous copy."""
    logits = normal(3)(np.random.default_rng(7), 600).reshape(200, 3).T
    p = np.full(3, P)
    for made, expected in zip(accel.references(logits, p), oracle.references(logits.copy(), p), strict=True):
        same_bits(made, expected)


# ---------------------------------------------------------------- batches

ENGINES = pytest.mark.parametrize("references", [oracle.references, accel.references], ids=["default", "compiled"])
References = Callable[[Row, NDArray[np.float32]], tuple[oracle.Reference, ...]]


@ENGINES
def test_a_batch_is_its_rows(references: References) -> None:
    """Each row has its own p and its own reference; an empty batch has none."""
    logits = normal(2)(np.random.default_rng(1), 700).reshape(7, 100)
    p = np.linspace(0.1, 1, 7, dtype=np.float32)
    for row, (made, each) in enumerate(zip(references(logits, p), p, strict=True)):
        same_bits(made, spec.specification(logits[row], each))
    assert references(logits[:0], p[:0]) == ()


@ENGINES
def test_a_refused_row_is_named(references: References) -> None:
    """The message names the row, and the token or p, that is refused."""
    logits, p = np.zeros((3, 4), np.float32), np.full(3, P)
    logits[2, 1] = np.nan
    with pytest.raises(ValueError, match=r"^row 2: logits: token 1 is nan, a finite number expected$"):
        references(logits, p)
    p[1] = np.inf
    with pytest.raises(ValueError, match=r"^row 1: p: inf, a finite fp32 value expected$"):
        references(logits, p)


@ENGINES
@pytest.mark.parametrize(("logits", "p"), [((3, 4), (2,)), ((4,), (4,)), ((3, 4), (3, 1)), ((2, 3, 4), (2,))])
def test_shapes_must_fit(references: References, logits: tuple[int, ...], p: tuple[int, ...]) -> None:
    """Only [B, V] with [B] is a batch."""
    with pytest.raises(ValueError, match=r"\[B, V\] and \[B\] expected$"):
        references(np.zeros(logits, np.float32), np.full(p, P))


@ENGINES
def test_rows_of_another_type_are_refused(references: References) -> None:
    """A float64 batch, and one without tokens, is refused."""
    refused: list[Any] = [np.zeros((1, 4)), np.zeros((1, 0), np.float32)]
    for logits in refused:
        with pytest.raises(ValueError, match=r"^row 0: logits: .* float32 \[V\] with V >= 1 expected$"):
            references(logits, np.full(1, P))


# ---------------------------------------------------------------- where it may not be used


@pytest.fixture
def fresh() -> Iterator[None]:
    """Let the engine be looked for anew, in the test and after it."""
    accel.engine.cache_clear()
    yield
    accel.engine.cache_clear()


def wrong(name: str) -> Callable[..., Any]:
    """Return a loop that is a little wrong."""
    from toppgate import compiled

    def weigh_up(bits: Any, order: Any, weights: Any, *scratch: Any) -> None:
        compiled.weigh(bits, order, weights, *scratch)
        weights[-1] = np.nextafter(weights[-1], 2)

    def weigh_unstable(bits: Any, order: Any, weights: Any, *scratch: Any) -> None:
        compiled.weigh(bits, order, weights, *scratch)
        if order.size > 1 and weights[0] == weights[1]:
            order[:2] = order[1::-1]

    def scan(weights: Any, blocks: Any) -> Any:
        total, compensation = compiled.scan(weights, blocks)
        return np.nextafter(total + compensation, 0), 0.0

    loops: dict[str, Callable[..., Any]] = {
        "weigh, an ulp": weigh_up,
        "weigh, unstable": weigh_unstable,
        "scan": scan,
        "first": lambda *a: compiled.first(*a) + 1,
        "state": lambda w, b, count: compiled.state(w, b, count - 1) if count > 1 else compiled.state(w, b, 1),
        "svml": lambda: True,
    }
    return loops[name]


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("name", ["weigh, an ulp", "weigh, unstable", "scan", "first", "state", "svml"])
def test_an_engine_with_a_wrong_bit_is_not_used(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A loop that is wrong in one bit is found before its first use; a warning says so, the default does the work."""
    from toppgate import compiled

    loops = SimpleNamespace(**vars(compiled) | {name.partition(",")[0]: wrong(name)})
    monkeypatch.setitem(sys.modules, "toppgate.compiled", loops)
    monkeypatch.setattr("toppgate.compiled", loops)
    logits, p = normal(2)(np.random.default_rng(3), 200).reshape(2, 100), np.full(2, P)
    with pytest.warns(accel.FallbackWarning, match="^the compiled oracle is not used: "):
        made = accel.references(logits, p)
    for reference, row in zip(made, logits, strict=True):
        same_bits(reference, spec.specification(row, P))
    assert accel.engine() is None


@pytest.mark.usefixtures("fresh")
def test_an_engine_that_cannot_be_imported_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where numba is installed but fails, a warning says why."""
    monkeypatch.delattr("toppgate.compiled", raising=False)
    monkeypatch.setitem(sys.modules, "toppgate.compiled", None)
    with pytest.warns(accel.FallbackWarning, match="ImportError|ModuleNotFoundError"):
        assert accel.engine() is None


@pytest.mark.usefixtures("fresh")
def test_without_numba_the_default_is_used_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is optional: without it there is nothing to warn of."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (made,) = accel.references(np.zeros((1, 3), np.float32), np.full(1, P))
    same_bits(made, spec.specification(np.zeros(3, np.float32), P))


@pytest.mark.usefixtures("fresh")
def test_stage_3_is_silent_about_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large case gives the same rows by either engine, and a broken compiled one is passed over in silence."""
    expected = columns(first(3), first(2))
    rows = Mock(wraps=accel._rows)
    monkeypatch.setattr(judge, "COMPILED", 6)
    monkeypatch.setattr(accel, "_rows", rows)
    assert columns(first(3), first(2)) == expected
    assert rows.call_count == 51  # 50 checks, one row
    accel.engine.cache_clear()
    monkeypatch.setattr(accel, "_difference", lambda _: "broken")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert columns(first(3), first(2)) == expected
    assert rows.call_count == 51


def test_small_cases_do_not_wait_for_numba() -> None:
    """A case below the limit is judged by the default engine."""
    case = Case.model_validate({"id": "one", "role": "ordinary", "rows": literal([1, 2]), "p": "0.9", "shape": [1, 2]})
    assert judge._engine(case) is oracle.reference


def test_the_self_check_is_what_it_says() -> None:
    """50 rows, 10,000 arguments of exp in the first, and one on which the scan never reaches its target."""
    checks = list(accel._checks())
    assert len(checks) == 50
    assert np.unique(checks[0][0]).size > 9_900
    assert oracle.reference(*checks[1]).count == 0


def test_numba_is_imported_late_and_without_svml() -> None:
    """Importing accel imports no numba; the first use does, with SVML off."""
    code = (
        "import os, sys, toppgate.accel as accel\n"
        "assert 'numba' not in sys.modules\n"
        "assert accel.engine() is not None\n"
        "assert os.environ['NUMBA_DISABLE_INTEL_SVML'] == '1'\n"
        "assert sys.modules['numba'].config.DISABLE_INTEL_SVML\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "NUMBA_DISABLE_INTEL_SVML"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, env=environment, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
