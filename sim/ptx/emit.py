"""The Python source of one PTX function.

Control flow becomes nested `while` and `if` statements around the statements of the instructions. The
variable `go` contains the number of the next basic block (see sim.ptx.flow). A block that is the target of
only one jump is emitted in place of that jump.

Invariants of the generated code:

- A register is a local variable. An integer register contains its bit pattern as a non-negative Python int,
  whatever the type of the instruction. A floating-point register contains a numpy scalar (see
  register_kinds), and a predicate contains a bool.
- An expression may exceed the width of its type. Its value is masked when a register is set, unless the
  instruction guarantees an in-range value.
- The objects of a launch (accesses, barriers, floating-point constants) are globals. The Program has a
  factory for each of them: {name: run -> object}.
"""

import re
from contextlib import contextmanager, nullcontext

from sim.isa.ptx_types import REALS
from sim.isa.registers import WIDTHS, Missing
from sim.ptx import translate
from sim.ptx.flow import Loop, assign_homes, blocks_in, blocks_of, first_instruction, order_blocks
from sim.ptx.hoisted import hoisted_load
from sim.ptx.phase_waits import test_of
from sim.ptx.polling import can_poll, deciding_registers
from sim.ptx.register_kinds import register_kinds
from sim.ptx.struct_copies import StructCopies
from sim.ptx.syntax import Group, Immediate, Not, Register, Special, Symbol, Variable, python_name
from sim.ptx.undefined import Origins
from sim.ptx.unset_registers import registers_read_unset
from sim.ptx.wgmma import ProductRegisters

# width in bits -> mask of that width
MASKS = {width: (1 << width) - 1 for width in (8, 16, 32, 64, 128)}


