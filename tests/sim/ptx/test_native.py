"""Tests of compiled PTX.

Results equal the interpreter's bit for bit, and the checks find the same errors. Kernels that cannot be
compiled run in the interpreter.
"""

import re
import time

import numpy as np
import pytest

from ptx import operations
from ptx.corpus import CASES
from ptx.test_cuda_cpp import module
from ptx.test_language import kernel
from sim import load_ptx, simulate
from sim.native.ptx.program import compile_kernel

pytest.importorskip("numba")

# kernels of the corpus that run on fibers, and the reason
LEFT = {
    "tile_of_warps": "reserved_smem",
    "groups": "results of atomics|call|redux|activemask|atom|fence",
    "heap_bounds": "call",
    "heap_list": "call",
    "heap_race": "call",
    "last_block": "results of atomics|membar",
    "lock": "results of atomics|membar",
    "look_back": "volatile",
    "ticket_lock": "results of atomics|volatile",
    "volatile_warp": "volatile",
    "overlapping_tickets": "results of atomics",
    "scope_of_block": ".cta.",
    "stack_aba": "membar",
    "table_of_functions": "call",
    "virtual_functions": "call",
}


@pytest.mark.parametrize("blocks", [1, 200])  # a large launch is explained block by block
def test_an_endless_loop_is_found_at_the_first_limit(blocks, monkeypatch):
    # Without it, the test would not end.
    monkeypatch.setattr("sim.native.ptx.launch.WHILE_LIMIT", 1 << 62)
    monkeypatch.setattr("sim.native.run.launch.FIRST_LIMIT", 10_000)
    monkeypatch.setattr("sim.native.run.launch.FIRST_SECONDS", -1)
    monkeypatch.setattr("sim.loop_limits.FIRST_PATIENCE", 0.05)
    x = np.zeros(64, np.int32)
    waits = kernel("LOOP: bar.sync 0; ld.global.u32 %r4, [%d3]; setp.eq.u32 %p1, %r4, 0; @%p1 bra LOOP;")
    report = simulate(waits, engine="native", on_finding="report")[blocks, 64](x, x.copy())
    assert [finding.kind for finding in report.findings] == ["no-progress"]


@pytest.mark.parametrize(
    ("wait", "kinds"), [("cp.async.wait_all; GET", set()), ("GET cp.async.wait_all;", {"async-copy"})]
)
def test_copies_that_each_thread_reads_itself(wait, kinds):
    """Let each thread copy its own element four times, without a barrier, and read it after each copy."""
    get = "ld.shared.u32 %r4, [%r3]; add.u32 %r5, %r5, %r4;"
    body = """.shared .align 4 .b8 tile[256];
    mov.u32 %r1, %tid.x; mov.u32 %r3, tile; shl.b32 %r2, %r1, 2; add.u32 %r3, %r3, %r2;
    mov.u32 %r5, 0; mov.u32 %r6, 0;
    LOOP: cp.async.ca.shared.global [%r3], [%d3], 4; """
    body += wait.replace("GET", get)
    body += "add.u32 %r6, %r6, 1; setp.lt.u32 %p1, %r6, 4; @%p1 bra LOOP; st.global.u32 [%d4], %r5;"
    x, out = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    report = simulate(kernel(body), engine="native", on_finding="report")[1, 64](x, out)
    assert {finding.kind for finding in report.findings} == kinds
    assert kinds or (report.notes[0] == "compiled" and np.array_equal(out, 4 * x))


def test_names_longer_than_llvm_accepts():
    # Templates of CUTLASS have such names. The two names differ only in their last character.
    first, second = (f"_Z{'9Iterators' * 130}{letter}" for letter in "ab")
    body = f".shared .b32 {first}[64]; .shared .b32 {second}[64]; ld.global.u32 %r4, [%d3];"
    for name, value in ((first, "%r4"), (second, "%r1")):
        body += f"mov.u32 %r5, {name}; mad.lo.u32 %r5, %r1, 4, %r5; st.shared.u32 [%r5], {value};"
    body += f"mov.u32 %r5, {first}; mad.lo.u32 %r5, %r1, 4, %r5; ld.shared.u32 %r6, [%r5];"
    body += "st.global.u32 [%d4], %r6;"
    x, out = np.arange(5, 69, dtype=np.int32), np.zeros(64, np.int32)
    report = simulate(kernel(body), engine="native")[1, 64](x, out)
    assert report.notes == ("compiled",) and (out == x).all()


