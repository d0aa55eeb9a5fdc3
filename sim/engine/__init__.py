"""The scheduler: it runs the threads of a launch, one at a time, and opens their barriers.

A kernel's thread is a piece of Python that can be suspended and resumed. It suspends itself where a GPU's
thread would wait: at a barrier, at a warp operation, and, if threads spin on memory, at atomics. The
scheduler resumes the threads of a block in an order that a seeded schedule determines. Where nothing can run,
it opens a barrier, completes a warp operation, or reports why the threads wait for each other.

A Launch enters, an Outcome leaves (`base`). The front ends (`sim.interpreted`, `sim.ptx.module`) make a Grid
of a kernel, and run it.

Read the files in this order:

    base            Launch, Outcome, and the protocol of an engine
    grid            Thread, Block, Grid: the loop over the blocks of a launch
    scheduler       the loop over the threads of a block
    schedules       the orders in which threads and blocks run
    barrier         votes and findings at barriers of a whole block
    named_barrier   PTX's sixteen barriers for some threads of a block
    warp            warp operations: shuffles, votes, matrix products
    fiber, generator, os_thread   three ways to suspend and resume a thread
    watchdog        interrupts a thread that neither ends nor waits
    collector       pauses Python's garbage collector
"""
