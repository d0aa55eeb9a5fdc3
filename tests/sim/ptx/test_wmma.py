"""Tests of wmma in PTX.

Every shape, type and layout is compared with numpy. Planted bugs have fixed twins, and code compiled from
nvcuda::wmma (mma.h) runs as well.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
from ml_dtypes import bfloat16

from sim import LaunchError, load_ptx, simulate
from sim.ptx import nvrtc

DTYPES = {"f16": np.float16, "bf16": bfloat16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}
DTYPES |= {"f32": np.float32, "s32": np.int32, "f64": np.float64}
LAYOUTS = ("row", "col")
SHAPES = [(16, 16, 16), (8, 32, 16), (32, 8, 16)]
# (shape, type of A and B, type of C, type of D, modifiers)
FORMS = [(s, "f16", c, d, "") for s in SHAPES for c in ("f16", "f32") for d in ("f16", "f32")]
FORMS += [(s, "bf16", "f32", "f32", "") for s in SHAPES]
FORMS += [
    (s, kind, "s32", "s32", more) for s in SHAPES for kind in ("s8", "u8") for more in ("", ".satfinite")
]
FORMS += [((16, 16, 8), "tf32", "f32", "f32", ""), ((8, 8, 4), "f64", "f64", "f64", "")]
REGISTERS = {"f16": 8, "bf16": None, "tf32": 4, "s8": None, "u8": None, "f64": 1}
SPACES = {"global": "", "shared": "cvta.to.shared.u64 {0}, {0};", "": ""}
HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"


def registers(stem, count):
    return "{" + ", ".join(f"%{stem}{i}" for i in range(count)) + "}"


def count_of(rows, columns, kind, operand=True):
    if operand and REGISTERS[kind]:
        return REGISTERS[kind]
    return rows * columns * np.dtype(DTYPES[kind]).itemsize // (256 if kind == "f64" else 128)


def names_of(form, layouts):
    (m, n, k), kind, c, d, more = form
    shape, (la, lb, _) = f"m{m}n{n}k{k}", layouts
    types = f"{d}.{c}" if kind == "f16" else f"{d}.{kind}.{kind}.{c}"
    return shape, f"wmma.mma.sync.aligned.{la}.{lb}.{shape}.{types}{more}"


def loaded(which, layout, shape, kind, space, target, at, stride):
    part = f".{space}" if space else ""
    return f"wmma.load.{which}.sync.aligned.{layout}.{shape}{part}.{kind} {target}, [{at}]{stride};"


def kernel(form, layouts, space="global", strides=("", "", "", "")):
    """Return the kernel (a, b, c, d) that computes D = A B + C."""
    (m, n, k), kind, c, d, _ = form
    shape, product = names_of(form, layouts)
    sizes = count_of(m, k, kind), count_of(k, n, kind), count_of(m, n, c, False), count_of(m, n, d, False)
    a, b, of_c, of_d = (registers(stem, count) for stem, count in zip("abcd", sizes))
    width = {"f64": "f64"}.get(kind, "b32")
    type_of = {"f32": "f32", "f64": "f64"}
    la, lb, lc = layouts
    lines = [HEAD, ".visible .entry k(.param .u64 p0, .param .u64 p1, .param .u64 p2, .param .u64 p3)", "{"]
    lines += [f".reg .{width} %a<8>, %b<8>; .reg .{type_of.get(c, 'b32')} %c<8>;"]
    lines += [f".reg .{type_of.get(d, 'b32')} %d<8>; .reg .b64 %x<8>;"]
    lines += [f"ld.param.u64 %x{i}, [p{i}];" for i in range(4)]
    lines += [
        loaded("a", la, shape, kind, space, a, "%x0", strides[0]),
        loaded("b", lb, shape, kind, space, b, "%x1", strides[1]),
        loaded("c", lc, shape, c, space, of_c, "%x2", strides[2]),
        f"{product} {of_d}, {a}, {b}, {of_c};",
        f"wmma.store.d.sync.aligned.{lc}.{shape}{space and f'.{space}'}.{d} [%x3], {of_d}{strides[3]};",
        "ret; }",
    ]
    return load_ptx("\n".join(lines))["k"]


def matrix(rows, columns, kind, seed):
    random = np.random.default_rng(seed)
    if kind in ("s8", "u8", "s32"):
        info = np.iinfo(DTYPES[kind])
        low, high = (info.min, info.max) if kind != "s32" else (-1000, 1000)
        return random.integers(low, high, (rows, columns), DTYPES[kind], endpoint=True)
    numbers = random.standard_normal((rows, columns)).astype(DTYPES[kind])
    return (numbers.view(np.uint32) & 0xFFFFE000).view(np.float32) if kind == "tf32" else numbers


def in_memory(array, layout, pad=0):
    """Return the matrix as laid out in memory, with `pad` additional elements per row or column."""
    lines = array if layout == "row" else array.T
    found = np.zeros((lines.shape[0], lines.shape[1] + pad), array.dtype)
    found[:, : lines.shape[1]] = lines
    return found


def right(a, b, c, d_dtype):
    exact = np.float64 if c.dtype.kind == "f" else np.int64
    total = a.astype(exact) @ b.astype(exact) + c.astype(exact)
    return total.astype(d_dtype)


def close(found, want):
    if want.dtype.kind in "iu":
        return np.array_equal(found, want)
    return np.allclose(
        found.astype(float), want.astype(float), rtol=2e-3 if found.dtype == np.float16 else 1e-6, atol=1e-5
    )


def checked(form, layouts, pad=0, engine="fibers", space="global"):
    (m, n, k), kind, c_kind, d_kind, _ = form
    a, b, c = matrix(m, k, kind, 0), matrix(k, n, kind, 1), matrix(m, n, c_kind, 2)
    given = [in_memory(x, layout, pad) for x, layout in zip((a, b, c), layouts)]
    d = in_memory(np.zeros((m, n), DTYPES[d_kind]), layouts[2], pad)
    strides = [f", {x.shape[1]}" for x in (*given, d)] if pad else [""] * 4
    run = simulate(kernel(form, layouts, space, strides), engine=engine)
    report = run[1, 32](*given, d)
    width = n if layouts[2] == "row" else m
    found = d[:, :width] if layouts[2] == "row" else d[:, :width].T
    want = right(a, b, c, DTYPES[d_kind])
    assert report.findings == () and close(np.ascontiguousarray(found), want), (form, layouts)
    return report


@pytest.mark.parametrize("form", FORMS, ids=lambda form: ".".join(map(str, form)))
def test_products_of_every_shape_and_type(form):
    layouts = list(itertools.product(LAYOUTS, repeat=3))
    place = FORMS.index(form)
    for which in (place % 8, (place + 3) % 8):
        checked(form, layouts[which], pad=16 if which % 2 else 0)


def test_every_layout():
    for layouts in itertools.product(LAYOUTS, repeat=3):
        checked(FORMS[0], layouts, 8)


def test_generic_addresses():
    checked(FORMS[3], ("row", "col", "row"), 0, space="")


def test_compiled_launches_are_interpreted():
    pytest.importorskip("numba")
    report = checked(FORMS[3], ("row", "col", "row"), engine="native")
    assert report.notes[0].startswith("interpreted: wmma.load") and "no compiled form" in report.notes[0]


def test_integers_wrap_or_saturate():
    for more, want in (("", -(2**31) + 127 * 127 * 16 - 1), (".satfinite", 2**31 - 1)):
        form = ((16, 16, 16), "s8", "s32", "s32", more)
        a = np.full((16, 16), 127, np.int8)
        c, d = np.full((16, 16), 2**31 - 1, np.int32), np.zeros((16, 16), np.int32)
        simulate(kernel(form, ("row", "col", "row")))[1, 32](a, a, c, d)
        assert set(d.ravel().tolist()) == {want}


def test_the_sum_is_that_of_mma_sync():
    """Multiply matrices in which float32 sums would lose small addends.

    Products are exact, and sums are computed in float64 and rounded once.
    """
    a, b = np.zeros((16, 16), np.float16), np.zeros((16, 16), np.float16)
    a[:, 0], a[:, 1], a[:, 9] = 60000, 2**-10, -60000
    b[0], b[1], b[9] = 60000, 1, 60000
    c, d = np.full((16, 16), 2**-20, np.float32), np.zeros((16, 16), np.float32)
    simulate(kernel(FORMS[3], ("row", "row", "row")))[1, 32](a, b, c, d)
    assert set(d.ravel().tolist()) == {2**-10 + 2**-20}


# Results of an H200 in lanes 0, 1 and 4, for a row-major matrix with the elements 0, 1, ... (modulo 256 for
# s8).
MEASURED = """c m16n16k16 f32: 0 1 128 129 8 9 136 137, 2 3 130 131 10 11 138 139, 16 17 144 145 24 25 152 153
c m8n32k16 s32: 0 32 8 40 16 48 24 56, 64 96 72 104 80 112 88 120, 1 33 9 41 17 49 25 57
c m32n8k16 f32: 0 1 64 65 128 129 192 193, 2 3 66 67 130 131 194 195, 8 9 72 73 136 137 200 201
c m8n32k16 f16: 0 32 8 40 16 48 24 56, 64 96 72 104 80 112 88 120, 1 33 9 41 17 49 25 57
a m16n16k16 bf16: 0 1 128 129 8 9 136 137, 2 3 130 131 10 11 138 139, 16 17 144 145 24 25 152 153
b m16n16k16 bf16: 0 16 128 144 8 24 136 152, 32 48 160 176 40 56 168 184, 1 17 129 145 9 25 137 153
a m8n32k16 f16: 0 1 8 9 0 1 8 9 0 1 8 9 0 1 8 9, 2 3 10 11 2 3 10 11 2 3 10 11 2 3 10 11,
    16 17 24 25 16 17 24 25 16 17 24 25 16 17 24 25
