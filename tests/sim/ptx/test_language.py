"""Tests of small PTX programs: results of instructions, arbitrary control flow, rejected input, and locations
of findings."""

import operator
import re

import numpy as np
import pytest

from sim import LaunchError, ThreadError, load_ptx, simulate

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"
ENTRY = """
.visible .entry k(.param .u64 k_param_0, .param .u64 k_param_1)
{{
    .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<20>; .reg .b64 %d<20>; .reg .f32 %f<20>; .reg .f64 %g<8>;
    ld.param.u64 %d1, [k_param_0];
    ld.param.u64 %d2, [k_param_1];
    mov.u32 %r1, %tid.x;
    mad.wide.u32 %d3, %r1, {size_in}, %d1;
    mad.wide.u32 %d4, %r1, {size_out}, %d2;
    {body}
    ret;
}}
"""


def kernel(body, size_in=4, size_out=4):
    return load_ptx(HEAD + ENTRY.format(body=body, size_in=size_in, size_out=size_out))["k"]


def run(body, x, out, threads=None):
    """Return `out` after a launch in which each thread loads x[thread] and stores its result in
    out[thread]."""
    x, out = np.asarray(x), np.zeros(len(x), out)
    simulate(kernel(body, x.itemsize, out.itemsize))[1, threads or len(x)](x, out)
    return out


I32 = [(5, 3), (-7, 2), (2**31 - 1, 1), (-(2**31), -1), (0, 0), (-5, 33)]


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("add.s32", lambda a, b: a + b),
        ("sub.s32", lambda a, b: a - b),
        ("mul.lo.s32", lambda a, b: a * b),
        ("mul.hi.s32", lambda a, b: a * b >> 32),
        ("and.b32", lambda a, b: a & b),
        ("or.b32", lambda a, b: a | b),
        ("xor.b32", lambda a, b: a ^ b),
        ("min.s32", min),
        ("max.s32", max),
        ("shl.b32", lambda a, b: a << b if 0 <= b < 32 else 0),
        ("shr.s32", lambda a, b: a >> (b if 0 <= b < 32 else 31)),
        ("add.sat.s32", lambda a, b: max(-(2**31), min(a + b, 2**31 - 1))),
    ],
)
def test_integers(instruction, wanted):
    body = (
        f"ld.global.u32 %r4, [%d3]; ld.global.u32 %r5, [%d3+4]; {instruction} %r6, %r4, %r5;"
        "st.global.u32 [%d4], %r6;"
    )
    x, out = np.array(I32, np.int32), np.zeros(len(I32), np.int32)
    simulate(kernel(body, 8, 4))[1, len(I32)](x, out)
    assert out.tolist() == [(wanted(a, b) + 2**31) % 2**32 - 2**31 for a, b in I32]


F32 = np.array(
    [(1.5, 2.25), (1e30, 1e30), (0.1, 0.2), (-0.0, 0.0), (np.inf, -np.inf), (np.nan, 1), (1e-40, 1)],
    np.float32,
)


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("add.f32", np.add),
        ("sub.rn.f32", np.subtract),
        ("mul.f32", np.multiply),
        ("div.rn.f32", np.divide),
        ("min.f32", np.fmin),
        ("max.f32", np.fmax),
    ],
)
def test_floats(instruction, wanted):
    body = (
        f"ld.global.f32 %f1, [%d3]; ld.global.f32 %f2, [%d3+4]; {instruction} %f3, %f1, %f2;"
        "st.global.f32 [%d4], %f3;"
    )
    out = np.zeros(len(F32), np.float32)
    simulate(kernel(body, 8, 4))[1, len(F32)](F32.copy(), out)
    with np.errstate(all="ignore"):
        right = wanted(F32[:, 0], F32[:, 1])
    np.testing.assert_array_equal(out, right)


