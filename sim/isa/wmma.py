"""wmma: fragments of matrices that a warp loads from memory, multiplies as `mma.sync` does, and stores.

The PTX ISA leaves open which lane holds which element of a fragment. Here it is as on an H200 (measured; f64:
as for mma.sync), so that kernels which rely on it give the values of such a GPU. With g = lane // 4,
t = lane % 4, and p elements of A or B in a register (four of 8 bits, two of 16, one tf32 or f64), a register
holds p neighbours, the first in its lowest bits:

    A M×K     A[8 i + g, 4 p k + p t], and the next columns
    B K×N     B[4 p k + p t, 8 j + g], and the next rows
    C, D M×N  number n, with q = n // 2, is C[8 (q % (M/8)) + g, 8 (q // (M/8)) + 2 t + n % 2]; of m8n32 it is
              C[2 t + n % 2, 8 q + g]; of float16 two in a register

Registers of A go through two tiles i, then through the tiles k, then on to the next two tiles i; those of B
go through the tiles k, then on to the next tile j. Of m8n32 A and B have each other's order. A and B of
float16 have eight registers always: where fewer suffice, they are repeated, and the product takes the first.
A fragment does not depend on .row and .col, which say how the matrix lies in memory: lines of it begin
`stride` elements apart.

A line begins at a multiple of the bytes that a lane holds of the fragment; where these are more than 16, at a
multiple of 16, as nvcuda::wmma asks of strides.

Products and sums are those of `mma.sync`; of float64 they are fused multiply-adds in the order of k.
Source: PTX ISA 9.7.15.3 to 9.7.15.5, "wmma.load", "wmma.store", "wmma.mma"."""

from functools import lru_cache
from inspect import Parameter, Signature
from itertools import product

import numpy as np
from numpy import float32, float64, int32, uint32, uint64

from sim.isa.rounding import fused
from sim.isa.table import Touch, instruction
from sim.isa.tensor import OF_BF16, OF_F16, OF_TF32, add_clamped, half_bits, integer_of, products

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "s8": 8, "u8": 8, "f64": 64, "f32": 32, "s32": 32}
SHAPES = {(16, 16, 16): "m16n16k16", (8, 32, 16): "m8n32k16", (32, 8, 16): "m32n8k16"}
MOST_ALIGNED = 16  # bytes
LAYOUTS = ("row", "col")


