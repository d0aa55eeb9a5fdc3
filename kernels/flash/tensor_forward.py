"""Flash attention forward pass on tensor cores: bfloat16 or float16 data, float32 accumulators.

The algorithm is the same as in `flash_forward`, with these differences:

    registers   A block has WARPS warps, each with PIECES tiles of 16 queries. Q stays in registers as the
                left operand of `mma` (for d <= 64). So do the scores of a warp: the elements of S that a lane
                receives from one `mma` are exactly those of P that it must supply to the next
    pipeline    K and V are double-buffered in shared memory: `cp_async` copies the next tile while the
                current one is used. Each tile needs only one barrier
    maximum     m may be smaller than the true maximum by a bounded amount, so that o is rarely rescaled
                (`kernels.tensor_cores.tiles.softener`)

Source: Dao 2023, arXiv 2307.08691 (Algorithm 1, with the queries split among warps).

    grid    see `kernels.tensor_cores.launch`
    block   WARPS · 32 threads; 237 registers at d = 64, 255 at d = 128 (sm_90)
    shared  (WARPS · PIECES · 16 + 4 · KEYS) · (d + 8) · 2 bytes: 54 KiB at d = 64, 68 KiB at d = 128. Rows
            are padded by 16 bytes, so that the eight rows of an `ldmatrix` begin in different banks
    cost    2 · N · N_k · d multiply-adds per head, half of that if causal
"""

import functools

from numba import cuda
from numpy import float32, int16, uint32

from kernels.common.tiles import MINUS_INFINITY
from kernels.flash.window import EVERYTHING
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0, ldmatrix_x4
from kernels.tensor_cores.launch import Work, kind_of, launch_on_tensor_cores, relaunched, tensor_width
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    LOG2E,
    PADDING,
    row_storer,
    row_tile,
    softener,
    tile_copier,
    value_adder,
)

WARPS, PIECES = 4, 2  # warps per block; tiles of 16 queries per warp
KEYS = {64: 64, 128: 32}  # width -> keys per tile


