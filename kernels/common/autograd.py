"""Custom operators with gradients: opaque to torch.compile, and called without torch's dispatcher otherwise.

An operator of `torch.library` costs more than 100 µs of Python time per call, several times a small kernel's
time. So a call with ordinary tensors runs the operator's function directly, through `torch.autograd.Function`
if a gradient is needed. The operator itself is called only where something intercepts operators:
torch.compile and torch.export, dispatch modes, functorch's transforms, forward-mode differentiation, and
subclasses of Tensor.
"""

import torch
from torch.autograd import forward_ad

ORDINARY = (torch.Tensor, torch.nn.Parameter)


def operator(name, function):
    """Create the custom operator attention_course::name from a function that mutates no argument."""
    return torch.library.custom_op(f"attention_course::{name}", function, mutates_args=())


def differentiable_once(forward, backward, functions, tensors, others, name, outputs=2):
    """Register the gradient of an operator's first output with respect to its first `tensors` arguments.
    Return the function to call: it has the operator's arguments and results.

    forward: the operator (*tensors, *others, …) -> O or (O, …).
    backward: the operator (*tensors, *outputs, d_o, *others, wanted: list[bool]) -> one gradient per tensor.
        `wanted` states which gradients are needed; the operator may return empty tensors for the others.
    functions: the functions of the two operators.
    tensors, others: the numbers of tensor arguments and of other arguments.
    outputs: the number of outputs, counted from the first, to save for the backward pass.
    name: the public name, for the error message of a second derivative.
    """
    compute, differentiate = functions

    def save(ctx, inputs, output):
        results = output if isinstance(output, tuple) else (output,)
        ctx.save_for_backward(*inputs[:tensors], *results[:outputs])
        ctx.others, ctx.inputs = inputs[tensors : tensors + others], len(inputs)
        # outputs after the first, such as the log-sum-exp, have no gradient
        ctx.mark_non_differentiable(*results[1:])
        ctx.set_materialize_grads(False)

    def gradients(ctx, d_o, *_):
        if d_o is None:
            return (None,) * ctx.inputs
        wanted = list(ctx.needs_input_grad[:tensors])
        # with create_graph=True, the operator records itself, and a second derivative is refused
        recorded = type(d_o) not in ORDINARY or intercepted() or torch.is_grad_enabled()
        call = backward if recorded else differentiate
        found = call(*ctx.saved_tensors, d_o, *ctx.others, wanted)
        if not all(wanted):
            found = [gradient if want else None for gradient, want in zip(found, wanted)]
        return *found, *[None] * (ctx.inputs - tensors)

    def no_second_derivative(ctx, *_):
        raise RuntimeError(
            f"{name} can be differentiated once: its backward pass has no derivative of its own; for a second"
            f" one, use kernels.reference.{name}"
        )

    forward.register_autograd(gradients, setup_context=save)
    backward.register_autograd(no_second_derivative)

    class Direct(torch.autograd.Function):
        """The operator without torch's dispatcher."""

        @staticmethod
        def forward(ctx, *inputs):
            output = compute(*inputs)
            save(ctx, inputs, output)
            return output

        backward = staticmethod(gradients)

    # the method of the base class, without the checks of `Function.apply`, which `intercepted` has made
    apply = super(torch.autograd.Function, Direct).apply

    def call(*inputs):
        differentiable = False
        for x in inputs[:tensors]:
            if x is not None:
                if type(x) not in ORDINARY:
                    return forward(*inputs)
                differentiable = differentiable or x.requires_grad
        if intercepted():
            return forward(*inputs)
        if differentiable and torch.is_grad_enabled():
            return apply(*inputs)
        return compute(*inputs)

    return call


def intercepted():
    """Return whether a tracer such as torch.compile must intercept operator calls."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )
