"""Tests of loops that threads leave before the synchronisation in their body, in compiled code."""

import ast

import numpy as np
import pytest
from numba import cuda, float32

from sim import simulate
from sim.native.split.regions import certain_assignments


@cuda.jit
def left_by_all(o, n):
    t = cuda.threadIdx.x
    total = float32(t)
    for j in range(n):
        if j > 2:
            break
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << j)
    o[t] = total


@cuda.jit
def left_by_warps(o, n):
    t = cuda.threadIdx.x
    total = float32(t)
    for j in range(n):
        if j > t // 32:
            break
        total += cuda.shfl_down_sync(0xFFFFFFFF, total, 1)
    o[t] = total


@cuda.jit
def continued(o, n):
    t = cuda.threadIdx.x
    total = float32(t)
    for j in range(n):
        if j == 1:
            continue
        total += cuda.shfl_xor_sync(0xFFFFFFFF, total, 1 << j)
    o[t] = total


@cuda.jit
def left_before_a_barrier(o, n):
    tile = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for j in range(n):
        if j > 2:
            break
        value = float32(t * j)
        tile[t] = value
        cuda.syncthreads()
        o[t] += tile[63 - t] + value
        cuda.syncthreads()


@cuda.jit
def branches_by_a_conditional_expression(o, n):
    t = cuda.threadIdx.x
    if t < 64 if n else t > 64:
        cuda.syncthreads()
    o[t] = t


def test_a_conditional_expression_as_a_test_around_a_barrier():
    report = simulate(branches_by_a_conditional_expression, engine="native")[1, 64](
        np.zeros(64, np.float32), 1
    )
    assert report.notes == ("compiled",)


@pytest.mark.parametrize("kernel", [left_by_all, left_by_warps, continued, left_before_a_barrier])
def test_a_value_that_is_not_set_before_the_exit(kernel):
    values = []
    for engine in ("fibers", "native"):
        out = np.zeros(64, np.float32)
        report = simulate(kernel, engine=engine, on_finding="report")[1, 64](out, 4)
        assert not report.findings
        values.append(out.tolist())
    assert report.notes == ("compiled",)
    assert values[0] == values[1]


def test_an_exit_that_no_path_reaches():
    assert certain_assignments(ast.parse("x = 1\nreturn\nbreak").body) == {"x"}
