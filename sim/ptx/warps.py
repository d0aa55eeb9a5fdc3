"""PTX forms of warp instructions. A form consists of an entry of sim.isa, the PTX types of its operands and
results, and the order of the operands in PTX."""

from collections import Counter
from typing import NamedTuple

from sim.isa import shuffles
from sim.isa.registers import WIDTHS, Missing, type_name
from sim.isa.table import BY_NAME_PARTS, GIVEN, INSTRUCTIONS, Like, name_parts
from sim.isa.warp_instruction import Instruction
from sim.ptx import syntax
from sim.ptx.register_kinds import registers_in
from sim.ptx.syntax import Immediate, Register

# name_parts of a PTX name -> entry, for the warp instructions that Numba does not have. Some of the names in
# the table do not contain the type.
SHUFFLES = {
    name_parts(name): entry
    for name, entry in INSTRUCTIONS.items()
    if entry.semantics.__module__ == shuffles.__name__
}


class Form(NamedTuple):
    """The PTX form of a warp instruction.

    entry: the entry in sim.isa.
    operands, results: the PTX types.
    order: for each operand of the entry, its position in PTX.
    """

    entry: Instruction
    operands: tuple[str, ...]
    results: tuple[str, ...]
    order: tuple[int, ...]


def form_of(opcode):
    """Return the Form of a warp instruction. Raise Missing for an unsupported instruction."""
    parts = [part for part in opcode.split(".") if part != "aligned"]
    ptx_type = next((part for part in reversed(parts) if part in WIDTHS), None)
    plain, bare = (name_parts(".".join(part for part in parts if part != left)) for left in (None, ptx_type))
    entry = SHUFFLES.get(plain) or SHUFFLES.get(bare) or BY_NAME_PARTS.get(plain)
    if not isinstance(entry, Instruction):
        raise Missing(opcode)
    # An operand of any type (None) has the type that the opcode names.
    operands = {name: ptx_type_of(dtype, ptx_type) for name, dtype in entry.operands.items()}
    results = (
        operands[t] if isinstance(t, Like) else ptx_type_of(t, ptx_type) for t in entry.results.values()
    )
    order = tuple(range(len(operands)))
    if entry.mask == GIVEN:  # the mask is the last operand in PTX, but the first operand of the entry
        return Form(entry, ("b32", *operands.values()), tuple(results), (len(operands), *order))
    return Form(entry, tuple(operands.values()), tuple(results), order)


def ptx_type_of(dtype, ptx_type):
    """Return the PTX name of a dtype. It is b32 for an unsigned 32-bit integer, and `ptx_type` for None."""
    return ptx_type if dtype is None else type_name(dtype).replace("u32", "b32")


def width_check(writer, item):
    """Return the name of the function that checks operand c of a shuffle, or None if no check is needed.

    A constant is checked during translation. Inline PTX may pass any other value: CUB passes a negative clamp
    in warps without valid items, and does not use the result.
    """
    c, module = item.operands[3], writer.module
    constant = module.analysis(constant_registers).get(c.name) if isinstance(c, Register) else c
    inline = item.line in module.text.inline_lines
    # CUDA's functions pass these values. In inline PTX, only the segment mask is checked.
    clamp = -1 if inline else 0 if "up" in item.names else 31
    if not isinstance(constant, Immediate):
        return None if inline else module.width_check(clamp)
    return module.width_check(clamp) if shuffles.has_invalid_width(constant.bits(32), clamp) else None


def constant_registers(function):
    """Return {name of a register: its value as an Immediate} for the registers that only one `mov` sets."""
    items = [item for item in function.body if isinstance(item, syntax.Instruction) and item.operands]
    # The first operand is the result, if there is one.
    times = Counter(register.name for item in items for register in registers_in(item.operands[0]))
    moves = [item for item in items if item.names[0] == "mov" and not item.guard]
    pairs = [(to, value) for to, value in (item.operands for item in moves) if isinstance(to, Register)]
    return {to.name: value for to, value in pairs if isinstance(value, Immediate) and times[to.name] == 1}
