"""Tests of the complete message of each kind of finding from the engine and the bounds observer, word for
word."""

import re
import sys
import textwrap
import types

import numpy as np
import pytest
from numba import cuda, int32

import sim
from sim import KernelBug, ThreadError, simulate
from sim.events import Access, Finding
from sim.finding_log import MOST_REPETITIONS, FindingLog

SEEDS = range(5)


def message(kernel, grid, block, *arguments, count=1):
    """Return the messages of all findings, after checking that they do not depend on seed or engine."""
    texts = set()
    for engine in ("fibers", "threads"):
        for seed in SEEDS:
            fresh = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
            report = simulate(kernel, engine=engine, seed=seed, on_finding="report")[grid, block](*fresh)
            assert len(report.findings) == count
            texts.add("\n\n".join(f.message for f in report.findings))
    (text,) = texts
    return re.sub(r"\n  at .*", "", text)


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_an_array_of_a_tuple_has_the_name_of_the_line_too(engine):
    @cuda.jit
    def kernel(arrays):
        part = arrays[0]
        if cuda.threadIdx.x == 1:
            part[4] = 1

    report = simulate(kernel, engine=engine, on_finding="report")[1, 4]((np.zeros(4),))
    assert report.findings[0].verdict.startswith("arrays[0][4] is outside arrays[0], here part, whose")


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_the_places_in_files_as_an_editor_opens_them(engine, tmp_path, monkeypatch):
    (tmp_path / "helper.py").write_text(
        "from numba import cuda\n\n\n@cuda.jit(device=True)\ndef taken(x, i):\n    return x[i + 1]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    from helper import taken

    @cuda.jit
    def kernel(x, out):
        i = cuda.grid(1)
        out[i] = taken(x, i)
        out[i + 1] = 0

    monkeypatch.chdir(tmp_path)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 4](np.zeros(4), np.zeros(4))
    here = kernel.py_func.__code__
    places = {finding.array: re.search(r"\n  at (.*)\n", finding.message)[1] for finding in report.errors}
    assert places["x"] == "helper.py:6"
    assert re.fullmatch(rf"{here.co_filename}:(\d+)(, .*)?", places["out"])
    assert f"{here.co_filename}:{here.co_firstlineno + 4}" in places["out"]


def test_a_kernel_in_a_cell_has_no_place_in_a_file(monkeypatch):
    shell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=object()))
    monkeypatch.setitem(sys.modules, "IPython", shell)

    @cuda.jit
    def kernel(x):
        x[4] = 0

    report = simulate(kernel, on_finding="report")[1, 1](np.zeros(4))
    assert "kernel line 2" in report.findings[0].message and "\n  at " not in report.findings[0].message


def expected(text):
    return textwrap.dedent(text).strip()


def test_out_of_bounds():
    @cuda.jit
    def scale(x, out):
        i = cuda.grid(1)
        out[i] = 2 * x[i]

    assert message(scale, 2, 8, np.zeros(16), np.zeros(13)) == expected("""
        out-of-bounds: out[13] is outside out, whose shape is 13 · block 1 · thread 5
          written by thread 5 of block 1  scale line 3  out[i] = 2 * x[i]
          Index 13 must be below 13. 2 more like it.
          Likely fix: guard the access: if i < out.shape[0].
          → out-of-bounds
        """)


def test_out_of_bounds_in_two_dimensions():
    @cuda.jit
    def kernel(k, out):
        x, y = cuda.grid(2)
        out[y, x] = k[y, x + 1]

    assert message(kernel, 1, (4, 2), np.zeros((2, 4)), np.zeros((2, 4))) == expected("""
        out-of-bounds: k[0, 4] is outside k, whose shape is 2 x 4 · block 0 · thread 3
          read by thread 3 of block 0  kernel line 3  out[y, x] = k[y, x + 1]
          Index 4 along axis 1 must be below 4. 1 more like it.
          Likely fix: guard the access: the index along axis 1 must be below k.shape[1].
          → out-of-bounds
        """)


def test_the_guard_tests_the_index_of_the_access():
    def kernel(x, y):
        i = cuda.grid(1)
        cuda.atomic.add(y, i * 2, x[i ^ 8])
        y[i + 1] = 1; x[(i | 8) % 16] = 1  # fmt: skip  # noqa: E702
        y[99 if i else 50] = 1

    found = simulate(kernel, on_finding="report")[1, 1](np.zeros(8), np.zeros(1)).findings
    guards = {f.fix.removeprefix("guard the access: ") for f in found}
    assert guards == {
        "if (i ^ 8) < x.shape[0]",
        "if i + 1 < y.shape[0]",
        "if ((i | 8) % 16) < x.shape[0]",
        "if (99 if i else 50) < y.shape[0]",
    }


