"""numba.cuda without a GPU: Numba's own host interface stays, arrays, streams and events included; below it
stands a driver of ours, and launches are simulated.

`Host().install()` puts it in place in this process and `.uninstall()` takes it away again, so that a real GPU
can be used before and after. It needs numba-cuda.
"""

from numba.cuda.core import config

if config.ENABLE_CUDASIM:
    raise RuntimeError(
        "NUMBA_ENABLE_CUDASIM is set, so numba.cuda is Numba's own simulator in this process; unset it"
    )

from sim.host.launches import OUTCOMES, Host, Options

__all__ = ["OUTCOMES", "Host", "Options"]
