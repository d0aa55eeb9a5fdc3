"""Forward and backward pass of the multi-token layer, one band of query rows at a time.

All heads of a group are mixed twice, and the scores of 32 heads with their halos do not fit in the shared
    memory of a block. We therefore process bands instead of on-chip tiles: R rows of the scores of all heads,
    with all columns, in a scratch buffer in global memory that the next band overwrites. Because a band has
    complete rows, their softmax needs no extra pass, nor does D in the backward pass, and no column is
    computed twice. Only the halo rows above a band, and in the backward pass also below it, are computed
    again:

    forward    S of rows [i0 - P'_q - P_q, i1)   P of rows [i0 - P'_q, i1)         O of rows [i0, i1)
    backward   S of rows [i0 - P'_q - P_q, i1 + P_q), P of [i0 - P'_q, i1 + P_q), dU of [i0, i1 + P_q + P'_q),
               dT of [i0, i1 + P_q), gradients from later queries;  dQ of rows [i0, i1); sums for the rest

with P_q = c_q - 1 of the first taps and P'_q of the second. No N×N matrix is stored; the backward pass
recomputes all intermediate results. The forward pass needs 2 · B · H · (R + halo) · N floats, the backward
pass 5 · B · H · (R + halo) · N. R is chosen so that a band has about BAND scores, but is at least 86, so
memory grows with N. PyTorch (cuBLAS on a GPU) computes the products with q, k, v and their gradients, between
the kernels of `kernels.multi_token.kernels`. All sums have a fixed order, so results are reproducible bit for
bit.
"""

from typing import NamedTuple

import torch

from kernels.common.launch import launch, output
from kernels.multi_token.kernels import (
    SIZE,
    THREADS,
    mix_kernel,
    multi_token_convolve_kernel,
    multi_token_softmax_back_kernel,
    multi_token_softmax_kernel,
    multi_token_tap_gradients_kernel,
    places_of,
)

# approximate number of scores per band, 32 MiB, which fit in the L2 cache of a large GPU; minimum number of
# tile rows
BAND, FEWEST_TILES = 2**23, 2
ALIGNED = 32  # floats per cache line
TAP_PARTS = 32  # partial sums of the gradient of the taps, one per block


class Layer(NamedTuple):
    """The parameters of the layer up to O, checked, float32 and contiguous; None for an omitted operation."""

    taps: torch.Tensor | None  # (H, c_q, c_k)
    head_map: torch.Tensor | None  # (H / s, s, s)
    after_taps: torch.Tensor | None
    after_head_map: torch.Tensor | None
    scale: float
    causal: bool

    @property
    def above(self):
        """P_q: the number of rows above its own that the first convolution reads."""
        return 0 if self.taps is None else self.taps.shape[1] - 1

    @property
    def after_above(self):
        """P'_q: the number of rows above its own that the second convolution reads."""
        return 0 if self.after_taps is None else self.after_taps.shape[1] - 1


class Band(NamedTuple):
    """Some rows of the scores of all heads: `scores` (B, H, R, C), whose row 0 belongs to query `first`."""

    scores: torch.Tensor
    first: int

    def rows(self, first, last):
        """Return the part of this band for the queries first to last - 1, as a view."""
        return Band(self.scores[:, :, first - self.first : last - self.first], first)


class Scratch:
    """Buffers for bands, allocated once and overwritten by each band."""

    def __init__(self, like, buffers, rows, columns):
        self.heads = like.shape[:2]
        size = self.heads[0] * self.heads[1] * rows * columns
        self.buffers = [output((size,), like=like) for _ in range(buffers)]

    def band(self, buffer, first, last, columns):
        """Return an uninitialised band for the queries first to last - 1 in one of the buffers."""
        shape = *self.heads, last - first, columns
        return Band(self.buffers[buffer][: torch.Size(shape).numel()].view(shape), first)


