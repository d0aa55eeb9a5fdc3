"""What a launch of PTX has for memory: runs of bytes at simulated addresses, and views of them."""

import numpy as np

from sim.events import CONST, GLOBAL, LOCAL, SHARED, SPACE_SHIFT
from sim.memory.array import Array, array_at
from sim.memory.spaces import AddressSpace, poisoned

WINDOWS = {
    name: number << SPACE_SHIFT
    for name, number in (("global", GLOBAL), ("const", CONST), ("shared", SHARED), ("local", LOCAL))
}
GENERIC = "generic"
# what is read at once -> the letter of a memoryview, or a numpy type: then elements are its scalars
VIEWS = {
    f"{prefix}{8 * size}": (letter if prefix == "s" else letter.upper())
    for size, letter in ((1, "b"), (2, "h"), (4, "i"), (8, "q"))
    for prefix in "sub"
}
VIEWS |= {"f32": np.float32, "f64": np.float64}
GAP = 1 << 24  # bytes between two arrays, so that an address that is off by less is in none


class PaddedSpace(AddressSpace):
    """An address space with room between the allocations."""

    gap = GAP


class PointerArray(Array):
    """An array as pointers see it: in front of it is nothing."""

    __slots__ = ()
    wraps = False


def whole_array(context, allocation):
    """All of an allocation, by the elements that findings call."""
    itemsize = allocation.home[1]
    length = allocation.root.size // itemsize
    array = array_at(
        context, allocation, 0, np.dtype(f"V{itemsize}"), (length,), (itemsize,), allocation.name
    )
    array.__class__ = PointerArray  # no class for fast accesses: it stands in a finding
    return array


class Region:
    """Bytes at consecutive addresses from `base` to before `end`, and views of them as elements."""

    __slots__ = ("allocation", "base", "end", "root", "views", "written")

    def __init__(self, allocation, root, base=None):
        self.allocation, self.root, self.views = allocation, root, {}
        self.written = None  # of local memory, if a tool asks: whether each byte has been written
        self.base = allocation.base if base is None else base
        self.end = self.base + root.size

    def last(self, size):
        """Where the last access of `size` bytes may begin; -1 where each has to be looked at."""
        return self.root.size - size if self.allocation.alignment % size == 0 else -1

    def view(self, ptx_type, size):
        """The bytes as elements of that type, each `size` bytes."""
        if ptx_type not in self.views:
            whole = self.root[: self.root.size // size * size]
            how = VIEWS[ptx_type]
            self.views[ptx_type] = (
                memoryview(whole).cast("B").cast(how) if isinstance(how, str) else whole.view(how)
            )
        return self.views[ptx_type]


class Frames:
    """A thread's local memory of one function: a Region for each call, of which `depth` have not returned."""

    __slots__ = ("depth", "regions")

    def __init__(self):
        self.depth, self.regions = 0, []

    def find(self, address):
        """The Region of an address, or None."""
        return next((r for r in self.regions[: self.depth] if r.base <= address < r.end), None)

    def base_below(self, address, otherwise):
        """Where the last frame begins that is not behind the address."""
        return max((r.base for r in self.regions[: self.depth] if r.base <= address), default=otherwise)


def poison(ptx_type):
    """What a load that was refused gives."""
    dtype = np.dtype(VIEWS[ptx_type])
    value = poisoned(dtype.itemsize, None).view(dtype)[0]
    return int(value) if isinstance(VIEWS[ptx_type], str) else value
