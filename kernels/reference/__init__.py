"""Attention in plain PyTorch, written for clarity: the reference of every kernel.

This file has attention, convolutional attention and the multi-token layer, each with N×N matrices in memory.
Read next:

    latent.py                    latent attention with a reciprocal term
    multi_token_gradients.py     the backward pass of the multi-token layer
    tiled.py                     flash attention tile by tile, with a count of the memory traffic
    conv_tiled.py, latent_tiled.py, multi_token_tiled.py
                                 the other kinds of attention tile by tile
"""

import math
import operator

import torch
from torch.nn.functional import conv2d, pad

from kernels.reference.latent import latent_attention as latent_attention
from kernels.reference.latent import latent_attention_decode as latent_attention_decode


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    scale: float | None = None,
    window: tuple[int, int] | None = None,
) -> torch.Tensor:
    """Return softmax(scale · q kᵀ) v, (..., N, d_v), with the N×N matrix in memory.

    q: (..., N, d), any floating type.
    k: (..., N_k, d).
    v: (..., N_k, d_v).
    causal: query i sees the keys j <= i.
    scale: 1/sqrt(d) unless given.
    window: (left, right); query i sees the keys i - left <= j <= i + right, where -1 sets no limit on that
        side. A query that sees no key gets 0.
    """
    s = scores(q, k, causal, scale, window)
    p = torch.softmax(s, dim=-1)
    return (p if window is None else p.masked_fill(blind(s), 0)) @ v


