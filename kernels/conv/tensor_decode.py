"""Convolutional attention for one new token on tensor cores: bfloat16 or float16 data, float32 accumulators.

The formulas and the split of the keys are the same as in `conv_decode`, whose second kernel also merges the
results of these blocks. A block processes KEYS keys at a time:

    S0   The product of the query window (at most 15 rows, padded to 16) and Kᵀ; each warp computes a quarter
         of the columns. S0 is masked and stored in shared memory in 16 bits, after the columns carried over
         from the previous tile
    T    One `mma` per row a of the window. Row m of its left operand is the 16 columns of S0[a] that start at
         8m; these rows overlap, and start 16 bytes apart. Its right operand is a band of taps, as in
         `tensor_forward`. So row m of the product is T of eight keys. Every warp computes all of T, which is
         faster than waiting for the other warps
    O    Each warp accumulates its quarter of the keys. Row m of the left operand contains the weights of the
    keys 8m to
         8m + 7, and zeros elsewhere, so each lane already holds the elements that it must supply. The rows
         are summed at the end

`cp.async` copies the next tile of K and V while the current one is used.
Sources: as in `conv_decode`.

    grid    (splits, H, B)
    block   WARPS · 32 threads
    shared  4 · KEYS · (width + 8) · 2 bytes and about 7 KiB: 79 KiB at d = 64, 143 KiB at d = 128
    cost    the bytes of K and V, read once except for the halos
"""

import functools

from numba import cuda
from numpy import float32, int16, uint32

from kernels.common.tiles import MINUS_INFINITY
from kernels.tensor_cores.instructions import (
    cp_async_commit,
    cp_async_wait_0,
    exp2_approx,
    ldmatrix_x4,
    ldmatrix_x4_trans,
)
from kernels.tensor_cores.launch import aligned, with_positive_scale
from kernels.tensor_cores.tiles import (
    ARITHMETIC,
    FULL,
    LARGEST,
    LN2,
    LOG2E,
    PADDING,
    SLACK,
    clamped,
    mma_pair,
    row_copier,
    tap_loader,
    window_of,
)

WARPS, KEYS, ROWS = 4, 128, 16  # warps per block; keys per tile; rows of a window, padded
BLOCKS = 2  # resident blocks per multiprocessor
OWN = KEYS // WARPS  # keys of a tile per warp
TWO_TILES = 2 * KEYS
CARRIED = 16  # columns carried over from the previous tile
SCORES = CARRIED + KEYS + PADDING
THREADS = WARPS * 32


