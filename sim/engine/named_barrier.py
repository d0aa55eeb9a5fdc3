"""Named barriers: `bar.sync a, b` in PTX.

A block has sixteen named barriers, which are identified by numbers. Each call states the number of threads
that take part. Some threads may arrive without waiting (bar.arrive).

Source: PTX ISA 9.7.13.1, "bar", "barrier".
"""

from sim.engine.barrier import split_warp, split_warp_finding
from sim.events import Finding
from sim.isa.invalid import InvalidOperand
from sim.nouns import plural

NAMED_BARRIER = "named barrier"
BARRIERS = 16  # number of named barriers per block (PTX ISA, "bar")


class NamedBarrier:
    """A named barrier in a block.

    count: the number of threads that open the barrier, or None until the first arrival.
    arrivals: the number of arrivals since the barrier last opened.
    waiting: the arrived threads that wait.
    openings: the number of times that the barrier has opened.
    arrived: the threads that have arrived without waiting since the barrier last opened.
    repeated: the Access of the first thread that arrived twice between two openings, or None.
    lanes: the lanes that have arrived since the barrier last opened (barrier.split_warp).
    callers: {(warp, position of an aligned barrier): (frame, thread) of its first arrival} since then.
    """

    __slots__ = ("arrivals", "arrived", "callers", "count", "lanes", "openings", "repeated", "waiting")

    def __init__(self):
        self.count, self.arrivals, self.waiting, self.openings = None, 0, [], 0
        self.arrived, self.repeated, self.lanes, self.callers = set(), None, {}, {}

    def note(self, thread, frame):
        """Record the position at which a thread arrives."""
        masks = self.lanes.setdefault(thread.warp, {})
        masks[frame.aligned] = masks.get(frame.aligned, 0) | 1 << thread.lane
        self.callers.setdefault((thread.warp, frame.aligned), (frame, thread))


def arrive_at(scheduler, number, count, frame, waits):
    """Let the current thread arrive at a named barrier. If `waits`, suspend it until the barrier opens."""
    context, thread = scheduler.context, scheduler.context.thread
    context.named_calls.setdefault((thread.block.index, thread.linear), set()).add((number, count))
    barrier = find_barrier(thread.block.named_barriers, number, count, context.spec.warp_size)
    phase = ("barrier", number), barrier.openings
    if not waits:
        if thread in barrier.arrived and barrier.repeated is None:
            barrier.repeated = context.witness("arrives again", context.sites.of_frame(frame, "call"))
        barrier.arrived.add(thread)
    if not count_arrival(scheduler, barrier, phase, frame) and waits:
        barrier.waiting.append(thread)
        scheduler.wait(NAMED_BARRIER, frame)
    if waits:
        context.announce_ordering("passed", phase)


def join_block_barrier(scheduler, block, waiting):
    """Count the threads that wait at the block-wide barrier as arrivals at the named barrier with the same
    number, if they complete it.

    Return whether the barrier opens. In PTX, a block-wide barrier is the named barrier with the same number,
    which waits for the whole block if no thread count is given.
    """
    for number, barrier in block.named_barriers.items():
        same = [thread for thread in waiting if thread.frame.number == number and thread.payload is None]
        if barrier.arrivals and barrier.count == len(block.threads) == barrier.arrivals + len(same):
            for thread in same:
                scheduler.enter(thread)
                thread.payload = ("barrier", number), barrier.openings
                barrier.waiting.append(thread)
                count_arrival(scheduler, barrier, thread.payload, thread.frame)
            return True
    return False


def count_arrival(scheduler, barrier, phase, frame):
    """Count the current thread's arrival, and open the barrier if no further arrival is missing. Return
    whether the barrier has opened."""
    context, thread = scheduler.context, scheduler.context.thread
    barrier.arrivals += 1
    barrier.note(thread, frame)
    context.announce_ordering("arrived", phase)
    if barrier.arrivals < barrier.count:
        return False
    if (warp := split_warp(barrier.lanes)) is not None:
        callers = [caller for (of, _), caller in barrier.callers.items() if of == warp]
        site = context.sites.of_frame
        seen = tuple(context.witness("arrives", site(at, "call"), caller) for at, caller in callers)
        context.findings.append(split_warp_finding(scheduler, warp, phase[0][1], seen))
    thread.block.ready += barrier.waiting
    barrier.arrived.clear()
    barrier.lanes, barrier.callers = {}, {}
    barrier.count, barrier.arrivals, barrier.waiting, barrier.openings = None, 0, [], barrier.openings + 1
    return True


