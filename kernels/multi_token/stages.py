"""Stages of the multi-token layer, each a product or a kernel over a band of the scores of all heads.

A band has float32 scores, for kernels of `kernels.multi_token.kernels`, or bfloat16 scores, for those of
`tensor_convolution` and `tensor_heads`. bfloat16 bands serve bfloat16 queries on a GPU with tensor cores.
They take half the memory, and every intermediate result is rounded to bfloat16, as in PyTorch. Sums are
float32.
"""

from typing import NamedTuple

import torch

from kernels.common.launch import Bits, launch, output
from kernels.multi_token import tensor_convolution, tensor_heads
from kernels.multi_token.kernels import (
    SIZE,
    THREADS,
    WARPS,
    mix_kernel,
    multi_token_convolve_kernel,
    multi_token_softmax_back_kernel,
    multi_token_softmax_kernel,
    multi_token_tap_gradients_kernel,
    places_of,
)
from kernels.tensor_cores.launch import OLDEST, capability

ALIGNED = 32  # the number of columns of a bfloat16 band is a multiple of this
TAP_PARTS = 32  # partial sums of the gradient of the taps, one per block


class Band(NamedTuple):
    """Some rows of the scores of all heads.

    scores: (B, H, R, C), float32 or bfloat16.
    first: the query of row 0.
    keys: the number of keys; columns from there on are padding.
    """

    scores: torch.Tensor
    first: int
    keys: int

    def rows(self, first, last):
        """Return the part of this band for the queries first to last - 1, as a view."""
        return Band(self.scores[:, :, first - self.first : last - self.first], first, self.keys)

    @property
    def rounded(self):
        """True if the scores are bfloat16."""
        return self.scores.dtype == torch.bfloat16


class Scratch:
    """Buffers for bands, allocated once and overwritten by each band."""

    def __init__(self, like, buffers, rows, keys, dtype):
        self.heads, self.keys = like.shape[:2], keys
        size = self.heads[0] * self.heads[1] * rows * padded(keys, dtype)
        self.buffers = [output((size,), like=like, dtype=dtype) for _ in range(buffers)]

    def band(self, buffer, first, last, columns):
        """Return an uninitialised band for the queries first to last - 1 in one of the buffers."""
        shape = *self.heads, last - first, columns
        scores = self.buffers[buffer][: torch.Size(shape).numel()].view(shape)
        return Band(scores, first, self.keys)


def type_of_bands(q):
    """Return the dtype of the bands for these queries."""
    rounded = q.dtype == torch.bfloat16 and not (q.is_cuda and capability(q.device) < OLDEST)
    return torch.bfloat16 if rounded else torch.float32


