"""The parts of a PTX instruction's name: its types and its modifiers.

Source: PTX ISA, "Fundamental Types", "Instruction Statements"."""

# type -> its width in bits
WIDTHS = {f"{letter}{width}": width for letter in "sub" for width in (8, 16, 32, 64)}
WIDTHS |= {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32}
WIDTHS |= {"tf32": 32, "pred": 1, "b128": 128, "e4m3x2": 16, "e5m2x2": 16}


class Missing(Exception):
    """No instruction of this name is known."""


class Name:
    """The parts of an instruction's name. A part that no meaning takes is left, and refused.

    Modifiers are sorted: PTX accepts them in any order."""

    def __init__(self, text):
        self.text, (self.base, *rest) = text, text.split(".")
        self.types = [part for part in rest if part in WIDTHS]
        self.rest = sorted(part for part in rest if part not in WIDTHS)

    @property
    def canonical(self):
        """Return the name without what has been taken from it, its modifiers first."""
        return ".".join([self.base, *self.rest, *self.types])

    def has(self, part):
        if part in self.rest:
            self.rest.remove(part)
            return True
        return False

    def one_of(self, parts, otherwise=None):
        return next((part for part in parts if self.has(part)), otherwise)

    @property
    def type(self):
        if not self.types:
            raise Missing(self.text)
        return self.types[0]

    @property
    def width(self):
        return WIDTHS[self.type]

    @property
    def bits(self):
        """The type without a sign: for what does not depend on one."""
        return f"b{self.width}"
