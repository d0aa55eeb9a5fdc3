"""Coverage of a kernel: the accesses in its source that a run has executed."""

from sim.sites import SITES


class Coverage:
    """The accesses to global and shared memory in a kernel's source that a run has not executed yet.

    numbers: the numbers of their sites.
    """

    def __init__(self, numbers):
        self.seen, self.left = set(), set(map(key_of, numbers))

    def add(self, sites):
        """Remove the sites of logged accesses, given as an array of their numbers."""
        new = set(sites.tolist()) - self.seen
        self.seen |= new
        self.left -= set(map(key_of, new))


def key_of(number):
    """Return a key that identifies the place of an access in the source, and its action.

    An atomic load and a plain load have different sites, and only one of them is logged.
    """
    site = SITES[number]
    return site.function, site.line, site.column, site.action.split()[-1]
