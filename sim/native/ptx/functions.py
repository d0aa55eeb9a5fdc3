"""LLVM code for PTX's floating-point instructions, and for the functions called by reference implementations.

sim.isa defines the semantics. This module selects LLVM instructions with identical results. An instruction
that is missing here is compiled by evaluating its reference implementation (sim.native.ptx.evaluate). If that
fails, Numba compiles it.
"""

import math
import re

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from sim.isa.functions import LLVM, bind_width
from sim.isa.registers import WIDTHS, type_name
from sim.native.codegen.isa_functions import compiles, function_of, resolve_call
from sim.native.codegen.scalars import call_defined_once, numba_type_of, to_integer
from sim.native.lower.module import CannotLower
from sim.native.ptx.arithmetic import Arithmetic
from sim.native.ptx.values import DOUBLE, I16, I64, Float, Integer, Predicate

# function called by reference implementations -> emitter (Evaluator, *operands) -> value
BUILTIN = {
    "min": Arithmetic.minimum,
    "max": Arithmetic.maximum,
    "int": Arithmetic.to_integer,
    "bits_of": Arithmetic.bits,
    "bool": lambda e, x: Predicate(e.to_predicate(x)),
    "abs": lambda e, x: e.magnitude(x) if isinstance(x, Float) else e.absolute(e.to_integer(x)),
    "sqrt": lambda e, x: e.intrinsic("sqrt", x),
    "isfinite": lambda e, x: e.compare("<", e.magnitude(x), e.to_float(math.inf, x.ptx_type)),
    "isinf": lambda e, x: e.compare("==", e.magnitude(x), e.to_float(math.inf, x.ptx_type)),
    "isnan": lambda e, x: e.compare("!=", x, x),
}


def builtin(function):
    """Register an emitter for the function of the same name. Use it as a decorator."""
    BUILTIN[function.__name__] = function
    return function


# --- floats and bits ----------------------------------------------------------------------------------------


TYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64", "float": "f64"}
for _name, _type in TYPES.items():
    BUILTIN[_name] = lambda e, x, ptx_type=_type: e.to_float(x, ptx_type)
    if _name != "float":
        BUILTIN[f"{_name}_of"] = lambda e, x, ptx_type=_type: e.of_bits(e.to_integer(x), ptx_type)


@builtin
def copysign(e, x, sign):
    """Emit the magnitude of `x` with the sign of `sign`."""
    x, sign = e.unify_floats(x, sign)
    # `top` is the sign bit.
    top = 1 << WIDTHS[x.ptx_type] - 1
    magnitude, sign_bit = e.and_(e.bits(x), e.to_integer(top - 1)), e.and_(e.bits(sign), e.to_integer(top))
    return e.of_bits(e.or_(magnitude, sign_bit), x.ptx_type)


@builtin
def flush(e, x):
    """Emit `.ftz`, flush to zero: a subnormal f32 becomes a zero of the same sign."""
    tiny = e.compare("<", e.magnitude(x), e.to_float(2.0**-126, "f32"))
    return e.select(tiny, copysign(e, e.to_float(0.0, "f32"), x), x)


@builtin
def saturated(e, x):
    """Emit `.sat`, a clamp to [0, 1]. NaN becomes +0."""
    one, zero = e.to_float(1.0, x.ptx_type), e.to_float(0.0, x.ptx_type)
    return e.select(e.compare(">", x, zero), e.minimum(x, one), zero)


@builtin
def at_least_zero(e, x):
    """Emit `.relu`, which is `max(x, 0)`, except that NaN stays NaN."""
    zero = e.to_float(0.0, x.ptx_type)
    return e.select(e.compare(">", x, zero), x, e.select(e.compare("!=", x, x), x, zero))


@builtin
def two_halves(e, high, low, scalar, mode, relu):
    """Emit a conversion of two floats to a packed pair of 16-bit floats.

    high, low: the floats for the upper and the lower half.
    scalar: the numpy type of a half.
    mode: the rounding mode, which must be "rn".
    relu: whether to replace negative values by 0.
    """
    if mode != "rn":
        raise CannotLower(f"a conversion to two 16-bit floats with rounding mode {mode} has no compiled form")
    parts = [e.to_float(x, {"float16": "f16", "bfloat16": "bf16"}[scalar.__name__]) for x in (high, low)]
    upper, lower = (e.bits(at_least_zero(e, x) if relu else x) for x in parts)
    return e.or_(e.shl(upper, e.to_integer(16)), lower)


