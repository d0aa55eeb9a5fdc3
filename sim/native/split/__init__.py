"""Loop fission: split one thread's statements at synchronisation points, and compile the resulting regions.

Read the files in this order:

    specialize      cache of a kernel's programs, one for each tuple of argument types
    program         generate the Python file of a kernel, and define the calling convention of a launch
    fission         split statements into regions, and wrap them in loops over threads
    rematerialize   find variables that a region can recompute instead of spilling
"""
