"""Matrix descriptors: 64-bit numbers that contain the address and the layout of a matrix in shared memory,
for wgmma.

    bits 0–13    start address / 16
    bits 16–29   leading dimension byte offset / 16
    bits 32–45   stride dimension byte offset / 16
    bits 49–51   base offset: the row of the swizzle pattern at which the pattern's own start lies
    bits 62–63   swizzle mode: 0 none, 1 128 bytes, 2 64 bytes, 3 32 bytes

A matrix consists of chunks of 16 bytes, whose elements are adjacent in memory. In a K-major matrix, a chunk
belongs to one row of A or one column of B (index r below), and the 32 bytes along K are two chunks (c). In an
MN-major matrix of 16-bit elements, a chunk has 8 rows or columns (chunk j), all with the same k. With a
swizzle of S bytes, w = S / 16, leading offset L and stride offset O, the chunks begin at these offsets:

    K-major, no swizzle    (r % 8) 16 + (r // 8) O + c L
    K-major, swizzle       (r % 8) S + (r // 8) O + 16 c
    MN-major, no swizzle   (k % 8) 16 + (k // 8) L + j O
    MN-major, swizzle      (k % 8) S + (k // 8) O + (j % w) 16 + (j // w) L

The swizzle exchanges chunks within a pattern of 8 S bytes, which begins at a multiple of 8 S. It combines
bits 4 to 6 of the address with bits 7 to 9 by exclusive or. A swizzle of 64 bytes uses two of the three bits,
and a swizzle of 32 bytes one.

Source: PTX ISA 9.7.15.5.1.2, "Shared Memory Matrix Layout" (strides, canonical layouts, "Matrix Descriptor
Format").
"""

from typing import NamedTuple

import numpy as np

CHUNK = 16  # bytes
FIELD = (1 << 14) - 1
ADDRESS_MASK = FIELD << 4  # the bits of a shared address that fit into a descriptor
SWIZZLES = (0, 128, 64, 32)  # swizzle mode -> swizzle in bytes
ROWS = 8  # the number of rows of a swizzle pattern


class MatrixDescriptor(NamedTuple):
    """A decoded matrix descriptor. Addresses and offsets are in bytes. A swizzle of 0 means none."""

    start: int
    leading: int
    stride: int
    swizzle: int
    base_offset: int = 0

    @property
    def pattern(self):
        """The number of bytes after which the swizzle pattern repeats, and to which its start is aligned."""
        return ROWS * self.swizzle or CHUNK

    @property
    def phase(self):
        """The row of the swizzle pattern at which the matrix starts. This row is 0 in all canonical
        layouts."""
        return (self.start >> 7) - self.base_offset & row_mask(self.swizzle)

    def encode(self):
        """Return the descriptor as a 64-bit integer."""
        fields = (self.start, 0), (self.leading, 16), (self.stride, 32)
        bits = sum((value >> 4 & FIELD) << shift for value, shift in fields)
        return bits | (self.base_offset & 7) << 49 | SWIZZLES.index(self.swizzle) << 62

    def chunks(self, mn_major, count):
        """Return the addresses of the chunks of a matrix, as an integer array.

        Its shape is (count, 2) for a K-major matrix, whose element [r, c] is chunk c of row or column r. For
        an MN-major matrix, it is (count / 8, 16), whose element [j, k] has rows or columns 8 j to 8 j + 7.

        count: the number of rows of A or columns of B.
        """
        span = max(self.swizzle, CHUNK)
        if not mn_major:
            row, chunk = np.ogrid[:count, :2]
            across = CHUNK if self.swizzle else self.leading
            offset = row % ROWS * span + row // ROWS * self.stride + chunk * across
        else:
            group, k = np.ogrid[: count // 8, :16]
            wide = span // CHUNK
            far, near = (self.leading, self.stride) if self.swizzle else (self.stride, self.leading)
            offset = k % ROWS * span + k // ROWS * near + group % wide * CHUNK + group // wide * far
        return swizzled(self.start + offset, self.swizzle, self.base_offset) & ADDRESS_MASK


def decode(bits):
    """Return the MatrixDescriptor of a 64-bit integer."""
    bits = int(bits)
    start, leading, stride = ((bits >> shift & FIELD) << 4 for shift in (0, 16, 32))
    return MatrixDescriptor(start, leading, stride, SWIZZLES[bits >> 62 & 3], bits >> 49 & 7)


def row_mask(swizzle):
    """Return a mask of the bits of the row number that a swizzle combines with the number of the chunk."""
    return max(swizzle // CHUNK - 1, 0)


def swizzled(address, swizzle, base_offset=0):
    """Return the address of a chunk with a swizzle of `swizzle` bytes, given its address without a
    swizzle."""
    return address ^ ((address >> 7) - base_offset & row_mask(swizzle)) << 4
