"""The namespace `cuda` inside an interpreted kernel.

Each name forwards to the engine (barriers, warps), to memory (arrays, atomics) or to the instruction table
(sim.isa).
"""

import sys
from types import SimpleNamespace

import numpy as np

from sim.engine import warp, warpgroup
from sim.engine.grid import call_chain, iteration_counts
from sim.engine.register_pool import change_registers
from sim.engine.scheduler import BARRIER, GRID, Dim3
from sim.frontend.names import as_dtype
from sim.isa import barriers, integers, mathematics
from sim.isa import warp as warps
from sim.isa.barriers import Barrier
from sim.isa.functions import Function
from sim.isa.memory import MemoryInstruction
from sim.isa.register_counts import RegisterChange
from sim.isa.table import GIVEN
from sim.isa.vectors import VECTORS
from sim.isa.wgmma import Product
from sim.memory.atomics import Atomic
from sim.memory.transfer import OfArrays

# instructions that kernels call by their names in numba.cuda
OF_NUMBA = [*warps.OF_NUMBA, *barriers.OF_NUMBA, *integers.ENTRIES.values()]


class ArrayDeclaration:
    """The namespace `cuda.shared` or `cuda.local`, with its function `array`.

    declare: maps (shape, dtype, frame, alignment) to the array for a call to `array` in this frame.
    find: returns the array for a call that was made before, or None.
    maker: for local memory, maps (site, shape, dtype) to a function that creates the array. Rewritten code
        calls it.
    """

    def __init__(self, declare, find=lambda shape, frame: None, maker=None):
        self.declare, self.find, self.maker = declare, find, maker

    def array(self, shape, dtype, alignment=None):
        frame = sys._getframe(1)
        found = self.find(shape, frame)
        return self.declare(shape, as_dtype(dtype), frame, alignment) if found is None else found


class Cuda:
    """The namespace `cuda` for one launch."""

    warpsize = 32
    libdevice = mathematics.libdevice
    fp16 = integers.fp16
    # A captured array is already in constant memory.
    const = SimpleNamespace(array_like=lambda ndarray: ndarray)

    def __init__(self, scheduler, declarations, grid, block):
        self.scheduler, self.context = scheduler, scheduler.context
        self.threadIdx, self.blockIdx = scheduler.thread_index, scheduler.block_index
        self.blockDim, self.gridDim = Dim3(*block), Dim3(*grid)
        self.sizes = tuple(n * m for n, m in zip(grid, block))  # the number of threads along each axis
        self.shared = ArrayDeclaration(declarations.shared, declarations.known_shared)
        self.local = ArrayDeclaration(declarations.local, maker=declarations.local_maker)
        self.atomic = Atomic(scheduler)
        self.syncthreads = syncthreads_function(self.context, declarations)
        all_blocks = SimpleNamespace(sync=lambda: wait_for_others(scheduler, GRID, sys._getframe(1)))
        self.this_grid = lambda: all_blocks
        self.cg = SimpleNamespace(this_grid=self.this_grid)
        for operation in OF_NUMBA:
            setattr(self, operation.name, self.instruction(operation))

    @property
    def laneid(self):
        return self.context.thread.lane

    def grid(self, ndim):
        """Return the thread's position in the grid: an integer for one dimension, a tuple for two or
        three."""
        block, size, thread = self.blockIdx, self.blockDim, self.threadIdx
        if ndim == 1:
            return block.x * size.x + thread.x
        return tuple(b * n + t for b, n, t in zip(block, size, thread))[:ndim]

    def gridsize(self, ndim):
        return self.sizes[0] if ndim == 1 else self.sizes[:ndim]

    # --- instructions ---------------------------------------------------------------------------------------

    def instruction(self, operation):
        """Return the function that a kernel calls for an instruction."""
        if isinstance(operation, MemoryInstruction):
            return memory_function(self.scheduler, operation)
        if isinstance(operation, Product):
            return product_function(self.scheduler, operation)
        if isinstance(operation, RegisterChange):
            return register_function(self.scheduler, operation)
        if isinstance(operation, Barrier):
            return block_function(self.scheduler, operation)
        return operation.call if isinstance(operation, Function) else warp_function(self.scheduler, operation)

    def lanemask_lt(self):
        return np.uint32((1 << self.laneid) - 1)