@builtin
def bit_length(e, x):
    """Emit the bit length of a nonnegative integer."""
    zeros = call_external(e, f"llvm.ctlz.i{x.width}", x.code.type, x.code, ir.IntType(1)(0))
    return e.sub(e.to_integer(x.width), Integer(zeros, 0, x.width))


def call_external(e, name, result, *codes):
    """Emit a call to an external function, which is an LLVM intrinsic or a C function.

    result: the LLVM type of its result.
    codes: the LLVM values of the arguments.
    """
    signature = ir.FunctionType(result, [code.type for code in codes])
    return e.builder.call(cgutils.get_or_insert_function(e.builder.module, signature, name), codes)


# --- floating-point instructions, by their PTX names --------------------------------------------------------

FORMS = []  # (pattern for the names of PTX instructions, emitter (Evaluator, match, *operands) -> value)


def form(pattern):
    """Return a decorator that registers an emitter for the PTX instructions whose names match a pattern."""

    def add_form(function):
        FORMS.append((re.compile(pattern + r"\Z"), function))
        return function

    return add_form


REAL = r"(?P<ptx_type>f16|bf16|f32|f64)"


@form(rf"rcp\.(rn|approx\.ftz)\.{REAL}")
def emit_reciprocal(e, found, x):
    """Emit the reciprocal 1 / x."""
    return e.of_floats("fdiv", e.to_float(1.0, x.ptx_type), x)


@form(rf"(fma|mad)\.rn\.{REAL}")
def multiply_add(e, found, a, b, c):
    """Emit a fused multiply-add. It is rounded once."""
    if a.ptx_type in ("f32", "f64"):
        return e.intrinsic("fma", a, b, c)
    ptx_type = a.ptx_type

    def body(builder, *codes):
        # The product is exact in double, so only the sum is rounded. The sum is rounded to odd, so that the
        # second rounding, to 16 bits, gives the same result as a single rounding.
        inner = Arithmetic(e.context, builder)
        a, b, c = (inner.double(Float(code, ptx_type)) for code in codes)
        return inner.round_float(
            round_to_odd(inner, *sum_and_error(inner, builder.fmul(a, b), c)), ptx_type
        ).code

    codes = [e.to_float(value, ptx_type).code for value in (a, b, c)]
    return Float(call_defined_once(e.builder, f"sim_fma_{ptx_type}", I16, codes, body), ptx_type)


@form(r"(?P<name>fma|mad|add|sub|mul)\.(?P<mode>rz|rd|ru)\.f32")
def emit_directed(e, found, a, b, c=None):
    """Emit an f32 operation with directed rounding (rz, rd, ru).

    The double result and its rounding error determine the direction. A product of two f32 is exact in double.
    """
    a, b = e.double(a), e.double(b)
    if found["name"] == "mul":
        return round_directed(e, e.builder.fmul(a, b), DOUBLE(0.0), found["mode"])
    if found["name"] == "sub":
        b = e.builder.fneg(b)
    one, other = (e.builder.fmul(a, b), e.double(c)) if c is not None else (a, b)
    total, error = sum_and_error(e, one, other)
    result = round_directed(e, total, error, found["mode"])
    if found["mode"] != "rd":
        return result
        # If a sum is zero, rounding down gives -0, unless both operands are +0.
    either = e.or_(e.to_integer(top_bit(e, one)), e.to_integer(top_bit(e, other)))
    zero = copysign(e, e.to_float(0.0, "f32"), e.of_bits(e.shl(either, e.to_integer(31)), "f32"))
    return e.select(Predicate(e.builder.fcmp_ordered("==", total, DOUBLE(0.0))), zero, result)


