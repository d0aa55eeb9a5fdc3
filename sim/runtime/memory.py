"""Device memory of a running program: buffers at simulated addresses, and copies to and from them.

The host and kernels use the same address of a buffer. Managed and pinned buffers are also mapped into this
process at that address, so the host reads and writes them through the same pointer. Other buffers are not
mapped: if the host dereferences their address, it receives a SIGSEGV, which `sim.runtime.process` reports.

A mapped buffer ends close to the end of its last page, and the pages around the buffer are not mapped.
Host accesses outside the buffer therefore also raise a SIGSEGV, except in the unused parts of its first and
last page (its margins). The margins are filled with a constant, so that a later check finds stores of the
host.
"""

import ctypes
import mmap
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from sim.events import INTEGER_POISON, LOAD, STORE
from sim.memory.spaces import ALIGNMENT, Allocation
from sim.ptx.regions import ADDRESSES, HEAP_BASE, HOST, AddressRange, ModuleKey, PaddedSpace
from sim.runtime.call_sites import UNKNOWN, CallSite
from sim.runtime.footprints import Footprint

DEVICE, MANAGED, PINNED, SYMBOL = "device", "managed", "pinned host", "symbol"
BUFFER_ALIGNMENT = 256  # bytes; the alignment of addresses that allocations return
NEAR = 1 << 20  # maximum distance in bytes from a buffer at which an access of the host is attributed to it
PITCH = 512  # bytes; cudaMallocPitch rounds the size of rows up to a multiple of this, as on an H200
MOST_FREED = 100  # number of freed buffers to remember, so that findings can name them
LIMIT = 8 << 30  # limit on the total bytes of all buffers, which must fit in the host machine's memory
WORD = 4  # bytes of a word, which counts as written if any of its bytes has changed
NO_REPLACE = 0x100000  # Linux's MAP_FIXED_NOREPLACE
INACCESSIBLE = 0  # PROT_NONE of mmap(2)
HEAP_ROOM = 1 << 30  # limit on the bytes by which a C library's heap at low addresses can grow


class OutOfDeviceMemory(Exception):
    """Raised when the simulated device has too little free memory for a request."""