@pytest.mark.parametrize(
    ("instruction", "wanted"),
    [
        ("cvt.rni", [2, 2, -2, 4, 2147483647, -2147483648, 0]),
        ("cvt.rzi", [1, 2, -1, 3, 2147483647, -2147483648, 0]),
        ("cvt.rmi", [1, 2, -2, 3, 2147483647, -2147483648, 0]),
        ("cvt.rpi", [2, 3, -1, 4, 2147483647, -2147483648, 0]),
    ],
)
def test_conversions_to_integers(instruction, wanted):
    x = np.array([1.5, 2.5, -1.5, 3.7, 1e20, -np.inf, np.nan], np.float32)
    body = f"ld.global.f32 %f1, [%d3]; {instruction}.s32.f32 %r4, %f1; st.global.u32 [%d4], %r4;"
    assert run(body, x, np.int32).tolist() == wanted


def test_addition_rounded_in_each_direction():
    x = np.array([1], np.float32)
    for mode, up in (("rm", False), ("rp", True), ("rz", False)):
        body = f"ld.global.f32 %f1, [%d3]; add.{mode}.f32 %f2, %f1, 0f2F800000; st.global.f32 [%d4], %f2;"
        assert run(body, x, np.float32)[0] == (np.nextafter(np.float32(1), np.float32(2)) if up else 1), mode


def test_a_register_of_bits_holds_floats_and_integers():
    """Store a float and an integer in a .b32 register, which newer compilers declare for floats as well."""
    body = (
        "ld.global.b32 %r4, [%d3]; add.f32 %r5, %r4, 0f3F800000; and.b32 %r6, %r5, 2147483647;"
        "st.global.b32 [%d4], %r6;"
    )
    np.testing.assert_array_equal(run(body, np.array([-3.5, 1.25], np.float32), np.float32), [2.5, 2.25])


def test_copies_of_floats_need_no_conversions():
    """Move a float through a .b32 register. The generated code contains no bit patterns."""
    body = "ld.global.f32 %f1, [%d3]; mov.b32 %r4, %f1; mov.b32 %f2, %r4; st.global.f32 [%d4], %f2;"
    assert "bits_of" not in kernel(body).program()[0].source


def test_registers_of_halves_contain_floats():
    body = (
        "ld.global.b16 %h1, [%d3]; ld.global.b16 %h2, [%d3+2]; add.rn.f16 %h3, %h1, %h2;"
        "cvt.f32.f16 %f1, %h3; st.global.f32 [%d4], %f1;"
    )
    x = np.array([1.5, 65504, -2, 65504], np.float16)
    made = kernel(body)
    assert "bits_of" not in made.program()[0].source
    out = np.zeros(2, np.float32)
    simulate(made)[1, 2](x, out)
    assert out.tolist() == [65504, 65504]


def test_a_half_keeps_its_bits():
    """Load, move and store NaNs. An addition makes their registers contain floats."""
    body = (
        "ld.global.b16 %h1, [%d3]; mov.b16 %h2, %h1; {type} %h3, %h1, %h2; st.global.b16 [%d4], %h2;"
        "mov.b32 %r4, {{%h3, %h2}}; mov.b32 {{%h4, %h5}}, %r4; st.global.b16 [%d4+2], %h5;"
    )
    x = np.array([0x7C01, 0xFFFF, 0x8000, 0x3C00], np.uint16)
    for opcode in ("add.rn.f16", "add.rn.bf16"):
        out = np.zeros((4, 2), np.uint16)
        simulate(kernel(body.format(type=opcode), 2, 4))[1, 4](x, out)
        assert out.tolist() == [[bits, bits] for bits in x.tolist()], opcode


