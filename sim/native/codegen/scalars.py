"""Numbers in compiled code, including float16 and bfloat16, which Numba supports only on GPUs.

A value of these two types is called a *Half* and stored as 16 bits. All its conversions go through float64.
"""

import ml_dtypes
import numpy as np
from llvmlite import ir
from numba import float64, typeof, types
from numba.core import cgutils
from numba.extending import NativeValue, lower_builtin, lower_cast, models, register_model, unbox
from numba.np import numpy_support

from sim.isa import promotion


class Half(types.Number):
    """The Numba type of a 16-bit float. From the lowest bit, its fields are `fraction` bits of fraction, the
    exponent, and the sign."""

    def __init__(self, dtype, fraction):
        self.numpy, self.fraction = np.dtype(dtype), fraction
        self.infinity = 0x7FFF >> fraction << fraction
        self.bias = self.infinity >> fraction >> 1
        super().__init__(self.numpy.name)

    def unify(self, typing, other):
        """Return the type of a variable to which values of both types are assigned. Numba also calls this
        method for the results of min and max."""
        scalar = promotion.unified(scalar_of(self), scalar_of(other)) if scalar_of(other) else None
        return None if scalar is None else numba_type_of(scalar)


HALVES = {half.name: half for half in (Half(np.float16, 10), Half(ml_dtypes.bfloat16, 7))}


def numba_type_of(dtype):
    """Return the Numba type for a scalar type or numpy dtype. Python's int maps to int64."""
    dtype = np.dtype(np.int64 if dtype is int else dtype)
    return HALVES.get(dtype.name) or numpy_support.from_dtype(dtype)


def dtype_of(numba_type):
    """Return the numpy dtype that corresponds to a Numba type."""
    return numba_type.numpy if isinstance(numba_type, Half) else numpy_support.as_dtype(numba_type)


def scalar_of(numba_type):
    """Return the scalar type (sim.isa.promotion) that corresponds to a Numba type, or None if the type is not
    numeric."""
    numba_type = numba_type.dtype if isinstance(numba_type, types.IntEnumMember) else numba_type
    numba_type = types.unliteral(numba_type)
    if isinstance(numba_type, types.Boolean):
        return bool
    if not isinstance(numba_type, types.Number):
        return None
    scalar = dtype_of(numba_type).type
    return int if scalar is np.int64 else scalar


@register_model(Half)
class HalfModel(models.PrimitiveModel):
    """The representation of a Half in LLVM code: an i16."""

    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, ir.IntType(16))


class HalfNumber:
    """A float16 or bfloat16 scalar packaged as an argument for compiled code."""

    __slots__ = ("packed", "_numba_type_")

    def __init__(self, value):
        self.packed, self._numba_type_ = int(value.view(np.int16)), HALVES[value.dtype.name]


HALF_NUMBERS = np.float16, ml_dtypes.bfloat16


def type_of_number(value):
    """Return the Numba type of a number passed by the host. Raise ValueError if Numba has no type for it."""
    return HALVES[value.dtype.name] if isinstance(value, HALF_NUMBERS) else typeof(value)


def argument_of(value):
    """Return a number packaged as an argument for compiled code."""
    return HalfNumber(value) if isinstance(value, HALF_NUMBERS) else value


@unbox(Half)
def unbox_half(numba_type, value, c):
    """Convert a HalfNumber to the i16 that represents it in compiled code."""
    packed = c.pyapi.object_getattr_string(value, "packed")
    bits = c.builder.trunc(c.pyapi.long_as_longlong(packed), ir.IntType(16))
    c.pyapi.decref(packed)
    return NativeValue(bits)


# --- conversions --------------------------------------------------------------------------------------------

I64, DOUBLE = ir.IntType(64), ir.DoubleType()


def to_double(builder, half, value):
    """Emit a conversion from a Half to float64. It is exact."""
    bits, shift = builder.zext(value, I64), I64(52 - half.fraction)
    size = builder.shl(builder.and_(bits, I64(0x7FFF)), shift)
    # Move the fraction and the exponent to their positions in a float64. The exponent is then too small by
    # the difference of the two biases. The multiplication corrects it, and also normalises subnormal numbers.
    finite = builder.fmul(builder.bitcast(size, DOUBLE), DOUBLE(2.0 ** (1023 - half.bias)))
    special = builder.bitcast(builder.or_(size, I64(0x7FF << 52)), DOUBLE)
    is_finite = builder.icmp_unsigned("<", size, I64(half.infinity << 52 - half.fraction))
    number = builder.select(is_finite, finite, special)
    sign = builder.shl(builder.and_(bits, I64(0x8000)), I64(48))
    return builder.bitcast(builder.or_(builder.bitcast(number, I64), sign), DOUBLE)


