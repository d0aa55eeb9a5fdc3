"""Loop fission: splits the statements of one thread at its synchronisation points, and compiles the regions
in between.

Read the files in this order:

    specialize      the cache of a kernel's programs, one for each tuple of argument types
    program         the Python file generated for a kernel, and the calling convention of a launch
    fission         the loops over threads in which the regions run, and the control flow around them
    regions         the functions of the regions, which load and store spilled variables
    rematerialize   the variables that a region can recompute, so that they are not spilled
"""
