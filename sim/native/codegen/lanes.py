"""Instructions of whole warps and blocks in compiled code: shuffles, votes, matrix operations. sim.isa.table
defines their semantics.

Operands and results are arrays with one element per thread. The 32 consecutive elements of one warp are
called a *row*.

A lane is *present* if its thread has not returned, and does not skip the current arm of a divergent branch
(sim.native.codegen.branches). If an instruction takes a mask, all present lanes must
pass the same mask, and the mask must include every present lane. An instruction declared with mask=ALL
requires all 32 lanes. A block stops if one of its warps violates these rules. A read from an absent lane sets
an error flag.
"""

import functools
from contextlib import nullcontext

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils

from sim.isa.table import ALL, FULL, GIVEN, Like
from sim.native.codegen.arrays import Array, GuardedType
from sim.native.codegen.branches import check_no_branch, check_participants
from sim.native.codegen.int64 import int64_helper, set_byte
from sim.native.codegen.int64_translation import I64
from sim.native.codegen.isa_functions import compiled_copy, resolve_call
from sim.native.codegen.linking import intrinsic_of
from sim.native.codegen.scalars import convert, dtype_of, numba_type_of
from sim.native.codegen.shadow import BARE, DIVERGED, set_error
from sim.native.codegen.sides import note_missing
from sim.native.codegen.symbols import make_getattr
from sim.native.codegen.synchronization import diverge


@int64_helper
def present_lanes(state, warp, threads):
    """Return the mask of a warp's present lanes."""
    present = 0
    for thread in range(32 * warp, min(32 * warp + 32, threads)):
        if not state.returned[thread]:
            present |= 1 << (thread & 31)
    return present


@int64_helper
def check_mask(state, warp, present, masks):
    """Stop the block unless all present lanes pass the same mask, and the mask includes every present lane.

    present: the mask of the present lanes.
    masks: the address of 32 int64 values: the masks passed by the lanes.
    """
    first = -1
    # `first` is -1 until a present lane has been found. A mask is never negative.
    for lane in range(32):
        if present >> lane & 1:
            mask = masks[lane] & FULL
            if mask & present != present or (first != -1 and first != mask):
                note_excluded(state, warp, present, masks)
                diverge(state)
            first = mask
    if first != -1:
        check_participants(state, warp, present, first)
        if state.split != 0:
            note_missing(state, warp, first)


@int64_helper(inline=False)
def note_excluded(state, warp, present, masks):
    """Store the first lane whose mask does not include the lane itself. The parameters are those of
    `check_mask`."""
    for lane in range(32):
        mask = masks[lane] & FULL
        if present >> lane & 1 and not mask >> lane & 1 and state.stopped == 0 and state.excluded == 0:
            state.excluded = 1 + 32 * warp + lane
            state.excluding_mask = mask


@int64_helper
def check_all(state, present):
    """Stop the block unless all 32 lanes are present."""
    if present != FULL:
        diverge(state)


@int64_helper
def check_read(state, warp, present, lane, source):
    """Set an error flag if lane `lane` is present but reads from an absent lane.

    source: the source lane.
    """
    # The reference implementation defines the result for a source lane outside 0..31.
    if present >> lane & 1 and 0 <= source < 32 and not present >> source & 1:
        note_read(state, 32 * warp + lane, source)


@int64_helper(inline=False)
def note_read(state, thread, source):
    """Set an error flag because a thread reads from an absent lane. Store the launch's first such read."""
    set_error(state, DIVERGED)
    if state.stopped == 0 and state.reader == 0:
        state.reader = 1 + thread
        state.read_lane = source
        state.read_site = state.warp_site


@int64_helper(inline=False)
def fill_absent(state, present, row, size):
    """Fill the operands of absent lanes with the byte of a run that follows a side (`absent_fill`).

    row: the address of the operands of a warp.
    size: the number of bytes of an operand.
    """
    if state.absent_fill != 0:
        for lane in range(32):
            if not present >> lane & 1:
                for position in range(size):
                    set_byte(row, lane * size + position, state.absent_fill - 1)


@int64_helper
def next_segment(state, warp):
    """Start a new segment of a warp. Accesses in the new segment are ordered after the warp's accesses in
    earlier segments.

    In a divergent branch, only some lanes are ordered. The segment does not change there, so accesses of
    these lanes may count as races, and the interpreter decides.
    """
    if state.inactive == 0:
        # A shadow entry has 16 bits for the segment, so the counter wraps around.
        state.segments[warp] = (state.segments[warp] + 1) & 0xFFFF


