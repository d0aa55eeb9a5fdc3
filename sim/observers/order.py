"""Happens-before between threads, other than by block barriers.

Barriers order the threads of one block. Release and acquire order everything else (PTX ISA, Memory
Consistency Model):

    release   a fence, followed by an atomic that writes
    acquire   an atomic on the same element that reads the released value, directly or through other
              atomics in between

A release publishes every access that its thread performed, or had acquired, before the fence: to its own
block after `threadfence_block`, to the whole grid after `threadfence`. Barriers of some threads of a block
(mbarrier, named barrier) and `syncwarp` release and acquire without a fence.

An atomic that does not write (a failed compare-and-swap) publishes nothing. An atomic of scope .cta neither
publishes to other blocks nor acquires from them. An atomic on shared memory orders only the threads of its
block, because the memory belongs to that block.

The acquiring side needs no fence here, although PTX's acquire pattern has one. The "last block" example of
the CUDA C++ Programming Guide (Memory Fence Functions) omits it, and code that NVIDIA recommends must not be
reported as a race.
"""

from bisect import bisect_left

from sim.events import SHARED, SPACE_SHIFT, Observer

GRID, BLOCK = "grid", "block"  # the reach of a fence
MOST_PARTS = 8  # clocks of a thread to keep apart before they are merged


class Order:
    """The vector clocks of all threads, updated only once something can order accesses.

    A clock is a dict. It maps `block` to the epoch before which all accesses of that block are ordered before
    now, and `(block, thread)` to the last segment of that thread that is.

    generous: treat every atomic as if a grid-wide fence preceded it. Accesses that are ordered only in this
    mode lack a fence.
    """

    def __init__(self, generous=False):
        self.generous = generous
        self.active = False  # whether any event so far could order accesses
        # (block, thread) -> {where it was acquired: clock}. Each new clock from one place contains the
        # earlier ones from there, so it replaces them.
        self.known = {}
        # block -> {thread: {reach: its clock at its last fence}}. The key None has the clocks that any thread
        # had released before the last barrier.
        self.released = {}
        # element -> {GRID or a block: the clock that atomics have published there, for all or for that block}
        self.handed = {}
        self.seen = {}  # (block, thread, address, reach) -> the clock that the thread acquired there last
        self.history = {}  # (block, thread) -> (segments, the clocks held after each)
        self.of_block = {}  # block -> (epochs, the clocks that all its threads held after each)
        self.gathered = {}  # (block, phase of a barrier) -> the clocks of the threads that arrived

    def fenced(self, block, epoch, thread, segment, reach):
        """Release at a fence: remember the thread's clock for its atomics to publish, as far as the fence
        reaches."""
        self.active = True
        known = self.now(block, epoch, thread, segment)
        released = self.released.setdefault(block, {})
        before = released.get(thread, {}) if reach == BLOCK else {GRID: known}
        released[thread] = {**before, BLOCK: known}

    def now(self, block, epoch, thread, segment):
        """Return the current clock of a thread, its own accesses included."""
        of_block = self.of_block.get(block, ((), ((),)))[1][-1]
        return merged([*of_block, *self.parts(block, thread), {block: epoch, (block, thread): segment}])

    def arrived(self, block, epoch, thread, segment, phase):
        """Release at a barrier of some threads of the block: add the thread's clock to the barrier's
        phase."""
        self.active = True
        barrier, opened = phase
        self.gathered.pop((block, (barrier, opened - 2)), None)
        self.gathered.setdefault((block, phase), []).append(self.now(block, epoch, thread, segment))

    def tracked(self, block, epoch, thread, segment, phase):
        """Let the thread's asynchronous copies arrive at an mbarrier when they complete.

        A thread that passes the barrier acquires the accesses that this thread performed before, and the
        completion of the copies that it has issued.
        """
        self.arrived(block, epoch, thread, segment, phase)
        copies = copies_of(thread)
        self.gathered[block, phase].append({(block, copies): segment})

    def all_know(self, at):
        """Return whether a Moment was ordered before the block's last barrier, and so before all its
        threads."""
        known = self.of_block.get(at.block, ((), ((),)))[1][-1]
        return any(at.segment <= part.get((at.block, at.thread), -1) for part in known)

    def passed(self, block, epoch, thread, segment, phase):
        """Acquire the clocks of all threads that arrived at this phase of a barrier."""
        gathered = self.gathered.get((block, phase), [])
        gathered[:] = [merged(gathered)]
        self.learn(block, thread, segment, {phase: gathered[0]})

    def atomic(self, block, epoch, thread, segment, address, wrote, reach):
        """Acquire the clocks that earlier atomics left at this element; if the atomic wrote, publish the
        thread's own."""
        if self.generous:
            self.fenced(block, epoch, thread, segment, GRID)
        if not self.active:
            return
        element = (block, address) if address >> SPACE_SHIFT == SHARED else address
        handed, released = self.handed.get(element, {}), self.released.get(block, {})
        homes = {block} if reach == BLOCK else {GRID, block}
        seen = {
            (element, home): handed[home]
            for home in homes & handed.keys()
            if self.seen.get((block, thread, address, home)) is not handed[home]
        }
        for home in homes & handed.keys():
            self.seen[block, thread, address, home] = handed[home]
        if wrote and (own := [released[who] for who in (thread, None) if who in released]):
            handed = dict(handed)
            for reach, home in ((GRID, GRID), (BLOCK, block)):
                if home in homes and (parts := [part[reach] for part in own if reach in part]):
                    handed[home] = widened(handed.get(home, {}), parts)
            self.handed[element] = handed
        if seen:
            self.learn(block, thread, segment, seen)

    def warp(self, block, threads, segment):
        """Merge the clocks of the threads that meet at a `syncwarp`."""
        self.active = True
        own = {(block, thread): segment for thread in threads}
        together = merged([own, *(part for thread in threads for part in self.parts(block, thread))])
        for thread in threads:
            self.learn(block, thread, segment, {"warp": together})

    def barrier(self, block, epoch):
        """Merge the clocks of the block's threads at a block barrier.

        Every thread acquires the clocks of all of them. A grid-wide fence of any thread before the barrier
        holds for the atomics of every thread after it.
        """
        if block in self.released:
            parts = [part[GRID] for part in self.released[block].values() if GRID in part]
            self.released[block] = {None: {GRID: merged(parts)}} if parts else {}
        known = [part for key in list(self.known) if key[0] == block for part in self.known.pop(key).values()]
        if known:
            epochs, before = self.of_block.setdefault(block, ([-1], [()]))
            epochs.append(epoch)
            before.append((merged([*before[-1], *known]),))

    def learn(self, block, thread, segment, knowledge):
        """Add clocks to those of a thread; `knowledge` maps where each was acquired to the clock."""
        known = {**self.known.get((block, thread), {}), **knowledge}
        if len(known) > MOST_PARTS:
            known = {"merged": merged(known.values())}
        self.known[block, thread] = known
        segments, held = self.history.setdefault((block, thread), ([], []))
        segments.append(segment)
        held.append(tuple(known.values()))

    def parts(self, block, thread):
        """Return the clocks whose union is the clock of a thread."""
        return self.known.get((block, thread), {}).values()

    def before(self, a, b):
        """Return whether access a is ordered before access b; each has the fields of a Moment."""
        return any(
            a.epoch < known.get(a.block, -1) or a.segment <= known.get((a.block, a.thread), -1)
            for known in self.knowledge(b)
        )

    def knowledge(self, row):
        """Yield the clocks that the thread of an access had at that time: its own, and those of its block."""
        for (moments, held), now in (
            (self.history.get((row.block, row.thread), NOTHING), row.segment),
            (self.of_block.get(row.block, NOTHING), row.epoch),
        ):
            if last := bisect_left(moments, now):
                yield from held[last - 1]


