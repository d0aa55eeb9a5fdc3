"""Convolutional attention, backward: one kernel for dQ and dW, one for dK and dV.

Each block of the first kernel owns a tile of queries; each block of the second owns a tile of keys. With L, D
= rowsum(dO * O), and S0 and T as in conv/forward.py, for one head:

    P         = exp(T - L), 0 where masked
    dT        = P * (dO·vᵀ - D)
    dW[a, b]  = Σ_ij dT[i, j] · S0[i - P_q + a, j - P_k + b]
    dS[r, c]  = Σ_ab w[a, b] · dT[r + P_q - a, c + P_k - b], 0 where masked
    dQ, dK    = scale · dS k, scale · dSᵀ q
    dV        = Pᵀ dO

A score contributes to T of the queries below it and of the keys on both sides, so its gradient depends on dT
of all these entries, and the tile needs a halo on every side. A tile of size × size scores owns size - 2·P_q
rows and size - 2·(c_k - 1) columns:

    S0    rows [i0 - P_q, i0 + rows + P_q)    columns [j0 - (c_k - 1), j0 + columns + (c_k - 1))
    dT    rows [i0, i0 + rows + P_q)          columns [j0 - P_r, j0 + columns + P_k)
    dS    rows [i0, i0 + rows)                columns [j0, j0 + columns)

Each of these starts at index (0, 0) of its shared tile, so the owned columns start at P_r in dT and at 0 in
dS. Only owned scores are summed into dW, dK and dV.
Sources: as in conv/forward.py; Dao 2023, arXiv 2307.08691, Algorithm 2 (L and D).

    grid    (B · H, ⌈N / owned⌉)        block   (size / 4)² threads: 256 for size 64
    shared  2 · size · (size + 9) + 2 · size · 12 + 512 + 2 · 16² floats, static: 46.5 KiB
    cost    (3·d + 3·c_q·c_k) and (4·d + 2·c_q·c_k) multiply-adds per score, and more for recomputed halos
"""

import functools

from numba import cuda
from numpy import float32

from kernels.common.arguments import ANY_FLOAT, HALVES, backward_arguments
from kernels.common.extent import WHOLE
from kernels.common.launch import launch, output, repeated, width_for
from kernels.common.strips import MOST_REGISTERS, STRIP, TAPS, add_tap_gradients, load_taps
from kernels.common.tiles import GROUP
from kernels.conv.backward_tiles import recompute_tile, score_gradients, store_strips
from kernels.conv.banded_backward import conv_banded_backward, supports
from kernels.conv.tensor_backward import conv_tensor_backward
from kernels.conv.tensor_parts import conv_parts_backward
from kernels.conv.tiles import (
    NUMBERS,
    PADDING,
    PATCH,
    add_weighted_columns,
    add_weighted_rows,
    check_size,
    clear,
    copy_rows,
    store_rows,
    threads_of,
)

SIZE = 64
CHUNK_WORDS = 8 + GROUP  # words per row of a chunk; larger chunks would exceed 48 KiB of shared memory


# Kernels ----------------------------------------------------------------------------------------------------


