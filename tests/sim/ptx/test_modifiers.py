"""Tests of the order of modifiers: PTX instructions may have them in any order that ptxas accepts.

Each order must select the same instruction.
"""

import random

import numpy as np
import pytest

from ptx.test_language import kernel, run
from sim import simulate
from sim.isa.barriers import Barrier
from sim.isa.functions import Function
from sim.isa.registers import find_operation
from sim.isa.table import BY_NAME_PARTS, POSITIONAL, PTX, name_parts
from sim.isa.warp_instruction import Instruction
from sim.native.lower.module import CannotLower
from sim.native.ptx.program import Lowering
from sim.ptx.warps import SHUFFLES, form_of

# These modifiers are parsed separately, so the names in the table lack them.
MODIFIED = """add.sat.s32 add.cc.u32 addc.cc.u32 madc.hi.cc.u32 mad.lo.cc.u32 add.rm.ftz.sat.f32
    fma.rn.relu.f16 fma.rn.relu.bf16x2 set.lt.ftz.u32.f32 set.ge.and.s32.f32 slct.ftz.f32.f32
    cvt.rni.ftz.sat.s32.f32
    cvt.rn.sat.f16.f64 cvt.rn.relu.bf16x2.f32 cvt.rna.tf32.f32 min.ftz.NaN.f32 ex2.approx.ftz.f32""".split()
STATEMENTS = """
    ld.volatile.global.v2.u32 {%r4, %r5}, [%d1]; ld.relaxed.gpu.global.L1::no_allocate.f32 %f1, [%d1];
    ld.global.nc.L2::128B.v4.f32 {%f1, %f2, %f3, %f4}, [%d1]; ldu.global.u32 %r4, [%d1];
    st.release.gpu.global.u32 [%d1], %r4; st.global.wb.v2.f32 [%d1], {%f1, %f2};
    atom.acq_rel.gpu.global.add.u32 %r4, [%d1], %r5; atom.global.cas.b32 %r4, [%d1], %r5, %r6;
    red.global.relaxed.cta.max.s32 [%d1], %r5; atom.add.noftz.global.f16x2 %r4, [%d1], %r5;
    cvta.to.global.u64 %d5, %d6; cvta.shared.u64 %d5, %d6; isspacep.shared %p1, %d5;
    setp.lt.and.ftz.f32 %p1, %f1, %f2, %p2; setp.ne.xor.s32 %p1|%p3, %r4, %r5, %p2;
    bar.red.popc.u32 %r4, 0, %p1; barrier.cta.red.and.aligned.pred %p1, 0, %p2; bar.sync 0;
    barrier.cta.sync.aligned 0; barrier.sync 1, 32; bar.arrive 1, 64; bar.warp.sync 0xFFFFFFFF;
    fence.acq_rel.gpu; fence.sc.cta; membar.gl;
    shfl.sync.idx.b32 %r4|%p1, %r5, 0, 31, -1; vote.sync.ballot.b32 %r4, %p1, -1;
    vote.sync.all.pred %p1, %p2, -1;
    match.any.sync.b64 %r4, %d1, -1; match.all.sync.b32 %r4|%p1, %r5, -1; redux.sync.add.s32 %r4, %r5, -1;
    elect.sync %r4|%p1, -1;
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f1, %f2, %f3, %f4}, {%r4, %r5, %r6, %r7}, {%r8,
        %r9}, {%f1, %f2, %f3, %f4};
    mma.sync.aligned.m16n8k32.row.col.satfinite.s32.u8.s8.s32 {%r4, %r5, %r6, %r7},
        {%r4, %r5, %r6, %r7}, {%r8, %r9}, {%r4, %r5, %r6, %r7};
    wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%r4, %r5, %r6, %r7, %r4, %r5, %r6, %r7}, [%d1], 16;
    wmma.store.d.sync.aligned.col.m16n16k16.shared.f16 [%r8], {%r4, %r5, %r6, %r7}, %r9;
    wmma.mma.sync.aligned.row.col.m16n16k16.f16.f16 {%r4, %r5, %r6, %r7}, {%r4, %r5, %r6, %r7, %r4, %r5, %r6,
        %r7}, {%r4, %r5, %r6, %r7, %r4, %r5, %r6, %r7}, {%r4, %r5, %r6, %r7};
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4, %r5, %r6, %r7}, [%r8];
    ldmatrix.sync.aligned.m8n8.x2.trans.shared::cta.b16 {%r4, %r5}, [%r8];
    cp.async.cg.shared.global.L2::128B [%r4], [%d1], 16; cp.async.ca.shared::cta.global [%r4], [%d1], 8, %r5;
    cp.async.ca.shared.global.L2::cache_hint.L2::64B [%r4], [%d1], 8, %d5;
    cp.async.cg.shared.global.L2::cache_hint [%r4], [%d1], 16, %r5, %d5;
    atom.relaxed.gpu.global.add.L2::cache_hint.u32 %r4, [%d1], %r5, %d5;
    red.relaxed.gpu.global.add.L2::cache_hint.u32 [%d1], %r5, %d5;
    mapa.shared::cluster.u32 %r4, %r5, 0; getctarank.shared::cluster.u32 %r4, %r5;
    cp.async.commit_group; cp.async.wait_group 1; cp.async.wait_all;
    cp.async.mbarrier.arrive.noinc.shared.b64 [%r4]; cp.async.mbarrier.arrive.shared::cta.b64 [%r4];
    mbarrier.init.shared.b64 [%r4], 32; mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %d5, [%r4], 1;
    mbarrier.arrive_drop.shared.b64 %d5, [%r4];
    mbarrier.test_wait.parity.acquire.cta.shared.b64 %p1, [%r4], 0;
    mbarrier.try_wait.shared.b64 %p1, [%r4], %d5; mbarrier.pending_count.b64 %r4, %d5;
    nanosleep.u32 20; activemask.b32 %r4; mov.b64 %d5, {%r4, %r5}; prefetch.global.L2 [%d1];
"""


