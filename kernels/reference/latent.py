"""Reference implementation of latent attention with a reciprocal term, in plain PyTorch.

All heads share the latent keys and values k̃, ṽ (N_k, L). Each head's W_q projects its queries from d to L
dimensions, and its W_v projects latent values from L to d dimensions. With q̃ = q W_q, and p the position of
query i among the keys:

    S[i, j] = scale · (q̃_i·k̃_j + α · [0 <= p - j < window] · q̃_j·k̃_p), -inf where masked
    O       = softmax(S) ṽ W_v

Source for the shared latents: DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.
"""

import math

import torch
from torch.nn.functional import pad


def latent_attention(
    q, k_latent, v_latent, w_q, w_v, alpha=0.0, window=0, causal=True, scale=None, q_before=None
):
    """Compute latent attention with a reciprocal term; return O, shaped like q.

    This materialises the N×N_k scores and the projected values.

    q: (B, H, N, d), any floating dtype, the queries of the last N of N_k tokens.
    k_latent, v_latent: (B, N_k, L), shared by the heads.
    w_q: (H, d, L).
    w_v: (H, L, d).
    alpha: the weight of the reciprocal term, a number or a tensor with one element.
    window: the number of latest keys, including the query's own, that the reciprocal term covers.
    causal: each query sees the keys up to its own position.
    scale: 1/sqrt(L) by default.
    q_before: (B, H, P, d), the queries of the P tokens before q's tokens. A key has no reciprocal term if its
        token's query is in neither q nor q_before.
    """
    q_all = q if q_before is None else torch.cat([q_before, q], 2)
    s = latent_scores(q_all, k_latent, w_q, q.shape[2], alpha, window, causal, scale)
    return torch.softmax(s, dim=-1) @ (v_latent[:, None] @ w_v)


def latent_scores(q, k_latent, w_q, n, alpha=0.0, window=0, causal=True, scale=None):
    """Return the scores S, (B, H, n, N_k), of the last n rows of q; -inf where the causal mask hides a score.

    q: (B, H, M, d), the queries of the last M tokens.
    """
    straight, reciprocal = straight_and_reciprocal(q, k_latent, w_q, n)
    back = steps_back(n, k_latent)
    s = straight + (alpha * reciprocal).masked_fill(~in_band(back, window), 0)
    s = s * (1 / math.sqrt(k_latent.shape[2]) if scale is None else scale)
    return s.masked_fill(back < 0, -math.inf) if causal else s


def straight_and_reciprocal(q, k_latent, w_q, n):
    """Return q̃_i·k̃_j and the reciprocal q̃_j·k̃_p, both (B, H, n, N_k).

    The reciprocal product is 0 for keys whose query is not in q (B, H, M, d).
    """
    q_latent, missing = q @ w_q, k_latent.shape[1] - q.shape[2]
    k = k_latent[:, None]
    return q_latent[:, :, -n:] @ k.mT, pad(k[:, :, -n:] @ q_latent.mT, (missing, 0))


def steps_back(n, k_latent):
    """Return p - j, (n, N_k): the distance from key j forward to query i at position p = N_k - n + i.

    It is negative for keys after the query.
    """
    position = torch.arange(k_latent.shape[1], device=k_latent.device)
    return position[-n:, None] - position


def in_band(back, window):
    """Return a mask of the entries that have a reciprocal term, from the result of `steps_back`."""
    return (back >= 0) & (back < window)


def latent_attention_backward(
    q, k_latent, v_latent, w_q, w_v, o, log_sum, d_o, alpha=0.0, window=0, causal=True, scale=None
):
    """Return the gradients (dQ, dK̃, dṼ, dW_q, dW_v, dα) of latent attention, materialising the N×N_k
    matrices.

    q: (B, H, M, d), q_before and q concatenated.
    o, d_o: (B, H, N, d), the output and its gradient.
    log_sum: (B, H, N), the log-sum-exp of each row of S.
    """
    n, missing = o.shape[2], k_latent.shape[1] - q.shape[2]
    factor = 1 / math.sqrt(k_latent.shape[2]) if scale is None else scale
    q_latent, k, v = q @ w_q, k_latent[:, None], v_latent[:, None]
    p = torch.exp(latent_scores(q, k_latent, w_q, n, alpha, window, causal, scale) - log_sum[..., None])
    d_s = factor * p * (d_o @ (v @ w_v).mT - (d_o * o).sum(-1, keepdim=True))
    reciprocal = straight_and_reciprocal(q, k_latent, w_q, n)[1]
    outside = ~in_band(steps_back(n, k_latent), window)
    d_band = d_s.masked_fill(outside, 0)[..., missing:]  # only keys whose query is in q
    d_q_latent = alpha * d_band.mT @ k[:, :, -n:]
    d_q_latent[:, :, -n:] += d_s @ k
    d_k = d_s.mT @ q_latent[:, :, -n:]  # dK̃ of each head; summed over heads below
    d_k[:, :, -n:] += alpha * d_band @ q_latent
    d_v_heads = p.mT @ d_o
    return (
        d_q_latent @ w_q.mT,
        d_k.sum(1),
        (d_v_heads @ w_v.mT).sum(1),
        (q.mT @ d_q_latent).sum(0),
        (v.mT @ d_v_heads).sum(0),
        (d_band * reciprocal[..., missing:]).sum(),
    )


def latent_attention_decode(q_window, k_latent, v_latent, w_q, w_v, alpha=0.0, window=0, scale=None):
    """Compute the last row of causal `latent_attention`, (B, H, 1, d).

    q_window: (B, H, R, d), the queries of the last R tokens.
    """
    *before, q = q_window.split([q_window.shape[2] - 1, 1], 2)
    return latent_attention(q, k_latent, v_latent, w_q, w_v, alpha, window, True, scale, *before)
