"""Memory of a compiled PTX launch: the regions that contain addresses, and the checks before an access.

Addresses are the simulated ones (sim.ptx.memory). A table describes each region: its address, its length, the
address of its bytes in the host's memory, and its shadow memory (sim.native.codegen.shadow), with entries for
each granule of bytes. Each site of the kernel caches the region of its last access.
"""

import functools

import numpy as np

from sim.native.codegen.int64 import set_byte, variant, words
from sim.native.codegen.shadow import (
    BARE,
    BOUNDS,
    EPOCH_SHIFT,
    LOCAL,
    RACE,
    dirty,
    races_with,
    unwritten,
    watch_atomic,
    watch_load,
)

# the words of a table, and behind them the region of each place
REGIONS, COUNT, SCRATCH, PLACES = 0, 1, 2, 8
# the words of a region: its address, bytes (of one thread, if STRIDE is not 0), the address of its bytes
# and of its shadow, the binary logarithm of a granule, how it is watched, whether it is fixed (or new for
# each block), how many bytes lie from one thread's to the next, of what power of two its declaration makes
# its address a multiple; and of the atomics that change it: how many bytes, and `me` of the first of them
BASE, SIZE, HOST, SHADOW, SHIFT, WATCH, FIXED, STRIDE, ALIGNED, WIDTH, FIRST = range(11)
WRITABLE, READ_ONLY, OF_BLOCK = range(3)
FIELDS = 11


@words(inline=False)
def region_of(table, address, thread):
    """Return the region that contains an address, or 0."""
    for position in range(table[COUNT]):
        region = table[REGIONS] + 8 * FIELDS * position
        offset = address - region[BASE] - thread * region[STRIDE]
        if 0 <= offset < region[SIZE]:
            return region
    return 0


def looked(shadow, offset, shift, watch, state, size, watched):
    for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
        watched(watch, shadow, granule, state)


@words(inline=False)
def of_one_width(region, size, state):
    """Set an error flag for the running block if atomics of different widths change a region: where their
    bytes overlap, they are not atomic to each other. The interpreter decides whether they overlap."""
    same, fresh = region[WIDTH] == size, unwritten(region[FIRST], state)
    if region[WIDTH] == 0 or region[FIXED] == OF_BLOCK and (same or fresh):
        region[WIDTH] = size
        region[FIRST] = state.me
    elif same:
        pass
    elif fresh:
        races_with(state, region[FIRST] >> EPOCH_SHIFT)
    else:
        dirty(state, RACE)


def located(table, place, address, thread, state, size, writes, changes, look):
    region = table[PLACES + place]
    offset = address - region[BASE] - thread * region[STRIDE]
    if offset < 0 or offset > region[SIZE] - size:
        region = region_of(table, address, thread)
        offset = address - region[BASE] - thread * region[STRIDE] if region != 0 else 0
        if region == 0 or offset > region[SIZE] - size:
            dirty(state, BOUNDS)
            return table[SCRATCH]
        if region[ALIGNED] & size - 1 != 0:
            dirty(state, BOUNDS)
        table[PLACES + place] = region
    if address & size - 1 != 0 or (writes and region[FIXED] == READ_ONLY):
        dirty(state, BOUNDS)
        return table[SCRATCH]
    offset += thread * region[STRIDE]
    watch = region[WATCH]
    if watch != BARE:
        if changes and watch != LOCAL:
            of_one_width(region, size, state)
        look(region[SHADOW], offset, region[SHIFT], watch, state)
    return region[HOST] + offset


@functools.cache
def locator(watched, size):
    """Return the function (table, place, address, thread, state) -> the host's address of `size` bytes to
    access (`watched`: watch_load, watch_store or watch_atomic). For an invalid access it returns the
    address of scratch bytes."""
    look = variant(looked, f"{watched.words.name}_{size}", size=size, watched=watched)
    writes, changes = watched is not watch_load, watched is watch_atomic
    name = f"{watched.words.name}_{size}"
    return variant(located, name, size=size, writes=writes, changes=changes, look=look)


@words(inline=False)
def renewed(table, position, thread):
    """Make a thread's local memory fresh."""
    region = table[REGIONS] + 8 * FIELDS * position
    stride, host, shadow = region[STRIDE], region[HOST], region[SHADOW]
    for byte in range(thread * stride, thread * stride + region[SIZE]):
        set_byte(host, byte, 255)
    if region[WATCH] == LOCAL:
        for granule in range(stride * thread >> region[SHIFT], stride * (thread + 1) >> region[SHIFT]):
            set_byte(shadow, granule, 0)


@words(inline=False)
def renew_shared(table):
    """Make the shared memory of a block fresh."""
    for position in range(table[COUNT]):
        region = table[REGIONS] + 8 * FIELDS * position
        if region[FIXED] == OF_BLOCK:
            host = region[HOST]
            for byte in range(region[SIZE]):
                set_byte(host, byte, 255)


def granule(itemsize, size):
    """Return the binary logarithm of the number of bytes that share an entry of shadow memory."""
    shift = min(itemsize, 8).bit_length() - 1
    while size >> shift << shift != size:
        shift -= 1
    return shift


class Table:
    """The table of a launch. `held` keeps the memory alive whose addresses it contains."""

    def __init__(self, places, space):
        self.rows, self.held, self.places, self.space = [], [], places, space

    def add(self, allocation, memory, watch, itemsize, fixed=WRITABLE, stride=0):
        """Add the region of an allocation. `memory`: all its bytes, as uint8. `itemsize`: the bytes of its
        smallest accesses."""
        shift = granule(itemsize, allocation.root.size)
        granules, shadow = (memory.size >> shift) + 1, None
        if watch != BARE:
            shadow = np.zeros(granules, np.uint8) if watch == LOCAL else np.zeros(2 * granules, np.int64)
        addresses = self.address(memory), self.address(shadow)
        rest = shift, watch, fixed, stride, self.space.sure_alignment(allocation), 0, 0
        self.rows.append((allocation.base, allocation.root.size, *addresses, *rest))

    def address(self, array):
        if array is None:
            return 0
        self.held.append(array)
        return array.__array_interface__["data"][0]

    def finished(self):
        """Return the address of the table."""
        rows = np.array([*self.rows, (0,) * FIELDS], np.int64)
        numbers = np.zeros(PLACES + self.places, np.int64)
        scratch = np.full(64, 0xFF, np.uint8)
        numbers[[REGIONS, COUNT, SCRATCH]] = self.address(rows), len(self.rows), self.address(scratch)
        numbers[PLACES:] = (
            numbers[REGIONS] + rows[:-1].nbytes
        )  # at first each place is in a region of no bytes
        return self.address(numbers)