def band_rows(batch, heads, keys, halo):
    """Return the default number of rows per band; with `halo` rows added, they fill whole tiles."""
    return max(FEWEST_TILES, BAND // (batch * heads * keys * SIZE)) * SIZE - halo


def band_columns(layer, last, keys):
    """Return the number of columns of a band whose last query is last - 1.

    It is a multiple of ALIGNED, but at most all keys, so that each row starts at a cache line.
    """
    return min(keys, -(-last // ALIGNED) * ALIGNED) if layer.causal else keys


# Stages -----------------------------------------------------------------------------------------------------


def product(out, a, b, factor=1.0, add=False):
    """Compute out = factor · a b for each batch and head, (B, H, n, m), in place; add to out if `add`.

    out: float32.
    a, b: like out, or 16-bit; accumulators are float32.
    """
    if a.dtype != out.dtype and not a.is_cuda:
        a, b = a.float(), b.float()
    wider = {} if a.dtype == out.dtype else {"out_dtype": out.dtype}
    out, a, b = out.flatten(0, 1), a.flatten(0, 1), b.flatten(0, 1)
    torch.baddbmm(out, a, b, beta=float(add), alpha=factor, out=out, **wider)


def convolve(x, w, causal, y, run, flipped=False):
    """Convolve band x with w into band y, and return y. If `flipped`, apply the transposed convolution."""
    batch, heads, rows, columns = y.scores.shape
    grid = (-(-rows // SIZE) * -(-columns // SIZE), heads, batch)
    arguments = x.scores, x.first, w, flipped, causal, y.scores, y.first
    launch(multi_token_convolve_kernel, grid, THREADS, *arguments, run=run)
    return y


def mix(x, head_map, run):
    """Mix the heads of band x in place, and return it."""
    if head_map is not None:
        groups, group, _ = head_map.shape
        flat = x.scores.flatten(2)
        grid = (-(-flat.shape[2] // (THREADS * places_of(group))), groups, flat.shape[0])
        launch(mix_kernel(group), grid, THREADS, flat, head_map, run=run)
    return x


def softmax(x, causal, run):
    """Replace the rows of band x by their softmax in place, and return it."""
    batch, heads, rows, _ = x.scores.shape
    launch(multi_token_softmax_kernel, (rows, heads, batch), THREADS, x.scores, x.first, causal, run=run)
    return x


def softmax_back(x, p, causal, run):
    """Replace band x by P ∘ (x - D) in place, and return it."""
    batch, heads, rows, _ = x.scores.shape
    arguments = x.scores, x.first, p.scores, p.first, causal
    launch(multi_token_softmax_back_kernel, (rows, heads, batch), THREADS, *arguments, run=run)
    return x


def tap_gradients(g, x, rows, causal, d_w, run):
    """Add the gradient of the taps, over the first `rows` rows of g, to d_w (TAP_PARTS · B, H, c_q, c_k)."""
    batch, heads = g.scores.shape[:2]
    arguments = g.scores, x.scores, g.first, x.first, rows, causal, d_w
    launch(multi_token_tap_gradients_kernel, (TAP_PARTS, heads, batch), THREADS, *arguments, run=run)


def map_gradients(g, x, d_map):
    """Add Σ g[a] x[b], over batch, rows and columns, to d_map (H / s, s, s), within each group.

    g, x: (B, H, R, C).
    """
    group = d_map.shape[1]
    for b in range(g.shape[0]):
        for number in range(d_map.shape[0]):
            heads = slice(number * group, (number + 1) * group)
            # one product per row, because cuBLAS would run a single small product in one block
            d_map[number] += torch.bmm(g[b, heads].transpose(0, 1), x[b, heads].permute(1, 2, 0)).sum(0)


def scores(q, k, layer, scratch, first, last, columns, q_first=0):
    """Compute S in buffer 0, for all rows on which P of the queries `first` to last - 1 depends; return the
    band.

    q_first: the query at row 0 of q.
    k: may have fewer heads than q.
    """
    s = scratch.band(0, max(0, first - layer.above), last, columns)
    rows, sharing = last - s.first, q.shape[1] // k.shape[1]
    q = q[:, :, s.first - q_first : last - q_first].reshape(q.shape[0], -1, sharing * rows, q.shape[3])
    product(s.scores.view(*q.shape[:3], columns), q, k[:, :, :columns].mT, layer.scale)
    return s


def forward_band(q, k, layer, scratch, first, last, columns, run, q_first=0):
    """Compute U' for the queries `first` to last - 1 in one of two buffers; return (B, H, R, C)."""
    start = max(0, first - layer.after_above)  # first row of P
    p, free = scores(q, k, layer, scratch, start, last, columns, q_first), 1
    if layer.taps is not None:
        p, free = convolve(p, layer.taps, layer.causal, scratch.band(1, start, last, columns), run), 0
    u = softmax(mix(p, layer.head_map, run), layer.causal, run)
    if layer.after_taps is not None:
        u = convolve(u, layer.after_taps, layer.causal, scratch.band(free, first, last, columns), run)
    return mix(u, layer.after_head_map, run).scores


# Passes -----------------------------------------------------------------------------------------------------


def forward(q, k, v, layer, rows=None, run=None):
    """Return O (B, H, N, d), float32, before norm and gate.

    q, k, v: (B, H, N, d), float32 or 16-bit.
    rows: rows per band.
    """
    v = v.float()
    batch, heads, n, _ = q.shape
    halo = layer.above + layer.after_above
    rows = min(n, rows or band_rows(batch, heads, n, layer.after_above))
    o, scratch = output(q.shape, like=q), Scratch(q, 2, min(n, rows + halo), n)
    for first in range(0, n, rows):
        last = min(n, first + rows)
        columns = band_columns(layer, last, n)
        u = forward_band(q, k, layer, scratch, first, last, columns, run)
        product(o[:, :, first:last], u, v[:, :, :columns])
    return o


NAMES = ("q", "k", "v", "taps", "head_map", "after_taps", "after_head_map")


def backward(q, k, v, layer, d_o, wanted=NAMES, rows=None, run=None):
    """Return {name: gradient} of `forward`, float32, for each wanted argument that is not None.

    d_o: the gradient of O.
    """
    batch, heads, n, _ = q.shape
    halo = 2 * layer.above + layer.after_above
    rows = min(n, rows or band_rows(batch, heads, n, layer.above + layer.after_above))
    parts = dict(zip(NAMES, (q, k, v, *layer[:4])))
    sums = {
        name: torch.zeros_like(parts[name], dtype=torch.float32) for name in wanted if parts[name] is not None
    }
    for name in {"taps", "after_taps"} & sums.keys():
        sums[name] = q.new_zeros(TAP_PARTS * batch, *parts[name].shape)
    scratch = Scratch(q, 5, min(n, rows + halo), n)
    qkv = Operands(q, k, q.float(), k.float(), v.float())
    for first in range(0, n, rows):
        backward_band(qkv, layer, d_o, sums, scratch, first, min(n, first + rows), run)
    for name in {"taps", "after_taps"} & sums.keys():
        sums[name] = sums[name].sum(0)
    return sums


class Operands(NamedTuple):
    """The operands of the products: q and k as given, for the scores; then q, k and v as float32."""

    q: torch.Tensor
    k: torch.Tensor
    wide_q: torch.Tensor
    wide_k: torch.Tensor
    wide_v: torch.Tensor


def backward_band(qkv, layer, d_o, sums, scratch, first, last, run):
    """Add the gradients from the queries `first` to last - 1 to `sums`; store their rows of dQ."""
    n, causal, rows = d_o.shape[2], layer.causal, last - first
    low, lower = min(n, last + layer.above), min(n, last + layer.above + layer.after_above)
    columns = band_columns(layer, lower, n)
    here, keys = slice(first, last), slice(0, columns)
    # 1. recompute S, T, P and U
    s = t = scores(qkv.q, qkv.k, layer, scratch, max(0, first - layer.after_above), low, columns)
    if layer.taps is not None:
        t = convolve(
            s, layer.taps, causal, scratch.band(1, max(0, first - layer.after_above), low, columns), run
        )
    p = t if layer.head_map is None else copied(t, scratch.band(2, t.first, low, columns))
    p = softmax(mix(p, layer.head_map, run), causal, run)
    u = scratch.band(4, first, last, columns)
    if layer.after_taps is None:
        copied(p.rows(first, last), u)
    else:
        convolve(p, layer.after_taps, causal, u, run)
    # 2. compute dU' = dO vᵀ, dM2 and dV; replace U by U', and dU' by dU
    d_u = scratch.band(3, first, lower, columns)
    product(d_u.scores, d_o[:, :, first:lower], qkv.wide_v[:, :, keys].mT)
    if "after_head_map" in sums:
        map_gradients(d_u.rows(first, last).scores, u.scores, sums["after_head_map"])
    if "v" in sums:
        product(sums["v"][:, :, keys], mix(u, layer.after_head_map, run).scores.mT, d_o[:, :, here], add=True)
    mix(d_u, transposed(layer.after_head_map), run)
    # 3. compute dP, and through the softmax dT'
    d_t, free = d_u, 4
    if layer.after_taps is not None:
        if "after_taps" in sums:
            tap_gradients(d_u, p, rows, causal, sums["after_taps"], run)
        d_t, free = scratch.band(4, first, low, columns), 3
        convolve(d_u, layer.after_taps, causal, d_t, run, flipped=True)
    softmax_back(d_t, p, causal, run)
    # 4. compute dM1 and dT; then dS
    if "head_map" in sums:
        map_gradients(d_t.rows(first, last).scores, t.rows(first, last).scores, sums["head_map"])
    d_s = mix(d_t, transposed(layer.head_map), run)
    if layer.taps is not None:
        if "taps" in sums:
            tap_gradients(d_t, s, rows, causal, sums["taps"], run)
        d_s = convolve(d_t, layer.taps, causal, scratch.band(free, first, last, columns), run, flipped=True)
    # 5. compute dQ and dK
    if "q" in sums:
        product(sums["q"][:, :, here], d_s.scores, qkv.wide_k[:, :, keys], layer.scale)
    if "k" in sums:
        product(sums["k"][:, :, keys], d_s.scores.mT, qkv.wide_q[:, :, here], layer.scale, add=True)


def copied(source, target):
    """Copy the scores of band `source` into band `target`, and return `target`."""
    target.scores.copy_(source.scores)
    return target


def transposed(head_map):
    return None if head_map is None else head_map.mT.contiguous()
