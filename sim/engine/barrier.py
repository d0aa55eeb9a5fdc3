"""Block-wide barriers: the results of votes, and the findings about barriers at which not all threads
arrive."""

import functools
import operator

from sim.engine import barrier_places
from sim.engine.wait_graph import BLOCK_BARRIER
from sim.events import Finding


def deliver_vote(threads):
    """Set the result of a vote for every thread.

    A thread's `payload` is (Barrier, predicate), or None at a barrier without a vote.
    """
    if threads[0].payload is None:
        return
    result = threads[0].payload[0].vote(thread.payload[1] for thread in threads)
    for thread in threads:
        thread.result = result


def is_same_barrier(waiting, block):
    """Return whether all threads of the block wait at the same PTX barrier: the same number and operation.

    The threads may have reached the barrier through different instructions.
    """
    barriers = {(thread.frame.number, thread.payload and thread.payload[0]) for thread in waiting}
    return len(waiting) == len(block.threads) and len(barriers) == 1


def name_of(frame):
    """Return the name of the block-wide barrier at which a thread waits. Only PTX numbers these barriers."""
    number = getattr(frame, "number", None)
    return f"bar.sync {number}" if number else "cuda.syncthreads()"


def names_of(threads):
    """Return (the names of the barriers at which threads wait, joined by "and"; whether all of them are
    syncthreads)."""
    names = sorted({name_of(thread.frame) for thread in threads if thread.frame and not thread.done})
    return " and ".join(names), names == ["cuda.syncthreads()"]


def several_calls_finding(scheduler, block):
    """Return the finding for a barrier that opens although its threads wait at different instructions.

    It is a warning, and an error if the lanes of one warp wait at different aligned barriers.
    """
    lanes = {}  # warp -> {position of an aligned barrier: mask of the lanes that wait there}
    for thread in block.threads:
        masks = lanes.setdefault(thread.warp, {})
        masks[thread.frame.aligned] = masks.get(thread.frame.aligned, 0) | 1 << thread.lane
    if (warp := split_warp(lanes)) is not None:
        seen = distinct_witnesses(scheduler, [t for t in block.threads if t.warp == warp])
        return split_warp_finding(scheduler, warp, block.threads[0].frame.number, seen)
    seen, name = distinct_witnesses(scheduler, block.threads), name_of(block.threads[0].frame)
    fix, advice = fix_of_places(scheduler, seen)
    return Finding(
        "barrier-divergence",
        "warning",
        f"the threads of the block reach barrier {block.threads[0].frame.number} at several lines or calls",
        seen,
        reason=(
            "In PTX, arrivals from all lines count, so the barrier opens. In CUDA C++, every thread of the"
            f" block has to reach the same {name}, and a compiler may rely on that."
        ),
        fix=fix
        if "bar" not in name
        else f"{fix}; or, if this is intended, pass the number of threads: {name}, {len(block.threads)}",
        advice=advice,
    )


def split_warp(lanes):
    """Return the first warp whose lanes have arrived at different aligned barriers, or None.

    If two masks share a lane, the warp has arrived at several barriers one after another. This is no error.

    lanes: {warp: {position of an aligned barrier, or None for others: mask of the lanes that arrived there}}.
    """
    for warp, masks in lanes.items():
        if len(masks) > 1 and sum(masks.values()) == functools.reduce(operator.or_, masks.values()):
            return warp
    return None


def split_warp_finding(scheduler, warp, number, seen):
    """Return the error for lanes of one warp that arrive at different aligned barriers.

    seen: the Accesses of these lanes.
    """
    fix, advice = fix_of_places(scheduler, seen)
    return Finding(
        "barrier-divergence",
        "error",
        f"lanes of warp {warp} reach barrier {number} at several lines or calls",
        seen,
        reason=(
            "All lanes of a warp have to execute the same call of an aligned barrier, such as"
            " cuda.syncthreads() or bar.sync. Otherwise, the behaviour is undefined."
        ),
        fix=fix,
        advice=advice,
    )


def waiting_threads(block, running):
    """Return the threads that wait at the barrier of their block.

    running: the thread that is running, or about to run.
    """
    position = block.round.index(running) if running in block.round else len(block.round)
    runnable = {*block.ready, *block.round[position:]}
    return [t for t in block.threads if t.waits == BLOCK_BARRIER and not t.done and t not in runnable]


def is_missed(scheduler, block, running):
    """Return whether a barrier can never open: some threads wait there, and others have returned.

    If the block uses bar.arrive, the result is False, because a thread may then arrive and return.
    """
    counted = scheduler.counts_arrivals and block.named_barriers
    if counted or block.alive == len(block.threads):
        return False
    return len(returned_threads(block)) > 0 and len(waiting_threads(block, running)) > 0


def returned_threads(block):
    """Return the threads that have returned from the kernel.

    A thread that an exception has ended, for example after the time limit, has not returned.
    """
    return [thread for thread in block.threads if thread.done and thread.error is None]


def is_first_missed(scheduler, thread):
    """Return whether the barrier of a block can never open, when `thread` has just ended.

    The finding is made only when no thread of the block can run, and the other threads may run for a long
    time. The time limit after an error therefore begins as soon as this test succeeds. The test takes time
    proportional to the number of threads in the block, so it is made only when the first, second, fourth,
    eighth ... thread ends.
    """
    block = thread.block
    ended = len(block.threads) - block.alive
    return not ended & ended - 1 and is_missed(scheduler, block, thread)


