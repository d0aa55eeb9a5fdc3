"""What a PTX module is made of, once it is read. Every part knows the line of the PTX text on which it
stands."""

import re
import struct
from dataclasses import dataclass, field

from sim.isa.registers import WIDTHS

FORMATS = {16: "<e", 32: "<f", 64: "<d"}  # of floats, for struct


def python_name(name, stem="v"):
    """The Python name of a variable or parameter, or, by its stem, of something else with a name in PTX."""
    return f"{stem}_" + re.sub(r"\W", "_", name)


@dataclass(frozen=True)
class Register:
    """A virtual register; `name` is unique in its function, whatever block of braces declares it."""

    name: str
    type: str


@dataclass(frozen=True)
class Special:
    """A read-only register of the machine: %tid.x, %laneid, %clock64."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: a Python int; or the bits of a float that was written as one, and its width."""

    value: int
    float_width: int = 0

    def bits(self, width):
        """In a format of `width` bits; of an integer, the low ones."""
        if self.float_width in (0, width):
            return self.value & ((1 << width) - 1)
        raw = self.value.to_bytes(self.float_width // 8, "little")
        number = struct.unpack(FORMATS[self.float_width], raw)[0]
        return int.from_bytes(struct.pack(FORMATS[width], number), "little")


@dataclass(frozen=True)
class Symbol:
    """The address of a variable, a label or a function, and what is added to it."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Address:
    """[base + offset]: the base is a Register, a Symbol or an Immediate."""

    base: object
    offset: int = 0


@dataclass(frozen=True)
class Group:
    """{a, b}, (a, b) or a|b: several operands in the place of one. None stands for `_`, which nobody
    wants."""

    parts: tuple


@dataclass(frozen=True)
class Not:
    """!p."""

    register: Register


@dataclass(frozen=True)
class Location:
    """What `.loc` says: a place in the source from which the PTX was made, and `inlined` that of the call
    behind which it stands."""

    file: int
    line: int
    column: int
    inlined: object = None


@dataclass(frozen=True)
class Instruction:
    """`@guard opcode operands;`. `guard` is (Register, whether its opposite counts), or None."""

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
    name: str


@dataclass(frozen=True)
class Variable:
    """A declaration in a state space: `count` elements of `type` (None: as many as the launch gives), and the
    bytes that they hold at first, with symbols whose address goes at a byte: {offset: name}."""

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
    """An `.entry` or a `.func`. `body` holds Instructions and Labels; `variables` those declared inside."""

    name: str
    entry: bool
    returns: tuple
    parameters: tuple
    line: int
    body: list | None = None
    variables: list = field(default_factory=list)
    limits: dict = field(default_factory=dict)  # reqntid, maxntid, ... -> numbers


@dataclass
class Text:
    """All of a module."""

    target: str = ""
    functions: dict = field(default_factory=dict)
    variables: dict = field(default_factory=dict)
    files: dict = field(default_factory=dict)  # number -> path
    lines: list = field(default_factory=list)
