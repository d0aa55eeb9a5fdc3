"""The modules `math`, `cmath` and `libdevice` for kernels. They contain the functions that Numba supports on
CUDA, with Numba's types. Where Python would raise an exception, they return the IEEE result.

    argument(s)                                       result
    integer or bool                                   float64
    float32, bfloat16                                 float32
    float16                                           float16 for ceil cos exp exp2 fabs floor log log2
                                                      log10 sin sqrt trunc,
                                                      float32 for the other functions (including tanh)
    float64                                           float64
    two: both of float32, float16, bfloat16, bool,    float32 (atan2, hypot: float64 if both are integers)
        int8, int16, uint8; else                      float64
    isfinite, isinf, isnan                            bool
    floor, ceil, trunc                                a float of the type above, not an int as in Python
    frexp, ldexp                                      by the first argument: float32 for the types listed
                                                      under "two", else float64
    modf                                              float32 for float32, else float64
    pow(float32, int32 or uint16)                     float32, if the int32 has kept its width; else as "two"

Each value is computed in double precision and rounded once to the result type. The GPU's libdevice can differ
in the last bits.
"""

import cmath as cpython
import math as python
from types import SimpleNamespace

import numpy as np
from ml_dtypes import bfloat16
from numpy import complex64, complex128, float16, float32, float64

from sim.isa import ieee
from sim.isa.functions import SAME, Function, Version
from sim.isa.libdevice import FUNCTIONS
from sim.isa.promotion import COMPLEX, FLOATING, INTEGRAL, NARROW
from sim.isa.table import entries_under


class Library(SimpleNamespace):
    """A module for kernels. An access to a function that Numba does not support raises AttributeError."""

    def __getattr__(self, name):
        raise AttributeError(f"{self.__dict__['__name__']}.{name} cannot be called in a Numba CUDA kernel")


def interpreted_functions(prefix):
    """Return {name: function called by the interpreter} for a namespace of the table."""
    return {name: entry.call for name, entry in entries_under(prefix).items()}


# The types that Numba converts to float32 for a function that has only a float32 and a float64 version.
SINGLE = NARROW | {float16, bfloat16, float32}
# The functions for which Numba has a float16 version.
WITH_HALF = set("ceil cos exp exp2 fabs floor log log10 log2 sin sqrt trunc".split())
UNARY = set(
    "acos acosh asin asinh atan atanh cos cosh ceil erf erfc exp exp2 expm1 fabs floor lgamma"
    " log log10 log1p log2 sin sinh sqrt tan tanh trunc".split()
)


# type of the argument -> type of the result, for most functions
LIKE = dict.fromkeys(INTEGRAL, float64) | dict.fromkeys(FLOATING, float32) | {float64: float64}


def of_one(half):
    """Return the type rule of a function of one number.

    half: the type of the result for a float16.
    """
    results = LIKE | {float16: half}

    def rule(x):
        return Version((x if x is float32 else float64,), results[x]) if x in results else None

    return rule


def of_two(x, y):
    """Return the overload (Version) of a function of two real numbers."""
    return None if {x, y} & COMPLEX else Version((paired_type(x, y),) * 2, paired_type(x, y))


def of_two_reals(x, y):
    """Return the overload (Version) of atan2 and hypot, which convert two integers to float64."""
    return Version((float64,) * 2, float64) if {x, y} <= INTEGRAL else of_two(x, y)


def paired_type(left, right):
    """Return float32 if both types count as single precision, otherwise float64."""
    return float32 if left in SINGLE and right in SINGLE else float64


def single_type(scalar):
    """Return the type to which a function without an integer version converts its operand."""
    return paired_type(scalar, float32)


def of_power(x, y):
    """Return the overload (Version) of pow.

    The result is float32 if the base is a float32 and the exponent an int32 or uint16. Otherwise, `of_two`
    determines the types.
    """
    whole = y is np.int32 and x in SINGLE or y is np.uint16 and x is float32
    return of_two(x, float32 if whole else y)


