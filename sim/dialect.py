"""What a kernel sees as `cuda`: each name forwards to the engine, the memory or the table."""

import sys
from types import SimpleNamespace

import numpy as np

from sim.engine import warp
from sim.engine.grid import call_chain, iteration_counts
from sim.engine.scheduler import BARRIER, GRID, Dim3
from sim.frontend.names import as_dtype
from sim.isa import barriers, integers, mathematics
from sim.isa import warp as warps
from sim.isa.barriers import Barrier
from sim.isa.functions import Function
from sim.isa.memory import MemoryInstruction
from sim.isa.vectors import VECTORS
from sim.memory.atomics import Atomic
from sim.memory.transfer import OfArrays

# entries under their names in numba.cuda
OF_NUMBA = [*warps.OF_NUMBA, *barriers.OF_NUMBA, *integers.ENTRIES.values()]


class Declaration:
    """`cuda.shared` or `cuda.local`: a name with an `array` in it; `maker` of those of one place."""

    def __init__(self, declare, maker=None):
        self.declare, self.maker = declare, maker

    def array(self, shape, dtype, alignment=None):
        return self.declare(shape, as_dtype(dtype), sys._getframe(1), alignment)


class Cuda:
    """The namespace `cuda` of one launch."""

    warpsize = 32
    libdevice = mathematics.libdevice
    fp16 = integers.fp16
    const = SimpleNamespace(array_like=lambda ndarray: ndarray)  # what is captured is constant memory already

    def __init__(self, scheduler, declarations, grid, block):
        self.scheduler, self.context = scheduler, scheduler.context
        self.threadIdx, self.blockIdx = scheduler.thread_index, scheduler.block_index
        self.blockDim, self.gridDim = Dim3(*block), Dim3(*grid)
        self.shared = Declaration(declarations.shared)
        self.local = Declaration(declarations.local, declarations.local_maker)
        self.atomic = Atomic(scheduler)
        self.syncthreads = plain_barrier(self.context, declarations)
        all_blocks = SimpleNamespace(sync=lambda: meet(scheduler, GRID, sys._getframe(1)))
        self.this_grid = lambda: all_blocks
        self.cg = SimpleNamespace(this_grid=self.this_grid)
        for operation in OF_NUMBA:
            setattr(self, operation.name, self.instruction(operation))

    @property
    def laneid(self):
        return self.context.thread.lane

    def grid(self, ndim):
        """The thread's position in the whole grid: a number for 1, a tuple for 2 and 3."""
        block, size, thread = self.blockIdx, self.blockDim, self.threadIdx
        if ndim == 1:
            return block.x * size.x + thread.x
        return tuple(b * n + t for b, n, t in zip(block, size, thread))[:ndim]

    def gridsize(self, ndim):
        size = [n * m for n, m in zip(self.gridDim, self.blockDim)]
        return size[0] if ndim == 1 else tuple(size[:ndim])

    # --- waiting --------------------------------------------------------------------------------------------

    def instruction(self, operation):
        """What a kernel calls for an entry of the table."""
        if isinstance(operation, MemoryInstruction):
            return of_memory(self.scheduler, operation)
        if isinstance(operation, Barrier):
            return of_block(self.scheduler, operation)
        return operation.call if isinstance(operation, Function) else warp_wide(self.scheduler, operation)

    def lanemask_lt(self):
        return np.uint32((1 << self.laneid) - 1)


def meet(scheduler, waits, frame, payload=None):
    """The running thread waits for the others of its block, or for all."""
    context = scheduler.context
    context.thread.calls = call_chain(frame)
    if context.counts_iterations:
        context.thread.iterations = iteration_counts(frame)
    return scheduler.wait(waits, frame, payload)


def plain_barrier(context, declarations):
    """`cuda.syncthreads`, as a closure: kernels call it so often that a method's detours would show."""

    def syncthreads():
        thread = context.thread
        thread.waits, thread.payload = BARRIER, None
        thread.frame = frame = sys._getframe(1)
        thread.calls = () if frame.f_code is declarations.kernel_code else call_chain(frame)
        if context.counts_iterations:
            thread.iterations = iteration_counts(frame)
        thread.fiber.suspend()

    return syncthreads


def warp_wide(scheduler, operation):
    """What a kernel calls for an instruction of warps."""
    memory, count = OfArrays(scheduler, operation.name), len(operation.parameters)

    def call(*arguments, **named):
        if len(arguments) != count:
            arguments = operation.in_order(arguments or (() if named else operation.default), named)
        if operation.fetch:
            memory.frame = sys._getframe(1)
            arguments = operation.fetch(memory, *arguments)
        return warp.arrive(scheduler, operation, arguments, sys._getframe(1))

    return call


def of_block(scheduler, operation):
    """What a kernel calls for a barrier at which threads bring numbers."""

    def call(*arguments, **named):
        payload = operation, *operation.in_order(arguments, named)
        return meet(scheduler, BARRIER, sys._getframe(1), payload)

    return call


def of_memory(scheduler, operation):
    """What a kernel calls for an instruction that moves memory."""
    memory = OfArrays(scheduler, operation.name)

    def call(*arguments, **named):
        memory.frame = sys._getframe(1)
        return operation.meaning(memory, *arguments, **named)

    return call


for _name, _vector in VECTORS.items():
    setattr(Cuda, _name, _vector)
for _name in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"):
    setattr(Cuda, _name, staticmethod(lambda array, index: array[index]))
for _name in ("stcg", "stcs", "stwb", "stwt"):
    setattr(Cuda, _name, staticmethod(lambda array, index, value: array.__setitem__(index, value)))