b m32n8k16 bf16: 0 8 64 72, 16 24 80 88, 1 9 65 73
a m32n8k16 bf16: 0 1 128 129 8 9 136 137 256 257 384 385 264 265 392 393,
    2 3 130 131 10 11 138 139 258 259 386 387 266 267 394 395,
    16 17 144 145 24 25 152 153 272 273 400 401 280 281 408 409
b m8n32k16 bf16: 0 32 8 40 256 288 264 296 16 48 24 56 272 304 280 312,
    64 96 72 104 320 352 328 360 80 112 88 120 336 368 344 376,
    1 33 9 41 257 289 265 297 17 49 25 57 273 305 281 313
a m16n16k8 tf32: 0 64 4 68, 1 65 5 69, 8 72 12 76
b m16n16k8 tf32: 0 64 8 72, 16 80 24 88, 1 65 9 73
a m32n8k16 s8: 0 1 2 3 128 129 130 131 0 1 2 3 128 129 130 131,
    4 5 6 7 132 133 134 135 4 5 6 7 132 133 134 135,
    16 17 18 19 144 145 146 147 16 17 18 19 144 145 146 147
b m8n32k16 s8: 0 32 64 96 8 40 72 104 16 48 80 112 24 56 88 120,
    128 160 192 224 136 168 200 232 144 176 208 240 152 184 216 248,
    1 33 65 97 9 41 73 105 17 49 81 113 25 57 89 121
