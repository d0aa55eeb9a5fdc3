"""Operations of several threads in compiled code: instructions of a warp, on rows of arrays over threads, and
votes of a block. sim.isa.table defines their semantics.

The lanes that have not returned must agree on one mask that names them all, or must be all 32. A lane must
read from lanes that have not returned. Otherwise the block is `stopped`, or an error flag is set.
"""

import functools

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils

from sim.isa.table import ALL, FULL, GIVEN, Like
from sim.native.codegen.arrays import Array, GuardedType, packed
from sim.native.codegen.int64 import I64, int64_helper
from sim.native.codegen.isa_functions import compiled_copy, resolve_call
from sim.native.codegen.linking import intrinsic_of
from sim.native.codegen.scalars import convert, numba_type_of
from sim.native.codegen.shadow import BARE, DIVERGED, set_error
from sim.native.codegen.symbols import offering
from sim.native.codegen.synchronization import diverge


@int64_helper
def present_lanes(state, warp, threads):
    """Return the mask of the lanes of a warp that have not returned."""
    there = 0
    for thread in range(32 * warp, min(32 * warp + 32, threads)):
        if not state.returned[thread]:
            there |= 1 << (thread & 31)
    return there


@int64_helper
def check_mask(state, there, masks):
    """Stop the block unless the masks of all present lanes are equal and name every present lane. `masks`:
    the address of 32 masks."""
    first = -1
    for lane in range(32):
        if there >> lane & 1:
            given = masks[lane] & FULL
            if given & there != there or (first != -1 and first != given):
                diverge(state)
            first = given


@int64_helper
def check_all(state, there):
    if there != FULL:
        diverge(state)


@int64_helper
def check_read(state, there, lane, of):
    if there >> lane & 1 and 0 <= of < 32 and not there >> of & 1:
        set_error(state, DIVERGED)


@int64_helper
def next_segment(state, warp):
    state.segments[warp] = (state.segments[warp] + 1) & 0xFFFF


# --- rows ---------------------------------------------------------------------------------------------------


def row_type(numba_type):
    return GuardedType(numba_type, 1, True, BARE, (32,))


def element_type(x):
    return x.dtype if isinstance(x, GuardedType) else x


def thread_operand(context, builder, x, value, thread):
    """Return the operand of a thread: an element of an array over threads, or a number that is the same
    for all."""
    return Array(context, builder, x, value).load(thread) if isinstance(x, GuardedType) else value


class Warp:
    """The lanes of a running warp, in LLVM's values. Their operands are arrays over threads, or numbers
    that are the same for all."""

    def __init__(self, context, builder, state, warp):
        self.context, self.builder, self.state, self.warp = context, builder, state, warp
        self.first = builder.mul(warp, I64(32))

    def call(self, function, *codes):
        return function.helper.call(self.context, self.builder, self.state, *codes)

    def array(self, numba_type, pointer):
        """Return the 32 values of this type at an address, as an array."""
        row = Array(self.context, self.builder, row_type(numba_type))
        row.members.data, row.members.state = self.builder.ptrtoint(pointer, I64), self.state
        row.members.shape = packed(self.builder, [I64(32)])
        return row.value

    def allocate_row(self, numba_type):
        """Return an array of 32 values that lives as long as the function runs."""
        room = ir.ArrayType(self.context.get_data_type(numba_type), 32)
        return self.array(numba_type, cgutils.alloca_once(self.builder, room))

    def given(self, x, value, first, lane):
        return thread_operand(self.context, self.builder, x, value, self.builder.add(first, lane))

    def copy(self, source, target):
        """Copy 32 values with conversion. `source` and `target` are (type, value, position of the first)."""
        own, (x, array, first) = element_type(source[0]), target
        with cgutils.for_range(self.builder, I64(32)) as loop:
            value = convert(self.context, self.builder, own, x.dtype, self.given(*source, loop.index))
            Array(self.context, self.builder, x, array).store(self.builder.add(first, loop.index), value)

    def check_mask(self, there, x, value):
        masks = Array(self.context, self.builder, row_type(int64), self.row(int64, x, value))
        self.call(check_mask, there, masks.members.data)

    def check_reads(self, there, reads, rows, arrays):
        """Check that each lane reads from a lane that is present. `reads`: the function that returns the
        lane it reads from."""
        with cgutils.for_range(self.builder, I64(32)) as loop:
            mine = [self.given(x, array, I64(0), loop.index) for x, array in zip(rows, arrays)]
            of = reads(self.context, self.builder, [loop.index, *mine])
            self.call(check_read, there, loop.index, of)

    def row(self, numba_type, x, value):
        """Return the operands of the lanes as an array of this type: a part of their array, or a copy."""
        if isinstance(x, GuardedType) and x.dtype == numba_type:
            pointer = Array(self.context, self.builder, x, value).pointer(self.first)
            return self.array(numba_type, pointer)
        row = self.allocate_row(numba_type)
        self.copy((x, value, self.first), (row_type(numba_type), row, I64(0)))
        return row


