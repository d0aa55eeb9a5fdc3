"""Tests of the warp-group instructions as intrinsics: their values in the simulator, their PTX, and the bugs
that the simulator finds in kernels that use them."""

import linecache

import numpy as np
import pytest
from ml_dtypes import bfloat16
from numba import cuda, float32, int16
from numba.cuda.core.errors import UnsupportedError

from kernels.tensor_cores import warpgroup
from sim import simulate
from sim.memory.products import Fragment
from sim.progress import ProgressCheck

TEXT = """
@cuda.jit
def k(a, b, out):
    tile_a = cuda.shared.array((64, 64), int16, alignment=1024)
    tile_b = cuda.shared.array((8, 64), int16, alignment=1024)
    t = cuda.threadIdx.x
    for i in range(t, 72 * 64, 128):
        row, column = i // 64, i % 64
        place = ((column // 8) ^ (row & 7)) * 8 + column % 8
        if row < 64:
            tile_a[row, place] = a[row, column]
        else:
            tile_b[row - 64, place] = b[row - 64, column]
    fence_proxy_async()
    cuda.syncthreads()
    total = wgmma_fence(ZEROS)
    for step in range(4):
        of_a = matrix_descriptor(tile_a, (0, 16 * step), 16, 1024, 128)
        of_b = matrix_descriptor(tile_b, (0, 16 * step), 16, 1024, 128)
        total = product(total, of_a, of_b, step > 0)
    wgmma_commit()
    total = wgmma_wait_0(total)
    row, column = t // 32 * 16 + t % 32 // 4, t % 4 * 2
    out[row, column] = total[0]
    out[row, column + 1] = total[1]
    out[row + 8, column] = total[2]
    out[row + 8, column + 1] = total[3]
"""
NAMES = {name: getattr(warpgroup, name) for name in dir(warpgroup) if not name.startswith("_")}
ZEROS = tuple(np.float32(0) for _ in range(4))


def kernel(text):
    """Return the kernel `k` of a source text."""
    name = f"<warp group kernel {hash(text)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    product = warpgroup.wgmma(8, "bf16")
    space = NAMES | {"cuda": cuda, "int16": int16, "product": product, "ZEROS": ZEROS}
    exec(compile(text, name, "exec"), space)
    return space["k"]


def run(text, threads=128):
    """Return (the kinds of the findings, whether the product is correct) of a launch."""
    random = np.random.default_rng(0)
    a, b = (random.integers(-4, 5, (rows, 64)).astype(bfloat16) for rows in (64, 8))
    out = np.zeros((64, 8), np.float32)
    report = simulate(kernel(text), on_finding="report")[1, threads](a.view(np.int16), b.view(np.int16), out)
    return {finding.kind for finding in report.findings}, np.array_equal(
        out, a.astype(float) @ b.astype(float).T
    )


def test_a_product_of_tiles():
    assert run(TEXT) == (set(), True)


# bug -> (text of the correct kernel, text with the bug, kinds of the findings)
BUGS = {
    "sums that were not fenced": ("wgmma_fence(ZEROS)", "ZEROS", {"wgmma"}),
    "sums read before the wait": (
        "    total = wgmma_wait_0(total)\n",
        "    out[0, 0] = total[0]\n    total = wgmma_wait_0(total)\n",
        {"wgmma"},
    ),
    "sums that do not pass through the wait": (
        "total = wgmma_wait_0(total)",
        "wgmma_wait_0(ZEROS)",
        {"wgmma"},
    ),
    "sums that a pending group sets": ("wgmma_wait_0", "wgmma_wait_1", {"wgmma", "async-copy"}),
    "no commit": ("    wgmma_commit()\n", "", {"wgmma", "async-copy"}),
    "sums read between two products": (
        "        of_a =",
        "        if step == 2:\n            out[0, 0] = total[0]\n        of_a =",
        {"wgmma"},
    ),
    "no proxy fence": ("    fence_proxy_async()\n", "", {"proxy-fence"}),
    "tile overwritten before the wait": (
        "    wgmma_commit()\n",
        "    wgmma_commit()\n    tile_b[0, t % 64] = 0\n",
        {"async-copy"},
    ),
    "a branch around the product": (
        "        total = product",
        "        if t < 96:\n            total = product",
        {"warp-divergence"},
    ),
    "descriptors of each warp": ("tile_a, (0,", "tile_a, (t // 32 * 8,", {"wgmma"}),
    "stride of another layout": (
        "tile_a, (0, 16 * step), 16, 1024, 128",
        "tile_a, (0, 16 * step), 16, 2048, 128",
        {"out-of-bounds"},
    ),
    "no alignment": ("(8, 64), int16, alignment=1024", "(8, 64), int16", {"wgmma"}),
}


