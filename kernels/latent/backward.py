"""Latent attention with a reciprocal term, backward: one kernel owns tiles of queries, another owns tiles of
keys.

Both kernels recompute P from the forward pass's L, and apply the projections to the tile that they own. With
p the position of query i, u_j = W_q k̃_j, x_j = ṽ_j W_v, g_i = dO_i W_vᵀ, r_i = W_q k̃_p, D = rowsum(dO * O)
and [band] = [0 <= p - j < window]:

    S_ij = scale · (q̃_i·k̃_j + α [band] r_i·q_j)   dP_ij = g_i·ṽ_j    in the kernel that owns queries
    S_ij = scale · (q_i·u_j + α [band] q̃_j·k̃_p)   dP_ij = dO_i·x_j    in the kernel that owns keys
    P = exp(S - L), 0 where masked                dS = P * (dP - D)

    per query    h_i = scale Σ_j dS k̃_j             dq_i += h_i W_qᵀ
                 R_i = scale · α Σ_j [band] dS q_j   dk̃_p += R_i W_q
    per key      f_j = scale Σ_i dS q_i              dk̃_j += f_j W_q
                 e_j = Σ_i P dO_i                    dṽ_j += e_j W_vᵀ
                 G_j = scale · α Σ_i [band] dS k̃_p   dq_j += G_j W_qᵀ
    per head     dW_q = Σ_j (f_j ⊗ k̃_j + q_j ⊗ G_j)      dW_v = Σ_j ṽ_j ⊗ e_j      dα = Σ_j q̃_j·G_j / α

The heads share k̃ and ṽ, so blocks of all heads add to dk̃ and dṽ atomically. For reproducible results, each
head adds to a separate part, and the parts are summed afterwards.
Sources: as in latent/forward.py; Dao 2023, arXiv 2307.08691, Algorithm 2 (L and D).

    grid    (⌈N / rows⌉, H, B) and (⌈N_k / rows⌉, H, B)
    block   64 threads for 32 rows (16 if L or d is above 64)
    shared  (3 · rows + 32) · (width + 4) + rows · 36 floats, static: 38.5 KiB at width 64
    cost    3 · L and 4 · d multiply-adds per score, 2 · d and 2 · L more in the band
"""

import torch

from kernels.common.arguments import HALVES, check_statistics
from kernels.common.launch import launch
from kernels.latent.arguments import latent_arguments
from kernels.latent.backward_keys import keys_kernel
from kernels.latent.backward_queries import queries_kernel
from kernels.latent.tensor_backward import latent_tensor_backward
from kernels.latent.tiles import THREADS, sizes_for


def latent_backward(
    q,
    k_latent,
    v_latent,
    w_q,
    w_v,
    o,
    log_sum,
    d_o,
    alpha=0.0,
    window=0,
    causal=True,
    scale=None,
    wanted=(True,) * 6,
    deterministic=False,
    run=None,
):
    """Return (dQ, dK̃, dṼ, dW_q, dW_v, dα) of latent attention, shaped like their arguments; dα is (1,).

    The gradients have the dtype of q; dα is float32. 16-bit tensors are computed on tensor cores
    (`kernels.latent.tensor_backward`), unless `deterministic` is true: cuBLAS may refuse reproducible
    products.

    q: (B, H, M, d), including the queries before the first row of output.
    o, log_sum: the results of `latent_forward`, for the last N queries.
    d_o: the gradient of o.
    wanted: which of the six gradients are needed. The others are returned as None; a kernel is launched only
        if one of its results is needed.
    deterministic: make the results reproducible bit for bit. This needs memory for one part per head and
        block.

    Raise TypeError or ValueError for an invalid argument; the message states the actual and the expected
    value.
    """
    q, k, v, w_q, w_v, alpha, window, scale = latent_arguments(
        q, k_latent, v_latent, w_q, w_v, alpha, window, scale
    )
    queries = q.shape[2]
    check_statistics(q, o, log_sum, d_o, min(o.shape[2], queries) if getattr(o, "ndim", 0) == 4 else queries)
    if q.dtype in HALVES:
        statistics = o.detach().contiguous(), log_sum.detach().contiguous(), d_o.detach().contiguous()
        given = q, k, v, w_q, w_v, *statistics
        if not deterministic:
            with torch.autocast(q.device.type, enabled=False):
                return latent_tensor_backward(*given, alpha, window, causal, scale, wanted, run)
        wide = (x.float() for x in given)
        found = latent_backward(*wide, alpha, window, causal, float(scale), wanted, True, run)
        return *(x if x is None else x.to(q.dtype) for x in found[:5]), found[5]
    (batch, heads, _, d), (keys, latent), n = q.shape, k.shape[1:], o.shape[2]
    width, rows = sizes_for(d, latent)
    blocks = -(-keys // rows)
    parts, sharers = (blocks * batch, heads) if deterministic else (1, 1)
    d_q, d_k, d_v = torch.zeros_like(q), k.new_zeros(batch, sharers, keys, latent), None
    w_q_turned, w_v_turned, d_o = w_q.mT.contiguous(), w_v.mT.contiguous(), d_o.detach().contiguous()
    of_scores = alpha, window, scale, bool(causal), log_sum.detach(), (d_o * o.detach()).sum(-1), d_o
    if wanted[0] or wanted[1] and window:
        launch(
            queries_kernel(width, rows),
            (-(-n // rows), heads, batch),
            THREADS,
            q,
            k,
            v,
            w_q,
            w_q_turned,
            w_v_turned,
            *of_scores,
            d_q,
            d_k,
            run=run,
        )
    d_w_q = d_w_v = d_alpha = None
    if any(wanted[1:]) or window:
        d_v, d_w_q, d_w_v = (
            torch.zeros_like(d_k),
            q.new_zeros(parts, *w_q.shape),
            q.new_zeros(parts, *w_v.shape),
        )
        d_alpha = q.new_zeros(parts, heads, 1)
        launch(
            keys_kernel(width, rows),
            (blocks, heads, batch),
            THREADS,
            q,
            k,
            v,
            w_q,
            w_q_turned,
            w_v,
            w_v_turned,
            *of_scores,
            d_q,
            d_k,
            d_v,
            d_w_q,
            d_w_v,
            d_alpha,
            run=run,
        )
        d_v, d_w_q, d_w_v, d_alpha = d_v.sum(1), d_w_q.sum(0), d_w_v.sum(0), d_alpha.sum().view(1)
    gradients = d_q, d_k.sum(1), d_v, d_w_q, d_w_v, d_alpha
    return tuple(gradient if want else None for gradient, want in zip(gradients, wanted))
