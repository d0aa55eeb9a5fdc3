"""Kernels of the multi-token layer, each for a band of scores: convolution, head map, softmax, and their
gradients.

A band is (B, H, R, C) float32 in global memory: R consecutive rows of every head's scores, for the keys 0 to
C - 1. Row r belongs to query first + r. If `causal`, kernels ignore the contents of the entries after a row's
own key, treat them as 0, and write 0 there. Source: Golovneva et al. 2025, arXiv 2504.00927.

    kernel                computes                 grid                             shared
    convolve              y = x ∗ w, or transposed (⌈R / 64⌉ · ⌈C / 64⌉, H, B)      25.7 KiB
    mix                   x[g] = Σ_h M[g, h] x[h]  (⌈R · C / (256 · e)⌉, H / s, B)  4 · s² bytes
    softmax               x = softmax(x)           (R, H, B)                        64 bytes
    softmax_back          x = P ∘ (x - D)          (R, H, B)                        32 bytes
    tap_gradients         dw = Σ g ∘ shifted x     (parts, H, B)                    41.9 KiB

Blocks have 256 threads. A thread of the mix kernel keeps the elements of all s heads of a group at e columns,
at most 64 elements, in registers, so that it can overwrite them. No kernel needs more than 48 KiB of shared
memory, for any number of heads.
"""

import functools

from numba import cuda
from numpy import float32

from kernels.common.arguments import MOST_TAPS
from kernels.common.splits import largest_of_warp, sum_of_warp
from kernels.common.strips import (
    MOST_REGISTERS,
    ROW_THREADS,
    STRIP,
    TAPS,
    add_tap_gradients,
    convolve_strip,
    load_taps,
)
from kernels.common.tiles import INDEX, MINUS_INFINITY, reciprocal, weight

SIZE = 64  # rows and columns of a tile
THREADS, WARPS = 256, 8
HALO_ROWS, HALO_COLUMNS = SIZE + MOST_TAPS - 1, SIZE + TAPS  # size of a tile with its halo
PITCH = HALO_COLUMNS + 1  # an odd number of words, so that eight rows start in different banks
GRADIENT_PITCH = SIZE + 1
TURNS = SIZE // STRIP // ROW_THREADS  # strips per thread, all in one row
MOST_GROUP = 32  # maximum number of heads per group
HELD = 64  # elements per thread of mix_kernel


@cuda.jit(device=True)
def load_band(tile, band, first, row, column, rows, columns, causal):
    """Copy band[row : row + rows, column :] to tile[:rows].

    Elements outside the band, masked, or right of `columns` become 0.

    band: (R, C), whose row 0 belongs to query `first`.
    """
    width = tile.shape[1]
    for element in range(cuda.threadIdx.x, rows * width, THREADS):
        i, j = element // width, element % width
        r, c = row + i, column + j
        inside = 0 <= r and r < band.shape[0] and 0 <= c and c < band.shape[1] and j < columns
        tile[i, j] = band[r, c] if inside and not (causal and c > first + r) else float32(0)


