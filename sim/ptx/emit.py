"""The Python source of a PTX function: nested `while` and `if` around one statement for each instruction.

It names what a launch gives it (accesses, barriers, atomics, constants) by names of its own; `factories` says
how to make each: {name: launch -> object}."""

import re
from contextlib import contextmanager, nullcontext

from sim.isa.arithmetic import REALS
from sim.isa.registers import WIDTHS, Missing
from sim.ptx import translate
from sim.ptx.flow import Loop, blocks_of, order_blocks
from sim.ptx.register_kinds import read_and_written, register_kinds
from sim.ptx.syntax import Group, Immediate, Not, Register, Special, Symbol, Variable, python_name

MASKS = {width: (1 << width) - 1 for width in (8, 16, 32, 64, 128)}


class Writer:
    """Writes one function. `module` is the Translation that it belongs to."""

    def __init__(self, module, function, branches):
        self.module, self.function, self.branches = module, function, branches
        self.names, self.lines, self.depth, self.missing = {}, [], 1, []
        self.kinds = register_kinds(function, translate.types_of)
        # the Loop around each block; the blocks that begin one; those that stand inside the jump to them
        self.home, self.heads, self.inlined = {}, set(), set()

    def write(self):
        """The lines of the function's definition."""
        self.blocks = blocks_of(self.function)
        parts = order_blocks(self.blocks)
        assign_homes(parts, None, self.home, self.heads)
        self.emit_prologue()
        self.emit_region(parts, None)
        body = self.lines
        head = [f"def {python_name(self.function.name, 'run')}({', '.join(self.parameters())}):"]
        self.lines, self.depth = [], 1
        self.emit_return()
        return head + body + self.lines

    def parameters(self):
        if self.function.entry:
            return list(self.module.arguments.values())
        return [python_name(v.name) for v in self.function.parameters]

    def emit_prologue(self):
        self.emit("thread = current.thread")
        for variable in self.function.returns:
            self.emit(f"{python_name(variable.name)} = 0")
        for variable in self.function.variables:
            if variable.space == "local":
                self.emit(f"{python_name(variable.name)} = {self.module.push_frame(variable)}()")
        for name in sorted(registers_read_unset(self.blocks)):
            self.emit(f"{self.name(Register(name, ''))} = {INITIAL_VALUES[self.kinds[name]]}")

    def emit(self, text):
        self.lines.append("    " * self.depth + text)

    @contextmanager
    def indent_under(self, head):
        """What is written stands under the head of an `if` or a loop."""
        self.emit(head)
        self.depth += 1
        before = len(self.lines)
        yield
        if len(self.lines) == before:
            self.emit("pass")
        self.depth -= 1

    # --- control flow ---------------------------------------------------------------------------------------

    def emit_region(self, parts, around):
        """Blocks and Loops one behind the other, each entered if it is the next."""
        for part in parts:
            if isinstance(part, Loop):
                self.emit_loop(part)
            elif id(part) not in self.inlined:
                self.emit_block(part, around, alone=part is parts[0] and self.is_entered_first(part, around))

    def emit_loop(self, loop):
        test = f"go == {loop.first}" if loop.first == loop.last else f"{loop.first} <= go <= {loop.last}"
        with self.indent_under(f"while {test}:"):
            self.module.item = first_instruction(loop)
            self.emit(f"tick({self.module.site('loop')})")
            self.emit_region(loop.parts, loop)

    def is_entered_first(self, block, loop):
        """Whether control is at the first block of a region whenever that begins."""
        if loop is None:
            return True
        part_of = {id(b): i for i, part in enumerate(loop.parts) for b in blocks_in(part)}
        for source in self.blocks:
            here = part_of.get(id(source))
            for target in source.targets:
                there = part_of.get(id(target))
                if there is None or target is block:
                    continue
                # a jump forward meets its target on the way; one inside an inner loop is that one's
                inner = isinstance(loop.parts[there], Loop)
                if here is None or there < here or there == here and not inner:
                    return False
        return True

    def emit_block(self, block, around, alone):
        with nullcontext() if alone else self.indent_under(f"if go == {block.number}:"):
            self.emit_contents(block, around)

    def emit_contents(self, block, around):
        """A block's instructions and its jump."""
        for instruction in block.body:
            self.emit_instruction(instruction)
        if block.branch is not None and block.branch.opcode.startswith("brx"):
            numbers = ", ".join(str(-1 if t is None else t.number) for t in block.targets)
            self.emit(f"go = ({numbers},)[{self.value(block.branch.operands[0], 'u32')}]")
            return
        if block.branch is None:
            self.emit_jump(block.targets[0], around)
            return
        register, opposite = block.branch.guard
        test = self.name(register)
        if self.branches:
            self.module.item = block.branch
            test = f"branch({test}, {self.module.site('branch')})"
        taken, following = block.targets
        with self.indent_under(f"if {'not ' if opposite else ''}{test}:"):
            self.emit_jump(taken, around)
        with self.indent_under("else:"):
            self.emit_jump(following, around)

    def emit_jump(self, target, around):
        """Go on at `target`: at once, if nothing else leads there; else it is the next."""
        if target is None:
            self.emit_return()
        elif target.sources == 1 and self.home[id(target)] is around and id(target) not in self.heads:
            self.inlined.add(id(target))
            self.emit_contents(target, around)
        else:
            self.emit(f"go = {target.number}")

    def emit_return(self):
        for variable in self.function.variables if not self.function.entry else ():
            if variable.space == "local":
                self.emit(f"{self.module.pop_frame(variable)}()")
        self.emit(f"return {', '.join(python_name(v.name) for v in self.function.returns)}".rstrip())

    # --- instructions ---------------------------------------------------------------------------------------

    def emit_instruction(self, item):
        if isinstance(item, Variable):
            self.emit(f"{python_name(item.name)} = 0")
            return
        self.module.item = item
        try:
            register, opposite = item.guard or (None, False)
            test = register and f"if {'not ' if opposite else ''}{self.name(register)}:"
            with self.indent_under(test) if test else nullcontext():
                translate.instruction(self, item)
        except Missing as missing:
            what = str(missing) or item.opcode
            self.missing.append((item.line, what if item.opcode in what else f"{item.opcode}: {what}"))
        except (AttributeError, IndexError, KeyError, ValueError):
            self.missing.append((item.line, f"{item.opcode} with these operands"))

    # --- operands -------------------------------------------------------------------------------------------

    def name(self, register):
        """The Python variable of a register."""
        if register.name not in self.names:
            plain = re.sub(r"\W", "_", register.name.lstrip("%"))
            fits = plain[0].isalpha() and plain not in self.names.values()
            self.names[register.name] = plain if fits else f"{plain}_{len(self.names)}"
        return self.names[register.name]

    def value(self, operand, ptx_type):
        """The text of an operand as a value of that type."""
        if isinstance(operand, Register):
            return convert(
                self.name(operand), self.kinds[operand.name], WIDTHS.get(operand.type, 64), ptx_type
            )
        if isinstance(operand, Immediate):
            return self.module.constant(operand, ptx_type)
        if isinstance(operand, Not):
            return f"(not {self.name(operand.register)})"
        if isinstance(operand, Special):
            width = 64 if "64" in operand.name else 32
            return convert(self.module.special(operand.name), "int", width, ptx_type)
        if isinstance(operand, Symbol):
            return self.module.address(operand)
        if isinstance(operand, Group):
            return self.pack(operand, WIDTHS[ptx_type])
        raise Missing(str(operand))

    def pack(self, group, width):
        """Several operands side by side in one of `width` bits."""
        each = width // len(group.parts)
        parts = [self.value(part, f"b{each}") for part in group.parts]
        rest = [f"{part} << {i * each}" for i, part in enumerate(parts[1:], 1)]
        return f"({' | '.join([parts[0], *rest])})"

    def assign(self, operand, text, ptx_type, in_range=False):
        """Set a register to an expression of that type; `in_range`: an integer that lies within its type."""
        if operand is None:
            self.emit(text)
        elif isinstance(operand, Group):
            self.unpack(operand, text, ptx_type)
        elif not isinstance(operand, Register):
            raise Missing(
                f"its result goes to {describe_operand(operand)}, which is no register that is declared"
            )
        else:
            self.emit(f"{self.name(operand)} = {self.to_register(operand, text, ptx_type, in_range)}")

    def unpack_tuple(self, text, count):
        """The names of the parts of a tuple."""
        names = [f"part{i}_" for i in range(count)]
        self.emit(f"{', '.join(names)} = {text}")
        return names

    def unpack(self, group, text, ptx_type):
        each = WIDTHS[ptx_type] // len(group.parts)
        self.emit(f"whole_ = {text}")
        for i, part in enumerate(group.parts):
            if part is not None:
                self.assign(part, f"whole_ >> {i * each}" if i else "whole_", f"b{each}")

    def to_register(self, register, text, ptx_type, in_range):
        """The text of a value of that type as the register holds it."""
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
        if in_range and WIDTHS[ptx_type] <= width:
            return text
        mask = MASKS[width if ptx_type[0] == "s" else min(width, WIDTHS[ptx_type])]
        return f"({text}) & {mask:#x}"


