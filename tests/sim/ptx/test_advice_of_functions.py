"""Tests of findings in device functions, unions and C++ libraries: their lines and their terms."""

import re

import numpy as np
import pytest
from numba import cuda, float32

from sim import simulate

TEXT = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
union Both { float f[64]; int i[64]; };
__device__ __noinline__ float neighbour(const float *s, int t) {
    return s[(t + 1) % 64];
}
__device__ __forceinline__ void put(float *s, int i, float v) {
    s[i] = v;
}
__device__ __forceinline__ void put_twice(float *s, int i, float v) {
    put(s, i, v);
}
extern "C" __global__ void kernel(const float *x, float *y) {
    __shared__ float s[64];
    __shared__ Both u;
    int t = threadIdx.x;
    BODY
}
"""
FIRST = TEXT[: TEXT.index("BODY")].count("\n") + 1  # the line of the first line of the body
# name -> (the lines of the body, the fix with lines counted from the body, texts of the message)
CASES = {
    "a loop without a barrier": (
        ["for (int i = 0; i < 3; i++) {", "s[t] = i;", "y[t] += neighbour(s, t);", "}"],
        "between lines 2 and 3, and one more after line 3 and before the loop returns to line 2, where",
        [],
    ),
    "a barrier at the beginning of the loop": (
        ["for (int i = 0; i < 3; i++) {", "__syncthreads();", "s[t] = i;", "y[t] += neighbour(s, t);", "}"],
        "__syncthreads() between lines 3 and 4, where",
        [],
    ),
    "a barrier between the two": (
        ["for (int i = 0; i < 3; i++) {", "s[t] = i;", "__syncthreads();", "y[t] += neighbour(s, t);", "}"],
        "one more __syncthreads(), after line 4 and before the loop returns to line 2, where",
        [],
    ),
    "after the loop": (
        ["for (int i = 0; i < 3; i++) {", "__syncthreads();", "s[t] = i;", "}", "y[t] = neighbour(s, t);"],
        "__syncthreads() between lines 3 and 5, where",
        [],
    ),
    "an inlined function": (
        ["put(s, t, x[t]);", "y[t] = s[63 - t];"],
        "__syncthreads() between lines 1 and 2, where",
        ["called from line 1\n"],
    ),
    "an inlined function of an inlined function": (
        ["put_twice(s, t, x[t]);", "y[t] = s[63 - t];"],
        "__syncthreads() between lines 1 and 2, where",
        ["called from line -5, from line 1\n"],
    ),
    "two calls": (
        ["put(s, t, 1);", "put(s, 63 - t, x[t]);", "y[t] = s[t];"],
        "",
        ["called from line 1 and from line 2\n"],
    ),
    "a union": (
        ["u.i[t] = x[t];", "y[t] = u.f[63 - t];"],
        "__syncthreads() between the two lines, where",
        [],
    ),
}


def launched(text, tmp_path, engine="fibers"):
    pytest.importorskip("cuda.bindings.nvrtc")
    from sim.ptx.nvrtc import load_cuda

    source = tmp_path / "k.cu"
    source.write_text(text)
    launch = simulate(load_cuda(source)["kernel"], engine=engine, on_finding="report")
    return launch[1, 64](np.ones(64, np.float32), np.zeros(64, np.float32)).findings


def absolute(text):
    """Return a text in which line numbers are counted from the file's first line, not from the body's."""
    return re.sub(r"(line|lines|and) (-?\d+)", lambda m: f"{m[1]} {int(m[2]) + FIRST - 1}", text)


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("name", CASES)
def test_the_lines_of_a_fix(name, engine, tmp_path):
    body, fix, texts = CASES[name]
    finding, *_ = launched(TEXT.replace("BODY", "\n".join(body)), tmp_path, engine)
    assert finding.kind == "race-shared"
    assert absolute(fix) in finding.fix and "overlap" not in finding.fix
    assert all(absolute(text) in finding.message for text in texts)


@cuda.jit(device=True)
def neighbour(s, t):
    return s[(t + 1) % 64]


@cuda.jit
def barrier_at_the_beginning(x, y):
    s = cuda.shared.array(64, float32)
    t = cuda.threadIdx.x
    for i in range(3):
        cuda.syncthreads()
        s[t] = x[t] + i
        y[t] += neighbour(s, t)


@pytest.mark.parametrize("engine", ["fibers", "threads", "native", "auto"])
def test_the_lines_of_a_fix_in_python(engine):
    launch = simulate(barrier_at_the_beginning, engine=engine, on_finding="report")
    (finding,) = launch[1, 64](np.ones(64, np.float32), np.zeros(64, np.float32)).findings
    assert finding.fix.startswith("cuda.syncthreads() between lines 6 and 7, where")


LIBRARY = """#include <cooperative_groups/memcpy_async.h>
#include <cuda/atomic>
namespace cg = cooperative_groups;
extern "C" __global__ void kernel(const float *x, float *y) {
    __shared__ float s[64];
    auto block = cg::this_thread_block();
    cg::memcpy_async(block, s, x, sizeof(s));
    y[threadIdx.x] = s[threadIdx.x];
    INLINE
    cg::wait(block);
}
"""


@pytest.mark.parametrize(
    "inline, term",
    [("", "(cooperative_groups::wait of its group)"), ('asm("");', "(cp.async.wait_group)")],
    ids=["library", "with PTX"],
)
def test_a_library_has_its_own_terms(inline, term, tmp_path):
    (finding,) = launched(LIBRARY.replace("INLINE", inline), tmp_path)
    assert finding.kind == "async-copy" and f"wait for it {term}" in finding.fix


def test_each_term_of_a_library_replaces_one_of_ptx():
    from sim.observers.words import OF_LIBRARIES, in_library_terms

    for name, terms in OF_LIBRARIES.items():
        for old, new in terms.items():
            assert in_library_terms(f"{old}.", f"use {name}") == f"{new}."
            assert in_library_terms(f"{old}.", "__global__") == f"{old}."
