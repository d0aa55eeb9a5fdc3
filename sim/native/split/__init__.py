"""The split of one thread's statements at its synchronisation points, and the compilation of the result.

Read the files in this order:

    specialize      the programs of a kernel, one for each tuple of argument types
    program         the text of a kernel's file, and what a launch passes to it
    fission         the split into regions, with loops over threads
    rematerialize   variables that a region computes again, so that they need no spill buffer
"""
