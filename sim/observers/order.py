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
from dataclasses import replace

from sim.events import ATOMIC, LOAD, SHARED, SPACE_SHIFT, Observer

GRID, BLOCK = "grid", "block"  # the reach of a fence
COLUMNS = "thread", "segment", "position", "site", "address", "size"  # the columns of a Batch
MOST_UNIONS = 256  # unions of clocks to keep
MOST_PARTS = 8  # clocks of a thread to keep apart before they are merged


class HappensBefore:
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
        self.acquired = {}
        # block -> {thread: {reach: its clock at its last fence}}. The key None has the clocks that any thread
        # had released before the last barrier.
        self.released = {}
        # element -> {GRID or a block: the clock that atomics have published there, for all or for that block}
        self.published = {}
        # (block, thread, address, reach) -> the clock that the thread acquired there last
        self.last_acquired = {}
        self.history = {}  # (block, thread) -> (segments, the clocks held after each)
        self.block_clocks = {}  # block -> (epochs, the clocks that all its threads held after each)
        self.arrival_clocks = {}  # (block, phase of a barrier) -> the clocks of the threads that arrived
        self.unions = {}  # ids of clocks -> (the clocks, their union)

    def release(self, block, epoch, thread, segment, reach):
        """Release at a fence: remember the thread's clock for its atomics to publish, as far as the fence
        reaches."""
        self.active = True
        known = self.clock(block, epoch, thread, segment)
        released = self.released.setdefault(block, {})
        before = released.get(thread, {}) if reach == BLOCK else {GRID: known}
        released[thread] = {**before, BLOCK: known}

    def clock(self, block, epoch, thread, segment):
        """Return the current clock of a thread, its own accesses included."""
        return merge(self.clocks_now(block, epoch, thread, segment))

    def clocks_now(self, block, epoch, thread, segment):
        """Return clocks whose union is the current clock of a thread: one that threads share which acquired
        the same clocks, and its own accesses."""
        acquired = (*self.block_clocks.get(block, ((), ((),)))[1][-1], *self.thread_clocks(block, thread))
        key = tuple(map(id, acquired))
        if key not in self.unions:
            if len(self.unions) >= MOST_UNIONS:
                self.unions.clear()
            # the clocks stay alive, so that their ids stay valid
            self.unions[key] = acquired, merge(acquired)
        return self.unions[key][1], {block: epoch, (block, thread): segment}

    def arrive(self, block, epoch, thread, segment, phase):
        """Release at a barrier of some threads of the block: add the thread's clock to the barrier's
        phase."""
        self.active = True
        barrier, opened = phase
        self.arrival_clocks.pop((block, (barrier, opened - 2)), None)
        self.arrival_clocks.setdefault((block, phase), []).extend(
            self.clocks_now(block, epoch, thread, segment)
        )

    def track_copies(self, block, epoch, thread, segment, phase):
        """Let the thread's asynchronous copies arrive at an mbarrier when they complete.

        A thread that passes the barrier acquires the accesses that this thread performed before, and the
        completion of the copies that it has issued.
        """
        self.arrive(block, epoch, thread, segment, phase)
        copies = copies_thread(thread)
        self.arrival_clocks[block, phase].append({(block, copies): segment})

    def precedes_barrier(self, at):
        """Return whether a Moment was ordered before the block's last barrier, and so before all its
        threads."""
        known = self.block_clocks.get(at.block, ((), ((),)))[1][-1]
        return any(at.segment <= part.get((at.block, at.thread), -1) for part in known)

    def pass_barrier(self, block, epoch, thread, segment, phase):
        """Acquire the clocks of all threads that arrived at this phase of a barrier."""
        gathered = self.arrival_clocks.get((block, phase), [])
        gathered[:] = [merge(gathered)]
        self.acquire(block, thread, segment, {phase: gathered[0]})

    def perform_atomic(self, block, epoch, thread, segment, address, wrote, reach):
        """Acquire the clocks that earlier atomics left at this element; if the atomic wrote, publish the
        thread's own."""
        if self.generous:
            self.release(block, epoch, thread, segment, GRID)
        if not self.active:
            return
        element = (block, address) if address >> SPACE_SHIFT == SHARED else address
        handed, released = self.published.get(element, {}), self.released.get(block, {})
        homes = {block} if reach == BLOCK else {GRID, block}
        seen = {
            (element, home): handed[home]
            for home in homes & handed.keys()
            if self.last_acquired.get((block, thread, address, home)) is not handed[home]
        }
        for home in homes & handed.keys():
            self.last_acquired[block, thread, address, home] = handed[home]
        if wrote and (own := [released[who] for who in (thread, None) if who in released]):
            handed = dict(handed)
            for reach, home in ((GRID, GRID), (BLOCK, block)):
                if home in homes and (clocks := [part[reach] for part in own if reach in part]):
                    handed[home] = widen(handed.get(home, {}), clocks)
            self.published[element] = handed
        if seen:
            self.acquire(block, thread, segment, seen)

    def sync_warp(self, block, threads, segment):
        """Merge the clocks of the threads that meet at a `syncwarp`."""
        self.active = True
        own = {(block, thread): segment for thread in threads}
        together = merge([own, *(part for thread in threads for part in self.thread_clocks(block, thread))])
        for thread in threads:
            self.acquire(block, thread, segment, {"warp": together})

    def exchange(self, block, threads, segment):
        """Do nothing: an exchange of values between lanes does not order their accesses to memory."""

    def sync_block(self, block, epoch):
        """Merge the clocks of the block's threads at a block barrier.

        Every thread acquires the clocks of all of them. A grid-wide fence of any thread before the barrier
        holds for the atomics of every thread after it.
        """
        if block in self.released:
            clocks = [part[GRID] for part in self.released[block].values() if GRID in part]
            self.released[block] = {None: {GRID: merge(clocks)}} if clocks else {}
        keys = [key for key in self.acquired if key[0] == block]
        known = [part for key in keys for part in self.acquired.pop(key).values()]
        if known:
            epochs, before = self.block_clocks.setdefault(block, ([-1], [()]))
            epochs.append(epoch)
            before.append((merge([*before[-1], *known]),))

    def acquire(self, block, thread, segment, clocks):
        """Add clocks to those of a thread; `clocks` maps where each was acquired to the clock."""
        known = {**self.acquired.get((block, thread), {}), **clocks}
        if len(known) > MOST_PARTS:
            known = {"merged": merge(known.values())}
        self.acquired[block, thread] = known
        segments, held = self.history.setdefault((block, thread), ([], []))
        segments.append(segment)
        held.append(tuple(known.values()))

    def thread_clocks(self, block, thread):
        """Return the clocks whose union is the clock of a thread."""
        return self.acquired.get((block, thread), {}).values()

    def before(self, a, b):
        """Return whether access a is ordered before access b; each has the fields of a Moment."""
        return any(
            a.epoch < known.get(a.block, -1) or a.segment <= known.get((a.block, a.thread), -1)
            for known in self.clocks_at(b)
        )

    def clocks_at(self, row):
        """Yield the clocks that the thread of an access had at that time: its own, and those of its block."""
        for (moments, held), now in (
            (self.history.get((row.block, row.thread), NOTHING), row.segment),
            (self.block_clocks.get(row.block, NOTHING), row.epoch),
        ):
            if last := bisect_left(moments, now):
                yield from held[last - 1]


