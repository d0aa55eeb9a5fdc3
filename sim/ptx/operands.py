"""Instructions of PTX text and their operands. Source: PTX ISA, "Instruction Statements" and "Instruction
Operands"."""

import struct

from sim.ptx.syntax import Address, Group, Immediate, Instruction, Not, Special, Symbol
from sim.ptx.tokens import Tokens, parse_integer


class Operands(Tokens):
    """A reader of instructions and operands.

    scopes: for each pair of braces around, {name: Register}, the outermost first.
    location: the Location of the last .loc.
    """

    def __init__(self, text):
        super().__init__(text)
        self.location, self.scopes = None, []

    def instruction(self):
        """Read an instruction up to its semicolon."""
        line, guard = self.line(), None
        if self.accept("@"):
            opposite = self.accept("!")
            guard = self.predicate(), opposite
        opcode, operands = self.take(), []
        while self.next != ";":
            operands.append(self.operand())
            if not self.accept(","):
                break
        self.take(";")
        return Instruction(opcode, tuple(operands), guard, line, self.location)

    def register(self, name):
        """Return the register of a name in the innermost scope that declares it, or None."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return None

    def predicate(self):
        """Read a predicate register. Errors: LaunchError if it is not declared."""
        register = self.register(self.take())
        if register is None:
            raise self.error(f"{self.tokens[self.at - 1]} is no register that is declared here", self.at - 1)
        return register

    def operand(self):
        """Read an operand, or a pair of registers p|q."""
        first = self.simple()
        if self.next == "|":
            self.take()
            return Group((first, self.simple()))
        return first

    def simple(self):
        """Read an operand that is not a pair. The operand `_` becomes None."""
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
        """Read what is added to a symbol, and return the sum."""
        total = 0
        while self.next in ("+", "-"):
            sign = 1 if self.take() == "+" else -1
            total += sign * self.integer()
        return total

    def group(self, end):
        """Read the operands of a vector or list up to `end`. A vector of one element is that element."""
        parts = self.list_until(end, self.operand)
        return parts[0] if end == "}" and len(parts) == 1 else Group(tuple(parts))

    def address(self):
        """Read an address in brackets."""
        self.take("[")
        base = self.simple()
        offset = self.offset()
        while self.accept(","):  # coordinates of a texture are read and ignored
            self.operand()
        self.take("]")
        if isinstance(base, Symbol):
            base, offset = Symbol(base.name), offset + base.offset
        return Address(base, offset)

    def constant(self):
        """Read a constant. Floats in hexadecimal notation (0f3F800000, 0d...) give their bits; other
        floats are 64 bits wide (PTX ISA, "Floating-Point Constants")."""
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
            raise self.error(f"{token!r} is no number", self.at - 1) from None
