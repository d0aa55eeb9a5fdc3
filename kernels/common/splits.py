"""Decoding of one token: divide the keys among blocks, and merge the partial results (split-K).

Each block stores its state in part (d + 2): the unnormalised output Σ e^(s - m) v, the maximum m and the sum
l. A block without keys has l = 0 and m = -inf. States are merged as in flash/warp.py, with one division at
the end:

    m = max m_s        l = Σ_s e^(m_s - m) l_s        O = Σ_s e^(m_s - m) part_s / l
"""

import functools
import math

import torch
from numba import cuda
from numpy import float32

from kernels.common.arguments import MAX_HEAD_DIM
from kernels.common.tiles import MINUS_INFINITY, reciprocal, weight

LANES, ALL_LANES = 32, 0xFFFFFFFF  # lanes per warp; mask of all lanes
# For valid indices, c & LANE equals c. The mask tells the compiler that c is not negative.
LANE, LARGEST_D, PLACE = LANES - 1, MAX_HEAD_DIM - 1, (1 << 62) - 1
UNROLLED = 4  # columns per iteration: few enough for the compiler to unroll the loop
MERGING_WARPS = 8  # warps per block of the merge kernel
# resident blocks per multiprocessor at 128 registers per thread; minimum keys per block
BLOCKS, FEWEST_KEYS = 4, 64


# Device functions -------------------------------------------------------------------------------------------


@cuda.jit(device=True)
def largest_of_warp(x):
    """Return the maximum of x over the 32 lanes of the warp, in every lane."""
    for bit in range(5):
        x = max(x, cuda.shfl_xor_sync(ALL_LANES, x, 1 << bit))
    return x


@cuda.jit(device=True)
def sum_of_warp(x):
    """Return the sum of x over the 32 lanes of the warp, in every lane."""
    for bit in range(5):
        x += cuda.shfl_xor_sync(ALL_LANES, x, 1 << bit)
    return x


@cuda.jit(device=True)
def add_splits(sums, totals, part):
    """Sum the splits of part (splits, d + 2) within each of MERGING_WARPS warps; return the maximum m of all
    splits.

    Each warp adds every MERGING_WARPS-th split, and each of its lanes adds every 32nd column. The caller must
    synchronise the block before other threads read the sums.

    sums: (MERGING_WARPS, d or more), per-warp sums of o.
    totals: (MERGING_WARPS,), per-warp sums of l.
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
    """Return (element c of O, l) from the per-warp sums of `add_splits`."""
    l = float32(0)
    for warp in range(MERGING_WARPS):
        l += totals[warp]
    return sum_of_warps(sums, c) * reciprocal(l), l


@cuda.jit(device=True)
def sum_of_warps(sums, c):
    """Return the sum of column c over the MERGING_WARPS rows of `sums`."""
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
    cuda.syncthreads()  # all warps have stored their sums
    if cuda.threadIdx.x < o_row.shape[0]:
        o_row[cuda.threadIdx.x], l = merged(sums, totals, cuda.threadIdx.x)
        if cuda.threadIdx.x == 0:
            log_sum[cuda.blockIdx.y, cuda.blockIdx.x, 0] = m + math.log(l)


# Host functions ---------------------------------------------------------------------------------------------


def splits_for(given, sequences, keys, device, *rule):
    """Return `given` after checking it, or the result of `choose_splits` if it is None.

    rule: `fewest` and `blocks` of `choose_splits`.
    """
    return (
        choose_splits(sequences, keys, multiprocessors(device), *rule)
        if given is None
        else checked_splits(given)
    )


def choose_splits(sequences, keys, multiprocessors, fewest=FEWEST_KEYS, blocks=BLOCKS):
    """Return the number of blocks among which to divide each head's keys.

    sequences: B · H.
    fewest: the minimum number of keys per block. With fewer, a block would spend most of its time on the
        halo, the window and the merge.
    blocks: resident blocks per multiprocessor.

    The device runs blocks in waves, and part of it idles in a last wave that is not full. We choose the
    smallest number of splits whose utilisation is at least 90 % of the best within four waves.
    """
    return fewest_splits(max(1, sequences), max(1, keys // fewest), multiprocessors * blocks)


@functools.cache
def fewest_splits(sequences, most, wave):
    """Return the result of `choose_splits` for at most `most` splits and a device that runs `wave` blocks at
    once."""
    splits = range(1, max(1, min(most, 4 * wave // sequences)) + 1)
    # utilisation: the fraction of all block slots that are in use, over all waves
    busy = [sequences * s / (-(-sequences * s // wave) * wave) for s in splits]
    return next(s for s, share in zip(splits, busy) if share >= 0.9 * max(busy))


@functools.cache
def multiprocessors(device):
    """Return the number of multiprocessors of a device; 1 for the CPU, because the simulator runs blocks one
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
    """Return (1-D view of rows (B, H, N, d), (batch stride, head stride)), with strides in elements.

    The rows are copied only if they are not adjacent in memory.
    """
    *_, n, d = rows.shape
    rows = rows if rows.stride()[2:] == (d, 1) else rows.contiguous()
    span = (
        1 + sum((size - 1) * stride for size, stride in zip(rows.shape, rows.stride())) if rows.numel() else 0
    )
    return rows.as_strided((span,), (1,)), rows.stride()[:2]
