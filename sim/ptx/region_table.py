"""The memory regions of a PTX launch: finds the region of an address, and checks accesses to it."""

from bisect import bisect_right
from math import prod

import numpy as np

from sim.events import CONST, GLOBAL, LOCAL, SHARED, SPACE_SHIFT, UNTYPED_POISON, Finding
from sim.memory.alignment import Alignment
from sim.memory.array import read_only_error
from sim.memory.spaces import fresh_memory
from sim.ptx.clusters import rank_error
from sim.ptx.foreign import explain_address, is_null
from sim.ptx.regions import GAP, WINDOWS, Frames, Region, whole_array

# An undefined pointer has all bits set. The second number is the largest offset, in bytes, that a kernel is
# expected to add to it.
UNDEFINED_POINTER, LARGEST_OFFSET = (1 << 64) - 1, 1 << 20


class RegionTable:
    """The regions of one launch. These are global and constant regions, the shared regions of the running
    block, and the local regions of the running thread."""

    def __init__(self, context):
        self.context, self.space = context, context.space
        self.alignment = Alignment.of(context)
        # the global and constant regions, and their base addresses, both in ascending order
        self.fixed, self.bases = [], []
        self.heap = None  # the Heap of this run
        self.slots = {SHARED: [], LOCAL: []}  # the allocations that have one copy per block or thread

    def reserve(self, name, space, nbytes, align, itemsize, shape, copies, root=None, key=None):
        """Return a new allocation.

        align: the alignment in bytes.
        itemsize: the number of bytes per element, for findings.
        shape: the shape by which findings index the elements, or None for one dimension.
        copies: the number of copies, such as one per thread.
        root: the bytes. By default, these are zeros.
        key: as in AddressSpace.add.
        """
        root = np.zeros(nbytes, np.uint8) if root is None else root
        shape = shape or (max(nbytes // itemsize, 1),)
        strides = [prod(shape[axis + 1 :]) * itemsize for axis in range(len(shape))]
        home = 0, itemsize, shape, strides
        allocation = self.space.add(name, space, root, home, copies, align=align, key=key)
        # On a GPU, only the declared alignment is guaranteed, even if the simulator's address has a larger
        # alignment.
        allocation.alignment = align
        return allocation

    def make_addressable(self, allocation):
        """Make an allocation accessible to the kernel's threads."""
        space = allocation.base >> SPACE_SHIFT
        if space in self.slots:
            self.slots[space].append(allocation)
            return
        region = Region(allocation, allocation.root)
        at = bisect_right(self.bases, region.base)
        self.bases.insert(at, region.base)
        self.fixed.insert(at, region)

    def cluster_region(self, allocation, block, shift):
        """Return the Region for a shared allocation of another block of the cluster. The addresses for it are
        higher by `shift` than those of the own block's allocation."""
        shared = self.context.thread.block.shared
        if (allocation, shift) not in shared:
            root = self.block_region(allocation, block).root
            shared[allocation, shift] = Region(allocation, root, allocation.base + shift)
        return shared[allocation, shift]

    def block_region(self, allocation, block=None):
        """Return a block's Region for a shared allocation. It is created on first use. The default is the
        running block."""
        shared = (block or self.context.thread.block).shared
        region = shared.get(allocation)
        if region is None:
            nbytes = allocation.root.size
            fresh = fresh_memory(nbytes, None, self.context.poison)
            root = np.zeros(nbytes, np.uint8) if allocation.reserved else fresh
            region = shared[allocation] = Region(allocation, root)
        return region

    def frames(self, allocation):
        """Return the running thread's Frames for a local allocation."""
        thread = self.context.thread
        frames = thread.block.shared.get((allocation, thread.linear))
        if frames is None:
            frames = thread.block.shared[allocation, thread.linear] = Frames()
        return frames

    def push_frame(self, allocation):
        """Allocate the local memory of a call in the running thread, and return its address in the local
        space.

        Raise RecursionError if too many calls are active.
        """
        frames, nbytes = self.frames(allocation), allocation.root.size
        # Memory contains the frames of all threads at one depth, then those at the next depth.
        place = frames.depth * len(self.context.thread.block.threads) + self.context.thread.linear
        if place >= allocation.copies:
            raise RecursionError(f"the stack has {frames.depth} calls, and no room for {allocation.name}")
        if frames.depth == len(frames.regions):
            base = allocation.base + place * nbytes
            frames.regions.append(Region(allocation, fresh_memory(nbytes, None), base))
        region = frames.regions[frames.depth]
        frames.depth += 1
        region.root[:] = fresh_memory(nbytes, None, self.context.local_poison)
        region.marks = bytearray(nbytes) if self.context.enabled.unwritten else None
        region.written = None if region.marks is None else np.frombuffer(region.marks, bool)
        region.origins = {}
        return region.base - WINDOWS["local"]

    def pop_frame(self, allocation):
        """Release the local memory of the returning call."""
        self.frames(allocation).depth -= 1

    def find(self, address):
        """Return the Region that contains a generic address, or None."""
        space = address >> SPACE_SHIFT
        if space in (GLOBAL, CONST):
            # Regions do not overlap. Only the last region that begins at or below the address can contain it.
            at = bisect_right(self.bases, address) - 1
            return self.fixed[at] if at >= 0 and address < self.fixed[at].end else None
        given = address
        if space == SHARED:
            block, address = self.context.thread.block.home(given)
            if block is None:
                return None
        for allocation in self.slots.get(space, ()):
            if allocation.base <= address < allocation.base + allocation.root.size * allocation.copies:
                if space == SHARED:
                    shift = given - address
                    return (
                        self.cluster_region(allocation, block, shift)
                        if shift
                        else self.block_region(allocation)
                    )
                return self.frames(allocation).find(address)
        return None

    def owner(self, space):
        """Return a function that returns the owner of the regions of a space.

        The owner is the running block, the running thread, or None. A cached region remains valid as long as
        the owner is the same.
        """
        context = self.context
        if space == "shared":
            return lambda: context.thread.block
        if space == "local":
            return lambda: context.thread
        return lambda: None

    # --- checks ---------------------------------------------------------------------------------------------

    def check_access(self, address, size, site, what, multiple=None, name="an access"):
        """Return the Region of an access to `size` bytes at a generic address. Report a disallowed access,
        and return None.

        what: the word for the access in findings, such as "read".
        multiple: the required alignment in bytes. By default, it is the size.
        name: the name of the instruction in a finding about alignment.
        """
        region = self.find(address)
        if region is None or address + size > region.end:
            self.report_outside(address, size, site, what, region)
            return None
        if self.alignment.refuses(name, region.allocation, address, size, multiple or size, site, what):
            return None
        if region.allocation.space == "heap" and not self.heap.check_access(
            region, address, size, site, what
        ):
            return None
        # Check the alignment last, so that an address outside the array is reported as out of bounds.
        if what != "read" and not region.allocation.writable:
            error = read_only_error(whole_array(self.context, region.allocation))
            error.site = site
            raise error
        return region

    def nearest(self, address):
        """Return the nearest allocation in the state space of an address, or None if none is within GAP
        bytes."""
        near = [a for a in self.space.allocations if a.base >> SPACE_SHIFT == address >> SPACE_SHIFT]
        distance = lambda a: max(a.base - address, address - a.base - a.root.size * a.copies, 0)  # noqa: E731
        found = min(near, key=distance, default=None)
        return found if found is not None and distance(found) < GAP else None

    def report_outside(self, address, size, site, what, region):
        """Report an access outside all allocations.

        The finding describes it relative to the nearest allocation, unless the address belongs to memory of
        another launch.

        region: the Region in which the access begins, or None.
        """
        if self.shared_pointers.is_tagged(address):
            return self.shared_pointers.report(address, site, what)
        if error := rank_error(self.context.thread.block, address):
            error.site = site
            raise error
        elsewhere = None if region else self.space.addresses.find(address)
        allocation = region.allocation if region else self.nearest(address)
        if elsewhere is not None or allocation is None:
            reason, fix, where = explain_address(address, elsewhere, self.heap)
            kind, message = "out-of-bounds", f"address {address:#x} is in no array{where}"
            if elsewhere is not None and elsewhere.is_freed:
                kind, message = "use-after-free", f"address {address:#x} is in memory that has been freed"
            witness = (self.context.witness(what, site),)
            # Poison is an address far from all memory, but arithmetic with it may result in an address near
            # the null pointer.
            explained = elsewhere is not None or is_null(address) and address % max(size, 4) == 0
            finding = Finding(
                kind,
                "error",
                message,
                witness,
                reason=reason,
                fix=fix,
                undefined=what != "written",
                poison=UNTYPED_POISON,
                from_poison=address >= UNDEFINED_POINTER - LARGEST_OFFSET,
                explained=explained,
            )
            self.context.findings.append(finding)
            return
        array = whole_array(self.context, allocation)
        start = allocation.base
        if allocation.copies > 1:
            start += self.context.thread.linear * allocation.root.size
            start = self.frames(allocation).base_below(address, start)
        # This is the first position of the access outside the array.
        position = address if address < start else max(address, start + allocation.root.size)
        self.context.refuse(site, what, array, ((position - start) // array.itemsize,))
