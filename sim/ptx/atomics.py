"""What the operation of an atom or red makes of the element that is there.

Source: PTX ISA 9.7.13.5, "atom".
"""

from sim.isa.registers import HELPERS, KINDS, WIDTHS, Missing, bits_of, meaning
from sim.memory.atomics import decrement, increment

INTEGERS = {
    "and": lambda old, value: old & value,
    "or": lambda old, value: old | value,
    "xor": lambda old, value: old ^ value,
    "exch": lambda old, value: value,
    "cas": lambda old, expected, value: value if old == expected else old,
    "inc": increment,
    "dec": decrement,
    "min": min,
    "max": max,
}


def combination(access):
    """(kind of the element, (old, operand, ...) -> new) of an Access. Errors: Missing."""
    operation, kind = access.operation, access.type
    width = WIDTHS.get(kind)
    if kind in ("f32", "f64") and operation in ("add", "exch"):
        return kind, (lambda old, value: old + value) if operation == "add" else INTEGERS["exch"]
    if kind in ("f16", "bf16", "f16x2", "bf16x2") and operation in ("add", "min", "max"):
        return f"u{width}", on_halves(operation, kind)
    if kind in KINDS or width not in (16, 32, 64) or operation not in (*INTEGERS, "add"):
        raise Missing(access.opcode)
    if operation == "add":
        mask = (1 << width) - 1
        return f"u{width}", lambda old, value: old + value & mask
    signed = operation in ("min", "max") and kind[0] == "s"
    return f"{'s' if signed else 'u'}{width}", INTEGERS[operation]


def on_halves(operation, kind):
    """The operation on the bits of one or two halves."""
    text = meaning(f"{operation}.{kind}").text
    function = eval(f"lambda a, b: {text.format('a', 'b')}", HELPERS)
    if kind.endswith("x2"):
        return function
    number_of = HELPERS[f"{KINDS[kind].__name__}_of"]
    return lambda old, value: bits_of(function(number_of(old), number_of(value)))


def writes(access):
    """Whether an atomic writes: always, or (old, expected, value) -> whether."""
    return (
        (lambda old, expected, value: old == expected and old != value) if access.operation == "cas" else True
    )
