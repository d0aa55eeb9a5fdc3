"""What compiled code does at an access: bounds for every array, and stamps for those that are watched.

A check only detects, and the block goes on: DIRTY among the launch's numbers says what kind of thing is not
in order, and the block is run again by an engine that can explain. Bad loads give poison, bad stores do
nothing. A block whose threads part at a place where they wait is STOPPED. Beside each element of a watched
array stand two stamps, which say when and by whom it was last written and last read: from the lowest bit 10
bits of thread, 6 of flags, 16 of the warp's segment (how often its lanes have synchronised), 31 of the epoch.
Epochs count the barriers and blocks of the whole launch, so stamps of an earlier block are told by their
size, and nothing is ever reset. Being too careful costs a slow run; missing something is not allowed.
"""

import functools
import operator
from math import prod

import numpy as np
from numba import int64, types, uint8
from numba.extending import overload, overload_attribute, overload_method

from sim.memory.spaces import poison
from sim.native.arrays import (
    BARE,
    BOUNDED,
    EMPTY,
    GLOBAL,
    LOCAL,
    SHARED,
    GuardedType,
    ReferenceType,
    State,
    get,
    is_record,
    number,
    peek,
    poke,
    put,
    reference,
    set_number,
    viewer,
)
from sim.native.internal import LIKE_CODE, always, compiled
from sim.native.kinds import converter, dtype_of, plain

# The numbers of a launch. WROTE: whether anybody has written to global memory; SEGMENTS: one for each warp of
# a block; INDICES: threadIdx of each thread, as x | y << 16 | z << 32.
# POSITION: of the block in a walk over the grid; STARTS and FOUND: addresses of an int64 for each block, its
# first epoch and its DIRTY at the end; FOREIGN: an epoch of another block that
# has read or changed something that this block also has; PAIRS: address of a list of (position, epoch of
# another block that it races with), how many, for how many there is room;
# LOG: the same of what is written down to be counted (sim.native.logged).
(
    DIRTY,
    STOPPED,
    WROTE,
    ME,
    BLOCK_START,
    ROUNDS,
    TURNS,
    ENDED,
    BARRIERS,
    EPOCH,
    POSITION,
    STARTS,
    FOUND,
    FOREIGN,
    PAIRS,
) = range(15)
LOG = PAIRS + 3
SEGMENTS = LOG + 3
INDICES = SEGMENTS + 32
# for each read of a variable that may have no value, 0, or 1 + 1024 * block + thread of the first that had
# none
UNSET = INDICES + 1024
MOST_UNSET = 64
# for each thread, and behind them for each warp, the epoch and segment (as in a stamp) in which it, or the
# last of it, returned
LEFT = UNSET + MOST_UNSET
NUMBERS = LEFT + 1024 + 32

# bits of DIRTY
NARROWED, BOUNDS, UNWRITTEN, RACE, BETWEEN, PARTED, SPENT = KINDS = tuple(1 << bit for bit in range(7))
# STOPPED: what cannot go on, or not before the log is counted
OF_BLOCK, OF_LAUNCH, INTERRUPTED, FULL = 1, 2, 3, 4

THREAD_BITS, SEGMENT_SHIFT, EPOCH_SHIFT, WARP_SHIFT = 10, 16, 32, 5
THREAD = (1 << THREAD_BITS) - 1
WARP = THREAD >> WARP_SHIFT << WARP_SHIFT
SEGMENT = 0xFFFF << SEGMENT_SHIFT
# ATOMIC: written by an atomic. MANY: by several threads. WARPS: of several warps in this epoch. OTHERS: by an
# earlier block too. PLAIN: by a plain store of this block too.
ATOMIC, MANY, WARPS, OTHERS, PLAIN = (1 << bit for bit in range(THREAD_BITS, THREAD_BITS + 5))

IN_TEXT = {"peek": peek, "poke": poke, "put": put}  # names that occur in functions made from text


def new_state(block, length=NUMBERS):
    """The numbers of a launch with blocks of this shape."""
    return State(length, INDICES, indices_of(block))


@functools.cache
def indices_of(block):
    thread = np.arange(prod(block))
    return thread % block[0] | thread // block[0] % block[1] << 16 | thread // (block[0] * block[1]) << 32


@always
def dirty(state, kind):
    """Something of this kind is not in order in the running block."""
    set_number(state, DIRTY, number(state, DIRTY) | kind)