def test_a_bad_store_is_dropped_and_a_bad_load_gives_poison():
    def kernel(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i]

    x, out = np.arange(3.0), np.zeros(5)
    simulate(kernel, on_finding="report")[1, 8](x, out)
    assert out[:3].tolist() == [0, 1, 2] and np.isnan(out[3:]).all()


def test_negative_index():
    def difference(x, out):
        i = cuda.threadIdx.x
        out[i] = x[i] - x[i - 1]

    assert message(difference, 1, 4, np.arange(4.0), np.zeros(4)) == expected("""
        warning: negative-index: x[-1] counts from the end of x, whose shape is 4 · block 0 · thread 0
          read by thread 0 of block 0  difference line 3  out[i] = x[i] - x[i - 1]
          Numba wraps negative indices as Python does; CUDA C would read or write in front of the array.
          Likely fix: if you did not mean to count from the end, guard the access: if i - 1 >= 0.
          → negative-index
        """)


def test_warnings_do_not_raise():
    def kernel(x):
        x[cuda.threadIdx.x - 1] = 1

    x = np.zeros(3)
    assert [f.kind for f in simulate(kernel)[1, 1](x).findings] == ["negative-index"] and x[2] == 1


def test_barrier_behind_a_return():
    @cuda.jit
    def kernel(x, n):
        i = cuda.grid(1)
        if i >= n:
            return
        x[i] = i
        cuda.syncthreads()

    assert message(kernel, 2, 4, np.zeros(8), 6) == expected("""
        barrier-divergence: 2 of 4 threads wait at a barrier and 2 have returned · block 1 · threads 0 and 2
          thread 0 of block 1 waits     kernel line 6  cuda.syncthreads()
          thread 2 of block 1 returned
          cuda.syncthreads() opens only when every thread of the block has reached the same call.
          Likely fix: replace the return on line 4 with a branch around the statements after it, but keep the barrier on line 6 outside of this branch, so that every thread reaches it.
          → barrier-divergence
        """)


def test_two_barriers():
    def kernel(x):
        if cuda.threadIdx.x % 2:
            cuda.syncthreads()
        else:
            cuda.syncthreads()

    assert message(kernel, 1, 4, np.zeros(8)) == expected("""
        barrier-divergence: the 4 threads of the block wait at different barriers · block 0 · threads 0 and 1
          thread 0 of block 0 waits  kernel line 5  cuda.syncthreads()
          thread 1 of block 0 waits  kernel line 3  cuda.syncthreads()
          cuda.syncthreads() opens only when every thread of the block has reached the same call.
          Likely fix: replace the barriers on lines 3 and 5 with one barrier that every thread of the block reaches: end the branch at line 2, put the barrier after it, and put the statements that followed the old barriers into a second branch with the same condition.
          → barrier-divergence
        """)


def test_a_shuffle_in_a_branch():
    def kernel(x):
        lane = cuda.threadIdx.x
        if lane < 30:
            x[lane] = cuda.shfl_down_sync(0xFFFFFFFF, lane, 1)
        cuda.syncwarp()

    assert message(kernel, 1, 32, np.zeros(32)) == expected("""
        warp-divergence: 30 lanes of warp 0 wait in shfl_down_sync for lanes 30, 31, which never arrive · block 0 · threads 0 and 30
          thread 0 of block 0 waits   kernel line 4  x[lane] = cuda.shfl_down_sync(0xFFFFFFFF, lane, 1)
          thread 30 of block 0 waits  kernel line 5  cuda.syncwarp()
          The mask 0xffffffff contains these lanes, but they wait elsewhere.
          Likely fix: move the call to a line that all lanes of the mask reach, or use a mask of only the lanes that reach it (cuda.ballot_sync before the branch returns this mask).
          → warp-divergence
        """)


def test_a_mask_without_the_caller():
    def kernel(x):
        lane = cuda.threadIdx.x
        x[lane] = cuda.shfl_sync(0x7FFFFFFF, lane, 0)

    assert message(kernel, 1, 32, np.zeros(32)) == expected("""
        warp-divergence: lane 31 passes a mask that does not contain this lane, 0x7fffffff · block 0 · thread 31
          thread 31 of block 0 calls  kernel line 3  x[lane] = cuda.shfl_sync(0x7FFFFFFF, lane, 0)
          The mask contains the lanes that take part, and the calling lane must be one of them.
          Likely fix: pass a mask that contains every lane which reaches this call (0xffffffff for all 32).
          → warp-divergence
        """)


