"""Tests of tensor-core instructions and asynchronous copies in the simulator.

Products must equal NumPy's bit for bit, and planted bugs must be found.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda
from numba.cuda import types
from numpy import float32, float64, int16, int32

from kernels.tensor_cores import instructions as isa
from kernels.tensor_cores.instructions import (
    cp_async_4,
    cp_async_8,
    cp_async_16,
    cp_async_commit,
    cp_async_wait_0,
    ldmatrix_x4,
    mma_bf16,
)
from sim import simulate
from sim.observers import Banks, Traffic
from sim.observers.copies import Flights

ENGINES = ("fibers", "threads", "native")
FORMATS = {"bf16": bfloat16, "f16": np.float16}


def bits(numbers, kind="bf16"):
    return np.asarray(numbers).astype(FORMATS[kind]).view(int16)


def small_integers(seed, *shape):
    return np.random.default_rng(seed).integers(-8, 9, shape)


# --- products -----------------------------------------------------------------------------------------------


def product(kind, transposed):
    """Return a kernel that computes out = a b + c for a (16, 16).

    b is column-major with shape (8, 16), or row-major with shape (16, 8) if `transposed`.
    """
    mma, load_b = getattr(isa, f"mma_{kind}"), isa.ldmatrix_x2_trans if transposed else isa.ldmatrix_x2

    def kernel(a, b, c, out):
        a_tile = cuda.shared.array((16, 24), int16, alignment=16)
        b_tile = cuda.shared.array((16, 24), int16, alignment=16)
        lane = cuda.threadIdx.x
        for x in range(lane, 256, 32):
            a_tile[x // 16, x % 16] = a[x // 16, x % 16]
        for x in range(lane, b.size, 32):
            b_tile[x // b.shape[1], x % b.shape[1]] = b[x // b.shape[1], x % b.shape[1]]
        cuda.syncwarp()
        a0, a1, a2, a3 = ldmatrix_x4(a_tile, (lane % 16, lane // 16 * 8))
        row = lane % 16 if transposed else lane % 8
        column = 0 if transposed else lane // 8 % 2 * 8
        b0, b1 = load_b(b_tile, (row, column))
        g, t = lane // 4, lane % 4 * 2
        d0, d1, d2, d3 = mma(a0, a1, a2, a3, b0, b1, c[g, t], c[g, t + 1], c[g + 8, t], c[g + 8, t + 1])
        out[g, t], out[g, t + 1], out[g + 8, t], out[g + 8, t + 1] = d0, d1, d2, d3

    return kernel


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_of_small_integers_is_exact(engine, kind, transposed):
    a, b, c = small_integers(0, 16, 16), small_integers(1, 16, 8), small_integers(2, 16, 8).astype(float32)
    out = np.full((16, 8), np.nan, float32)
    given = b if transposed else b.T
    report = simulate(product(kind, transposed), engine=engine)[1, 32](
        bits(a, kind), bits(given, kind), c, out
    )
    assert np.array_equal(out, a @ b + c)
    assert not report.findings
    if engine == "native":
        assert report.notes[0].startswith("interpreted: ldmatrix_x")


@pytest.mark.parametrize("kind", FORMATS)
def test_a_product_of_any_numbers_is_rounded_once(kind):
    rng, out = np.random.default_rng(3), np.zeros((16, 8), float32)
    a, b, c = (rng.standard_normal(shape).astype(FORMATS[kind]) for shape in ((16, 16), (16, 8), (16, 8)))
    simulate(product(kind, True))[1, 32](a.view(int16), b.view(int16), c.astype(float32), out)
    exact = a.astype(np.float64) @ b.astype(np.float64) + c.astype(np.float64)
    np.testing.assert_allclose(out, exact, rtol=2**-23, atol=1e-12)


def test_infinities_and_nan_go_where_they_belong():
    a, b, out = np.zeros((16, 16)), np.zeros((16, 8)), np.zeros((16, 8), float32)
    a[3, 5], b[5, :], a[7, 2], a[9] = np.inf, 1, np.nan, 2
    b[:, 6] = 1
    simulate(product("bf16", True))[1, 32](bits(a), bits(b), np.zeros((16, 8), float32), out)
    assert np.all(out[3] == np.inf) and np.all(np.isnan(out[7]))
    assert np.array_equal(out[9], [2, 2, 2, 2, 2, 2, 32, 2])


# --- ldmatrix -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
def test_the_map_of_ldmatrix(count, transposed):
    load = getattr(isa, f"ldmatrix_x{count}{'_trans' if transposed else ''}")

    def kernel(x, out):
        tile = cuda.shared.array((32, 8), int16, alignment=16)
        lane = cuda.threadIdx.x
        for column in range(8):
            tile[lane, column] = x[lane, column]
        cuda.syncwarp()
        found = load(tile, (lane, 0))
        if count == 1:
            out[0, lane] = found
        else:
            for r in range(count):
                out[r, lane] = found[r]

    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.zeros((count, 32), np.uint32)
    simulate(kernel)[1, 32](x, out)
    for r in range(count):
        matrix = x[8 * r : 8 * r + 8]
        matrix = matrix.T if transposed else matrix
        for lane in range(32):
            g, t = lane // 4, 2 * (lane % 4)
            assert out[r, lane] == int(matrix[g, t]) | int(matrix[g, t + 1]) << 16


@pytest.mark.parametrize("pitch, turns", [(72, [4, 2, 1, 4]), (64, [32, 16, 8, 32])])
def test_ldmatrix_is_counted_as_an_h200_counts_it(pitch, turns):
    """Compare the counts for four ldmatrix instructions with ncu's on an H200.

    With rows of 128 bytes, all rows start in one bank, and each matrix takes eight wavefronts; with 144
    bytes, one. ncu counted 11 and 88 wavefronts, 0 and 77 conflicts, and 1408 bytes.
    """

    def kernel(out):
        tile = cuda.shared.array((32, pitch), int16, alignment=16)
        lane = cuda.threadIdx.x
        for row in range(32):
            tile[row, lane] = row
        cuda.syncwarp()
        found = ldmatrix_x4(tile, (lane & 15, (lane >> 4) * 8))[0]
        found ^= isa.ldmatrix_x2(tile, (lane & 15, 16))[0]
        found ^= isa.ldmatrix_x1(tile, (lane & 7, 24))
        out[lane] = found ^ isa.ldmatrix_x4_trans(tile, (16 + (lane & 15), (lane >> 4) * 8))[0]

    report = simulate(kernel, observers=[Banks, Traffic])[1, 32](np.zeros(32, np.uint32))
    lines = [report.counters["lines"]["kernel", 7 + i] for i in range(4)]
    assert [(line["shared_requests"], line["wavefronts"]) for line in lines] == [
        (1, count) for count in turns
    ]
    assert report.counters["memory"]["shared"]["load_bytes"] == 1408


# --- cp.async -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [4, 8, 16])
def test_copies_arrive_at_the_wait(engine, size):
    copy, count = getattr(isa, f"cp_async_{size}"), size // 2

    def kernel(x, out):
        tile = cuda.shared.array((32, 8), int16, alignment=16)
        lane = cuda.threadIdx.x
        copy(tile, (lane, 0), x, (lane, 0), size if lane < 30 else 0)
        cp_async_commit()
        cp_async_wait_0()
        cuda.syncthreads()
        for column in range(count):
            out[lane, column] = tile[31 - lane, column]

    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.full((32, count), -1, int16)
    simulate(kernel, engine=engine)[1, 32](x, out)
    wanted = x[::-1, :count].copy()
    wanted[:2] = 0
    assert np.array_equal(out, wanted)


def test_the_newest_groups_may_be_under_way():
    def kernel(x, out):
        tile = cuda.shared.array((2, 32, 8), int16, alignment=16)
        lane = cuda.threadIdx.x
        cp_async_16(tile, (0, lane, 0), x, (lane, 0), 16)
        cp_async_commit()
        cp_async_16(tile, (1, lane, 0), x, (lane, 0), 16)
        cp_async_commit()
        isa.cp_async_wait_1()
        cuda.syncthreads()
        out[lane] = ldmatrix_x4(tile, (0, lane, 0))[1]
        cp_async_wait_0()
        cuda.syncthreads()
        out[lane] += ldmatrix_x4(tile, (1, lane, 0))[1]

    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.zeros(32, np.uint32)
    simulate(kernel)[1, 32](x, out)
    assert np.array_equal(out, 2 * x[8:16].reshape(-1).view(np.uint32))


# --- planted bugs -------------------------------------------------------------------------------------------


def copied_without_a_wait(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    cuda.syncthreads()
    out[lane] = ldmatrix_x4(tile, (lane, 0))[0]


def read_without_a_wait(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    cuda.syncthreads()
    out[lane] = tile[31 - lane, 0]


def own_copy_read_without_a_wait(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    out[lane] = tile[lane, 0]


def a_lane_s_copy_read_without_a_wait(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    cuda.syncwarp()
    out[lane] = tile[31 - lane, 0]
    cp_async_wait_0()


def source_overwritten_by_its_thread(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    x[lane, 7] = 0
    cp_async_wait_0()
    out[lane] = tile[lane, 0]


def source_overwritten_by_another(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_8(tile, (lane, 0), x, (lane, 0), 8)
    cp_async_commit()
    cuda.syncthreads()
    x[31 - lane, 1] = 0
    cp_async_wait_0()
    out[lane] = tile[lane, 0]


def waited_without_a_commit(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_wait_0()
    cuda.syncthreads()
    out[lane] = ldmatrix_x4(tile, (lane, 0))[0]


def waited_for_the_wrong_group(x, out):
    tile = cuda.shared.array((2, 32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    for stage in range(2):
        cp_async_16(tile, (stage, lane, 0), x, (lane, 0), 16)
        cp_async_commit()
    isa.cp_async_wait_1()
    cuda.syncthreads()
    out[lane] = ldmatrix_x4(tile, (1, lane, 0))[0]


def waited_without_a_barrier(x, out):
    tile = cuda.shared.array((64, 8), int16, alignment=16)
    t = cuda.threadIdx.x
    cp_async_16(tile, (t, 0), x, (t % 32, 0), 16)
    cp_async_commit()
    cp_async_wait_0()
    out[t % 32] = ldmatrix_x4(tile, (63 - t, 0))[0]


def overwritten_while_read(x, out):
    tile = cuda.shared.array((64, 8), int16, alignment=16)
    t = cuda.threadIdx.x
    for turn in range(2):
        cp_async_16(tile, (t, 0), x, (t % 32, 0), 16)
        cp_async_commit()
        cp_async_wait_0()
        cuda.syncthreads()
        if t < 32:
            out[t] = ldmatrix_x4(tile, (63 - t, 0))[0]


def misaligned_row(x, out):
    tile = cuda.shared.array((32, 12), int16, alignment=16)
    lane = cuda.threadIdx.x
    for column in range(12):
        tile[lane, column] = 0
    cuda.syncthreads()
    out[lane] = ldmatrix_x4(tile, (lane, 0))[0]


def misaligned_source(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_8(tile, (lane, 0), x, (lane, 1), 8)
    cp_async_commit()
    cp_async_wait_0()
    out[lane] = tile[lane, 0]


def beyond_the_row(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane + 1, 0), 16)
    cp_async_commit()
    cp_async_wait_0()
    out[lane] = tile[lane, 0]


def never_written(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    out[cuda.threadIdx.x] = ldmatrix_x4(tile, (cuda.threadIdx.x, 0))[0]


def without_lane_seven(x, out):
    lane, one = cuda.threadIdx.x, float32(1)
    if lane != 7:
        out[lane] = mma_bf16(0, 0, 0, 0, 0, 0, one, one, one, one)[0]


def in_two_branches(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_4(tile, (lane, 0), x, (lane, 0), 4)
    cp_async_commit()
    cp_async_wait_0()
    cuda.syncthreads()
    if lane < 16:
        out[lane] = isa.ldmatrix_x1(tile, (lane, 0))
    else:
        out[lane] = isa.ldmatrix_x1_trans(tile, (lane, 0))


PLANTED = {
    copied_without_a_wait: "async-copy",
    read_without_a_wait: "async-copy",
    own_copy_read_without_a_wait: "async-copy",
    a_lane_s_copy_read_without_a_wait: "async-copy",
    source_overwritten_by_its_thread: "async-copy",
    source_overwritten_by_another: "async-copy",
    waited_without_a_commit: "async-copy",
    waited_for_the_wrong_group: "async-copy",
    waited_without_a_barrier: "race-shared",
    overwritten_while_read: "race-shared",
    misaligned_row: "misaligned-address",
    misaligned_source: "misaligned-address",
    beyond_the_row: "out-of-bounds",
    never_written: "uninitialized-read",
    without_lane_seven: "warp-divergence",
    in_two_branches: "warp-divergence",
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kernel", PLANTED, ids=lambda kernel: kernel.__name__)
def test_planted_bugs_are_found(kernel, engine):
    threads = 64 if kernel in (waited_without_a_barrier, overwritten_while_read) else 32
    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.zeros(32, np.uint32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, threads](x, out)
    assert PLANTED[kernel] in {finding.kind for finding in report.errors}


@pytest.mark.parametrize("engine", ENGINES)
def test_behind_the_wait_a_source_may_be_overwritten(engine):
    def kernel(x, out):
        tile = cuda.shared.array((32, 8), int16, alignment=16)
        lane = cuda.threadIdx.x
        x[31 - lane, 7] = lane
        cuda.syncthreads()
        cp_async_16(tile, (lane, 0), x, (lane, 0), 8)
        cp_async_commit()
        x[lane, 4] = -1  # an address after the eight copied bytes
        cp_async_wait_0()
        x[lane, 0] = -1
        cuda.syncthreads()
        x[31 - lane, 1] = -1
        out[lane] = tile[lane, 1]

    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.zeros(32, np.uint32)
    simulate(kernel, engine=engine)[1, 32](x, out)
    assert np.array_equal(out, 8 * np.arange(32) + 1)


def read_by_another_without_a_wait(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    out[lane] = tile[31 - lane, 0]


def read_by_another_after_the_wait(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    cp_async_wait_0()
    out[lane] = tile[31 - lane, 0]


def read_by_another_after_both(x, out):
    tile = cuda.shared.array((32, 8), int16, alignment=16)
    lane = cuda.threadIdx.x
    cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
    cp_async_commit()
    cp_async_wait_0()
    cuda.syncthreads()
    out[lane] = tile[31 - lane, 0]


FIXES = {
    read_by_another_without_a_wait: (
        "let the thread that sent the copy commit it and wait for it (cp.async.wait_group); after this wait,"
        " cuda.syncthreads() between the two lines"
    ),
    read_by_another_after_the_wait: "cuda.syncthreads() between lines 6 and 7",
    read_by_another_after_both: None,
}


@pytest.mark.parametrize("engine", [*ENGINES, "auto"])
@pytest.mark.parametrize("kernel", FIXES, ids=lambda kernel: kernel.__name__)
def test_a_wait_precedes_the_barrier_that_orders_a_copy(kernel, engine):
    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.zeros(32, np.uint32)
    findings = simulate(kernel, engine=engine, on_finding="report")[1, 32](x, out).findings
    assert len(findings) == (FIXES[kernel] is not None)
    for finding in findings:
        assert finding.kind == "race-shared" and finding.fix.startswith(FIXES[kernel])
        assert "by an asynchronous copy of one thread and read by another thread" in finding.verdict
        # The step inserts the barrier after the wait.
        assert [step.line for step in finding.advice.steps] == [6] * ("lines 6" in FIXES[kernel])


def test_what_a_finding_says():
    x, out = np.arange(256, dtype=int16).reshape(32, 8), np.zeros(32, np.uint32)
    report = simulate(copied_without_a_wait, on_finding="report")[1, 32](x, out)
    assert report.errors[0].message.startswith(
        "async-copy: tile[0, 0] is read while an asynchronous copy to it may be under way"
    )
    report = simulate(source_overwritten_by_its_thread, on_finding="report")[1, 32](x, out)
    says = "async-copy: x[0, 7] is written while an asynchronous copy from it may be under way"
    assert report.errors[0].message.startswith(says)
    report = simulate(misaligned_row, on_finding="report")[1, 32](x, out)
    says = "an address that is a multiple of 16, but tile[1, 0] is 8 bytes past one"
    assert says in report.errors[0].message


def test_a_factor_of_an_index_is_no_name_of_a_view():
    def kernel(out):
        tile = cuda.shared.array((16, 16), int16, alignment=16)
        t = cuda.threadIdx.x
        for j in range(4):
            tile[t // 4, t % 4 * 4 + j] = 0
        cuda.syncthreads()
        out[t] = ldmatrix_x4(tile, (t % 16, t % 32 // 16 * 8))[0]
        tile[t % 16, 0] = t

    report = simulate(kernel, on_finding="report")[1, 64](np.zeros(64, np.uint32))
    fixes = {finding.fix for finding in report.findings if "read" in {a.what for a in finding.accesses}}
    assert fixes == {"cuda.syncthreads() between the two lines, where every thread of the block reaches it"}


def row_aligned_by_luck(x, out):
    tile = cuda.shared.array((32, 8), int16)
    ends = cuda.shared.array(3, int16)
    if cuda.threadIdx.x < 3:
        ends[cuda.threadIdx.x] = 0
    read_by_rows(tile, out)


def row_of_the_only_tile(x, out):
    read_by_rows(cuda.shared.array((32, 8), int16), out)


@cuda.jit(device=True)
def read_by_rows(tile, out):
    lane = cuda.threadIdx.x
    for column in range(8):
        tile[lane, column] = 0
    cuda.syncthreads()
    out[lane] = ldmatrix_x4(tile, (lane, 0))[0]


@pytest.mark.parametrize("seed", range(2))
def test_a_tile_that_is_not_declared_aligned_is_a_warning(seed):
    x, out = np.zeros((32, 32), np.int16), np.zeros(32, np.uint32)
    report = simulate(row_aligned_by_luck, seed=seed)[1, 32](x, out)
    (finding,) = report.findings
    assert finding.kind == "misaligned-address" and finding.severity == "warning"
    assert "tile[0, 0] has to lie at a multiple of 16 bytes, but tile is declared with" in finding.message
    assert "alignment 2 · block 0 · thread 0" in finding.message
    assert "by luck: the compiler may place it after ends, which has 6 bytes" in finding.message
    assert "Likely fix: declare tile with alignment=16." in finding.message


def test_the_only_array_is_aligned_wherever_a_compiler_puts_it():
    x, out = np.zeros((32, 32), np.int16), np.zeros(32, np.uint32)
    assert simulate(row_of_the_only_tile)[1, 32](x, out).findings == ()


def test_an_old_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(
        cuda.dispatcher, "get_current_device", lambda: SimpleNamespace(compute_capability=(7, 5))
    )

    # Numba types a call once per process, and other tests compile calls for newer GPUs.
    # This test therefore uses a type that no other test uses.
    def kernel(x, out):
        tile = cuda.shared.array((32, 8), float64, alignment=16)
        cp_async_16(tile, (0, 0), x, (0, 0), int32(16))

    signature = types.void(types.Array(types.float64, 2, "C"), types.Array(types.uint32, 1, "C"))
    with pytest.raises(Exception, match="cp_async_16 takes a GPU of compute capability 8.0 or newer.*7.5"):
        cuda.compile(kernel, signature, device=False, abi="numba", output="ptx", cc=(7, 5))


def test_a_finding_is_made_only_for_the_case_that_is_shown(monkeypatch):
    made, finding = [], Flights.finding
    monkeypatch.setattr(Flights, "finding", lambda *case: made.append(case) or finding(*case))

    @cuda.jit
    def kernel(x, out):
        tile, lane = cuda.shared.array((32, 8), int16, alignment=16), cuda.threadIdx.x
        cp_async_16(tile, (lane, 0), x, (lane, 0), 16)
        cp_async_commit()
        cuda.syncthreads()
        for i in range(8):
            for row in range(32):
                out[lane] += tile[(lane + row) % 32, i]
        cp_async_wait_0()

    x, out = np.zeros((32, 8), np.int16), np.zeros(32, np.int64)
    report = simulate(kernel, on_finding="report")[1, 32](x, out)
    first = next(finding for finding in report.errors if finding.kind == "async-copy")
    assert 1 + first.count == 32 * 32 * 8 and len(made) <= 2
    assert first.index == (0, 0) and [access.thread for access in first.accesses] == [(0, 0, 0)] * 2
