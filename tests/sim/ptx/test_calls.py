"""Tests of indirect calls in PTX.

They cover function tables, invalid pointers, and barriers and recursion inside such calls. Kernels without an
indirect call must run too. Realistic kernels are in cuda/.
"""

import re
import sys

import numpy as np
import pytest

from sim import LaunchError, load_cuda, load_ptx, simulate

FUNCTION = """
.visible .func (.param .b32 result) {name}(.param .b32 x)
{{
    .reg .b32 %r<5>; .reg .b64 %d<5>; .reg .pred %p;
    ld.param.b32 %r1, [x];
    {body}
    st.param.b32 [result], %r2;
    ret;
}}
"""
ENTRY = """
.visible .entry {name}(.param .u64 k_x, .param .u64 k_y)
{{
    .reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %d<12>;
    ld.param.u64 %d1, [k_x]; ld.param.u64 %d2, [k_y]; mov.u32 %r1, %tid.x;
    mad.wide.u32 %d3, %r1, 8, %d1; mad.wide.u32 %d4, %r1, 4, %d2; and.b32 %r2, %r1, 1;
    {body}
    ret;
}}
"""
# Call the function that %d5 points to, with the thread's index.
CALL = """
    {{ .param .b32 p; .param .b32 r; st.param.b32 [p], %r1;
    prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
    call (r), %d5, (p), prototype; ld.param.b32 %r3, [r]; }}
    st.global.u32 [%d4], %r3;""".format()
DOUBLES = FUNCTION.format(name="doubles", body="add.u32 %r2, %r1, %r1;")
ADDS = FUNCTION.format(name="adds", body="add.u32 %r2, %r1, 100;")
TABLE = ".global .align 8 .u64 table[2] = {doubles, adds};"
BY_TABLE = "mad.wide.u32 %d5, %r2, 8, table; ld.global.u64 %d5, [%d5];"
FROM_X = "ld.global.u64 %d5, [%d3];"  # The pointer comes from the kernel's argument.


def module(body, *parts):
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    plain = ENTRY.format(name="plain", body="st.global.u32 [%d4], %r1;")
    return load_ptx("\n".join([head, *parts, ENTRY.format(name="k", body=body), plain]))


def launched(body, *parts, engine="fibers", x=None, threads=4, entry="k", **how):
    x, y = np.zeros(threads, np.int64) if x is None else x, np.full(threads, -1, np.int32)
    report = simulate(module(body, *parts)[entry], engine=engine, on_finding="report", **how)[1, threads](
        x, y
    )
    return report, y.tolist()


BY_REGISTER = "setp.eq.u32 %p1, %r2, 0; mov.u64 %d6, doubles; mov.u64 %d7, adds; selp.b64 %d5, %d6, %d7, %p1;"
CONSTANT = TABLE.replace(".global", ".const"), BY_TABLE.replace("global", "const")


@pytest.mark.parametrize("engine", ["fibers", "threads", "native"])
@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (BY_TABLE + CALL, (DOUBLES, ADDS, TABLE)),
        (CONSTANT[1] + CALL, (DOUBLES, ADDS, CONSTANT[0])),
        (BY_TABLE + CALL, (DOUBLES.split("{")[0] + ";", ADDS.split("{")[0] + ";", TABLE, DOUBLES, ADDS)),
        (BY_REGISTER + CALL, (DOUBLES, ADDS)),
        (
            BY_TABLE + CALL.replace("prototype: .callprototype (.param .b32 _) _ (.param .b32 _);",
                                    "prototype: .calltargets doubles, adds;"),
            (DOUBLES, ADDS, TABLE),
        ),
        (
            "ld.global.u64 %d6, [outer]; mad.wide.u32 %d6, %r2, 8, %d6; ld.u64 %d5, [%d6];" + CALL,
            (DOUBLES, ADDS, TABLE, ".global .align 8 .u64 outer = generic(table);"),
        ),
    ],
)  # fmt: skip
def test_a_table_of_functions(body, parts, engine):
    report, y = launched(body, *parts, engine=engine)
    assert report.findings == () and y == [0, 101, 4, 103]
    assert engine != "native" or "call" in report.notes[0] and "no compiled form" in report.notes[0]


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    ("body", "parts", "message"),
    [
        (FROM_X + CALL, (DOUBLES,), "the null pointer"),
        ("mov.u64 %d5, 4096;" + CALL, (DOUBLES,), "address 0x1000, which is not a function"),
        ("mov.u64 %d5, table;" + CALL, (DOUBLES, ADDS, TABLE), "which is not a function"),
        ("mov.u64 %d5, doubles; add.u64 %d5, %d5, 4;" + CALL, (DOUBLES,), "which is not a function"),
        (
            "mov.u64 %d5, outer;" + CALL,
            (".extern .func (.param .b32 result) outer(.param .b32 x);",),
            "outer, which the module declares and does not define",
        ),
        (
            "mov.u64 %d5, doubles;" + CALL.replace("call (r), %d5, (p)", "call (r), %d5, (p, p)"),
            (DOUBLES,),
            "doubles, which takes 4 bytes and returns 4 bytes, with 4 bytes and 4 bytes for 4 bytes",
        ),
    ],
)
def test_a_pointer_that_is_no_function_is_a_finding(body, parts, message, engine):
    report, y = launched(body, *parts, engine=engine)
    (finding,) = report.errors
    assert (
        finding.kind == "invalid-call" and message in str(finding) and finding.accesses[0].thread == (0, 0, 0)
    )
    assert set(y) == {-1}  # poison