@pytest.mark.parametrize("wait", ["cp.async.wait_all;", "cp.async.commit_group; cp.async.wait_group 0;"])
def test_a_kernel_may_wait_for_copies_without_sending_any(wait):
    # CuTe generates such code if the copy of a tile is an ordinary load. Compiled code then ended with
    # SIGSEGV.
    x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
    copies = kernel(f"ld.global.u32 %r4, [%d3]; {wait} st.global.u32 [%d4], %r4;")
    report = simulate(copies, engine="native")[1, 64](x, out)
    assert report.notes == ("compiled",) and (out == x).all()


LEAVES_A_LOOP = """mov.u32 %r5, 0; mov.u32 %r6, 0;
LOOP: setp.eq.u32 %p1, %r6, 3; setp.eq.u32 %p2, %r1, LEAVER; and.pred %p3, %p1, %p2; @%p3 bra DONE;
ld.global.u32 %r4, [%d3]; add.u32 %r5, %r5, %r4; bar.sync 0;
add.u32 %r6, %r6, 1; setp.lt.u32 %p4, %r6, 6; @%p4 bra LOOP;
st.global.u32 [%d4], %r5;
DONE: """


def test_a_region_also_evaluates_the_test_after_it():
    """Look for a region that only loads a test computed by another region.

    After the exit, there are three loops over the threads: for the load, after the barrier, and after the
    loop of the kernel.
    """
    _, compiled = compile_kernel(kernel(LEAVES_A_LOOP.replace("LEAVER", "5")))
    region = r"def \w+_\d+\(.*\):\n    \w+ = load_bool\(.*\)\n\s*return 1 if"
    assert not re.search(region, compiled.text)
    _, loop = compiled.text.split("while count_iteration", 1)
    assert loop.split("else:")[1].count("for thread") == 3


@pytest.mark.parametrize("blocks", [1, 200])
@pytest.mark.parametrize("leaver, kinds", [(64, set()), (5, {"barrier-divergence"})])
def test_findings_of_a_region_with_a_test_are_the_interpreters(leaver, kinds, blocks):
    found = []
    for engine in ("fibers", "native"):
        x, out = np.arange(64, dtype=np.int32), np.zeros(64, np.int32)
        leaves = kernel(LEAVES_A_LOOP.replace("LEAVER", f"{leaver}"))
        report = simulate(leaves, engine=engine, on_finding="report")[blocks if kinds else 1, 64](x, out)
        assert {finding.kind for finding in report.findings} == kinds
        assert kinds or np.array_equal(out, 6 * x)
        found.append(told(report))
    assert found[0] == found[1]


def told(report):
    return sorted((f.kind, str(sorted({a.site.line for a in f.accesses if a.site}))) for f in report.findings)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if place % 8 and name not in LEFT else [])
        for place, name in enumerate(CASES)
    ],
)  # Each CI run interprets all these kernels (test_cuda_cpp.py).
def test_findings_and_values_are_the_interpreters(name):
    case = CASES[name]
    for which, make in (("bug", case.arguments), ("mended", case.mended_arguments or case.arguments)):
        found = []
        for engine in ("fibers", "native"):
            arguments, (_, kernels) = make(), module(name)  # Variables keep their values between launches.
            how = simulate(kernels[which], engine=engine, on_finding="report", max_steps=100_000)
            report = how[case.grid, case.block, 0, case.shared](*arguments)
            found.append((told(report), [a.tobytes() for a in arguments if isinstance(a, np.ndarray)]))
        assert found[0] == found[1]
        reasons = LEFT.get(name)
        assert report.notes[0].startswith("compiled") == (reasons is None), report.notes
        assert reasons is None or any(why in report.notes[0] for why in reasons.split("|"))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if place % 8 != 1 else [])
        for place, name in enumerate(name for name in CASES if name not in LEFT)
    ],
)
def test_records_of_compiled_code_describe_errors_of_the_interpreter(name, monkeypatch):
    """Compare the findings if the interpreter has no time to explain errors."""
    monkeypatch.setattr("sim.native.run.explain.EXPLAIN_SECONDS", -1)
    case = CASES[name]
    for which, make in (("bug", case.arguments), ("mended", case.mended_arguments or case.arguments)):
        found = []
        for engine in ("fibers", "native"):
            how = simulate(module(name)[1][which], engine=engine, on_finding="report")
            report = how[case.grid, case.block, 0, case.shared](*make())
            found.append({(error.kind, error.array) for error in report.errors})
        assert found[1] <= found[0] and bool(found[1]) == bool(found[0])


