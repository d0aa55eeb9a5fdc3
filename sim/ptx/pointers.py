"""Arrays that kernels reach through pointers in memory: pointers in structures, and arrays of pointers.

A launch can access the arrays that are its arguments. An array to which only a pointer in memory refers needs
an address before the launch. `module.pointer(array)` returns this address, and makes the array accessible to
all later launches of the module.
"""

from dataclasses import dataclass

import numpy as np

from sim.errors import LaunchError
from sim.memory.argument import host_array
from sim.memory.spaces import ALIGNMENT, Allocation, bytes_between, unwritten
from sim.ptx.regions import ModuleKey, PaddedSpace


@dataclass(frozen=True, eq=False)
class PinnedArray:
    """An array with a permanent address.

    name: its name in findings.
    low, high: its range of bytes on the host.
    base: the simulated address of the byte at `low`.
    """

    name: str
    array: np.ndarray
    low: int
    high: int
    base: int

    def allocation(self):
        """Return a new Allocation for a launch."""
        root = bytes_between(self.low, self.high)
        root.flags.writeable = self.array.flags.writeable
        home = (start_of(self.array) - self.low, self.array.itemsize, self.array.shape, self.array.strides)
        mask = unwritten(root, [self.array])
        return Allocation(self.name, "global", root, self.base, home, keep=[self.array], unwritten=mask)


def start_of(array):
    """Return the address of an array's first element on the host."""
    return array.__array_interface__["data"][0]


class PinnedArrays:
    """The pinned arrays of a module. They stay accessible, and are not deleted, as long as the module
    exists."""

    def __init__(self, number):
        self.number, self.arrays = number, []

    def address(self, value, name):
        """Return the simulated address of an array's first element. Pin the array if it is new.

        value: a numpy array or a CPU tensor.

        Raise LaunchError for any other value.
        """
        array = host_array(value, name)
        if array is None:
            raise LaunchError(f"{name} is a {type(value).__name__}; wanted a numpy array or a CPU tensor")
        low, high = np.lib.array_utils.byte_bounds(array)
        pinned = self.find(low, high) or self.pin(name, array, low, high)
        return pinned.base + start_of(array) - pinned.low

    def find(self, low, high):
        """Return the PinnedArray that contains a range of bytes on the host, or None.

        Raise LaunchError if an array contains a part of the range.
        """
        for pinned in self.arrays:
            if pinned.low <= low and high <= pinned.high:
                return pinned
            if low < pinned.high and pinned.low < high:
                raise LaunchError(
                    f"{pinned.name} already has an address, but it is only a part of this array; call"
                    " pointer(array) for the whole array first, and then pointer(array[...])"
                )
        return None

    def pin(self, name, array, low, high):
        """Return a new PinnedArray."""
        key = ModuleKey(self.number, f"pointer {len(self.arrays)}")
        base = PaddedSpace().choose_address("global", max(high - low, 1), ALIGNMENT, name, key)
        if base is None:
            raise LaunchError(f"{name}: no simulated addresses are left for {high - low:,} bytes")
        taken = {pinned.name for pinned in self.arrays}
        name = name if name not in taken else f"{name}_{len(self.arrays)}"
        self.arrays.append(PinnedArray(name, array, low, high, base))
        return self.arrays[-1]

    def attach(self, run, arrays):
        """Make the pinned arrays accessible to a launch.

        arrays: {name: array} of the launch's arguments.

        Return {name: (Allocation, byte offset)} for the arguments that are in pinned arrays.
        """
        places = {}
        for pinned in self.arrays:
            allocation = pinned.allocation()
            run.context.space.allocations.append(allocation)
            run.memory.make_addressable(allocation)
            for name, array in arrays.items():
                if self.find(*np.lib.array_utils.byte_bounds(array)) is pinned:
                    places[name] = allocation, start_of(array) - pinned.low
        return places
