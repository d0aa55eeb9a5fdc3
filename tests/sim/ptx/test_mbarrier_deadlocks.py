"""Tests of deadlocks at mbarriers: the root that a message names, the number of bytes that its fix names, and
the time until the verdict."""

import functools
import time
from collections import Counter

import numpy as np
import pytest

from ptx import hopper_corpus as corpus
from sim import load_ptx, simulate
from sim.engine.wait_graph import WaitGraph
from sim.isa.mbarrier import Barrier
from sim.progress import ProgressCheck
from sim.ptx import nvrtc

pytest.importorskip("cuda.bindings.nvrtc")
LIMIT = 5.0  # CPU seconds until the verdict


@functools.cache
def compiled(source):
    return load_ptx(nvrtc.compile_ptx(source, "k.cu", architecture="sm_90a"), source)["k"]


def edited(kernel, old, new):
    """Return the deadlocks of a kernel of the corpus with one edit, after a check of their time."""
    assert corpus.KERNELS[kernel].count(old) == 1
    configuration, arguments, _ = corpus.LAUNCHES[kernel]
    kernel = compiled(corpus.PRELUDE + corpus.KERNELS[kernel].replace(old, new))
    began = time.process_time()
    report = simulate(kernel, on_finding="report")[configuration](*arguments())
    assert time.process_time() - began < LIMIT
    return report


EXPECT, ARRIVE, LOAD = "expect(&full[s], 256)", "            arrive(&empty[s]);\n", "            load(tile[s]"
# (kernel, old text, new text, root in the verdict, threads behind it, words of the fix)
ROOTS = [
    (
        "pipeline",
        ARRIVE,
        ARRIVE.replace("arrive", "if (t != 5) arrive"),
        "1 thread waits at the mbarrier empty[0], which has counted 31 of 32 arrivals",
        "32 threads at the mbarrier full[0]",
        "arrive once in every phase",
    ),
    (
        "pipeline",
        ARRIVE,
        ARRIVE.replace("arrive", "if (t != 5 || i < 2) arrive"),
        "1 thread waits at the mbarrier empty[0], which has counted 31 of 32",
        "32 threads at the mbarrier full[0]",
        "let thread 5 of block 0",
    ),
    (
        "pipeline",
        LOAD,
        LOAD.replace("load", "if (i != 3) load"),
        "full[1], where 0 of 512 bytes",
        "1 thread at the mbarrier empty[1]",
        "missing copy of 512 bytes: in phase 0, the copies delivered all 512",
    ),
    (
        "pipeline",
        "expect(&full[s], 512)",
        "expect(&full[s], 768)",
        "512 of 768 bytes",
        "empty[0]",
        "in a phase, 512,",
    ),
    (
        "multicast",
        EXPECT,
        "expect(&full[s], 512)",
        "256 of 512 bytes",
        "full[0] of block 1",
        "own barrier in a phase, 256 (128 from block 0 and 128 from block 1)",
    ),
    (
        "multicast",
        EXPECT,
        "if (r == 0) expect(&full[s], 256)",
        "full[0] of block 1, which has counted 0 of 1 arrivals",
        "full[0] of block 0",
        "thread of block 1 arrive at this mbarrier in each phase, and expect (expect_tx)"
        " the bytes of all copies, 256",
    ),
    (
        "multicast",
        "if (t < 2) arrive_at",
        "if (t < 1) arrive_at",
        "1 thread waits at the mbarrier empty[0] of block 1, which has counted 0 of 2",
        "full[0] of block 0",
        "arrive once in every phase",
    ),
]


@pytest.mark.parametrize(("kernel", "old", "new", "root", "behind", "fix"), ROOTS)
def test_a_deadlock_names_its_root_and_then_the_threads_behind_it(kernel, old, new, root, behind, fix):
    (finding,) = (f for f in edited(kernel, old, new).findings if f.kind == "deadlock")
    assert root in finding.verdict and behind in finding.reason and fix in finding.fix, finding.message


