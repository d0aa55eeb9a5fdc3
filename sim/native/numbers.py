"""What kernels compute with and Numba lacks on the CPU: atomics, bits, and the functions of libdevice that
round in a stated way."""

import math
import operator

import numpy as np
from llvmlite import ir
from numba import float32, float64, int64, types
from numba.extending import intrinsic, overload

from sim.isa import promotion
from sim.isa.atomics import ENTRIES
from sim.isa.functions import SAME
from sim.isa.mathematics import paired
from sim.native.checks import NARROWED, change, dirty
from sim.native.functions import compiled_copy, compiled_value
from sim.native.halves import bfloat16, float16, through
from sim.native.internal import LIKE_CODE, always
from sim.native.kinds import Half, converter, number_of, type_of
from sim.native.logged import log_access

integer64 = converter(int64)
# what occurs in functions made from text
IN_TEXT = math, float32, change, log_access, float16, bfloat16, through, promotion
HINTS = {
    **dict.fromkeys(("ldca", "ldcg", "ldcs", "ldlu", "ldcv"), "x, index"),
    **dict.fromkeys(("stcg", "stcs", "stwb", "stwt"), "x, index, value"),
}
OFFERED = {
    "builtin_int",
    "builtin_round",
    "builtin_divmod",
    "min_of_two",
    "max_of_two",
    "shifted_left",
    "shifted_right",
    "floor_quotient",
    "floor_remainder",
    "whole_power",
    *(f"cuda_{name}" for name in HINTS),
}


def to_element(x, value):
    """`value` converted to the type of the array's elements."""


@overload(to_element, **LIKE_CODE)
def element_of(x, value):
    convert = converter(x.dtype)
    return lambda x, value: convert(value)


def operand(x, value):
    """The same, as an atomic takes it when nobody has looked at it before: a number that loses its fraction
    makes the launch DIRTY, so that somebody else says so."""


@overload(operand, **LIKE_CODE)
def narrowed(x, value):
    if not (isinstance(x.dtype, types.Integer) and isinstance(value, (types.Float, types.Complex))):
        return lambda x, value: to_element(x, value)

    def narrow(x, value):
        dirty(x.numbers, NARROWED)
        return to_element(x, value)

    return narrow


def atomic(entry, placed):
    """The compiled form of an atomic, for arrays of any type; `placed`: it notes where it was called."""
    combine = compiled_copy(entry.native) if entry.native is not SAME else compiled_value(entry.meaning)
    given = [f"operand(x, {name})" for name in entry.operands]
    old_and = ", ".join(f"values[{position}]" for position in range(len(given)))
    parameters = ", ".join(["x", *["index"] * entry.indexed, *entry.operands, *["place"] * placed])
    lines = [
        f"def combined(old, values):\n    return combine(old, {old_and})",
        "combined = always(combined)",
        f"def atomic({parameters}):",
        *(["    index = 0"] if not entry.indexed else []),
        *(["    log_access(x, index, place)"] if placed else []),
        f"    return change(x, index, combined, ({', '.join(given)},))",
    ]
    exec("\n".join(lines), names := {**globals(), "combine": combine})
    return always(names["atomic"])


for _name, _entry in ENTRIES.items():
    for _placed in (False, True):
        OFFERED.add(f"atomic_{_name}{'_at' * _placed}")
        globals()[f"atomic_{_name}{'_at' * _placed}"] = atomic(_entry, _placed)


# --- shifts -------------------------------------------------------------------------------------------------

SHIFT = """
def shifted_{name}(a, count):
    pass

@overload(shifted_{name}, **LIKE_CODE)
def {name}(a, count):
    kind = type_of(promotion.shift(number_of(a), number_of(count)))
    return lambda a, count: kind(a) {sign} int64(uint32(count)) if uint32(count) < 64 else {beyond}
"""
# as PTX: by the low 32 bits of the count, and 64 or more leave the sign alone
for _name, _sign, _beyond in (("left", "<<", "kind(0)"), ("right", ">>", "kind(kind(a) < 0) * kind(-1)")):
    exec(SHIFT.format(name=_name, sign=_sign, beyond=_beyond))


# --- division and powers of integers ------------------------------------------------------------------------


def both_integers(a, b):
    """The type of Numba's division of two integers, or None."""
    integers = all(isinstance(kind, (types.Integer, types.Boolean)) for kind in (a, b))
    return type_of(promotion.real_division(number_of(a), number_of(b))) if integers else None


@intrinsic
def unassuming(typing, x):
    """x itself, of which LLVM then supposes nothing: from the flag that Numba gives to `n + 1` it concludes
    that the sum is not the lowest integer."""

    def code(context, builder, signature, arguments):
        integer = arguments[0].type
        return builder.asm(ir.FunctionType(integer, [integer]), "", "=r,0", arguments, False)

    return x(x), code


DIVIDE = """
def floor_{name}(a, b):
    pass

@overload(floor_{name}, **LIKE_CODE)
def {name}(a, b):
    kind = both_integers(a, b)
    if kind is None:
        return lambda a, b: a {sign} b

    lowest = kind.minval

    def of_integers(a, b):
        x, y = kind(a), kind(b)
        if y == 0:
            return kind(0)
        if kind(0) > y and y + 1 == 0:  # the processor has no quotient of the lowest integer
            return {of_minus_one}
        return x {sign} y
    return of_integers
"""
for _name, _sign, _of_minus_one in (
    ("quotient", "//", "kind(0) if unassuming(x) == lowest else kind(0 - x)"),
    ("remainder", "%", "kind(0)"),
):
    exec(DIVIDE.format(name=_name, sign=_sign, of_minus_one=_of_minus_one))


