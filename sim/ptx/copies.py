"""Memory accesses by cp.async, mbarrier, ldmatrix and wmma, which touch several adjacent bytes at once. An
element is identified by (state space, address)."""

from sim.memory.transfer import Memory, Spot
from sim.ptx.regions import GENERIC, WINDOWS


class AddressMemory(Memory):
    """The memory that one instruction accesses by addresses.

    sites: {action: number of the site}, with actions such as "load".
    """

    def __init__(self, memory, name, sites):
        super().__init__(memory.context, name)
        self.regions, self.sites = memory, sites

    def site(self, action):
        return self.sites[action]

    def yield_turn(self):
        self.regions.yield_turn()

    def spot(self, where, index, size, multiple, site, what):
        address = index + (WINDOWS[where] if where != GENERIC else 0)
        region = self.regions.check_access(address, size, site, what, multiple, self.name)
        if region is None:
            return None
        return Spot(address, region.root[address - region.base : address - region.base + size])
