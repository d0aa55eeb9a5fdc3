"""The memory of a launch: its address space, the arrays used by kernels, and the checks of every access.

The inputs are the launch's arguments and the kernel's declarations. The outputs are Arrays, whose
accesses are checked and logged. The access log has one integer per access, which encodes the site, the size
and the address. Observers detect races and other faults from the log.

Read the files in this order:

    argument    the classification of a launch's arguments
    spaces      the simulated address space, and the allocation of arguments in it
    array       the class Array: views of an allocation, and the general path of an access
    indices     the kinds of index accepted by an Array
    record      one element of an array of records
    accessors   the fast path for single elements
    declared    the arrays that a kernel declares or captures: shared, local, constant
    methods     array methods that read or write all elements, such as sum
    views       array attributes and methods that return a view, such as transpose
    atomics     the functions of cuda.atomic
    transfer    byte-level memory for instructions: vector accesses, asynchronous copies, mbarriers
"""
