"""The front end for Python kernels, which turns source text into an annotated and typed syntax tree.

The input is a Python function: the kernel or a device function that it calls. The interpreter and the
compiler use the same tree, so they agree on the meaning of every name and on the type of every expression:

- The interpreter runs a rewritten copy of the function, in which loads, stores and some operators are calls
  to the simulator (`rebind`).
- The compiler (`sim.native.lower`) reads the annotated tree and generates its own code.

Read the files in this order:

    names         look up global and free names: a member of numba.cuda, a device function, a dtype
    tree          parse the source and reduce it to a few kinds of statements
    resolve       annotate each name with a Referent and each call with a role
    ssa           number the versions of each variable (static single assignment)
    types         Numba's types, with a value interval for each integer
    intervals     result type and interval of `a op b`
    call_types    result types of calls
    inference     infer the types of all expressions in a function
    loop_counts   find the loops whose iterations must be counted
    accesses      rewrite loads and stores for the interpreter
    rewrite       rewrite everything else for the interpreter
    rebind        bind the rewritten function to one launch
    outline       nesting of loops and branches in source text, for the advice in messages
"""