@dataclass(eq=False)
class DeviceBuffer:
    """A range of device memory.

    base: its simulated address.
    root: its bytes.
    kind: DEVICE, MANAGED, PINNED or SYMBOL.
    site: the host call that allocated it.
    unwritten: a mask of the bytes that have never been written, or None if all of them have been.
    freed: the host call that freed it, or None.
    """

    base: int
    root: np.ndarray
    kind: str
    site: CallSite = UNKNOWN
    name: str = ""
    unwritten: np.ndarray | None = None
    freed: CallSite | None = None
    key: ModuleKey | None = None

    @property
    def end(self) -> int:
        return self.base + self.root.size

    def __str__(self) -> str:
        return self.name or f"the {self.kind} memory allocated at {self.site} ({self.root.size:,} bytes)"

    def protectable(self) -> tuple[int, int]:
        """Return the first and last address, end excluded, of the bytes whose pages can be protected.

        The first and last page of registered memory can contain other data of the process.
        """
        host = self.root.ctypes.data
        if host == self.base:
            return self.base, self.end
        inner = -(-host // mmap.PAGESIZE) * mmap.PAGESIZE, (host + self.root.size) & -mmap.PAGESIZE
        return tuple(self.base + address - host for address in inner)

    @property
    def is_mapped(self) -> bool:
        """True if the memory is mapped at its simulated address, so that the host accesses it directly."""
        return self.kind in (MANAGED, PINNED) and self.root.ctypes.data == self.base

    @property
    def margins(self) -> tuple[np.ndarray, np.ndarray]:
        """The rest of the first page before a mapped buffer, and of the last page after it, as uint8."""
        sizes = self.base % mmap.PAGESIZE, -self.end % mmap.PAGESIZE
        starts = self.base - sizes[0], self.end
        before, after = (
            np.frombuffer((ctypes.c_char * size).from_address(start), np.uint8)
            for start, size in zip(starts, sizes)
        )
        return before, after

    def count_overruns(self) -> tuple[int, int]:
        """Return the distances in bytes of the farthest bytes that the host has changed before the beginning
        and after the end. A distance is 0 if it has changed none."""
        if not self.is_mapped:
            return 0, 0
        before, after = (np.flatnonzero(margin != INTEGER_POISON) for margin in self.margins)
        return (
            self.base % mmap.PAGESIZE - int(before[0]) if len(before) else 0,
            int(after[-1]) + 1 if len(after) else 0,
        )

    def mark_written(self, offset: int, nbytes: int) -> None:
        """Record that the host has written some bytes."""
        if self.unwritten is not None:
            self.unwritten[offset : offset + nbytes] = False
            if not self.unwritten.any():
                self.unwritten = None

    def find_written(self) -> None:
        """Update `unwritten` after a launch: words without the fill value have been written.

        A store of the fill value itself, which is one of the 2^32 values of a word, is not noticed.
        """
        if self.unwritten is None:
            return
        whole = self.root.size // WORD * WORD
        changed = (self.root[:whole].reshape(-1, WORD) != INTEGER_POISON).any(1).repeat(WORD)
        self.unwritten[:whole] &= ~changed
        self.unwritten[whole:] &= self.root[whole:] == INTEGER_POISON
        self.mark_written(0, 0)


class DeviceMemory:
    """The device buffers of a program. Buffers and modules allocate from the same address space."""

    def __init__(self) -> None:
        self.serial = 0
        self.buffers: dict[int, DeviceBuffer] = {}
        self.bases: list[int] = []
        self.freed: list[DeviceBuffer] = []
        self.names: dict[int, tuple] = {}  # base -> (name in findings, bytes per element), for one launch
        # host address -> buffer registered with cudaHostRegister
        self.registered: dict[int, DeviceBuffer] = {}
        # function that is called with the lowest and highest host address of registered memory
        self.registered_changed: Callable[[int, int], object] = lambda start, end: None
        # the accesses of the current launch to memory of the host, or None if they are not needed
        self.footprint: Footprint | None = None
        self.unused: dict[int, np.ndarray] = {}  # bytes of variables that no kernel uses
        avoid_host_memory()

    @property
    def used(self) -> int:
        """The number of bytes in all live buffers."""
        return sum(buffer.root.size for buffer in self.buffers.values())

    def allocate(self, nbytes: int, kind: str, site: CallSite) -> DeviceBuffer:
        """Return a new buffer. Its bytes count as unwritten, unless the host can access it directly.

        Raise OutOfDeviceMemory if too little memory or address space is left.
        """
        if self.used + nbytes > LIMIT:
            raise OutOfDeviceMemory
        if kind == DEVICE:
            base, key = self.reserve(nbytes)
            root = np.full(nbytes, INTEGER_POISON, np.uint8)
            buffer = DeviceBuffer(base, root, kind, site, unwritten=np.ones(nbytes, bool))
        else:
            pages, used = (-(-nbytes // unit) * unit for unit in (mmap.PAGESIZE, BUFFER_ALIGNMENT))
            base, key = self.reserve(pages, mmap.PAGESIZE)
            base += pages - used
            # The unused rest of the pages does not belong to the buffer. No other memory is placed there,
            # because buffers that kernels can access are far apart.
            reserved = ADDRESSES.ranges["global", key]
            ADDRESSES.ranges["global", key] = replace(reserved, base=base, nbytes=nbytes)
            buffer = DeviceBuffer(base, map_at(base, nbytes), kind, site)
            for margin in buffer.margins:
                margin[:] = INTEGER_POISON
        buffer.key = key
        self.add(buffer)
        return buffer

    def reserve(self, nbytes: int, alignment: int = BUFFER_ALIGNMENT) -> tuple[int, ModuleKey]:
        """Reserve unused addresses. Return (first address, key in the table of address ranges).

        Raise OutOfDeviceMemory if too few addresses are left.
        """
        self.serial += 1
        key = ModuleKey(HOST, f"buffer {self.serial}")
        base = PaddedSpace().choose_address("global", nbytes, alignment, key.name, key)
        if base is None and self.freed:  # reuse the addresses of freed buffers
            self.forget_freed(0)
            base = PaddedSpace().choose_address("global", nbytes, alignment, key.name, key)
        if base is None:
            raise OutOfDeviceMemory
        return base, key

    def add(self, buffer: DeviceBuffer) -> None:
        """Make a buffer accessible to kernels and copies."""
        self.buffers[buffer.base] = buffer
        insort(self.bases, buffer.base)

    def register(self, address: int, buffer: DeviceBuffer | None) -> DeviceBuffer | None:
        """Add the buffer of registered host memory, or remove it if `buffer` is None. Return the buffer that
        was registered before."""
        before = self.registered.pop(address, None)
        if buffer is not None:
            self.registered[address] = buffer
            self.add(buffer)
        ends = [(start, start + one.root.size) for start, one in self.registered.items()] or [(0, 0)]
        self.registered_changed(min(ends)[0], max(end for _, end in ends))
        return before

    def free(self, buffer: DeviceBuffer, site: CallSite) -> None:
        """Free a buffer, but remember it for findings."""
        del self.buffers[buffer.base]
        self.bases.remove(buffer.base)
        buffer.freed = site
        given = ADDRESSES.ranges["global", buffer.key]
        ADDRESSES.ranges["global", buffer.key] = replace(given, name=f"{buffer}, freed at {site}")
        if buffer.kind != DEVICE:
            unmap(buffer)
        # uses no physical memory, because its pages are never accessed
        buffer.root = np.empty(buffer.root.size, np.uint8)
        self.freed.append(buffer)
        self.forget_freed(MOST_FREED)

    def forget_freed(self, most: int) -> None:
        """Release the addresses of the oldest freed buffers, until at most `most` freed buffers are
        remembered."""
        while len(self.freed) > most:
            ADDRESSES.ranges.pop(("global", self.freed.pop(0).key), None)

    def find(self, address: int) -> DeviceBuffer | None:
        """Return the live buffer that contains an address, or None."""
        at = bisect_right(self.bases, address) - 1
        buffer = self.buffers[self.bases[at]] if at >= 0 else None
        return buffer if buffer is not None and address < max(buffer.end, buffer.base + 1) else None

    def find_near(self, address: int) -> DeviceBuffer | None:
        """Return the mapped buffer that ends or begins closest to an address outside all buffers, within
        NEAR bytes, or None."""
        at = bisect_right(self.bases, address)
        near = [b for b in map(self.buffers.get, self.bases[max(at - 1, 0) : at + 1]) if b.is_mapped]
        distance = lambda b: max(b.base - address, address - b.end)  # noqa: E731
        return min((b for b in near if distance(b) <= NEAR), key=distance, default=None)

    def find_registered(self, address: int) -> DeviceBuffer | None:
        """Return the buffer of the registered memory that contains a host address, or None."""
        found = (b for start, b in self.registered.items() if start <= address < start + b.root.size)
        return next(found, None)

    def find_freed(self, address: int) -> DeviceBuffer | None:
        """Return the most recently freed buffer that contained an address, or None."""
        return next((b for b in reversed(self.freed) if b.base <= address < b.end), None)

    def describe(self, address: int, whole: bool = False) -> str:
        """Return a noun for the byte at an address: its place in a buffer or variable, or the address.

        whole: whether to name the buffer without the place of the byte.
        """
        if buffer := self.find(address) or self.find_freed(address):
            return str(buffer) if whole else f"byte {address - buffer.base:,} of {buffer}"
        found = ADDRESSES.find(address)
        if found is not None and getattr(found.key, "module", HOST) != HOST:
            return f"byte {address - found.base:,} of the variable {found.name}"
        return f"host memory at {address:#x}"

    # --- launches -------------------------------------------------------------------------------------------

    def attach(self, run) -> None:
        """Make every buffer accessible to a launch. `sim.ptx.run.Run` calls this method."""
        # A rerun with other initial values of unwritten memory can access other addresses.
        if self.footprint is not None and run.context.poison is None:
            run.context.listeners["accesses"].append(self.footprint.accesses)
        used = {allocation.name for allocation in run.context.space.allocations}
        for base, buffer in self.buffers.items():
            if buffer.kind == SYMBOL:
                continue
            name, itemsize = self.names.get(base, (str(buffer), 0))
            name = name if name not in used else f"{name}, {hex(base)}"
            used.add(name)
            itemsize = itemsize or (WORD if buffer.root.size % WORD == 0 else 1)
            if buffer.root.size % itemsize:
                itemsize = 1
            home = 0, itemsize, (max(buffer.root.size // itemsize, 1),), (itemsize,)
            allocation = Allocation(name, "global", buffer.root, base, home, keep=(buffer.root,))
            allocation.unwritten = buffer.unwritten
            run.context.space.allocations.append(allocation)
            run.memory.make_addressable(allocation)

    def add_compiled(self, regions) -> None:
        """Add the accesses of a compiled launch to memory of the host. `sim.native` calls this method.

        regions: (first address, bytes per granule, masks of the granules that were loaded and stored).
        """
        for base, nbytes, loaded, stored in regions:
            buffer = self.buffers.get(base)
            if self.footprint is not None and buffer is not None and buffer.kind != DEVICE:
                self.footprint.add_granules(LOAD, base, nbytes, loaded)
                self.footprint.add_granules(STORE, base, nbytes, stored)

    def launch_finished(self) -> None:
        """After a launch, update the record of which bytes in each buffer have been written."""
        for buffer in self.buffers.values():
            buffer.find_written()


def avoid_host_memory() -> None:
    """Reserve the low addresses that this process uses itself, so that no buffer is placed there.

    On some systems, such as Ubuntu, Python is loaded at 4 MiB, and the C library's heap follows it and grows.
    An inaccessible page limits this growth to HEAP_ROOM bytes. If the heap reaches the page, the C library
    maps further memory at high addresses.
    """
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split(maxsplit=1)[0].split("-") for line in lines]
    ends = [int(end, 16) for start, end in ranges if int(start, 16) < HEAP_BASE]
    if not ends:
        return
    start, end = ALIGNMENT, max(ends) + HEAP_ROOM
    map_at(end, mmap.PAGESIZE, INACCESSIBLE)
    key = ModuleKey(HOST, "memory of the host")
    ADDRESSES.ranges["global", key] = AddressRange(key.name, start, end + mmap.PAGESIZE - start, key)


def is_mapped(address: int) -> bool:
    """Return whether the byte at an address is in mapped memory."""
    libc = ctypes.CDLL(None, use_errno=True)
    page = address & -mmap.PAGESIZE
    residency = ctypes.create_string_buffer(1)
    libc.mincore.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p
    return libc.mincore(page, mmap.PAGESIZE, residency) == 0


def map_at(base: int, nbytes: int, protection: int = mmap.PROT_READ | mmap.PROT_WRITE) -> np.ndarray:
    """Map zero-filled memory into this process at an address. Raise OutOfDeviceMemory if that fails.

    protection: the allowed accesses, as for mmap(2).
    """
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    start, end = base & -mmap.PAGESIZE, -(-(base + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_REPLACE
    if libc.mmap(start, end - start, protection, flags, -1, 0) != start:
        raise OutOfDeviceMemory
    return np.frombuffer((ctypes.c_char * nbytes).from_address(base), np.uint8)


def unmap(buffer: DeviceBuffer) -> None:
    """Remove a buffer's mapping, so that a later host access is noticed."""
    libc = ctypes.CDLL(None)
    libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
    start, end = buffer.base & -mmap.PAGESIZE, -(-buffer.end // mmap.PAGESIZE) * mmap.PAGESIZE
    libc.munmap(start, end - start)
