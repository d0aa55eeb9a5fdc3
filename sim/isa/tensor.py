"""Warp-level matrix instructions. mma.sync multiplies two small matrices distributed over the lanes of a
warp. ldmatrix loads matrices from shared memory into registers, and stmatrix stores them. movmatrix
transposes a matrix in registers.

The distribution over the lanes uses g = lane // 4 (groupID), t = lane % 4 (threadID_in_group), and p, the
number of elements of A or B per register (two 16-bit values, four 8-bit values, or one tf32):

    A 16×K    register r contains A[g + 8 (r % 2), p t + 4 p (r // 2)] in its lowest bits, and then
              the next columns
    B K×8     register r contains B[p t + 4 p r, g], and then the next rows
    C, D 16×8 element i is C[g + 8 (i // 2), 2 t + i % 2]; a register contains two float16 elements
    ldmatrix  register r contains M_r[g, 2 t] and the next column; with .trans, it contains
              M_r[2 t, g] and the next row; lane 8 r + i passes the address of row i of M_r, which
              has 16 bytes and is aligned to 16 bytes

Products are exact. Sums are computed in float64 and rounded once. A GPU can truncate intermediate sums, and
the order of summation is not specified.

Source: PTX ISA 9.7.14.5, "Matrix multiply-accumulate operation using mma instruction" (m16n8k4, m16n8k8,
m16n8k16, m16n8k32; ldmatrix, stmatrix, movmatrix).
"""

import math

import numpy as np
from ml_dtypes import bfloat16
from numpy import float16, float32, int32, uint32

from sim.isa.functions import LookupTable
from sim.isa.table import Touch
from sim.isa.warp_instruction import instruction

# --- the elements in a register -----------------------------------------------------------------------------


def float_decoder(exponent_bits, fraction_bits):
    """Return the function that converts the bit pattern of a float to its value."""
    top, one = (1 << exponent_bits) - 1, 1 << fraction_bits
    least = 2 - (1 << exponent_bits - 1) - fraction_bits  # exponent of the smallest subnormal
    sign = one << exponent_bits

    def number(bits):
        exponent, fraction = bits >> fraction_bits & top, bits & one - 1
        if exponent == top:
            size = math.inf if fraction == 0 else math.nan
        elif exponent == 0:
            size = fraction * 2.0**least
        else:
            size = (fraction + one) * 2.0 ** (least - 1 + exponent)
        return -size if bits & sign else size

    return number


def integer_decoder(sign):
    """Return a function that converts a byte to its integer value.

    sign: 128 for signed bytes, otherwise 0.
    """
    return lambda bits: (bits ^ sign) - sign


def float16_bits(x):
    """Return the bit pattern of the float16 nearest to a float64. Ties are rounded to even."""
    sign = 0x8000 if math.copysign(1.0, x) < 0 else 0
    size = abs(x)
    if size != size:
        return 0x7FFF
    if size == 0.0:
        return sign
    if size >= 65520.0:  # halfway from 65504, the largest float16, to 65536: rounds to infinity
        return sign | 0x7C00
    # This is the exponent of the lowest of the significand's 11 bits. Below 2^-14, float16 is subnormal, and
    # its values are 2^-24 apart.
    exponent = max(math.frexp(size)[1] - 11, -24)
    count = round(size * 2.0**-exponent)
    # If rounding gives 2^11 units, the addition carries into the exponent field. The result is then correct
    # too.
    return sign | ((exponent + 24 << 10) + count)


def unpack_registers(registers, number, drop, width):
    """Return the elements in the registers of 32 lanes, grouped by lane.

    number: the function that converts the bit pattern of an element to its value.
    drop: the number of ignored low bits in a register (13 for tf32).
    width: the number of bits per element.
    """
    count = (32 - drop) // width
    found, at = [number(0)] * (len(registers) * 32 * count), 0
    for register in registers:
        for lane in range(32):
            word = int(register[lane]) >> drop
            for part in range(count):
                found[at] = number(word >> width * part & (1 << width) - 1)
                at += 1
    return found


