"""Latent attention, backward kernels on tensor cores: bfloat16 or float16 data, float32 accumulators.

PyTorch computes the projections q̃ = q W_q and g = dO W_vᵀ, so the kernels compute attention with one shared
head of keys and values, in the latent space:

    S_ij = scale · (q̃_i·k̃_j + α [band] k̃_p·q̃_j)   dP_ij = g_i·ṽ_j
    P = exp(S - L), 0 where masked                   dS = P * (dP - D)

A block owns rows of the scores, and loops over their columns. One kernel is compiled in four variants:

    rows are queries   first = scale Σ_j dS k̃_j (dq̃)   second = Σ_j P ṽ_j (õ, for dW_v)
    rows are keys      first = scale Σ_i dS q̃_i (dk̃)   second = Σ_i P g_i (dṽ)
    band, of each      first = scale Σ [band] dS times the rows of the reciprocal term: k̃'s gradient by its
                       queries, and q̃'s gradient by its keys

Rows and columns are numbered by positions: query i has the position p = N_k - N + i. The variants of the band
visit only the columns within the window, and compute S and dS again, because a third accumulator would not
fit in the registers. Each head stores a separate gradient of k̃ and ṽ, and PyTorch adds them, so the results
are reproducible bit for bit.
Sources: as in latent/backward.py.

    grid    (B · H, ⌈rows / (WARPS · PIECES · 16)⌉), blocks with the most work first
    block   WARPS · 32 threads, PIECES · 16 rows per warp
    shared  3 · (rows + 2 · COLUMNS) · (width + 8) · 2 bytes
    cost    4 · L multiply-adds per score in each of the two variants, 5 · L in the band
"""

import functools

import torch
from numba import cuda
from numpy import float32, int16, int32
from torch.nn.functional import pad

from kernels.common.launch import Bits, launch, output, relaunch
from kernels.tensor_cores.instructions import cp_async_4, cp_async_commit, cp_async_wait_0, exp2_approx
from kernels.tensor_cores.launch import check_tensor_cores, kind_of, operand, tensor_width
from kernels.tensor_cores.row_products import row_products
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    LOG2E,
    PADDING,
    clamped,
    product_maker,
    tile_copier,
    value_adder,
)

WARPS, COLUMNS = 4, 32
PIECES = 1  # tiles of 16 rows per warp; with 2, the spills cost 7 % of the time


