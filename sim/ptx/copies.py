"""Memory accesses of cp.async, mbarrier, ldmatrix and wmma. Each accesses several adjacent bytes. An element
is identified by (state space, address)."""

from sim.events import SHARED
from sim.memory.transfer import Memory, Spot
from sim.ptx.regions import GENERIC, WINDOWS


class AddressMemory(Memory):
    """Memory as seen by a single PTX instruction, whose operands are addresses instead of arrays and indices.

    sites: {action: site number}. An action is a word such as "load".
    """

    def __init__(self, memory, name, sites):
        super().__init__(memory.context, name)
        self.regions, self.sites = memory, sites

    def site(self, action):
        """Return the site number for an action of the instruction."""
        return self.sites[action]

    def yield_turn(self):
        """Let other threads run before the current thread continues."""
        self.regions.yield_turn()

    def spot(self, where, index, size, multiple, site, what):
        """Return the Spot of `size` bytes at an address in a state space, or None if the access was refused.

        A refused access is reported.

        where: the state space.
        index: the address within it.
        multiple: the alignment in bytes that the instruction requires.
        what: the word for the access in findings, such as "read".
        """
        address = index + (WINDOWS[where] if where != GENERIC else 0)
        region = self.regions.check_access(address, size, site, what, multiple, self.name)
        if region is None:
            return None
        return Spot(address, region.root[address - region.base : address - region.base + size])

    def shared_regions(self):
        """Yield (allocation, bytes) of the current block's shared memory."""
        for allocation in self.regions.slots[SHARED]:
            yield allocation, self.regions.block_region(allocation).root
