"""Execution of a cooperative launch in compiled code. Each block is a coroutine that returns control at each
grid barrier.

All blocks use the same addresses for shared memory, local memory and the launch state. When a block returns
control, its memory and its fields of the state are copied, and they are restored when the block continues.
Each block has a spill buffer of its own. The local variables of its compiled functions stay on its stack,
which a greenlet preserves.
"""

import ctypes
import functools

import numpy as np
from greenlet import getcurrent, greenlet

from sim.native.codegen.shadow import DIVERGED, EXHAUSTED, OF_BLOCK, OF_LAUNCH

SAVED = "position block_start errors while_left for_left".split()  # fields of the launch state of one block
# Until the interpreter has examined whether a loop is endless, continuing a block counts as ITERATIONS
# iterations of a loop. Afterwards, blocks continue at most MOST_TURNS times in total, which takes about 20 s.
ITERATIONS, MOST_TURNS = 1 << 8, 1 << 22


class CompiledBlock:
    """A block of a cooperative launch.

    attempt: the Attempt.
    position: the linear index of the block.
    """

    def __init__(self, attempt, position):
        self.attempt, self.state, self.fields, self.memory = attempt, attempt.state, None, ()
        self.apart = []  # the field of the launch state with this name
        run = functools.partial(attempt.run_blocks, position, position + 1, attempt.spill_address())
        self.greenlet = greenlet(run)

    @property
    def ended(self):
        return self.greenlet.dead

    def resume(self):
        """Run the block to its next grid barrier or to its end. If the launch has stopped, the block returns
        at once."""
        state = self.state
        if self.fields:
            for array, contents in zip(self.attempt.block_memory, self.memory):
                np.copyto(array, contents)
            for name, value in zip(SAVED, self.fields):
                setattr(state, name, value)
            state.apart[:] = self.apart
            ctypes.memset(state.returned, 0, ctypes.sizeof(state.returned))
            state.returned_count = 0
            state.epoch += 1
            state.resume_epoch = state.unordered_epoch = state.epoch
        self.greenlet.switch()
        if not self.ended:
            self.fields = [getattr(state, name) for name in SAVED]
            self.apart = state.apart[:]
            self.memory = [array.copy() for array in self.attempt.block_memory]
            self.attempt.block_errors[state.position] = state.errors


def run_grid(attempt):
    """Run all blocks of a cooperative launch. After an error, the launch ends at the next grid barrier, so
    that the interpreter can explain the error."""
    state, total = attempt.state, attempt.launch.blocks
    switch = getcurrent().switch  # compiled code calls this method at a grid barrier
    state.switch = id(switch)
    blocks = [CompiledBlock(attempt, position) for position in range(total)]
    is_first = attempt.while_limit < attempt.most_iterations
    turns = attempt.while_limit // ITERATIONS if is_first else MOST_TURNS
    try:
        while blocks and not (attempt.block_errors & attempt.enabled_flags()).any():
            state.phase_epoch = state.epoch + 1
            for block in blocks:
                block.resume()
                if state.stopped >= OF_LAUNCH:
                    return
            waiting = [block for block in blocks if not block.ended]
            if 0 < len(waiting) < total:  # the other blocks never arrive at the grid barrier
                attempt.block_errors[state.position] |= DIVERGED
                return
            blocks, turns = waiting, turns - total
            if turns < 0:
                attempt.block_errors[state.position] |= EXHAUSTED
                state.stopped, state.while_left = OF_LAUNCH, -1
                return
    finally:
        unwind(attempt, blocks)


def unwind(attempt, blocks):
    """Let the blocks that wait at a grid barrier return. Keep the state and the errors of the launch."""
    state, errors = attempt.state, attempt.block_errors.copy()
    kept = {name: getattr(state, name) for name in ("stopped", *SAVED)}
    for block in blocks:
        if block.fields and not block.ended:
            state.stopped = max(kept["stopped"], OF_BLOCK)
            block.greenlet.switch()
    attempt.block_errors[:] = errors
    for name, value in kept.items():
        setattr(state, name, value)