@functools.cache
def queries_kernel(width, size):
    """Return the kernel for dQ and dW, for rows of at most `width` elements and tiles of `size` × `size`."""
    step, pitch, threads = size // PATCH, size + PADDING, threads_of(size)
    patch_numbers = PATCH * (width // step)
    rows_at_a_time = min(16, 512 // width)

    @cuda.jit(max_registers=MOST_REGISTERS)
    def conv_backward_queries_kernel(q, k, v, w, log_sum, d, d_o, scale, causal, extent, d_q, d_w):
        """Store dQ in d_q, and add dW to d_w.

        q, k, v, d_o: (B, H, ..., d).
        w: (H, c_q, c_k).
        log_sum, d: (B, H, N), L and D.
        extent: kernels.common.extent.Extent.
        d_q: like q.
        d_w: (R, H, c_q, c_k). Block b of a head adds to d_w[b % R]. R = 1 yields one sum; R = the number of
            blocks yields deterministic partial sums.
        """
        s_tile, g_tile = cuda.shared.array((size, pitch), float32), cuda.shared.array((size, pitch), float32)
        a_chunk = cuda.shared.array((size, CHUNK_WORDS), float32, alignment=16)
        b_chunk = cuda.shared.array((size, CHUNK_WORDS), float32, alignment=16)
        rows_chunk = cuda.shared.array((rows_at_a_time, width), float32, alignment=16)
        taps = cuda.shared.array((TAPS, TAPS), float32, alignment=16)
        flipped = cuda.shared.array((TAPS, TAPS), float32, alignment=16)
        d_q_patch = cuda.local.array(patch_numbers, float32)
        strip = cuda.local.array(NUMBERS, float32)
        tap_sums = cuda.local.array(STRIP, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        q_rows, k_rows, v_rows, d_o_rows = q[batch, head], k[batch, head], v[batch, head], d_o[batch, head]
        n, keys, c_q, c_k = q.shape[2], k.shape[2], w.shape[1], w.shape[2]
        first_query, first_key, owned_diagonal = extent
        diagonal = first_key - first_query + owned_diagonal
        rows, columns, right = size - 2 * (c_q - 1), size - 2 * (c_k - 1), c_k - 1 - (c_k - 1) // 2
        i0 = (cuda.gridDim.y - 1 - cuda.blockIdx.y) * rows
        # 1. Load the taps. This thread computes the gradient of STRIP taps of one row, over every parts-th
        #    row of the tile.
        clear(s_tile)
        clear(g_tile)
        load_taps(taps, w[head], False)
        load_taps(flipped, w[head], True)
        strips_of_taps = (c_k + STRIP - 1) // STRIP
        parts = cuda.blockDim.x // (c_q * strips_of_taps)
        mine, part = cuda.threadIdx.x // parts, cuda.threadIdx.x % parts
        a, b = mine // strips_of_taps, mine % strips_of_taps * STRIP
        for x in range(STRIP):
            tap_sums[x] = float32(0)
        for x in range(patch_numbers):
            d_q_patch[x] = float32(0)
        # all threads have cleared s_tile; this barrier is needed even if no query sees a key, because step 5
        # still writes to s_tile
        cuda.syncthreads()
        last_key = min(keys, i0 + rows + diagonal) if causal else keys
        for j0 in range(0, last_key, columns):
            # 2. compute S0 and dO·vᵀ, and from them dT
            recompute_tile(
                strip, s_tile, g_tile, taps, q_rows, k_rows, v_rows, d_o_rows, log_sum[batch, head],
                d[batch, head], i0, j0, scale, causal, extent, c_q, c_k, a_chunk, b_chunk,
            )  # fmt: skip
            # 3. compute dW and dS, and store dS over S0
            if a < c_q:
                add_tap_gradients(
                    tap_sums,
                    g_tile,
                    s_tile,
                    a,
                    b,
                    part,
                    parts,
                    min(rows, n - i0),
                    right,
                    right + min(columns, keys - j0),
                )
            score_gradients(
                strip, g_tile, flipped, i0, j0, rows, columns, n, keys, causal, diagonal, c_q, c_k
            )
            cuda.syncthreads()
            store_strips(s_tile, strip, rows, 0, columns)
            # 4. dQ += dS k
            for first in range(0, min(columns, last_key - j0), rows_at_a_time):
                copy_rows(rows_chunk, width, k_rows, j0 + first, 0, threads)
                cuda.syncthreads()
                add_weighted_rows(d_q_patch, s_tile, first, 0, rows_chunk)
                cuda.syncthreads()
        store_rows(d_q[batch, head], i0, rows, scale, d_q_patch, step)
        # 5. add the partial sums of each tap in a fixed order, then add one total per tap to d_w
        for x in range(STRIP):
            if a < c_q:
                s_tile[cuda.threadIdx.x // size, cuda.threadIdx.x % size] = tap_sums[x]
            cuda.syncthreads()
            if a < c_q and part == 0 and b + x < c_k:
                total = float32(0)
                for other in range(mine * parts, (mine + 1) * parts):
                    total += s_tile[other // size, other % size]
                block = batch * cuda.gridDim.y + cuda.blockIdx.y
                cuda.atomic.add(d_w, (block % d_w.shape[0], head, a, b + x), total)
            cuda.syncthreads()

    return conv_backward_queries_kernel


@functools.cache
def keys_kernel(width, size):
    """Return the kernel for dK and dV, for rows of at most `width` elements and tiles of `size` × `size`."""
    step, pitch, threads = size // PATCH, size + PADDING, threads_of(size)
    patch_numbers = PATCH * (width // step)
    rows_at_a_time = min(16, 512 // width)

    @cuda.jit(max_registers=MOST_REGISTERS)
    def conv_backward_keys_kernel(q, k, v, w, log_sum, d, d_o, scale, causal, extent, d_k, d_v):
        """Store dK in d_k, shaped like k, and dV in d_v, shaped like v.

        The other arguments are the same as for the kernel for dQ and dW.
        """
        s_tile, g_tile = cuda.shared.array((size, pitch), float32), cuda.shared.array((size, pitch), float32)
        a_chunk = cuda.shared.array((size, CHUNK_WORDS), float32, alignment=16)
        b_chunk = cuda.shared.array((size, CHUNK_WORDS), float32, alignment=16)
        rows_chunk = cuda.shared.array((rows_at_a_time, width), float32, alignment=16)
        taps = cuda.shared.array((TAPS, TAPS), float32, alignment=16)
        flipped = cuda.shared.array((TAPS, TAPS), float32, alignment=16)
        d_k_patch, d_v_patch = (
            cuda.local.array(patch_numbers, float32),
            cuda.local.array(patch_numbers, float32),
        )
        strip = cuda.local.array(NUMBERS, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        q_rows, k_rows, v_rows, d_o_rows = q[batch, head], k[batch, head], v[batch, head], d_o[batch, head]
        n, keys, c_q, c_k = q.shape[2], k.shape[2], w.shape[1], w.shape[2]
        first_query, first_key, owned_diagonal = extent
        diagonal = first_key - first_query + owned_diagonal
        rows, columns, right = size - 2 * (c_q - 1), size - 2 * (c_k - 1), c_k - 1 - (c_k - 1) // 2
        j0 = cuda.blockIdx.y * columns
        # 1. load the taps
        clear(s_tile)
        clear(g_tile)
        load_taps(taps, w[head], False)
        load_taps(flipped, w[head], True)
        for x in range(patch_numbers):
            d_k_patch[x] = d_v_patch[x] = float32(0)
        # 2. loop over the tiles of rows in which some query sees a key of this block
        for i0 in range(max(0, j0 - diagonal) // rows * rows if causal else 0, n, rows):
            recompute_tile(
                strip, s_tile, g_tile, taps, q_rows, k_rows, v_rows, d_o_rows, log_sum[batch, head],
                d[batch, head], i0, j0, scale, causal, extent, c_q, c_k, a_chunk, b_chunk,
            )  # fmt: skip
            # 3. store P over S0, and dS over dT
            store_strips(s_tile, strip, rows, right, right + columns)
            score_gradients(
                strip, g_tile, flipped, i0, j0, rows, columns, n, keys, causal, diagonal, c_q, c_k
            )
            cuda.syncthreads()
            store_strips(g_tile, strip, rows, 0, columns)
            # 4. dV += Pᵀ dO and dK += dSᵀ q
            for first in range(0, min(rows, n - i0), rows_at_a_time):
                copy_rows(rows_chunk, width, d_o_rows, i0 - first_query + first, 0, threads)
                cuda.syncthreads()
                add_weighted_columns(d_v_patch, s_tile, first, right, rows_chunk)
                cuda.syncthreads()
                copy_rows(rows_chunk, width, q_rows, i0 + first, 0, threads)
                cuda.syncthreads()
                add_weighted_columns(d_k_patch, g_tile, first, 0, rows_chunk)
                cuda.syncthreads()
        store_rows(d_k[batch, head], j0, columns, scale, d_k_patch, step)
        store_rows(d_v[batch, head], j0 - first_key, columns, float32(1), d_v_patch, step)

    return conv_backward_keys_kernel


# Host -------------------------------------------------------------------------------------------------------


def conv_backward(
    q,
    k,
    v,
    w,
    o,
    log_sum,
    d_o,
    causal=True,
    scale=None,
    wanted=(True, True, True, True),
    deterministic=False,
    run=None,
    size=SIZE,
    extent=None,
):
    """Return (dQ, dK, dV, dW), the gradients of convolutional attention, in the shapes of q, k, v and w.

    q, k, v, w, causal, scale: the arguments of `conv_forward`.
    o, log_sum: the results of `conv_forward`.
    d_o: the gradient of o, with its shape and dtype.
    wanted: which of the four gradients are needed. The others are returned as None; a kernel is launched only
        if one of its results is needed.
    deterministic: make dW reproducible bit for bit, at some cost in memory and time. The other gradients, and
        dW of 16-bit tensors, are always reproducible.
    size: rows and columns of a tile of float32 scores, 64 or 32.
    extent: as for `conv_forward`. Then o, log_sum and d_o belong to the owned queries, computed over all keys
        of the sequence. Only the owned scores contribute to the gradients; halo rows receive gradients, too.
        o may be float32 for every dtype of q, and all gradients are.

    Raise TypeError or ValueError for an invalid argument; the message states the actual and the expected
    value.
    """
    q, k, v, w, scale, d_o, extent = backward_arguments(q, k, v, w, o, log_sum, d_o, scale, extent, ANY_FLOAT)
    check_size(size)
    statistics = o.detach().contiguous(), log_sum.detach().contiguous()
    return backward(q, k, v, w, *statistics, d_o, causal, scale, wanted, deterministic, run, size, extent)


def backward(
    q, k, v, w, o, log_sum, d_o, causal, scale, wanted, deterministic, run=None, size=SIZE, extent=None
):
    """Return the results of `conv_backward` for checked, contiguous arguments."""
    if q.dtype in HALVES:
        given, options = (q, k, v, w, o, log_sum, d_o), (causal, scale, wanted)
        if extent is not None:
            return conv_parts_backward(*given, *options, extent, run)
        key = backward, q.shape, w.shape, q.dtype, w.dtype, q.device, causal, scale, *wanted
        found = repeated(key, given, log_sum) if run is None else None
        if found is None:
            of_halves = conv_banded_backward if supports(q, w, causal) else conv_tensor_backward
            found = of_halves(*given, *options, run, key=key)
        return found if all(wanted) else tuple(x if want else None for x, want in zip(found, wanted))
    (batch, heads, n, d), keys = q.shape, k.shape[2]
    given = q, k, v, w, log_sum, (d_o * o).sum(-1), d_o, scale, bool(causal), extent or WHOLE
    rows, columns = size - 2 * (w.shape[1] - 1), size - 2 * (w.shape[2] - 1)
    d_q = d_k = d_v = d_w = None
    if wanted[0] or wanted[3]:
        grid = (batch * heads, -(-n // rows))
        d_q, d_w = output(q.shape, like=q), q.new_zeros(grid[1] * batch if deterministic else 1, *w.shape)
        launch(queries_kernel(width_for(d), size), grid, threads_of(size), *given, d_q, d_w, run=run)
        d_w = d_w.sum(0)
    if wanted[1] or wanted[2]:
        d_k, d_v = output(k.shape, like=k), output(v.shape, like=v)
        launch(
            keys_kernel(width_for(d), size),
            (batch * heads, -(-keys // columns)),
            threads_of(size),
            *given,
            d_k,
            d_v,
            run=run,
        )
    return tuple(gradient if want else None for gradient, want in zip((d_q, d_k, d_v, d_w), wanted))