def test_comparisons_of_signed_numbers():
    body = (
        "ld.global.u32 %r4, [%d3]; ld.global.u32 %r5, [%d3+4]; setp.{test}.s32 %p1, %r4, %r5;"
        "setp.{test}.s32 %p2, %r4, -7; selp.u32 %r6, 1, 0, %p1; selp.u32 %r7, 2, 0, %p2;"
        "add.u32 %r6, %r6, %r7; st.global.u32 [%d4], %r6;"
    )
    x = np.array(I32, np.int32)
    for test in ("lt", "le", "gt", "ge"):
        out, compare = np.zeros(len(I32), np.int32), getattr(operator, test)
        simulate(kernel(body.format(test=test), 8, 4))[1, len(I32)](x, out)
        assert out.tolist() == [compare(a, b) + 2 * compare(a, -7) for a, b in I32], test


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_unordered_comparisons_are_true_for_nan(engine):
    tests = "lt", "le", "gt", "ge", "eq", "ne"
    body = "ld.global.f32 %f1, [%d3]; ld.global.f32 %f2, [%d3+4];" + "".join(
        f"setp.{test}u.f32 %p1, %f1, %f2; selp.u32 %r6, {1 << i}, 0, %p1; add.u32 %r7, %r7, %r6;"
        for i, test in enumerate(tests)
    )
    x = np.array([(1, 2), (2, 2), (2, 1), (np.nan, 1), (1, np.nan)], np.float32)
    out = np.zeros(5, np.int32)
    made = kernel(f"mov.u32 %r7, 0; {body} st.global.u32 [%d4], %r7;", 8, 4)
    simulate(made, engine=engine)[1, 5](x, out)
    right = [sum(getattr(operator, test)(a, b) << i for i, test in enumerate(tests)) for a, b in x[:3]]
    assert out.tolist() == [*right, 63, 63]


def test_carries():
    body = (
        "ld.global.u64 %d5, [%d3]; mov.b64 {%r4, %r5}, %d5; add.cc.u32 %r6, %r4, 1; addc.u32 %r7, %r5, 0;"
        "mov.b64 %d6, {%r6, %r7}; st.global.u64 [%d4], %d6;"
    )
    x = np.array([0xFFFFFFFF, 5, 2**64 - 1], np.uint64)
    assert run(body, x, np.uint64).tolist() == [2**32, 6, 0]


def test_halves():
    body = "ld.global.b32 %r4, [%d3]; fma.rn.f16x2 %r5, %r4, %r4, %r4; st.global.b32 [%d4], %r5;"
    x = np.array([1.5, -2, 0.25, 3], np.float16)
    out = np.zeros(4, np.float16)
    simulate(kernel(body))[1, 2](x, out)
    np.testing.assert_array_equal(out, x * x + x)


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_comparisons_of_packed_halves_have_one_result_per_half(engine):
    body = """ld.global.v2.b32 {%r4, %r5}, [%d3]; and.b32 %r6, %r1, 1; setp.eq.u32 %p3, %r6, 0;
        set.gt.u32.f16x2 %r7, %r4, %r5; setp.gt.f16x2 %p1|%p2, %r4, %r5;
        selp.u32 %r8, 1, 0, %p1; selp.u32 %r9, 2, 0, %p2; or.b32 %r8, %r8, %r9;
        setp.gt.and.f16x2 %p1|%p2, %r4, %r5, %p3; selp.u32 %r9, 4, 0, %p2; or.b32 %r8, %r8, %r9;
        cvt.u16.u32 %h1, %r4; cvt.u16.u32 %h2, %r5; set.gt.u16.f16 %h3, %h1, %h2; cvt.u32.u16 %r9, %h3;
        st.global.v4.b32 [%d4], {%r7, %r8, %r9, %r6};"""
    x = np.array([[1, 2, 0, 3], [1, 2, 3, 0], [2, 2, 1, 1], [np.nan, 1, 0, 0]], np.float16)
    out = np.zeros((4, 4), np.uint32)
    report = simulate(kernel(body, 8, 16), engine=engine)[1, 4](x, out)
    assert engine == "fibers" or report.notes[0] == "compiled"
    low, high = (x[:, :2] > x[:, 2:]).T.astype(np.uint32)
    even = np.array([1, 0, 1, 0], np.uint32)
    wanted = [low * 0xFFFF | high * 0xFFFF0000, low | high * 2 | high * even * 4, low * 0xFFFF]
    np.testing.assert_array_equal(out.T[:3], wanted)


