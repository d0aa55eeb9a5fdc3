"""Fixtures that the simulator's tests share: a launch on each engine, and a run of the pytest plug-in."""

import os
import sys

import pytest

from sim import simulate
from sim.native.codegen import cache


@pytest.fixture(params=["fibers", "threads"])
def launch(request):
    """Return launch(kernel, grid, block, *arguments, shared=0), which runs on one engine and returns the
    report."""

    def launch(kernel, grid, block, *arguments, shared=0):
        return simulate(kernel, engine=request.param)[grid, block, 0, shared](*arguments)

    return launch


@pytest.fixture
def run(pytester, monkeypatch):
    """Return run(*options), which runs pytest with only this plug-in in a new process.

    The new process imports nothing of this project, but finds compiled code in the cache.
    """
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache.folder().parent))
    return lambda *options: pytester.runpytest_subprocess(
        "-p", "sim.pytest_plugin", "-p", "no:cacheprovider", "-W", "ignore", *options
    )
