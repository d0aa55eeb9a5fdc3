"""Memory of a PTX launch: contiguous bytes at simulated addresses, and typed views of these bytes."""

import threading
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sim.events import CONST, GLOBAL, LOCAL, SHARED, SPACE_SHIFT
from sim.isa.ptx_types import REALS
from sim.memory.array import Array, array_at
from sim.memory.spaces import (
    ALIGNMENT,
    SWIZZLE_PERIOD,
    AddressSpace,
    first_free_after,
    fresh_memory,
    round_up,
    window_end,
)
from sim.ptx.syntax import Variable
from sim.sites import RANK_SHIFT

WINDOWS = {
    name: number << SPACE_SHIFT
    for name, number in (("global", GLOBAL), ("const", CONST), ("shared", SHARED), ("local", LOCAL))
}
GENERIC = "generic"
# Shared memory reserved by the system for cooperative groups. Multi-warp tiles keep barriers and values in it
# (288 bytes in cooperative_groups/details/memory.h), and expect it to be zero initially. Its name is that of
# the special register that contains its offset.
RESERVED = Variable("shared", "reserved_smem_offset_1", "b64", 36, 8, 0)
# PTX type -> type of a view of memory. For integers, this is a memoryview format, whose elements are Python
# ints. For floats, it is a numpy type, whose elements are numpy scalars.
VIEWS = {
    f"{prefix}{8 * size}": (letter if prefix == "s" else letter.upper())
    for size, letter in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
    for prefix in "sub"
}
VIEWS |= REALS
GAP = 1 << 24  # the number of guard bytes between arrays: a slightly wrong address is in no array
SHARED_GAP = 1 << 20  # the number of guard bytes between shared arrays, whose addresses have 28 bits
NARROW_GAP = 1 << 16  # the number of guard bytes if the window has no room for more
# State space -> bits of an address within its window, if they are fewer than SPACE_SHIFT. In an address in
# shared memory, the higher bits are the rank of a block. In constant and local memory, PTX also allows
# addresses in 32-bit registers.
WIDTHS = {"const": 32, "shared": RANK_SHIFT, "local": 32}
DESCRIPTOR_BITS = 18  # the bits of an address in shared memory that a matrix descriptor has room for
# The device heap occupies the last quarter of the global window (sim.ptx.heap).
HEAP_BASE = window_end("global") - (1 << SPACE_SHIFT - 2)
PERSISTENT_SPACES = "global", "const"
HOST = -1  # ModuleKey.module of memory allocated by the host code of a whole program (sim.runtime)


class ModuleKey(NamedTuple):
    """The key of a module's variable, or of other memory owned by a module.

    module: the number of the module.
    permanent: whether the memory keeps its address until the module is deleted.
    """

    module: int
    name: str
    permanent: bool = True


@dataclass(frozen=True)
class AddressRange:
    """The address range of a variable or an argument. Addresses.ranges describes `key`."""

    name: str
    base: int
    nbytes: int
    key: tuple

    @property
    def end(self):
        return first_free_after(self.base, self.nbytes)

    @property
    def is_freed(self):
        """True if the host has freed the memory. The memory that host code allocates is in each launch until
        then."""
        return self.key[0] == HOST

    @property
    def permanent(self):
        return isinstance(self.key, ModuleKey) and self.key.permanent


class Addresses:
    """The addresses that persist from one launch to the next.

    A variable keeps its address. An array has the same address in each launch to which it is passed, in any
    module. A pointer stored in memory by one launch is therefore valid in the next launch, as on a GPU, and
    never refers to other memory.

    ranges: {(space, key): AddressRange}. The key of a variable is a ModuleKey. The key of an argument
        consists of its host address range and the owning array's number.
    next: {space: end of the most recently assigned range}.
    deleted: the numbers of deleted modules whose addresses have not been released yet.
    """

    def __init__(self):
        self.ranges, self.next, self.lock, self.deleted = {}, {}, threading.RLock(), []

    def forget_arguments(self, used):
        """Release the addresses of arguments of earlier launches.

        used: the addresses of this launch's arguments, which must be kept.
        """
        self.ranges = {key: g for key, g in self.ranges.items() if g.permanent or g.base in used}

    def forget_deleted(self):
        """Release the addresses of deleted modules."""
        # The garbage collector may delete a module at any time, so the deletion only records its number.
        while self.deleted:
            number = self.deleted.pop()
            self.ranges = {
                key: g
                for key, g in self.ranges.items()
                if not isinstance(g.key, ModuleKey) or g.key.module != number
            }

    def first_gap(self, space, start, nbytes, align, gap):
        """Return the lowest free address from `start` on.

        There must be room for `nbytes` bytes, and for `gap` guard bytes before and after them, between the
        assigned ranges.
        """
        for given in sorted((g for (s, _), g in self.ranges.items() if s == space), key=lambda g: g.base):
            base = round_up(start + gap, align)
            if first_free_after(base, nbytes) + gap <= given.base:
                return base
            start = max(start, given.end)
        return round_up(start + gap, align)

    def find(self, address):
        """Return the AddressRange that contains an address, or None."""
        with self.lock:
            return next((g for g in self.ranges.values() if g.base <= address < g.base + g.nbytes), None)


ADDRESSES = Addresses()  # the addresses of all modules of the process, which is one CUDA context