def test_vectors_and_bytes():
    body = "ld.global.v4.u8 {%h1, %h2, %h3, %h4}, [%d3]; st.global.v4.u8 [%d4], {%h4, %h3, %h2, %h1};"
    x = np.arange(1, 9, dtype=np.uint8)
    out = np.zeros(8, np.uint8)
    simulate(kernel(body))[1, 2](x, out)
    assert out.tolist() == [4, 3, 2, 1, 8, 7, 6, 5]


def test_loops_within_loops():
    """Count the odd products i * j, for i and j below the thread's index."""
    body = """
    mov.u32 %r4, 0; mov.u32 %r5, 0;
$outer: setp.ge.u32 %p1, %r4, %r1;
    @%p1 bra $done;
    mov.u32 %r6, 0;
$inner: setp.ge.u32 %p2, %r6, %r1;
    @%p2 bra $next;
    mul.lo.u32 %r7, %r4, %r6; and.b32 %r7, %r7, 1;
    setp.eq.u32 %p3, %r7, 0;
    @%p3 bra $even;
    add.u32 %r5, %r5, 1;
$even: add.u32 %r6, %r6, 1;
    bra $inner;
$next: add.u32 %r4, %r4, 1;
    bra $outer;
$done: st.global.u32 [%d4], %r5;
    """
    out = run(body, np.zeros(7, np.int32), np.int32)
    assert out.tolist() == [sum(i * j % 2 for i in range(n) for j in range(n)) for n in range(7)]


def test_a_loop_that_is_entered_in_the_middle():
    """Jump to the middle of a loop, which makes the control-flow graph irreducible."""
    body = """
    mov.u32 %r4, 0; mov.u32 %r5, 0; and.b32 %r6, %r1, 1;
    setp.eq.u32 %p1, %r6, 0;
    @%p1 bra $second;
$first: add.u32 %r4, %r4, 100;
$second: add.u32 %r4, %r4, 1; add.u32 %r5, %r5, 1;
    setp.lt.u32 %p2, %r5, 3;
    @%p2 bra $first;
    st.global.u32 [%d4], %r4;
    """
    assert run(body, np.zeros(4, np.int32), np.int32).tolist() == [203, 303, 203, 303]


def test_a_jump_by_a_table():
    body = """
    and.b32 %r4, %r1, 3;
    table: .branchtargets $a, $b, $a, $c;
    brx.idx %r4, table;
$a: mov.u32 %r5, 10; bra $end;
$b: mov.u32 %r5, 20; bra $end;
$c: mov.u32 %r5, 30;
$end: st.global.u32 [%d4], %r5;
    """
    assert run(body, np.zeros(5, np.int32), np.int32).tolist() == [10, 20, 10, 30, 10]


def test_a_call_of_a_function():
    text = (
        HEAD
        + """
.func (.param .b32 result) twice(.param .b32 x)
{
    .reg .b32 %r<3>;
    ld.param.b32 %r1, [x];
    add.s32 %r2, %r1, %r1;
    st.param.b32 [result], %r2;
    ret;
}
"""
        + ENTRY.format(
            body="""
    ld.global.u32 %r4, [%d3];
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %r4; call.uni (r), twice, (p); ld.param.b32 %r5, [r]; }
    st.global.u32 [%d4], %r5;""",
            size_in=4,
            size_out=4,
        )
    )
    out = np.zeros(3, np.int32)
    simulate(load_ptx(text)["k"])[1, 3](np.array([1, -2, 7], np.int32), out)
    assert out.tolist() == [2, -4, 14]