class Writer:
    """The translation of one function.

    module: the Program to which the function belongs.
    function: the Function.
    branches: whether branches are reported to observers.
    """

    def __init__(self, module, function, branches):
        self.module, self.function, self.branches = module, function, branches
        self.names = {}  # the Python names of the registers
        self.lines, self.depth = [], 1  # the lines emitted so far, and the indentation of the next line
        self.missing = []  # (line, description) for each unsupported instruction
        self.kinds = register_kinds(function, translate.types_of, module.float_kinds)
        self.home = {}  # id of a block -> the Loop that contains it
        self.heads = set()  # the ids of the loops' entry blocks
        self.inlined = set()  # the ids of the blocks emitted in place of a jump
        self.waits = []  # the mbarrier tests in loops that do nothing but wait for them to succeed
        self.products = ProductRegisters(self, translate.HANDLERS.keys())
        self.blocks = blocks_of(function)
        self.origins = Origins(self, translate.HANDLERS.keys())

    def write(self):
        """Return the source lines of the function's definition."""
        # The parameters are known only after the body has been emitted, so emit the line with `def` last.
        parts = order_blocks(self.blocks)
        assign_homes(parts, None, self.home, self.heads)
        loops = [part for part in parts if isinstance(part, Loop)]
        self.module.polls |= any(can_poll(loop, self.module.grid_sync) for loop in loops)
        self.emit_prologue()
        self.emit_region(parts, None)
        body = self.lines
        head = [f"def {python_name(self.function.name, 'run')}({', '.join(self.parameters())}):"]
        self.lines, self.depth = [], 1
        self.emit_return()
        return head + body + self.lines

    def parameters(self):
        """Return the names of the Python function's parameters."""
        if self.function.entry:
            return list(self.module.arguments.values())
        declared = self.function.parameters
        return [*(python_name(v.name) for v in declared), *self.origins.declared(declared)]

    def emit_prologue(self):
        """Emit the initialisation of local variables: results, local memory, and registers that could be read
        before they are set."""
        self.emit("thread = current.thread")
        for variable in self.function.returns:
            self.emit_parameter(variable)
        for variable in self.function.variables:
            if variable.space == "local":
                self.module.local.add(variable)
                self.emit(f"{python_name(variable.name)} = {self.module.push_frame(variable)}()")
        if self.module.follows_copies:
            self.module.analysis(StructCopies).initialise(self)
        unset = registers_read_unset(self.blocks)
        self.products.declare(unset)
        for name in sorted(unset):
            value = self.origins.initial_value(name) or INITIAL_VALUES[self.kinds[name]]
            self.emit(f"{self.name(Register(name, ''))} = {value}")
            if name in self.origins.registers:
                self.emit(f"{self.origins.name(Register(name, ''))} = {self.origins.initial_origin(name)}")

    def emit_parameter(self, variable):
        """Emit the initialisation of a parameter or result of a call. Its bytes form one Python int."""
        self.emit(f"{python_name(variable.name)} = 0")
        self.origins.declare(variable)

    def emit(self, text):
        """Emit one line at the current indentation."""
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indent_under(self, head):
        """Emit the head of an `if` or a loop, and indent everything emitted within the context."""
        self.emit(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1

    # --- control flow ---------------------------------------------------------------------------------------

    def emit_region(self, parts, around):
        """Emit blocks and loops in order. Each of them runs when `go` contains its number."""
        for part in parts:
            if isinstance(part, Loop):
                self.emit_loop(part, around)
            elif id(part) not in self.inlined:
                self.emit_block(part, around, alone=part is parts[0] and self.is_entered_first(part, around))

    def emit_loop(self, loop, around):
        """Emit a Loop as a `while` statement. The loop continues as long as `go` is the number of one of the
        Loop's blocks.

        around: the Loop around it, or None.
        """
        test = f"go == {loop.first}" if loop.first == loop.last else f"{loop.first} <= go <= {loop.last}"
        with self.indent_under(f"while {test}:"):
            self.waits.append(test_of(loop))
            load = hoisted_load(loop, self.blocks)
            self.module.item = load or first_instruction(loop)
            site = self.module.site("loop")
            if load is not None:
                self.module.hoisted[site] = self.module.site("load")
            deciding = None
            if self.function.entry and around is None:  # any other loop can begin several times
                deciding = deciding_registers(loop, self.blocks)
            self.note_deciding(site, deciding)
            self.emit(f"tick({site})")
            self.emit_region(loop.parts, loop)

    def note_deciding(self, site, registers):
        """Note the registers that decide when the loop at `site` ends, or None if they are unknown.

        Several loops can have the same site, for example the two parts of an unrolled loop. The value of `go`
        shows which loop runs. The registers of all these loops are stored together.
        """
        known = self.module.deciding
        before, known[site] = known.get(site, {"go"}), None
        if registers is not None and before is not None:
            known[site] = before | {self.name(Register(name, "")) for name in registers}

    def is_entered_first(self, block, loop):
        """Return whether the first block of a region always runs first. If so, the block needs no test of
        `go`."""
        if loop is None:
            return True
        # If a jump can lead past the first block, `go` may have another number when the region starts.
        part_of = {id(b): i for i, part in enumerate(loop.parts) for b in blocks_in(part)}
        for source in self.blocks:
            here = part_of.get(id(source))
            for target in source.targets:
                there = part_of.get(id(target))
                if there is None or target is block:
                    continue
                # A forward jump reaches its target later in the same iteration. A jump within an inner loop
                # is handled by the inner loop.
                inner = isinstance(loop.parts[there], Loop)
                if here is None or there < here or there == here and not inner:
                    return False
        return True

    def emit_block(self, block, around, alone):
        """Emit a block.

        alone: whether the block always runs when its region runs. Any other block is guarded by a test of
            `go`.
        """
        with nullcontext() if alone else self.indent_under(f"if go == {block.number}:"):
            self.emit_contents(block, around)

    def emit_contents(self, block, around):
        """Emit a block's instructions, and then its jump."""
        for instruction in block.body:
            self.emit_instruction(instruction)
        if block.branch is not None and block.branch.opcode.startswith("brx"):
            # No block has the number -1, so all loops end and the function returns.
            numbers = ", ".join(str(-1 if t is None else t.number) for t in block.targets)
            self.module.item = block.branch
            self.origins.check(block.branch.operands[0])
            self.emit(f"go = ({numbers},)[{self.value(block.branch.operands[0], 'u32')}]")
            return
        if block.branch is None:
            self.emit_jump(block.targets[0], around)
            return
        register, opposite = block.branch.guard
        test = self.name(register)
        self.module.item = block.branch
        self.origins.check(register)
        if self.branches:
            test = f"branch({test}, {self.module.site('branch')})"
        taken, following = block.targets
        with self.indent_under(f"if {'not ' if opposite else ''}{test}:"):
            self.emit_jump(taken, around)
        with self.indent_under("else:"):
            self.emit_jump(following, around)

    def emit_jump(self, target, around):
        """Emit a jump to a block. Emit the block's code here if no other jump leads to it. Otherwise, assign
        the block's number to `go`."""
        if target is None:
            self.emit_return()
        elif target.sources == 1 and self.home[id(target)] is around and id(target) not in self.heads:
            self.inlined.add(id(target))
            self.emit_contents(target, around)
        else:
            self.emit(f"go = {target.number}")

    def emit_return(self):
        """Emit a return. A device function first releases its local memory."""
        for variable in self.function.variables if not self.function.entry else ():
            if variable.space == "local":
                self.emit(f"{self.module.pop_frame(variable)}()")
        declared = self.function.returns
        names = [*(python_name(v.name) for v in declared), *self.origins.declared(declared)]
        self.emit(f"return {', '.join(names)}".rstrip())

    # --- instructions ---------------------------------------------------------------------------------------

    def emit_instruction(self, item):
        """Emit an instruction under its guard. Record an unsupported instruction in `missing`."""
        if isinstance(item, Variable):
            self.emit_parameter(item)
            return
        self.module.item = item
        try:
            register, opposite = item.guard or (None, False)
            test = register and f"if {'not ' if opposite else ''}{self.name(register)}:"
            if register:
                self.origins.check(register)
            with self.indent_under(test) if test else nullcontext():
                if self.origins.active:
                    self.origins.before(item)
                self.products.before(item)
                translate.instruction(self, item)
                if self.origins.active:
                    self.origins.after(item)
                if self.module.follows_copies:
                    self.module.analysis(StructCopies).after(self, item)
        except Missing as missing:
            what = str(missing) or item.opcode
            self.missing.append((item.line, what if item.opcode in what else f"{item.opcode}: {what}"))
        # Handlers do not validate operands. If one raises an error for unexpected operands, the instruction
        # counts as unsupported.
        except (AttributeError, IndexError, KeyError, ValueError):
            self.missing.append((item.line, f"{item.opcode} with these operands"))

    # --- operands -------------------------------------------------------------------------------------------

    def name(self, register):
        """Return the name of the Python variable for a register."""
        if register.name not in self.names:
            plain = re.sub(r"\W", "_", register.name.lstrip("%"))
            # Two PTX names can give the same identifier. A number appended to the second identifier makes it
            # unique.
            fits = plain[0].isalpha() and plain not in self.names.values()
            self.names[register.name] = plain if fits else f"{plain}_{len(self.names)}"
        return self.names[register.name]

    def value(self, operand, ptx_type):
        """Return a Python expression for the value of an operand, as a PTX type."""
        if isinstance(operand, Register):
            return convert(
                self.name(operand), self.kinds[operand.name], WIDTHS.get(operand.type, 64), ptx_type
            )
        if isinstance(operand, Immediate):
            return self.module.constant(operand, ptx_type)
        if isinstance(operand, Not):
            return f"(not {self.name(operand.register)})"
        if isinstance(operand, Special):
            # A special register has 32 bits, unless its name contains 64 (%clock64).
            width = 64 if "64" in operand.name else 32
            return convert(self.module.special(operand.name), "int", width, ptx_type)
        if isinstance(operand, Symbol):
            return self.module.address(operand)
        if isinstance(operand, Group):
            return self.pack(operand, WIDTHS[ptx_type])
        raise Missing(str(operand))

    def biased_value(self, operand, ptx_type):
        """Return a Python expression for a signed operand of w bits plus 2**(w - 1).

        Comparisons of such values give the same result as comparisons of the operands, without extending
        their signs.
        """
        width = WIDTHS[ptx_type]
        top = 1 << width - 1
        if isinstance(operand, Immediate):
            return str(operand.bits(width) ^ top)
        return f"({self.value(operand, f'b{width}')} ^ {top:#x})"

    def pack(self, group, width):
        """Return the expression that packs the parts of a Group into one value of `width` bits. The first
        part becomes the lowest bits."""
        each = width // len(group.parts)
        parts = [self.value(part, f"b{each}") for part in group.parts]
        rest = [f"{part} << {i * each}" for i, part in enumerate(parts[1:], 1)]
        # In Python, `<<` binds more tightly than `|`, so the parts need no parentheses.
        return f"({' | '.join([parts[0], *rest])})"

    def assign(self, operand, text, ptx_type, in_range=False):
        """Emit the assignment of an expression to an operand.

        operand: the operand. If it is None, the expression is evaluated only for its side effects.
        ptx_type: the PTX type of the expression.
        in_range: whether the value is certainly an integer within the range of its type, and needs no mask.
        """
        if operand is None:
            self.emit(text)
        elif isinstance(operand, Group):
            self.unpack(operand, text, ptx_type)
        elif not isinstance(operand, Register):
            raise Missing(f"its result goes to {describe_operand(operand)}, which is not a declared register")
        else:
            self.emit(f"{self.name(operand)} = {self.to_register(operand, text, ptx_type, in_range)}")

    def unpack_tuple(self, text, count):
        """Emit the assignment of a tuple to temporary variables, and return the names of these variables."""
        # The names end in an underscore, unlike compiler-generated register names.
        names = [f"part{i}_" for i in range(count)]
        self.emit(f"{', '.join(names)} = {text}")
        return names

    def unpack(self, group, text, ptx_type):
        """Emit the assignment of the parts of one value to several registers. The first register receives the
        lowest bits."""
        each = WIDTHS[ptx_type] // len(group.parts)
        self.emit(f"whole_ = {text}")
        for i, part in enumerate(group.parts):
            if part is not None:
                self.assign(part, f"whole_ >> {i * each}" if i else "whole_", f"b{each}")

    def to_register(self, register, text, ptx_type, in_range):
        """Return an expression that converts a value to the register's representation."""
        holds, width = self.kinds[register.name], WIDTHS.get(register.type, 64)
        if holds == "pred":
            return text
        if ptx_type in REALS:
            if holds == ptx_type:
                return text
            bits = f"bits_of({text})"
            return bits if holds == "int" else f"{FROM_BITS[holds]}({bits})"
        if holds in FROM_BITS:
            return f"{FROM_BITS[holds]}(({text}) & {MASKS[width]:#x})"
        # Mask the value to the width of the type or of the register, whichever is narrower. A signed value in
        # a wider register is sign-extended, so mask it to the width of the register.
        if in_range and WIDTHS[ptx_type] <= width:
            return text
        mask = MASKS[width if ptx_type[0] == "s" else min(width, WIDTHS[ptx_type])]
        return f"({text}) & {mask:#x}"


# kind of register -> helper that converts a bit pattern to a float
FROM_BITS = {kind: f"{scalar.__name__}_of" for kind, scalar in REALS.items()}
# Initial values of registers that could be read before they are set. Without them, Python would raise
# UnboundLocalError.
INITIAL_VALUES = {"int": "0", "pred": "False"} | {kind: f"{name}(0)" for kind, name in FROM_BITS.items()}


def describe_operand(operand):
    """Return an operand approximately as written in PTX, for messages."""
    return f"%{operand.name}" if isinstance(operand, Special) else str(getattr(operand, "name", "a constant"))


def convert(text, holds, width, ptx_type):
    """Return a Python expression for a register's value, as a PTX type.

    text: the expression for the register itself.
    holds: the register's kind (sim.ptx.register_kinds).
    width: the register's width in bits.
    """
    # Predicates have no bit pattern in PTX, so there is nothing to convert.
    if ptx_type == "pred" or holds == "pred":
        return text
    if ptx_type in REALS:
        if holds == ptx_type:
            return text
        bits = text if holds == "int" else f"bits_of({text})"
        if WIDTHS[ptx_type] < width:
            bits = f"{bits} & {MASKS[WIDTHS[ptx_type]]:#x}"
        return f"{REALS[ptx_type].__name__}_of({bits})"
    if holds != "int":
        text = f"bits_of({text})"
    wanted = WIDTHS[ptx_type]
    if ptx_type[0] == "s":
        # Extend the sign without a branch: (x ^ sign bit) - sign bit.
        inner = f"({text} & {MASKS[wanted]:#x})" if width > wanted else text
        top = 1 << wanted - 1
        return f"(({inner} ^ {top:#x}) - {top:#x})"
    return f"({text} & {MASKS[wanted]:#x})" if width > wanted else text
