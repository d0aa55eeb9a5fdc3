"""Tests of the bulk copies as intrinsics: their values in the simulator, their PTX, and planted bugs."""

import linecache

import numpy as np
import pytest
from numba import cuda, int32, int64
from numba.cuda.core.errors import UnsupportedError

from kernels.tensor_cores import bulk_copies
from kernels.tensor_cores.bulk_copies import mbarrier_arrive, mbarrier_init, mbarrier_try_wait
from kernels.tensor_cores.warpgroup import fence_proxy_async
from sim import simulate, tensor_map
from sim.observers import COUNTERS, DEFAULT

TILE = """
@cuda.jit
def k(x, y):
    tile = cuda.shared.array(128, int32, alignment=128)
    bars = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    first = 128 * cuda.blockIdx.x
    if t == 0:
        mbarrier_init(bars, 0, 1)
        fence_mbarrier_init()
    cuda.syncthreads()
    if t == 0:
        mbarrier_expect(bars, 0, 512)
        bulk_load(tile, 0, x, first, 512, bars, 0)
    while not mbarrier_try_wait(bars, 0, 0):
        pass
    for i in range(t, 128, 32):
        tile[i] += 1
    fence_proxy_async()
    cuda.syncthreads()
    if t == 0:
        bulk_store(y, first, tile, 0, 512)
        bulk_commit()
        bulk_wait_read()
"""
BOX = """
@cuda.jit
def k(a, b):
    tile = cuda.shared.array((8, 32), int32, alignment=1024)
    bars = cuda.shared.array(1, int64)
    t = cuda.threadIdx.x
    column, row = 32 * cuda.blockIdx.x, 8 * cuda.blockIdx.y
    if t == 0:
        mbarrier_init(bars, 0, 1)
    cuda.syncthreads()
    if t == 0:
        mbarrier_expect(bars, 0, 1024)
        tensor_load(tile, (0, 0), a, 0, (column, row), bars, 0)
    while not mbarrier_try_wait(bars, 0, 0):
        pass
    for i in range(8):
        tile[i, t] += 1
    fence_proxy_async()
    cuda.syncthreads()
    if t == 0:
        tensor_store(b, 0, (column, row), tile, (0, 0))
        bulk_commit()
        bulk_wait()
"""
# thread 32 fills two stages in turn, and threads 0 to 31 read them
PIPELINE = """
@cuda.jit
def k(x, y):
    tile = cuda.shared.array((2, 32), int32, alignment=128)
    full = cuda.shared.array(2, int64)
    empty = cuda.shared.array(2, int64)
    t = cuda.threadIdx.x
    if t == 0:
        for stage in range(2):
            mbarrier_init(full, stage, 1)
            mbarrier_init(empty, stage, 32)
        fence_mbarrier_init()
    cuda.syncthreads()
    for step in range(4):
        stage, turn, first = step % 2, step // 2, 128 * cuda.blockIdx.x + 32 * step
        if t == 32:
            while not mbarrier_try_wait(empty, stage, (turn + 1) % 2):
                pass
            mbarrier_expect(full, stage, 128)
            bulk_load(tile, (stage, 0), x, first, 128, full, stage)
        elif t < 32:
            while not mbarrier_try_wait(full, stage, turn % 2):
                pass
            y[first + t] = tile[stage, t] + 1
            mbarrier_arrive(empty, stage)
"""
WAIT_EMPTY = """            while not mbarrier_try_wait(empty, stage, (turn + 1) % 2):
                pass
"""
EXPECT = "            mbarrier_expect(full, stage, 128)\n"
BUGS = [
    # The copies are not early enough for a wrong value, so only the order shows that the stage is not free.
    (PIPELINE, WAIT_EMPTY + EXPECT, EXPECT + WAIT_EMPTY, ["async-copy"]),
    (PIPELINE, "(turn + 1) % 2):", "1):", ["async-copy", "deadlock"]),
    (TILE, "    fence_proxy_async()\n", "", ["proxy-fence"]),
    (TILE, "        bulk_wait_read()\n", "", ["async-copy"]),
    (
        TILE,
        "    while not mbarrier_try_wait(bars, 0, 0):\n        pass\n",
        "    cuda.syncthreads()\n",
        ["async-copy"],
    ),
    (TILE, "mbarrier_expect(bars, 0, 512)", "mbarrier_expect(bars, 0, 1024)", ["deadlock"]),
    (TILE, "try_wait(bars, 0, 0)", "try_wait(bars, 0, 1)", ["async-copy"]),
    (TILE, "first, 512, bars", "first, 504, bars", ["deadlock", "misaligned-address"]),
    (BOX, "    fence_proxy_async()\n", "", ["proxy-fence"]),
    (BOX, "(column, row), bars", "(column + 1, row), bars", ["misaligned-address"]),
]


