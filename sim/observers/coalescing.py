"""coalescing: into how many sectors of 32 bytes a warp's lanes reach in global memory together."""

from sim.events import GLOBAL, Column
from sim.observers.epochs import EpochCounter


class Coalescing(EpochCounter):
    """Counts, for the launch (`counters["coalescing"]`) and for each source line: `requests`, `sectors`
    touched, and the `fewest_sectors` possible.

    A request is the k-th execution, since the last barrier, of one place in the source by each lane of a
    warp: what the lanes would do in lockstep.
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
            "sectors: pieces of 32 bytes of global memory that warps touched, and the fewest possible.",
        ),
        Column("", ("requests",)),
    )

    def epochs(self, lane, site, address, size):
        order, request = self.spec.requests(lane, site)
        self.count(site[order], request, *self.spec.sectors(request, address[order], size[order]))
