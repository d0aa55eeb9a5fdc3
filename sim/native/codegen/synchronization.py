"""Functions that generated code calls between regions: barriers, iteration limits, and the checks that
threads agree on control flow."""

from numba import int64, types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from sim.native.codegen.int64 import call_python, cpu_clock, int64_helper, poll_interrupt
from sim.native.codegen.linking import CachedTyping
from sim.native.codegen.shadow import (
    DIVERGED,
    EXHAUSTED,
    FULL,
    INTERRUPTED,
    LATE,
    OF_BLOCK,
    OF_LAUNCH,
    SEGMENT_SHIFT,
    SLOW,
    WARP_SHIFT,
    set_error,
)
from sim.native.codegen.translation import inlined

EXPORTED = set(
    "NO_THREAD GO END BREAK CONTINUE agree agree_warps agree_span span step_of is_true begin_block end_block"
    " barrier grid_barrier barrier_after_arrival arrived_at_phase wait_for_phase passed_phase is_stopped"
    " count_iteration count_range poll_stop".split()
)

REPLAY_THRESHOLD = 1 << 16  # at the end of a block, a launch pauses if its log has more entries than this
# After the first limit on iterations, the clock is read again whenever this number of iterations has passed.
FURTHER = 1 << 22
# Exit codes of a region. A region that evaluates a test returns 0 or 1 (see `is_true`), so these codes begin
# at 10.
NO_THREAD, GO, END, BREAK, CONTINUE = -1, 10, 11, 12, 13


@int64_helper
def begin_block(state, threads, position, while_limit, for_limit):
    """Reset the state of a block before it runs.

    position: the linear index of the block.
    while_limit, for_limit: the maximum number of loop iterations in the block.
    """
    state.epoch += 1
    state.block_start = state.epoch
    state.resume_epoch = state.epoch
    state.unordered_epoch = state.epoch
    state.first_epochs[position] = state.epoch
    state.position = position
    if state.call_began == 0:
        state.call_began = cpu_clock()
    state.stopped = 0
    state.errors = 0
    state.noted = 0
    state.missed_barrier = 0
    state.returned_count = 0
    state.while_left = while_limit
    state.further_left = state.further_limit
    state.polled = 0
    state.for_left = for_limit
    state.inactive = 0
    state.awaits = 0
    for thread in range(threads):
        state.returned[thread] = 0
        state.awaited[thread >> WARP_SHIFT] = 0
        state.apart[thread >> WARP_SHIFT] = 0


@int64_helper
def end_block(state) -> bool:
    """Store the block's error flags. Return whether the launch must stop or pause."""
    state.block_errors[state.position] = state.errors
    # Polling costs a call into Python, so poll every 64 blocks, and after each block once there is an error.
    if state.position & 63 == 63 or has_errors(state):
        poll_stop(state)
    if state.log_count > REPLAY_THRESHOLD and state.stopped < OF_LAUNCH:
        state.stopped = FULL
    return state.stopped >= OF_LAUNCH


@int64_helper
def diverge(state):
    """Stop the current block because its threads have diverged."""
    set_error(state, DIVERGED)
    state.stopped = max(state.stopped, OF_BLOCK)


@int64_helper
def check_awaited(state):
    """Stop the block if it has awaited lanes: they may be waiting here (sim.native.codegen.branches)."""
    if state.awaits:
        diverge(state)


@int64_helper(inline=False)
def barrier(state) -> bool:
    """Pass a block-wide barrier. Return False if the block must stop.

    If a thread has returned, the other threads would wait forever at the barrier. This counts as divergence,
    and the interpreter produces the finding.
    """
    if state.returned_count:
        state.missed_barrier = 1 if state.stopped == 0 else 0
        diverge(state)
    check_awaited(state)
    state.epoch += 1
    state.unordered_epoch = state.epoch
    state.barriers += 1
    return state.stopped == 0


@int64_helper
def grid_barrier(state) -> bool:
    """Wait at a grid barrier: let the other blocks run until they arrive there (sim.native.run.grid).

    Return False if the block must stop.
    """
    if barrier(state) and not call_python(state.switch):
        state.stopped = INTERRUPTED
    return state.stopped == 0


@int64_helper
def arrive_at_grid(state, workspace, address):
    """Record that a thread of a PTX kernel arrives at a grid barrier on behalf of its block.

    workspace: the address of the word that counts arrivals.
    address: the address to which the thread adds.
    """
    state.arrived += 1
    if address != workspace:
        diverge(state)


@int64_helper(inline=False)
def barrier_after_arrival(state) -> bool:
    """Pass a block-wide barrier of a PTX kernel with grid barriers (sim.ptx.grid_sync).

    If a thread of the block has arrived at a grid barrier before, the block waits here for the grid barrier.
    Return False if the block must stop.
    """
    arrived = state.arrived
    state.arrived = 0
    if arrived == 0:
        return barrier(state)
    if arrived > 1:
        diverge(state)
    return grid_barrier(state)


