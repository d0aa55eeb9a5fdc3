"""Runtime library of generated code, and its compilation by Numba and LLVM.

Read the files in this order:

    launch_state, symbols             state of a launch; names that generated code may use
    int64, int64_translation          int64 helpers, and their translation to LLVM
    linking, cache                    Numba's compiler passes, disk cache
    scalars, half_operators, vectors  types of values
    arrays, elements, subscripts, array_attributes, atomics   arrays, and accesses to their elements
    shadow, access_log                checks of an access, and its entry in the access log
    isa_functions, lanes              instructions of sim.isa, for one thread and for a warp
    thread_index, synchronization     current thread; barriers, divergence, loop limits
    direct                            translation of a PTX kernel's generated code without Numba
"""
