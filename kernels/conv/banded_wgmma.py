"""Convolutional attention, backward kernel that stores P and dS, with all products by `wgmma`.

It computes the same as `kernels.conv.banded_scores`, with the same division into blocks, bands and parts.
The convolutions and the gradient of the taps are asynchronous products of a warp group, too
(`kernels.conv.banded_convolution`). They need few instructions, and no loads into registers. An iteration
processes COLUMNS columns:

    1. S0  of these columns, computed by the previous iteration, is rounded and stored in shared memory
    2. T   = products with the bands of taps; dO Vᵀ; then P, and dT, which is stored in shared memory
    3. dS  = products with the bands of the flipped taps; S0 of the next columns; the gradient of the taps

A product computes with zeros of a band for the rows to which it contributes nothing. Zero times NaN is NaN,
so S0 and dT must be finite in shared memory. If L or D of any row near the block is not finite, the kernel
limits S0 and dT, and makes the gradients of the rows that depend on such a row NaN.

    grid    (B · H, tiles of the band), owned = 128 - 2 · (c_q - 1) queries per tile; those with the most keys
            first
    block   128 threads
    shared  see `supports`
    cost    multiply-adds per score, before halos: 2 · d, 8 · (c_q + 1) · (window + 1) for each of T and dS,
            and 128 · window for dW; window is 2, or 3 for more than nine column taps
"""

import functools

from numba import boolean, cuda
from numpy import float32, int16, int32, uint32, uint64

from kernels.conv.banded_convolution import (
    G_PLACES,
    LATEST,
    RING,
    S_PLACES,
    TAPS,
    band_maker,
    carried_numbers,
    clear_ring,
    convolution_ender,
    convolution_starter,
    diagonal_adder,
    masked,
    store_gradients,
    store_scores,
    tap_gradient_starter,
    tap_loader,
    tap_numbers,
)
from kernels.conv.banded_products import SIDE
from kernels.conv.banded_scores import CLEARED, hide, hide_scores, offsets_of, owned_rows, store_part
from kernels.conv.banded_tiles import (
    BLOCKS,
    COLUMNS,
    HALF,
    NUMBERS,
    PARITIES,
    WARP_ROWS,
    product_starter,
    score_packer,
    take,
    tile_copier,
)
from kernels.tensor_cores.instructions import cp_async_commit, cp_async_wait_0, exp2_approx
from kernels.tensor_cores.tiles import LARGEST, LARGEST_HALF, LOG2E, clamped, window_of
from kernels.tensor_cores.warpgroup import fence_proxy_async, matrix_descriptor, wgmma_wait_0, wgmma_wait_1
from kernels.tensor_cores.warpgroup_tiles import GROUP, PATTERN, ROWS, SWIZZLE

WARPS = 4
SHARED, RESERVED = 228 * 1024, 1024  # bytes per multiprocessor, and bytes that the GPU adds to each block


def supports(width, c_q, c_k):
    """Return whether the shared memory of a multiprocessor holds two blocks. With only one block, this kernel
    is slower than the kernel of `banded_scores`."""
    tiles = (2 * PARITIES * ROWS + 2 * COLUMNS) * width * 2
    buffers = (RING * S_PLACES + LATEST * G_PLACES) * PARITIES * 16
    bands = 2 * (c_q + 2) * (window_of(c_k) + 1) * 256
    others = c_q * TAPS * 2 + (c_q * c_k * 8 + 2 * ROWS + c_q - 1) * 4
    return 2 * (tiles + buffers + bands + others + RESERVED) <= SHARED


@cuda.jit(device=True)
def nan_or_0(x):
    """Return 0 for a finite x, otherwise NaN."""
    return x - x


@functools.cache
def limiter(kind):
    """Create finite(x), which limits x to the range of a 16-bit type. NaN becomes a finite number."""
    largest = LARGEST_HALF if kind == "float16" else LARGEST

    @cuda.jit(device=True)
    def finite(x):
        return max(min(x, largest), -largest)

    return finite


@cuda.jit(device=True)
def in_ring(block):
    """Return the index of a block within the ring buffer, for 0 <= block < 2 · RING."""
    return block - uint32(RING) if block >= uint32(RING) else block


