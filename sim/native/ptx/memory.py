"""Memory of a compiled PTX launch: the regions that contain addresses, and the checks before an access.

Addresses are the simulated ones (sim.ptx.memory). A table describes each region: its address, its length, the
address of its bytes in the host's memory, and its shadow memory (sim.native.codegen.shadow), with entries for
each granule of bytes. Each site of the kernel caches the region of its last access.
"""

import functools

import numpy as np

from sim.native.codegen.int64 import byte, int64_helper, set_byte, variant
from sim.native.codegen.shadow import (
    BARE,
    BOUNDS,
    LOCAL,
    SHARED,
    UNWRITTEN,
    add_reader,
    check_order,
    set_error,
    watch_atomic,
    watch_load,
)

# the words of a table, and behind them the region of each place
REGIONS, COUNT, SCRATCH, SITE_REGIONS = 0, 1, 2, 8
# the words of a region: its address, bytes (of one thread, if STRIDE is not 0), the address of its bytes
# and of its shadow, the binary logarithm of a granule, how it is watched, whether it is fixed (or new for
# each block), how many bytes lie from one thread's to the next, of what power of two its declaration makes
# its address a multiple, and the address of the shadow entries of atomics by width (0: all have one width)
BASE, SIZE, HOST, SHADOW, SHIFT, WATCH, FIXED, STRIDE, ALIGNED, WIDTHS = range(10)
WRITABLE, READ_ONLY, OF_BLOCK = range(3)
FIELDS = 10
ATOMIC_SIZES = 2, 4, 8  # bytes
SIZE_COUNT = len(ATOMIC_SIZES)


@int64_helper(inline=False)
def region_of(table, address, thread):
    """Return the region that contains an address, or 0."""
    for position in range(table[COUNT]):
        region = table[REGIONS] + 8 * FIELDS * position
        offset = address - region[BASE] - thread * region[STRIDE]
        if 0 <= offset < region[SIZE]:
            return region
    return 0


def check_granules(shadow, offset, shift, watch, state, size, watched):
    for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
        watched(watch, shadow, granule, state)


@int64_helper(inline=False)
def check_widths(region, offset, size, width, state):
    """Set an error flag if an unordered atomic of another width has changed the same bytes, because the two
    are not atomic to each other. Each granule has a shadow entry for each of ATOMIC_SIZES. Atomics of one
    width do not race with each other, so their entry is one of readers."""
    entries, shift, between_blocks = region[WIDTHS], region[SHIFT], region[WATCH] != SHARED
    for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
        first = granule * SIZE_COUNT
        for other in range(SIZE_COUNT):
            if other != width:
                check_order(entries[first + other], state, between_blocks)
        entries[first + width] = add_reader(entries[first + width], state, between_blocks)


def locate(table, site, address, thread, state, size, writes, width, check):
    region = table[SITE_REGIONS + site]
    offset = address - region[BASE] - thread * region[STRIDE]
    if offset < 0 or offset > region[SIZE] - size:
        region = region_of(table, address, thread)
        offset = address - region[BASE] - thread * region[STRIDE] if region != 0 else 0
        if region == 0 or offset > region[SIZE] - size:
            set_error(state, BOUNDS)
            return table[SCRATCH]
        if region[ALIGNED] & size - 1 != 0:
            set_error(state, BOUNDS)
        table[SITE_REGIONS + site] = region
    if address & size - 1 != 0 or (writes and region[FIXED] == READ_ONLY):
        set_error(state, BOUNDS)
        return table[SCRATCH]
    offset += thread * region[STRIDE]
    watch = region[WATCH]
    if watch != BARE:
        if width >= 0 and region[WIDTHS] != 0:
            check_widths(region, offset, size, width, state)
        check(region[SHADOW], offset, region[SHIFT], watch, state)
    return region[HOST] + offset


@functools.cache
def locator(watched, size):
    """Return the function (table, place, address, thread, state) -> the host's address of `size` bytes to
    access (`watched`: watch_ptx_load, watch_store or watch_atomic). For an invalid access it returns the
    address of scratch bytes."""
    name, writes = f"{watched.helper.name}_{size}", watched is not watch_ptx_load
    width = ATOMIC_SIZES.index(size) if watched is watch_atomic else -1
    check = variant(check_granules, name, size=size, watched=watched)
    return variant(locate, name, size=size, writes=writes, width=width, check=check)