def scores(q, k, causal=False, scale=None, window=None):
    """Return scale · q kᵀ, (..., N, N_k): -inf where j > i if causal, and -inf outside the window."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = scale * (q @ k.transpose(-1, -2))
    s = s.masked_fill(above_diagonal(s), -math.inf) if causal else s
    return s if window is None else s.masked_fill(outside(s, window), -math.inf)


def outside(s, window):
    """Return a mask of the keys j outside the window (left, right) of query i, for scores s (..., N, N_k)."""
    (left, right), (n, keys) = window, s.shape[-2:]
    distance = torch.arange(keys, device=s.device) - torch.arange(n, device=s.device)[:, None]
    return (distance > (keys if right < 0 else right)) | (-distance > (n if left < 0 else left))


def blind(s):
    """Return a mask (..., N, 1) of the queries that see no key, from scores s (..., N, N_k)."""
    return (s == -math.inf).all(-1, keepdim=True)


def attention_backward(q, k, v, o, log_sum, d_o, causal=False, scale=None, window=None):
    """Return the gradients (dQ, dK, dV) of attention, like q, k and v, with the N×N matrix in memory.

    o: (..., N, d_v), the output.
    log_sum: (..., N), L, the log-sum-exp of each row of scores S.
    d_o: the gradient of o.

    With D = rowsum(dO * O):

        P  = exp(S - L)
        dS = scale · P * (dO Vᵀ - D)
        dQ, dK, dV = dS K, dSᵀ Q, Pᵀ dO

    Source: Dao 2023, arXiv 2307.08691, Algorithm 2.
    """
    s = scores(q, k, causal, scale, window)
    p = torch.where(s == -math.inf, 0.0, torch.exp(s - log_sum[..., None]))
    d_s = p * (d_o @ v.transpose(-1, -2) - (d_o * o).sum(-1, keepdim=True))
    d_s = d_s * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return d_s @ k, d_s.transpose(-1, -2) @ q, p.transpose(-1, -2) @ d_o


# Convolutional ("multi-token") attention --------------------------------------------------------------------
# Key-query convolution before the softmax, Golovneva et al. 2025, arXiv 2504.00927. For each head, with
# P_q = c_q - 1 and P_k = (c_k - 1) // 2:
#
#     S0 = scale · q kᵀ, 0 where masked
#     T[i, j] = Σ_ab w[a, b] · S0[i - P_q + a, j - P_k + b], -inf where masked
#     O = softmax(T) v


def conv_attention(q, k, v, w, causal=True, scale=None):
    """Return convolutional attention of each head, O like q, with the N×N matrix in memory.

    q, k, v: (B, H, N, d), any floating type.
    w: (H, c_q, c_k), the taps of each head, of any size.
    causal: query i sees the keys j <= i, before the convolution and after it.
    scale: 1/sqrt(d) unless given.
    """
    return torch.softmax(conv_scores(q, k, w, causal, scale), dim=-1) @ v


def conv_scores(q, k, w, causal=True, scale=None):
    """Return T, (B, H, N, N), the argument of the softmax; with causal, -inf where j > i."""
    t = convolve(masked_scores(q, k, causal, scale), w)
    return t.masked_fill(above_diagonal(t), -math.inf) if causal else t


def masked_scores(q, k, causal=True, scale=None):
    """Return S0 = scale · q kᵀ, (B, H, N, N), 0 where a causal mask hides a score.

    The mask is 0, not -inf, so that the convolution adds nothing from the future.
    """
    s = scores(q, k, False, scale)
    return s.masked_fill(above_diagonal(s), 0.0) if causal else s


def above_diagonal(s):
    """Return a mask of the entries j > i of s (..., N, N)."""
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)


def convolve(s, w):
    """The cross-correlation Σ_ab w[a, b] · s[i - P_q + a, j - P_k + b], shaped like s (B, H, N, N), with 0
    outside; w: (H, c_q, c_k).

    Row i sees itself and the c_q - 1 rows above it; column j sees P_k columns to its left and c_k - 1 - P_k
    to its right.
    """
    heads, c_q, c_k = w.shape
    left = (c_k - 1) // 2
    return conv2d(pad(s, (left, c_k - 1 - left, c_q - 1, 0)), w[:, None], groups=heads)


def identity_taps(
    heads: int,
    c_q: int,
    c_k: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> torch.Tensor:
    """Return taps (H, c_q, c_k) that change nothing: 1 for the score itself, 0 for its neighbours.

    Convolutional attention with these taps is ordinary attention.
    """
    w = torch.zeros(heads, c_q, c_k, dtype=dtype, device=device)
    w[:, c_q - 1, (c_k - 1) // 2] = 1
    return w


def conv_attention_backward(q, k, v, w, o, log_sum, d_o, causal=True, scale=None):
    """Return the gradients (dQ, dK, dV, dW) of convolutional attention, like q, k, v and w, with N×N matrices
    in memory.

    o: (B, H, N, d), the output.
    log_sum: (B, H, N), the log-sum-exp of each row of T.
    d_o: the gradient of o.

    The formulas are in kernels/conv/backward.py.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = masked_scores(q, k, causal, scale)
    p = torch.exp(conv_scores(q, k, w, causal, scale) - log_sum[..., None])
    d_t = p * (d_o @ v.transpose(-1, -2) - (d_o * o).sum(-1, keepdim=True))
    d_s = transposed_convolve(d_t, w)
    d_s = (
        d_s.masked_fill(above_diagonal(d_s), 0.0) if causal else d_s
    )  # a masked S0 is constant, so its gradient is 0
    return (
        scale * d_s @ k,
        scale * d_s.transpose(-1, -2) @ q,
        p.transpose(-1, -2) @ d_o,
        tap_gradient(d_t, s, w.shape),
    )


def transposed_convolve(d_t, w):
    """Return the gradient of `convolve` with respect to s, like d_t (B, H, N, N).

    dS[r, c] = Σ_ab w[a, b] · dT[r + P_q - a, c + P_k - b]
    """
    heads, c_q, c_k = w.shape
    left = (c_k - 1) // 2
    return conv2d(pad(d_t, (c_k - 1 - left, left, 0, c_q - 1)), w.flip(1, 2)[:, None], groups=heads)


def tap_gradient(d_t, s, shape):
    """Return the gradient of `convolve` with respect to w, of `shape` (H, c_q, c_k).

    dW[a, b] = Σ_zij dT_z[i, j] · S_z[i - P_q + a, j - P_k + b], with z over the batch
    """
    _, c_q, c_k = shape
    left = (c_k - 1) // 2
    return tap_sums(d_t, pad(s, (left, c_k - 1 - left, c_q - 1, 0)))


def tap_sums(d_t, s):
    """Return Σ_ij d_t[i, j] · s[i + a, j + b], summed over the batch too, (H, c_q, c_k).

    d_t: (B, H, R, C).
    s: (B, H, R + c_q - 1, C + c_k - 1), with its halo.
    """
    windows = s.unfold(2, d_t.shape[2], 1).unfold(
        3, d_t.shape[3], 1
    )  # (B, H, c_q, c_k, R, C), a view without a copy
    return torch.einsum("zhij,zhabij->hab", d_t, windows)