@pytest.mark.parametrize("name", BUGS)
def test_bugs_are_found(name):
    right, wrong, kinds = BUGS[name]
    assert TEXT.count(right) == 1
    assert kinds <= run(TEXT.replace(right, wrong))[0]


def test_the_search_for_endless_loops_reads_no_registers():
    check, sums = object.__new__(ProgressCheck), Fragment.of((1.0, 2.0), context=None)
    assert check.value(sums) == check.value((1.0, 2.0))
    assert sums.touched is None


@pytest.mark.parametrize("transposed", [False, True])
def test_stmatrix_is_the_inverse_of_ldmatrix(transposed):
    from kernels.tensor_cores import instructions

    load = instructions.ldmatrix_x4_trans if transposed else instructions.ldmatrix_x4
    store = warpgroup.stmatrix_x4_trans if transposed else warpgroup.stmatrix_x4

    @cuda.jit
    def k(x, out):
        tile = cuda.shared.array((32, 8), int16, alignment=16)
        back = cuda.shared.array((32, 8), int16, alignment=16)
        lane = cuda.threadIdx.x
        for i in range(8):
            tile[lane, i] = x[lane, i]
        cuda.syncwarp()
        r = load(tile, (lane, 0))
        store(back, (lane, 0), r[0], r[1], r[2], r[3])
        cuda.syncwarp()
        for i in range(8):
            out[lane, i] = back[lane, i]

    x, out = np.arange(256, dtype=np.int16).reshape(32, 8), np.zeros((32, 8), np.int16)
    simulate(k)[1, 32](x, out)
    assert np.array_equal(out, x)


def test_one_lane_is_elected():
    @cuda.jit
    def k(out):
        fewer()
        out[cuda.threadIdx.x] = elect(0xFFFFFF00) if cuda.threadIdx.x >= 8 else 7
        more()

    elect, fewer, more = warpgroup.elect_one, warpgroup.fewer_registers(24), warpgroup.more_registers(240)
    out = np.zeros(32, np.int32)
    (note,) = simulate(k)[1, 32](out).notes
    assert out.tolist() == [7] * 8 + [1] + [0] * 23 and "setmaxnreg was not checked" in note


def test_registers_that_the_block_does_not_have_are_a_deadlock():
    fewer, more = warpgroup.fewer_registers(40), warpgroup.more_registers(240)

    def k(out):
        if cuda.threadIdx.x < 256:
            more()
        else:
            fewer()
        out[cuda.threadIdx.x] = 1

    for options, count in (({"launch_bounds": (384, 1)}, 168), ({"max_registers": 160}, 160)):
        kernel = simulate(cuda.jit(**options)(k), on_finding="report")
        (finding,) = kernel[1, 384](np.zeros(384, np.int32)).findings
        assert finding.kind == "deadlock" and f"(128 × (240 - {count}))" in finding.verdict


def test_the_ptx_has_the_instructions():
    matrices = int16[:, ::1], int16[:, ::1], float32[:, ::1]
    ptx, _ = cuda.compile(kernel(TEXT).py_func, matrices, cc=(9, 0, "a"), output="ptx")
    for part in (
        "wgmma.fence.sync.aligned;",
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        "fence.proxy.async.shared::cta;",
    ):
        assert part in ptx


def test_other_gpus_are_refused():
    matrices = int16[:, ::1], int16[:, ::1], float32[:, ::1]
    with pytest.raises(UnsupportedError, match="compute capability 9.0"):
        cuda.compile(kernel(TEXT).py_func, matrices, cc=(8, 0), output="ptx")


def test_invalid_forms_are_refused():
    with pytest.raises(ValueError, match="m64n12"):
        warpgroup.wgmma(12, "bf16")
    with pytest.raises(ValueError, match="transposes only"):
        warpgroup.wgmma(16, "e4m3", mn_major_b=True)
    with pytest.raises(ValueError, match="setmaxnreg"):
        warpgroup.fewer_registers(20)
