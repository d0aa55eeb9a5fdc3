"""A replacement for `numba.cuda` when Numba is not installed: the names that kernels use, and a `jit` whose
kernels run in the simulator.

If Numba is installed, `from sim import cuda` returns Numba's own `cuda`, so that the same kernels also
compile for a GPU. Type checkers read this module in both cases. It declares the types of the most common
names; any other name is Any.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

from sim import dialect
from sim.errors import LaunchError
from sim.launch import simulate
from sim.memory.atomics import Atomic

if TYPE_CHECKING:
    from sim.report import Report


class Stub:
    """A name that is only valid inside a kernel. `members` are the names in its namespace."""

    def __init__(self, name: str, members: Iterable[str] = ()) -> None:
        self.__name__, self.__module__ = name, __name__
        vars(self).update({member: Stub(member) for member in members})

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise LaunchError(
            f"cuda.{self.__name__} works only inside a kernel; launch one: simulate(kernel)[grid,"
            " block](*arguments)"
        )

    def __repr__(self) -> str:
        return f"<cuda.{self.__name__}>"


class Kernel:
    """The result of `@cuda.jit`.

    `kernel[grid, block](*arguments)` simulates a launch. `simulate(kernel)` does the same and accepts
    options.
    """

    __name__: str

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function

    def __getitem__(self, configuration: tuple[Any, ...]) -> "Callable[..., Report]":
        return simulate(self)[configuration]

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise LaunchError(
            f"{self.__name__} is called without a launch configuration: {self.__name__}[grid,"
            " block](*arguments)"
        )


@overload
def jit(function: Callable[..., Any], **options: Any) -> Kernel: ...
@overload
def jit(
    function: str | list[Any] | tuple[Any, ...] | None = None, **options: Any
) -> Callable[[Callable[..., Any]], Kernel]: ...
def jit(function: Any = None, **options: Any) -> Any:
    """Return a Kernel, or a decorator that creates one.

    Device functions (device=True) are Kernels too. Compiler options are ignored. Raise LaunchError for a
    signature, which only Numba supports.
    """
    if function is None:
        return Kernel
    if not inspect.isfunction(function):
        raise LaunchError(
            f"cuda.jit wants a function, got {function!r}; signatures need Numba: pip install numba-cuda"
        )
    return Kernel(function)


def public(owner: object) -> list[str]:
    return [name for name in vars(owner) if not name.startswith("_")]


MEMBERS: dict[str, Iterable[str]] = {
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

if TYPE_CHECKING:

    class Index:
        x: int
        y: int
        z: int

    threadIdx: Index
    blockIdx: Index
    blockDim: Index
    gridDim: Index
    laneid: int
    warpsize: int

    def syncthreads() -> None: ...
    def syncwarp(mask: int = ...) -> None: ...
    def __getattr__(name: str) -> Any: ...
