"""Mbarriers of a compiled PTX launch.

Compiled code runs the threads of a block one after another, up to the same arrival or wait. It therefore
supports mbarriers at which all threads of a block arrive, and for whose phases all threads wait together.
At such a wait, the phase is either complete, or nothing in the block can complete it. An incomplete phase
stops the block, and so does every error. The interpreter then runs the block, and produces the findings.

A phase orders the accesses before its arrivals before the accesses after the wait. All threads arrive in the
same epoch of shadow memory, and the wait orders this epoch and all earlier ones (sim.native.codegen.shadow).

The result must hold for every order of the threads. The block is therefore marked, and the interpreter
decides, in four cases:

- a thread does not arrive in a phase
- a thread arrives in a phase for a second time
- a thread arrives in the next phase, and an arrival of this phase is not ordered before it
- a thread arrives in the next phase before it waits for this phase

The bytes of asynchronous copies that a barrier tracks arrive at the wait, if the phase is not complete
without them.
"""

import numpy as np

from sim.isa.mbarrier import COUNT_BITS, MAX_COUNT
from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.shadow import DIVERGED, RACE, set_error
from sim.native.codegen.synchronization import diverge
from sim.native.ptx.copies import arrive_tracked, next_copy
from sim.native.ptx.memory import MBARRIERS

CAPACITY = 64  # the maximum number of mbarriers of a block; a block with more is rerun in the interpreter
# Fields at the start of the array of mbarriers, in int64:
# COUNT    number of mbarriers that the block has initialised
# THREADS  number of threads per block
# BYTES    size of an mbarrier in this array
COUNT, THREADS, BYTES, HEADER = range(4)
# Fields of an mbarrier, in int64:
# HOST      its address on the host, or 0 if it has been invalidated
# EXPECTED  number of arrivals per phase
# PENDING   number of arrivals still missing in the current phase
# PHASE     current phase, counted from 0
# ORDER     epoch of the first arrival in the last complete phase
# LATEST    epoch of the last arrival in the last complete phase
# TRACKED   number of arrivals that tracked copies will cause
# They are followed by three arrays over the threads:
# - the last arrival: the epoch in the lower 32 bits, and above them 1 + the phase
# - the number of arrivals that the thread's tracked copies will cause
# - the index that follows the thread's last tracked copy in its ring buffer
HOST, EXPECTED, PENDING, PHASE, ORDER, LATEST, TRACKED, FIELDS = range(8)
EPOCH = (1 << 32) - 1


def make_mbarriers(threads):
    """Return the array for the mbarriers of a block."""
    size = FIELDS + 3 * threads
    array = np.zeros(HEADER + CAPACITY * size, np.int64)
    array[THREADS], array[BYTES] = threads, 8 * size
    return array


@int64_helper(inline=False)
def mbarrier_at(table, host):
    """Return the address of the mbarrier that is at an address on the host, or 0."""
    barriers = table[MBARRIERS]
    for position in range(barriers[COUNT]):
        barrier = barriers + 8 * HEADER + barriers[BYTES] * position
        if barrier[HOST] == host:
            return barrier
    return 0


@int64_helper(inline=False)
def initialise(table, state, host, count):
    """Create the mbarrier at an address on the host."""
    barriers = table[MBARRIERS]
    if count < 1 or count > MAX_COUNT or barriers[COUNT] == CAPACITY or mbarrier_at(table, host) != 0:
        diverge(state)
        return 0
    barrier = barriers + 8 * HEADER + barriers[BYTES] * barriers[COUNT]
    barriers[COUNT] += 1
    for field in range(FIELDS + 3 * barriers[THREADS]):
        barrier[field] = 0
    barrier[HOST] = host
    barrier[EXPECTED] = count
    barrier[PENDING] = count
    return 0


@int64_helper(inline=False)
def invalidate(table, host):
    """Remove the mbarrier at an address on the host."""
    barrier = mbarrier_at(table, host)
    if barrier != 0:
        barrier[HOST] = 0


@int64_helper(inline=False)
def arrive_at(table, thread, state, host, count):
    """Let a thread arrive `count` times. Return the state of the mbarrier before the arrival."""
    barrier = mbarrier_at(table, host)
    if barrier == 0:
        diverge(state)
        return 0
    check_phase_order(barrier, thread, state)
    before = barrier[PHASE] << COUNT_BITS | barrier[PENDING]
    barrier[FIELDS + thread] = barrier[PHASE] + 1 << 32 | state.epoch
    count_arrivals(table, state, barrier, count)
    return before


