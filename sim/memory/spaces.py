"""The simulated address space of a launch, with global, constant, shared and local memory.

The simulator chooses the addresses, and follows the rules of a GPU. Allocations begin at multiples of 256
bytes, shared memory has the same addresses in every block, and each state space has its own window of
addresses. A log of pairs (site, address) is therefore enough for an observer.
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
from sim.memory.fields import hides_number
from sim.sites import local_address

ALIGNMENT = 256
# Bytes at the start of shared memory that the system reserves on GPUs of compute capability 8.0 and later.
# The first array follows them, and is therefore aligned to the swizzle patterns of TMA and wgmma.
RESERVED_SHARED = 1024
SWIZZLE_PERIOD = 1024  # the largest distance in bytes after which a swizzle pattern repeats
OWNERS, OWNER_NUMBERS = {}, itertools.count(1)  # id of a live array -> (its number, a weak reference)
FEW_BYTES = 1024  # up to this size, the poison pattern is cached: copying it takes a quarter of the time


def round_up(number, step):
    """Round `number` up to a multiple of `step`."""
    return -(-number // step) * step


def first_free_after(base, nbytes):
    """Return the first free address after an allocation.

    An unused gap follows each allocation, so that the address after the last allocation is still inside the
    window.
    """
    return base + round_up(nbytes, ALIGNMENT) + ALIGNMENT


def in_binary_units(nbytes):
    """Return the text of a number of bytes that is a power of two, such as `16 GiB`."""
    unit = (nbytes.bit_length() - 1) // 10
    return f"{nbytes >> 10 * unit} {('bytes', 'KiB', 'MiB', 'GiB')[unit]}"


def window_end(space):
    """Return the first address after the window of a state space."""
    return SPACES.index(space) + 1 << SPACE_SHIFT


@dataclass(eq=False)
class Allocation:
    """A range of bytes with a name and an address. Each view of it is an `Array` that refers to the
    allocation."""

    name: str
    space: str
    root: np.ndarray  # all its bytes, as uint8
    base: int
    # (offset, itemsize, shape, strides in bytes) of the array whose indices describe elements in messages
    home: tuple = None
    copies: int = 1  # the number of consecutive copies of `root`: one per thread for local memory
    keep: object = None  # the objects that own the memory; only arguments of a launch have them
    # A mask of the bytes unwritten before the launch, or None if all bytes were written.
    unwritten: np.ndarray | None = None
    alignment: int = ALIGNMENT  # the alignment guaranteed by the declaration on any GPU
    last: bool = False  # whether it follows all others in its space, as dynamic shared memory does
    # Whether this is shared memory reserved by the system, which is zeroed when a block starts.
    reserved: bool = False

    @functools.cached_property
    def writable(self):
        return self.space != "const" and self.root.flags.writeable

    def hides_number(self, begin, missing):
        """Return whether unwritten bytes that are stored at an offset include all bytes of a number of the
        host's array."""
        arrays = [array for array in self.keep or () if isinstance(array, np.ndarray)]
        return bool(arrays) and arrays[0].itemsize > 1 and hides_number(arrays[0].dtype, begin, missing)

    def index(self, address):
        """Return the index of the element at an address, in the array described by `home`."""
        offset, itemsize, shape, strides = self.home
        rest, index = (address - self.base) % max(self.root.size, 1) - offset, []
        # Divide by the strides in descending order.
        for n, stride in sorted(zip(shape, strides), key=lambda axis: -axis[1]):
            position = min(rest // stride, n - 1) if stride and n > 1 else 0
            rest -= position * stride
            index.append((stride, n, position))
        order = sorted(range(len(shape)), key=lambda axis: -strides[axis])
        return tuple(index[order.index(axis)][2] for axis in range(len(shape)))


class AddressSpace:
    """The simulated addresses of one launch. It allocates addresses, and finds the allocation at an address.

    Each state space has a window of 16 GiB. An address outside the window would belong to another space, so
    an allocation that does not fit is refused.
    """

    gaps = dict.fromkeys(SPACES, 0)  # the number of unused bytes before each allocation, by state space
    clustered = False  # whether addresses in shared memory contain the rank of their block
    # Whether shared arrays lie close together at low addresses, because a matrix descriptor has room for 18
    # bits only.
    packs_shared = False

    def __init__(self):
        self.next = {space: (number << SPACE_SHIFT) + ALIGNMENT for number, space in enumerate(SPACES)}
        self.next["shared"] += RESERVED_SHARED - ALIGNMENT
        self.allocations = []

    def add(self, name, space, root, home, copies=1, keep=None, unwritten=None, align=ALIGNMENT, key=None):
        """Return the Allocation for `root` (uint8) at a free address that is a multiple of `align`.

        name: the name of the allocation in findings.
        space: its state space.
        home: see Allocation.
        copies: the number of consecutive copies of `root` to reserve.
        key: a value that identifies the memory, for subclasses that keep its address from launch to launch.

        Raise LaunchError if the window of the space is full.
        """
        if space == "shared" and self.packs_shared:
            base = self.pack(root.size, align)
        else:
            base = self.choose_address(space, root.size * copies, max(align, ALIGNMENT), name, key)
        if base is None:
            window = self.end(space) - (SPACES.index(space) << SPACE_SHIFT)
            raise LaunchError(
                f"{name}: no simulated addresses are left for its {root.size * copies:,} bytes; all {space}"
                f" memory of a launch has to fit into {in_binary_units(window)}\n"
                "  launch with smaller arrays, or with fewer of them"
            )
        allocation = Allocation(name, space, root, base, home, copies, keep, unwritten)
        self.allocations.append(allocation)
        return allocation

    def choose_address(self, space, nbytes, align, name, key):
        """Return an address for `nbytes` new bytes, or None if the window is full."""
        base = round_up(self.next[space] + self.gaps[space], align)
        self.next[space] = first_free_after(base, nbytes)
        return base if self.next[space] <= self.end(space) else None

    def end(self, space):
        """Return the end of the addresses that allocations in a state space may have."""
        return window_end(space)

    def pack(self, nbytes, align):
        """Return an address for `nbytes` new bytes in shared memory, or None if there is no room.

        The address equals the address that ptxas assigns without guard bytes, modulo the period of a swizzle
        pattern, because the number of guard bytes is a multiple of this period.
        """
        base = round_up(self.next["shared"], align)
        self.next["shared"] = base + nbytes + self.gaps["shared"]
        return base if base + nbytes <= self.end("shared") else None

    def shifting(self, allocation, multiple):
        """Return a declared array whose size can move `allocation` off a boundary of `multiple` bytes.

        A compiler is free to place the returned array before `allocation`. Return None if the declaration of
        `allocation` guarantees the alignment, or if the sizes of all other arrays are multiples of
        `multiple`. Local memory is on a stack, so only its declaration matters: if it does not guarantee the
        alignment, return `allocation` itself.
        """
        if allocation.alignment % multiple == 0:
            return None
        if allocation.space == "local":
            return allocation
        declared = (a for a in self.allocations if a.space == allocation.space and a.alignment < ALIGNMENT)
        others = (a for a in declared if a is not allocation and not a.last)
        return next((other for other in others if other.root.size % multiple), None)

    def sure_alignment(self, allocation):
        """Return the largest alignment, up to 16 bytes, guaranteed for an allocation on any GPU."""
        return next((size for size in (16, 8, 4, 2) if self.shifting(allocation, size) is None), 1)

    def writable_bytes(self):
        """Return the bytes of the global arrays that a kernel may write, as a list of uint8 arrays."""
        return [a.root for a in self.allocations if a.space == "global" and a.writable]

    def find(self, address):
        """Return the allocation that contains an address."""
        address = self.within_block(address)
        return next(a for a in self.allocations if a.base <= address < a.base + a.root.size * a.copies)

    def element(self, address):
        """Return the Element at an address."""
        allocation = self.find(address)
        return Element(allocation.name, allocation.index(self.within_block(address)))

    def within_block(self, address):
        """Convert an address, which can belong to another block of a cluster, to the address within its
        block."""
        return local_address(address) if self.clustered else address


class Empty(np.ndarray):
    """The subclass of ndarray returned by `sim.empty`.

    byte: the byte with which the array was filled. If it is None, the whole array counts as unwritten.
    """

    byte = None

    def __array_finalize__(self, source):
        self.byte = getattr(source, "byte", None)

    def __reduce__(self):
        """Pickle `byte` as well. Otherwise, the whole copy would count as unwritten."""
        rebuild, arguments, state = super().__reduce__()
        return rebuild, arguments, (self.byte, state)

    def __setstate__(self, state):
        self.byte, state = state
        super().__setstate__(state)

    def unwritten(self, root):
        """Return a mask of the unwritten bytes in `root`, the memory of this array, or None if all have been
        written.

        An element of one or two bytes, a boolean or a record can equal the poison by chance. In arrays of
        these types, a single store makes the whole array count as written.
        """
        if self.byte is None:
            return np.ones(root.size, bool)
        fresh = root == self.byte
        if self.itemsize < 4 or self.dtype.kind not in "iufc" or root.size % self.itemsize:
            return fresh if fresh.all() else None
        fresh = fresh.reshape(-1, self.itemsize).all(1).repeat(self.itemsize)
        return fresh if fresh.any() else None


def empty(shape: int | tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Return an array of this shape whose elements have never been written.

    The array is filled with poison. A load of an element before any store to it is reported as
    `uninitialized-read`. Elements stored by a launch or by the host count as written in later launches.
    """
    dtype = np.dtype(dtype)
    memory = fresh_memory(int(np.prod(shape)) * dtype.itemsize, dtype)
    array = memory.view(dtype).reshape(shape).view(Empty)
    array.byte = memory[0] if memory.size else None
    return array


def unwritten(root, arrays):
    """Return a mask of the never-written bytes in `root` if every array there was returned by `sim.empty`,
    otherwise None."""
    return arrays[0].unwritten(root) if all(isinstance(a, Empty) for a in arrays) else None


def fresh_memory(nbytes, dtype, filling=None):
    """Return `nbytes` of new, unwritten memory. It contains NaN for floating-point types, and a conspicuous
    number for integers.

    filling: a value that replaces the poison. It is bytes, which are repeated, or a number of type `dtype`
        (int32 if None).
    """
    if isinstance(filling, (int, float)):
        with np.errstate(invalid="ignore"):
            return np.resize(np.array([filling]).astype(dtype or np.int32).view(np.uint8), nbytes)
    if filling is not None:
        if len(filling) > 1:
            return np.resize(np.frombuffer(filling, np.uint8), nbytes)
        byte = filling[0]
    else:  # bfloat16 has the kind V, and all bits set is a NaN in every format
        integers = INTEGER_POISON if dtype is not None and dtype.kind in "iu" else 1
        byte = UNTYPED_POISON if dtype is None or dtype.kind in "fcV" else integers
    return full_of(byte, nbytes).copy() if nbytes <= FEW_BYTES else np.full(nbytes, byte, np.uint8)


@functools.cache
def full_of(byte, nbytes):
    return np.full(nbytes, byte, np.uint8)


def poison(dtype):
    """Return the result of a load from unwritten memory, as a numpy scalar."""
    return fresh_memory(dtype.itemsize, dtype).view(dtype)[0]


def bind_arguments(space, arrays):
    """Return {name: (allocation, byte offset)} for the arrays {name: ndarray}. Arrays that overlap share an
    allocation."""
    bound = {}
    for low, high, names in group_overlapping(arrays):
        bound |= bind_group(space, low, high, {name: arrays[name] for name in arrays if name in names})
    return bound


def group_overlapping(arrays):
    """Return the groups of arrays that overlap, as a list of (first byte, byte after the last byte, names).

    The groups are in the order of `arrays`. Addresses on the host differ between processes, and must
    influence neither simulated addresses nor messages.
    """
    # Two names can refer to the same memory, because a caller can pass one array twice.
    groups, order = [], list(arrays)
    for (low, high), name in sorted((np.lib.array_utils.byte_bounds(a), name) for name, a in arrays.items()):
        # The arrays are sorted by address, so an array overlaps the previous group if it begins before the
        # group's end.
        if groups and low < groups[-1][1]:
            first, end, names = groups.pop()
            groups.append((first, max(end, high), [*names, name]))
        else:
            groups.append((low, max(low, high), [name]))
    return sorted(groups, key=lambda group: min(map(order.index, group[2])))


def bytes_between(low, high):
    """Return the memory of the host between two addresses, as uint8."""
    return np.frombuffer(
        (ctypes.c_char * (high - low)).from_address(low) if high > low else bytearray(), np.uint8
    )


def owner_number(array):
    """Return a number for the array that owns the memory of `array`, or 0 if no numpy array owns it.

    A new array can have the address of a deleted array, but has a different number.
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
    """Make one allocation, from byte `low` to byte `high`, for arrays that overlap. The allocation is named
    after the first array."""
    offsets = {name: array.__array_interface__["data"][0] - low for name, array in arrays.items()}
    first, array = next(iter(arrays.items()))
    root, arrays = bytes_between(low, high), list(arrays.values())
    # A single writable array makes the whole allocation writable.
    root.flags.writeable = any(a.flags.writeable for a in arrays)
    home, key = (offsets[first], array.itemsize, array.shape, array.strides), (low, high, owner_number(array))
    allocation = space.add(
        first, "global", root, home, keep=arrays, unwritten=unwritten(root, arrays), key=key
    )
    return {name: (allocation, offset) for name, offset in offsets.items()}
