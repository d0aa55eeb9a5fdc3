"""The one torch.autograd.Function: attention computed by a forward kernel, with gradients."""

import torch
from torch.autograd.function import once_differentiable

from kernels.reference import attention_backward


class Attention(torch.autograd.Function):
    """(O, L) of a forward kernel. The backward pass is still plain PyTorch and makes the N×N matrix; the
    forward pass makes none."""

    @staticmethod
    def forward(context, kernel, q, k, v, causal, scale, run):
        o, log_sum = kernel(q, k, v, causal, scale, run)
        context.save_for_backward(q, k, v, o, log_sum)
        context.causal, context.scale = causal, scale
        context.mark_non_differentiable(log_sum)
        return o, log_sum

    @staticmethod
    @once_differentiable
    def backward(context, d_o, _):
        gradients = attention_backward(*context.saved_tensors, d_o, context.causal, context.scale)
        return None, *gradients, None, None, None


def differentiable(kernel, q, k, v, causal, scale, run):
    """`kernel(q, k, v, causal, scale, run) -> (O, L)`, with an O through which gradients reach q, k and v."""
    return Attention.apply(kernel, q, k, v, causal, scale, run)