def kernel(text):
    """Return the kernel `k` of a source text."""
    name = f"<bulk copies {hash(text)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space = vars(bulk_copies) | {"cuda": cuda, "int32": int32, "int64": int64}
    space["fence_proxy_async"] = fence_proxy_async
    exec(compile(text, name, "exec"), space)
    return space["k"]


def run(text, engine="fibers", **options):
    """Return (the kinds of the findings, whether the result is correct, the report) of a launch."""
    x = np.arange(512, dtype=np.int32).reshape(-1, 64)
    y = np.zeros_like(x)
    arguments = (
        (x.ravel(), y.ravel()) if "bulk_load" in text else (tensor_map(x, (8, 32)), tensor_map(y, (8, 32)))
    )
    grid, threads = 4 if "bulk_load" in text else (2, 1), 64 if "empty" in text else 32
    report = simulate(kernel(text), engine=engine, on_finding="report", **options)[grid, threads](*arguments)
    return sorted({finding.kind for finding in report.findings}), (y == x + 1).all(), report


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize("text", [TILE, BOX, PIPELINE], ids=["tile", "box", "pipeline"])
def test_a_copy_in_and_out(text, engine):
    kinds, right, report = run(text, engine)
    assert kinds == [] and right
    assert engine != "native" or report.notes[0].startswith("interpreted:")


@pytest.mark.parametrize(("text", "old", "new", "wanted"), BUGS)
def test_the_bug_is_found(text, old, new, wanted):
    assert text.count(old) == 1
    assert run(text.replace(old, new), max_steps=4000)[0] == wanted


PADDED = """
@cuda.jit
def k(y):
    tile = cuda.shared.array((8, 32), int32, alignment=1024)
    t = cuda.threadIdx.x
    if t < 16:
        for i in range(8):
            tile[i, t ^ SWIZZLE * (i % 8 // 2 * 4)] = 100 * i + t
    fence_proxy_async()
    cuda.syncthreads()
    if t == 0:
        tensor_store(y, 0, (0, 0), tile, (0, 0))
        bulk_commit()
        bulk_wait_read()
"""


@pytest.mark.parametrize(("columns", "box", "swizzle"), [(16, 32, 0), (20, 32, 0), (12, 16, 64)])
def test_the_part_of_a_box_outside_the_tensor_needs_no_values(columns, box, swizzle):
    """Store a tile with rows of 16 values. In the second case, the tensor is wider."""
    text = PADDED.replace("SWIZZLE", str(int(swizzle > 0)))
    if swizzle:
        text = text.replace("(8, 32)", "(8, 16)")
    y = np.zeros((8, columns), np.int32)
    report = simulate(kernel(text), on_finding="report")[1, 32](tensor_map(y, (8, box), swizzle=swizzle))
    assert {finding.kind for finding in report.findings} == (
        {"uninitialized-read"} if columns > 16 else set()
    )
    wide = min(columns, 16)
    assert (y[:, :wide] == 100 * np.arange(8)[:, None] + np.arange(wide)).all()


def test_copies_are_not_requests_of_warps():
    _, right, report = run(TILE, observers=[*DEFAULT, *COUNTERS])
    assert right and report.counters["coalescing"]["requests"] == 0
    pieces = 4 * 2 * 512 // 16  # blocks, copies in each, bytes of a copy and of a log entry
    assert report.counters["banks"]["shared_requests"] < pieces


def test_the_ptx_has_the_instructions():
    arrays = int32[::1], int32[::1]
    ptx, _ = cuda.compile(kernel(TILE).py_func, arrays, cc=(9, 0), output="ptx")
    for part in (
        "mbarrier.init.shared::cta.b64",
        "mbarrier.arrive.expect_tx.shared::cta.b64 _,",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes",
        "mbarrier.try_wait.parity.shared::cta.b64",
        "cp.async.bulk.global.shared::cta.bulk_group",
        "cp.async.bulk.wait_group.read 0;",
    ):
        assert part in ptx
    with pytest.raises(UnsupportedError, match="9.0 or newer"):
        cuda.compile(kernel(TILE).py_func, arrays, cc=(8, 0), output="ptx")


@cuda.jit
def count_after_mbarrier(out):
    barrier = cuda.shared.array(1, int64)
    left = cuda.shared.array(1, int32)
    if cuda.threadIdx.x == 0:
        mbarrier_init(barrier, 0, 2)
        left[0] = 2
    cuda.syncthreads()
    mbarrier_arrive(barrier, 0)
    while not mbarrier_try_wait(barrier, 0, 0):
        pass
    if cuda.atomic.sub(left, 0, 1) == 1:
        out[0] = 1


def test_a_thread_that_a_schedule_holds_back_at_a_barrier_is_no_deadlock():
    """Run again under other schedules, because a thread acts on the result of an atomic. One of these
    schedules holds thread 0 back after the barrier, while thread 1 polls the mbarrier."""
    out = np.zeros(1, np.int32)
    report = simulate(count_after_mbarrier, on_finding="report")[1, 2](out)
    assert not report.findings and out[0] == 1
