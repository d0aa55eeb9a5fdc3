"""Convolutional attention, forward kernel: scores are computed, convolved and consumed on chip.

Each block owns a tile of queries, and loops over tiles of keys. For one head, with P_q = c_q - 1, P_k = (c_k
- 1) // 2, P_r = c_k - 1 - P_k, and S0 = 0 outside the sequence:

    S0[i, j] = scale · q_i·k_j, 0 where masked
    T[i, j]  = Σ_ab w[a, b] · S0[i - P_q + a, j - P_k + b], -inf where masked
    O        = softmax(T) v

A tile owns rows [i0, i0 + size - P_q) and columns [j0, j0 + size - P_k - P_r). It computes all size × size
scores of this range and its halo, so halo scores are recomputed by the tiles that own them. The state (m,
l, o) of each row is updated tile by tile as in flash/forward.py, and only O and L = m + log l are stored.
Sources: Golovneva et al. 2025, arXiv 2504.00927 (convolution); Dao 2023, arXiv 2307.08691, Algorithm 1 (the
    loop).

    grid    (B · H, ⌈N / (size - P_q)⌉, splits). The last row tiles of all heads come first, because under a
            causal mask they see the most keys. If there are too few blocks for the GPU, the keys of each row
            tile are divided among `splits` blocks, and `conv_merge_kernel` merges their results
    block   (size / 4)² threads: 256 for size 64
    shared  size · (size + 9) + 2 · size · 36 + 16 · width + 16² + size floats, static: 41.5 KiB at width 64
    cost    (d + c_q·c_k + d) · N² multiply-adds per head, half of that if causal; the first d is multiplied
            by (size / (size - P_q)) · (size / (size - c_k + 1)) because of the halo
"""

import functools
import math

from numba import cuda
from numpy import float32, int32

from kernels.common.arguments import ANY_FLOAT, HALVES, conv_arguments
from kernels.common.extent import WHOLE
from kernels.common.launch import launch, output, width_for
from kernels.common.splits import checked_splits, multiprocessors
from kernels.common.strips import MOST_REGISTERS, ROW_THREADS, STRIP, TAPS, load_taps
from kernels.common.tiles import GROUP, MINUS_INFINITY, reciprocal, weight
from kernels.conv.hopper_forward import conv_hopper_forward
from kernels.conv.tensor_forward import conv_tensor_forward
from kernels.conv.tensor_parts import conv_parts_forward
from kernels.conv.tiles import (
    NUMBERS,
    PADDING,
    PATCH,
    STRIPS,
    add_weighted_rows,
    check_size,
    clear,
    convolve_strips,
    copy_rows,
    patch_place,
    products,
    store_rows,
    strip_column,
    strip_row,
    threads_of,
    turns_and_strips,
)
from kernels.tensor_cores.launch import HOPPER, capability

SIZE = 64
CHUNK_WORDS = 32 + GROUP  # words per row of a chunk of q or k
ROWS_AT_A_TIME = 16  # rows of v in shared memory at a time
RESIDENT = 2  # resident blocks per multiprocessor


