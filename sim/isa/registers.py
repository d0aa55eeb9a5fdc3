"""PTX instructions that one thread carries out on its registers: of each name, what it makes of its operands.

`meaning("add.s32")` is an Operation: a Python expression in its operands, their types and those of the results. Integers are
Python ints: of a type u or b not negative, of a type s signed; a result may lie outside its type, and is wrapped by whoever
keeps it. f32, f64 and f16 are numpy's scalars, bf16 is ml_dtypes', predicates are bools; packed types are ints.

The approximations (ex2.approx, lg2, sin, cos, tanh, rcp, rsqrt, sqrt, div.approx and div.full) give the exact value rounded
once, which lies within the error that the PTX ISA states for each; a GPU's last places may differ.
Source: PTX ISA 9.7.1 to 9.7.8, "Integer Arithmetic Instructions" to "Data Movement and Conversion Instructions".
"""

import math
from dataclasses import dataclass

import numpy as np
from ml_dtypes import bfloat16
from numpy import float16, float32, float64

from sim.isa import ieee
from sim.isa.directed import divided, from_float, multiplied, square_root, to_float
from sim.isa.operators import maximum, minimum
from sim.isa.rounding import fused, fused_float32

KINDS = {"f16": float16, "bf16": bfloat16, "f32": float32, "f64": float64}
WIDTHS = {f"{kind}{width}": width for kind in "sub" for width in (8, 16, 32, 64)}
WIDTHS |= {
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "f16x2": 32,
    "bf16x2": 32,
    "tf32": 32,
    "pred": 1,
    "b128": 128,
}
MODES = {"rn": "rn", "rna": "rna", "rz": "rz", "rm": "rd", "rp": "ru"}
WHOLE = {f"{mode}i": direction for mode, direction in MODES.items() if mode != "rna"}
CARRY = "carry"  # the condition code that add.cc leaves for addc


class Missing(Exception):
    """No instruction of this name is known."""


@dataclass(frozen=True)
class Operation:
    """`text`: an expression with {0}, {1}, ... for its operands, whose types are `operands`; with several `results` it is
    a tuple. `kept`: whether an integer result lies within its type already; `by_constant`: the expression where the second
    operand is a number, as a function of that one."""

    text: str
    operands: tuple
    results: tuple
    kept: bool = False
    by_constant: object = None

    def of(self, values):
        """The expression of these operands."""
        if self.by_constant and values[1].isdigit():
            return self.by_constant(int(values[1])).format(*values)
        return self.text.format(*values)


HELPERS = {
    "float32": float32,
    "float64": float64,
    "float16": float16,
    "bfloat16": bfloat16,
    "minimum": minimum,
    "maximum": maximum,
}
BASES = {}


def helper(function):
    """A function that expressions call by its name."""
    HELPERS[function.__name__] = function
    return function


def named(*names):
    def enter(function):
        BASES.update(dict.fromkeys(names, function))
        return function

    return enter


class Name:
    """The parts of an instruction's name; what a meaning does not take is left, and then not supported."""

    def __init__(self, text):
        self.text, (self.base, *rest) = text, text.split(".")
        self.types = [part for part in rest if part in WIDTHS]
        self.rest = [part for part in rest if part not in WIDTHS]

    def has(self, part):
        if part in self.rest:
            self.rest.remove(part)
            return True
        return False

    def one_of(self, parts, otherwise=None):
        return next((part for part in parts if self.has(part)), otherwise)

    @property
    def type(self):
        if not self.types:
            raise Missing(self.text)
        return self.types[0]

    @property
    def width(self):
        return WIDTHS[self.type]

    @property
    def floating(self):
        return self.type in KINDS

    @property
    def bits(self):
        """The type without a sign: for what does not depend on one."""
        return f"b{self.width}"


def meaning(text):
    """The Operation of a PTX instruction on registers. Errors: Missing."""
    name = Name(text)
    if name.base not in BASES:
        raise Missing(text)
    operation = BASES[name.base](name)
    if name.rest or operation is None:
        raise Missing(text)
    return operation


def alike(text, name, count, kept=False, of=None):
    """An Operation whose operands and result have one type."""
    kind = of or name.type
    return Operation(text, (kind,) * count, (kind,), kept)


# --- integers -----------------------------------------------------------------------------------------------

