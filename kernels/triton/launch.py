"""Runners for Triton kernels.

CUDA tensors run on their GPU. CPU tensors run in the simulator, from PTX that Triton compiles for sm_80
without a GPU, or in Triton's own interpreter if TRITON_INTERPRET=1.

A runner is a function run(kernel, grid, *arguments, num_warps, **constants). Without Triton, the simulator
runs the PTX recorded in kernels/data/triton.zip by `python -m kernels.triton.record`.
"""

import functools
import os
import re
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kernels.common.data import not_recorded, recorded_ptx
from kernels.triton.optional import triton

HERE = Path(__file__).parent
LANES = 32


class Compiled(NamedTuple):
    """A kernel's PTX, and the shared memory of a launch in bytes."""

    ptx: str
    shared: int


def launch(kernel, grid, *arguments, run=None, num_warps=4, **constants):
    """Launch kernel[grid](*arguments, **constants) with `run`, or with the runner for the first argument's
    device.

    An empty grid is a no-op.
    """
    if 0 not in grid:
        (run or runner(arguments[0]))(kernel, grid, *arguments, num_warps=num_warps, **constants)


def runner(tensor):
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return direct if tensor.device.type == "cuda" or interpreted else simulated


def direct(kernel, grid, *arguments, **constants):
    """Run a kernel with Triton, on the GPU of the first argument or in Triton's interpreter."""
    numbers = [value.item() if isinstance(value, np.generic) else value for value in arguments]
    with torch.cuda.device(arguments[0].device) if arguments[0].is_cuda else nullcontext():
        kernel[grid](*numbers, **constants)


def simulated(kernel, grid, *arguments, num_warps, compiled=None, options=(), **constants):
    """Run a kernel in the simulator, and return its Report. Raise sim.KernelBug if it has a bug.

    compiled: the function that returns the PTX, `ptx_of` by default.
    options: a dict of options for sim.simulate.

    If several threads hold the same element of a tile, Triton lets all of them load and store it. Such
    replicated accesses (sim.observers.replicas) are not reported as races.
    """
    from sim import load_ptx, simulate
    from sim.observers import Bounds, Misuse, Uninitialized
    from sim.triton_host.session import FOR_TRITON

    tools = Bounds, FOR_TRITON, Uninitialized, Misuse

    types = tuple(type_of(argument) for argument in arguments)
    ptx, shared = (compiled or ptx_of)(kernel, types, num_warps, **constants)
    loaded = load_ptx(ptx)[kernel.__name__]
    # Triton appends pointers to scratch memory, which these kernels do not use: pass 0
    scratch = len(loaded.names) - len(arguments)  # parameters that Triton's runtime appends
    names = list(kernel.arg_names)[: len(arguments)] + ["scratch"] * scratch
    run = simulate(loaded.named(names), **{"observers": tools, **dict(options)})
    return run[grid, num_warps * LANES, 0, shared](*arguments, *[0] * scratch)


def type_of(argument):
    """Return Triton's name of an argument's type."""
    if isinstance(argument, torch.Tensor):
        return {torch.float32: "*fp32"}[argument.dtype]
    if isinstance(argument, int):
        return "i32" if abs(argument) < 2**31 else "i64"
    return "fp32"


@functools.cache
def ptx_of(kernel, types, num_warps, **constants):
    """Return the Compiled kernel for arguments of these types, compiled by Triton for sm_80 if it is
    installed, or recorded."""
    return (fresh if triton.__version__ else recorded)(kernel, types, num_warps, **constants)


def fresh(kernel, types, num_warps, **constants):
    """Compile the kernel with Triton, which needs no GPU."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature = dict(zip(kernel.arg_names, types)) | dict.fromkeys(constants, "constexpr")
    made = triton.compile(
        ASTSource(kernel, signature, constants),
        target=GPUTarget("cuda", 80, LANES),
        options={"num_warps": num_warps, "enable_fp_fusion": True},
    )
    return Compiled(
        relocate_files(Path(kernel.fn.__code__.co_filename).parent, made.asm["ptx"]), made.metadata.shared
    )


def relocate_files(folder, ptx):
    """Replace the path of each file that the PTX names by its current path, in `folder` or in this package.

    Triton caches a kernel by its source text, so cached PTX may contain the folder of another clone.
    """

    def found(match):
        places = (place / match[2] for place in (folder, HERE))
        return next((f'{match[1]}"{place}"' for place in places if place.exists()), match[0])

    return re.sub(r'(\.file\s+\d+ )"(?:[^"]*/)?([^"/]+)"', found, ptx)


def recorded(kernel, types, num_warps, **constants):
    """Return the recorded Compiled kernel. Raise LookupError, listing the recordings, if there is none."""
    first, text = recorded_text(kernel, num_warps, **constants).split("\n", 1)
    return Compiled(relocate_files(HERE, text), int(first.split()[-1]))


def recorded_text(kernel, num_warps, **constants):
    """Return the recorded text of a kernel with these constants. Raise LookupError if there is none."""
    name = record_name(kernel, num_warps, **constants)
    if name not in recorded_ptx("triton"):
        raise not_recorded(
            "triton",
            name,
            "install Triton (pip install triton, on Linux) to compile it, or use run=interpreted"
            " (kernels.triton.interpreter)",
        )
    return recorded_ptx("triton")[name]


def record_name(kernel, num_warps, **constants):
    """Return the name under which a kernel with these constants is recorded."""
    what = [f"{name}{int(value)}" for name, value in constants.items()]
    return "-".join([kernel.__name__, *what, f"warps{num_warps}"])