def test_the_bytes_of_an_early_phase_are_those_of_all_its_copies():
    report = edited("multicast", EXPECT, "expect(&full[s], 128)")
    early, *others = (finding for finding in report.findings if finding.kind == "async-copy")
    assert "expect the bytes of all copies of the phase or wait" in early.fix
    assert others and all(
        "first correct the bytes that its mbarrier expects" in other.fix for other in others
    )


BEHIND = r"""
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ __align__(128) int tile[64];
    __shared__ u64 a, b;
    int t = threadIdx.x;
    if (t == 0) { init(&a, 64); init(&b, 1); init_fence(); }
    __syncthreads();
    if (t == 0) { expect(&b, BYTES); load(tile, x, 256, &b); }
    if (t >= 32) wait(&b, 0);
    MEET;
    y[t] = tile[t];
}"""


@pytest.mark.parametrize(
    ("meet", "behind"),
    [
        ("arrive(&a); wait(&a, 0)", "32 threads at the mbarrier a[0]"),
        ("__syncthreads()", "32 threads at __sync"),
    ],
)
def test_threads_that_wait_for_the_waiting_ones_are_not_the_root(meet, behind):
    source = corpus.PRELUDE + BEHIND.replace("MEET", meet)
    x, y = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    kernel = compiled(source.replace("BYTES", "512"))
    (finding,) = simulate(kernel, on_finding="report")[1, 64](x, y).errors
    assert finding.kind == "deadlock" and "32 threads wait at the mbarrier b[0]" in finding.verdict
    assert behind in finding.reason and "in a phase, 256, or send the missing copy" in finding.fix
    right = simulate(compiled(source.replace("BYTES", "256")), on_finding="report")[1, 64](x, y)
    assert not [f for f in right.findings if f.kind == "deadlock"]


# libcu++ reads the clock and sleeps between its tests of the phase.
BACK_OFF = r"""
__device__ u64 now() { u64 time; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)); return time; }
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ __align__(128) int tile[256];
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 1); init_fence(); }
    __syncthreads();
    if (t == 0) { expect(&bar, BYTES); load(tile, x, 1024, &bar); }
    u64 start = now();
    for (int count = 0; !done(&bar, 0);) {
        if (count < 16) { count++; continue; }
        u64 elapsed = now() - start;
        LATE
        if (elapsed > 1 << 10) __nanosleep(elapsed / 4);
    }
    y[t] = tile[t];
}"""


@pytest.mark.parametrize(
    ("nbytes", "late", "kinds"),
    [
        (2048, "", ["deadlock"]),
        (1024, "", []),
        # A wait with a time limit ends, and the thread then reads too early.
        (2048, "if (elapsed > 100000000) break;", ["async-copy"]),
    ],
)
def test_a_wait_that_sleeps_between_its_tests(nbytes, late, kinds):
    kernel = compiled(corpus.PRELUDE + BACK_OFF.replace("BYTES", str(nbytes)).replace("LATE", late))
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    began = time.process_time()
    report = simulate(kernel, on_finding="report")[1, 128](x, y)
    assert time.process_time() - began < 2 * LIMIT
    assert sorted({finding.kind for finding in report.errors}) == kinds
    if kinds == ["deadlock"]:
        assert "1,024 of 2,048 bytes have arrived" in report.errors[0].verdict


def test_in_a_cycle_the_root_is_the_barrier_that_lags_behind():
    class Waiting:
        done, waits = False, "turn"

        def __init__(self, block):
            self.block, self.linear = block, len(block.threads)
            block.threads.append(self)

    class Block:
        index, threads = (0, 0, 0), None

    block = Block()
    block.threads = []
    producer, consumer = Waiting(block), Waiting(block)
    full, empty = Barrier(1), Barrier(1)
    full.phase, empty.phase, full.suppliers, empty.suppliers = 4, 3, {producer: 3}, {consumer: 2}
    full.observed, empty.observed = {consumer: 3}, {producer: 3}
    polls = {consumer: (full, 0), producer: (empty, 0)}
    assert WaitGraph(polls, [block]).root() is empty
    # The producer has arrived as often as the consumer, and its next arrival is missing.
    empty.phase, full.expecting = 4, 4
    empty.suppliers = {consumer: 3}
    assert WaitGraph(polls, [block]).root() is full


