"""Convolutional attention, backward kernel that stores P and dS: bfloat16 or float16 data, on tensor cores.

The formulas are the same as in `conv_backward`. A block owns rows of scores (queries), and loops over their
columns (keys). It stores P and dS, rounded to 16 bits, in a band in global memory, and sums the gradient of
the taps. `kernels.conv.banded_products` computes dQ, dK and dV from the band. The scores are therefore
computed once, whereas `kernels.conv.tensor_backward` computes them twice.

An iteration processes COLUMNS columns in three phases, as in `tensor_backward`. A warp computes 32 rows,
two matrices of 16, which halves the loads of the convolutions from shared memory (`banded_tiles`). A warp
sums the gradient of all row shifts of the taps over its own rows, so that two barriers per iteration suffice.

    1. S0  of new columns, stored in shared memory in 16 bits
    2. T   by products with bands of taps; P; dT, which is stored in shared memory; the gradient of the taps
    3. dS  by products with bands of the flipped taps

Sources: Golovneva et al. 2025, arXiv 2504.00927 (convolution); Dao 2023, arXiv 2307.08691, Algorithm 2 (L and
    D).

    grid    (B · H, tiles of the band), owned = WARPS · 32 - 2 · (c_q - 1) queries per tile; those with the
            most keys first
    block   warps · 32 threads
    shared  about warps · 32 · (2 · d + 64) · 2 bytes, and 4 · COLUMNS · d · 2 bytes
    cost    multiply-adds per score, before halos: 2 · d, and 16 · c_q for each of T, dS and dW (24 · c_q for
            more than nine column taps)
"""

import functools

from numba import boolean, cuda
from numpy import float32, int16, int32, int64, uint32

from kernels.conv.banded_products import SIDE
from kernels.conv.banded_tiles import (
    BLOCKS,
    COLUMNS,
    HALF,
    NUMBERS,
    PARITIES,
    RING,
    WARP_ROWS,
    convolver,
    diagonal_adder,
    in_ring,
    product_starter,
    score_packer,
    sums_of_taps,
    take,
    tap_gradient_adder,
    tile_copier,
)
from kernels.conv.tensor_backward_tiles import band_loader, frame_of
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0, exp2_approx
from kernels.tensor_cores.tiles import ARITHMETIC, LOG2E, clamped, window_of
from kernels.tensor_cores.warpgroup import fence_proxy_async, matrix_descriptor, wgmma_wait_0
from kernels.tensor_cores.warpgroup_tiles import PATTERN, SWIZZLE, generated

# The number of 32-column parts after a tile's last part that are set to 0, because products may read them.
CLEARED = 8


def owned_rows(c_q, warps):
    """Return the number of queries that a block owns."""
    return warps * WARP_ROWS - 2 * (c_q - 1)


def offsets_of(c_q, c_k):
    """Return (p_offset, s_offset): column c of a band belongs to the key c + p_offset in P, and to the key
    c + s_offset in dS."""
    lag = 8 * (window_of(c_k) - 1)
    return frame_of(c_q, c_k, False).columns_before - lag, c_k - 1 - 2 * lag


