"""Functions that a kernel's text calls around its regions: barriers, loops that count iterations, and
agreement between threads."""

from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from sim.native.codegen.int64 import signalled, words
from sim.native.codegen.linking import always
from sim.native.codegen.shadow import (
    FULL,
    INTERRUPTED,
    OF_BLOCK,
    OF_LAUNCH,
    PARTED,
    SEGMENT_SHIFT,
    SPENT,
    WARP_SHIFT,
    dirty,
)

OFFERED = set(
    "NOBODY GO END BREAK CONTINUE agree agree_warps agree_span span step_of holds begin_block end_block"
    " barrier is_stopped again counted interrupted".split()
)

MUCH = 1 << 16  # log entries after which the log is replayed to the observers
# Exit codes of a region. They begin at 10 because a region that evaluates a test returns 0 or 1 (`holds`).
NOBODY, GO, END, BREAK, CONTINUE = -1, 10, 11, 12, 13


@words
def begin_block(state, threads, position, rounds, trips):
    state.epoch += 1
    state.block_start = state.epoch
    state.starts[position] = state.epoch
    state.position = position
    state.stopped = 0
    state.dirty = 0
    state.foreign = -1
    state.ended = 0
    state.rounds = rounds
    state.trips = trips
    for thread in range(threads):
        state.returned[thread] = 0


@words
def end_block(state) -> bool:
    """Store the block's error flags. Return whether the launch ends here."""
    state.found[state.position] = state.dirty
    if state.position & 63 == 63:
        interrupted(state)
    if state.log_count > MUCH and state.stopped < OF_LAUNCH:
        state.stopped = FULL
    return state.stopped >= OF_LAUNCH


@words
def part(state):
    """Stop the block, because its threads have diverged."""
    dirty(state, PARTED)
    state.stopped = max(state.stopped, OF_BLOCK)


@words
def barrier(state) -> bool:
    """Pass a barrier of the block. Return False if the block has to stop. Threads that returned while
    others wait are diverged, which the interpreter explains."""
    if state.ended:
        part(state)
    state.epoch += 1
    state.barriers += 1
    return state.stopped == 0


@words
def is_stopped(state) -> bool:
    return state.stopped != 0


# --- threads that must agree --------------------------------------------------------------------------------


@words
def agree(state, before, now, thread):
    """Return the common exit code of the threads so far. END counts only if all threads return it."""
    if now == END:
        state.returned[thread] = 1
        left = state.me >> SEGMENT_SHIFT
        state.left[thread] = left
        state.left[1024 + (thread >> WARP_SHIFT)] = left
        state.ended += 1
        return END if before == NOBODY else before
    return agree_warps(state, before, now)


@words
def agree_warps(state, before, now):
    if before != NOBODY and before != END and before != now and now != END:
        part(state)
    return before if now == END and before != NOBODY else now


@words
def holds(state, answer) -> bool:
    return answer == 1 and state.stopped == 0


@always
def span(start, stop, step):
    return int64(start), int64(stop), int64(step)


@always
def agree_span(state, before, now):
    if before[2] != 0 and before != now:
        part(state)
    return now


@words
def step_of(step):
    """Return the agreed step of a loop. If no thread is left, the step is 0, and any other number works."""
    return step if step != 0 else 1


# --- counted loops ------------------------------------------------------------------------------------------


@words(inline=False)
def interrupted(state) -> bool:
    """Check for Ctrl-C. Return whether the launch ends."""
    if signalled():
        state.stopped = INTERRUPTED
    return state.stopped >= OF_LAUNCH


@words
def spent(state):
    """End the launch, because a loop has exceeded its limit of iterations."""
    dirty(state, SPENT)
    state.stopped = max(state.stopped, OF_LAUNCH)


@words
def again(state) -> bool:
    """Count an iteration of a `while` loop. Return False when the block has used up its iterations, or has
    stopped."""
    state.rounds -= 1
    if state.rounds < 0:
        spent(state)
    elif state.rounds & 0xFFFF == 0:
        interrupted(state)
    return state.stopped == 0


@words
def length_of(start, stop, step):
    if step == 0:
        return 0
    return max(0, (stop - start + step - 1) // step if step > 0 else (stop - start + step + 1) // step)


@words
def may_go_round(state, trips) -> bool:
    """Return whether a `for` loop may run this many iterations. It may not when the block has used up its
    iterations, or has stopped."""
    before = state.trips
    state.trips -= trips
    if state.trips < 0:
        spent(state)
    elif state.trips >> 24 != before >> 24:
        interrupted(state)
    return state.stopped == 0


@words
def last(state, start, stop, step):
    """Return the stop of a `for` loop's range: `start`, for an empty range, if the loop may not run."""
    return stop if may_go_round(state, length_of(start, stop, step)) else start


@intrinsic
def counted(typing, state, start, stop, step):
    """Return `range(start, stop, step)`, or an empty range if the loop may not run."""

    def code(context, builder, signature, arguments):
        state, *bounds = arguments
        allowed = cgutils.create_struct_proxy(signature.return_type)(context, builder)
        allowed.start, allowed.step = bounds[0], bounds[2]
        allowed.stop = last.words.call(context, builder, *arguments)
        return allowed._getvalue()

    return types.range_state64_type(*[int64] * 4), code
