"""The host side of numba.cuda without a GPU.

Numba's own host interface stays in place, arrays, streams and events included. Only the CUDA driver below it
is replaced, and launches are simulated. `Host().install()` does this in the present process, and
`.uninstall()` undoes it, so that a real GPU can be used before and after. It needs numba-cuda.

Read the files in this order:

    driver      the functions of the CUDA driver, with host memory as device memory
    launches    Host: the replacements in Numba, and the simulation of each launch
    pages       the HTML pages of --cuda-sim-report
"""

from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    raise RuntimeError(
        "NUMBA_ENABLE_CUDASIM is set, so numba.cuda is Numba's own simulator in this process; unset it"
    )

from sim.host.launches import OUTCOMES, Host, Options

__all__ = ["OUTCOMES", "Host", "Options"]
