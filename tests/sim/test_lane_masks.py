"""Tests of calls in which the lanes of a warp pass different masks, and then return."""

import numpy as np
import pytest
from numba import cuda

from sim import simulate

ENGINES = "fibers", "threads", "native", "auto"


@cuda.jit
def synced(x):
    t = cuda.threadIdx.x
    cuda.syncwarp(0xFFFFFFFF if t < 16 else 0xFFFF0000)
    x[t] = t


@cuda.jit
def voted(x):
    t = cuda.threadIdx.x
    mask = 0xFFFFFFFF if t == 0 else 0xFFFFFFFE
    x[t] = cuda.ballot_sync(mask, t & 1)


@cuda.jit
def shuffled(x):
    t = cuda.threadIdx.x
    mask = 0xFFFFFFFF if t < 16 else 0xFFFF0000
    x[t] = cuda.shfl_sync(mask, t, t)


@cuda.jit
def second_call(x):
    t = cuda.threadIdx.x
    for i in range(3):
        mask = 0xFFFFFFFF if i == 0 or t < 16 else 0xFFFF0000
        x[t] += cuda.ballot_sync(mask, 1) & 1


@cuda.jit
def voted_in_arms(x):
    t = cuda.threadIdx.x
    if t < 16:
        x[t] = cuda.ballot_sync(0xFFFFFFFF, t & 1)
    else:
        x[t] = cuda.ballot_sync(0xFFFF0000, t & 1)


@cuda.jit
def shuffled_in_arms(x):
    t = cuda.threadIdx.x
    if t < 16:
        x[t] = cuda.shfl_down_sync(0xFFFFFFFF, t, 8)
    else:
        x[t] = cuda.shfl_down_sync(0xFFFF0000, t, 8)


@cuda.jit
def one_call(x):
    t = cuda.threadIdx.x
    other = cuda.shfl_down_sync(0xFFFFFFFF, t, 8)
    if t < 16:
        x[t] = other


@cuda.jit
def halves_in_arms(x):
    t = cuda.threadIdx.x
    if t < 16:
        x[t] = cuda.ballot_sync(0xFFFF, 1)
    else:
        x[t] = cuda.ballot_sync(0xFFFF0000, 1)


@cuda.jit
def returned_from_an_arm(x):
    t = cuda.threadIdx.x
    for i in range(2):
        if t < 16 or i == 1:
            x[t] += cuda.ballot_sync(0xFFFF if i == 0 else 0xFFFFFFFF, 1) & 1
        else:
            x[t] += cuda.ballot_sync(0xFFFF0000, 1) & 1
            return


@cuda.jit
def two_halves(x):
    t = cuda.threadIdx.x
    mask = 0xFFFF if t < 16 else 0xFFFF0000
    x[t] = cuda.ballot_sync(mask, 1)


@cuda.jit
def returned_before(x):
    t = cuda.threadIdx.x
    for i in range(4):
        if t >= 8 * (i + 1):
            continue
        mask = cuda.activemask() if i < 2 else 0xFFFFFFFF
        if t >= 8 and i == 3:
            return
        x[t] += cuda.ballot_sync(mask, 1) & 1


@cuda.jit
def fewer_lanes_each_time(x):
    t, mask = cuda.threadIdx.x, 0xFFFFFFFF
    for i in range(32):
        mask = cuda.ballot_sync(mask, i <= t)
        if i > t:
            return
        x[t] = mask


@cuda.jit
def last_iteration_in_half_a_warp(x):
    t = cuda.threadIdx.x
    for i in range(t, 80, 32):
        mask = cuda.ballot_sync(0xFFFFFFFF, i % 3 == 0)
        if i % 3:
            mask ^= 0xFFFFFFFF  # contains the lanes that have returned
        if i % 3:
            x[t] += cuda.ballot_sync(mask, 1) & 1
        cuda.syncwarp()


@cuda.jit
def disagreement_in_last_iteration(x):
    t = cuda.threadIdx.x
    for i in range(3):
        mask = 0xFFFF if t < 16 else 0xFFFF0000
        if i == 2 and t < 16:
            mask = 0xFFFFFFFF
        x[t] += cuda.ballot_sync(mask, 1) & 1
        if i < 2:
            cuda.syncwarp()


