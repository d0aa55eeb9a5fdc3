"""The scheduler: runs the threads of a launch, one at a time, and opens their barriers.

A CUDA thread is a Python coroutine. It suspends itself where a GPU thread would wait: at a barrier, at a warp
operation and, if threads spin on memory, at atomics. The scheduler resumes the threads of a block in an order
determined by a seeded schedule. When no thread can run, it opens a barrier, completes a warp operation, or
reports why the threads wait for each other.

The input is a Launch, and the output is an Outcome (both in `base`). The front ends (`sim.interpreted`,
`sim.ptx.module`) create a Grid for a kernel and run it.

Read the files in this order:

    base            Launch, Outcome, and the protocol of an engine
    grid            Thread, Block, Grid: the loop over the blocks of a launch
    scheduler       the loop over the threads of a block
    schedules       the orders in which threads and blocks run
    barrier         votes and findings at block-wide barriers; barrier_places has the advice about a barrier
                    that some threads miss
    named_barrier   PTX's sixteen barriers for subsets of a block
    warp            warp operations: shuffles, votes, matrix products
    lane_masks      the masks that lanes pass to one call of a warp operation
    equal_operands  operands that must be equal in all lanes of a warp
    mbarrier        the finding for a wait on an mbarrier that never completes
    fiber, generator, os_thread   three kinds of coroutines
    watchdog        interrupts a thread that neither ends nor waits
    collector       pauses Python's garbage collector
"""
