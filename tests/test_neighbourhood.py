"""What lies around a boundary, against the same facts counted one by one with exact fractions."""

from fractions import Fraction

import numpy as np
import pytest

from toppgate import gate, masses, oracle
from toppgate.neighbourhood import AROUND, BESIDE, MOST_RUNS, Kept, Neighbourhood, neighbourhood
from toppgate.spec import Reference

P = np.float32(0.9)


def make_row(seed: int, size: int = 300, step: float = 0.25) -> tuple[np.ndarray, Reference]:
    """Return a row of rounded logits, so that many are tied, and its reference."""
    drawn = np.random.default_rng(seed).normal(size=size)
    logits = (np.round(drawn / step) * step).astype(np.float32)
    return logits, oracle.reference(logits, P)


def make_set(reference: Reference, positions: slice) -> Kept:
    """Return the set of the tokens at some positions, by token id."""
    kept = np.zeros(reference.order.size, dtype=np.bool_)
    kept[reference.order[positions]] = True
    return kept


def make_sets(seed: int, reference: Reference) -> tuple[Kept, Kept]:
    """Return two kept sets near the oracle's: one a prefix or none, the other with holes."""
    draw = np.random.default_rng(seed + 1000)
    stock = make_set(reference, slice(max(0, reference.count + int(draw.integers(-6, 7)))))
    patch = make_set(reference, slice(reference.count + 5))
    patch[reference.order[reference.count - 8 :][draw.random(reference.order.size - reference.count + 8) < 0.3]] ^= True
    return stock, patch


@pytest.mark.parametrize("seed", range(20))
def test_counts_places_and_runs(seed: int) -> None:
    """Sizes, losses, extras, ties, holes and runs are those that a loop over positions finds."""
    logits, reference = make_row(seed)
    sets = make_sets(seed, reference)
    around = neighbourhood(reference, logits, *sets)
    order, count = reference.order.tolist(), reference.count
    tied = [at for at, token in enumerate(order) if logits[token] == logits[order[count - 1]]]
    assert around.ties == (tied[0], tied[-1] + 1)
    assert around.count == count
    differ = {at for at, token in enumerate(order) for kept in sets if bool(kept[token]) is not (at < count)}
    first, last = around.window
    assert around.outside == len([at for at in differ if not first <= at < last])
    for side, kept in zip((around.stock, around.patch), sets, strict=True):
        held = [at for at, token in enumerate(order) if kept[token]]
        lost = [at for at in range(count) if at not in held]
        holes = [at for at in range(max(held, default=0)) if at not in held]
        assert (side.size, side.missing, side.extra) == (len(held), len(lost), len([at for at in held if at >= count]))
        assert side.tied == len(set(held) & set(tied))
        for place, at in ((side.lost, min(lost, default=None)), (side.hole, min(holes, default=None))):
            assert (None if place is None else place.position) == at
            assert place is None or (place.id, place.logit) == (order[place.position], logits[order[place.position]])
        assert (side.last and side.last.position) == (max(held) if holes else None)
        assert {at for begin, end in side.runs for at in range(begin, end)} == set(held) & set(range(first, last))


@pytest.mark.parametrize("seed", range(10))
def test_tokens_are_exact(seed: int) -> None:
    """Each listed token has its place, its weight, and the exact mass of its prefix, and less p, correctly rounded."""
    logits, reference = make_row(seed)
    stock, patch = make_sets(seed, reference)
    around = neighbourhood(reference, logits, stock, patch)
    weights = [Fraction(weight) for weight in reference.weights.tolist()]
    for token in around.tokens:
        share = sum(weights[: token.position + 1], Fraction(0)) / sum(weights)
        assert (token.share, token.beyond) == (float(share), float(share - Fraction(float(P))))
        assert token.id == reference.order[token.position]
        assert (token.logit, token.weight) == (logits[token.id], reference.weights[token.position])
        assert (token.oracle, token.stock, token.patch) == (
            token.position < reference.count,
            stock[token.id],
            patch[token.id],
        )
    by_position = {token.position: token for token in around.tokens}
    below, above = masses.margin(reference)
    assert by_position[reference.count - 1].beyond == above
    assert by_position[reference.count - 2].beyond == -below


def test_a_neighbourhood_is_small() -> None:
    """Of 100,000 tokens, every second one kept, a few are listed, the strip has few runs, and the rest is counted."""
    logits, reference = make_row(1, size=100_000, step=0.001)
    comb = make_set(reference, slice(0, None, 2))
    around = neighbourhood(reference, logits, comb, comb)
    assert len(around.tokens) <= 2 * AROUND + 4 * BESIDE
    assert len(around.patch.runs) <= MOST_RUNS
    assert around.window == (reference.count - MOST_RUNS, reference.count + MOST_RUNS)
    first, last = around.window
    differ = {at for at in range(reference.order.size) if (at % 2 == 0) is not (at < reference.count)}
    assert around.outside == len(differ - set(range(first, last)))


def test_a_strip_shows_all_that_differs_where_it_can() -> None:
    """A side that keeps 500 tokens too many in one run is shown whole, with some room."""
    logits, reference = make_row(2, size=5000, step=0.001)
    patch = make_set(reference, slice(reference.count + 500))
    around = neighbourhood(reference, logits, make_set(reference, slice(reference.count)), patch)
    assert around.outside == 0
    assert around.window == (reference.count - 500 // 8, reference.count + 500 + 500 // 8)
    assert (around.stock.missing, around.stock.extra, around.patch.extra) == (0, 0, 500)


def test_a_row_of_one_token() -> None:
    """The smallest row has a neighbourhood; nothing kept is nothing kept."""
    logits = np.zeros(1, np.float32)
    around = neighbourhood(oracle.reference(logits, P), logits, np.zeros(1, np.bool_), np.ones(1, np.bool_))
    assert isinstance(around, Neighbourhood)
    assert (around.stock.size, around.stock.missing, around.stock.runs) == (0, 1, ())
    assert [token.position for token in around.tokens] == [0]


def test_without_a_boundary_there_is_none() -> None:
    """A reference whose scan never reached the target is refused."""
    logits, reference = make_row(0)
    unreached = Reference(reference.order, reference.weights, 1.0, 2.0, 0, False, 0.9)
    with pytest.raises(ValueError, match="no boundary"):
        neighbourhood(unreached, logits, *make_sets(0, reference))


@pytest.mark.parametrize("counts", [[2, 1], [-1], [301]])
def test_prefixes_are_asked_for_in_order(counts: list[int]) -> None:
    """Lengths that do not ascend, or lie outside the row, are refused."""
    with pytest.raises(ValueError, match="ascending numbers from 0 to 300"):
        masses.prefixes(make_row(0)[1], counts)


def test_the_bound_is_the_rule() -> None:
    """The most that rule 6 accepts is accepted, and one more is not."""
    for reference in [*range(2000), *range(99_990, 100_210)]:
        most = gate.count_bound(reference)
        assert gate.count_within(most, reference)
        assert not gate.count_within(most + 1, reference)
