"""Convolutional attention, forward kernel on tensor cores: bfloat16 or float16 data, float32 accumulators.

The formulas are the same as in `conv_forward`. S0 never leaves the registers:

    rows       The four lanes of a quad own `strip` adjacent queries, and compute S0 for the P_q queries
               above them, too. So row i + a of S0 is in another register of the same lane. `mma` accepts
               any 16 rows as its matrix: here, rows 2t and 2t + 1 of each quad's strip, for the 8 quads. Q
               is stored in shared memory in that order
    columns    Multiplying 16 (or 24) adjacent columns of S0 by a banded matrix of taps,
               B[j', j] = w[a, j' - j], yields the contribution of row shift a to T of eight keys. Output
               columns start P_k to the right of input columns, so that the window lies inside. The part of
               S0 that the next iteration needs stays in registers

Each strip recomputes S0 of the P_q rows above it, so Q Kᵀ needs (strip + P_q) / strip times as many
operations. S0 and the taps are rounded to 16 bits.
Sources: Golovneva et al. 2025, arXiv 2504.00927 (convolution); Dao 2023, arXiv 2307.08691, Algorithm 1 (the
    loop).

    grid    see `kernels.tensor_cores.launch`
    block   WARPS · 32 threads, WARPS · 8 · strip queries; 255 registers (sm_90)
    shared  about (WARPS · 8 · strip + P_q + 4 · KEYS) · (d + 8) · 2 bytes
    cost    multiply-adds per score: d · (strip + P_q) / strip, then 16 · c_q (24 for c_k > 9), then d
"""

import functools

from numba import cuda
from numpy import float32, int16, int32, uint32

from kernels.common.extent import WHOLE
from kernels.common.tiles import MINUS_INFINITY
from kernels.tensor_cores.instructions import cp_async_16, cp_async_commit, cp_async_wait_0, ldmatrix_x4
from kernels.tensor_cores.launch import (
    Work,
    kind_of,
    launch_on_tensor_cores,
    relaunched,
    taps_operand,
    tensor_width,
)
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    CHUNK,
    LOG2E,
    PADDING,
    clamped,
    row_storer,
    row_tile,
    softener,
    tap_loader,
    tile_copier,
    value_adder,
    window_of,
)

WARPS = 4  # warps per block
KEYS = 64  # keys per tile
TWO_TILES = 2 * KEYS


