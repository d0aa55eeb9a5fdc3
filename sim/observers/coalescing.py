"""coalescing: the number of 32-byte sectors of global memory per request of a warp."""

from sim.events import GLOBAL, Column
from sim.observers.epochs import EpochCounter


class Coalescing(EpochCounter):
    """A counter of sectors, for the launch (`counters["coalescing"]`) and for each source line.

    The counters are `requests`, the `sectors` accessed, and the `fewest_sectors` possible. A request consists
    of the accesses that the lanes of a warp make when each of them executes a source location for the k-th
    time since the last barrier, as if the lanes ran in lockstep.
    """

    space = GLOBAL
    title = "coalescing"
    names = "requests", "sectors", "fewest_sectors"
    columns = (
        Column(
            "sectors (fewest)",
            ("sectors",),
            "fewest_sectors",
            20,
            "sectors: pieces of 32 bytes of global memory that warps accessed, and in parentheses the fewest"
            " possible.",
        ),
        Column("", ("requests",)),
    )

    def epochs(self, lane, site, address, size):
        order, request = self.spec.requests(lane, site)
        self.count(site[order], request, *self.spec.sectors(request, address[order], size[order]))