FLOAT_SIGNS = {"add": "+", "sub": "-", "mul": "*"}


@named("add", "sub", "addc", "subc")
def _add(name):
    base = name.base.rstrip("c")
    if name.floating or name.type in ("f16x2", "bf16x2"):
        return _float_binary(name)
    sign, width = FLOAT_SIGNS[base], name.width
    if name.has("sat"):
        return alike(f"clamped({{0}} {sign} {{1}}, {width})", name, 2)
    takes, gives = name.base.endswith("c"), name.has("cc")
    text = f"{{0}} {sign} {{1}}" + (f" {sign} {{2}}" if takes else "")
    return carrying(text, name.bits, 2, takes, gives)


def carrying(text, kind, count, takes, gives):
    """An Operation that takes the carry as its last operand, or gives one as its second result."""
    operands = (kind,) * count + ((CARRY,) if takes else ())
    if not gives:
        return Operation(text, operands, (kind,))
    return Operation(f"carried({text}, {WIDTHS[kind]})", operands, (kind, CARRY), True)


@helper
def carried(total, width):
    """(its low bits, the bit that is carried or borrowed)."""
    return total & ((1 << width) - 1), total >> width & 1


@helper
def clamped(value, width):
    """A signed integer saturated."""
    return max(-(1 << width - 1), min(value, (1 << width - 1) - 1))


@named("mul", "mad", "madc", "mul24", "mad24")
def _multiply(name):
    if name.type in KINDS or name.type in ("f16x2", "bf16x2"):
        return _float_binary(name) if name.base == "mul" else _fused(name)
    part, adds, width = name.one_of(("lo", "hi", "wide")), name.base.startswith("mad"), name.width
    if part is None:
        return None
    takes, gives = name.base == "madc", name.has("cc")
    factor = "{0} * {1}"
    if name.base.endswith("24"):
        factor, width = "low24({0}) * low24({1})", 16
    if part == "hi":
        factor = f"({factor} >> {width})"
    if part == "lo" and (takes or gives):
        factor = f"({factor} & {(1 << width) - 1:#x})"
    if part == "wide":
        wide = f"{name.type[0]}{2 * width}"
        return Operation(
            factor + (" + {2}" if adds else ""),
            (name.type,) * 2 + ((wide,) if adds else ()),
            (wide,),
            not adds and wide[0] == "u",
        )
    kind = name.bits if part == "lo" and not name.base.endswith("24") else name.type
    text = factor + (" + {2}" if adds else "") + (" + {3}" if takes else "")
    return carrying(text, kind, 2 + adds, takes, gives)


@helper
def low24(value):
    """The low 24 bits, with the sign that they have."""
    low = value & 0xFFFFFF
    return low - (1 << 24) if value < 0 or value >> 31 and low >> 23 else low


@named("div", "rem")
def _divide(name):
    if name.base == "div" and name.floating:
        return _float_divide(name)
    function = {"div": "quotient", "rem": "remainder"}[name.base]
    return alike(f"{function}({{0}}, {{1}})", name, 2)


@helper
def quotient(a, b):
    """a / b towards zero; all ones where b is 0, which the PTX ISA leaves to the machine."""
    return -1 if b == 0 else a // b if (a < 0) == (b < 0) else -(-a // b)


@helper
def remainder(a, b):
    return a if b == 0 else a - b * quotient(a, b)


@named("sad")
def _sad(name):
    return alike("abs({0} - {1}) + {2}", name, 3)


@named("neg", "abs")
def _sign(name):
    sign = {"neg": "-{0}", "abs": "abs({0})"}[name.base]
    if name.type in ("f16x2", "bf16x2"):
        return Operation(
            "{0} ^ 0x80008000" if name.base == "neg" else "{0} & 0x7FFF7FFF", ("b32",), ("b32",), True
        )
    if name.floating:
        return alike(flushed(sign, name, 1), name, 1)
    return alike(sign, name, 1)


@named("min", "max")
def _extreme(name):
    if name.type in ("f16x2", "bf16x2"):
        return packed(name)
    word = {"min": "minimum", "max": "maximum"}[name.base]
    if name.floating:
        word += "_or_nan" if name.has("NaN") else ""
        return alike(flushed(f"{word}({{0}}, {{1}})", name, 2), name, 2)
    relu = name.has("relu")
    text = f"{name.base}({{0}}, {{1}}" + (", 0)" if relu else ")")
    return alike(text, name, 2, kept=name.type[0] != "s")


