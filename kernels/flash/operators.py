"""Host side of flash attention: check the arguments once, launch a kernel, and define its gradient.

Each kernel of this package has a host function forward(q, k, v, causal, scale, window, run) -> (O, L) for
arguments that are already checked. Three functions build the public interface from it:

    checked              check the arguments and call `forward`, without gradients
    attention_operator   create a differentiable custom operator
    attend               call this operator, with the options of `scaled_dot_product_attention`
"""

import torch
from numpy import float32

from kernels.common.arguments import as_in_torch, check_attention
from kernels.common.autograd import differentiable_once, operator
from kernels.common.launch import launch, output
from kernels.flash.window import Window, checked_window
from kernels.reference import attention_backward


def checked(forward, dtypes, q, k, v, causal, scale, window, run):
    """Check the arguments of a public function, and return (O, L) = forward(…), without gradients."""
    scale, window = check_attention(q, k, v, scale, dtypes), checked_window(window)
    return forward(*(x.detach().contiguous() for x in (q, k, v)), bool(causal), scale, window, run)


def launch_rows(kernel, rows, threads, q, k, v, causal, scale, window, run):
    """Launch a kernel whose blocks own `rows` queries of one head each; return (O, L), float32.

    kernel: called with (q, k, v, scale, causal, window, o, log_sum).
    """
    batch, heads, n, _ = q.shape
    o, log_sum = output(q.shape, like=q), output(q.shape[:3], like=q)
    grid, window = (-(-n // rows), heads, batch), window.within(n, k.shape[2])
    launch(kernel, grid, threads, q, k, v, scale, causal, window, o, log_sum, run=run)
    return o, log_sum


def attend(call, dtypes, q, k, v, causal, scale, is_causal, enable_gqa, return_lse, window):
    """Check the arguments and call a function of `attention_operator`; return O or (O, L)."""
    causal, (q, k, v) = as_in_torch(causal, is_causal, enable_gqa, q, k, v)
    scale, window = check_attention(q, k, v, scale, dtypes), checked_window(window)
    o, log_sum = call(q, k, v, bool(causal), float(scale), list(window))
    return (o, log_sum) if return_lse else o


def attention_operator(name, forward):
    """Create the function (q, k, v, causal, scale, window) -> (O, L), with gradients, and its operator from
    `forward`.

    The backward pass is plain PyTorch in float32, and needs memory for the N×N matrix.
    """

    def checked_forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float, window: list[int]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q, k, v = (x.contiguous() for x in (q, k, v))
        return forward(q, k, v, causal, float32(scale), Window(*window), None)

    def checked_backward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        log_sum: torch.Tensor,
        d_o: torch.Tensor,
        causal: bool,
        scale: float,
        window: list[int],
        wanted: list[bool],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = (x.float() for x in (q, k, v, o, log_sum, d_o))
        d_q, d_k, d_v = (x.to(q.dtype) for x in attention_backward(*wide, causal, scale, window))
        return d_q, d_k, d_v

    forward_operator = operator(f"{name}_forward", checked_forward)
    backward_operator = operator(f"{name}_backward", checked_backward)

    @forward_operator.register_fake
    def shapes_forward(q, k, v, causal, scale, window):
        return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)

    @backward_operator.register_fake
    def shapes_backward(q, k, v, o, log_sum, d_o, causal, scale, window, wanted):
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    functions = checked_forward, checked_backward
    return differentiable_once(forward_operator, backward_operator, functions, 3, 3, "attention")
