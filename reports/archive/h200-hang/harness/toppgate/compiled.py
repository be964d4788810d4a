"""The oracle's loops compiled by numba; ``accel`` is what calls them, checks lengths, and may import this.

No loop checks a bound, and ids have 31 bits.  Nothing here may let the compiler change a bit: no fastmath, and SVML,
whose exp is not the C library's, is switched off in the environment before numba is imported.  ``math.exp`` compiles to
a call of the C library's ``exp``.
"""

import math

import numpy as np
from numba import config, njit

#: The scan's state is kept before each so many terms.
BLOCK = 256

_RADIX = 1 << 11
_PASSES = 3  # 33 bits: a key has 32

_loop = njit(cache=True, nogil=True)


def svml():
    """Return whether numba replaces math functions by those of Intel's SVML."""
    return bool(config.USING_SVML)


@_loop
def _keys(bits, keys):
    """Map fp32 bits to keys that grow as the logit falls; -0.0 and +0.0 have one key.

    Separate from the histogram: in one loop the two take twice as long.
    """
    for i in range(bits.size):
        value = bits[i]
        if value == np.uint32(0x80000000):
            value = np.uint32(0)
        keys[i] = value if value & np.uint32(0x80000000) else value ^ np.uint32(0x7FFFFFFF)


@_loop
def _offsets(keys, offsets):
    """Fill int64 [3, 2048] with where each digit's run starts in each pass."""
    offsets[:] = 0
    for i in range(keys.size):
        key = np.uint64(keys[i])
        offsets[0, key & np.uint64(2047)] += 1
        offsets[1, (key >> np.uint64(11)) & np.uint64(2047)] += 1
        offsets[2, key >> np.uint64(22)] += 1
    for digit in range(_PASSES):
        start = 0
        for value in range(_RADIX):
            held = offsets[digit, value]
            offsets[digit, value] = start
            start += held


@_loop
def _scatter_keys(keys, target, starts):
    """Make the pairs key << 32 | id and put them into the order of the key's lowest digit, stably."""
    for i in range(keys.size):
        key = np.uint64(keys[i])
        digit = key & np.uint64(2047)
        place = starts[digit]
        target[place] = key << np.uint64(32) | np.uint64(i)
        starts[digit] = place + 1


@_loop
def _scatter(source, target, starts, shift):
    """Move pairs into the order of one digit of the key, stably."""
    for i in range(source.size):
        pair = source[i]
        digit = (pair >> shift) & np.uint64(2047)
        place = starts[digit]
        target[place] = pair
        starts[digit] = place + 1


@_loop
def _sorted_pairs(bits, keys, first, second, offsets):
    """Return the pairs, ascending, in one of two uint64 [V] buffers: a radix sort from the low digit up.

    A later pass whose digit is the same in every key would move nothing, and is left out.
    """
    size = bits.size
    _keys(bits, keys)
    _offsets(keys, offsets)
    _scatter_keys(keys, first, offsets[0])
    source, target = first, second
    for digit in range(1, _PASSES):
        mine = (np.uint64(keys[0]) >> np.uint64(11 * digit)) & np.uint64(2047)
        follows = np.int64(size) if mine == np.uint64(2047) else offsets[digit, mine + np.uint64(1)]
        if offsets[digit, mine] == 0 and follows == size:
            continue
        _scatter(source, target, offsets[digit], np.uint64(32 + 11 * digit))
        source, target = target, source
    return source


@_loop
def _logit(key):
    """Return the binary64 value of a key's logit."""
    bits = key if key & np.uint64(0x80000000) else key ^ np.uint64(0x7FFFFFFF)
    return np.float64(np.uint32(bits).view(np.float32))


@_loop
def weigh(bits, order, weights, pairs, offsets):
    """Rank a row and take its weights, one exp for each distinct logit.

    Parameters
    ----------
    bits : uint32 [V]
        The row's fp32 bits, finite, V >= 1.
    order : int32 [V]
        Filled with token ids by (logit descending, id ascending).
    weights : float64 [V]
        Filled with the weights in that order.
    pairs, offsets : uint64 [2, V], int64 [3, 2048]
        Scratch, kept from row to row: a sort that scatters into memory never touched before faults at every page of it.
        The keys go where the order will: they are read in sequence, before it is filled.
    """
    ranked = _sorted_pairs(bits, order.view(np.uint32), pairs[0], pairs[1], offsets)
    previous = ranked[0] >> np.uint64(32)
    largest = _logit(previous)
    weight = 1.0
    for i in range(bits.size):
        pair = ranked[i]
        key = pair >> np.uint64(32)
        order[i] = np.int32(pair & np.uint64(0x7FFFFFFF))
        if key != previous:
            previous = key
            shifted = _logit(key) - largest
            weight = math.exp(shifted) if shifted >= -746.0 else 0.0
        weights[i] = weight


@_loop
def _add(weights, total, compensation):
    """Return Neumaier's state after more terms."""
    for i in range(weights.size):
        weight = weights[i]
        rounded = total + weight
        if total >= weight:
            compensation += (total - rounded) + weight
        else:
            compensation += (weight - rounded) + total
        total = rounded
    return total, compensation


@_loop
def scan(weights, blocks):
    """Fill float64 [V // BLOCK + 1, 2] with the scan's state before each block; return the state after all terms."""
    total = compensation = 0.0
    for block in range((weights.size + BLOCK - 1) // BLOCK):
        blocks[block, 0] = total
        blocks[block, 1] = compensation
        total, compensation = _add(weights[block * BLOCK : (block + 1) * BLOCK], total, compensation)
    return total, compensation


@_loop
def state(weights, blocks, count):
    """Return the state after ``count`` terms, 1 to V."""
    block = (count - 1) // BLOCK
    return _add(weights[block * BLOCK : count], blocks[block, 0], blocks[block, 1])


@_loop
def first(weights, blocks, target):
    """Return the length of the first prefix whose total plus compensation reaches the target, or 0.

    The literal scan, taken up at a block before which no prefix can have reached it: total plus compensation is within
    V**2 2**-106 and one rounding of its exact sum, relative, and exact sums grow; so where it is below the target by
    2**-30, relative, it was below the target all along.
    """
    low, high = 0, (weights.size - 1) // BLOCK
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[middle, 0] + blocks[middle, 1] < target * (1.0 - 2.0**-30):
            low = middle
        else:
            high = middle - 1
    total, compensation = blocks[low, 0], blocks[low, 1]
    for i in range(low * BLOCK, weights.size):
        total, compensation = _add(weights[i : i + 1], total, compensation)
        if total + compensation >= target:
            return i + 1
    return 0