@helper
def minimum_or_nan(a, b):
    return a if a != a else b if b != b else minimum(a, b)


@helper
def maximum_or_nan(a, b):
    return a if a != a else b if b != b else maximum(a, b)


@named("dp4a", "dp2a")
def _dot(name):
    a, b = name.types
    half = name.one_of(("lo", "hi")) == "hi" if name.base == "dp2a" else False
    result = "s32" if "s32" in (a, b) else "u32"
    text = (
        f"dot({{0}}, {{1}}, {a[0] == 's'}, {b[0] == 's'}, {4 if name.base == 'dp4a' else 2}, {half}) + {{2}}"
    )
    return Operation(text, ("b32", "b32", result), (result,))


@helper
def dot(a, b, a_signed, b_signed, count, high):
    """The sum of the products of `count` parts of a with as many bytes of b, the upper two where `high`."""
    width = 32 // count
    return sum(
        part(a, i * width, width, a_signed) * part(b, (i + 2 * high) * 8, 8, b_signed) for i in range(count)
    )


def part(word, position, width, signed):
    value = word >> position & ((1 << width) - 1)
    return value - (1 << width) if signed and value >> width - 1 else value


# --- bits ---------------------------------------------------------------------------------------------------


@named("and", "or", "xor")
def _logic(name):
    return alike(f"{{0}} {dict(zip(('and', 'or', 'xor'), '&|^'))[name.base]} {{1}}", name, 2, True)


@named("not")
def _not(name):
    return alike("not {0}" if name.type == "pred" else f"{{0}} ^ {(1 << name.width) - 1}", name, 1, True)


@named("cnot")
def _cnot(name):
    return alike("int({0} == 0)", name, 1, True)


@named("shl", "shr")
def _shift(name):
    sign, beyond = ("<<", "0") if name.base == "shl" else (">>", "0" if name.type[0] != "s" else "{0} >> 63")
    kind = name.bits if name.base == "shl" else name.type
    text = f"{{0}} {sign} {{1}} if {{1}} < {name.width} else {beyond}"
    return Operation(
        text,
        (kind, "u32"),
        (kind,),
        name.base == "shr" and kind[0] != "s",
        lambda n: f"{{0}} {sign} {{1}}" if n < name.width else beyond,
    )


@named("shf")
def _funnel(name):
    left, wraps = name.one_of(("l", "r")) == "l", name.one_of(("wrap", "clamp")) == "wrap"
    return Operation(f"funnel({{0}}, {{1}}, {{2}}, {left}, {wraps})", ("b32", "b32", "u32"), ("b32",))


@helper
def funnel(low, high, shift, left, wraps):
    """The 64 bits of high and low shifted; the half that is kept."""
    shift = shift & 31 if wraps else min(shift, 32)
    both = high << 32 | low
    return both << shift >> 32 if left else both >> shift


@named("popc")
def _popc(name):
    return Operation("({0}).bit_count()", (name.bits,), ("u32",), True)


@named("clz")
def _clz(name):
    return Operation(f"{name.width} - ({{0}}).bit_length()", (name.bits,), ("u32",), True)


@named("brev")
def _brev(name):
    return alike(f"reversed_in({{0}}, {name.width})", name, 1, True, name.bits)


@helper
def reversed_in(pattern, width):
    return int(f"{pattern:0{width}b}"[::-1], 2)


@named("bfind")
def _bfind(name):
    amount = name.has("shiftamt")
    return Operation(f"highest({{0}}, {name.width}, {amount})", (name.type,), ("u32",))


@helper
def highest(value, width, amount):
    """The position of the highest bit that is not the sign; or how far to shift it to the top; -1 where there is none."""
    length = (~value if value < 0 else value).bit_length()
    return -1 if length == 0 else width - length if amount else length - 1


@named("bfe")
def _bfe(name):
    return Operation(
        f"extracted({{0}}, {{1}}, {{2}}, {name.width}, {name.type[0] == 's'})",
        (name.bits, "u32", "u32"),
        (name.type,),
    )