def test_what_is_missing_is_refused_by_name_and_line():
    text = HEAD + ENTRY.format(
        body="tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [%d1, {%f5, %f6}];", size_in=4, size_out=4
    )
    line = next(i for i, part in enumerate(text.splitlines(), 1) if "tex.2d" in part)
    x = np.zeros(1, np.float32)
    with pytest.raises(LaunchError, match=re.escape(f"PTX line {line}: tex.2d.v4.f32.f32")):
        simulate(load_ptx(text)["k"])[1, 1](x, x)


def test_a_text_that_is_no_ptx_is_refused_by_line():
    with pytest.raises(LaunchError, match="PTX line 4"):
        load_ptx(HEAD + "int main() {}")


def test_without_loc_a_finding_names_the_line_of_ptx():
    report = simulate(kernel("st.global.u32 [%d4+4], %r1;"), on_finding="report")[1, 2](
        np.zeros(1, np.int32), np.zeros(2, np.int32)
    )
    (finding,) = report.findings
    (access,) = finding.accesses
    assert (finding.kind, access.site.function, finding.index) == ("out-of-bounds", "k, PTX", (2,))
    assert "st.global.u32 [%d4+4], %r1;" in access.site.source


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize("how", ["ld.global.s32", "ld.volatile.global.s32", "ld.global.v2.s32"])
def test_a_signed_load_fills_a_wider_register_with_the_sign(how, engine):
    to = "{%d5, %d6}" if ".v2" in how else "%d5"
    x, out = np.array([-9, 3, -(2**31), 7], np.int32), np.zeros(4, np.int64)
    body = f"and.b64 %d3, %d3, -8; {how} {to}, [%d3]; st.global.u64 [%d4], %d5;"
    simulate(kernel(body, 4, 8), engine=engine)[1, 4](x, out)
    assert out.tolist() == [-9, -9, -(2**31), -(2**31)]


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_what_conversions_and_votes_give_is_a_register(engine):
    body = """
    ld.global.f32 %f1, [%d3]; cvt.rzi.u16.f32 %h1, %f1; cvt.u32.u16 %r4, %h1; sub.s32 %r5, %r1, %r4;
    setp.gt.f32 %p1, %f1, 2.0; bar.red.popc.u32 %r6, 0, %p1; cvt.s64.s32 %d5, %r6; neg.s64 %d5, %d5;
    cvt.rn.f64.s32 %g1, %r6; cvt.rzi.s32.f64 %r7, %g1; add.s32 %r5, %r5, %r7; st.global.u32 [%d4], %r5;"""
    x, out = np.float32([1.5, 300.25, 7]), np.zeros(3, np.int32)
    simulate(kernel(body), engine=engine)[1, 3](x, out)
    assert out.tolist() == [0 - 1 + 2, 1 - 300 + 2, 2 - 7 + 2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((np.zeros(1),), "was launched with 1 argument; it takes 2"),
        ((np.zeros(1), 0.5), "argument1 is a .u64: wanted an integer, got 0.5"),
        ((np.zeros(1), 2**70), "argument1 is a .u64 of 8 bytes, which cannot hold"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(LaunchError, match=re.escape(message)):
        simulate(kernel(""))[1, 1](*arguments)


def test_a_trap_stops_the_launch():
    with pytest.raises(ThreadError, match="trap"):
        simulate(kernel("trap;"))[1, 1](np.zeros(1), np.zeros(1))


def test_both_engines_and_all_seeds_agree():
    body = "ld.global.f32 %f1, [%d3]; fma.rn.f32 %f2, %f1, %f1, %f1; st.global.f32 [%d4], %f2; bar.sync 0;"
    x = np.random.default_rng(0).standard_normal(40).astype(np.float32)
    seen = set()
    for engine in ("fibers", "threads"):
        for seed in range(3):
            out = np.zeros_like(x)
            simulate(kernel(body), engine=engine, seed=seed)[1, 40](x, out)
            seen.add(out.tobytes())
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("store", "kinds"), [("st.local.u32 [%d5+4], %r1;", []), ("", ["uninitialized-read"])]
)
def test_local_memory(store, kinds):
    text = HEAD + ENTRY.format(
        body=f"mov.u64 %d5, depot; {store} ld.local.u32 %r4, [%d5+4]; st.global.u32 [%d4], %r4;",
        size_in=4,
        size_out=4,
    ).replace("{\n", "{\n    .local .align 4 .b8 depot[8];\n", 1)
    out = np.zeros(3, np.int32)
    report = simulate(load_ptx(text)["k"], on_finding="report")[1, 3](np.zeros(3, np.int32), out)
    assert [f.kind for f in report.findings] == kinds
    assert kinds or out.tolist() == [0, 1, 2]


def test_a_jump_to_nowhere_is_refused():
    with pytest.raises(LaunchError, match="jumps to NOWHERE, but its PTX does not define this label"):
        simulate(kernel("bra NOWHERE;"))[1, 1](np.zeros(1), np.zeros(1))


def refused(body):
    """Return the error message for a kernel with this body."""
    with pytest.raises(LaunchError) as caught:
        simulate(kernel(body))[1, 1](np.zeros(1), np.zeros(1))
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            "add.u32 %r1, %r55, %r1;",
            "add.u32: %r55 is neither declared nor a special register that sim supports",
        ),
        ("add.u32 %r55, %r1, %r1;", "add.u32: its result goes to %r55, which is not a declared register"),
        ("@%q1 add.u32 %r1, %r1, %r1;", "%q1 is not declared as a register here"),
        ("mov.u64 %d3, nothing;", "mov.u64: the address of nothing, which the module does not declare"),
        ("add.u32;", "add.u32 with these operands"),
        ("mov.b32 %r1;", "mov.b32 with these operands"),
        ("ld.global.u32 %r1;", "ld.global.u32 with these operands"),
        ("st.global.u32 %r1, %r2;", "st.global.u32 with these operands"),
        ("bra;", "bra needs a label"),
        ("brx.idx %r1, nowhere;", "brx.idx needs an index and .branchtargets"),
        ("L: ret; L: ret;", "the label L is defined twice"),
        ("add.u32 %r1, %r1, 09;", "'09' is not a number"),
        ("call frob, ();", "call of frob, which the module does not define"),
        ("call %d1, ();", "call of a pointer"),
    ],
)
def test_what_an_assembler_would_refuse_is_refused_by_line(body, message):
    said = refused("\n" + body)
    assert message in said and "PTX line 14" in said


