"""Byte-level memory for the instructions in `sim.isa`: accesses to several adjacent bytes, and asynchronous
copies.

An asynchronous copy (cp.async in PTX) writes at an unspecified time between its issue and the wait for it.
In the simulator, the bytes arrive at the wait, which is the latest time that the hardware allows. The log
records the store at the issue, and observers receive both events.
"""

from math import prod

import numpy as np

from sim.events import ADDRESS_BITS, SITE_SHIFT, Copy
from sim.isa.matrix_descriptor import ADDRESS_MASK, CHUNK
from sim.memory.alignment import Alignment
from sim.memory.array import Array
from sim.memory.async_proxy import AsyncProxyMemory
from sim.memory.async_proxy import Spot as Spot
from sim.memory.barriers import BarrierMemory, phase_of
from sim.memory.products import Products


class Sent:
    """A pending copy: the Copy event, the memory of the destination, and the data, or None once the data have
    arrived."""

    __slots__ = ("copy", "memory", "data")

    def __init__(self, copy, memory, data):
        self.copy, self.memory, self.data = copy, memory, data

    def arrive(self):
        if self.data is not None:
            self.memory[:], self.data = self.data, None


class Memory(AsyncProxyMemory, BarrierMemory):
    """The memory operations of an instruction. Each front end implements `spot` and `site`, which define the
    form of a location."""

    def __init__(self, context, name):
        self.context, self.name = context, name

    def site(self, action):
        """Return the number of the current site for an action, such as "load"."""
        raise NotImplementedError

    def spot(self, where, index, size, multiple, site, what):
        """Return the Spot of `size` bytes. Return None if the access is refused because it is out of bounds
        or its address is not a multiple of `multiple`."""
        raise NotImplementedError

    @property
    def lane(self):
        """The index of the current thread in its warp."""
        return self.context.thread.lane

    def read(self, where, index, size, multiple=None):
        """Return `size` bytes as uint8, or poison if the access is refused."""
        return self.source(where, index, size, multiple or size).memory.copy()

    def begins(self, where, index, multiple, action):
        """Return whether an access can begin at this location: in bounds, and aligned to `multiple` bytes."""
        what = "read" if action == "load" else "written"
        return self.spot(where, index, multiple, multiple, self.site(action), what) is not None

    def write(self, where, index, data):
        """Write the bytes `data`."""
        site = self.site("store")
        spot = self.spot(where, index, len(data), len(data), site, "written")
        if spot is not None:
            spot.memory[:] = np.frombuffer(data, np.uint8)
            self.log_write(spot, site, data)

    def source(self, where, index, size, multiple):
        """Return the Spot of `size` bytes to read. If the access is refused, its address is None and its
        memory is poison."""
        site = self.site("load")
        spot = self.spot(where, index, size, multiple, site, "read")
        if spot is None:
            return Spot(None, np.full(size, 0xFF, np.uint8))
        self.log(spot.address, size, site)
        return spot

    def send(self, where, index, data, source=None):
        """Start an asynchronous write of `data` (uint8).

        source: the Spot from which the copy reads until the data arrive, or None.
        """
        site, thread = self.site("store"), self.context.thread
        spot = self.spot(where, index, len(data), len(data), site, "written")
        if spot is None:
            return
        # Observers need the source as well: a write to it before the copy arrives is a race.
        taken = (None, 0) if source is None else (source.address, len(source.memory))
        copy = Copy(spot.address, len(data), site, *taken)
        thread.sent.append(Sent(copy, spot.memory, data))
        self.log_write(spot, site, bytes(data))
        self.context.announce_ordering("copy_sent", copy)

    def commit(self):
        """Commit all copies sent since the last commit, as one group."""
        thread = self.context.thread
        # PTX allows a group without copies, so an empty list is appended too.
        thread.groups.append(thread.sent)
        thread.sent = []

    def receive(self, groups):
        """Wait until at most the newest `groups` groups are pending."""
        thread, arrived = self.context.thread, []
        while len(thread.groups) > groups:
            arrived += thread.groups.pop(0)
        for sent in arrived:
            sent.arrive()
        if arrived:
            self.context.announce_ordering("copies_received", [sent.copy for sent in arrived])

    def track(self, barrier):
        """Make an mbarrier count one arrival once all copies issued by the current thread are complete.

        The copies arrive when a thread tests the phase of the barrier, at the latest.
        """
        thread = self.context.thread
        for group in (*thread.groups, thread.sent):
            group[:] = [sent for sent in group if sent.data is not None]
        under_way = [sent for group in (*thread.groups, thread.sent) for sent in group]
        barrier.tracked.append(under_way)
        barrier.suppliers[thread] = barrier.phase
        self.context.announce_ordering(
            "copies_tracked", phase_of(barrier, barrier.phase), [sent.copy for sent in under_way]
        )

    # --- products of warp groups ----------------------------------------------------------------------------

    @property
    def products(self):
        """The products of the current thread's warp group (wgmma)."""
        return Products(self)

    def address(self, where, index, multiple):
        """Return the address of an element, which must be aligned to `multiple` bytes. Return 0 if the access
        is refused."""
        spot = self.spot(where, index, multiple, multiple, self.site("load"), "read")
        return 0 if spot is None else spot.address

    def shared_regions(self):
        """Yield (allocation, bytes) of the current block's shared memory."""
        for held in self.context.thread.block.shared.values():
            allocation = getattr(held, "allocation", None)
            if allocation is not None and allocation.space == "shared":
                yield allocation, held.root

    def shared_chunks(self, addresses):
        """Return (bytes, addresses in the simulated address space) of chunks of 16 bytes in shared memory.

        A chunk outside all arrays is filled with poison, and its address is -1.

        addresses: an integer array of addresses within shared memory, as in a matrix descriptor.
        """
        flat = addresses.reshape(-1)
        data, found = np.full((len(flat), CHUNK), 0xFF, np.uint8), np.full(len(flat), -1)
        for allocation, root in self.shared_regions():
            offset = flat - (allocation.base & ADDRESS_MASK)
            inside = np.flatnonzero((offset >= 0) & (offset + CHUNK <= root.size))
            data[inside] = root[offset[inside, None] + np.arange(CHUNK)]
            found[inside] = allocation.base + offset[inside]
        return data.reshape(*addresses.shape, CHUNK), found.reshape(addresses.shape)

    # --- fences --------------------------------------------------------------------------------------------

    def fence(self, reach):
        """Order the current thread's accesses before and after the fence, for all threads in `reach` ("block"
        or "grid")."""
        self.context.announce_ordering("fenced", reach)
        self.yield_turn()

    def yield_turn(self):
        """Let other threads run before the current thread continues."""
        raise NotImplementedError

    # --- the log --------------------------------------------------------------------------------------------

    def log(self, address, size, site):
        """Log an access. Split it into several accesses if its size is not a power of two."""
        while self.context.log is not None and size:
            # A log entry contains log2 of the size.
            part = 1 << size.bit_length() - 1
            self.context.log.append((site << SITE_SHIFT) + (part.bit_length() - 1 << ADDRESS_BITS) + address)
            address, size = address + part, size - part

    def log_write(self, spot, site, value=None):
        """Log a store or an atomic, and the written value."""
        self.log(spot.address, len(spot.memory), site)
        if self.context.log is not None:
            self.context.values.append(value)