# --- rows ---------------------------------------------------------------------------------------------------


def row_type(numba_type):
    """Return the type of a row with elements of this Numba type."""
    return GuardedType(numba_type, 1, True, BARE, (32,))


def element_type(x):
    """Return the element type of an array over threads, or the type of a uniform number itself."""
    return x.dtype if isinstance(x, GuardedType) else x


def thread_operand(context, builder, x, value, thread):
    """Load a thread's operand: the thread's element of an array over threads, or the uniform number."""
    return Array(context, builder, x, value).load(thread) if isinstance(x, GuardedType) else value


class Warp:
    """Code generator for one warp. An operand is an array over threads, or a number shared by all threads.
    All numbers and addresses are LLVM values."""

    def __init__(self, context, builder, state, warp):
        self.context, self.builder, self.state, self.warp = context, builder, state, warp
        self.first = builder.mul(warp, I64(32))

    def call(self, function, *codes):
        """Emit a call to an int64 runtime helper, with the launch state as the first argument."""
        return function.helper.call(self.context, self.builder, self.state, *codes)

    def array(self, numba_type, pointer):
        """Return a row whose 32 values begin at a pointer."""
        row = Array(self.context, self.builder, row_type(numba_type))
        # The compiler itself generates the accesses to a row, so they need no checks.
        row.members.data, row.members.state = self.builder.ptrtoint(pointer, I64), self.state
        return row.value

    def allocate_row(self, numba_type):
        """Return a new row on the stack, with undefined values."""
        room = ir.ArrayType(self.context.get_data_type(numba_type), 32)
        return self.array(numba_type, cgutils.alloca_once(self.builder, room))

    def given(self, x, value, first, lane):
        """Load the operand of the thread at index `first + lane`."""
        return thread_operand(self.context, self.builder, x, value, self.builder.add(first, lane))

    def copy(self, source, target, lanes=None):
        """Copy the values of lanes, and convert them to the target's type.

        source, target: (Numba type, value, index of the first element).
        lanes: the mask of the lanes, or None for all 32.
        """
        builder, source_type, (x, array, first) = self.builder, element_type(source[0]), target
        with cgutils.for_range(builder, I64(32)) as loop, self.if_in(lanes, loop.index):
            value = convert(self.context, builder, source_type, x.dtype, self.given(*source, loop.index))
            Array(self.context, builder, x, array).store(builder.add(first, loop.index), value)

    def if_in(self, lanes, lane):
        """Return a context manager for code that runs if a lane is in a mask. None is the mask of all
        lanes."""
        if lanes is None:
            return nullcontext()
        bit = self.builder.and_(self.builder.lshr(lanes, lane), I64(1))
        return self.builder.if_then(self.builder.icmp_unsigned("!=", bit, I64(0)))

    def check_mask(self, present, x, value):
        """Emit a call to `check_mask` for the masks passed by the lanes."""
        masks = Array(self.context, self.builder, row_type(int64), self.row(int64, x, value))
        self.call(check_mask, self.warp, present, masks.members.data)

    def check_reads(self, present, emit_source, rows, arrays):
        """Emit a check that each present lane reads from a present lane, and fill the values of absent lanes.

        emit_source: a function that emits the source lane, given a lane and its operands.
        rows: the Numba types of the operands' rows.
        arrays: the rows.
        """
        with cgutils.for_range(self.builder, I64(32)) as loop:
            operands = [self.given(x, array, I64(0), loop.index) for x, array in zip(rows, arrays)]
            source = emit_source(self.context, self.builder, [loop.index, *operands])
            self.call(check_read, self.warp, present, loop.index, source)
        # The first operand is the value that other lanes read.
        row = Array(self.context, self.builder, rows[0], arrays[0])
        self.call(fill_absent, present, row.members.data, I64(dtype_of(rows[0].dtype).itemsize))

    def row(self, numba_type, x, value):
        """Return the operands of all lanes as a row of this type.

        If the type matches, the row is the warp's part of the operand's array. Otherwise, it is a converted
        copy.
        """
        # Without a conversion, the instruction can read and write the spill array in place.
        if isinstance(x, GuardedType) and x.dtype == numba_type:
            pointer = Array(self.context, self.builder, x, value).pointer(self.first)
            return self.array(numba_type, pointer)
        row = self.allocate_row(numba_type)
        self.copy((x, value, self.first), (row_type(numba_type), row, I64(0)))
        return row