# --- instructions of the table ------------------------------------------------------------------------------


@functools.cache
def lane_intrinsic(entry, carried_out):
    """Return the intrinsic (state, warp, threads, mask, *operands, *results) of an instruction. Unless
    `carried_out`, it has no results, and only runs the checks."""
    masks, results = ["mask"] * (entry.mask == GIVEN), list(entry.results.items()) if carried_out else []
    declared = [*entry.operands.values(), *(None if isinstance(of, Like) else of for _, of in results)]
    names = [*masks, *(f"x_{name}" for name in [*entry.operands, *dict(results)])]

    def typed(typing, *given):
        operands = given[3 + len(masks) :]
        numba_types = [
            element_type(x) if of is None else numba_type_of(of) for x, of in zip(operands, declared)
        ]
        rows, count = [*map(row_type, numba_types)], len(entry.operands)
        semantics = reads = None
        if results:
            semantics = resolve_call(typing, compiled_copy(entry.semantics), [int64, *rows])
        if entry.reads and carried_out:
            reads = resolve_call(typing, compiled_copy(entry.reads), [int64, *numba_types[:count]], int64)

        def code(context, builder, signature, arguments):
            state, number, threads, *values = arguments
            warp = Warp(context, builder, state, number)
            there = warp.call(present_lanes, number, threads)
            if masks:
                warp.check_mask(there, given[3], values.pop(0))
            if entry.mask == ALL:
                warp.call(check_all, there)
            arrays = [warp.row(*of) for of in zip(numba_types, operands, values)] if results else []
            if reads:
                warp.check_reads(there, reads, rows[:count], arrays)
            if entry.orders:
                warp.call(next_segment, number)
            if semantics:
                semantics(context, builder, [there, *arrays])
            for numba_type, row, x, value in [*zip(numba_types, arrays, operands, values)][count:]:
                if x.dtype != numba_type:
                    warp.copy((row_type(numba_type), row, I64(0)), (x, value, warp.first))
            return context.get_dummy_value()

        return types.void(*given), code

    return intrinsic_of("made", ["state", "warp", "threads", *names], typed)


@functools.cache
def vote_intrinsic(entry):
    """Return the intrinsic (threads, number, result) that gives all threads the result of a vote."""
    (operand,), (result,) = entry.operands.values(), entry.results.values()
    kept = numba_type_of(result)

    def typed(typing, threads, number, result):
        own = element_type(number)
        taken = own if operand is None else numba_type_of(operand)
        fold = resolve_call(typing, compiled_copy(entry.semantics), [kept, taken], kept)

        def code(context, builder, signature, arguments):
            threads, value, results = arguments
            found = cgutils.alloca_once_value(builder, context.get_constant(kept, entry.start))
            with cgutils.for_range(builder, threads) as loop:
                given = thread_operand(context, builder, number, value, loop.index)
                given = convert(context, builder, own, taken, given)
                builder.store(fold(context, builder, [builder.load(found), given]), found)
            array = Array(context, builder, result, results)
            with cgutils.for_range(builder, threads) as loop:
                array.store(loop.index, convert(context, builder, kept, result.dtype, builder.load(found)))
            return context.get_dummy_value()

        return types.void(threads, number, result), code

    return intrinsic_of("voted", ["threads", "number", "result"], typed)


__getattr__ = offering(
    __name__,
    lambda entry, maker: vote_intrinsic(entry) if maker == "all" else lane_intrinsic(entry, maker == "warp"),
)
