"""The state of one launch, which compiled code reads and writes as int64 fields. int64 runtime helpers
(sim.native.codegen.int64) access the fields by name."""

import ctypes
import functools
from math import prod

import numpy as np

THREADS, WARPS, MOST_UNSET = 1024, 32, 64

FIELD_SIZES = {
    "errors": 1,  # error flags of the running block (sim.native.codegen.shadow)
    "stopped": 1,  # not 0: the block, or the launch, has to end (codes in sim.native.codegen.shadow)
    "wrote": 1,  # whether a thread has written to global memory
    "own_entry": 1,  # the running thread, as an entry of shadow memory
    "block_start": 1,  # the first epoch of the running block
    "while_left": 1,  # iterations of `while` loops that the block may still run
    "for_left": 1,  # the same for `for` loops
    "returned_count": 1,  # number of the block's threads that have returned
    "barriers": 1,
    "epoch": 1,
    "position": 1,  # of the running block in the grid, x fastest
    "first_epochs": 1,  # address of an array over blocks: the first epoch of each
    "block_errors": 1,  # address of an array over blocks: `errors` at the end of each
    "pairs": 1,  # address of a list of (position, epoch of another block that it races with)
    "pair_count": 1,  # number of pairs recorded
    "pair_room": 1,  # capacity of the list
    "log": 1,  # address of the access log (sim.native.codegen.access_log); its count and capacity follow
    "log_count": 1,
    "log_room": 1,
    "segments": WARPS,  # number of synchronisations of each warp's lanes
    "indices": THREADS,  # threadIdx of each thread, as x | y << 16 | z << 32
    # for each read of a variable that may have no value, 0, or 1 + 1024 * block + thread of the first that
    # had none
    "unset": MOST_UNSET,
    # for each thread, and after the threads for each warp, the epoch and segment (as in shadow memory) in
    # which the thread, or the last thread of the warp, returned
    "returned_at": THREADS + WARPS,
    "returned": THREADS,  # whether each thread has returned
}


class State(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64 * count if count > 1 else ctypes.c_int64) for name, count in FIELD_SIZES.items()
    ]

    def __init__(self, block):
        """Create the state of a launch with blocks of this shape."""
        super().__init__()
        self.address, self.indices[: prod(block)] = ctypes.addressof(self), indices_of(block)


FIELDS = {name: getattr(State, name) for name in FIELD_SIZES}  # as int64 helpers address them


@functools.cache
def indices_of(block):
    thread = np.arange(prod(block))
    return (
        thread % block[0] | thread // block[0] % block[1] << 16 | thread // (block[0] * block[1]) << 32
    ).tolist()
