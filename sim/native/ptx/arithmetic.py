"""Python's operators on the values defined in sim.native.ptx.values. The operators emit LLVM code."""

import numpy as np
from llvmlite import ir

from sim.isa.bits import bits_of
from sim.isa.ptx_types import HALVES
from sim.isa.registers import WIDTHS
from sim.native.codegen.scalars import call_defined_once, from_double, to_double
from sim.native.lower.module import CannotLower
from sim.native.ptx.values import (
    DOUBLE,
    FLOATS,
    HALF,
    I1,
    I16,
    I64,
    MAX_MAGNITUDE_BITS,
    Float,
    Integer,
    Predicate,
    bits_of_both,
    clip_bounds,
    integer_width,
    result_bounds,
    signed_bits,
    wrap_signed,
)

HALF_TYPES = {scalar: ptx_type for ptx_type, scalar in HALVES.items()}


class Arithmetic:
    """Code generator for Python's operators. Each method emits LLVM code with `builder`, and returns the
    result."""

    def __init__(self, context, builder):
        self.context, self.builder = context, builder

    # --- integers -------------------------------------------------------------------------------------------

    def to_integer(self, value):
        """Convert a value to an Integer. A Python integer becomes a constant."""
        if isinstance(value, Integer):
            return value
        if isinstance(value, Predicate):
            return Integer(self.builder.zext(value.code, I64), 0, 1)
        if not isinstance(value, int):
            raise CannotLower(
                f"an instruction computes with a {type(value).__name__}, which has no compiled form"
            )
        value = int(value)
        return Integer(ir.Constant(ir.IntType(integer_width(value)), value), *clip_bounds(value, value))

    def resize(self, value, width):
        """Return the LLVM value of an Integer, converted to `width` bits."""
        code = self.to_integer(value).code
        if code.type.width == width:
            return code
        integer = ir.IntType(width)
        # llvmlite's builder does not fold constants, so do it here.
        if isinstance(code, ir.Constant):
            return ir.Constant(integer, wrap_signed(code.constant, width))
        resize = self.builder.sext if code.type.width < width else self.builder.trunc
        return resize(code, integer)

    def emit(self, operation, a, b, low, high):
        """Emit a binary LLVM operation on integers.

        operation: the name of the builder's method.
        low, high: the bounds of the result, or None if they are not known.
        """
        # The bounds of the result determine the width in which to compute. Truncating the operands to this
        # width is safe, because the low bits of the result depend only on the low bits of the operands.
        low, high = clip_bounds(low, high)
        width = integer_width(low, high)
        return Integer(
            getattr(self.builder, operation)(self.resize(a, width), self.resize(b, width)), low, high
        )

    def add(self, a, b):
        return self.emit("add", a, b, *result_bounds(a, b, lambda x, y: x + y))

    def sub(self, a, b):
        return self.emit("sub", a, b, *result_bounds(a, b, lambda x, y: x - y))

    def mul(self, a, b):
        return self.emit("mul", a, b, *result_bounds(a, b, lambda x, y: x * y))

    def and_(self, a, b):
        """Emit a bitwise and. A nonnegative operand is an upper bound of the result."""
        masks = [x.high for x in (a, b) if x.low is not None and x.low >= 0]
        return self.emit("and_", a, b, *((0, min(masks)) if masks else signed_bits(a, b)))

    def or_(self, a, b):
        return self.emit("or_", a, b, *bits_of_both(a, b))

    def xor(self, a, b):
        return self.emit("xor", a, b, *bits_of_both(a, b))

    def shl(self, a, count):
        """Emit a left shift with Python's semantics. Bits above the lowest 128 are lost."""
        if count.high is None:
            raise CannotLower("a shift by a count without known bounds has no compiled form")
        count = self.maximum(count, self.to_integer(0))
        # These are the bounds of 2**count, clipped so that Python does not compute with huge integers.
        factor = Integer(None, 1 << min(count.low, 200), 1 << min(count.high, 200))
        low, high = clip_bounds(*result_bounds(a, factor, lambda x, y: x * y))
        width = integer_width(low, high)
        shifted = self.builder.shl(self.resize(a, width), self.resize(self.clamp_to(count, width - 1), width))
        if count.high >= width:
            # In LLVM, a shift by the full width or more is undefined. Python shifts in zeros.
            beyond = self.builder.icmp_signed(">=", *self.widen_both(count, self.to_integer(width)))
            shifted = self.builder.select(beyond, ir.Constant(ir.IntType(width), 0), shifted)
        return Integer(shifted, low, high)

    def shr(self, a, count):
        """Emit a right shift with Python's semantics."""
        if count.high is None or a.low is None:
            raise CannotLower("a right shift of an integer that may exceed 128 bits has no compiled form")
        count, width = self.maximum(count, self.to_integer(0)), integer_width(a.low, a.high)
        # A value of 2**127 or more is an unsigned 128-bit integer, so its top bit is not a sign.
        shift = self.builder.lshr if a.high >= 1 << MAX_MAGNITUDE_BITS else self.builder.ashr
        code = shift(self.resize(a, width), self.resize(self.clamp_to(count, width - 1), width))
        ends = [end >> min(by, 200) for end in (a.low, a.high) for by in (count.low, count.high)]
        return Integer(code, min(ends), max(ends))

    def clamp_to(self, value, most):
        """Return the minimum of an Integer and a constant."""
        return value if value.high <= most else self.minimum(value, self.to_integer(most))

    def divide(self, operation, a, b):
        """Emit a division or remainder of nonnegative integers of up to 64 bits. The result of a division by
        zero is arbitrary, as in PTX.

        operation: "udiv" or "urem".
        """
        if None in (a.low, b.low) or min(a.low, b.low) < 0 or max(a.high, b.high) >= 1 << 64:
            raise CannotLower(
                "a division of integers that may be negative or exceed 64 bits has no compiled form"
            )
        by = self.resize(b, 64)
        # In LLVM, a division by zero is undefined behaviour, so divide by 1 instead.
        by = self.builder.select(self.builder.icmp_unsigned("==", by, I64(0)), I64(1), by)
        code = getattr(self.builder, operation)(self.resize(a, 64), by)
        high = a.high if operation == "udiv" else min(a.high, max(b.high - 1, 0))
        # A quotient beyond the range of int64 is an unsigned 64-bit value.
        return self.of_register(code, 64) if high >= 1 << 63 else Integer(code, 0, high)

    def negate(self, a):
        return self.sub(self.to_integer(0), a)

    def invert(self, a):
        """Emit a bitwise complement."""
        # ~a equals -1 - a. A subtraction gives exact bounds.
        return self.sub(self.to_integer(-1), a)

    def absolute(self, a):
        """Emit the absolute value of an integer."""
        found = self.maximum(a, self.negate(a))
        return self.bounded(found, max(0, a.low, -a.high), found.high)

    def bounded(self, a, low, high):
        """Return `a` with tighter bounds, guaranteed by the caller."""
        return Integer(self.resize(a, integer_width(low, high)), low, high)

    def widen_both(self, a, b):
        """Return the LLVM values of two integers, in a width that represents both."""
        width = max(integer_width(a.low, a.high), integer_width(b.low, b.high))
        return self.resize(a, width), self.resize(b, width)

    def of_register(self, code, width, signed=False):
        """Return the contents of a register of `width` bits as an Integer. The LLVM value `code` can be wider
        than the register."""
        low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
        # An unsigned 64-bit register exceeds the range of a signed 64-bit integer.
        if integer_width(low, high) == 128:
            return Integer(self.builder.zext(code, ir.IntType(128)), low, high)
        if code.type.width > width:
            code = self.builder.trunc(code, ir.IntType(width))
        extend = self.builder.sext if signed else self.builder.zext
        return Integer(extend(code, I64) if width < 64 else code, low, high)

    # --- floats ---------------------------------------------------------------------------------------------

    def double(self, x):
        """Return a float as an LLVM double. The conversion is exact."""
        if isinstance(x, float):
            return DOUBLE(x)
        if x.ptx_type == "f64":
            return x.code
        if x.ptx_type == "f32":
            return self.builder.fpext(x.code, DOUBLE)
        return to_double(self.builder, HALF[x.ptx_type], x.code)

    def to_float(self, value, ptx_type):
        """Convert a value to a float of this PTX type, rounded to nearest, ties to even."""
        if isinstance(value, Float) and value.ptx_type == ptx_type:
            return value
        if isinstance(value, (int, float, np.float32)):
            value = float(value)
            if ptx_type in FLOATS:
                return Float(ir.Constant(FLOATS[ptx_type], value), ptx_type)
            return self.round_float(DOUBLE(value), ptx_type)
        if isinstance(value, Float):
            return self.round_float(self.double(value), ptx_type)
        value = self.to_integer(value)
        if value.low is None or value.low < -(1 << 63) or value.high >= 1 << 64:
            raise CannotLower(
                "a conversion to float of an integer that may exceed 64 bits has no compiled form"
            )
        convert = self.builder.sitofp if value.high < 1 << 63 else self.builder.uitofp
        if value.high >= 1 << 63 and value.low < 0:
            raise CannotLower("a conversion to float of a 65-bit integer has no compiled form")
        if ptx_type in FLOATS:
            return Float(convert(self.resize(value, 64), FLOATS[ptx_type]), ptx_type)
        return self.round_float(convert(self.resize(value, 64), DOUBLE), ptx_type)

    def coded_half(self, value):
        """Return a known f16 or bf16 number as a Float, because the operators need its PTX type. Return any
        other value unchanged."""
        ptx_type = HALF_TYPES.get(type(value))
        return self.of_bits(bits_of(value), ptx_type) if ptx_type else value

    def round_float(self, double, ptx_type):
        """Round an LLVM double to a float of this PTX type, to nearest, ties to even."""
        if ptx_type == "f64":
            return Float(double, ptx_type)
        if ptx_type == "f32":
            return Float(self.builder.fptrunc(double, FLOATS["f32"]), ptx_type)
        name, half = f"sim_round_{ptx_type}", HALF[ptx_type]
        code = call_defined_once(self.builder, name, I16, [double], lambda b, x: from_double(b, half, x))
        return Float(code, ptx_type)

    def of_floats(self, operation, a, b):
        """Emit fadd, fsub, fmul or fdiv, correctly rounded.

        f16 and bf16 are computed in double and then rounded. A double has more than twice their precision, so
        rounding twice gives the same result as rounding once.
        """
        a, b = self.unify_floats(a, b)
        make = getattr(self.builder, operation)
        if a.ptx_type in FLOATS:
            return Float(make(a.code, b.code), a.ptx_type)
        return self.round_float(make(self.double(a), self.double(b)), a.ptx_type)

    def unify_floats(self, a, b):
        """Convert two operands to a common type. This is the type of the floats if they agree, otherwise
        f64."""
        ptx_type = next(x.ptx_type for x in (a, b) if isinstance(x, Float))
        if any(isinstance(x, Float) and x.ptx_type != ptx_type for x in (a, b)):
            ptx_type = "f64"
        return self.to_float(a, ptx_type), self.to_float(b, ptx_type)

    def intrinsic(self, name, *values):
        """Emit an LLVM intrinsic on floats of one type. f16 and bf16 are computed in double and then
        rounded."""
        ptx_type = values[0].ptx_type
        codes = [x.code if ptx_type in FLOATS else self.double(x) for x in values]
        signature = ir.FunctionType(codes[0].type, [code.type for code in codes])
        function = self.builder.module.declare_intrinsic(f"llvm.{name}", [codes[0].type], signature)
        result = self.builder.call(function, codes)
        return Float(result, ptx_type) if ptx_type in FLOATS else self.round_float(result, ptx_type)

    def negate_float(self, x):
        if x.ptx_type in FLOATS:
            return Float(self.builder.fneg(x.code), x.ptx_type)
        return Float(self.builder.xor(x.code, ir.IntType(16)(0x8000)), x.ptx_type)

    def magnitude(self, x):
        """Emit the absolute value of a float."""
        if x.ptx_type in FLOATS:
            return self.intrinsic("fabs", x)
        return Float(self.builder.and_(x.code, ir.IntType(16)(0x7FFF)), x.ptx_type)

    def bits(self, x):
        """Return the bits of a float, as an unsigned Integer."""
        code = x.code if x.ptx_type in HALF else self.builder.bitcast(x.code, ir.IntType(WIDTHS[x.ptx_type]))
        return self.of_register(code, WIDTHS[x.ptx_type])

    def of_bits(self, value, ptx_type):
        """Return the float of this PTX type that has these bits."""
        code = self.resize(value, WIDTHS[ptx_type])
        return Float(code if ptx_type in HALF else self.builder.bitcast(code, FLOATS[ptx_type]), ptx_type)

    # --- conversions and comparisons ------------------------------------------------------------------------

    def of_code(self, code, ptx_type):
        """Interpret an LLVM value, loaded from a register or from memory, as a value of this PTX type."""
        if ptx_type in FLOATS or ptx_type in HALF:
            return Float(code, ptx_type)
        if ptx_type == "pred":
            return Predicate(code)
        return self.of_register(code, WIDTHS[ptx_type], ptx_type[0] == "s")

    def code_of(self, value, ptx_type):
        """Return the LLVM value for a value of this PTX type, held in a register or in memory."""
        if ptx_type in FLOATS or ptx_type in HALF:
            return self.to_float(value, ptx_type).code
        return self.to_predicate(value) if ptx_type == "pred" else self.resize(value, WIDTHS[ptx_type])

    def compare(self, sign, a, b):
        """Emit a comparison. If an operand is NaN, only "!=" is true."""
        if isinstance(a, Float) or isinstance(b, Float):
            a, b = self.unify_floats(a, b)
            # Python's `!=` is true for NaN. LLVM's ordered comparison would be false.
            ask = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
            return Predicate(ask(sign, self.double(a), self.double(b)))
        a, b = self.to_integer(a), self.to_integer(b)
        if None in (a.low, b.low) or max(a.high, b.high) >= 1 << MAX_MAGNITUDE_BITS:
            raise CannotLower("a comparison of integers that may exceed 127 bits has no compiled form")
        return Predicate(self.builder.icmp_signed(sign, *self.widen_both(a, b)))

    def to_predicate(self, value):
        """Return the truth value of a value, as an i1."""
        if isinstance(value, Predicate):
            return value.code
        if isinstance(value, Integer):
            return self.builder.icmp_signed("!=", value.code, ir.Constant(value.code.type, 0))
        return I1(bool(value))

    def minimum(self, a, b):
        """Emit Python's `min(a, b)`."""
        return self.select_extreme("<", min, a, b)

    def maximum(self, a, b):
        """Emit Python's `max(a, b)`."""
        return self.select_extreme(">", max, a, b)

    def select_extreme(self, sign, pick, a, b):
        found = self.select(self.compare(sign, b, a), b, a)
        if isinstance(found, Float):
            return found
        a, b = self.to_integer(a), self.to_integer(b)
        return self.bounded(found, pick(a.low, b.low), pick(a.high, b.high))

    def select(self, test, a, b):
        """Emit `a if test else b`. Both values are evaluated."""
        test = self.to_predicate(test)
        if isinstance(a, Float) or isinstance(b, Float):
            a, b = self.unify_floats(a, b)
            return Float(self.builder.select(test, a.code, b.code), a.ptx_type)
        if all(isinstance(x, (Predicate, bool)) for x in (a, b)):
            return Predicate(self.builder.select(test, self.to_predicate(a), self.to_predicate(b)))
        a, b = self.to_integer(a), self.to_integer(b)
        has_bounds = None not in (a.low, b.low)
        low, high = clip_bounds(min(a.low, b.low), max(a.high, b.high)) if has_bounds else (None, None)
        width = integer_width(low, high)
        return Integer(self.builder.select(test, self.resize(a, width), self.resize(b, width)), low, high)
