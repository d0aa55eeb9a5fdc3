"""The functions that lowered text calls, and the way in which Numba compiles them.

Read the files in this order:

    launch_state, symbols             the state of a launch; the names that lowered text may use
    int64, linking, cache             the translator for int64 helpers, Numba's compiler, the cache on disk
    scalars, half_operators, vectors  the types of values
    arrays, elements, array_attributes, atomics   arrays, and each access to their elements
    shadow, access_log                the checks of an access, and its entry in the log
    isa_functions, lanes              instructions of sim.isa, for one thread and for a warp
    thread_index, synchronization     the running thread; barriers and loops that count their iterations
"""
