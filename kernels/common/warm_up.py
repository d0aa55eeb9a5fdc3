"""Compile kernels ahead of their first use."""

from collections.abc import Callable
from typing import Any

import torch


def compile_for(
    function: Callable[..., Any],
    *arguments: Any,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cuda",
    backward: bool = False,
    **options: Any,
) -> None:
    """Compile the kernels that a call function(*arguments, **options) launches, and store them on disk.

    A later call with these sizes and types, in this process or in another one, compiles nothing. Example:

        rows = 1, 8, 4096, 64
        compile_for(conv_attention, rows, rows, rows, (8, 7, 7), dtype=torch.bfloat16, backward=True)

    function: a public function of this package.
    arguments: its positional arguments. A tuple of ints stands for a tensor of this shape, with `dtype` on
        `device`.
    backward: compile the backward pass, too.
    options: its keyword arguments.

    The function runs once, on zeros, so it needs the memory of a call. Errors are those of the function.
    """
    given = [
        torch.zeros(argument, dtype=dtype, device=device, requires_grad=backward)
        if is_shape(argument)
        else argument
        for argument in arguments
    ]
    with torch.set_grad_enabled(backward):
        result = function(*given, **options)
        o = result[0] if isinstance(result, tuple) else result
        if backward:
            leaves = [x for x in given if isinstance(x, torch.Tensor) and x.requires_grad]
            torch.autograd.grad(o, leaves, torch.zeros_like(o), allow_unused=True)
    if o.is_cuda:
        torch.cuda.synchronize(o.device)


def is_shape(argument):
    return isinstance(argument, tuple) and all(type(size) is int for size in argument)