@functools.cache
def latent_gradient_kernel(width, kind, of_keys, band_only, pieces):
    """Return the kernel for rows of `width` elements.

    of_keys: rows are keys and columns are queries.
    band_only: compute only the sums of the reciprocal term.
    pieces: tiles of 16 rows per warp.
    """
    pack, scaled = ARITHMETIC[kind].pack, kind == "float16"
    rows, threads, pitch = WARPS * pieces * 16, WARPS * 32, width + PADDING
    n_tiles, d_tiles, depth, two_steps = COLUMNS // 8, width // 8, width // 16, 2 * COLUMNS
    numbers, sum_numbers = pieces * n_tiles * 4, pieces * d_tiles * 4
    second_numbers = 1 if band_only else sum_numbers
    of_columns, statistics = two_steps if of_keys else 1, 4 * pieces
    copy_rows, copy = tile_copier(rows, width, threads), tile_copier(COLUMNS, width, threads)
    multiply = product_maker(kind, pieces, n_tiles, depth)
    add_products = value_adder(kind, pieces, n_tiles, d_tiles)

    @cuda.jit(device=True)
    def row_of(z):
        """Return the row of a lane's accumulator z, relative to the warp's first row."""
        return z // (n_tiles * 4) * 16 + (z >> 1 & 1) * 8 + ((cuda.threadIdx.x & 31) >> 2)

    @cuda.jit(device=True)
    def column_of(z):
        """Return the column of a lane's accumulator z, relative to the iteration's first column."""
        return (z >> 2) % n_tiles * 8 + (z & 1) + (cuda.threadIdx.x & 3) * 2

    @cuda.jit(device=True)
    def distance(row, column):
        """Return the distance from the key to the query of a score."""
        return column - row if of_keys else row - column

    @cuda.jit(device=True)
    def touches_band(row, count, column, window):
        """Return whether `count` rows and COLUMNS columns contain a score of the band."""
        if of_keys:
            return row < column + COLUMNS and column < row + count - 1 + window
        return column < row + count and row < column + COLUMNS - 1 + window

    @cuda.jit(device=True)
    def copy_numbers(tile, base, log_sum, delta, batch, head, first):
        """Start to copy L and D for the columns of an iteration."""
        n = log_sum.shape[2]
        for part in range(cuda.threadIdx.x, two_steps, threads):
            j = first + part % COLUMNS
            inside = 0 <= j and j < n
            place, valid = (batch, head, j if inside else 0), int32(4) if inside else int32(0)
            if part < COLUMNS:
                cp_async_4(tile, (0, base + part), log_sum, place, valid)
            else:
                cp_async_4(tile, (1, base + part - COLUMNS), delta, place, valid)

    @cuda.jit(device=True)
    def store(out, batch, head, first, sums, factor):
        """Store factor · sums in the warp's rows of out (B, H, R, width), float32."""
        lane = cuda.threadIdx.x & 31
        for x in range(0, sum_numbers, 2):
            i = first + x // (d_tiles * 4) * 16 + (x >> 1 & 1) * 8 + (lane >> 2)
            c = (x >> 2) % d_tiles * 8 + (lane & 3) * 2
            if i < out.shape[2]:
                out[batch, head, i, c] = sums[x] * factor
                out[batch, head, i, c + 1] = sums[x + 1] * factor

    @cuda.jit(device=True)
    def store_16_bits(out, batch, head, first, sums):
        """Store the sums in the warp's rows of out (B, H, R, width / 2), two 16-bit values per int32."""
        lane = cuda.threadIdx.x & 31
        for x in range(0, sum_numbers, 2):
            i = first + x // (d_tiles * 4) * 16 + (x >> 1 & 1) * 8 + (lane >> 2)
            if i < out.shape[2]:
                both = pack(sums[x], sums[x + 1])
                out[batch, head, i, (x >> 2) % d_tiles * 4 + (lane & 3)] = int32(both)

    @cuda.jit
    def latent_gradient_kernel(q, g, k, v, log_sum, delta, alpha, window, scale, causal, first, second):
        """Store the sums in first and second, (B, H, N or N_k, width).

        first is float32. second is float32 for rows of keys, and has two 16-bit values per int32 for rows of
        queries. A variant of the band has no second sums.

        q: (B, H, M, width), q̃, 16-bit values as int16, like the following tensors.
        g: (B, H, N, width).
        k, v: (B, 1, N_k, width).
        log_sum, delta: (B, H, N), L and D.
        alpha: (1,), float32.
        """
        x_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        x2_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        band_x_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        y_tiles = cuda.shared.array((two_steps, pitch), int16, alignment=16)
        y2_tiles = cuda.shared.array((two_steps, pitch), int16, alignment=16)
        band_y_tiles = cuda.shared.array((two_steps, pitch), int16, alignment=16)
        column_numbers = cuda.shared.array((2, of_columns), float32)
        s, d_s = cuda.local.array(numbers, float32), cuda.local.array(numbers, float32)
        sums, sums2 = cuda.local.array(sum_numbers, float32), cuda.local.array(second_numbers, float32)
        row_numbers = cuda.local.array(statistics, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        warp_row = (cuda.threadIdx.x >> 5) * (pieces * 16)
        n, n_keys = g.shape[2], k.shape[2]
        # the positions of the first row of q and of the first query
        missing, before = n_keys - q.shape[2], n_keys - n
        tile = cuda.blockIdx.y if of_keys else cuda.gridDim.y - 1 - cuda.blockIdx.y
        row0 = tile * rows + (0 if of_keys else before)
        # 1. the columns that a row of this block sees
        begin, end = before if of_keys else 0, n_keys
        if causal:
            begin, end = (max(begin, row0), end) if of_keys else (begin, min(end, row0 + rows))
        if band_only and of_keys:
            begin, end = max(begin, row0), min(end, row0 + rows - 1 + window)
        if band_only and not of_keys:
            begin, end = max(begin, row0 - window + 1), min(end, row0 + rows)
        factor = scale * LOG2E
        # 2. copy the rows and the first columns
        if of_keys:
            copy_rows(x_tile, 0, k, batch, 0, row0)
            copy_rows(x2_tile, 0, v, batch, 0, row0)
            copy(y_tiles, 0, q, batch, head, begin - missing)
            copy(y2_tiles, 0, g, batch, head, begin - before)
            copy_numbers(column_numbers, 0, log_sum, delta, batch, head, begin - before)
        else:
            copy_rows(x_tile, 0, q, batch, head, row0 - missing)
            copy_rows(x2_tile, 0, g, batch, head, row0 - before)
            copy(y_tiles, 0, k, batch, 0, begin)
            copy(y2_tiles, 0, v, batch, 0, begin)
        if window > 0:
            if of_keys:
                copy_rows(band_x_tile, 0, q, batch, head, row0 - missing)
                copy(band_y_tiles, 0, k, batch, 0, begin)
            else:
                copy_rows(band_x_tile, 0, k, batch, 0, row0)
                copy(band_y_tiles, 0, q, batch, head, begin - missing)
        cp_async_commit()
        for x in range(sum_numbers):
            sums[x] = float32(0)
        for x in range(second_numbers):
            sums2[x] = float32(0)
        for r in range(2 * pieces):
            i = row0 - before + warp_row + r // 2 * 16 + (r & 1) * 8 + ((cuda.threadIdx.x & 31) >> 2)
            inside = not of_keys and i < n
            row_numbers[2 * r] = log_sum[batch, head, i] if inside else float32(0)
            row_numbers[2 * r + 1] = delta[batch, head, i] if inside else float32(0)
        place, row = 0, row0 + warp_row
        for column in range(begin, end, COLUMNS):
            cp_async_wait_0()
            cuda.syncthreads()  # the columns have arrived, and all warps have finished with the other buffer
            following, other = column + COLUMNS, COLUMNS - place
            if following < end:
                if of_keys:
                    copy(y_tiles, other, q, batch, head, following - missing)
                    copy(y2_tiles, other, g, batch, head, following - before)
                    copy_numbers(column_numbers, other, log_sum, delta, batch, head, following - before)
                else:
                    copy(y_tiles, other, k, batch, 0, following)
                    copy(y2_tiles, other, v, batch, 0, following)
                if window > 0 and touches_band(row0, rows, following, window):
                    if of_keys:
                        copy(band_y_tiles, other, k, batch, 0, following)
                    else:
                        copy(band_y_tiles, other, q, batch, head, following - missing)
                cp_async_commit()
            first_distance = distance(row, column + COLUMNS - 1)
            last_distance = distance(row + pieces * 16 - 1, column)
            if of_keys:
                first_distance, last_distance = (
                    distance(row + pieces * 16 - 1, column),
                    distance(row, column + COLUMNS - 1),
                )
            # skip columns that the causal mask hides from all rows of the warp
            if not causal or last_distance >= 0:
                # 3. compute S, with the reciprocal term
                multiply(s, x_tile, warp_row, y_tiles, place)
                if window > 0 and touches_band(row, pieces * 16, column, window):
                    multiply(d_s, band_x_tile, warp_row, band_y_tiles, place)
                    for z in range(numbers):
                        steps = distance(row + row_of(z), column + column_of(z))
                        if 0 <= steps and steps < window:
                            s[z] += alpha[0] * d_s[z]
                # 4. compute P in s, and dS
                multiply(d_s, x2_tile, warp_row, y2_tiles, place)
                for z in range(numbers):
                    if of_keys:
                        l, d = (
                            column_numbers[0, place + column_of(z)],
                            column_numbers[1, place + column_of(z)],
                        )
                    else:
                        r = z // (n_tiles * 4) * 2 + (z >> 1 & 1)
                        l, d = row_numbers[2 * r], row_numbers[2 * r + 1]
                    p = exp2_approx(s[z] * factor - l * LOG2E)
                    s[z] = float32(1) if p > float32(1) else p  # as in latent.tiles.probability
                    d_s[z] = s[z] * (d_s[z] - d)
                    if scaled:
                        d_s[z] = clamped(d_s[z])
                if following > n_keys or causal and first_distance < 0:
                    for z in range(numbers):
                        j = column + column_of(z)
                        if j >= n_keys or causal and distance(row + row_of(z), j) < 0:
                            s[z] = d_s[z] = float32(0)
                # 5. add the products
                if band_only:
                    for z in range(numbers):
                        steps = distance(row + row_of(z), column + column_of(z))
                        if steps < 0 or steps >= window:
                            d_s[z] = float32(0)
                    add_products(sums, d_s, band_y_tiles, place)
                else:
                    add_products(sums, d_s, y_tiles, place)
                    add_products(sums2, s, y2_tiles, place)
            place = other
        # 6. store the sums
        i = row if of_keys else row - before
        store(first, batch, head, i, sums, scale)
        if not band_only and of_keys:
            store(second, batch, head, i, sums2, float32(1))
        if not band_only and not of_keys:
            store_16_bits(second, batch, head, i, sums2)

    return latent_gradient_kernel


# Host -------------------------------------------------------------------------------------------------------


def latent_tensor_backward(
    q, k_latent, v_latent, w_q, w_v, o, log_sum, d_o, alpha, window, causal, scale, wanted, run=None
):
    """Return (dQ, dK̃, dṼ, dW_q, dW_v, dα) like `latent_backward`; all but dα have the dtype of q.

    All tensors are bfloat16 or float16, contiguous and checked, except log_sum and alpha (1,), float32.
    """
    check_tensor_cores(q)
    width, given, n = tensor_width(k_latent.shape[2]), q.shape[2], o.shape[2]
    latent_q, g = by_heads(q, w_q), by_heads(d_o, w_v.mT)
    delta = row_products(d_o, o, run)
    rows = (latent_q, g, k_latent[:, None], v_latent[:, None])
    shared = *(operand(x, width) for x in rows), log_sum, delta, alpha, window, scale, bool(causal)
    keys, latent = k_latent.shape[1:]
    dq_latent = dk_latent = dv_latent = o_latent = by_keys = None
    if wanted[0] or wanted[3] or wanted[4]:
        dq_latent, o_latent = sums_of(q, n, width, False, False, shared, run)
    if any(wanted[:4]):
        dk_latent, dv_latent = sums_of(q, keys, width, True, False, shared, run)
    if window and wanted[1]:
        (by_queries,) = sums_of(q, n, width, False, True, shared, run)
        dk_latent[:, :, keys - n :].addcmul_(by_queries, alpha)
    if window and (wanted[0] or wanted[3] or wanted[5]):
        (by_keys,) = sums_of(q, keys, width, True, True, shared, run)
        by_keys = by_keys[:, :, keys - given :]
    if dq_latent is not None:
        dq_latent = pad(dq_latent, (0, 0, given - n, 0)) if given > n else dq_latent
        dq_latent = dq_latent if by_keys is None else torch.addcmul(dq_latent, by_keys, alpha)
        dq_latent, o_latent = (cut(x, latent).to(q.dtype) for x in (dq_latent, o_latent))
    return (
        by_heads(dq_latent, w_q.mT) if wanted[0] else None,
        cut(dk_latent.sum(1), latent).to(q.dtype) if wanted[1] else None,
        cut(dv_latent.sum(1), latent).to(q.dtype) if wanted[2] else None,
        sum_of_batch(q, dq_latent) if wanted[3] else None,
        sum_of_batch(o_latent, d_o) if wanted[4] else None,
        gradient_of_alpha(by_keys, latent_q, alpha) if wanted[5] else None,
    )


def by_heads(x, w):
    """Return x (B, H, N, a) times w (H, a, b)."""
    return torch.bmm(x[0], w)[None] if x.shape[0] == 1 else x @ w


def sum_of_batch(x, y):
    """Return the sum over the batch of xᵀ y, (H, a, b), for x (B, H, N, a) and y (B, H, N, b)."""
    return torch.bmm(x[0].mT, y[0]) if x.shape[0] == 1 else (x.mT @ y).sum(0)


def cut(x, length):
    """Return the first `length` elements of each row."""
    return x if x.shape[-1] == length else x[..., :length]


def gradient_of_alpha(by_keys, latent_q, alpha):
    """Return dα (1,): the products of the reciprocal term's sums with q̃, or 0 without a window."""
    if by_keys is None:
        return torch.zeros_like(alpha)
    return (cut(by_keys, latent_q.shape[3]) * latent_q).sum().view(1)


def sums_of(q, rows, width, of_keys, band_only, shared, run):
    """Launch one variant of the kernel; return its sums, one or two tensors (B, H, rows, width)."""
    batch, heads = q.shape[:2]
    types = (torch.float32, torch.float32 if of_keys else q.dtype)[: 1 if band_only else 2]
    sums = [output((batch, heads, rows, width), like=q, dtype=dtype) for dtype in types]
    tensors = *(x.tensor for x in shared[:4]), *shared[4:7], sums[0], sums[-1]
    shapes = *(x.shape for x in tensors[:3]), *shared[7:]
    key = latent_gradient_kernel, of_keys, band_only, q.dtype, q.device, *shapes
    if run is not None or not relaunch(key, tensors):
        kernel = latent_gradient_kernel(width, kind_of(q), of_keys, band_only, PIECES)
        second = sums[-1] if of_keys or band_only else Bits(sums[-1], torch.int32)
        grid = (batch * heads, -(-rows // (WARPS * PIECES * 16)))
        arguments = *shared, sums[0], second
        launch(kernel, grid, WARPS * 32, *arguments, run=run, remember=(key, tensors))
    return sums
