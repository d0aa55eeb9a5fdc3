"""Latent attention for one new token on tensor cores: bfloat16 or float16 latents, float32 accumulators.

This replaces the second kernel of latent/decode.py, with these differences. The 16 rows of `mma` are 16
heads, whose latent queries stay in registers. A block processes KEYS latents at a time. Each warp processes a
quarter of them and updates its own (m, l, Σ P ṽ), while the next tile is copied. At the end the warps add
their results one after the other, so that the order of the sum is fixed.
Sources: as in latent/decode.py and flash/tensor_forward.py.

    grid    (splits, ⌈H / 16⌉, B)
    block   WARPS · 32 threads
    shared  4 · KEYS · (width + 8) · 2 + 16 · (width + 5) · 4 bytes: 76 KiB at width 64, 76 KiB at width 128
    cost    2 · L multiply-adds per head and key; a latent is read once for 16 heads
"""

import functools

from numba import cuda
from numpy import float32, int16, uint32

from kernels.common.launch import launch, output
from kernels.common.splits import splits_for
from kernels.common.tiles import MINUS_INFINITY
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0, exp2_approx
from kernels.tensor_cores.launch import aligned, kind_of, tensor_width
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    LOG2E,
    PADDING,
    row_copier,
    score_adder,
    softener,
    value_adder,
    whole_sum,
)

WARPS, ROWS = 4, 16  # warps per block; heads per block
KEYS = {64: 128, 128: 64}  # width -> keys per tile
BLOCKS = 2  # resident blocks per multiprocessor
THREADS = WARPS * 32


