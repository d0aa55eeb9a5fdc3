"""The memory of the simulated device, which is host memory, and the page-locked memory of the host."""

import bisect
import ctypes

import numpy as np

from sim.events import INTEGER_POISON
from sim.memory.spaces import Empty
from sim.runtime.call_sites import CallSite
from sim.sessions import launching_line

POISON_WORD = INTEGER_POISON * 0x01010101  # four bytes of poison
DEVICE, PAGE_LOCKED, MANAGED = "device", "page-locked", "managed"  # kinds of memory


class Memory:
    """The memory that the simulated device can access.

    blocks: the allocations, {address: bytes}.
    origins: the kind of each allocation, and the line that made it, {address: (kind, file, line)}.
    locked: the addresses of the page-locked and managed allocations.
    fresh: the addresses of allocations that may contain unwritten elements.
    registered: the host arrays that are page-locked for a time, {address: (size, CallSite)}.

    An allocation is filled with INTEGER_POISON. An element that still has this value counts as unwritten.

    `freed(start, bytes)` is called when an allocation is freed, and `unregistered(start, size)` when the page
    lock of a host array ends. Python's garbage collector can cause either at any moment.
    """

    def __init__(self):
        self.blocks, self.addresses, self.fresh = {}, [], set()
        self.origins, self.locked, self.registered = {}, set(), {}
        self.freed = self.unregistered = lambda start, what: None

    def allocate(self, size, kind=DEVICE):
        """Allocate `size` bytes, or one if `size` is 0, and return their address."""
        block = np.full(max(size, 1), INTEGER_POISON, np.uint8)
        # The host address doubles as the device address.
        address = block.__array_interface__["data"][0]
        self.blocks[address] = block
        self.origins[address] = kind, *launching_line()
        if kind != DEVICE:
            self.locked.add(address)
        self.fresh.add(address)
        bisect.insort(self.addresses, address)
        return address

    def free(self, address):
        """Drop an allocation. Ignore memory that this object did not allocate."""
        block = self.blocks.pop(int(address), None)
        if block is not None:
            self.addresses.remove(int(address))
            self.fresh.discard(int(address))
            del self.origins[int(address)]
            self.locked.discard(int(address))
            self.freed(int(address), block)

    def register(self, address, size):
        """Record that a host array is page-locked."""
        self.registered[int(address)] = size, CallSite(*launching_line())

    def unregister(self, address):
        if int(address) in self.registered:
            self.unregistered(int(address), self.registered.pop(int(address))[0])

    def is_page_locked(self, address):
        """Return whether an asynchronous copy from or to an address can run while the host continues.

        This is possible for page-locked and managed memory. Other memory of the host is pageable.
        """
        if self.locked and self.find_base(address) in self.locked:
            return True
        return any(start <= address < start + size for start, (size, _) in self.registered.items())

    def place(self, address):
        """Return (start, description) for the array that contains an address, or (0, "")."""
        base = self.find_base(address)
        if base is not None:
            kind, *line = self.origins[base]
            return base, f"the {kind} array allocated at {CallSite(*line)} ({len(self.blocks[base]):,} bytes)"
        for start, (size, site) in self.registered.items():
            if start <= address < start + size:
                return start, f"the array page-locked at {site} ({size:,} bytes)"
        return 0, ""

    def describe(self, address):
        """Return a description of the byte at an address: "byte 8 of the device array allocated at a.py:3 (32
        bytes)"."""
        return byte_of(address, *self.place(address))

    def make_finalizer(self, manager, pointer, key, *rest):
        """Return the function that Numba calls to free an allocation, possibly after the real driver has been
        restored."""

        def core():
            manager.allocations.pop(key, None)
            self.free(pointer)
            self.unregister(pointer)

        return core

    def find_base(self, address):
        """Return the address of the allocation that contains `address`, or None if it is not one of these
        allocations."""
        at = bisect.bisect_right(self.addresses, address) - 1
        base = self.addresses[at] if at >= 0 else None
        return base if base is not None and address < base + len(self.blocks[base]) else None

    def mark_written(self, address, size):
        """Record that the host has written `size` bytes at an address."""
        base = self.find_base(int(address))
        if base == int(address) and size == len(self.blocks[base]):
            self.fresh.discard(base)

    def update_fresh(self):
        """Record which allocations a launch has written completely."""
        self.fresh = {address for address in self.fresh if has_poison(self.blocks[address])}

    def as_array(self, device_array):
        """Return a numpy array over the bytes of a device array. Elements that were
        never written count as uninitialised, as in an array from `sim.empty`."""
        address, size = device_array.device_ctypes_pointer.value or 0, device_array.alloc_size
        buffer = (ctypes.c_char * size).from_address(address) if size else bytearray()
        is_fresh = self.find_base(address) in self.fresh
        array_class = Empty if is_fresh else np.ndarray
        array = array_class(device_array.shape, device_array.dtype, buffer, strides=device_array.strides)
        if is_fresh:
            array.byte = INTEGER_POISON
        return array

    @property
    def used(self):
        return sum(map(len, self.blocks.values()))


def byte_of(address, start, words):
    """Return a description of a byte of an array, given the result of `Memory.place`."""
    return f"byte {address - start:,} of {words}" if words else f"memory at {address:#x}"


def has_poison(block):
    """Return whether an aligned word of an allocation, or a byte after the last word, contains poison."""
    whole = block.size // 4 * 4
    words, rest = block[:whole].view(np.uint32), block[whole:]
    return bool((words == POISON_WORD).any() or (rest == INTEGER_POISON).any())
