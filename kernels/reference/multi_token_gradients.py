"""Gradients of the complete multi-token layer, in plain PyTorch, with materialised N×N matrices.

S, T, P and U are defined in `kernels.reference.multi_token_attention`. All gradients are 0 where masked:

    dU' = dO vᵀ          dU = M2ᵀ dU'        dP = dU, transposed convolution with the second taps
    dT' = P ∘ (dP - D)   dT = M1ᵀ dT'        dS = dT, transposed convolution with the first taps
    dQ = scale · dS k    dK = scale · dSᵀ q  dV = U'ᵀ dO
    dM1[g, h] = Σ dT'_g ∘ T_h                dM2[g, h] = Σ dU'_g ∘ U_h

D[i] = Σ_j P[i, j] dP[i, j]. In plain attention this equals the row sum of dO · O; in this layer it does not,
because the output is not P v.
"""

import math
from typing import NamedTuple

import torch

from kernels.reference import (
    EPSILON,
    after_weights,
    in_groups,
    mix_heads,
    mixed_scores,
    normed,
    seen,
    tap_gradient,
    transposed_convolve,
    weights,
)


class Gradients(NamedTuple):
    """Gradients of `multi_token_attention`, each shaped like its argument; None for an omitted argument."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    taps: torch.Tensor | None
    head_map: torch.Tensor | None
    after_taps: torch.Tensor | None
    after_head_map: torch.Tensor | None
    norm: torch.Tensor | None
    gate: tuple | None


def multi_token_attention_backward(
    q,
    k,
    v,
    d_y,
    taps=None,
    head_map=None,
    after_taps=None,
    after_head_map=None,
    norm=None,
    gate=None,
    causal=True,
    scale=None,
):
    """Compute the Gradients of the multi-token layer, with materialised N×N matrices.

    d_y: the gradient of y.

    The other arguments are the same as for `multi_token_attention`. Each convolution and each head map
    propagates the gradient backward through its transpose.
    """
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    s, t, _ = mixed_scores(q, k, taps, head_map, causal, scale)
    p = weights(q, k, taps, head_map, causal, scale)
    u = after_weights(p, after_taps, causal)
    mixed = mix_heads(u, after_head_map)
    d_o, d_norm, d_gate = gated_norm_backward(mixed @ v, norm, gate, d_y)
    # from dU' through the second map and convolution to dP
    d_mixed = d_o @ v.transpose(-1, -2)
    d_u = seen(mix_heads(d_mixed, transposed_map(after_head_map)), causal)
    d_p = d_u if after_taps is None else transposed_convolve(d_u, after_taps)
    # through the softmax to dT'
    d_t_mixed = p * (d_p - (p * d_p).sum(-1, keepdim=True))
    # from dT' through the first map and convolution to dS
    d_t = mix_heads(d_t_mixed, transposed_map(head_map))
    d_s = seen(d_t if taps is None else transposed_convolve(d_t, taps), causal)
    return Gradients(
        scale * d_s @ k,
        scale * d_s.transpose(-1, -2) @ q,
        mixed.transpose(-1, -2) @ d_o,
        None if taps is None else tap_gradient(d_t, s, taps.shape),
        map_gradient(d_t_mixed, t, head_map),
        None if after_taps is None else tap_gradient(d_u, p, after_taps.shape),
        map_gradient(d_mixed, u, after_head_map),
        d_norm,
        d_gate,
    )


def transposed_map(head_map):
    return None if head_map is None else head_map.transpose(-1, -2)


def map_gradient(d_y, x, head_map):
    """Return the gradient of `mix_heads` with respect to the map, shaped like the map.

    It is Σ d_y[g] x[h], summed over batch, rows and columns.
    """
    if head_map is None:
        return None
    d_y, x = (tensor.unflatten(1, in_groups(head_map).shape[:2]) for tensor in (d_y, x))
    return torch.einsum("zgaij,zgbij->gab", d_y, x).reshape(head_map.shape)


def gated_norm_backward(o, norm, gate, d_y):
    """Return the gradients (dO, d_norm, d_gate) of `gated_norm`; the gradient of an omitted (None) operation
    is None."""
    x = o if norm is None else normed(o) * norm
    d_x, d_norm, d_gate = d_y, None, None
    if gate is not None:
        open_share = torch.sigmoid(x @ gate[0] + gate[1])[..., None]
        d_z = (d_y * x).sum(-1, keepdim=True) * open_share * (1 - open_share)
        d_x = d_y * open_share + d_z * gate[0]
        d_gate = (d_z * x).sum((0, 1, 2)), d_z.sum().reshape(gate[1].shape)
    if norm is None:
        return d_x, d_norm, d_gate
    unit, size = normed(o), torch.rsqrt(o.square().mean(-1, keepdim=True) + EPSILON)
    d_unit = d_x * norm
    return (
        size * (d_unit - unit * (d_unit * unit).mean(-1, keepdim=True)),
        (d_x * unit).sum((0, 1, 2)),
        d_gate,
    )