@helper
def extracted(value, position, length, width, signed):
    """`length` bits of `value` from `position` on; those beyond its top are 0, or the sign."""
    position, length = position & 255, length & 255
    if length == 0:
        return 0
    sign = value >> min(position + length - 1, width - 1) & 1 if signed else 0
    field = (value >> position) & ((1 << length) - 1)
    held = max(0, min(length, width - position))
    return field - (1 << held) if sign else field


@named("bfi")
def _bfi(name):
    return Operation(
        f"inserted({{0}}, {{1}}, {{2}}, {{3}}, {name.width})",
        (name.bits, name.bits, "u32", "u32"),
        (name.bits,),
        True,
    )


@helper
def inserted(field, value, position, length, width):
    """`value` with the low `length` bits of `field` at `position`."""
    position, length = position & 255, length & 255
    mask = ((1 << length) - 1) << position & ((1 << width) - 1)
    return value & ~mask | field << position & mask


@named("bmsk")
def _bmsk(name):
    wraps = name.one_of(("clamp", "wrap")) == "wrap"
    return Operation(f"mask_of({{0}}, {{1}}, {wraps})", ("u32", "u32"), ("b32",))


@helper
def mask_of(position, length, wraps):
    position, length = (position & 31, length & 31) if wraps else (min(position, 32), min(length, 32))
    return ((1 << length) - 1) << position


@named("szext")
def _szext(name):
    wraps = name.one_of(("clamp", "wrap")) == "wrap"
    return Operation(f"widened({{0}}, {{1}}, {name.type[0] == 's'}, {wraps})", ("b32", "u32"), (name.type,))


@helper
def widened(value, bits, signed, wraps):
    bits = bits & 31 if wraps else min(bits, 32)
    return part(value, 0, bits, signed) if bits else 0


@named("fns")
def _fns(name):
    return Operation("nth_set({0}, {1}, {2})", ("b32", "b32", "s32"), ("b32",), True)


@helper
def nth_set(mask, base, offset):
    """The position of the offset-th bit set, upwards from `base` (down for a negative one); all ones where there is none."""
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    bits = [i for i in (range(base, 32) if offset > 0 else range(base, -1, -1)) if mask >> i & 1]
    return bits[abs(offset) - 1] if abs(offset) <= len(bits) else 0xFFFFFFFF


@named("prmt")
def _prmt(name):
    mode = name.one_of(("f4e", "b4e", "rc8", "ecl", "ecr", "rc16"))
    return Operation(f"permuted({{0}}, {{1}}, {{2}}, {mode!r})", ("b32", "b32", "b32"), ("b32",), True)


SELECTORS = {
    "f4e": lambda i, s: s + i,
    "b4e": lambda i, s: (s - i) % 8,
    "rc8": lambda i, s: s,
    "ecl": lambda i, s: max(i, s),
    "ecr": lambda i, s: min(i, s),
    "rc16": lambda i, s: (i % 2) + 2 * (s % 2),
}


@helper
def permuted(a, b, selector, mode):
    """Four of the eight bytes of b and a, each one whole or its sign alone."""
    both, result = b << 32 | a, 0
    for i in range(4):
        choice = selector >> 4 * i & 15 if mode is None else SELECTORS[mode](i, selector & 3)
        byte = both >> 8 * (choice & 7) & 255
        result |= ((255 if byte & 128 else 0) if choice & 8 else byte) << 8 * i
    return result


@named("lop3")
def _lop3(name):
    return Operation("looked_up({0}, {1}, {2}, {3})", ("b32", "b32", "b32", "u32"), ("b32",), True)


@helper
def looked_up(a, b, c, table):
    """Each bit of the result from a table of eight by the bits of a, b and c."""
    result = 0
    for i in range(8):
        if table >> i & 1:
            result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return result & 0xFFFFFFFF


# --- choices ------------------------------------------------------------------------------------------------

SIGNED = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
UNORDERED = {"equ": "==", "neu": "!=", "ltu": "<", "leu": "<=", "gtu": ">", "geu": ">="}


@named("selp")
def _selp(name):
    kind = name.type if name.floating else name.bits
    return Operation("{0} if {2} else {1}", (kind, kind, "pred"), (kind,), True)


