"""Warp-level matrix instructions on fragments: wmma.load, wmma.mma and wmma.store.

The PTX ISA does not specify which lane contains which element of a fragment. The layout here was measured on
an H200 (for f64, it is the layout of mma.sync), so that kernels that rely on the layout compute the same
values. Let g = lane // 4, t = lane % 4, and let p be the number of elements of A or B per register (four
8-bit values, two 16-bit values, one tf32 or one f64). A register contains p adjacent elements, the first one
in its lowest bits:

    A M×K     A[8 i + g, 4 p k + p t], and the next columns
    B K×N     B[4 p k + p t, 8 j + g], and the next rows
    C, D M×N  element n, with q = n // 2, is C[8 (q % (M/8)) + g, 8 (q // (M/8)) + 2 t + n % 2];
              for m8n32, it is C[2 t + n % 2, 8 q + g]; a register contains two float16 elements

The registers of A contain two row tiles i for the first tile k, then for the next k, and so on. Then follow
the next two row tiles. The registers of B contain all tiles k of the first column tile j, and then those of
the next column tile. For m8n32, A has the order of B, and B has the order of A. A and B of float16 always
have eight registers. If fewer registers suffice, the elements are repeated, and the product uses the first
registers.

A fragment does not depend on .row and .col, which describe the matrix in memory. Its lines (rows or columns)
begin `stride` elements apart. The address of each line must be aligned to the number of bytes of the fragment
per lane, or to 16 bytes if that is less. nvcuda::wmma requires the same alignment of strides.

Products and sums are those of `mma.sync`. For float64, they are fused multiply-adds in the order of k.

Source: PTX ISA 9.7.14.4, "Matrix multiply-accumulate operation using wmma instructions".
"""

from functools import lru_cache
from inspect import Parameter, Signature
from itertools import product

import numpy as np
from numpy import float32, float64, int32, uint32, uint64

from sim.isa.rounding import fused
from sim.isa.table import Touch
from sim.isa.tensor import (
    DECODE_BF16,
    DECODE_F16,
    DECODE_TF32,
    add_clamped,
    float16_bits,
    integer_decoder,
    product_sums,
)
from sim.isa.warp_instruction import instruction

# PTX type -> the number of bits of an element
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "f64": 64, "f32": 32, "s32": 32}
# (M, N, K) -> the name of the shape, for 16-bit and 8-bit types
SHAPES = {(16, 16, 16): "m16n16k16", (8, 32, 16): "m8n32k16", (32, 8, 16): "m32n8k16"}
MAX_ALIGNMENT = 16  # bytes of the widest access of a lane
LAYOUTS = ("row", "col")