class PaddedSpace(AddressSpace):
    """The address space of a PTX launch. It has guard bytes between its allocations, and shares its addresses
    with all other launches of the process."""

    def __init__(self, addresses=ADDRESSES):
        super().__init__()
        self.addresses, self.start = addresses, dict(self.next)
        self.gaps = {"shared": SHARED_GAP, "local": GAP}

    def end(self, space):
        if space == "shared" and self.packs_shared:
            return WINDOWS[space] + (1 << DESCRIPTOR_BITS)
        return WINDOWS[space] + (1 << WIDTHS.get(space, SPACE_SHIFT))

    def fit_gaps(self, space, allocations):
        """Reduce the number of guard bytes in a state space so that all its allocations have addresses.

        allocations: (bytes, alignment) of each allocation that the launch can make in the space.
        """
        if space == "shared" and self.packs_shared:
            most = unit = SWIZZLE_PERIOD
            needed = sum(nbytes + align for nbytes, align in allocations)
        else:
            most, unit = self.gaps[space], ALIGNMENT
            needed = sum(first_free_after(max(align, ALIGNMENT), nbytes) for nbytes, align in allocations)
        room = max(self.end(space) - self.next[space] - needed, 0) // max(len(allocations), 1)
        self.gaps[space] = min(most, room // unit * unit)

    def choose_address(self, space, nbytes, align, name, key):
        """Return the address of a new allocation, or None if there is no room.

        An allocation in global or constant memory has the same address as in earlier launches.
        """
        if space not in PERSISTENT_SPACES:
            return super().choose_address(space, nbytes, align, name, key)
        with self.addresses.lock:
            self.addresses.forget_deleted()
            given = self.addresses.ranges.get((space, key))
            if given is None:
                base = self.new_address(space, nbytes, align)
                if base is None:
                    return None
                given = AddressRange(name, base, nbytes, key)
                self.addresses.ranges[space, key] = given
                self.addresses.next[space] = given.end
        self.next[space] = max(self.next[space], given.end)
        return given.base

    def new_address(self, space, nbytes, align):
        """Return an address above all assigned addresses, or None if there is no room.

        If the window is full, the addresses of earlier launches' arguments are reused. If it is still full,
        there are fewer guard bytes.
        """
        addresses, limit = self.addresses, HEAP_BASE if space == "global" else self.end(space)
        start = max(self.start[space], addresses.next.get(space, 0))
        base = addresses.first_gap(space, start, nbytes, align, GAP)
        for gap in (GAP, NARROW_GAP):
            if first_free_after(base, nbytes) > limit:
                addresses.forget_arguments({allocation.base for allocation in self.allocations})
                base = addresses.first_gap(space, self.start[space], nbytes, align, gap)
        return base if first_free_after(base, nbytes) <= self.end(space) else None


class PointerArray(Array):
    """An array accessed through pointers: a negative index does not count from the end."""

    __slots__ = ()
    wraps = False


def whole_array(context, allocation):
    """Return an array that covers an allocation. Findings name the elements of this array."""
    itemsize = allocation.home[1]
    length = allocation.root.size // itemsize
    array = array_at(
        context, allocation, 0, np.dtype(f"V{itemsize}"), (length,), (itemsize,), allocation.name
    )
    # array_at can return a class with faster accesses. Only findings use this array, so use the plain class.
    array.__class__ = PointerArray
    return array


class Region:
    """The bytes at the addresses from `base` up to but not including `end`, and typed views of them."""

    __slots__ = ("allocation", "base", "end", "marks", "origins", "root", "views", "written")

    def __init__(self, allocation, root, base=None):
        self.allocation, self.root, self.views = allocation, root, {}
        # `marks` contains a 1 for each byte of local memory with a defined value, if an observer needs the
        # marks. `written` is the same memory as an array of bool. `origins` is {byte offset: origin} for the
        # bytes to which an undefined value was stored (sim.ptx.undefined).
        self.marks, self.written, self.origins = None, None, {}
        self.base = allocation.base if base is None else base
        self.end = self.base + root.size

    def last(self, size):
        """Return the highest offset at which an access of `size` bytes can begin.

        Return -1 if each access must be checked, because the region is not certainly aligned to `size`.
        """
        return self.root.size - size if self.allocation.alignment % size == 0 else -1

    def view(self, ptx_type, size):
        """Return a view of the bytes as elements of a PTX type of `size` bytes."""
        if ptx_type not in self.views:
            # A view requires a whole number of elements, so leave out an incomplete one at the end.
            whole = self.root[: self.root.size // size * size]
            how = VIEWS[ptx_type]
            self.views[ptx_type] = (
                memoryview(whole).cast("B").cast(how) if isinstance(how, str) else whole.view(how)
            )
        return self.views[ptx_type]


class Frames:
    """A function's local memory in one thread, with one Region for each active call. The first `depth`
    regions are active."""

    __slots__ = ("depth", "regions")

    def __init__(self):
        self.depth, self.regions = 0, []

    def find(self, address):
        """Return the active Region that contains an address, or None."""
        for number in range(self.depth):
            region = self.regions[number]
            if region.base <= address < region.end:
                return region
        return None

    def base_below(self, address, otherwise):
        """Return the highest base of an active frame at or below the address, or `otherwise` if there is
        none."""
        return max((r.base for r in self.regions[: self.depth] if r.base <= address), default=otherwise)


def poison(ptx_type):
    """Return the poison value returned by a refused load of this PTX type."""
    dtype = np.dtype(VIEWS[ptx_type])
    value = fresh_memory(dtype.itemsize, None).view(dtype)[0]
    return int(value) if isinstance(VIEWS[ptx_type], str) else value