@form(r"(?P<name>rcp|div|sqrt)\.(?P<mode>rz|rd|ru)\.f32")
def emit_directed_quotient(e, found, a, b=None):
    """Emit an f32 quotient or root with directed rounding.

    The double result and the sign of its error determine the direction. The remainder a - q b of the double
    quotient q is exact in double, and so is the remainder a - r r of the root r.
    """
    emit = e.builder
    if found["name"] == "rcp":
        a, b = DOUBLE(1.0), e.double(a)
    else:
        a, b = e.double(a), None if b is None else e.double(b)
    is_root = b is None
    near = call_external(e, "llvm.sqrt.f64", DOUBLE, a) if is_root else emit.fdiv(a, b)
    by = near if is_root else b
    rest = call_external(e, "llvm.fma.f64", DOUBLE, emit.fneg(near), by, a)
    error = rest if is_root else call_external(e, "llvm.copysign.f64", DOUBLE, rest, emit.fmul(rest, b))
    # Results that are 0, infinity or NaN are exact, but their remainder can be NaN.
    size = call_external(e, "llvm.fabs.f64", DOUBLE, near)
    plain = emit.and_(
        emit.fcmp_ordered("<", size, DOUBLE(float("inf"))), emit.fcmp_ordered("!=", near, DOUBLE(0.0))
    )
    exact = emit.fcmp_ordered("==", rest, DOUBLE(0.0))
    error = emit.select(emit.and_(plain, emit.not_(exact)), error, DOUBLE(0.0))
    return round_directed(e, near, error, found["mode"])


def top_bit(e, double):
    """Emit a test of the sign bit of a double, and return the resulting predicate."""
    return e.compare("<", Integer(e.builder.bitcast(double, I64), -(1 << 63), (1 << 63) - 1), 0)


def sum_and_error(e, a, b):
    """Emit a sum of two doubles and its rounding error, and return both (Knuth's two-sum)."""
    add, sub = e.builder.fadd, e.builder.fsub
    total = add(a, b)
    back = sub(total, a)
    return total, add(sub(a, sub(total, back)), sub(b, back))


def round_to_odd(e, total, error):
    """Emit total + error, rounded to odd: if the sum is inexact, the last bit of the result is 1.

    Rounding this result again, to a narrower type, gives the same result as rounding the exact sum once
    (Boldo and Melquiond, 2008).
    """
    b = e.builder
    bits = b.bitcast(total, I64)
    grows = b.icmp_unsigned(
        "==", b.fcmp_ordered(">", error, DOUBLE(0.0)), b.fcmp_ordered(">", total, DOUBLE(0.0))
    )
    # Move to the neighbour in the direction of the exact sum, which is away from zero if error and total have
    # the same sign.
    moved = b.add(bits, b.select(grows, I64(1), I64(-1)))
    even = b.icmp_unsigned("==", b.and_(bits, I64(1)), I64(0))
    size = e.builder.call(e.builder.module.declare_intrinsic("llvm.fabs", [DOUBLE]), [total])
    finite = b.fcmp_ordered("<", size, DOUBLE(float("inf")))
    moves = b.and_(b.and_(b.fcmp_ordered("!=", error, DOUBLE(0.0)), even), finite)
    return b.bitcast(b.select(moves, moved, bits), DOUBLE)


def round_directed(e, total, error, mode):
    """Emit total + error, rounded to f32.

    total: a double.
    error: the rounding error of `total`, also a double. Only its sign matters.
    mode: "rd" (down), "ru" (up) or "rz" (towards zero).
    """
    b, single = e.builder, ir.FloatType()
    # `near` is the f32 nearest to `total`. Determine whether it lies above or below `total + error`.
    near = b.fptrunc(total, single)
    back = b.fpext(near, DOUBLE)
    equal = b.fcmp_ordered("==", back, total)
    above = b.or_(b.fcmp_ordered(">", back, total), b.and_(equal, b.fcmp_ordered("<", error, DOUBLE(0.0))))
    below = b.or_(b.fcmp_ordered("<", back, total), b.and_(equal, b.fcmp_ordered(">", error, DOUBLE(0.0))))
    down = b.select(above, next_float(b, near, False), near)
    up = b.select(below, next_float(b, near, True), near)
    if mode == "rz":
        return Float(b.select(b.fcmp_ordered(">", total, DOUBLE(0.0)), down, up), "f32")
    return Float(down if mode == "rd" else up, "f32")


