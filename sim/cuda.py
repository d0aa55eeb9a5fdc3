"""`cuda` where Numba is not installed: names for kernels to be written with, and `jit`, whose kernels run in
the simulator.

`from sim import cuda` gives Numba's own `cuda` where there is one, so that the same kernels compile for a GPU
there.
"""

import functools
import inspect

from sim import dialect
from sim.errors import LaunchError
from sim.launch import simulate
from sim.memory.atomics import Atomic


class Stub:
    """A name that only means something inside a kernel; `members` are the names in it."""

    def __init__(self, name, members=()):
        self.__name__, self.__module__ = name, __name__
        vars(self).update({member: Stub(member) for member in members})

    def __call__(self, *arguments, **options):
        raise LaunchError(
            f"cuda.{self.__name__} works inside a kernel only; launch one: simulate(kernel)[grid,"
            " block](*arguments)"
        )

    def __repr__(self):
        return f"<cuda.{self.__name__}>"


class Kernel:
    """What `@cuda.jit` makes of a function: `kernel[grid, block](*arguments)` simulates a launch; so does
    `simulate(kernel)`, with options."""

    def __init__(self, function):
        functools.update_wrapper(self, function)
        self.py_func = function

    def __getitem__(self, configuration):
        return simulate(self)[configuration]

    def __call__(self, *arguments, **options):
        raise LaunchError(
            f"{self.__name__} is called without a launch configuration: {self.__name__}[grid,"
            " block](*arguments)"
        )


def jit(function=None, **options):
    """`@cuda.jit`, also with device=True. Options for compiling are ignored; signatures need Numba."""
    if function is None:
        return Kernel
    if not inspect.isfunction(function):
        raise LaunchError(
            f"cuda.jit wants a function, got {function!r}; signatures need Numba: pip install numba-cuda"
        )
    return Kernel(function)


def public(owner):
    return [name for name in vars(owner) if not name.startswith("_")]


MEMBERS = {
    "shared": ["array"],
    "local": ["array"],
    "const": ["array_like"],
    "atomic": public(Atomic),
    "cg": ["this_grid"],
    "fp16": public(dialect.Cuda.fp16),
    "libdevice": public(dialect.Cuda.libdevice),
    **dict.fromkeys(("threadIdx", "blockIdx", "blockDim", "gridDim"), "xyz"),
}
INSTRUCTIONS_OF_CUDA = ["syncthreads", *(entry.name for entry in dialect.OF_NUMBA)]
globals().update(
    {
        name: Stub(name, MEMBERS.get(name, ()))
        for name in [*public(dialect.Cuda), *MEMBERS, *INSTRUCTIONS_OF_CUDA]
    }
)
