"""Tests of explanations for large native launches.

The affected blocks run again on their original memory, and the arguments end as the whole launch left them.
"""

import signal
import threading
import time

import numpy as np
import pytest
from numba import cuda, float32

from sim import KernelBug, ThreadError, simulate


def outside(x, out, block):
    """Read out of bounds in this block."""
    i = cuda.grid(1)
    out[i] = x[i + (x.shape[0] if cuda.blockIdx.x == block else 0)]


def launched(kernel, grid, block, *arguments, **options):
    return simulate(kernel, engine="native", on_finding="report", **options)[grid, block](*arguments)


def found(report):
    return [
        (f.kind, f.severity, f.array, f.count, f.verdict, [(a.what, a.site.line) for a in f.accesses])
        for f in report.findings
    ]


def test_one_block_of_many_is_explained():
    x = np.arange(4096 * 256, dtype=np.float32)
    out = np.zeros_like(x)
    launched(outside, 4096, 256, x, out, 7)  # compiles
    began = time.process_time()  # CPU time of this process, which a busy machine hardly affects
    report = launched(outside, 4096, 256, x, out, 1000)
    assert time.process_time() - began < 10
    assert report.notes == ("compiled; 1 of 4,096 blocks has errors, explained by the interpreter",)
    (finding,) = report.findings
    assert (
        finding.kind == "out-of-bounds"
        and finding.count == 255
        and finding.accesses[0].block == (1000, 0, 0)
        and finding.accesses[0].thread == (0, 0, 0)
    )
    wanted = x.copy()
    wanted[256_000:256_256] = np.nan
    np.testing.assert_array_equal(out, wanted)
    assert report.counters == {"threads": 4096 * 256, "blocks": 4096, "barriers": 0}


def test_an_error_in_the_last_of_very_many_blocks():
    def beyond(x):
        i = cuda.grid(1)
        x[i + 1 if i == x.shape[0] - 1 else i] = 1

    x = np.zeros(65536 * 32, np.int8)
    launched(beyond, 65536, 32, x)
    began = time.process_time()
    (finding,) = launched(beyond, 65536, 32, x).findings
    assert time.process_time() - began < 10
    assert (
        finding.count == 0
        and finding.accesses[0].block == (65535, 0, 0)
        and finding.index == (65536 * 32,)
        and x.sum() == 65536 * 32 - 1
    )


def test_findings_and_values_are_those_of_the_whole_launch(monkeypatch):
    monkeypatch.setattr("sim.error_limit.SECONDS_AFTER_ERROR", 1000)

    def kernel(x, out, counts):
        tile = cuda.shared.array(32, float32)
        t = cuda.threadIdx.x + cuda.threadIdx.y * cuda.blockDim.x
        b = cuda.blockIdx.x + cuda.blockIdx.y * cuda.gridDim.x
        if t == 0:
            cuda.atomic.add(counts, b % 7, 1)
        tile[t] = x[b * 32 + t]
        if b % 100 != 50:
            cuda.syncthreads()
        if b == 77 and t == 3:
            out[x.shape[0] + t] = 0
        out[b * 32 + t] = tile[31 - t]

    grid, block = (300, 2), (4, 8)
    x = np.arange(600 * 32, dtype=np.float32)
    whole, ours = ([x, np.zeros_like(x), np.zeros(7, np.int64)] for _ in range(2))
    wanted = simulate(kernel, on_finding="report")[grid, block](*whole)
    report = launched(kernel, grid, block, *ours)
    assert report.notes == ("compiled; 7 of 600 blocks have errors, explained by the interpreter",)
    assert sorted(found(report)) == sorted(found(wanted)) and {f.kind for f in wanted.findings} == {
        "race-shared",
        "out-of-bounds",
    }
    assert report.counters == wanted.counters
    np.testing.assert_array_equal(ours[2], whole[2])
    racy = np.isin(np.arange(600 * 32) // 32, np.arange(50, 600, 100))
    np.testing.assert_array_equal(ours[1][~racy], whole[1][~racy])


def test_blocks_that_race_with_each_other_are_explained_together():
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i]
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 400:
            out[32 * 90 + 5] = 1
        if cuda.threadIdx.x == 0 and cuda.blockIdx.x == 500:
            out[i] = out[32 * 777]

    arguments = np.ones(1000 * 32, np.float32), np.zeros(1000 * 32, np.float32)
    report = launched(kernel, 1000, 32, *arguments)
    wanted = simulate(kernel, on_finding="report")[1000, 32](*arguments)
    assert report.notes == ("compiled; 4 of 1,000 blocks have errors, explained by the interpreter",)
    assert found(report) == found(wanted) and sorted(
        sorted(a.block[0] for a in f.accesses) for f in report.findings
    ) == [[90, 400], [500, 777]]


def test_a_block_that_writes_what_itself_and_others_have_read():
    def kernel(x):
        i = cuda.grid(1)
        left = x[i - 1] if i > 0 else 0
        cuda.syncthreads()
        x[i] = left

    report = launched(kernel, 512, 32, np.zeros(512 * 32))
    (finding,) = report.findings
    assert finding.kind == "race-global" and {access.what for access in finding.accesses} == {
        "read",
        "written",
    }
    assert report.notes[0].startswith(
        "compiled; 512 of 512 blocks have errors; the interpreter explained 256 of them"
    )