def orders(name, count=4):
    """Yield a name's modifiers in other orders. Types and layouts keep their order."""
    base, *parts = name.split(".")
    random_ = random.Random(name)
    for _ in range(count):
        places = random_.sample(range(len(parts)), len(parts))
        positional = iter([part for part in parts if POSITIONAL.fullmatch(part)])
        mixed = [parts[place] for place in places]
        yield ".".join([base, *(next(positional) if POSITIONAL.fullmatch(p) else p for p in mixed)])


def test_no_two_instructions_have_the_same_parts():
    """Compare all pairs of instructions, because reordering could otherwise select the wrong instruction."""
    for name, entry in PTX.items():
        assert BY_NAME_PARTS[name_parts(name)] is entry, name
    assert not SHUFFLES.keys() & BY_NAME_PARTS.keys()


@pytest.mark.parametrize("kind", [Function, Instruction, Barrier])
def test_every_entry_is_found_in_any_order_of_its_modifiers(kind):
    names = [name for name, entry in PTX.items() if isinstance(entry, kind)]
    assert names
    for name in names:
        for other in orders(name):
            assert BY_NAME_PARTS[name_parts(other)] is PTX[name], other


def told(name):
    operation = find_operation(name)
    return operation.text, operation.operands, operation.results, operation.in_range


def test_modifiers_that_are_no_part_of_an_entry_stand_anywhere():
    names = [name for name, entry in PTX.items() if isinstance(entry, Function) and "." in name]
    for name in [*MODIFIED, *names[::7]]:
        if name.startswith("mbarrier"):
            continue
        for other in orders(name):
            assert told(other) == told(name), other


def test_instructions_of_warps_have_one_form():
    for name in (
        *(name for name, entry in PTX.items() if isinstance(entry, Instruction)),
        "shfl.sync.up.b32",
    ):
        for other in orders(name):
            assert form_of(f"{other}.aligned") == form_of(name), other


