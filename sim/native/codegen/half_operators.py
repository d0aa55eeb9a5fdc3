"""The operators of float16 and bfloat16 in compiled code. The table of sim.isa defines them, and computes
in float64."""

import operator

from numba.extending import lower_builtin, overload

from sim.isa.table import INSTRUCTIONS
from sim.native.codegen.isa_functions import function_of
from sim.native.codegen.linking import LIKE_CODE
from sim.native.codegen.scalars import HALVES, Half, scalar_of, to_double

EXPORTED = set(HALVES)

float16, bfloat16 = HALVES["float16"], HALVES["bfloat16"]


def operated(called, entry):
    """Compile a call of numbers as its entry in sim.isa defines it, if one of the numbers is a Half."""
    form = function_of(entry)

    def of_one(a):
        if isinstance(a, Half):
            return lambda a: form(a)

    def of_two(a, b):
        if any(isinstance(numba_type, Half) for numba_type in (a, b)) and None not in map(scalar_of, (a, b)):
            return lambda a, b: form(a, b)

    overload(called, **LIKE_CODE)(of_one if entry.count == 1 else of_two)


def extreme(name, sign):
    """Return the operation that Numba's own min and max use."""

    @lower_builtin(getattr(operator, name), Half, Half)
    def compared(context, builder, signature, arguments):
        return builder.fcmp_ordered(
            sign, *(to_double(builder, half, value) for half, value in zip(signature.args, arguments))
        )


for _name in "neg pos not_ add sub mul truediv floordiv mod pow eq ne lt le gt ge".split():
    for _called in (_name, f"i{_name}"):
        if hasattr(operator, _called):
            operated(getattr(operator, _called), INSTRUCTIONS[f"operator.{_name}"])
operated(abs, INSTRUCTIONS["builtins.abs.1"])
extreme("lt", "<")
extreme("gt", ">")
