"""Tests that Numba refreshes its contexts a few times per launch, not once per call of an intrinsic, and that
a first launch imports only the parts of Numba that it needs."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from numba import cuda, njit, types
from numba.core.registry import cpu_target
from numba.extending import overload

from sim import simulate
from sim.native.codegen.refreshes import few_refreshes


def test_a_launch_refreshes_a_few_times(monkeypatch):
    @cuda.jit
    def kernel(x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = x[i] * x[i] + x[i]

    calls = []
    context = type(cpu_target.target_context)
    load = context.load_additional_registries
    monkeypatch.setattr(context, "load_additional_registries", lambda self: calls.append(1) or load(self))
    x = np.arange(8.0)
    y = np.zeros(8)
    simulate(kernel, engine="native")[1, 8](x, y)
    assert np.array_equal(y, x * x + x)
    # Only Numba's own refreshes load the registries, for example when Numba later loads more code.
    assert len(calls) < 10


def test_functions_registered_within_the_block_are_found():
    def doubled(x):
        return 2 * x

    with few_refreshes(), few_refreshes():
        assert njit(lambda x: x + 1)(1) == 2

        @overload(doubled)
        def overloaded(x):
            if isinstance(x, types.Integer):
                return lambda x: 2 * x

        assert njit(lambda x: doubled(x))(4) == 8
    assert "refresh" not in vars(cpu_target.target_context)
    assert "refresh" not in vars(cpu_target.typing_context)


FIRST_LAUNCH = """
import inspect, sys
import numpy as np
from numba import njit
read, getsource = [], inspect.getsource
inspect.getsource = lambda value: read.append(value) or getsource(value)
import sim.native.engine
assert not read, read  # the import does not parse the runtime helpers

from example_kernels import tiled_matmul
from sim import simulate
from sim.native.codegen.linking import compiled
from sim.native.codegen.refreshes import few_refreshes, with_registries
from sim.native.split.program import NUMBA_ERRORS

a, b, c = np.ones((3, 16, 16), np.float32)
report = simulate(tiled_matmul(8), engine="native")[(2, 2), (8, 8)](a, b, c)
assert report.notes == ("compiled",) and (c == 16).all()
assert "numba.np.arraymath" not in sys.modules
if sys.argv[1] == "within a launch":
    of_kernel = compiled(lambda x: np.median(x))
    with few_refreshes():
        with_registries(lambda: of_kernel.compile("(float64[:],)"), NUMBA_ERRORS)
assert njit(lambda x: np.median(x))(np.arange(5.0)) == 2
"""


@pytest.mark.parametrize("when", ["within a launch", "afterwards"])
def test_a_first_launch_imports_and_parses_only_what_it_needs(when, tmp_path):
    """Compile a kernel, and then a function that needs parts of Numba that the kernel does not need."""
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parent)]),
    }
    command = [sys.executable, "-c", FIRST_LAUNCH, when]
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
