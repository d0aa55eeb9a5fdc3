"""Instructions of warps by their names in PTX: the entry of the table, the types of operands and results, and
which operand of the table is which of PTX."""

from typing import NamedTuple

from sim.isa import shuffles as _shuffles  # noqa: F401  enters its instructions
from sim.isa.registers import Missing, type_name
from sim.isa.table import GIVEN, INSTRUCTIONS, PTX, Instruction, Like


class Form(NamedTuple):
    """How PTX spells an instruction of warps."""

    entry: Instruction
    operands: tuple[str, ...]
    results: tuple[str, ...]
    order: tuple[int, ...]  # the entry's operands by their places in PTX


def form_of(opcode):
    """The Form of an instruction of warps. Errors: Missing."""
    plain = ".".join(part for part in opcode.split(".") if part != "aligned")
    bare, _, ptx_type = plain.rpartition(".")
    # those that only PTX has are called so in the table, some without the type
    entry = INSTRUCTIONS.get(plain) or INSTRUCTIONS.get(bare) or PTX.get(plain)
    if not isinstance(entry, Instruction):
        raise Missing(opcode)
    operands = {name: type_of(dtype, ptx_type) for name, dtype in entry.operands.items()}
    results = (operands[t] if isinstance(t, Like) else type_of(t, ptx_type) for t in entry.results.values())
    order = tuple(range(len(operands)))
    if entry.mask == GIVEN:  # last in PTX, first in the table
        return Form(entry, ("b32", *operands.values()), tuple(results), (len(operands), *order))
    return Form(entry, tuple(operands.values()), tuple(results), order)


def type_of(dtype, ptx_type):
    """PTX's name of a dtype, of one word's bits where that is all that it says; of None, `ptx_type`."""
    return ptx_type if dtype is None else type_name(dtype).replace("u32", "b32")
