"""The parts of the name of a PTX instruction: its opcode, types and modifiers.

Source: PTX ISA 4.3, "Statements" ("Instruction Statements"); 5.2, "Types" ("Fundamental Types").
"""

# PTX type -> its width in bits
WIDTHS = {f"{letter}{width}": width for letter in "sub" for width in (8, 16, 32, 64)}
WIDTHS |= {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}
WIDTHS |= {"tf32": 32, "pred": 1, "b128": 128, "e4m3x2": 16, "e5m2x2": 16}


class Missing(Exception):
    """The exception for an unsupported instruction. Its argument is the name or a description."""


class Name:
    """The name of a PTX instruction. Modifiers are removed from it as they are handled.

    If a modifier remains in `rest`, no code has handled it, so the instruction is refused. The modifiers in
    the canonical name are sorted, because ptxas accepts them in any order.
    """

    def __init__(self, text):
        self.text, (self.base, *rest) = text, text.split(".")
        self.types = [part for part in rest if part in WIDTHS]
        self.rest = sorted(part for part in rest if part not in WIDTHS)

    @property
    def canonical(self):
        """The name without the removed modifiers: opcode, remaining modifiers, types."""
        return ".".join([self.base, *self.rest, *self.types])

    def take(self, part):
        """Remove a modifier. Return whether the name contained it."""
        if part in self.rest:
            self.rest.remove(part)
            return True
        return False

    def take_one_of(self, parts, otherwise=None):
        """Remove the first of these modifiers contained in the name, and return it. Return `otherwise` if the
        name contains none of them."""
        return next((part for part in parts if self.take(part)), otherwise)

    @property
    def type(self):
        """The first type. Raise Missing if the name contains no type."""
        if not self.types:
            raise Missing(self.text)
        return self.types[0]

    @property
    def width(self):
        """The width of the first type, in bits."""
        return WIDTHS[self.type]

    @property
    def bits(self):
        """The type of untyped bits with the width of the first type (b32 for s32), for operations that do not
        depend on the sign."""
        return f"b{self.width}"
