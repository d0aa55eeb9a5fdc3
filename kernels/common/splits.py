"""The split of one new token's keys among blocks: how many blocks there are, and how their results are
merged.

A block stores in part (d + 2) = Σ e^(s - m) v, m and l of its keys; a block without a key has l = 0 and m =
-inf. The merge is that of flash/warp.py, with one division at the end:

    m = max m_s        l = Σ_s e^(m_s - m) l_s        O = Σ_s e^(m_s - m) part_s / l
"""

import functools
import math

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight

LANES, ALL_LANES = 32, 0xFFFFFFFF  # the lanes of a warp: their number, and the mask of all
# c & LANE equals c, but tells the compiler that it is not negative
LANE, LARGEST_D, PLACE = LANES - 1, MAX_HEAD_DIM - 1, (1 << 62) - 1
UNROLLED = 4  # columns in an iteration: few enough for the compiler to unroll the loop
MERGING_WARPS = 8  # warps of a block that merges
BLOCKS, FEWEST_KEYS = 4, 64  # resident blocks per multiprocessor at 128 registers per thread; keys per block


# Device functions -------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def largest_of_warp(x):
    """Return the maximum of x over the warp's 32 lanes, in each of them."""
    for bit in range(5):
        x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1 << bit))
    return x


@cuda.jit(device=True)
def sum_of_warp(x):
    """Return the sum of x over the warp's 32 lanes, in each of them."""
    for bit in range(5):
        x += cuda.shfl_xor_sync(ALL_LANES, x, 1 << bit)
    return x


@cuda.jit(device=True)
def add_splits(sums, totals, part):
    """Add up the splits of part (splits, d + 2) by MERGING_WARPS warps; return m over all splits.

    Each warp adds every MERGING_WARPS-th split, and each of its lanes every 32nd column. The caller puts a
    barrier before other threads read the sums.

    sums: (MERGING_WARPS, d or more), the partial sums of o.
    totals: (MERGING_WARPS,), the partial sums of l.
    """
    splits, d = part.shape[0], part.shape[1] - 2
    lane, warp = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
    m, l = MINUS_INFINITY, float32(0)
    for s in range(lane, splits, LANES):
        m = max(m, part[s, d])
    m = largest_of_warp(m)
    for s in range(warp, splits, MERGING_WARPS):
        l += weight(part[s, d], m) * part[s, d + 1]
    if lane == 0:
        totals[warp] = l
    for c in range(lane, d, LANES):
        total = float32(0)
        for s in range(warp, splits, MERGING_WARPS):
            total += weight(part[s, d], m) * part[s, c]
        sums[warp, c] = total
    return m


@cuda.jit(device=True)
def merged(sums, totals, c):
    """Return (element c of O, l) from the partial sums of `add_splits`."""
    l = float32(0)
    for warp in range(MERGING_WARPS):
        l += totals[warp]
    return sum_of_warps(sums, c) * reciprocal(l), l


@cuda.jit(device=True)
def sum_of_warps(sums, c):
    """Return the sum of column c over the partial sums of MERGING_WARPS warps."""
    total = float32(0)
    for warp in range(MERGING_WARPS):
        total += sums[warp, c]
    return total


@cuda.jit
def merge_splits_kernel(parts, o, log_sum):
    """Merge parts (B, H, splits, d + 2) into o (B, H, 1, d) and log_sum (B, H, 1)."""
    sums = cuda.shared.array((MERGING_WARPS, MAX_HEAD_DIM), float32)
    totals = cuda.shared.array(MERGING_WARPS, float32)
    part, o_row = parts[cuda.blockIdx.y, cuda.blockIdx.x], o[cuda.blockIdx.y, cuda.blockIdx.x, 0]
    m = add_splits(sums, totals, part)
    cuda.syncthreads()  # every warp's sums are stored
    if cuda.threadIdx.x < o_row.shape[0]:
        o_row[cuda.threadIdx.x], l = merged(sums, totals, cuda.threadIdx.x)
        if cuda.threadIdx.x == 0:
            log_sum[cuda.blockIdx.y, cuda.blockIdx.x, 0] = m + math.log(l)


# Host functions ---------------------------------------------------------------------------------------------


def splits_for(given, sequences, keys, device, *rule):
    """Return the splits that a call has given, checked, or else those of `choose_splits`.

    rule: `fewest` and `blocks` of `choose_splits`.
    """
    return (
        choose_splits(sequences, keys, multiprocessors(device), *rule)
        if given is None
        else checked_splits(given)
    )


def choose_splits(sequences, keys, multiprocessors, fewest=FEWEST_KEYS, blocks=BLOCKS):
    """Among how many blocks to divide each head's keys; sequences: B · H.

    A multiprocessor holds `blocks` blocks at once; the device works in waves of as many as all hold, and in a
    last wave that is not full it idles. The fewest splits that waste at most a tenth more than the best
    within four waves; but no block gets fewer than `fewest` keys, as it would spend its time on halo, window
    and merge.
    """
    return fewest_splits(max(1, sequences), max(1, keys // fewest), multiprocessors * blocks)


@functools.cache
def fewest_splits(sequences, most, wave):
    """Return the result of `choose_splits` for at most `most` splits, where `wave` blocks run at once."""
    splits = range(1, max(1, min(most, 4 * wave // sequences)) + 1)
    busy = [sequences * s / (-(-sequences * s // wave) * wave) for s in splits]
    return next(s for s, share in zip(splits, busy) if share >= 0.9 * max(busy))


@functools.cache
def multiprocessors(device):
    """Return the number of multiprocessors of a device; 1 for the CPU, where the simulator runs one block
    at a time."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def checked_splits(splits):
    """Return `splits`; raise an error unless it is an integer of at least 1."""
    if isinstance(splits, bool) or not isinstance(splits, int):
        raise TypeError(f"argument splits is {splits!r}; wanted a whole number, or None to choose it")
    if splits < 1:
        raise ValueError(f"argument splits is {splits}; wanted at least 1")
    return splits


def flat(rows):
    """Return rows (B, H, N, d) as a one-dimensional view, with the strides of batch and head in elements.

    The rows are copied only if they do not follow each other in memory.
    """
    *_, n, d = rows.shape
    rows = rows if rows.stride()[2:] == (d, 1) else rows.contiguous()
    span = (
        1 + sum((size - 1) * stride for size, stride in zip(rows.shape, rows.stride())) if rows.numel() else 0
    )
    return rows.as_strided((span,), (1,)), rows.stride()[:2]
