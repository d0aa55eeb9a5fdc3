"""Memory as an instruction of the table sees it: some neighbouring bytes at a time, now, or when they arrive.

A copy that is under way (PTX's cp.async) writes at some time between its issue and the wait for it. So its
store stands in the log of every epoch from the first to the last, for the tools to judge; the bytes arrive at
the wait, as late as the hardware may deliver them.
"""

import numpy as np

from sim.events import ADDRESS_BITS, SITE_SHIFT, Finding

LINE = 16  # bytes; the widest transfer, and each lies within one


class Transfer:
    """A copy under way: to where, of which bytes, by which thread, from which place in the kernel."""

    __slots__ = ("array", "place", "data", "thread", "site")

    def __init__(self, array, place, data, thread, site):
        self.array, self.place, self.data, self.thread, self.site = array, place, data, thread, site

    @property
    def address(self):
        return self.array.address(self.place)


class Memory:
    """What the running thread's instruction does with memory. `frame`: of the kernel, where it stands."""

    def __init__(self, context, name):
        self.context, self.name, self.frame = context, name, None

    @property
    def lane(self):
        """Of the running thread."""
        return self.context.thread.lane

    def read(self, array, index, size):
        """The `size` bytes (4, 8 or 16) from array[index] on, as uint8; poison where that cannot be."""
        site = self.context.site_of(self.frame, "load")
        place = self.place(array, index, size, site, "read")
        if place is None:
            return np.full(size, 0xFF, np.uint8)
        if (under_way := self.context.thread.block.under_way.get(array.address(place) // LINE)) is not None:
            self.context.findings.append(self.too_early(array, place, site, under_way))
        self.log(array.address(place), size, site)
        return bytes_at(array, place, size).copy()

    def send(self, array, index, data):
        """Write `data` (uint8) from array[index] on when it has arrived."""
        site, thread = self.context.site_of(self.frame, "store"), self.context.thread
        place = self.place(array, index, len(data), site, "written")
        if place is not None:
            transfer = Transfer(array, place, data, thread, site)
            thread.sent.append(transfer)
            thread.block.under_way[transfer.address // LINE] = transfer
            self.log_store(transfer)

    def commit(self):
        """What has been sent since the last commit is one group."""
        thread = self.context.thread
        thread.groups.append(thread.sent)
        thread.sent = []

    def receive(self, groups):
        """Wait until all groups but the newest `groups` have arrived."""
        thread = self.context.thread
        while len(thread.groups) > groups:
            for transfer in thread.groups.pop(0):
                bytes_at(transfer.array, transfer.place, len(transfer.data))[:] = transfer.data
                thread.block.under_way.pop(transfer.address // LINE, None)

    # --- places ---------------------------------------------------------------------------------------------

    def place(self, array, index, size, site, what):
        """The index of the first element of `size` bytes in one row of the array, or None where that is
        refused."""
        index = tuple(map(int, index if isinstance(index, tuple) else (index,)))
        count = size // array.itemsize
        last = (*index[:-1], index[-1] + count - 1)
        for end in (index, last):
            if len(end) != array.ndim or any(not 0 <= i < n for i, n in zip(end, array.shape)):
                self.context.refuse(site, what, array, end)
                return None
        if array.strides[-1] != array.itemsize:
            raise ValueError(
                f"{self.name} takes neighbouring elements, and those of a row of {array.name} lie"
                f" {array.strides[-1]} bytes apart"
            )
        if array.address(index) % size:
            self.context.findings.append(self.misaligned(array, index, size, site, what))
            return None
        return index

    def misaligned(self, array, index, size, site, what):
        offset = array.address(index) % size
        return Finding(
            "misaligned-address",
            "error",
            f"{self.name} takes {size} bytes at a multiple of {size}, and {element(array, index)} is {offset}"
            " beyond one",
            (self.context.witness(what, site),),
            array.name,
            index,
            reason="The GPU stops with a misaligned address.",
            fix=(
                f"begin at a column that is a multiple of {size // array.itemsize}, in rows whose length is"
                " one too"
            ),
        )

    def too_early(self, array, place, site, transfer):
        return Finding(
            "async-copy",
            "error",
            f"{self.name} reads {element(array, place)}, which is still being copied",
            (
                self.context.witness("read", site),
                self.context.witness("sent", transfer.site, transfer.thread),
            ),
            array.name,
            place,
            reason="An asynchronous copy may arrive at any time until the thread that sent it waits for it.",
            fix="wait for the copy (cp_async_wait) in the threads that sent it, then cuda.syncthreads()",
        )

    # --- the log --------------------------------------------------------------------------------------------

    def log(self, address, size, site):
        if self.context.log is not None:
            self.context.log.append((site << SITE_SHIFT) + (size.bit_length() - 1 << ADDRESS_BITS) + address)

    def log_store(self, transfer):
        self.log(transfer.address, len(transfer.data), transfer.site)
        if self.context.log is not None:
            self.context.values.append(bytes(transfer.data))


def element(array, index):
    return f"{array.name}[{', '.join(map(str, index))}]"


def bytes_at(array, place, size):
    """The bytes of an array's memory from an element on, to read or to write."""
    offset = array.offset + sum(i * stride for i, stride in zip(place, array.strides))
    return array.allocation.root[offset : offset + size]


def still_under_way(context, block):
    """A new epoch of the block has begun: what is under way may arrive in it as well."""
    if context.log is not None:
        for transfer in block.under_way.values():
            context.segment(transfer.thread)
            Memory.log_store(Memory(context, ""), transfer)
