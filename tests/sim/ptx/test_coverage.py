"""Tests that a large launch, whose first run has executed all accesses, is not run again, and that planted
bugs are still found. The kernels synchronise blocks by atomics and fences."""

import numpy as np
import pytest
from numba import cuda, float32, int32

from ptx.edited_kernels import Corpus
from ptx.test_cuda_cpp import module as cuda_module
from sim import load_ptx, reruns, simulate
from sim.frontend.polling import can_poll
from sim.frontend.resolve import source_of
from sim.ptx.nvrtc import compile_ptx

BLOCKS, THREADS, NUMBERS = 4, 64, 512
KERNELS = {
    "last block": r"""
extern "C" __global__ void k(const float *x, volatile float *parts, unsigned *count, float *out) {
    __shared__ float sums[64];
    __shared__ bool is_last;
    unsigned t = threadIdx.x, i = blockIdx.x * 64 + t;
    sums[t] = x[i] + x[i + 256];
    __syncthreads();  // each sum
    for (unsigned half = 32; half > 0; half /= 2) {
        if (t < half) sums[t] += sums[t + half];
        __syncthreads();  // each half
    }
    if (t == 0) {
        parts[blockIdx.x] = sums[0];
        __threadfence();  // publish
        is_last = atomicAdd(count, 1) == gridDim.x - 1;
    }
    __syncthreads();  // the ticket
    if (is_last && t == 0) {
        float sum = 0;
        for (unsigned b = 0; b < gridDim.x; b++) sum += parts[b];
        *out = sum;
    }
}
""",
    "flag": r"""
extern "C" __global__ void k(const float *x, volatile float *parts, unsigned *count, float *out) {
    if (blockIdx.x == 0) {
        if (threadIdx.x < 4) parts[threadIdx.x] = x[threadIdx.x];
        __syncthreads();  // all parts
        if (threadIdx.x == 0) {
            __threadfence();  // publish
            *(volatile unsigned *)count = 1;
        }
    } else if (threadIdx.x == 0 && blockIdx.x == 1) {
        while (*(volatile unsigned *)count == 0);
        __threadfence();
        *out = parts[0] + parts[1] + parts[2] + parts[3];
    }
}
""",
}


def numbers():
    return (np.arange(NUMBERS) % 7).astype(np.float32)


def arguments():
    return numbers(), np.zeros(BLOCKS, np.float32), np.zeros(1, np.uint32), np.zeros(1, np.float32)


LAUNCHES = {
    name: ((BLOCKS, THREADS), arguments, 3, numbers()[:last].sum(keepdims=True))
    for name, last in (("last block", NUMBERS), ("flag", 4))
}
RACE = ["race-global"]
PAIRS = {
    "without a fence": ("last block", RACE, ("__threadfence();  // publish", "")),
    "without an atomic": (
        "last block",
        RACE,
        ("atomicAdd(count, 1) == gridDim.x - 1", "(*count)++ == gridDim.x - 1"),
    ),
    "without a barrier before halves": ("last block", ["race-shared"], ("__syncthreads();  // each sum", "")),
    "without a barrier between halves": (
        "last block",
        ["race-shared"],
        ("__syncthreads();  // each half", ""),
    ),
    "without a barrier after the ticket": (
        "last block",
        ["race-shared", "uninitialized-read?"],
        ("__syncthreads();  // the ticket", ""),
    ),
    "one block too early": ("last block", RACE, ("gridDim.x - 1;", "gridDim.x - 2;")),
    "flag without a fence": ("flag", RACE, ("__threadfence();  // publish", "")),
    "flag without a barrier": ("flag", RACE, ("__syncthreads();  // all parts", "")),
    "flag that is not volatile": (
        "flag",
        ["no-progress?", "race-global?"],
        ("while (*(volatile unsigned *)count == 0);", "while (*count == 0);"),
    ),
}
CORPUS = Corpus("", KERNELS, LAUNCHES, PAIRS)
ENGINES = "fibers", "threads", "native"


@pytest.fixture(autouse=True)
def every_launch_is_large(monkeypatch):
    monkeypatch.setattr(reruns, "MANY_TURNS", 0)


def module(name):
    pytest.importorskip("cuda.bindings.nvrtc")
    text = CORPUS.source(name)
    return load_ptx(compile_ptx(text, "k.cu"), text)