@cuda.jit(device=True)
def largest_of_block(x, shared):
    """Return the maximum of x over the block to every thread. `shared` has shape (WARPS,)."""
    x = largest_of_warp(x)
    if cuda.threadIdx.x % 32 == 0:
        shared[cuda.threadIdx.x // 32] = x
    cuda.syncthreads()
    for warp in range(WARPS):
        x = max(x, shared[warp])
    return x


@cuda.jit(device=True)
def sum_of_block(x, shared):
    """Return the sum of x over the block to every thread. `shared` has shape (WARPS,)."""
    x = sum_of_warp(x)
    if cuda.threadIdx.x % 32 == 0:
        shared[cuda.threadIdx.x // 32] = x
    cuda.syncthreads()
    total = float32(0)
    for warp in range(WARPS):
        total += shared[warp]
    return total


# Convolution ------------------------------------------------------------------------------------------------


@cuda.jit(max_registers=MOST_REGISTERS)
def multi_token_convolve_kernel(x, x_first, w, flipped, causal, y, y_first):
    """Convolve x with w (H, c_q, c_k) into y, or apply the transposed convolution if `flipped`.

        y[r, c] = Σ_ab w[a, b] · x[r - P_q + a, c - P_k + b]
        y[r, c] = Σ_ab w[a, b] · x[r + P_q - a, c + P_k - b] if flipped

    x and y are bands with the same columns; x has the rows on which y depends, except those outside the
    sequence. A thread computes one strip in each of TURNS groups of columns, and ROW_THREADS adjacent threads
    share a row.
    """
    tile = cuda.shared.array((HALO_ROWS, PITCH), float32)
    taps = cuda.shared.array((TAPS, TAPS), float32, alignment=16)
    strip = cuda.local.array(STRIP, float32)
    batch, head = cuda.blockIdx.z, cuda.blockIdx.y
    c_q, c_k, columns = w.shape[1], w.shape[2], y.shape[3]
    across = (columns + SIZE - 1) // SIZE
    r0, c0 = cuda.blockIdx.x // across * SIZE, cuda.blockIdx.x % across * SIZE
    rows, last = min(SIZE, y.shape[2] - r0), min(SIZE, columns - c0)
    above, left = (0, c_k // 2) if flipped else (c_q - 1, (c_k - 1) // 2)
    # 1. load the taps, and x with its halo unless the whole tile is masked
    load_taps(taps, w[head], flipped)
    if not (causal and c0 >= y_first + r0 + rows):
        row = y_first + r0 - above - x_first
        load_band(tile, x[batch, head], x_first, row, c0 - left, rows + c_q - 1, SIZE + c_k - 1, causal)
    cuda.syncthreads()
    # 2. compute strips of y
    i = cuda.threadIdx.x // ROW_THREADS & INDEX
    seen = min(last, y_first + r0 + i + 1 - c0) if causal else last
    for turn in range(TURNS):
        j = (cuda.threadIdx.x % ROW_THREADS + turn * ROW_THREADS) * STRIP & INDEX
        if i < rows and j < seen:
            convolve_strip(strip, 0, tile, taps, i, j, c_q, c_k)
        for part in range(STRIP):
            if i < rows and j + part < last:
                y[batch, head, r0 + i, c0 + j + part] = strip[part] if j + part < seen else float32(0)


@cuda.jit(max_registers=MOST_REGISTERS)
def multi_token_tap_gradients_kernel(g, x, first, x_first, rows, causal, d_w):
    """Add the gradient of the taps, Σ_ij g[i, j] · x[i - P_q + a, j - P_k + b], to d_w.

    Each block adds to its own part of d_w.

    g: the gradient of the convolution's result. Only its first `rows` rows are used; row 0 belongs to query
        `first`.
    x: the band that was convolved, with the halo rows above.
    d_w: (parts · B, H, c_q, c_k).
    """
    g_tile = cuda.shared.array((SIZE, GRADIENT_PITCH), float32)
    x_tile = cuda.shared.array((HALO_ROWS, PITCH), float32)
    shares = cuda.shared.array(THREADS, float32)
    sums = cuda.local.array(STRIP, float32)
    batch, head, thread = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x
    c_q, c_k, columns = d_w.shape[2], d_w.shape[3], g.shape[3]
    # 1. this thread sums STRIP taps of one row, over every parts-th row of a tile
    strips = (c_k + STRIP - 1) // STRIP
    parts = THREADS // (c_q * strips)
    mine, part = thread // parts, thread % parts
    a, b = mine // strips, mine % strips * STRIP
    for tap in range(STRIP):
        sums[tap] = float32(0)
    # 2. loop over every gridDim.x-th tile
    across = (columns + SIZE - 1) // SIZE
    for number in range(cuda.blockIdx.x, (rows + SIZE - 1) // SIZE * across, cuda.gridDim.x):
        r0, c0 = number // across * SIZE, number % across * SIZE
        count = min(SIZE, rows - r0)
        if not causal or c0 <= first + r0 + count - 1:
            load_band(g_tile, g[batch, head], first, r0, c0, count, SIZE, causal)
            row = first + r0 - (c_q - 1) - x_first
            load_band(
                x_tile,
                x[batch, head],
                x_first,
                row,
                c0 - (c_k - 1) // 2,
                count + c_q - 1,
                SIZE + c_k - 1,
                causal,
            )
            cuda.syncthreads()
            if a < c_q:
                add_tap_gradients(sums, g_tile, x_tile, a, b, part, parts, count, 0, min(SIZE, columns - c0))
            cuda.syncthreads()
    # 3. add the partial sums of each tap in a fixed order
    for tap in range(STRIP):
        shares[thread] = sums[tap]
        cuda.syncthreads()
        if a < c_q and part == 0 and b + tap < c_k:
            total = float32(0)
            for other in range(mine * parts, (mine + 1) * parts):
                total += shares[other]
            d_w[batch * cuda.gridDim.x + cuda.blockIdx.x, head, a, b + tap] += total
        cuda.syncthreads()


# Heads ------------------------------------------------------------------------------------------------------


def places_of(group):
    """Return the number of columns per thread of mix_kernel."""
    return max(1, min(4, HELD // group))


@functools.cache
def mix_kernel(group):
    """Return the kernel for maps within groups of `group` heads."""
    each = places_of(group)
    numbers = group * each

    @cuda.jit(max_registers=MOST_REGISTERS)
    def multi_token_mix_kernel(x, head_map):
        """Mix the heads of x (B, H, X) in place: x[g] = Σ_h head_map[g, h] x[h] within each group.

        head_map: (H / group, group, group).
        """
        shares = cuda.shared.array((group, group), float32)
        held = cuda.local.array(numbers, float32)
        totals = cuda.local.array(each, float32)
        batch, first_head, thread = cuda.blockIdx.z, cuda.blockIdx.y * group, cuda.threadIdx.x
        for element in range(thread, group * group, THREADS):
            g, h = element // group, element % group
            shares[g, h] = head_map[cuda.blockIdx.y, g, h]
        cuda.syncthreads()
        first, last = cuda.blockIdx.x * THREADS * each + thread, x.shape[2]
        for h in range(group):
            for e in range(each):
                place = first + e * THREADS
                held[h * each + e] = x[batch, first_head + h, place] if place < last else float32(0)
        for g in range(group):
            for e in range(each):
                totals[e] = float32(0)
            for h in range(group):
                for e in range(each):
                    totals[e] += shares[g, h] * held[h * each + e]
            for e in range(each):
                if first + e * THREADS < last:
                    x[batch, first_head + g, first + e * THREADS] = totals[e]

    return multi_token_mix_kernel


# Softmax ----------------------------------------------------------------------------------------------------


@cuda.jit
def multi_token_softmax_kernel(x, first, causal):
    """Replace each row of x by its softmax, in place."""
    maxima, sums = cuda.shared.array(WARPS, float32), cuda.shared.array(WARPS, float32)
    row = x[cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.x]
    columns = row.shape[0]
    last = min(columns, first + cuda.blockIdx.x + 1) if causal else columns
    m, l = MINUS_INFINITY, float32(0)
    for j in range(cuda.threadIdx.x, last, THREADS):
        m = max(m, row[j])
    m = largest_of_block(m, maxima)
    for j in range(cuda.threadIdx.x, last, THREADS):
        l += weight(row[j], m)
    factor = reciprocal(sum_of_block(l, sums))
    for j in range(cuda.threadIdx.x, columns, THREADS):
        row[j] = weight(row[j], m) * factor if j < last else float32(0)


@cuda.jit
def multi_token_softmax_back_kernel(x, first, p, p_first, causal):
    """Replace x by P ∘ (x - D) in place, with D = Σ_j P x for each row.

    This turns the gradient of P into the gradient of the softmax's argument.

    p: the band of P, with the rows of x; its row 0 belongs to query p_first.
    """
    sums = cuda.shared.array(WARPS, float32)
    row = x[cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.x]
    p_row = p[cuda.blockIdx.z, cuda.blockIdx.y, first + cuda.blockIdx.x - p_first]
    columns = row.shape[0]
    last = min(columns, first + cuda.blockIdx.x + 1) if causal else columns
    d = float32(0)
    for j in range(cuda.threadIdx.x, last, THREADS):
        d += p_row[j] * row[j]
    d = sum_of_block(d, sums)
    for j in range(cuda.threadIdx.x, columns, THREADS):
        row[j] = p_row[j] * (row[j] - d) if j < last else float32(0)
