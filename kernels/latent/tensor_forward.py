"""Latent attention, forward kernel on tensor cores: bfloat16 or float16 data, float32 accumulators.

As in `latent_forward`, the projections are applied to quantities of the owned queries, which stay on chip,
and the latents are streamed. The loop is the same as in `flash_tensor_forward`. A warp computes q̃ of its
rows once, and keeps it in registers as operands of `mma`. In shared memory, r = W_q k̃ of the same positions
then replaces q. Only tiles that touch the band load raw queries and multiply them by r. At the end, Σ P ṽ is
divided by l, rounded to 16 bits and stored in place of r, and W_v is applied to it.
Sources: as in latent/forward.py and flash/tensor_forward.py.

    grid    (B · H, tiles of rows), in the order of `kernels.tensor_cores.launch.schedule`
    block   WARPS · 32 threads, PIECES · 16 queries per warp
    shared  (rows + 6 · keys) · (width + 8) · 2 bytes
    cost    2 · L multiply-adds per score, d more in the band, and (d·L, twice in the band, and L·d) per query
"""

import functools
import math

from numba import cuda
from numpy import float32, int16, int32, uint32
from torch.nn.functional import pad

from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0, ldmatrix_x4, ldmatrix_x4_trans
from kernels.tensor_cores.launch import Work, kind_of, launch_padded, operand, tensor_width
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    LN2,
    LOG2E,
    PADDING,
    mma_pair,
    row_tile,
    score_adder,
    softener,
    tile_copier,
    value_adder,
    whole_sum,
)

WARPS, PIECES = 4, {64: 2, 128: 1}  # warps per block; width -> tiles of 16 queries per warp
KEYS = {64: 64, 128: 32}  # width -> keys per tile


