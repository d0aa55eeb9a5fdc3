"""Tests of divergent branches with warp operations, in compiled code and in the interpreter."""

import numpy as np
import pytest
from numba import cuda, int32

from sim import simulate

FULL = 0xFFFFFFFF


@cuda.jit
def one_arm(x, n):
    t = cuda.threadIdx.x
    v = x[t]
    for _ in range(n):
        if t & 31 < 16:
            v += cuda.shfl_xor_sync(0xFFFF, v, 8)
        v += cuda.shfl_xor_sync(FULL, v, 1)
    x[t] = v


@cuda.jit
def two_arms(x, n):
    t = cuda.threadIdx.x
    v = x[t]
    if t & 1:
        v += cuda.shfl_sync(0xAAAAAAAA, v, 3)
    else:
        v -= cuda.shfl_sync(0x55555555, v, 4)
    x[t] = v


@cuda.jit
def nested(x, n):
    t = cuda.threadIdx.x
    v = x[t]
    if t & 31 < 16:
        if t & 1:
            v = cuda.ballot_sync(0xAAAA, v & 2)
        v += cuda.shfl_xor_sync(0xFFFF, v, 1)
    x[t] = v


@cuda.jit
def unequal_trips(x, n):
    t = cuda.threadIdx.x
    v, i = x[t], 0
    while i < 1 + (t & 31) // 16:
        v += cuda.shfl_xor_sync(FULL if i == 0 else 0xFFFF0000, v, 2)
        i += 1
    x[t] = v


@cuda.jit
def synchronized(x, n):
    t = cuda.threadIdx.x
    if t & 31 < 16:
        cuda.syncwarp(0xFFFF)
        x[t] += cuda.popc(cuda.ballot_sync(0xFFFF, x[t] & 1))
    x[t] += 1


@cuda.jit
def missing_lanes(x, n):
    # The lanes outside the branch return without another operation.
    t = cuda.threadIdx.x
    v = x[t]
    for _ in range(n):
        if t & 31 < 16:
            v += cuda.shfl_xor_sync(FULL, v, 1)
    x[t] = v


@cuda.jit
def results_that_stay(x, n):
    # A lane outside the branch keeps its value of `v`, the result of the shuffle.
    t = cuda.threadIdx.x
    v = w = x[t]
    if t & 31 < 16:
        v = cuda.shfl_xor_sync(0xFFFF, w, 1)
    x[t] = v


CLEAN = one_arm, two_arms, nested, unequal_trips, synchronized, missing_lanes, results_that_stay


@cuda.jit
def never_arrives(x, n):
    t = cuda.threadIdx.x
    if t & 31 < 16:
        x[t] = cuda.shfl_xor_sync(0x1FFFF, t, 1)
    cuda.syncwarp()


@cuda.jit
def never_arrives_at_barrier(x, n):
    t = cuda.threadIdx.x
    if t & 31 < 16:
        x[t] = cuda.shfl_xor_sync(0x1FFFF, t, 1)
    cuda.syncthreads()


@cuda.jit
def never_arrives_in_arms(x, n):
    t = cuda.threadIdx.x
    if t & 31 < 16:
        x[t] = cuda.shfl_xor_sync(FULL, t, 1)
    else:
        x[t] = cuda.shfl_xor_sync(FULL, t, 2)


@cuda.jit
def without_a_caller(x, n):
    t = cuda.threadIdx.x
    if t & 31 < 16:
        x[t] = cuda.ballot_sync(0x7FFF, t & 1)


@cuda.jit
def reads_a_missing_lane(x, n):
    t = cuda.threadIdx.x
    if t & 31 < 16:
        x[t] = cuda.shfl_down_sync(0xFFFF, t, 1)


@cuda.jit
def different_masks(x, n):
    t = cuda.threadIdx.x
    if t & 31 >= 16:
        x[t] = cuda.shfl_sync(0xFFFF0000, t, 20)
    else:
        x[t] = cuda.shfl_sync(FULL, t, 4)


@cuda.jit
def different_masks_around_a_grid_barrier(x, n):
    # Only lanes of the first block make a call before the barrier.
    t = cuda.threadIdx.x
    for i in range(2):
        if t >= 16 if i == 0 and cuda.blockIdx.x == 0 else i == 1 and t < 16:
            x[cuda.grid(1)] = cuda.ballot_sync(0xFFFF0000 if i == 0 else FULL, t & 1)
        if i == 0:
            cuda.cg.this_grid().sync()


@cuda.jit
def races_in_a_branch(x, n):
    # The lanes in the mask are ordered. Lane 16 is not in the mask, and lane 12 reads its value.
    shared = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    shared[t] = t
    if t & 31 < 16:
        cuda.syncwarp(0xFFFF)
        x[t] = shared[t + 4]


