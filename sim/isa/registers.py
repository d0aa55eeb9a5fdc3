"""PTX instructions that only compute with the registers of one thread, as Python expressions for generated
code.

`find_operation("add.s32")` returns an Operation: an expression of the operands, with the types of operands
and results. The table (sim.isa.table.by_ptx) defines the results of instructions. This module writes common
instructions as inline expressions, because calls are slow. It also handles forms that the table lacks:
carries, packed 16-bit floats, set and slct.

In expressions, integers are Python ints. They are non-negative for the types u and b, and signed for the
types s. A result can exceed the range of its type, and is masked by the code that stores it. f32, f64 and f16
are numpy scalars, and bf16 is the type of ml_dtypes. Predicates are bools, and packed types are ints.

The approximations (ex2.approx, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div.approx and div.full) return the
correctly rounded value. It is within the error bounds of the PTX ISA, but the result of a GPU can differ in
the last bits. With .ftz, subnormal numbers are flushed to zero.

Source: PTX ISA 9.7.1, "Integer Arithmetic Instructions", to 9.7.9, "Data Movement and Conversion
Instructions".
"""

import math
import operator
from dataclasses import replace

import numpy as np
from ml_dtypes import bfloat16, finfo
from numpy import float32

from sim.isa import bits, comparisons, integer_arithmetic
from sim.isa.bits import bits_of
from sim.isa.expressions import HELPER_ENTRIES, HELPERS, MAKERS, PAIRS, Operation, helper, maker
from sim.isa.float_arithmetic import FUSED
from sim.isa.functions import bind_width
from sim.isa.names import WIDTHS, Missing, Name
from sim.isa.ptx_types import REALS
from sim.isa.table import by_ptx

# PTX's name of a rounding direction -> CUDA's name, used in the table
DIRECTIONS = {"rm": "rd", "rp": "ru", "rmi": "rdi", "rpi": "rui"}
PACKED = "f16x2", "bf16x2"  # types of registers that contain two numbers
CARRY = "carry"  # the PTX type of the condition code, set by add.cc and read by addc


def find_operation(text):
    """Return the Operation for a PTX instruction. Raise Missing for an unsupported instruction."""
    name = Name(text)
    if name.types and name.types[-1] in PACKED and name.base != "cvt":
        return packed_operation(name)
    if name.base in MAKERS:
        operation = MAKERS[name.base](name)
        if operation is not None:
            # If a modifier remains, the maker has not handled it, and it must not be ignored silently.
            if name.rest:
                raise Missing(text)
            return operation
    return table_operation(Name(text))


def same_type_operation(text, name, count, in_range=False, of=None):
    """Return an Operation whose operands and result all have the same type."""
    ptx_type = of or name.type
    return Operation(text, (ptx_type,) * count, (ptx_type,), in_range)


# --- instructions in the table ------------------------------------------------------------------------------

