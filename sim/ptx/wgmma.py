"""Translation of wgmma, the matrix products of warp groups, and of setmaxnreg.

A product uses registers while the thread continues. Each access to such a register is therefore reported to
sim.engine.warpgroup. A move copies the state of its source register to its destination, because compilers
rename registers by moves.

A wgmma.fence names no registers, so a compiler may move an instruction that only computes with registers from
before the fence to a place after it. NVRTC does this with constants, such as the zeros of `float d[8] = {}`,
and with arithmetic. ptxas then adds a fence of its own (its message C7519). This module recognises such
instructions by their constant values (`constant_registers`) and by their lines in the source
(`moved_instructions`).

Source: PTX ISA 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

import functools
from dataclasses import replace

from sim.engine import register_pool, warpgroup
from sim.isa import wgmma
from sim.isa.register_counts import register_change
from sim.isa.registers import Missing
from sim.ptx.copies import AddressMemory
from sim.ptx.register_kinds import read_and_written
from sim.ptx.syntax import Address, Group, Immediate, Instruction, Label, Register
from sim.ptx.undefined import COMPUTING

MOVES = "mov.b32", "mov.u32", "mov.s32", "mov.f32"
PTX_TYPES = {"f32": "f32", "f16": "b32", "s32": "s32"}  # type of D -> PTX type of its registers


def translate(writer, item):
    """Emit a wgmma instruction."""
    does = item.names[1]
    if does == "mma_async" and "sp" not in item.names:
        return multiply(writer, item)
    if does in ("fence", "commit_group"):
        name = "wgmma_fence" if does == "fence" else "wgmma_commit"
        return writer.emit(f"{writer.module.transfer(name)}()")
    if does == "wait_group" and isinstance(item.operands[0], Immediate) and item.operands[0].value < 8:
        return writer.emit(f"{writer.module.transfer(f'wgmma_wait_{item.operands[0].value}')}()")
    raise Missing(item.opcode)


def multiply(writer, item):
    """Emit a wgmma.mma_async."""
    product, (to, a, b, scale) = product_of(item), item.operands[:4]
    kind = PTX_TYPES[product.types[0]]
    accumulators = [writer.value(part, kind) for part in to.parts]
    if len(accumulators) != product.count:
        raise Missing(f"{item.opcode} with {len(accumulators)} accumulators")
    in_registers = product.variant.a_in_registers
    given = (
        f"({', '.join(writer.value(part, 'b32') for part in a.parts)})"
        if in_registers
        else writer.value(a, "b64")
    )
    groups = to.parts, a.parts if in_registers else ()
    names = tuple(tuple(label(writer, part.name) for part in group) for group in groups)
    call = product_call(writer.module, product, names)
    scaled = writer.value(scale, "pred")
    text = f"{call}(({', '.join(accumulators)}), {given}, {writer.value(b, 'b64')}, {scaled})"
    for part, name in zip(to.parts, writer.unpack_tuple(text, product.count)):
        writer.assign(part, name if kind == "f32" else f"int({name})", kind)


def product_call(module, product, names):
    """Return the name of the function by which a thread takes part in a product.

    names: the names of the registers with its accumulators, and of those with A.
    """
    module.used.add(product.name)
    place, sites = module.wait_point(), module.transfer_sites()

    def make(run):
        memory = AddressMemory(run.memory, product.name, sites)
        at = run.wait_point(place)
        return warpgroup.call_of_ptx(run.scheduler, memory, product, at, sites["load"], names)

    return module.new_name("product", make)


def change_registers(writer, item):
    """Emit setmaxnreg, which changes the number of registers per thread of a warp group."""
    count, module = getattr(item.operands[0], "value", 0), writer.module
    try:
        entry = register_change(item.names[1], count)
    except ValueError:
        text = f"{item.opcode} with {count} registers (PTX ISA: a multiple of 8 from 24 to 256)"
        raise Missing(text) from None
    module.used.add(entry.name)
    place, sites = module.wait_point(), module.transfer_sites()

    def make(run):
        rest = run.scheduler, entry, run.wait_point(place), sites["load"]
        return functools.partial(register_pool.change_registers, *rest)

    writer.emit(f"{module.new_name('registers', make)}()")


def product_of(item):
    """Return the entry of sim.isa for a wgmma.mma_async. Raise Missing for an unsupported form."""
    try:
        types, n, saturates = wgmma.parse(item.opcode)
        _, a, _, _, *constants = item.operands
        flags = [operand.value for operand in constants]
        in_registers = isinstance(a, Group)
        signs = flags[:2] if types[0] != "s32" else []
        transposes = flags[2:] if types[1] in ("f16", "bf16") else []
        if len(flags) != len(signs) + len(transposes) or not set(signs) <= {1, -1}:
            raise ValueError
        # There is no imm-trans-a if A is in registers.
        if types[1] in ("f16", "bf16"):
            mn_major_a, mn_major_b = (0, *transposes) if in_registers else transposes
        else:
            mn_major_a = mn_major_b = 0
        negated = [sign == -1 for sign in signs] or [False, False]
        variant = wgmma.Variant(n, in_registers, bool(mn_major_a), bool(mn_major_b), *negated, saturates)
        return wgmma.product(types, variant)
    except (AttributeError, TypeError, ValueError):
        raise Missing(f"{item.opcode} with these operands") from None


def types_of(item):
    """Yield (type, operand) for the operands of a wgmma.mma_async whose type shows the kind of their
    register."""
    if item.names[1] != "mma_async":
        return
    kind = PTX_TYPES.get(next((part for part in item.names if part in PTX_TYPES), ""))
    for part in getattr(item.operands[0], "parts", ()):
        yield kind, part
    for part in getattr(item.operands[1], "parts", ()):
        yield "b32", part


class ProductRegisters:
    """The statements in the source of one function that report accesses to registers of products.

    handled: the opcodes that do more than compute with registers.
    """

    def __init__(self, writer, handled):
        self.writer, self.module = writer, writer.module
        self.handled = handled - COMPUTING
        items = [item for item in writer.function.body if isinstance(item, Instruction)]
        self.names = set()
        for item in items:
            if item.opcode.startswith("wgmma.mma_async"):
                for operand in item.operands[:2]:
                    self.names |= {part.name for part in getattr(operand, "parts", ())}
        moves = (
            [tuple(o.name for o in item.operands) for item in items if is_move(item)] if self.names else []
        )
        changed = bool(moves)
        while changed:
            before = len(self.names)
            for pair in moves:
                if self.names & set(pair):
                    self.names |= set(pair)
            changed = len(self.names) > before
        self.constants = self.constant_registers(items) if self.names else set()
        self.moved = self.moved_instructions() if self.names else set()

    def computes(self, item):
        """Return whether an instruction only computes with registers, and is always executed."""
        return item.names[0] not in self.handled and item.guard is None and len(item.operands) > 1

    def constant_registers(self, items):
        """Return the names of the registers whose value depends on nothing but constants."""
        definitions = {}
        for item in items:
            for name in registers_of(item)[1]:
                definitions.setdefault(name, []).append(item)
        found, before = set(), -1
        while len(found) > before:
            before = len(found)
            for name, defining in definitions.items():
                if name not in found and all(self.is_constant(item, found) for item in defining):
                    found.add(name)
        return found

    def is_constant(self, item, constants):
        """Return whether an instruction sets its result to a constant.

        constants: the names of registers with constant values.
        """
        sources = [part for operand in item.operands[1:] for part in getattr(operand, "parts", (operand,))]
        return self.computes(item) and all(
            isinstance(part, Immediate) or isinstance(part, Register) and part.name in constants
            for part in sources
        )

    def moved_instructions(self):
        """Return the ids of the instructions that the compiler has moved from before a wgmma.fence to after
        it.

        In the PTX, such an instruction follows the fence without a label in between. In the source, its line
        is before the fence, and the line of the product is after the fence.
        """
        moved, fence, candidates = set(), None, []
        for item in self.writer.function.body:
            if isinstance(item, Label):
                fence = None
            if not isinstance(item, Instruction):
                continue
            if item.opcode.startswith("wgmma.fence"):
                fence, candidates = item, []
            elif fence and item.opcode.startswith("wgmma.mma_async"):
                if is_before(fence.location, item.location):
                    moved.update(candidates)
            elif fence and self.computes(item) and is_before(item.location, fence.location):
                candidates.append(id(item))
        return moved

    def declare(self, unset):
        """Emit the report of registers that some path reads before it sets them.

        unset: the names of these registers.
        """
        names = frozenset(label(self.writer, name) for name in self.names & unset)
        if names:
            call = self.module.new_name("unset", lambda run: warpgroup.declarer(run.context, names))
            self.writer.emit(f"{call}()")

    def before(self, item):
        """Emit a call that reports which registers of products the next instruction accesses."""
        if not self.names or item.opcode.startswith("wgmma"):
            return
        read, written = (sorted(names & self.names) for names in registers_of(item))
        if not read and not written:
            return
        read, written = (tuple(label(self.writer, name) for name in names) for names in (read, written))
        site = self.module.site("load")
        constant = self.is_constant(item, self.constants)
        if is_move(item) and read and written and not constant:
            make, facts = warpgroup.mover, (written[0], read[0])
        else:
            read = () if constant else read
            make, facts = warpgroup.toucher, (read, written, constant, id(item) in self.moved)
        name = self.module.new_name("touch", lambda run: make(run.context, site, *facts))
        self.writer.emit(f"{name}()")


def label(writer, register):
    """Return the name of a register that is unique in the kernel: each function numbers its own registers."""
    return register if writer.function.entry else f"{register} of {writer.function.name}"


def is_move(item):
    """Return whether an instruction copies one 32-bit register into another."""
    return (
        item.opcode in MOVES
        and len(item.operands) == 2
        and all(isinstance(o, Register) for o in item.operands)
    )


def registers_of(item):
    """Return two sets of register names: the registers that an instruction reads, and the registers that it
    can set."""
    read, written = read_and_written(item)
    if item.guard and item.operands and not isinstance(item.operands[0], Address):
        # The results of a guarded instruction also count as read.
        read, written = read_and_written(replace(item, guard=None))
        read.add(item.guard[0].name)
    return read, written


def is_before(one, other):
    """Return whether the Location `one` precedes `other` in a function that contains both. Return False if
    one of them is unknown."""
    pairs = zip(call_chain(one), call_chain(other))
    first, second = next(((a, b) for a, b in pairs if a != b), ((), ()))
    return first[:1] == second[:1] and first < second


def call_chain(location):
    """Return (file, line, column) of a Location and of the calls into which it was inlined, outermost
    first."""
    chain = []
    while location is not None:
        chain.insert(0, (location.file, location.line, location.column))
        location = location.inlined
    return chain
