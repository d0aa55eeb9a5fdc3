"""The finding for threads that poll an mbarrier whose phase never completes."""

from sim.engine.cluster import Cluster
from sim.engine.wait_graph import BLOCK_BARRIER, WaitGraph, missing_suppliers
from sim.events import Access, Finding, index_text
from sim.isa.mbarrier import Barrier
from sim.memory.async_proxy import bytes_of_phase
from sim.nouns import joined, plural


def is_deadlocked(context, block):
    """Return whether a block is deadlocked. If it is, append the finding.

    A block is deadlocked under three conditions: each of its threads waits at the barrier of the block, or is
    in a loop that only waits for a phase; no copy can complete a phase; and no other block can arrive at an
    mbarrier of this block.
    """
    if context.clustered or context.asynchronous:
        return False
    waits = {}
    for thread in block.threads:
        if thread.done or thread.waits == BLOCK_BARRIER:
            continue
        barrier, _ = thread.failed_wait or (None, None)
        if barrier is None or not barrier.failed.get(thread) or barrier.tracked:
            return False
        waits[thread] = thread.failed_wait
    context.flush()
    context.findings.append(deadlock_finding(context, next(iter(waits)), None, waits))
    return True


def failed_waits(context, thread):
    """Return {thread: (mbarrier, site)} for all threads of one cluster that poll an mbarrier. It is the first
    cluster with such threads. `thread` is the thread that makes no progress."""
    check = context.loops.progress_check
    looping = check.cycles if check else [t for block in thread.block.cluster for t in block.threads]
    waits = {one: one.failed_wait for one in looping if one.failed_wait and (one is thread or not one.done)}
    cluster = min(waits, key=place).block.cluster if waits else ()
    return {one: wait for one, wait in waits.items() if one.block in cluster}


def place(thread):
    """Return a sort key for threads: by block, then by linear index."""
    return thread.block.index[::-1], thread.linear


def deadlock_finding(context, running, loop, waits):
    """Return the finding for threads that wait at an mbarrier.

    The finding names the mbarrier whose arrivals or bytes no thread can supply, and then the threads that
    wait at other barriers because of this mbarrier.

    loop: the site of the loop in the thread `running`.
    waits: the result of `failed_waits`.
    """
    graph = WaitGraph(waits, next(iter(waits)).block.cluster)
    barrier = graph.root()
    seen = {}  # site -> the first thread that waits there
    for thread in sorted(waits, key=lambda one: (waits[one][0] is not barrier, *place(one))):
        seen.setdefault(waits[thread][1], thread)
    witnesses = [context.witness("waits", site, thread) for site, thread in seen.items()]
    if running.failed_wait is None:
        witnesses.append(context.witness("loops", loop, running))
    behind = text_of_others(context, graph, barrier)
    at = f"{waiting_text(graph, barrier)} at the mbarrier {name_of(context, barrier)}"
    if barrier.tx and not barrier.pending:  # while arrivals are missing, bytes may be early
        return missing_bytes_finding(context, barrier, at, witnesses, behind)
    arrived, missing = barrier.expected - barrier.pending, missing_suppliers(barrier)
    returned = [Access("returned", one.block.index, one.index) for one in missing[:1] if one.done]
    return Finding(
        "deadlock",
        "error",
        f"{at}, which has counted {arrived} of {barrier.expected} arrivals in phase {barrier.phase}",
        (*witnesses, *returned),
        *context.space.element(barrier.address),
        reason=f"{MISSING if arrived else NOBODY}{text_of_parity(graph, barrier)}{behind}",
        fix=f"{fix_of_parity(graph, barrier)}{fix_of_arrivals(barrier, missing)}",
    )


def waiting_text(graph, barrier):
    """Return the number of threads that wait at a barrier, with the verb."""
    number = len(graph.waiting_at(barrier))
    return f"{plural(number, 'thread')} wait{'s' * (number == 1)}"


def name_of(context, barrier):
    """Return the name of an mbarrier, or of another barrier. In a cluster, it contains the block."""
    if isinstance(barrier, Cluster):
        return "barrier.cluster"
    block = f" of block {index_text(barrier.block if isinstance(barrier, Barrier) else barrier.index)}"
    name = context.space.element(barrier.address) if isinstance(barrier, Barrier) else "cuda.syncthreads()"
    return f"{name}{block * context.clustered}"


