"""The syntax tree of a PTX module. Functions, variables and instructions have the line of the PTX text."""

import re
import struct
from dataclasses import dataclass, field
from functools import cached_property

from sim.isa.registers import WIDTHS

FORMATS = {16: "<e", 32: "<f", 64: "<d"}  # bits -> the format of a float in struct


def python_name(name, stem="v"):
    """Return the Python name of a variable or parameter; with another stem, of something else that has a
    name in PTX."""
    return f"{stem}_" + re.sub(r"\W", "_", name)


@dataclass(frozen=True)
class Register:
    """A virtual register. `name` is unique in its function, although inner braces may declare the same
    name again."""

    name: str
    type: str


@dataclass(frozen=True)
class Special:
    """A read-only register of the machine, such as %tid.x, %laneid or %clock64."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: a Python int, or the bits of a float with their width."""

    value: int
    float_width: int = 0

    def bits(self, width):
        """Return the constant in a format of `width` bits; of an integer, the low bits."""
        if self.float_width in (0, width):
            return self.value & ((1 << width) - 1)
        raw = self.value.to_bytes(self.float_width // 8, "little")
        number = struct.unpack(FORMATS[self.float_width], raw)[0]
        return int.from_bytes(struct.pack(FORMATS[width], number), "little")


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, a label or a function, plus an offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """A memory operand [base + offset]. The base is a Register, a Symbol or an Immediate."""

    base: object
    offset: int = 0


@dataclass(frozen=True)
class Group:
    """Several operands in the place of one: {a, b}, (a, b) or a|b. None is the operand `_`, which is
    discarded."""

    parts: tuple


@dataclass(frozen=True)
class Not:
    """A negated predicate, !p."""

    register: Register


@dataclass(frozen=True)
class Location:
    """A position in the source from which the PTX was made, from `.loc`. `inlined` is the position of the
    call that was inlined."""

    file: int
    line: int
    column: int
    inlined: object = None


@dataclass(frozen=True)
class Instruction:
    """An instruction `@guard opcode operands;`. `guard` is (Register, whether it is negated), or None."""

    opcode: str
    operands: tuple
    guard: tuple | None
    line: int
    location: Location | None

    @property
    def names(self):
        """The parts of the opcode."""
        return self.opcode.split(".")


@dataclass(frozen=True)
class Label:
    """A label. Its name is unique in its function."""

    name: str


@dataclass(frozen=True)
class Variable:
    """A declaration in a state space.

    count: the number of elements of `type`; None if the launch determines it.
    initial: the initial bytes.
    pointers: (offset, Symbol) for each address among the initial bytes.
    """

    space: str
    name: str
    type: str
    count: int | None
    align: int
    line: int
    initial: bytes | None = None
    pointers: tuple = ()

    @property
    def bytes(self):
        return max(WIDTHS[self.type] // 8, 1) * (self.count or 0)


@dataclass(eq=False)
class Function:
    """An `.entry` or a `.func`. `body` holds its Instructions and Labels, `variables` the declarations
    inside."""

    name: str
    entry: bool
    returns: tuple
    parameters: tuple
    line: int
    body: list | None = None
    variables: list = field(default_factory=list)
    limits: dict = field(default_factory=dict)  # directive such as reqntid -> its numbers


@dataclass
class Text:
    """A whole module."""

    target: str = ""
    functions: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)  # number -> path
    lines: list = field(default_factory=list)

    def reachable_variables(self, names):
        """Return the variables of these names and those to which their initial values point, in the order of
        their declarations."""
        reached, waiting = set(), list(names)
        while waiting:
            name = waiting.pop()
            if name in self.variables and name not in reached:
                reached.add(name)
                waiting += [symbol.name for _, symbol in self.variables[name].pointers]
        return [variable for name, variable in self.variables.items() if name in reached]

    @cached_property
    def addressable_functions(self):
        """The names of the functions whose address is taken, by an instruction or by the initial value of a
        variable that some instruction names."""
        bodies = (function.body or () for function in self.functions.values())
        items = [item for body in bodies for item in body if isinstance(item, Instruction)]
        names = {name for item in items for name in symbols_in(item)}
        moved = {name for item in items if item.names[0] == "mov" for name in symbols_in(item)}
        initial = {symbol.name for v in self.reachable_variables(names) for _, symbol in v.pointers}
        return {self.functions[name].name for name in (moved | initial) & self.functions.keys()}


def symbols_in(part):
    """Yield the names of all symbols in an instruction or an operand."""
    if isinstance(part, Symbol):
        yield part.name
    elif isinstance(part, Instruction | Group):
        for one in part.operands if isinstance(part, Instruction) else part.parts:
            yield from symbols_in(one)
    elif isinstance(part, Address):
        yield from symbols_in(part.base)