@compiled
def races_with(state, epoch):
    """The running block races with another one, which had this epoch."""
    dirty(state, BETWEEN)
    pairs, length, position = number(state, PAIRS), number(state, PAIRS + 1), number(state, POSITION)
    if length > 0 and number(pairs, 2 * length - 2) == position and number(pairs, 2 * length - 1) == epoch:
        return
    if length < number(state, PAIRS + 2):
        set_number(pairs, 2 * length, position)
        set_number(pairs, 2 * length + 1, epoch)
    set_number(state, PAIRS + 1, min(length + 1, number(state, PAIRS + 2)))


# --- stamps -------------------------------------------------------------------------------------------------


@always
def same_epoch(before, me):
    return before >> EPOCH_SHIFT == me >> EPOCH_SHIFT


@always
def has_left(before, state):
    """Whether the thread of a stamp (or one of them) returned before its warp synchronised again: later
    syncwarps do not put it before anything."""
    of = 1024 + ((before & THREAD) >> WARP_SHIFT) if before & MANY else before & THREAD
    return number(state, LEFT + of) == before >> SEGMENT_SHIFT


@always
def of_another(before, me, state):
    """Whether the stamp, of this epoch, is an access by another thread that no syncwarp puts before what this
    thread does now."""
    if before & WARPS or (before ^ me) & WARP:
        return True
    if (before ^ me) & SEGMENT:
        return has_left(before, state)
    return before & MANY != 0 or (before ^ me) & THREAD != 0


@always
def judge(before, state, between_blocks):
    """Mark the block DIRTY if what the stamp tells of and what this thread does now are in no order;
    `between_blocks`: the memory outlives a block."""
    me = number(state, ME)
    if before == 0 or before == me:
        return
    if between_blocks and unwritten(before, state):
        races_with(state, before >> EPOCH_SHIFT)
    elif between_blocks and before & OTHERS:
        races_with(state, number(state, FOREIGN))
    elif same_epoch(before, me) and of_another(before, me, state):
        dirty(state, RACE)


@always
def read_by_me(before, state, between_blocks):
    """The stamp of an element's readers, this thread now being one of them."""
    me = number(state, ME)
    if before == 0:
        return me
    if between_blocks and unwritten(before, state):
        set_number(state, FOREIGN, before >> EPOCH_SHIFT)
        me |= OTHERS
    elif between_blocks and before & OTHERS:
        me |= OTHERS
    if not same_epoch(before, me):
        return me
    if (before ^ me) & WARP or ((before ^ me) & SEGMENT and has_left(before, state)):
        return me | WARPS
    together = (before ^ me) & SEGMENT == 0 and (before & MANY != 0 or (before ^ me) & THREAD != 0)
    return me | before & WARPS | (MANY if together else 0)


@always
def unwritten(written, state):
    """Whether the stamp is older than the running block."""
    return written >> EPOCH_SHIFT < number(state, BLOCK_START)


@always
def watch_load(stamps, flat, state, between_blocks, wants_written):
    written, read = number(stamps, 2 * flat), number(stamps, 2 * flat + 1)
    if wants_written and unwritten(written, state):
        dirty(state, UNWRITTEN)
    judge(written, state, between_blocks)
    if read != number(state, ME):
        set_number(stamps, 2 * flat + 1, read_by_me(read, state, between_blocks))


@always
def watch_store(stamps, flat, state, between_blocks):
    judge(number(stamps, 2 * flat), state, between_blocks)
    judge(number(stamps, 2 * flat + 1), state, between_blocks)
    set_number(stamps, 2 * flat, number(state, ME))
    if between_blocks:
        set_number(state, WROTE, 1)


@always
def watch_atomic(stamps, flat, state, between_blocks, wants_written):
    written, me = number(stamps, 2 * flat), number(state, ME)
    new = me | ATOMIC
    if wants_written and unwritten(written, state):
        dirty(state, UNWRITTEN)
    judge(number(stamps, 2 * flat + 1), state, between_blocks)
    if written == 0:
        pass
    elif unwritten(written, state):  # an earlier block's
        if between_blocks:
            new |= OTHERS
            set_number(state, FOREIGN, written >> EPOCH_SHIFT)
            if written & PLAIN or not written & ATOMIC:
                races_with(state, written >> EPOCH_SHIFT)
    elif written & ATOMIC:
        new |= written & (OTHERS | PLAIN)
        if same_epoch(written, me):
            new |= written & (WARPS | MANY) | (WARPS if (written ^ me) & THREAD else 0)
    elif same_epoch(written, me):
        if of_another(written, me, state):
            dirty(state, RACE)
        new = me  # both of them: as plain as the store
    else:
        new |= PLAIN
    set_number(stamps, 2 * flat, new)
    if between_blocks:
        set_number(state, WROTE, 1)


