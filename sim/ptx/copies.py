"""Memory accesses of cp.async, mbarrier, ldmatrix and wmma. Each access covers several adjacent bytes. An
element is identified by (state space, address)."""

from contextlib import contextmanager

from sim.events import ADDRESS_BITS, SHARED, SPACE_SHIFT
from sim.isa.invalid import InvalidOperand
from sim.memory.transfer import Memory, Spot
from sim.nouns import plural
from sim.ptx.regions import GENERIC, WINDOWS
from sim.sites import RANK_SHIFT, local_address


class AddressMemory(Memory):
    """The memory operations of a single PTX instruction. Its operands are addresses instead of arrays and
    indices.

    sites: {action: site number}. An action is a word such as "load".
    """

    def __init__(self, memory, name, sites):
        super().__init__(memory.context, name)
        self.regions, self.sites = memory, sites
        self.recent = {}  # state space -> (block, begin, end, alignment, Region) of a recent access
        self.shift = 0  # offset of addresses in shared memory, to access another block of the cluster

    def site(self, action):
        """Return the site number for an action of the instruction."""
        return self.sites[action]

    def ranks(self, mask):
        """Return the ranks whose bits are set in a mask. Raise InvalidOperand for ranks outside the
        cluster."""
        ranks, size = [rank for rank in range(16) if mask >> rank & 1], len(self.context.thread.block.cluster)
        if not ranks or ranks[-1] >= size:
            raise InvalidOperand(
                f"{self.name} has the mask {mask:#x} in a cluster of {plural(size, 'block')}",
                f"Bit i of the mask stands for the block of rank i, and the ranks are 0 to {size - 1}.",
                f"set only bits of ranks that exist, at most {(1 << size) - 1:#x}, and at least one",
            )
        return ranks

    @contextmanager
    def in_block(self, rank):
        """Apply addresses in shared memory to the block with this rank in the cluster."""
        block = self.context.thread.block
        self.shift = 0 if block.cluster[rank] is block else rank + 1 << RANK_SHIFT
        yield
        self.shift = 0

    def yield_turn(self):
        """Let other threads run before the current thread continues."""
        self.regions.scheduler.yield_turn(self.regions.place)

    def suspend(self, barrier):
        self.regions.scheduler.park(barrier, self.regions.place)

    def locate(self, where, index, site, what):
        # The checks of an address always have the same result, so each block performs them once.
        located, key = self.context.thread.block.located, (where, index, self.shift)
        if key not in located:
            found = super().locate(where, index, site, what)
            if found is None or self.regions.find(found[2]).allocation.alignment % 8:
                return found
            located[key] = found
        return located[key]

    def spot(self, where, index, size, multiple, site, what):
        """Return the Spot of `size` bytes at an address in a state space, or None if the access was refused.

        A refused access is reported.

        where: the state space.
        index: the address within it.
        multiple: the alignment in bytes that the instruction requires.
        what: the word for the access in findings, such as "read".
        """
        address = index + (WINDOWS[where] if where != GENERIC else 0)
        if where == GENERIC and address >> ADDRESS_BITS:
            address = self.regions.shared_pointers.strip(address, site, what)
        if self.shift and address >> SPACE_SHIFT == SHARED:
            address = local_address(address) + self.shift
        region = self.region(where, address, size, multiple, site, what)
        if region is None:
            return None
        return Spot(address, region.root[address - region.base : address - region.base + size])

    def region(self, where, address, size, multiple, site, what):
        """Return the Region of an access, or None if it is refused.

        The last Region is cached, because the next access is likely to be in it too.
        """
        block = self.context.thread.block
        if recent := self.recent.get(where):
            owner, begin, end, alignment, region = recent
            inside = begin <= address <= end - size and owner is block
            if inside and not (address % multiple or alignment % multiple):
                return region
        region = self.regions.check_access(address, size, site, what, multiple, self.name)
        if region is None:
            return None
        allocation = region.allocation
        # Regions of local and heap memory are not cached, because a local region belongs to one thread, and a
        # thread can free a heap region.
        if allocation.space in ("global", "shared") and allocation.writable:
            self.recent[where] = block, region.base, region.end, allocation.alignment, region
        return region

    def shared_regions(self):
        """Yield (allocation, bytes) of the current block's shared memory."""
        for allocation in self.regions.slots[SHARED]:
            yield allocation, self.regions.block_region(allocation).root
