"""Convolutional attention, backward kernels on tensor cores: bfloat16 or float16 data, float32 accumulators.

The formulas are the same as in `conv_backward`. One kernel is compiled in two variants. Each block owns rows
of the scores and loops over their columns:

    for queries  rows are queries, columns are keys: dQ, and the gradient of the taps
    for keys     rows are keys, columns are queries, so scores and taps are transposed: dK and dV

An iteration processes COLUMNS columns in three phases. In each phase, a warp computes 16 rows:

    1. S0  of new columns, stored in shared memory in 16 bits
    2. T   by products with bands of taps (as in `tensor_forward`), P and dT, which is stored in shared
           memory; dV
    3. dS  by products with bands of the flipped taps; dQ or dK; the gradient of the taps

A row shift only changes the address in shared memory, so the halo of rows is computed once per block: row x
    of T depends on the rows x to x + row_taps - 1 of S0, and row x of dS on the same rows of dT. A ring
    buffer keeps the columns of S0 and dT that the next window needs, so there is no halo of columns.

The gradient of the taps with row shift a sums S0[i + a, j'] · dT[i, j] over rows i, for eight columns j and
the window of columns j' around them. This is a matrix product, and the taps are sums along its diagonals j' -
j. Each warp computes every WARPS-th row shift.
Sources: Golovneva et al. 2025, arXiv 2504.00927 (convolution); Dao 2023, arXiv 2307.08691, Algorithm 2 (L and
    D).

    grid    (B · H, ⌈N / owned⌉), owned = WARPS · 16 - 2 · (row_taps - 1); blocks with the most work first
    block   WARPS · 32 threads; 128 registers at d = 64, with at most 88 bytes of spills, 226 to 247
            registers at d = 128 (sm_90)
    shared  100 to 113 KiB at d = 64, so that two blocks are resident on a multiprocessor, and more for taps
            above about 11 × 11; 164 to 174 KiB at d = 128
    cost    multiply-adds per score, before halos: 3 · d for queries, 4 · d for keys; and 16 · row_taps for
            each of T, dS and dW (24 · row_taps for more than nine column taps)
"""

import functools

import torch
from numba import cuda
from numpy import float32, int16, int32, uint32
from torch.nn.functional import pad

from kernels.common.extent import WHOLE
from kernels.common.launch import Bits, launch, output, remember_steps
from kernels.conv.tensor_backward_tiles import (
    BLOCKS,
    COLUMNS,
    NUMBERS,
    PITCH,
    SUMS,
    band_loader,
    column_of,
    convolver,
    frame_of,
    gradient_storer,
    number_copier,
    owned_rows,
    row_of,
    score_storer,
    tap_gradient_adder,
)
from kernels.conv.tensor_sums import FEW, sum_of_parts_launch, sums_of_rows_launch
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0, exp2_approx
from kernels.tensor_cores.launch import check_tensor_cores, kind_of, taps_operand, tensor_width
from kernels.tensor_cores.tiles import (
    LOG2E,
    PADDING,
    clamped,
    product_maker,
    tile_copier,
    value_adder,
    window_of,
)

WARPS = 8  # warps per block
FEW_PLACES = 0, 1, 2, 3, 5, 6, 11  # tensors of the launch that computes D of few queries


# The kernel -------------------------------------------------------------------------------------------------