@int64_helper
def check_phase_order(barrier, thread, state):
    """Mark the block if the arrival of a thread could belong to another phase in another order of the
    threads.

    This is so if the thread has already arrived in the current phase, or if an arrival in the last complete
    phase is not ordered before this one.
    """
    if barrier[FIELDS + thread] >> 32 > barrier[PHASE]:
        set_error(state, DIVERGED)
    if barrier[PHASE] != 0 and barrier[LATEST] >= state.unordered_epoch:
        set_error(state, DIVERGED)


@int64_helper(inline=False)
def count_arrivals(table, state, barrier, count):
    """Count arrivals, and begin the next phase if none is missing."""
    if count < 1 or count > barrier[PENDING]:
        diverge(state)
        return 0
    barrier[PENDING] -= count
    if barrier[PENDING] == 0:
        threads, arrivals = table[MBARRIERS][THREADS], barrier + 8 * FIELDS
        barrier[PHASE] += 1
        barrier[PENDING] = barrier[EXPECTED]
        barrier[ORDER] = EPOCH
        barrier[LATEST] = 0
        for thread in range(threads):
            if arrivals[thread] >> 32 != barrier[PHASE]:
                set_error(state, RACE)
            barrier[ORDER] = min(barrier[ORDER], arrivals[thread] & EPOCH)
            barrier[LATEST] = max(barrier[LATEST], arrivals[thread] & EPOCH)
    return 0


@int64_helper(inline=False)
def track(table, thread, state, host, adds):
    """Let an mbarrier count one arrival once all copies of the thread are complete.

    adds: 1 if this arrival is an additional one, or 0 if it is one of the expected arrivals.
    """
    barrier = mbarrier_at(table, host)
    if barrier == 0 or barrier[PENDING] + adds > MAX_COUNT:
        diverge(state)
        return 0
    check_phase_order(barrier, thread, state)
    threads = table[MBARRIERS][THREADS]
    barrier[PENDING] += adds
    barrier[TRACKED] += 1
    barrier[FIELDS + threads + thread] += 1
    barrier[FIELDS + 2 * threads + thread] = next_copy(table, thread)
    return 0


@int64_helper(inline=False)
def complete_copies(table, state, barrier):
    """Complete the copies that an mbarrier tracks, and count their arrivals."""
    threads, tracked = table[MBARRIERS][THREADS], barrier[TRACKED]
    numbers = barrier + 8 * (FIELDS + threads)
    barrier[TRACKED] = 0
    for thread in range(threads):
        if numbers[thread] != 0:
            numbers[thread] = 0
            arrive_tracked(table, thread, state, numbers[threads + thread])
    count_arrivals(table, state, barrier, tracked)


@int64_helper
def is_incomplete(barrier, operand, by_parity):
    """Return whether the phase that an operand of a wait identifies is the current one."""
    if by_parity:
        return barrier[PHASE] & 1 == operand & 1
    return barrier[PHASE] == operand >> COUNT_BITS


@int64_helper(inline=False)
def wait_at(table, thread, state, host, operand, by_parity):
    """Let a thread wait for a phase.

    operand: the parity of the phase if `by_parity` is 1, or else the state that an arrival has returned.
    """
    barrier = mbarrier_at(table, host)
    if barrier == 0:
        diverge(state)
        return 0
    if is_incomplete(barrier, operand, by_parity) and barrier[TRACKED] != 0:
        complete_copies(table, state, barrier)
    if is_incomplete(barrier, operand, by_parity):
        diverge(state)
        return 0
    if barrier[FIELDS + thread] >> 32 > barrier[PHASE]:
        set_error(state, RACE)
    # A wait for an older phase orders nothing: in another order of the threads, it ends before the last
    # complete phase ends.
    is_last = barrier[PHASE] != 0 and (by_parity or operand >> COUNT_BITS == barrier[PHASE] - 1)
    state.passing_epoch = min(state.passing_epoch, barrier[ORDER] + 1 if is_last else 0)
    return 0


@int64_helper(inline=False)
def check_count_down(table, state, value):
    """Check the counter in a destructor of the library (sim.ptx.destructors): compiled code leaves it
    unchanged, so it must contain the number of threads."""
    if value != table[MBARRIERS][THREADS]:
        diverge(state)


@int64_helper(inline=False)
def check_exists(table, state, host):
    """Stop the block unless there is an mbarrier at an address on the host."""
    if mbarrier_at(table, host) == 0:
        diverge(state)
