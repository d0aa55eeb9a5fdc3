"""The operators of float16 and bfloat16 in compiled code: those of the table, which computes in float64."""

import operator

from numba import float32, float64
from numba.extending import lower_builtin, overload

from sim.isa.table import INSTRUCTIONS
from sim.native.functions import function_of
from sim.native.internal import LIKE_CODE
from sim.native.scalars import HALVES, Half, scalar_of, to_double

OFFERED = set(HALVES)

float16, bfloat16 = HALVES["float16"], HALVES["bfloat16"]


def operated(name):
    """The operator `name` of two numbers, as the table has it, where one is a Half."""
    form = function_of(INSTRUCTIONS[f"operator.{name}"])

    def operation(a, b):
        if any(isinstance(numba_type, Half) for numba_type in (a, b)) and None not in map(scalar_of, (a, b)):
            return lambda a, b: form(a, b)

    for known in (name, f"i{name}"):
        if hasattr(operator, known):
            overload(getattr(operator, known), **LIKE_CODE)(operation)


def extreme(name, sign):
    """Numba's own min and max ask for this."""

    @lower_builtin(getattr(operator, name), Half, Half)
    def compared(context, builder, signature, arguments):
        return builder.fcmp_ordered(
            sign, *(to_double(builder, half, value) for half, value in zip(signature.args, arguments))
        )


for _name in "add sub mul truediv floordiv mod pow eq ne lt le gt ge".split():
    operated(_name)
extreme("lt", "<")
extreme("gt", ">")


@overload(operator.neg, **LIKE_CODE)
def negated(a):
    half = a
    if isinstance(a, Half):
        return lambda a: half(-float64(a))


@overload(operator.pos, **LIKE_CODE)
def unchanged(a):
    if isinstance(a, Half):
        return lambda a: a


@overload(operator.not_, **LIKE_CODE)
def is_zero(a):
    if isinstance(a, Half):
        return lambda a: float64(a) == 0.0


@overload(abs, **LIKE_CODE)
def absolute(a):
    result = float32 if a == bfloat16 else a
    if isinstance(a, Half):
        return lambda a: result(abs(float64(a)))