@always
def watch_local(written, flat, state):
    if get(written, flat, uint8(0)) == 0:
        dirty(state, UNWRITTEN)


# --- elements -----------------------------------------------------------------------------------------------


def change(x, index, combine, value):
    """Replace x[index] by combine(old, value), and return old: an atomic, for code that nobody interrupts."""


def as_index(position):
    """An index as an int64; one that is too large for that stays too large."""


@overload(as_index, **LIKE_CODE)
def index_of(position):
    most = types.uint64(2**63 - 1)
    return (
        (lambda position: int64(min(position, most)))
        if position == types.uint64
        else (lambda position: int64(position))
    )


@always
def looked_at(position, length, state, wraps):
    """A position that does not lie between 0 and `length`, counted from the start, or -1; sets DIRTY for what
    somebody must hear of."""
    place = position + length if -length <= position < 0 else position if 0 <= position < length else -1
    if place < 0 or place != position and not wraps:
        dirty(state, BOUNDS)
    return place


WATCH = {  # kind -> what a load does first, a store, an atomic
    BARE: ("pass", "pass", "pass"),
    BOUNDED: ("pass", "pass", "pass"),
    LOCAL: (
        "watch_local(x.shadow, flat, x.numbers)",
        "put(x.shadow, flat, uint8(1))",
        "watch_local(x.shadow, flat, x.numbers)",
    ),
    GLOBAL: (
        "watch_load(x.shadow, flat, x.numbers, True, False)",
        "watch_store(x.shadow, flat, x.numbers, True)",
        "watch_atomic(x.shadow, flat, x.numbers, True, False)",
    ),
    EMPTY: (
        "watch_load(x.shadow, flat, x.numbers, True, True)",
        "watch_store(x.shadow, flat, x.numbers, True)",
        "watch_atomic(x.shadow, flat, x.numbers, True, True)",
    ),
    SHARED: (
        "watch_load(x.shadow, flat, x.numbers, False, True)",
        "watch_store(x.shadow, flat, x.numbers, False)",
        "watch_atomic(x.shadow, flat, x.numbers, False, True)",
    ),
}
ACCESS = """
def {name}(x, index{more}):
    {indices}
    if not ({inside}):
        {wrap}
        if {lost}:
            return {zero}
    flat = {flat}
    {watch}
    {do}
"""
DO = {
    "load": ("", "kind(poison)", "return peek(x, flat)"),
    "store": (", value", "", "poke(x, flat, kind(value))"),
    "change": (
        ", combine, value",
        "kind(zero)",
        "old = peek(x, flat); poke(x, flat, kind(combine(old, value))); return old",
    ),
}


@functools.cache
def accessor(kind, single, name):
    """The function `name` (load, store or change, which is what an atomic does) for a GuardedType; `single`:
    whether the index is a number, not a tuple."""
    axes, (more, zero, do) = range(kind.ndim), DO[name]
    text = ACCESS.format(
        name=name,
        more=more,
        zero=zero,
        do=do,
        watch=WATCH[kind.kind][list(DO).index(name)],
        flat=flat_text(kind),
        indices="; ".join(f"i{a} = as_index({'index' if single else f'index[{a}]'})" for a in axes) or "pass",
        inside=" and ".join(f"0 <= i{a} < {kind.side(a)}" for a in axes) or "True",
        wrap="; ".join(
            f"i{a} = looked_at(i{a}, {kind.side(a)}, x.numbers, {kind.kind == BARE})" for a in axes
        )
        or "pass",
        lost=" or ".join(f"i{a} < 0" for a in axes) or "False",
    )
    names = (
        globals()
        | IN_TEXT
        | {
            "zero": plain(dtype_of(kind.dtype).type(0)),
            "poison": plain(poison(dtype_of(kind.dtype))),
            "kind": converter(kind.dtype),
        }
    )
    exec(text, names)
    return names[name]


def flat_text(kind):
    """The position behind the first element, in elements, of the index i0, i1, ..."""
    return " + ".join(f"i{a} * ({kind.stride(a)})" for a in range(kind.ndim)) or "0"


def is_element(x, index):
    """Whether `index` names one element of a Guarded: as many integers as there are dimensions."""
    if not isinstance(x, GuardedType):
        return False
    if isinstance(index, types.BaseTuple):
        return len(index) == x.ndim and all(isinstance(part, types.Integer) for part in index)
    return x.ndim == 1 and isinstance(index, types.Integer)