class Ordering(Observer):
    """An observer that keeps an `order` (an Order) up to date, and examines the accesses of a block when
    an epoch ends. It ignores local memory. Override `epoch_ended`."""

    local = False

    def launch_started(self, context):
        self.context, self.order = context, Order()
        self.epoch = {}  # block -> its batches since the last barrier
        if context.ticking and not context.synchronizes:  # atomics cannot order anything
            context.listeners["atomic_done"].remove(self.atomic_done)

    def accesses(self, batch):
        self.epoch.setdefault(batch.block, []).append(batch)

    def barrier_opened(self, block, epoch):
        self.heard("barrier", block, epoch)
        return self.epoch_ended(block)

    def block_ended(self, block, epoch):
        return self.epoch_ended(block)

    def heard(self, name, block, *facts):
        getattr(self.order, name)(block, *facts)

    def fenced(self, at, reach):
        self.heard("fenced", *at, reach)

    def atomic_done(self, at, address, wrote, reach):
        self.heard("atomic", *at, address, wrote, reach)

    def warp_synchronized(self, block, threads, segment):
        self.heard("warp", block, threads, segment)

    def copies_tracked(self, at, phase, copies):
        self.heard("tracked", *at, phase)

    def arrived(self, at, phase):
        self.heard("arrived", *at, phase)

    def passed(self, at, phase):
        self.heard("passed", *at, phase)


NOTHING = (), ()


def copies_of(thread):
    """Return the pseudo-thread that represents a thread's asynchronous copies in a clock."""
    return "copies", thread


def widened(known, parts):
    """Return the union of a clock and several others. If they add nothing, return the same dict `known`:
    while threads spin, this keeps an identity check sufficient."""
    whole = merged([known, *parts])
    return known if known == whole else whole


def merged(parts):
    """Return the union of several clocks: the largest bound of each key."""
    result = {}
    for part in {id(part): part for part in parts}.values():
        for key, bound in part.items():
            if bound > result.get(key, -1):
                result[key] = bound
    return result
