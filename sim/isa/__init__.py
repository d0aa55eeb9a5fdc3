"""What a GPU's instructions mean: the table of instructions, operators, conversions, functions of numbers,
and the types that Numba gives them. Knows nothing of the rest of sim."""

from sim.isa import arithmetic as _arithmetic  # noqa: F401  these enter theirs
from sim.isa import copies as _copies  # noqa: F401
from sim.isa import integers as _integers  # noqa: F401
from sim.isa import mbarrier as _mbarrier  # noqa: F401
from sim.isa import operations as _operations  # noqa: F401
from sim.isa import tensor as _tensor  # noqa: F401
from sim.isa import warp as _warp  # noqa: F401
from sim.isa.barriers import vote
from sim.isa.functions import LLVM, SAME, function
from sim.isa.memory import memory_instruction
from sim.isa.table import ALL, CONVERGED, GIVEN, INSTRUCTIONS, Like, Touch, by_ptx, instruction

__all__ = [
    "ALL", "CONVERGED", "GIVEN", "INSTRUCTIONS", "LLVM", "SAME", "Like", "Touch", "by_ptx",
    "function", "instruction", "memory_instruction", "vote",
]  # fmt: skip
