"""The words of one launch that compiled code reads and writes; it gets their address, and functions of words
(sim.native.codegen.int64) call them by name."""

import ctypes
import functools
from math import prod

import numpy as np

THREADS, WARPS, MOST_UNSET = 1024, 32, 64

WORDS = {
    "dirty": 1,  # what is not in order in the running block (sim.native.codegen.shadow)
    "stopped": 1,  # whether it, or the launch, is to end
    "wrote": 1,  # whether anybody has written to global memory
    "me": 1,  # the running thread, as a shadow word has it
    "block_start": 1,  # the first epoch of the running block
    "rounds": 1,  # of `while` loops, and
    "trips": 1,  # of `for` loops, that the block may still make
    "ended": 1,  # threads of the block that have returned
    "barriers": 1,
    "epoch": 1,
    "position": 1,  # of the block in a walk over the grid
    "starts": 1,  # the address of a word for each block: its first epoch
    "found": 1,  # the same: its `dirty` at the end
    "foreign": 1,  # an epoch of another block that has read or changed something that this one also has
    "pairs": 1,  # the address of a list of (position, epoch of another block that it races with),
    "pair_count": 1,  # how many there are,
    "pair_room": 1,  # and how many there may be
    "log": 1,  # the same of the access log (sim.native.codegen.access_log)
    "log_count": 1,
    "log_room": 1,
    "segments": WARPS,  # how often the lanes of each warp have synchronised
    "indices": THREADS,  # threadIdx of each thread, as x | y << 16 | z << 32
    # for each read of a variable that may have no value, 0, or 1 + 1024 * block + thread of the first that
    # had none
    "unset": MOST_UNSET,
    # for each thread, and behind them for each warp, the epoch and segment (as in a shadow word) in which it,
    # or the last of it, returned
    "left": THREADS + WARPS,
    "returned": THREADS,  # whether each thread has returned
}


class State(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_int64 * count if count > 1 else ctypes.c_int64) for name, count in WORDS.items()
    ]

    def __init__(self, block):
        """Of a launch with blocks of this shape."""
        super().__init__()
        self.address, self.indices[: prod(block)] = ctypes.addressof(self), indices_of(block)


FIELDS = {name: getattr(State, name) for name in WORDS}  # as int64 helpers address them


@functools.cache
def indices_of(block):
    thread = np.arange(prod(block))
    return (
        thread % block[0] | thread // block[0] % block[1] << 16 | thread // (block[0] * block[1]) << 32
    ).tolist()
