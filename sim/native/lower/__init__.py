"""Lowering: translates the syntax tree of a kernel to Python statements that Numba can compile.

Read the files in this order:

    module                the generated module: its constants, arrays, device functions, sites
    function              one function, statement by statement
    name_lowering, calls  names; calls, by their role (sim.frontend.resolve)
    hoisting              synchronisation points, each of which becomes a statement of its own
    loops                 loops over arrays, and iteration limits
    definite_assignment   flags for variables that may be read before they are assigned
    liveness, written_arrays, variable_types   analyses: live variables, written arrays, Numba types
"""
