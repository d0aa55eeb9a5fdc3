"""Tests of sim.native.ptx.simplify: the simplified kernels compute the same values, with fewer regions."""

import ast
import re

import numpy as np
import pytest

from sim import load_ptx, simulate
from sim.native.ptx.program import Lowering
from sim.native.ptx.simplify import simplify
from sim.native.ptx.statements import Statements

HEAD = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 k_param_0)
{
.reg .pred %p<9>;
.reg .b32 %r<30>;
.reg .b64 %rd<9>;
ld.param.u64 %rd1, [k_param_0];
cvta.to.global.u64 %rd2, %rd1;
mov.u32 %r1, %tid.x;
mul.wide.u32 %rd3, %r1, 4;
add.s64 %rd4, %rd2, %rd3;
"""
TAIL = """
st.global.u32 [%rd4], %r2;
ret;
}
"""
# The result of a shuffle is also its operand, so it must not overwrite values that other lanes still read.
IN_PLACE = """
mov.u32 %r3, -1;
mov.u32 %r4, 31;
mov.u32 %r5, 1;
add.u32 %r2, %r1, 100;
shfl.sync.idx.b32 %r6|%p1, %r2, %r5, %r4, %r3;
shfl.sync.bfly.b32 %r2|%p2, %r2, %r5, %r4, %r3;
shfl.sync.up.b32 %r2|%p2, %r2, %r5, 0, %r3;
add.u32 %r2, %r2, %r6;
selp.u32 %r7, 1000, 0, %p2;
add.u32 %r2, %r2, %r7;
"""
# A copy of the value of the last iteration is read after its source has changed.
ROTATION = """
mov.u32 %r2, 0;
mov.u32 %r8, 1;
mov.u32 %r9, 0;
LOOP:
mov.u32 %r10, %r8;
add.u32 %r8, %r8, %r2;
mov.u32 %r2, %r10;
shfl.sync.bfly.b32 %r11, %r10, 1, 31, -1;
add.u32 %r8, %r8, %r11;
add.u32 %r9, %r9, 1;
setp.lt.u32 %p1, %r9, 5;
@%p1 bra LOOP;
add.u32 %r2, %r2, %r10;
"""
# Half of the threads return before a barrier of the others, and branches join between synchronisation points.
BRANCHES = """
mov.u32 %r3, 7;
setp.ge.u32 %p1, %r1, 48;
@%p1 bra END;
and.b32 %r4, %r1, 1;
setp.eq.u32 %p2, %r4, 0;
mov.u32 %r2, %r3;
@%p2 bra JOIN;
add.u32 %r2, %r1, %r3;
JOIN:
bar.warp.sync -1;
setp.lt.u32 %p3, %r1, 32;
@%p3 bra WHOLE;
bra LAST;
WHOLE:
shfl.sync.down.b32 %r2, %r2, 3, 31, -1;
bra LAST;
LAST:
setp.eq.u32 %p4, %r2, 7;
@%p4 bra STORE;
add.u32 %r2, %r2, 500;
STORE:
st.global.u32 [%rd4], %r2;
END:
ret;
}
"""
# A table of jumps: two of its targets continue at the same label.
TABLE = """
TARGETS: .branchtargets A, B, C;
mov.u32 %r2, 5;
and.b32 %r3, %r1, 3;
min.u32 %r3, %r3, 2;
brx.idx %r3, TARGETS;
A: add.u32 %r2, %r2, 1;
bra C;
B: add.u32 %r2, %r2, 2;
C: add.u32 %r2, %r2, 10;
bar.warp.sync -1;
"""
# Products whose accumulators are also results, at the same position or at another one.
ACCUMULATORS = """
.reg .f32 %f<9>;
or.b32 %r3, %r1, 16256;
mov.u32 %r5, 0;
mov.f32 %f1, 0f3F800000;
mov.f32 %f2, 0f40000000;
mov.f32 %f3, 0f40400000;
mov.f32 %f4, 0f40800000;
LOOP:
mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f1,%f2,%f3,%f4}, {%r3,%r1}, {%r3}, {%f1,%f2,%f3,%f4};
mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f2,%f1,%f4,%f5}, {%r3,%r3}, {%r1}, {%f1,%f2,%f3,%f4};
mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%f3,%f6,%f7,%f8}, {%r3,%r3}, {%r3}, {%f3,%f3,%f1,%f2};
add.u32 %r5, %r5, 1;
setp.lt.u32 %p1, %r5, 3;
@%p1 bra LOOP;
add.f32 %f1, %f1, %f2;
fma.rn.f32 %f1, %f3, %f4, %f1;
fma.rn.f32 %f1, %f5, %f6, %f1;
fma.rn.f32 %f1, %f7, %f8, %f1;
mov.b32 %r2, %f1;
"""
BODIES = {
    "accumulators": ACCUMULATORS + TAIL,
    "in place": IN_PLACE + TAIL,
    "rotation": ROTATION + TAIL,
    "branches": BRANCHES,
    "table": TABLE + TAIL,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_compiled_values_equal_interpreted_values(body):
    found = {}
    for engine in ("fibers", "native"):
        x = np.zeros(64, np.uint32)
        report = simulate(load_ptx(HEAD + body)["k"], engine=engine, on_finding="report")[1, 64](x)
        found[engine] = x.tolist(), [(each.kind, each.verdict) for each in report.findings]
    assert found["fibers"] == found["native"]
    assert any(found["fibers"][0])


def statements_of(body):
    """Return the prepared statements of a kernel."""
    kernel = load_ptx(HEAD + body)["k"]
    return Statements(Lowering(kernel.module.text, kernel.module.origin, kernel.function))


def test_operands_and_results_need_no_copies():
    made = statements_of(IN_PLACE + TAIL)
    syncs = [node for node in made.statements if hasattr(getattr(node, "value", None), "sync")]
    texts = [ast.unparse(node) for node in syncs]
    # The constants are operands, and the first result goes to its register. The others are also operands.
    assert texts[0].startswith("r6, p1 = sync(4294967295, r2, 1, 31")
    assert texts[1].startswith("got_") and len(texts) == 3
    assert len(made.statements) == 6  # no run between the first two


def test_accumulators_are_updated_in_place():
    (loop,) = (node for node in statements_of(ACCUMULATORS + TAIL).statements if isinstance(node, ast.While))
    texts = [ast.unparse(node) for node in loop.body if hasattr(getattr(node, "value", None), "sync")]
    assert texts[0] == "f1, f2, f3, f4 = sync(r3, r1, r3, f1, f2, f3, f4)"
    # The first two results of the second product have the positions of each other's accumulators.
    assert re.match(r"got\w*, got\w*, got\w*, f5 = ", texts[1])
    # The third product has two accumulators in the same register.
    assert re.match(r"got\w*, f6, f7, f8 = ", texts[2])


@pytest.mark.parametrize("body", [IN_PLACE + TAIL, BRANCHES], ids=["in place", "branches"])
def test_jumps_to_the_next_statement_are_removed(body):
    kernel = load_ptx(HEAD + body)["k"]
    source = Lowering(kernel.module.text, kernel.module.origin, kernel.function)
    before = ast.parse(source.source).body[0].body
    text = ast.unparse(ast.fix_missing_locations(ast.Module(simplify(before, source.ptx_types), [])))
    assert "go" not in text.split() and "return" not in text.split("\n")[-1]


JUMPS = {
    # both branches jump to the same statement
    "if p:\n go = 3\nelse:\n x = 1\n go = 3\nif go == 3:\n y = 1": "if p:\n    pass\nelse:\n    x = 1\ny = 1",
    # the statement is skipped on one path
    "if p:\n go = 3\nelse:\n go = 4\nif go == 3:\n y = 1\n go = 4\nif go == 4:\n z = 1": (
        "if p:\n    go = 3\nelse:\n    go = 4\nif go == 3:\n    y = 1\nz = 1"
    ),
    # a thread that has returned jumps nowhere
    "if p:\n return\nelse:\n go = 3\nif go == 3:\n y = 1\n return": "if p:\n    return\ny = 1",
    # a loop is left to two statements
    "go = 1\nwhile go == 1:\n go = (1, 2, 3)[p]\nif go == 2:\n x = 1\n go = 3\nif go == 3:\n y = 1": (
        "go = 1\nwhile go == 1:\n    go = (1, 2, 3)[p]\nif go == 2:\n    x = 1\ny = 1"
    ),
    # a loop that is never entered
    "go = 5\nwhile 1 <= go <= 3:\n go = 4\nif go == 5:\n y = 1": "y = 1",
    "go = (1, 2)[r]\nif go == 1:\n x = 1\n go = 3\nif go == 2:\n y = 1\n go = 3\nif go == 3:\n z = 1": (
        "go = (1, 2)[r]\nif go == 1:\n    x = 1\n    go = 3\nif go == 2:\n    y = 1\nz = 1"
    ),
}


@pytest.mark.parametrize("before, after", JUMPS.items())
def test_jumps(before, after):
    statements = simplify(ast.parse(f"def f():\n{indented(before)}").body[0].body, {})
    assert ast.unparse(ast.fix_missing_locations(ast.Module(statements, []))) == after


def indented(text):
    return "\n".join(" " + line for line in text.split("\n"))


COPIES = {
    "a = 5\nb = a\nx = b + a": "x = 5 + 5",
    "a = 5\nx = a\na = 6\ny = a": "a = 5\nx = a\na = 6\ny = a",
    "a = given\nb = a\nx = b": "x = given",
    "f = 1\nx = f + a": "f = 1\nx = f + a",  # a float register
    "a = wide\nx = a + 1": "a = wide\nx = a + 1",  # registers of different widths
}


@pytest.mark.parametrize("before, after", COPIES.items())
def test_copies(before, after):
    ptx_types = {"a": "u32", "b": "u32", "given": "u32", "f": "f32", "wide": "u64"}
    statements = simplify(ast.parse(before).body, ptx_types)
    assert ast.unparse(ast.fix_missing_locations(ast.Module(statements, []))) == after