def dot(a, b, a_run, b_run, length):
    """Return the dot product of two runs of consecutive elements: run `a_run` of `a`, and run `b_run` of `b`.

    length: the number of elements in a run.
    """
    i, j = a_run * length, b_run * length
    total = a[i] * b[j]
    for k in range(1, length):
        total += a[i + k] * b[j + k]
    return total


def add_floats(c, total):
    """Return the accumulator plus the dot product."""
    return float(c) + total


def add_integers(c, total):
    """Return the integer accumulator plus the dot product. The sum wraps around."""
    return int(c) + total


def add_clamped(c, total):
    """Return the integer accumulator plus the dot product, saturated to int32 (.satfinite)."""
    return max(-0x80000000, min(int(c) + total, 0x7FFFFFFF))


def float_table(dtype, *bits):
    """Return a LookupTable that maps a 16-bit pattern to its value as a float."""
    return LookupTable(float_decoder(*bits), np.arange(2**16, dtype=np.uint16).view(dtype).tolist())


DECODE_F16, DECODE_BF16, DECODE_TF32 = (
    float_table(float16, 5, 10),
    float_table(bfloat16, 8, 7),
    float_decoder(8, 10),
)


def add_halves(c, low, high):
    """Add a number to each of the two float16 accumulators in a register, and return the register."""
    c = int(c)
    return float16_bits(DECODE_F16(c & 0xFFFF) + low) | float16_bits(DECODE_F16(c >> 16) + high) << 16


# --- mma ----------------------------------------------------------------------------------------------------


