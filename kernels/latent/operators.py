"""Latent attention as custom operators for autograd and torch.compile."""

import functools

import torch
from numpy import float32

from kernels.common.arguments import HALVES, in_autocasts_type
from kernels.common.autograd import differentiable_once, operator
from kernels.common.graphs import replayed
from kernels.latent.arguments import check_before, latent_arguments
from kernels.latent.backward import latent_backward
from kernels.latent.forward import forward
from kernels.latent.tensor_backward import latent_tensor_backward

# maximum number of elements of Q for which the backward pass is recorded as a CUDA graph; with more, it takes
# longer on the GPU than in Python
MOST_REPLAYED = 2**22


def latent_attention(
    q: torch.Tensor,
    k_latent: torch.Tensor,
    v_latent: torch.Tensor,
    w_q: torch.Tensor,
    w_v: torch.Tensor,
    alpha: float | torch.Tensor = 0.0,
    window: int = 0,
    causal: bool = True,
    scale: float | None = None,
    q_before: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute latent attention with a reciprocal term; return O (B, H, N, d), like q.

    All heads share the latent keys and values. No N×N_k matrix, latent query or projected value is stored in
    global memory, forward or backward:

        S[i, j] = scale · (q̃_i·k̃_j + alpha · [0 <= p - j < window] · q̃_j·k̃_p), -inf where masked
        O       = softmax(S) ṽ W_v          with q̃ = q W_q, and p = N_k - N + i the position of query i

    q: (B, H, N, d), the queries of the last N of N_k tokens, float32, bfloat16 or float16, not empty, d from
        1 to 128.
    k_latent, v_latent: (B, N_k, L), L from 1 to 128. Like w_q and w_v, they have the dtype and device of q.
    w_q: (H, d, L).
    w_v: (H, L, d).
    alpha: the weight of the reciprocal term, a number or a tensor with one element. A tensor receives a
        gradient.
    window: the number of latest keys, including the query's own, that the reciprocal term covers.
    causal: query i sees the keys j <= p.
    scale: 1/sqrt(L) by default.
    q_before: (B, H, P, d), the queries of the P tokens before q. A key has no reciprocal term if its token's
        query is in neither q nor q_before.

    Non-contiguous tensors are copied. CPU tensors are simulated, and CUDA tensors run on their GPU. 16-bit
    tensors use tensor cores with float32 accumulators in both passes (`kernels.latent.tensor_forward`,
    `kernels.latent.tensor_backward`), which requires a GPU of compute capability 8.0 or newer. Their backward
    pass stores q W_q and dO W_vᵀ in global memory.

    The function is differentiable once, with respect to q, q_before, k_latent, v_latent, w_q, w_v and alpha.
    Gradients are summed over blocks in no fixed order, unless torch.use_deterministic_algorithms is on. Under
    torch.compile this is one opaque operator. Under torch.autocast it computes in autocast's dtype. Raise
    TypeError or ValueError for an invalid argument; the message states the actual and the expected value.
    """
    q, k_latent, v_latent, w_q, w_v, q_before = in_autocasts_type(q, k_latent, v_latent, w_q, w_v, q_before)
    *_, weight, window, scale = latent_arguments(q, k_latent, v_latent, w_q, w_v, alpha, window, scale)
    shared, n = (k_latent, v_latent, w_q, w_v), q.shape[2]
    if q_before is not None:
        q = torch.cat([check_before(q_before, q, k_latent), q], 2)
    if not isinstance(alpha, torch.Tensor):
        window = window if alpha else 0
    else:
        weight = alpha.reshape(1).float()  # with its gradient
    return latent_forward_call(q, *shared, weight, window, bool(causal), float(scale), n)[0]


def latent_forward_checked(
    q: torch.Tensor,
    k_latent: torch.Tensor,
    v_latent: torch.Tensor,
    w_q: torch.Tensor,
    w_v: torch.Tensor,
    alpha: torch.Tensor,
    window: int,
    causal: bool,
    scale: float,
    n: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (O, L) as `latent_forward` does, for arguments that are already checked."""
    q, k_latent, v_latent, w_q, w_v = (x.contiguous() for x in (q, k_latent, v_latent, w_q, w_v))
    return forward(q, k_latent, v_latent, w_q, w_v, alpha, window, causal, float32(scale), n)


latent_forward_operator = operator("latent_forward", latent_forward_checked)


@latent_forward_operator.register_fake
def shapes_forward(q, k_latent, v_latent, w_q, w_v, alpha, window, causal, scale, n):
    batch, heads, _, d = q.shape
    return q.new_empty(batch, heads, n, d), q.new_empty(batch, heads, n, dtype=torch.float32)


def latent_backward_checked(
    q: torch.Tensor,
    k_latent: torch.Tensor,
    v_latent: torch.Tensor,
    w_q: torch.Tensor,
    w_v: torch.Tensor,
    alpha: torch.Tensor,
    o: torch.Tensor,
    log_sum: torch.Tensor,
    d_o: torch.Tensor,
    window: int,
    causal: bool,
    scale: float,
    wanted: list[bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (dQ, dK̃, dṼ, dW_q, dW_v, dα) as `latent_backward` does.

    Gradients that are not needed are returned as empty tensors.
    """
    tensors = tuple(x.contiguous() for x in (q, k_latent, v_latent, w_q, w_v, alpha, o, log_sum, d_o))
    options = window, causal, scale, tuple(wanted)
    compute = functools.partial(gradients_of, options)
    if q.numel() > MOST_REPLAYED:
        found = compute(*tensors)
    else:
        found = replayed((latent_backward_checked, options), compute, tensors)
    return tuple(found)


def gradients_of(options, *tensors):
    """Return the results of `latent_backward_checked`."""
    deterministic = torch.are_deterministic_algorithms_enabled()
    window, causal, scale, wanted = options
    *inputs, alpha, o, log_sum, d_o = tensors
    if o.dtype in HALVES and not deterministic:
        with torch.autocast(o.device.type, enabled=False):
            terms = alpha, window, causal, float32(scale), wanted
            gradients = latent_tensor_backward(*inputs, o, log_sum, d_o, *terms)
    else:
        terms_and_options = alpha, window, causal, scale, wanted, deterministic
        gradients = latent_backward(*inputs, o, log_sum, d_o, *terms_and_options)
    return [
        like.new_empty(0) if gradient is None else gradient.to(like.dtype)
        for gradient, like in zip(gradients, tensors)
    ]


latent_backward_operator = operator("latent_backward", latent_backward_checked)


@latent_backward_operator.register_fake
def shapes_backward(q, k_latent, v_latent, w_q, w_v, alpha, o, log_sum, d_o, window, causal, scale, wanted):
    tensors = q, k_latent, v_latent, w_q, w_v, alpha
    return tuple(tensor.new_empty(tensor.shape if want else (0,)) for tensor, want in zip(tensors, wanted))


latent_forward_call = differentiable_once(
    latent_forward_operator,
    latent_backward_operator,
    (latent_forward_checked, latent_backward_checked),
    6,
    3,
    "latent_attention",
)
