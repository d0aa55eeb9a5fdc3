"""Native engine: compiles kernels for the CPU with Numba and LLVM.

The input is a Launch (sim.engine.base): a kernel in Python or PTX, its arguments, its grid and block shape,
and its observers. The output is an Outcome: findings, counters, notes, and the observers' results.

A kernel describes the work of one thread. The engine splits its code at the synchronisation points (barriers,
shuffles, votes) into *regions*, and wraps each region in a loop over the threads of a block. Compilers call
this transformation loop fission. The result is a sequential program that runs one block after another on one
CPU core.

Compiled code checks every memory access against shadow memory, but it can only set error flags. If a flag is
set, the interpreter runs the affected blocks again and produces the findings. The interpreter also runs every
kernel that cannot be compiled; for these kernels, lowering raises `CannotLower`.

Read the files and folders in this order:

    engine        choose between compiled and interpreted execution for each launch
    lower/        translate a kernel's syntax tree into Python statements for one thread
    split/        split the statements into regions, and compile them for given argument types
    codegen/      runtime library of the regions: arrays, checks, barriers, instructions, and the disk cache
    run/          run one launch: allocate memory, run blocks, replay the access log, explain errors
    ptx/          compile PTX kernels, starting from the statements that sim.ptx generates
"""

from sim.native.split.specialize import source

__all__ = ["source"]
