"""Decoding with the multi-token layer: the scores T for the query window, and the first head map.

These are the first two of the four kernels described in `decode.py`, which also states the formulas.
"""

import functools

from numba import cuda
from numpy import float32

from kernels.common.arguments import MAX_HEAD_DIM, MOST_TAPS
from kernels.common.splits import ALL_LANES, LANE, LANES, LARGEST_D, PLACE, UNROLLED
from kernels.common.tiles import MINUS_INFINITY, weight
from kernels.tensor_cores.early_launch import start_next_kernel, wait_for_previous_kernel
from kernels.tensor_cores.tiles import widener

KEYS, COLUMNS = 64, 16  # keys and columns per sub-tile of K
PITCH = COLUMNS + 1  # with this padding, a column of a sub-tile lies in 32 different banks
CARRIED = 16  # scores kept from the previous keys; a convolution reads fewer to its left
TILE = CARRIED + KEYS
WINDOW_WARPS = 2  # per block
WINDOW_BLOCKS = 8  # resident blocks per multiprocessor at 128 registers per thread
MIX_WARPS, MIX_THREADS = 4, 128
PARTS = 64  # maximum number of parts of a row, each with its own m and l


# Scores and the first convolution ---------------------------------------------------------------------------


@functools.cache
def convolver(c_q, after):
    """Create convolve(totals, column, tile, taps, place, c_k), which computes totals[r] = Σ_ab taps[b, a] ·
    tile[r + a, place + b]. `column` is scratch."""
    rows = c_q + after - 1

    @cuda.jit(device=True)
    def convolve(totals, column, tile, taps, place, c_k):
        for r in range(after):
            totals[r] = float32(0)
        for b in range(c_k):
            for a in range(rows):
                column[a] = tile[a, place + b]
            for a in range(c_q):
                tap = taps[b & LANE, a]
                for r in range(after):
                    totals[r] += tap * column[r + a]

    return convolve