def test_a_text_that_is_cut_off_is_refused_wherever_it_is():
    text = HEAD + ENTRY.format(
        body="@%p1 bra L; { .reg .b64 %t; mov.b64 {%r3, %r4}, %t; } L: st.global.u32 [%d4+4], -1;",
        size_in=4,
        size_out=4,
    )
    begin, end = len(HEAD), text.rindex("}")
    for cut in range(begin + len("\n.visible "), end):
        with pytest.raises(LaunchError, match="PTX line"):
            load_ptx(text[:cut])


def test_labels_are_known_within_their_braces():
    """Define a label twice in separate braces, as inline assembly does if it is compiled twice."""
    twice = "{ bra DONE; add.u32 %r5, %r5, 100; DONE: add.u32 %r5, %r5, 1; }"
    body = f"mov.u32 %r5, 0; {twice} {twice} st.global.u32 [%d4], %r5;"
    assert run(body, np.zeros(2, np.int32), np.int32).tolist() == [2, 2]


FACTORIAL = """
.func (.param .b32 result) sum_to(.param .b32 n)
{
    .local .align 4 .b8 depot[4];
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .b64 %d<2>;
    mov.u64 %d1, depot;
    ld.param.b32 %r1, [n];
    st.local.u32 [%d1], %r1;
    mov.u32 %r3, 0;
    setp.eq.u32 %p1, %r1, 0;
    @%p1 bra $end;
    sub.u32 %r2, %r1, 1;
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %r2; call (r), sum_to, (p); ld.param.b32 %r3, [r]; }
$end:
    ld.local.u32 %r4, [%d1];
    add.u32 %r5, %r3, %r4;
    st.param.b32 [result], %r5;
    ret;
}
"""