# Pairs of orders that ptxas 13.0 accepts. The first modifiers of these instructions have fixed positions.
PRODUCT = "{%f1, %f2, %f3, %f4}, %d5, %d6, 1, 1, 1, 0, 0"
REDUCED = "[%r4], [%r5], 16, [%r6]"
MANUAL = "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
REDUCTION = "cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32"
PAIRS = [
    (MANUAL, "wgmma.mma_async.aligned.sync.m64n8k16.f32.bf16.bf16", PRODUCT),
    (MANUAL, "wgmma.mma_async.m64n8k16.f32.bf16.bf16.sync.aligned", PRODUCT),
    (MANUAL, "wgmma.mma_async.sync.aligned.f32.m64n8k16.bf16.bf16", PRODUCT),
    (MANUAL, "wgmma.mma_async.sync.aligned.f32.bf16.bf16.m64n8k16", PRODUCT),
    (
        "wgmma.mma_async.sync.aligned.m64n8k32.s32.satfinite.s8.u8",
        "wgmma.mma_async.satfinite.s32.s8.sync.u8.m64n8k32.aligned",
        "{%r4, %r5, %r6, %r7}, %d5, %d6, 1",
    ),
    (
        REDUCTION,
        "cp.reduce.async.bulk.add.u32.mbarrier::complete_tx::bytes.shared::cluster.shared::cta",
        REDUCED,
    ),
    (
        REDUCTION,
        "cp.reduce.async.bulk.shared::cluster.shared::cta.add.mbarrier::complete_tx::bytes.u32",
        REDUCED,
    ),
]


def source(statements):
    """Return the sources of a kernel with these statements for the interpreter and for compilation."""
    made = kernel(statements)
    try:
        lowered = Lowering(made.module.text, made.module.origin, made.function)
        compiled = lowered.source, lowered.calls.keys(), lowered.sync_points.keys(), lowered.sends_copies
    except CannotLower:
        compiled = None
    return made.program()[0].source, compiled


@pytest.mark.parametrize("first, second, operands", PAIRS)
def test_both_orders_are_translated_alike(first, second, operands):
    assert source(f"{first} {operands};") == source(f"{second} {operands};")


@pytest.mark.parametrize("engine", ["fibers", "native"])
def test_a_cache_policy_has_no_effect(engine):
    body = """
    .shared .align 16 .b8 tile[128];
    mov.u32 %r5, tile; mad.lo.u32 %r6, %r1, 4, %r5; createpolicy.fractional.L2::evict_last.b64 %d5;
    cp.async.ca.L2::cache_hint.shared.global [%r6], [%d3], 4, %d5; cp.async.wait_all;
    ld.shared.u32 %r7, [%r6]; st.global.u32 [%d4], %r7;"""
    x, out = np.arange(100, 132, dtype=np.int32), np.zeros(32, np.int32)
    simulate(kernel(body, 4, 4), engine=engine)[1, 32](x, out)
    assert (out == x).all()


@pytest.mark.parametrize("statement", [part.strip() for part in STATEMENTS.split(";") if part.strip()])
def test_every_order_of_modifiers_is_translated_alike(statement):
    opcode, _, operands = statement.partition(" ")
    wanted = source(f"{statement};")
    for other in orders(opcode, 6):
        assert source(f"{other} {operands};") == wanted, other


def test_a_matrix_is_loaded_by_any_spelling():
    """Write x4 before m8n8, as public kernels do."""
    found = []
    for name in ("ldmatrix.sync.aligned.m8n8.x4.shared.b16", "ldmatrix.sync.aligned.x4.m8n8.shared.b16"):
        body = f"""
        .shared .align 16 .b8 tile[512];
        mov.u32 %r5, tile; mad.lo.u32 %r6, %r1, 16, %r5; ld.global.u32 %r4, [%d3];
        st.shared.v4.u32 [%r6], {{%r4, %r1, %r4, %r1}}; bar.sync 0;
        {name} {{%r7, %r8, %r9, %r10}}, [%r6];
        xor.b32 %r7, %r7, %r8; shl.b32 %r9, %r9, 1; xor.b32 %r7, %r7, %r9; xor.b32 %r7, %r7, %r10;
        st.global.u32 [%d4], %r7;"""
        found.append(run(body, list(range(100, 132)), "i4").tolist())
    assert found[0] == found[1] and len(set(found[0])) > 8
