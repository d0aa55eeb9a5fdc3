"""The simulated address space of a launch, with global, constant, shared and local memory.

Addresses are invented, but behave like a GPU's. Allocations begin at multiples of 256 bytes, the shared
memory of every block has the same addresses, and the address alone tells the state space. So a log of (site,
address) is all that an observer needs.
"""

import ctypes
import functools
import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np

from sim.errors import LaunchError
from sim.events import INTEGER_POISON, SPACE_SHIFT, SPACES, UNTYPED_POISON, Element

ALIGNMENT = 256
OWNERS, OWNER_NUMBERS = {}, itertools.count(1)  # id of a living array -> (its number, a weak reference to it)
FEW_BYTES = 1024  # up to this size a poisoned pattern is cached: copying it takes a quarter of the time


def round_up(number, step):
    """Return the least multiple of `step` that is at least `number`."""
    return -(-number // step) * step


def after(base, nbytes):
    """Return the first address that is free after an allocation. The unused bytes at its end keep an address
    just past the last allocation inside of the window."""
    return base + round_up(nbytes, ALIGNMENT) + ALIGNMENT


def window_end(space):
    """Return the first address after the window of a state space."""
    return SPACES.index(space) + 1 << SPACE_SHIFT


@dataclass(eq=False)
class Allocation:
    """A range of bytes with a name and an address. Every view of it is an `Array` that refers to it."""

    name: str
    space: str
    root: np.ndarray  # all its bytes, as uint8
    base: int
    # (offset, itemsize, shape, strides in bytes) of the array whose indices findings use for its elements
    home: tuple = None
    copies: int = 1  # copies of `root`, side by side: local memory has one for each thread
    keep: object = None  # the objects that own the memory; set for the launch's arguments only
    # for each byte, whether nobody has written it before the launch; None if all are written
    unwritten: np.ndarray | None = None
    alignment: int = ALIGNMENT  # the alignment that its declaration promises on any GPU
    last: bool = False  # whether it comes after all others of its space, as dynamic shared memory does
    # whether it is shared memory that the system reserves for libraries: zero when a block begins
    reserved: bool = False

    @functools.cached_property
    def writable(self):
        return self.space != "const" and self.root.flags.writeable

    def index(self, address):
        """Return the index of the element at `address` in the home array."""
        offset, itemsize, shape, strides = self.home
        rest, index = (address - self.base) % max(self.root.size, 1) - offset, []
        for n, stride in sorted(zip(shape, strides), key=lambda axis: -axis[1]):
            position = min(rest // stride, n - 1) if stride and n > 1 else 0
            rest -= position * stride
            index.append((stride, n, position))
        order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
        return tuple(index[order.index(axis)][2] for axis in range(len(shape)))


class AddressSpace:
    """The simulated addresses of one launch: hands them out, and finds the allocation of an address.

    Each state space has a window of 16 GiB of consecutive addresses. An address outside of its window would
    belong to another space, so an allocation that does not fit is refused.
    """

    gap = 0  # unused bytes in front of each allocation

    def __init__(self):
        self.next = {space: (number << SPACE_SHIFT) + ALIGNMENT for number, space in enumerate(SPACES)}
        self.allocations = []

    def add(self, name, space, root, home, copies=1, keep=None, unwritten=None, align=ALIGNMENT, key=None):
        """Return the Allocation of `root` (uint8) at a free address that is a multiple of `align`.

        copies: how many times the bytes of `root` need room, side by side.
        key: what the memory is, for spaces that give the same memory the same address in each launch.

        Errors: LaunchError where the space's window is full.
        """
        base = self.choose_address(space, root.size * copies, max(align, ALIGNMENT), name, key)
        if base is None:
            raise LaunchError(
                f"{name}: no simulated addresses are left for its {root.size * copies:,} bytes; all {space}"
                f" memory of a launch has to fit into {(1 << SPACE_SHIFT) >> 30} GiB\n"
                "  launch with smaller arrays, or with fewer of them"
            )
        allocation = Allocation(name, space, root, base, home, copies, keep, unwritten)
        self.allocations.append(allocation)
        return allocation

    def choose_address(self, space, nbytes, align, name, key):
        """Return the address of `nbytes` new bytes, or None if the window has no room for them."""
        base = round_up(self.next[space] + self.gap, align)
        self.next[space] = after(base, nbytes)
        return base if self.next[space] <= window_end(space) else None

    def shifting(self, allocation, multiple):
        """Return the first declared array whose size may shift this one from a multiple of that many bytes,
        wherever a compiler puts the two; None if its declaration, or the sizes of all others, keep it at one.
        Local memory is on a stack: there the declaration alone decides, and the array itself is returned."""
        if allocation.alignment % multiple == 0:
            return None
        if allocation.space == "local":
            return allocation
        declared = (a for a in self.allocations if a.space == allocation.space and a.alignment < ALIGNMENT)
        others = (a for a in declared if a is not allocation and not a.last)
        return next((other for other in others if other.root.size % multiple), None)

    def sure_alignment(self, allocation):
        """Return the largest power of two of which its address is a multiple on any GPU, 16 at most."""
        return next((size for size in (16, 8, 4, 2) if self.shifting(allocation, size) is None), 1)

    def find(self, address):
        """Return the allocation that contains `address`."""
        return next(a for a in self.allocations if a.base <= address < a.base + a.root.size * a.copies)

    def element(self, address):
        """Return the Element at `address`."""
        allocation = self.find(address)
        return Element(allocation.name, allocation.index(address))


class Empty(np.ndarray):
    """The ndarray that `sim.empty` returns. `byte` is the byte with which it was filled at first; without
    one, no element counts as written."""

    byte = None

    def __array_finalize__(self, source):
        self.byte = getattr(source, "byte", None)

    def __reduce__(self):
        """Pickle `byte` too: without it all of the copy would count as unwritten."""
        rebuild, arguments, state = super().__reduce__()
        return rebuild, arguments, (self.byte, state)

    def __setstate__(self, state):
        self.byte, state = state
        super().__setstate__(state)

    def unwritten(self, root):
        """Return which bytes of `root`, its memory, have not been written; None if all have been.

        Elements of one or two bytes, booleans and records may happen to equal poison. For those, one store
        makes the whole array count as written.
        """
        if self.byte is None:
            return np.ones(root.size, bool)
        fresh = root == self.byte
        if self.itemsize < 4 or self.dtype.kind not in "iufc" or root.size % self.itemsize:
            return fresh if fresh.all() else None
        fresh = fresh.reshape(-1, self.itemsize).all(1).repeat(self.itemsize)
        return fresh if fresh.any() else None


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Return an array of `shape` whose elements nobody has written yet. It is full of poison, and a load
    before a store is a finding `uninitialized-read`. Elements that a launch or the host has stored to
    count as written in later launches."""
    dtype = np.dtype(dtype)
    memory = poisoned(int(np.prod(shape)) * dtype.itemsize, dtype)
    array = memory.view(dtype).reshape(shape).view(Empty)
    array.byte = memory[0] if memory.size else None
    return array


def unwritten(root, arrays):
    """Return a mask of the bytes of `root` that were never written, if every array there came from
    `sim.empty`; else None."""
    return arrays[0].unwritten(root) if all(isinstance(a, Empty) for a in arrays) else None


def poisoned(nbytes, dtype, filling=None):
    """Return `nbytes` of fresh memory that nobody has written: NaN for floating-point types, a conspicuous
    number for integers. `filling` replaces that: a byte (as bytes), or a number of `dtype` (of int32
    without one)."""
    if isinstance(filling, (int, float)):
        with np.errstate(invalid="ignore"):
            return np.resize(np.array([filling]).astype(dtype or np.int32).view(np.uint8), nbytes)
    if filling is not None:
        byte = filling[0]
    else:  # bfloat16's kind is V; all bits set is a NaN in every format
        integers = INTEGER_POISON if dtype is not None and dtype.kind in "iu" else 1
        byte = UNTYPED_POISON if dtype is None or dtype.kind in "fcV" else integers
    return full_of(byte, nbytes).copy() if nbytes <= FEW_BYTES else np.full(nbytes, byte, np.uint8)


@functools.cache
def full_of(byte, nbytes):
    return np.full(nbytes, byte, np.uint8)


def poison(dtype):
    """Return the value that a load of unwritten memory gives, as a numpy scalar."""
    return poisoned(dtype.itemsize, dtype).view(dtype)[0]


def bind_arguments(space, arrays):
    """Return {name: (allocation, byte offset)} for `arrays`, {name: ndarray}. Arrays that overlap share
    one allocation."""
    bound = {}
    for low, high, names in overlapping(arrays):
        bound |= bind_group(space, low, high, {name: arrays[name] for name in arrays if name in names})
    return bound


def overlapping(arrays):
    """Return groups of `arrays` whose memory overlaps: [(first byte, byte after the last, names)].

    They are in the order of `arrays`, because the host's addresses differ between processes, and simulated
    addresses and messages must not.
    """
    groups, order = [], list(arrays)
    for (low, high), name in sorted((np.lib.array_utils.byte_bounds(a), name) for name, a in arrays.items()):
        if groups and low < groups[-1][1]:
            first, end, names = groups.pop()
            groups.append((first, max(end, high), [*names, name]))
        else:
            groups.append((low, max(low, high), [name]))
    return sorted(groups, key=lambda group: min(map(order.index, group[2])))


def bytes_between(low, high):
    """Return the bytes of memory from one address to another."""
    return np.frombuffer(
        (ctypes.c_char * (high - low)).from_address(low) if high > low else bytearray(), np.uint8
    )


def owner_number(array):
    """Return a number of the array that owns the memory of `array`, or 0 if no array of numpy owns it.

    The host may give the memory of a deleted array to a new one. Their numbers differ.
    """
    while isinstance(array.base, np.ndarray):
        array = array.base
    if not array.flags.owndata:
        return 0
    if id(array) not in OWNERS:
        forget = functools.partial(lambda identity, _: OWNERS.pop(identity, None), id(array))
        OWNERS[id(array)] = next(OWNER_NUMBERS), weakref.ref(array, forget)
    return OWNERS[id(array)][0]


def bind_group(space, low, high, arrays):
    """Make one allocation from byte `low` to byte `high`, for arrays that overlap. It gets the name of the
    first."""
    offsets = {name: array.__array_interface__["data"][0] - low for name, array in arrays.items()}
    first, array = next(iter(arrays.items()))
    root, arrays = bytes_between(low, high), list(arrays.values())
    root.flags.writeable = any(a.flags.writeable for a in arrays)
    home, key = (offsets[first], array.itemsize, array.shape, array.strides), (low, high, owner_number(array))
    allocation = space.add(
        first, "global", root, home, keep=arrays, unwritten=unwritten(root, arrays), key=key
    )
    return {name: (allocation, offset) for name, offset in offsets.items()}
