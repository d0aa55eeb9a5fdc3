"""Argument checks of the latent kernels."""

import torch
from numpy import float32, integer

from kernels.common.arguments import ANY_FLOAT, LARGEST, check, check_device, checked_scale


def latent_arguments(q, k_latent, v_latent, w_q, w_v, alpha, window, scale, dtypes=ANY_FLOAT):
    """Check the arguments of latent attention, and convert them for the kernels.

    Return (q, k_latent, v_latent, w_q, w_v, alpha, window, scale): detached, contiguous tensors, alpha as a
    float32 tensor (1,), window and scale as numbers.

    q: (B, H, M, d), of one of `dtypes`, not empty, d from 1 to 128.
    k_latent, v_latent: (B, N_k, L), M <= N_k, L from 1 to 128. Like w_q and w_v, they have the dtype and
        device of q.
    w_q: (H, d, L).
    w_v: (H, L, d).
    alpha: a number, or a tensor with one element, float32 or 16-bit.
    window: 0 or more.
    scale: a number, or None for 1/sqrt(L).

    Raise TypeError or ValueError for an invalid argument.
    """
    check_shapes(q, k_latent, v_latent, w_q, w_v, dtypes=dtypes)
    tensors = [tensor.detach().contiguous() for tensor in (q, k_latent, v_latent, w_q, w_v)]
    alpha, window = checked_alpha(alpha, q), checked_window(window, k_latent.shape[1])
    return *tensors, alpha, window, checked_scale(scale, k_latent.shape[2])


def check_shapes(q, k_latent, v_latent, w_q, w_v, what="q", dtypes=ANY_FLOAT):
    """Raise an error unless the five tensors have one of `dtypes` and sizes that fit each other.

    what: the name of the first argument, for messages.
    """
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
    """Return alpha as a float32 tensor (1,) on q's device.

    Raise ValueError unless it is a number or a tensor with one element. The value of a tensor is not checked,
    because the host would have to wait for the GPU.
    """
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
    """Return the window, clipped to the number of keys; raise an error unless it is an integer >= 0."""
    if isinstance(window, bool) or not isinstance(window, (int, integer)):
        raise TypeError(f"argument window is {window!r}; wanted a whole number")
    if window < 0:
        raise ValueError(f"argument window is {window}; wanted 0 or more")
    return min(int(window), keys)


def check_before(q_before, q, k_latent):
    """Return q_before (B, H, P, d), the queries of the P tokens before q's tokens; raise an error if it does
    not match q, or if P > N_k - N."""
    sizes = dict(zip("BHNd", q.shape))
    given = check({"q_before": (q_before, "B H P d")}, sizes=sizes, like=("q", q))["P"]
    most = k_latent.shape[1] - sizes["N"]
    if given > most:
        raise ValueError(f"argument q_before has P = {given}; wanted at most N_k - N = {most}")
    return q_before
