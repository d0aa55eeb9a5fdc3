"""What instructions that move some neighbouring bytes see of memory: places are (state space, address)."""

from sim.memory.transfer import Memory, Spot
from sim.ptx.regions import GENERIC, WINDOWS


class OfAddresses(Memory):
    """Of one instruction; `sites`: the numbers of its places by what is done there."""

    def __init__(self, memory, name, sites):
        super().__init__(memory.context, name)
        self.regions, self.sites = memory, sites

    def site(self, action):
        return self.sites[action]

    def turn(self):
        self.regions.turn()

    def spot(self, where, index, size, multiple, site, what):
        address = index + (WINDOWS[where] if where != GENERIC else 0)
        region = self.regions.find(address)
        if region is None or address + size > region.end:
            self.regions.outside(address, size, site, what, region)
            return None
        if address % multiple:
            self.context.findings.append(self.misaligned(address, size, multiple, site, what))
            return None
        self.regions.luck.look(region.allocation, address, multiple, site, what)
        return Spot(address, region.root[address - region.base : address - region.base + size])