@int64_helper
def watch_ptx_load(watch, shadow, flat, state):
    """Check a load, unless it is from local memory: there the use of its value is checked."""
    if watch != LOCAL:
        watch_load(watch, shadow, flat, state)


@int64_helper(inline=False)
def is_undefined(table, address, thread, size):
    """Return 1 if some byte at an address is in local memory and has no defined value, else 0."""
    region = region_of(table, address, thread)
    if region == 0 or region[WATCH] != LOCAL:
        return 0
    offset = address - region[BASE]
    last = min(offset + size, (thread + 1) * region[STRIDE]) - 1
    for granule in range(offset >> region[SHIFT], (last >> region[SHIFT]) + 1):
        if byte(region[SHADOW], granule) == 0:
            return 1
    return 0


@int64_helper(inline=False)
def forget(table, address, thread, size, state):
    """Note that a store has written an undefined value. Outside of local memory, it is an error."""
    region = region_of(table, address, thread)
    if region == 0 or region[WATCH] != LOCAL:
        set_error(state, UNWRITTEN)
        return
    offset = address - region[BASE]
    last = min(offset + size, (thread + 1) * region[STRIDE]) - 1
    for granule in range(offset >> region[SHIFT], (last >> region[SHIFT]) + 1):
        set_byte(region[SHADOW], granule, 0)


@int64_helper(inline=False)
def reset_local(table, position, thread):
    """Make a thread's local memory fresh."""
    region = table[REGIONS] + 8 * FIELDS * position
    stride, host, shadow = region[STRIDE], region[HOST], region[SHADOW]
    for position in range(thread * stride, thread * stride + region[SIZE]):
        set_byte(host, position, 255)
    if region[WATCH] == LOCAL:
        for granule in range(stride * thread >> region[SHIFT], stride * (thread + 1) >> region[SHIFT]):
            set_byte(shadow, granule, 0)


@int64_helper(inline=False)
def reset_shared(table):
    """Make the shared memory of a block fresh."""
    for position in range(table[COUNT]):
        region = table[REGIONS] + 8 * FIELDS * position
        if region[FIXED] == OF_BLOCK:
            host = region[HOST]
            for offset in range(region[SIZE]):
                set_byte(host, offset, 255)


def granule_shift(itemsize, size):
    """Return the binary logarithm of the number of bytes that share an entry of shadow memory."""
    shift = min(itemsize, 8).bit_length() - 1
    while size >> shift << shift != size:
        shift -= 1
    return shift


class Table:
    """The table of a launch. `references` keeps the memory alive whose addresses it contains.

    mixed: whether the kernel's atomics have more than one width.
    """

    def __init__(self, site_count, space, mixed):
        self.rows, self.references, self.site_count, self.space, self.mixed = [], [], site_count, space, mixed

    def add(self, allocation, memory, watch, itemsize, fixed=WRITABLE, stride=0):
        """Add the region of an allocation. `memory`: all its bytes, as uint8. `itemsize`: the bytes of its
        smallest accesses."""
        shift = granule_shift(itemsize, allocation.root.size)
        granules, shadow, widths = (memory.size >> shift) + 1, None, None
        if watch != BARE:
            shadow = np.zeros(granules, np.uint8) if watch == LOCAL else np.zeros(2 * granules, np.int64)
        if self.mixed and watch not in (BARE, LOCAL):
            widths = np.zeros(SIZE_COUNT * granules, np.int64)
        addresses = self.address(memory), self.address(shadow)
        rest = shift, watch, fixed, stride, self.space.sure_alignment(allocation), self.address(widths)
        self.rows.append((allocation.base, allocation.root.size, *addresses, *rest))

    def address(self, array):
        if array is None:
            return 0
        self.references.append(array)
        return array.__array_interface__["data"][0]

    def write(self):
        """Return the address of the table."""
        rows = np.array([*self.rows, (0,) * FIELDS], np.int64)
        numbers = np.zeros(SITE_REGIONS + self.site_count, np.int64)
        scratch = np.full(64, 0xFF, np.uint8)
        numbers[[REGIONS, COUNT, SCRATCH]] = self.address(rows), len(self.rows), self.address(scratch)
        numbers[SITE_REGIONS:] = (
            numbers[REGIONS] + rows[:-1].nbytes
        )  # at first each place is in a region of no bytes
        return self.address(numbers)
