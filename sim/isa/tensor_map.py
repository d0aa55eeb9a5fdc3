"""Tensor maps: the 128 bytes that describe a tensor in global memory and a box within it. This module also
computes which bytes tensor copies access.

The driver's function cuTensorMapEncodeTiled writes these bytes. Their format is not documented. It was
derived from the bytes that driver 580 writes for 48 tensors on an H100. In words of 32 bits:

    0, 1       the address
    2          bits 4-6 dimensions - 1; 7-10 type; 11-12 interleave; 13-14 swizzle; 15 fill with NaN; 16 tf32;
               17-18 promotion to L2 lines
    3 to 6     strides of dimensions 1 to 4, divided by 16, the low 32 bits; word 7 has 4 more bits of each
    8 to 12    sizes - 1
    13         bits 0-14 element strides - 1, 3 bits each; 24-31 size of the box - 1 along dimension 0
    14         sizes of the box - 1 along dimensions 1 to 4, 8 bits each
    16         bytes of the box
    18         alignment that the swizzle repeats with: 16, 256, 512 or 1024 bytes

Dimension 0 is the innermost one, whose elements are adjacent.

Source: PTX ISA 5.5, "Tensors"; 9.7.9.25.5, "Tensor copy"; CUDA Driver API, "Tensor Map Object Management".
"""

import struct
from dataclasses import dataclass
from math import prod

import numpy as np

from sim.isa.invalid import InvalidOperand

TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32_ftz", "tf32", "tf32_ftz")
SIZES = dict(zip(TYPES, (1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4)))
# type -> its code in bits 7 to 10 of word 3, and bit 16
CODES = {name: (code, 0) for name, code in zip(TYPES, (0, 1, 2, 3, 4, 5, 6, 7, 9, 10, 8))}
CODES |= {"tf32": (7, 1), "tf32_ftz": (8, 1)}
SWIZZLES = (0, 32, 64, 128)  # widths in bytes of the rows within which a swizzle exchanges 16-byte chunks
NAN = 0x7FF7  # every 16 bits of the NaN that fills the part of a box outside the tensor (on an H100)
NBYTES = 128


