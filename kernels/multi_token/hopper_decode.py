"""Decoding with the multi-token layer in 16 bits on Hopper: every sum on tensor cores, in two kernels.

`decode.py` states the formulas. These kernels replace the first three of its four kernels:

    kernel    computes                           grid                                 shared, 16 heads, d = 64
    scores    T', and m and l of each range      (ranges of keys, H / s, B)           225 KiB
    values    a part of O, from T', m, l and V   (ranges of keys, H / s', B)          218 KiB

`hopper_scores` and `hopper_values` contain these kernels, and this file the steps that both have.

A block has one warp for each of 16 heads. With fewer heads in a group, it has several ranges of keys, and the
head map becomes a block-diagonal matrix. Each step is thus a product of small matrices, which `mma` computes:

    S[j, a]    keys × window
    T[j, r]    Σ_b S[j - c_k + 1 + b, :] · band_b, where band_b[a, r] = w1[a - r, b]
    T'[g, r]   map × T of all heads, for each key
    U[8i + n]  P, with the keys 8i … 8i + 7 + c_k in a row, × a band of w2
    U'[g, j]   map × U of all heads
    O[c]       Vᵀ × U'

All products but the first have a float32 operand. The kernels split this operand into two bfloat16 parts,
whose sum has a relative error of 2^-17. They split taps and maps in the same way, unless these are bfloat16,
and U' into parts of the type of V. The products of the parts are added in float32. NaN and infinities
therefore spread to all rows and heads of a group, as NaN does in the softmax.

T' is stored with eight rows per key, so that its 16-bit parts form rows of 16 bytes, as `ldmatrix` reads.
"""

import functools

from numba import cuda
from numpy import float32, int32

from kernels.common.arguments import HALVES
from kernels.common.splits import PLACE
from kernels.tensor_cores.instructions import cp_async_16, high_bf16, low_bf16, mma_bf16, pack_bf16
from kernels.tensor_cores.launch import HOPPER, capability
from kernels.tensor_cores.tiles import CHUNK, widener
from kernels.tensor_cores.windows import swizzled

WARPS, THREADS = 16, 512  # per block
ROWS = 8  # rows of T per key, padded
MOST_ROWS = 16  # rows of the window
STAGE = 2048  # elements of K or V that a warp copies at once
CARRIED = 16  # keys before a tile that its convolution needs


@cuda.jit(device=True, forceinline=True)
def split(x, y):
    """Return two registers with 16-bit parts of x and y: their bfloat16 values, and the rounding errors of
    these."""
    high = pack_bf16(x, y)
    return high, pack_bf16(x - low_bf16(high), y - high_bf16(high))


@functools.cache
def stage_copier(width):
    """Create copy(tile, base, rows, place, stride, first, n, valid), with which a warp copies STAGE / width
    rows to tile[base : …], swizzled.

    The first row has this number, and those before row 0 or after row n - 1 become zeros.

    rows: all tensors' rows, one-dimensional; adjacent rows are `stride` elements apart.
    place: the index of the first element that this lane copies, 8 times lane % (width / 8) elements after the
        start of row first + lane // (width / 8).
    valid: the number of bytes in a chunk of this lane, 16, or 0 for columns from d to `width`.
    """
    chunks, count = width // CHUNK, STAGE // width
    at_once = 32 // chunks

    @cuda.jit(device=True)
    def copy(tile, base, rows, place, stride, first, n, valid):
        lane = cuda.threadIdx.x & 31
        i, chunk = lane // chunks, lane % chunks
        row, step = base + i, stride * at_once
        if 0 <= first and first + count <= n:  # all rows are inside: compare none of them
            for turn in range(count // at_once):
                to = row + turn * at_once, swizzled(chunk, i + turn * at_once % 8)
                cp_async_16(tile, to, rows, ((place & PLACE) + turn * step,), valid)
        else:
            for turn in range(count // at_once):
                own = first + i + turn * at_once
                inside = 0 <= own and own < n
                to = row + turn * at_once, swizzled(chunk, i + turn * at_once % 8)
                at = place + turn * step if inside else 0
                cp_async_16(tile, to, rows, (at & PLACE,), valid if inside else int32(0))

    return copy


@functools.cache
def map_loader(most, kind):
    """Create load_map(fragments, head_map, group), which loads a group's map as left operands of `mma`: the
    four registers of the high parts, then those of the low ones.

    Row and column w belong to warp w, and thus to head w % most of one of several ranges of keys.
    """
    widened = widener(kind)

    @cuda.jit(device=True)
    def entry(own_map, row, column):
        group = own_map.shape[0]
        g, h = row & (most - 1), column & (most - 1)
        if row // most != column // most or g >= group or h >= group:
            return float32(0)
        return widened(own_map[g, h])

    @cuda.jit(device=True)
    def load_map(fragments, own_map):
        lane = cuda.threadIdx.x & 31
        for x in range(4):
            row, column = (lane >> 2) + (x & 1) * 8, (lane & 3) * 2 + (x >> 1) * 8
            fragments[x], fragments[4 + x] = split(
                entry(own_map, row, column), entry(own_map, row, column + 1)
            )

    return load_map


@functools.cache
def mapper(kind):
    """Create mapped(fragments, high0, high1, low0, low1), which returns the product of a map and a 16 × 8
    matrix, whose parts are right operands of `mma`."""
    exact = kind == "bfloat16"

    @cuda.jit(device=True)
    def mapped(fragments, high0, high1, low0, low1):
        zero = float32(0)
        a0, a1, a2, a3 = fragments[0], fragments[1], fragments[2], fragments[3]
        c0, c1, c2, c3 = mma_bf16(a0, a1, a2, a3, low0, low1, zero, zero, zero, zero)
        if not exact:
            c0, c1, c2, c3 = mma_bf16(
                fragments[4], fragments[5], fragments[6], fragments[7], high0, high1, c0, c1, c2, c3
            )
        return mma_bf16(a0, a1, a2, a3, high0, high1, c0, c1, c2, c3)

    return mapped


def fits(q, c_q, after, *groups):
    """Return whether these kernels support q, taps with c_q and `after` rows, and maps in these groups of
    heads."""
    on_hopper = q.dtype in HALVES and q.is_cuda and capability(q.device) == HOPPER
    return on_hopper and c_q + after - 1 <= MOST_ROWS and after <= ROWS and max(groups) <= WARPS
