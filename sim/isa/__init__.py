"""The definition of every instruction of the simulated GPU: its types, its lanes, the memory that it touches,
and its semantics as a plain Python function.

The package imports nothing else of `sim`. Its modules enter their instructions into one table when they are
imported. The engines take the entries out: the interpreter calls the function, the native engine compiles it,
and PTX instructions are looked up by their names.

Read the files in this order:

    conversions   how the type of a Python value represents a Numba type; conversions between types
    promotion     Numba's rules for the type of an operation's result
    table         the table itself, and entries for instructions of a warp
    functions     entries for what one thread computes from numbers
    memory        entries for what one thread does with memory
    barriers      entries for barriers, votes of a block, and fences
    operations    Python's operators and builtins
    operators     semantics of operators that only the interpreter calls
    arithmetic    PTX's arithmetic: add.s32, shl.b64, setp.lt.f32, cvt
    warp, shuffles, tensor, wmma, copies, mbarrier, atomics, vectors   one family of instructions each
    mathematics, libdevice, half, integers                       the modules that kernels import
    ieee, rounding, directed, floored, bits                      the numerical methods behind them
    names, registers                                             PTX instructions on registers, as Python text
"""

from sim.isa import arithmetic as _arithmetic  # noqa: F401  these enter theirs
from sim.isa import copies as _copies  # noqa: F401
from sim.isa import integers as _integers  # noqa: F401
from sim.isa import mbarrier as _mbarrier  # noqa: F401
from sim.isa import operations as _operations  # noqa: F401
from sim.isa import tensor as _tensor  # noqa: F401
from sim.isa import warp as _warp  # noqa: F401
from sim.isa import wmma as _wmma  # noqa: F401
from sim.isa.barriers import vote
from sim.isa.functions import LLVM, SAME, function
from sim.isa.memory import memory_instruction
from sim.isa.table import ALL, CONVERGED, GIVEN, INSTRUCTIONS, Like, Touch, by_ptx, instruction

__all__ = [
    "ALL", "CONVERGED", "GIVEN", "INSTRUCTIONS", "LLVM", "SAME", "Like", "Touch", "by_ptx",
    "function", "instruction", "memory_instruction", "vote",
]  # fmt: skip
