"""Loads whose value a thread may discard.

A compiler may replace a branch around a load and some arithmetic by the instruction selp. The thread then
always executes the load, and selects the result only if the condition of the branch is true.
"""

from sim.ptx.polling import COMPUTING
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Instruction, Register


class SpeculativeLoads:
    """The loads of one function whose values have no effect unless a selp selects them."""

    def __init__(self, function):
        items = [item for item in function.body if isinstance(item, Instruction)]
        # register -> the registers from which its value is computed, without the registers that a selp may
        # ignore
        sources = {}
        used, waiting = set(), []  # registers whose values have an effect
        for item in items:
            read, written = read_and_written(item)
            computes = item.names[0] in COMPUTING and not item.guard
            for name in written if computes else ():
                sources.setdefault(name, set()).update(read - selected(item))
            if not (computes and written):
                waiting += read
        while waiting:
            name = waiting.pop()
            if name not in used:
                used.add(name)
                waiting += sources.get(name, ())
        self.loads = {
            id(item)
            for item in items
            if item.names[0] == "ld" and not item.guard and used.isdisjoint(read_and_written(item)[1])
        }

    def __contains__(self, item):
        return id(item) in self.loads


def selected(item):
    """Return the names of the two registers from which a selp selects, or nothing for other instructions."""
    operands = item.operands[1:3] if item.names[0] == "selp" else ()
    return {operand.name for operand in operands if isinstance(operand, Register)}
