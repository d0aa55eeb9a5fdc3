"""The syntax tree of a PTX module. Functions, variables and instructions contain their line number in the
PTX."""

import hashlib
import itertools
import re
import struct
from dataclasses import dataclass, field
from functools import cached_property

from sim.isa.registers import WIDTHS

FORMATS = {16: "<e", 32: "<f", 64: "<d"}  # width in bits -> `struct` format of a float

# Maximum number of characters that the Python identifier keeps of a PTX name. LLVM refuses arguments whose
# names have more than 1,024 characters, and mangled names of templates can be longer.
LONGEST_NAME = 200


def python_name(name, stem="v"):
    """Return the Python identifier for a PTX name.

    stem: a prefix that distinguishes kinds of names. The default is for variables and parameters.
    """
    text = re.sub(r"\W", "_", name)
    if len(text) > LONGEST_NAME:
        text = f"{text[:LONGEST_NAME]}_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return f"{stem}_{text}"


@dataclass(frozen=True)
class Register:
    """A virtual register. Its name is unique within the function, even if another pair of braces declares the
    same PTX name."""

    name: str
    type: str


@dataclass(frozen=True)
class Special:
    """A read-only special register, such as %tid.x, %laneid or %clock64 (PTX ISA, chapter 10)."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant operand: a Python int, or the bit pattern of a float of `float_width` bits."""

    value: int
    float_width: int = 0

    def bits(self, width):
        """Return the bit pattern of the constant in a format of `width` bits. An integer is truncated, and a
        float is converted."""
        if self.float_width in (0, width):
            return self.value & ((1 << width) - 1)
        raw = self.value.to_bytes(self.float_width // 8, "little")
        number = struct.unpack(FORMATS[self.float_width], raw)[0]
        return int.from_bytes(struct.pack(FORMATS[width], number), "little")


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, a label or a function, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """A memory operand [base + offset]. The base is a Register, a Symbol or an Immediate.

    coordinates: the operands after the first comma in the brackets.
    """

    base: object
    offset: int = 0
    coordinates: tuple = ()


@dataclass(frozen=True)
class Group:
    """A composite operand: a vector {a, b}, a list of parameters (a, b), or a pair a|b.

    A part None represents `_`, the operand that discards a result.
    """

    parts: tuple


@dataclass(frozen=True)
class Not:
    """A negated predicate operand, !p."""

    register: Register


@dataclass(frozen=True)
class Location:
    """A position in a source file, from a `.loc` directive.

    inlined: the position of the call if the code was inlined (inlined_at), otherwise None.
    """

    file: int
    line: int
    column: int
    inlined: object = None


@dataclass(frozen=True)
class Instruction:
    """An instruction `@guard opcode operands;`. The guard is (Register, whether it is negated), or None.

    The types are the last modifiers of the opcode. The other modifiers are in the order of the source, which
    can be any order.
    """

    opcode: str
    operands: tuple
    guard: tuple | None
    line: int
    location: Location | None

    @property
    def names(self):
        """The opcode and its modifiers."""
        return self.opcode.split(".")


@dataclass(frozen=True)
class Label:
    """A label. Its name is unique within the function."""

    name: str


@dataclass(frozen=True)
class Variable:
    """The declaration of a variable.

    space: its state space.
    count: the number of elements of `type`, or None if the launch determines it (extern .shared).
    align: the alignment in bytes.
    initial: the bytes of its initialiser, or None.
    pointers: a (byte offset, Symbol) for each address in the initialiser.
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
        """The size in bytes, or 0 if the launch determines it."""
        return max(WIDTHS[self.type] // 8, 1) * (self.count or 0)


@dataclass(eq=False)
class Function:
    """An `.entry` (kernel) or a `.func` (device function).

    body: the Instructions, the Labels, and the declarations of call parameters. It is None for a declaration.
    variables: the declarations of variables inside the body.
    """

    name: str
    entry: bool
    returns: tuple
    parameters: tuple
    line: int
    body: list | None = None
    variables: list = field(default_factory=list)
    limits: dict = field(default_factory=dict)  # name of a directive, such as reqntid -> its arguments


@dataclass
class Text:
    """A parsed PTX module."""

    target: str = ""
    functions: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)  # number in a .file directive -> path
    lines: list = field(default_factory=list)
    # The number of the module. It makes the addresses of variables and functions differ between modules.
    number: int = field(default_factory=itertools.count(1).__next__)

    def reachable_variables(self, names):
        """Return the variables with these names, and all variables to which their initialisers point,
        directly or indirectly. They are in the order of their declarations."""
        reached, waiting = set(), list(names)
        while waiting:
            name = waiting.pop()
            if name in self.variables and name not in reached:
                reached.add(name)
                waiting += [symbol.name for _, symbol in self.variables[name].pointers]
        return [variable for name, variable in self.variables.items() if name in reached]

    @cached_property
    def inline_lines(self):
        """The numbers of the lines with inline assembly. Compilers put comments around it."""
        inside, found = False, set()
        for number, line in enumerate(self.lines, 1):
            inside = "// begin inline asm" in line or inside and "// end inline asm" not in line
            if inside:
                found.add(number)
        return found

    @cached_property
    def addressable_functions(self):
        """The names of the functions whose address is taken, by a `mov` or by the initialiser of a variable
        to which some instruction refers."""
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
