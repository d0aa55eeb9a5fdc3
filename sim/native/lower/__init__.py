"""The translation of a kernel's syntax tree to Python text that Numba compiles.

Read the files in this order:

    module                the parts of the text: constants, arrays, device functions, sites
    function              one function, statement by statement
    name_lowering, calls  names; calls by their roles
    hoisting              one statement for each synchronisation point
    loops                 loops over arrays, and loops that count their iterations
    definite_assignment   flags for variables that some path leaves unassigned
    liveness, written_arrays, variable_types   analyses: live variables, written arrays, Numba's types
"""
