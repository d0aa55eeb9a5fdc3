"""Tests of the removal of unused LLVM instructions."""

import pytest

pytest.importorskip("numba")

from llvmlite import ir

from sim.native.codegen.builder import remove_unused

I64 = ir.IntType(64)


def names_left(emit):
    """Return the names of the instructions that are left of those emitted by `emit(builder, argument)`."""
    module = ir.Module()
    function = ir.Function(module, ir.FunctionType(I64, [I64]), "f")
    emit(ir.IRBuilder(function.append_basic_block()), function.args[0])
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
        builder.branch(head)

    kept = {"slot", "low", "wide", "sum", "test", "start", "phi", "address", "following"}
    assert names_left(emit) == kept
