"""Loop fission: splits the statements of one thread at its synchronisation points, and compiles the regions
in between.

Read the files in this order:

    specialize      the cache of a kernel's programs, one for each tuple of argument types
    program         the Python file generated for a kernel, and the calling convention of a launch
    fission         the regions, and the loops over threads in which they run
    rematerialize   the variables that a region can recompute, so that they are not spilled
"""
