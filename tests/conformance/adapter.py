"""Adapter that runs numba-cuda's own tests without a GPU.

Numba still types kernels and compiles them to PTX, so tests that expect a typing error or read PTX work as on
a GPU. Only the driver and the launches are simulated (sim.host). `install` changes the process permanently,
so use a separate process.
"""

import importlib
from types import SimpleNamespace

from numba.cuda.core import config

from sim.host import Host
from sim.sessions import Options


def install(engine):
    """Replace the GPU with a simulated GPU, and return a list to which every launch appends its Report.

    A launch that raised an exception appends None.
    """
    host = Host(Options(engine), compiled=True)
    host.install()
    return host.launches


def import_small(module):
    """Import a test module with the smaller problem sizes that Numba uses for its own simulator.

    A flag in Numba's configuration selects them.
    """
    config.ENABLE_CUDASIM = True
    imported = importlib.import_module(module)
    config.ENABLE_CUDASIM = False
    imported.config = SimpleNamespace(ENABLE_CUDASIM=True)
