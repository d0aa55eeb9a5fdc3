"""What a kernel sees as `math`, `cmath` and `libdevice`: the functions that Numba CUDA has, typed as it does,
IEEE not exceptions.

    argument(s)                                       result
    integer or bool                                   float64
    float32, bfloat16                                 float32
    float16                                           float16 for ceil cos exp exp2 fabs floor log log2 log10
                                                      sin sqrt trunc,
                                                      float32 for the others (tanh too)
    float64                                           float64
    two: both of float32, a half, bool, int8,         float32 (atan2, hypot: float64 if both are integers)
        int16, uint8; else                            float64
    isfinite, isinf, isnan                            bool
    floor, ceil, trunc                                a float of the type above, not an int as in Python
    frexp, ldexp                                      by the first argument: float32 for those listed with
                                                      two, else float64
    modf                                              float32 for float32, else float64
    pow(float32, int32 or uint16)                     float32, if the int32 has kept its width; else as two

Values are the double result rounded once to the type. The GPU's libdevice may differ in the last places.
"""

import math as python
from types import SimpleNamespace

import numpy as np
from ml_dtypes import bfloat16
from numpy import complex64, complex128, float16, float32, float64

from sim.isa import ieee
from sim.isa.conversions import ONE, truncated, wrap
from sim.isa.libdevice import FUNCTIONS
from sim.isa.promotion import FLOATING, INTEGRAL, KIND, NARROW


class Library(SimpleNamespace):
    """A module of functions as a kernel sees it."""

    def __getattr__(self, name):
        raise AttributeError(
            f"{self.__dict__['__name__']}.{name} is nothing that a Numba CUDA kernel can call"
        )


# What Numba takes for a float32 when a function has only a float32 and a float64 version.
SINGLE = NARROW | {float16, bfloat16, float32}
WITH_HALF = set("ceil cos exp exp2 fabs floor log log10 log2 sin sqrt trunc".split())
UNARY = set(
    "acos acosh asin asinh atan atanh cos cosh ceil erf erfc exp exp2 expm1 fabs floor lgamma"
    " log log10 log1p log2 sin sinh sqrt tan tanh trunc".split()
)


def unary(name, half=float32):
    """The function `name` of `sim.isa.ieee` for every kind of argument; `half`: what a float16 gives."""
    function, otherwise = ieee.UNARY[name]
    results = dict.fromkeys(INTEGRAL, float64) | dict.fromkeys(FLOATING, float32)
    results |= {float64: float64, float16: half}

    def evaluate(x):
        kind = type(x)
        try:
            if kind is float32:
                return ONE * function(x)
            if kind is float64:
                return float64(function(x))
            return results[KIND[kind]](function(x))
        except ieee.RAISES:
            return results[KIND[kind]](otherwise(float64(x)))
        except KeyError:
            raise TypeError(f"Numba's math.{name} takes no {kind.__name__}") from None

    evaluate.__name__ = name
    return evaluate


def binary(name, of_integers=None):
    """The function `name` of `sim.isa.ieee`; `of_integers`: what two integers give, by default what `paired`
    says."""
    function, otherwise = ieee.BINARY[name]
    function = ieee.total(function, otherwise)

    def evaluate(x, y):
        if type(x) is float32 and type(y) is float32:
            return ONE * function(x, y)
        left, right = KIND[type(x)], KIND[type(y)]
        kind = of_integers if of_integers and left in INTEGRAL and right in INTEGRAL else paired(left, right)
        return kind(function(kind(x), kind(y)))

    evaluate.__name__ = name
    return evaluate


def paired(left, right):
    """float32 if both kinds may count as one, else float64."""
    return float32 if left in SINGLE and right in SINGLE else float64


def single(x):
    """The kind that a lone argument of a function without integer versions takes."""
    return paired(KIND[type(x)], float32)


_pow = binary("pow")


def power(x, y):
    """math.pow; an exponent that is still an int32 leaves a float32, and so does a uint16 if x is one."""
    whole = type(y) is np.int32 and KIND[type(x)] in SINGLE or type(y) is np.uint16 and type(x) is float32
    return _pow(x, float32(y) if whole else y)


def ldexp(x, exponent):
    """x * 2**exponent, the exponent taken modulo 2**32."""
    kind = single(x)
    exponent = int(exponent) if KIND[type(exponent)] in INTEGRAL else truncated(exponent, 32)
    return kind(ieee.scaled(float(x), wrap(exponent, 32)))


def frexp(x):
    """(mantissa, exponent); infinities and NaN come back with the exponent 0."""
    kind = single(x)
    mantissa, exponent = python.frexp(x)
    return kind(mantissa), exponent


def modf(x):
    """(fractional part, whole part), both with the sign of x; float32 for float32 alone."""
    kind = float32 if type(x) is float32 else float64
    return tuple(kind(part) for part in python.modf(x))


def nextafter(x, y):
    kind = paired(KIND[type(x)], KIND[type(y)])
    return np.nextafter(kind(x), kind(y))


def _scaling(factor):
    """x times a constant, both in the type of the result, as Numba multiplies."""

    def evaluate(x):
        kind = float64 if KIND[type(x)] in INTEGRAL | {float64} else float32
        return kind(x) * kind(factor)

    return evaluate


def _answering(function):
    return lambda x: function(float(x))


math = Library(
    __name__="math",
    **{name: unary(name, float16 if name in WITH_HALF else float32) for name in UNARY},
    gamma=unary("tgamma"),
    atan2=binary("atan2", float64),
    hypot=binary("hypot", float64),
    copysign=binary("copysign"),
    fmod=binary("fmod"),
    remainder=binary("remainder"),
    pow=power,
    ldexp=ldexp,
    frexp=frexp,
    modf=modf,
    nextafter=nextafter,
    degrees=_scaling(180.0 / python.pi),
    radians=_scaling(python.pi / 180.0),
    isfinite=_answering(python.isfinite),
    isinf=_answering(python.isinf),
    isnan=_answering(python.isnan),
    **{name: float64(getattr(python, name)) for name in ("pi", "e", "tau", "inf", "nan")},
)


def _complex(function):
    """A function of complex numbers: complex64 for what counts as a float32 (or a complex64), else
    complex128."""

    def evaluate(z):
        kind = KIND[type(z)]
        return (complex64 if kind is complex64 or kind in SINGLE else complex128)(function(complex128(z)))

    return evaluate


cmath = Library(
    __name__="math",
    **{name.replace("arc", "a"): _complex(getattr(np, name))
       for name in "arccos arcsin arcsinh arctan arctanh cos exp log sin sqrt tan".split()},
    **{name: lambda z, test=getattr(np, name): bool(test(complex128(z)))
       for name in ("isfinite", "isinf", "isnan")},
    **{name: float64(getattr(python, name)) for name in ("pi", "e", "tau", "inf", "nan")},
)  # fmt: skip

libdevice = Library(__name__="libdevice", **FUNCTIONS)
