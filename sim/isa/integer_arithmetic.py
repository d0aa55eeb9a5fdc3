"""PTX arithmetic on integers and bits, with one entry per instruction and type: add.s32, shl.b64, prmt.b32.

Where libdevice provides the same function, that module adds its name and a compiled form to the entry.

Source: PTX ISA 9.7.1, "Integer Arithmetic Instructions"; 9.7.8, "Logic and Shift Instructions"; 9.7.9, "Data
Movement and Conversion Instructions" (prmt); 9.7.19, "Video Instructions".
"""

import operator
from itertools import product

import numpy as np
from numpy import int32, int64, uint32, uint64

from sim.isa import bits
from sim.isa.conversions import wrap
from sim.isa.functions import SAME
from sim.isa.ptx_types import INTEGERS, PATTERNS, SIGNED, add_entry, family

# operand type -> result type of mul.wide and mad.wide, which is twice as wide
TWICE = {"s16": int32, "s32": int64, "u16": uint32, "u32": uint64}


def quotient(x, y):
    """Return x / y, rounded towards zero (div). PTX leaves x / 0 undefined, and GPUs return all ones."""
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def remainder(x, y):
    """Return the remainder of x / y, which has the sign of x (rem). GPUs return x if y is 0."""
    return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


def high(x, y, *, bits):
    """Return the upper half of the product x * y (mul.hi)."""
    return x * y >> bits


def multiply_add(x, y, z):
    """Return x * y + z (mad.lo, mad.wide)."""
    return x * y + z


def high_add(x, y, z, *, bits):
    """Return the upper half of the product x * y, plus z (mad.hi)."""
    return (x * y >> bits) + z


def difference(x, y, z):
    """Return |x - y| + z (sad)."""
    return abs(x - y) + z


def shifted_left(x, count, *, bits):
    """Return x, shifted left by the unsigned 32-bit `count` (shl). PTX clamps the count to the width, so a
    larger count gives 0."""
    return x << count if count < bits else 0


def shifted_right(x, count, *, bits):
    """Return x, shifted right by the unsigned 32-bit `count` and filled with the sign of x (shr). PTX clamps
    the count to the width."""
    return x >> min(count, bits)


def field(x, start, length, *, bits):
    """Return an unsigned bit field (bfe.u). PTX uses only the low 8 bits of `start` and `length`."""
    return (x >> (start & 255)) & ((1 << (length & 255)) - 1)


def inserted(x, into, start, length, *, bits):
    """Return `into` with a bit field replaced by the low bits of x (bfi)."""
    mask = ((1 << (length & 255)) - 1) << (start & 255)
    return into & ~mask | (x << (start & 255)) & mask


def signed_field(x, start, length, *, bits):
    """Return a sign-extended bit field (bfe.s). If the field extends beyond the operand, the sign bit of the
    operand fills the rest."""
    start, length = start & 255, length & 255
    sign = x >> min(start + length - 1, bits - 1) & 1 if length else 0
    count = min(length, max(bits - start, 0))
    return ((x >> start) & ((1 << count) - 1)) - (sign << count)


def funnel(wrapped, left):
    """Return the semantics of shf, which shifts the 64-bit value high:low and returns 32 bits of the result.

    wrapped: whether the count is taken modulo 32 (.wrap). Otherwise, it is clamped to 32 (.clamp).
    left: whether to return the upper half of high:low << count (shf.l). Otherwise, return the lower half of
        high:low >> count (shf.r).
    """

    def shift(low, high, count):
        count = count & 31 if wrapped else min(count, 32)
        both = high << 32 | low
        return both << count >> 32 if left else both >> count

    return shift


def any_of_three(x, y, z, table):
    """Return a bitwise function of three operands (lop3).

    Bit 4 a + 2 b + c of `table` is the result for the operand bits a, b and c.
    """
    result = 0
    for position in range(8):
        if table >> position & 1:
            result |= (x if position & 4 else ~x) & (y if position & 2 else ~y) & (z if position & 1 else ~z)
    return result


def dot(width, count, first=0):
    """Return a function (signed_x, signed_y) that returns the semantics of dp4a or dp2a: z plus a dot
    product.

    width: the number of bits per element of x.
    count: the number of elements of x.
    first: the first byte of y to use (2 for dp2a.hi).
    """

    def signed(signed_x, signed_y):
        def dot(x, y, z):
            for i in range(count):
                z += part(x, width * i, width, signed_x) * part(y, 8 * (first + i), 8, signed_y)
            return z

        return dot

    return signed


