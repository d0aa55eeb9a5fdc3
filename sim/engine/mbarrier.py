"""The finding for threads that poll an mbarrier whose phase never completes."""

from sim.events import Finding
from sim.nouns import plural


def failed_waits(context, thread):
    """Return {thread: (mbarrier, site)} for all threads that poll one mbarrier.

    Use the mbarrier that `thread` polls or, if it polls none, the one polled by the first such thread.
    """
    check = context.progress_check
    looping = check.states if check else thread.block.threads
    waits = {one: one.failed_wait for one in looping if one.failed_wait and (one is thread or not one.done)}
    if not waits:
        return {}
    first = waits.get(thread) or waits[min(waits, key=place)]
    return {one: wait for one, wait in waits.items() if wait[0] is first[0]}


def place(thread):
    """Return a sort key for threads: by block, then by linear index."""
    return thread.block.index[::-1], thread.linear


def deadlock_finding(context, running, loop, waits):
    """Return the finding for threads that wait at an mbarrier.

    loop: the site of the loop in the thread `running`.
    waits: the result of `failed_waits`.
    """
    seen = {}  # site -> the first thread that waits there
    for thread in sorted(waits, key=place):
        seen.setdefault(waits[thread][1], thread)
    witnesses = [context.witness("waits", site, thread) for site, thread in seen.items()]
    if running not in waits:
        witnesses.append(context.witness("loops", loop, running))
    barrier = next(iter(waits.values()))[0]
    element = context.space.element(barrier.address)
    arrived = barrier.expected - barrier.pending
    if barrier.tx and not barrier.pending:  # before all arrivals, bytes can come before they are expected
        return missing_bytes_finding(barrier, waits, witnesses, element)
    return Finding(
        "deadlock",
        "error",
        f"{plural(len(waits), 'thread')} wait{'s' * (len(waits) == 1)} at the mbarrier {element}, where"
        f" {arrived} of {barrier.expected} have arrived in phase {barrier.phase}",
        tuple(witnesses),
        *element,
        reason=MISSING if arrived else NOBODY,
        fix=(
            "initialise the barrier for as many arrivals as each phase gets, and let each of these threads"
            " arrive once in every phase"
        ),
    )


def missing_bytes_finding(barrier, waits, witnesses, element):
    """Return the finding for threads that wait at an mbarrier whose phase expects other bytes than arrive."""
    expected, brought = (sum(n for _, n in parts) for parts in (barrier.expected_bytes, barrier.brought))
    copies = dict.fromkeys(witness for witness, _ in (*barrier.expected_bytes, *barrier.brought))
    bytes_text = f"{brought:,} of {plural(expected, 'byte')} have come"
    difference = (
        f"{plural(expected - brought, 'byte')} are missing" if expected > brought else "that is too many"
    )
    arrived = barrier.expected - barrier.pending
    return Finding(
        "deadlock",
        "error",
        f"{plural(len(waits), 'thread')} wait{'s' * (len(waits) == 1)} at the mbarrier {element}, where"
        f" {bytes_text} in phase {barrier.phase} ({arrived} of {barrier.expected} have arrived):"
        f" {difference}",
        (*witnesses, *copies),
        *element,
        reason="A phase is complete only when all arrivals have been counted and exactly the expected bytes"
        " have"
        " come.",
        fix=f"let expect_tx name the bytes of the copies that this barrier counts ({brought:,} here), or"
        f" send the"
        " missing copy",
    )


MISSING = "Nothing changes while they wait, so the arrivals that are missing never come."
NOBODY = (
    "Nothing changes while they wait, so nobody arrives in this phase. A wait for the wrong phase or parity"
    " never ends either."
)
