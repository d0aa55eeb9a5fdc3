"""A parser for PTX instructions and their operands.

Source: PTX ISA 4.3.2, "Instruction Statements"; chapter 6, "Instruction Operands".
"""

import struct

from sim.isa.table import with_types_last
from sim.ptx.syntax import Address, Group, Immediate, Instruction, Not, Special, Symbol
from sim.ptx.tokens import Tokens, parse_integer


class Operands(Tokens):
    """A parser for instructions and operands.

    scopes: a {name: Register} for each open pair of braces. The outermost one comes first.
    location: the Location of the most recent .loc directive.
    """

    def __init__(self, text):
        super().__init__(text)
        self.location, self.scopes = None, []

    def instruction(self):
        """Parse an instruction, including its semicolon."""
        line, guard = self.line(), None
        if self.accept("@"):
            opposite = self.accept("!")
            # A guard is `@p` or `@!p`, where p is a predicate register.
            guard = self.predicate(), opposite
        opcode, operands = with_types_last(self.take()), []
        while self.next != ";":
            operands.append(self.operand())
            if not self.accept(","):
                break
        self.take(";")
        return Instruction(opcode, tuple(operands), guard, line, self.location)

    def register(self, name):
        """Return the register with this name in the innermost scope that declares it, or None."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def predicate(self):
        """Parse a predicate register. Raise LaunchError if it is not declared."""
        register = self.register(self.take())
        if register is None:
            raise self.error(f"{self.tokens[self.at - 1]} is not declared as a register here", self.at - 1)
        return register

    def operand(self):
        """Parse an operand, or a pair p|q."""
        first = self.simple()
        if self.next == "|":
            self.take()
            return Group((first, self.simple()))
        return first

    def simple(self):
        """Parse a single operand. The operand `_` is returned as None."""
        token = self.next
        if token in ("{", "("):
            return self.group({"{": "}", "(": ")"}[self.take()])
        if token == "[":
            return self.address()
        if token == "!":
            self.take()
            return Not(self.predicate())
        if token == "-" or token[:1].isdigit():
            return self.constant()
        self.take()
        if token == "_":
            return None
        register = self.register(token)
        if register is not None:
            return register
        if token.startswith("%") or token == "WARP_SZ":
            return Immediate(32) if token == "WARP_SZ" else Special(token[1:])
        if token == "generic" and self.accept("("):
            name = self.take()
            self.take(")")
            token = name
        return Symbol(token, self.offset())

    def offset(self):
        """Parse the offsets added to a symbol or address, and return their sum."""
        total = 0
        while self.next in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            total += sign * self.integer()
        return total

    def group(self, end):
        """Parse the elements of a vector or list up to the token `end`. Return a vector with a single element
        as that element."""
        parts = self.list_until(end, self.operand)
        return parts[0] if end == "}" and len(parts) == 1 else Group(tuple(parts))

    def address(self):
        """Parse a memory operand in brackets."""
        self.take("[")
        base = self.simple()
        offset = self.offset()
        coordinates = []
        while self.accept(","):  # the coordinates in a tensor
            coordinates.append(self.operand())
        self.take("]")
        # `simple` has already parsed the offset of a symbol, so add it to the offset of the address.
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), offset + base.offset
        return Address(base, offset, tuple(coordinates))

    def constant(self):
        """Parse a constant.

        A hexadecimal float (0f3F800000, 0d...) is a bit pattern of 32 or 64 bits. A decimal float has 64 bits
        (PTX ISA 4.5.2, "Floating-Point Constants").
        """
        negative, token = self.accept("-"), self.take()
        if token[:2] in ("0f", "0F", "0d", "0D") and len(token) in (10, 18):
            return Immediate(int(token[2:], 16), 32 if token[1] in "fF" else 64)
        try:
            if "." in token or "e" in token.lower() and not token.lower().startswith("0x"):
                return Immediate(
                    struct.unpack("<Q", struct.pack("<d", float(token) * (-1) ** negative))[0], 64
                )
            return Immediate(-parse_integer(token) if negative else parse_integer(token))
        except ValueError:
            raise self.error(f"{token!r} is not a number", self.at - 1) from None
