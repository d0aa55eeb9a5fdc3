"""Attention in plain PyTorch, written for clarity: what every other version is compared with."""

import math

import torch


def attention(q, k, v, causal=False, scale=None):
    """softmax(scale · q kᵀ) v, with the whole N×N matrix in memory.

    q: (..., N, d), k: (..., N_k, d), v: (..., N_k, d_v), any floating type; returns (..., N, d_v).
    scale is 1/sqrt(d) unless given. With causal, query i sees the keys j <= i.
    """
    return torch.softmax(scores(q, k, causal, scale), dim=-1) @ v


def scores(q, k, causal=False, scale=None):
    """scale · q kᵀ, (..., N, N_k); with causal, -inf where j > i."""
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s = scale * (q @ k.transpose(-1, -2))
    if not causal:
        return s
    above = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return s.masked_fill(above, -math.inf)


def attention_backward(q, k, v, o, log_sum, d_o, causal=False, scale=None):
    """The gradients (dQ, dK, dV) of attention, shaped like q, k and v, with the whole N×N matrix in memory.

    o: (..., N, d_v), the output; log_sum: (..., N), the log-sum-exp of each row of scores; d_o: the gradient of o.
    Source: Dao 2023, arXiv 2307.08691, Algorithm 2: P = exp(S - L), dS = P * (dO Vᵀ - D), where D = rowsum(dO * O).
    """
    s = scores(q, k, causal, scale)
    p = torch.where(s == -math.inf, 0.0, torch.exp(s - log_sum[..., None]))
    d_s = p * (d_o @ v.transpose(-1, -2) - (d_o * o).sum(-1, keepdim=True))
    d_s = d_s * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    return d_s @ k, d_s.transpose(-1, -2) @ q, p.transpose(-1, -2) @ d_o