def launched(kernel, engine):
    return simulate(kernel, engine=engine, on_finding="report")[1, 32](np.zeros(32, np.int64))


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel, text",
    [
        (
            synced,
            "lanes 0 and 16 of warp 0 call syncwarp with different masks: 0xffffffff, which contains lane 16, and 0xffff0000",
        ),
        (
            voted,
            "lanes 0 and 1 of warp 0 call ballot_sync with different masks: 0xffffffff, which contains lane 1, and 0xfffffffe",
        ),
        (
            shuffled,
            "lanes 0 and 16 of warp 0 call shfl_sync with different masks: 0xffffffff, which contains lane 16, and 0xffff0000",
        ),
        (voted_in_arms, "lanes 0 and 16 of warp 0 call ballot_sync with different masks"),
        (shuffled_in_arms, "lanes 0 and 16 of warp 0 call shfl_down_sync with different masks"),
        (second_call, "lanes 0 and 16 of warp 0 call ballot_sync with different masks"),
        (disagreement_in_last_iteration, "lanes 0 and 16 of warp 0 call ballot_sync with different masks"),
    ],
    ids=lambda value: getattr(getattr(value, "py_func", None), "__name__", ""),
)
def test_lanes_that_pass_different_masks(kernel, text, engine):
    report = launched(kernel, engine)
    assert [f.kind for f in report.findings] == ["warp-divergence"]
    assert text in report.findings[0].verdict


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "kernel",
    [
        two_halves,
        returned_before,
        fewer_lanes_each_time,
        last_iteration_in_half_a_warp,
        halves_in_arms,
        returned_from_an_arm,
        one_call,
    ],
    ids=lambda k: k.py_func.__name__,
)
def test_lanes_that_agree(kernel, engine):
    assert launched(kernel, engine).findings == ()


ARMS = """extern "C" __global__ void k(int *x) {
    int t = threadIdx.x, v = t;
    if (t < 16) v += __shfl_down_sync(0xffffffff, v, 8);
    else v += __shfl_down_sync(0xffff0000, v, 8);
    AFTER
    x[t] = v;
}
"""


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("after", ["", "__syncwarp();", "__syncthreads();"])
def test_the_fix_of_calls_in_two_arms(after, engine, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from sim.ptx.nvrtc import load_cuda

    source = tmp_path / "k.cu"
    text = ARMS.replace("AFTER", after)
    call = "    v += __shfl_down_sync(0xffffffff, v, 8);\n"
    together = text[: text.index("    if")] + call + text[text.index("    x[t]") :]

    def launched(text):
        source.write_text(text)
        launch = simulate(load_cuda(source)["k"], engine=engine, on_finding="report")
        return launch[1, 32](np.zeros(32, np.int32)).findings

    (finding,) = launched(text)
    assert finding.fix.startswith(
        "let all lanes of the mask make the same call with the same mask: move the call"
    )
    assert {3, 4} <= {access.site.line for access in finding.accesses}
    assert "mask 0xffff0000" in finding.reason or "0xffff0000" in finding.verdict
    assert launched(together) == ()


PTX = """extern "C" __global__ void k(int *x, int n) {
    int t = threadIdx.x, r = 0;
    unsigned mask = CONDITION;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %1, 0; vote.sync.ballot.b32 %0, p, %2; }"
                 : "=r"(r) : "r"(t), "r"(mask));
    x[t] = r;
}
"""


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "condition, count", [("t < n ? 0xffffffffu : 0xffff0000u", 1), ("t < n ? 0xffffu : 0xffff0000u", 0)]
)
def test_inline_ptx_with_a_mask_in_a_variable(condition, count, engine, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc")
    from sim.ptx.nvrtc import load_cuda

    source = tmp_path / "k.cu"
    source.write_text(PTX.replace("CONDITION", condition))
    launch = simulate(load_cuda(source)["k"], engine=engine, on_finding="report")
    report = launch[1, 32](np.zeros(32, np.int32), 16)
    assert [f.kind for f in report.findings] == ["warp-divergence"] * count
    assert all("with different masks" in f.verdict for f in report.findings)
