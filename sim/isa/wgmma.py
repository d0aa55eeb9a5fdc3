"""Matrix products of a warp group: wgmma.mma_async and the instructions that order it.

A warp group is four consecutive warps, 128 threads. It computes D = A B + D or D = A B. A has 64 rows, B has
n columns, and the 32 bytes along K (k elements) come from registers or shared memory for A, and always from
shared memory for B. A matrix descriptor describes each matrix in shared memory (sim.isa.matrix_descriptor).
With w = the warp's number in its group, g = lane // 4, t = lane % 4, and p = the number of elements of A per
register (two 16-bit, four 8-bit, or one tf32):

    A in registers  register r contains A[16 w + g + 8 (r % 2), p t + 4 p (r // 2)] in its lowest bits, and
                    then the next columns
    D               element i is D[16 w + g + 8 (i // 2 % 2), 8 (i // 4) + 2 t + i % 2]; a register contains
                    two float16 elements

The product is asynchronous. No thread may access the product's registers or matrices until a wgmma.wait_group
has waited for the group to which wgmma.commit_group assigned it. sim.engine.warpgroup reports earlier
accesses.

Products are exact. Sums are computed in float64 and rounded once. A GPU can truncate intermediate sums, and
keeps fewer bits of the sums of 8-bit floats.

Source: PTX ISA 9.7.15, "Asynchronous Warpgroup Level Matrix Multiply-Accumulate Instructions".
"""

import functools
import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn, float8_e5m2

from sim.isa.matrix_descriptor import CHUNK, MatrixDescriptor
from sim.isa.memory import memory_instruction
from sim.isa.table import ASYNCHRONOUS, SUSPENDING, WARPGROUP, Entry

WARPS, THREADS, ROWS = 4, 128, 64  # warps and threads of a warp group, and rows of A and D
DEPTH_BYTES = 32  # bytes of A and B along K

