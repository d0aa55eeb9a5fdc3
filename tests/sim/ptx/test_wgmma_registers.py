"""Tests of accesses to the registers of a product (wgmma) in PTX: reads that need no fence, and accesses that
do."""

import numpy as np
import pytest

from ptx.wgmma_corpus import HELPERS
from ptx.wgmma_kernels import Case
from sim import load_ptx, simulate
from sim.ptx.nvrtc import compile_ptx

FENCE, COMMIT = "wgmma.fence.sync.aligned;\n", "wgmma.commit_group.sync.aligned;\n"
WAIT = "wgmma.wait_group.sync.aligned 0;\n"
CASES = [Case(("s32", "s8", "s8"), 8), Case(("f16", "f16", "f16"), 8)]
# a compiler can place each of these instructions behind the fence
READS = [
    "mov.b32 %r5, %d0;\n",
    "setp.eq.b32 %p3, %d1, 0;\n",
    "{ .reg .b16 %low, %high; mov.b32 {%low, %high}, %d0; }\n",
    "add.s32 %r5, %d0, %d1;\n",
]


def kinds(case, text):
    """Return (the kinds of the findings, whether the first product is right)."""
    out = case.y.copy()
    report = simulate(load_ptx(text)["k"], on_finding="report")[1, 128](case.x, out)
    return {finding.kind for finding in report.findings}, np.array_equal(out, case.expected)


@pytest.mark.parametrize("case", CASES, ids=["s8", "f16"])
def test_a_read_between_the_fence_and_the_product_obtains_the_old_value(case):
    assert kinds(case, case.text.replace(FENCE, FENCE + "".join(READS))) == (set(), True)


def again(case):
    """Return the instruction of the product."""
    return next(line for line in case.text.splitlines(True) if line.startswith("wgmma.mma_async"))


# name -> function that plants the bug in the text of a Case
BUGS = {
    "read before the commit": lambda case: case.text.replace(COMMIT, READS[3] + COMMIT),
    "tested before the wait": lambda case: case.text.replace(WAIT, READS[1] + WAIT),
    "unpacked before the wait": lambda case: case.text.replace(WAIT, READS[2] + WAIT),
    "read after the wait, and the next product has no fence": lambda case: case.text.replace(
        WAIT, WAIT + READS[3] + again(case) + COMMIT + WAIT
    ),
    "changed after the fence": lambda case: case.text.replace(FENCE, FENCE + "add.u32 %d0, %d0, %r1;\n"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_an_access_that_needs_a_fence_or_a_wait_is_found(bug):
    for case in CASES:
        assert kinds(case, BUGS[bug](case))[0] == {"wgmma"}


# NVRTC reuses the zero of an accumulator for the scale-d of the first product. The test of scale-d, which
# reads that register, stands behind the fence.
SHARED_ZERO = r"""
__device__ void product_of_bytes(int (&d)[4], u64 a, u64 b, int scale) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;"
        " wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%0, %1, %2, %3}, %4, %5, p; }"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "l"(a), "l"(b), "r"(scale) : "memory");
}
extern "C" __global__ void k(const u16 *a, const u16 *b, int *out) {
    __shared__ __align__(1024) u16 tile_a[64 * 64], tile_b[8 * 64];
    load(tile_a, a, 64, 64, threadIdx.x, 128);
    load(tile_b, b, 8, 64, threadIdx.x, 128);
    proxy_fence();
    __syncthreads();
    int d[4] = {};
    arrive();
    for (int k = 0; k < 4; k++)
        product_of_bytes(d, swizzled(tile_a + 16 * k), swizzled(tile_b + 16 * k), k > 0);
    commit();
    wait<0>();
    int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
    for (int i = 0; i < 4; i++) out[(row + i / 2 * 8) * 8 + column + i % 2] = d[i];
}
"""


def test_scale_d_in_the_register_of_an_accumulator():
    pytest.importorskip("cuda.bindings.nvrtc")
    text, random = HELPERS + SHARED_ZERO, np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (rows, 128)).astype(np.int8) for rows in (64, 8))
    module, out = (
        load_ptx(compile_ptx(text, "k.cu", architecture="sm_90a"), source=text),
        np.zeros((64, 8), "i4"),
    )
    assert not simulate(module["k"])[1, 128](a.view(np.uint16), b.view(np.uint16), out).findings
    assert np.array_equal(out, a.astype(int) @ b.astype(int).T)
