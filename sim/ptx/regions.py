"""The memory of a launch of PTX: contiguous bytes at simulated addresses, and views of them."""

import numpy as np

from sim.events import CONST, GLOBAL, LOCAL, SHARED, SPACE_SHIFT
from sim.memory.array import Array, array_at
from sim.memory.spaces import AddressSpace, poisoned

WINDOWS = {
    name: number << SPACE_SHIFT
    for name, number in (("global", GLOBAL), ("const", CONST), ("shared", SHARED), ("local", LOCAL))
}
GENERIC = "generic"
# PTX type -> how memory is viewed. Integers: the format of a memoryview, whose elements are Python's ints.
# Floats: a numpy type, whose elements are its scalars.
VIEWS = {
    f"{prefix}{8 * size}": (letter if prefix == "s" else letter.upper())
    for size, letter in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
    for prefix in "sub"
}
VIEWS |= {"f32": np.float32, "f64": np.float64}
GAP = 1 << 24  # unused bytes between two arrays: an address that is off by less is in no array


class PaddedSpace(AddressSpace):
    """An address space with unused bytes between the allocations."""

    gap = GAP


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

    __slots__ = ("allocation", "base", "end", "root", "views", "written")

    def __init__(self, allocation, root, base=None):
        self.allocation, self.root, self.views = allocation, root, {}
        self.written = None  # of local memory, if an observer needs it: whether each byte has been written
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