# PTX type of an element -> its numpy type
ELEMENTS = {
    "f16": np.float16, "bf16": bfloat16, "tf32": np.float32, "e4m3": float8_e4m3fn, "e5m2": float8_e5m2,
    "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
FLOATS_OF_8 = ("e4m3", "e5m2")
WHOLE = ("s8", "u8")
# (type of D, type of A, type of B) of every product (PTX ISA 9.7.15.2)
TYPES = (
    ("f32", "f16", "f16"), ("f16", "f16", "f16"), ("f32", "bf16", "bf16"), ("f32", "tf32", "tf32"),
    *((d, a, b) for d in ("f32", "f16") for a in FLOATS_OF_8 for b in FLOATS_OF_8),
    *(("s32", a, b) for a in WHOLE for b in WHOLE),
)  # fmt: skip
# type of D -> (type of a register, registers per eight columns)
REGISTERS = {"f32": (np.float32, 4), "f16": (np.uint32, 2), "s32": (np.int32, 4)}


class Variant(NamedTuple):
    """The operands of a product that are constants.

    n: the number of columns of B and of D.
    a_in_registers: whether A is in registers instead of shared memory.
    mn_major_a, mn_major_b: imm-trans-a and imm-trans-b.
    negate_a, negate_b: whether imm-scale-a and imm-scale-b are -1.
    saturate: .satfinite, for s32.
    """

    n: int
    a_in_registers: bool = False
    mn_major_a: bool = False
    mn_major_b: bool = False
    negate_a: bool = False
    negate_b: bool = False
    saturate: bool = False


@dataclass(frozen=True, eq=False)
class Product(Entry):
    """A wgmma.mma_async with fixed types and constants. Its calls pass accumulators, a, b and scale_d.

    Its semantics takes D, A and B as matrices, and returns the new D.
    """

    types: tuple[str, str, str]
    variant: Variant
    scope = WARPGROUP

    @property
    def parameters(self):
        """The names of the parameters of a call."""
        return ["accumulators", "a", "b", "scale_d"]

    @property
    def depth(self):
        """The number of elements along K."""
        return depth_of(self.types[1])

    @property
    def shape(self):
        """The shape as in PTX. Successive products of one shape need no wgmma.fence between them."""
        return f"m{ROWS}n{self.variant.n}k{self.depth}"

    @property
    def register(self):
        """The numpy type of an accumulator register."""
        return REGISTERS[self.types[0]][0]

    @property
    def count(self):
        """The number of accumulator registers per thread."""
        return REGISTERS[self.types[0]][1] * self.variant.n // 8

    def accumulators(self, registers):
        """Return the matrix D. `registers` has shape (128, count): one row of registers per thread."""
        elements = registers.view(np.float16) if self.types[0] == "f16" else registers
        parts = elements.reshape(WARPS, 8, 4, self.variant.n // 8, 2, 2)
        return parts.transpose(0, 4, 1, 3, 2, 5).reshape(ROWS, self.variant.n)

    def distributed(self, matrix):
        """Return the registers of the 128 threads that contain the matrix D."""
        parts = matrix.reshape(WARPS, 2, 8, self.variant.n // 8, 4, 2).transpose(0, 2, 4, 3, 1, 5)
        return np.ascontiguousarray(parts.reshape(THREADS, -1)).view(self.register)

    def fragments(self, registers):
        """Return the matrix A. `registers` has shape (128, 4): one row of registers per thread."""
        each = self.depth // 8
        elements = (
            registers.astype(np.uint32).view(element_type(self.types[1])).reshape(WARPS, 8, 4, 2, 2, each)
        )
        return decoded(elements.transpose(0, 4, 1, 3, 2, 5).reshape(ROWS, self.depth), self.types[1])

    def matrix(self, chunks, of):
        """Return A or B as a matrix with K along the second axis.

        chunks: its 16-byte chunks, an array of bytes whose first axes are those of MatrixDescriptor.chunks.
        of: "a" or "b".
        """
        kind, mn_major = (
            (self.types[1], self.variant.mn_major_a)
            if of == "a"
            else (self.types[2], self.variant.mn_major_b)
        )
        elements = np.ascontiguousarray(chunks).view(element_type(kind))
        if mn_major:
            elements = elements.transpose(0, 2, 1)
        return decoded(elements.reshape(-1, self.depth), kind)


def depth_of(kind):
    """Return the number of elements of a PTX type along K."""
    return DEPTH_BYTES // np.dtype(ELEMENTS[kind]).itemsize


def element_type(kind):
    """Return the numpy type of an element, with which the bytes of a matrix are viewed."""
    return np.dtype(np.uint32 if kind == "tf32" else ELEMENTS[kind])


def decoded(elements, kind):
    """Return elements as float64, or as int64 for integers. The low 13 bits of a tf32 are ignored."""
    if kind in WHOLE:
        return elements.astype(np.int64)
    if kind == "tf32":
        elements = (elements & np.uint32(0xFFFFE000)).view(np.float32)
    return elements.astype(np.float64)


def semantics_of(types, variant):
    """Return the reference implementation of a product."""
    into = {"f32": np.float32, "f16": np.float16, "s32": np.int32}[types[0]]
    sign = -1 if variant.negate_a != variant.negate_b else 1

    def multiply(d, a, b):
        total = sign * (a @ b.T) + (0 if d is None else d.astype(a.dtype))
        if variant.saturate:
            total = np.clip(total, -(1 << 31), (1 << 31) - 1)
        return total.astype(into)

    return multiply


@functools.cache
def product(types, variant):
    """Return the table's entry for a wgmma.mma_async with these types and constants.

    types: the PTX types of D, A and B, one of TYPES.
    variant: a Variant.

    Raise ValueError if the PTX ISA has no such instruction.
    """
    d, a, b = types
    n, whole = variant.n, d == "s32"
    step = 8 if not whole or n <= 32 else 16
    if types not in TYPES or not 8 <= n <= 256 or n % step:
        raise ValueError(f"there is no wgmma of m64n{n} with the types {', '.join(types)}")
    transposed = variant.mn_major_a or variant.mn_major_b
    if transposed and a not in ("f16", "bf16") or variant.mn_major_a and variant.a_in_registers:
        raise ValueError("wgmma transposes only matrices of f16 and bf16 in shared memory")
    if whole and (variant.negate_a or variant.negate_b) or variant.saturate and not whole:
        raise ValueError("wgmma negates only floating-point matrices, and saturates only s32")
    flags = [name for name, value in variant._asdict().items() if value is True]
    name = "_".join(["wgmma", f"m64n{n}k{depth_of(a)}", *types, *flags])
    entry = Product(name, semantics_of(types, variant), SOURCE, types, variant)
    SUSPENDING.add(name)
    ASYNCHRONOUS.add(name)
    return entry.add()


SOURCE = "PTX ISA wgmma.mma_async"
SHAPE = re.compile(r"m64n(\d+)k(\d+)")


def parse(opcode):
    """Return ((types of D, A and B), n, whether it saturates) of the opcode of a wgmma.mma_async.

    Raise ValueError for an unsupported form.
    """
    parts = [part for part in opcode.split(".")[2:] if part not in ("sync", "aligned")]
    shape = next(filter(None, map(SHAPE.fullmatch, parts)), None)
    types = tuple(part for part in parts if part != "satfinite" and not SHAPE.fullmatch(part))
    if shape is None or types not in TYPES or int(shape[2]) != depth_of(types[1]):
        raise ValueError(f"there is no {opcode}")
    return types, int(shape[1]), "satfinite" in parts


def ptx_names():
    """Return the PTX names of all products, with N for the number of columns."""
    return [f"wgmma.mma_async.sync.aligned.m64nNk{depth_of(a)}.{d}.{a}.{b}" for d, a, b in TYPES]


@memory_instruction(source="PTX ISA wgmma.fence", ptx=("wgmma.fence.sync.aligned",))
def wgmma_fence(memory, registers=None):
    """Order the accesses to registers before the fence and the accesses by later products. Return the
    registers."""
    return memory.products.fence(registers)


@memory_instruction(source="PTX ISA wgmma.commit_group", ptx=("wgmma.commit_group.sync.aligned",))
def wgmma_commit(memory):
    """Commit all of the thread's uncommitted products to a new group."""
    memory.products.commit()


def add_wait(groups):
    """Add to the table the wait after which at most the newest `groups` groups are pending."""

    def wait(memory, registers=None):
        return memory.products.wait(groups, registers)

    memory_instruction(name=f"wgmma_wait_{groups}", source="PTX ISA wgmma.wait_group")(wait)


for _groups in range(8):
    add_wait(_groups)


@memory_instruction(source="PTX ISA 9.7.15.5.1.2.2, Matrix Descriptor Format")
def matrix_descriptor(memory, tile, index, leading, stride, swizzle):
    """Return the descriptor of the matrix that starts at tile[index] in shared memory."""
    start = memory.address(tile, index, CHUNK)
    return np.uint64(MatrixDescriptor(start, int(leading), int(stride), int(swizzle)).encode())
