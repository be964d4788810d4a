"""Inside a hunting process: rows drawn on the device, and what two kernels made of them screened in float64.

A block is a function of seed and number on one kind of device; another kind draws other rows.  The screen follows the
gate's rules, in their order, against the float64 prefix of the sorted row; a row whose boundary lies within ``UNCLEAR``
of p is passed over, since float64 sums cannot tell there.  It is a sieve: oracle and gate decide.  Imports torch.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Final

import torch

#: (generator, rows, tokens, captured logits or None) -> logits, float32 or float64 [B, V] on the generator's device.
Draw = Callable[[Any, int, int, Any], Any]

#: Distance of a prefix from its target, relative to the whole, below which float64 sums are not trusted: a sum of n
#: terms one after the other is off by n * 2**-53 of itself at most, which is 3e-11 for 2**18 terms.
UNCLEAR: Final = 4e-11

#: The largest fp32 below 1, and the smallest p that is drawn.
MOST, LEAST = 1 - 2.0**-24, 1e-6

#: The screen's names, in the order of the gate's rules; the last is no stop.
FINDINGS: Final = (
    "output_altered",
    "stock_under_keep",
    "patch_noncanonical_tie",
    "patch_hole",
    "patch_under_keep",
    "count_bound_exceeded",
    "symmetric_difference_regression",
    "over_keep_in_tie",
)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Rows and their float64 reference.

    Attributes
    ----------
    logits, p
        float32 [B, V] and [B], on the device.
    order, ordered
        Token ids by (logit descending, id ascending), and the logits in that order.
    sums
        float64 [B, V]: the weights' cumulative sums in that order.
    """

    logits: Any
    p: Any
    order: Any
    ordered: Any
    sums: Any


def seeded(where: str, seed: int, number: int) -> Any:
    """Return the generator of a block.

    On a CPU a generator takes the low 32 bits of what it is seeded with, so there the seed is spread over them, by an
    odd factor (2**32 over the golden ratio): blocks of one hunt differ, and so do those of two seeds with one number.
    """
    mixed = seed * 2**32 + number if where == "cuda" else (seed * 0x9E3779B1 + number) % 2**32
    return torch.Generator(device=where).manual_seed(mixed)


def draw(kind: str, generator: Any, rows: int, tokens: int, real: Any) -> Drawn:
    """Draw rows of a kind, and a p for each: half of them the mass of a prefix in fp32, or its neighbour."""
    logits = KINDS[kind](generator, rows, tokens, real).float() + 0.0  # no -0.0: another sort might part it from 0.0
    ordered, order = torch.sort(logits, dim=1, descending=True, stable=True)
    sums = torch.exp(ordered.double() - ordered[:, :1].double()).cumsum(dim=1)
    return Drawn(logits, _p(generator, sums), order, ordered, sums)


def only(drawn: Drawn, rows: list[int]) -> Drawn:
    """Return some of the rows."""
    return Drawn(*(getattr(drawn, field.name)[rows] for field in fields(Drawn)))


def screen(drawn: Drawn, stock: Any, patch: Any) -> Any:
    """Return each row's first finding, int64 [B]: an index of ``FINDINGS``, or -1.  ``stock``, ``patch``: outputs."""
    place = torch.arange(drawn.logits.shape[1], device=drawn.logits.device)
    target = drawn.p.double() * drawn.sums[:, -1]
    count = ((drawn.sums < target[:, None]).sum(dim=1) + 1).clamp(max=drawn.logits.shape[1])
    oracle = place < count[:, None]
    ours, theirs = (_side(drawn, output, oracle, place) for output in (patch, stock))
    off = (ours["size"] - count).abs()
    last = drawn.ordered.gather(1, (ours["size"] - 1).clamp(min=0)[:, None])[:, 0]
    boundary = drawn.ordered.gather(1, (count - 1)[:, None])[:, 0]
    found = {
        "output_altered": ours["altered"] | theirs["altered"],
        "stock_under_keep": ~theirs["holds"],
        "patch_noncanonical_tie": ~ours["prefix"] & ours["tied"],
        "patch_hole": ~ours["prefix"],
        "patch_under_keep": ~ours["holds"],
        "count_bound_exceeded": (off > 3) & (200 * off >= count),
        "symmetric_difference_regression": ours["symdiff"] > theirs["symdiff"],
        "over_keep_in_tie": (ours["size"] > count) & (last == boundary),
    }
    first = torch.full_like(count, -1)
    for number in reversed(range(len(FINDINGS))):
        first = torch.where(found[FINDINGS[number]], number, first)
    return torch.where(_clear(drawn, count, target), first, -1)


def _side(drawn: Drawn, output: Any, oracle: Any, place: Any) -> dict[str, Any]:
    """Return what the rules ask of one output: each bool [B], sizes int64 [B]."""
    kept = output.view(torch.int32) == drawn.logits.view(torch.int32)
    altered = (~kept & (output != -math.inf)).any(dim=1)
    kept = kept.gather(1, drawn.order)
    size = kept.sum(dim=1)
    rank = (kept.cumsum(dim=1) - 1).clamp(min=0)
    return {
        "altered": altered,
        "size": size,
        "prefix": ~(kept & (place >= size[:, None])).any(dim=1),
        "tied": (~kept | (drawn.ordered == drawn.ordered.gather(1, rank))).all(dim=1),
        "holds": ~(~kept & oracle).any(dim=1),
        "symdiff": (kept ^ oracle).sum(dim=1),
    }