def test_a_read_beyond_the_table_calls_nothing():
    beyond = BY_TABLE.replace("%r2, 8, table", "%r1, 8, table")
    report, y = launched(beyond + CALL, DOUBLES, ADDS, TABLE)
    assert [f.kind for f in report.errors] == ["out-of-bounds", "invalid-call"] and y == [0, 101, -1, -1]
    cause, call = report.errors
    assert "another module" not in call.message and call.follows
    assert "The pointer comes from an undefined value on line" in call.reason and cause.verdict in call.reason
    assert cause.fix in call.fix and call.fix.endswith("this call then needs no change of its own")


MISALIGNED = "mov.u64 %d5, table; add.u64 %d5, %d5, 4; ld.global.u64 %d5, [%d5];"
IN_NO_ARRAY = "mov.u64 %d5, 0x300000000; ld.global.u64 %d5, [%d5];"
TWICE_IN_NO_ARRAY = IN_NO_ARRAY + "\n ld.u64 %d5, [%d5];"


@pytest.mark.parametrize("engine", ["fibers", "native"])
@pytest.mark.parametrize(
    "body, kinds",
    [
        (MISALIGNED, ["misaligned-address", "invalid-call"]),
        (IN_NO_ARRAY, ["out-of-bounds", "invalid-call"]),
        (TWICE_IN_NO_ARRAY, ["out-of-bounds", "out-of-bounds", "invalid-call"]),
    ],
)
def test_a_call_through_the_result_of_a_refused_read_follows_the_read(body, kinds, engine):
    report, y = launched(body + CALL, DOUBLES, ADDS, TABLE, engine=engine)
    assert [f.kind for f in report.errors] == kinds and set(y) == {-1}
    cause, *consequences = report.errors
    assert not cause.follows
    for finding in consequences:
        assert finding.follows and "comes from an undefined value on line" in finding.reason
        assert cause.verdict in finding.reason and cause.fix in finding.fix


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_second_read_in_no_array_is_no_consequence_of_the_first(engine):
    body = IN_NO_ARRAY + "\n mov.u64 %d5, 0x300000100; ld.global.u64 %d5, [%d5];\n mov.u64 %d5, 4096;"
    report, _ = launched(body + CALL, DOUBLES, engine=engine)
    assert [f.kind for f in report.errors] == ["out-of-bounds", "out-of-bounds", "invalid-call"]
    assert not any(f.follows for f in report.errors)


@pytest.mark.parametrize("address", ["0x3ff0000000000000", "0x7fffffffffffffff"])
def test_an_address_beyond_all_modules_is_no_function_of_another_module(address):
    report, _ = launched(f"mov.u64 %d5, {address};" + CALL, DOUBLES)
    (finding,) = report.errors
    assert f"reaches address {address}, which is not a function" in finding.message


def test_kernels_without_such_a_call_are_launchable():
    """Launch kernels without indirect calls, which must run whatever the module's function tables contain."""
    text = FUNCTION.format(name="odd", body="tex.2d.v4.f32.f32 {%r1, %r2, %r3, %r4}, [%d1, {%r1, %r2}];")
    parts = (text, ".extern .func elsewhere();", ".global .align 8 .u64 table[2] = {odd, elsewhere};")
    for engine in ("fibers", "native"):
        report, y = launched(BY_TABLE + CALL, *parts, entry="plain", engine=engine)
        assert report.findings == () and y == [0, 1, 2, 3]
        assert engine == "fibers" or report.notes == ("compiled",)


def test_a_function_that_sim_cannot_run_ends_the_launch_when_it_is_called():
    odd = FUNCTION.format(name="odd", body="tex.2d.v4.f32.f32 {%r1, %r2, %r3, %r4}, [%d1, {%r1, %r2}];")
    table = ".global .align 8 .u64 table[2] = {doubles, odd};"
    report, y = launched(BY_TABLE.replace("%r2", "0") + CALL, DOUBLES, odd, table)
    assert report.findings == () and y == [0, 2, 4, 6]
    with pytest.raises(LaunchError, match=re.escape("odd uses instructions that sim does not support")):
        launched(BY_TABLE + CALL, DOUBLES, odd, table)


