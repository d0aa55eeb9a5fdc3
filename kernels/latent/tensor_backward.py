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
fit in the registers. Each head stores a separate gradient of k̃ and ṽ, and `kernels.latent.tensor_sums` adds
them, so the results are reproducible bit for bit. The launches for rows of keys run in a second stream.
Sources: as in latent/backward.py.

    grid    (B · H, ⌈rows / (WARPS · PIECES · 16)⌉), blocks with the most work first
    block   WARPS · 32 threads, PIECES · 16 rows per warp
    shared  3 · (rows + 2 · COLUMNS) · (width + 8) · 2 bytes
    cost    4 · L multiply-adds per score in each of the two variants, 5 · L in the band
"""

from functools import cache, partial

import torch
from numba import cuda
from numpy import float32, int16, int32, uint32
from torch.nn.functional import pad

from kernels.common.launch import Bits, launch, output, relaunch
from kernels.common.second_stream import forked
from kernels.common.splits import PLACE
from kernels.latent.tensor_sums import add_band, add_heads
from kernels.tensor_cores.instructions import (
    cp_async_4,
    cp_async_16,
    cp_async_commit,
    cp_async_wait_0,
    exp2_approx,
    float_pair,
    ldmatrix_x4,
)
from kernels.tensor_cores.launch import check_tensor_cores, kind_of, operand, tensor_width
from kernels.tensor_cores.row_products import row_products
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    CHUNK,
    LOG2E,
    PADDING,
    clamped,
    product_maker,
    score_adder,
    value_adder,
)

WARPS, COLUMN_BITS = 4, 5  # warps per block, and log2 of the columns per iteration
COLUMNS = 1 << COLUMN_BITS
REGISTERS = 168  # per thread, so that three blocks are resident on a multiprocessor
PIECES = 1  # tiles of 16 rows per warp; with 2, the spills cost 7 % of the time


@cache
def latent_gradient_kernel(width, kind, of_keys, band_only, warps, pieces):
    """Return the kernel for rows of `width` elements.

    of_keys: rows are keys and columns are queries.
    band_only: compute only the sums of the reciprocal term.
    warps, pieces: warps per block, and tiles of 16 rows per warp.
    """
    pack, scaled = ARITHMETIC[kind].pack, kind == "float16"
    rows, threads, pitch = warps * pieces * 16, warps * 32, width + PADDING
    n_tiles, d_tiles, depth, two_steps = COLUMNS // 8, width // 8, width // 16, 2 * COLUMNS
    numbers, sum_numbers = pieces * n_tiles * 4, pieces * d_tiles * 4
    second_numbers = 1 if band_only else sum_numbers
    of_columns, statistics, chunks = two_steps if of_keys else 1, 4 * pieces, width // CHUNK
    at_once = threads // chunks  # rows of a tile that the block copies at once
    multiply = product_maker(kind, pieces, n_tiles, depth)
    add_scores, held_numbers = score_adder(kind, pieces, n_tiles, depth), pieces * depth * 4
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
    def copy(tile, base, count, x, place, first, n):
        """Start to copy rows [first, first + count) of a head to tile[base : …]. Rows outside it become 0.

        place: the index in x of the head's first row, plus that of this thread's chunk in a tile.
        n: rows of the head.
        """
        i, c = cuda.threadIdx.x // chunks, cuda.threadIdx.x % chunks * CHUNK
        place += first * width
        for turn in range(count // at_once):
            row = int32(first + i + turn * at_once)
            inside = 0 <= row and row < n
            at = place + turn * at_once * width if inside else 0
            to, valid = (base + i + turn * at_once, c), int32(16) if inside else int32(0)
            cp_async_16(tile, to, x, (at,), valid)

    @cuda.jit(device=True)
    def copy_numbers(tile, base, log_sum, delta, place, first, n):
        """Start to copy L and D for the columns of an iteration; place: the index of a head's first row."""
        thread = cuda.threadIdx.x
        if thread < two_steps:
            j, own = int32(first + (thread & (COLUMNS - 1))), thread >> COLUMN_BITS
            inside = 0 <= j and j < n
            to, at = (own, base + (thread & (COLUMNS - 1))), (place + j if inside else 0,)
            valid = int32(4) if inside else int32(0)
            if own == 0:
                cp_async_4(tile, to, log_sum, at, valid)
            else:
                cp_async_4(tile, to, delta, at, valid)

    @cuda.jit(device=True)
    def load_held(held, tile, row):
        """Load the warp's rows of a tile as left operands of `mma`, so that the loop reads them only once."""
        lane = cuda.threadIdx.x & 31
        for d in range(depth):
            for piece in range(pieces):
                x, at = (piece * depth + d) * 4, (row + piece * 16 + (lane & 15), d * 16 + (lane >> 4) * 8)
                held[x], held[x + 1], held[x + 2], held[x + 3] = ldmatrix_x4(tile, at)

    def storer(joined):
        """Create store(out, place, first, count, sums, factor), which stores factor · sums in the warp's rows
        of a head, which has `count` rows and begins at out[place].

        joined(x, y): an element of out, with two values.
        """

        @cuda.jit(device=True)
        def store(out, place, first, count, sums, factor):
            lane = cuda.threadIdx.x & 31
            for r in range(2 * pieces):
                i = first + r // 2 * 16 + (r & 1) * 8 + (lane >> 2)
                if i < count:
                    at = (place + i * (width // 2) + (lane & 3)) & PLACE
                    for tile in range(d_tiles):
                        x = (r // 2 * d_tiles + tile) * 4 + (r & 1) * 2
                        out[at + tile * 4] = joined(sums[x] * factor, sums[x + 1] * factor)

        return store

    @cuda.jit(device=True)
    def pack_signed(x, y):
        return int32(pack(x, y))

    store, store_16_bits = storer(float_pair), storer(pack_signed)

    @cuda.jit(device=True, forceinline=True)
    def load_row_numbers(row_numbers, log_sum, delta, place, first, n):
        """Load L and D of a lane's rows. Both are 0 for the rows after row n - 1 of the head, and if rows are
        keys."""
        for r in range(2 * pieces):
            i = first + r // 2 * 16 + (r & 1) * 8 + ((cuda.threadIdx.x & 31) >> 2)
            inside = not of_keys and i < n
            row_numbers[2 * r] = log_sum[(place + i) & PLACE] if inside else float32(0)
            row_numbers[2 * r + 1] = delta[(place + i) & PLACE] if inside else float32(0)

    @cuda.jit(device=True, forceinline=True)
    def add_reciprocal(s, products, alpha, row, column, window):
        """Add alpha times the products to the scores of the band."""
        for z in range(numbers):
            steps = distance(row + row_of(z), column + column_of(z))
            if 0 <= steps and steps < window:
                s[z] += alpha * products[z]

    @cuda.jit(device=True, forceinline=True)
    def differentiate(s, d_s, row_numbers, column_numbers, place, factor):
        """Replace the scores in `s` by the probabilities P, and the gradients dP in `d_s` by dS."""
        for z in range(numbers):
            if of_keys:
                at = place + column_of(z)
                l, d = column_numbers[0, at], column_numbers[1, at]
            else:
                r = z // (n_tiles * 4) * 2 + (z >> 1 & 1)
                l, d = row_numbers[2 * r], row_numbers[2 * r + 1]
            p = exp2_approx(s[z] * factor - l * LOG2E)
            s[z] = float32(1) if p > float32(1) else p  # as in latent.tiles.probability
            d_s[z] = s[z] * (d_s[z] - d)
            if scaled:
                d_s[z] = clamped(d_s[z])

    @cuda.jit(device=True, forceinline=True)
    def mask(s, d_s, row, column, n_columns, causal):
        """Set P and dS to 0 in the columns from n_columns on, and where the causal mask hides the key."""
        for z in range(numbers):
            j = column + column_of(z)
            if j >= n_columns or causal and distance(row + row_of(z), j) < 0:
                s[z] = d_s[z] = float32(0)

    @cuda.jit(device=True, forceinline=True)
    def keep_band(d_s, row, column, window):
        """Set dS to 0 outside the band."""
        for z in range(numbers):
            steps = distance(row + row_of(z), column + column_of(z))
            if steps < 0 or steps >= window:
                d_s[z] = float32(0)

    @cuda.jit(max_registers=REGISTERS)
    def latent_gradient_kernel(
        q, g, k, v, log_sum, delta, alpha, heads, given, n, n_keys, window, scale, causal, first, second
    ):
        """Store the sums in first and second, (B, H, N or N_k, width).

        All tensors are one-dimensional here, in the order of the shapes that are given. first has two float32
        values per int64, like second for rows of keys. For rows of queries, second has two 16-bit values per
        int32. A variant of the band has no second sums.

        q: (B, H, M, width), q̃, 16-bit values as int16, like the following tensors.
        g: (B, H, N, width).
        k, v: (B, N_k, width).
        log_sum, delta: (B, H, N), L and D.
        alpha: (1,), float32.
        heads, given, n, n_keys: H, M, N and N_k.
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
        held = cuda.local.array(held_numbers, uint32)
        sequence, batch = cuda.blockIdx.x, cuda.blockIdx.x // heads
        warp_row, of_numbers = (cuda.threadIdx.x >> 5) * (pieces * 16), sequence * n
        chunk = cuda.threadIdx.x * CHUNK
        of_q, of_g = sequence * given * width + chunk, sequence * n * width + chunk
        of_k = batch * n_keys * width + chunk
        # the positions among the keys of the first of the M rows of q, and of the first of the N queries
        missing, before = n_keys - given, n_keys - n
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
            copy(x_tile, 0, rows, k, of_k, row0, n_keys)
            copy(x2_tile, 0, rows, v, of_k, row0, n_keys)
            copy(y_tiles, 0, COLUMNS, q, of_q, begin - missing, given)
            copy(y2_tiles, 0, COLUMNS, g, of_g, begin - before, n)
            copy_numbers(column_numbers, 0, log_sum, delta, of_numbers, begin - before, n)
        else:
            copy(x_tile, 0, rows, q, of_q, row0 - missing, given)
            copy(x2_tile, 0, rows, g, of_g, row0 - before, n)
            copy(y_tiles, 0, COLUMNS, k, of_k, begin, n_keys)
            copy(y2_tiles, 0, COLUMNS, v, of_k, begin, n_keys)
        if window > 0:
            if of_keys:
                copy(band_x_tile, 0, rows, q, of_q, row0 - missing, given)
                copy(band_y_tiles, 0, COLUMNS, k, of_k, begin, n_keys)
            else:
                copy(band_x_tile, 0, rows, k, of_k, row0, n_keys)
                copy(band_y_tiles, 0, COLUMNS, q, of_q, begin - missing, given)
        cp_async_commit()
        for x in range(sum_numbers):
            sums[x] = float32(0)
        for x in range(second_numbers):
            sums2[x] = float32(0)
        load_row_numbers(row_numbers, log_sum, delta, of_numbers, row0 - before + warp_row, n)
        place, row = 0, row0 + warp_row
        for column in range(begin, end, COLUMNS):
            cp_async_wait_0()
            cuda.syncthreads()  # the columns have arrived, and all warps have finished with the other buffer
            if column == begin:
                load_held(held, x_tile, warp_row)
            following, other = column + COLUMNS, COLUMNS - place
            if following < end:
                if of_keys:
                    copy(y_tiles, other, COLUMNS, q, of_q, following - missing, given)
                    copy(y2_tiles, other, COLUMNS, g, of_g, following - before, n)
                    copy_numbers(column_numbers, other, log_sum, delta, of_numbers, following - before, n)
                else:
                    copy(y_tiles, other, COLUMNS, k, of_k, following, n_keys)
                    copy(y2_tiles, other, COLUMNS, v, of_k, following, n_keys)
                if window > 0 and touches_band(row0, rows, following, window):
                    if of_keys:
                        copy(band_y_tiles, other, COLUMNS, k, of_k, following, n_keys)
                    else:
                        copy(band_y_tiles, other, COLUMNS, q, of_q, following - missing, given)
                cp_async_commit()
            first_distance = distance(row, column + COLUMNS - 1)
            last_distance = distance(row + pieces * 16 - 1, column)
            if of_keys:
                first_distance, last_distance = last_distance, first_distance
            # skip columns that the causal mask hides from all rows of the warp
            if not causal or last_distance >= 0:
                # 3. compute S, with the reciprocal term
                add_scores(s, held, y_tiles, place)
                if window > 0 and touches_band(row, pieces * 16, column, window):
                    multiply(d_s, band_x_tile, warp_row, band_y_tiles, place)
                    add_reciprocal(s, d_s, alpha[0], row, column, window)
                # 4. compute P in s, and dS
                multiply(d_s, x2_tile, warp_row, y2_tiles, place)
                differentiate(s, d_s, row_numbers, column_numbers, place, factor)
                if following > n_keys or causal and first_distance < 0:
                    mask(s, d_s, row, column, n_keys, causal)
                # 5. add the products
                if band_only:
                    keep_band(d_s, row, column, window)
                    add_products(sums, d_s, band_y_tiles, place)
                else:
                    add_products(sums, d_s, y_tiles, place)
                    add_products(sums2, s, y2_tiles, place)
            place = other
        # 6. store the sums
        i, count = (row, n_keys) if of_keys else (row - before, n)
        place = sequence * count * (width // 2)
        store(first, place, i, count, sums, scale)
        if not band_only and of_keys:
            store(second, place, i, count, sums2, float32(1))
        if not band_only and not of_keys:
            store_16_bits(second, place, i, count, sums2, float32(1))

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
    q_operand, *others = (operand(x, width) for x in (latent_q, g, k_latent[:, None], v_latent[:, None]))
    shared = q_operand, *others, log_sum, delta, alpha, window, scale, bool(causal)
    keys, latent = k_latent.shape[1:]
    dq_latent, d_alpha, sums = None, torch.zeros_like(alpha), partial(sums_of, q, width, shared, run)
    key_gradients = [output((q.shape[0], keys, width), like=q, dtype=q.dtype) for _ in range(2)]
    # The gradients of the keys do not depend on those of the queries.
    with forked(q.device) as join:
        if wanted[1] or wanted[2]:
            dk_latent, dv_latent = sums(keys, of_keys=True)
            band = sums(n, band_only=True)[0] if window else None
            add_heads(dk_latent, band, dv_latent, alpha, key_gradients, run)
    if wanted[0] or wanted[3] or wanted[4] or wanted[5]:
        dq_latent, o_latent = sums(n)
        o_latent = cut(o_latent, latent)
    if window and (wanted[0] or wanted[3] or wanted[5]):
        (band,) = sums(keys, of_keys=True, band_only=True)
        dq_latent, d_alpha = add_band(dq_latent, band, q_operand.tensor, alpha, run)
        dq_latent = cut(dq_latent, latent)
    elif wanted[0] or wanted[3]:
        dq_latent = cut(pad(dq_latent, (0, 0, given - n, 0)).to(q.dtype), latent)
    dq = by_heads(dq_latent, w_q.mT) if wanted[0] else None
    dw_q = sum_of_batch(q, dq_latent) if wanted[3] else None
    dw_v = sum_of_batch(o_latent, d_o) if wanted[4] else None
    join()
    dk, dv = (
        cut(x, latent).contiguous() if needed else None for x, needed in zip(key_gradients, wanted[1:3])
    )
    return dq, dk, dv, dw_q, dw_v, d_alpha if wanted[5] else None


def by_heads(x, w):
    """Return x (B, H, N, a) times w (H, a, b)."""
    return torch.bmm(x[0], w)[None] if x.shape[0] == 1 else x @ w


def sum_of_batch(x, y):
    """Return the sum over the batch of xᵀ y, (H, a, b), for x (B, H, N, a) and y (B, H, N, b)."""
    return torch.bmm(x[0].mT, y[0]) if x.shape[0] == 1 else (x.mT @ y).sum(0)


def cut(x, length):
    """Return the first `length` elements of each row."""
    return x if x.shape[-1] == length else x[..., :length]


def sums_of(q, width, shared, run, rows, of_keys=False, band_only=False):
    """Launch one variant of the kernel; return its sums, one or two tensors (B, H, rows, width)."""
    batch, heads, given, _ = q.shape
    types = (torch.float32, torch.float32 if of_keys else q.dtype)[: 1 if band_only else 2]
    sums = [output((batch, heads, rows, width), like=q, dtype=dtype) for dtype in types]
    operands, (log_sum, delta, alpha, *numbers) = shared[:4], shared[4:]
    tensors = *(x.tensor for x in operands), log_sum, delta, alpha, sums[0], sums[-1]
    key = (
        latent_gradient_kernel,
        of_keys,
        band_only,
        q.dtype,
        q.device,
        *(x.shape for x in tensors),
        *numbers,
    )
    if run is not None or not relaunch(key, tensors):
        kernel = latent_gradient_kernel(width, kind_of(q), of_keys, band_only, WARPS, PIECES)
        second = torch.int64 if of_keys or band_only else torch.int32
        grid = (batch * heads, -(-rows // (WARPS * PIECES * 16)))
        arguments = (
            *(Bits(x.tensor.view(-1), x.dtype) for x in operands),
            log_sum.view(-1),
            delta.view(-1),
            alpha,
        )
        results = Bits(sums[0].view(-1), torch.int64), Bits(sums[-1].view(-1), second)
        arguments += heads, given, log_sum.shape[2], operands[2].tensor.shape[2], *numbers, *results
        launch(kernel, grid, WARPS * 32, *arguments, run=run, remember=(key, tensors))
    return sums
