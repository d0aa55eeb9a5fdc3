"""Happens-before between threads, beyond the barriers of a block.

Barriers order the threads of one block. Release and acquire order everything else (PTX ISA, Memory
Consistency Model):

    release   a fence, followed by an atomic that writes or by a relaxed arrival at a barrier
    acquire   an atomic on the same element that reads the released value, directly or through other atomics;
              or a relaxed wait at the barrier, followed by a fence

A release publishes all accesses performed or acquired by its thread before the fence. `threadfence_block`
publishes them to the thread's own block, and `threadfence` to the whole grid. Barriers for a part of a block
(mbarrier, named barrier) and `syncwarp` release and acquire without a fence, unless they are `.relaxed`. An
mbarrier instruction with the scope .cta neither releases to other blocks nor acquires from other blocks.

An atomic that does not write (a failed compare-and-swap) publishes nothing. An atomic of scope .cta neither
publishes to other blocks nor acquires from them. An atomic on shared memory orders only threads of its block,
because shared memory belongs to one block.

The acquiring side needs no fence here, although PTX's acquire pattern requires one. The "last block" example
in the CUDA C++ Programming Guide (Memory Fence Functions) omits it, and code that NVIDIA recommends must not
be reported as a race.
"""

from bisect import bisect_left

from sim.events import SHARED, SPACE_SHIFT
from sim.observers.clocks import Clocks
from sim.observers.phases import ANY, BLOCK, GRID, Phase

MAX_UNIONS = 256  # the maximum number of unions of clocks in the cache
MAX_PARTS = 8  # the maximum number of a thread's separate clocks before they are merged


