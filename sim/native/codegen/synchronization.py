"""Functions that a kernel's text calls around its regions: barriers, loops that count iterations, and
agreement between threads."""

from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from sim.native.codegen.int64 import int64_helper, poll_interrupt
from sim.native.codegen.linking import inline_always
from sim.native.codegen.shadow import (
    DIVERGED,
    EXHAUSTED,
    FULL,
    INTERRUPTED,
    OF_BLOCK,
    OF_LAUNCH,
    SEGMENT_SHIFT,
    WARP_SHIFT,
    set_error,
)

EXPORTED = set(
    "NO_THREAD GO END BREAK CONTINUE agree agree_warps agree_span span step_of is_true begin_block end_block"
    " barrier is_stopped count_iteration count_range check_interrupt".split()
)

MUCH = 1 << 16  # log entries after which the log is replayed to the observers
# Exit codes of a region. They begin at 10 because a region that evaluates a test returns 0 or 1 (`is_true`).
NO_THREAD, GO, END, BREAK, CONTINUE = -1, 10, 11, 12, 13


@int64_helper
def begin_block(state, threads, position, while_limit, for_limit):
    state.epoch += 1
    state.block_start = state.epoch
    state.first_epochs[position] = state.epoch
    state.position = position
    state.stopped = 0
    state.errors = 0
    state.returned_count = 0
    state.while_left = while_limit
    state.for_left = for_limit
    for thread in range(threads):
        state.returned[thread] = 0


@int64_helper
def end_block(state) -> bool:
    """Store the block's error flags. Return whether the launch ends here."""
    state.block_errors[state.position] = state.errors
    if state.position & 63 == 63:
        check_interrupt(state)
    if state.log_count > MUCH and state.stopped < OF_LAUNCH:
        state.stopped = FULL
    return state.stopped >= OF_LAUNCH


@int64_helper
def diverge(state):
    """Stop the block, because its threads have diverged."""
    set_error(state, DIVERGED)
    state.stopped = max(state.stopped, OF_BLOCK)


@int64_helper
def barrier(state) -> bool:
    """Pass a barrier of the block. Return False if the block has to stop. Threads that returned while
    others wait are diverged, which the interpreter explains."""
    if state.returned_count:
        diverge(state)
    state.epoch += 1
    state.barriers += 1
    return state.stopped == 0


@int64_helper
def is_stopped(state) -> bool:
    return state.stopped != 0


# --- threads that must agree --------------------------------------------------------------------------------


@int64_helper
def agree(state, before, now, thread):
    """Return the common exit code of the threads so far. END counts only if all threads return it."""
    if now == END:
        state.returned[thread] = 1
        left = state.own_entry >> SEGMENT_SHIFT
        state.returned_at[thread] = left
        state.returned_at[1024 + (thread >> WARP_SHIFT)] = left
        state.returned_count += 1
        return END if before == NO_THREAD else before
    return agree_warps(state, before, now)


@int64_helper
def agree_warps(state, before, now):
    if before != NO_THREAD and before != END and before != now and now != END:
        diverge(state)
    return before if now == END and before != NO_THREAD else now


@int64_helper
def is_true(state, exit_code) -> bool:
    return exit_code == 1 and state.stopped == 0


@inline_always
def span(start, stop, step):
    return int64(start), int64(stop), int64(step)


@inline_always
def agree_span(state, before, now):
    if before[2] != 0 and before != now:
        diverge(state)
    return now


@int64_helper
def step_of(step):
    """Return the agreed step of a loop. If no thread is left, the step is 0, and any other number works."""
    return step if step != 0 else 1


# --- counted loops ------------------------------------------------------------------------------------------


@int64_helper(inline=False)
def check_interrupt(state) -> bool:
    """Check for Ctrl-C. Return whether the launch ends."""
    if poll_interrupt():
        state.stopped = INTERRUPTED
    return state.stopped >= OF_LAUNCH


@int64_helper
def exhaust(state):
    """End the launch, because a loop has exceeded its limit of iterations."""
    set_error(state, EXHAUSTED)
    state.stopped = max(state.stopped, OF_LAUNCH)


@int64_helper
def count_iteration(state) -> bool:
    """Count an iteration of a `while` loop. Return False when the block has used up its iterations, or has
    stopped."""
    state.while_left -= 1
    if state.while_left < 0:
        exhaust(state)
    elif state.while_left & 0xFFFF == 0:
        check_interrupt(state)
    return state.stopped == 0


@int64_helper
def range_length(start, stop, step):
    if step == 0:
        return 0
    return max(0, (stop - start + step - 1) // step if step > 0 else (stop - start + step + 1) // step)


@int64_helper
def count_iterations(state, count) -> bool:
    """Return whether a `for` loop may run this many iterations. It may not when the block has used up its
    iterations, or has stopped."""
    before = state.for_left
    state.for_left -= count
    if state.for_left < 0:
        exhaust(state)
    elif state.for_left >> 24 != before >> 24:
        check_interrupt(state)
    return state.stopped == 0


@int64_helper
def limit_stop(state, start, stop, step):
    """Return the stop of a `for` loop's range: `start`, for an empty range, if the loop may not run."""
    return stop if count_iterations(state, range_length(start, stop, step)) else start


@intrinsic
def count_range(typing, state, start, stop, step):
    """Return `range(start, stop, step)`, or an empty range if the loop may not run."""

    def code(context, builder, signature, arguments):
        state, *bounds = arguments
        allowed = cgutils.create_struct_proxy(signature.return_type)(context, builder)
        allowed.start, allowed.step = bounds[0], bounds[2]
        allowed.stop = limit_stop.helper.call(context, builder, *arguments)
        return allowed._getvalue()

    return types.range_state64_type(*[int64] * 4), code