def _clear(drawn: Drawn, count: Any, target: Any) -> Any:
    """Return whether float64 sums can tell on which side of the target both prefixes at the boundary are."""
    reached = drawn.sums.gather(1, (count - 1)[:, None])[:, 0]
    shorter = drawn.sums.gather(1, (count - 2).clamp(min=0)[:, None])[:, 0]
    near = UNCLEAR * drawn.sums[:, -1]
    return ((reached - target).abs() > near) & ((count == 1) | ((target - shorter).abs() > near))


# ---------------------------------------------------------------------------------------------- rows


def _uniform(generator: Any, shape: tuple[int, ...], low: float, high: float) -> Any:
    drawn = torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)
    return low + (high - low) * drawn


def _gauss(generator: Any, shape: tuple[int, ...]) -> Any:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=torch.float32)


def _whole(generator: Any, shape: tuple[int, ...], low: int, high: int) -> Any:
    """Whole numbers from ``low`` to ``high`` - 1."""
    return torch.randint(low, high, shape, generator=generator, device=generator.device)


def _half(logits: Any) -> Any:
    """Every second row rounded to bfloat16, which ties its tokens."""
    logits[::2] = logits[::2].bfloat16().float()
    return logits


def _normal(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    scales = torch.tensor([1.0, 3.0, 8.0], device=generator.device)
    return _half(_gauss(generator, (rows, tokens)) * scales[_whole(generator, (rows, 1), 0, 3)])


def _captured(generator: Any, rows: int, tokens: int, real: Any) -> Any:
    """Tokens of a captured row, any of them, at a temperature, with some noise."""
    row, column = _whole(generator, (rows, 1), 0, real.shape[0]), _whole(generator, (rows, tokens), 0, real.shape[1])
    warm = real[row, column] / _uniform(generator, (rows, 1), 0.5, 2.0).float()
    return _half(warm + 0.1 * _gauss(generator, (rows, tokens)))


def _few(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    """Two to eight values in any number and place: ties within blocks, across blocks and across slices."""
    values = _gauss(generator, (rows, 8)) * 10 ** _uniform(generator, (rows, 1), -1.0, 0.6).float()
    skewed = _uniform(generator, (rows, tokens), 0.0, 1.0) ** 3 * _whole(generator, (rows, 1), 2, 9)
    return values.gather(1, skewed.long())


def _ladder(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    """Ninths of the row's range, or ninths of those: tokens on the pivots of the search."""
    steps = 9 ** _whole(generator, (rows, 1), 1, 3)
    place = (_uniform(generator, (rows, tokens), 0.0, 1.0).sqrt() * (steps + 1)).long()
    place[:, :1], place[:, 1:2] = 0, steps
    return _uniform(generator, (rows, 1), 0.1, 40.0) * -place / steps


def _near(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    """Values within 1e-1 to 1e-7 of each other."""
    return _uniform(generator, (rows, tokens), 0.0, 1.0) * 10 ** -_uniform(generator, (rows, 1), 1.0, 7.0)


def _head(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    """Up to four tokens far above the others."""
    logits = _gauss(generator, (rows, tokens))
    for _ in range(4):
        raised = _uniform(generator, (rows, 1), -4.0, 16.0).clamp(min=0).float()
        logits.scatter_add_(1, _whole(generator, (rows, 1), 0, tokens), raised)
    return logits


def _tail(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    """A long fall to probabilities below 1e-9, every second row with the lowest first."""
    logits = -_uniform(generator, (rows, 1), 15.0, 60.0) * _uniform(generator, (rows, tokens), 0.0, 1.0)
    logits[::2] = logits[::2].sort(dim=1).values
    return logits


def _adjacent(generator: Any, rows: int, tokens: int, _real: Any) -> Any:
    """Neighbouring fp32 numbers around some value, each token one of up to as many as there are tokens."""
    base = (_uniform(generator, (rows, 1), 0.5, 16.0).float()).view(torch.int32)
    widest = (tokens ** _uniform(generator, (rows, 1), 0.2, 1.0)).long()
    steps = (_uniform(generator, (rows, tokens), 0.0, 1.0) * widest).int()
    return (base + steps).view(torch.float32)


#: In the order in which blocks go through them; ``captured`` only where a file of logits is at hand.
KINDS: Final[dict[str, Draw]] = {
    "normal": _normal,
    "captured": _captured,
    "few values": _few,
    "on the ladder": _ladder,
    "near uniform": _near,
    "heavy head": _head,
    "long tail": _tail,
    "adjacent": _adjacent,
}


def _p(generator: Any, sums: Any) -> Any:
    """Half of the rows get the mass of a prefix, rounded to fp32, or a neighbour; the others any p, or one near 1."""
    rows, tokens = sums.shape
    place = (tokens ** _uniform(generator, (rows,), 0.0, 1.0)).long().clamp(1, tokens) - 1
    exact = (sums.gather(1, place[:, None])[:, 0] / sums[:, -1]).float()
    beside = torch.nextafter(exact, _whole(generator, (rows,), 0, 2).float())
    near = (1 - 2 ** -_uniform(generator, (rows,), 4.0, 24.0)).float()
    anything = _uniform(generator, (rows,), 0.0, 1.0).float()
    choices = torch.stack([exact, exact, beside, anything, near, near])
    chosen = choices.gather(0, _whole(generator, (1, rows), 0, len(choices)))[0]
    return chosen.clamp(LEAST, MOST)