@functools.cache
def conv_forward_kernel(width, size):
    """Return the kernel for rows of at most `width` elements and tiles of `size` × `size` scores."""
    step, pitch, threads = size // PATCH, size + PADDING, threads_of(size)
    columns = width // step  # output columns per thread
    o_numbers = PATCH * columns
    turns, strips = turns_and_strips.py_func(size)

    @cuda.jit(max_registers=MOST_REGISTERS)
    def conv_forward_kernel(q, k, v, w, scale, causal, extent, o, log_sum):
        """Compute O and L over each split's share of the key tiles.

        q, k, v: (B, H, ..., d).
        w: (H, c_q, c_k).
        extent: kernels.common.extent.Extent, the owned queries and keys.
        o: (splits, B, H, N, d).
        log_sum: (splits, B, H, N).
        """
        s_tile = cuda.shared.array((size, pitch), float32)
        q_chunk = cuda.shared.array((size, CHUNK_WORDS), float32, alignment=16)
        k_chunk = cuda.shared.array((size, CHUNK_WORDS), float32, alignment=16)
        v_chunk = cuda.shared.array((ROWS_AT_A_TIME, width), float32, alignment=16)
        taps = cuda.shared.array((TAPS, TAPS), float32, alignment=16)
        row_factor = cuda.shared.array(size, float32)
        o_patch = cuda.local.array(o_numbers, float32)
        strip, counts = cuda.local.array(NUMBERS, float32), cuda.local.array(STRIPS, int32)
        m, l = cuda.local.array(turns, float32), cuda.local.array(turns, float32)
        batch, head, split = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1], cuda.blockIdx.z
        q_rows, k_rows, v_rows = q[batch, head], k[batch, head], v[batch, head]
        n, keys_owned, c_q, c_k = o.shape[3], v.shape[2], w.shape[1], w.shape[2]
        first_query, first_key, diagonal = extent
        rows, keys = size - (c_q - 1), size - (c_k - 1)  # rows and columns that a tile owns
        i0 = (cuda.gridDim.y - 1 - cuda.blockIdx.y) * rows
        lane = cuda.threadIdx.x % ROW_THREADS
        patch_row, _ = patch_place(step)
        # 1. load the taps, and initialise the state
        clear(s_tile)
        load_taps(taps, w[head], False)
        for x in range(o_numbers):
            o_patch[x] = float32(0)
        for turn in range(turns):
            m[turn], l[turn] = MINUS_INFINITY, float32(0)
        last_key = min(keys_owned, i0 + rows + diagonal) if causal else keys_owned
        share = keys * -(-last_key // (keys * cuda.gridDim.z))
        last_key = min(last_key, (split + 1) * share)
        for j0 in range(split * share, last_key, keys):
            # 2. compute S0 with its halo
            products(
                s_tile,
                q_rows,
                k_rows,
                first_query + i0 - (c_q - 1),
                first_key + j0 - (c_k - 1) // 2,
                scale,
                causal,
                first_key - first_query + diagonal,
                q_chunk,
                k_chunk,
            )
            cuda.syncthreads()
            # 3. T and then P in strips; the ROW_THREADS lanes of a row share its maximum and sum by shuffles
            for turn in range(turns):
                i = strip_row(turn, size)
                for s in range(strips):
                    last = (
                        min(keys, keys_owned - j0, i0 + i + diagonal + 1 - j0)
                        if causal
                        else min(keys, keys_owned - j0)
                    )
                    # the number of owned and visible columns of this strip; not positive if there are none
                    counts[turn * strips + s] = (last if i < rows and i0 + i < n else 0) - strip_column(s)
            convolve_strips(strip, counts, s_tile, taps, c_q, c_k)
            for turn in range(turns):
                i = strip_row(turn, size)
                largest = m[turn]
                for s in range(strips):
                    for x in range(STRIP):
                        if x >= counts[turn * strips + s]:
                            strip[(turn * strips + s) * STRIP + x] = MINUS_INFINITY
                        largest = max(largest, strip[(turn * strips + s) * STRIP + x])
                largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 1))
                largest = max(largest, cuda.shfl_xor_sync(0xFFFFFFFF, largest, 2))
                total = float32(0)
                for x in range(turn * strips * STRIP, (turn + 1) * strips * STRIP):
                    strip[x] = weight(strip[x], largest)
                    total += strip[x]
                total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1)
                total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 2)
                shrink = weight(m[turn], largest)
                m[turn], l[turn] = largest, l[turn] * shrink + total
                if lane == 0:
                    row_factor[i] = shrink
            cuda.syncthreads()  # all threads have convolved their strips: P may overwrite S0
            for turn in range(turns):
                for s in range(strips):
                    for x in range(STRIP):
                        s_tile[strip_row(turn, size), strip_column(s) + x] = strip[
                            (turn * strips + s) * STRIP + x
                        ]
            # 4. O = O · shrink + P V
            for first in range(0, min(keys, last_key - j0), ROWS_AT_A_TIME):
                copy_rows(v_chunk, width, v_rows, j0 + first, 0, threads)
                cuda.syncthreads()
                if first == 0:
                    for x in range(o_numbers):
                        o_patch[x] *= row_factor[patch_row + x // columns * step]
                add_weighted_rows(o_patch, s_tile, first, 0, v_chunk)
                cuda.syncthreads()
        # 5. normalise O, and store O and L
        for turn in range(turns):
            i = strip_row(turn, size)
            if lane == 0:
                row_factor[i] = reciprocal(l[turn])
                if i < rows and i0 + i < n:
                    log_sum[split, batch, head, i0 + i] = m[turn] + math.log(l[turn])
        cuda.syncthreads()
        for x in range(o_numbers):
            o_patch[x] *= row_factor[patch_row + x // columns * step]
        store_rows(o[split, batch, head], i0, rows, float32(1), o_patch, step)

    return conv_forward_kernel


@cuda.jit
def conv_merge_kernel(parts, log_sums, o, log_sum):
    """Merge the results of the splits: L = log Σ e^L_s, O = Σ e^(L_s - L) O_s. One block per row, one thread
    per element.

    parts: (splits, B, H, N, d).
    log_sums: (splits, B, H, N).
    o: (B, H, N, d).
    log_sum: (B, H, N).
    """
    batch, head, i, c = cuda.blockIdx.z, cuda.blockIdx.y, cuda.blockIdx.x, cuda.threadIdx.x
    m, l, total = MINUS_INFINITY, float32(0), float32(0)
    for split in range(parts.shape[0]):
        m = max(m, log_sums[split, batch, head, i])
    for split in range(parts.shape[0]):
        share = weight(log_sums[split, batch, head, i], m)
        l += share
        total += share * parts[split, batch, head, i, c]
    o[batch, head, i, c] = total * reciprocal(l)
    if c == 0:
        log_sum[batch, head, i] = m + math.log(l)


def conv_forward(q, k, v, w, causal=True, scale=None, run=None, size=SIZE, extent=None, splits=None):
    """Compute convolutional attention and each query's log-sum-exp; return (O, L), without gradients.

    Arguments and errors are the same as for `conv_attention`. O has the shape and dtype of q; L is (B, H, N),
    float32.

    size: rows and columns of a tile of float32 scores, 64 or 32.
    extent: the owned rows of q, k and v, if these are parts of a longer sequence with halos
        (`kernels.common.extent`). O and L then have the rows of the owned queries, with O = 0 and L = -inf
        for a query that sees no owned key. O is float32 for every dtype of q, so that rounding does not add
        up when such parts are merged.
    splits: the number of blocks among which the keys of a row tile are divided, 1 or more (float32 only). By
        default `choose_splits` chooses it.
    """
    check_size(size)
    q, k, v, w, scale, extent = conv_arguments(q, k, v, w, scale, extent, ANY_FLOAT)
    return forward(q, k, v, w, causal, scale, run, size, extent, splits)


def forward(q, k, v, w, causal, scale, run=None, size=SIZE, extent=None, splits=None):
    """Return (O, L) for arguments of `conv_forward` that are already checked and contiguous."""
    if q.dtype in HALVES:
        if extent is not None:
            return conv_parts_forward(q, k, v, w, causal, scale, extent, run)
        if run is None and q.is_cuda and capability(q.device) == HOPPER:
            return conv_hopper_forward(q, k, v, w, causal, scale)
        return conv_tensor_forward(q, k, v, w, causal, scale, run)
    extent = extent or WHOLE
    batch, heads, n, d = (*q.shape[:2], q.shape[2] - extent.first_query, q.shape[3])
    grid = batch * heads, -(-n // (size - w.shape[1] + 1))
    key_tiles = -(-v.shape[2] // (size - w.shape[2] + 1))
    splits = choose_splits(*grid, key_tiles, causal, q.device) if splits is None else checked_splits(splits)
    o, log_sum = output((splits, batch, heads, n, d), like=q), output((splits, batch, heads, n), like=q)
    launch(
        conv_forward_kernel(width_for(d), size),
        (*grid, splits),
        threads_of(size),
        q,
        k,
        v,
        w,
        scale,
        bool(causal),
        extent,
        o,
        log_sum,
        run=run,
    )
    return (o[0], log_sum[0]) if splits == 1 else merged(o, log_sum, run)


def merged(parts, log_sums, run=None):
    """Merge the (O, L) of all splits, stacked in dimension 0."""
    _, batch, heads, n, d = parts.shape
    o, log_sum = output(parts.shape[1:], like=parts), output(log_sums.shape[1:], like=parts)
    launch(conv_merge_kernel, (n, heads, batch), d, parts, log_sums, o, log_sum, run=run)
    return o, log_sum


def choose_splits(sequences, row_tiles, key_tiles, causal, device):
    """Return the number of blocks among which to divide the keys of a row tile.

    With this number, no block takes longer than it would if all the work were shared evenly. The result is 1
    in the simulator, which runs blocks one after the other.
    """
    if device.type == "cpu":
        return 1
    # the number of blocks with maximal work that would do the same total work
    blocks = sequences * row_tiles / (2 if causal else 1)
    return max(1, min(key_tiles, math.ceil(RESIDENT * multiprocessors(device) / blocks)))
