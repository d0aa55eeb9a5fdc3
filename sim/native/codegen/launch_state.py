"""The state of one launch: a C structure of int64 fields that compiled code reads and writes.

int64 runtime helpers (sim.native.codegen.int64) access the fields by name.
"""

import ctypes
import functools
from math import prod

import numpy as np

# the maximum numbers of threads per block, warps per block, recorded reads of unassigned variables, nested
# loops around barriers, and recorded barriers of a side
THREADS, WARPS, MAX_UNSET, DEPTHS, PASSED = 1024, 32, 64, 16, 16

# Field -> number of its int64 elements. Addresses refer to numpy arrays that the launch keeps alive.
FIELD_SIZES = {
    "errors": 1,  # error flags of the current block (sim.native.codegen.shadow)
    "stopped": 1,  # nonzero if the block or launch has to stop; codes in sim.native.codegen.shadow
    "wrote": 1,  # 1 if any thread has written to global memory
    "read": 1,  # 1 if any thread has loaded an element of an argument
    "own_entry": 1,  # shadow-memory entry of the current thread
    "block_start": 1,  # first epoch of the current block
    "resume_epoch": 1,  # epoch in which the current block began, or passed its last grid barrier
    "phase_epoch": 1,  # first epoch after the last grid barrier; all earlier epochs have smaller numbers
    "while_left": 1,  # remaining iterations of `while` loops in the current block
    "further_limit": 1,  # iterations that a block may run after `while_left` is used up, within `first_time`
    "further_left": 1,  # number of the iterations of `further_limit` that remain in the current block
    "first_time": 1,  # CPU time after the block's first poll within which it may run these iterations
    "polled": 1,  # CPU time of the first poll in a `while` loop of the current block, or 0
    "for_left": 1,  # remaining iterations of `for` loops in the current block
    "errors_at_limit": 1,  # error flags of a block when it exceeded a limit of iterations
    "ending_flags": 1,  # mask of the error flags that end the launch after some time
    # CPU time after which a launch with an error in `ending_flags` ends, in units of `cpu_clock`
    "time_after_error": 1,
    "call_began": 1,  # CPU time at which the current call of the grid function began, or 0
    "polls": 1,  # number of iterations of loops around synchronisation points
    "quick_time": 1,  # CPU time after which a call of quick code stops the launch, or 0
    "deadline": 1,  # CPU time at which the launch ends, or 0 before the first error in `ending_flags`
    "returned_count": 1,  # number of threads of the current block that have returned
    "arrived": 1,  # number of arrivals at a grid barrier of PTX by threads of the current block
    "switch": 1,  # address of the Python function that lets the other blocks run to the grid barrier
    "barriers": 1,  # number of block-wide barriers that opened so far, in all blocks
    "epoch": 1,  # current epoch: increases with each block, barrier and arrival at an mbarrier
    "unordered_epoch": 1,  # first epoch of the block that is not ordered before the current accesses
    "passing_epoch": 1,  # `unordered_epoch` after the current wait at mbarriers
    "position": 1,  # linear index of the current block in the grid, x fastest
    "first_epochs": 1,  # address of an array over blocks: first epoch of each block
    "block_errors": 1,  # address of an array over blocks: `errors` at the end of each block
    "pairs": 1,  # address of an array of pairs: linear index of a block, epoch of a block it races with
    "pair_count": 1,  # number of pairs of racing blocks recorded so far
    "pair_room": 1,  # capacity of `pairs`
    "noted": 1,  # the error flags of the current block that have been recorded
    "records": 1,  # address of the rows of sim.native.codegen.error_records, or 0
    "record_count": 1,  # number of rows recorded so far, including overwritten rows
    "recent": 1,  # address of the rows of the most recent events, or 0 if they are not stored
    "recent_count": 1,  # number of events stored in `recent` so far, including overwritten ones
    "trap": 1,  # address, as in a log entry, of the bytes whose accesses are recorded, or 0
    "trap_end": 1,  # end of the bytes of `trap`, exclusive
    "flipped": 1,  # the bits to invert in the bytes that fill unwritten shared memory
    "missed_barrier": 1,  # 1 if threads of the block wait at a barrier, and others have returned
    # The fields of sim.native.codegen.sides. If the threads of a block disagree about where to continue, a
    # side consists of the threads with the same decision.
    "side": 1,  # the side that the run follows, 1 or 2, or 0
    "split": 1,  # 1 at the first disagreement, and 2 from the next decision on
    "by_range": 1,  # 1 if the first disagreement is about the range of a loop that has not begun
    "synchronized": 1,  # 1 if the side has passed a synchronisation point since the first disagreement
    "first_result": 1,  # the result of the first side at the first disagreement
    "second_result": 1,  # the result of the second side at the first disagreement
    "passed": 1,  # number of block-wide barriers that the side has reached since the first disagreement
    "last_barrier": 1,  # index of the barrier at which the block stops, counted like `passed`
    "unfinished": 1,  # 0 if the side has run to its end, or to a point where it waits
    "barrier_site": 1,  # index of the site of the block's last barrier, in code that can follow a side
    "barrier_depth": 1,  # number of loops around that barrier
    "iterations": DEPTHS,  # for each depth: number of iterations that the last loop around barriers has begun
    "barrier_sites": PASSED,  # indices of the sites of the first barriers that the side has reached
    "warp_site": 1,  # index of the site of the last warp operation, in code that can follow a side
    "waiting_warp": 1,  # number of the warp that waits for absent lanes
    # mask of the operation at which `waiting_warp` waits, or 0 if no warp waits for absent lanes
    "waiting_mask": 1,
    # 1 + the byte that fills the values of absent lanes, whose threads then count as returned, or 0
    "absent_fill": 1,
    "reader": 1,  # 1 + index in its block of the first thread that reads from an absent lane, or 0
    "read_lane": 1,  # the lane from which `reader` reads
    "read_site": 1,  # index of the site of the warp operation, in code that can follow a side
    "excluded": 1,  # 1 + index of the first thread of the block whose mask does not include itself, or 0
    "excluding_mask": 1,  # the mask that this thread passes
    # The fields of sim.native.codegen.branches. Each element of `awaited` and `apart` belongs to one warp.
    "inactive": 1,  # mask of the lanes of the current warp that skip the current arm of a branch
    "awaits": 1,  # 1 if the block has awaited lanes
    "awaited": WARPS,  # lanes that must return before they synchronise again
    "apart": WARPS,  # lanes that have executed a warp operation in a divergent branch
    "log": 1,  # address of the access log (sim.native.codegen.access_log)
    "log_count": 1,  # number of entries in `log`, including entries that did not fit
    "log_room": 1,  # capacity of `log`, in entries
    "segments": WARPS,  # number of synchronisations within each warp so far, modulo 2**16
    "indices": THREADS,  # threadIdx of each thread, as x | y << 16 | z << 32
    # For each checked read: 0, or 1 + 1024 * block + thread for the first thread whose variable was
    # unassigned.
    "unset": MAX_UNSET,
    # Epoch and segment at which each thread returned. Then, for each warp, the epoch and segment at which its
    # last thread returned.
    "returned_at": THREADS + WARPS,
    # 1 for a thread that has returned, sides.ABSENT for a thread that the run does not follow, and
    # branches.INACTIVE for a thread that skips the current arm of a branch
    "returned": THREADS,
}


class State(ctypes.Structure):
    """The structure whose address compiled code receives. All fields start at 0."""

    _fields_ = [
        (name, ctypes.c_int64 * count if count > 1 else ctypes.c_int64) for name, count in FIELD_SIZES.items()
    ]

    def __init__(self, block):
        """Create the state of a launch.

        block: the block shape.
        """
        super().__init__()
        self.address, self.indices[: prod(block)] = ctypes.addressof(self), indices_of(block)


# The ctypes descriptors of the fields, which contain their offsets and sizes.
FIELDS = {name: getattr(State, name) for name in FIELD_SIZES}


@functools.cache
def indices_of(block):
    """Return the threadIdx of every thread of a block of this shape, packed as in the field `indices`."""
    thread = np.arange(prod(block))
    return (
        thread % block[0] | thread // block[0] % block[1] << 16 | thread // (block[0] * block[1]) << 32
    ).tolist()
