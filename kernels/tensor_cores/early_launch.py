"""Instructions with which a kernel overlaps the end of the kernel before it (programmatic dependent launch).

    start_next_kernel          allow the next kernel to start, once all blocks have executed this instruction
    wait_for_previous_kernel   wait until the kernel before has ended, and its results are visible

The next kernel must be launched with `launch(…, early=True)`. Before its wait, it may only read data that no
kernel between it and the last kernel without `early` has written, and it must not write to global memory.
Each block executes the wait before `start_next_kernel`, so that at most two kernels of a sequence overlap.

For GPUs of compute capability below 9.0, which lack these instructions, they compile to nothing. The
simulator runs one launch at a time, so it does not find a missing wait.

Source: PTX ISA 9.7.14.13, griddepcontrol.
"""

from llvmlite import ir
from numba.cuda.extending import intrinsic
from numpy import int32

from kernels.common.numba_parts import ConfigStack, types
from kernels.tensor_cores.instructions import I32, assembled
from sim.isa import function

OLDEST = (9, 0)


def of_grids(name, text):
    """Create an intrinsic without operands that the compiler must not reorder, for GPUs that have it.

    It returns 0, because the simulator compiles only functions with a result.
    """

    @intrinsic
    def executed(typing):
        def code(context, builder, signature, arguments):
            # the simulator compiles without a target
            capability = getattr(ConfigStack.top_or_none(), "compute_capability", None)
            if capability and tuple(capability)[:2] >= OLDEST:
                assembled(builder, text, [], [], effect=True)
            return ir.Constant(I32, 0)

        return types.int32(), code

    @function(name=name, replaces=executed, source="PTX ISA griddepcontrol")
    def semantics() -> int32:
        return 0

    return executed


wait_for_previous_kernel = of_grids("wait_for_previous_kernel", "griddepcontrol.wait;")
start_next_kernel = of_grids("start_next_kernel", "griddepcontrol.launch_dependents;")
