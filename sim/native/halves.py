"""What compiled kernels do with float16 and bfloat16: operators, functions of `math`, and those of
`numba.cuda.fp16`.

All is computed in float64 and rounded to 16 bits. For a sum, product, quotient or square root that gives the
nearest number, since 53 bits are more than twice the 11 that are kept, and two (Figueroa, "When is double
rounding innocuous?", 1995). Which type an operation has is Numba's typing on CUDA, sim.isa.promotion.
"""

import math
import operator

import numpy as np
from numba import float32, float64, types
from numba.extending import lower_builtin, overload

from sim.isa import promotion
from sim.native.internal import LIKE_CODE
from sim.native.kinds import HALVES, Half, number_of, to_double, type_of

ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"}
RULES = {
    "truediv": promotion.division,
    "floordiv": promotion.real_division,
    "mod": promotion.real_division,
    "pow": promotion.exponentiation,
}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
ROUNDED = {"ceil", "floor", "trunc"}  # sim.native.numbers has these
OFFERED = set(HALVES)

try:
    import numba.cuda.fp16  # noqa: F401  (a kernel may say cuda.fp16 without having imported it)
except ImportError:  # numba without numba-cuda
    pass

float16, bfloat16 = HALVES["float16"], HALVES["bfloat16"]


def through(kind):
    """The type in which a result of type `kind` is computed."""
    return float64 if isinstance(kind, Half) else kind


def function(parameters, result, **names):
    """The function of these parameters that returns `result`, both as text."""
    exec(
        f"def made({parameters}):\n    return {result}",
        names := {"math": math, "np": np, "float64": float64, **names},
    )
    return names["made"]


def any_half(*kinds):
    return any(isinstance(kind, Half) for kind in kinds) and None not in map(number_of, kinds)


# --- operators ----------------------------------------------------------------------------------------------


def arithmetic(name, sign):
    rule = RULES.get(name, promotion.arithmetic)

    def operation(a, b):
        number = rule(number_of(a), number_of(b)) if any_half(a, b) else None
        if number is not None:
            kind = type_of(number)
            exponent = "b" if name == "pow" and isinstance(b, types.Integer) else "via(b)"
            return function("a, b", f"kind(via(a) {sign} {exponent})", kind=kind, via=through(kind))

    for operated in (name, f"i{name}"):
        overload(getattr(operator, operated), **LIKE_CODE)(operation)


def comparison(name, sign):
    @overload(getattr(operator, name), **LIKE_CODE)
    def compared(a, b):
        if any_half(a, b) and not isinstance(a, types.Complex) and not isinstance(b, types.Complex):
            return function("a, b", f"float64(a) {sign} float64(b)")


def extreme(name):
    """Numba's own min and max ask for this."""

    @lower_builtin(getattr(operator, name), Half, Half)
    def compared(context, builder, signature, arguments):
        return builder.fcmp_ordered(
            COMPARISONS[name],
            *(to_double(builder, kind, value) for kind, value in zip(signature.args, arguments)),
        )


for _name, _sign in ARITHMETIC.items():
    arithmetic(_name, _sign)
for _name, _sign in COMPARISONS.items():
    comparison(_name, _sign)
extreme("lt")
extreme("gt")


@overload(operator.neg, **LIKE_CODE)
def negated(a):
    kind = a
    if isinstance(a, Half):
        return lambda a: kind(-float64(a))


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
    kind = float32 if a == bfloat16 else a
    if isinstance(a, Half):
        return lambda a: kind(abs(float64(a)))
