"""Head map, softmax and its gradient for bands of bfloat16 scores, with float32 accumulators.

Bands are those of `kernels.multi_token.tensor_convolution`. The head map runs on tensor cores.

    kernel           computes                 grid                             block          shared
    mix              y[g] = Σ_h M[g, h] x[h]  (⌈R · C / 512⌉, H / s, B)        256 threads    0
    softmax          x = softmax(x)           (⌈R / 8⌉, H, B)                  256 threads    0
    softmax_back     x = P ∘ (x - D)          (⌈R / 8⌉, H, B)                  256 threads    0

A warp of the last two kernels processes a row. Source: Golovneva et al. 2025, arXiv 2504.00927.
"""

import functools

from numba import cuda
from numpy import float32, int32, int64, uint32

from kernels.common.splits import LANE, LANES, largest_of_warp, sum_of_warp
from kernels.common.tiles import MINUS_INFINITY, reciprocal
from kernels.multi_token.kernels import WARPS
from kernels.tensor_cores.instructions import exp2_approx, high_bf16, low_bf16, mma_bf16, pack_bf16
from kernels.tensor_cores.tiles import LOG2E

LOADS, EACH = 2, 4  # groups of eight elements per warp of the head mixer; scores per element
SUMS = 4 * EACH  # accumulators per thread in the head mixer, for 16 heads