# --- mbarriers ----------------------------------------------------------------------------------------------

NOT_PASSING = 1 << 31  # the value of `passing_epoch` until the first thread has waited; exceeds all epochs


@int64_helper
def arrived_at_phase(state) -> bool:
    """Begin an epoch after all threads of a block have arrived at an mbarrier, because a wait only orders the
    accesses before the arrivals. Return False if the block must stop."""
    state.epoch += 1
    return state.stopped == 0


@int64_helper
def wait_for_phase(state) -> bool:
    """Begin a wait of all threads of a block at mbarriers. Return False if the block must stop."""
    check_awaited(state)
    state.passing_epoch = NOT_PASSING
    return state.stopped == 0


@int64_helper
def passed_phase(state) -> bool:
    """End a wait of all threads of a block at mbarriers: the accesses before the arrivals of these phases are
    now ordered before all later accesses. Return False if the block must stop."""
    if state.passing_epoch < NOT_PASSING:
        state.unordered_epoch = max(state.unordered_epoch, state.passing_epoch)
    return state.stopped == 0


@int64_helper
def is_stopped(state) -> bool:
    """Return whether the block or the launch must stop.

    The loops of a whole block or warp call this function in each iteration. It reads the clock in every
    1,024th call, and after an error in every 16th call.
    """
    state.polls += 1
    if state.polls & (15 if has_errors(state) else 1023) == 0:
        poll_stop(state)
    return state.stopped != 0


# --- agreement between threads ------------------------------------------------------------------------------


@int64_helper
def agree(state, before, now, thread):
    """Combine a thread's exit code with the code agreed on by the threads before it.

    Return the code now agreed on. Threads diverge if their codes differ. A thread that has returned takes no
    part in later decisions, so END agrees with every other code. The result is END only if every thread
    returned END.

    before: the code of the threads so far, or NO_THREAD.
    now: the code of this thread.
    """
    if now == END:
        state.returned[thread] = 1
        # Record the segment in which the thread returned. From index 1024 on, there is one element per warp.
        segment = state.own_entry >> SEGMENT_SHIFT
        state.returned_at[thread] = segment
        state.returned_at[1024 + (thread >> WARP_SHIFT)] = segment
        state.returned_count += 1
        return END if before == NO_THREAD else before
    return agree_warps(state, before, now)


@int64_helper
def agree_warps(state, before, now):
    """Combine the exit codes of warps in the same way as `agree`, but without recording returned threads."""
    if before != NO_THREAD and before != END and before != now and now != END:
        diverge(state)
    return before if now == END and before != NO_THREAD else now


@int64_helper
def is_true(state, exit_code) -> bool:
    """Return whether the threads agreed that a test is true. Return False if the block has stopped."""
    return exit_code == 1 and state.stopped == 0


@intrinsic
def span(typing, given):
    """Return the start, the stop and the step of a range as int64 values. `given` is a tuple of the arguments
    of `range`.

    Reject a range of unsigned numbers, as its loop variable would become signed. The kernel is then
    interpreted.
    """
    if is_unsigned_range(typing, *given):
        raise TypingError("a loop around a barrier has an unsigned range")

    def code(context, builder, signature, arguments):
        return context.make_tuple(
            builder, signature.return_type, bounds_of(context, builder, given, *arguments)
        )

    return types.UniTuple(int64, 3)(given), code


def bounds_of(context, builder, given, packed):
    """Return the start, the stop and the step of a range as int64 values, from a tuple of the arguments of
    `range`. `given` is the type of the tuple."""
    ends = [
        context.cast(builder, end, type_, int64)
        for end, type_ in zip(cgutils.unpack_tuple(builder, packed), given)
    ]
    zero, one = (context.get_constant(int64, number) for number in (0, 1))
    return [zero, *ends, one] if len(ends) == 1 else [*ends, one][:3]


@inlined
def agree_span(state, before, now):
    """Compare the range of a thread with the range agreed on by the threads before it, and return the
    thread's range. Threads diverge if their ranges differ.

    before, now: (start, stop, step). A step of 0 in `before` means that no thread has been seen yet.
    """
    if before[2] != 0 and before != now:
        diverge(state)
    return now


@int64_helper
def step_of(step):
    """Return the step agreed on for a loop.

    If all threads have returned, the step is 0, which Python rejects. Return 1 instead: the loop body then
    does nothing.
    """
    return step if step != 0 else 1


# --- iteration limits ---------------------------------------------------------------------------------------


@int64_helper
def takes_long(state) -> bool:
    """Return whether a call of quick code has run for longer than `quick_time`."""
    return state.quick_time != 0 and cpu_clock() > state.call_began + state.quick_time


