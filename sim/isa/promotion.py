"""Numba's result types on CUDA: the type in which an operation on two types is computed.

Arithmetic (+ - *, and / except for integers), checked against numba-cuda 0.30:

    operands                                              result type
    integers or booleans, at least one signed             int64      (also uint64 with int64; numpy
                                                                     promotes these to float64)
    booleans only, or a boolean and an unsigned integer   int64
    unsigned and unsigned                                 uint64
    float64 with any real number                          float64
    any float with int32, int64, uint16, uint32, uint64   float64
    float32 with bool, int8, int16, uint8, or a half      float32
    float16 with float16, bool, int8                      float16
    bfloat16 with bfloat16, int8, uint8                   bfloat16
    any other half with a half, bool, int8, int16, uint8  float32
    complex64 with bool, int8, int16, uint8, float16,
        float32, complex64                                complex64
    complex with any other number except bfloat16         complex128

The remaining operators differ as follows:

    /            float64 for integers
    // and %     halves become float32; complex numbers are not supported
    << and >>    the type of the left operand alone: uint64 if it is unsigned, else int64
    & | ^        booleans remain boolean
    **           a float to an integer power keeps the float's type (halves become float32)
    comparisons  (and divmod) as arithmetic, but uint64 with a signed integer is compared as float64, and a
                 boolean with an unsigned integer as uint64
    min, max     numpy's `promote_types`, but a bfloat16 only with a bfloat16
"""

import numpy as np
from ml_dtypes import bfloat16
from numpy import complex64, complex128, float16, float32, float64, uint64

UNSIGNED = {np.uint8, np.uint16, np.uint32, uint64}
SIGNED = {np.int8, np.int16, np.int32, int}
INTEGRAL = UNSIGNED | SIGNED | {bool}
# A float32 combined with one of these types gives a float32.
NARROW = {bool, np.int8, np.int16, np.uint8}
# 16-bit float type -> the types of the other operand that do not promote it to another type
HALVES = {float16: {float16, bool, np.int8}, bfloat16: {bfloat16, np.int8, np.uint8}}
# The floats for which numpy's promotion agrees with Numba's.
PLAIN = {float32, float64}
COMPLEX = {complex64, complex128}
FLOATING = {float16, bfloat16, float32, float64}

# Python type of a value -> the scalar type that represents its Numba type
SCALAR = {scalar: scalar for scalar in INTEGRAL | FLOATING | COMPLEX}
SCALAR |= {np.bool_: bool, np.int64: int, float: float64, complex: complex128}


def arithmetic(a, b):
    """Return the scalar type of a + b, or None if Numba does not support the operation.

    a, b: scalar types.
    """
    if a in COMPLEX or b in COMPLEX:
        return _complex(a, b)
    if a in FLOATING or b in FLOATING:
        return _floating(a, b)
    return uint64 if a in UNSIGNED and b in UNSIGNED else int


def _complex(a, b):
    """Return the scalar type of a + b if at least one operand is complex."""
    if bfloat16 in (a, b):
        return None
    single = NARROW | {float16, float32, complex64}
    return complex64 if a in single and b in single else complex128


def _floating(a, b):
    """Return the scalar type of a + b if at least one operand is a float and neither is complex."""
    if not {a, b} <= NARROW | {float16, bfloat16, float32}:
        return float64
    for half, company in HALVES.items():
        if (a is half and b in company) or (b is half and a in company):
            return half
    return float32


def division(a, b):
    """Return the scalar type of a / b."""
    return float64 if {a, b} <= INTEGRAL else arithmetic(a, b)


def real_division(a, b):
    """Return the scalar type of a // b and a % b."""
    scalar = arithmetic(a, b)
    return {float16: float32, bfloat16: float32, complex64: None, complex128: None}.get(scalar, scalar)


def exponentiation(a, b):
    """Return the scalar type of a ** b."""
    if a in FLOATING and b in INTEGRAL:
        return float64 if a is float64 else float32
    scalar = arithmetic(a, b)
    return float32 if scalar in HALVES else scalar


def shift(a, b):
    """Return the scalar type of a << b and a >> b."""
    if not {a, b} <= INTEGRAL:
        return None
    return uint64 if a in UNSIGNED else int


def bitwise(a, b):
    """Return the scalar type of a & b, a | b and a ^ b."""
    if a is bool and b is bool:
        return bool
    return arithmetic(a, b) if {a, b} <= INTEGRAL else None


def comparison(a, b):
    """Return the scalar type in which a and b are compared."""
    if {a, b} <= UNSIGNED | {bool}:
        return uint64 if {a, b} & UNSIGNED else int
    if uint64 in (a, b) and {a, b} & SIGNED:
        return float64
    return arithmetic(a, b)


def quotient_and_remainder(a, b):
    """Return the scalar type of both results of divmod(a, b)."""
    return comparison(a, b) if {a, b} <= INTEGRAL else real_division(a, b)


def unified(a, b):
    """Return the scalar type of min(a, b) and max(a, b)."""
    if a is b:
        return None if a in COMPLEX else a
    if bfloat16 in (a, b) or {a, b} & COMPLEX or {a, b} == {bool, float16}:
        return None
    return SCALAR[np.promote_types(np.int64 if a is int else a, np.int64 if b is int else b).type]
