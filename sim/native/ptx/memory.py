"""Memory of a compiled PTX launch: translation of simulated addresses to addresses on the host, and the
checks of accesses.

The *table* lists the memory regions accessible to the launch. A region has a simulated address, a size, an
address on the host, and shadow memory (sim.native.codegen.shadow). A shadow entry covers a *granule* of 1, 2,
4 or 8 bytes, the size of the narrowest access to the region. Each access site caches the region of its last
access, so the table is rarely searched.
"""

import functools

import numpy as np

from sim.native.codegen.int64 import byte, int64_helper, set_byte, variant
from sim.native.codegen.shadow import (
    BARE,
    BOUNDS,
    EMPTY,
    GLOBAL,
    LOCAL,
    RACE,
    SHARED,
    UNWRITTEN,
    add_reader,
    check_order,
    set_error,
    watch_atomic,
    watch_load,
    watch_store,
)
from sim.native.run.memory import mark_initial

# Layout of the table, in int64:
# REGIONS       address of the array of regions
# COUNT         number of regions
# SCRATCH       address of scratch bytes, to which invalid accesses are redirected
# PENDING       address of the rings of asynchronous copies (sim.native.ptx.copies), or 0
# MBARRIERS     address of the mbarriers (sim.native.ptx.mbarriers), or 0
# ZEROS         16 bytes of zeros, the data of a copy that reads no source
# SITE_REGIONS  first of the cached regions, one per access site
REGIONS, COUNT, SCRATCH, PENDING, MBARRIERS, ZEROS, SITE_REGIONS = 0, 1, 2, 3, 4, 5, 8
# Fields of a region, in int64:
# BASE     simulated address
# SIZE     size in bytes, of one thread's copy if STRIDE is not 0
# HOST     host address of the bytes
# SHADOW   host address of the shadow memory
# SHIFT    log2 of the granule size in bytes
# WATCH    kind of check (sim.native.codegen.shadow)
# FIXED    WRITABLE, READ_ONLY, or OF_BLOCK for memory that is new in each block
# STRIDE   bytes between the copies of consecutive threads, or 0
# ALIGNED  alignment in bytes guaranteed on any GPU, a power of two up to 16
# WIDTHS   host address of the shadow entries for atomics of each width; 0 if all atomics have one width
BASE, SIZE, HOST, SHADOW, SHIFT, WATCH, FIXED, STRIDE, ALIGNED, WIDTHS = range(10)
WRITABLE, READ_ONLY, OF_BLOCK = range(3)
FIELDS = 10
ATOMIC_SIZES = 2, 4, 8  # widths of atomics, in bytes
SIZE_COUNT = len(ATOMIC_SIZES)


@int64_helper(inline=False)
def region_of(table, address, thread):
    """Return the address on the host of the table entry for the region that contains an address, or 0."""
    for position in range(table[COUNT]):
        region = table[REGIONS] + 8 * FIELDS * position
        offset = address - region[BASE] - thread * region[STRIDE]
        if 0 <= offset < region[SIZE]:
            return region
    return 0


def check_granules(shadow, offset, shift, watch, state, size, watched):
    """Check every granule of an access.

    watched: the check for one granule, known at compile time.
    """
    for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
        watched(watch, shadow, granule, state)


@int64_helper(inline=False)
def check_widths(region, offset, size, width, state):
    """Set an error flag if an unordered atomic of another width has changed the same bytes.

    Atomics of different widths are not atomic with respect to each other. Therefore each granule has a shadow
    entry per width in ATOMIC_SIZES. Atomics of one width do not race with each other, so the entry is
    maintained like an entry for reads.

    width: the index of this atomic's width in ATOMIC_SIZES.
    """
    entries, shift, between_blocks = region[WIDTHS], region[SHIFT], region[WATCH] != SHARED
    for granule in range(offset >> shift, (offset + size - 1 >> shift) + 1):
        first = granule * SIZE_COUNT
        for other in range(SIZE_COUNT):
            if other != width:
                check_order(entries[first + other], state, between_blocks)
        entries[first + width] = add_reader(entries[first + width], state, between_blocks)