@int64_helper
def has_errors(state) -> bool:
    """Return whether an error has occurred after which the launch has a time limit."""
    return state.errors & state.ending_flags != 0 or state.deadline != 0


@int64_helper(inline=False)
def poll_stop(state) -> bool:
    """Stop the launch if the user pressed Ctrl-C, if its first error is too long ago, or if quick code has
    run for too long. Return whether the launch must stop.

    If a loop calls this function, the flag EXHAUSTED shows that its block has not run to the end. At the end
    of a block, the flag has no effect.
    """
    if poll_interrupt():
        state.stopped = INTERRUPTED
    # If a limit on iterations has stopped the launch, later error flags are meaningless.
    elif has_errors(state) and state.stopped < OF_LAUNCH:
        now = cpu_clock()
        if state.deadline == 0:
            # Most errors are found when a block ends. The time of this block counts, because the next block
            # would take as long. It does not count in a RecordedRun: such a run has to continue
            # after each error, to find where threads wait.
            state.deadline = (now if state.records != 0 else state.call_began) + state.time_after_error
        if now > state.deadline:
            set_error(state, EXHAUSTED)
            state.stopped = max(state.stopped, LATE)
    elif state.stopped < OF_LAUNCH and takes_long(state):
        state.stopped = SLOW
    return state.stopped >= OF_LAUNCH


@int64_helper
def exhaust(state):
    """Stop the launch because its loops exceeded an iteration limit.

    The threads leave their loops early, so error flags that are set later are meaningless.
    """
    if not state.errors & EXHAUSTED:
        state.errors_at_limit = state.errors
    set_error(state, EXHAUSTED)
    state.stopped = max(state.stopped, OF_LAUNCH)


@int64_helper
def count_iteration(state, threads) -> bool:
    """Count one iteration of a `while` loop for each of the threads that execute it together. Return False if
    the limit is exceeded or the block has stopped."""
    before = state.while_left
    state.while_left -= threads
    if state.while_left < 0 and not continues(state):
        exhaust(state)
    # Polling costs a call into Python, so poll every 65,536 iterations.
    elif state.while_left >> 16 != before >> 16:
        note_poll(state)
        poll_stop(state)
    return state.stopped == 0


@int64_helper(inline=False)
def note_poll(state):
    """Store the CPU time of the first poll in a `while` loop of the block."""
    if state.polled == 0:
        state.polled = cpu_clock()


@int64_helper(inline=False)
def continues(state) -> bool:
    """Let a block that has reached the first limit run further iterations, if it has not run for long.
    Return whether it may continue."""
    if state.further_left <= 0 or cpu_clock() - state.polled > state.first_time:
        return False
    more = min(state.further_left, FURTHER)
    state.further_left -= more
    state.while_left += more
    return True


@int64_helper
def range_length(start, stop, step):
    """Return `len(range(start, stop, step))`. A step of 0 gives 0 instead of an error."""
    if step == 0:
        return 0
    return max(0, (stop - start + step - 1) // step if step > 0 else (stop - start + step + 1) // step)


@int64_helper
def count_iterations(state, count) -> bool:
    """Subtract the iterations of a `for` loop from the block's remaining iterations. Return False if none
    remain or the block has stopped."""
    before = state.for_left
    state.for_left -= count
    if state.for_left < 0:
        exhaust(state)
    elif state.for_left >> 20 != before >> 20:
        poll_stop(state)
    return state.stopped == 0


@int64_helper
def limit_stop(state, start, stop, step):
    """Return `stop` of a `for` loop's range, or `start` if the loop must not run."""
    return stop if count_iterations(state, range_length(start, stop, step)) else start


@intrinsic
def count_range(typing, state, given):
    """Return `range(*given)`, or an empty range if the iteration limit is exceeded or the block has stopped.

    The loop variable is unsigned if Numba makes it unsigned, and otherwise an int64.
    """
    range_type = types.range_state64_type
    if is_unsigned_range(typing, *given):
        range_type = types.unsigned_range_state64_type

    def code(context, builder, signature, arguments):
        state, packed = arguments
        start, stop, step = bounds_of(context, builder, given, packed)
        stop = limit_stop.helper.call(context, builder, state, start, stop, step)
        return cgutils.make_anonymous_struct(builder, [start, stop, step])

    return range_type(state, given), code


def is_unsigned_range(typing, *ends):
    """Return whether Numba's `range` of numbers with these types yields unsigned numbers."""
    ends = tuple(map(types.unliteral, ends))
    if not all(isinstance(end, types.Integer | types.Boolean) for end in ends):
        return False
    typing = CachedTyping(typing)
    found = typing.resolve_function_type(typing.resolve_value_type(range), ends, {})
    return found.return_type.dtype == types.uint64