def lane_differences(width, signed_x, signed_y, sums, largest):
    """Return the semantics of vabsdiff2 or vabsdiff4, the absolute differences of the lanes of x and y.

    width: the number of bits per lane.
    signed_x, signed_y: whether the lanes of x and of y are signed.
    sums: whether to return z plus the sum of the differences (.add) instead of the lanes.
    largest: the largest value of a lane (.sat), or None to keep the lowest `width` bits.
    """

    def differences(x, y, z):
        packed = 0
        for i in range(32 // width):
            lane = abs(part(x, width * i, width, signed_x) - part(y, width * i, width, signed_y))
            if largest is not None:
                lane = min(lane, largest)
            z += lane
            packed |= (lane & (1 << width) - 1) << width * i
        return z if sums else packed

    return differences


def part(word, start, width, signed):
    """Return the `width` bits of a word from bit `start` on, as a signed or an unsigned number."""
    bits = word >> start & (1 << width) - 1
    return wrap(bits, width) if signed else bits


def most_significant(x, *, bits):
    """Return the position of the most significant non-sign bit (bfind), or -1 (all ones) if there is none."""
    # The larger of x and ~x is not negative. Its highest 1 is the most significant non-sign bit of x.
    return max(x, ~x).bit_length() - 1


def distance(x, *, bits):
    """Return the left shift that moves the most significant non-sign bit to the top (bfind.shiftamt), or -1
    (all ones) if there is none."""
    length = max(x, ~x).bit_length()
    return -1 if length == 0 else bits - length


def within_word(wraps, number):
    """Return a bit position or length within a 32-bit word: modulo 32 if `wraps` is true, otherwise clamped
    to 32."""
    return number & 31 if wraps else min(number, 32)


def bit_mask(wraps):
    """Return the semantics of bmsk, which returns a mask of `length` ones from bit `at` upwards."""
    return lambda at, length: (1 << within_word(wraps, length)) - 1 << within_word(wraps, at)


def extended(wraps, signed):
    """Return the semantics of szext, which sign-extends or zero-extends the low `length` bits of a word."""

    def extend(x, length):
        length = within_word(wraps, length)
        return part(x, 0, length, signed) if length else 0

    return extend


def nth_set(mask, base, offset):
    """Return the position of the `offset`-th set bit, counted from bit `base` (fns).

    A positive offset counts upwards, and a negative one downwards. Return all ones if there is no such bit.
    """
    base &= 31
    # The offset 0 selects bit `base` itself, if it is set.
    if offset == 0:
        return base if mask >> base & 1 else -1
    step, left, found = 1 if offset > 0 else -1, abs(offset), -1
    # The loop does not end early, because sim.native.ptx unrolls it and does not support `break`.
    for distance in range(32):
        at = base + distance * step
        if 0 <= at < 32 and mask >> at & 1:
            left -= 1
            found = at if left == 0 else found
    return found


# mode of prmt -> the function (result byte i, selector) that returns the source byte (PTX ISA 9.7.9, `prmt`)
SELECTED = {
    "f4e": lambda i, s: (s & 3) + i,
    "b4e": lambda i, s: (s & 3) - i & 7,
    "rc8": lambda i, s: s & 3,
    "ecl": lambda i, s: max(i, s & 3),
    "ecr": lambda i, s: min(i, s & 3),
    "rc16": lambda i, s: (i % 2) + 2 * (s % 2),
}


def nibble(i, selector):
    """Return the selector of four bits for result byte i in the default mode of prmt. Bit 3 of the selector
    requests the replication of the sign."""
    return selector >> 4 * i & 15


def permuting(choice):
    """Return the semantics of prmt, which selects four of the eight bytes of high:low.

    If bit 3 of a selector is set, all bits of the result byte are the sign bit of the selected byte.

    choice: the function (result byte i, selector) that returns the source byte.
    """

    def permuted(low, high, selector):
        both, result = (high & 0xFFFFFFFF) << 32 | low & 0xFFFFFFFF, 0
        for i in range(4):
            which = choice(i, selector)
            byte = both >> 8 * (which & 7) & 255
            result |= (255 * (byte >> 7) if which & 8 else byte) << 8 * i
        return result

    return permuted


permuted = permuting(nibble)
family("add.T", INTEGERS, operator.add, native=SAME)
family("sub.T", INTEGERS, operator.sub, native=SAME)
family("mul.lo.T", INTEGERS, operator.mul, native=SAME)
family("mul.hi.T", INTEGERS, high)
family("mul.wide.T", {name: INTEGERS[name] for name in TWICE}, operator.mul, results=TWICE)
family("mad.lo.T", INTEGERS, multiply_add, 3, native=SAME)
family("mad.hi.T", INTEGERS, high_add, 3)
for _name, _wide in TWICE.items():
    add_entry(f"mad.wide.{_name}", multiply_add, (INTEGERS[_name], INTEGERS[_name], _wide), _wide)
family("div.T", INTEGERS, quotient)
family("rem.T", INTEGERS, remainder)
family("sad.T", INTEGERS, difference, 3)
# abs and neg of the lowest integer wrap around to the lowest integer when the result is converted to its
# type.
family("abs.T", SIGNED, abs, 1)
family("neg.T", SIGNED, operator.neg, 1, native=SAME)
family("min.T", INTEGERS, min, native=SAME)
family("max.T", INTEGERS, max, native=SAME)
family("popc.T", PATTERNS, bits.popc, 1, results=uint32, native=bits.POPC)
family("clz.T", PATTERNS, bits.clz, 1, results=uint32, native=bits.CLZ)
family("brev.T", PATTERNS, bits.brev, 1, native=bits.BREV)
family("bfind.T", INTEGERS, most_significant, 1, results=uint32)
# Logic instructions also accept predicates.
LOGIC = PATTERNS | {"pred": np.bool_}
family("and.T", LOGIC, operator.and_, native=SAME)
family("or.T", LOGIC, operator.or_, native=SAME)
family("xor.T", LOGIC, operator.xor, native=SAME)
family("not.T", PATTERNS, operator.invert, 1, native=SAME)
add_entry("not.pred", operator.not_, (np.bool_,), np.bool_)
family("cnot.T", PATTERNS, lambda x: int(x == 0), 1)
add_entry("lop3.b32", any_of_three, (uint32,) * 4, uint32, SAME)
# The shift count is .u32 for every type of the operand.
family("shl.T", PATTERNS, shifted_left, (uint32,))
family("shr.T", INTEGERS | PATTERNS, shifted_right, (uint32,))
family("bfe.T", {"u32": uint32, "u64": uint64}, field, (uint32, uint32))
family("bfe.T", {"s32": int32, "s64": int64}, signed_field, (uint32, uint32))
for _name in ("b32", "b64"):
    _scalar = PATTERNS[_name]
    add_entry(f"bfi.{_name}", inserted, (_scalar, _scalar, uint32, uint32), _scalar)
for _mode in ("wrap", "clamp"):
    _wraps = _mode == "wrap"
    for _way in ("l", "r"):
        add_entry(f"shf.{_way}.{_mode}.b32", funnel(_wraps, _way == "l"), (uint32,) * 3, uint32)
    add_entry(f"bmsk.{_mode}.b32", bit_mask(_wraps), (uint32,) * 2, uint32)
    add_entry(f"szext.{_mode}.u32", extended(_wraps, False), (uint32,) * 2, uint32)
    add_entry(f"szext.{_mode}.s32", extended(_wraps, True), (uint32,) * 2, int32)
# The sum is signed unless both operands are unsigned.
for _name, _dot in (("dp4a", dot(8, 4)), ("dp2a.lo", dot(16, 2)), ("dp2a.hi", dot(16, 2, 2))):
    for _signs in ("ss", "su", "us", "uu"):
        _left, _right = _signs
        _sum = uint32 if _signs == "uu" else int32
        _semantics = _dot(_left == "s", _right == "s")
        add_entry(f"{_name}.{_left}32.{_right}32", _semantics, (uint32, uint32, _sum), _sum)
# Video instructions with the default selection of lanes (PTX ISA 9.7.19, "Video Instructions").
for _lanes in (2, 4):
    for _result, _left, _right in product("us", repeat=3):
        _name = f"vabsdiff{_lanes}.{_result}32.{_left}32.{_right}32"
        _most = (1 << 32 // _lanes - (_result == "s")) - 1
        for _suffix, _sums, _largest in (("", False, None), (".sat", False, _most), (".add", True, None)):
            _semantics = lane_differences(32 // _lanes, _left == "s", _right == "s", _sums, _largest)
            add_entry(_name + _suffix, _semantics, (uint32,) * 3, uint32)
family("bfind.shiftamt.T", INTEGERS, distance, 1, results=uint32)
add_entry("fns.b32", nth_set, (uint32, uint32, int32), uint32)
add_entry("prmt.b32", permuted, (uint32,) * 3, uint32)
for _mode, _choice in SELECTED.items():
    add_entry(f"prmt.b32.{_mode}", permuting(_choice), (uint32,) * 3, uint32)
