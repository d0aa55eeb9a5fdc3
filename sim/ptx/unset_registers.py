"""Registers that a function reads before any instruction has set them.

NVRTC leaves such registers in the PTX if the source does not set a variable (`float s; s += x;`), or does not
call fill_fragment for an accumulator of `wmma`. Such a register has an undefined value. The value is tracked
like an undefined value from local memory (sim.ptx.undefined), from the first instruction that reads the
register.

For this analysis, an instruction with a guard counts as setting its result, even though it has no effect if
the guard is false. Triton and inline PTX set a register by several instructions with opposite guards, and do
not use the register if no guard is true.
"""

from dataclasses import replace

import numpy as np

from sim.isa.ptx_types import REALS
from sim.isa.registers import WIDTHS
from sim.memory.spaces import fresh_memory
from sim.ptx.register_kinds import read_and_written, registers_in
from sim.ptx.syntax import Instruction, Variable


def registers_read_unset(blocks, guarded=False):
    """Return the registers that are live at the function's entry: some path reads them before setting them.

    These registers have undefined values in PTX. A read alone is not an error, so the translated source gives
    them initial values.

    guarded: whether an instruction with a guard counts as setting its result.
    """
    reads, writes = {}, {}
    for block in blocks:
        before, after = set(), set()
        for item in (*block.body, *((block.branch,) if block.branch else ())):
            if not isinstance(item, Variable):
                read, written = read_and_written(item)
                if guarded and item.guard:
                    written = read_and_written(replace(item, guard=None))[1]
                    read = read - written
                before |= read - after
                after |= written
        reads[id(block)], writes[id(block)] = before, after
    # This is backward data-flow analysis up to the fixed point: live-in = reads | (live-out - writes).
    live, changed = {id(block): set() for block in blocks}, True
    while changed:
        changed = False
        for block in reversed(blocks):
            behind = set().union(*(live[id(t)] for t in block.targets if t is not None))
            now = reads[id(block)] | behind - writes[id(block)]
            changed |= now != live[id(block)]
            live[id(block)] = now
    return live[id(blocks[0])]


def first_reader(function, name):
    """Return (instruction, Register): the first instruction in a function's text that reads the register."""
    readers = (i for i in function.body if isinstance(i, Instruction) and name in read_and_written(i)[0])
    item = next(readers)
    return item, next(register for register in registers_in(item) if register.name == name)


def undefined_value(kind, ptx_type, poison):
    """Return the value of an unset register: zero, or in a rerun the pattern `poison`.

    kind, ptx_type: the register's kind (sim.ptx.register_kinds) and its declared type.
    """
    nbytes = max(WIDTHS.get(ptx_type, 8) // 8, 1)
    filled = fresh_memory(nbytes, np.dtype(f"u{nbytes}"), 0 if poison is None else poison)
    if kind in REALS:
        return filled.view(REALS[kind])[0]
    return bool(filled.any()) if kind == "pred" else int.from_bytes(filled.tobytes(), "little")