@named("slct")
def _slct(name):
    (kind, tested), ftz = name.types, name.has("ftz")
    kind = kind if kind in KINDS else f"b{WIDTHS[kind]}"
    test = "flush({2})" if ftz else "{2}"
    return Operation(f"{{0}} if {test} >= 0 else {{1}}", (kind, kind, tested), (kind,), True)


def comparison(name, kind):
    """The text that compares {0} and {1}."""
    test = name.one_of((*SIGNED, *UNORDERED, "num", "nan"))
    if test is None:
        raise Missing(name.text)
    a, b = ("flush({0})", "flush({1})") if name.has("ftz") and kind == "f32" else ("{0}", "{1}")
    if test in ("num", "nan"):
        sign, joined = ("==", " and ") if test == "num" else ("!=", " or ")
        return f"({a} {sign} {a}{joined}{b} {sign} {b})"
    if test in SIGNED and not (test == "ne" and kind in KINDS):
        return f"({a} {SIGNED[test]} {b})"
    if test == "ne":  # ordered
        return f"({a} < {b} or {a} > {b})"
    return f"({a} {UNORDERED[test]} {b} or {a} != {a} or {b} != {b})"


@named("setp")
def _setp(name):
    kind = name.type
    if kind in ("f16x2", "bf16x2"):
        return None
    # whether two integers are equal does not depend on a sign
    used = name.bits if {"eq", "ne"} & set(name.rest) and kind not in KINDS and kind != "pred" else kind
    return Operation(comparison(name, kind), (used, used), ("pred",), True)


@named("set")
def _set(name):
    result, kind = name.types
    yes, no = ("float32(1)", "float32(0)") if result == "f32" else ("0xFFFFFFFF", "0")
    return Operation(f"{yes} if {comparison(name, kind)} else {no}", (kind, kind), (result,), True)


@named("mov")
def _mov(name):
    return Operation("{0}", (name.type,), (name.type,), True)


# --- floating point -----------------------------------------------------------------------------------------

SMALLEST = float32(2.0**-126)


@helper
def flush(x):
    """A subnormal float32 as a zero of its sign."""
    return x if abs(x) >= SMALLEST or x != x else x * float32(0)


@helper
def saturated(x):
    """x between 0 and 1, NaN as 0."""
    return type(x)(0) if not x > 0 else min(x, type(x)(1))


def flushed(text, name, count):
    """The text with .ftz and .sat taken into account."""
    if name.has("ftz") and name.type == "f32":
        for i in range(count):
            text = text.replace(f"{{{i}}}", f"flush({{{i}}})")
        text = f"flush({text})"
    if name.has("relu"):
        text = f"at_least_zero({text})"
    return f"saturated({text})" if name.has("sat") else text


@helper
def at_least_zero(x):
    return x if x > 0 or x != x else type(x)(0)


def direction(name):
    """The rounding mode other than to nearest that a name asks for, or None."""
    mode = name.one_of(("rn", "rz", "rm", "rp"), "rn")
    return None if mode == "rn" else MODES[mode]


def _float_binary(name):
    if name.type in ("f16x2", "bf16x2"):
        return packed(name)
    mode, sign = direction(name), FLOAT_SIGNS[name.base]
    text = f"{{0}} {sign} {{1}}"
    if mode:
        text = f"{name.base}_directed({{0}}, {{1}}, {mode!r})"
    return alike(flushed(text, name, 2), name, 2)


@helper
def add_directed(a, b, mode):
    return fused(a, 1.0, b, type(a), mode)


@helper
def sub_directed(a, b, mode):
    return fused(a, 1.0, -b, type(a), mode)


@helper
def mul_directed(a, b, mode):
    return multiplied(a, b, type(a), mode)


@named("fma")
def _fused(name):
    if name.type in ("f16x2", "bf16x2"):
        return packed(name)
    mode = direction(name)
    text = f"fma_directed({{0}}, {{1}}, {{2}}, {mode!r})" if mode else "fma({0}, {1}, {2})"
    return alike(flushed(text, name, 3), name, 3)


@helper
def fma(a, b, c):
    return fused_float32(a, b, c) if type(a) is float32 else fused(a, b, c, type(a))


@helper
def fma_directed(a, b, c, mode):
    return fused(a, b, c, type(a), mode)