SOME = """add.s32 sub.u64 mul.lo.s64 mul.hi.s32 mul.hi.u64 mul.wide.s32 mad.lo.s32 mad.wide.u32 div.s32
    div.u64 rem.s64 rem.u32 sad.s32 abs.s32 neg.s64 min.u32 max.s64 popc.b64 clz.b32 brev.b32 bfind.s64
    bfe.s32 bfe.u64 bfi.b32 shl.b64
    shr.s32 shr.u64 shf.l.wrap.b32 lop3.b32 prmt.b32 prmt.b32.b4e prmt.b32.rc16 fns.b32 and.b64 not.b32
    xor.pred not.pred
    setp.lt.s32 setp.lt.u64 setp.ne.b16 selp.b64 add.f32 mul.f64 div.rn.f32 sqrt.rn.f64 fma.rn.f32 fma.rm.f32
    fma.rp.f32 add.rz.f32 mul.rm.f32 min.f32 max.NaN.f32 setp.neu.f32 setp.nan.f64 abs.f64 neg.f32
    cvt.rni.s32.f32 cvt.rzi.u32.f64 cvt.rmi.f32.f32 cvt.rn.f32.s64
    cvt.rn.f32.u64 cvt.rn.f32.f64 cvt.sat.f32.f32 cvt.s64.s32
    cvt.u16.u64 cvt.rn.f16.f32 add.f16 fma.rn.bf16 fma.rn.f16x2 cvt.rn.bf16x2.f32 mul.ftz.f32 copysign.f32
    add.sat.s32 szext.clamp.s32 dp4a.s32.u32""".split()


FLOATING = """fma.rn.f16 fma.rn.bf16 fma.rn.bf16x2 add.rn.f16 mul.f16 mul.f16x2 sub.f16 min.f16
    max.NaN.bf16 neg.f16 abs.bf16 neg.bf16x2 setp.lt.f16 setp.geu.bf16 cvt.f32.f16 cvt.rni.s32.f16
    rcp.approx.ftz.f64 rsqrt.approx.f32 ex2.approx.f32 sin.approx.f32 tanh.approx.f32 cvt.rn.f16.f64
    mul.rz.f32 add.rm.f32 div.rz.f32 sqrt.rp.f32 cvt.rz.f32.f64""".split()


def differing(names, constant=""):
    """Return the instructions for which the two engines disagree.

    constant: the operands that are constants ("a", "b", "c").
    """
    kernel, found = operations.kernel(names, constant), []
    for engine in ("fibers", "native"):
        out = np.zeros((len(names), operations.THREADS), np.uint64)
        report = simulate(kernel, engine=engine, observers=())[1, operations.THREADS](
            *operations.operands().values(), out
        )
        found.append(operations.results(out, names))
    assert report.notes[0] == "compiled", report.notes
    return [name for name in names if not np.array_equal(found[0][name], found[1][name])]


def test_instructions_give_every_bit_of_the_interpreter():
    assert differing(SOME) == []


@pytest.mark.parametrize("constant", ["a", "b", "abc"])
def test_operands_can_be_constants(constant):
    assert differing(FLOATING, constant) == []


