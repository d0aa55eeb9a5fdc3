"""Convolutional attention as custom operators for autograd and torch.compile."""

import torch
from numpy import float32

from kernels.common.arguments import ANY_FLOAT, as_in_torch, check_conv, in_autocasts_type
from kernels.common.autograd import differentiable_once, operator
from kernels.conv.backward import backward
from kernels.conv.forward import forward

contiguous = torch.Tensor.contiguous


def conv_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor,
    causal: bool = True,
    scale: float | None = None,
    *,
    is_causal: bool | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Compute convolutional ("multi-token") attention without an N×N matrix in memory, forward and backward.

    Return O, shaped like q. With return_lse, return (O, L), where L (B, H, N) is the float32 log-sum-exp of
    each query's scores, without gradients. For each head, with P_q = c_q - 1 and P_k = (c_k - 1) // 2:

        S0 = scale · q kᵀ, 0 where masked
        T[i, j] = Σ_ab w[a, b] · S0[i - P_q + a, j - P_k + b], -inf where masked
        O = softmax(T) v

    This is key-query convolution before the softmax (Golovneva et al. 2025, arXiv 2504.00927).

    q, k, v: (B, H, N, d), float32, bfloat16 or float16, d <= 128.
    w: (H, c_q, c_k), float32 or the dtype of q; c_q and c_k are from 1 to 15, odd or even.
    causal: query i sees the keys j <= i, both before and after the convolution.
    scale: 1/sqrt(d) by default.
    is_causal: an alias of causal, as in `scaled_dot_product_attention`.
    enable_gqa: k and v are (B, H_kv, N, d), where H_kv divides H. Each of their heads serves H / H_kv
        neighbouring heads of q.
    return_lse: also return L.

    All tensors must be on one device and non-empty; non-contiguous tensors are copied. CPU tensors are
    simulated, and CUDA tensors run on their GPU. For 16-bit tensors, both passes use tensor cores with
    float32 accumulators (`kernels.conv.tensor_forward`, `kernels.conv.tensor_backward`), which requires a GPU
    of compute capability 8.0 or newer. With 9.0, the backward pass of 16-bit tensors needs up to 1.5 GiB of
    scratch memory (`kernels.conv.banded_backward`).

    The function is differentiable once, with respect to q, k, v and w; only the gradients that are needed are
    computed. Under torch.compile it is one opaque operator. Under torch.autocast it computes in autocast's
    dtype. Raise TypeError or ValueError for an invalid argument; the message states the actual and the
    expected value.
    """
    q, k, v, w = in_autocasts_type(q, k, v, exact=(w,))
    causal, (q, k, v) = as_in_torch(causal, is_causal, enable_gqa, q, k, v)
    scale, _ = check_conv(q, k, v, w, scale, dtypes=ANY_FLOAT)
    o, log_sum = conv_forward_call(q, k, v, w, bool(causal), float(scale))
    return (o, log_sum) if return_lse else o


def conv_forward_checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, w: torch.Tensor, causal: bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (O, L) as `conv_forward` does, for arguments that are already checked."""
    q, k, v, w = map(contiguous, (q, k, v, w))
    return forward(q, k, v, w, causal, float32(scale))


conv_forward_operator = operator("conv_forward", conv_forward_checked)


@conv_forward_operator.register_fake
def shapes_forward(q, k, v, w, causal, scale):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


def conv_backward_checked(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    w: torch.Tensor,
    o: torch.Tensor,
    log_sum: torch.Tensor,
    d_o: torch.Tensor,
    causal: bool,
    scale: float,
    wanted: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (dQ, dK, dV, dW) as `conv_backward` does, for arguments that are already checked.

    Gradients that are not needed are returned as empty tensors.
    """
    q, k, v, w, o, log_sum, d_o = map(contiguous, (q, k, v, w, o, log_sum, d_o))
    deterministic = torch.are_deterministic_algorithms_enabled()
    gradients = backward(q, k, v, w, o, log_sum, d_o, causal, float32(scale), wanted, deterministic)
    if all(wanted):
        return gradients
    d_q, d_k, d_v, d_w = (
        like.new_empty(0) if x is None else x for x, like in zip(gradients, (q, k, v, w), strict=True)
    )
    return d_q, d_k, d_v, d_w


conv_backward_operator = operator("conv_backward", conv_backward_checked)


@conv_backward_operator.register_fake
def shapes_backward(q, k, v, w, o, log_sum, d_o, causal, scale, wanted):
    return tuple(
        tensor.new_empty(tensor.shape if want else (0,)) for tensor, want in zip((q, k, v, w), wanted)
    )


conv_forward_call = differentiable_once(
    conv_forward_operator,
    conv_backward_operator,
    (conv_forward_checked, conv_backward_checked),
    4,
    2,
    "conv_attention",
)
