"""The memory model: which accesses of different threads the program puts in order, other than by barriers of
their block.

A release is a fence and then an atomic that writes; an acquire is an atomic on the same element that sees
what the release left there, itself or through the atomics in between (PTX ISA, Memory Consistency Model).
What a thread released is all that it knew and did up to its fence: for its block after `threadfence_block`,
for all after `threadfence`. An atomic that writes nothing (a compare-and-swap that fails) releases nothing,
one of scope .cta hands nothing to other blocks and takes nothing from them, and shared memory is each block's
own. On the acquiring side no fence is asked for, as in the "last block"
example of the CUDA C++ Programming Guide (Memory Fence Functions).
"""

from bisect import bisect_left

from sim.events import SHARED, SPACE_SHIFT, Observer

GRID, BLOCK = "grid", "block"  # how far a fence reaches
MOST_PARTS = 8  # pieces of knowledge that are not merged before a fence needs it


class Order:
    """Who knows of whose accesses. Knowledge is a dict: block -> all its accesses in epochs before that one;
    (block, thread) -> its accesses up to that segment.

    `generous`: as if a fence that reaches the whole grid stood before every atomic. What is in order only
        then lacks a fence.
    """

    def __init__(self, generous=False):
        self.generous = generous
        self.active = False  # whether anything has happened that could order accesses
        # (block, thread) -> {where it was learned: knowledge}; what is learned at one place contains what was
        # learned there before
        self.known = {}
        # block -> {thread: {reach: knowledge at its last fence}; None: what all threads had released before
        # the last barrier}
        self.released = {}
        # element -> {GRID, or a block: what atomics have left there for all, or for that block}
        self.handed = {}
        self.seen = {}  # (block, thread, address, reach) -> what its thread has learned there last
        self.history = {}  # (block, thread) -> (segments after which it held, knowledge)
        self.of_block = {}  # block -> (epochs after which all its threads knew, knowledge)
        # (block, phase of a barrier of a part) -> what those knew who came
        self.gathered = {}

    def fenced(self, block, epoch, thread, segment, reach):
        self.active = True
        known = self.now(block, epoch, thread, segment)
        released = self.released.setdefault(block, {})
        before = released.get(thread, {}) if reach == BLOCK else {GRID: known}
        released[thread] = {**before, BLOCK: known}

    def now(self, block, epoch, thread, segment):
        """All that a thread knows of and has done."""
        of_block = self.of_block.get(block, ((), ((),)))[1][-1]
        return merged([*of_block, *self.parts(block, thread), {block: epoch, (block, thread): segment}])

    def arrived(self, block, epoch, thread, segment, phase):
        """A thread comes to a barrier of a part of its block."""
        self.active = True
        barrier, opened = phase
        self.gathered.pop((block, (barrier, opened - 2)), None)
        self.gathered.setdefault((block, phase), []).append(self.now(block, epoch, thread, segment))

    def tracked(self, block, epoch, thread, segment, phase):
        """The thread's copies arrive at the barrier by themselves: who passes it, knows of what the thread
        did before, and that its copies up to now are complete."""
        self.arrived(block, epoch, thread, segment, phase)
        copies = copies_of(thread)
        self.gathered[block, phase].append({(block, copies): segment})

    def all_know(self, at):
        """Whether all threads of the block know of a Moment since its last barrier."""
        known = self.of_block.get(at.block, ((), ((),)))[1][-1]
        return any(at.segment <= part.get((at.block, at.thread), -1) for part in known)

    def passed(self, block, epoch, thread, segment, phase):
        """It knows that all have come, and of what they did before."""
        gathered = self.gathered.get((block, phase), [])
        gathered[:] = [merged(gathered)]
        self.learn(block, thread, segment, {phase: gathered[0]})

    def atomic(self, block, epoch, thread, segment, address, wrote, reach):
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
        self.active = True
        own = {(block, thread): segment for thread in threads}
        together = merged([own, *(part for thread in threads for part in self.parts(block, thread))])
        for thread in threads:
            self.learn(block, thread, segment, {"warp": together})

    def barrier(self, block, epoch):
        """What any thread of the block knew, all know in the next epoch; what any thread has released by a
        fence, every thread's atomics hand on."""
        if block in self.released:
            parts = [part[GRID] for part in self.released[block].values() if GRID in part]
            self.released[block] = {None: {GRID: merged(parts)}} if parts else {}
        known = [part for key in list(self.known) if key[0] == block for part in self.known.pop(key).values()]
        if known:
            epochs, before = self.of_block.setdefault(block, ([-1], [()]))
            epochs.append(epoch)
            before.append((merged([*before[-1], *known]),))

    def learn(self, block, thread, segment, knowledge):
        """`knowledge`: where it was learned -> what."""
        known = {**self.known.get((block, thread), {}), **knowledge}
        if len(known) > MOST_PARTS:
            known = {"merged": merged(known.values())}
        self.known[block, thread] = known
        segments, held = self.history.setdefault((block, thread), ([], []))
        segments.append(segment)
        held.append(tuple(known.values()))

    def parts(self, block, thread):
        """The pieces of which the knowledge of a thread consists."""
        return self.known.get((block, thread), {}).values()

    def before(self, a, b):
        """Whether the thread of access b knew then of access a; both are like a Moment."""
        return any(
            a.epoch < known.get(a.block, -1) or a.segment <= known.get((a.block, a.thread), -1)
            for known in self.knowledge(b)
        )

    def knowledge(self, row):
        """What the thread of an access knew then: of its own, and of its block's."""
        for (moments, held), now in (
            (self.history.get((row.block, row.thread), NOTHING), row.segment),
            (self.of_block.get(row.block, NOTHING), row.epoch),
        ):
            if last := bisect_left(moments, now):
                yield from held[last - 1]


class Ordering(Observer):
    """A tool whose `order`, an Order, hears of all that may put accesses in order, and which looks at a
    block's accesses, but those to local memory, when an epoch ends: override `epoch_ended`."""

    local = False

    def launch_started(self, context):
        self.context, self.order = context, Order()
        self.epoch = {}  # block -> batches since its last barrier
        if context.ticking and not context.synchronizes:  # nobody learns by an atomic, and nobody fences
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
    """Return what stands for a thread's asynchronous copies where threads do."""
    return "copies", thread


def widened(known, parts):
    """What is known and several pieces more; `known` itself where they add nothing, as while threads spin."""
    whole = merged([known, *parts])
    return known if known == whole else whole


def merged(parts):
    """The union of several pieces of knowledge."""
    result = {}
    for part in {id(part): part for part in parts}.values():
        for key, bound in part.items():
            if bound > result.get(key, -1):
                result[key] = bound
    return result