def test_a_function_that_calls_itself_has_local_memory_for_each_call():
    body = """ld.global.u32 %r4, [%d3];
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %r4; call (r), sum_to, (p); ld.param.b32 %r5, [r]; }
    st.global.u32 [%d4], %r5;"""
    text = HEAD + FACTORIAL + ENTRY.format(body=body, size_in=4, size_out=4)
    out = np.zeros(5, np.int32)
    simulate(load_ptx(text)["k"])[1, 5](np.array([0, 1, 2, 5, 60], np.int32), out)
    assert out.tolist() == [0, 1, 3, 15, 1830]


def test_numbers_wider_than_the_source_says_are_refused():
    source = "__global__ void k(const float* x, int* y) {"
    wide = load_ptx(HEAD + ENTRY.format(body="", size_in=4, size_out=4), source=source)["k"]
    with pytest.raises(LaunchError, match=r"x points to elements of 4 bytes, .* x.astype\(numpy.float32\)"):
        simulate(wide)[1, 1](np.zeros(1), np.zeros(1, np.int32))
    simulate(wide)[1, 1](np.zeros(1, np.float32), np.zeros(4, np.int8))


def test_a_thread_prints_and_stores(capsys):
    """Print a value and store one. An escaped percent sign consumes no argument, and printing is not a
    store."""
    printer = ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 v);\n"
    form = ", ".join(str(letter) for letter in b"%d%% done, 100%% of %u\n\0")
    text = HEAD + f".global .align 1 .b8 form[] = {{{form}}};\n{printer}"
    body = """
    mov.u64 %d5, depot; cvta.local.u64 %d6, %d5; mov.u32 %r4, 4000000000; st.local.v2.u32 [%d5], {%r1, %r4};
    mov.u64 %d7, form; cvta.global.u64 %d8, %d7; st.global.u32 [%d4], %r1;
    { .param .b64 f; .param .b64 v; .param .b32 r; st.param.b64 [f], %d8; st.param.b64 [v], %d6;
      call.uni (r), vprintf, (f, v); ld.param.b32 %r5, [r]; }
    st.global.u32 [%d3], %r5;"""
    text += ENTRY.format(body=body, size_in=4, size_out=4).replace(
        "{\n", "{\n    .local .align 8 .b8 depot[8];\n", 1
    )
    x, out = np.zeros(1, np.int32), np.zeros(1, np.int32)
    simulate(load_ptx(text)["k"])[1, 1](x, out)
    assert capsys.readouterr().out == "0% done, 100% of 4000000000\n" and x[0] == 2


def test_directives_without_a_space_between():
    """Parse directives without a space between them, as cuda_fp16.h writes its assembly."""
    body = "{.reg.b32 t; add.u32 t, %r1, 7; st.global.u32 [%d4], t;}"
    assert run(body, np.zeros(2, np.int32), np.int32).tolist() == [7, 8]


def test_the_reciprocal_of_a_double():
    body = "ld.global.f64 %g1, [%d3]; rcp.approx.ftz.f64 %g2, %g1; st.global.f64 [%d4], %g2;"
    np.testing.assert_allclose(run(body, [4.0, -0.1], np.float64), [0.25, -10], rtol=1e-6)


def test_a_kernel_is_found_by_the_last_part_of_its_name():
    text = HEAD + ENTRY.format(body="", size_in=4, size_out=4)
    assert load_ptx(text.replace(" k(", " _ZN4mine5scaleIfEEvPT_S1_("))["scale"].__name__ == "scale"


