"""The native engine: kernels in Python and in PTX, compiled for the CPU by Numba.

What enters is a Launch. What leaves is an Outcome: findings, counters, notes and the log's results. A
kernel's code is written for one thread, so the engine splits it at its synchronisation points (loop fission)
and puts each piece, a region, into a loop over the threads of a block. Compiled code detects errors and does
not explain them. It sets error flags, and the interpreter runs the affected blocks again to explain them. The
interpreter also runs each kernel that the compiler declines (`CannotLower`).

Read the files and folders in this order:

    engine        the choice for each launch: compiled, or interpreted
    lower/        a kernel's syntax tree becomes statements of one thread, in names that compiled code has
    split/        the statements become regions with loops over threads, compiled for given types
    codegen/      the functions that the text calls: arrays, checks, barriers, instructions; Numba's compiler
    run/          one launch: memory, blocks, the access log, and the explanation of errors
    ptx/          the same for kernels in PTX: LLVM code from the statements that sim.ptx writes
"""

from sim.native.split.specialize import source

__all__ = ["source"]