# semantics or compiled form -> inline expression
EXPRESSIONS = {
    operator.add: "{0} + {1}",
    operator.sub: "{0} - {1}",
    operator.mul: "{0} * {1}",
    operator.truediv: "{0} / {1}",
    operator.and_: "{0} & {1}",
    operator.or_: "{0} | {1}",
    operator.xor: "{0} ^ {1}",
    operator.invert: "~{0}",
    operator.neg: "-{0}",
    operator.not_: "not {0}",
    operator.eq: "({0} == {1})",
    operator.ne: "({0} != {1})",
    operator.lt: "({0} < {1})",
    operator.le: "({0} <= {1})",
    operator.gt: "({0} > {1})",
    operator.ge: "({0} >= {1})",
    abs: "abs({0})",
    math.fabs: "abs({0})",
    math.sqrt: "sqrt({0})",
    min: "min({0}, {1})",
    max: "max({0}, {1})",
    integer_arithmetic.multiply_add: "{0} * {1} + {2}",
    comparisons.chosen: "{0} if {2} else {1}",
    comparisons.UNORDERED["lt"]: "(not {0} >= {1})",
    comparisons.UNORDERED["le"]: "(not {0} > {1})",
    comparisons.UNORDERED["gt"]: "(not {0} <= {1})",
    comparisons.UNORDERED["ge"]: "(not {0} < {1})",
}
# The expressions of the comparisons <, <=, > and >=.
ORDERINGS = {EXPRESSIONS[getattr(operator, name)] for name in ("lt", "le", "gt", "ge")}
# Operations whose low result bits are the same for signed and unsigned operands.
SIGNLESS = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.neg,
    operator.eq,
    operator.ne,
    integer_arithmetic.multiply_add,
}
# Operations whose result is within the range of its type if the operands are unsigned.
RANGE_PRESERVING = {operator.and_, operator.or_, operator.xor, min, max, comparisons.chosen}
FLOATING = {"add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv}
NAMES = {np.dtype(np.bool_): "pred", np.dtype(bfloat16): "bf16"}


def type_name(scalar):
    """Return the PTX name of a type in the table."""
    dtype = np.dtype(scalar)
    return NAMES.get(dtype) or f"{dtype.kind.replace('i', 's')}{8 * dtype.itemsize}"


def table_operation(name):
    """Return the Operation for a table entry.

    Its expression is wrapped as the modifiers .ftz, .relu, .sat and .satfinite require.
    """
    # The table ignores .ftz, and has no separate entries for these modifiers.
    ftz, relu = name.take("ftz"), name.take("relu")
    floating = name.types and name.types[0] in REALS and name.base != "setp"
    whole = name.canonical == "cvt.sat.f32.f32"  # cvt.sat.f32.f32 has its own entry (__saturatef)
    sat = floating and not whole and name.take("sat")
    finite = floating and name.take("satfinite")
    name.rest = [DIRECTIONS.get(part, part) for part in name.rest]
    try:
        entry = by_ptx(name.canonical)
    except KeyError:
        raise Missing(name.text) from None
    operands, result = tuple(map(type_name, entry.operands)), type_name(entry.results)
    text, in_range, operands = spell_entry(name, entry, operands, result)
    if finite:
        text = text.replace("{0}", clamp_expression(result, "{0}"))
    if ftz and "f32" in (*operands, result):
        text = flush_subnormals(text, operands, result)
    if relu:
        text = f"at_least_zero({text})" if floating else f"max({text}, 0)"
    if sat:
        text = f"saturated({text})"
    return Operation(
        text, operands, (result,), in_range, BY_CONSTANT.get(entry.semantics, lambda *_: None)(name)
    )


def spell_entry(name, entry, operands, result):
    """Return (expression for an entry, whether its result is within the range of its type, operand types)."""
    if name.base in FLOATING and result in REALS and not set(name.rest) - {"rn"}:
        return EXPRESSIONS[FLOATING[name.base]], False, operands  # numpy rounds to nearest
    semantics = entry.native if callable(entry.native) and entry.native in EXPRESSIONS else entry.semantics
    calls = ", ".join(f"{{{i}}}" for i in range(len(operands)))
    if name.base in ("cvt", "mov") and plain_conversion(name, operands[0], result):
        operands = (name.types[-1],)  # the table's entry has Numba's types, which are signed
        text = f"{REALS[result].__name__}({{0}})" if result in REALS and operands[0] != result else "{0}"
        return text, operands[0][0] == result[0] == "u" and WIDTHS[operands[0]] <= WIDTHS[result], operands
    if semantics not in EXPRESSIONS:
        key = name.base + "_" + "_".join([*name.rest, *name.types])
        HELPERS[key], HELPER_ENTRIES[key] = bind_width(semantics, entry.operands), entry
        text = f"{key}({calls})"
        # The functions in FUSED return the type of the result, so their results need no conversion.
        converts = result in REALS and semantics not in FUSED.values()
        return (f"{REALS[result].__name__}({text})" if converts else text), False, operands
    whole = all(ptx_type[0] in "su" and ptx_type not in REALS for ptx_type in operands)
    same = len({WIDTHS[ptx_type] for ptx_type in (*operands, *((result,) if result != "pred" else ()))}) == 1
    # If the operands are read as unsigned numbers, no sign extension is needed.
    if semantics in SIGNLESS and whole and same:
        operands = tuple(f"b{WIDTHS[ptx_type]}" for ptx_type in operands)
    return EXPRESSIONS[semantics], semantics in RANGE_PRESERVING and result[0] != "s", operands


def plain_conversion(name, source, to):
    """Return whether Python's int, or a numpy scalar type, performs this conversion correctly."""
    if to not in REALS:
        return source not in REALS and "sat" not in name.rest
    if name.rest not in ([], ["rn"]):
        return False
    # numpy converts some types through double precision. Use it only if this does not round twice.
    return WIDTHS[source] <= 32 or source == "f64" and to in ("f32", "f16", "f64")


def shift_expressions(sign, beyond):
    """Return the function (name) that returns the function (constant count) for the expression of a shift.

    sign: the Python operator.
    beyond: the expression for a count of at least the width.
    """
    return lambda name: lambda count: f"{{0}} {sign} {{1}}" if count < name.width else beyond


BY_CONSTANT = {
    integer_arithmetic.shifted_left: shift_expressions("<<", "0"),
    integer_arithmetic.shifted_right: shift_expressions(">>", "{0} >> 63"),
}


def flush_subnormals(text, operands, result):
    """Return the expression with its f32 operands and its f32 result flushed to zero (.ftz)."""
    for i, ptx_type in enumerate(operands):
        if ptx_type == "f32":
            text = text.replace(f"{{{i}}}", f"flush({{{i}}})")
    return f"flush({text})" if result == "f32" else text


SMALLEST = float32(2.0**-126)  # the smallest normal float32


@helper
def flush(x):
    """Flush a subnormal float32 to a zero with the same sign."""
    return x if abs(x) >= SMALLEST or x != x else x * float32(0)


# --- carries ------------------------------------------------------------------------------------------------

SIGNS = {"add": "+", "sub": "-"}


@maker("add", "sub", "addc", "subc")
def _add(name):
    """Return the Operation of an integer add or sub with .cc, .sat or a carry-in (PTX ISA 9.7.2)."""
    base, width = name.base.rstrip("c"), WIDTHS[name.type]
    if name.type in REALS:
        return None
    if name.take("sat"):
        return same_type_operation(f"clamp_signed({{0}} {SIGNS[base]} {{1}}, {width})", name, 2)
    takes, gives = name.base.endswith("c"), name.take("cc")
    if not (takes or gives):
        return None
    text = f"{{0}} {SIGNS[base]} {{1}}" + (f" {SIGNS[base]} {{2}}" if takes else "")
    # The carry or borrow is the bit above the result. In a negative Python int, this bit is 1.
    return with_carry(text, name.bits, 2, takes, gives)


@maker("mad", "madc")
def _multiply_add(name):
    """Return the Operation of mad with a carry-in or carry-out (PTX ISA 9.7.2)."""
    takes, gives = name.base == "madc", name.take("cc")
    part = name.take_one_of(("lo", "hi"))
    if not (takes or gives) or part is None:
        return None
    mask, width = (1 << name.width) - 1, name.width
    factor = f"({{0}} * {{1}} & {mask:#x})" if part == "lo" else f"({{0}} * {{1}} >> {width})"
    ptx_type = name.bits if part == "lo" else name.type
    return with_carry(f"{factor} + {{2}}" + (" + {3}" if takes else ""), ptx_type, 3, takes, gives)


def with_carry(text, ptx_type, count, takes, gives):
    """Return an Operation with a carry.

    takes: whether there is a carry-in, as the last operand.
    gives: whether there is a carry-out (.cc), as the second result.
    """
    operands = (ptx_type,) * count + ((CARRY,) if takes else ())
    if not gives:
        return Operation(text, operands, (ptx_type,))
    return Operation(f"split_carry({text}, {WIDTHS[ptx_type]})", operands, (ptx_type, CARRY), True)


@helper
def split_carry(total, width):
    """Return (the low `width` bits of an integer, the carry or borrow bit above them)."""
    return total & ((1 << width) - 1), total >> width & 1


@helper
def clamp_signed(value, width):
    """Return an integer, saturated to the range of signed integers with `width` bits."""
    return max(-(1 << width - 1), min(value, (1 << width - 1) - 1))


# --- choices ------------------------------------------------------------------------------------------------


# Boolean operator by which set and setp combine a comparison and a predicate -> Python operator
JOINED = {"and": "&", "or": "|", "xor": "^"}


@maker("slct")
def _slct(name):
    """Return the Operation of slct, which selects an operand by the sign of the third operand (PTX ISA
    9.7.6)."""
    ptx_type, tested = name.types
    ptx_type = ptx_type if ptx_type in REALS else f"b{WIDTHS[ptx_type]}"
    test = "flush({2})" if name.take("ftz") else "{2}"
    return Operation(f"{{0}} if {test} >= 0 else {{1}}", (ptx_type, ptx_type, tested), (ptx_type,), True)


@maker("set")
def _set(name):
    """Return the Operation of set, which returns all ones or 1.0 if a comparison is true (PTX ISA 9.7.6)."""
    result, ptx_type = name.types
    joined = name.take_one_of(JOINED)
    test = find_operation(".".join(["setp", *name.rest, ptx_type]))
    name.rest = []
    of = REALS[result].__name__ if result in REALS else None
    yes, no = (f"{of}(1)", f"{of}(0)") if of else (hex((1 << WIDTHS[result]) - 1), "0")
    text = f"({test.text}) {JOINED[joined]} {{2}}" if joined else test.text
    operands = (*test.operands, "pred") if joined else test.operands
    return Operation(f"{yes} if {text} else {no}", operands, (result,), True)


# --- packed 16-bit floats -----------------------------------------------------------------------------------


def packed_operation(name):
    """Return the Operation that applies an instruction to both halves of packed operands (f16x2, bf16x2)."""
    if name.base in ("neg", "abs"):
        return Operation(
            "{0} ^ 0x80008000" if name.base == "neg" else "{0} & 0x7FFF7FFF", ("b32",), ("b32",), True
        )
    if name.base == "setp":
        return comparisons_of(name.text)[0]
    # An instruction on f16x2 or bf16x2 applies the scalar operation to each half. An integer result, which is
    # a mask, has 16 bits per half.
    scalar = {"f16x2": "f16", "bf16x2": "bf16", "u32": "u16", "s32": "u16"}
    one = find_operation(".".join(scalar.get(part, part) for part in name.text.split(".")))
    count, ptx_type = len(one.operands), scalar[name.types[-1]]
    if set(one.operands) != {ptx_type}:
        raise Missing(name.text)
    key = f"both_{name.canonical.replace('.', '_')}"
    if key not in HELPERS:
        PAIRS[key] = one.of("abc"), count, ptx_type, one.results[0]
        HELPERS[key] = pairwise(
            eval(f"lambda {', '.join('abc'[:count])}: " + one.of("abc"), HELPERS), ptx_type, one.results[0]
        )
    return Operation(
        f"{key}({', '.join(f'{{{i}}}' for i in range(count))})", ("b32",) * count, ("b32",), True
    )


def pairwise(function, ptx_type, result):
    """Return a function that applies `function` to the lower and to the upper halves of 32-bit registers.

    ptx_type, result: the PTX types of the halves and of the results of `function`.
    """
    scalar = REALS[ptx_type]
    encoded = (lambda value: bits_of(scalar(value))) if result in REALS else int

    def both(*words):
        halves = [np.array([word & 0xFFFF, word >> 16], np.uint16).view(scalar) for word in words]
        low, high = (encoded(function(*(half[i] for half in halves))) for i in (0, 1))
        return high << 16 | low

    return both


def comparisons_of(text):
    """Return the Operations of the two results p|q of a setp.

    If its operands are packed, p is the result for their lower halves and q for their upper halves. Otherwise
    q is the negation of p (PTX ISA 9.7.6 and 9.7.7).
    """
    types = Name(text).types
    if types[-1] not in PACKED:
        operation = find_operation(text)
        return operation, replace(operation, text=f"not {operation.text}")
    mask = find_operation(text.replace("setp", "set", 1).replace(types[-1], f"u32.{types[-1]}"))
    tests = (f"{mask.text} & {bit} != 0" for bit in ("1", "0x80000000"))
    return tuple(replace(mask, text=test, results=("pred",)) for test in tests)


# --- conversions --------------------------------------------------------------------------------------------


@maker("cvt")
def _convert(name):
    """Return the Operation of a cvt to tf32, or from or to packed types. Return None for a conversion in the
    table."""
    if set(name.types) & BYTES.keys():
        return _convert_bytes(name)
    if name.type in PACKED:
        return _convert_two(name)
    if name.type == "tf32":
        mode, relu, finite = name.take_one_of(("rna", "rn", "rz")), name.take("relu"), name.take("satfinite")
        more = f", {relu}, {finite}" if relu or finite else ""
        return Operation(f"to_tf32({{0}}, {mode!r}{more})", ("b32",), ("b32",), True)
    return None


def _convert_two(name):
    """Return the Operation of a cvt from two f32 to packed 16-bit floats."""
    if name.types[1:] != ["f32"]:
        return None
    ptx_type, (one, other) = name.types[0][:-2], ("{0}", "{1}")
    mode, relu = name.take_one_of(("rn", "rz"), "rn"), name.take("relu")
    if name.take("satfinite"):
        one, other = clamp_expression(ptx_type, one), clamp_expression(ptx_type, other)
    text = f"two_halves({one}, {other}, {REALS[ptx_type].__name__}, {mode!r}, {relu})"
    return Operation(text, ("f32", "f32"), ("b32",), True)


def clamp_expression(ptx_type, text):
    """Return an expression that clamps a float to the largest finite number of a type (.satfinite)."""
    return f"at_most({text}, {float(finfo(REALS[ptx_type]).max)!r})"


# PTX type of two 8-bit floats -> the ml_dtypes type of one of them
BYTES = {"e4m3x2": "float8_e4m3fn", "e5m2x2": "float8_e5m2"}
HELPERS |= {scalar.__name__: scalar for scalar in bits.BYTES}


def _convert_bytes(name):
    """Return the Operation of a cvt between two 8-bit floats and two wider floats."""
    to, source = name.types
    relu, nearest = name.take("relu"), name.take("rn")
    # PTX requires .rn for these conversions. It requires .satfinite for conversions to 8 bits, and forbids it
    # for conversions from 8 bits (PTX ISA 9.7.9, `cvt`).
    if not nearest or (to in BYTES) != name.take("satfinite"):
        return None
    if to in BYTES and source == "f32":
        return Operation(f"two_bytes({{0}}, {{1}}, {BYTES[to]}, {relu})", ("f32", "f32"), ("b16",), True)
    if to in BYTES and source == "f16x2":
        return Operation(f"halves_to_bytes({{0}}, {BYTES[to]}, {relu})", ("b32",), ("b16",), True)
    if to == "f16x2":
        return Operation(f"bytes_to_halves({{0}}, {BYTES[source]}, {relu})", ("b16",), ("b32",), True)
    return None