DIVISION = globals()["floor_quotient"], globals()["floor_remainder"]


def builtin_divmod(a, b):
    """divmod(a, b)"""


@overload(builtin_divmod, **LIKE_CODE)
def quotient_and_remainder(a, b):
    kinds = number_of(a), number_of(b)
    if None in kinds or promotion.quotient_and_remainder(*kinds) is None:
        return None
    kind = type_of(promotion.quotient_and_remainder(*kinds))
    quotient, remainder = DIVISION
    return lambda a, b: (quotient(kind(a), kind(b)), remainder(kind(a), kind(b)))


def whole_power(a, b):
    """a ** b; if b is an integer as Numba's int_power on CUDA: by repeated multiplication, and of integers by
    way of a float64."""


@overload(whole_power, **LIKE_CODE)
def power(a, b):
    kinds = number_of(a), number_of(b)
    kind = promotion.exponentiation(*kinds) if None not in kinds else None
    if kind not in (int, np.uint64, np.float32, np.float64) or kinds[1] not in promotion.INTEGRAL:
        return lambda a, b: a**b
    lowest, integral, kind = (
        (kind in (int, np.uint64)) and -(2.0**63),
        kind in (int, np.uint64),
        type_of(kind),
    )
    result = converter(kind)

    def of_integer(a, b):
        x, negative = kind(a), b < 0
        if integral and negative:
            if x == 0:
                return result(lowest)
            if x != 1 and x + 1 != 0:
                return result(0.0)
        if b > 0x10000 or b < -0x10000:
            return result(math.pow(float64(x), float64(b)))
        product, rest = kind(1), abs(int64(b))
        while rest != 0:
            if rest & 1:
                product = product * x
            rest >>= 1
            x = x * x
        return result(1.0 / float64(product) if negative else float64(product))

    return of_integer


# --- builtins -----------------------------------------------------------------------------------------------


def like_floats(x, y):
    """The floating-point type that a function of two numbers gives."""
    return type_of(paired(number_of(x), number_of(y)))


def builtin_int(x):
    """int(x)"""


@overload(builtin_int, **LIKE_CODE)
def whole_number(x):
    if isinstance(x, (types.Float, Half)):
        return lambda x: integer64(x)
    return lambda x: int(x)


def builtin_round(x, digits=None):
    """round(x), or x rounded to decimal digits, by way of a float64."""


@overload(builtin_round, **LIKE_CODE)
def rounded(x, digits=None):
    if digits in (None, types.none) or isinstance(digits, types.Omitted):
        return lambda x, digits=None: integer64(np.rint(float64(x)))
    kind = like_floats(x, float32)
    return lambda x, digits=None: kind(rounded_to_digits(kind(x), int64(digits)))


@always
def rounded_to_digits(x, digits):
    """CPython's fallback for rounding to decimal digits, which Numba compiles for CUDA: by way of an
    int64."""
    scale, spare = 10.0 ** abs(digits), 1.0
    if digits > 22:
        scale, spare = 10.0 ** (digits - 22), 1e22
    y = x * scale * spare if digits >= 0 else x / scale
    if not np.isfinite(x) or not np.isfinite(y):
        return float64(x)
    z = float64(integer64(np.rint(y)))
    if abs(y - z) == 0.5:
        z = 2.0 * float64(integer64(np.rint(y / 2.0)))
    return z / spare / scale if digits >= 0 else z * scale


def extreme(better, place):
    """min or max of two numbers, as Python has it; of floats as PTX: a NaN loses, and -0 is less than 0 (of
    two equals the second, if operand `place` is negative)."""

    @intrinsic
    def of_two(typing, a, b):
        floats = isinstance(a, types.Float) and isinstance(b, types.Float)
        kind = typing.unify_types(types.unliteral(a), types.unliteral(b))

        def code(context, builder, signature, arguments):
            x, y = arguments = [
                context.cast(builder, value, of, kind) for value, of in zip(arguments, signature.args)
            ]
            second = context.get_function(better, types.boolean(kind, kind))(builder, (y, x))
            if floats:
                bits = ir.IntType(kind.bitwidth)
                negative = builder.icmp_signed("<", builder.bitcast(arguments[place], bits), bits(0))
                second = builder.or_(
                    second,
                    builder.or_(
                        builder.fcmp_unordered("uno", x, x),
                        builder.and_(builder.fcmp_ordered("==", x, y), negative),
                    ),
                )
            return builder.select(second, y, x)

        return kind and (kind(a, b), code)  # of a and b: floats and a float beside an integer differ

    return of_two


min_of_two, max_of_two = extreme(operator.lt, 1), extreme(operator.gt, 0)
for _name, _parameters in HINTS.items():
    exec(
        f"@always\ndef cuda_{_name}({_parameters}):\n    "
        + ("x[index] = value" if "value" in _parameters else "return x[index]")
    )
