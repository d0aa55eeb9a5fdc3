"""The body of a kernel with its direct calls inlined, for analyses that follow values through functions.

For each call, the callee's registers and labels get a separate suffix. Loads and stores of parameters and
results become moves between registers. Calls through pointers, recursive calls and calls of functions without
a body are not inlined.
"""

from dataclasses import replace

from sim.isa.registers import WIDTHS
from sim.ptx.syntax import Address, Group, Instruction, Label, Not, Register, Symbol

MAX_INSTRUCTIONS = 20_000  # calls are not inlined once the body is longer than this


class Inlined:
    """A kernel as one function, with the bodies of its callees.

    body: the instructions and labels.
    copies: {id of an instruction of the module: its copies in `body`}.
    """

    def __init__(self, entry, functions):
        self.functions, self.body, self.copies, self.calls = functions, [], {}, 0
        self.add(entry, "", (entry,))

    def add(self, function, suffix, around):
        """Append the body of a function to `body`.

        suffix: the text to append to the names of its registers and labels, or "" for the kernel itself.
        around: the function itself and the functions on the chain of calls to it.
        """
        names = {item.name for item in function.body if isinstance(item, Label)}
        own = {variable.name for variable in (*function.parameters, *function.returns)} if suffix else ()
        # `passed`: name of a parameter of a call -> the instructions that store it
        # `results`: name of a result of a call -> the first part of the names of the registers for it
        passed, results = {}, {}
        for item in function.body:
            if isinstance(item, Label):
                self.body.append(Label(item.name + suffix))
            elif not isinstance(item, Instruction):
                continue
            elif (name := parameter_of(item)) in own or name in results:
                self.body += moves(item, results.get(name, name + suffix), suffix)
            elif name is not None and item.names[0] == "st":
                passed.setdefault(name, []).append(item)
            elif item.names[0] == "call":
                self.call(item, suffix, passed, results, around)
            elif suffix and item.names[0] == "ret":
                jump = replace(renamed(item, suffix, names), opcode="bra", operands=(Symbol(f"end{suffix}"),))
                self.body.append(jump)
            else:
                self.keep(item, renamed(item, suffix, names))
        if suffix:
            self.body.append(Label(f"end{suffix}"))

    def call(self, item, suffix, passed, results, around):
        """Append the body of the callee, or the call itself if it cannot be inlined."""
        lists = [operand for operand in item.operands if isinstance(operand, Group)]
        target = next((operand for operand in item.operands if not isinstance(operand, Group)), None)
        callee = self.functions.get(getattr(target, "name", None))
        has_results = bool(lists) and item.operands[0] is lists[0]
        given = [
            part.name for group in lists[has_results:] for part in group.parts if isinstance(part, Symbol)
        ]
        setting = [(name, store) for name in given for store in passed.pop(name, ())]
        known = callee is not None and callee.body is not None and callee not in around
        if not known or len(self.body) > MAX_INSTRUCTIONS or len(given) != len(callee.parameters):
            for one in (*(store for _, store in setting), item):
                self.keep(one, renamed(one, suffix, ()))
            return
        self.calls += 1
        inner = f"@{self.calls}"
        names = dict(zip(given, (variable.name for variable in callee.parameters)))
        for name, store in setting:
            self.body += moves(store, names[name] + inner, suffix)
        self.add(callee, inner, (*around, callee))
        if has_results:
            returned = (variable.name + inner for variable in callee.returns)
            results |= dict(zip((part.name for part in lists[0].parts), returned))

    def keep(self, item, copy):
        self.body.append(copy)
        self.copies.setdefault(id(item), []).append(copy)


def parameter_of(item):
    """Return the name of the parameter or result that an instruction loads or stores, or None."""
    if item.names[0] in ("ld", "st") and "param" in item.names:
        address = item.operands[item.names[0] == "ld"]
        return getattr(address.base, "name", None)
    return None


def moves(item, stem, suffix):
    """Return the moves that replace a load or store of a parameter or result.

    stem: the first part of the names of the registers for it. The rest of a name is an offset in bytes.
    suffix: see Inlined.add.
    """
    loads = item.names[0] == "ld"
    value, address = item.operands[not loads], item.operands[loads]
    parts = value.parts if isinstance(value, Group) else (value,)
    found, size = [], WIDTHS[item.names[-1]] // 8
    guard = item.guard and (renamed(item.guard[0], suffix, ()), item.guard[1])
    for at, part in enumerate(parts):
        place = Register(f"{stem}+{address.offset + at * size}", item.names[-1])
        pair = (renamed(part, suffix, ()), place)
        operands = pair if loads else pair[::-1]
        found.append(replace(item, opcode=f"mov.{item.names[-1]}", operands=operands, guard=guard))
    return found


def renamed(part, suffix, labels):
    """Return a copy of an instruction or operand in which registers and labels have a suffix.

    suffix: see Inlined.add.
    labels: the names of the labels to rename.
    """
    if not suffix or part is None:
        return part
    if isinstance(part, Register):
        return replace(part, name=part.name + suffix)
    if isinstance(part, Symbol) and part.name in labels:
        return replace(part, name=part.name + suffix)
    if isinstance(part, Not):
        return replace(part, register=renamed(part.register, suffix, labels))
    if isinstance(part, Group):
        return replace(part, parts=tuple(renamed(one, suffix, labels) for one in part.parts))
    if isinstance(part, Address):
        rest = tuple(renamed(one, suffix, labels) for one in part.coordinates)
        return replace(part, base=renamed(part.base, suffix, labels), coordinates=rest)
    if isinstance(part, Instruction):
        operands = tuple(renamed(one, suffix, labels) for one in part.operands)
        guard = part.guard and (renamed(part.guard[0], suffix, labels), part.guard[1])
        return replace(part, operands=operands, guard=guard)
    return part
