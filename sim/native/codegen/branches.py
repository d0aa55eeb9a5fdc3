"""Divergent branches of a warp. Some lanes execute an arm of a branch or an iteration of a loop, and the
other lanes skip it.

While a warp executes an arm, the lanes that skip it are *inactive*: no region runs for them, and they take no
part in warp operations. They become active again at the end of the `if` statement or loop, where the warp
reconverges. Only operations that take a mask can be executed by some lanes of a warp. Their semantics depend
on the masks alone, and not on the order in which the lanes run.
"""

from sim.isa.table import FULL
from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.synchronization import diverge

EXPORTED = {"add_vote", "begin_arm", "end_arm", "leave_loop", "continues_loop", "end_loop", "TAKES", "SKIPS"}
INACTIVE = 3  # value of the state's field `returned` for a thread that skips the current arm or iteration
SKIPS, TAKES = range(2)  # the arms of a branch: the lanes whose test is false, and those whose test is true


@int64_helper
def add_vote(votes, is_taken, thread):
    """Return the votes of a warp with the vote of one more thread.

    votes: bit `lane` is set if the test is true in that lane, and bit `32 + lane` if it is false.
    is_taken: whether the test is true in the thread.
    """
    return votes | 1 << ((thread & 31) + (0 if is_taken else 32))


@int64_helper
def lanes_of_arm(votes, arm):
    """Return the mask of the lanes that execute an arm, SKIPS or TAKES."""
    return (votes if arm == TAKES else votes >> 32) & FULL


@int64_helper(inline=False)
def set_lanes(state, warp, lanes, value):
    """Make the lanes in a mask inactive (the value is INACTIVE) or active (the value is 0)."""
    for lane in range(32):
        if lanes >> lane & 1:
            state.returned[32 * warp + lane] = value
    state.inactive = state.inactive | lanes if value != 0 else state.inactive & ~lanes


@int64_helper
def begin_arm(state, warp, votes, arm) -> bool:
    """Make the lanes of the other arm inactive, and return True. If no lane executes this arm, or the block
    has stopped, do nothing and return False."""
    if lanes_of_arm(votes, arm) == 0 or state.stopped != 0:
        return False
    set_inactive(state, warp, lanes_of_arm(votes, 1 - arm))
    return True


@int64_helper
def set_inactive(state, warp, lanes):
    """Make the lanes in a mask inactive."""
    if lanes != 0:
        set_lanes(state, warp, lanes, INACTIVE)


@int64_helper
def end_arm(state, warp, votes, arm):
    """Reactivate the lanes that skipped an arm."""
    end_loop(state, warp, lanes_of_arm(votes, 1 - arm))


@int64_helper
def leave_loop(state, warp, votes, left):
    """Deactivate the lanes that leave a loop at its test. Return the mask of all lanes that have left.

    left: the mask of the lanes that left in earlier iterations.
    """
    leaving = lanes_of_arm(votes, SKIPS)
    set_inactive(state, warp, leaving)
    return left | leaving


@int64_helper
def continues_loop(state, votes) -> bool:
    """Return whether a lane executes the next iteration of a loop."""
    return lanes_of_arm(votes, TAKES) != 0 and state.stopped == 0


@int64_helper
def end_loop(state, warp, left):
    """Reactivate the lanes that have left a loop."""
    if left != 0:
        set_lanes(state, warp, left, 0)


# --- masks --------------------------------------------------------------------------------------------------


@int64_helper
def check_participants(state, warp, present, mask):
    """Stop the block if the participants of a warp operation may depend on lanes that have not arrived.

    On a GPU, the operation would wait for each inactive lane in its mask. Compiled code does not wait, which
    is correct only if that lane returns before it synchronises again. It therefore records the lane as
    *awaited*, and the block stops if an awaited lane may synchronise. A lane is *apart* once it has executed
    an operation while other lanes of its warp were inactive. If a later mask includes an apart lane that is
    not active, the block stops, because only the interpreter compares the masks of single calls
    (sim.engine.lane_masks).

    present: the mask of the active lanes.
    mask: the mask of the operation.
    """
    missing = mask & ~present
    if present & state.awaited[warp] or missing & state.apart[warp]:
        diverge(state)
    if state.inactive != 0:
        state.apart[warp] |= present
        note_awaited(state, warp, missing & state.inactive)


@int64_helper
def note_awaited(state, warp, lanes):
    """Record the lanes in a mask as awaited lanes."""
    if lanes != 0:
        state.awaited[warp] |= lanes
        state.awaits = 1


@int64_helper
def check_no_branch(state, warp, present):
    """Stop the block if a warp executes an operation without a mask in a divergent branch, or with awaited
    lanes."""
    if state.inactive != 0 or present & state.awaited[warp]:
        diverge(state)
