"""Operators of float16 and bfloat16 in compiled code. sim.isa defines their semantics and computes in
float64."""

import operator

from numba.extending import lower_builtin, overload

from sim.isa.table import INSTRUCTIONS
from sim.native.codegen.isa_functions import function_of
from sim.native.codegen.linking import LIKE_CODE
from sim.native.codegen.scalars import HALVES, Half, scalar_of, to_double

EXPORTED = set(HALVES)

float16, bfloat16 = HALVES["float16"], HALVES["bfloat16"]


def overload_halves(called, entry):
    """Overload a Python operator or function for calls in which at least one operand is a Half.

    called: the operator or function.
    entry: the entry of sim.isa that defines the semantics.
    """
    form = function_of(entry)

    def of_one(a):
        if isinstance(a, Half):
            return lambda a: form(a)

    def of_two(a, b):
        if any(isinstance(numba_type, Half) for numba_type in (a, b)) and None not in map(scalar_of, (a, b)):
            return lambda a, b: form(a, b)

    overload(called, **LIKE_CODE)(of_one if entry.count == 1 else of_two)


def define_comparison(name, sign):
    """Define a comparison of two Halves that Numba's min and max use internally.

    name: "lt" or "gt".
    sign: the comparison operator.
    """

    @lower_builtin(getattr(operator, name), Half, Half)
    def compared(context, builder, signature, arguments):
        return builder.fcmp_ordered(
            sign, *(to_double(builder, half, value) for half, value in zip(signature.args, arguments))
        )


for _name in "neg pos not_ add sub mul truediv floordiv mod pow eq ne lt le gt ge".split():
    # The in-place operator `x += y` calls `iadd`.
    for _called in (_name, f"i{_name}"):
        if hasattr(operator, _called):
            overload_halves(getattr(operator, _called), INSTRUCTIONS[f"operator.{_name}"])
overload_halves(abs, INSTRUCTIONS["builtins.abs.1"])
define_comparison("lt", "<")
define_comparison("gt", ">")