def wait_for_others(scheduler, waits, frame, payload=None):
    """Suspend the current thread until the other threads of its block, or of the grid, arrive. Return the
    barrier's result."""
    context = scheduler.context
    context.thread.calls = call_chain(frame)
    if context.counts_iterations:
        context.thread.iterations = iteration_counts(frame)
    return scheduler.wait(waits, frame, payload)


def syncthreads_function(context, declarations):
    """Return `cuda.syncthreads`. It is a closure because it is called so often that a method's indirections
    would be noticeable."""

    def syncthreads():
        thread = context.thread
        thread.waits, thread.payload = BARRIER, None
        thread.frame = frame = sys._getframe(1)
        thread.calls = () if frame.f_code is declarations.kernel_code else call_chain(frame)
        if context.counts_iterations:
            thread.iterations = iteration_counts(frame)
        thread.fiber.suspend()

    return syncthreads


def warp_function(scheduler, operation):
    """Return the function that a kernel calls for a warp-wide instruction."""
    memory, count = OfArrays(scheduler, operation.name), len(operation.parameters)
    takes_mask = int(operation.mask == GIVEN)

    def call(*arguments, **named):
        if len(arguments) != count:
            arguments = operation.in_order(arguments or (() if named else operation.default), named)
        if operation.fetch:  # operands in memory, such as the rows for ldmatrix
            memory.frame = sys._getframe(1)
            arguments = operation.fetch(memory, *arguments)
        if operation.put:  # each lane stores its results, such as the rows of stmatrix
            tile, index, *operands = arguments
            results = warp.arrive(scheduler, operation, sys._getframe(1), *operation.converted(operands))
            memory.frame = sys._getframe(1)
            return operation.put(memory, tile, index, *results)
        # Convert the operands here, so that an error names the calling thread.
        operands = operation.converted(arguments[takes_mask:])
        return warp.arrive(scheduler, operation, sys._getframe(1), *arguments[:takes_mask], *operands)

    return call


def product_function(scheduler, operation):
    """Return the function that a kernel calls for a product of a warp group."""
    memory = OfArrays(scheduler, operation.name)
    multiply = warpgroup.call_of_python(scheduler, memory, operation)

    def call(*arguments, **named):
        memory.frame = sys._getframe(1)
        return multiply(memory.frame, *arguments, **named)

    return call


def register_function(scheduler, operation):
    """Return the function that a kernel calls for a setmaxnreg of its warp group."""

    def call():
        frame = sys._getframe(1)
        change_registers(scheduler, operation, frame, scheduler.context.sites.of_frame(frame, "call"))

    return call


def block_function(scheduler, operation):
    """Return the function that a kernel calls for a barrier with a value from each thread, such as
    syncthreads_count."""

    def call(*arguments, **named):
        payload = operation, *operation.in_order(arguments, named)
        return wait_for_others(scheduler, BARRIER, sys._getframe(1), payload)

    return call


def memory_function(scheduler, operation):
    """Return the function that a kernel calls for an instruction that accesses memory."""
    memory = OfArrays(scheduler, operation.name)

    def call(*arguments, **named):
        memory.frame = sys._getframe(1)
        return operation.semantics(memory, *arguments, **named)

    return call


for _name, _vector in VECTORS.items():
    setattr(Cuda, _name, _vector)
# Cache hints have no effect in the simulator.
for _name in ("ldca", "ldcg", "ldcs", "ldlu", "ldcv"):
    setattr(Cuda, _name, staticmethod(lambda array, index: array[index]))
for _name in ("stcg", "stcs", "stwb", "stwt"):
    setattr(Cuda, _name, staticmethod(lambda array, index, value: array.__setitem__(index, value)))
