"""Register kinds: the representation of each PTX register in generated code.

A register is represented by a non-negative Python int ("int"), by a numpy scalar if floating-point
instructions use it ("f32", "f64", "f16", "bf16"), or by a bool ("pred").

A register declared .f32 or .f64 contains a float. Compilers use registers declared .b16, .b32 or .b64 for
both integers and floats. The kind of such a register is the one that most of the instructions that use it
need. The other instructions convert the value, which is slower but correct.
"""

from collections import Counter

from sim.ptx.syntax import Address, Group, Instruction, Register

# declared type without an arithmetic meaning -> the kinds of the floats that such a register can contain
FLOATING = {"b16": ("f16", "bf16"), "b32": ("f32",), "b64": ("f64",)}


def register_kinds(function, types_of, kinds):
    """Return {register name: "int", "pred", or one of `kinds`}.

    types_of: a function (instruction) that yields the known (type, operand) pairs.
    kinds: the PTX types of floats that a register can contain as floats. Registers contain floats of other
        types as integers.
    """
    registers, votes, moves = {}, {}, []
    for item in function.body:
        if not isinstance(item, Instruction):
            continue
        for register in registers_in(item):
            registers[register.name] = register
        if item.opcode in ("mov.b16", "mov.b32", "mov.b64") and all(
            isinstance(o, Register) for o in item.operands
        ):
            moves += [tuple(o.name for o in item.operands)] if len(item.operands) == 2 else []
        for ptx_type, operand in types_of(item):
            if isinstance(operand, Register):
                votes.setdefault(operand.name, Counter())[ptx_type if ptx_type in kinds else "int"] += 1
    # An untyped move does not show a kind, but its two registers are likely to have the same kind. Three
    # passes suffice for short chains of moves. Further passes would only save conversions.
    for _ in range(3):
        for to, source in moves:
            if to in votes and source not in votes:
                votes[source] = votes[to]
            elif source in votes and to not in votes:
                votes[to] = votes[source]
    return {name: choose_kind(register, votes.get(name), kinds) for name, register in registers.items()}


def choose_kind(register, votes, kinds):
    """Return the kind of a register. Its declared type determines it, or else the instructions that use
    it."""
    if register.type == "pred" or register.type in kinds:
        return register.type
    candidates = "int", *FLOATING.get(register.type, ())
    return max(candidates, key=(votes or Counter()).__getitem__)


def registers_in(part):
    """Yield all registers in an instruction or an operand."""
    if isinstance(part, Register):
        yield part
    elif isinstance(part, Instruction):
        for operand in (*part.operands, *((part.guard[0],) if part.guard else ())):
            yield from registers_in(operand)
    elif isinstance(part, Group):
        for one in part.parts:
            yield from registers_in(one)
    elif hasattr(part, "base"):
        yield from registers_in(part.base)
        for coordinate in getattr(part, "coordinates", ()):
            yield from registers_in(coordinate)
    elif hasattr(part, "register"):
        yield part.register


# instructions whose first operand is not a result
ONLY_READ = {"st", "red", "bra", "brx", "call", "membar", "fence", "ret", "exit", "trap", "nanosleep"}


def read_and_written(item):
    """Return (names of the registers that an instruction reads, names of the registers that it always sets).

    A guarded instruction may be skipped, so that its results keep their values. The results count as read.
    """
    base = item.names[0]
    # Of the barrier instructions, only bar.red has a result.
    only_read = base in ONLY_READ or base in ("bar", "barrier") and ".red" not in item.opcode
    to = () if only_read or any(isinstance(o, Address) for o in item.operands[:1]) else item.operands[:1]
    written = {register.name for operand in to for register in registers_in(operand)}
    read = {register.name for operand in item.operands[len(to) :] for register in registers_in(operand)}
    if base == "wgmma":
        read |= written  # accumulators are also operands
    if item.guard:
        read |= {item.guard[0].name} | written
        written = set()
    return read, written