@functools.cache
def flash_tensor_kernel(width, kind, warps, m_tiles, keys, windowed, max_registers=None, q_held=None):
    """Return the kernel for rows of `width` elements of the type `kind`.

    m_tiles: tiles of 16 queries per warp.
    keys: keys per tile.
    windowed: support a window. Without it, the kernel needs no registers for the limits, and does not spill.
    q_held: keep the fragments of Q in registers, instead of reloading them for each tile; by default this
        depends on the width.
    """
    mma = ARITHMETIC[kind].mma
    rows, pitch, threads, two_tiles = warps * m_tiles * 16, width + PADDING, warps * 32, 2 * keys
    depth, n_tiles, d_tiles = width // 16, keys // 8, width // 8
    q_held = width * m_tiles <= 128 if q_held is None else q_held
    q_numbers = m_tiles * depth * 4 if q_held else m_tiles * 4
    s_numbers, o_numbers, row_numbers = m_tiles * n_tiles * 4, m_tiles * d_tiles * 4, m_tiles * 2
    copy_queries, copy = tile_copier(rows, width, threads), tile_copier(keys, width, threads)
    soften = softener(m_tiles, n_tiles, d_tiles)
    add_values = value_adder(kind, m_tiles, n_tiles, d_tiles)
    store_row = row_storer(kind, d_tiles)

    @cuda.jit(device=True)
    def load_queries(qs, at, q_tile, d, first):
        """Load columns 16 d to 16 d + 15 of the warp's rows into qs[at:], as left operands of `mma`."""
        lane = cuda.threadIdx.x & 31
        for piece in range(m_tiles):
            x = at + piece * 4
            qs[x], qs[x + 1], qs[x + 2], qs[x + 3] = ldmatrix_x4(
                q_tile, (first + (lane & 15) + piece * 16, (lane >> 4) * 8 + d * 16)
            )

    @cuda.jit(device=True)
    def add_scores(s, qs, q_tile, warp_row, k_tiles, first):
        """Compute s = Q Kᵀ for the warp's rows and the tile of keys that starts at row `first`."""
        lane = cuda.threadIdx.x & 31
        row, column = first + (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
        for piece in range(m_tiles):
            for x in range(n_tiles * 4):
                s[piece * n_tiles * 4 + x] = float32(0)
        for d in range(depth):
            if not q_held:
                load_queries(qs, 0, q_tile, d, warp_row)
            for pair in range(n_tiles // 2):
                b0, b1, b2, b3 = ldmatrix_x4(k_tiles, (row + pair * 16, column + d * 16))
                for piece in range(m_tiles):
                    y = (d * m_tiles + piece) * 4 if q_held else piece * 4
                    # b0 and b1 hold eight keys, b2 and b3 the next eight: two accumulator blocks
                    x = (piece * n_tiles + pair * 2) * 4
                    s[x], s[x + 1], s[x + 2], s[x + 3] = mma(
                        qs[y], qs[y + 1], qs[y + 2], qs[y + 3], b0, b1, s[x], s[x + 1], s[x + 2], s[x + 3]
                    )
                    x += 4
                    s[x], s[x + 1], s[x + 2], s[x + 3] = mma(
                        qs[y], qs[y + 1], qs[y + 2], qs[y + 3], b2, b3, s[x], s[x + 1], s[x + 2], s[x + 3]
                    )

    @cuda.jit(device=True)
    def at_an_edge(j0, first_row, causal, left, right):
        """Return whether the mask hides any of the warp's scores in the tile of keys that starts at j0."""
        if windowed:
            return j0 + keys > first_row + 1 + right or j0 + left < first_row + m_tiles * 16 - 1
        return causal and j0 + keys > first_row + 1

    @cuda.jit(device=True)
    def hidden(i, j, causal, left, right):
        """Return whether the mask hides key j from query i."""
        if windowed:
            return j > i + right or j < i - left
        return causal and j > i

    @cuda.jit(max_registers=max_registers)
    def flash_tensor_kernel(q, k, v, window, scale, causal, serpentine, o, log_sum):
        """Compute o (B, H, N, width / 2), int32 elements with two 16-bit values each, and log_sum (B, H, N),
        float32.

        q: (B, H, N, width), 16-bit values as int16.
        k, v: (B, H, N_k, width), 16-bit values as int16.
        window: (left, right), both finite.
        """
        q_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        k_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        v_tiles = cuda.shared.array((two_tiles, pitch), int16, alignment=16)
        qs = cuda.local.array(q_numbers, uint32)
        s = cuda.local.array(s_numbers, float32)
        os = cuda.local.array(o_numbers, float32)
        m, l = cuda.local.array(row_numbers, float32), cuda.local.array(row_numbers, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        n_keys = k.shape[2]
        i0 = row_tile(serpentine) * rows
        warp_row = warp * (m_tiles * 16)
        my_row, my_column = i0 + warp_row + (lane >> 2), (lane & 3) * 2
        left, right = window
        right = 0 if causal else right
        begin = max(0, i0 - left) // keys * keys if windowed else 0
        seen = min(n_keys, i0 + rows + right) if causal or windowed else n_keys
        factor = scale * LOG2E
        # Accumulator layout of `mma`: lane l holds rows l / 4 and l / 4 + 8 of each tile, and columns 2 (l %
        # 4) and 2 (l % 4) + 1 of each 8-column block.
        # 1. copy the queries and the first tile of keys and values
        copy_queries(q_tile, 0, q, batch, head, i0)
        copy(k_tiles, 0, k, batch, head, begin)
        copy(v_tiles, 0, v, batch, head, begin)
        cp_async_commit()
        for piece in range(m_tiles):
            for x in range(d_tiles * 4):
                os[piece * d_tiles * 4 + x] = float32(0)
        for r in range(row_numbers):
            m[r], l[r] = MINUS_INFINITY, float32(0)
        cp_async_wait_0()
        cuda.syncthreads()
        if q_held:
            for d in range(depth):
                load_queries(qs, d * m_tiles * 4, q_tile, d, warp_row)
        place = 0  # first row of the current buffer: 0 or keys
        for j0 in range(begin, seen, keys):
            cp_async_wait_0()
            cuda.syncthreads()
            # This tile has arrived, and all warps have finished with the other buffer: copy the next tile
            # into it.
            if j0 + keys < seen:
                copy(k_tiles, keys - place, k, batch, head, j0 + keys)
                copy(v_tiles, keys - place, v, batch, head, j0 + keys)
                cp_async_commit()
            # 2. compute S; only tiles at an edge need masking
            add_scores(s, qs, q_tile, warp_row, k_tiles, place)
            if j0 + keys > n_keys or at_an_edge(j0, i0 + warp_row, causal, left, right):
                for piece in range(m_tiles):
                    for tile in range(n_tiles):
                        for e in range(4):
                            j = j0 + tile * 8 + my_column + (e & 1)
                            i = my_row + piece * 16 + (e >> 1) * 8
                            if j >= n_keys or hidden(i, j, causal, left, right):
                                s[(piece * n_tiles + tile) * 4 + e] = MINUS_INFINITY
            # 3. update the softmax and O; s becomes P in place, without passing through shared memory
            soften(s, m, l, os, factor)
            add_values(os, s, v_tiles, place)
            place = keys - place
        # 4. normalise and store each row
        for r in range(row_numbers):
            i = my_row + (r >> 1) * 16 + (r & 1) * 8
            store_row(o, log_sum, batch, head, i, os, r, m[r], l[r], factor)

    return flash_tensor_kernel


def flash_tensor_forward(q, k, v, causal, scale, window, run=None):
    """Launch the kernel, and return (O, L).

    q, k, v: bfloat16 or float16, contiguous and already checked. O has the shape and dtype of q.
    """
    key = (flash_tensor_kernel, q.shape, k.shape, q.dtype, q.device, causal, scale, window)
    found = relaunched(key, q, k, v) if run is None else None
    if found:
        return found
    width = tensor_width(q.shape[3])
    kernel = flash_tensor_kernel(width, kind_of(q), WARPS, PIECES, KEYS[width], window != EVERYTHING)
    work = Work(WARPS * PIECES * 16, WARPS * 32)
    window = window.within(q.shape[2], k.shape[2])
    return launch_on_tensor_cores(kernel, work, q, k, v, (window,), scale, causal, run, (key, (q, k, v)))
