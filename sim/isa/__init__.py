"""The instruction set of the simulated GPU: a table with one entry per instruction. An entry has the operand
types, the participating lanes, the memory effects, and a reference implementation in Python.

The modules of this package add entries to the table when they are imported, and so does user code through the
decorators `instruction`, `function`, `memory_instruction` and `vote`. The package imports nothing else from
`sim`, except for the text helper `sim.nouns`.

All engines use this table. The interpreter calls an entry's reference implementation (its *semantics*). The
native engine compiles the semantics with Numba, unless the entry provides a faster compiled form with the
same results (`native=`). The PTX front end finds entries by their PTX names (`by_ptx`), and `registers` turns
PTX instructions that only use registers into Python expressions. `tests/sim/test_isa.py` compares every
compiled form with its semantics.

Most semantics come from NVIDIA's *PTX ISA* manual, chapter 9, "Instruction Set". Each file names the sections
implemented there. Section numbers are those of PTX ISA 8.6 to 9.2. Other versions number some sections
differently, but keep their titles. If Numba defines the types or the result instead, the file says so.

Read the files in this order:

    conversions   the Python types that represent Numba types; conversions between types
    promotion     Numba's rules for the result type of an operation
    table         the table itself
    warp_instruction   entries for warp instructions
    functions     entries for computations of a single thread
    memory        entries for memory instructions of a single thread
    barriers      entries for barriers, block-wide votes and fences

    operations, powers   Python's operators
    builtin_functions    Python's builtins for numbers
    operators     semantics of operators called only by the interpreter
    ptx_types     PTX's types of numbers
    integer_arithmetic, float_arithmetic   PTX arithmetic: add.s32, shl.b64, fma.rn.f32
    comparisons   PTX comparisons, choices and conversions: setp.lt.f32, selp, cvt
    mathematics, libdevice, half, integers   the modules imported by kernels: math, libdevice, cuda.fp16
    vectors       CUDA's vector types: float4, int2

    warp, shuffles                votes, matches and shuffles
    tensor, wmma, wgmma           matrix instructions of a warp, and of a warp group
    matrix_descriptor             the layout of a matrix in shared memory, as wgmma reads it
    copies, mbarrier, atomics     asynchronous copies, mbarriers, atomic operations
    bulk, tensor_copies, tensor_map   bulk copies and tensor copies (TMA), proxy fences

    ieee, rounding, directed, floored, bits   the numerical methods
    names, expressions, registers   PTX instructions that only use registers, as Python expressions
"""

from sim.isa import builtin_functions as _builtin_functions  # noqa: F401  imported for their table entries
from sim.isa import bulk as _bulk  # noqa: F401
from sim.isa import comparisons as _comparisons  # noqa: F401
from sim.isa import copies as _copies  # noqa: F401
from sim.isa import float_arithmetic as _float_arithmetic  # noqa: F401
from sim.isa import integer_arithmetic as _integer_arithmetic  # noqa: F401
from sim.isa import integers as _integers  # noqa: F401
from sim.isa import mbarrier as _mbarrier  # noqa: F401
from sim.isa import operations as _operations  # noqa: F401
from sim.isa import tensor as _tensor  # noqa: F401
from sim.isa import tensor_copies as _tensor_copies  # noqa: F401
from sim.isa import warp as _warp  # noqa: F401
from sim.isa import wgmma as _wgmma  # noqa: F401
from sim.isa import wmma as _wmma  # noqa: F401
from sim.isa.barriers import vote
from sim.isa.functions import LLVM, SAME, function
from sim.isa.memory import memory_instruction
from sim.isa.table import ALL, CONVERGED, GIVEN, INSTRUCTIONS, Like, Touch, by_ptx
from sim.isa.warp_instruction import instruction

__all__ = [
    "ALL", "CONVERGED", "GIVEN", "INSTRUCTIONS", "LLVM", "SAME", "Like", "Touch", "by_ptx",
    "function", "instruction", "memory_instruction", "vote",
]  # fmt: skip