PHASES = r"""
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) { init(&bar, 64); init_fence(); }
    __syncthreads();
    for (int i = 0; i < 8; i++) {
        arrive(&bar);
        WAIT
    }
}"""
RENEW = """wait(&bar, 0);
        __syncthreads();
        if (t == 0) { invalidate(&bar); init(&bar, 64); init_fence(); }
        __syncthreads();"""


@pytest.mark.parametrize(("wait", "progress"), [("wait(&bar, i % 2);", True), (RENEW, False)])
def test_the_end_of_a_phase_ends_a_comparison_of_threads(wait, progress, monkeypatch):
    # A barrier that a loop renews returns to its state, so the end of its phase proves nothing.
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.0)
    monkeypatch.setattr("sim.loop_limits.LEAST_ITERATIONS", 1)
    iterations, compare = Counter(), ProgressCheck.nothing_changes

    def count(check, site, frame):
        iterations[check] += 1
        return compare(check, site, frame)

    monkeypatch.setattr(ProgressCheck, "nothing_changes", count)
    x, y = np.zeros(1, np.int32), np.zeros(1, np.int32)
    kernel = compiled(corpus.PRELUDE + PHASES.replace("WAIT", wait))
    # Compiled code makes no comparisons of threads.
    assert not simulate(kernel, engine="fibers", on_finding="report")[2, 64](x, y).errors
    assert iterations and any(check.advanced for check in iterations) == progress
    if progress:
        assert max(iterations.values()) <= 2 * 2 * 64


RING = r"""
extern "C" __global__ void k(const int* x, int* y) {
    __shared__ int slot[3][32];
    __shared__ u64 full[3], empty[3];
    int t = threadIdx.x & 31;
    if (threadIdx.x < 3) { init(full + threadIdx.x, 32); init(empty + threadIdx.x, 32); init_fence(); }
    __syncthreads();
    for (int r = 0, sum = 0; r < 10; ++r) {
        int s = r % 3;
        if (threadIdx.x < 32) {
            wait(empty + s, FREE);
            slot[s][t] = x[t] + r;
            arrive(full + s);
        } else {
            wait(full + s, FILLED);
            sum += slot[s][31 - t];
            arrive(empty + s);
            y[t] = sum;
        }
    }
}"""


@pytest.mark.parametrize(
    ("free", "filled", "root", "fix"),
    [
        ("r / 3 & 1", "r / 3 & 1", "empty[0]", "if the threads need not wait in the first phase, let the"),
        ("~(r / 3) & 1", "r / 2 & 1", "full[2]", "let the wait test parity 0, because no thread has waited"),
    ],
)
def test_a_wait_for_the_wrong_parity_names_the_parity_and_the_phase(free, filled, root, fix):
    source = corpus.PRELUDE + RING
    x, y = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    buggy = compiled(source.replace("FREE", free).replace("FILLED", filled))
    (finding,) = simulate(buggy, on_finding="report")[1, 64](x, y).errors
    assert f"at the mbarrier {root}" in finding.verdict and finding.fix.startswith(fix)
    phase = 1 if root.startswith("full") else 0
    assert f"The wait tests parity {phase}, so it waits for the end of phase {phase}" in finding.reason
    right = compiled(source.replace("FREE", "~(r / 3) & 1").replace("FILLED", "r / 3 & 1"))
    assert simulate(right, on_finding="report")[1, 64](x, y).findings == ()
    np.testing.assert_array_equal(y, 10 * x[::-1] + 45)