@functools.cache
def conv_tensor_kernel(
    width, kind, warps, strip, c_q, c_k, step_keys=16, max_registers=None, bits=False, parts=False
):
    """Return the kernel for rows of `width` elements and (c_q, c_k) taps.

    strip: adjacent rows per quad.
    step_keys: keys per iteration.
    bits: the taps are 16-bit values as int16, instead of float32.
    parts: q, k and v are parts of a sequence with halos, and o is float32. Otherwise they are a whole
        sequence, and `extent` is ignored.

    These variables count blocks of eight keys: `window`, the blocks of S0 that one block of T depends on;
        `new`, the blocks per iteration; `held`, the blocks in registers. `shift` is the distance from the
        first new key of S0 to the first key of T in an iteration.
    """
    mma, mma_k8, pack = ARITHMETIC[kind]
    # Apply the scale before rounding S0, because of the small range of float16. For bfloat16 it is part of
    # the softmax's factor.
    scaled = kind == "float16"
    above, left = c_q - 1, (c_k - 1) // 2
    window, new = window_of(c_k), step_keys // 8
    held, shift = new + window - 1, left - 8 * (window - 1)
    rows, pitch, threads = warps * strip * 8, width + PADDING, warps * 32
    depth, d_tiles, m_tiles = width // 16, width // 8, strip // 2
    s_tiles = (strip + above + 1) // 2
    groups = -(-(rows + 2 * s_tiles - strip) // strip)
    chunks, q_places = width // CHUNK, strip * groups
    s_numbers, o_numbers, t_numbers = 2 * s_tiles * held, m_tiles * d_tiles * 4, m_tiles * new * 4
    b_numbers, c_numbers = new * 2, s_tiles * new * 4
    tap_numbers = c_q * window
    copy, load_taps = tile_copier(KEYS, width, threads), tap_loader(kind, c_q, c_k, bits)
    soften = softener(m_tiles, new, d_tiles)
    add_values = value_adder(kind, m_tiles, new, d_tiles)
    store_row = row_storer(kind, d_tiles, parts)

    @cuda.jit(device=True)
    def copy_queries(q_tile, q, batch, head, i0):
        """Start to copy the block's queries and the P_q rows above them, in the row order of `mma`."""
        n = q.shape[2]
        for part in range(cuda.threadIdx.x, q_places * chunks, threads):
            # row r · groups + g of the tile holds row r of quad g's strip
            place, c = part // chunks, part % chunks * CHUNK
            i = i0 - above + place % groups * strip + place // groups
            inside = 0 <= i and i < n
            row = i if inside else 0
            cp_async_16(q_tile, (place, c), q, (batch, head, row, c), int32(16) if inside else int32(0))

    @cuda.jit(device=True)
    def add_scores(c, q_tile, q_row, q_column, k_tiles, k_row, k_column):
        """Compute c = Q Kᵀ for the warp's rows with their halo and the keys of one iteration."""
        b = cuda.local.array(b_numbers, uint32)
        for tile in range(s_tiles):
            for x in range(new * 4):
                c[tile * new * 4 + x] = float32(0)
        for d in range(depth):
            for pair in range(new // 2):
                x = pair * 4
                b[x], b[x + 1], b[x + 2], b[x + 3] = ldmatrix_x4(
                    k_tiles, (k_row + pair * 16, k_column + d * 16)
                )
            for tile in range(s_tiles):
                place = q_row + 2 * tile % strip * groups + 2 * tile // strip
                a0, a1, a2, a3 = ldmatrix_x4(q_tile, (place, q_column + d * 16))
                for block in range(new):
                    x, y = (tile * new + block) * 4, block * 2
                    c[x], c[x + 1], c[x + 2], c[x + 3] = mma(
                        a0, a1, a2, a3, b[y], b[y + 1], c[x], c[x + 1], c[x + 2], c[x + 3]
                    )

    @cuda.jit(device=True)
    def convolve(t, s, taps):
        """Compute T of the warp's rows in t: for each row shift a, multiply the window of S0 by the band of
        taps."""
        for x in range(t_numbers):
            t[x] = float32(0)
        for a in range(c_q):
            for block in range(new):
                for tile in range(m_tiles):
                    x, y = (2 * tile + a) * held + block, (tile * new + block) * 4
                    t[y], t[y + 1], t[y + 2], t[y + 3] = mma(
                        s[x], s[x + held], s[x + 1], s[x + held + 1], taps[a * window], taps[a * window + 1],
                        t[y], t[y + 1], t[y + 2], t[y + 3],
                    )  # fmt: skip
                    if window == 3:  # the third block of the window, with an `mma` of half the depth
                        t[y], t[y + 1], t[y + 2], t[y + 3] = mma_k8(
                            s[x + 2], s[x + held + 2], taps[a * window + 2],
                            t[y], t[y + 1], t[y + 2], t[y + 3],
                        )  # fmt: skip

    @cuda.jit(max_registers=max_registers)
    def conv_tensor_kernel(q, k, v, w, extent, scale, causal, serpentine, o, log_sum):
        """Compute o (B, H, N, width / 2), int32 elements with two 16-bit values each, and log_sum (B, H, N),
        float32. With `parts`, o is (B, H, N, width), float32.

        q, k, v: (B, H, ..., width), 16-bit values as int16.
        w: (H, c_q, c_k), float32 or int16.
        extent: kernels.common.extent.Extent, the owned queries and keys.
        """
        q_tile = cuda.shared.array((q_places, pitch), int16, alignment=16)
        k_tiles = cuda.shared.array((TWO_TILES, pitch), int16, alignment=16)
        v_tiles = cuda.shared.array((TWO_TILES, pitch), int16, alignment=16)
        taps = cuda.local.array(tap_numbers, uint32)
        s = cuda.local.array(s_numbers, uint32)
        c = cuda.local.array(c_numbers, float32)
        t = cuda.local.array(t_numbers, float32)
        os = cuda.local.array(o_numbers, float32)
        m, l = cuda.local.array(strip, float32), cuda.local.array(strip, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        # Keys are numbered by their row of k, and n is the end of the owned keys. A query has the number of
        # the last key that the causal mask lets it see: owned query i has the number i + diagonal.
        first_query, first_key, diagonal = 0, 0, 0
        n = q.shape[2]
        if parts:
            first_query, first_key, diagonal = extent
            diagonal += first_key
            n = first_key + v.shape[2]
        v_shift = shift - first_key if parts else shift
        i0 = row_tile(serpentine) * rows + diagonal
        warp_row = i0 + warp * (strip * 8)
        my_row, my_column = warp_row + (lane >> 2) * strip, (lane & 3) * 2
        # the row and column of the matrix elements whose addresses this lane passes to ldmatrix
        q_row, q_column = (lane >> 3 & 1) * groups + warp * 8 + (lane & 7), (lane >> 4) * 8
        k_row, k_column = (lane & 7) + (lane >> 4) * 8, (lane >> 3 & 1) * 8
        seen = min(n, i0 + rows) if causal else n
        factor = LOG2E if scaled else scale * LOG2E
        # 1. copy the queries and the first tile, load the taps
        copy_queries(q_tile, q, batch, head, first_query + i0 - diagonal)
        copy(k_tiles, 0, k, batch, head, 0)
        copy(v_tiles, 0, v, batch, head, v_shift)
        cp_async_commit()
        load_taps(taps, w, head)
        for x in range(s_numbers):
            s[x] = uint32(0)
        for x in range(o_numbers):
            os[x] = float32(0)
        for r in range(strip):
            m[r], l[r] = MINUS_INFINITY, float32(0)
        for first in range(0, seen - shift, step_keys):
            place = first & (2 * KEYS - 1)  # the row in the double buffer
            # start of a tile: wait until it has arrived and the other buffer is free
            if place & (KEYS - 1) == 0:
                cp_async_wait_0()
                cuda.syncthreads()
                if first + KEYS + shift < seen:
                    copy(k_tiles, KEYS - place, k, batch, head, first + KEYS)
                    copy(v_tiles, KEYS - place, v, batch, head, first + KEYS + v_shift)
                    cp_async_commit()
            out = first + shift
            # skip if all keys are in the future of this warp's queries
            if not causal or out < warp_row + strip * 8:
                edge = (
                    out < first_key
                    or out + step_keys > n
                    or causal
                    and first + step_keys > warp_row - above + 1
                )
                # 2. compute S0 of the next keys, 0 where masked
                add_scores(c, q_tile, q_row, q_column, k_tiles, k_row + place, k_column)
                if edge and causal:
                    for tile in range(s_tiles):
                        for block in range(new):
                            for e in range(4):
                                i = my_row - above + 2 * tile + (e >> 1)
                                if first + block * 8 + my_column + (e & 1) > i:
                                    c[(tile * new + block) * 4 + e] = float32(0)
                for tile in range(s_tiles):
                    for block in range(new):
                        x, y = (tile * new + block) * 4, 2 * tile * held + window - 1 + block
                        if scaled:
                            for e in range(4):
                                c[x + e] = clamped(c[x + e] * scale)
                        s[y], s[y + held] = pack(c[x], c[x + 1]), pack(c[x + 2], c[x + 3])
                # 3. compute T, -inf where masked; then move S0 of the last window - 1 blocks to the front
                convolve(t, s, taps)
                for row in range(2 * s_tiles):
                    for block in range(window - 1):
                        s[row * held + block] = s[row * held + block + new]
                if edge:
                    for tile in range(m_tiles):
                        for block in range(new):
                            for e in range(4):
                                i = my_row + 2 * tile + (e >> 1)
                                j = out + block * 8 + my_column + (e & 1)
                                if j < first_key or j >= n or causal and j > i:
                                    t[(tile * new + block) * 4 + e] = MINUS_INFINITY
                # 4. update the softmax and O; P stays in the registers of T
                soften(t, m, l, os, factor)
                add_values(os, t, v_tiles, place)
        # 5. normalise and store each row
        for r in range(strip):
            store_row(o, log_sum, batch, head, my_row - diagonal + r, os, r, m[r], l[r], factor)

    return conv_tensor_kernel


def shape_of(width, c_q, c_k):
    """Return (strip, keys per iteration): the largest values that fit in the registers, as measured."""
    if width > 64:
        return 2, 32
    return (4, 32) if c_q < 9 and c_k <= 9 else (4, 16)


def conv_tensor_forward(q, k, v, w, causal, scale, run=None):
    """Launch the kernel, and return (O, L).

    q, k, v, w: bfloat16 or float16 tensors and their taps, contiguous and already checked. The taps are
        rounded to the dtype of q. O has the shape and dtype of q.
    """
    key = (conv_tensor_kernel, q.shape, w.shape, q.dtype, w.dtype, q.device, causal, scale)
    found = relaunched(key, q, k, v, w) if run is None else None
    if found:
        return found
    width, (c_q, c_k) = tensor_width(q.shape[3]), w.shape[1:]
    strip, step_keys = shape_of(width, c_q, c_k)
    taps, bits = taps_operand(w, q)
    kernel = conv_tensor_kernel(width, kind_of(q), WARPS, strip, c_q, c_k, step_keys, bits=bits)
    work, given = Work(WARPS * strip * 8, WARPS * 32), (taps, WHOLE)
    return launch_on_tensor_cores(kernel, work, q, k, v, given, scale, causal, run, (key, (q, k, v, w)))