def report_missed(scheduler, block, running):
    """Append the finding about the barrier of a block, if it can never open.

    Call this function if the launch ends while threads of the block can still run. Otherwise, there would be
    no finding about the barrier.
    """
    if is_missed(scheduler, block, running):
        seen = [*waiting_threads(block, running), *returned_threads(block)]
        scheduler.context.findings.append(divergence_finding(scheduler, block, seen))


def divergence_finding(scheduler, block, threads=None):
    """Return the finding for a block in which some threads wait at a barrier, and others wait elsewhere or
    have returned.

    threads: the threads that wait or have returned, if the launch ends while other threads can still run. By
        default, these are all threads of the block.
    """
    threads = threads or block.threads
    waiting, all_of_them = sum(not thread.done for thread in threads), len(block.threads)
    verdict = f"the {waiting} threads of the block wait at different barriers"
    if returned := len(threads) - waiting:
        verdict = f"{waiting} of {all_of_them} threads wait at a barrier and {returned} have returned"
    seen = distinct_witnesses(scheduler, threads)
    fix, advice = fix_of_places(scheduler, seen)
    names, usual = names_of(threads)
    if not usual:
        return Finding(
            "barrier-divergence",
            "error",
            verdict.replace(" a barrier", f" {names}").replace("different barriers", names),
            seen,
            reason=f"Without a count, such a call waits for all {all_of_them} threads of the block.",
            fix=f"pass the number of threads that arrive, {counted(threads)}; or {fix}",
        )
    reason = "cuda.syncthreads() opens only when every thread of the block has reached the same call."
    if len({access.site for access in seen}) == 1:
        reason += " Each call of the function has its own barrier."
    return Finding("barrier-divergence", "error", verdict, seen, reason=reason, fix=fix, advice=advice)


def fix_of_places(scheduler, seen):
    """Return (fix, Advice or None) for a barrier that some threads miss, or for threads that wait at
    different barriers.

    seen: the Accesses of the threads.
    """
    sites = {access.site for access in seen if access.site}
    return barrier_places.advice_for_barriers(scheduler.context, sorted(sites, key=lambda site: site.line))


def counted(threads):
    """Return the calls of PTX barriers at which threads wait, such as "bar.sync 1, 64". The count in each
    call is the number of threads that wait there now."""
    names = [name_of(thread.frame) for thread in threads if thread.frame and not thread.done]
    return " and ".join(
        f"{name.replace('cuda.syncthreads()', 'bar.sync 0')}, {names.count(name)}"
        for name in sorted({*names})
    )


def different_iterations_finding(scheduler, block):
    """Return the finding for a block whose threads wait at the same barrier in different iterations of a
    loop."""
    first = block.threads[0]
    other = next(thread for thread in block.threads if thread.iterations != first.iterations)
    depth = next(depth for depth, (a, b) in enumerate(zip(first.iterations, other.iterations)) if a != b)
    return Finding(
        "barrier-divergence",
        "error",
        "threads of the block wait at the same barrier in different iterations of a loop,"
        f" {first.iterations[depth]} and {other.iterations[depth]}",
        (scheduler.waiting_witness(first), scheduler.waiting_witness(other)),
        reason=(
            "A condition around a barrier must have the same result in all threads of the block, so that they"
            " reach the barrier in the same iterations."
        ),
        fix=(
            "let every thread reach the barrier in every iteration: move the barrier out of the condition, or"
            " before the `continue`"
        ),
    )


def deadlock_finding(scheduler, block):
    """Return the finding for a block in which some threads wait at a grid barrier, and others wait elsewhere
    or have returned."""
    waiting = [thread for thread in block.threads if not thread.done]
    if len({thread.waits for thread in waiting}) > 1:
        verdict = "threads of one block wait for each other at barriers of different kinds"
    else:
        rest = "the others have returned" if len(waiting) < len(block.threads) else "not all at the same one"
        those = f"{len(waiting)} of {len(block.threads)} threads of the block"
        verdict = f"{those} wait at a grid barrier, {rest}"
    return Finding(
        "deadlock",
        "error",
        verdict,
        distinct_witnesses(scheduler, block.threads),
        reason=(
            f"{block_barriers(waiting)} needs all threads of the block, and grid.sync() all threads of the"
            " grid. Neither opens while some threads wait at the other."
        ),
        fix="let all threads of the block go through the same barriers in the same order",
    )


def block_barriers(waiting):
    """Return the names of the block-wide barriers at which some of these threads wait."""
    named = [thread for thread in waiting if thread.waits == "syncthreads"]
    return names_of(named)[0] or "cuda.syncthreads()"


def distinct_witnesses(scheduler, threads):
    """Return one Access for each call at which threads wait, and one for threads that have returned.

    Each Access describes the lowest such thread. A call counts as several calls if different chains of
    callers lead to it.
    """
    seen = {}
    for thread in threads:
        access = scheduler.waiting_witness(thread)
        seen.setdefault((access.site, not thread.done and thread.calls), access)
    return tuple(seen.values())