@cuda.jit
def other_arm_races(x, n):
    shared = cuda.shared.array(64, int32)
    t = cuda.threadIdx.x
    if t & 1:
        cuda.syncwarp(0xAAAAAAAA)
        shared[t] = t
        cuda.syncwarp(0xAAAAAAAA)
    else:
        x[t] = shared[t + 1] + cuda.ballot_sync(0x55555555, 1)


WRONG = {
    never_arrives: "warp-divergence",
    never_arrives_at_barrier: "warp-divergence",
    never_arrives_in_arms: "warp-divergence",
    without_a_caller: "warp-divergence",
    reads_a_missing_lane: "warp-divergence",
    different_masks: "warp-divergence",
    races_in_a_branch: "race-shared",
    other_arm_races: "race-shared",
}


def launched(kernel, engine, n=3):
    x = np.arange(64, dtype=np.int32) * 37 % 61
    return simulate(kernel, engine=engine, on_finding="report")[1, 64](x, n), x


def named(kernel):
    return kernel.py_func.__name__


@pytest.mark.parametrize("kernel", CLEAN, ids=named)
def test_branches_with_fitting_masks_are_compiled(kernel):
    native, result = launched(kernel, "native")
    interpreted, expected = launched(kernel, "fibers")
    assert native.findings == interpreted.findings == ()
    assert native.notes == ("compiled",)
    assert result.tolist() == expected.tolist()
    assert native.counters == interpreted.counters


@pytest.mark.parametrize("kernel", WRONG, ids=named)
def test_errors_in_branches(kernel):
    native, _ = launched(kernel, "native")
    interpreted, _ = launched(kernel, "fibers")
    assert WRONG[kernel] in {finding.kind for finding in interpreted.findings}
    assert [str(finding) for finding in native.findings] == [str(finding) for finding in interpreted.findings]


def test_masks_of_calls_around_a_grid_barrier():
    found = []
    for engine in ("native", "fibers"):
        launch = simulate(different_masks_around_a_grid_barrier, engine=engine, on_finding="report")
        found.append([str(finding) for finding in launch[2, 32](np.zeros(64, np.int32), 0).findings])
    assert found[0] == found[1]
    assert any("different masks" in text for text in found[0])


def test_a_long_loop_around_a_branch_is_decided():
    # The interpreter would need longer than its limit for this launch.
    report, x = launched(one_arm, "auto", 20_000)
    assert report.findings == ()
    assert "compiled" in report.notes


CPP = """extern "C" __global__ void k(int *x, int n) {
    int t = threadIdx.x, lane = t & 31, v = x[t];
    for (int i = 0; i < n; i++) {
        STATEMENTS
    }
    x[t] = v;
}
"""
SHUFFLE = "if (lane < 16) v += __shfl_down_sync(0xffff, v, 1, 16);"
ARMS = "if (lane & 1) v += __shfl_xor_sync(0xaaaaaaaa, v, 2); else v -= __shfl_xor_sync(0x55555555, v, 4);"
TRIPS = "for (int j = 0; j <= lane / 16; j++) v ^= __ballot_sync(j ? 0xffff0000 : ~0u, v & 1);"


@pytest.mark.parametrize(
    "statements, is_right",
    [
        (SHUFFLE, True),
        (SHUFFLE.replace("0xffff", "~0u"), True),  # the missing lanes return without another operation
        (ARMS, True),
        (TRIPS, True),
        ("if (lane < 16) { __syncwarp(0xffff); v += 3; }", True),
        ("if (lane > 3 && lane < 16) v = __any_sync(0xfff0, v == 1) ? v * 3 : v + lane;", True),
        (SHUFFLE.replace("0xffff", "~0u") + " __syncwarp();", False),
        (SHUFFLE.replace("0xffff", "0x7fff"), False),
        (SHUFFLE.replace(", 16)", ")"), False),  # lane 15 reads lane 16
        (ARMS.replace("0x5", "0x7") + " __syncwarp();", False),
        (TRIPS.replace("0xffff0000", "~0u"), False),
    ],
)
def test_branches_in_cpp(statements, is_right, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from sim.ptx.nvrtc import load_cuda

    source = tmp_path / "k.cu"
    source.write_text(CPP.replace("STATEMENTS", statements))
    results = []
    for engine in ("native", "fibers"):
        x = np.arange(64, dtype=np.int32) * 37 % 61
        report = simulate(load_cuda(source)["k"], engine=engine, on_finding="report")[1, 64](x, 3)
        results.append(([str(finding) for finding in report.findings], x.tolist()))
        assert is_right == (report.findings == ())
        assert engine == "fibers" or not is_right or report.notes == ("compiled",)
    assert results[0][0] == results[1][0]
    assert not is_right or results[0] == results[1]