@functools.cache
def split_kernel(width, kind):
    """Return the kernel that reads the latents, for rows of at most `width` elements."""
    pack = ARITHMETIC[kind].pack
    keys, pitch, depth, d_tiles = KEYS[width], width + PADDING, width // 16, width // 8
    own, two_tiles = keys // WARPS, 2 * keys
    n_tiles = own // 8
    q_numbers, s_numbers, o_numbers = depth * 4, n_tiles * 4, d_tiles * 4
    copy = row_copier(width, THREADS)
    add_scores = score_adder(kind, 1, n_tiles, depth)
    soften, add_values = softener(1, n_tiles, d_tiles), value_adder(kind, 1, n_tiles, d_tiles)

    @cuda.jit(device=True)
    def hold(qs, q_rows, first):
        """Load the latent queries q_rows[first : first + ROWS] (H, L) into qs, as left operands of `mma`."""
        lane = cuda.threadIdx.x & 31
        heads, latent = q_rows.shape
        for d in range(depth):
            # Register r of a left operand: row lane / 4, or 8 rows below; columns 2 (lane % 4) and the next,
            # or 8 to the right.
            for r in range(4):
                head, c = first + (lane >> 2) + (r & 1) * 8, d * 16 + (lane & 3) * 2 + (r >> 1) * 8
                low = q_rows[head, c] if head < heads and c < latent else float32(0)
                high = q_rows[head, c + 1] if head < heads and c + 1 < latent else float32(0)
                qs[d * 4 + r] = pack(low, high)

    @cuda.jit(device=True)
    def mask_and_add_band(s, band, first_head, j0, end, keys):
        """Add the reciprocal scores band (H, reach) to s, for the keys starting at j0; set s to -inf for key
        `end` and later keys."""
        lane = cuda.threadIdx.x & 31
        for x in range(s_numbers):
            head = first_head + (lane >> 2) + (x >> 1 & 1) * 8
            j = j0 + (x >> 2) * 8 + (lane & 3) * 2 + (x & 1)
            if j >= end:
                s[x] = MINUS_INFINITY
            elif keys - 1 - j < band.shape[1] and head < band.shape[0]:
                s[x] += band[head, keys - 1 - j]

    @cuda.jit(device=True)
    def add_up(sums, totals, largest, m, l, os):
        """Merge the states of all warps into sums (ROWS, width) = Σ P ṽ and totals (ROWS) = l; m becomes the
        common maximum.

        largest: (WARPS, ROWS), scratch for m.
        """
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        if lane & 3 == 0:
            for r in range(2):
                largest[warp, (lane >> 2) + r * 8] = m[r]
        cuda.syncthreads()  # all warps have stored m
        for r in range(2):
            row, top = (lane >> 2) + r * 8, MINUS_INFINITY
            for other in range(WARPS):
                top = max(top, largest[other, row])
            shrink = float32(0)
            if m[r] != MINUS_INFINITY:
                shrink = exp2_approx((m[r] - top) * LOG2E)
            l[r] = whole_sum(l[r]) * shrink
            m[r] = top
            for tile in range(d_tiles):
                os[tile * 4 + r * 2] *= shrink
                os[tile * 4 + r * 2 + 1] *= shrink
        # one warp after the other, so that the order of the sum is fixed
        for turn in range(WARPS):
            if warp == turn:
                for r in range(2):
                    row = (lane >> 2) + r * 8
                    if lane & 3 == 0:
                        totals[row] = l[r] if turn == 0 else totals[row] + l[r]
                    for tile in range(d_tiles):
                        for e in range(2):
                            c, x = tile * 8 + (lane & 3) * 2 + e, tile * 4 + r * 2 + e
                            sums[row, c] = os[x] if turn == 0 else sums[row, c] + os[x]
            cuda.syncthreads()  # this warp has added its state: the next warp may proceed

    @cuda.jit
    def latent_decode_tensor_kernel(q_latent, k_latent, v_latent, band, length, parts):
        """Store Σ P ṽ, m and l of each block, over `length` keys, in parts (B, H, splits, L + 2).

        q_latent: (B, H, L), float32.
        k_latent, v_latent: (B, 1, N_k, L), 16-bit values as int16.
        band: (B, H, reach), float32.
        """
        k_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        v_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        sums = cuda.shared.array((ROWS, width), float32)
        totals = cuda.shared.array(ROWS, float32)
        largest = cuda.shared.array((WARPS, ROWS), float32)
        qs = cuda.local.array(q_numbers, uint32)
        s, os = cuda.local.array(s_numbers, float32), cuda.local.array(o_numbers, float32)
        m, l = cuda.local.array(2, float32), cuda.local.array(2, float32)
        batch, split, first_head = cuda.blockIdx.z, cuda.blockIdx.x, cuda.blockIdx.y * ROWS
        thread, mine = cuda.threadIdx.x, (cuda.threadIdx.x >> 5) * own  # this warp's first key in a tile
        heads, latent, n = q_latent.shape[1], q_latent.shape[2], k_latent.shape[2]
        start = split * length
        end = min(n, start + length)
        # 1. copy the first tile of latents, and load the latent queries of the heads
        copy(k_tiles, 0, keys, k_latent, batch, 0, start)
        copy(v_tiles, 0, keys, v_latent, batch, 0, start)
        cp_async_commit()
        hold(qs, q_latent[batch], first_head)
        for x in range(o_numbers):
            os[x] = float32(0)
        for r in range(2):
            m[r], l[r] = MINUS_INFINITY, float32(0)
        place = 0
        for j0 in range(start, end, keys):
            cp_async_wait_0()
            cuda.syncthreads()  # the tile has arrived, and all warps have finished with the previous one
            if j0 + keys < end:
                copy(k_tiles, keys - place, keys, k_latent, batch, 0, j0 + keys)
                copy(v_tiles, keys - place, keys, v_latent, batch, 0, j0 + keys)
                cp_async_commit()
            # 2. compute the scores of this warp's keys and their softmax, and add the latent values; no other
            #    warp takes part
            add_scores(s, qs, k_tiles, place + mine)
            mask_and_add_band(s, band[batch], first_head, j0 + mine, end, n)
            soften(s, m, l, os, LOG2E)
            add_values(os, s, v_tiles, place + mine)
            place = keys - place
        # 3. store the state of this block
        add_up(sums, totals, largest, m, l, os)
        if (thread & 3) == 0 and thread < 32:
            for r in range(2):
                row = (thread >> 2) + r * 8
                if first_head + row < heads:
                    part = parts[batch, first_head + row, split]
                    part[latent], part[latent + 1] = m[r], totals[row]
        for element in range(thread, ROWS * width, THREADS):
            row, c = element // width, element % width
            if first_head + row < heads and c < latent:
                parts[batch, first_head + row, split, c] = sums[row, c]

    return latent_decode_tensor_kernel


def read_latents(q_latent, k_latent, v_latent, band, splits=None, run=None):
    """Launch the kernel; return its results, parts (B, H, splits, L + 2).

    q_latent: (B, H, L), float32.
    k_latent, v_latent: (B, N_k, L), bfloat16 or float16; they may be views.
    band: (B, H, reach), float32.
    splits: the maximum number of blocks per group of heads. Fewer may be launched, because a block processes
        whole tiles.
    """
    (batch, heads, latent), keys = q_latent.shape, k_latent.shape[1]
    width, groups = tensor_width(latent), -(-heads // ROWS)
    tile = KEYS[width]
    splits = splits_for(splits, batch * groups, keys, k_latent.device, tile, BLOCKS)
    length = -(-keys // (splits * tile)) * tile
    splits = -(-keys // length)
    parts = output((batch, heads, splits, latent + 2), like=q_latent)
    latents = (aligned(x[:, None]) for x in (k_latent, v_latent))
    kernel = split_kernel(width, kind_of(k_latent))
    launch(kernel, (splits, groups, batch), THREADS, q_latent, *latents, band, length, parts, run=run)
    return parts
