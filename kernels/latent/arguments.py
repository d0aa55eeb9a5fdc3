"""The arguments of the latent kernels, checked."""

import torch
from numpy import float32, integer

from kernels.common.arguments import ANY_FLOAT, LARGEST, check, check_device, checked_scale


def latent_arguments(q, k_latent, v_latent, w_q, w_v, alpha, window, scale, dtypes=ANY_FLOAT):
    """Check the arguments of latent attention; return the tensors detached and contiguous, alpha as a float32
    tensor of one number among them, and window and scale as numbers.

    q: (B, H, M, d); k_latent, v_latent: (B, N_k, L), M <= N_k; w_q: (H, d, L); w_v: (H, L, d), all of one of
        `dtypes`, on one device, none empty, d and L from 1 to 128; alpha: a number or a tensor of one,
        float32 or 16 bits; window: 0 or more; scale: a number, or None for 1/sqrt(L). Raises TypeError or
        ValueError that names the argument, what it is, and what was wanted.
    """
    check_shapes(q, k_latent, v_latent, w_q, w_v, dtypes=dtypes)
    tensors = [tensor.detach().contiguous() for tensor in (q, k_latent, v_latent, w_q, w_v)]
    alpha, window = checked_alpha(alpha, q), checked_window(window, k_latent.shape[1])
    return *tensors, alpha, window, checked_scale(scale, k_latent.shape[2])


def check_shapes(q, k_latent, v_latent, w_q, w_v, what="q", dtypes=ANY_FLOAT):
    """Five tensors of one of `dtypes`, of sizes that fit each other and the kernels, or an error; what: the
    first one's name."""
    given = {
        what: (q, "B H N d"),
        "k_latent": (k_latent, "B N_k L"),
        "v_latent": (v_latent, "B N_k L"),
        "w_q": (w_q, "H d L"),
        "w_v": (w_v, "H L d"),
    }
    sizes = check(given, dtypes, filled="B H N")
    if sizes["N"] > sizes["N_k"]:
        raise ValueError(
            f"argument {what} has N = {sizes['N']}, k_latent N_k = {sizes['N_k']}; wanted no more queries"
            " than keys: they are those of the last tokens"
        )


def checked_alpha(alpha, q):
    """A number, or a tensor of one, as a float32 tensor (1,) where q is, or an error. A tensor's number is
    not looked at: the host would have to wait for it."""
    if isinstance(alpha, torch.Tensor):
        if alpha.numel() != 1 or alpha.dtype not in ANY_FLOAT:
            types = " or ".join(map(str, ANY_FLOAT))
            raise ValueError(
                f"argument alpha is {alpha.dtype}, {tuple(alpha.shape)}; wanted a number, or a tensor of one,"
                f" {types}"
            )
        check_device("alpha", alpha.device, "q", q.device)
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
    sizes = dict(zip("BHNd", q.shape))
    given = check({"q_before": (q_before, "B H P d")}, sizes=sizes, like=("q", q))["P"]
    most = k_latent.shape[1] - sizes["N"]
    if given > most:
        raise ValueError(f"argument q_before has P = {given}; wanted at most N_k - N = {most}")
    return q_before
