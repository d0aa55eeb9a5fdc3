"""banks: the number of wavefronts (passes over the 32 banks) per request of a warp to shared memory."""

from sim.events import ATOMIC, SHARED, Column
from sim.observers.epochs import EpochCounter


class Banks(EpochCounter):
    """A counter of bank conflicts, for the launch (`counters["banks"]`) and for each source line.

    The counters are `shared_requests`, their `wavefronts`, the `fewest_wavefronts` possible, and the worst
    conflict in `ways`. 1 means no conflict, and 32 means that the lanes are served one after another.

    Atomic additions to one word count as one wavefront per lane, although a GPU can combine some of them.
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
            "wavefronts: passes over the 32 banks of shared memory, and in parentheses the fewest possible."
            " ways: the worst bank conflict (1 means none).",
        ),
        Column("ways", ("ways",), order=31),
        Column("", ("shared_requests",)),
    )

    def epochs(self, lane, site, address, size):
        order, request = self.spec.requests(lane, site)
        # The lowest two bits of a site number are the action, which identifies atomics.
        lane, site, address, size = lane[order], site[order], address[order], size[order]
        self.count(site, request, *self.spec.wavefronts(request, lane, address, size, site & 3 == ATOMIC))
