"""Tests of compiled device functions that return a number or None, which must behave as on fibers."""

import numpy as np
import pytest
from numba import cuda, int64

from sim import ThreadError, simulate


@cuda.jit(device=True)
def bin_of(x, bins):
    if x < 0:
        return None
    return int(x * bins)


@cuda.jit
def histogram(x, out):
    i = cuda.grid(1)
    if i < x.size:
        b = bin_of(x[i], out.size)
        if b >= 0 and b < out.size:
            cuda.atomic.add(out, b, 1)


@cuda.jit
def guarded(x, out):
    i = cuda.grid(1)
    if i < x.size:
        b = bin_of(x[i], out.size)
        if b is not None:
            cuda.atomic.max(out, b, b + 1)


@cuda.jit
def operand(x, out):
    i = cuda.grid(1)
    cuda.atomic.add(out, i % out.size, bin_of(x[i], out.size))


@cuda.jit
def instructions(x, out):
    i = cuda.grid(1)
    b = bin_of(x[i], out.size)
    out[i % out.size] = cuda.popc(b) + min(b, 3) + b % 3 + (b << 2) + max(1, b) - b // 2


@cuda.jit
def stored(x, out):
    i = cuda.grid(1)
    mine = cuda.local.array(1, int64)
    mine[0] = bin_of(x[i], out.size)
    b = bin_of(x[i] / 2, out.size)
    out[i % out.size] = mine[0] + b


@pytest.mark.parametrize(
    "kernel", [histogram, guarded, operand, instructions, stored], ids=lambda k: k.__name__
)
@pytest.mark.parametrize("lowest", [0.0, -0.5], ids=["numbers", "also None"])
def test_a_result_that_may_be_none(kernel, lowest):
    def launched(engine):
        out = np.zeros(32, np.int64)
        try:
            report = simulate(kernel, engine=engine)[1, 32](
                np.linspace(lowest, 0.99, 32, dtype=np.float32), out
            )
        except ThreadError as error:
            return str(error)
        assert report.notes == (() if engine == "fibers" else ("compiled",))
        return out.tolist()

    assert launched("native") == launched("fibers")
