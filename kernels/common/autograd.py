"""Gradients through the kernels: operators that autograd knows and torch.compile leaves whole."""

import torch

from kernels.reference import attention_backward


def differentiable_once(forward, backward, tensors, others, name, outputs=2):
    """Let gradients of an operator's first output reach its first arguments.

    forward: the operator (*tensors, *others, …) -> O or (O, …). backward: the operator (*tensors, *outputs,
        d_o, *others, wanted: list[bool]) -> a gradient for each of the tensors, of which those that are not
        wanted may be empty.
    tensors, others, outputs: how many there are of each. A second derivative is an error that tells of
        `name`.
    """

    def save(ctx, inputs, output):
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:tensors], *results[:outputs])
        ctx.others, ctx.inputs = inputs[tensors : tensors + others], len(inputs)
        ctx.mark_non_differentiable(*results[1:])

    def gradients(ctx, d_o, *_):
        wanted = list(ctx.needs_input_grad[:tensors])
        found = backward(*ctx.saved_tensors, d_o, *ctx.others, wanted)
        reached = (gradient if want else None for gradient, want in zip(found, wanted))
        return *reached, *[None] * (ctx.inputs - tensors)

    def no_second_derivative(ctx, *_):
        raise RuntimeError(
            f"{name} can be differentiated once: its backward pass has no derivative of its own; for a second"
            f" one, use kernels.reference.{name}"
        )

    forward.register_autograd(gradients, setup_context=save)
    backward.register_autograd(no_second_derivative)


def attention_operator(name, kernel):
    """The operator (q, k, v, causal, scale) -> (O, L) of a host function kernel(q, k, v, causal, scale), with
    gradients. The backward pass is plain PyTorch, in float32, and makes the N×N matrix."""

    @torch.library.custom_op(f"attention_course::{name}_forward", mutates_args=())
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return kernel(q, k, v, causal, scale)

    @torch.library.custom_op(f"attention_course::{name}_backward", mutates_args=())
    def backward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        o: torch.Tensor,
        log_sum: torch.Tensor,
        d_o: torch.Tensor,
        causal: bool,
        scale: float,
        wanted: list[bool],
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = (x.float() for x in (q, k, v, o, log_sum, d_o))
        d_q, d_k, d_v = (x.to(q.dtype) for x in attention_backward(*wide, causal, scale))
        return d_q, d_k, d_v

    @forward.register_fake
    def shapes_forward(q, k, v, causal, scale):
        return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)

    @backward.register_fake
    def shapes_backward(q, k, v, o, log_sum, d_o, causal, scale, wanted):
        return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)

    differentiable_once(forward, backward, 3, 2, "attention")
    return forward