@functools.cache
def decode_tensor_kernel(width, kind, c_q, c_k, bits=False):
    """Return the kernel for rows of at most `width` elements and (c_q, c_k) taps."""
    (mma, mma_k8, pack), add_pair = ARITHMETIC[kind], mma_pair(kind)
    scaled = kind == "float16"
    left = (c_k - 1) // 2
    window, load_taps = window_of(c_k), tap_loader(kind, c_q, c_k, bits)
    lag = 8 * (window - 1)
    shift, pitch = left - lag, width + PADDING
    depth, d_tiles, own_tiles = width // 16, width // 8, OWN // 8
    o_numbers, s_numbers = d_tiles * 4, own_tiles * 4
    tap_numbers = c_q * window
    copy = row_copier(width, THREADS)

    @cuda.jit(device=True)
    def convolve(t, scores, taps):
        """Compute T of KEYS keys in t, four elements per lane.

        The four elements belong to the keys x, x + 1, x + 64 and x + 65, where x = 8 (lane // 4) + 2 (lane %
        4).
        """
        lane = cuda.threadIdx.x & 31
        at = CARRIED - lag + (lane & 15) * 8
        for e in range(4):
            t[e] = float32(0)
        for a in range(c_q):
            a0, a1, a2, a3 = ldmatrix_x4(scores, (a, at + (lane >> 4) * 8))
            t[0], t[1], t[2], t[3] = mma(
                a0, a1, a2, a3, taps[a * window], taps[a * window + 1], t[0], t[1], t[2], t[3]
            )
            if window == 3:
                a0, a1, a2, a3 = ldmatrix_x4(scores, (a, at + (lane >> 4) * 8 + 8))
                t[0], t[1], t[2], t[3] = mma_k8(a2, a3, taps[a * window + 2], t[0], t[1], t[2], t[3])

    @cuda.jit
    def decode_tensor_kernel(q, k, v, w, scale, length, parts):
        """Store o, m and l of each block in parts (B, H, splits, d + 2).

        q: (B, H, R, d), the window, R = min(c_q, N_k) rows, 16-bit values as int16.
        k, v: (B, H, N_k, d), 16-bit values as int16.
        w: (H, c_q, c_k), float32, or 16-bit values as int16 if `bits`.
        length: keys per block.
        """
        k_tiles = cuda.shared.array((TWO_TILES, pitch), int16, alignment=16)
        v_tiles = cuda.shared.array((TWO_TILES, pitch), int16, alignment=16)
        q_tile = cuda.shared.array((ROWS, pitch), int16, alignment=16)
        scores = cuda.shared.array((ROWS, SCORES), int16, alignment=16)
        sums = cuda.shared.array((WARPS, width), float32)
        taps = cuda.local.array(tap_numbers, uint32)
        s, t = cuda.local.array(s_numbers, float32), cuda.local.array(4, float32)
        os = cuda.local.array(o_numbers, float32)
        batch, head = cuda.blockIdx.z, cuda.blockIdx.y
        thread, lane, warp = cuda.threadIdx.x, cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        group, pair = lane >> 2, (lane & 3) * 2
        n, d, rows = k.shape[2], parts.shape[3] - 2, q.shape[2]
        start = cuda.blockIdx.x * length
        end = min(n, start + length)
        factor = LOG2E if scaled else scale * LOG2E
        # 1. copy the window and the first tile, load the taps
        copy(q_tile, 0, ROWS, q, batch, head, rows - c_q)
        copy(k_tiles, 0, KEYS, k, batch, head, start - left)
        copy(v_tiles, 0, KEYS, v, batch, head, start - left + shift)
        cp_async_commit()
        load_taps(taps, w, head)
        for x in range(o_numbers):
            os[x] = float32(0)
        for x in range(thread, ROWS * CARRIED, THREADS):
            scores[x // CARRIED, x % CARRIED] = 0
        m, l, place = MINUS_INFINITY, float32(0), 0
        for first in range(start - left, end - shift, KEYS):
            cp_async_wait_0()
            cuda.syncthreads()  # the tile has arrived, and all warps have finished with the previous one
            if first + KEYS + shift < end:
                copy(k_tiles, KEYS - place, KEYS, k, batch, head, first + KEYS)
                copy(v_tiles, KEYS - place, KEYS, v, batch, head, first + KEYS + shift)
                cp_async_commit()
            # 2. compute S0 of this warp's keys, and store it after the columns carried over
            for x in range(s_numbers):
                s[x] = float32(0)
            for step in range(depth):
                a0, a1, a2, a3 = ldmatrix_x4(q_tile, (lane & 15, (lane >> 4) * 8 + step * 16))
                for tile in range(own_tiles // 2):
                    row = place + warp * OWN + tile * 16 + (lane & 7) + (lane >> 4) * 8
                    b0, b1, b2, b3 = ldmatrix_x4(k_tiles, (row, (lane >> 3 & 1) * 8 + step * 16))
                    add_pair(s, tile * 8, a0, a1, a2, a3, b0, b1, b2, b3)
            for tile in range(own_tiles):
                for half in range(2):
                    a, column = group + half * 8, warp * OWN + tile * 8 + pair
                    x, last = (
                        tile * 4 + half * 2,
                        n - c_q + a - first - column,
                    )  # offset of the last key that query a sees
                    low = s[x] if last >= 0 else float32(0)
                    high = s[x + 1] if last >= 1 else float32(0)
                    if scaled:
                        low, high = clamped(low * scale), clamped(high * scale)
                    both = pack(low, high)
                    scores[a, CARRIED + column] = int16(both & uint32(0xFFFF))
                    scores[a, CARRIED + column + 1] = int16(both >> uint32(16))
            cuda.syncthreads()  # S0 is stored
            # 3. compute T and its softmax; m is equal in all lanes, and l is summed at the end
            convolve(t, scores, taps)
            largest = MINUS_INFINITY
            for e in range(4):
                j = first + shift + group * 8 + pair + (e >> 1) * 64 + (e & 1)
                if j < start or j >= end:
                    t[e] = MINUS_INFINITY
                largest = max(largest, t[e])
            if cuda.any_sync(FULL, largest > m + min(SLACK / factor, LARGEST)):
                for bit in range(5):
                    largest = max(largest, cuda.shfl_xor_sync(FULL, largest, 1 << bit))
                largest = max(m, largest)
                shrink = float32(0)
                if m != MINUS_INFINITY:
                    shrink = exp2_approx((m - largest) * factor)
                m, l = largest, l * shrink
                for x in range(o_numbers):
                    os[x] *= shrink
            base = float32(0) if m == MINUS_INFINITY else m
            for e in range(4):
                t[e] = exp2_approx((t[e] - base) * factor)
                l += t[e]
            # 4. accumulate O over this warp's keys
            # Row `group` of the left operand has this quad's weights in the columns of the quad's own keys.
            above, below = pack(t[0], t[1]), pack(t[2], t[3])
            for step in range(OWN // 16):
                block = warp * (OWN // 8) + step * 2
                a0 = above if group == block else uint32(0)
                a1 = below if group + 8 == block else uint32(0)
                a2 = above if group == block + 1 else uint32(0)
                a3 = below if group + 8 == block + 1 else uint32(0)
                row = place + warp * OWN + step * 16 + (lane & 15)
                for tile in range(d_tiles // 2):
                    b0, b1, b2, b3 = ldmatrix_x4_trans(v_tiles, (row, (lane >> 4) * 8 + tile * 16))
                    add_pair(os, tile * 8, a0, a1, a2, a3, b0, b1, b2, b3)
            cuda.syncthreads()  # all warps have computed T: the last columns may be moved to the front
            for x in range(thread, ROWS * CARRIED, THREADS):
                scores[x // CARRIED, x % CARRIED] = scores[x // CARRIED, KEYS + x % CARRIED]
            place = KEYS - place
        # 5. sum the rows by shuffles, then the warps through shared memory
        for tile in range(d_tiles):
            for e in range(2):
                total = os[tile * 4 + e] + os[tile * 4 + 2 + e]
                for bit in range(2, 5):
                    total += cuda.shfl_xor_sync(FULL, total, 1 << bit)
                if group == 0:
                    sums[warp, tile * 8 + pair + e] = total
        for bit in range(5):
            l += cuda.shfl_xor_sync(FULL, l, 1 << bit)
        cuda.syncthreads()
        part = parts[batch, head, cuda.blockIdx.x]
        if thread < d:
            total = float32(0)
            for other in range(WARPS):
                total += sums[other, thread]
            part[thread] = total
        if thread == 0:
            part[d], part[d + 1] = m * factor * LN2, l

    return decode_tensor_kernel


def length_of(keys, c_k):
    """Return the number of keys per block, at least `keys`: the capacity of its tiles, minus the halo."""
    lag = 8 * (window_of(c_k) - 1)
    return -(-(keys + lag) // KEYS) * KEYS - lag


def operands(q, k, v, scale):
    """Return q, k and v as the kernel expects them, and a positive scale.

    K and V are copied only if their rows are not aligned to 16 bytes.
    """
    q, scale = with_positive_scale(q, scale)
    return *map(aligned, (q, k, v)), scale