WAITS = FUNCTION.format(name="waits", body="bar.sync 0; add.u32 %r2, %r1, %r1;")
WAITS_TOO = FUNCTION.format(name="waits_too", body="add.u32 %r2, %r1, 100;\nbar.sync 0;")


def test_barriers_behind_a_call_are_barriers_of_the_block():
    table = ".global .align 8 .u64 table[2] = {waits, waits_too};"
    report, y = launched(BY_TABLE + CALL, WAITS, WAITS_TOO, table, threads=64)
    # lanes of one warp call different functions
    assert [(f.kind, f.severity) for f in report.findings] == [("barrier-divergence", "error")]
    assert y == [t + 100 if t % 2 else 2 * t for t in range(64)]
    report, _ = launched(BY_TABLE.replace("%r2", "0") + CALL, WAITS, WAITS_TOO, table, threads=64)
    assert report.findings == ()
    report, _ = launched(BY_TABLE + CALL, WAITS, ADDS, TABLE.replace("doubles", "waits"), threads=64)
    assert [(f.kind, f.severity) for f in report.findings] == [("barrier-divergence", "error")]


def test_recursion_through_a_pointer():
    """Recurse through a pointer. Each active call must have its own local memory."""
    body = """
    .local .align 4 .b8 own[4];
    mov.u64 %d1, own; st.local.u32 [%d1], %r1; mov.u32 %r2, 0; setp.eq.u32 %p, %r1, 0; @%p bra END;
    ld.global.u64 %d2, [again]; sub.u32 %r3, %r1, 1;
    { .param .b32 p; .param .b32 r; st.param.b32 [p], %r3;
    prototype: .callprototype (.param .b32 _) _ (.param .b32 _);
    call (r), %d2, (p), prototype; ld.param.b32 %r2, [r]; }
    ld.local.u32 %r4, [%d1]; add.u32 %r2, %r2, %r4;
    END:"""
    parts = FUNCTION.format(name="sums", body=body), ".global .align 8 .u64 again = sums;"
    declared = parts[0].split("{")[0] + ";"
    report, y = launched("mov.u64 %d5, sums;" + CALL, declared, parts[1], parts[0], threads=40)
    assert report.findings == () and y == [t * (t + 1) // 2 for t in range(40)]


RECURSION = """
__device__ int odd(int n, const int* p);
__device__ __noinline__ int even(int n, const int* p) {
  if (n == 0) return 0;
  char own[SIZE];
  for (int i = 0; i < SIZE; i++) own[i] = p[i];
  int r = odd(n - 1, p + 1) + *p;
  return r * (n & 1 ? 1 : own[n % SIZE]);
}
__device__ __noinline__ int odd(int n, const int* p) {
  int r = even(n - 1, p + 1) * 3;
  return r ^ *p;
}
extern "C" __global__ void k(const int* x, int* y, int n) { y[threadIdx.x] = even(n, x); }
"""


@pytest.mark.parametrize("engine", ["auto", "fibers", "threads", "native"])
@pytest.mark.parametrize(
    "size, lines, limit",
    [(1, (7, 11), f"limit of {sys.getrecursionlimit():,}"), (8192, (11,), "the stack has 8")],
)
def test_a_deep_recursion_names_the_call_and_the_limit(size, lines, limit, engine, tmp_path):
    (tmp_path / "k.cu").write_text(RECURSION.replace("SIZE", str(size)))
    kernel = load_cuda(tmp_path / "k.cu")["k"]
    x, y = np.zeros(20_000, np.int32), np.zeros(2, np.int32)
    report = simulate(kernel, engine=engine, on_finding="report")[1, 2](x, y, np.int32(2000))
    (finding,) = report.findings
    assert finding.kind == "undecided" and limit in finding.reason
    site = finding.accesses[0].site
    assert site.function == "k.cu" and site.line in lines
    assert simulate(kernel, engine=engine)[1, 2](x, y, np.int32(4)).findings == ()


@pytest.mark.parametrize("engine", ["fibers", "threads"])
def test_a_deep_recursion_in_python_names_the_call(engine):
    def count(n):
        return 0 if n == 0 else count(n - 1) + 1

    def kernel(x):
        x[0] = count(len(x) * 2000)

    (finding,) = simulate(kernel, engine=engine, on_finding="report")[1, 1](np.zeros(1)).findings
    assert (finding.kind, finding.accesses[0].site.function) == ("undecided", "count")
    assert "sys.setrecursionlimit" in finding.fix
