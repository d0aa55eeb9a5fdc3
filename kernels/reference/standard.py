"""Standard attention in plain PyTorch with a materialised N×N score matrix, and its gradients."""

import math

import torch

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
    """Return softmax(scale · q kᵀ) v, (..., N, d_v), materialising the N×N_k scores.

    q: (..., N, d), any floating dtype.
    k: (..., N_k, d).
    v: (..., N_k, d_v).
    causal: query i sees the keys j <= i.
    scale: 1/sqrt(d) by default.
    window: (left, right); query i sees the keys i - left <= j <= i + right, where -1 removes the limit on
        that side. The output is 0 for a query that sees no key.
    """
    s = scores(q, k, causal, scale, window)
    p = torch.softmax(s, dim=-1)
    # softmax of a row of -inf is NaN
    return (p if window is None else p.masked_fill(blind(s), 0)) @ v


def scores(q, k, causal=False, scale=None, window=None):
    """Return scale · q kᵀ, (..., N, N_k), with -inf for keys hidden by the causal mask or the window."""
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
    """Return a mask (..., N, 1) of the queries that see no key, given scores s (..., N, N_k)."""
    return (s == -math.inf).all(-1, keepdim=True)


def attention_backward(q, k, v, o, log_sum, d_o, causal=False, scale=None, window=None):
    """Return the gradients (dQ, dK, dV) of attention, materialising the N×N_k scores.

    o: (..., N, d_v), the output.
    log_sum: (..., N), L, the log-sum-exp of each row of the scores S.
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


def above_diagonal(s):
    """Return a mask of the entries j > i of s (..., N, N)."""
    return torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