@functools.cache
def latent_tensor_kernel(width, kind, warps, m_tiles, keys):
    """Return the kernel for rows of at most `width` elements.

    m_tiles: tiles of 16 queries per warp.
    keys: keys per tile.
    """
    pack, add_pair = ARITHMETIC[kind].pack, mma_pair(kind)
    rows, pitch, threads, two_tiles = warps * m_tiles * 16, width + PADDING, warps * 32, 2 * keys
    depth, n_tiles, d_tiles, chunk = width // 16, keys // 8, width // 8, min(width, 2 * keys)
    q_numbers, row_numbers = m_tiles * depth * 4, m_tiles * 2
    s_numbers, o_numbers = m_tiles * n_tiles * 4, m_tiles * d_tiles * 4
    b_numbers = m_tiles * 8
    copy_rows, copy = tile_copier(rows, width, threads), tile_copier(keys, width, threads)
    copy_matrix = tile_copier(chunk, width, threads)
    soften = softener(m_tiles, n_tiles, d_tiles)
    add_scores = score_adder(kind, m_tiles, n_tiles, depth)
    add_values = value_adder(kind, m_tiles, n_tiles, d_tiles)

    @cuda.jit(device=True)
    def project(sums, x_tile, matrix, head, stream):
        """Compute sums = x_tile matrix[0, head] for the warp's rows; stream the matrix through `stream`."""
        lane, first = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5) * (m_tiles * 16)
        row, column = lane & 15, (lane >> 4) * 8
        for x in range(o_numbers):
            sums[x] = float32(0)
        for start in range(0, width, chunk):
            cuda.syncthreads()  # all warps have finished reading `stream`
            copy_matrix(stream, 0, matrix, 0, head, start)
            cp_async_commit()
            cp_async_wait_0()
            cuda.syncthreads()  # these rows of the matrix have arrived
            for step in range(chunk // 16):
                for piece in range(m_tiles):
                    a0, a1, a2, a3 = ldmatrix_x4(
                        x_tile, (first + row + piece * 16, start + column + step * 16)
                    )
                    for pair in range(d_tiles // 2):
                        b0, b1, b2, b3 = ldmatrix_x4_trans(stream, (row + step * 16, column + pair * 16))
                        add_pair(sums, (piece * d_tiles + pair * 2) * 4, a0, a1, a2, a3, b0, b1, b2, b3)

    @cuda.jit(device=True)
    def hold(qs, sums):
        """Round the sums of the warp's rows to 16 bits, and arrange them in qs as left operands of `mma`."""
        for piece in range(m_tiles):
            for d in range(depth):
                x, y = (piece * d_tiles + d * 2) * 4, (piece * depth + d) * 4
                for r in range(4):
                    qs[y + r] = pack(sums[x + 2 * r], sums[x + 2 * r + 1])

    @cuda.jit(device=True)
    def put(x_tile, sums):
        """Store the sums in the warp's rows of x_tile, which no other warp reads."""
        lane, first = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5) * (m_tiles * 16)
        cuda.syncwarp()  # all lanes have read the old rows
        for piece in range(m_tiles):
            for tile in range(d_tiles):
                for half in range(2):
                    x = (piece * d_tiles + tile) * 4 + half * 2
                    both = pack(sums[x], sums[x + 1])
                    i, c = first + (lane >> 2) + piece * 16 + half * 8, (lane & 3) * 2 + tile * 8
                    x_tile[i, c] = int16(both & uint32(0xFFFF))
                    x_tile[i, c + 1] = int16(both >> uint32(16))
        cuda.syncwarp()  # the new rows are stored

    @cuda.jit(device=True)
    def add_band(s, band, x_tile, q_tiles, place, back, window, alpha):
        """Add alpha · r qᵀ to s where the distance from key to query is in [0, window).

        back: the distance from the tile's first key to the warp's first query.
        """
        lane, first = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5) * (m_tiles * 16)
        row, column = place + (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
        back += (lane >> 2) - (lane & 3) * 2  # distance of this lane's first accumulator
        for pair in range(n_tiles // 2):
            for x in range(b_numbers):
                band[x] = float32(0)
            for d in range(depth):
                b0, b1, b2, b3 = ldmatrix_x4(q_tiles, (row + pair * 16, column + d * 16))
                for piece in range(m_tiles):
                    a0, a1, a2, a3 = ldmatrix_x4(
                        x_tile, (first + (lane & 15) + piece * 16, (lane >> 4) * 8 + d * 16)
                    )
                    add_pair(band, piece * 8, a0, a1, a2, a3, b0, b1, b2, b3)
            for piece in range(m_tiles):
                for e in range(8):
                    # bits of e: bit 1 selects the upper or lower row, bit 2 the 8-column block, bit 0 the
                    # column
                    steps = back + piece * 16 + (e >> 1 & 1) * 8 - pair * 16 - (e >> 2) * 8 - (e & 1)
                    if 0 <= steps and steps < window:
                        s[(piece * n_tiles + pair * 2) * 4 + e] += alpha * band[piece * 8 + e]

    @cuda.jit(device=True)
    def store(out, batch, head, i, sums):
        """Store rows i, i + 8, … of the output, two 16-bit values per word."""
        lane = cuda.threadIdx.x & 31
        for r in range(row_numbers):
            at = i + (r >> 1) * 16 + (r & 1) * 8
            if at < out.shape[2]:
                for tile in range(d_tiles):
                    x = ((r >> 1) * d_tiles + tile) * 4 + (r & 1) * 2
                    out[batch, head, at, tile * 4 + (lane & 3)] = int32(pack(sums[x], sums[x + 1]))

    @cuda.jit
    def latent_tensor_kernel(
        q, k, v, w_q, w_q_turned, w_v, alpha, window, scale, causal, serpentine, o, log_sum
    ):
        """Compute o (B, H, N, width / 2), two 16-bit values per int32, and log_sum (B, H, N), for the last N
        queries.

        q: (B, H, M, width), 16-bit values as int16, like the following tensors.
        k, v: (B, 1, N_k, width).
        w_q, w_q_turned, w_v: (1, H, width, width); w_q_turned is the transpose of w_q.
        alpha: (1,), float32.
        """
        x_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        k_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        v_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        q_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        qs = cuda.local.array(q_numbers, uint32)
        s = cuda.local.array(s_numbers, float32)
        band = cuda.local.array(b_numbers, float32)
        os = cuda.local.array(o_numbers, float32)
        m, l = cuda.local.array(row_numbers, float32), cuda.local.array(row_numbers, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        lane, warp_row = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5) * (m_tiles * 16)
        n, n_keys = o.shape[2], k.shape[2]
        missing = n_keys - q.shape[2]  # the number of keys that precede the first query
        i0 = row_tile(serpentine) * rows
        position = n_keys - n + i0  # position of the block's first query among the keys
        my_row, my_column = warp_row + (lane >> 2), (lane & 3) * 2
        seen = min(n_keys, position + rows) if causal else n_keys
        factor = scale * LOG2E
        # 1. project the block's queries and, if there is a band, the keys at their positions, by W_q
        copy_rows(x_tile, 0, q, batch, head, position - missing)
        project(os, x_tile, w_q, head, k_tiles)
        hold(qs, os)
        if window > 0:
            cuda.syncthreads()  # all warps have read the queries
            copy_rows(x_tile, 0, k, batch, 0, position)
            project(os, x_tile, w_q_turned, head, k_tiles)
            put(x_tile, os)
        cuda.syncthreads()  # all warps have finished reading W_q: k_tiles may be overwritten
        # 2. copy the first tiles, and raw queries only if the first keys have a reciprocal term
        copy(k_tiles, 0, k, batch, 0, 0)
        copy(v_tiles, 0, v, batch, 0, 0)
        if position < keys - 1 + window:
            copy(q_tiles, 0, q, batch, head, -missing)
        cp_async_commit()
        for x in range(o_numbers):
            os[x] = float32(0)
        for r in range(row_numbers):
            m[r], l[r] = MINUS_INFINITY, float32(0)
        place = 0
        for j0 in range(0, seen, keys):
            following = j0 + keys
            cp_async_wait_0()
            cuda.syncthreads()
            if following < seen:
                copy(k_tiles, keys - place, k, batch, 0, following)
                copy(v_tiles, keys - place, v, batch, 0, following)
                if window > 0 and following < position + rows and position < following + keys - 1 + window:
                    copy(q_tiles, keys - place, q, batch, head, following - missing)
                cp_async_commit()
            # 3. S, with the band's terms, -inf where masked
            add_scores(s, qs, k_tiles, place)
            back = position + warp_row - j0
            if window > 0 and back > -m_tiles * 16 and back < keys - 1 + window:
                add_band(s, band, x_tile, q_tiles, place, back, window, alpha[0])
            if following > n_keys or causal and following > position + warp_row + 1:
                for piece in range(m_tiles):
                    for tile in range(n_tiles):
                        for e in range(4):
                            j = j0 + tile * 8 + my_column + (e & 1)
                            p = position + my_row + piece * 16 + (e >> 1) * 8
                            if j >= n_keys or causal and j > p:
                                s[(piece * n_tiles + tile) * 4 + e] = MINUS_INFINITY
            # 4. update the softmax, and add the latent values; P stays in registers
            soften(s, m, l, os, factor)
            add_values(os, s, v_tiles, place)
            place = keys - place
        # 5. normalise, then apply W_v
        for r in range(row_numbers):
            i = i0 + my_row + (r >> 1) * 16 + (r & 1) * 8
            total = whole_sum(l[r])
            share = reciprocal(total)
            for tile in range(d_tiles):
                x = ((r >> 1) * d_tiles + tile) * 4 + (r & 1) * 2
                os[x] *= share
                os[x + 1] *= share
            if i < n and lane & 3 == 0:
                log_sum[batch, head, i] = m[r] * factor * LN2 + math.log(total)
        put(x_tile, os)
        project(os, x_tile, w_v, head, k_tiles)
        store(o, batch, head, i0 + my_row, os)

    return latent_tensor_kernel


def latent_tensor_forward(q, k_latent, v_latent, w_q, w_v, alpha, window, causal, scale, n, run=None):
    """Launch the kernel, and return (O, L) of the last n queries.

    All tensors are bfloat16 or float16, already checked by `latent_arguments`. O has the dtype of q.
    """
    width = tensor_width(max(q.shape[3], k_latent.shape[2]))
    pieces, keys = PIECES[width], KEYS[width]
    kernel = latent_tensor_kernel(width, kind_of(q), WARPS, pieces, keys)
    latents = (operand(x[:, None], width) for x in (k_latent, v_latent))
    weights = (square(w, width) for w in (w_q, w_q.mT if window else w_q, w_v))
    arguments, work = (*latents, *weights, alpha, window), Work(WARPS * pieces * 16, WARPS * 32)
    return launch_padded(kernel, work, q, n, width, arguments, scale, causal, run)


def square(w, width):
    """Return w (H, m, n) as int16 of shape (1, H, width, width), zero-padded."""
    return operand((w if w.shape[1] == width else pad(w, (0, 0, 0, width - w.shape[1])))[None], width)
