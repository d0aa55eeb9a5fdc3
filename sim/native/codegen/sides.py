"""Runs of a diverged block that follow some of its threads, to count the barriers that they reach.

If threads of a block disagree at a test or in the range of a loop, they form two *sides*. The block runs
again for each side (the state's field `side`). After the disagreement, the threads of the other side are
absent. The run ends at the next decision that may depend on data, because the other side could have written
that data. Up to there, the control flow of a side does not depend on the other side.
"""

from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.linking import inline_always
from sim.native.codegen.shadow import OF_BLOCK
from sim.native.codegen.synchronization import END, NO_THREAD, agree, agree_span

EXPORTED = {"note_barrier", "agree_on_side", "agree_on_span", "end_side"}
ABSENT = 2  # value of the state's field `returned` for a thread of the side that the run does not follow
# Values of the field `unfinished`: 0 if the side has run to its end; MAY_CONTINUE if it may reach further
# barriers; UNKNOWN if threads form more than two sides.
MAY_CONTINUE, UNKNOWN = 1, 2


@int64_helper
def note_barrier(state, site):
    """Store the site of the block-wide barrier at which the block is about to wait. After a disagreement,
    count the barrier, or stop the block if it is the one at which to stop."""
    if state.stopped == 0:
        state.barrier_site = site
        if state.split != 0:
            if state.passed == state.last_barrier:
                state.stopped = OF_BLOCK
            state.passed += 1


@int64_helper
def end_side(state):
    """End a run that follows one side, because the next decision may depend on data."""
    if state.split != 0 and state.stopped == 0:
        state.unfinished = max(state.unfinished, MAY_CONTINUE)
        state.stopped = OF_BLOCK


@int64_helper
def agree_on_side(state, before, now, thread, first):
    """Combine exit codes like `agree`. If the run follows a side, let the threads of the other side be absent
    after a disagreement.

    first: the first thread that takes part in the decision.
    """
    if state.side != 0 and before != NO_THREAD and before != END and now != END and before != now:
        return choose_side(state, before, now, thread, first)
    return agree(state, before, now, thread)


@int64_helper(inline=False)
def choose_side(state, before, now, thread, first):
    """Return the result of the side that the run follows: `before` or `now`, which differ. Let threads of the
    other side be absent.

    first: the first thread that takes part in the decision.
    """
    is_new = state.split == 0
    if is_new:
        state.split = 1
        state.first_result = before
        state.second_result = now
    if now != state.first_result and now != state.second_result:
        state.unfinished = UNKNOWN
    if is_new and state.side == 2:
        for other in range(first, thread):
            if state.returned[other] == 0:
                state.returned[other] = ABSENT
        return now
    state.returned[thread] = ABSENT
    return before


@inline_always
def agree_on_span(state, before, now, thread, first):
    """Combine ranges like `agree_span`, and treat different ends of a range like different exit codes."""
    if is_other_end(state, before, now):
        return before[0], choose_side(state, before[1], now[1], thread, first), before[2]
    return agree_span(state, before, now)


@inline_always
def is_other_end(state, before, now):
    """Return whether the run follows a side of a disagreement, and two ranges differ only in their ends."""
    same = before[0] == now[0] and before[2] == now[2]
    return follows_side(state) and same and before[1] != now[1]


@int64_helper
def follows_side(state) -> bool:
    """Return whether the run follows one side of a disagreement."""
    return state.side != 0