# --- instructions of sim.isa --------------------------------------------------------------------------------


@functools.cache
def lane_intrinsic(entry, has_results, in_branch=False):
    """Return the intrinsic (state, warp, threads, mask, *operands, *results) that executes a warp instruction
    and stores its results. `mask` is omitted if the instruction takes none.

    has_results: whether the kernel uses any result. If not, the intrinsic has no parameters for results, and
        only performs the checks: an invalid mask is an error even if the value is unused.
    in_branch: whether the instruction is in a divergent branch, and must not change the variables of lanes
        that skip the branch. The semantics set the results of all 32 lanes.
    """
    # names of the intrinsic's parameters for the mask and the results
    masks, results = ["mask"] * (entry.mask == GIVEN), list(entry.results.items()) if has_results else []
    # None marks an operand of any type, and a result with the type of an operand (Like).
    declared = [*entry.operands.values(), *(None if isinstance(of, Like) else of for _, of in results)]
    names = [*masks, *(f"x_{name}" for name in [*entry.operands, *dict(results)])]

    def typed(typing, *given):
        operands = given[3 + len(masks) :]
        numba_types = [
            element_type(x) if of is None else numba_type_of(of) for x, of in zip(operands, declared)
        ]
        rows, count = [*map(row_type, numba_types)], len(entry.operands)
        semantics = emit_source = None
        if results:
            semantics = resolve_call(typing, compiled_copy(entry.semantics), [int64, *rows])
        if entry.reads and has_results:
            emit_source = resolve_call(
                typing, compiled_copy(entry.reads), [int64, *numba_types[:count]], int64
            )

        def code(context, builder, signature, arguments):
            state, number, threads, *values = arguments
            warp = Warp(context, builder, state, number)
            present = warp.call(present_lanes, number, threads)
            if masks:
                warp.check_mask(present, given[3], values.pop(0))
            else:
                warp.call(check_no_branch, number, present)
            if entry.mask == ALL:
                warp.call(check_all, present)
            arrays = [warp.row(*of) for of in zip(numba_types, operands, values)] if results else []
            if in_branch:
                arrays[count:] = map(warp.allocate_row, numba_types[count:])
            if emit_source:
                warp.check_reads(present, emit_source, rows[:count], arrays)
            # Like `syncwarp`, the instruction orders the memory accesses of the warp.
            if entry.orders:
                warp.call(next_segment, number)
            if semantics:
                semantics(context, builder, [present, *arrays])
            # If the row of a result is a copy, copy it back to the array.
            for numba_type, row, x, value in [*zip(numba_types, arrays, operands, values)][count:]:
                if in_branch or x.dtype != numba_type:
                    target = x, value, warp.first
                    warp.copy((row_type(numba_type), row, I64(0)), target, present if in_branch else None)
            return context.get_dummy_value()

        return types.void(*given), code

    return intrinsic_of("made", ["state", "warp", "threads", *names], typed)


@functools.cache
def vote_intrinsic(entry):
    """Return the intrinsic (threads, number, result) that executes a vote of a block: it combines the
    operands of all threads, and stores the result for each thread."""
    (operand,), (result,) = entry.operands.values(), entry.results.values()
    result_type = numba_type_of(result)

    def typed(typing, threads, number, result):
        element = element_type(number)
        operand_type = element if operand is None else numba_type_of(operand)
        # The reference implementation combines two values. The vote folds it over all threads.
        fold = resolve_call(typing, compiled_copy(entry.semantics), [result_type, operand_type], result_type)

        def code(context, builder, signature, arguments):
            threads, value, results = arguments
            found = cgutils.alloca_once_value(builder, context.get_constant(result_type, entry.start))
            with cgutils.for_range(builder, threads) as loop:
                given = thread_operand(context, builder, number, value, loop.index)
                given = convert(context, builder, element, operand_type, given)
                builder.store(fold(context, builder, [builder.load(found), given]), found)
            array = Array(context, builder, result, results)
            with cgutils.for_range(builder, threads) as loop:
                array.store(
                    loop.index, convert(context, builder, result_type, result.dtype, builder.load(found))
                )
            return context.get_dummy_value()

        return types.void(threads, number, result), code

    return intrinsic_of("voted", ["threads", "number", "result"], typed)


__getattr__ = make_getattr(
    __name__,
    lambda entry, maker: (
        vote_intrinsic(entry)
        if maker == "all"
        else lane_intrinsic(entry, maker != "unused", maker == "branch")
    ),
)