class Fragment:
    """A `rows` × `columns` matrix distributed over the lanes of a warp.

    which: its role in the product, "a", "b" or "c".
    transposed: whether the shape is m8n32, for which a GPU computes the transposed product.
    """

    def __init__(self, which, rows, columns, ptx_type, transposed):
        self.which, self.rows, self.columns, self.ptx_type = which, rows, columns, ptx_type
        self.transposed = transposed
        self.each = max(32 // BITS[ptx_type], 1)  # the number of elements in a register
        self.word = uint64 if ptx_type == "f64" else uint32
        self.unique = rows * columns // 32 // self.each
        self.registers = 8 if ptx_type == "f16" and which in "ab" else self.unique
        self.alignment = min(self.registers * self.word().itemsize, MAX_ALIGNMENT)

    def positions(self, lane):
        """Yield (row, column) for each element of a lane, in the order of the registers, and from the lowest
        bits on within each register."""
        g, t, each, tiles = lane // 4, lane % 4, self.each, self.rows // 8
        for i in range(self.unique * each):
            r, part = divmod(i, each)
            if self.which == "c":
                q, part = divmod(i, 2)
                place = 8 * (q % tiles) + g, 8 * (q // tiles) + 2 * t + part
                yield (2 * t + part, 8 * q + g) if self.transposed else place
                continue
            tile, k = self.tile(r)
            line, along = 8 * tile + g, 4 * each * k + each * t + part
            yield (line, along) if self.which == "a" else (along, line)

    def tile(self, register):
        """Return (tile of 8 lines, tile along K) for a register."""
        lines, depth = (self.rows, self.columns) if self.which == "a" else (self.columns, self.rows)
        depth //= 4 * self.each
        if (self.which == "a") == self.transposed:
            return divmod(register, depth)
        # The registers of two tiles of lines alternate, unless the matrix has only one tile of lines.
        pair = min(lines // 8, 2)
        first, rest = divmod(register, pair * depth)
        return pair * first + rest % pair, rest // pair

    def order_for_product(self, registers):
        """Return the registers of A or B in the order that `product_sums` expects: all tiles of lines for the
        first tile along K, then for the next one."""
        return [registers[r] for r in sorted(range(self.unique), key=lambda r: self.tile(r)[::-1])]

    @lru_cache(maxsize=1 << 12)  # noqa: B019  Fragments live as long as the process
    def runs(self, lane, layout, stride):
        """Return (byte offset in the matrix, number of elements) for the elements of a lane. Elements
        adjacent in memory form one run."""
        size, together = BITS[self.ptx_type] // 8, 2 if self.which == "c" else self.each
        # If there is no operand for the stride, the matrix is contiguous.
        stride = stride or (self.columns if layout == "row" else self.rows)
        lines = ((r, c) if layout == "row" else (c, r) for r, c in self.positions(lane))
        places, found = [(line * stride + along) * size for line, along in lines], []
        for first in range(0, len(places), together):
            some = places[first : first + together]
            neighbours = some[-1] - some[0] == (together - 1) * size
            found += [(some[0], together)] if neighbours else [(place, 1) for place in some]
        return found


def load(fragment, layout, shape):
    """Add wmma.load for a fragment to the table."""
    size = BITS[fragment.ptx_type] // 8

    def fetch(memory, where, index, stride=0):
        if not is_aligned(fragment, memory, where, index, stride * size, "load"):
            # The misaligned access has already been reported. Continue the launch with zeros.
            return (0,) * fragment.registers
        runs = fragment.runs(memory.lane, layout, stride)
        data = b"".join(memory.read(where, index + place, count * size).tobytes() for place, count in runs)
        registers = np.frombuffer(data, fragment.word).tolist()
        return tuple(registers) * (fragment.registers // fragment.unique)

    def copy_rows(rows, results):
        for row, result in zip(rows, results):
            for lane in range(32):
                result[lane] = row[lane]

    names = [f"wmma.load.{fragment.which}.sync.{layout}.{shape}.{fragment.ptx_type}"]
    types = [fragment.word] * fragment.registers
    add_entry(names, copy_rows, types, types, "read", fetch=fetch)


def store(fragment, layout, shape):
    """Add wmma.store for the accumulators to the table."""
    size = BITS[fragment.ptx_type] // 8

    def put(memory, where, index, *registers, stride=0):
        if not is_aligned(fragment, memory, where, index, stride * size, "store"):
            return
        data, at = np.array(registers, fragment.word).tobytes(), 0
        for place, count in fragment.runs(memory.lane, layout, stride):
            memory.write(where, index + place, data[at : at + count * size])
            at += count * size

    put.count = fragment.registers
    add_entry(
        [f"wmma.store.d.sync.{layout}.{shape}.{fragment.ptx_type}"], lambda *_: None, [], [], "write", put=put
    )


def is_aligned(fragment, memory, where, index, stride, action):
    """Return whether the first two lines of the matrix have the required alignment. They are `stride` bytes
    apart."""
    return all(memory.begins(where, index + line, fragment.alignment, action) for line in {0, stride})


# --- products -----------------------------------------------------------------------------------------------


def multiply(name, a, b, c, d, sums, add):
    """Add wmma.mma to the table. It sets each element of D to add(C, sum).

    name: the function (layout of A, layout of B) that returns the PTX name.
    a, b, c, d: the Fragments.
    sums: the function (registers of A, registers of B) that returns the sums in row-major order.
    """
    width, place = c.columns, [list(c.positions(lane)) for lane in range(32)]

    def compute(rows, results):
        of_a, of_b = a.order_for_product(rows), b.order_for_product(rows[a.registers :])
        of_c, totals = rows[a.registers + b.registers :], sums(of_a, of_b)
        for lane in range(32):
            found = [
                add(accumulator(c, of_c, lane, i), totals[row * width + column])
                for i, (row, column) in enumerate(place[lane])
            ]
            if d.ptx_type == "f16":
                # Two float16 elements share a register. The element with the even index is the lower half.
                bits = [*map(float16_bits, found)]
                found = [low | high << 16 for low, high in zip(bits[::2], bits[1::2])]
            for result, value in zip(results, found):
                result[lane] = value

    names = [name(*layouts) for layouts in product(LAYOUTS, LAYOUTS)]
    operands = [of.word for of in (a, b) for _ in range(of.registers)]
    if a.ptx_type == "f64":
        operands = [float64] * len(operands)
    operands += [TYPES[c.ptx_type]] * c.registers
    add_entry(names, compute, operands, [TYPES[d.ptx_type]] * d.registers)


TYPES = {"f16": uint32, "f32": float32, "s32": int32, "f64": float64}


def accumulator(fragment, registers, lane, i):
    """Return element i of the accumulators of a lane."""
    value = registers[i // fragment.each][lane]
    if fragment.ptx_type == "f16":
        return DECODE_F16(int(value) >> 16 * (i % 2) & 0xFFFF)
    return int(value) if fragment.ptx_type == "s32" else float(value)


def plus(c, total):
    return c + total


def double_products(mode):
    """Return the functions `sums` and `add` for float64. Together, they compute chains of fused
    multiply-adds, beginning with C."""

    def sums(a, b):
        (x,), (y,) = a, b
        return [
            [(x[4 * row + k], y[4 * column + k]) for k in range(4)]
            for row, column in product(range(8), range(8))
        ]

    def add(c, factors):
        for x, y in factors:
            c = fused(x, y, c, float64, mode)
        return c

    return sums, add


# --- entries ------------------------------------------------------------------------------------------------


def add_entry(names, semantics, operands, results, action=None, fetch=None, put=None):
    """Add a warp instruction to the table under its PTX names.

    semantics: a function (rows of operands, rows of results), where a row has one value per lane.
    operands, results: the dtypes.
    action: "read" or "write" if the instruction accesses memory.
    fetch, put: as in sim.isa.instruction.
    """

    def of_rows(lanes, *rows, **found):
        semantics(rows, tuple(found.values()))

    parameters = [Parameter("lanes", Parameter.POSITIONAL_OR_KEYWORD)]
    parameters += [
        Parameter(f"{stem}{i}", kind, annotation=dtype)
        for stem, kind, dtypes in (
            ("x", Parameter.POSITIONAL_OR_KEYWORD, operands),
            ("d", Parameter.KEYWORD_ONLY, results),
        )
        for i, dtype in enumerate(dtypes)
    ]
    of_rows.__signature__ = Signature(parameters)
    name = names[0].replace(".", "_")
    of_rows.__qualname__ = of_rows.__name__ = name
    touches = (Touch("where", action),) if action else ()
    how = instruction(
        name=name, source="PTX ISA wmma", ptx=tuple(names), fetch=fetch, put=put, touches=touches
    )
    how(of_rows)


def add_family(sizes, shape, a_type, accumulators):
    """Add the loads and stores for one shape and one type of A and B to the table. Return the Fragments."""
    (rows, columns, depth), transposed = sizes, sizes[1] == 32
    a, b = Fragment("a", rows, depth, a_type, transposed), Fragment("b", depth, columns, a_type, transposed)
    sums = {of: Fragment("c", rows, columns, of, transposed) for of in accumulators}
    for layout in LAYOUTS:
        for fragment in (a, b):
            load(fragment, layout, shape)
        for fragment in sums.values():
            if (fragment.ptx_type, layout, shape) not in ADDED:
                ADDED.add((fragment.ptx_type, layout, shape))
                load(fragment, layout, shape)
                store(fragment, layout, shape)
    return a, b, sums


# The accumulators whose loads and stores are already in the table. Products of several types share
# accumulators.
ADDED = set()


def mma_name(shape, *types):
    """Return the function (layout of A, layout of B) that returns the PTX name of a wmma.mma."""
    return lambda a, b: ".".join(["wmma.mma.sync", a, b, shape, *types])


def add_all():
    """Add the products of all types supported by sm_80, with their loads and stores, to the table."""
    for sizes, shape in SHAPES.items():
        rows, columns, _ = sizes
        a, b, sums = add_family(sizes, shape, "f16", ("f16", "f32"))
        half_sums = product_sums(DECODE_F16, DECODE_F16, 16, rows=rows, columns=columns)
        for d, c in product(sums, sums):
            multiply(mma_name(shape, d, c), a, b, sums[c], sums[d], half_sums, plus)
        a, b, sums = add_family(sizes, shape, "bf16", ("f32",))
        half_sums = product_sums(DECODE_BF16, DECODE_BF16, 16, rows=rows, columns=columns)
        multiply(
            mma_name(shape, "f32", "bf16", "bf16", "f32"), a, b, sums["f32"], sums["f32"], half_sums, plus
        )
        for a_type in ("s8", "u8"):
            a, b, sums = add_family(sizes, shape, a_type, ("s32",))
            number = integer_decoder(128 * (a_type == "s8"))
            byte_sums = product_sums(number, number, 8, rows=rows, columns=columns)
            for clamps, add in (((), plus), (("satfinite",), add_clamped)):
                name = mma_name(shape, "s32", a_type, a_type, "s32", *clamps)
                multiply(name, a, b, sums["s32"], sums["s32"], byte_sums, add)
    a, b, sums = add_family((16, 16, 8), "m16n16k8", "tf32", ("f32",))
    tf32_sums = product_sums(DECODE_TF32, DECODE_TF32, 19, drop=13, rows=16, columns=16)
    multiply(
        mma_name("m16n16k8", "f32", "tf32", "tf32", "f32"), a, b, sums["f32"], sums["f32"], tf32_sums, plus
    )
    a, b, sums = add_family((8, 8, 4), "m8n8k4", "f64", ("f64",))
    for rounding, mode in (("", "rn"), ("rn", "rn"), ("rz", "rz"), ("rm", "rd"), ("rp", "ru")):
        name = mma_name("m8n8k4", "f64", "f64", "f64", "f64", *([rounding] if rounding else []))
        multiply(name, a, b, sums["f64"], sums["f64"], *double_products(mode))


add_all()
