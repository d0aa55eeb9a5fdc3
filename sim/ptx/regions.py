"""The memory of a launch of PTX: contiguous bytes at simulated addresses, and views of them."""

import threading
from dataclasses import dataclass

import numpy as np

from sim.events import CONST, GLOBAL, LOCAL, SHARED, SPACE_SHIFT
from sim.memory.array import Array, array_at
from sim.memory.spaces import AddressSpace, after, poisoned, round_up, window_end
from sim.ptx.syntax import Variable

WINDOWS = {
    name: number << SPACE_SHIFT
    for name, number in (("global", GLOBAL), ("const", CONST), ("shared", SHARED), ("local", LOCAL))
}
GENERIC = "generic"
# The bytes of shared memory that the system reserves for cooperative groups. Tiles of several warps keep
# barriers and values there (288 bytes in cooperative_groups/details/memory.h), and expect zeros at first. The
# variable has the name of the special register with its offset.
RESERVED = Variable("shared", "reserved_smem_offset_1", "b64", 36, 8, 0)
# PTX type -> how memory is viewed. Integers: the format of a memoryview, whose elements are Python's ints.
# Floats: a numpy type, whose elements are its scalars.
VIEWS = {
    f"{prefix}{8 * size}": (letter if prefix == "s" else letter.upper())
    for size, letter in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
    for prefix in "sub"
}
VIEWS |= {"f32": np.float32, "f64": np.float64}
GAP = 1 << 24  # unused bytes between two arrays: an address that is off by less is in no array
# The heap of device code has the last quarter of the window of global memory (sim.ptx.heap).
HEAP_BASE = window_end("global") - (1 << SPACE_SHIFT - 2)
KEPT_SPACES = "global", "const"


@dataclass(frozen=True)
class GivenAddress:
    """The address of a variable or an argument. `lasting`: whether the module keeps it for good."""

    name: str
    base: int
    nbytes: int
    lasting: bool

    @property
    def end(self):
        return after(self.base, self.nbytes)


class Addresses:
    """The addresses that the launches of a module share: a variable has one address for good, and an array
    has the same one in each launch that gets it. So a pointer that a launch stores in memory is valid in the
    next launch, as on a GPU.

    given: {(space, key): GivenAddress}. The key of a variable is its name in PTX, that of an argument the
        range of its host memory and the number of the array that owns it.
    next: {space: the first address after the one that was given last}.
    """

    def __init__(self):
        self.given, self.next, self.lock = {}, {}, threading.RLock()

    def forget_arguments(self, used):
        """Free the addresses of the arguments of earlier launches. `used`: the addresses of this launch."""
        self.given = {key: g for key, g in self.given.items() if g.lasting or g.base in used}

    def first_gap(self, space, start, nbytes, align):
        """Return the first address after `start` at which `nbytes` lie in a gap between those given."""
        for given in sorted((g for (s, _), g in self.given.items() if s == space), key=lambda g: g.base):
            base = round_up(start + GAP, align)
            if after(base, nbytes) + GAP <= given.base:
                return base
            start = max(start, given.end)
        return round_up(start + GAP, align)

    def find_argument(self, address):
        """Return the GivenAddress of the argument at an address, or None."""
        return next((g for g in self.given.values() if not g.lasting and g.base <= address < g.end), None)


class PaddedSpace(AddressSpace):
    """The address space of a launch of PTX: unused bytes between the allocations, and the addresses that
    earlier launches of the module have had."""

    gap = GAP

    def __init__(self, addresses):
        super().__init__()
        self.addresses, self.start = addresses, dict(self.next)

    def choose_address(self, space, nbytes, align, name, key):
        if space not in KEPT_SPACES:
            return super().choose_address(space, nbytes, align, name, key)
        with self.addresses.lock:
            given = self.addresses.given.get((space, key))
            if given is None:
                base = self.new_address(space, nbytes, align)
                if base is None:
                    return None
                given = GivenAddress(name, base, nbytes, isinstance(key, str))
                self.addresses.given[space, key] = given
                self.addresses.next[space] = given.end
        self.next[space] = max(self.next[space], given.end)
        return given.base

    def new_address(self, space, nbytes, align):
        """Return an address after all that have been given. Where these have reached the end, return one that
        an argument of an earlier launch had; None if there is no room at all."""
        addresses = self.addresses
        start = max(self.start[space], addresses.next.get(space, 0))
        base = addresses.first_gap(space, start, nbytes, align)
        if after(base, nbytes) > (HEAP_BASE if space == "global" else window_end(space)):
            addresses.forget_arguments({allocation.base for allocation in self.allocations})
            base = addresses.first_gap(space, self.start[space], nbytes, align)
        return base if after(base, nbytes) <= window_end(space) else None


class PointerArray(Array):
    """An array as pointers see it: a negative index is not counted from its end."""

    __slots__ = ()
    wraps = False


def whole_array(context, allocation):
    """Return the array of a whole allocation, with the elements that findings name."""
    itemsize = allocation.home[1]
    length = allocation.root.size // itemsize
    array = array_at(
        context, allocation, 0, np.dtype(f"V{itemsize}"), (length,), (itemsize,), allocation.name
    )
    # array_at may return a class with faster accesses; only findings use this array
    array.__class__ = PointerArray
    return array


class Region:
    """Bytes at consecutive addresses from `base` to before `end`, and views of them as elements."""

    __slots__ = ("allocation", "base", "end", "origins", "root", "views", "written")

    def __init__(self, allocation, root, base=None):
        self.allocation, self.root, self.views = allocation, root, {}
        # of local memory, if an observer needs it: whether each byte has a defined value; {byte: origin} of
        # those that a store of an undefined value has written (sim.ptx.undefined)
        self.written, self.origins = None, {}
        self.base = allocation.base if base is None else base
        self.end = self.base + root.size

    def last(self, size):
        """Return the last offset at which an access of `size` bytes may begin; -1 if each access has to be
        checked."""
        return self.root.size - size if self.allocation.alignment % size == 0 else -1

    def view(self, ptx_type, size):
        """Return the bytes as elements of a type, each `size` bytes."""
        if ptx_type not in self.views:
            whole = self.root[: self.root.size // size * size]
            how = VIEWS[ptx_type]
            self.views[ptx_type] = (
                memoryview(whole).cast("B").cast(how) if isinstance(how, str) else whole.view(how)
            )
        return self.views[ptx_type]


class Frames:
    """A thread's local memory of one function: a Region for each call. The first `depth` belong to calls
    that have not returned."""

    __slots__ = ("depth", "regions")

    def __init__(self):
        self.depth, self.regions = 0, []

    def find(self, address):
        """Return the Region of an address, or None."""
        return next((r for r in self.regions[: self.depth] if r.base <= address < r.end), None)

    def base_below(self, address, otherwise):
        """Return where the last frame begins that does not begin after the address."""
        return max((r.base for r in self.regions[: self.depth] if r.base <= address), default=otherwise)


def poison(ptx_type):
    """Return the value that a refused load gives."""
    dtype = np.dtype(VIEWS[ptx_type])
    value = poisoned(dtype.itemsize, None).view(dtype)[0]
    return int(value) if isinstance(VIEWS[ptx_type], str) else value
