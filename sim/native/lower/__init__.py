"""Lowering: translates a kernel's syntax tree to Python statements that Numba can compile.

Read the files in this order:

    module                the generated module: constants, arrays, device functions, sites
    function              one function, statement by statement
    name_lowering, calls  names, and calls by their role (sim.frontend.resolve)
    hoisting              move each synchronisation point into a statement of its own
    loops                 loops over arrays, and iteration limits
    definite_assignment   flags for variables that may be read before they are assigned
    liveness, written_arrays, variable_types   analyses: live variables, written arrays, Numba types
"""
