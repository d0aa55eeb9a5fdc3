"""Entries of what one thread does with memory by an instruction of its own: some neighbouring bytes at a
time, now or later."""

from dataclasses import dataclass

from sim.isa.table import GRID, INSTRUCTIONS, THREAD, YIELDING, Entry, parameters_of


@dataclass(frozen=True, eq=False)
class MemoryInstruction(Entry):
    """What one thread does with memory: `meaning` (memory, *arguments); memory is a
    sim.memory.transfer.Memory."""

    scope = THREAD

    @property
    def parameters(self):
        """The names of a call's arguments."""
        return [parameter.name for parameter in parameters_of(self.meaning, "memory")[1:]]


def memory_instruction(*, source, name=None, ptx=(), touches=(), stands_for=None, yields=False):
    """Enter a function into the table as what one thread does with memory; returns the MemoryInstruction.

    The function is its meaning: it takes `memory`, then the arguments of a call. memory.read(array, index,
    size) gives `size` bytes of neighbouring elements, which begin at a multiple of that (or of a fourth
    argument); memory.send(array, index, data) writes bytes when they arrive (`source=`, a Spot that
    memory.source gave, says what is read until then), memory.commit() makes a group of what was sent, and
    memory.receive(n) waits for all groups but the newest n; memory.fence(reach) orders what comes before and
    behind it, and memory.turn() lets other threads go first. The interpreter calls it; there is no compiled
    form.

    source, name, ptx, touches, stands_for   as for sim.isa.instruction
    yields   whether other threads may go first there: where one may wait for them by asking again and again

    Errors: ValueError for a name that another function has.
    """

    def enter(meaning):
        parameters_of(meaning, "memory")
        entry = MemoryInstruction(
            name or meaning.__name__, meaning, source, ptx=ptx, touches=touches
        ).offered(stands_for)
        if yields:
            YIELDING.add(entry.name)
        return entry

    return enter


def interpreted_only(names):
    """Those of the names that are instructions without a compiled form."""
    entries = {name: INSTRUCTIONS[name] for name in names if name in INSTRUCTIONS}
    return sorted(
        name
        for name, entry in entries.items()
        if isinstance(entry, MemoryInstruction) or entry.scope == GRID or getattr(entry, "fetch", None)
    )
