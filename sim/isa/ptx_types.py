"""PTX's numeric types, and functions that add one table entry for each of several types.

Source: PTX ISA 5.2.1, "Fundamental Types".
"""

from ml_dtypes import bfloat16
from numpy import float16, float32, float64, int16, int32, int64, uint16, uint32, uint64

from sim.isa.functions import Function

# PTX type -> numpy scalar type
SIGNED = {"s16": int16, "s32": int32, "s64": int64}
UNSIGNED = {"u16": uint16, "u32": uint32, "u64": uint64}
PATTERNS = {"b16": uint16, "b32": uint32, "b64": uint64}
FLOATS = {"f32": float32, "f64": float64}
HALVES = {"f16": float16, "bf16": bfloat16}
INTEGERS = SIGNED | UNSIGNED
REALS = FLOATS | HALVES


def add_entry(name, semantics, operands, result, native=None, also=()):
    """Add a function to the table under its PTX name.

    also: further PTX names.
    """
    Function(name, semantics, "PTX ISA", operands, result, native=native, ptx=(name, *also)).add()


def family(name, types, semantics, count=2, results=None, native=None):
    """Add one entry per type to the table. The type replaces the letter T in `name`.

    types: {PTX type: numpy scalar type}.
    count: the number of operands of this type, or a tuple with the types of the operands after the first one.
    results: the type of the result, or {PTX type: type of the result}. By default, it is the type of the
        operands.
    """
    for text, scalar in types.items():
        result = scalar if results is None else results[text] if isinstance(results, dict) else results
        operands = (scalar, *count) if isinstance(count, tuple) else (scalar,) * count
        add_entry(name.replace("T", text), semantics, operands, result, native)