@functools.cache
def mix_kernel(group):
    """Return the kernel for maps within groups of `group` heads, at most 32.

    The map is the left operand of `mma`, and the right operand has the scores of 16 heads at eight columns.
    """
    tiles = -(-group // 16)
    map_numbers, score_numbers = tiles * tiles * 4, LOADS * tiles * 2 * EACH

    @cuda.jit(device=True)
    def map_pair(head_map, number, g, h):
        low = head_map[number, g, h] if g < group and h < group else float32(0)
        high = head_map[number, g, h + 1] if g < group and h + 1 < group else float32(0)
        return pack_bf16(low, high)

    @cuda.jit(device=True)
    def load_map(m, head_map, number):
        """Load this lane's fragments of the map, as left operands of `mma`."""
        lane = cuda.threadIdx.x & 31
        for up in range(tiles):
            for across in range(tiles):
                for part in range(4):
                    g = up * 16 + (part & 1) * 8 + (lane >> 2)
                    h = across * 16 + (part >> 1) * 8 + (lane & 3) * 2
                    m[(up * tiles + across) * 4 + part] = map_pair(head_map, number, g, h)

    @cuda.jit(device=True)
    def load_scores(scores, x, batch, first_head, start):
        """Load this lane's fragments of the scores, as right operands of `mma`.

        An element of x has scores of one head at four columns, and a register scores of two heads at one
        column. So the lane exchanges the parts of two elements.
        """
        lane = cuda.threadIdx.x & 31
        for step in range(LOADS):
            place = start + step * 8 + (lane >> 2)
            for part in range(2 * tiles):
                h, z = part * 8 + (lane & 3) * 2, (step * 2 * tiles + part) * EACH
                low, high = int64(0), int64(0)
                if place < x.shape[2]:
                    if h < group:
                        low = x[batch, first_head + h, place]
                    if h + 1 < group:
                        high = x[batch, first_head + h + 1, place]
                for word in range(EACH // 2):
                    own, other = uint32(low >> (32 * word)), uint32(high >> (32 * word))
                    scores[z + 2 * word] = own & uint32(0xFFFF) | other << uint32(16)
                    scores[z + 2 * word + 1] = own >> uint32(16) | other & uint32(0xFFFF0000)

    @cuda.jit
    def multi_token_mix_bf16_kernel(x, head_map, y):
        """Mix the heads of x into y, which may be x: (B, H, X / 4), int64 elements with four scores each.

        head_map: (H / group, group, group), float32, rounded to bfloat16.
        """
        m = cuda.local.array(map_numbers, uint32)
        scores = cuda.local.array(score_numbers, uint32)
        sums = cuda.local.array(SUMS, float32)
        lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
        batch, first_head = cuda.blockIdx.z, cuda.blockIdx.y * group
        start = (cuda.blockIdx.x * WARPS + warp) * (8 * LOADS)
        load_scores(scores, x, batch, first_head, start)
        load_map(m, head_map, cuda.blockIdx.y)
        # y may be the same array as x, and other lanes store an element than the lanes that load it
        cuda.syncwarp()
        for step in range(LOADS):
            for up in range(tiles):
                for z in range(SUMS):
                    sums[z] = float32(0)
                for across in range(tiles):
                    p, b = (up * tiles + across) * 4, (step * tiles + across) * 2 * EACH
                    for e in range(EACH):
                        z = e * 4
                        sums[z], sums[z + 1], sums[z + 2], sums[z + 3] = mma_bf16(
                            m[p], m[p + 1], m[p + 2], m[p + 3], scores[b + e], scores[b + EACH + e],
                            sums[z], sums[z + 1], sums[z + 2], sums[z + 3],
                        )  # fmt: skip
                for z in range(4):
                    g = up * 16 + (z >> 1) * 8 + (lane >> 2)
                    place = start + step * 8 + (lane & 3) * 2 + (z & 1)
                    if g < group and place < x.shape[2]:
                        low, high = pack_bf16(sums[z], sums[4 + z]), pack_bf16(sums[8 + z], sums[12 + z])
                        y[batch, first_head + g, place] = int64(low) | int64(high) << 32

    return multi_token_mix_bf16_kernel


# Softmax ----------------------------------------------------------------------------------------------------


@cuda.jit
def multi_token_softmax_bf16_kernel(x, first, keys, causal):
    """Replace each row of x by its softmax over `keys` columns, in place; other columns become 0.

    x: (B, H, R, C / 2), int32 elements with two scores each.
    """
    i, lane = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES, cuda.threadIdx.x & LANE
    if i < x.shape[2]:
        row = x[cuda.blockIdx.z, cuda.blockIdx.y, i]
        last = min(keys, first + i + 1) if causal else keys
        whole = last // 2  # elements with two scores; if `last` is odd, one more has a single score
        tail = low_bf16(uint32(row[whole])) if last % 2 else MINUS_INFINITY
        m, l = tail, float32(0)
        for word in range(lane, whole, LANES):
            both = uint32(row[word])
            m = max(m, max(low_bf16(both), high_bf16(both)))
        m = largest_of_warp(m)
        base = float32(0) if m == MINUS_INFINITY else m * LOG2E  # -inf - -inf is NaN
        for word in range(lane, whole, LANES):
            both = uint32(row[word])
            l += exp2_approx(low_bf16(both) * LOG2E - base) + exp2_approx(high_bf16(both) * LOG2E - base)
        tail = exp2_approx(tail * LOG2E - base)
        factor = reciprocal(sum_of_warp(l) + tail)
        cuda.syncwarp()
        for word in range(lane, row.shape[0], LANES):
            low, high = float32(0), float32(0)
            if word < whole:
                both = uint32(row[word])
                low = exp2_approx(low_bf16(both) * LOG2E - base) * factor
                high = exp2_approx(high_bf16(both) * LOG2E - base) * factor
            elif word == whole:
                low = tail * factor
            row[word] = int32(pack_bf16(low, high))


@cuda.jit
def multi_token_softmax_back_bf16_kernel(x, first, p, p_first, keys, causal):
    """Replace x by P ∘ (x - D) in place, with D = Σ_j P x for each row; other columns become 0.

    x, p: (B, H, R, C / 2), int32 elements with two scores each; see `multi_token_softmax_back_kernel`. P is 0
        where it is masked.
    """
    i, lane = cuda.blockIdx.x * WARPS + cuda.threadIdx.x // LANES, cuda.threadIdx.x & LANE
    if i < x.shape[2]:
        row = x[cuda.blockIdx.z, cuda.blockIdx.y, i]
        p_row = p[cuda.blockIdx.z, cuda.blockIdx.y, first + i - p_first]
        last = min(keys, first + i + 1) if causal else keys
        used = (last + 1) // 2
        d = float32(0)
        for word in range(lane, used, LANES):
            both_p, both = uint32(p_row[word]), uint32(row[word])
            d += low_bf16(both_p) * low_bf16(both) + high_bf16(both_p) * high_bf16(both)
        d = sum_of_warp(d)
        for word in range(lane, row.shape[0], LANES):
            low, high = float32(0), float32(0)
            if word < used:
                both_p, both = uint32(p_row[word]), uint32(row[word])
                low = low_bf16(both_p) * (low_bf16(both) - d)
                high = high_bf16(both_p) * (high_bf16(both) - d)
            row[word] = int32(pack_bf16(low, high))
