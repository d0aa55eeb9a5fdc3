"""Tests of matrix descriptors that do not fit the layout in which a tensor copy has written the tile. All
addresses are in shared memory. The kernels compute A Bᵀ for A 64×64 and B 16×64."""

import numpy as np
import pytest

from ptx.hopper_corpus import FACTORS, PRELUDE
from sim import load_ptx, simulate, tensor_map
from sim.engine.descriptors import misfit
from sim.isa.matrix_descriptor import MatrixDescriptor
from sim.ptx.nvrtc import compile_ptx

HEAD = r"""
typedef unsigned short u16;
using wg::describe;
__device__ void product_of_transposed(float (&d)[8], u64 a, u64 b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7},"
        " %8, %9, 1, 1, 1, 1, 1;"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "l"(a), "l"(b) : "memory");
}
// Exchange the chunks of a tile of rows of 128 bytes, as a 128-byte swizzle does.
__device__ void exchange(u16* tile, int rows, int t) {
    for (int i = t; i < 8 * rows; i += 128) {
        uint4 chunk = ((uint4*)tile)[i];
        __syncthreads();
        ((uint4*)tile)[i ^ i / 8 % 8] = chunk;
    }
}
extern "C" __global__ void k(const __grid_constant__ Map a, const __grid_constant__ Map b, float* y) {
    __shared__ __align__(1024) u16 tile_a[8192], tile_b[1024];
    __shared__ u64 full;
    int t = threadIdx.x;
    if (t == 0) { init(&full, 1); init_fence(); }
    __syncthreads();
    float d[8] = {};
    if (t == 0) {
        expect(&full, 8192 + 2048);
"""
TAIL = "wg::commit();\nwg::wait<0>();\nwg::keep(d);\nwg::store(y, d, t);\n}"
BOTH = "load_box(tile_a, &a, 0, 0, &full); load_box(tile_b, &b, 0, 0, &full);"
PRODUCTS = (
    "for (int k = 0; k < 64; k += 16)"
    " wg::product(d, describe(tile_a + k, 16, 1024, 1), describe(tile_b + k, 16, 1024, 1), 1);"
)
# name -> (copies, work between the copies and the products, products)
KERNELS = {
    "rows of 128 bytes": (BOTH, "", PRODUCTS),
    "rows of 64 bytes": (
        "for (int h = 0; h < 2; h++) { load_box(tile_a + 2048 * h, &a, 32 * h, 0, &full);"
        " load_box(tile_b + 512 * h, &b, 32 * h, 0, &full); }",
        "",
        "for (int h = 0; h < 2; h++) for (int k = 0; k < 32; k += 16)"
        " wg::product(d, describe(tile_a + 2048 * h + k, 16, 512, 2),"
        " describe(tile_b + 512 * h + k, 16, 512, 2), 1);",
    ),
    "no swizzle": (
        "for (int h = 0; h < 8; h++) { load_box(tile_a + 512 * h, &a, 8 * h, 0, &full);"
        " load_box(tile_b + 128 * h, &b, 8 * h, 0, &full); }",
        "",
        "for (int h = 0; h < 8; h += 2)"
        " wg::product(d, describe(tile_a + 512 * h, 1024, 128, 0),"
        " describe(tile_b + 128 * h, 256, 128, 0), 1);",
    ),
    "boxes of eight rows, further apart": (
        "for (int h = 0; h < 8; h++) load_box(tile_a + 1024 * h, &a, 0, 8 * h, &full);"
        " load_box(tile_b, &b, 0, 0, &full);",
        "",
        PRODUCTS.replace("tile_a + k, 16, 1024", "tile_a + k, 16, 2048"),
    ),
    "a tile that starts in row 3 of the pattern": (
        BOTH.replace("tile_a", "tile_a + 192"),
        "",
        PRODUCTS.replace("tile_a", "tile_a + 192"),
    ),
    "transposed": (
        BOTH.replace("load_box(tile_b", "load_box(tile_a + 2048, &a, 32, 0, &full); load_box(tile_b"),
        "",
        "for (int k = 0; k < 64; k += 16)"
        " product_of_transposed(d, describe(tile_a + 32 * k, 4096, 512, 2),"
        " describe(tile_b + 16 * k, 2048, 256, 3));",
    ),
    "exchanged by threads": (
        BOTH,
        "exchange(tile_a, 64, t); exchange(tile_b, 16, t); fence(); __syncthreads();",
        PRODUCTS,
    ),
}
A, B = (factor[:, :64].copy() for factor in FACTORS)
MAPS = {
    "rows of 128 bytes": lambda: (tensor_map(A, (64, 64), swizzle=128), tensor_map(B, (16, 64), swizzle=128)),
    "rows of 64 bytes": lambda: (tensor_map(A, (64, 32), swizzle=64), tensor_map(B, (16, 32), swizzle=64)),
    "no swizzle": lambda: (tensor_map(A, (64, 8)), tensor_map(B, (16, 8))),
    "boxes of eight rows, further apart": lambda: (
        tensor_map(A, (8, 64), swizzle=128),
        tensor_map(B, (16, 64), swizzle=128),
    ),
    "a tile that starts in row 3 of the pattern": lambda: MAPS["rows of 128 bytes"](),
    "transposed": lambda: (
        tensor_map(A.T.copy(), (64, 32), swizzle=64),
        tensor_map(B.T.copy(), (64, 16), swizzle=32),
    ),
    "exchanged by threads": lambda: (tensor_map(A, (64, 64)), tensor_map(B, (16, 64))),
}
# name -> (kernel, text of the right kernel, text of the bug, part of the message)
BUGS = {
    "read without the swizzle": (
        "rows of 128 bytes", "tile_a + k, 16, 1024, 1", "tile_a + k, 16, 128, 0",
        "written with a 128-byte swizzle, and read with no swizzle as matrix A"),
    "read with another swizzle": (
        "rows of 64 bytes", "tile_a + 2048 * h + k, 16, 512, 2", "tile_a + 2048 * h + k, 16, 1024, 1",
        "written with a 64-byte swizzle, and read with a 128-byte swizzle as matrix A"),
    "threads exchange no chunks": (
        "exchanged by threads", "exchange(tile_a, 64, t);", "", "written with no swizzle, and read with"),
    "the stride of half a pattern": (
        "rows of 128 bytes", "tile_b + k, 16, 1024, 1", "tile_b + k, 16, 512, 1",
        "has a stride offset of 512"),
    "the stride of two patterns": (
        "rows of 64 bytes", "tile_a + 2048 * h + k, 16, 512", "tile_a + 2048 * h + k, 16, 1024",
        "eight rows take 512, and the descriptor of A has a stride offset of 1,024"),
    "the offsets are exchanged": (
        "no swizzle", "tile_b + 128 * h, 256, 128, 0", "tile_b + 128 * h, 128, 256, 0",
        "the leading offset of the descriptor of B, 128 bytes, leads to other rows of the same box"),
    "the offsets of a transposed matrix are exchanged": (
        "transposed", "32 * k, 4096, 512, 2", "32 * k, 512, 4096, 2",
        "the leading offset of the descriptor of A, 512 bytes"),
    "the box of a transposed matrix is too near": (
        "transposed", "32 * k, 4096, 512, 2", "32 * k, 2048, 512, 2",
        "the leading offset of the descriptor of A, 2,048 bytes"),
}  # fmt: skip
CI = 8  # a CI run takes one of eight


