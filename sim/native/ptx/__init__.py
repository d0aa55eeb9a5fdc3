"""Compilation of PTX kernels.

sim.ptx translates PTX to Python statements for the interpreter. Lowering here starts from these statements.
Each sequence of statements without a jump or synchronisation point, called a *run*, is compiled to one LLVM
function. The rest is Python, which sim.native.split.fission splits and wraps in loops over threads, as for
Python kernels.

Read the files in this order:

    launch      one launch: memory layout and arguments
    program     lowering of a kernel, and grouping of its statements into runs
    runs        compilation of one run
    evaluate    symbolic execution of a run's statements, which emits LLVM code
    values      values during this execution: integers with known bounds, floats, predicates
    arithmetic  operators on these values
    functions   LLVM code for floating-point instructions and builtins
    memory      table of memory regions, address translation, and checks
"""