def find_barrier(barriers, number, count, warp_size):
    """Return the NamedBarrier with this number. Raise InvalidOperand for a number or count that PTX does
    not allow."""
    if not 0 <= number < BARRIERS:
        raise InvalidOperand(
            f"the number of a barrier is 0 to {BARRIERS - 1}, got {number}",
            f"A block has {BARRIERS} barriers.",
            f"use a number below {BARRIERS}; __syncthreads() uses number 0",
        )
    if count <= 0 or count % warp_size:
        raise InvalidOperand(
            f"the number of threads of barrier {number} must be a multiple of {warp_size}, got {count}",
            "Whole warps arrive at a named barrier.",
            f"round the count up to a multiple of {warp_size}, and let all lanes of these warps take part",
        )
    barrier = barriers.setdefault(number, NamedBarrier())
    if barrier.count not in (None, count):
        raise InvalidOperand(
            f"this call of barrier {number} passes {plural(count, 'thread')}, but another thread's call"
            f" passes {barrier.count}",
            "All calls between two openings of a barrier must pass the same number of threads.",
            "in all calls, pass the number of threads that arrive; or use another barrier number here",
        )
    barrier.count = count
    return barrier


def incomplete_finding(scheduler, block):
    """Return the finding for a named barrier with too few arrivals when no thread can run."""
    number, barrier = next(
        (number, barrier) for number, barrier in sorted(block.named_barriers.items()) if barrier.waiting
    )
    others = [thread for thread in block.threads if thread not in barrier.waiting]
    repeated = next((b.repeated for b in block.named_barriers.values() if b.repeated), None)
    if repeated is not None:
        return Finding(
            "barrier-divergence",
            "error",
            f"barrier {number} waits for {plural(barrier.count, 'thread')}, but only {barrier.arrivals} have"
            " arrived",
            (scheduler.waiting_witness(barrier.waiting[0]), repeated),
            reason="A thread arrived without waiting, and arrived again before the barrier had opened. Its"
            " second arrival was counted in place of another thread's arrival.",
            fix="let the arriving threads also wait: add a second barrier, at which the other threads arrive"
            " after they have read (bar.arrive), and these threads wait before they write again (bar.sync)",
        )
    elsewhere = {scheduler.waiting_witness(thread).site: thread for thread in reversed(others)}
    return Finding(
        "barrier-divergence",
        "error",
        f"barrier {number} waits for {plural(barrier.count, 'thread')}, but only {barrier.arrivals} have"
        " arrived",
        (scheduler.waiting_witness(barrier.waiting[0]), *map(scheduler.waiting_witness, elsewhere.values())),
        reason=f"bar.sync {number}, {barrier.count} opens when {barrier.count} threads have arrived, and"
        " no other thread can run.",
        fix=fix_of_count(scheduler.context, block, number, barrier),
    )


def fix_of_count(context, block, number, barrier):
    """Return the fix for a barrier with too few arrivals."""
    callers = context.callers_of_barrier(block.index, (number, barrier.count))
    if callers > barrier.count:
        return (
            f"let each group of {barrier.count} threads that work together call a barrier with a number of"
            f" its own, or pass {callers} as the number of threads if they form one group: {callers} threads"
            f" call barrier {number}, and any {barrier.count} of them open it"
        )
    if barrier.arrivals % 32:
        return f"let all {barrier.count} threads reach a call of barrier {number}, in whole warps"
    return (
        f"in all calls, pass the number of threads that arrive (bar.sync {number}, {barrier.arrivals} for the"
        f" threads that have arrived), or let all {barrier.count} threads reach one of the calls"
    )
