"""The device heap of a module between launches, and the choice of each launch's heap addresses."""

import threading
import weakref
from dataclasses import dataclass, field, replace

from sim.memory.spaces import round_up, window_end
from sim.ptx.regions import HEAP_BASE

UNIT = 16  # bytes; addresses and sizes are multiples of it
GUARD = 1 << 12  # the number of guard bytes after each allocation
# The heap begins at the same address in every launch: allocations that outlive a launch keep their addresses.
BASE = HEAP_BASE
END = window_end("global") - GUARD
SPAN = 1 << 28  # bytes of addresses that each concurrent launch of another module may use
LOCK = threading.Lock()  # held while heap addresses are chosen for a launch that has not finished
HEAPS = weakref.WeakSet()  # the HeapState of each module; no two of them use the same address


@dataclass
class HeapSnapshot:
    """The part of the heap that persists after a launch.

    pieces: the live allocations, and the most recently freed ones.
    from_arguments: the addresses of the allocations that were reachable from an argument of some launch.
    next: the address for the next allocation.
    end: the end of the addresses for allocations.
    """

    pieces: list = field(default_factory=list)
    from_arguments: set = field(default_factory=set)
    next: int = BASE
    end: int = END


class HeapState:
    """The heap of a module between launches.

    `before` and `after` are its states before and after the most recent launch, `launch`.
    """

    def __init__(self):
        self.before = self.after = HeapSnapshot()
        self.launch = lambda: None  # a weak reference: a strong one would keep the launch's arguments alive
        self.running = lambda: None  # a weak reference to the unfinished launch
        HEAPS.add(self)

    def at_start(self, launch):
        """Return the heap with which a run of a launch begins. A rerun under another schedule begins with the
        same heap as the first run."""
        if launch is not self.launch():
            with LOCK:
                begin, end = self.free_addresses()
                self.after = replace(self.after, next=begin, end=end)
                self.running = weakref.ref(launch)
            return self.after
        return self.before

    def free_addresses(self):
        """Return the begin and the end of the heap addresses for the next launch, above the allocations of
        all modules.

        If few addresses are left, return the largest gap between used addresses. These are the addresses of
        unfinished launches of other modules, of live allocations, and of the freed allocations of this
        module.
        """
        heaps = list(HEAPS)
        # Unfinished launches in other threads allocate from their address `next` upwards.
        begins = [state.after.next for state in heaps if state is not self and state.running()]
        running = [(begin, begin + SPAN) for begin in begins]
        highest = max([*(end for _, end in running), *(state.after.next for state in heaps)])
        if highest < BASE + (END - BASE) // 2:
            return highest, END
        # Addresses are scarce now, so ignore the freed allocations of other modules. A use after free can
        # then go undetected.
        pieces = [p for state in heaps for p in state.after.pieces if state is self or not p.freed]
        occupied = [(piece.base, round_up(piece.end, UNIT) + GUARD) for piece in pieces]
        begin, gaps = BASE, []
        for first, end in sorted([*running, *occupied, (END, END)]):
            gaps.append((first - begin, begin))
            begin = max(begin, end)
        nbytes, begin = max(gaps)
        return begin, begin + nbytes

    def run_ended(self, launch, kept):
        """Store the heap that remains after the first run of a launch."""
        self.running = lambda: None
        if launch is not self.launch():
            self.before, self.after, self.launch = self.after, kept, weakref.ref(launch)
