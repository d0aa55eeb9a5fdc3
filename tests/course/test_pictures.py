"""Tests of the trace data that the lessons' pictures read."""

import numpy as np
from numba import cuda

from course.pictures import moments_of
from sim import simulate
from sim.observers import DEFAULT, Trace


def two_arms(x, out, group):
    t = cuda.threadIdx.x
    number = x[t]
    if t // group % 2 == 0:
        out[t] = number
    else:
        out[t] = -number
    x[t] = 0


def lanes_by_warp(threads, group):
    """Return {warp: the lanes at each moment}."""
    x, out = np.ones((2, threads), dtype=np.float32)
    report = simulate(two_arms, observers=[*DEFAULT, Trace])[1, threads](x, out, group)
    return {warp: [lanes for *_, lanes in found] for warp, found in moments_of(report.recording).items()}


def test_a_warp_that_splits_does_the_arms_apart_and_one_that_does_not_does_one_arm_with_all_lanes():
    every, even = set(range(32)), set(range(0, 32, 2))
    assert lanes_by_warp(32, 1) == {0: [every, even, every - even, every]}
    assert lanes_by_warp(64, 32) == {0: [every] * 3, 1: [every] * 3}
