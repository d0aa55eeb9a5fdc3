"""Registration of gradients for custom operators, which torch.compile treats as opaque."""


def differentiable_once(forward, backward, tensors, others, name, outputs=2):
    """Register the gradient of an operator's first output with respect to its first `tensors` arguments.

    forward: the operator (*tensors, *others, …) -> O or (O, …).
    backward: the operator (*tensors, *outputs, d_o, *others, wanted: list[bool]) -> one gradient per tensor.
        `wanted` states which gradients are needed; the operator may return empty tensors for the others.
    tensors, others: the numbers of tensor arguments and of other arguments.
    outputs: the number of outputs, counted from the first, to save for the backward pass.
    name: the public name, for the error message of a second derivative.
    """

    def save(ctx, inputs, output):
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:tensors], *results[:outputs])
        ctx.others, ctx.inputs = inputs[tensors : tensors + others], len(inputs)
        # outputs after the first, such as the log-sum-exp, have no gradient
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