def test_a_grid_barrier_that_one_block_leaves_out():
    def kernel(x):
        if cuda.blockIdx.x:
            cuda.cg.this_grid().sync()

    assert message(kernel, 3, 2, np.zeros(8)) == expected("""
        deadlock: 2 of 3 blocks wait at a grid barrier that the others never reach: they have ended · block 1 · thread 0
          thread 0 of block 1 waits  kernel line 3  cuda.cg.this_grid().sync()
          A grid barrier opens when every thread of every block has arrived.
          Likely fix: let every thread reach grid.sync() the same number of times.
          → deadlock
        """)


def test_barriers_of_two_kinds():
    def kernel(x):
        if cuda.threadIdx.x:
            cuda.cg.this_grid().sync()
        else:
            cuda.syncthreads()

    assert message(kernel, 1, 2, np.zeros(8)) == expected("""
        deadlock: threads of one block wait for each other at barriers of different kinds · block 0 · threads 0 and 1
          thread 0 of block 0 waits  kernel line 5  cuda.syncthreads()
          thread 1 of block 0 waits  kernel line 3  cuda.cg.this_grid().sync()
          cuda.syncthreads() needs all threads of the block, and grid.sync() all threads of the grid. Neither opens while some threads wait at the other.
          Likely fix: let all threads of the block go through the same barriers in the same order.
          → deadlock
        """)


def test_no_progress(monkeypatch):
    monkeypatch.setattr(sim.loop_limits, "PATIENCE", 0.1)

    def kernel(x):
        while x[0] == 0:
            pass

    assert message(kernel, 1, 1, np.zeros(1)) == expected("""
        no-progress: a loop repeats without end · block 0 · thread 0
          thread 0 of block 0 loops  kernel line 2  while x[0] == 0:
          No thread ended during 1,000,000 iterations of the loop, or for 0.1 s.
          Likely fix: look at what should end the loop; if the kernel is only slow, simulate(kernel, max_steps=...) raises the limit.
          → no-progress
        """)


def test_each_error_is_raised_once_and_the_next_launch_works():
    def kernel(x, y):
        i = cuda.threadIdx.x
        x[i] = y[i]

    with pytest.raises(KernelBug) as caught:
        simulate(kernel)[1, 8](np.zeros(6), np.zeros(5))
    assert [(f.kind, f.array, f.index, f.count) for f in caught.value.findings] == [
        ("out-of-bounds", "y", (5,), 2),
        ("out-of-bounds", "x", (6,), 1),
    ]
    assert str(caught.value).count("out-of-bounds:") == 2
    assert simulate(kernel)[1, 5](np.zeros(6), np.zeros(5)).findings == ()


def test_without_the_bounds_tool_a_bad_access_is_an_index_error():
    def kernel(x):
        x[cuda.threadIdx.x] = 1

    with pytest.raises(Exception, match=r"raised IndexError: x\[3\] is outside its shape \[3\]"):
        simulate(kernel, observers=())[1, 4](np.zeros(3))


def test_a_count_in_shared_memory_lacks_a_barrier_and_no_fence():
    """Count in shared memory. No thread uses the results of these atomics, so a barrier is missing and no
    fence."""

    @cuda.jit
    def counted(x, out):
        bins = cuda.shared.array(4, int32)
        t = cuda.threadIdx.x
        if t < 4:
            bins[t] = 0
        cuda.syncthreads()
        cuda.atomic.add(bins, x[t], 1)
        cuda.syncwarp()
        out[t] = bins[x[t]]

    for seed in range(4):
        report = simulate(counted, seed=seed, on_finding="report")[1, 64](
            np.arange(64, dtype=np.int32) * 7 % 4, np.zeros(64)
        )
        assert [finding.fix.split(" ")[0] for finding in report.findings] == ["cuda.syncthreads()"]


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("dtype, read", [(np.float32, (5, 6, 7)), (np.uint8, ())])
def test_what_an_earlier_launch_has_written_is_written(engine, dtype, read):
    def first(x):
        if cuda.grid(1) < 5:
            x[cuda.grid(1)] = cuda.grid(1)

    def second(x, y):
        y[cuda.grid(1)] = x[cuda.grid(1)]

    x, y = sim.empty(8, dtype), np.zeros(8, dtype)
    simulate(first, engine=engine)[2, 4](x)
    report = simulate(second, engine=engine, on_finding="report")[2, 4](x, y)
    assert sorted(i for f in report.findings for i in f.index) == ([5] if read else [])
    assert sum(1 + f.count for f in report.findings) == len(read)
    x[:] = 1  # Stores by the host count as well.
    assert not simulate(second, engine=engine)[2, 4](x, y).findings


def test_what_one_thread_does_again_and_again_is_counted():
    """Repeat a faulty access 2,500 times in each of three threads. Not every occurrence is stored."""

    def kernel(x):
        for _ in range(2_500):
            x[cuda.threadIdx.x + 1] = 1

    (finding,) = simulate(kernel, on_finding="report")[1, 3](np.zeros(1)).findings
    assert finding.count == 7_499


