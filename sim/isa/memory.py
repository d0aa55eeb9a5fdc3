"""Entries for instructions by which one thread accesses memory: a few neighbouring bytes at a time, at
once or asynchronously."""

from dataclasses import dataclass

from sim.isa.table import GRID, INSTRUCTIONS, THREAD, YIELDING, Entry, parameters_of


@dataclass(frozen=True, eq=False)
class MemoryInstruction(Entry):
    """An instruction by which one thread accesses memory. `semantics`: (memory, *arguments), with a
    sim.memory.transfer.Memory."""

    scope = THREAD

    @property
    def parameters(self):
        """The names of a call's arguments."""
        return [parameter.name for parameter in parameters_of(self.semantics, "memory")[1:]]


def memory_instruction(*, source, name=None, ptx=(), touches=(), stands_for=None, yields=False):
    """Add a function to the table, as an instruction by which one thread accesses memory. Return the
    MemoryInstruction.

    The function takes `memory`, then the arguments of a call. The interpreter calls it; there is no compiled
    form. `memory` has these methods:

        read(array, index, size)   returns `size` bytes of neighbouring elements; the address has to be a
                                   multiple of the size, or of a fourth argument
        send(array, index, data)   writes bytes when they arrive; source=, a Spot that memory.source returned,
                                   is the memory that is read until then
        commit()                   makes a group of everything that was sent
        receive(n)                 waits for all groups except the newest n
        fence(reach)               orders the accesses before it and after it
        yield_turn()               lets other threads run first

    source, name, ptx, touches, stands_for: as for sim.isa.instruction.
    yields: whether other threads may run at this instruction, because a thread may wait for them by repeating
        it.

    Errors: ValueError for a name that another function has.
    """

    def add_entry(semantics):
        parameters_of(semantics, "memory")
        entry = MemoryInstruction(
            name or semantics.__name__, semantics, source, ptx=ptx, touches=touches
        ).expose(stands_for)
        if yields:
            YIELDING.add(entry.name)
        return entry

    return add_entry


def memory_of(entry):
    """Return what an instruction of warps does with memory, if anything."""
    return getattr(entry, "fetch", None) or getattr(entry, "put", None)


def interpreted_only(names):
    """Return those of the names that are instructions without a compiled form."""
    entries = {name: INSTRUCTIONS[name] for name in names if name in INSTRUCTIONS}
    return sorted(
        name
        for name, entry in entries.items()
        if isinstance(entry, MemoryInstruction) or entry.scope == GRID or memory_of(entry)
    )
