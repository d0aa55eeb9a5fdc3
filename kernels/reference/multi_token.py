"""The complete multi-token layer in plain PyTorch, with materialised N×N matrices.

This follows the published training code of Golovneva et al. 2025, arXiv 2504.00927. For heads g and h:

    S_h = scale · q_h k_hᵀ, 0 where masked
    T_h = S_h convolved with the taps of head h
    T'_g = Σ_h M1[g, h] T_h
    P_g = softmax(T'_g), 0 where masked
    U_h = P_h convolved with the second taps, 0 where masked; its rows no longer sum to 1
    O_g = Σ_h M2[g, h] U_h v_g
    y = x · sigmoid(x·a + b), where x = RMSNorm(O)
"""

import math
import operator

import torch

from kernels.reference.conv import convolve, masked_scores
from kernels.reference.latent import latent_attention as latent_attention
from kernels.reference.latent import latent_attention_decode as latent_attention_decode
from kernels.reference.standard import above_diagonal

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
    """Compute the multi-token layer without its projections; return y, shaped like q. This materialises N×N
    matrices.

    q, k, v: (B, H, N, d), any floating dtype, after rotary embedding.
    taps, after_taps: (H, c_q, c_k), the convolutions before and after the softmax.
    head_map, after_head_map: (H, H), or (H / s, s, s) for maps within groups of s heads. Row g contains the
        weights of the heads that are summed into output g.
    norm: (d,), the weight of an RMSNorm over d, with eps 1e-5.
    gate: a pair (a, b) of shapes (d,) and ().
    causal: query i sees the keys j <= i, in all three masks.
    scale: 1/sqrt(d) by default.
    documents: the start of each document of a packed sequence, like cu_seqlens: increasing, from 0; a last
        entry N is allowed. Neither convolutions nor attention cross the boundary of a document.

    With only `taps`, this is `conv_attention`; without any optional argument, `attention`. Raise TypeError or
    ValueError if `documents` is invalid.
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
    """Convert the starts of documents to [(start, end), …] for a sequence of n tokens.

    Raise TypeError or ValueError unless the starts are increasing integers from 0 to below n.
    """
    try:
        given = list(map(operator.index, documents))
    except TypeError:
        raise TypeError(
            f"argument documents is {documents!r}; wanted whole numbers, the first token of each document"
        ) from None
    # like cu_seqlens, the list may end with N
    starts = given[:-1] if len(given) > 1 and given[-1] == n else given
    ends = [*starts[1:], n]
    if not starts or starts[0] != 0 or not all(start < end for start, end in zip(starts, ends)):
        raise ValueError(
            f"argument documents is {given}; wanted the first token of each document,"
            f" increasing, from 0 to below N = {n} (a last entry N is allowed)"
        )
    return list(zip(starts, ends))


def mixed_scores(q, k, taps, head_map, causal, scale):
    """Return (S, T, T'), each (B, H, N, N). T' is not masked."""
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
    """Return x (B, H, N, N), with hidden entries set to 0 if causal."""
    return x.masked_fill(above_diagonal(x), 0.0) if causal else x


def in_groups(head_map):
    """Return a head map in the shape (H / s, s, s); a map (H, H) is a single group."""
    return head_map if head_map.ndim == 3 else head_map[None]


def mix_heads(x, head_map):
    """Return Σ_h M[g, h] x[h], shaped like x (B, H, N, N); return x itself if there is no map."""
    if head_map is None:
        return x
    head_map = in_groups(head_map)
    grouped = x.unflatten(1, head_map.shape[:2])
    return torch.einsum("gab,zgbij->zgaij", head_map, grouped).flatten(1, 2)


def gated_norm(o, norm=None, gate=None):
    """Return y, shaped like o (B, H, N, d): o / sqrt(mean(o²) + 1e-5) · norm, multiplied by sigmoid(o·a + b).

    A step whose argument is None is omitted.
    """
    x = o if norm is None else normed(o) * norm
    return x if gate is None else x * torch.sigmoid((x * gate[0]).sum(-1) + gate[1])[..., None]


def normed(o):
    """Return o divided by its root mean square over d."""
    return o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPSILON)


def identity_map(heads, dtype=torch.float32, device=None):
    """Return the identity map (H, H)."""
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
    """Compute the last row of causal `multi_token_attention`, (B, H, 1, d), from the latest queries.

    q_window: (B, H, R, d), the last R = min(c_q + after_c_q - 1, N_k) queries. Each row of P that the second
        convolution reads depends on c_q of them.
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