class Invalidation(HappensBefore):
    """The happens-before order of a kernel that invalidates mbarriers.

    An arrival, or a test of a phase, is complete when its result is there. So a lane that votes or matches
    afterwards has done with the barrier, and the lane that gets the result may invalidate it: the destructor
    of cuda::pipeline relies on that. Plain accesses to memory are not ordered by such an exchange.
    """

    def __init__(self, context):
        super().__init__()
        self.context, self.performed = context, HappensBefore()

    def exchange(self, block, threads, segment):
        self.performed.sync_warp(block, threads, segment)

    def before(self, a, b):
        if super().before(a, b):
            return True
        return self.is_invalidation(a, b) and self.performed.before(a, b)

    def is_invalidation(self, a, b):
        """Return whether the access b invalidates an mbarrier that the access a used."""
        return b.segment in self.context.invalidating and a.site & 3 == ATOMIC


def forwarded(name):
    """Return a method of Invalidation that passes an event to both of its orders."""

    def event(self, *facts):
        getattr(HappensBefore, name)(self, *facts)
        getattr(self.performed, name)(*facts)

    return event


for _name in (
    "release",
    "arrive",
    "track_copies",
    "pass_barrier",
    "perform_atomic",
    "sync_warp",
    "sync_block",
):
    setattr(Invalidation, _name, forwarded(_name))