class OfArrays(Memory):
    """The memory of an instruction in a Python kernel, where a location is (array, index).

    frame: the frame of the kernel.
    """

    frame = None

    def __init__(self, scheduler, name):
        super().__init__(scheduler.context, name)
        self.scheduler, self.alignment = scheduler, Alignment.of(scheduler.context)

    def site(self, action):
        return self.context.sites.of_frame(self.frame, action)

    def yield_turn(self):
        self.scheduler.yield_turn(self.frame)

    def spot(self, where, index, size, multiple, site, what):
        if not isinstance(where, Array):
            raise TypeError(f"{self.name} works on arrays, got {where!r}")
        index = tuple(map(int, index if isinstance(index, tuple) else (index,)))
        # The bytes can extend over several elements of the last axis, so both ends must be in bounds.
        last = (*index[:-1], index[-1] + -(-size // where.itemsize) - 1)
        for end in (index, last):
            if len(end) != where.ndim or any(not 0 <= i < n for i, n in zip(end, where.shape)):
                self.context.refuse(site, what, where, end)
                return None
        if where.strides[-1] != where.itemsize:
            raise ValueError(
                f"{self.name} takes neighbouring elements, and those of a row of {where.name} lie"
                f" {where.strides[-1]} bytes apart"
            )
        address = where.address(index)
        if self.alignment.refuses(self.name, where.allocation, address, size, multiple, site, what):
            return None
        offset = where.offset + sum(i * stride for i, stride in zip(index, where.strides))
        return Spot(address, where.root[offset : offset + size])

    def range_spot(self, where, index, size, multiple, site, what):
        """Return the Spot of the `size` bytes of a contiguous array that begin at an element. Return None if
        the access is refused."""
        index = tuple(map(int, index if isinstance(index, tuple) else (index,)))
        first = self.spot(where, index, where.itemsize, where.itemsize, site, what)
        if first is None:
            return None
        begin = where.offset + sum(i * stride for i, stride in zip(index, where.strides))
        last = where.offset + where.itemsize * prod(where.shape)
        if not is_contiguous(where.shape, where.strides, where.itemsize):
            raise ValueError(f"{self.name} takes adjacent bytes, and {where.name} is not contiguous")
        if begin + size > last:
            beyond = (where.shape[0], *(0 for _ in where.shape[1:]))
            self.context.refuse(site, what, where, beyond)
            return None
        if self.alignment.refuses(self.name, where.allocation, first.address, size, multiple, site, what):
            return None
        return Spot(first.address, where.root[begin : begin + size])


def is_contiguous(shape, strides, itemsize):
    """Return whether the elements of an array are adjacent and in row-major order."""
    expected = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
    return all(n == 1 or stride == wanted for n, stride, wanted in zip(shape, strides, expected))
