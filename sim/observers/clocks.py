"""Vector clocks, and their union."""

from itertools import zip_longest

import numpy as np

FEW = 64  # a union is a dict if the united clocks have at most this number of entries in total
CHUNK_BITS = 8
CHUNK = 1 << CHUNK_BITS  # the number of bounds in each of a Clock's chunks
NOTHING = np.full(CHUNK, -1)


class Clock:
    """A vector clock with many entries, stored in arrays that several clocks can share.

    Like a dict, it maps the key of a thread or block to a bound. It is never modified.

    positions: {key: the position of its bound}, the same dict for all clocks of the launch.
    chunks: arrays of CHUNK bounds each. The bound of a key without an entry is -1.
    """

    __slots__ = "positions", "chunks"

    def __init__(self, positions, chunks):
        self.positions, self.chunks = positions, chunks

    def get(self, key, default=None):
        position = self.positions.get(key)
        if position is None or position >> CHUNK_BITS >= len(self.chunks):
            return default
        bound = self.chunks[position >> CHUNK_BITS].item(position & CHUNK - 1)
        return default if bound < 0 else bound

    def __iter__(self):
        return (key for key in self.positions if self.get(key) is not None)


class Clocks:
    """The vector clocks of a launch.

    A clock maps each thread or block to a bound: the last segment of the thread, or epoch of the block, whose
    accesses have certainly happened. A clock with few entries is a dict, and any other is a Clock. If many
    threads release and acquire, most unions of clocks differ from one of the united clocks in only a few
    entries. A Clock therefore shares unchanged arrays with the clocks from which it was made.
    """

    def __init__(self):
        self.positions = {}  # key -> the position of its bound in each Clock, in the order of first use

    def merge(self, clocks):
        """Return the union of several clocks, which has the maximum bound for each key. If the first Clock
        contains all others, return that same object."""
        distinct = {id(clock): clock for clock in clocks}.values()
        large = [clock for clock in distinct if clock.__class__ is Clock]
        small = [clock for clock in distinct if clock.__class__ is dict]
        if not small and len(large) == 1:
            return large[0]
        if not large and sum(map(len, small)) <= FEW:
            return merge_dicts(small)
        before = chunks = large[0].chunks if large else []
        for clock in large[1:]:
            chunks = merge_chunks(chunks, clock.chunks)
        chunks = self.put(chunks, merge_dicts(small))
        return large[0] if chunks is before and large else Clock(self.positions, chunks)

    def position(self, key):
        """Return the position of a key."""
        return self.positions.setdefault(key, len(self.positions))

    def bounds(self, clocks, positions):
        """Return an array with the largest bound of several clocks at each position, or -1 without any."""
        result = np.full(len(positions), -1)
        for clock in clocks:
            chunks = clock.chunks if clock.__class__ is Clock else self.put([], clock)
            flat = np.concatenate([*chunks, NOTHING[:1]])
            np.maximum(result, flat[np.minimum(positions, len(flat) - 1)], out=result)
        return result

    def put(self, chunks, clock):
        """Return the union of the chunks of a Clock and a dict. If the dict adds nothing, return `chunks`."""
        result, copied = chunks, set()
        for key, bound in clock.items():
            position = self.position(key)
            number, place = position >> CHUNK_BITS, position & CHUNK - 1
            if number < len(result) and result[number].item(place) >= bound:
                continue
            if number not in copied:
                missing = number + 1 - len(result)
                result = [*result, *[NOTHING] * missing]
                result[number] = result[number].copy()
                copied.add(number)
            result[number][place] = bound
        return result


def merge_dicts(clocks):
    """Return the union of clocks that are dicts. If the largest clock contains the others, return this
    object."""
    largest = result = max(clocks, key=len, default={})
    for clock in clocks:
        for key, bound in clock.items():
            if bound > result.get(key, -1):
                if result is largest:
                    result = dict(largest)
                result[key] = bound
    return result


def merge_chunks(mine, theirs):
    """Return the union of the chunks of two Clocks. If `theirs` adds nothing, return `mine`."""
    if mine is theirs:
        return mine
    union = [
        one if one is other or other is NOTHING else other if one is NOTHING else merge_bounds(one, other)
        for one, other in zip_longest(mine, theirs, fillvalue=NOTHING)
    ]
    return mine if all(map(is_same, mine, union)) and len(mine) == len(union) else union


def is_same(one, other):
    return one is other


def merge_bounds(mine, theirs):
    """Return an array with the larger of two bounds at each position. If that is one of the given arrays,
    return that same object."""
    if not np.count_nonzero(theirs > mine):
        return mine
    return np.maximum(mine, theirs) if np.count_nonzero(mine > theirs) else theirs
