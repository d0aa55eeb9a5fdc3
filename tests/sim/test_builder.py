"""Tests that compiled code begins with few LLVM instructions: known values need no instruction, and most
variables need no stack slot."""

import pytest

pytest.importorskip("numba")

from llvmlite import ir
from numba.core.compiler import run_frontend

from sim.native.codegen import shadow
from sim.native.codegen.builder import Builder
from sim.native.codegen.int64_translation import Body
from sim.native.codegen.lowering import dominating_variables

I64 = ir.IntType(64)
PAIR = ir.LiteralStructType([I64, ir.ArrayType(I64, 2)])


@pytest.fixture
def builder():
    function = ir.Function(ir.Module(), ir.FunctionType(I64, [I64, PAIR]), "f")
    return Builder(function.append_basic_block())


def test_extracting_an_inserted_value(builder):
    number, pair = builder.function.args
    inserted = builder.insert_value(builder.insert_value(pair, number, 0), I64(7), [1, 0])
    count = len(builder.block.instructions)
    assert builder.extract_value(inserted, 0) is number
    assert builder.extract_value(inserted, [1, 0]).constant == 7
    assert len(builder.block.instructions) == count


def test_extracting_a_part_that_was_changed_later(builder):
    number, pair = builder.function.args
    array = builder.extract_value(pair, 1)
    whole = builder.insert_value(builder.insert_value(pair, array, 1), number, [1, 1])
    # The array in `whole` is no longer `array`, but its first element is.
    assert builder.extract_value(whole, 1) is not array
    assert builder.extract_value(whole, [1, 1]) is number
    assert builder.extract_value(whole, [1, 0]) is not number


def test_extracting_from_zero(builder):
    number = builder.function.args[0]
    value = builder.insert_value(ir.Constant(PAIR, None), number, 0)
    assert builder.extract_value(value, 1).type == ir.ArrayType(I64, 2)
    assert builder.extract_value(value, [1, 1]).constant == 0
    assert builder.extract_value(ir.Constant(PAIR, ir.Undefined), 0).opname == "extractvalue"
    assert len(builder.block.instructions) == 2  # the insertion and the last extraction


def some_variables(x, n):
    before = x + 1
    total = 0
    if n:
        sometimes = 2
    for _ in range(n):
        inside = before * 2
        total = total + inside
    return total + sometimes


def test_variables_that_need_no_stack_slot():
    found = dominating_variables(run_frontend(some_variables).blocks)
    assert {"x", "n", "before", "inside"} <= found
    assert not {"total", "sometimes"} & found


@pytest.mark.parametrize(
    "helper, attribute",
    [
        (shadow.resolve_index, "noinline"),
        (shadow.is_unordered, "noinline"),
        (shadow.left_before_sync, "noinline"),
        (shadow.set_error, "alwaysinline"),
    ],
)
def test_helpers_are_inlined_always_or_never(helper, attribute):
    module = ir.Module()
    Body(module, helper.helper)
    assert attribute in module.get_global(helper.helper.symbol).attributes
