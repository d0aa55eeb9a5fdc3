"""The arguments of the latent kernels, checked."""

import math

import torch
from numpy import float32, integer

from kernels.launch import (
    FLOAT32,
    HALVES,
    LARGEST,
    MAX_GRID_Y,
    MAX_GRID_Z,
    MAX_HEAD_DIM,
    check_device,
    check_dtype,
    checked_scale,
)


def latent_arguments(q, k_latent, v_latent, w_q, w_v, alpha, window, scale, dtypes=(*FLOAT32, *HALVES)):
    """Check the arguments of latent attention; return the tensors detached and contiguous, alpha as a float32
    tensor of one number among them, and window and scale as numbers.

    q: (B, H, M, d); k_latent, v_latent: (B, N_k, L), M <= N_k; w_q: (H, d, L); w_v: (H, L, d), all of one of
        `dtypes`, on one device, none empty, d and L from 1 to 128; alpha: a number or a tensor of one,
        float32 or 16 bits; window: 0 or more; scale: a number, or None for 1/sqrt(L). Raises TypeError or
        ValueError that names the argument, what it is, and what was wanted.
    """
    check_shapes(q, k_latent, v_latent, w_q, w_v, dtypes=dtypes)
    tensors = [tensor.detach().contiguous() for tensor in (q, k_latent, v_latent, w_q, w_v)]
    scale = 1 / math.sqrt(k_latent.shape[2]) if scale is None else scale
    alpha, window = checked_alpha(alpha, q), checked_window(window, k_latent.shape[1])
    return *tensors, alpha, window, checked_scale(scale)


def check_shapes(q, k_latent, v_latent, w_q, w_v, what="q", dtypes=(*FLOAT32, *HALVES)):
    """Five tensors of one of `dtypes`, of sizes that fit each other and the kernels, or an error; what: the
    first one's name."""
    check_tensor(what, q, "(B, H, N, d)", q, dtypes)
    check_tensor("k_latent", k_latent, "(B, N_k, L)", q)
    batch, heads, queries, d = q.shape
    keys, latent = k_latent.shape[1:]
    wanted = {
        "k_latent": (k_latent, (batch, keys, latent), "(B, N_k, L), with B of q"),
        "v_latent": (v_latent, (batch, keys, latent), "that of k_latent"),
        "w_q": (w_q, (heads, d, latent), "(H, d, L)"),
        "w_v": (w_v, (heads, latent, d), "(H, L, d)"),
    }
    for name, (tensor, shape, words) in wanted.items():
        check_tensor(name, tensor, words, q, dimensions=len(shape))
        if tuple(tensor.shape) != shape:
            raise ValueError(f"argument {name} has shape {tuple(tensor.shape)}; wanted {words}, {shape}")
    if 0 in (batch, heads, queries):
        raise ValueError(
            f"argument {what} has shape {tuple(q.shape)}; wanted at least one batch, head and query"
        )
    if queries > keys:
        raise ValueError(
            f"argument {what} has {queries} queries, k_latent {keys} keys; wanted no more queries than keys:"
            " they are those of the last tokens"
        )
    for name, size in {what: d, "k_latent": latent}.items():
        if not 1 <= size <= MAX_HEAD_DIM:
            raise ValueError(
                f"argument {name} has rows of {size}; wanted 1 to {MAX_HEAD_DIM}, as a tile must fit shared"
                " memory"
            )
    if batch > MAX_GRID_Z or heads > MAX_GRID_Y:
        raise ValueError(
            f"argument {what} has B = {batch} and H = {heads}; wanted at most {MAX_GRID_Z} each, as they are"
            " sizes of the grid"
        )


def check_tensor(name, tensor, words, q, dtypes=None, dimensions=None):
    """A tensor of so many dimensions, as `words` say, of one of `dtypes`, else like q, and where q is, or an
    error."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"argument {name} is a {type(tensor).__name__}; wanted a torch.Tensor")
    if tensor.ndim != (dimensions or words.count(",") + 1):
        raise ValueError(f"argument {name} has shape {tuple(tensor.shape)}; wanted {words}")
    check_dtype(name, tensor, dtypes or (q.dtype,))
    check_device(name, tensor, q)


def checked_alpha(alpha, q):
    """A number, or a tensor of one, as a float32 tensor (1,) where q is, or an error. A tensor's number is
    not looked at: the host would have to wait for it."""
    if isinstance(alpha, torch.Tensor):
        if alpha.numel() != 1 or alpha.dtype not in (*FLOAT32, *HALVES):
            types = " or ".join(map(str, (*FLOAT32, *HALVES)))
            raise ValueError(
                f"argument alpha is {alpha.dtype}, {tuple(alpha.shape)}; wanted a number, or a tensor of one,"
                f" {types}"
            )
        check_device("alpha", alpha, q)
        return alpha.detach().reshape(1).float()
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float, float32)) or not abs(alpha) <= LARGEST:
        raise ValueError(f"argument alpha is {alpha!r}; wanted a finite float32, or a tensor of one")
    return q.new_full((1,), float(alpha), dtype=torch.float32)


def checked_window(window, keys):
    """A whole number of at least 0, and no more than there are keys, or an error."""
    if isinstance(window, bool) or not isinstance(window, (int, integer)):
        raise TypeError(f"argument window is {window!r}; wanted a whole number")
    if window < 0:
        raise ValueError(f"argument window is {window}; wanted 0 or more")
    return min(int(window), keys)


def check_before(q_before, q, k_latent):
    """q_before (B, H, P, d), the queries of P of the tokens before those of q, or an error."""
    check_tensor("q_before", q_before, "(B, H, P, d)", q)
    most = k_latent.shape[1] - q.shape[2]
    if q_before.shape[:2] != q.shape[:2] or q_before.shape[3] != q.shape[3] or q_before.shape[2] > most:
        raise ValueError(
            f"argument q_before has shape {tuple(q_before.shape)}; wanted (B, H, P, d) with B, H and d of q,"
            f" {tuple(q.shape)}, and P <= N_k - N = {most}"
        )
    return q_before
