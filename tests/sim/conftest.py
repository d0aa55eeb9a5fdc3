"""Fixtures that the tests of kernels share: a launch on each engine, and a run of the plug-in for pytest."""

import os
import sys

import pytest

from sim import simulate
from sim.native.codegen import cache


@pytest.fixture(params=["fibers", "threads"])
def launch(request):
    """launch(kernel, grid, block, *arguments, shared=0) on one engine; returns the report."""

    def launch(kernel, grid, block, *arguments, shared=0):
        return simulate(kernel, engine=request.param)[grid, block, 0, shared](*arguments)

    return launch


@pytest.fixture
def run(pytester, monkeypatch):
    """run(*options): pytest with this plug-in alone in a new process, where nothing of ours was imported
    before; what was compiled before is found."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(cache.folder().parent))
    return lambda *options: pytester.runpytest_subprocess(
        "-p", "sim.pytest_plugin", "-p", "no:cacheprovider", "-W", "ignore", *options
    )
