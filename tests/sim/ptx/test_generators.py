"""Tests of kernels from PTX whose threads are generators, because they wait only in the kernel's own
frame."""

import numpy as np
import pytest

from sim import load_ptx, simulate
from sim.engine.fiber import Fiber
from sim.engine.generator import GeneratorFiber
from sim.ptx.generators import as_generator
from sim.ptx.nvrtc import compile_ptx

SUMS = r"""
#include <cooperative_groups.h>
FUNCTION float warp_sum(float v) {
    for (int d = 16; d; d /= 2) v += __shfl_down_sync(0xffffffff, v, d);
    return v;
}
extern "C" __global__ void k(const float *x, float *parts, float *out) {
    __shared__ float sums[2];
    unsigned t = threadIdx.x;
    float v = warp_sum(x[blockIdx.x * 64 + t]);
    if (t % 32 == 0) sums[t / 32] = v;
    __syncthreads();
    if (t == 0) parts[blockIdx.x] = sums[0] + sums[1];
    cooperative_groups::this_grid().sync();
    if (t == 0) out[blockIdx.x] = parts[0] + parts[1];
    POLL
}
"""
POLL = "while (atomicAdd((unsigned *)parts + 2, 0) != 0);"


@pytest.mark.parametrize(
    "function, poll, fiber",
    [
        ("__device__ __forceinline__", "", GeneratorFiber),
        ("__device__ __noinline__", "", Fiber),  # only the kernel's own frame can yield
        ("__device__ __forceinline__", POLL, Fiber),  # a thread that polls also yields at atomics
    ],
)
def test_threads_are_generators_where_the_kernel_waits_in_its_own_frame(function, poll, fiber, monkeypatch):
    begun = set()
    for kind in (Fiber, GeneratorFiber):
        begin = kind.begin
        monkeypatch.setattr(
            kind, "begin", lambda self, *rest, begin=begin: begun.add(type(self)) or begin(self, *rest)
        )
    ptx = compile_ptx(SUMS.replace("FUNCTION", function).replace("POLL", poll), "sums.cu")
    x, parts, out = np.arange(128, dtype=np.float32), np.zeros(3, np.float32), np.zeros(2, np.float32)
    observers = {"observers": ()} if poll else {}  # no reruns
    report = simulate(load_ptx(ptx)["k"], **observers)[2, 64](x, parts, out)
    assert begun == {fiber} and not report.findings
    assert out.tolist() == [x.sum()] * 2


def test_a_call_becomes_an_expression_that_yields():
    text = "a = (wait_1(f(b), (c + 1) * 2) ^ 1) - 1\nwait_10()\nwait_2()\n"
    assert as_generator(text, ["wait_1", "wait_2"]) == (
        "a = ((wait_1_join(f(b), (c + 1) * 2) and (yield), thread.result)[1] ^ 1) - 1\n"
        "wait_10()\n"
        "(wait_2_join() and (yield), thread.result)[1]\n"
    )
