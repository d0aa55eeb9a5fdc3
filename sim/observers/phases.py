"""The clocks that threads release at a barrier for a part of a block."""

GRID, BLOCK, ANY = "grid", "block", "any scope"  # the reach of a fence or of a release


class Released:
    """The clocks that the threads of a block release to one phase of a barrier and to the threads within one
    reach.

    clocks: id -> a clock that a thread has acquired. Usually, many threads have acquired the same clocks.
    entries: the clock of the threads' own accesses.
    merge: the function that returns the union of clocks.
    """

    def __init__(self, merge):
        self.merge, self.clocks, self.entries = merge, {}, {}
        self.union = None  # the cached union of all clocks, or None after a clock was added

    def add(self, clocks):
        """Add acquired clocks."""
        self.union = None
        for clock in clocks:
            self.clocks[id(clock)] = clock

    def add_own(self, clock):
        """Add a clock of a thread's own accesses. Its entries replace older entries."""
        self.union = None
        self.entries.update(clock)

    def clock(self):
        """Return the union of all clocks. All threads that pass the barrier share this object."""
        if self.union is None:
            self.union = self.merge([*self.clocks.values(), self.entries])
            self.clocks, self.entries = {id(self.union): self.union}, {}
        return self.union


class Phase:
    """The clocks that threads release and acquire in one phase of a barrier.

    key: identifies the phase.
    clocks: the Clocks of the launch.
    released: (block, reach) -> Released.
    fences: block -> the clocks of the grid-wide fences before the arrivals of its threads.
    acquired: (block, thread) -> {source: clock that the thread had acquired when it arrived}.
    visible: (block, reach) -> the result of `clocks`, until another clock is released.
    """

    def __init__(self, key, clocks):
        self.key, self.merge = key, clocks.merge
        self.released, self.fences, self.acquired, self.visible = {}, {}, {}, {}

    def of(self, block, reach):
        """Return the Released of a block for a reach, so that the caller can add clocks."""
        if self.visible:
            self.visible = {}
        key = block, reach
        if key not in self.released:
            self.released[key] = Released(self.merge)
        return self.released[key]

    def clocks(self, block, reach):
        """Return {source: clock} for everything that a thread of a block acquires. All such threads share the
        result, which must not be modified."""
        key = block, reach
        if key not in self.visible:
            self.visible[key] = {
                (self.key, home, within): released.clock()
                for (home, within), released in self.released.items()
                if home == block or within == ANY or within == GRID and reach != BLOCK
            }
        return self.visible[key]
