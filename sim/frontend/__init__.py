"""The front end for kernels in Python: from a function to a syntax tree whose names, calls, accesses and
types are known.

What enters is a Python function, the kernel or a device function. What leaves depends on the engine. The
interpreter gets a copy of the function that runs on the simulator's memory (`rebind`). The compiler in
`sim.native.lower` gets the marked tree, and prints text of its own from it.

Both engines work from the same tree, so they agree on what every name means and on the type of every
expression. Read the files in this order:

    names         what a global or free name refers to: a part of numba.cuda, a device function, a dtype
    tree          the function's source as a syntax tree with few kinds of statements
    resolve       the tree with a Referent at each name and a role at each call
    ssa           the versions of each variable (static single assignment)
    types         the type of a value, and the interval that contains an integer
    intervals     the type and the interval of `a op b`
    call_types    the types of calls
    inference     the types of all expressions of a function
    loop_counts   the loops whose iterations have to be counted
    accesses      loads and stores, rewritten for the interpreter
    rewrite       everything else, rewritten for the interpreter
    rebind        the rewritten function, with the names of one launch
"""
