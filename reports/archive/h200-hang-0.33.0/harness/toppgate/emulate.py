"""What a split kernel measures, in NumPy: the same bits as in Triton's interpreter, some hundred times faster.

Sums are taken over the same padded blocks, so that they round alike.  It serves to choose among many rows; what is
said of a row is said of one that the kernel itself has run.
"""

import numpy as np

from toppgate import trace
from toppgate.fp32 import Float32
from toppgate.trace import BAND, Layout, Trace


def search(logits: Float32, p: np.float32, layout: Layout) -> Trace:
    """Return the search over a row, float32 [V]."""
    slices = [logits[first:end] for first, end in trace.slice_bounds(logits.size, layout.slices)]

    def measure(_: int, pivots: Float32, maximum: np.float32, normalizer: np.float32) -> Float32:
        each = [_step(_blocks(part, layout.step_block), pivots, maximum, normalizer) for part in slices]
        return np.stack(each)

    with np.errstate(all="ignore"):
        each = np.stack([stats(part, layout.stats_block) for part in slices])
        return trace.search(each, measure, p, layout)


def _blocks(logits: Float32, block: int) -> Float32:
    """Return a slice as blocks, float32 [blocks, block], the last padded with -inf."""
    count = -(-logits.size // block)
    padded = np.full(count * block, -np.inf, np.float32)
    padded[: logits.size] = logits
    return padded.reshape(count, block)


def stats(logits: Float32, block: int) -> Float32:
    """Return a slice's largest logit, sum of ``exp(logit - largest)``, smallest logit, and count; float32 [4]."""
    largest, total = np.float32(-np.inf), np.float32(0)
    smallest, finite = np.float32(np.inf), np.float32(0)
    for part in _blocks(logits, block):
        usable = part > -np.inf
        higher = np.maximum(largest, part.max())
        scale = np.float32(0) if largest == -np.inf else np.exp(largest - higher)
        total = total * scale + np.sum(np.where(usable, np.exp(part - higher), np.float32(0)))
        largest = higher
        smallest = np.minimum(smallest, np.min(np.where(usable, part, np.float32(np.inf))))
        finite += np.sum(usable.astype(np.float32))
    return np.array([largest, total, smallest, finite], np.float32)


def _step(blocks: Float32, pivots: Float32, maximum: np.float32, normalizer: np.float32) -> Float32:
    """Return what a slice reports of each pivot; float32 [fanout, 3]."""
    mass, least = np.zeros_like(pivots), np.ones_like(pivots)
    count = np.zeros_like(pivots)
    for logits in blocks:
        probability = np.broadcast_to(np.exp(logits - maximum) / normalizer, (pivots.size, logits.size))
        above = probability > pivots[:, np.newaxis]
        mass += np.sum(np.where(above, probability, np.float32(0)), axis=1)
        lowest = np.min(np.where(above, probability, np.float32(np.inf)), axis=1)
        tied = above & (np.abs(probability - lowest[:, np.newaxis]) < BAND)
        ties = np.sum(tied.astype(np.float32), axis=1)
        same = np.where(np.abs(lowest - least) < BAND, ties, np.float32(0))
        count = np.where(lowest < least, ties, count + same)
        least = np.minimum(least, lowest)
    return np.stack([mass, least, count], axis=1)
