"""Masks of the written bytes of a memory, and the stores of an epoch to single bytes."""

from typing import NamedTuple

import numpy as np

from sim.events import LOAD, STORE
from sim.observers.cells import sorted_distinct

WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
# width in bytes -> the integer whose bytes are all True (1)
ALL_SET = {width: np.ones(width, bool).view(word)[0] for width, word in WORDS.items()}


def all_written(written, offset, width):
    """Return a mask that is True for each `offset` at which all of the next `width` bytes are set."""
    words = as_words(written, offset, width)
    if words is None:
        return written[offset[:, None] + np.arange(width)].all(1)
    # Compare a whole element at a time.
    return words[offset // width] == ALL_SET[width]


def as_words(written, offset, width):
    """Return the mask as an array with one integer per element of `width` bytes. Return None if an offset is
    not aligned, or if no integer type has this width."""
    if width not in WORDS or len(written) % width or np.count_nonzero(offset & width - 1):
        return None
    return written.view(WORDS[width])


def mark_written(written, offset, size):
    """Set the `size` bytes that begin at each `offset`."""
    for width in sorted_distinct(size).tolist():
        at = offset[size == width]
        words = as_words(written, at, width)
        if words is None:
            written[(at[:, None] + np.arange(width)).ravel()] = True
        else:
            words[at // width] = ALL_SET[width]


def loads_with_equal_store(loads, offset, size, site, thread, ordered):
    """Return a mask of the loads for which there is a plain store to exactly the same bytes.

    The first such store must precede the load, or, unless the accesses are `ordered`, belong to another
    thread. This cheap test settles most loads.
    """
    stores = np.flatnonzero(site & 3 == STORE)
    if not len(stores):
        return np.zeros(len(loads), bool)
    # Pack each byte range into one key. The widest access has 16 bytes, which fits into 5 bits.
    bytes_of = offset << 5 | size
    place, first = np.unique(bytes_of[stores], return_index=True)
    at = np.searchsorted(place, bytes_of[loads]).clip(max=len(place) - 1)
    store = stores[first[at]]
    sure = (store < loads) | (thread[store] != thread[loads]) & (not ordered)
    return (place[at] == bytes_of[loads]) & sure


def stores_by_byte(offset, size, site, near):
    """Return {byte: [positions of the stores to it]} for stores that begin within 16 bytes of a byte in
    `near`."""
    wanted = {byte + shift for byte in near for shift in range(-16, 17)}
    stores = {}
    for i in np.flatnonzero(site & 3 != LOAD).tolist():
        begin = int(offset[i])
        if begin in wanted:
            for byte in range(begin, begin + int(size[i])):
                stores.setdefault(byte, []).append(i)
    return stores


class EpochPart(NamedTuple):
    """The accesses of a block in one epoch to one kind of memory, as parallel arrays.

    written: a mask of the bytes written in earlier epochs.
    offset: the positions of the accesses in that mask.
    """

    block: tuple
    epoch: int
    written: np.ndarray
    offset: np.ndarray
    thread: np.ndarray
    site: np.ndarray
    address: np.ndarray
    size: np.ndarray
    segment: np.ndarray
    position: np.ndarray

    def loads_of_unwritten_bytes(self, loads):
        """Return the indices of the loads that include a byte which is not in `written`.

        loads: a mask of the accesses.
        """
        loads = np.flatnonzero(loads)
        widths = sorted_distinct(self.size[loads])
        if len(widths) == 1:
            return loads[~all_written(self.written, self.offset[loads], int(widths[0]))]
        missing = np.zeros(len(loads), bool)
        for width in widths.tolist():
            of_width = self.size[loads] == width
            missing[of_width] = ~all_written(self.written, self.offset[loads[of_width]], width)
        return loads[missing]
