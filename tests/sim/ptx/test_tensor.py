"""Tests of mma.sync, ldmatrix and cp.async in PTX.

Every variant is compared with numpy. Planted bugs have fixed twins, and invalid uses must be rejected.
"""

import re

import numpy as np
import pytest
from ml_dtypes import bfloat16

from sim import LaunchError, load_ptx, simulate

HEAD = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y)
{
    .shared .align 16 .b8 tile[2048];
    .reg .pred %p<4>; .reg .b32 %a<4>, %b<2>, %c<4>, %d<4>, %r<12>; .reg .f32 %e<4>, %f<4>; .reg .b64 %x<8>;
    ld.param.u64 %x1, [x]; ld.param.u64 %x2, [y]; mov.u32 %r1, %tid.x; mov.u32 %r2, tile;
"""


def kernel(body):
    return load_ptx(f"{HEAD}{body}\n    ret;\n}}")["k"]


def kinds(body, threads=32, engine="fibers"):
    """Return the kinds of findings for a kernel with 128 32-bit inputs and as many outputs."""
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    report = simulate(kernel(body), engine=engine, on_finding="report")[1, threads](x, y)
    return sorted({finding.kind for finding in report.errors}), y


# --- products -----------------------------------------------------------------------------------------------

DTYPES = {"f16": np.float16, "bf16": bfloat16, "tf32": np.float32, "s8": np.int8, "u8": np.uint8}
RESULTS = {"f32": np.float32, "f16": np.float16, "s32": np.int32}
FORMS = [("f32", "f16", 16), ("f32", "f16", 8), ("f32", "bf16", 16), ("f32", "bf16", 8), ("f16", "f16", 16)]
FORMS += [("f16", "f16", 8), ("f32", "tf32", 8), ("f32", "tf32", 4), ("s32", "s8", 32), ("s32", "s8", 16)]
FORMS += [("s32", "s8.u8", 32), ("s32", "u8.s8", 16), ("s32", "u8", 32)]


def words(matrix, rows):
    """Return (registers, 32): the fragment of A, or of B transposed, for a matrix of shape (rows, K)."""
    each = 4 // matrix.itemsize
    g, t = np.arange(32) // 4, np.arange(32) % 4
    parts = [
        matrix[(g + 8 * low)[:, None], 4 * each * k + each * t[:, None] + np.arange(each)]
        for k in range(matrix.shape[1] // (4 * each))
        for low in range(rows // 8)
    ]
    return np.array([np.ascontiguousarray(part).view(np.uint32)[:, 0] for part in parts])


def accumulators(matrix):
    """Return (registers, 32) for C or D."""
    each = 4 // matrix.itemsize
    g, t = np.arange(32) // 4, 2 * (np.arange(32) % 4)
    numbers = np.stack([matrix[g + 8 * (i // 2), t + i % 2] for i in range(4)], 1)
    return np.ascontiguousarray(numbers).view(np.uint32).T[: 4 // each]


def product(result, kind, depth, modifier=""):
    """Return a kernel that maps x (registers of A, B and C, 32) to y (registers of D, 32)."""
    a_kind, b_kind = (kind.split(".") * 2)[:2]
    count = (
        (depth * np.dtype(DTYPES[a_kind]).itemsize // 16) * 2,
        depth * np.dtype(DTYPES[a_kind]).itemsize // 16,
    )
    c_count = 2 if result == "f16" else 4
    c, d = ("e", "f") if result == "f32" else ("c", "d")
    groups = {"a": count[0], "b": count[1], c: c_count}
    lines = ["mad.wide.u32 %x3, %r1, 4, %x1; mad.wide.u32 %x4, %r1, 4, %x2;"]
    position = 0
    for letter, size in groups.items():
        for i in range(size):
            lines.append(f"ld.global.b32 %{letter}{i}, [%x3+{128 * position}];")
            position += 1
    text = {
        letter: "{" + ", ".join(f"%{letter}{i}" for i in range(size)) + "}" for letter, size in groups.items()
    }
    to = "{" + ", ".join(f"%{d}{i}" for i in range(c_count)) + "}"
    name = f"mma.sync.aligned.m16n8k{depth}.row.col{modifier}.{result}.{a_kind}.{b_kind}.{result}"
    lines.append(f"{name} {to}, {text['a']}, {text['b']}, {text[c]};")
    lines += [f"st.global.b32 [%x4+{128 * i}], %{d}{i};" for i in range(c_count)]
    return kernel("\n".join(lines))


def multiplied(result, kind, depth, a, b, c, engine="fibers", modifier=""):
    given = np.concatenate([words(a, 16), words(np.ascontiguousarray(b.T), 8), accumulators(c)])
    out = np.zeros((2 if result == "f16" else 4, 32), np.uint32)
    report = simulate(product(result, kind, depth, modifier), engine=engine)[1, 32](given, out)
    assert engine == "fibers" or report.notes == ("compiled",)
    return out


def operands(kind, depth, low=-8, high=9):
    random = np.random.default_rng(depth)
    a_kind, b_kind = (kind.split(".") * 2)[:2]
    a = random.integers(0 if a_kind == "u8" else low, high, (16, depth)).astype(DTYPES[a_kind])
    b = random.integers(0 if b_kind == "u8" else low, high, (depth, 8)).astype(DTYPES[b_kind])
    return a, b, random.integers(low, high, (16, 8))


@pytest.mark.parametrize(("result", "kind", "depth"), FORMS)
def test_a_product_of_small_integers_is_exact(result, kind, depth):
    a, b, c = operands(kind, depth)
    wanted = (a.astype(int) @ b.astype(int) + c).astype(RESULTS[result])
    out = multiplied(result, kind, depth, a, b, c.astype(RESULTS[result]))
    assert np.array_equal(out, accumulators(wanted))


@pytest.mark.parametrize(
    ("result", "kind", "depth"),
    [
        ("f16", "f16", 8),
        *(
            pytest.param(*form, marks=pytest.mark.nightly)
            for form in (("f32", "bf16", 16), ("s32", "s8.u8", 32))
        ),
    ],
)
def test_compiled_it_gives_the_same_bits(result, kind, depth):
    a, b, c = operands(kind, depth)
    if result != "s32":
        a, b = (np.random.default_rng(1).standard_normal(m.shape).astype(m.dtype) for m in (a, b))
    c = c.astype(RESULTS[result])
    one, other = (multiplied(result, kind, depth, a, b, c, engine) for engine in ("fibers", "native"))
    assert np.array_equal(one, other)


def test_a_sum_of_float16_is_rounded_once_and_overflows():
    a, b = np.zeros((16, 8), np.float16), np.zeros((8, 8), np.float16)
    a[:, 0], b[0] = np.linspace(-300, 300, 16), [1, 0.1, 1e-4, 6e-8, 200, 300, np.inf, np.nan]
    c = np.full((16, 8), 0.3, np.float16)
    with np.errstate(all="ignore"):
        wanted = (a[:, :1].astype(float) * b[:1].astype(float) + c.astype(float)).astype(np.float16)
    out = multiplied("f16", "f16", 8, a, b, c).view(np.float16)
    np.testing.assert_array_equal(out, np.ascontiguousarray(accumulators(wanted)).view(np.float16))


def test_tf32_has_no_more_than_ten_bits_of_fraction():
    a, b = np.zeros((16, 4), np.float32), np.zeros((4, 8), np.float32)
    a[:, 0], b[0] = 1 + 2**-10 + 2**-11, [1, -1, 1e-40, np.inf, 0, 2, 3, 1 + 2**-12]
    out = multiplied("f32", "tf32", 4, a, b, np.zeros((16, 8), np.float32)).view(np.float32)
    cut = (b[0].view(np.uint32) & 0xFFFFE000).view(np.float32)
    wanted = np.tile(np.float32(1 + 2**-10) * cut, (16, 1)).astype(np.float32)
    np.testing.assert_array_equal(out, accumulators(wanted).view(np.float32))


def test_integers_wrap_or_saturate():
    a, b = np.full((16, 16), 127, np.int8), np.full((16, 8), 127, np.int8)
    c = np.full((16, 8), 2**31 - 5, np.int32)
    assert (multiplied("s32", "s8", 16, a, b, c).view(np.int32) < 0).all()
    assert (multiplied("s32", "s8", 16, a, b, c, modifier=".satfinite").view(np.int32) == 2**31 - 1).all()


# --- ldmatrix -----------------------------------------------------------------------------------------------

FILL = """mad.wide.u32 %x3, %r1, 16, %x1; mad.lo.u32 %r3, %r1, 16, %r2;
    ld.global.v4.b32 {%c0, %c1, %c2, %c3}, [%x3]; st.shared.v4.b32 [%r3], {%c0, %c1, %c2, %c3};
    bar.warp.sync -1;"""
STORE = "mad.wide.u32 %x4, %r1, 16, %x2; st.global.v4.b32 [%x4], {%d0, %d1, %d2, %d3};"


@pytest.mark.parametrize(
    ("count", "transposed", "engine"),
    [
        *((count, transposed, "fibers") for count in (1, 2, 4) for transposed in (False, True)),
        pytest.param(1, False, "native", marks=pytest.mark.nightly),
        (4, True, "native"),
    ],
)
def test_the_map_of_ldmatrix(count, transposed, engine):
    to = ", ".join(f"%d{i}" for i in range(count))
    name = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16"
    x, y = np.arange(256, dtype=np.uint16), np.zeros((32, 4), np.uint32)
    none = "mov.b32 %d0, 0; mov.b32 %d1, 0; mov.b32 %d2, 0; mov.b32 %d3, 0;"
    report = simulate(kernel(f"{FILL}{none}{name} {{{to}}}, [%r3];{STORE}"), engine=engine)[1, 32](x, y)
    assert engine == "fibers" or report.notes == ("compiled",)
    for r in range(count):
        matrix = x.reshape(32, 8)[8 * r : 8 * r + 8]
        matrix = matrix.T if transposed else matrix
        assert np.array_equal(y[:, r], np.ascontiguousarray(matrix).reshape(-1).view(np.uint32))


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_movmatrix_transposes_a_matrix(engine):
    x, y = np.arange(1000, 1064, dtype=np.uint16), np.zeros(64, np.uint16)
    load = "mad.wide.u32 %x3, %r1, 4, %x1; ld.global.b32 %c0, [%x3];"
    move = "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %c0;"
    report = simulate(kernel(load + move + KEEP), engine=engine)[1, 32](x, y)
    assert np.array_equal(y.reshape(8, 8), x.reshape(8, 8).T)
    assert engine == "fibers" or report.notes == ("compiled",)


# --- cp.async -----------------------------------------------------------------------------------------------

PLACE = (
    "mad.lo.u32 %r3, %r1, 16, %r2; mad.wide.u32 %x3, %r1, 16, %x1; mov.u32 %r4, 5; setp.lt.u32 %p1, %r1, 9;"
)
COPY = "cp.async.cg.shared.global [%r3], [%x3], 16;"
COMMIT, WAIT, BARRIER = "cp.async.commit_group;", "cp.async.wait_group 0;", "bar.sync 0;"
KEEP = "mad.wide.u32 %x4, %r1, 4, %x2; st.global.b32 [%x4], %d0;"
OWN = f"ld.shared.b32 %d0, [%r3]; {KEEP}"
OTHER = f"xor.b32 %r5, %r3, 16; ld.shared.b32 %d0, [%r5]; {KEEP}"
SOURCE_OF_ANOTHER = "xor.b32 %r5, %r1, 1; mad.wide.u32 %x4, %r5, 16, %x1; st.global.b32 [%x4], %r1;"
# The first thread starts a copy, and waits for it after a barrier. In STORES_LATER, thread 16 then writes the
# source of this copy.
FIRST_COPIES = f"setp.ne.u32 %p2, %r1, 0; @%p2 bra SENT; {COPY}{COMMIT} SENT: {BARRIER}"
FIRST_COPIES += f"@%p2 bra WAITED; {WAIT} WAITED:"
STORES_LATER = "setp.ne.u32 %p3, %r1, 16; @%p3 bra OVER; st.global.b32 [%x1], %r1; OVER:"
MATRIX = f"ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%d0, %d1, %d2, %d3}}, [%r3]; {KEEP}"


@pytest.mark.parametrize(
    ("copy", "wanted"),
    [
        (COPY, [0, 4, 8, 12]),
        ("cp.async.ca.shared.global.L2::128B [%r3], [%x3], 4;", [0, 4, 8, 12]),
        ("cp.async.ca.shared::cta.global [%r3], [%x3], 8, 4;", [0, 4, 8, 12]),
        ("cp.async.cg.shared.global [%r3], [%x3], 16, %r4;", [0, 4, 8, 12]),
        ("cp.async.cg.shared.global [%r3], [%x3], 16, 0;", [0, 0, 0, 0]),
        ("cp.async.cg.shared.global [%r3], [%x3], 16, %p1;", [0, 0, 0, 0]),
        ("cp.async.cg.shared.global [%r3], [%x3], 16, !%p1;", [0, 4, 8, 12]),
    ],
)
def test_copies_arrive_at_the_wait(copy, wanted):
    found, y = kinds(f"{PLACE}{copy}cp.async.wait_all;{OWN}")
    assert found == [] and y[:4].tolist() == wanted


def test_of_a_copy_that_takes_five_bytes_the_rest_is_zero():
    read = "ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%r3];"
    x, y = np.arange(1, 17, dtype=np.uint8), np.full(16, 99, np.uint8)
    simulate(kernel(f"{PLACE}cp.async.cg.shared.global [%r3], [%x3], 16, %r4;{COMMIT}{WAIT}{read}{STORE}"))[
        1, 1
    ](x, y)
    assert y.tolist() == [1, 2, 3, 4, 5] + [0] * 11


@pytest.mark.parametrize("nbytes", [-4, 20])
def test_a_copy_cannot_read_fewer_than_no_or_more_than_all_bytes(nbytes):
    copy = f"mov.u32 %r4, {nbytes}; cp.async.cg.shared.global [%r3], [%x3], 16, %r4;"
    found, _ = kinds(f"{PLACE}{copy}cp.async.wait_all;{OWN}")
    assert found == ["invalid-operand"]


MMA = (
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
    " {%f0, %f1, %f2, %f3}, {%a0, %a1}, {%b0}, {%e0, %e1, %e2, %e3};"
)
ZEROS = "".join(f"mov.b32 %{name}, 0;" for name in ("a0", "a1", "b0")) + "".join(
    f"mov.f32 %e{i}, 0f00000000;" for i in range(4)
)
# name -> (kernel, finding, fixed twin)
PLANTED = {
    "own copy, no wait": (PLACE + COPY + COMMIT + OWN, "async-copy", PLACE + COPY + COMMIT + WAIT + OWN),
    "no wait": (
        PLACE + COPY + COMMIT + BARRIER + OTHER,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + BARRIER + OTHER,
    ),
    "no wait, syncwarp": (
        PLACE + COPY + COMMIT + "bar.warp.sync -1;" + OTHER,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + "bar.warp.sync -1;" + OTHER,
    ),
    "no wait, ldmatrix": (
        PLACE + COPY + COMMIT + BARRIER + MATRIX,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + BARRIER + MATRIX,
    ),
    "no commit": (
        PLACE + COPY + WAIT + BARRIER + OTHER,
        "async-copy",
        PLACE + COPY + "cp.async.wait_all;" + BARRIER + OTHER,
    ),
    "one group too many": (
        PLACE + COPY + COMMIT + "cp.async.wait_group 1;" + BARRIER + OTHER,
        "async-copy",
        PLACE + COPY + COMMIT + COMMIT + "cp.async.wait_group 1;" + BARRIER + OTHER,
    ),
    "written under way": (
        PLACE + COPY + COMMIT + "st.shared.b32 [%r3], %r1;" + WAIT,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + "st.shared.b32 [%r3], %r1;",
    ),
    "read under way": (PLACE + COPY + COMMIT + OWN + WAIT, "async-copy", PLACE + COPY + COMMIT + WAIT + OWN),
    "read by another under way": (
        PLACE + COPY + COMMIT + BARRIER + OTHER + WAIT,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + BARRIER + OTHER,
    ),
    "two copies to one place": (
        PLACE + COPY + COMMIT + COPY + COMMIT + WAIT + OWN,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + COPY + COMMIT + WAIT + OWN,
    ),
    "source written under way": (
        PLACE + COPY + COMMIT + "st.global.b32 [%x3], %r1;" + WAIT,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + "st.global.b32 [%x3], %r1;",
    ),
    "source written by another": (
        PLACE + COPY + COMMIT + BARRIER + SOURCE_OF_ANOTHER + WAIT,
        "async-copy",
        PLACE + COPY + COMMIT + WAIT + BARRIER + SOURCE_OF_ANOTHER,
    ),
    "source written after the wait of another": (
        PLACE + FIRST_COPIES + STORES_LATER,
        "async-copy",
        PLACE + FIRST_COPIES + BARRIER + STORES_LATER,
    ),
    "no barrier": (PLACE + COPY + COMMIT + WAIT + OTHER, "race-shared", PLACE + COPY + COMMIT + WAIT + OWN),
    "the tile used again": (
        PLACE + COPY + COMMIT + WAIT + BARRIER + OTHER + COPY + COMMIT + WAIT,
        "race-shared",
        PLACE + COPY + COMMIT + WAIT + BARRIER + OTHER + BARRIER + COPY + COMMIT + WAIT,
    ),
    "misaligned source": (
        PLACE + "cp.async.ca.shared.global [%r3], [%x3+4], 8;" + COMMIT + WAIT,
        "misaligned-address",
        PLACE + "cp.async.ca.shared.global [%r3], [%x3+8], 8;" + COMMIT + WAIT,
    ),
    "beyond the array": (
        PLACE + "cp.async.cg.shared.global [%r3], [%x3+16], 16;" + COMMIT + WAIT,
        "out-of-bounds",
        PLACE
        + "setp.eq.u32 %p2, %r1, 31; cp.async.cg.shared.global [%r3], [%x3+16], 16, %p2;"
        + COMMIT
        + WAIT,
    ),
    "misaligned row": (FILL + MATRIX.replace("[%r3]", "[%r3+8]"), "misaligned-address", FILL + MATRIX),
    "row never written": (PLACE + MATRIX, "uninitialized-read", FILL + MATRIX),
    "row beyond the tile": (FILL + MATRIX.replace("[%r3]", "[%r3+2048]"), "out-of-bounds", FILL + MATRIX),
    "no syncwarp": (
        FILL.replace("bar.warp.sync -1;", "") + "xor.b32 %r3, %r3, 16;" + MATRIX,
        "race-shared",
        FILL + "xor.b32 %r3, %r3, 16;" + MATRIX,
    ),
    "a lane missing in mma": (
        ZEROS + "setp.eq.u32 %p1, %r1, 7; @%p1 bra END;" + MMA + "END:",
        "warp-divergence",
        ZEROS + "setp.eq.u32 %p1, %r1, 7;" + MMA + "@%p1 bra END; END:",
    ),
    "a lane missing in ldmatrix": (
        FILL + "setp.eq.u32 %p1, %r1, 7; @%p1 bra END;" + MATRIX + "END:",
        "warp-divergence",
        FILL + "setp.eq.u32 %p1, %r1, 7;" + MATRIX + "@%p1 bra END; END:",
    ),
}


NIGHTLY = ["a lane missing in mma", "a lane missing in ldmatrix", "own copy, no wait", "no wait, syncwarp"]
NIGHTLY += ["no wait, ldmatrix", "no commit", "misaligned source", "beyond the array", "written under way"]
# compiled code checks copies by itself, and then the interpreter runs the marked blocks
COMPILED = ["no wait", "misaligned row", "one group too many", "source written under way", "no barrier"]
COMPILED += ["source written after the wait of another"]
COMPILED += ["source written by another", "the tile used again", "two copies to one place"]
COMPILED += ["read under way", "read by another under way"]


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        *((name, "fibers") for name in PLANTED),
        *((name, "native") for name in COMPILED),
        *(pytest.param(name, "native", marks=pytest.mark.nightly) for name in NIGHTLY),
    ],
)
def test_planted_bugs_are_found_and_their_twins_are_clean(name, engine):
    bug, kind, twin = PLANTED[name]
    assert kinds(bug, engine=engine)[0] == [kind]
    assert kinds(twin, engine=engine)[0] == []


def test_waited_copies_are_compiled():
    """Check copies of two groups, and copies that no thread awaits."""
    second = COPY.replace("[%r3]", "[%r3+512]")
    body = f"{COPY}{COMMIT}{second}{COMMIT}cp.async.wait_group 1;{OWN}cp.async.wait_all;{BARRIER}{OTHER}"
    y = np.zeros(128, np.int32)
    simulation = simulate(kernel(PLACE + body), engine="native")
    report = simulation[1, 32](np.arange(128, dtype=np.int32), y)
    assert report.notes == ("compiled",) and y[:4].tolist() == [4, 0, 12, 8]
    simulation = simulate(kernel(PLACE + COPY + COMMIT), engine="native", on_finding="report")
    report = simulation[2, 32](np.arange(128, dtype=np.int32), y)
    assert report.notes == ("compiled",)


def test_a_fragment_mixed_up_is_a_wrong_value_only():
    a, b, c = operands("f16", 16)
    given = np.concatenate(
        [words(a, 16)[[0, 2, 1, 3]], words(np.ascontiguousarray(b.T), 8), accumulators(c.astype(np.float32))]
    )
    out = np.zeros((4, 32), np.uint32)
    report = simulate(product("f32", "f16", 16))[1, 32](given, out)
    right = accumulators((a.astype(int) @ b.astype(int) + c).astype(np.float32))
    assert not report.findings and not np.array_equal(out, right)


# --- refusals -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        MMA.replace("m16n8k8", "m16n8k64"),
        MMA.replace(".row.col", ".col.row"),
        MMA.replace("f32.bf16.bf16.f32", "f32.e4m3.e4m3.f32"),
        MMA.replace("{%a0, %a1}", "{%a0}"),
        MMA.replace(", {%e0, %e1, %e2, %e3}", ""),
        MMA.replace("{%f0, %f1, %f2, %f3}", "{%f0, %f1}"),
        MMA.replace("{%f0, %f1, %f2, %f3}", "%f0"),
        "mma.sync;",
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%f0, %f1}, {%a0}, {%b0}, {%e0, %e1};",
        "ldmatrix.sync.aligned.m8n8.x3.shared.b16 {%d0, %d1, %d2}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%d0, %d1}, [%r3];",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%d0}, %r3;",
        "ldmatrix.sync.aligned.m8n8.x1.shared.b16;",
        "ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%d0, %d1}, [%r3];",
        "movmatrix.sync.aligned.m8n8.b16 %d0, %c0;",
        "cp.async.cg.shared.global [%r3], [%x3], 8;",
        "cp.async.ca.shared.global [%r3], [%x3], 12;",
        "cp.async.ca.shared.global [%r3], [%x3], %r1;",
        "cp.async.ca.shared.global [%r3], [%x3];",
        "cp.async.ca.shared.global [%r3], %x3, 4;",
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%x3], 16;",
        "cp.async.mbarrier.arrive.noinc.shared::cluster.b64 [%r3];",
        "cp.async.wait_group;",
        "cp.async.commit_group 1;",
        "cp.async;",
        "cp;",
    ],
)
def test_what_is_not_there_is_refused_by_name_and_line(body):
    for engine in ("fibers", "native"):
        with pytest.raises(LaunchError, match=re.escape(f"PTX line 11: {body.split()[0].rstrip(';')}")):
            simulate(kernel(f"\n\n{body}"), engine=engine)[1, 32](
                np.zeros(4, np.int32), np.zeros(4, np.int32)
            )
