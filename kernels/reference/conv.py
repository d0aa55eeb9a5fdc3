"""Convolutional attention in plain PyTorch, with materialised N×N matrices.

The scores are convolved over queries and keys before the softmax (Golovneva et al. 2025, arXiv 2504.00927).
For each head, with P_q = c_q - 1 and P_k = (c_k - 1) // 2:

    S0 = scale · q kᵀ, 0 where masked
    T[i, j] = Σ_ab w[a, b] · S0[i - P_q + a, j - P_k + b], -inf where masked
    O = softmax(T) v
"""

import math

import torch
from torch.nn.functional import conv2d, pad

from kernels.reference.latent import latent_attention as latent_attention
from kernels.reference.latent import latent_attention_decode as latent_attention_decode
from kernels.reference.standard import above_diagonal, scores


def conv_attention(q, k, v, w, causal=True, scale=None):
    """Compute convolutional attention, O, shaped like q, with materialised N×N matrices.

    q, k, v: (B, H, N, d), any floating dtype.
    w: (H, c_q, c_k), the taps of each head, of any size.
    causal: query i sees the keys j <= i, both before and after the convolution.
    scale: 1/sqrt(d) by default.
    """
    return torch.softmax(conv_scores(q, k, w, causal, scale), dim=-1) @ v


def conv_scores(q, k, w, causal=True, scale=None):
    """Return T, (B, H, N, N), the argument of the softmax. If causal, T is -inf where j > i."""
    t = convolve(masked_scores(q, k, causal, scale), w)
    return t.masked_fill(above_diagonal(t), -math.inf) if causal else t


def masked_scores(q, k, causal=True, scale=None):
    """Return S0 = scale · q kᵀ, (B, H, N, N), with 0 where the causal mask hides a score.

    The mask value is 0, not -inf, so that the convolution adds nothing from the future.
    """
    s = scores(q, k, False, scale)
    return s.masked_fill(above_diagonal(s), 0.0) if causal else s


def convolve(s, w):
    """Return the cross-correlation of s (B, H, N, N) with the taps w (H, c_q, c_k), zero-padded, shaped like
    s:

        t[i, j] = Σ_ab w[a, b] · s[i - P_q + a, j - P_k + b]

    Row i depends on itself and the c_q - 1 rows above it. Column j depends on P_k columns to its left and c_k
    - 1 - P_k to its right.
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
    """Return the identity taps (H, c_q, c_k): 1 for the score itself, 0 for its neighbours.

    Convolutional attention with these taps is ordinary attention.
    """
    w = torch.zeros(heads, c_q, c_k, dtype=dtype, device=device)
    w[:, c_q - 1, (c_k - 1) // 2] = 1
    return w


def conv_attention_backward(q, k, v, w, o, log_sum, d_o, causal=True, scale=None):
    """Return the gradients (dQ, dK, dV, dW) of convolutional attention, with materialised N×N matrices.

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
    """Return the gradient of `convolve` with respect to s, shaped like d_t (B, H, N, N).

    dS[r, c] = Σ_ab w[a, b] · dT[r + P_q - a, c + P_k - b]
    """
    heads, c_q, c_k = w.shape
    left = (c_k - 1) // 2
    return conv2d(pad(d_t, (c_k - 1 - left, left, 0, c_q - 1)), w.flip(1, 2)[:, None], groups=heads)


def tap_gradient(d_t, s, shape):
    """Return the gradient of `convolve` with respect to w, which has `shape` (H, c_q, c_k).

    dW[a, b] = Σ_zij dT_z[i, j] · S_z[i - P_q + a, j - P_k + b], where z is the batch index
    """
    _, c_q, c_k = shape
    left = (c_k - 1) // 2
    return tap_sums(d_t, pad(s, (left, c_k - 1 - left, c_q - 1, 0)))


def tap_sums(d_t, s):
    """Return Σ_ij d_t[i, j] · s[i + a, j + b], (H, c_q, c_k), summed over the batch as well.

    d_t: (B, H, R, C).
    s: (B, H, R + c_q - 1, C + c_k - 1), including the halo.
    """
    windows = s.unfold(2, d_t.shape[2], 1).unfold(
        3, d_t.shape[3], 1
    )  # (B, H, c_q, c_k, R, C), a view without a copy
    return torch.einsum("zhij,zhabij->hab", d_t, windows)


def conv_attention_part(q, k, v, w, extent, causal=True, scale=None):
    """Compute convolutional attention for some queries and keys of a longer sequence; return (O, L).

    q: (B, H, N_q, d), including the halo that the convolution reads.
    k: (B, H, N_k, d), including its halo.
    v: (B, H, keys, d), for the owned keys only.
    extent: kernels.common.extent.Extent, the position of the owned rows in q and k.

    O is (B, H, N, d) and L (B, H, N), for the N = N_q - first_query owned queries. A query that sees no owned
    key has O = 0 and L = -inf.
    """
    first_query, first_key, diagonal = extent
    (heads, c_q, c_k), keys = w.shape, v.shape[2]
    left = (c_k - 1) // 2
    query, key = (
        torch.arange(q.shape[2], device=q.device) - first_query,
        torch.arange(k.shape[2], device=q.device) - first_key,
    )
    # positions are relative to the first owned query and key, so halo rows are negative or past the end
    hidden = (key > query[:, None] + diagonal) & causal
    s = scores(q, k, False, scale).masked_fill(hidden, 0.0)
    # pad with zeros where the sequence ends before the halo does, and likewise at its beginning
    after = c_k - 1 - left - (k.shape[2] - first_key - keys)
    t = conv2d(pad(s, (left - first_key, after, c_q - 1 - first_query, 0)), w[:, None], groups=heads)
    t = t.masked_fill(hidden[first_query:, first_key : first_key + keys], -math.inf)
    log_sum = torch.logsumexp(t, -1)
    return torch.where(t == -math.inf, 0.0, torch.exp(t - log_sum[..., None])) @ v, log_sum


def conv_attention_decode(q_window, k, v, w, scale=None):
    """Compute only the last row of causal `conv_attention`, (B, H, 1, d).

    q_window: (B, H, R, d), the queries of the last R = min(c_q, N_k) tokens.
    k, v: (B, H, N_k, d), of all tokens.
    w: (H, c_q, c_k).
    """
    (heads, c_q, c_k), rows, keys = w.shape, q_window.shape[2], k.shape[2]
    left, position = (c_k - 1) // 2, torch.arange(keys, device=k.device)
    s = scores(q_window, k, False, scale).masked_fill(position > position[-rows:, None], 0.0)
    t = conv2d(pad(s, (left, c_k - 1 - left, c_q - rows, 0)), w[:, None], groups=heads)
    return torch.softmax(t, dim=-1) @ v