def _float_divide(name):
    if name.one_of(("approx", "full")):
        return alike(flushed("{0} / {1}", name, 2), name, 2)
    mode = direction(name)
    text = f"div_directed({{0}}, {{1}}, {mode!r})" if mode else "{0} / {1}"
    return alike(flushed(text, name, 2), name, 2)


@helper
def div_directed(a, b, mode):
    return divided(a, b, type(a), mode)


@named("rcp", "sqrt", "rsqrt")
def _root(name):
    mode = None if name.has("approx") else direction(name)
    if mode and name.base == "rcp":
        text = f"div_directed(type({{0}})(1), {{0}}, {mode!r})"
    elif mode:
        text = f"root_directed({{0}}, {mode!r})"
    else:
        text = {"rcp": "one_over({0})", "sqrt": "root({0})", "rsqrt": "one_over_root({0})"}[name.base]
    return alike(flushed(text, name, 1), name, 1)


@helper
def one_over(x):
    return type(x)(1) / x


@helper
def root(x):
    return np.sqrt(x)


@helper
def root_directed(x, mode):
    return square_root(x, type(x), mode)


@helper
def one_over_root(x):
    return (
        type(x)(float64(1) / np.sqrt(float64(x)))
        if type(x) is not float64
        else square_root(x, float64, "rn", inverse=True)
    )


@named("sin", "cos", "lg2", "ex2", "tanh")
def _elementary(name):
    if not name.has("approx") or name.type in ("f64",):
        return None
    if name.type in ("f16x2", "bf16x2"):
        return packed(name)
    name.has("ftz") and name.rest.append("ftz")
    return alike(flushed(f"{name.base}({{0}})", name, 1), name, 1)


def elementary(name, entry):
    function = ieee.total(*ieee.UNARY[entry])

    def evaluate(x):
        return type(x)(function(float(x)))

    evaluate.__name__ = name
    return helper(evaluate)


for _name, _entry in {"sin": "sin", "cos": "cos", "lg2": "log2", "ex2": "exp2", "tanh": "tanh"}.items():
    elementary(_name, _entry)


@named("copysign")
def _copysign(name):
    return alike("copysign({1}, {0})", name, 2)


HELPERS["copysign"] = np.copysign


@named("testp")
def _testp(name):
    test = name.one_of(("finite", "infinite", "number", "notanumber", "normal", "subnormal"))
    return Operation(f"is_{test}({{0}})", (name.type,), ("pred",))


HELPERS |= {
    "is_finite": lambda x: bool(np.isfinite(x)),
    "is_infinite": lambda x: bool(np.isinf(x)),
    "is_number": lambda x: bool(x == x),
    "is_notanumber": lambda x: bool(x != x),
    "is_normal": lambda x: bool(np.isfinite(x) and abs(x) >= np.finfo(type(x)).smallest_normal),
    "is_subnormal": lambda x: bool(0 < abs(x) < np.finfo(type(x)).smallest_normal),
}

# --- two halves in a register -------------------------------------------------------------------------------


def packed(name):
    """The Operation on both halves of packed operands."""
    one = meaning(name.text.replace("x2", ""))
    name.rest.clear()
    count, kind = len(one.operands), name.type[:-2]
    key = f"both_{name.text.replace('.', '_')}"
    if key not in HELPERS:
        HELPERS[key] = pairwise(
            eval(f"lambda {', '.join('abc'[:count])}: " + one.text.format(*"abc"), HELPERS), KINDS[kind]
        )
    return Operation(
        f"{key}({', '.join(f'{{{i}}}' for i in range(count))})", ("b32",) * count, ("b32",), True
    )


def pairwise(function, kind):
    def both(*words):
        halves = [np.array([word & 0xFFFF, word >> 16], np.uint16).view(kind) for word in words]
        low, high = (bits_of(kind(function(*(half[i] for half in halves)))) for i in (0, 1))
        return high << 16 | low

    return both


# --- bits and numbers ---------------------------------------------------------------------------------------

UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}


@helper
def bits_of(x):
    """The bits of a float as an int."""
    return int(x.view(UNSIGNED[x.dtype.itemsize]))


@helper
def float32_of(bits):
    return np.uint32(bits).view(float32)


@helper
def float64_of(bits):
    return np.uint64(bits).view(float64)