def next_float(b, x, upwards):
    """Emit the next f32 above `x`, or below it if `upwards` is False."""
    word, single = ir.IntType(32), ir.FloatType()
    bits = b.bitcast(x, word)
    # Floats of one sign have the same order as their bits, so the next float has the next bit pattern.
    grows = b.fcmp_ordered(">" if upwards else "<", x, single(0.0))
    moved = b.add(bits, b.select(grows, word(1), word(-1)))
    smallest = word(1 if upwards else 0x80000001)
    return b.bitcast(b.select(b.fcmp_ordered("==", x, single(0.0)), smallest, moved), single)


@form(rf"(?P<name>sin|cos|lg2|ex2|tanh|rsqrt)\.approx\.{REAL}")
def emit_approximation(e, found, x):
    """Emit an approximate instruction. The result is at least as accurate as the PTX ISA requires."""
    name, double = found["name"], e.to_float(x, "f64")
    if name == "rsqrt":
        return emit_reciprocal(e, found, e.intrinsic("sqrt", double))
    if name == "tanh":
        return Float(call_external(e, name, DOUBLE, double.code), "f64")
    return e.intrinsic({"lg2": "log2", "ex2": "exp2"}.get(name, name), double)


ROUNDING = {"rn": "rint", "rz": "trunc", "rd": "floor", "ru": "ceil"}


@form(rf"cvt\.(?P<mode>rn|rz|rd|ru)i\.{REAL}\.(?P=ptx_type)")
def round_to_integral(e, found, x):
    """Emit a rounding of a float to an integral value of the same type, such as `cvt.rni`."""
    return e.intrinsic(ROUNDING[found["mode"]], x)


@form(rf"cvt\.(?P<mode>rn|rz|rd|ru)i\.(?P<to>[su]\d+)\.{REAL}")
def float_to_integer(e, found, x):
    """Emit a conversion of a float to an integer, which saturates."""
    double = e.intrinsic(ROUNDING[found["mode"]], e.to_float(x, "f64")).code
    signed, bits = found["to"][0] == "s", int(found["to"][1:])
    numba_type = numba_type_of(np.dtype(f"{'i' if signed else 'u'}{bits // 8}"))
    code = to_integer(e.builder, numba_type, double, 16 if x.ptx_type == "f64" else 64, bits)
    return e.of_register(code, bits, signed)


@form(r"cvt\.(?P<mode>rz|rd|ru)\.f32\.f64")
def narrow_directed(e, found, x):
    """Emit a conversion of f64 to f32 with directed rounding."""
    return round_directed(e, x.code, DOUBLE(0.0), found["mode"])


@form(rf"cvt\.rn\.{REAL}\.(?P<of>[su]\d+|f16|bf16|f32|f64)")
def convert_nearest(e, found, x):
    """Emit a conversion to a float, rounded to nearest, ties to even."""
    if isinstance(x, Integer):
        bits = int(found["of"][1:])
        x = e.of_register(e.resize(x, max(bits, 64)), bits, found["of"][0] == "s")
    if found["ptx_type"] == "bf16" and isinstance(x, Integer):
        raise CannotLower("a conversion from integer to bfloat16 has no compiled form")
    return e.to_float(x, found["ptx_type"])


# --- entries of sim.isa -------------------------------------------------------------------------------------


def emit_entry(e, entry, given):
    """Emit an instruction of sim.isa, and return its result. Raise CannotLower if it has no compiled form."""
    for pattern, function in FORMS:
        found = next(filter(None, map(pattern.match, entry.ptx)), None)
        if found:
            return function(e, found, *given)
    # If the entry declares an LLVM intrinsic, prefer it to code generated from the semantics.
    if not isinstance(entry.native, LLVM):
        try:
            return e.apply(bind_width(entry.semantics, entry.operands), given, {})
        except CannotLower:
            if not compiles(entry):
                raise
    return compile_by_numba(e, entry, given)


def compile_by_numba(e, entry, given):
    """Emit a call to the function compiled by Numba for an entry of sim.isa."""
    call = resolve_call(e.context.typing_context, function_of(entry), map(numba_type_of, entry.operands))
    codes = [e.code_of(x, type_name(dtype)) for x, dtype in zip(given, entry.operands)]
    return e.of_code(call(e.context, e.builder, codes), type_name(entry.results))