class HappensBefore:
    """Vector clocks of all threads. They are maintained from the first event that can order accesses.

    A clock belongs to a point in the execution of a thread. It maps two kinds of keys to bounds. A block maps
    to an epoch: all accesses of the block in earlier epochs happen before this point. `(block, thread)` maps
    to a segment: all accesses of the thread up to this segment happen before this point.

    generous: whether to treat every atomic as if a grid-wide fence preceded it. Accesses ordered only in this
        mode lack a fence.
    clocks: the Clocks object to use. Orders that exchange clocks must have the same one. The default is a new
        one.
    """

    def __init__(self, generous=False, clocks=None):
        self.generous, self.clocks = generous, clocks or Clocks()
        # Whether an atomic orders the later accesses of its thread to the same element after earlier atomics
        # on this element. This is False if no thread uses the result of an atomic, because the order of the
        # atomics then depends on the schedule alone.
        self.atomics_order = True
        self.delayed = False  # whether a thread's own accesses enter its clock only at certain events
        self.active = False  # whether any event so far could order accesses
        # (block, thread) -> {source: clock acquired from this source}. A new clock from a source contains the
        # earlier clocks from it, and therefore replaces them.
        self.acquired, self.acquirers = {}, {}  # block -> the threads with an entry in `acquired`
        # block -> {thread: {reach: clocks whose union is the thread's clock at its last fence}}. The entry
        # for the key None is the union of the clocks that any thread released before the last barrier. Clocks
        # are not merged at a fence, because often all threads execute a fence, but only one of them executes
        # an atomic.
        self.released = {}
        # (element, GRID or a block) -> the clock published by atomics to all blocks or to this block
        self.published = {}
        # (block, thread, address, reach) -> the clock most recently acquired there by the thread
        self.last_acquired = {}
        self.history = {}  # (block, thread) -> (segments, the clocks of the thread after each of them)
        self.block_clocks = {}  # block -> (epochs, the clocks of all its threads after each of them)
        self.phases = {}  # phase_key of a barrier -> its Phase
        self.unfenced = {}  # (block, thread) -> the clocks of relaxed waits, which its next fence acquires
        self.issued = {}  # (block, thread, segment) -> the clocks at the issue of an operation
        self.unions = {}  # ids of clocks -> (the clocks, their union)

    def release(self, block, epoch, thread, segment, reach):
        """Save the clock of a thread at a fence. Later atomics of the thread publish this clock to the
        threads within `reach`."""
        self.active = True
        if observed := self.unfenced.pop((block, thread), None):
            self.acquire(block, thread, segment, observed)
        clocks = self.clocks_now(block, epoch, thread, segment)
        released = self.released.setdefault(block, {})
        before = released.get(thread, {}) if reach == BLOCK else {GRID: clocks}
        released[thread] = {**before, BLOCK: clocks}

    def clock(self, block, epoch, thread, segment):
        """Return the current clock of a thread, which includes its own accesses."""
        return self.clocks.merge(self.clocks_now(block, epoch, thread, segment))

    def clocks_now(self, block, epoch, thread, segment):
        """Return two clocks whose union is the current clock of a thread.

        The first clock contains everything acquired by the thread, and is shared by all threads that have
        acquired the same clocks. The second clock contains the thread's own accesses.
        """
        acquired = self.acquired.get((block, thread), {})
        parts = (*self.block_clocks.get(block, ((), ((),)))[1][-1], *acquired.values())
        union = self.union(parts)
        if len(acquired) > 1:
            self.acquired[block, thread] = {"merged": union}
        return union, {block: epoch, (block, thread): segment}

    def union(self, clocks):
        """Return the union of a tuple of clocks. Cache it, because many threads acquire the same clocks."""
        if len(clocks) <= 1:
            return clocks[0] if clocks else {}
        # A clock is never modified once it is stored, so equal ids imply equal clocks.
        key = tuple(map(id, clocks))
        if key not in self.unions:
            if len(self.unions) >= MAX_UNIONS:
                self.unions.clear()
            # Keep the clocks alive, so that their ids stay valid.
            self.unions[key] = clocks, self.clocks.merge(clocks)
        return self.unions[key][1]

    def arrive(self, block, epoch, thread, segment, phase, reach=GRID):
        """Release at a barrier for a part of a block: add the clock of the thread to the phase of the
        barrier. A relaxed arrival (`reach` is None) adds the clock of the thread's last fence."""
        self.active = True
        gathered, fences = self.phase(block, phase), self.released.get(block)
        if reach is None:
            for part in (fences[one] for one in (thread, None) if one in fences) if fences else ():
                for home, clocks in part.items():
                    gathered.of(block, home).add(clocks)
            return
        released, key = gathered.of(block, reach), (block, thread)
        if acquired := self.acquired.get(key):
            released.add(acquired.values())
            gathered.acquired[key] = acquired
        if block in self.block_clocks:
            released.add(self.block_clocks[block][1][-1])
        if not self.delayed:
            released.add_own({block: epoch, key: segment})
        if fence := fences and fences.get(thread, {}).get(GRID):
            gathered.fences.setdefault(block, []).extend(fence)

    def phase(self, block, phase):
        """Return the Phase of a barrier at which a thread of a block arrives."""
        key = phase_key(block, phase)
        found = self.phases.get(key)
        if found is None:
            found = self.phases[key] = Phase(phase, self.clocks)
            # Two phases later, every waiting thread has passed this phase.
            barrier, opened = phase
            self.phases.pop(phase_key(block, (barrier, opened - 2)), None)
        return found

    def track_copies(self, block, epoch, thread, segment, phase):
        """Record that the completion of the thread's asynchronous copies counts as an arrival at an mbarrier.

        A thread that passes the barrier acquires this thread's earlier accesses, and the completion of its
        copies.
        """
        self.arrive(block, epoch, thread, segment, phase)
        released = self.phase(block, phase).of(block, GRID)
        released.add_own({(block, copies_thread(thread)): segment})

    def issue(self, block, epoch, thread, segment):
        """Save the clock of a thread that issues an operation of the async proxy."""
        self.active = True
        self.issued[block, thread, segment] = list(self.clocks_now(block, epoch, thread, segment))

    def complete(self, block, thread, segment, phase):
        """Release at the mbarrier that counts the bytes of an operation: everything before the issue of the
        operation, and the operation's own accesses."""
        gathered = self.phase(block, phase)
        gathered.of(block, GRID).add(self.issued.pop((block, thread, segment), ()))
        # The bytes of a multicast copy arrive at each block's own mbarrier, independent of the scope of its
        # waits.
        end = dict.fromkeys(((block, thread), (block, bulk_thread(thread, phase[0]))), segment)
        gathered.of(block, ANY).add([end])

    def observe(self, block, thread, segment, moments):
        """Let a thread that waits for operations acquire their accesses.

        moments: (thread, segment) of each issue.
        """
        before = self.acquired.get((block, thread), {}).get("async", {})
        ends = {(block, other): last for other, last in moments}
        self.acquire(block, thread, segment, {"async": self.clocks.merge([before, ends])})

    def precedes_barrier(self, at):
        """Return whether a Moment happens before the last barrier of its block, and thus before any later
        access of the block."""
        clocks = self.block_clocks.get(at.block, ((), ((),)))[1][-1]
        return any(at.segment <= clock.get((at.block, at.thread), -1) for clock in clocks)

    def pass_barrier(self, block, epoch, thread, segment, phase, reach=GRID):
        """Acquire the clocks that were released to this phase of a barrier. After a relaxed wait (`reach` is
        None), only the next fence acquires these clocks."""
        gathered = self.phases.get(phase_key(block, phase))
        key, clocks, contained = (block, thread), {}, ()
        if gathered is not None:
            clocks, contained = gathered.clocks(block, reach), gathered.acquired.get(key, ())
        if reach is None:
            self.unfenced.setdefault(key, {}).update(clocks)
            return
        self.acquire(block, thread, segment, clocks, contained)
        if fences := gathered and gathered.fences.get(block):
            # These fences are valid for the later atomics of this thread, as at a block barrier.
            fences[:] = [self.clocks.merge(fences)]
            released = self.released.setdefault(block, {})
            own = released.get(thread) or released.get(None, {})
            released[thread] = {of: [self.clocks.merge([*own.get(of, ()), *fences])] for of in (GRID, BLOCK)}

    def perform_atomic(self, block, epoch, thread, segment, address, wrote, reach):
        """Acquire the clocks published by earlier atomics on this element. If the atomic wrote, publish the
        clock of the thread."""
        if self.generous:
            self.release(block, epoch, thread, segment, GRID)
        if not self.active:
            return
        element = address
        if not isinstance(address, tuple) and address >> SPACE_SHIFT == SHARED:
            element = block, address
        released, acquired = wrote and self.released.get(block), {}
        for home in (block,) if reach == BLOCK else (GRID, block):
            place, key = (element, home), (block, thread, address, home)
            clock = self.published.get(place)
            # Skip a clock that has not changed since the thread acquired it: spinning threads repeat the same
            # atomic many times.
            if clock is not None and self.last_acquired.get(key) is not clock:
                acquired[place] = clock
            if released and (clocks := clocks_released(released, thread, GRID if home == GRID else BLOCK)):
                clock = self.published[place] = self.union((clock, *clocks) if clock is not None else clocks)
            # A thread does not need to acquire a clock that it released itself.
            self.last_acquired[key] = clock
        if acquired:
            self.acquire(block, thread, segment, acquired)

    def sync_warp(self, block, threads, segment):
        """Merge the clocks of the threads that arrive at a `syncwarp`."""
        self.active = True
        # Each participant acquires the accesses of all others up to this segment.
        own = {(block, thread): segment for thread in threads}
        acquired = (part for thread in threads for part in self.thread_clocks(block, thread))
        together = self.clocks.merge([own, *acquired])
        for thread in threads:
            self.acquire(block, thread, segment, {"warp": together})
        # A fence of any participant is valid for the later atomics of all of them, as at a block barrier.
        released = self.released.get(block, {})
        fences = [released[thread] for thread in threads if thread in released]
        if len({id(fence) for fence in fences}) > 1 or 0 < len(fences) < len(threads):
            reaches = {reach for fence in fences for reach in fence}
            shared = {
                reach: [self.clocks.merge([clock for fence in fences for clock in fence.get(reach, ())])]
                for reach in reaches
            }
            released.update(dict.fromkeys(threads, shared))

    def exchange(self, block, threads, segment):
        """Do nothing: an exchange of values between lanes does not order their accesses to memory."""

    def multiply(self, block, threads, segment):
        """Do nothing: a product of a warp group does not order the accesses of its threads."""

    def sync_block(self, block, epoch):
        """Merge the clocks of the threads of a block at a block barrier.

        Every thread acquires the clocks of all others. A grid-wide fence by any thread before the barrier is
        valid for the atomics of every thread after it.
        """
        if block in self.released:
            released = self.released.pop(block)
            before = released.pop(None, {})
            clocks = [clock for part in released.values() for clock in part.get(GRID, ())]
            if clocks := (self.clocks.merge(clocks),) if clocks else before.get(GRID):
                self.released[block] = {None: {GRID: clocks}}
        keys = [(block, thread) for thread in self.acquirers.pop(block, ())]
        acquired = [part for key in keys for part in self.acquired.pop(key).values()]
        if acquired:
            epochs, before = self.block_clocks.setdefault(block, ([-1], [()]))
            epochs.append(epoch)
            before.append((self.clocks.merge([*before[-1], *acquired]),))

    def acquire(self, block, thread, segment, clocks, contained=()):
        """Merge clocks into the clock of a thread.

        clocks: {source: clock}.
        contained: {source: clock} of the acquired clocks that the new clocks contain, so that the thread can
            drop them, or ().
        """
        key = block, thread
        if before := self.acquired.get(key):
            if contained is before:
                before = {}
            elif contained:
                before = {of: clock for of, clock in before.items() if contained.get(of) is not clock}
            clocks = {**before, **clocks}
            if len(clocks) > MAX_PARTS:
                clocks = {"merged": self.union(tuple(clocks.values()))}
        else:
            self.acquirers.setdefault(block, set()).add(thread)
        self.acquired[key] = clocks
        if key not in self.history:
            self.history[key] = [], []
        segments, clocks_after = self.history[key]
        segments.append(segment)
        clocks_after.append(tuple(clocks.values()))

    def thread_clocks(self, block, thread):
        """Return the clocks whose union is the acquired clock of a thread."""
        return self.acquired.get((block, thread), {}).values()

    def threads_that_acquired(self, block, threads, segment):
        """Return the given threads of a block that have acquired a clock in `segment` or a later one."""
        last = {thread: self.history.get((block, thread), NOTHING)[0][-1:] for thread in threads}
        return [thread for thread, segments in last.items() if segments and segments[0] >= segment]

    def before(self, a, b):
        """Return whether access a happens before access b. Both objects have the attributes of a Moment."""
        block, key = a.block, (a.block, a.thread)
        for clock in self.clocks_at(b):
            if a.epoch < clock.get(block, -1) or a.segment <= clock.get(key, -1):
                return True
        return False

    def clocks_at(self, row):
        """Return the clocks of the accessing thread, and of its block, at the time of the access."""
        # The entry before position `bisect_left` is the last one recorded before the access.
        segments, clocks_after = self.history.get((row.block, row.thread), NOTHING)
        last = bisect_left(segments, row.segment)
        clocks = clocks_after[last - 1] if last else ()
        epochs, clocks_after = self.block_clocks.get(row.block, NOTHING)
        last = bisect_left(epochs, row.epoch)
        return (*clocks, *clocks_after[last - 1]) if last else clocks


NOTHING = (), ()


def clocks_released(released, thread, reach):
    """Return the clocks that the last fence of a thread released. If the thread has executed no fence since
    the last barrier, return the clocks that any thread released before this barrier.

    released: the entry of HappensBefore.released for the thread's block.
    """
    for who in (thread, None):
        if who in released and reach in released[who]:
            return released[who][reach]
    return ()


def phase_key(block, phase):
    """Return a key that identifies a phase of a barrier within the grid. It includes the block, unless the
    phase already identifies the block (of an mbarrier) or the cluster."""
    return phase if len(phase[0]) > 2 else (block, phase)


def bulk_thread(thread, barrier):
    """Return the pseudo-thread that represents the operations that a thread has issued and an mbarrier
    counts."""
    return "bulk", thread, barrier


def copies_thread(thread):
    """Return the pseudo-thread that represents the asynchronous copies of a thread in a clock."""
    return "copies", thread
