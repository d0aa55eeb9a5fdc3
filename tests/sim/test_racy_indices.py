"""Tests of indices outside an array that depend on racing memory.

The finding about the access names the race and follows it.
"""

import numpy as np
import pytest
from numba import cuda, int32

from sim import load_cuda, simulate


@cuda.jit
def racing_pivot(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    row = pivot[0]
    start = row * 32
    out[start + t] = 1


@cuda.jit
def pivot_after_a_barrier(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    cuda.syncthreads()
    row = pivot[0]
    start = row * 32
    out[start + t] = 1


@cuda.jit
def racing_pivot_in_the_index(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    out[pivot[0] + t] = 1


@cuda.jit
def racing_exchange(out, other):
    # No read races: two threads write the element, and a barrier precedes its read.
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 3
    if t == 31:
        pivot[0] = 1000
    cuda.syncthreads()
    out[pivot[0] + t] = 1


@cuda.jit(device=True)
def put(array, index, value):
    array[index] = value


@cuda.jit(device=True)
def put_in_row(array, row, column):
    put(array, row * 32 + column, 1)


@cuda.jit
def racing_pivot_of_an_argument(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    row = pivot[0]
    put_in_row(out, row, t)


@cuda.jit
def racing_pivot_in_an_argument(out, other):
    pivot = cuda.shared.array(1, int32)
    t = cuda.threadIdx.x
    if t == 0:
        pivot[0] = 1000
    cuda.syncthreads()
    if t == 31:
        pivot[0] = 3
    put(out, pivot[0] + t, 1)


@cuda.jit
def race_without_influence_on_an_argument(out, other):
    t = cuda.threadIdx.x
    other[0] = t
    put(out, t + 120, 1)


@cuda.jit
def race_without_influence(out, other):
    t = cuda.threadIdx.x
    other[0] = t
    out[t + 120] = 1


def launched(kernel, engine):
    out = np.zeros(128, np.int32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 32](out, np.zeros(1, np.int32))
    return report.findings, out


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    ("kernel", "lines"),
    [
        (racing_pivot, "8 and 9"),
        (racing_pivot_in_the_index, "8 and 9"),
        (racing_exchange, "6 and 8"),
        (racing_pivot_of_an_argument, "8 and 9"),
        (racing_pivot_in_an_argument, "8 and 9"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_race_comes_before_the_index_that_depends_on_it(kernel, lines, engine):
    (race, access), _ = launched(kernel, engine)
    assert (race.kind, access.kind, access.severity) == ("race-shared", "out-of-bounds", "error")
    place = f"the race on lines {lines} of {kernel.__name__}"
    assert access.reason.endswith(f"The index depends on pivot, and {place} can change its value.")
    assert access.fix.startswith(
        f"correct {place} first: {race.fix}. If the index is still wrong then, guard"
    )


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_without_the_race_the_index_is_right(engine):
    findings, out = launched(pivot_after_a_barrier, engine)
    assert not findings and out.tolist() == [0] * 96 + [1] * 32


@pytest.mark.parametrize(
    ("kernel", "guard"),
    [
        (race_without_influence, "if t + 120 < out.shape[0]"),
        (race_without_influence_on_an_argument, "the index must be < out.shape[0]"),
    ],
)
def test_a_race_without_influence_on_the_index_is_not_named(kernel, guard):
    findings, _ = launched(kernel, "fibers")
    assert [finding.kind for finding in findings] == ["out-of-bounds", "race-global"]
    assert findings[0].fix == f"guard the access: {guard}"


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("inline", ["__forceinline__", "__noinline__"])
def test_a_racing_index_is_an_argument_of_a_cpp_function(inline, engine, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    (tmp_path / "k.cu").write_text(f"""
__device__ {inline} void put(int *array, int index, int value) {{
    array[index] = value;
}}
extern "C" __global__ void kernel(int *out, int *other) {{
    __shared__ int pivot;
    int t = threadIdx.x;
    if (t == 0) pivot = 1000;
    __syncthreads();
    if (t == 31) pivot = 3;
    int row = pivot;
    put(out, row * 32 + t, 1);
}}
""")
    (race, access), _ = launched(load_cuda(tmp_path / "k.cu")["kernel"], engine)
    assert (race.kind, access.kind) == ("race-shared", "out-of-bounds")
    assert "The index depends on pivot, and the race on lines 10 and 11 of k.cu" in access.reason
