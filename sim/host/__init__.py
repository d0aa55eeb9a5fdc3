"""The host side of numba.cuda without a GPU. It requires numba-cuda.

Numba's host API, with arrays, streams and events, stays in place. Only the CUDA driver that it calls is
replaced, and kernel launches are simulated. `Host().install()` does this in the current process and
`.uninstall()` undoes it, so a real GPU can be used before and after.

Read the files in this order:

    memory       device memory, which is host memory
    page_locked  asynchronous copies from and to page-locked memory
    early_reads  poison of such copies in the variables of a failed test
    used_memory  the memory that a launch uses
    streams      the order of operations, races between streams, accesses that do not wait
    driver       functions of the CUDA driver
    launches     Host: replacements inside Numba, and the simulation of each launch
"""

from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    raise RuntimeError(
        "NUMBA_ENABLE_CUDASIM is set, so numba.cuda is Numba's own simulator in this process; unset it"
    )

from sim.host.launches import Host

__all__ = ["Host"]
