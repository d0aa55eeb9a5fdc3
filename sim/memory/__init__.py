"""The memory of a launch: its address space, the arrays that kernels hold, and the checks of every access.

What enters are the launch's arguments and the kernel's declarations. What leaves are Arrays, whose accesses
are checked and logged. The log, one integer for each access, is what observers judge.

Read the files in this order:

    argument    an argument of a launch, classified once
    spaces      the simulated address space, and the binding of arguments to it
    array       the Array that a kernel holds: views of an allocation, the general access
    indices     the forms of an index that a kernel may give to an array
    record      one element of an array of records
    accessors   the fast access to one element
    declared    arrays that a kernel declares or captures: shared, local, constant
    methods     array methods that visit all elements, such as sum
    atomics     atomics on an element
    transfer    memory as an instruction of sim.isa sees it: blocks of bytes, asynchronous copies, mbarriers
"""
