"""banks: how many wavefronts shared memory needs for the lanes of a warp that access it together."""

from sim.events import ATOMIC, SHARED, Column
from sim.observers.epochs import EpochCounter


class Banks(EpochCounter):
    """Counts, for the launch (`counters["banks"]`) and for each source line: `shared_requests`, the
    `wavefronts` they took, the `fewest_wavefronts` possible, and the worst `ways` of conflict (1: none; 32:
    all lanes one after another).

    Lanes that add atomically to one word are counted one wavefront each; a GPU may combine some of them.
    """

    space = SHARED
    title = "banks"
    names = "shared_requests", "wavefronts", "fewest_wavefronts", "ways"
    worst = ("ways",)
    columns = (
        Column(
            "wavefronts (fewest)",
            ("wavefronts",),
            "fewest_wavefronts",
            30,
            "wavefronts: how often shared memory had to serve, the fewest possible, and the worst ways of a"
            " bank conflict.",
        ),
        Column("ways", ("ways",), order=31),
        Column("", ("shared_requests",)),
    )

    def epochs(self, lane, site, address, size):
        order, request = self.spec.requests(lane, site)
        lane, site, address, size = lane[order], site[order], address[order], size[order]
        self.count(site, request, *self.spec.wavefronts(request, lane, address, size, site & 3 == ATOMIC))
