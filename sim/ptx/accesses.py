"""Python statements for the memory instructions of PTX: ld, st, atom, red. Function parameters are not in
memory: each of them is a parameter of the Python function.

Source: PTX ISA 9.7.9, "Data Movement and Conversion Instructions" (ld, st); 9.7.13, "Parallel
Synchronization and Communication Instructions" (atom, red); chapter 8, "Memory Consistency Model".
"""

from sim.isa.ptx_types import REALS
from sim.isa.registers import WIDTHS, Missing
from sim.ptx.syntax import Address, Group, Register, Symbol, python_name

SPACES = {"global", "const", "shared", "local", "param"}
# Modifiers of strong operations, which do not race with each other (PTX ISA 8.4, "Operation Types").
STRONG = {"volatile", "relaxed", "acquire", "release", "mmio"}
# Scope -> reach, as for the fences of Python kernels. The simulator has a single GPU and treats the scope
# cluster like gpu, so every scope except cta reaches the whole grid.
REACH = {"cta": "block", "cluster": "grid", "gpu": "grid", "sys": "grid", "gl": "grid"}
# Modifiers that do not change the value of an access: cache hints, memory order and scope.
HINTS = set(
    """ca cg cs lu cv wb wt nc weak relaxed acquire release acq_rel volatile mmio cta cluster gpu sys noftz
    unified""".split()
)


class Access:
    """The modifiers of an ld, st, atom or red.

    count: the number of vector elements: 2 for .v2, 4 for .v4, otherwise 1.
    operation: the operation of an atom or red, such as "add".
    strong: whether the operation is strong. Strong operations do not race with each other.
    release: whether it has release semantics, modelled as a fence before the access.
    reach: the threads for which the operation is strong: "block" or "grid".
    """

    def __init__(self, opcode):
        parts = opcode.split(".")
        self.opcode, self.base, self.count, self.type, self.operation = opcode, parts[0], 1, None, None
        self.space, self.strong, self.volatile = "generic", False, False
        self.release, self.reach = False, "grid"
        for part in parts[1:]:
            self.read_modifier(part)

    def read_modifier(self, part):
        """Record one modifier. Raise Missing if it is not supported."""
        plain = part.split("::")[0]
        if plain in SPACES:
            self.space = plain
        elif part in ("v2", "v4", "v8"):
            self.count = int(part[1:])
        elif part in WIDTHS:
            self.type = part
        elif plain in ("L1", "L2", "level"):
            pass  # cache hints such as L1::no_allocate, L2::cache_hint
        elif part in HINTS:
            self.strong |= part in STRONG
            self.volatile |= part == "volatile"
            self.release |= part in ("release", "acq_rel")
            self.reach = REACH.get(part, self.reach)
        elif self.base in ("atom", "red") and self.operation is None:
            self.operation = part
        else:
            raise Missing(self.opcode)


def access_of(item, opcodes):
    """Return the Access of a complete load or store with one of these opcodes, otherwise None."""
    try:
        access = Access(item.opcode) if item.names[0] in opcodes else None
    except Missing:
        return None
    complete = access is not None and access.type is not None and len(item.operands) == 2
    return access if complete and any(isinstance(o, Address) for o in item.operands) else None


def parts(operand):
    """Return the elements of a vector operand. For a scalar, return a list of the scalar alone."""
    return operand.parts if isinstance(operand, Group) else (operand,)


def address_text(writer, operand, more=0):
    """Return the Python expression for an operand's address plus `more` bytes."""
    base, offset = writer.value(operand.base, "b64"), operand.offset + more
    return f"{base} {'-' if offset < 0 else '+'} {abs(offset)}" if offset else base


def strong_address(writer, item, operand, more=0):
    """Return the expression for the address of a strong access plus `more` bytes. If the access is part of an
    emulated atomic on 8 or 16 bits, return the address of this element instead (sim.ptx.subwords)."""
    part = writer.module.subword(item)
    return address_text(writer, operand, more) if part is None else writer.value(part.pointer, "b64")


def access_type(writer, ptx_type, registers):
    """Return the PTX type with which an access to these registers reads or writes memory.

    It is a float type if the registers contain floats, otherwise an unsigned integer type. The type is signed
    only if the value must be sign-extended into a wider register.

    Raise Missing for more than 64 bits.
    """
    width = WIDTHS[ptx_type]
    if width > 64:
        raise Missing
    named = [register for register in registers if isinstance(register, Register)]
    if ptx_type[0] == "s" and any(WIDTHS.get(register.type, 64) > width for register in named):
        return ptx_type  # the value has to be sign-extended
    holding = {writer.kinds[register.name] for register in named}
    floating = [kind for kind in REALS if WIDTHS[kind] == width and kind in writer.module.float_kinds]
    found = next((k for k in floating if holding == {k} or ptx_type == k and not holding - {k}), None)
    return found or f"u{width}"


def set_register(writer, register, text, ptx_type):
    """Emit the assignment of a loaded value to a register."""
    writer.assign(register, text, ptx_type, ptx_type[0] == "u")