@functools.cache
def gradient_kernel(width, kind, c_q, c_k, of_keys, warps=WARPS, max_registers=None, bits=False, parts=False):
    """Return the kernel for rows of `width` elements and (c_q, c_k) taps.

    of_keys: compile the variant for dK and dV instead of that for dQ and dW.
    bits: the taps are 16-bit values as int16, instead of float32.
    parts: q, k and v are parts of a sequence with halos, and all gradients are float32. Otherwise they are a
        whole sequence, and `extent` is ignored.

    The kernel's arguments:

    x, x2: the owned rows of the products S0 and dO·vᵀ: q and d_o, or k and v.
    y, y2: the rows that correspond to their columns: k and v, or q and d_o.
    extent: kernels.common.extent.Extent, the owned queries and keys.
    first_gradient: dQ or dK.
    second_gradient: dW, one part per block, or dV.
    """
    scaled = kind == "float16"
    frame = frame_of(c_q, c_k, of_keys)
    row_taps, column_taps, rows_before, columns_before = frame
    window, halo, rows_after = window_of(column_taps), row_taps - 1, row_taps - 1 - rows_before
    rows, threads, pitch = warps * 16, warps * 32, width + PADDING
    owned, made, lag = rows - 2 * halo, rows - halo, 8 * (window - 1)
    # column offsets of dT and dS relative to S0
    t_offset, s_offset = columns_before - lag, column_taps - 1 - 2 * lag
    d_tiles, two_steps, bands_in_all = width // 8, 2 * COLUMNS, row_taps * window
    ring_rows, d_numbers = rows + halo, d_tiles * 4
    shifts, sums_of_shift = -(-row_taps // warps), SUMS * (window - 1)
    # an array that only one variant needs has one element in the other variant
    v_numbers, sum_numbers = (d_numbers, 1) if of_keys else (1, shifts * sums_of_shift)
    number_columns, scratch_warps = (two_steps, 1) if of_keys else (1, warps)
    copy_rows, copy = tile_copier(rows, width, threads), tile_copier(COLUMNS, width, threads)
    multiply, convolve = product_maker(kind, 1, BLOCKS, width // 16), convolver(kind, row_taps, column_taps)
    add_products = value_adder(kind, 1, BLOCKS, d_tiles)
    add_tap_gradients = tap_gradient_adder(kind, row_taps, column_taps, owned, warps)
    load_bands, store = band_loader(kind, frame, of_keys, bits), gradient_storer(kind, d_tiles, parts)
    copy_numbers, store_scores = number_copier(threads), score_storer(kind)

    @cuda.jit(device=True)
    def masked(row, column):
        """Return whether the causal mask hides this score."""
        return row > column if of_keys else column > row

    @cuda.jit(device=True)
    def any_masked(row, column):
        """Return whether the causal mask hides any score in the 16 rows and COLUMNS columns that start at
        this one."""
        return row + 15 > column if of_keys else column + COLUMNS - 1 > row

    @cuda.jit(device=True, forceinline=True)
    def clear_masked(s, row, column):
        """Set to 0 the scores that the causal mask hides."""
        for z in range(NUMBERS):
            if masked(row + row_of(z), column + column_of(z)):
                s[z] = float32(0)

    @cuda.jit(device=True, forceinline=True)
    def differentiate(s, g, of_rows, of_columns, base, factor):
        """Replace T in s by P, and dO·vᵀ in g by dT."""
        for z in range(NUMBERS):
            if of_keys:  # queries are columns: L and D come from shared memory
                l, d = of_columns[0, base + column_of(z)], of_columns[1, base + column_of(z)]
            else:
                l, d = of_rows[z >> 1 & 1], of_rows[2 + (z >> 1 & 1)]
            s[z] = exp2_approx(s[z] * factor - l * LOG2E)
            g[z] = s[z] * (g[z] - d)
            if scaled:
                g[z] = clamped(g[z])

    @cuda.jit(device=True, forceinline=True)
    def clear_outside(s, g, row, column, first_row, end_row, first_column, end_column, causal):
        """Set P and dT to 0 outside these rows and columns, and where the causal mask hides the score."""
        for z in range(NUMBERS):
            i, j = row + row_of(z), column + column_of(z)
            outside = i < first_row or i >= end_row or j < first_column or j >= end_column
            if outside or causal and masked(i, j):
                s[z] = g[z] = float32(0)

    @cuda.jit(device=True, forceinline=True)
    def store_tap_gradients(d_w, sums, diagonals, tap_factor):
        """Store the sums along the diagonals j' - j = tap in d_w (c_q, c_k): first per column of the
        accumulators, in shared memory, then over the columns."""
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        for shift in range(shifts):
            a = warp + shift * warps
            for z in range(sums_of_shift):
                if z & 4 == 0:
                    x_column = (lane & 3) * 2 + (z & 1)
                    tap = (lane >> 2) + (z >> 3) * 16 + (z >> 1 & 1) * 8 - x_column
                    if 0 <= tap and tap < column_taps:
                        at = shift * sums_of_shift + z
                        diagonals[warp, tap, x_column] = sums[at] + sums[at + 4]
            cuda.syncwarp()
            if a < row_taps and lane < column_taps:
                total = float32(0)
                for x_column in range(8):
                    total += diagonals[warp, lane, x_column]
                d_w[a, lane] = total * tap_factor
            cuda.syncwarp()

    @cuda.jit(max_registers=max_registers)
    def conv_gradient_kernel(
        x, x2, y, y2, w, log_sum, delta, scale, causal, extent, first_gradient, second_gradient
    ):
        x_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        x2_tile = cuda.shared.array((rows, pitch), int16, alignment=16)
        y_tiles = cuda.shared.array((two_steps, pitch), int16, alignment=16)
        late_y_tiles = cuda.shared.array((two_steps, pitch), int16, alignment=16)
        y2_tiles = cuda.shared.array((two_steps, pitch), int16, alignment=16)
        s_tile = cuda.shared.array((ring_rows, PITCH), int32, alignment=16)
        g_tile = cuda.shared.array((ring_rows, PITCH), int32, alignment=16)
        bands = cuda.shared.array((bands_in_all, 32), uint32)
        flipped = cuda.shared.array((bands_in_all, 32), uint32)
        of_columns = cuda.shared.array((2, number_columns), float32)
        diagonals = cuda.shared.array((scratch_warps, column_taps, 8), float32)
        s = cuda.local.array(NUMBERS, float32)
        g = cuda.local.array(NUMBERS, float32)
        d_x = cuda.local.array(d_numbers, float32)
        d_x2 = cuda.local.array(v_numbers, float32)
        sums = cuda.local.array(sum_numbers, float32)
        of_rows = cuda.local.array(4, float32)
        batch, head = cuda.blockIdx.x // x.shape[1], cuda.blockIdx.x % x.shape[1]
        warp_row = (cuda.threadIdx.x >> 5) * 16
        # Rows and columns are numbered so that the causal mask compares numbers: keys by their row of k, and
        # queries by the last key that they see. These are the first number of each matrix, and the last + 1.
        x_start, x2_start, y_start, y2_start = 0, 0, 0, 0
        x_end = x2_end = y_end = y2_end = x.shape[2]
        if parts:
            first_query, first_key, diagonal = extent
            first_x, first_y = (first_key, first_query) if of_keys else (first_query, first_key)
            query = first_key - first_query + diagonal
            x_start, y_start = (0, query) if of_keys else (query, 0)
            x2_start, y2_start = x_start + first_x, y_start + first_y
            x_end, x2_end = x_start + x.shape[2], x2_start + x2.shape[2]
            y_end, y2_end = y_start + y.shape[2], y2_start + y2.shape[2]
        tile = cuda.blockIdx.y if of_keys else cuda.gridDim.y - 1 - cuda.blockIdx.y
        i0 = x_start + tile * owned
        # first column of dT that is visible to any owned row
        t_begin = (max(i0, y2_start) if parts else i0) if of_keys and causal else y2_start
        begin = max(y_start, t_begin - columns_before)
        end = (min(y_end, i0 + owned) if causal and not of_keys else y_end) - s_offset
        factor = LOG2E if scaled else scale * LOG2E
        s_row, t_row = i0 - halo, i0 - rows_after  # the index in the sequence of row 0 of each tile
        # 0. copy the rows and the first columns, load the taps, and clear the ring buffers
        copy_rows(x_tile, 0, x, batch, head, s_row - x_start)
        copy_rows(x2_tile, 0, x2, batch, head, t_row - x2_start)
        copy(late_y_tiles, 0, y, batch, head, begin + s_offset - y_start)
        for step in range(0, two_steps, COLUMNS):
            copy(y_tiles, step, y, batch, head, begin + step - y_start)
            copy(y2_tiles, step, y2, batch, head, begin + step + t_offset - y2_start)
            if of_keys:
                first = begin + step + t_offset - y2_start
                copy_numbers(of_columns, step, log_sum, delta, batch, head, first)
        cp_async_commit()
        load_bands(bands, w, head, False)
        load_bands(flipped, w, head, True)
        for part in range(cuda.threadIdx.x, ring_rows * PITCH, threads):
            s_tile[part // PITCH, part % PITCH] = g_tile[part // PITCH, part % PITCH] = int32(0)
        for z in range(d_numbers):
            d_x[z] = float32(0)
        for z in range(v_numbers):
            d_x2[z] = float32(0)
        for z in range(sum_numbers):
            sums[z] = float32(0)
        for half in range(2):
            i = t_row + warp_row + row_of(2 * half) - x2_start
            inside = not of_keys and (i >= 0 or not parts) and i < x2_end - x2_start
            of_rows[half] = log_sum[batch, head, i] if inside else float32(0)
            of_rows[2 + half] = delta[batch, head, i] if inside else float32(0)
        base, block = 0, 0
        cp_async_wait_0()
        cuda.syncthreads()
        for first in range(begin, end, COLUMNS):
            # 1. Compute S0, 0 where masked. Every warp computes 16 rows, and adjacent warps read some of them
            #    as their halo.
            multiply(s, x_tile, warp_row, y_tiles, base)
            row = s_row + warp_row
            if causal and any_masked(row, first):
                clear_masked(s, row, first)
            if scaled:
                for z in range(NUMBERS):
                    s[z] = clamped(s[z] * scale)
            store_scores(s_tile, s, warp_row, block)
            cuda.syncthreads()
            # 2. compute T and dO·vᵀ; then replace s by P and g by dT
            convolve(s, s_tile, warp_row, block, bands)
            multiply(g, x2_tile, warp_row, y2_tiles, base)
            differentiate(s, g, of_rows, of_columns, base, factor)
            row, column = t_row + warp_row, first + t_offset
            # test individual elements only in tiles at an edge of the sequence, the halo or the mask
            edge = column < t_begin or column + COLUMNS > y2_end or row < x2_start or row + 16 > x2_end
            if edge or warp_row + 16 > made or causal and any_masked(row, column):
                end_row = min(x2_end, t_row + made)
                clear_outside(s, g, row, column, x2_start, end_row, t_begin, y2_end, causal)
            store_scores(g_tile, g, warp_row, block)
            if of_keys:
                add_products(d_x2, s, y2_tiles, base)
            cp_async_wait_0()
            cuda.syncthreads()
            # copy the next columns: the current buffers of y and y2 and the previous one of late_y are free
            following = first + COLUMNS
            if following < end:
                copy(late_y_tiles, COLUMNS - base, y, batch, head, following + s_offset - y_start)
            following += COLUMNS
            if following < end:
                copy(y_tiles, base, y, batch, head, following - y_start)
                copy(y2_tiles, base, y2, batch, head, following + t_offset - y2_start)
                if of_keys:
                    following += t_offset - y2_start
                    copy_numbers(of_columns, base, log_sum, delta, batch, head, following)
            cp_async_commit()
            # 3. compute dS; then add to dQ or dK, and to dW
            convolve(g, g_tile, warp_row, block, flipped)
            row, column = i0 + warp_row, first + s_offset
            if column < y_start or column + COLUMNS > y_end or causal and any_masked(row, column):
                for z in range(NUMBERS):
                    i, j = row + row_of(z), column + column_of(z)
                    if j < y_start or j >= y_end or causal and masked(i, j):
                        g[z] = float32(0)
            if scaled:
                for z in range(NUMBERS):
                    g[z] = clamped(g[z])
            add_products(d_x, g, late_y_tiles, base)
            if not of_keys:
                add_tap_gradients(sums, s_tile, g_tile, block, x_end - i0)
                cuda.syncthreads()  # the next iteration overwrites S0
            base, block = COLUMNS - base, block + BLOCKS
        # 4. store the rows that the block owns
        for half in range(2):
            x_row = warp_row + row_of(2 * half)
            if x_row < owned and i0 + x_row < x_end:
                store(first_gradient, batch, head, i0 + x_row - x_start, d_x, half, scale)
            inside = (t_row + x_row >= x2_start or not parts) and t_row + x_row < x2_end
            if of_keys and rows_after <= x_row and x_row < rows_after + owned and inside:
                store(second_gradient, batch, head, t_row + x_row - x2_start, d_x2, half, float32(1))
        if not of_keys:
            part, tap_factor = batch * cuda.gridDim.y + tile, float32(1) if scaled else scale
            store_tap_gradients(second_gradient[part, head], sums, diagonals, tap_factor)

    return conv_gradient_kernel


# Host -------------------------------------------------------------------------------------------------------


def registers_of(width):
    """Return the register limit per thread.

    It is 128 if shared memory has room for two resident blocks, and None otherwise.
    """
    return 128 if width == 64 else None


def conv_tensor_backward(q, k, v, w, o, log_sum, d_o, causal, scale, wanted, run=None, warps=WARPS, key=None):
    """Return (dQ, dK, dV, dW) like `conv_backward`, each in the dtype of its tensor.

    q, k, v, o, d_o: bfloat16 or float16, contiguous and already checked.
    w: the taps, which are rounded to the dtype of q.
    key: the key under which to remember the launches for `kernels.common.launch.repeated`.

    All sums have a fixed order, so the results are reproducible bit for bit.
    """
    check_tensor_cores(q)
    of_queries, of_keys = wanted[0] or wanted[3], wanted[1] or wanted[2]
    given = q, k, v, w, o, log_sum, d_o
    (batch, heads, n, d), width, taps = q.shape, tensor_width(q.shape[3]), w.shape[1:]
    q, k, v, o, d_o = (x if d == width else pad(x, (0, width - d)) for x in (q, k, v, o, d_o))
    taps_given, bits = taps_operand(w, q)
    parts = batch * -(-n // owned_rows(frame_of(*taps, False), warps))
    scratch = output((aligned_size(log_sum) + parts * w.numel(),), like=q)
    delta = scratch[: log_sum.numel()].view_as(log_sum)
    d_w_parts = scratch[aligned_size(log_sum) :].view(parts, *w.shape)
    d_q = d_k = d_v = d_w = None
    steps = []

    def step(places, kernel, grid, block, *arguments):
        steps.append((launch(kernel, grid, block, *arguments, run=run), places, arguments))

    def gradient_step(places, of_keys, x, x2, y, y2, first, second):
        kernel = gradient_kernel(width, kind_of(q), *taps, of_keys, warps, registers_of(width), bits)
        tiles = -(-n // owned_rows(frame_of(*taps, of_keys), warps))
        rows = (Bits(x, torch.int16) for x in (x, x2, y, y2))
        stored = Bits(first, torch.int32), Bits(second, torch.int32) if of_keys else second
        arguments = *rows, taps_given, log_sum, delta, scale, bool(causal), WHOLE, *stored
        step(places, kernel, (batch * heads, tiles), warps * 32, *arguments)

    # the indices of the tensors in (*given, dQ, dK, dV, dW, D, parts of dW)
    places = FEW_PLACES if n <= FEW else (6, 4, 11)
    step(places, *sums_of_rows_launch(q, k, v, w, o, log_sum, d_o, causal, scale, delta))
    if of_queries:
        d_q, d_w = output(q.shape, like=q, dtype=q.dtype), output(w.shape, like=w, dtype=w.dtype)
        gradient_step((0, 6, 1, 2, 3, 5, 11, 7, 12), False, q, d_o, k, v, d_q, d_w_parts)
        step((12, 10), *sum_of_parts_launch(d_w_parts, d_w))
    if of_keys:
        d_k, d_v = (output(q.shape, like=q, dtype=q.dtype) for _ in range(2))
        gradient_step((1, 2, 0, 6, 3, 5, 11, 8, 9), True, k, v, q, d_o, d_k, d_v)
    if n == 1:  # the weight of the only key is always 1, so these gradients are 0; NaN stays NaN
        d_q, d_k, d_w = (None if gradient is None else gradient * 0 for gradient in (d_q, d_k, d_w))
    else:
        tensors = *given, d_q, d_k, d_v, d_w, delta, d_w_parts
        results, starts = (of_queries, of_keys, of_keys, of_queries), [0, 4 * aligned_size(log_sum)]
        remember_steps(key, steps, tensors, results, starts, scratch.numel())
    cut = (x if x is None or d == width else x[..., :d].contiguous() for x in (d_q, d_k, d_v))
    return tuple(gradient if want else None for gradient, want in zip((*cut, d_w), wanted))


def aligned_size(log_sum):
    """Return the number of elements of D, rounded up so that the data after D are aligned to 16 bytes."""
    return -(-log_sum.numel() // 4) * 4