def test_a_comparison_gives_a_half():
    body = "ld.global.b16 %h1, [%d3]; set.gt.f16.f16 %h2, %h1, %h3; st.global.b16 [%d4], %h2;"
    body = body.replace("ld.", "mov.b16 %h3, 0x3C00; ld.", 1)
    assert run(body, np.array([0.5, 1.5], np.float16), np.float16).tolist() == [0, 1]


def test_an_endless_loop_with_a_barrier_ends_at_the_callers_limit():
    body = "L: bar.sync 0; ld.global.u32 %r4, [%d3]; setp.eq.u32 %p1, %r4, 0; @%p1 bra L;"
    x, y = np.zeros(2, np.int32), np.zeros(2, np.int32)
    report = simulate(kernel(body), on_finding="report", max_steps=1000)[1, 2](x, y)
    assert [finding.kind for finding in report.findings] == ["no-progress"]


def test_labels_that_only_a_debugger_names_cost_nothing():
    """Translate 2,000 labels, since Triton writes a label per line.

    The translator once exceeded Python's recursion limit.
    """
    added = "".join(f"L{i}: add.u32 %r4, %r4, 1; " for i in range(2000))
    body = f"mov.u32 %r4, %r1; {added} st.global.u32 [%d4], %r4;"
    assert run(body, np.zeros(2, np.int32), np.int32).tolist() == [2000, 2001]


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
def test_compare_and_swap_of_16_bits(engine):
    """Change one half of a word from 5 to 9 in thread 1. The other half and the rest of the register must
    stay."""
    body = """mov.u32 %r4, tile; mov.b16 %h1, 5; mov.b16 %h2, 9; setp.ne.u32 %p1, %r1, 0;
    @%p1 bra NEXT; st.shared.u32 [%r4], 0x70005;
    NEXT: bar.sync 0; setp.ne.u32 %p1, %r1, 1; @%p1 bra DONE;
    atom.shared.cas.b16 %h3, [%r4], %h1, %h2; cvt.u32.u16 %r5, %h3; st.global.u32 [%d2], %r5;
    DONE: bar.sync 0; ld.shared.u32 %r6, [%r4]; st.global.u32 [%d4+4], %r6;"""
    text = HEAD + ".shared .align 4 .b8 tile[4];" + ENTRY.format(body=body, size_in=4, size_out=4)
    out = np.zeros(33, np.int32)
    assert simulate(load_ptx(text)["k"], engine=engine)[1, 32](out[:1].copy(), out).findings == ()
    assert out.tolist() == [5] + [0x70009] * 32


def test_an_alias_is_the_function():
    call = "st.param.b32 [p0], %r1; .param .b32 r0;"
    body = f"{{ .param .b32 p0; {call} call.uni (r0), other, (p0); ld.param.b32 %r4, [r0]; }}"
    text = """.func (.param .b32 r) twice(.param .b32 a)
    { .reg .b32 %r<3>; ld.param.b32 %r1, [a]; add.s32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
    .func (.param .b32 r) other(.param .b32 a); .alias other, twice;"""
    entry = ENTRY.format(body=f"{body} st.global.u32 [%d4], %r4;", size_in=4, size_out=4)
    out = np.zeros(4, np.int32)
    simulate(load_ptx(HEAD + text + entry)["k"])[1, 4](out.copy(), out)
    assert out.tolist() == [0, 2, 4, 6]


def test_an_atomic_of_a_vector_is_refused():
    assert "atom.global.add.v2.f32" in refused("atom.global.add.v2.f32 {%f1, %f2}, [%d1], {%f3, %f4};")


def test_blocks_that_store_vectors_race():
    store = "mov.u32 %r4, %ctaid.x; st.global.v2.u32 [%d4], {%r4, %r4};"
    launch = simulate(kernel(store, 8, 8), on_finding="report")[2, 4]
    (finding,) = launch(np.zeros(8, np.int32), np.zeros(8, np.int32)).findings
    assert finding.kind == "race-global" and [access.value for access in finding.accesses] == [(0, 0), (1, 1)]