def run(name, engine, seed=0):
    return CORPUS.run(name, module(name), engine=engine, seed=seed)


@pytest.mark.parametrize("name", KERNELS)
def test_a_covered_launch_is_not_run_again(name, few):
    for engine in few(ENGINES, 1):
        report, right = run(name, engine)
        assert right and not report.findings and report.counters["schedules"] == 1
        assert any("1 schedule (a launch of fewer threads runs under more)" in n for n in report.notes)


@pytest.mark.parametrize("name", PAIRS)
def test_the_bug_is_found(name, few):
    wanted = PAIRS[name][1]
    for engine, seed in few([(engine, seed) for seed in range(3) for engine in ENGINES], 1):
        found = {finding.kind for finding in run(name, engine, seed)[0].findings}
        assert found and {kind for kind in wanted if kind[-1] != "?"} <= found
        assert found <= {kind.rstrip("?") for kind in wanted}


@cuda.jit
def last_block(x, parts, count, out):
    sums = cuda.shared.array(THREADS, float32)
    is_last = cuda.shared.array(1, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    sums[t] = x[i]
    cuda.syncthreads()
    half = THREADS // 2
    while half > 0:
        if t < half:
            sums[t] += sums[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        parts[cuda.blockIdx.x] = sums[0]
        cuda.threadfence()
        is_last[0] = cuda.atomic.add(count, 0, 1) == cuda.gridDim.x - 1
    cuda.syncthreads()
    if is_last[0] and t == 0:
        for block in range(cuda.gridDim.x):
            out[0] += parts[block]


@cuda.jit
def elects(count, out):
    """Let one thread of the grid, whose number depends on the schedule, write past the end."""
    if cuda.atomic.add(count, 0, 1) == 5 and cuda.threadIdx.x % 2:
        out[cuda.gridsize(1)] = 1


def test_a_python_launch_is_run_again_only_if_accesses_are_left():
    x, parts, count, out = arguments()
    report = simulate(last_block)[BLOCKS, THREADS](x, parts, count.astype(np.int32), out)
    assert out[0] == x[: BLOCKS * THREADS].sum() and report.counters["schedules"] == 1
    report = simulate(elects, on_finding="report", seed=1)[1, 32](np.zeros(1, np.int32), np.zeros(32))
    assert report.counters["schedules"] > 1 and [f.kind for f in report.findings] == ["out-of-bounds"]


@cuda.jit
def initialises_once(state, data, out):
    """Let a thread of each block read data, maybe before the first thread has initialised all of them."""
    if cuda.threadIdx.x == 0:
        if cuda.atomic.add(state, 0, 0) != READY:
            if cuda.atomic.cas(state, 0, 0, 1) == 0:
                data[0] = 7
                cuda.threadfence()
                cuda.atomic.exch(state, 0, READY)
        cuda.threadfence()
        out[cuda.blockIdx.x] = data[0]


@cuda.jit
def initialises_once_and_waits(state, data, out):
    """Let the other threads wait until the data are initialised."""
    if cuda.threadIdx.x == 0:
        if cuda.atomic.cas(state, 0, 0, 1) == 0:
            data[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(state, 0, READY)
        while cuda.atomic.add(state, 0, 0) != READY:
            pass
        cuda.threadfence()
        out[cuda.blockIdx.x] = data[0]


READY = 2


@pytest.mark.parametrize(("kernel", "found"), [(initialises_once, RACE), (initialises_once_and_waits, [])])
def test_the_first_blocks_of_a_large_launch_run_under_further_schedules(kernel, found, monkeypatch):
    monkeypatch.setattr(reruns, "PART_TURNS", 500)
    monkeypatch.setattr(reruns, "PARTS_EFFORT", 6000)
    blocks = 16
    out = np.zeros(blocks, np.int32)
    report = simulate(kernel, on_finding="report")[blocks, 32](*np.zeros((2, 1), np.int32), out)
    assert [finding.kind for finding in report.findings] == found and (out == 7).all()
    assert "under 1 schedule, and its first blocks under" in report.notes[-1]


@cuda.jit
def publishes_late(flag, data, out):
    """Let the first blocks wait for the last block, and read memory that another thread may write."""
    t = cuda.threadIdx.x
    tile = cuda.shared.array(32, int32)
    if cuda.blockIdx.x == 17:
        cuda.atomic.exch(flag, 0, 1)
    while cuda.atomic.add(flag, 0, 0) == 0:
        pass
    tile[t] = t
    cuda.syncthreads()
    out[cuda.grid(1)] = tile[31 - t]


def test_a_part_of_a_launch_has_no_findings_about_its_end(monkeypatch):
    """End the runs of the first part while threads wait, or between a store and the load of its value."""
    monkeypatch.setattr(reruns, "PART_TURNS_PER_THREAD", 0)
    for turns in range(100, 700, 150):
        monkeypatch.setattr(reruns, "PART_TURNS", turns)
        monkeypatch.setattr(reruns, "PARTS_EFFORT", 6 * turns)
        report = simulate(publishes_late, on_finding="report")[20, 32](
            *np.zeros((2, 1), np.int32), np.zeros(640)
        )
        assert not report.findings and "first blocks under" in report.notes[-1]


def strides(x, out):
    """Add up elements in a loop whose decisions depend on sizes and indices only."""
    i, total = cuda.grid(1), 0
    while i < x.size:
        total += x[i]
        i += cuda.gridsize(1)
    out[0] = total


def waits(flag, out):
    while flag[0] == 0:
        pass


def waits_for_a_count(count, out):
    done = False
    while not done:
        seen = cuda.atomic.add(count, 0, 0)
        if seen > 3:
            done = True


def reads_before_the_loop(x, out):
    left = x[0]
    while left > 0:
        left -= 1


def waits_for_the_grid(active, out):
    while active[0] > 0:
        cuda.atomic.add(active, 0, -1)
        cuda.cg.this_grid().sync()


def waits_for_the_grid_or_continues(active, out):
    grid = cuda.cg.this_grid()
    while active[0] > 0:
        if active[1] > 0:
            continue
        grid.sync()


@pytest.mark.parametrize(
    ("function", "polls"),
    [
        (strides, False),
        (reads_before_the_loop, False),
        (waits, True),
        (waits_for_a_count, True),
        (waits_for_the_grid, False),
        (waits_for_the_grid_or_continues, True),
    ],
)
def test_python_loops_that_can_poll(function, polls):
    assert can_poll(source_of(function).tree, ()) == polls


@pytest.mark.parametrize(("name", "polls"), [("last block", False), ("flag", True)])
def test_ptx_loops_that_can_poll(name, polls):
    assert module(name)["k"].program()[0].polls == polls


LOOPS = {
    "inner loop with a bound that it has read": (
        """
L1: ld.global.u32 %r2, [%rd1];
    mov.u32 %r3, 0;
L2: add.u32 %r3, %r3, 1;
    setp.lt.u32 %p1, %r3, %r2;
    @%p1 bra L2;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, 8;
    @%p2 bra L1;
    ret;""",
        False,
    ),
    "limited number of attempts": (
        """
L1: ld.volatile.global.u32 %r2, [%rd1];
    setp.ne.u32 %p1, %r2, 0;
    @%p1 bra L2;
    add.u32 %r1, %r1, 1;
    setp.lt.u32 %p2, %r1, 8;
    @%p2 bra L1;
L2: ret;""",
        True,
    ),
    "counts the iterations in which it has read a value": (
        """
L1: ld.volatile.global.u32 %r2, [%rd1];
    setp.eq.u32 %p1, %r2, 0;
    @%p1 bra L2;
    add.u32 %r1, %r1, 1;
L2: setp.lt.u32 %p2, %r1, 8;
    @%p2 bra L1;
    ret;""",
        True,
    ),
}


@pytest.mark.parametrize("name", LOOPS)
def test_ptx_loops_that_count_cannot_poll(name):
    body, polls = LOOPS[name]
    head = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x) {"
    head += " .reg .pred %p<3>; .reg .b32 %r<4>; .reg .b64 %rd<2>; ld.param.u64 %rd1, [x]; mov.u32 %r1, 0;"
    assert load_ptx(head + body + "\n}")["k"].program()[0].polls == polls


def test_a_loop_around_a_barrier_of_the_grid_cannot_poll():
    assert not cuda_module("grid_sync")[1]["mended"].program()[0].polls
