"""Barriers of a part of a block: sixteen by number (PTX's bar.sync a, b), each for as many threads as the
calls say; some of them may arrive without waiting.

Source: PTX ISA 9.7.13.1, "bar", "barrier"."""

from sim.events import Finding
from sim.nouns import plural

PART = "barrier of a part"
BARRIERS = 16


class Part:
    """One barrier: for `count` threads, of which some `have_come` and some wait; how often it `opened`."""

    __slots__ = ("count", "have_come", "waiting", "opened")

    def __init__(self):
        self.count, self.have_come, self.waiting, self.opened = None, 0, [], 0


def meet(scheduler, number, count, frame, waits):
    """The running thread comes to the barrier; `waits`: until it opens."""
    context, thread = scheduler.context, scheduler.context.thread
    part = checked(thread.block.parts, number, count, context.spec.warp_size)
    phase = ("barrier", number), part.opened
    if not arrive(context, thread.block, part, phase) and waits:
        part.waiting.append(thread)
        scheduler.wait(PART, frame)
    if waits:
        context.announce_ordering("passed", phase)


def join(scheduler, block, waiting):
    """Let the threads that wait at a barrier of the whole block count at the one of the same number to which
    others come with a count. Returns whether it opens."""
    for number, part in block.parts.items():
        same = [thread for thread in waiting if thread.frame.number == number and thread.payload is None]
        if part.have_come and part.count == len(block.threads) == part.have_come + len(same):
            for thread in same:
                scheduler.enter(thread)
                thread.payload = ("barrier", number), part.opened
                part.waiting.append(thread)
                arrive(scheduler.context, block, part, thread.payload)
            return True
    return False


def arrive(context, block, part, phase):
    """Count the running thread, and open the barrier if it is the last one. Returns whether it is."""
    part.have_come += 1
    context.announce_ordering("arrived", phase)
    if part.have_come < part.count:
        return False
    block.ready += part.waiting
    part.count, part.have_come, part.waiting, part.opened = None, 0, [], part.opened + 1
    return True


def checked(parts, number, count, warp_size):
    """The Part of this number."""
    if not 0 <= number < BARRIERS:
        raise ValueError(f"there are barriers 0 to {BARRIERS - 1}, got {number}")
    if count <= 0 or count % warp_size:
        raise ValueError(f"barrier {number} is for a multiple of {warp_size} threads, got {count}")
    part = parts.setdefault(number, Part())
    if part.count not in (None, count):
        raise ValueError(
            f"barrier {number} is for {plural(part.count, 'thread')}, by another thread's call, and"
            f" for {count}"
        )
    part.count = count
    return part


def incomplete(scheduler, block):
    """Threads wait at a barrier of a part of the block to which too few come."""
    number, part = next((number, part) for number, part in sorted(block.parts.items()) if part.waiting)
    others = [thread for thread in block.threads if thread not in part.waiting]
    elsewhere = {scheduler.waits(thread).site: thread for thread in reversed(others)}
    return Finding(
        "barrier-divergence",
        "error",
        f"barrier {number} waits for {plural(part.count, 'thread')}, and {part.have_come} have come",
        (scheduler.waits(part.waiting[0]), *map(scheduler.waits, elsewhere.values())),
        reason="It opens when as many threads have come as its calls say; nobody else can run.",
        fix="let the number in its calls be that of the threads that reach one of them",
    )