def text_of(lines, name, **names):
    """The function `name` that these lines define."""
    names = globals() | names
    exec("\n".join(lines), names)
    return names[name]


def reference_to(x, index):
    """The function (array of records, index) -> reference."""
    given = [f"index[{axis}]" if isinstance(index, types.BaseTuple) else "index" for axis in range(x.ndim)]
    return text_of(
        [
            "def refer(x, index):",
            f"    return reference(x, {tuple_text(f'as_index({part})' for part in given)})",
        ],
        "refer",
        reference=reference,
    )


def means_the_end(x, index):
    """Whether an index is a literal below 0; other literals are as good as any number."""
    return isinstance(index, types.IntegerLiteral) and index.literal_value < 0 and is_element(x, index)


@overload(operator.getitem, prefer_literal=True, **LIKE_CODE)
def getitem_from_the_end(x, index):
    if means_the_end(x, index):
        return lambda x, index: x[from_end(x, 0, -index)]


@overload(operator.setitem, prefer_literal=True, **LIKE_CODE)
def setitem_from_the_end(x, index, value):
    if means_the_end(x, index):

        def store(x, index, value):
            x[from_end(x, 0, -index)] = value

        return store


def from_end(x, axis, back):
    """The index along an axis that counts `back` from its end; a negative one where there are not so many."""


@overload(from_end, **LIKE_CODE)
def index_from_end(x, axis, back):
    if isinstance(x, GuardedType):
        return lambda x, axis, back: x.shape[axis] - back if back <= x.shape[axis] else -back
    return lambda x, axis, back: -back


@overload(operator.getitem, **LIKE_CODE)
def getitem(x, index):
    if isinstance(index, types.StringLiteral) and isinstance(x, (GuardedType, ReferenceType)):
        return text_of(["def field(x, index):", f"    return x.{index.literal_value}"], "field")
    if is_record(x) and is_element(x, index):
        return reference_to(x, index)
    if is_element(x, index):
        return accessor(x, isinstance(index, types.Integer), "load")
    return part_of(x, index) if isinstance(x, GuardedType) else None


@overload(operator.setitem, **LIKE_CODE)
def setitem(x, index, value):
    if isinstance(x, ReferenceType) and isinstance(index, types.StringLiteral):
        return text_of(
            ["def set_field(x, index, value):", f"    x._records_.{index.literal_value}[x._place_] = value"],
            "set_field",
        )
    if is_record(x) and is_element(x, index) and isinstance(value, ReferenceType):
        return text_of(
            [
                "def copy(x, index, value):",
                *(f"    x.{name}[index] = value.{name}" for name in dtype_of(x.dtype).names),
            ],
            "copy",
        )
    if is_element(x, index):
        return accessor(x, isinstance(index, types.Integer), "store")
    return filler(x, index, value) if isinstance(x, GuardedType) else None


def filler(x, index, value, parameters="x, index, value", load="value[{}]", store="x[{}] = {}", **names):
    """The function (array, slices, value): write every element of that part, the same number or those of an
    array of as many dimensions or fewer."""
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if not all(isinstance(part, (types.Integer, types.SliceType)) for part in parts) or not isinstance(
        value, (types.Number, types.Boolean, GuardedType)
    ):
        return None
    rank = x.ndim - sum(isinstance(part, types.Integer) for part in parts)
    own = range(value.ndim if isinstance(value, GuardedType) else 0)
    element = (
        load.format(
            tuple_text(f"i{axis + rank - len(own)} if value.shape[{axis}] != 1 else 0" for axis in own)
        )
        if own
        else "value"
    )
    lines = [
        f"def fill({parameters}):",
        "    x = x[index]",
        *(f"{'    ' * (axis + 1)}for i{axis} in range(x.shape[{axis}]):" for axis in range(rank)),
    ]
    return text_of(
        [*lines, "    " * (rank + 1) + store.format(tuple_text(f"i{axis}" for axis in range(rank)), element)],
        "fill",
        **names,
    )


@overload(change, **LIKE_CODE)
def change_guarded(x, index, combine, value):
    if is_element(x, index):
        return accessor(x, isinstance(index, types.Integer), "change")


# --- parts of arrays ----------------------------------------------------------------------------------------


@always
def whole(position, length, state, wraps):
    """An index of a view: one that is outside becomes 0, and the launch DIRTY."""
    return position if 0 <= position < length else max(looked_at(position, length, state, wraps), 0)