def conv_attention_part(q, k, v, w, extent, causal=True, scale=None):
    """Return (O, L) of convolutional attention over some keys, for some queries, of a longer sequence.

    q: (B, H, N_q, d), with the halo that the convolution reads.
    k: (B, H, N_k, d), with its halo.
    v: (B, H, keys, d), of the owned keys only.
    extent: kernels.common.extent.Extent, which says where the owned rows begin.

    O is (B, H, N, d) and L (B, H, N) of the owned queries, N = N_q - first_query. A query that sees no owned
    key has O = 0 and L = -inf.
    """
    first_query, first_key, diagonal = extent
    (heads, c_q, c_k), keys = w.shape, v.shape[2]
    left = (c_k - 1) // 2
    query, key = (
        torch.arange(q.shape[2], device=q.device) - first_query,
        torch.arange(k.shape[2], device=q.device) - first_key,
    )
    hidden = (key > query[:, None] + diagonal) & causal
    s = scores(q, k, False, scale).masked_fill(hidden, 0.0)
    # zeros replace the halo beyond the end of the sequence, and likewise before its beginning
    after = c_k - 1 - left - (k.shape[2] - first_key - keys)
    t = conv2d(pad(s, (left - first_key, after, c_q - 1 - first_query, 0)), w[:, None], groups=heads)
    t = t.masked_fill(hidden[first_query:, first_key : first_key + keys], -math.inf)
    log_sum = torch.logsumexp(t, -1)
    return torch.where(t == -math.inf, 0.0, torch.exp(t - log_sum[..., None])) @ v, log_sum


def conv_attention_decode(q_window, k, v, w, scale=None):
    """Return the last row of causal `conv_attention`, (B, H, 1, d), without computing the rows before it.

    q_window: (B, H, R, d), the queries of the last R = min(c_q, N_k) tokens.
    k, v: (B, H, N_k, d), of all tokens.
    w: (H, c_q, c_k).
    """
    (heads, c_q, c_k), rows, keys = w.shape, q_window.shape[2], k.shape[2]
    left, position = (c_k - 1) // 2, torch.arange(keys, device=k.device)
    s = scores(q_window, k, False, scale).masked_fill(position > position[-rows:, None], 0.0)
    t = conv2d(pad(s, (left, c_k - 1 - left, c_q - rows, 0)), w[:, None], groups=heads)
    return torch.softmax(t, dim=-1) @ v


# The whole multi-token layer ----------------------------------------------------------------------------
# Golovneva et al. 2025, arXiv 2504.00927, as its published training code computes it. For heads g and h:
# S_h = scale · q_h k_hᵀ, 0 where masked      T_h = S_h convolved with the taps of head h
# T'_g = Σ_h M1[g, h] T_h                     P_g = softmax(T'_g), 0 where masked
# U_h = P_h convolved with the second taps, 0 where masked: its rows no longer sum to 1
# O_g = Σ_h M2[g, h] U_h v_g                  y = x · sigmoid(x·a + b), where x = RMSNorm(O)

EPSILON = 1e-5  # eps of the RMSNorm, as published


def multi_token_attention(
    q,
    k,
    v,
    taps=None,
    head_map=None,
    after_taps=None,
    after_head_map=None,
    norm=None,
    gate=None,
    causal=True,
    scale=None,
    documents=None,
):
    """Return the multi-token layer between its projections, y like q, with each head's N×N matrix in memory.

    q, k, v: (B, H, N, d), any floating type, after rotary embedding.
    taps, after_taps: (H, c_q, c_k), the convolutions before and after the softmax.
    head_map, after_head_map: (H, H), or (H / s, s, s) for maps within groups of s heads; row g has the
        weights of the heads that are added to output g.
    norm: (d,), the weight of an RMSNorm over d, with eps 1e-5.
    gate: a pair (a, b) of shapes (d,) and ().
    causal: query i sees the keys j <= i, at each of the three masks.
    scale: 1/sqrt(d) unless given.
    documents: the start of each document of a packed sequence, as in cu_seqlens: increasing, from 0; a last
        entry N is allowed. No convolution and no attention crosses a document's border.

    With `taps` alone this is `conv_attention`; with no part, `attention`. Raise TypeError or ValueError for
    documents that are no such list.
    """
    parts = taps, head_map, after_taps, after_head_map, norm, gate, causal, scale
    if documents is not None:
        spans = document_spans(documents, q.shape[2])
        return torch.cat(
            [multi_token_attention(*(x[:, :, start:end] for x in (q, k, v)), *parts) for start, end in spans],
            dim=2,
        )
    u = mix_heads(
        after_weights(weights(q, k, taps, head_map, causal, scale), after_taps, causal), after_head_map
    )
    return gated_norm(u @ v, norm, gate)