def load(writer, item):
    """Emit a load (ld or ldu)."""
    access, (to, source, *_) = Access(item.opcode), item.operands
    if access.space == "param" and isinstance(source.base, Symbol):
        return load_parameter(writer, item, access)
    # A kernel parameter whose address is taken is stored in constant memory (see Program.address).
    space = "const" if access.space == "param" else access.space
    ptx_type = access_type(writer, access.type, parts(to))
    # A strong access to a vector is one access per element (PTX ISA, Memory Consistency Model).
    if access.strong or access.count == 1 and writer.module.uses.is_library_guess(item, writer.module.origin):
        for i, part in enumerate(parts(to)):
            name = writer.module.strong("load", ptx_type, space, access)
            set_register(
                writer,
                part,
                f"{name}({strong_address(writer, item, source, i * WIDTHS[ptx_type] // 8)})",
                ptx_type,
            )
        return
    text = f"{writer.module.load(ptx_type, space, access.count)}({address_text(writer, source)})"
    if access.count == 1:
        return set_register(writer, to, text, ptx_type)
    # If no register needs a conversion, one statement assigns the whole tuple.
    held = {writer.to_register(part, "_", ptx_type, ptx_type[0] == "u") for part in parts(to) if part}
    if held == {"_"} and None not in parts(to):
        writer.emit(f"{', '.join(map(writer.name, parts(to)))} = {text}")
        return
    for name, part in zip(writer.unpack_tuple(text, access.count), parts(to)):
        if part is not None:
            set_register(writer, part, name, ptx_type)


def load_parameter(writer, item, access):
    """Emit a load from the .param space.

    A parameter of a kernel is an argument of the Python function. A parameter of a device function or of a
    call is one long integer, from which the bits are extracted.
    """
    symbol, offset = item.operands[1].base, item.operands[1].offset
    size = WIDTHS[access.type] // 8
    for i, part in enumerate(parts(item.operands[0])):
        at = offset + i * size
        if writer.module.is_kernel_parameter(symbol.name):
            ptx_type = access_type(writer, access.type, [part])
            set_register(writer, part, writer.module.argument(symbol.name, at, ptx_type), ptx_type)
        elif part is not None:
            name = python_name(symbol.name)
            text = f"{name} >> {8 * at}" if at else name
            ptx_type = access.type if access.type[0] == "s" else f"b{8 * size}"
            if ptx_type[0] == "s":  # extend the sign: (x ^ top) - top
                # The integer contains the other bytes of the parameter too, so mask the value before
                # extending its sign.
                top, mask = 1 << 8 * size - 1, (1 << 8 * size) - 1
                text = f"(({text} & {mask:#x}) ^ {top:#x}) - {top:#x}"
            writer.assign(part, text, ptx_type)


def store(writer, item):
    """Emit st, a store."""
    access, (to, source, *_) = Access(item.opcode), item.operands
    if access.space == "param":
        return store_parameter(writer, item, access)
    values = parts(source) if access.count > 1 else (source,)
    ptx_type = access_type(writer, access.type, values).replace("s", "u")
    if access.strong:
        for i, part in enumerate(values):
            name = writer.module.strong("store", ptx_type, access.space, access)
            at = strong_address(writer, item, to, i * WIDTHS[ptx_type] // 8)
            writer.emit(f"{name}({at}, {writer.value(part, ptx_type)})")
        return
    name = writer.module.store(ptx_type, access.space, access.count)
    writer.emit(
        f"{name}({', '.join([address_text(writer, to), *(writer.value(v, ptx_type) for v in values)])})"
    )


def store_parameter(writer, item, access):
    """Emit a store to a parameter or result of a call. Its integer is initially 0, so setting bits
    suffices."""
    symbol, offset = item.operands[0].base, item.operands[0].offset
    size = WIDTHS[access.type] // 8
    name = python_name(symbol.name)
    for i, part in enumerate(parts(item.operands[1]) if access.count > 1 else (item.operands[1],)):
        text, at = writer.value(part, f"b{8 * size}"), 8 * (offset + i * size)
        writer.emit(f"{name} |= {text} << {at}" if at else f"{name} |= {text}")


def atomic(writer, item):
    """Emit atom or red, an atomic operation."""
    access = Access(item.opcode)
    returns = access.base == "atom"
    to, (where, *given) = (item.operands[0], item.operands[1:]) if returns else (None, item.operands)
    ptx_type, name = writer.module.atomic(access)
    if "L2::cache_hint" in item.names:
        given = given[:-1]  # without the cache policy
    # cas takes the expected and the new value (PTX ISA 9.7.13, `atom`).
    count = 2 if access.operation == "cas" else 1
    # The Writer reports this ValueError as an unsupported form of the instruction.
    if len(given) != count:
        raise ValueError(f"{access.opcode} takes {count} operands")
    values = [writer.value(o, ptx_type) for o in given]
    text = f"{name}({', '.join([strong_address(writer, item, where), *values])})"
    set_register(writer, to, text, ptx_type)
