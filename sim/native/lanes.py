"""The instructions of a warp, compiled: the meaning that the table gives (sim.isa.table), on rows of arrays
over threads.

The lanes that are there must agree on one mask, which names them all, or must be all 32, and a lane must read
from lanes that are there; otherwise the block is STOPPED, or DIRTY.
"""

import functools

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from sim.isa.table import ALL, FULL, GIVEN, INSTRUCTIONS, Like
from sim.native.arrays import BARE, GuardedType, number, put, set_number, viewer
from sim.native.checks import PARTED, SEGMENTS, dirty
from sim.native.functions import compiled_copy
from sim.native.internal import LIKE_CODE, always
from sim.native.kinds import converter, kind_of
from sim.native.regions import of_thread, part
from sim.native.threads import lanes_of
from sim.native.vocabulary import instruction_of

OFFERED = set()  # warp_NAME and unused_NAME of each instruction come by __getattr__


def __getattr__(name):
    instruction = instruction_of(name)
    if instruction is None:
        raise AttributeError(f"module sim.native.lanes has no attribute {name!r}")
    return made(INSTRUCTIONS[instruction], name.startswith("warp_"))


@always
def lanes_there(warp, threads, ended):
    """The lanes of a warp that have not ended, as a mask."""
    there = 0
    for thread in lanes_of(warp, threads):
        if ended[thread] == 0:
            there |= 1 << (thread & 31)
    return there


@always
def check_mask(state, warp, threads, ended, there, mask):
    """Every lane that is there must be named, and all must name the same."""
    first = -1
    for thread in lanes_of(warp, threads):
        if ended[thread] == 0:
            given = int64(of_thread(mask, thread)) & FULL
            if given & there != there or first not in (-1, given):
                part(state)
            first = given


@always
def check_all(state, there):
    if there != FULL:
        part(state)


@always
def check_read(state, there, lane, of):
    if there >> lane & 1 and 0 <= of < 32 and not there >> of & 1:
        dirty(state, PARTED)


@always
def next_segment(state, warp):
    set_number(state, SEGMENTS + warp, (number(state, SEGMENTS + warp) + 1) & 0xFFFF)


# --- rows ---------------------------------------------------------------------------------------------------


@functools.cache
def room_for(kind):
    """An intrinsic () -> the address of 32 values of this type, for as long as the function runs."""

    @intrinsic
    def room(typing):
        def code(context, builder, signature, arguments):
            return builder.ptrtoint(
                cgutils.alloca_once(builder, ir.ArrayType(context.get_data_type(kind), 32)), ir.IntType(64)
            )

        return int64(), code

    return room


@functools.cache
def row_at(kind):
    """An intrinsic (address, state) -> the 32 values of this type that stand there, as an array."""
    row = GuardedType(kind, 1, True, BARE, (32,))

    @intrinsic
    def at(typing, address, state):
        def code(context, builder, signature, arguments):
            struct, one = cgutils.create_struct_proxy(row)(context, builder), ir.Constant(ir.IntType(64), 1)
            struct.data, struct.numbers = arguments
            struct.shape = cgutils.pack_array(builder, [ir.Constant(ir.IntType(64), 32)])
            struct.strides, struct.shadow = cgutils.pack_array(builder, [one]), ir.Constant(ir.IntType(64), 0)
            return struct._getvalue()

        return row(int64, int64), code

    return at


@functools.cache
def rows_of(declared):
    """The function (operand, warp, state) -> its row for a warp, in the declared type (None: its own): part
    of an array over threads, or a copy of what is converted or the same for all."""

    def row(x, warp, state):
        raise NotImplementedError

    @overload(row, **LIKE_CODE)
    def row_of(x, warp, state):
        array = isinstance(x, GuardedType)
        own = x.dtype if array else types.unliteral(x)
        kind = own if declared is None else kind_of(declared)
        if array and kind == own:
            view = viewer(GuardedType(kind, 1, True, BARE, (32,)))
            return lambda x, warp, state: view(x, 32 * warp, (32,), (1,))
        room, at, convert = room_for(kind), row_at(kind), bool if kind == types.boolean else converter(kind)

        def copied(x, warp, state):
            address = room()
            for lane in range(32):
                put(address, lane, convert(of_thread(x, 32 * warp + lane)))
            return at(address, state)

        return copied

    return row


@functools.cache
def results_of(declared):
    """(row, into): the function (result, warp, state) -> the row that the meaning fills, in the declared type
    (None: the variable's own), and (result, warp, row) that puts it there."""

    def row(x, warp, state):
        raise NotImplementedError

    def into(x, warp, row):
        raise NotImplementedError

    def differs(x):
        return declared is not None and x.dtype != kind_of(declared)

    @overload(row, **LIKE_CODE)
    def row_of(x, warp, state):
        if not differs(x):
            own = rows_of(None)
            return lambda x, warp, state: own(x, warp, state)
        room, at = room_for(kind_of(declared)), row_at(kind_of(declared))
        return lambda x, warp, state: at(room(), state)

    @overload(into, **LIKE_CODE)
    def put_into(x, warp, row):
        if not differs(x):
            return lambda x, warp, row: None

        def copy(x, warp, row):
            for lane in range(32):
                x[32 * warp + lane] = row[lane]

        return copy

    return row, into


# --- instructions of the table ------------------------------------------------------------------------------


@functools.cache
def made(entry, carried_out):
    """The function (state, warp, threads, ended, mask, *operands, *results) of an instruction; without
    `carried_out` it has no results, and only looks whether all is in order."""
    operands, results = list(entry.operands), list(entry.results) if carried_out else []
    rows = [f"row_{name}" for name in operands + results]
    mine = ", ".join(["lane", *(f"row_{name}[lane]" for name in operands)])
    parameters = ["state, warp, threads, ended", *(["mask"] if entry.mask == GIVEN else [])]
    parameters += [f"x_{name}" for name in operands + results]
    lines = [
        f"def made({', '.join(parameters)}):",
        "    there = lanes_there(warp, threads, ended)",
        *(["    check_mask(state, warp, threads, ended, there, mask)"] if entry.mask == GIVEN else []),
        *(["    check_all(state, there)"] if entry.mask == ALL else []),
        *(f"    row_{name} = rows_{name}(x_{name}, warp, state)" for name in operands + results if results),
        *(
            ["    for lane in range(32):", f"        check_read(state, there, lane, reads({mine}))"]
            if entry.reads and carried_out
            else []
        ),
        *(["    next_segment(state, warp)"] if entry.orders else []),
        *([f"    meaning({', '.join(['there', *rows])})"] if results else []),
        *(f"    into_{name}(x_{name}, warp, row_{name})" for name in results),
    ]
    names = {
        **globals(),
        **{f"rows_{name}": rows_of(declared) for name, declared in entry.operands.items()},
        **{
            f"{what}_{name}": function
            for name, kind in entry.results.items()
            for what, function in zip(("rows", "into"), results_of(None if isinstance(kind, Like) else kind))
        },
        "meaning": compiled_copy(entry.meaning),
        "reads": entry.reads and compiled_copy(entry.reads),
    }
    exec("\n".join(lines), names)
    return always(names["made"])
