"""Numba-cuda's own tests without a GPU: a kernel is still typed and compiled to PTX by Numba, so that a test
which expects a typing error or reads PTX finds what it would on a GPU; the driver and the launches are
simulated (sim.host). `install` changes the process for good, so run it in one of its own.
"""

import importlib
from types import SimpleNamespace

from numba.cuda.core import config

from sim.host import Host, Options


def install(engine):
    """Put a simulated GPU in place; returns the list that holds the Report of every launch, or None where the
    host got an exception."""
    host = Host(Options(engine), compiled=True)
    host.install()
    return host.launches


def import_small(module):
    """Import a module of tests as it is for Numba's own simulator: with smaller problems, chosen by a flag in
    Numba's configuration."""
    config.ENABLE_CUDASIM = True
    imported = importlib.import_module(module)
    config.ENABLE_CUDASIM = False
    imported.config = SimpleNamespace(ENABLE_CUDASIM=True)
