"""What instructions that move some neighbouring bytes see of memory: places are (state space, address)."""

from sim.memory.transfer import Memory, Spot
from sim.ptx.regions import GENERIC, WINDOWS


class AddressMemory(Memory):
    """Of one instruction; `sites`: the numbers of its places by what is done there."""

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