def of_scaling(x, exponent):
    """Return the overload (Version) of ldexp."""
    return Version((single_type(x), np.int32), single_type(x))


def of_parts(x):
    """Return the overload (Version) of modf. Its two results are float32 only for a float32."""
    scalar = float32 if x is float32 else float64
    return Version((scalar,), (scalar, scalar))


def of_mantissa(x):
    """Return the overload (Version) of frexp."""
    return Version((single_type(x),), (single_type(x), np.int32))


def of_product(x):
    """Return the overload (Version) of degrees and radians. Numba multiplies by a constant, in the type of
    the result."""
    scalar = float64 if x in INTEGRAL | {float64} else float32
    return Version((scalar,), scalar)


def of_question(x):
    """Return the overload (Version) of a predicate on one real number, such as isnan."""
    return Version((float64,), bool)


def scaling(factor):
    """Return a function that multiplies its operand by `factor`, in the type of the operand."""
    return lambda x: x * type(x)(factor)


def add_entry(name, semantics, rule, **more):
    """Add a function of the `math` module to the table."""
    Function(f"math.{name}", semantics, "CUDA Math API", rule=rule, **more).add()


# Python's gamma is called tgamma in libdevice and in sim.isa.ieee.
for _name in sorted(UNARY) + ["gamma"]:
    _known, _half = {"gamma": "tgamma"}.get(_name, _name), float16 if _name in WITH_HALF else float32
    add_entry(_name, ieee.of_one(_known), of_one(_half), **ieee.compiled(_known))
for _name, _rule in {
    "atan2": of_two_reals, "hypot": of_two_reals, "copysign": of_two, "fmod": of_two, "remainder": of_two,
    "pow": of_power,
}.items():  # fmt: skip
    add_entry(_name, ieee.of_two(_name), _rule, **ieee.compiled(_name))
add_entry("ldexp", ieee.scaled, of_scaling, native=python.ldexp)  # Numba takes the exponent modulo 2**32
add_entry("frexp", python.frexp, of_mantissa, native=python.frexp)  # infinities and NaN have exponent 0
add_entry("modf", python.modf, of_parts, native=ieee.fraction_and_whole)
add_entry("nextafter", np.nextafter, of_two, native=SAME)
add_entry("degrees", scaling(180.0 / python.pi), of_product, native=python.degrees, ulps=ieee.ULPS)
add_entry("radians", scaling(python.pi / 180.0), of_product, native=python.radians, ulps=ieee.ULPS)
for _name in ("isfinite", "isinf", "isnan"):
    add_entry(_name, getattr(python, _name), of_question, native=SAME)
CONSTANTS = {name: float64(getattr(python, name)) for name in ("pi", "e", "tau", "inf", "nan")}
math = Library(__name__="math", **interpreted_functions("math"), **CONSTANTS)


# --- complex numbers ----------------------------------------------------------------------------------------


def of_complex(z):
    """Return the overload (Version) of a complex function. The result is complex64 if the argument has single
    precision, otherwise complex128."""
    return Version((complex128,), complex64 if z is complex64 or z in SINGLE else complex128)


def of_question_of_complex(z):
    """Return the overload (Version) of a predicate on one complex number."""
    return Version((complex128,), bool)


def add_complex(names, rule):
    """Add functions of the `cmath` module to the table.

    names: their names, separated by spaces.
    """
    for name in names.split():
        native, more = getattr(cpython, name), {"rule": rule, "ulps": 2 * ieee.ULPS}
        Function(
            f"cmath.{name}", ieee.numpy_function(name), "Numba's cmath on CUDA", native=native, **more
        ).add()


add_complex("acos asin asinh atan atanh cos exp log sin sqrt tan", of_complex)
add_complex("isfinite isinf isnan", of_question_of_complex)
cmath = Library(__name__="math", **interpreted_functions("cmath"), **CONSTANTS)

libdevice = Library(__name__="libdevice", **FUNCTIONS)