def product_sums(decode_a, decode_b, width, drop=0, rows=16, columns=8):
    """Return the function (registers of A, registers of B) that returns Σ_k A[row, k] · B[k, column] in
    row-major order."""
    length = 4 * ((32 - drop) // width)

    def sums(a, b):
        x, y = unpack_registers(a, decode_a, drop, width), unpack_registers(b, decode_b, drop, width)
        found = [x[0]] * (rows * columns)
        for at in range(rows * columns):
            row, column = at // columns, at % columns
            found[at] = dot(x, y, row, column, length)
            # For the larger K, additional registers contain the second half of each row and column.
            if 8 * len(b) == 2 * columns:
                found[at] += dot(x, y, row + rows, column + columns, length)
        return found

    return sums


def accumulate_words(number, add, sums):
    """Return (semantics of mma for the larger K, semantics for the smaller K). Each register of D contains
    one element."""

    def two(
        lanes,
        a0: uint32, a1: uint32, a2: uint32, a3: uint32, b0: uint32, b1: uint32,
        c0: number, c1: number, c2: number, c3: number,
        *, d0: number, d1: number, d2: number, d3: number,
    ):  # fmt: skip
        distribute_words(add, sums((a0, a1, a2, a3), (b0, b1)), (c0, c1, c2, c3), (d0, d1, d2, d3))

    def one(
        lanes,
        a0: uint32, a1: uint32, b0: uint32, c0: number, c1: number, c2: number, c3: number,
        *, d0: number, d1: number, d2: number, d3: number,
    ):  # fmt: skip
        distribute_words(add, sums((a0, a1), (b0,)), (c0, c1, c2, c3), (d0, d1, d2, d3))

    return two, one


def distribute_words(add, sums, c, d):
    """Set the four elements of D in each lane to the elements of C plus the sums."""
    for lane in range(32):
        at = 2 * lane  # 8 (lane // 4) + 2 (lane % 4)
        d[0][lane], d[1][lane] = add(c[0][lane], sums[at]), add(c[1][lane], sums[at + 1])
        d[2][lane], d[3][lane] = add(c[2][lane], sums[at + 64]), add(c[3][lane], sums[at + 65])


def accumulate_halves(sums):
    """Return (semantics of mma for the larger K, semantics for the smaller K). Each register of D contains
    two float16 elements."""

    def two(
        lanes,
        a0: uint32, a1: uint32, a2: uint32, a3: uint32, b0: uint32, b1: uint32, c0: uint32, c1: uint32,
        *, d0: uint32, d1: uint32,
    ):  # fmt: skip
        distribute_halves(sums((a0, a1, a2, a3), (b0, b1)), (c0, c1), (d0, d1))

    def one(lanes, a0: uint32, a1: uint32, b0: uint32, c0: uint32, c1: uint32, *, d0: uint32, d1: uint32):
        distribute_halves(sums((a0, a1), (b0,)), (c0, c1), (d0, d1))

    return two, one


def distribute_halves(sums, c, d):
    """Set the two registers of D in each lane. Each register contains two float16 elements."""
    for lane in range(32):
        at = 2 * lane
        d[0][lane] = add_halves(c[0][lane], sums[at], sums[at + 1])
        d[1][lane] = add_halves(c[1][lane], sums[at + 64], sums[at + 65])


def mma(depths, d, a, b, implementations, clamps=""):
    """Add mma.sync for two values of K to the table: D (16×8, of type d) = A (of type a) · B (of type b) +
    C."""
    for depth, semantics in zip(depths, implementations, strict=True):
        name = "_".join([f"mma_m16n8k{depth}", d, *dict.fromkeys((a, b)), *([clamps] if clamps else [])])
        ptx = f"mma.sync.m16n8k{depth}.row.col.{f'{clamps}.' if clamps else ''}{d}.{a}.{b}.{d}"
        instruction(name=name, source=f"PTX ISA mma.sync.m16n8k{depth}", ptx=(ptx,))(semantics)


for _ptx_type, _number in (("bf16", DECODE_BF16), ("f16", DECODE_F16)):
    mma(
        (16, 8),
        "f32",
        _ptx_type,
        _ptx_type,
        accumulate_words(float32, add_floats, product_sums(_number, _number, 16)),
    )
mma((16, 8), "f16", "f16", "f16", accumulate_halves(product_sums(DECODE_F16, DECODE_F16, 16)))
mma(
    (8, 4),
    "f32",
    "tf32",
    "tf32",
    accumulate_words(float32, add_floats, product_sums(DECODE_TF32, DECODE_TF32, 19, drop=13)),
)
for _a, _b in (("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")):
    _products = product_sums(*(integer_decoder(128 * (ptx_type == "s8")) for ptx_type in (_a, _b)), 8)
    mma((32, 16), "s32", _a, _b, accumulate_words(int32, add_integers, _products))
    mma((32, 16), "s32", _a, _b, accumulate_words(int32, add_clamped, _products), "satfinite")

# --- ldmatrix -----------------------------------------------------------------------------------------------


def ldmatrix(count, transposed):
    """Add ldmatrix for `count` matrices to the table. Each lane passes the address of a row of 16 bytes, or
    (array, index) in a Python kernel."""

    def row_of_lane(memory, tile, index):
        if memory.lane >= 8 * count:
            return (0,) * 4  # ldmatrix ignores the addresses of these lanes
        return tuple(memory.read(tile, index, 16).view(uint32))

    def x1(lanes, w0, w1, w2, w3, *, r0: uint32):
        distribute((w0, w1, w2, w3), (r0,), transposed)

    def x2(lanes, w0, w1, w2, w3, *, r0: uint32, r1: uint32):
        distribute((w0, w1, w2, w3), (r0, r1), transposed)

    def x4(lanes, w0, w1, w2, w3, *, r0: uint32, r1: uint32, r2: uint32, r3: uint32):
        distribute((w0, w1, w2, w3), (r0, r1, r2, r3), transposed)

    name = f"ldmatrix_x{count}{'_trans' if transposed else ''}"
    ptx = (f"ldmatrix.sync.m8n8.x{count}{'.trans' if transposed else ''}.b16",)
    touches = (Touch("tile", "read", "shared", 16),)
    add_entry = instruction(name=name, fetch=row_of_lane, source="PTX ISA ldmatrix", ptx=ptx, touches=touches)
    add_entry({1: x1, 2: x2, 4: x4}[count])


def distribute(words, registers, transposed):
    """Set the registers of every lane. Lane 8 r + i has loaded row i of matrix r, as four words of two
    elements."""
    for r, register in enumerate(registers):
        for lane in range(32):
            group, pair = lane // 4, lane % 4
            if transposed:
                # Two elements of the same column of the matrix come from the rows of two lanes.
                word, first = words[group // 2], 8 * r + 2 * pair
                register[lane] = (
                    half_word(word[first], group % 2) | half_word(word[first + 1], group % 2) << 16
                )
            else:
                register[lane] = words[pair][8 * r + group]


def half_word(word, upper):
    """Return the lower or upper 16 bits of a register."""
    return int(word) >> 16 * upper & 0xFFFF


for _count in (1, 2, 4):
    ldmatrix(_count, False)
    ldmatrix(_count, True)


# --- movmatrix ----------------------------------------------------------------------------------------------


@instruction(name="movmatrix_trans", source="PTX ISA movmatrix", ptx=("movmatrix.sync.m8n8.trans.b16",))
def movmatrix(lanes, a: uint32, *, d: uint32):
    """Transpose a matrix of 16-bit elements in the registers of a warp. Its layout is that of ldmatrix."""
    for lane in range(32):
        group, pair = lane // 4, lane % 4
        first = 8 * pair + group // 2  # lane with row 2 pair, columns 2 (group // 2) and 2 (group // 2) + 1
        d[lane] = half_word(a[first], group % 2) | half_word(a[first + 4], group % 2) << 16


# --- stmatrix -----------------------------------------------------------------------------------------------


def stmatrix(count, transposed):
    """Add stmatrix for `count` matrices to the table.

    The registers are those of ldmatrix. Each lane passes the address of the row of 16 bytes that it stores.
    """

    def put(memory, tile, index, *words):
        if memory.lane < 8 * count:
            memory.write(tile, index, np.array(words, uint32).tobytes())

    def x1(lanes, r0: uint32, *, w0: uint32, w1: uint32, w2: uint32, w3: uint32):
        gather((r0,), (w0, w1, w2, w3), transposed)

    def x2(lanes, r0: uint32, r1: uint32, *, w0: uint32, w1: uint32, w2: uint32, w3: uint32):
        gather((r0, r1), (w0, w1, w2, w3), transposed)

    def x4(
        lanes, r0: uint32, r1: uint32, r2: uint32, r3: uint32,
        *, w0: uint32, w1: uint32, w2: uint32, w3: uint32,
    ):  # fmt: skip
        gather((r0, r1, r2, r3), (w0, w1, w2, w3), transposed)

    name = f"stmatrix_x{count}{'_trans' if transposed else ''}"
    ptx = (f"stmatrix.sync.m8n8.x{count}{'.trans' if transposed else ''}.b16",)
    touches = (Touch("tile", "write", "shared", 16),)
    add_entry = instruction(name=name, put=put, source="PTX ISA stmatrix", ptx=ptx, touches=touches)
    add_entry({1: x1, 2: x2, 4: x4}[count])


def gather(registers, words, transposed):
    """Set the four words of the row that each lane stores. Lane 8 r + i stores row i of matrix r."""
    for lane in range(32):
        r, row = lane // 8, lane % 8
        for j, word in enumerate(words):
            if r >= len(registers):
                word[lane] = 0
            elif transposed:
                first = 8 * j + row // 2
                low, high = (half_word(registers[r][of], row % 2) for of in (first, first + 4))
                word[lane] = low | high << 16
            else:
                word[lane] = registers[r][4 * row + j]


for _count in (1, 2, 4):
    stmatrix(_count, False)
    stmatrix(_count, True)