class OrderingObserver(Observer):
    """An observer that keeps an `order` (a HappensBefore) up to date, and examines the accesses of a block
    when an epoch ends. It ignores local memory. Override `epoch_ended`."""

    local = False

    def launch_started(self, context):
        self.context, self.order = context, Invalidation(context) if context.invalidates else HappensBefore()
        if not context.invalidates:
            context.listeners["warp_exchanged"].remove(self.warp_exchanged)
        self.epoch = {}  # block -> its batches since the last barrier
        if context.ticking and not context.synchronizes:  # atomics cannot order anything
            context.listeners["atomic_done"].remove(self.atomic_done)

    def accesses(self, batch):
        self.epoch.setdefault(batch.block, []).append(without_reserved(batch, self.context.space))

    def barrier_opened(self, block, epoch):
        self.record_event("sync_block", block, epoch)
        return self.epoch_ended(block)

    def block_ended(self, block, epoch):
        return self.epoch_ended(block)

    def record_event(self, name, block, *facts):
        getattr(self.order, name)(block, *facts)

    def fenced(self, at, reach):
        self.record_event("release", *at, reach)

    def atomic_done(self, at, address, wrote, reach):
        self.record_event("perform_atomic", *at, address, wrote, reach)

    def warp_synchronized(self, block, threads, segment):
        self.record_event("sync_warp", block, threads, segment)

    def warp_exchanged(self, block, threads, segment):
        self.record_event("exchange", block, threads, segment)

    def copies_tracked(self, at, phase, copies):
        self.record_event("track_copies", *at, phase)

    def arrived(self, at, phase):
        self.record_event("arrive", *at, phase)

    def passed(self, at, phase):
        self.record_event("pass_barrier", *at, phase)


NOTHING = (), ()


def copies_thread(thread):
    """Return the pseudo-thread that represents a thread's asynchronous copies in a clock."""
    return "copies", thread


def widen(known, clocks):
    """Return the union of a clock and several others. If they add nothing, return the same dict `known`:
    while threads spin, this keeps an identity check sufficient."""
    whole = merge([known, *clocks])
    return known if known == whole else whole


def merge(clocks):
    """Return the union of several clocks: the largest bound of each key."""
    distinct = sorted({id(part): part for part in clocks}.values(), key=len)
    if len(distinct) < 2:
        return distinct[0] if distinct else {}
    result = dict(distinct.pop())
    for part in distinct:
        for key, bound in part.items():
            if bound > result.get(key, -1):
                result[key] = bound
    return result


def without_reserved(batch, space):
    """Return a batch without the accesses to memory that the system reserves for libraries. Cooperative
    groups let all lanes store one value there, and order lanes by shuffles. Neither is a fault of the kernel.
    """
    for allocation in space.allocations:
        if allocation.reserved:
            offset = batch.address - allocation.base
            kept = (offset < 0) | (offset >= allocation.root.size)
            values = [value for value, keeps in zip(batch.values, kept[batch.action != LOAD]) if keeps]
            columns = {name: getattr(batch, name)[kept] for name in COLUMNS}
            batch = replace(batch, **columns, values=values)
    return batch
