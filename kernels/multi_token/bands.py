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
recomputes all intermediate results. The forward pass needs 2 · B · H · (R + halo) · N scores, the backward
pass 5 · B · H · (R + halo) · N. R is chosen so that a band has about BAND scores, but is at least 86, so
memory grows with N. `kernels.multi_token.stages` computes each step of a band. All sums have a fixed order,
so results are reproducible bit for bit.
"""

from typing import NamedTuple

import torch
from torch.nn.functional import pad

from kernels.common.launch import output
from kernels.multi_token.kernels import SIZE
from kernels.multi_token.stages import (
    ALIGNED,
    TAP_PARTS,
    Scratch,
    convolve,
    map_gradients,
    mix,
    padded,
    product,
    softmax,
    softmax_back,
    tap_gradients,
    type_of_bands,
)

# Approximate number of scores per band. In float32, they take 32 MiB and fit in the L2 cache of a large GPU.
# In bfloat16, they take 128 MiB, because the host time of many small launches would exceed the time that the
# cache saves.
BAND = {torch.float32: 2**23, torch.bfloat16: 2**26}
FEWEST_TILES = 2  # minimum number of tile rows


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

    def with_parts(self, parts):
        """Return a layer with the same options, and the parameters `parts`: taps, head_map, after_taps and
        after_head_map."""
        return Layer(*parts, self.scale, self.causal)


def band_rows(batch, heads, keys, halo, dtype=torch.float32):
    """Return the default number of rows per band; with `halo` rows added, they fill whole tiles."""
    return max(FEWEST_TILES, BAND[dtype] // (batch * heads * keys * SIZE)) * SIZE - halo


def band_columns(layer, last, keys):
    """Return the number of columns of a band whose last query is last - 1.

    It is a multiple of ALIGNED, but at most all keys, so that each row starts at a cache line.
    """
    return min(keys, -(-last // ALIGNED) * ALIGNED) if layer.causal else keys


def with_rows(x, rows):
    """Return x (B, H, n, d) with zeros appended, so that it has this number of rows."""
    return pad(x, (0, 0, 0, rows - x.shape[2])) if rows > x.shape[2] else x


# Passes -----------------------------------------------------------------------------------------------------


def scores(q, k, layer, scratch, first, last, columns):
    """Compute S in buffer 0, for all rows on which P of the queries `first` to last - 1 depends; return the
    band."""
    s = scratch.band(0, max(0, first - layer.above), last, columns)
    product(s.scores, q[:, :, s.first : last], k[:, :, :columns].mT, layer.scale)
    return s


def forward_band(q, k, layer, scratch, first, last, columns, run):
    """Compute U' for the queries `first` to last - 1 in one of two buffers; return (B, H, R, C)."""
    start = max(0, first - layer.after_above)  # first row of P
    p, free = scores(q, k, layer, scratch, start, last, columns), 1
    if layer.taps is not None:
        p, free = convolve(p, layer.taps, layer.causal, scratch.band(1, start, last, columns), run), 0
    u = softmax(mix(p, layer.head_map, run), layer.causal, run)
    if layer.after_taps is not None:
        u = convolve(u, layer.after_taps, layer.causal, scratch.band(free, first, last, columns), run)
    return mix(u, layer.after_head_map, run).scores


def forward(q, k, v, layer, rows=None, run=None):
    """Return O (B, H, N, d), float32, before norm and gate.

    q, k, v: (B, H, N, d), float32 or 16-bit.
    rows: rows per band.
    """
    dtype, (batch, heads, n, _) = type_of_bands(q), q.shape
    k, v = (with_rows(x, padded(n, dtype)) for x in (k, v.to(dtype)))
    halo = layer.above + layer.after_above
    rows = min(n, rows or band_rows(batch, heads, n, layer.after_above, dtype))
    o, scratch = output(q.shape, like=q), Scratch(q, 2, min(n, rows + halo), n, dtype)
    for first in range(0, n, rows):
        last = min(n, first + rows)
        columns = band_columns(layer, last, k.shape[2])
        u = forward_band(q, k, layer, scratch, first, last, columns, run)
        product(o[:, :, first:last], u, v[:, :, :columns])
    return o


NAMES = ("q", "k", "v", "taps", "head_map", "after_taps", "after_head_map")


def backward(q, k, v, layer, d_o, wanted=NAMES, rows=None, run=None):
    """Return the float32 gradients of `forward` as {argument name: gradient}, for the arguments in `wanted`
    that are not None.

    d_o: the gradient of O.
    """
    dtype, (batch, heads, n, _) = type_of_bands(q), q.shape
    k, v = (with_rows(x, padded(n, dtype)) for x in (k, v))
    halo = 2 * layer.above + layer.after_above
    rows = min(n, rows or band_rows(batch, heads, n, layer.above + layer.after_above, dtype))
    parts = dict(zip(NAMES, (q, k, v, *layer[:4])))
    sums = {
        name: torch.zeros_like(parts[name], dtype=torch.float32) for name in wanted if parts[name] is not None
    }
    for name in {"taps", "after_taps"} & sums.keys():
        sums[name] = q.new_zeros(TAP_PARTS * batch, *parts[name].shape, dtype=torch.float32)
    scratch = Scratch(q, 5, min(n, rows + halo), n, dtype)
    qkv, d_o = Operands(q, k, q.to(dtype), k.to(dtype), v.to(dtype)), d_o.to(dtype)
    for first in range(0, n, rows):
        backward_band(qkv, layer, d_o, sums, scratch, first, min(n, first + rows), run)
    for name in {"taps", "after_taps"} & sums.keys():
        sums[name] = sums[name].sum(0)
    return sums | {name: sums[name][:, :, :n] for name in {"k", "v"} & sums.keys()}


class Operands(NamedTuple):
    """The operands of the products: q and k as given, for the scores; then q, k and v in the dtype of the
    bands."""

    q: torch.Tensor
    k: torch.Tensor
    wide_q: torch.Tensor
    wide_k: torch.Tensor
    wide_v: torch.Tensor


def backward_band(qkv, layer, d_o, sums, scratch, first, last, run):
    """Add the gradients from the queries `first` to last - 1 to `sums`; store their rows of dQ."""
    n, causal, rows = d_o.shape[2], layer.causal, last - first
    low, lower = min(n, last + layer.above), min(n, last + layer.above + layer.after_above)
    columns = band_columns(layer, lower, qkv.k.shape[2])
    here, keys = slice(first, last), slice(0, columns)
    # 1. recompute S, T, P and U
    s = t = scores(qkv.q, qkv.k, layer, scratch, max(0, first - layer.after_above), low, columns)
    if layer.taps is not None:
        t = convolve(
            s, layer.taps, causal, scratch.band(1, max(0, first - layer.after_above), low, columns), run
        )
    p = softmax(mix(t, layer.head_map, run, scratch.band(2, t.first, low, columns)), causal, run)
    u = scratch.band(4, first, last, columns)
    if layer.after_taps is None:
        u.scores.copy_(p.rows(first, last).scores)
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


def transposed(head_map):
    return None if head_map is None else head_map.mT.contiguous()
