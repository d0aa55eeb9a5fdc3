"""Runtime library of the generated code, and its compilation with Numba and LLVM.

Read the files in this order:

    launch_state, symbols             the state of a launch; the names available to generated code
    int64, int64_translation          int64 helpers, and their translation to LLVM
    linking, cache                    Numba's compiler passes; the disk cache
    scalars, half_operators, vectors  the types of values
    arrays, elements, subscripts, array_attributes, atomics   arrays, and accesses to their elements
    local_arrays                      the local arrays of threads, and poison
    shadow, access_log                the checks of an access, and its entry in the access log
    isa_functions, lanes              the instructions of sim.isa, for one thread and for a warp
    thread_index, synchronization     the current thread; barriers, divergence, iteration limits
    direct                            translation of a PTX kernel's generated code, bypassing Numba
"""