FUSED = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 k_x)
{
    .reg .b32 %a, %b; .reg .b64 %x;
    ld.param.u64 %x, [k_x]; ld.global.b32 %a, [%x]; mov.b32 %b, %a;
    STEPS
    st.global.b32 [%x], %b; ret;
}
"""


def compile_time(instruction, count):
    """Return the CPU seconds of the first launch of a kernel that repeats an instruction."""
    # The machine code of an equal kernel may be in the cache.
    given = f"xor.b32 %b, %b, {time.time_ns() % 10**9}; " + f"{instruction} %b, %a, %b, %a; " * count
    kernel, began = load_ptx(FUSED.replace("STEPS", given))["k"], time.process_time()
    report = simulate(kernel, engine="native", observers=())[1, 1](np.ones(1, np.float32))
    assert report.notes[0] == "compiled", report.notes
    return time.process_time() - began


def test_operations_on_16_bit_floats_share_their_code():
    compile_time("fma.rn.f16x2", 1)  # import and compile everything else
    assert compile_time("fma.rn.f16x2", 600) < 5 * compile_time("mad.lo.u32", 600)


COUNTED = """.version 8.0\n.target sm_80\n.address_size 64
.visible .entry k(.param .u64 k_x)
{
    .local .align 4 .b8 depot[16];
    .reg .pred %p; .reg .b32 %r<9>; .reg .b64 %d<9>;
    ld.param.u64 %d1, [k_x]; mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x;
    mad.lo.s32 %r4, %r2, %r3, %r1; mad.wide.u32 %d2, %r4, 4, %d1;
    mov.u64 %d3, depot; cvta.local.u64 %d4, %d3;
    mov.u32 %r5, 0;
AGAIN:
    and.b32 %r6, %r5, 3; mad.wide.u32 %d5, %r6, 4, %d4; st.u32 [%d5], %r5;
    add.u32 %r5, %r5, 1; setp.lt.u32 %p, %r5, 7; @%p bra AGAIN;
    ld.local.u32 %r7, [%d3+OFFSET]; add.u32 %r7, %r7, %r4; st.global.u32 [%d2], %r7;
    ret;
}
"""


def counted(offset, blocks, n):
    x = np.zeros(n, np.int32)
    kernel = load_ptx(COUNTED.replace("OFFSET", str(offset)))["k"]
    return x, simulate(kernel, engine="native", on_finding="report")[blocks, 128](x)


def test_local_memory_and_a_loop():
    x, report = counted(8, 2, 256)
    assert report.notes == ("compiled",) and not report.findings
    assert x.tolist() == [i + 6 for i in range(256)]


def test_of_a_large_launch_only_the_blocks_with_a_finding_are_explained():
    x, report = counted(8, 200, 25_500)
    assert [f.kind for f in report.findings] == ["out-of-bounds"]
    assert report.notes[0].startswith("compiled; 1 of 200 blocks has errors")
    assert x.tolist() == [i + 6 for i in range(25_500)]


def test_what_is_not_compiled_is_named():
    x = np.zeros(32, np.int32)
    report = simulate(kernel("membar.gl; st.global.u32 [%d4], 1;"), engine="native")[1, 32](x, x.copy())
    pattern = r"interpreted: membar.gl \(PTX line \d+\) has no compiled form"
    assert re.fullmatch(pattern, report.notes[0]), report.notes


def test_a_thread_sleeps():
    x = np.arange(32, dtype=np.int32)
    body = "ld.global.u32 %r4, [%d3]; nanosleep.u32 100; nanosleep.u32 %r4; st.global.u32 [%d4], %r4;"
    report = simulate(kernel(body), engine="native")[1, 32](x, out := np.zeros_like(x))
    assert report.notes == ("compiled",) and np.array_equal(out, x)


@pytest.mark.parametrize("name", "add.u32 min.s32 max.s32 min.u32 max.u32 and.b32 or.b32 xor.b32".split())
def test_redux(name):
    body = f"ld.global.u32 %r4, [%d3]; redux.sync.{name} %r5, %r4, -1; st.global.u32 [%d4], %r5;"
    x, found = np.arange(-9, 23, dtype=np.int32) * 77 | 1, {}
    for engine in ("fibers", "native"):
        found[engine] = np.zeros_like(x)
        simulate(kernel(body), engine=engine)[1, 32](x, found[engine])
    assert np.array_equal(found["fibers"], found["native"]) and found["native"].any()