def sampled(names):
    return [pytest.param(name, marks=[pytest.mark.nightly] * (i % CI > 0)) for i, name in enumerate(names)]


def run(name, old="", new=""):
    """Return (report, whether the product is right)."""
    pytest.importorskip("cuda.bindings.nvrtc")
    copies, between, products = KERNELS[name]
    products = f"{between}\nwg::keep(d);\nwg::arrive();\n{products}\n{TAIL}"
    body = f"{HEAD}{copies}\n}}\nwait(&full, 0);\n{products}"
    assert not old or body.count(old) == 1
    text = PRELUDE + body.replace(old, new)
    y, ptx = np.zeros((64, 16), np.float32), compile_ptx(text, "k.cu", architecture="sm_90a")
    report = simulate(load_ptx(ptx, text)["k"], on_finding="report")[1, 128](*MAPS[name](), y)
    return report, np.array_equal(y, A.astype(np.float32) @ B.astype(np.float32).T)


@pytest.mark.parametrize("name", sampled(KERNELS))
def test_a_descriptor_that_fits_its_boxes(name):
    report, right = run(name)
    assert right and not report.findings


@pytest.mark.parametrize("bug", sampled(BUGS))
def test_the_finding_names_the_copy_and_the_layouts(bug):
    name, old, new, says = BUGS[bug]
    report, right = run(name, old, new)
    finding = next(finding for finding in report.findings if finding.kind == "wgmma")
    assert not right and says in finding.message
    assert [access.what for access in finding.accesses] == ["written", "read"]
    assert {found.kind for found in report.findings} <= {"wgmma", "uninitialized-read"}


def test_a_matrix_must_start_in_the_row_of_its_box():
    report, right = run("a tile that starts in row 3 of the pattern")
    assert right and not report.findings
    report, right = run("rows of 128 bytes", "describe(tile_a + k", "describe(tile_a + 192 + k")
    finding = next(finding for finding in report.errors if finding.kind == "wgmma")
    assert not right and "in row 3 of a 128-byte swizzle pattern" in finding.message


# (leading, stride, swizzle of the descriptor; mn_major; count; room, pitch, swizzle, flat of the box; result)
FITS = [
    ((16, 1024, 128), False, 64, (8192, 128, 128, True), None),
    ((16, 1024, 128), False, 128, (8192, 128, 128, True), None),  # rows 64 to 127 are in another box
    ((16, 2048, 128), False, 32, (8192, 128, 128, True), None),  # each second group of eight rows
    ((16, 2048, 128), False, 64, (8192, 128, 128, True), "group"),
    ((16, 0, 128), False, 64, (8192, 128, 128, True), "group"),
    ((16, 512, 64), False, 64, (8192, 128, 128, True), "swizzle"),
    ((1024, 128, 0), False, 64, (1024, 16, 0, True), None),
    ((128, 128, 0), False, 64, (8192, 128, 0, True), "pitch"),
    ((1024, 128, 0), False, 64, (8192, 16, 0, False), None),  # a box of three dimensions
    ((8192, 1024, 128), True, 64, (8192, 128, 128, True), None),
    ((8192, 1024, 128), True, 128, (8192, 128, 128, True), None),
    ((8192, 1024, 128), True, 128, (16384, 128, 128, False), None),
    ((1024, 8192, 128), True, 128, (8192, 128, 128, True), "next"),
    ((8192, 512, 128), True, 64, (8192, 128, 128, True), "group"),
]


@pytest.mark.parametrize(("offsets", "mn_major", "count", "box", "what"), FITS)
def test_which_layouts_fit(offsets, mn_major, count, box, what):
    found = misfit(MatrixDescriptor(2048, *offsets), mn_major, count, (2048, *box))
    assert (found and found.what) == what