def text_of_others(context, graph, root):
    """Return a sentence about the threads that wait at other barriers, or ""."""
    waiting = {barrier: graph.waiting_at(barrier) for barrier in graph.edges}
    alone, texts = len(waiting.pop(root)) == 1, []
    for barrier, threads in sorted(waiting.items(), key=lambda item: place(item[1][0])):
        kind = "the mbarrier " if isinstance(barrier, Barrier) else ""
        parity = ""
        if graph.tests_parity(barrier):
            parity = f" (parity {barrier.phase & 1}, phase {barrier.phase})"
        texts.append(f"{plural(len(threads), 'thread')} at {kind}{name_of(context, barrier)}{parity}")
    return f" {'This thread blocks' if alone else 'These threads block'} {joined(texts)}." if texts else ""


def text_of_parity(graph, barrier):
    """Return a sentence about the parity that the threads at an mbarrier test, or "" if they do not test a
    parity."""
    if not graph.tests_parity(barrier):
        return ""
    phase = barrier.phase
    before = f"phase {phase - 1}, which has ended" if phase else "the phase before the first, which has ended"
    return (
        f" The wait tests parity {phase & 1}, so it waits for the end of phase {phase}. Parity"
        f" {1 - (phase & 1)} is the parity of {before}."
    )


def fix_of_parity(graph, barrier):
    """Return the beginning of the fix for a wait that may test the wrong parity, or ""."""
    phase, arrived = barrier.phase, barrier.expected - barrier.pending
    if arrived or not graph.tests_parity(barrier):
        return ""
    other = f"let the wait test parity {1 - (phase & 1)}"
    if not phase:
        return f"if the threads need not wait in the first phase, {other}; otherwise, "
    if graph.skips_phase(barrier):
        return f"{other}, because no thread has waited for phase {phase - 1}; or "
    return ""


def fix_of_arrivals(barrier, missing):
    """Return the fix for a phase with too few arrivals.

    missing: the threads that arrived in an earlier phase, but not in this phase.
    """
    if barrier.brought and not barrier.expected_bytes:
        return (
            f"let a thread of block {index_text(barrier.block)} arrive at this mbarrier in each phase, and"
            f" expect (expect_tx) the bytes of all copies, {bytes_of_phase(barrier)}: each block expects the"
            " bytes that arrive at its own barrier, even if other blocks send them"
        )
    usual = (
        "initialise the barrier for as many arrivals as each phase gets, and let each of these threads"
        " arrive once in every phase"
    )
    if not missing:
        return usual
    who, when = missing[0], barrier.suppliers[missing[0]]
    return (
        f"let thread {index_text(who.index)} of block {index_text(who.block.index)}, which arrived last in"
        f" phase {when}, arrive in each phase; or {usual}"
    )


def missing_bytes_finding(context, barrier, at, witnesses, behind):
    """Return the finding for threads that wait at an mbarrier whose phase expects more or fewer bytes than
    arrive.

    at: text with the number of these threads and the name of the mbarrier.
    behind: a sentence about threads that wait at other barriers.
    """
    expected, brought = (sum(n for _, n in parts) for parts in (barrier.expected_bytes, barrier.brought))
    copies = dict.fromkeys(witness for witness, _ in (*barrier.expected_bytes, *barrier.brought))
    bytes_text = f"{brought:,} of {plural(expected, 'byte')} have arrived"
    difference = (
        f"{plural(expected - brought, 'byte')} are missing" if expected > brought else "that is too many"
    )
    arrived = barrier.expected - barrier.pending
    return Finding(
        "deadlock",
        "error",
        f"{at}, where {bytes_text} in phase {barrier.phase} ({arrived} of"
        f" {plural(barrier.expected, 'arrival')} counted): {difference}",
        (*witnesses, *copies),
        *context.space.element(barrier.address),
        reason="A phase is complete only when all arrivals have been counted and exactly the expected bytes"
        f" have arrived.{behind}",
        fix=fix_of_bytes(barrier, expected, brought, context.clustered),
    )


def fix_of_bytes(barrier, expected, brought, clustered):
    """Return the fix for a phase that expects more or fewer bytes than arrive."""
    mask = "; the mask of a multicast copy names each block that receives the bytes" if clustered else ""
    if brought < expected == barrier.complete_bytes:
        return (
            f"send the missing copy of {plural(expected - brought, 'byte')}: in phase {barrier.phase - 1},"
            f" the copies delivered all {expected:,}{mask}"
        )
    if not brought:
        return f"send the copy of {plural(expected, 'byte')}, or arrive without expect_tx{mask}"
    right = bytes_of_phase(barrier)
    counts = "arrive at this block's own barrier" if clustered else "this barrier counts"
    missing = f", or send the missing copy{mask}" if brought < expected else ""
    return f"pass expect_tx the bytes of all copies that {counts} in a phase, {right}{missing}"


MISSING = "Nothing changes while they wait, so the missing arrivals never happen."
NOBODY = (
    "Nothing changes while they wait, so no thread arrives in this phase. A wait for the wrong phase or"
    " parity never ends either."
)
