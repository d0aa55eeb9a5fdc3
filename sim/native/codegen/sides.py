"""Runs of a diverged block that follow some of its threads, to find out where they wait.

If threads of a block disagree at a test or in the range of a loop, they form two *sides*. The block runs
again for each side (the state's field `side`). After the disagreement, the threads of the other side are
absent. If only the threads of a warp decide together, all other warps are absent, too.

Between the disagreement and the next synchronisation point, the control flow of a side does not depend on
the other side, because an access to data of the other side would be a race. After this synchronisation point,
the run ends at the next decision that may depend on data.
"""

from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.launch_state import PASSED, THREADS
from sim.native.codegen.linking import inline_always
from sim.native.codegen.shadow import OF_BLOCK
from sim.native.codegen.synchronization import END, NO_THREAD, agree, agree_span, range_length

EXPORTED = {"note_barrier", "note_warp", "note_loop", "note_iteration", "agree_on_side", "agree_on_span"}
EXPORTED |= {"start_near_end", "end_side"}
ABSENT = 2  # value of the state's field `returned` for a thread that the run does not follow
# Values of the field `unfinished`: 0 if the side has run to its end, or to a point where it waits;
# MAY_CONTINUE if it may reach further synchronisation points; MORE_SIDES if threads form more than two sides,
# or disagree again.
MAY_CONTINUE, MORE_SIDES = 1, 2


@int64_helper
def note_barrier(state, site, depth):
    """Store the site of the block-wide barrier at which the block is about to wait.

    After a disagreement, also count the barrier, and stop the block if its index is `last_barrier`.

    depth: the number of loops around the barrier.
    """
    if state.stopped == 0:
        state.barrier_site = site
        state.barrier_depth = depth
        if state.split != 0:
            if state.passed == state.last_barrier:
                state.stopped = OF_BLOCK
            if state.passed < PASSED:
                state.barrier_sites[state.passed] = site
            state.passed += 1
            state.synchronized = 1


@int64_helper
def note_warp(state, site):
    """Store the site of a warp operation that takes a mask, at which a warp is about to wait."""
    if state.stopped == 0:
        state.warp_site = site


@int64_helper(inline=False)
def note_missing(state, warp, mask):
    """Stop a run that follows one side if the warp operation needs lanes that are absent from this run.

    If the absent lanes count as returned (`absent_fill`), the run continues, because a warp operation does
    not wait for lanes that have returned.

    mask: the mask of the operation.
    """
    if state.stopped == 0 and state.absent_fill == 0:
        state.synchronized = 1
        for lane in range(32):
            if mask >> lane & 1 and state.returned[32 * warp + lane] == ABSENT:
                state.waiting_warp = warp
                state.waiting_mask = mask
                state.stopped = OF_BLOCK


@int64_helper
def note_loop(state, depth):
    """Start the count of the iterations of a loop around a barrier at 0.

    depth: the number of loops around this loop, less than DEPTHS.
    """
    state.iterations[depth] = 0


@int64_helper
def note_iteration(state, depth):
    """Count an iteration of a loop around a barrier. The parameters are the same as for `note_loop`."""
    state.iterations[depth] += 1


@int64_helper
def end_side(state):
    """Begin a decision that may depend on data. If the run follows a side that has passed a synchronisation
    point since the disagreement, end the run."""
    if state.split != 0 and state.stopped == 0:
        state.split = 2
        state.by_range = 0
        if state.synchronized:
            state.unfinished = max(state.unfinished, MAY_CONTINUE)
            state.stopped = OF_BLOCK


@int64_helper
def agree_on_side(state, before, now, thread, warp):
    """Combine exit codes like `agree`. After a disagreement, a run that follows a side marks the threads of
    the other side as absent.

    warp: the warp whose threads decide, or -1 if the threads of the whole block decide.
    """
    if state.side != 0 and before != NO_THREAD and before != END and now != END and before != now:
        return choose_side(state, before, now, thread, warp)
    return agree(state, before, now, thread)


@int64_helper(inline=False)
def choose_side(state, before, now, thread, warp):
    """Return the result of the side that the run follows: `before` or `now`, which differ. Mark threads of
    the other side as absent. The parameters are the same as for `agree_on_side`."""
    is_new = state.split == 0
    if is_new:
        state.split = 1
        state.first_result = before
        state.second_result = now
        if warp >= 0:
            for other in range(THREADS):
                if other >> 5 != warp and state.returned[other] == 0:
                    state.returned[other] = ABSENT
    if state.stopped == 0 and (state.split == 2 or now != state.first_result and now != state.second_result):
        state.unfinished = MORE_SIDES
        state.stopped = OF_BLOCK
    if is_new and state.side == 2:
        for other in range(max(warp, 0) * 32, thread):
            if state.returned[other] == 0:
                state.returned[other] = ABSENT
        return now
    state.returned[thread] = ABSENT
    return before


@inline_always
def agree_on_span(state, before, now, thread, warp):
    """Combine ranges like `agree_span`, except that a run which follows a side chooses the end of its side.

    It does so if only the ends of the two ranges differ.
    """
    if is_other_end(state, before, now):
        return before[0], choose_end(state, before[1], now[1], thread, warp), before[2]
    return agree_span(state, before, now)


@inline_always
def is_other_end(state, before, now):
    """Return whether the run follows a side, and the two ranges have different ends but equal starts and
    steps."""
    same = before[0] == now[0] and before[2] == now[2]
    return follows_side(state) and same and before[1] != now[1]


@int64_helper
def follows_side(state) -> bool:
    """Return whether the run follows one side of a disagreement."""
    return state.side != 0


@int64_helper
def choose_end(state, before, now, thread, warp):
    """Return the end of the loop's range for the side that the run follows. The parameters are those of
    `agree_on_side`, with ends of ranges in place of exit codes."""
    if state.split == 0:
        state.by_range = 1
    return choose_side(state, before, now, thread, warp)


@int64_helper(inline=False)
def start_near_end(state, start, step, depth):
    """Return the first value of a loop's variable. If the sides disagree only about the end of the range,
    return the value in the last iteration that both sides execute, to skip the iterations before it.

    depth: the number of loops around this loop, less than DEPTHS.
    """
    if state.by_range == 0:
        return start
    state.by_range = 0
    # The skipped iterations may have changed the data on which later decisions depend.
    state.synchronized = 1
    first = range_length(start, state.first_result, step)
    second = range_length(start, state.second_result, step)
    skipped = max(min(first, second) - 1, 0)
    state.iterations[depth] = skipped
    return start + skipped * step