class Fragment:
    """The part of a `rows` × `columns` matrix that each lane of a warp holds, the operand `which` of a
    product; `turned`: of m8n32, which a GPU computes transposed."""

    def __init__(self, which, rows, columns, ptx_type, turned):
        self.which, self.rows, self.columns, self.ptx_type = which, rows, columns, ptx_type
        self.turned = turned
        self.each = max(32 // BITS[ptx_type], 1)  # elements in a register
        self.word = uint64 if ptx_type == "f64" else uint32
        self.unique = rows * columns // 32 // self.each
        self.registers = 8 if ptx_type == "f16" and which in "ab" else self.unique
        self.alignment = min(self.registers * self.word().itemsize, MOST_ALIGNED)

    def positions(self, lane):
        """Yield (row, column) of each element of a lane in the order of registers, from their lowest bits."""
        g, t, each, tiles = lane // 4, lane % 4, self.each, self.rows // 8
        for i in range(self.unique * each):
            r, part = divmod(i, each)
            if self.which == "c":
                q, part = divmod(i, 2)
                place = 8 * (q % tiles) + g, 8 * (q // tiles) + 2 * t + part
                yield (2 * t + part, 8 * q + g) if self.turned else place
                continue
            tile, k = self.tile(r)
            line, along = 8 * tile + g, 4 * each * k + each * t + part
            yield (line, along) if self.which == "a" else (along, line)

    def tile(self, register):
        """Return which tile of 8 lines a register belongs to, and which tile along K."""
        lines, depth = (self.rows, self.columns) if self.which == "a" else (self.columns, self.rows)
        depth //= 4 * self.each
        if (self.which == "a") == self.turned:
            return divmod(register, depth)
        pair = min(lines // 8, 2)
        first, rest = divmod(register, pair * depth)
        return pair * first + rest % pair, rest // pair

    def in_order(self, registers):
        """Return the registers of A or B in the order of `products`: all tiles of lines, then along K."""
        return [registers[r] for r in sorted(range(self.unique), key=lambda r: self.tile(r)[::-1])]

    @lru_cache(maxsize=1 << 12)  # noqa: B019  entries live as long as the process
    def runs(self, lane, layout, stride):
        """Return (bytes behind the matrix's first element, count) of the elements of a lane, neighbours as
        one run."""
        size, together = BITS[self.ptx_type] // 8, 2 if self.which == "c" else self.each
        stride = stride or (self.columns if layout == "row" else self.rows)
        lines = ((r, c) if layout == "row" else (c, r) for r, c in self.positions(lane))
        places, found = [(line * stride + along) * size for line, along in lines], []
        for first in range(0, len(places), together):
            some = places[first : first + together]
            neighbours = some[-1] - some[0] == (together - 1) * size
            found += [(some[0], together)] if neighbours else [(place, 1) for place in some]
        return found


def load(fragment, layout, shape):
    """Enter wmma.load of a fragment."""
    size = BITS[fragment.ptx_type] // 8

    def fetch(memory, where, index, stride=0):
        if not aligned(fragment, memory, where, index, stride * size, "load"):
            return (0,) * fragment.registers
        runs = fragment.runs(memory.lane, layout, stride)
        data = b"".join(memory.read(where, index + place, count * size).tobytes() for place, count in runs)
        registers = np.frombuffer(data, fragment.word).tolist()
        return tuple(registers) * (fragment.registers // fragment.unique)

    def given(rows, results):
        for row, result in zip(rows, results):
            for lane in range(32):
                result[lane] = row[lane]

    names = [f"wmma.load.{fragment.which}.sync.{layout}.{shape}.{fragment.ptx_type}"]
    words_ = [fragment.word] * fragment.registers
    enter(names, given, words_, words_, "read", fetch=fetch)


def store(fragment, layout, shape):
    """Enter wmma.store of the accumulators."""
    size = BITS[fragment.ptx_type] // 8

    def put(memory, where, index, *registers, stride=0):
        if not aligned(fragment, memory, where, index, stride * size, "store"):
            return
        data, at = np.array(registers, fragment.word).tobytes(), 0
        for place, count in fragment.runs(memory.lane, layout, stride):
            memory.write(where, index + place, data[at : at + count * size])
            at += count * size

    put.count = fragment.registers
    enter(
        [f"wmma.store.d.sync.{layout}.{shape}.{fragment.ptx_type}"], lambda *_: None, [], [], "write", put=put
    )


def aligned(fragment, memory, where, index, stride, action):
    """Return whether the matrix begins where it may, and its second line, `stride` bytes on, does."""
    return all(memory.begins(where, index + line, fragment.alignment, action) for line in {0, stride})


# --- products -----------------------------------------------------------------------------------------------


def multiply(name, a, b, c, d, sums, add):
    """Enter wmma.mma: D gets add(C, sum) of each element; `sums`: (registers of A, of B) -> the sums, row by
    row; `name`: (layout of A, of B) -> the name in PTX."""
    width, place = c.columns, [list(c.positions(lane)) for lane in range(32)]

    def carried_out(rows, results):
        of_a, of_b = a.in_order(rows), b.in_order(rows[a.registers :])
        of_c, totals = rows[a.registers + b.registers :], sums(of_a, of_b)
        for lane in range(32):
            found = [
                add(number_in(c, of_c, lane, i), totals[row * width + column])
                for i, (row, column) in enumerate(place[lane])
            ]
            if d.ptx_type == "f16":
                bits = [*map(half_bits, found)]
                found = [low | high << 16 for low, high in zip(bits[::2], bits[1::2])]
            for result, value in zip(results, found):
                result[lane] = value

    names = [name(*layouts) for layouts in product(LAYOUTS, LAYOUTS)]
    operands = [of.word for of in (a, b) for _ in range(of.registers)]
    if a.ptx_type == "f64":
        operands = [float64] * len(operands)
    operands += [TYPES[c.ptx_type]] * c.registers
    enter(names, carried_out, operands, [TYPES[d.ptx_type]] * d.registers)


TYPES = {"f16": uint32, "f32": float32, "s32": int32, "f64": float64}


def number_in(fragment, registers, lane, i):
    """Return number i of a lane's accumulators."""
    value = registers[i // fragment.each][lane]
    if fragment.ptx_type == "f16":
        return OF_F16(int(value) >> 16 * (i % 2) & 0xFFFF)
    return int(value) if fragment.ptx_type == "s32" else float(value)


def plus(c, total):
    return c + total


def of_doubles(mode):
    """Return `sums` and `add` of a product of float64: chains of fused multiply-adds that begin with C."""

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


def enter(names, meaning, operands, results, does=None, fetch=None, put=None):
    """Enter an instruction of a warp by its names in PTX; `meaning`: (rows of operands, rows of results)."""

    def of_rows(lanes, *rows, **found):
        meaning(rows, tuple(found.values()))

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
    touches = (Touch("where", does),) if does else ()
    how = instruction(
        name=name, source="PTX ISA wmma", ptx=tuple(names), fetch=fetch, put=put, touches=touches
    )
    how(of_rows)


def family(sizes, shape, a_type, accumulators):
    """Enter what loads and stores the operands of products of one shape; returns their Fragments."""
    (rows, columns, depth), turned = sizes, sizes[1] == 32
    a, b = Fragment("a", rows, depth, a_type, turned), Fragment("b", depth, columns, a_type, turned)
    sums = {of: Fragment("c", rows, columns, of, turned) for of in accumulators}
    for layout in LAYOUTS:
        for fragment in (a, b):
            load(fragment, layout, shape)
        for fragment in sums.values():
            if (fragment.ptx_type, layout, shape) not in ENTERED:
                ENTERED.add((fragment.ptx_type, layout, shape))
                load(fragment, layout, shape)
                store(fragment, layout, shape)
    return a, b, sums


ENTERED = set()  # accumulators that are entered: products of several types share them


def named(shape, *types):
    return lambda a, b: ".".join(["wmma.mma.sync", a, b, shape, *types])


def enter_all():
    for sizes, shape in SHAPES.items():
        rows, columns, _ = sizes
        a, b, sums = family(sizes, shape, "f16", ("f16", "f32"))
        of_halves = products(OF_F16, OF_F16, 16, rows=rows, columns=columns)
        for d, c in product(sums, sums):
            multiply(named(shape, d, c), a, b, sums[c], sums[d], of_halves, plus)
        a, b, sums = family(sizes, shape, "bf16", ("f32",))
        of_halves = products(OF_BF16, OF_BF16, 16, rows=rows, columns=columns)
        multiply(named(shape, "f32", "bf16", "bf16", "f32"), a, b, sums["f32"], sums["f32"], of_halves, plus)
        for a_type in ("s8", "u8"):
            a, b, sums = family(sizes, shape, a_type, ("s32",))
            number = integer_of(128 * (a_type == "s8"))
            of_bytes = products(number, number, 8, rows=rows, columns=columns)
            for clamps, add in (((), plus), (("satfinite",), add_clamped)):
                name = named(shape, "s32", a_type, a_type, "s32", *clamps)
                multiply(name, a, b, sums["s32"], sums["s32"], of_bytes, add)
    a, b, sums = family((16, 16, 8), "m16n16k8", "tf32", ("f32",))
    of_words = products(OF_TF32, OF_TF32, 19, drop=13, rows=16, columns=16)
    multiply(named("m16n16k8", "f32", "tf32", "tf32", "f32"), a, b, sums["f32"], sums["f32"], of_words, plus)
    a, b, sums = family((8, 8, 4), "m8n8k4", "f64", ("f64",))
    for spelled, mode in (("", "rn"), ("rn", "rn"), ("rz", "rz"), ("rm", "rd"), ("rp", "ru")):
        name = named("m8n8k4", "f64", "f64", "f64", "f64", *([spelled] if spelled else []))
        multiply(name, a, b, sums["f64"], sums["f64"], *of_doubles(mode))


enter_all()