FROM_BITS = {"f32": "float32_of", "f64": "float64_of"}
INITIAL_VALUES = {"int": "0", "pred": "False", "f32": "float32(0)", "f64": "float64(0)"}


def registers_read_unset(blocks):
    """The registers that some way through the blocks reads before anything has set them."""
    reads, writes = {}, {}
    for block in blocks:
        before, after = set(), set()
        for item in (*block.body, *((block.branch,) if block.branch else ())):
            if not isinstance(item, Variable):
                read, written = read_and_written(item)
                before |= read - after
                after |= written
        reads[id(block)], writes[id(block)] = before, after
    live, changed = {id(block): set() for block in blocks}, True
    while changed:
        changed = False
        for block in reversed(blocks):
            behind = set().union(*(live[id(t)] for t in block.targets if t is not None))
            now = reads[id(block)] | behind - writes[id(block)]
            changed |= now != live[id(block)]
            live[id(block)] = now
    return live[id(blocks[0])]


def describe_operand(operand):
    """An operand as PTX writes it, more or less."""
    return f"%{operand.name}" if isinstance(operand, Special) else str(getattr(operand, "name", "a constant"))


def convert(text, holds, width, ptx_type):
    """What a register of `width` bits holds, as a value of that type."""
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
        inner = f"({text} & {MASKS[wanted]:#x})" if width > wanted else text
        top = 1 << wanted - 1
        return f"(({inner} ^ {top:#x}) - {top:#x})"
    return f"({text} & {MASKS[wanted]:#x})" if width > wanted else text


def blocks_in(part):
    """All Blocks of a part."""
    return [block for inner in part.parts for block in blocks_in(inner)] if isinstance(part, Loop) else [part]


def first_instruction(loop):
    """An instruction that the loop repeats: its jump backwards, or any."""
    blocks = blocks_in(loop)
    for block in blocks:
        back = any(target is not None and target.number <= block.number for target in block.targets)
        if block.branch is not None and back:
            return block.branch
    return next((i for block in blocks for i in block.body), None)


def assign_homes(parts, around, home, heads):
    """The Loop around each block, and which blocks begin one."""
    for part in parts:
        if isinstance(part, Loop):
            heads.add(id(blocks_in(part)[0]))
            assign_homes(part.parts, part, home, heads)
        else:
            home[id(part)] = around