def locate(table, site, address, thread, state, size, writes, width, check):
    """Check an access, and return its address on the host. If the access is invalid, set an error flag and
    return the address of scratch bytes.

    site: the index of the access in the kernel.
    address: the simulated address.
    size: the number of bytes. It is known at compile time, and so are the parameters below.
    writes: whether the access is a store or atomic.
    width: the index in ATOMIC_SIZES for an atomic, else -1.
    check: the check of all granules of the access.
    """
    # On the fast path, the region of this site's last access contains the address.
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
def make_locator(watched, size):
    """Return the helper (table, site, address, thread, state) that returns the address on the host.

    watched: the check of the access, the helper of a load, watch_store, watch_atomic or watch_packed_atomic.
    size: the number of bytes of the access.
    """
    name, writes = f"{watched.helper.name}_{size}", watched in WRITES
    element = {watch_atomic: size, watch_packed_atomic: size // 2}.get(watched)
    width = ATOMIC_SIZES.index(element) if element else -1
    check = variant(check_granules, name, size=size, watched=watched)
    return variant(locate, name, size=size, writes=writes, width=width, check=check)


@int64_helper
def watch_ptx_load(watch, shadow, flat, state):
    """Check a load. Undefined bytes in local memory are not an error here; only the use of their value
    is."""
    if watch != LOCAL:
        watch_load(watch, shadow, flat, state)


@int64_helper
def watch_read_only_load(watch, shadow, flat, state):
    """Check a load through the read-only cache, which no write of the launch may precede."""
    watch_ptx_load(watch, shadow, flat, state)
    if GLOBAL <= watch <= EMPTY and shadow[2 * flat] > 0:
        set_error(state, RACE)


@int64_helper
def watch_packed_atomic(watch, shadow, flat, state):
    """Check an atomic on two packed halves. It is one atomic per half."""
    watch_atomic(watch, shadow, flat, state)


WRITES = watch_store, watch_atomic, watch_packed_atomic


@int64_helper(inline=False)
def is_undefined(table, address, thread, size):
    """Return 1 if any of the bytes is an undefined byte of the thread's local memory, else 0."""
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
def mark_undefined(table, address, thread, size, state):
    """Mark bytes of local memory as undefined. In any other memory, a store of an undefined value sets an
    error flag."""
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
    """Fill a thread's copy of a local region with poison, and mark its bytes as undefined.

    position: the index of the region in the table.
    """
    region = table[REGIONS] + 8 * FIELDS * position
    stride, host, shadow = region[STRIDE], region[HOST], region[SHADOW]
    for position in range(thread * stride, thread * stride + region[SIZE]):
        set_byte(host, position, 255)
    if region[WATCH] == LOCAL:
        for granule in range(stride * thread >> region[SHIFT], stride * (thread + 1) >> region[SHIFT]):
            set_byte(shadow, granule, 0)


@int64_helper(inline=False)
def reset_shared(table, state):
    """Fill the shared memory of a block with poison, and remove its mbarriers."""
    if table[MBARRIERS] != 0:
        table[MBARRIERS][0] = 0  # the number of mbarriers
    for position in range(table[COUNT]):
        region = table[REGIONS] + 8 * FIELDS * position
        if region[FIXED] == OF_BLOCK:
            host = region[HOST]
            for offset in range(region[SIZE]):
                set_byte(host, offset, 255 ^ state.flipped)


def granule_shift(itemsize, size):
    """Return log2 of the granule size in bytes.

    A granule has at most `itemsize` and at most 8 bytes, and its size divides the region's `size`.
    """
    shift = min(itemsize, 8).bit_length() - 1
    while size >> shift << shift != size:
        shift -= 1
    return shift


class Table:
    """The table of a launch.

    site_count: the number of access sites in the kernel.
    space: the simulated address space.
    mixed: whether the kernel's atomics have several widths.
    rings: the rings of asynchronous copies, or None if the kernel has no copies.
    mbarriers: the array of mbarriers, or None if the kernel has none.
    references: the arrays to which the table's addresses refer. They must stay alive.
    """

    def __init__(self, site_count, space, mixed, rings=None, mbarriers=None):
        self.rows, self.references, self.site_count, self.space, self.mixed = [], [], site_count, space, mixed
        # (first address, bytes per granule, shadow memory) of the regions of global memory
        self.shadows = []
        self.rings, self.mbarriers = rings, mbarriers

    def add(self, allocation, memory, watch, itemsize, fixed=WRITABLE, stride=0):
        """Add the region of an allocation, and return the arrays of its shadow memory.

        memory: all bytes of the region, as a uint8 array.
        watch: the kind of check.
        itemsize: the number of bytes of the narrowest access to the region.
        fixed: WRITABLE, READ_ONLY, or OF_BLOCK.
        stride: the number of bytes between the copies of consecutive threads, or 0.
        """
        shift = granule_shift(itemsize, allocation.root.size)
        granules, shadow, widths = (memory.size >> shift) + 1, None, None
        if watch != BARE:
            shadow = np.zeros(granules, np.uint8) if watch == LOCAL else np.zeros(2 * granules, np.int64)
        if watch == EMPTY:
            mark_initial(shadow, allocation.unwritten, 1 << shift)
        if watch in (GLOBAL, EMPTY):
            self.shadows.append((allocation.base, 1 << shift, shadow))
        if self.mixed and watch not in (BARE, LOCAL):
            widths = np.zeros(SIZE_COUNT * granules, np.int64)
        addresses = self.address(memory), self.address(shadow)
        rest = shift, watch, fixed, stride, self.space.sure_alignment(allocation), self.address(widths)
        self.rows.append((allocation.base, allocation.root.size, *addresses, *rest))
        return [array for array in (shadow, widths) if array is not None]

    def address(self, array):
        """Return the address of an array on the host, or 0 for None. Keep the array alive."""
        if array is None:
            return 0
        self.references.append(array)
        return array.__array_interface__["data"][0]

    def kinds_of_checks(self):
        """Return the set of the kinds of checks in the table of regions."""
        return {row[WATCH] for row in self.rows}

    def accessed(self):
        """Yield (first address, bytes per granule, masks of the granules that the launch has loaded and
        stored) for each region of global memory."""
        for base, nbytes, shadow in self.shadows:
            yield base, nbytes, shadow[1::2] != 0, shadow[::2] > 0

    def write(self):
        """Return the address of the finished table on the host."""
        rows = np.array([*self.rows, (0,) * FIELDS], np.int64)
        numbers = np.zeros(SITE_REGIONS + self.site_count, np.int64)
        scratch = np.full(64, 0xFF, np.uint8)
        numbers[[REGIONS, COUNT, SCRATCH]] = self.address(rows), len(self.rows), self.address(scratch)
        numbers[PENDING], numbers[MBARRIERS] = self.address(self.rings), self.address(self.mbarriers)
        # Until its first access, each site caches the last row, an empty region that contains no address.
        numbers[SITE_REGIONS:] = numbers[REGIONS] + rows[:-1].nbytes
        return self.address(numbers)
