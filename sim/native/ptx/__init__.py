"""Compilation of PTX kernels.

The input is a launch of a PTX kernel. The output is an Outcome, as in sim.native.

sim.ptx translates PTX to Python statements for the interpreter. Compilation starts from the same statements.
A sequence of statements without a jump or synchronisation point is called a *run*, and compiled to one LLVM
function. The remaining statements are Python. As for Python kernels, sim.native.split.fission splits them and
wraps them in loops over threads.

Read the files in this order:

    launch      one launch: its memory layout and arguments
    program     the lowering of a kernel, and the grouping of its statements into runs
    runs        the compilation of one run
    evaluate    symbolic execution of a run's statements, which emits LLVM code
    values      the values in this execution: integers with known bounds, floats, predicates
    arithmetic  the operators on these values
    functions   LLVM code for floating-point instructions and builtins
    memory      the table of memory regions, address translation, and checks
"""
