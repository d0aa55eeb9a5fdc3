"""What the tests of kernels share: a launch on each engine."""

import pytest

from sim import simulate


@pytest.fixture(params=["fibers", "threads"])
def launch(request):
    """launch(kernel, grid, block, *arguments, shared=0) on one engine; returns the report."""

    def launch(kernel, grid, block, *arguments, shared=0):
        return simulate(kernel, engine=request.param)[grid, block, 0, shared](*arguments)

    return launch