def from_double(builder, half, double):
    """Emit a conversion from float64 to the nearest Half. Ties are rounded to even."""
    shift, smallest = 52 - half.fraction, 2.0 ** (1 - half.bias)  # `smallest`: the smallest normal Half
    # The float64 values near `spacer` are as far apart as subnormal Halves. Adding `spacer` therefore rounds
    # a number to the nearest subnormal Half.
    spacer = smallest * 2.0**shift
    bits = builder.bitcast(double, I64)
    size = builder.and_(bits, I64(2**63 - 1))
    spaced = builder.fadd(builder.bitcast(size, DOUBLE), DOUBLE(spacer))
    subnormal = builder.sub(builder.bitcast(spaced, I64), builder.bitcast(DOUBLE(spacer), I64))
    # A normal number is rounded in the integer domain: add just under half a unit in the last place, and the
    # lowest remaining bit, so that ties go to even. The same addition corrects the bias of the exponent.
    tie = builder.and_(builder.lshr(size, I64(shift)), I64(1))
    nearly = I64((1 << shift - 1) - 1 - (1023 - half.bias << 52))
    rounded = builder.lshr(builder.add(builder.add(size, tie), nearly), I64(shift))
    infinity, nan = I64(half.infinity), I64(half.infinity | 1 << half.fraction - 1)
    normal = builder.select(builder.icmp_unsigned("<", rounded, infinity), rounded, infinity)
    is_subnormal = builder.icmp_unsigned("<", size, builder.bitcast(DOUBLE(smallest), I64))
    number = builder.select(is_subnormal, subnormal, normal)
    number = builder.select(builder.fcmp_unordered("uno", double, double), nan, number)
    sign = builder.and_(builder.lshr(bits, I64(48)), I64(0x8000))
    return builder.trunc(builder.or_(number, sign), ir.IntType(16))


def call_defined_once(builder, name, result, arguments, emit):
    """Emit a call of a function that is defined once per module, and is never inlined.

    A kernel with thousands of operations on 16-bit floats would otherwise take minutes to compile.

    name: the function's name.
    result: its LLVM return type.
    arguments: LLVM values.
    emit: a function (IRBuilder, *parameters) that emits its body, and returns the result.
    """
    function = builder.module.globals.get(name)
    if function is None:
        signature = ir.FunctionType(result, [argument.type for argument in arguments])
        function = ir.Function(builder.module, signature, name)
        function.linkage = "internal"
        function.attributes.add("noinline")
        body = ir.IRBuilder(function.append_basic_block())
        body.ret(emit(body, *function.args))
    return builder.call(function, arguments)


@lower_cast(Half, types.Float)
@lower_cast(Half, types.Complex)
@lower_cast(Half, Half)
def cast_from_half(context, builder, source, target, value):
    """Emit a conversion from a Half to another floating-point type."""
    if source == target:
        return value
    return context.cast(builder, to_double(builder, source, value), float64, target)


@lower_cast(Half, types.Integer)
def cast_half_to_integer(context, builder, source, target, value):
    """Emit a conversion from a Half to an integer type.

    float16 follows Numba on CUDA (`cvt.rni`): it rounds to the nearest integer, ties to even, and saturates.
    bfloat16 is truncated like the other floating-point types. NaN becomes 0, or, for 64-bit integers, the
    value with only the top bit set.
    """
    double = to_double(builder, source, value)
    if source.numpy != np.float16:
        return to_integer(builder, target, double, 64, max(target.bitwidth, 16))
    nearest = builder.call(builder.module.declare_intrinsic("llvm.rint", [DOUBLE]), [double])
    return to_integer(builder, target, nearest, 64, target.bitwidth)


def to_integer(builder, target, double, wide, width):
    """Emit a conversion from an integral float64 to a Numba integer type.

    target: the integer type.
    wide: the smallest width in bits at which NaN becomes the value with only the top bit set. In narrower
        types, NaN becomes 0.
    width: the width in bits to which the conversion saturates.
    """
    integer = ir.IntType(width)
    name = f"llvm.fpto{'si' if target.signed else 'ui'}.sat.i{width}.f64"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(integer, [DOUBLE]), name)
    convert = builder.call(function, [double])
    if width >= wide:
        is_nan = builder.fcmp_unordered("uno", double, double)
        convert = builder.select(is_nan, integer(1 << width - 1), convert)
    return builder.trunc(convert, ir.IntType(target.bitwidth)) if target.bitwidth < width else convert


def convert(context, builder, source, target, value):
    """Emit a conversion from one Numba type to another.

    A float becomes an integer as in `cvt.rzi`, which Numba emits on CUDA (see sim.isa.conversions.truncated).
    The elements of a tuple are converted one by one.
    """
    if isinstance(target, types.BaseTuple):
        parts = zip(source, target, cgutils.unpack_tuple(builder, value), strict=True)
        return context.make_tuple(builder, target, [convert(context, builder, *part) for part in parts])
    if isinstance(source, types.Float) and isinstance(target, types.Integer):
        double = context.cast(builder, value, source, float64)
        return to_integer(builder, target, double, 16 if source == float64 else 64, max(target.bitwidth, 16))
    return context.cast(builder, value, source, target)


@lower_cast(types.Float, Half)
@lower_cast(types.Integer, Half)
@lower_cast(types.Boolean, Half)
def cast_to_half(context, builder, source, target, value):
    """Emit a conversion from another number to a Half, through float64."""
    return from_double(builder, target, context.cast(builder, value, source, float64))


@lower_cast(Half, types.Boolean)
def cast_half_to_boolean(context, builder, source, target, value):
    """Emit a test whether a Half differs from +0 and -0. NaN counts as true, as in Python."""
    half = ir.IntType(16)
    return builder.icmp_unsigned("!=", builder.and_(value, half(0x7FFF)), half(0))


@lower_builtin(bool, Half)
def half_is_true(context, builder, signature, arguments):
    """Emit `bool(x)` for a Half."""
    return cast_half_to_boolean(context, builder, *signature.args, signature.return_type, *arguments)