def parts_of(keys, c_q, c_k):
    """Return the number of 32-column parts in a band whose rows see `keys` keys."""
    return -(-(keys - offsets_of(c_q, c_k)[1]) // COLUMNS)


@cuda.jit(device=True)
def hide_scores(x, row, column):
    """Set each score of a warp to 0 if the causal mask hides it, that is, to the right of the diagonal.

    row, column: the indices of the warp's first score.
    """
    lane = int32(cuda.threadIdx.x) & int32(31)
    for part in range(4):
        seen = int32(row - column) + int32((part & 1) * 16 + (part >> 1)) + (lane >> 2) * 2 - (lane & 3) * 2
        for y in range(HALF // 2):
            z = (part >> 1) * HALF + (y >> 1) * 4 + (part & 1) * 2 + (y & 1)
            if int32((y >> 1) * 8 + (y & 1)) > seen:
                x[z] = float32(0)


@cuda.jit(device=True)
def hide(x, x2, row, column, n, causal):
    """Set the scores of a warp that are masked or outside the sequence to 0."""
    lane = int32(cuda.threadIdx.x) & int32(31)
    first = int32(-column) - (lane & 3) * 2
    for part in range(4):
        i = int32(row) + int32((part & 1) * 16 + (part >> 1)) + (lane >> 2) * 2
        last = int32((min(i, int32(n - 1)) if causal else int32(n - 1)) + first)
        last = int32(-1) if i >= int32(n) else last
        for y in range(HALF // 2):
            z = (part >> 1) * HALF + (y >> 1) * 4 + (part & 1) * 2 + (y & 1)
            c = int32((y >> 1) * 8 + (y & 1))
            if c < first or c > last:
                x[z] = x2[z] = float32(0)


def part_storer():
    """Create store_part(part, scores, stored), which stores a warp's rows in a part of a band.

    part: (256,), int64 elements with four scores each: eight rows of the same half and parity, with their
        columns 0 to 15; then their columns 16 to 31; then the other rows.
    scores: the registers of `score_packer`.
    stored: for each half and parity, whether to store this lane's row.
    """
    lines = ["lane = uint32(cuda.threadIdx.x) & uint32(31)"]
    for rows in range(4):
        lines.append(f"if stored[{rows}]:")
        for side in range(BLOCKS // 2):
            x, at = (rows >> 1) * 8 + (rows & 1) + side * 4, rows * 64 + side * 32
            both = f"uint64(scores[{x}]) | uint64(scores[{x + 2}]) << uint64(32)"
            lines.append(f"    part[uint32({at}) + lane] = int64({both})")
    return generated("store_part(part, scores, stored)", lines, int64=int64)


store_part = part_storer()


@functools.cache
def score_gradient_kernel(width, kind, c_q, c_k, warps, bits=False):
    """Return the kernel for rows of `width` elements and (c_q, c_k) taps.

    bits: the taps are 16-bit values as int16, instead of float32.

    The kernel's arguments:

    q, d_o, k, v: (B, H, N, width), int16.
    first_row, last_row: the first query of the band, and the first query after it.
    p_band, s_band: (B · H, tiles · warps, parts, 256), int64 elements of four scores, see `store_part`.
    earlier: the number of tiles of the previous band, whose parts of d_w this band adds to.
    d_w: (B · tiles of the largest band, H, c_q, c_k).
    """
    pack, scaled = ARITHMETIC[kind].pack, kind == "float16"
    frame = frame_of(c_q, c_k, False)
    window, halo = window_of(c_k), c_q - 1
    rows, threads, pieces, half_rows = warps * WARP_ROWS, warps * 32, width // SIDE, warps * 16
    owned = owned_rows(c_q, warps)
    t_offset, s_offset = offsets_of(c_q, c_k)
    bands_in_all, places = c_q * window, (rows + halo + 1) // 2
    sum_numbers = sums_of_taps(c_q, c_k)
    copy_rows = tile_copier(rows, width, PARITIES, threads)
    copy = tile_copier(COLUMNS, width, 1, threads)
    start, convolve = product_starter(kind, width, half_rows), convolver(kind, c_q, c_k)
    zeros, no_scores = (float32(0),) * HALF, (uint32(0),) * (NUMBERS // 2)
    add_diagonals = diagonal_adder(c_q, c_k)
    add_tap_gradients = tap_gradient_adder(kind, c_q, c_k)
    load_bands, packed = band_loader(kind, frame, False, bits), score_packer(kind)

    @cuda.jit(device=True)
    def store_scores(ring, x, warp, block):
        """Store a warp's rows in a ring buffer, rounded to 16 bits."""
        lane = cuda.threadIdx.x & 31
        for z in range(0, NUMBERS, 2):
            place = warp * 16 + (z >> 1 & 1) * 8 + (lane >> 2)
            at = in_ring(block + (z % HALF >> 2))
            ring[at, z // HALF, place, lane & 3] = int32(pack(x[z], x[z + 1]))

    @cuda.jit
    def conv_score_gradient_kernel(
        q, d_o, k, v, w, log_sum, delta, scale, causal, first_row, last_row, earlier, p_band, s_band, d_w
    ):
        x_tile = cuda.shared.array((PARITIES, pieces, half_rows, SIDE), int16, alignment=PATTERN)
        x2_tile = cuda.shared.array((PARITIES, pieces, half_rows, SIDE), int16, alignment=PATTERN)
        y_tile = cuda.shared.array((1, pieces, COLUMNS, SIDE), int16, alignment=PATTERN)
        y2_tile = cuda.shared.array((1, pieces, COLUMNS, SIDE), int16, alignment=PATTERN)
        s_ring = cuda.shared.array((RING, PARITIES, places, 4), int32, alignment=16)
        g_ring = cuda.shared.array((RING, PARITIES, places, 4), int32, alignment=16)
        bands = cuda.shared.array((bands_in_all, 32), uint32)
        flipped = cuda.shared.array((bands_in_all, 32), uint32)
        diagonals = cuda.shared.array((warps, c_k, 8), float32)
        totals = cuda.shared.array((warps, c_q, c_k), float32)
        s = cuda.local.array(NUMBERS, float32)
        g = cuda.local.array(NUMBERS, float32)
        sums = cuda.local.array(sum_numbers, float32)
        of_rows = cuda.local.array(8, float32)
        masks = cuda.local.array(4, uint32)
        stored = cuda.local.array(4, boolean)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        n, warp_row = q.shape[2], warp * WARP_ROWS
        tile = cuda.gridDim.y - 1 - cuda.blockIdx.y
        i0 = first_row + tile * owned
        last = min(last_row, i0 + owned)  # the owned queries end here
        end = (min(n, i0 + owned) if causal else n) - s_offset
        factor = LOG2E if scaled else scale * LOG2E
        s_row, t_row = i0 - halo, i0
        # 0. copy the rows and the first columns, load the taps, and clear the ring buffers
        copy_rows(x_tile, q, batch, head, s_row)
        copy_rows(x2_tile, d_o, batch, head, t_row)
        copy(y_tile, k, batch, head, 0)
        copy(y2_tile, v, batch, head, t_offset)
        cp_async_commit()
        load_bands(bands, w, head, False)
        load_bands(flipped, w, head, True)
        for part in range(cuda.threadIdx.x, RING * PARITIES * places * 4, threads):
            at, rest = part // (PARITIES * places * 4), part % (PARITIES * places * 4)
            parity, word = rest // (places * 4), rest % (places * 4)
            s_ring[at, parity, word >> 2, word & 3] = g_ring[at, parity, word >> 2, word & 3] = int32(0)
        for z in range(sum_numbers):
            sums[z] = float32(0)
        for part in range(4):
            i = t_row + warp_row + (part & 1) * 16 + (lane >> 2) * 2 + (part >> 1)
            stored[part] = i < last
            of_rows[part] = log_sum[batch, head, i] * LOG2E if i < n else float32(0)
            of_rows[4 + part] = delta[batch, head, i] if i < n else float32(0)
        # select the rows of dT that the block owns: a register holds rows 2 k and 2 k + 2
        for part in range(4):
            i = warp_row + (part >> 1) + (lane & 3) * 4 + (part & 1) * 16
            masks[part] = uint32(0xFFFFFFFF) if i + 2 < owned else uint32(0xFFFF) if i < owned else uint32(0)
        group_row, block = warp // 4 * 64, 0
        cp_async_wait_0()
        fence_proxy_async()
        cuda.syncthreads()
        of_x = matrix_descriptor(x_tile, (0, 0, group_row, 0), 16, PATTERN, SWIZZLE)
        of_x2 = matrix_descriptor(x2_tile, (0, 0, group_row, 0), 16, PATTERN, SWIZZLE)
        of_y = matrix_descriptor(y_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        of_y2 = matrix_descriptor(y2_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        even, odd = start(zeros, zeros, of_x, of_y)
        for first in range(0, end, COLUMNS):
            # 1. Compute S0, 0 where masked.
            even, odd = wgmma_wait_0(even), wgmma_wait_0(odd)
            take(s, even, odd)
            row = s_row + warp_row
            if causal and first + COLUMNS - 1 > row:
                hide_scores(s, row, first)
            if scaled:
                for z in range(NUMBERS):
                    s[z] = clamped(s[z] * scale)
            store_scores(s_ring, s, warp, block)
            cp_async_wait_0()
            fence_proxy_async()
            cuda.syncthreads()
            following = first + COLUMNS
            if following < end:
                copy(y_tile, k, batch, head, following)
            cp_async_commit()
            # 2. compute T and dO·vᵀ; then replace s by P and g by dT
            even, odd = start(even, odd, of_x2, of_y2)
            convolve(s, s_ring, warp * 16, block, bands)
            even, odd = wgmma_wait_0(even), wgmma_wait_0(odd)
            take(g, even, odd)
            for z in range(NUMBERS):
                part = (z >> 1 & 1) + z // HALF * 2
                s[z] = exp2_approx(s[z] * factor - of_rows[part])
                g[z] = s[z] * (g[z] - of_rows[4 + part])
                if scaled:
                    g[z] = clamped(g[z])
            row, column = t_row + warp_row, first + t_offset
            edge = column < 0 or column + COLUMNS > n or row + WARP_ROWS > n
            if edge or causal and column + COLUMNS - 1 > row:
                hide(s, g, row, column, n, causal)
            store_scores(g_ring, g, warp, block)
            store_part(p_band[cuda.blockIdx.x, tile * warps + warp, first // COLUMNS], packed(s), stored)
            cuda.syncwarp()
            add_tap_gradients(sums, s_ring, g_ring, masks, warp, block)
            cp_async_wait_0()
            fence_proxy_async()
            cuda.syncthreads()
            if following < end:
                copy(y2_tile, v, batch, head, following + t_offset)
            cp_async_commit()
            even, odd = start(even, odd, of_x, of_y)  # S0 of the next columns
            # 3. compute dS
            convolve(g, g_ring, warp * 16, block, flipped)
            row, column = i0 + warp_row, first + s_offset
            if column < 0 or column + COLUMNS > n or causal and column + COLUMNS - 1 > row:
                hide(g, g, row, column, n, causal)
            if scaled:
                for z in range(NUMBERS):
                    g[z] = clamped(g[z])
            store_part(s_band[cuda.blockIdx.x, tile * warps + warp, first // COLUMNS], packed(g), stored)
            block = in_ring(block + BLOCKS)
        even, odd = wgmma_wait_0(even), wgmma_wait_0(odd)
        # 4. clear the columns that only later tiles of the band have
        unused = (end + COLUMNS - 1) // COLUMNS
        for column in range(unused, min(p_band.shape[2], unused + CLEARED)):
            store_part(p_band[cuda.blockIdx.x, tile * warps + warp, column], no_scores, stored)
            store_part(s_band[cuda.blockIdx.x, tile * warps + warp, column], no_scores, stored)
        # 5. sum the taps' gradients along each diagonal j' - j = tap, then over the warps
        add_diagonals(sums, diagonals, totals, warp)
        cuda.syncthreads()
        part, tap_factor = tile * (cuda.gridDim.x // q.shape[1]) + batch, float32(1) if scaled else scale
        for tap in range(cuda.threadIdx.x, c_q * c_k, threads):
            total = float32(0)
            for other in range(warps):
                total += totals[other, tap // c_k, tap % c_k]
            at = part, head, tap // c_k, tap % c_k
            d_w[at] = total * tap_factor + (d_w[at] if tile < earlier else float32(0))

    return conv_score_gradient_kernel
