"""Advice about races of CUDA C++ kernels: the patterns are those of the corpus, in the words of C++, and what
the advice says, written into the text, removes the race."""

import numpy as np
import pytest

from sim import simulate

VIEWS = """
extern "C" __global__ void kernel(const float *x, float *out) {
    extern __shared__ char memory[];
    float *values = (float *)memory;
    int *places = (int *)(memory + 16);
    int t = threadIdx.x;
    values[t] = x[t];
    places[7 - t] = t;
    __syncthreads();
    out[t] = 10 * values[t] + places[t];
}
"""
ARMS = """
extern "C" __global__ void kernel(const float *x, float *out) {
    __shared__ float half[32];
    int t = threadIdx.x;
    if (t < 32) {
        half[t] = x[t];
    } else {
        out[t] = half[t - 32];
    }
}
"""
STATEMENT = """
extern "C" __global__ void kernel(float *x, float *out) {
    int t = threadIdx.x;
    x[t] = x[t + 1];
}
"""
SWAP = """
extern "C" __global__ void kernel(const float *x, float *out) {
    int *best = (int *)out;
    int old = *best;
    while (true) {
        int seen = old;
        old = atomicCAS(best, seen, max(seen, (int)x[threadIdx.x]));
        if (old == seen) break;
    }
}
"""
HISTOGRAM = """
extern "C" __global__ void kernel(const float *x, float *out) {
    out[(int)x[threadIdx.x] % 4] += 1;
}
"""
CASES = {
    "views": (
        VIEWS,
        "overlapping views",
        "let places begin at byte 32 or later",
        "memory + 16",
        "memory + 32",
    ),
    "arms": (
        ARMS,
        "opposite arms",
        "__syncthreads() between the two arms of the branch at line 5",
        "} else {",
        "}\n    __syncthreads();\n    if (t >= 32) {",
    ),
    "statement": (
        STATEMENT,
        "one statement",
        "split line 4: read into a variable, then __syncthreads()",
        "x[t] = x[t + 1];",
        "float next = x[t + 1]; __syncthreads(); x[t] = next;",
    ),
    "swap": (
        SWAP,
        "compare-and-swap loop",
        "take the value on line 4 by an atomic too (atomicAdd of 0)",
        "*best;",
        "atomicAdd(best, 0);",
    ),
    "histogram": (
        HISTOGRAM,
        "update",
        "an atomic (atomicAdd for +=)",
        "out[(int)x[threadIdx.x] % 4] += 1;",
        "atomicAdd(&out[(int)x[threadIdx.x] % 4], 1);",
    ),
}


def report_of(text, path):
    from sim.ptx.nvrtc import load_cuda

    path.write_text(text)
    x, out = np.arange(65, dtype=np.float32), np.zeros(64, np.float32)
    threads = 8 if "char memory[]" in text else 64
    return simulate(load_cuda(path)["kernel"], on_finding="report")[1, threads, 0, 64](x, out)


@pytest.mark.parametrize("name", CASES)
def test_advice(name, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    text, pattern, says, old, new = CASES[name]
    races = [f for f in report_of(text, tmp_path / "buggy.cu").findings if f.kind.startswith("race")]
    assert {finding.advice.pattern for finding in races} == {pattern}
    assert all(says in finding.fix for finding in races)
    assert text.count(old) == 1
    assert report_of(text.replace(old, new), tmp_path / "fixed.cu").findings == ()
