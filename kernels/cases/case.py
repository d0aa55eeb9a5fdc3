"""The Case class: a host function of the package, its test data, its reference, and the memory that it
declares."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch


@dataclass(frozen=True)
class Case:
    """A host function, the kernels that it launches, and the data to test them.

    A size is a dictionary of keyword arguments for `inputs`, `shared` and `spills`. `shared` and `spills`
    return one entry per launch, in launch order.
    """

    name: str
    inputs: Callable  # (generator, **size) -> tensors on the CPU
    call: Callable  # (*tensors, run=None) -> tuple of outputs
    reference: Callable  # (*tensors, floats as float64) -> tuple of correct outputs
    tolerance: str  # one of TOLERANCES
    sizes: tuple[dict, ...]  # small sizes, which every engine runs
    # one size for each kernel variant that the host code can choose; if empty, `sizes` is used
    compiled: tuple[dict, ...] = ()
    counter_size: dict | None = None  # the size at which counters of the simulator and the GPU are compared
    shared: Callable = lambda **size: (0,)  # (**size) -> bytes of static shared memory
    # (**size) -> for each launch, whether a local array is in local memory rather than in registers
    spills: Callable = lambda **size: (False,)
    # (*tensors) -> the first outputs, computed by the previous stage of the course
    previous: Callable | None = None
    oldest: tuple = (7, 5)  # minimum compute capability

    def tensors(self, size, seed=0, device="cpu"):
        return [tensor.to(device) for tensor in self.inputs(torch.Generator().manual_seed(seed), **size)]

    def launches(self, size):
        """Return the launches of the host function, each as a Launch, without running them."""
        seen = []
        self.call(*self.tensors(size), run=lambda *launched: seen.append(Launch(*launched[:3], launched[3:])))
        return seen


class Launch(NamedTuple):
    kernel: Callable
    grid: object
    block: object
    arguments: tuple
