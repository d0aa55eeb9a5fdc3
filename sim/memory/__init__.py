"""The memory of a launch: its address space, the arrays that kernels use, and the checks on every access.

The inputs are the launch's arguments and the kernel's declarations. The outputs are Arrays, whose accesses
are checked and logged. The access log has one integer per access, which encodes site, size and address.
Observers detect races and other faults from it.

Read the files in this order:

    argument    classify the arguments of a launch
    spaces      the simulated address space, and the allocation of arguments in it
    array       the Array class: views of an allocation, and the general access path
    indices     the kinds of index that an Array accepts
    record      one element of an array of records
    accessors   the fast path for single elements
    declared    arrays that a kernel declares or captures: shared, local, constant
    methods     array methods that read or write all elements, such as sum
    views       array attributes and methods that return a view, such as transpose
    atomics     the functions of cuda.atomic
    transfer    byte-level memory for instructions: vector accesses, asynchronous copies, mbarriers
"""