@pytest.mark.parametrize("atomic", [False, True])
def test_each_element_names_a_block_that_has_accessed_it(atomic):
    """Let block 30 race with block 10 for x[0], although block 30 last accessed x[1], like block 20."""

    def plain(x, seen):
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 10:
                seen[0] = x[0]
            if cuda.blockIdx.x == 20:
                seen[1] = x[1]
            if cuda.blockIdx.x == 30:
                x[0] = x[0] + x[1]

    def counted(x, seen):
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 10 or cuda.blockIdx.x == 30:
                cuda.atomic.add(x, 0, 1)
            if cuda.blockIdx.x == 20 or cuda.blockIdx.x == 30:
                cuda.atomic.add(x, 1, 1)
            if cuda.blockIdx.x == 30:
                seen[0] = x[0]

    kernel = counted if atomic else plain
    report = launched(kernel, 64, 256, np.zeros(2), np.zeros(2))
    wanted = simulate(kernel, on_finding="report")[64, 256](np.zeros(2), np.zeros(2))
    assert found(report) == found(wanted) and len(wanted.findings) == 1
    assert {access.block[0] for access in report.findings[0].accesses} == {10, 30}
    assert report.notes == ("compiled; 2 of 64 blocks have errors, explained by the interpreter",)


def test_all_blocks_that_race_with_one_block_are_explained():
    def kernel(x, seen):
        if cuda.threadIdx.x == 0:
            if cuda.blockIdx.x == 10:
                seen[0] = x[0]
            if cuda.blockIdx.x == 20:
                seen[1] = x[1]
            if cuda.blockIdx.x == 30:
                x[0] = 1
                x[1] = 1

    report = launched(kernel, 64, 256, np.zeros(2), np.zeros(2))
    assert {frozenset(a.block[0] for a in f.accesses) for f in report.findings} == {
        frozenset({10, 30}),
        frozenset({20, 30}),
    }
    assert report.notes == ("compiled; 3 of 64 blocks have errors, explained by the interpreter",)


def test_all_blocks_that_compiled_code_cannot_finish_are_interpreted():
    def kernel(x, out):
        i = cuda.grid(1)
        if i % 32 < 16:
            out[i] = cuda.shfl_sync(0xFFFF, x[i], 3)  # compiled code stops here, because 16 lanes are missing

    x, out = np.arange(33 * 256, dtype=np.int32), np.zeros(33 * 256, np.int32)
    assert not launched(kernel, 33, 256, x, out).findings
    np.testing.assert_array_equal(out, np.where(x % 32 < 16, x // 32 * 32 + 3, 0))


def test_some_of_each_kind_are_explained_where_all_blocks_err():
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = x[i + x.shape[0]]
        if cuda.blockIdx.x == cuda.gridDim.x - 1:
            out[0] = 1

    report = launched(kernel, 1000, 64, np.zeros(64000), np.zeros(64000))
    assert {finding.kind for finding in report.findings} == {"out-of-bounds", "race-global"}


def test_a_thread_that_raises_in_one_of_many_blocks():
    def kernel(x):
        x[cuda.grid(1)] = 1
        if cuda.grid(1) == 20_000:
            raise ValueError("here")

    with pytest.raises(ThreadError, match="thread 32 of block 312 raised ValueError: here"):
        launched(kernel, 1000, 64, np.zeros(64000))


def test_an_endless_loop_in_one_of_many_blocks():
    def kernel(x):
        while x[cuda.blockIdx.x] == 0:
            pass

    x = np.ones(500)
    x[321] = 0
    with pytest.raises(KernelBug) as caught:
        simulate(kernel, engine="native", max_steps=20_000)[500, 32](x)
    (finding,) = caught.value.findings
    assert finding.kind == "no-progress" and finding.accesses[0].block == (321, 0, 0)


def test_kernels_may_be_called_first_and_last():
    def first(x):
        x[cuda.grid(1)] = 1

    def last(x):
        x[cuda.grid(1)] = 1

    for kernel in (first, last):
        assert launched(kernel, 1, 4, np.zeros(4)).notes == ("compiled",)


def long_for(x):
    for _ in range(10**10):
        x[cuda.threadIdx.x] += 1


def many_blocks(x):
    for i in range(20_000):
        x[cuda.threadIdx.x] += i


def long_while(x):
    while x[cuda.threadIdx.x] < 1e12:
        x[cuda.threadIdx.x] += 1


@pytest.mark.parametrize("kernel, grid", [(long_for, 1), (many_blocks, 10**6), (long_while, 1)])
def test_interrupted_from_the_keyboard(kernel, grid):
    simulated = simulate(kernel, engine="native", observers=(), max_steps=10**10)[grid, 8]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    x, pressed, over = np.zeros(8), [], threading.Event()

    def press():
        while not x.any() and not over.wait(0.05):  # time until the kernel runs
            pass
        pressed.append(time.process_time())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    thread = threading.Thread(target=press)
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            simulated(x)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert time.process_time() - pressed[0] < 15  # Without the interrupt, this would take minutes.
