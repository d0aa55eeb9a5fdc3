"""Tests of variables in registers that no statement has set. An effect of their value is an error."""

import numpy as np
import pytest

from sim import simulate

pytest.importorskip("cuda.bindings.nvrtc")

SOURCE = """
#define KERNEL(name) extern "C" __global__ void name(const float *x, float *y, int n)
#define I threadIdx.x

KERNEL(sum) {
    float s;
    for (int k = 0; k < n; ++k) s += x[k * 32 + I];
    y[I] = s;
}
KERNEL(initialised_sum) {
    float s = 0;
    for (int k = 0; k < n; ++k) s += x[k * 32 + I];
    y[I] = s;
}
KERNEL(index) {
    int row;
    for (int k = 0; k < n; ++k) if (x[k * 32 + I] > 3) row = k;
    y[row * 32 + I] = 1;
}
KERNEL(branch) {
    float first;
    for (int k = 0; k < n; ++k) {
        if (k > 0 && first > 0) y[I] = 1;
        if (x[k] > 1e9f) first = x[k];
    }
}
KERNEL(accumulator) {
    float d[4];
    unsigned a = __float_as_uint(x[I]);
    for (int k = 0; k < n; ++k)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4},"
                     " {%4,%4}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a));
    y[I] = d[0];
}
KERNEL(set_in_the_first_iteration) {
    float last;
    for (int k = 0; k < n; ++k) {
        if (k > 0) y[k * 32 + I] = last;
        last = x[k * 32 + I];
    }
}
KERNEL(selected_by_a_test) {
    float best;
    int at;
    for (int k = 0; k < n; ++k) {
        float v = x[k * 32 + I];
        if (k == 0 || v > best) best = v, at = k;
    }
    y[I] = at;
}
KERNEL(stored_and_then_not_used) {
    __shared__ float t[32];
    float v;
    for (int k = 0; k < n; ++k) if (I < n) v = x[k * 32 + I];
    t[I] = v;
    __syncthreads();
    if (I < n) y[I] = t[n - 1 - I];
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    from sim.ptx.nvrtc import load_cuda

    source = tmp_path_factory.mktemp("unset") / "kernels.cu"
    source.write_text(SOURCE)
    return load_cuda(source)


def launched(kernel, engine):
    x = np.arange(128, dtype=np.float32) % 5
    return simulate(kernel, engine=engine, on_finding="report")[1, 32](x, np.zeros(128, np.float32), 4)


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("name", ["sum", "index", "branch", "accumulator"])
def test_a_value_that_nothing_has_set_is_found(kernels, name, engine):
    report = launched(kernels[name], engine)
    (finding,) = report.findings
    assert (finding.kind, finding.severity) == ("uninitialized-read", "error")
    assert "No statement has set the variable" in finding.message


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "name",
    [
        "initialised_sum", "set_in_the_first_iteration", "selected_by_a_test", "stored_and_then_not_used",
    ],
)  # fmt: skip
def test_a_value_without_an_effect_is_no_error(kernels, name, engine):
    assert not launched(kernels[name], engine).findings
