"""Compiled kernels in PTX. What enters are the statements that sim.ptx writes for the interpreter. Each run
of statements without a synchronisation point becomes LLVM code, and sim.native.split.fission puts it into
loops over the threads of a block, as for kernels in Python.

Read the files in this order: launch, program, runs, evaluate, values, functions, memory.
"""
