"""Host side of flash attention: check the arguments once, launch a kernel, and define its gradient.

Each kernel of this package has a host function forward(q, k, v, causal, scale, window, run) -> (O, L) for
arguments that are already checked. Three functions build the public interface from it:

    checked              check the arguments and call `forward`, without gradients
    attention_operator   create a differentiable custom operator
    attend               call this operator, with the options of `scaled_dot_product_attention`
"""

import functools

import torch
from numpy import float32

from kernels.common.arguments import as_in_torch, check_attention
from kernels.common.autograd import differentiable_once, operator
from kernels.common.graphs import replayed
from kernels.common.launch import launch, output
from kernels.conv.backward import backward as conv_backward
from kernels.conv.forward import forward as conv_forward
from kernels.flash.window import EVERYTHING, Window, checked_window
from kernels.reference import attention_backward

# maximum number of scores for which the backward pass in PyTorch is recorded as a CUDA graph; with more, it
# takes longer on the GPU than in Python
MOST_REPLAYED = 2**22
# maximum number of float32 scores for which PyTorch, which stores them, is faster than the kernels
MOST_STORED = 2**24
# for at most this number of 16-bit queries, PyTorch is as fast as the kernels, and more accurate: the kernels
# round scores to 16 bits
FEW = 64


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

    The backward pass is that of `conv_attention` with a single tap of 1 if `fits_single_tap`, except for few
    scores. Otherwise it is plain PyTorch in float32, and needs memory for the N×N matrix.
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
        tensors = [x.contiguous() for x in (q, k, v, o, log_sum, d_o)]
        scores = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
        few_queries = MOST_REPLAYED if q.shape[2] <= FEW else 0
        few = scores <= (MOST_STORED if q.dtype == torch.float32 else few_queries)
        if not few and fits_single_tap(q, k, window):
            return single_tap_backward(*tensors, causal, scale, wanted)
        options = causal, scale, tuple(window), tuple(wanted)
        compute = functools.partial(plain_backward, options)
        if scores > MOST_REPLAYED:
            return tuple(compute(*tensors))
        return tuple(replayed((plain_backward, options), compute, tensors))

    forward_operator = operator(f"{name}_forward", checked_forward)
    backward_operator = operator(f"{name}_backward", checked_backward)

    @forward_operator.register_fake
    def shapes_forward(q, k, v, causal, scale, window):
        return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)

    @backward_operator.register_fake
    def shapes_backward(q, k, v, o, log_sum, d_o, causal, scale, window, wanted):
        return tuple(x.new_empty(x.shape if want else (0,)) for x, want in zip((q, k, v), wanted))

    functions = checked_forward, checked_backward
    return differentiable_once(forward_operator, backward_operator, functions, 3, 3, "attention")


def fits_single_tap(q, k, window):
    """Return whether `conv_attention` with a single tap computes this attention, and q is on a GPU."""
    return q.is_cuda and tuple(window) == EVERYTHING and q.shape == k.shape and q.numel() > 0


def single_tap_forward(q, k, v, causal, scale):
    """Return (O, L) by the kernels of `conv_attention`, whose convolution has a single tap of 1."""
    return conv_forward(q, k, v, single_tap(q.shape[1], q.dtype, q.device), causal, scale)


def single_tap_backward(q, k, v, o, log_sum, d_o, causal, scale, wanted, run=None):
    """Return (dQ, dK, dV) by the kernels of `conv_attention`, whose convolution has a single tap of 1.

    Gradients that are not wanted are returned as empty tensors.
    """
    w = single_tap(q.shape[1], q.dtype, q.device)
    numbers = causal, float32(scale), (*wanted[:3], False), False
    found = conv_backward(q, k, v, w, o, log_sum, d_o, *numbers, run)
    return tuple(q.new_empty(0) if x is None else x for x in found[:3])


def plain_backward(options, *tensors):
    """Return [dQ, dK, dV] in plain PyTorch, in the dtype of q. Gradients that are not wanted are empty.

    tensors: q, k, v, o, log_sum and d_o.
    options: (causal, scale, window, wanted).
    """
    q, wanted = tensors[0], options[-1]
    gradients = attention_backward(*(x.float() for x in tensors), *options[:-1])
    return [x.to(q.dtype) if want else q.new_empty(0) for x, want in zip(gradients, wanted)]


@functools.cache
def single_tap(heads, dtype, device):
    """Return taps (H, 1, 1) with which a convolution leaves the scores unchanged."""
    return torch.ones((heads, 1, 1), dtype=dtype, device=device)