@functools.cache
def window_kernel(c_q, after):
    """Return the kernel that computes `after` rows of T with c_q rows of taps."""
    rows = c_q + after - 1
    slots, tap_slots = (-(-count // UNROLLED) * UNROLLED for count in (rows, c_q))
    numbers = 2 * slots
    registers, convolve = 128 if slots <= 12 else 255, convolver(c_q, after)

    @cuda.jit(device=True)
    def load_piece(held, k, place, d, first, low, high, c):
        """Load element c of 32 keys, with 0 outside [low, high).

        held[x] belongs to key first + 2x in the first half of the warp, and to first + 2x + 1 in the second.
        """
        first += cuda.threadIdx.x // COLUMNS & 1
        base = place + first * d + min(c, d - 1)
        if low <= first and first + KEYS <= high:
            for x in range(LANES):
                held[x] = float32(k[(base + 2 * x * d) & PLACE])
        else:
            for x in range(LANES):
                inside = low <= first + 2 * x < high
                held[x] = float32(k[(base + 2 * x * d) & PLACE]) if inside else float32(0)

    @cuda.jit(device=True)
    def add_scores(scores, q_tile, c0, piece, lane):
        """Add the product of row a of the window and key `lane`, over COLUMNS columns, to scores[a].

        scores[slots + a] accumulates the product with key LANES + lane.
        """
        for group in range(0, COLUMNS, UNROLLED):
            for c in range(UNROLLED):
                low, high = piece[lane, (group + c) & LANE], piece[LANES + lane, (group + c) & LANE]
                for a in range(slots):
                    number = q_tile[(c0 + group + c) & LARGEST_D, a]
                    scores[a] += number * low
                    scores[slots + a] += number * high

    @cuda.jit(max_registers=registers)
    def multi_token_window_kernel(q, k, k_strides, sharing, w, scale, length, t):
        """Store T of the last queries in t (B, H, after, N_k).

        q: (B, H, R, d), the window, R = min(rows, N_k).
        k: one-dimensional view; key j of head h of batch b starts at k[b · k_strides[0] + h // sharing ·
            k_strides[1] + j · d].
        w: (H, c_q, c_k).
        length: keys per warp.
        """
        pieces = cuda.shared.array((WINDOW_WARPS, KEYS, PITCH), float32)
        tiles = cuda.shared.array((WINDOW_WARPS, rows, TILE), float32)
        q_tile = cuda.shared.array((MAX_HEAD_DIM, slots), float32, alignment=16)
        taps = cuda.shared.array((MOST_TAPS, tap_slots), float32, alignment=16)
        held, scores = cuda.local.array(LANES, float32), cuda.local.array(numbers, float32)
        column, totals = cuda.local.array(rows, float32), cuda.local.array(after, float32)
        batch, head, thread = cuda.blockIdx.z, cuda.blockIdx.y, cuda.threadIdx.x
        lane, warp = thread & LANE, thread // LANES
        keys, c_k, given, d = t.shape[3], w.shape[2], q.shape[2], q.shape[3]
        width = (d + COLUMNS - 1) // COLUMNS * COLUMNS
        piece, tile = pieces[warp], tiles[warp]
        # 1. load the window and the taps, and clear the scores of the previous keys
        for element in range(thread, slots * width, WINDOW_WARPS * LANES):
            a, c = element // width, element % width
            i = a - rows + given
            inside = a < rows and i >= 0 and c < d
            q_tile[c, a] = scale * float32(q[batch, head, i, c]) if inside else float32(0)
        for element in range(thread, c_k * tap_slots, WINDOW_WARPS * LANES):
            b, a = element // tap_slots, element % tap_slots
            taps[b, a] = w[head, a, b] if a < c_q else float32(0)
        for element in range(lane, rows * CARRIED, LANES):
            tile[element // CARRIED, element % CARRIED] = float32(0)
        cuda.syncthreads()
        # 2. this warp owns the keys [start, end), and needs the scores of [low, high)
        start = (cuda.blockIdx.x * WINDOW_WARPS + warp) * length
        end, right = min(keys, start + length), c_k // 2
        low, high = start - (c_k - 1) // 2, end + right
        place = batch * k_strides[0] + head // sharing * k_strides[1]
        first_key, key_end, c = max(0, low), min(keys, high), lane % COLUMNS
        if start < end:
            load_piece(held, k, place, d, low, first_key, key_end, c)
        for first in range(low, high if start < end else low, KEYS):
            # 3. compute the scores of two keys per lane with each row of the window
            for x in range(numbers):
                scores[x] = float32(0)
            for c0 in range(0, width, COLUMNS):
                for x in range(LANES):
                    piece[2 * x + lane // COLUMNS, c] = held[x]
                cuda.syncwarp()  # the sub-tile is stored
                # meanwhile, load the next columns or the next keys
                next_c, key = c0 + COLUMNS, first
                if next_c >= width:
                    next_c, key = 0, first + KEYS
                load_piece(held, k, place, d, key, first_key, key_end, next_c + c)
                add_scores(scores, q_tile, c0, piece, lane)
                cuda.syncwarp()  # all lanes have read the sub-tile
            # 4. mask the scores
            for a in range(rows):
                for half in range(2):
                    j = first + lane + half * LANES
                    seen = 0 <= j <= keys - rows + a
                    tile[a, CARRIED + lane + half * LANES] = scores[half * slots + a] if seen else float32(0)
            cuda.syncwarp()  # the scores are stored
            # 5. convolve: the score of key j completes T of key j - right
            for half in range(2):
                x = lane + half * LANES
                convolve(totals, column, tile, taps, CARRIED + x - (c_k - 1), c_k)
                if start <= first + x - right < end:
                    for r in range(after):
                        t[batch, head, r, first + x - right] = totals[r]
            cuda.syncwarp()  # all lanes have read the scores, so the last scores may be moved to the front
            for element in range(lane, rows * CARRIED, LANES):
                a, x = element // CARRIED, element % CARRIED
                tile[a, x] = tile[a, KEYS + x]
            cuda.syncwarp()

    return multi_token_window_kernel


# The first map, and the softmax's statistics ----------------------------------------------------------------


def mixed_keys(most):
    """Return the keys per thread and iteration, for groups of at most `most` heads."""
    return 2 if most <= 32 else 1


@functools.cache
def mix_rows_kernel(most, kind="float32"):
    """Return the kernel for maps within groups of at most `most` heads.

    kind: the type of the map; 16-bit values are passed as int16.
    """
    widened = widener(kind)

    each = mixed_keys(most)
    rows, keys_at_once = -(-most // MIX_WARPS), each * MIX_THREADS
    numbers, loads = each * most, keys_at_once // LANES

    @cuda.jit(device=True)
    def add_part(so_far, values, group):
        """Update the running maxima and sums so_far (group, 2) with values (group, keys_at_once).

        A warp processes every MIX_WARPS-th row, all of them at once.
        """
        largest, sums = cuda.local.array(rows, float32), cuda.local.array(rows, float32)
        lane, warp = cuda.threadIdx.x & LANE, cuda.threadIdx.x // LANES
        for i in range(rows):
            g, largest[i] = warp + i * MIX_WARPS, MINUS_INFINITY
            if g < group:
                largest[i] = so_far[g, 0]
                for x in range(loads):
                    largest[i] = max(largest[i], values[g, lane + x * LANES])
        for bit in range(5):
            for i in range(rows):
                largest[i] = max(largest[i], cuda.shfl_xor_sync(ALL_LANES, largest[i], 1 << bit))
        for i in range(rows):
            g, sums[i] = warp + i * MIX_WARPS, float32(0)
            if g < group:
                for x in range(loads):
                    sums[i] += weight(values[g, lane + x * LANES], largest[i])
        for bit in range(5):
            for i in range(rows):
                sums[i] += cuda.shfl_xor_sync(ALL_LANES, sums[i], 1 << bit)
        cuda.syncwarp()  # all lanes have read the running maxima
        for i in range(rows):
            g = warp + i * MIX_WARPS
            if lane == 0 and g < group:
                shrink = weight(so_far[g, 0], largest[i])
                so_far[g, 0], so_far[g, 1] = largest[i], shrink * so_far[g, 1] + sums[i]

    @cuda.jit
    def multi_token_mix_rows_kernel(t, head_map, length, ends):
        """Mix the heads of t (B, H, after, N_k) in place, and store the statistics of each part of a row.

        head_map: (H / group, group, group).
        length: keys per part.
        ends: (B, 2, H, after, PARTS), m and l over the keys that the row's query sees; (-inf, 0) for a part
            without keys.
        """
        shares = cuda.shared.array((most, most), float32, alignment=16)
        values = cuda.shared.array((most, keys_at_once), float32)
        so_far = cuda.shared.array((most, 2), float32)
        held = cuda.local.array(numbers, float32)
        batch, group, thread = cuda.blockIdx.z, head_map.shape[1], cuda.threadIdx.x
        first_head = cuda.blockIdx.y * group
        after, keys = t.shape[2], t.shape[3]
        part, r = cuda.blockIdx.x // after, cuda.blockIdx.x % after
        end, query, rows = min(keys, (part + 1) * length), keys - after + r, t[batch]
        for element in range(thread, group * most, MIX_THREADS):
            g, h = element // most, element % most
            shares[g, h] = widened(head_map[cuda.blockIdx.y, g, h]) if h < group else float32(0)
        wait_for_previous_kernel()
        start_next_kernel()
        if thread < group:
            so_far[thread, 0], so_far[thread, 1] = MINUS_INFINITY, float32(0)
        for first in range(part * length, end, keys_at_once):
            cuda.syncthreads()  # the map is loaded, and all threads have finished with the previous keys
            for x in range(each):
                j = first + x * MIX_THREADS + thread
                for h in range(most):
                    inside = h < group and j < end
                    held[x * most + h] = rows[first_head + h, r, j & PLACE] if inside else float32(0)
            for g in range(group):
                for x in range(each):
                    j, total = first + x * MIX_THREADS + thread, float32(0)
                    for h in range(most):
                        total += shares[g, h] * held[x * most + h]
                    seen = j < end and j <= query
                    values[g, x * MIX_THREADS + thread] = total if seen else MINUS_INFINITY
                    if j < end:
                        rows[first_head + g, r, j & PLACE] = total
            cuda.syncthreads()  # the values of all heads are stored
            add_part(so_far, values, group)
        cuda.syncthreads()  # the whole part has been added
        for element in range(thread, 2 * group, MIX_THREADS):
            ends[batch, element % 2, first_head + element // 2, r, part] = so_far[element // 2, element % 2]

    return multi_token_mix_rows_kernel
