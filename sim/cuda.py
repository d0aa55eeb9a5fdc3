"""`cuda` where Numba is not installed: names for kernels to be written with, and `jit`, whose kernels run in
the simulator.

`from sim import cuda` gives Numba's own `cuda` where there is one, so that the same kernels compile for a GPU
there. For a type checker this module is both: it has the types of what every kernel uses, and any other name
of Numba's is Any.
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
    """A name that only means something inside a kernel; `members` are the names in it."""

    def __init__(self, name: str, members: Iterable[str] = ()) -> None:
        self.__name__, self.__module__ = name, __name__
        vars(self).update({member: Stub(member) for member in members})

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        raise LaunchError(
            f"cuda.{self.__name__} works inside a kernel only; launch one: simulate(kernel)[grid,"
            " block](*arguments)"
        )

    def __repr__(self) -> str:
        return f"<cuda.{self.__name__}>"


class Kernel:
    """What `@cuda.jit` makes of a function: `kernel[grid, block](*arguments)` simulates a launch; so does
    `simulate(kernel)`, with options."""

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
    """`@cuda.jit`, also with device=True. Options for compiling are ignored; signatures need Numba."""
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