HALVES = {kind: np.arange(1 << 16, dtype=np.uint16).view(kind) for kind in (float16, bfloat16)}
HELPERS |= {"float16_of": HALVES[float16].__getitem__, "bfloat16_of": HALVES[bfloat16].__getitem__}


# --- conversions --------------------------------------------------------------------------------------------


@named("cvt")
def _convert(name):
    if name.type in ("f16x2", "bf16x2"):
        return _convert_two(name)
    if len(name.types) != 2:
        return None
    to, source = name.types
    if to == "tf32":
        mode = name.one_of(("rna", "rn", "rz"))
        return Operation(f"to_tf32({{0}}, {mode!r})", ("b32",), ("b32",), True)
    if to not in KINDS and source not in KINDS:
        text = f"within({{0}}, {WIDTHS[to]}, {to[0] == 's'})" if name.has("sat") else "{0}"
        return Operation(
            text, (source,), (to,), to[0] != "s" and source[0] != "s" and WIDTHS[to] >= WIDTHS[source]
        )
    operand = "flush({0})" if name.has("ftz") and source == "f32" else "{0}"
    if to not in KINDS:
        mode = WHOLE[name.one_of(WHOLE, "rzi")]
        name.has("sat")
        return Operation(f"whole({operand}, {to!r}, {mode!r})", (source,), (to,))
    return Operation(flushed(to_floating(name, to, source, operand), name, 0), (source,), (to,))


def to_floating(name, to, source, operand):
    """The text of a conversion to a floating-point type."""
    whole_mode, mode = name.one_of(WHOLE), name.one_of(("rn", "rz", "rm", "rp", "rna"), "rn")
    kind = KINDS[to].__name__
    if whole_mode:
        return f"{kind}(nearest_whole({operand}, {WHOLE[whole_mode]!r}))"
    if source in KINDS:
        if mode == "rn" or WIDTHS[source] < WIDTHS[to]:
            return operand if source == to else f"{kind}({operand})"
        return f"directed_to({operand}, {kind}, {MODES[mode]!r})"
    if mode == "rn" and WIDTHS[source] <= 32 and to in ("f32", "f64"):
        return f"{kind}({operand})"
    return f"directed_to({operand}, {kind}, {MODES[mode]!r})"


@helper
def within(value, width, signed):
    low, high = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    return max(low, min(value, high))


@helper
def whole(x, dtype, mode):
    return int(from_float(x, {"s": "int", "u": "uint", "b": "uint"}[dtype[0]] + dtype[1:], mode))


@helper
def nearest_whole(x, mode):
    if not math.isfinite(x):
        return x
    function = {"rn": round, "rz": math.trunc, "rd": math.floor, "ru": math.ceil}[mode]
    return math.copysign(function(float(x)), x)


@helper
def directed_to(x, kind, mode):
    if isinstance(x, int):
        source = np.uint64 if x >= 1 << 63 else np.int64
    else:
        source = type(x)
    return to_float(x, source, kind, mode)


@helper
def to_tf32(bits, mode):
    """A float32 with ten bits of fraction, the others 0; ties away from zero, to even, or cut."""
    if bits & 0x7F800000 == 0x7F800000:
        return bits & 0xFFFFE000 | (0x2000 if bits & 0x7FFFFF and not bits & 0x7FE000 else 0)
    if mode == "rz":
        return bits & 0xFFFFE000
    tie = 0xFFF + (bits >> 13 & 1) if mode == "rn" else 0x1000
    return (bits + tie) & 0xFFFFE000


def _convert_two(name):
    kind = name.types[0][:-2]
    mode, relu, sat = name.one_of(("rn", "rz"), "rn"), name.has("relu"), name.has("satfinite")
    if name.types[1:] != ["f32"] or sat:
        return None
    text = f"two_halves({{0}}, {{1}}, {KINDS[kind].__name__}, {MODES[mode]!r}, {relu})"
    return Operation(text, ("f32", "f32"), ("b32",), True)


@helper
def two_halves(high, low, kind, mode, relu):
    """Two float32 rounded to 16 bits each, the first in the upper half."""
    parts = [kind(x) if mode == "rn" else to_float(x, float32, kind, mode) for x in (high, low)]
    upper, lower = (bits_of(at_least_zero(x) if relu else x) for x in parts)
    return upper << 16 | lower
