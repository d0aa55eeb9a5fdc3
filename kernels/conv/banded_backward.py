"""Convolutional attention, backward pass in bands of queries, for GPUs of compute capability 9.0 (Hopper).

For a band of queries of all heads, `banded_wgmma` computes P and dS in 16 bits in scratch memory, and
`banded_products` multiplies them. If two blocks of `banded_wgmma` do not fit into shared memory,
`banded_scores` replaces it. The next band overwrites the scratch memory. A band has at most about BAND
scores, so that no N×N matrix is stored.

All sums have a fixed order, so the results are reproducible bit for bit.
"""

import functools
import heapq
import itertools
import math
from typing import NamedTuple

import torch
from torch.nn.functional import pad

from kernels.common.launch import Bits, launch, output, remember_steps
from kernels.common.splits import multiprocessors
from kernels.conv import banded_wgmma
from kernels.conv.banded_products import (
    COLUMNS_PER_BLOCK,
    ROWS_PER_BLOCK,
    THREADS,
    key_gradient_kernel,
    query_gradient_kernel,
)
from kernels.conv.banded_scores import offsets_of, owned_rows, parts_of, score_gradient_kernel
from kernels.conv.banded_tiles import COLUMNS, WARP_ROWS
from kernels.conv.tensor_sums import FEW, sum_of_parts_launch, sums_of_rows_launch
from kernels.tensor_cores.launch import capability, check_tensor_cores, kind_of, taps_operand, tensor_width

HOPPER = (9, 0)  # compute capability
BAND = 19 * 2**24  # maximum number of scores of P, and of dS, in scratch memory: 1.2 GiB in total
WARPS = 4  # warps per block
RESIDENT = 2  # blocks per multiprocessor
FEWEST = 0.5  # with fewer blocks per multiprocessor in a band, `tensor_backward` is faster
TWO = 2  # number of 16-bit values in a float32 element of scratch memory
ALIGNED = 32  # float32 elements: each part of scratch memory starts at a multiple of 128 bytes
# indices in `Pass.tensors`: first the arguments, then the gradients, then the scratch tensors
Q, K, V, W, O, LOG_SUM, D_O, D_Q, D_K, D_V, D_W, DELTA, P, S, K_SUMS, V_SUMS, W_PARTS = range(17)
GIVEN = D_Q  # number of arguments


class Plan(NamedTuple):
    """The division of a pass into bands.

    warps: warps per block, a multiple of four.
    tiles: tiles of queries per band, one block for each head. The first band has the remainder.
    """

    warps: int
    tiles: int

    def starts(self, tiles_in_all):
        """Return the first tile of each band, and then the total number of tiles."""
        first = tiles_in_all % self.tiles or min(self.tiles, tiles_in_all)
        return [0, *range(first, tiles_in_all + 1, self.tiles)]


