"""Tests of the builder that emits few LLVM instructions, and of the removal of unused instructions."""

import pytest

pytest.importorskip("numba")

from llvmlite import ir
from numba import float32
from numba.core.registry import cpu_target

from sim.native.codegen.arrays import GuardedType
from sim.native.codegen.builder import Builder, constant_of, remove_unused
from sim.native.codegen.shadow import BARE, SHARED

I1, I64 = ir.IntType(1), ir.IntType(64)


def names_left(emit, builder_class=ir.IRBuilder):
    """Return the names of the instructions that are left of those emitted by `emit(builder, argument)`."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(I64, [I64]), "f")
    emit(builder_class(function.append_basic_block()), function.args[0])
    remove_unused(module)
    return {each.name for block in function.blocks for each in block.instructions if each.name[0] != "."}


def test_unused_chains_are_removed():
    def emit(builder, x):
        pair = ir.Constant(ir.LiteralStructType([I64, I64]), ir.Undefined)
        first = builder.insert_value(pair, x, 0, "first")
        builder.insert_value(first, x, 1, "second")
        builder.ret(builder.extract_value(builder.insert_value(pair, x, 1, "used"), 1, "result"))

    assert names_left(emit) == {"used", "result"}


def test_operands_of_phis_and_of_effects_are_kept():
    def emit(builder, x):
        slot = builder.alloca(I64, name="slot")
        before, head = builder.block, builder.append_basic_block()
        low = builder.trunc(x, ir.IntType(8), "low")
        builder.store(builder.add(builder.zext(low, I64, "wide"), x, "sum"), slot)
        start = builder.zext(builder.icmp_signed("<", x, I64(0), "test"), I64, "start")
        builder.branch(head)
        builder.position_at_end(head)
        phi = builder.phi(I64, "phi")
        address = builder.inttoptr(phi, I64.as_pointer(), "address")
        phi.add_incoming(start, before)
        phi.add_incoming(builder.ptrtoint(address, I64, "following"), head)
        builder.load(slot, "loaded")
        builder.branch(head)

    kept = {"slot", "loaded", "low", "wide", "sum", "test", "start", "phi", "address", "following"}
    assert names_left(emit) == kept


def test_slots_that_are_not_read_are_removed():
    def emit(builder, x):
        unread, passed_on = builder.alloca(I64, name="unread"), builder.alloca(I64, name="passed_on")
        read = builder.alloca(I64, name="read")
        builder.store(builder.ptrtoint(passed_on, I64, "address"), read)
        builder.store(builder.load(read, "loaded"), unread)
        builder.ret(x)

    assert names_left(emit) == {"passed_on", "read", "address", "loaded"}


def test_blocks_that_are_never_executed_are_removed():
    def emit(builder, x):
        before, then, end = builder.block, *map(builder.append_basic_block, ("then", "end"))
        builder.cbranch(builder.icmp_signed("<", I64(-1), I64(0)), end, then).set_weights([99, 1])
        builder.position_at_end(then)
        added = builder.add(x, I64(5), "added")
        builder.branch(end)
        builder.position_at_end(end)
        merged = builder.phi(I64, "merged")
        merged.add_incoming(x, before)
        merged.add_incoming(added, then)
        builder.ret(merged)
        emitted.append(merged)

    emitted = []
    assert names_left(emit, Builder) == {"merged"}
    assert len(emitted[0].incomings) == 1


def test_targets_of_a_switch_are_kept():
    def emit(builder, x):
        default, case = map(builder.append_basic_block, ("default", "case"))
        builder.switch(x, default).add_case(I64(3), case)
        for block, name in ((default, "first"), (case, "second")):
            builder.position_at_end(block)
            builder.ret(builder.add(x, x, name))

    assert names_left(emit) == {"first", "second"}


def test_operations_of_constants_need_no_instructions():
    builder = Builder(ir.Function(ir.Module(), ir.FunctionType(I64, [I64]), "f").append_basic_block())
    x, most = builder.function.args[0], 2**63 - 1
    folded = [
        (builder.add(I64(most), I64(2)), -(2**63) + 1),
        (builder.sub(I64(3), I64(5)), -2),
        (builder.mul(I64(most), I64(2)), -2),
        (builder.icmp_signed("<", I64(2**64 - 1), I64(0)), -1),
        (builder.icmp_signed("==", I64(None), I64(3)), 0),
        (builder.not_(I1(True)), 0),
        (builder.not_(I64(5)), -6),
    ]
    assert [constant_of(value) for value, _ in folded] == [wanted for _, wanted in folded]
    neutral = builder.add(x, I64(0)), builder.add(I64(0), x), builder.sub(x, I64(0)), builder.mul(I64(1), x)
    chosen = builder.select(I1(True), x, I64(1)), builder.select(I1(False), I64(1), x)
    assert all(value is x for value in (*neutral, *chosen))
    assert not builder.block.instructions
    assert builder.sub(I64(0), x) is not x


def test_an_undefined_value_is_no_constant():
    assert constant_of(ir.Constant(I64, ir.Undefined)) is None


@pytest.mark.parametrize(
    ("sizes", "rowwise", "watch", "count"),
    [
        ((None, None, None), False, SHARED, 9),
        ((None, None, None), True, SHARED, 6),
        ((None, 4, 5), True, SHARED, 4),
        ((3, 4, 5), True, BARE, 2),
        ((3, None, 5), False, BARE, 6),
    ],
)
def test_an_array_argument_has_no_members_that_follow_from_its_type(sizes, rowwise, watch, count):
    x = GuardedType(float32, 3, rowwise, watch, sizes)
    packer = cpu_target.target_context.get_arg_packer([x])
    assert len(packer.argument_types) == count