def part_of(x, index):
    """The function (array, index) -> view."""
    parts = tuple(index) if isinstance(index, types.BaseTuple) else (index,)
    if len(parts) > x.ndim or not all(isinstance(part, (types.Integer, types.SliceType)) for part in parts):
        return None
    lines, flat, shape, strides, sizes = [], [], [], [], []
    for axis, part in enumerate(parts):
        given, side, stride = (
            f"index[{axis}]" if isinstance(index, types.BaseTuple) else "index",
            x.side(axis),
            x.stride(axis),
        )
        if isinstance(part, types.Integer):
            flat.append(f"whole(as_index({given}), {side}, x.numbers, {x.kind == BARE}) * ({stride})")
        else:
            lines += [
                f"    a{axis}, b{axis}, c{axis} = {given}.indices({side})",
                f"    n{axis} = len(range(a{axis}, b{axis}, c{axis}))",
            ]
            flat.append(f"a{axis} * ({stride}) * (n{axis} > 0)")
            shape.append(f"n{axis}")
            strides.append(f"c{axis} * ({stride})")
            sizes.append(None)
    for axis in range(len(parts), x.ndim):
        shape.append(x.side(axis))
        strides.append(x.stride(axis))
        sizes.append(x.sizes[axis])
    kind = GuardedType(x.dtype, len(shape), x.rowwise and not lines, x.kind, tuple(sizes), x.pitch)
    return made(
        "part",
        [*lines, f"    return view(x, {' + '.join(flat)}, {tuple_text(shape)}, {tuple_text(strides)})"],
        kind,
        "x, index",
    )


def tuple_text(parts):
    return f"({''.join(f'{part}, ' for part in parts)})"


def made(name, lines, kind, parameters="x"):
    """The function `name` of an array (and more) that returns a view of type `kind`."""
    names = globals() | {"view": viewer(kind)}
    exec("\n".join([f"def {name}({parameters}):", *lines]), names)
    return names[name]


@overload(len, **LIKE_CODE)
def length(x):
    if isinstance(x, GuardedType):
        return lambda x: x.shape[0]


@overload_attribute(GuardedType, "size", **LIKE_CODE)
def size(x):
    def get(x):
        size = 1
        for n in x.shape:
            size *= n
        return size

    return get


@overload_attribute(GuardedType, "ndim", **LIKE_CODE)
def ndim(x):
    rank = x.ndim
    return lambda x: rank


@overload_attribute(GuardedType, "T", **LIKE_CODE)
def transposed(x):
    axes = range(x.ndim)[::-1]
    kind = GuardedType(x.dtype, x.ndim, False, x.kind, x.sizes[::-1], x.pitch)
    return made(
        "transpose",
        [f"    return view(x, 0, {tuple_text(map(x.side, axes))}, {tuple_text(map(x.stride, axes))})"],
        kind,
    )


@overload_attribute(GuardedType, "itemsize", **LIKE_CODE)
def itemsize(x):
    size = dtype_of(x.dtype).itemsize
    return lambda x: size


@overload_attribute(GuardedType, "nbytes", **LIKE_CODE)
def nbytes(x):
    size = dtype_of(x.dtype).itemsize
    return lambda x: x.size * size


@overload_method(GuardedType, "reshape", **LIKE_CODE)
def reshaped(x, shape):
    """The same elements in another shape (a number or a tuple), of which one size may be -1; for an array
    whose rows lie one behind another."""
    if not x.rowwise:
        return None
    axes = range(len(shape) if isinstance(shape, types.BaseTuple) else 1)
    kind = GuardedType(x.dtype, len(axes), True, x.kind, pitch=x.pitch)
    lines = [
        f"    n{a} = as_index({f'shape[{a}]' if isinstance(shape, types.BaseTuple) else 'shape'})"
        for a in axes
    ]
    lines += [
        f"    n{a} = x.size // ({' * '.join(f'n{b}' for b in axes if b != a) or 1}) if n{a} < 0 else n{a}"
        for a in axes
    ]
    lines += [
        f"    if {' * '.join(f'n{a}' for a in axes) or 1} != x.size:",
        "        raise ValueError('reshape to a shape with another number of elements')",
    ]
    strides = [" * ".join(f"n{b}" for b in axes[a + 1 :]) or "1" for a in axes]
    return made(
        "reshape",
        [*lines, f"    return view(x, 0, {tuple_text(f'n{a}' for a in axes)}, {tuple_text(strides)})"],
        kind,
        "x, shape",
    )