@dataclass(frozen=True)
class TensorMap:
    """The description of a tensor and of a box. All tuples begin with the innermost dimension.

    type: one of TYPES.
    sizes: the elements per dimension.
    strides: the bytes between elements, for all dimensions except the innermost.
    box: the size of the box in elements, before element strides.
    element_strides: for each dimension, an n such that the box contains every n-th element. The GPU ignores
        the n of the innermost dimension.
    swizzle: one of SWIZZLES.
    """

    type: str
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    fill_nan: bool = False
    promotion: int = 0

    @property
    def itemsize(self):
        return SIZES[self.type]

    @property
    def counts(self):
        """The elements of a box per dimension."""
        steps = (1, *self.element_strides[1:])
        return tuple(-(-n // step) for n, step in zip(self.box, steps))

    @property
    def nbytes(self):
        """The bytes of a box in shared memory."""
        return prod(self.counts) * self.itemsize

    def encode(self):
        """Return the 128 bytes."""
        words, rank = [0] * 32, len(self.sizes)
        words[0], words[1] = self.address & 0xFFFFFFFF, self.address >> 32
        code, tf32 = CODES[self.type]
        words[2] = (
            rank - 1 << 4 | code << 7 | self.interleave << 11 | SWIZZLES.index(self.swizzle) << 13
            | self.fill_nan << 15 | tf32 << 16 | self.promotion << 17
        )  # fmt: skip
        for axis, stride in enumerate(self.strides):
            words[3 + axis] = stride >> 4 & 0xFFFFFFFF
            words[7] |= (stride >> 36 & 15) << 4 * axis
        for axis, (size, box, step) in enumerate(zip(self.sizes, self.box, self.element_strides)):
            words[8 + axis] = size - 1
            words[13] |= step - 1 << 3 * axis
            words[14 if axis else 13] |= box - 1 << (8 * (axis - 1) if axis else 24)
        words[16] = prod(max(n // step, 1) for n, step in zip(self.box, self.element_strides)) * self.itemsize
        words[18] = 8 * self.swizzle or 16
        return struct.pack("<32I", *words)

    @classmethod
    def decode(cls, raw):
        """Return the TensorMap of 128 bytes. Raise InvalidOperand for bytes that no driver writes."""
        words = struct.unpack("<32I", raw)
        flags, rank = words[2], (words[2] >> 4 & 7) + 1
        kinds = {code: name for name, code in CODES.items()}
        kind = kinds.get((flags >> 7 & 15, flags >> 16 & 1))
        if kind is None or rank > 5 or flags >> 19 or not words[16]:
            raise InvalidOperand(
                "these 128 bytes are not a tensor map that cuTensorMapEncodeTiled creates",
                "The driver alone defines the bytes of a tensor map.",
                "pass a map of cuTensorMapEncodeTiled or sim.tensor_map, and give its address to the copy",
            )
        axes = range(rank)
        return cls(
            kind,
            words[0] | words[1] << 32,
            tuple(words[8 + axis] + 1 for axis in axes),
            tuple((words[3 + axis] | (words[7] >> 4 * axis & 15) << 32) << 4 for axis in axes[:-1]),
            tuple((words[14] >> 8 * (axis - 1) if axis else words[13] >> 24) % 256 + 1 for axis in axes),
            tuple((words[13] >> 3 * axis & 7) + 1 for axis in axes),
            SWIZZLES[flags >> 13 & 3],
            flags >> 11 & 3,
            bool(flags >> 15 & 1),
            flags >> 17 & 3,
        )

    def rows(self, coordinates):
        """Return the parts of a box that lie inside the tensor, as three arrays: the offset in the box, the
        offset in the tensor and the length, all in bytes. Each part is contiguous in the box and in the
        tensor.

        coordinates: the position of the box, from the innermost dimension on. It can lie partly or wholly
            outside the tensor.
        """
        counts, size = self.counts, self.itemsize
        pitches = [size * prod(counts[:axis]) for axis in range(len(counts))]
        in_box, in_tensor, valid = (np.zeros(1, kind) for kind in (np.int64, np.int64, bool))
        valid[:] = True
        steps = (size, *self.strides)
        for axis in range(len(counts) - 1, 0, -1):
            index = coordinates[axis] + np.arange(counts[axis]) * self.element_strides[axis]
            inside = (index >= 0) & (index < self.sizes[axis])
            in_box = (in_box[:, None] + np.arange(counts[axis]) * pitches[axis]).ravel()
            in_tensor = (in_tensor[:, None] + index * steps[axis]).ravel()
            valid = (valid[:, None] & inside).ravel()
        begin, end = max(0, -coordinates[0]), min(counts[0], self.sizes[0] - coordinates[0])
        in_box, in_tensor = in_box + begin * size, in_tensor + (coordinates[0] + begin) * size
        if end <= begin:
            valid[:] = False
        chosen = np.flatnonzero(valid)
        return in_box[chosen], in_tensor[chosen], max(end - begin, 0) * size

    def places(self, address):
        """Return the offset in shared memory of each byte of a box that begins at `address`.

        A swizzle exchanges 16-byte chunks. It combines the number of the chunk within a row of 128 bytes
        with the number of the row within 8 rows, both taken from the address."""
        offset = np.arange(self.nbytes)
        if not self.swizzle:
            return offset
        # If a row is shorter than the swizzle, the rest of the swizzle's width is not written (on an H100).
        row = self.counts[0] * self.itemsize
        at = address + offset // row * self.swizzle + offset % row
        mask = self.swizzle // 16 - 1
        return (at ^ (at >> 7 & mask) << 4) - address

    def fill(self):
        """Return the values of the bytes of a box that lie outside the tensor."""
        if not self.fill_nan:
            return np.zeros(self.nbytes, np.uint8)
        return np.full(self.nbytes // 2, NAN, np.uint16).view(np.uint8)

    @property
    def room(self):
        """The bytes of shared memory from the first to the last byte of a box."""
        if not self.swizzle:
            return self.nbytes
        return self.nbytes // (self.counts[0] * self.itemsize) * self.swizzle

    def converted(self, data):
        """Return the bytes that a load writes for these bytes of the tensor. The tf32 types are rounded to 10
        bits of mantissa. A load never flushes subnormal numbers to zero (on an H100)."""
        if "tf32" not in self.type:
            return data
        bits = data.view(np.uint32)
        return np.where(bits & 0x7F800000 == 0x7F800000, bits, bits + 0x1000 & 0xFFFFE000).view(np.uint8)


def check(tensor):
    """Raise ValueError for a TensorMap that cuTensorMapEncodeTiled refuses."""
    rank, row = len(tensor.sizes), tensor.box[0] * tensor.itemsize if tensor.box else 0
    steps, strides, box = tensor.element_strides, tensor.strides, tensor.box
    rules = {
        f"a tensor map has 1 to 5 dimensions, got {rank}": 1 <= rank <= 5,
        f"the box has {len(box)} dimensions, but the tensor has {rank}": len(box) == len(steps) == rank,
        f"strides {strides} must be multiples of 16 bytes: pad the rows": all(
            n % 16 == 0 and 0 <= n < 1 << 40 for n in strides
        ),
        f"the box {box} must have 1 to 256 elements per axis": all(1 <= n <= 256 for n in box),
        f"element strides {steps} must be 1 to 8": all(1 <= n <= 8 for n in steps),
        f"sizes {tensor.sizes} must be 1 to 2^32": all(1 <= n <= 1 << 32 for n in tensor.sizes),
        f"a row of the box has {row} bytes; wanted a multiple of 16": row % 16 == 0,
        f"the swizzle must be 0, 32, 64 or 128 bytes, got {tensor.swizzle}": tensor.swizzle in SWIZZLES,
        f"a row of the box has {row} bytes, but the swizzle allows {tensor.swizzle}": not tensor.swizzle
        or row <= tensor.swizzle,
        f"filling with NaN requires a floating-point type, got {tensor.type}": not tensor.fill_nan
        or tensor.type[0] not in "us",
    }
    for rule, holds in rules.items():
        if not holds:
            raise ValueError(rule)