@functools.cache
def plan_for(sequences, n, c_q, c_k, causal, processors):
    """Return the Plan for B · H sequences of n tokens. Of the Plans that fit in the scratch memory, it has
    the shortest duration."""
    tiles, slots = -(-n // owned_rows(c_q, WARPS)), RESIDENT * processors
    scores = sequences * WARPS * WARP_ROWS * parts_of(n, c_q, c_k) * COLUMNS
    most = min(tiles, max(1, BAND // scores))

    def duration(count):
        starts = Plan(WARPS, count).starts(tiles)
        return sum(
            time_of_band(sequences, [x + 1 if causal else tiles for x in range(*band)], slots)
            for band in itertools.pairwise(starts)
        )

    return Plan(WARPS, min(range(most, max(1, most // 2) - 1, -1), key=duration))


def time_of_band(sequences, lengths, slots):
    """Return the time that `slots` resident blocks need to process `sequences` blocks of each length, the
    longest ones first."""
    ends = [0] * slots
    for length in reversed(lengths):
        for _ in range(sequences):
            heapq.heapreplace(ends, ends[0] + length)
    return max(ends)


def supports(q, w, causal):
    """Return whether this pass is faster than `conv_tensor_backward` for queries q and taps w."""
    return q.is_cuda and suits_shape(q.device, q.shape, w.shape, bool(causal))


@functools.cache
def suits_shape(device, q_shape, w_shape, causal):
    """Return the result of `supports` for tensors of these shapes on a GPU."""
    if capability(device) != HOPPER:
        return False
    (batch, heads, n, _), processors = q_shape, multiprocessors(device)
    plan = plan_for(batch * heads, n, *w_shape[1:], causal, processors)
    tiles = -(-n // owned_rows(w_shape[1], plan.warps))
    return plan.tiles == tiles or batch * heads * plan.tiles >= FEWEST * processors


@functools.cache
def scratch_sizes(q_shape, w_shape, plan, keys_wanted):
    """Return the sizes of the scratch tensors in float32 elements: D, P, dS, the sums of dK and dV over
    several bands, and the partial sums of dW."""
    (batch, heads, n, d), (c_q, c_k) = q_shape, w_shape[1:]
    tiles_in_all, parts = -(-n // owned_rows(c_q, plan.warps)), parts_of(n, c_q, c_k)
    tiles, sequences = min(plan.tiles, tiles_in_all), batch * heads
    scores = sequences * tiles * plan.warps * WARP_ROWS * parts * COLUMNS // TWO
    blocks = -(-parts * COLUMNS // COLUMNS_PER_BLOCK)
    several = keys_wanted and tiles < tiles_in_all
    sums = sequences * blocks * tensor_width(d) // 2 * THREADS if several else 4
    return sequences * n, scores, scores, sums, sums, batch * tiles * math.prod(w_shape)


def conv_banded_backward(q, k, v, w, o, log_sum, d_o, causal, scale, wanted, run=None, plan=None, key=None):
    """Return (dQ, dK, dV, dW) like `conv_tensor_backward`.

    plan: a Plan; by default, `plan_for` chooses one.
    """
    check_tensor_cores(q)
    given, causal = (q, k, v, w, o, log_sum, d_o), bool(causal)
    of_queries, of_keys, of_taps = wanted[0], wanted[1] or wanted[2], wanted[3]
    if plan is None:
        sequences, processors = q.shape[0] * q.shape[1], multiprocessors(q.device)
        plan = plan_for(sequences, q.shape[2], *w.shape[1:], causal, processors)
    sizes = scratch_sizes(q.shape, w.shape, plan, of_keys)
    *starts, size = 0, *itertools.accumulate(-(-size // ALIGNED) * ALIGNED for size in sizes)
    scratch = output((size,), like=q)
    pieces = [scratch[start : start + size] for start, size in zip(starts, sizes)]
    (_, _, n, d), width = q.shape, tensor_width(q.shape[3])
    q, k, v, o, d_o = (x if d == width else pad(x, (0, width - d)) for x in (q, k, v, o, d_o))
    d_q = output(q.shape, like=q, dtype=q.dtype) if of_queries else None
    d_k, d_v = (output(q.shape, like=q, dtype=q.dtype) if of_keys else None for _ in range(2))
    d_w = output(w.shape, like=w, dtype=w.dtype)
    tensors = [q, k, v, w, o, log_sum.detach(), d_o, d_q, d_k, d_v, d_w, *pieces]
    passing = Pass(tensors, causal, scale, run, plan)
    passing.launch_all(of_queries, of_keys, of_taps)
    if n == 1:  # the weight of the only key is always 1, so these gradients are 0; NaN stays NaN
        d_q, d_k, d_w = (None if gradient is None else gradient * 0 for gradient in (d_q, d_k, d_w))
    else:
        originals, results = [*given, d_q, d_k, d_v, d_w, *pieces], (of_queries, of_keys, of_keys, of_taps)
        remember_steps(key, passing.steps, originals, results, [4 * start for start in starts], size)
    cut = (x if x is None or d == width else x[..., :d].contiguous() for x in (d_q, d_k, d_v))
    return tuple(gradient if want else None for gradient, want in zip((*cut, d_w), wanted))


class Pass:
    """The launches of a backward pass.

    tensors: the arguments, gradients and scratch tensors. The rows are padded to the width of the kernels.
    steps: for each launch so far: (Plan of the launch, indices of its tensors, its arguments).
    """

    def __init__(self, tensors, causal, scale, run, plan):
        self.tensors, self.causal, self.scale, self.run, self.plan = tensors, causal, scale, run, plan
        (batch, heads, self.n, self.width), self.taps = tensors[Q].shape, tensors[W].shape[1:]
        self.sequences, self.kind, self.steps = batch * heads, kind_of(tensors[Q]), []
        self.owned, self.tile_rows = owned_rows(self.taps[0], plan.warps), plan.warps * WARP_ROWS
        tiles = -(-self.n // self.owned)
        self.bands = [*itertools.pairwise(plan.starts(tiles))]
        self.parts_shape = batch * min(plan.tiles, tiles), *tensors[W].shape
        self.options = self.width, self.kind, self.tile_rows, self.owned

    def launch_all(self, of_queries, of_keys, of_taps):
        """Launch all kernels: D, the bands, and dW if `of_taps`."""
        q, k, v, w, o, log_sum, d_o = self.tensors[:GIVEN]
        delta = self.tensors[DELTA].view(log_sum.shape)
        places = (Q, K, V, W, LOG_SUM, D_O, DELTA) if self.n <= FEW else (D_O, O, DELTA)
        arguments = sums_of_rows_launch(q, k, v, w, o, log_sum, d_o, self.causal, self.scale, delta)
        self.step(places, *arguments)
        earlier_tiles = earlier = 0
        for start, end in self.bands:
            first, last, tiles = start * self.owned, min(self.n, end * self.owned), end - start
            seen = min(self.n, end * self.owned) if self.causal else self.n
            shape = self.sequences, tiles * self.plan.warps, parts_of(seen, *self.taps), WARP_ROWS * COLUMNS
            self.compute_scores(first, last, tiles, earlier_tiles, shape)
            if of_queries:
                self.compute_queries(first, last, tiles, shape)
            if of_keys:
                self.compute_keys(first, last, earlier, shape)
            earlier_tiles, earlier = tiles, shape[2] * COLUMNS
        if of_taps:
            parts = self.tensors[W_PARTS].view(self.parts_shape)
            self.step((W_PARTS, D_W), *sum_of_parts_launch(parts, self.tensors[D_W]))

    def step(self, places, kernel, grid, block, *arguments):
        self.steps.append((launch(kernel, grid, block, *arguments, run=self.run), places, arguments))

    def band(self, place, shape, dtype):
        """Return the scratch tensor with index `place` as the scores of a band, with elements of type
        `dtype`."""
        scores = self.tensors[place][: math.prod(shape) // TWO].view(torch.int16).view(shape)
        return Bits(scores, dtype) if dtype != torch.int16 else scores

    def sequence_rows(self, place, dtype):
        """Return the tensor with index `place`, (B, H, N, d), as (B · H, N, d), with elements of type
        `dtype`."""
        return Bits(self.tensors[place].flatten(0, 1), dtype)

    def compute_scores(self, first, last, tiles, earlier_tiles, shape):
        """Compute P and dS of a band, and add to dW."""
        w, log_sum = self.tensors[W], self.tensors[LOG_SUM]
        taps, bits = taps_operand(w, self.tensors[Q])
        options = self.width, self.kind, *self.taps
        if self.plan.warps == banded_wgmma.WARPS and banded_wgmma.supports(self.width, *self.taps):
            kernel = banded_wgmma.wgmma_score_gradient_kernel(*options, bits)
        else:
            kernel = score_gradient_kernel(*options, self.plan.warps, bits)
        self.step(
            (Q, D_O, K, V, W, LOG_SUM, DELTA, P, S, W_PARTS),
            kernel,
            (self.sequences, tiles),
            self.plan.warps * 32,
            *(Bits(self.tensors[place], torch.int16) for place in (Q, D_O, K, V)),
            *(taps, log_sum, self.tensors[DELTA].view(log_sum.shape)),
            *(self.scale, self.causal, first, last, earlier_tiles),
            *(self.band(place, shape, torch.int64) for place in (P, S)),
            self.tensors[W_PARTS].view(self.parts_shape),
        )

    def compute_queries(self, first, last, tiles, shape):
        """Compute dQ of a band."""
        self.step(
            (S, K, D_Q),
            query_gradient_kernel(*self.options),
            (self.sequences, -(-tiles * self.tile_rows // ROWS_PER_BLOCK)),
            THREADS,
            *(self.band(S, shape, torch.int16), self.sequence_rows(K, torch.int16)),
            *(offsets_of(*self.taps)[1], first, last, self.causal, self.scale),
            self.sequence_rows(D_Q, torch.int32),
        )

    def compute_keys(self, first, last, earlier, shape):
        """Add to the sums of dK and dV; after the last band, store dK and dV."""
        blocks = -(-shape[2] * COLUMNS // COLUMNS_PER_BLOCK)
        kept = self.sequences, -1, self.width // 2, THREADS
        sums = (self.tensors[place] for place in (K_SUMS, V_SUMS))
        sums = (x.view(kept if x.numel() > 4 else (1, 1, 1, 4)) for x in sums)
        self.step(
            (P, S, Q, D_O, K_SUMS, V_SUMS, D_K, D_V),
            key_gradient_kernel(*self.options),
            (self.sequences, blocks),
            THREADS,
            *(self.band(place, shape, torch.int16) for place in (P, S)),
            *(self.sequence_rows(place, torch.int16) for place in (Q, D_O)),
            *(*offsets_of(*self.taps), first, last, earlier, self.causal, self.scale),
            *(*sums, *(self.sequence_rows(place, torch.int32) for place in (D_K, D_V))),
        )