b m16n16k16 s8: 0 16 32 48 8 24 40 56, 64 80 96 112 72 88 104 120, 1 17 33 49 9 25 41 57"""


@pytest.mark.parametrize("measured", [part.replace("\n", "") for part in re.split(r"\n(?=[abc])", MEASURED)])
def test_fragments_lie_in_registers_as_on_a_gpu(measured):
    head, numbers = measured.split(":")
    which, shape, kind = head.split()
    m, n, k = map(int, re.findall(r"\d+", shape))
    size = {"a": m * k, "b": k * n, "c": m * n}[which]
    width = 8 * np.dtype(DTYPES[kind]).itemsize
    count = len(numbers.split(",")[0].split()) * width // 32
    lines = [HEAD, ".visible .entry k(.param .u64 p0, .param .u64 p1)", "{"]
    lines += [
        ".reg .b32 %a<8>; .reg .b64 %x<2>; .reg .b32 %t;",
        "ld.param.u64 %x0, [p0]; ld.param.u64 %x1, [p1];",
    ]
    lines += [f"mov.u32 %t, %tid.x; mad.wide.u32 %x1, %t, {4 * count}, %x1;"]
    lines += [loaded(which, "row", shape, kind, "global", registers("a", count), "%x0", "")]
    lines += [f"st.global.b32 [%x1+{4 * i}], %a{i};" for i in range(count)] + ["ret; }"]
    found = np.zeros((32, 32 * count // width), f"u{width // 8}")
    simulate(load_ptx("\n".join(lines))["k"])[1, 32](np.arange(size).astype(f"u{width // 8}"), found)
    assert found[[0, 1, 4]].tolist() == [[*map(int, part.split())] for part in numbers.split(",")]


# --- planted bugs -------------------------------------------------------------------------------------------

TILE = """
.visible .entry k(.param .u64 p0, .param .u64 p1)
{
    .shared .align 32 .b8 tile[1024];
    .reg .b32 %r<8>, %h<8>; .reg .b64 %x<8>; .reg .f32 %c<8>; .reg .pred %p<3>;
    ld.param.u64 %x0, [p0]; ld.param.u64 %x1, [p1]; mov.u32 %r0, %tid.x; mov.u32 %r1, tile;
    setp.lt.u32 %p1, %r0, 32; shl.b32 %r2, %r0, 4; add.u32 %r2, %r2, %r1; mov.u32 %r3, 0;
"""
LOAD_C = f"wmma.load.c.sync.aligned.row.m16n16k16.global.f32 {registers('c', 8)}, [%x0], 16;"
FROM_TILE = f"wmma.load.c.sync.aligned.row.m16n16k16.shared.f32 {registers('c', 8)}, [%r1], 16;"
TO_TILE = f"wmma.store.d.sync.aligned.row.m16n16k16.shared.f32 [%r1], {registers('c', 8)}, 16;"
STORE = f"wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%x1], {registers('c', 8)}, 16;"
# name -> (kernel, findings, fixed twin, number of threads)
PLANTED = {
    "read by the other warp without a barrier": (
        f"@!%p1 bra SECOND; {LOAD_C} {TO_TILE} bra END; SECOND: {FROM_TILE} {STORE} END:",
        ["race-shared"],
        f"@!%p1 bra SECOND; {LOAD_C} {TO_TILE} SECOND: bar.sync 0; @%p1 bra END; {FROM_TILE} {STORE} END:",
        64,
    ),
    "nobody has written the tile": (
        FROM_TILE + STORE,
        ["uninitialized-read"],
        LOAD_C + TO_TILE + FROM_TILE + STORE,
        32,
    ),
    "a stride beyond the array": (
        LOAD_C.replace(", 16;", ", 20;") + STORE,
        ["out-of-bounds"],
        LOAD_C + STORE,
        32,
    ),
    "lines that begin anywhere": (
        LOAD_C + TO_TILE + FROM_TILE.replace(", 16;", ", 15;") + STORE,
        ["misaligned-address"],
        LOAD_C + TO_TILE + FROM_TILE + STORE,
        32,
    ),
    "a matrix that begins anywhere": (
        "add.u64 %x0, %x0, 4;" + LOAD_C + STORE,
        ["misaligned-address"],
        LOAD_C + STORE,
        32,
    ),
    "half a warp": (LOAD_C + STORE, ["warp-divergence"], LOAD_C + STORE, 16),
    "one lane stays away": (
        "setp.eq.u32 %p2, %r0, 7; @%p2 bra END;" + LOAD_C + STORE + "END:",
        ["warp-divergence"],
        LOAD_C + STORE,
        32,
    ),
}  # fmt: skip


def reported(body, threads, rows=16, **options):
    """Return (Report, result, input) for arrays of `rows` rows of 16 elements."""
    kernel_ = load_ptx(f"{HEAD}{TILE}{body}\n    ret;\n}}")["k"]
    x = np.arange(16 * rows, dtype=np.float32).reshape(rows, 16)
    y = np.zeros_like(x)
    return simulate(kernel_, on_finding="report", **options)[1, threads](x, y), y, x


def launched(body, threads):
    report, y, x = reported(body, threads)
    return sorted({finding.kind for finding in report.errors}), y, x


ODD = "and.b32 %r3, %r0, 1;"
OTHER_LINE = f"{ODD} mul.wide.u32 %x2, %r3, 64; add.u64 %x{{0}}, %x{{0}}, %x2;"
OTHER_STRIDE = f"{ODD} shl.b32 %r3, %r3, 3; add.u32 %r3, %r3, 16;"


@pytest.mark.parametrize("engine", ["auto", "fibers", "threads", "native"])
@pytest.mark.parametrize(
    "body, verdict",
    [
        (OTHER_LINE.format(0) + LOAD_C + STORE, "addresses that are 64 bytes apart to wmma.load"),
        (LOAD_C + OTHER_LINE.format(1) + STORE, "addresses that are 64 bytes apart to wmma.store"),
        (OTHER_STRIDE + LOAD_C.replace(", 16;", ", %r3;") + STORE, "the strides 16 and 24 to wmma.load"),
        (OTHER_STRIDE + LOAD_C + STORE.replace(", 16;", ", %r3;"), "the strides 16 and 24 to wmma.store"),
    ],
)
def test_lanes_must_pass_the_same_matrix(body, verdict, engine):
    for seed in range(2):
        findings = reported(body, 32, engine=engine, seed=seed, rows=32)[0].findings
        (finding,) = [f for f in findings if f.kind == "invalid-operand"]
        assert finding.verdict == f"lanes 0 and 1 of a warp pass {verdict}"
        assert [access.thread for access in finding.accesses] == [(0, 0, 0), (1, 0, 0)]
        assert finding.reason.startswith("The lanes of a warp access one matrix together")


def test_warps_and_iterations_may_pass_other_matrices():
    """Check addresses that differ between two warps, and between the iterations of a loop."""
    move = "shr.u32 %r2, %r0, 5; mul.wide.u32 %x2, %r2, 1024; add.u64 %x0, %x0, %x2; add.u64 %x1, %x1, %x2;"
    step = "add.u64 %x0, %x0, 2048; add.u64 %x1, %x1, 2048; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 2;"
    report, y, x = reported(f"{move} NEXT: {LOAD_C} {STORE} {step} @%p2 bra NEXT;", 64, rows=64)
    assert report.findings == () and np.array_equal(y, x)


def test_the_advice_about_a_missing_lane_mentions_no_mask():
    body = f"setp.eq.u32 %p2, %r0, 7; @%p2 bra END;{LOAD_C}{STORE}END: bar.warp.sync -1;"
    finding = reported(body, 32)[0].errors[0]
    assert finding.reason.startswith("The instruction requires all 32 lanes")
    assert finding.fix == "move the call to a line that all 32 lanes of the warp reach"


@pytest.mark.parametrize("name", PLANTED)
def test_planted_bugs_are_found_and_their_twins_are_clean(name):
    bug, found, twin, threads = PLANTED[name]
    assert set(found) <= set(launched(bug, threads)[0])
    kinds, y, x = launched(twin, max(threads, 32))
    assert kinds == [] and np.array_equal(y, x)


@pytest.mark.parametrize(
    "body",
    [
        LOAD_C.replace("m16n16k16", "m16n8k16"),
        LOAD_C.replace("{%c0, ", "{"),
        LOAD_C.replace("[%x0]", "%x0"),
        LOAD_C.replace(".row", ""),
        STORE.replace("{%c0, ", "{"),
        STORE.replace("[%x1]", "%x1"),
        "wmma.load.a.sync.aligned.row.m8n8k32.s4 {%h0}, [%x0];",
        f"wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {registers('c', 8)}, {registers('h', 8)};",
        "wmma.mma.xor.popc.sync.aligned.row.col.m8n8k128.s32.b1.b1.s32 {%h0, %h1}, {%h2}, {%h3}, {%h0, %h1};",
    ],
)
def test_what_is_not_there_is_refused_by_name_and_line(body):
    with pytest.raises(LaunchError, match=f"PTX line 13: {body.split()[0]}"):
        launched(f"\n\n{body}", 32)


# --- CUDA C++ -----------------------------------------------------------------------------------------------

MMA = """
#include <mma.h>
using namespace nvcuda;
// C = A B / 2, of half or bf16, in tiles of 16 by 16, one warp each; A goes through shared memory.
template <class T>
__device__ void gemm(const T* a, const T* b, float* c, int n) {
    __shared__ alignas(32) T tile_a[16 * 24];
    wmma::fragment<wmma::matrix_a, 16, 16, 16, T, wmma::row_major> of_a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, T, wmma::col_major> of_b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum;
    wmma::fill_fragment(sum, 0.0f);
    int row = 16 * blockIdx.y, column = 16 * blockIdx.x;
    for (int k = 0; k < n; k += 16) {
        for (int i = threadIdx.x; i < 256; i += 32)
            tile_a[i / 16 * 24 + i % 16] = a[(row + i / 16) * n + k + i % 16];
        BARRIER
        wmma::load_matrix_sync(of_a, tile_a, 24);
        wmma::load_matrix_sync(of_b, b + column * n + k, n);
        wmma::mma_sync(sum, of_a, of_b, sum);
        __syncthreads();
    }
    for (int i = 0; i < sum.num_elements; i++) sum.x[i] *= 0.5f;
    wmma::store_matrix_sync(c + row * n + column, sum, n, wmma::mem_row_major);
}
extern "C" __global__ void halves(const half* a, const half* b, float* c, int n) { gemm(a, b, c, n); }
using bf16 = __nv_bfloat16;
extern "C" __global__ void bfloats(const bf16* a, const bf16* b, float* c, int n) { gemm(a, b, c, n); }
"""


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """Return a function that maps the text of a barrier to the module that NVRTC compiles from MMA."""
    pytest.importorskip("cuda.bindings.nvrtc")
    folders = [*nvrtc.header_folders(), "/usr/local/cuda/include"]
    found = [folder for folder in folders if Path(folder, "crt", "mma.h").exists()]
    if not found:
        pytest.skip("mma.h of the CUDA toolkit is not here: CUDA_HOME says where it is")

    def module(barrier):
        path = tmp_path_factory.mktemp("mma") / "gemm.cu"
        path.write_text(MMA.replace("BARRIER", barrier))
        return nvrtc.load_cuda(path, f"-I{found[0]}")

    return module


@pytest.mark.parametrize(("name", "dtype"), [("halves", np.float16), ("bfloats", bfloat16)])
def test_a_product_in_cuda_cpp(compiled, name, dtype):
    random, n = np.random.default_rng(0), 32
    a, b = (random.standard_normal((n, n)).astype(dtype) for _ in range(2))
    c = np.zeros((n, n), np.float32)
    report = simulate(compiled("__syncthreads();")[name])[(2, 2), 32](a, b, c, np.int32(n))
    assert report.findings == ()
    np.testing.assert_allclose(c, 0.5 * a.astype(float) @ b.astype(float).T, rtol=1e-4, atol=1e-5)
    report = simulate(compiled("")[name], on_finding="report")[(2, 2), 32](a, b, c, np.int32(n))
    assert {finding.kind for finding in report.errors} == {"race-shared"}