def padded(keys, dtype):
    """Return the number of columns of a whole band of this dtype."""
    return -(-keys // ALIGNED) * ALIGNED if dtype == torch.bfloat16 else keys


# Kernels ----------------------------------------------------------------------------------------------------


def elements(scores):
    """Return bfloat16 scores as int16 elements for a kernel."""
    return Bits(scores, torch.int16)


def words(scores):
    """Return bfloat16 scores as int32 elements with two scores each, for a kernel."""
    return Bits(scores, torch.int32)


def long_words(scores):
    """Return bfloat16 scores as int64 elements with four scores each, for a kernel."""
    return Bits(scores, torch.int64)


def convolve(x, w, causal, y, run, flipped=False):
    """Convolve band x with w (H, c_q, c_k) into band y, and return y. If `flipped`, apply the transposed
    convolution."""
    batch, heads, rows, columns = y.scores.shape
    width = SIZE * tensor_convolution.STEPS if x.rounded else SIZE  # columns per block
    grid = (-(-rows // SIZE) * -(-columns // width), heads, batch)
    if x.rounded:
        kernel = tensor_convolution.convolve_kernel(*w.shape[1:], flipped)
        w = w.flip(1, 2) if flipped else w
        arguments = elements(x.scores), x.first, w, causal, words(y.scores), y.first
    else:
        kernel = multi_token_convolve_kernel
        arguments = x.scores, x.first, w, flipped, causal, y.scores, y.first
    launch(kernel, grid, THREADS, *arguments, run=run)
    return y


def mix(x, head_map, run, y=None):
    """Mix the heads of band x into band y, by default in place, and return y. Without a map, return x.

    head_map: (H / s, s, s), or None for the identity.
    """
    if head_map is None:
        return x
    y = x if y is None else y
    (groups, group, _), (batch, _, size) = head_map.shape, x.scores.flatten(2).shape
    if x.rounded:
        scores_each = tensor_heads.EACH * tensor_heads.LOADS * 8 * WARPS
        grid = (-(-size // scores_each), groups, batch)
        arguments = long_words(x.scores.flatten(2)), head_map, long_words(y.scores.flatten(2))
        launch(tensor_heads.mix_kernel(group), grid, THREADS, *arguments, run=run)
        return y
    if y is not x:
        y.scores.copy_(x.scores)
    grid = (-(-size // (THREADS * places_of(group))), groups, batch)
    launch(mix_kernel(group), grid, THREADS, y.scores.flatten(2), head_map, run=run)
    return y


def softmax(x, causal, run):
    """Replace the rows of band x by their softmax in place, and return it."""
    batch, heads, rows, _ = x.scores.shape
    if x.rounded:  # a warp per row
        kernel, rows = tensor_heads.multi_token_softmax_bf16_kernel, -(-rows // WARPS)
        arguments = words(x.scores), x.first, x.keys, causal
    else:
        kernel, arguments = multi_token_softmax_kernel, (x.scores, x.first, causal)
    launch(kernel, (rows, heads, batch), THREADS, *arguments, run=run)
    return x


def softmax_back(x, p, causal, run):
    """Replace band x by P ∘ (x - D) in place, and return it."""
    batch, heads, rows, _ = x.scores.shape
    if x.rounded:  # a warp per row
        kernel, rows = tensor_heads.multi_token_softmax_back_bf16_kernel, -(-rows // WARPS)
        arguments = words(x.scores), x.first, words(p.scores), p.first, x.keys, causal
    else:
        kernel = multi_token_softmax_back_kernel
        arguments = x.scores, x.first, p.scores, p.first, causal
    launch(kernel, (rows, heads, batch), THREADS, *arguments, run=run)
    return x


def tap_gradients(g, x, rows, causal, d_w, run):
    """Add the gradient of the taps, over the first `rows` rows of g, to d_w (TAP_PARTS · B, H, c_q, c_k)."""
    batch, heads = g.scores.shape[:2]
    if x.rounded:
        c_q, c_k = d_w.shape[2:]
        kernel, chunks = tensor_convolution.tap_gradients_kernel(c_q, c_k), tensor_convolution.tap_chunks(c_q)
        scores = elements(g.scores), elements(x.scores)
    else:
        kernel, chunks, scores = multi_token_tap_gradients_kernel, 1, (g.scores, x.scores)
    arguments = *scores, g.first, x.first, rows, causal, d_w
    launch(kernel, (TAP_PARTS, heads * chunks, batch), THREADS, *arguments, run=run)


# Products ---------------------------------------------------------------------------------------------------


def product(out, a, b, factor=1.0, add=False):
    """Compute out = factor · a b for each batch and head, (B, H, n, m), in place; add to out if `add`.

    out: float32 or the dtype of a.
    a, b: like out, or 16-bit; accumulators are float32.
    """
    if a.dtype != out.dtype and not a.is_cuda:
        a, b = a.float(), b.float()
    wider = {} if a.dtype == out.dtype else {"out_dtype": out.dtype}
    out, a, b = out.flatten(0, 1), a.flatten(0, 1), b.flatten(0, 1)
    torch.baddbmm(out, a, b, beta=float(add), alpha=factor, out=out, **wider)


def map_gradients(g, x, d_map):
    """Add Σ g[a] x[b], over batch, rows and columns, to d_map (H / s, s, s), within each group.

    g, x: (B, H, R, C), float32 or bfloat16.
    """
    group = d_map.shape[1]
    wider = {"out_dtype": torch.float32} if g.is_cuda and g.dtype != torch.float32 else {}
    if not g.is_cuda:
        g, x = g.float(), x.float()
    for b in range(g.shape[0]):
        for number in range(d_map.shape[0]):
            heads = slice(number * group, (number + 1) * group)
            # one product per row, because cuBLAS would run a single small product in one block
            rows = torch.bmm(g[b, heads].transpose(0, 1), x[b, heads].permute(1, 2, 0), **wider)
            d_map[number] += rows.sum(0)