def document_spans(documents, n):
    """Return [(start, end), …] of the documents of a sequence of n tokens, from their starts.

    Raise TypeError or ValueError unless these are increasing integers from 0 to below n.
    """
    try:
        given = list(map(operator.index, documents))
    except TypeError:
        raise TypeError(
            f"argument documents is {documents!r}; wanted whole numbers, the first token of each document"
        ) from None
    starts = given[:-1] if len(given) > 1 and given[-1] == n else given
    ends = [*starts[1:], n]
    if not starts or starts[0] != 0 or not all(start < end for start, end in zip(starts, ends)):
        raise ValueError(
            f"argument documents is {given}; wanted the first token of each document,"
            f" increasing, from 0 to below N = {n} (a last entry N is allowed)"
        )
    return list(zip(starts, ends))


def mixed_scores(q, k, taps, head_map, causal, scale):
    """Return (S, T, T'), each (B, H, N, N); T' is not masked yet."""
    s = masked_scores(q, k, causal, scale)
    t = s if taps is None else convolve(s, taps)
    return s, t, mix_heads(t, head_map)


def weights(q, k, taps, head_map, causal, scale):
    """Return P, (B, H, N, N), whose rows sum to 1."""
    *_, t = mixed_scores(q, k, taps, head_map, causal, scale)
    return torch.softmax(t.masked_fill(above_diagonal(t), -math.inf) if causal else t, dim=-1)


def after_weights(p, after_taps, causal):
    """Return U, (B, H, N, N): P after the second convolution."""
    return p if after_taps is None else seen(convolve(p, after_taps), causal)


def seen(x, causal):
    """Return x (B, H, N, N), with 0 where a causal mask hides an entry."""
    return x.masked_fill(above_diagonal(x), 0.0) if causal else x


def in_groups(head_map):
    """Return a map over heads as (H / s, s, s); a map (H, H) is one group."""
    return head_map if head_map.ndim == 3 else head_map[None]


def mix_heads(x, head_map):
    """Return Σ_h M[g, h] x[h], like x (B, H, N, N); x itself without a map."""
    if head_map is None:
        return x
    head_map = in_groups(head_map)
    grouped = x.unflatten(1, head_map.shape[:2])
    return torch.einsum("gab,zgbij->zgaij", head_map, grouped).flatten(1, 2)


def gated_norm(o, norm=None, gate=None):
    """Return y, like o (B, H, N, d): o / sqrt(mean(o²) + 1e-5) · norm, then times sigmoid(o·a + b).

    Without norm or gate, that step is left out.
    """
    x = o if norm is None else normed(o) * norm
    return x if gate is None else x * torch.sigmoid((x * gate[0]).sum(-1) + gate[1])[..., None]


def normed(o):
    """Return o divided by the root of its mean square over d."""
    return o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPSILON)


def identity_map(heads, dtype=torch.float32, device=None):
    """Return the map (H, H) that changes nothing."""
    return torch.eye(heads, dtype=dtype, device=device)


def multi_token_attention_decode(
    q_window,
    k,
    v,
    taps=None,
    head_map=None,
    after_taps=None,
    after_head_map=None,
    norm=None,
    gate=None,
    scale=None,
):
    """Return the last row of causal `multi_token_attention`, (B, H, 1, d), from the queries of the last few
    tokens.

    q_window: (B, H, R, d), the last R = min(c_q + after_c_q - 1, N_k) queries: c_q of them for each row of P
        that the second convolution reads.
    k, v: (B, H, N_k, d), of all tokens.
    """
    rows, keys = q_window.shape[2], k.shape[2]
    lead = q_window.new_zeros(*q_window.shape[:2], keys - rows, q_window.shape[3])
    y = multi_token_attention(
        torch.cat([lead, q_window], dim=2),
        k,
        v,
        taps,
        head_map,
        after_taps,
        after_head_map,
        norm,
        gate,
        scale=scale,
    )
    return y[:, :, -1:]