TABLE = np.zeros(3)


def test_a_part_is_called_as_the_kernel_calls_it():
    def kernel(x, out):
        odd = x[1::2]
        table = cuda.const.array_like(TABLE)
        out[0] = odd[cuda.threadIdx.x + 5]
        out[1] = table[cuda.threadIdx.x + 3]
        out[cuda.blockDim.x + 1] = 1

    findings = simulate(kernel, on_finding="report")[1, 1](np.zeros(10), np.zeros(2)).findings
    assert [(finding.verdict, finding.fix.removeprefix("guard the access: ")) for finding in findings] == [
        ("odd[5] is outside odd, a part of x, whose shape is 5", "if cuda.threadIdx.x + 5 < odd.shape[0]"),
        (
            "table[3] is outside table, a global array, whose shape is 3",
            "if cuda.threadIdx.x + 3 < table.shape[0]",
        ),
        ("out[2] is outside out, whose shape is 2", "if cuda.blockDim.x + 1 < out.shape[0]"),
    ]


def test_what_is_read_and_then_written_by_all_wants_an_atomic():
    def two_lines(n):
        old = n[0]
        n[0] = old + cuda.threadIdx.x

    def beside_a_queue(n):
        slot = cuda.atomic.add(n, 1, 1)
        n[0] += slot

    fixes = {
        two_lines: "replace the read of n[0] on line 2 and the write on line 3 with one atomic, cuda.atomic.add,"
        " on line 2, and assign the old value that it returns to old",
        beside_a_queue: "cuda.atomic (cuda.atomic.add for +=), or let each thread write an element of its own,"
        " or let one thread do it for all, or let all threads hold the same lock",
    }
    for kernel, fix in fixes.items():
        findings = simulate(kernel, on_finding="report")[1, 4](np.zeros(2, np.int64)).findings
        assert {finding.fix for finding in findings} == {fix}


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_no_fence_is_asked_for_after_the_atomic_that_acquires(engine):
    """Read plainly after spinning on an atomic. sim/README.md says that this read is ordered."""

    def kernel(message, flag, out):
        if cuda.blockIdx.x == 0:
            message[0] = 7
            cuda.threadfence()
            cuda.atomic.exch(flag, 0, 1)
        else:
            out[0] = message[0]
            while cuda.atomic.add(flag, 0, 0) == 0:
                pass
            out[1] = message[0]

    out = np.zeros(2)
    arguments = np.zeros(1), np.zeros(1, np.int32), out
    report = simulate(kernel, engine=engine, on_finding="report")[2, 1](*arguments)
    assert {access.site.line for finding in report.findings for access in finding.accesses} == {3, 7}
    assert out[1] == 7


@cuda.jit
def count(x, out):
    cuda.atomic.add(out, 0, x[cuda.threadIdx.x])


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("number", "found"), [(3.0, []), (3.5, ["misuse"]), (np.nan, ["misuse"]), (np.inf, ["misuse"])]
)
def test_an_atomic_on_integers_that_changes_its_operand(number, found, dtype, engine):
    out = np.zeros(1, np.int32)
    report = simulate(count, engine=engine, on_finding="report")[1, 32](np.full(32, number, dtype), out)
    assert [finding.kind for finding in report.findings] == found
    assert number != 3 or out[0] == 96


@cuda.jit
def refuses_what_it_cannot_read(x, out):
    i = cuda.threadIdx.x
    value = x[i]
    if value != value:
        raise ValueError("not a number")
    out[i] = value


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_an_exception_names_the_error_before_it(engine):
    launch = simulate(refuses_what_it_cannot_read, engine=engine, on_finding="report")[1, 8]
    with pytest.raises(
        ThreadError, match="not a number(.|\n)*Before that: x\\[\\d\\] is outside x"
    ) as raised:
        launch(np.ones(5), np.ones(8))
    assert [finding.kind for finding in raised.value.findings] == ["out-of-bounds"]


def test_repetitions_of_a_finding_are_counted():
    log = FindingLog()
    witness = [Access("read", (0, 0, 0), (t, 0, 0), None, None) for t in range(2)]
    for t in (0, 1):
        log += [Finding("out-of-bounds", "warning" if t else "error", "", (witness[t],))] * 1500
        assert log.has_errors
    assert len(log) == 2 * MOST_REPETITIONS
    assert sum(finding.count + 1 for finding in log) == 2 * 1500
    log.withdraw(log[:MOST_REPETITIONS])
    log.append(log[-1])
    assert len(log) == MOST_REPETITIONS + 1
