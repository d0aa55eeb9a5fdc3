"""Tests that Numba refreshes its contexts a few times per launch, not once per call of an intrinsic."""

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
    # Each of the two steps, lowering and compilation, refreshes once, and so does code that is loaded later.
    assert 0 < len(calls) < 10


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