@functools.cache
def wgmma_score_gradient_kernel(width, kind, c_q, c_k, bits=False):
    """Return the kernel for rows of `width` elements and (c_q, c_k) taps. This function and the kernel have
    the same parameters as `banded_scores.score_gradient_kernel` and its kernel."""
    scaled = kind == "float16"
    window, halo, pieces, owned = window_of(c_k), c_q - 1, width // SIDE, owned_rows(c_q, WARPS)
    t_offset, s_offset = offsets_of(c_q, c_k)
    ring_shape, latest_shape = (RING, PARITIES, S_PLACES, 8), (LATEST, PARITIES, G_PLACES, 8)
    bands_shape, taps_shape = (c_q + 2, window + 1, 2, 8, 4), (c_q, TAPS)
    rows, all_rows = 2 * ROWS, 2 * ROWS + halo
    g_rows = rows - halo  # rows of dT whose S0 the block computes
    s_block, g_block = PARITIES * S_PLACES, PARITIES * G_PLACES  # rows of 16 bytes
    copy_rows = tile_copier(rows, width, PARITIES, GROUP)
    copy = tile_copier(COLUMNS, width, 1, GROUP)
    start = product_starter(kind, width, ROWS)
    load_taps, make_bands = tap_loader(kind, c_q, c_k, bits), band_maker(c_q, c_k)
    start_s, start_g = (convolution_starter(kind, c_q, c_k, places) for places in (S_PLACES, G_PLACES))
    end_convolution, packed = convolution_ender(c_k), score_packer(kind)
    start_taps, add_diagonals = tap_gradient_starter(kind, c_k), diagonal_adder(c_q, c_k)
    zeros, no_sums = (float32(0),) * HALF, (float32(0),) * tap_numbers(c_k)
    nothing, nothing_stored = (float32(0),) * carried_numbers(c_k), (uint32(0),) * (NUMBERS // 2)
    finite = limiter(kind)

    @cuda.jit(device=True)
    def add_broken_rows(g, broken_rows):
        """Set a warp's rows of dS to NaN if they depend on a row of dT whose L or D is not finite."""
        lane, warp_row = cuda.threadIdx.x & 31, (cuda.threadIdx.x >> 5) * WARP_ROWS
        for part in range(4):
            row, total = warp_row + (part & 1) * 16 + (lane >> 2) * 2 + (part >> 1), float32(0)
            for a in range(c_q):
                total += broken_rows[row + a]
            for y in range(HALF // 2):
                g[(part >> 1) * HALF + (y >> 1) * 4 + (part & 1) * 2 + (y & 1)] += total

    @cuda.jit(launch_bounds=(GROUP, 2))
    def conv_wgmma_score_gradient_kernel(
        q, d_o, k, v, w, log_sum, delta, scale, causal, first_row, last_row, earlier, p_band, s_band, d_w
    ):
        x_tile = cuda.shared.array((PARITIES, pieces, ROWS, SIDE), int16, alignment=PATTERN)
        x2_tile = cuda.shared.array((PARITIES, pieces, ROWS, SIDE), int16, alignment=PATTERN)
        y_tile = cuda.shared.array((1, pieces, COLUMNS, SIDE), int16, alignment=PATTERN)
        y2_tile = cuda.shared.array((1, pieces, COLUMNS, SIDE), int16, alignment=PATTERN)
        s_ring = cuda.shared.array(ring_shape, int16, alignment=128)
        g_tile = cuda.shared.array(latest_shape, int16, alignment=128)
        bands = cuda.shared.array(bands_shape, int32, alignment=128)
        flipped = cuda.shared.array(bands_shape, int32, alignment=128)
        taps = cuda.shared.array(taps_shape, int16)
        diagonals = cuda.shared.array((c_q, c_k, 8), float32)
        s = cuda.local.array(NUMBERS, float32)
        g = cuda.local.array(NUMBERS, float32)
        of_rows = cuda.local.array(8, float32)
        stored = cuda.local.array(4, boolean)
        masks = cuda.local.array(4, uint32)
        broken_rows = cuda.shared.array(all_rows, float32)
        batch, head = cuda.blockIdx.x // q.shape[1], cuda.blockIdx.x % q.shape[1]
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        n, warp_row = q.shape[2], warp * WARP_ROWS
        tile = cuda.gridDim.y - 1 - cuda.blockIdx.y
        i0 = first_row + tile * owned
        last = min(last_row, i0 + owned)  # the owned queries end here
        end = (min(n, i0 + owned) if causal else n) - s_offset
        factor = LOG2E if scaled else scale * LOG2E
        s_row, t_row = i0 - halo, i0
        # 0. copy the rows and the first columns, load the taps, and clear the ring buffer of S0
        copy_rows(x_tile, q, batch, head, s_row)
        copy_rows(x2_tile, d_o, batch, head, t_row)
        copy(y_tile, k, batch, head, 0)
        copy(y2_tile, v, batch, head, t_offset)
        clear_ring(s_ring, q)
        cp_async_commit()
        load_taps(taps, w, head)
        for part in range(4):
            row = warp_row + (part & 1) * 16 + (lane >> 2) * 2 + (part >> 1)
            i = t_row + row
            stored[part] = i < last
            masks[part] = uint32(0xFFFFFFFF) if row < owned else uint32(0)
            of_rows[part] = log_sum[batch, head, i] if i < n else float32(0)
            of_rows[part] = of_rows[part] * LOG2E + nan_or_0(of_rows[part])
            if row >= g_rows:
                of_rows[part] = LARGEST  # P and dT become 0
            of_rows[4 + part] = delta[batch, head, i] if i < n else float32(0)
        broken = float32(0)
        for x in range(cuda.threadIdx.x, all_rows + halo, GROUP):
            i, this = s_row + x, float32(0)
            if 0 <= i and i < n:
                this = nan_or_0(log_sum[batch, head, i]) + nan_or_0(delta[batch, head, i])
            if x >= halo:
                broken_rows[x - halo] = this
            broken += this
        block = uint32(0)
        cuda.syncthreads()
        make_bands(bands, flipped, taps)
        cp_async_wait_0()
        fence_proxy_async()
        some_broken = cuda.syncthreads_or(int32(broken != broken))
        of_x = matrix_descriptor(x_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        of_x2 = matrix_descriptor(x2_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        of_y = matrix_descriptor(y_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        of_y2 = matrix_descriptor(y2_tile, (0, 0, 0, 0), 16, PATTERN, SWIZZLE)
        of_bands = matrix_descriptor(bands, (0, 0, 0, 0, 0), 128, 256, 0)
        of_flipped = matrix_descriptor(flipped, (0, 0, 0, 0, 0), 128, 256, 0)
        of_s = matrix_descriptor(s_ring, (0, 0, 0, 0), s_block * 16, 128, 0)
        of_low_g = matrix_descriptor(g_tile, (LATEST - BLOCKS, 0, 0, 0), g_block * 16, 128, 0)
        of_high_g = matrix_descriptor(g_tile, (LATEST - BLOCKS + 2, 0, 0, 0), g_block * 16, 128, 0)
        # the left and the right operand of the taps' gradient
        of_s_taps = matrix_descriptor(s_ring, (0, 0, 0, 0), 128, 16, 0)
        of_g_taps = matrix_descriptor(g_tile, (0, 0, 0, 0), 128, G_PLACES * 16, 0)
        even, odd = start(zeros, zeros, of_x, of_y)
        even, odd = wgmma_wait_0(even), wgmma_wait_0(odd)
        of_even, of_odd, s_carried, g_carried, before = no_sums, no_sums, nothing, nothing, nothing_stored
        for first in range(0, end, COLUMNS):
            # 1. Compute S0, 0 where masked.
            even, odd = wgmma_wait_1(even), wgmma_wait_1(odd)
            take(s, even, odd)
            row = s_row + warp_row
            if causal and first + COLUMNS - 1 > row:
                hide_scores(s, row, first)
            if scaled:
                for z in range(NUMBERS):
                    s[z] = clamped(s[z] * scale)
            if some_broken:
                for z in range(NUMBERS):
                    s[z] = finite(s[z])
            store_scores(s_ring, packed(s), warp * 16, block)
            of_even, of_odd = wgmma_wait_0(of_even), wgmma_wait_0(of_odd)
            cp_async_wait_0()
            fence_proxy_async()
            cuda.syncthreads()
            following = first + COLUMNS
            if following < end:
                copy(y_tile, k, batch, head, following)
            cp_async_commit()
            # 2. compute T and dO·vᵀ; then replace s by P and g by dT
            of_low = of_s + uint64(block * uint32(s_block))
            of_high = of_s + uint64(in_ring(block + uint32(2)) * uint32(s_block))
            low, high = start_s(of_low, of_high, of_bands)
            even, odd = start(even, odd, of_x2, of_y2)
            low, high = wgmma_wait_1(low), wgmma_wait_1(high)
            s_carried = end_convolution(s, low, high, s_carried)
            even, odd = wgmma_wait_0(even), wgmma_wait_0(odd)
            take(g, even, odd)
            for z in range(NUMBERS):
                part = (z >> 1 & 1) + z // HALF * 2
                s[z] = exp2_approx(s[z] * factor - of_rows[part])
                g[z] = s[z] * (g[z] - of_rows[4 + part])
                if scaled:
                    g[z] = clamped(g[z])
            if some_broken:
                for z in range(NUMBERS):
                    g[z] = finite(g[z])
            row, column = t_row + warp_row, first + t_offset
            edge = column < 0 or column + COLUMNS > n or row + WARP_ROWS > n
            if edge or causal and column + COLUMNS - 1 > row:
                hide(s, g, row, column, n, causal)
            latest = packed(g)
            store_gradients(g_tile, before, latest, warp * 16)
            if warp == WARPS - 1:  # the block owns only some of these rows
                store_gradients(g_tile, masked(before, masks), masked(latest, masks), ROWS)
            before = latest
            store_part(p_band[cuda.blockIdx.x, tile * WARPS + warp, first // COLUMNS], packed(s), stored)
            cp_async_wait_0()
            fence_proxy_async()
            cuda.syncthreads()
            if following < end:
                copy(y2_tile, v, batch, head, following + t_offset)
            cp_async_commit()
            # 3. compute dS, S0 of the next columns, and the gradient of the taps
            low, high = start_g(of_low_g, of_high_g, of_flipped)
            even, odd = start(even, odd, of_x, of_y)
            of_even, of_odd = start_taps(of_even, of_odd, of_s_taps, of_g_taps, block)
            low, high = wgmma_wait_1(low), wgmma_wait_1(high)
            g_carried = end_convolution(g, low, high, g_carried)
            if some_broken:
                add_broken_rows(g, broken_rows)
            row, column = i0 + warp_row, first + s_offset
            if column < 0 or column + COLUMNS > n or causal and column + COLUMNS - 1 > row:
                hide(g, g, row, column, n, causal)
            if scaled:
                for z in range(NUMBERS):
                    g[z] = clamped(g[z])
            store_part(s_band[cuda.blockIdx.x, tile * WARPS + warp, first // COLUMNS], packed(g), stored)
            block = in_ring(block + uint32(BLOCKS))
        even, odd = wgmma_wait_0(even), wgmma_wait_0(odd)
        of_even, of_odd = wgmma_wait_0(of_even), wgmma_wait_0(of_odd)
        # 4. clear the columns that only later tiles of the band have
        unused = (end + COLUMNS - 1) // COLUMNS
        for column in range(unused, min(p_band.shape[2], unused + CLEARED)):
            store_part(p_band[cuda.blockIdx.x, tile * WARPS + warp, column], nothing_stored, stored)
            store_part(s_band[cuda.blockIdx.x, tile * WARPS + warp, column], nothing_stored, stored)
        # 5. sum the taps' gradients over the columns
        add_diagonals(diagonals, of_even, of_odd)
        part, tap_factor = tile * (cuda.gridDim.x // q.shape[1]) + batch, float32(1) if scaled else scale
        for tap in range(cuda.threadIdx.x, c_q * c_k, GROUP):
            total = float32(0)
            if some_broken:
                for row in range(last - i0):
                    total += broken_rows[row]
            for column in range(8):
                total += diagonals[tap // c_k, tap % c_k, column]
            at = part, head, tap // c_k, tap % c_k
            d_w[at] = total * tap_factor + (d_w[at] if tile < earlier else float32(0))

    return conv_wgmma_score_gradient_kernel
