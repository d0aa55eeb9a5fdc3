"""What compiled generators do at an access: the same log as every engine's, one integer an access, and notes of what must be refused.

Python makes the buffers, reads them whenever a thread stops, and empties them (sim.native.bodies). Places in the source are numbers of the lowered text's own.
"""
import functools

import numpy as np
from numba import int64, types
from numba.extending import overload

from sim.events import ADDRESS_BITS, ADDRESS_MASK, SITE_SHIFT
from sim.memory.spaces import poison
from sim.native import checks
from sim.native.arrays import LOGGED, NOTED, GuardedType, ReferenceType, get, is_record, number, peek, poke, put, set_number
from sim.native.checks import ME, as_index, filler, flat_text, is_element, text_of
from sim.native.internal import LIKE_CODE, always
from sim.native.kinds import converter, dtype_of, plain

# The numbers of a launch behind those of sim.native.checks. For each buffer its address, how many entries it has, and for how many there is room.
STEPS, TURNS_LEFT, TOUCHED, POSITION, GRID, BLOCK, AT = (checks.NUMBERS + position for position in (0, 1, 2, 3, 4, 7, 10))
LOG, VALUES, DECISIONS, NOTES = (checks.NUMBERS + 16 + 3 * position for position in range(4))
BOX = checks.NUMBERS + 32  # what a thread that stops hands over, and what it gets: three words each, a type's number and up to 16 bytes
NUMBERS = BOX + 16
NOTE = 16  # words of a note: place, what, the array's number, its rank, the index, the shape (or behind 5 words the narrowed value), last the thread
READ, WRITTEN, CHANGED, NARROWED = range(4)
KINDS = [np.dtype(name) for name in "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64 complex64 complex128".split()]
OFFERED = {"load", "store", "branch", "give", "taken", "tick", "busy", "block_shape_of", "grid_shape_of", "position_of", "touched", "raises_at", "resumed", "load_field", "store_field"}


@always
def append(state, buffer, word):
    length = number(state, buffer + 1)
    if length < number(state, buffer + 2):
        set_number(number(state, buffer), length, word)
    set_number(state, buffer + 1, length + 1)


def append_value(state, value):
    """Note the value of a store: the number of its type, and its bytes."""


@overload(append_value, **LIKE_CODE)
def append_typed(state, value):
    code = kind_number(value)

    def append(state, value):
        length = number(state, VALUES + 1)
        if length < number(state, VALUES + 2):
            set_number(number(state, VALUES), 3 * length, code)
            put(number(state, VALUES) + 24 * length + 8, 0, value)
        set_number(state, VALUES + 1, length + 1)
    return append


def kind_number(kind):
    kind = types.unliteral(kind)
    return KINDS.index(np.dtype(bool) if isinstance(kind, types.Boolean) else dtype_of(kind))


@always
def note(state, array, place, what, rank):
    """Begin a note about an array (its shadow); returns the address of what follows."""
    length = number(state, NOTES + 1)
    begin = number(state, NOTES) + 8 * NOTE * min(length, number(state, NOTES + 2) - 1)
    set_number(state, NOTES + 1, length + 1)
    for position, word in enumerate((int64(place), int64(what), array >> 48, int64(rank))):
        set_number(begin, position, word)
    set_number(begin, NOTE - 1, number(state, ME))
    return begin + 32


# --- accesses -----------------------------------------------------------------------------------------------------------------

ACCESS = """
def {name}(x, index, {more}place):
    {indices}
    if not ({inside}):
        at = note(x.numbers, x.shadow, place, {what}, {rank})
        {noted}
        {wrap}
        if not ({inside}):
            return {zero}
    flat = {flat}
    {do}
"""
IN_TEXT = {"as_index": as_index, "peek": peek, "poke": poke, "SITE_SHIFT": SITE_SHIFT, "ADDRESS_BITS": ADDRESS_BITS}  # names that occur in functions made from text
APPEND = "append(x.numbers, LOG, place << SITE_SHIFT | LOG_SIZE << ADDRESS_BITS | (x.shadow & ADDRESS_MASK) + flat * PITCH)"
DO = {"load": ("", READ, "kind(poison)", "{log}; return peek(x, flat)"),
      "store": ("value, ", WRITTEN, "", "{log}{value}; poke(x, flat, kind(value))"),
      "change": ("combine, value, ", CHANGED, "kind(zero)", "old = peek(x, flat); new = kind(combine(old, value)); {log}{new}; poke(x, flat, new); touch(x, flat, old != new); return old")}


@always
def touch(x, flat, differs):
    """The element on which an atomic was done, and whether it is another now."""
    set_number(x.numbers, TOUCHED, ((x.shadow & ADDRESS_MASK) + flat * pitch_of(x)) << 1 | (1 if differs else 0))


@always
def touched(state):
    """Whether the last atomic found its element; then it has to be told."""
    return number(state, TOUCHED) >= 0


def pitch_of(x):
    """Bytes from one element to the next."""


@overload(pitch_of, **LIKE_CODE)
def pitch(x):
    pitch = x.pitch
    return lambda x: pitch


@functools.cache
def accessor(kind, single, name):
    """The function `name` (load, store or change) for a GuardedType whose accesses are LOGGED or NOTED; `single`: whether the index is a number."""
    axes, (more, what, zero, do) = range(kind.ndim), DO[name]
    logged = kind.kind == LOGGED
    inside = " and ".join(f"0 <= i{a} < {kind.side(a)}" for a in axes) or "True"
    text = ACCESS.format(
        name=name, more=more, what=what, rank=kind.ndim, zero=zero, inside=inside, flat=flat_text(kind),
        indices="; ".join(f"i{a} = as_index({'index' if single else f'index[{a}]'})" for a in axes) or "pass",
        noted="; ".join(f"set_number(at, {a}, i{a}); set_number(at, {a + kind.ndim}, x.shape[{a}])" for a in axes) or "pass",
        wrap="; ".join(f"i{a} = i{a} + x.shape[{a}] if i{a} < 0 else i{a}" for a in axes) or "pass",
        do=do.format(log=APPEND if logged else "pass", value="; append_value(x.numbers, value)" if logged else "", new="; append_value(x.numbers, new)" if logged else ""))
    dtype = dtype_of(kind.dtype)
    names = globals() | IN_TEXT | {"poison": plain(poison(dtype)), "zero": plain(dtype.type(0)), "kind": converter(kind.dtype), "LOG_SIZE": dtype.itemsize.bit_length() - 1, "PITCH": kind.pitch}
    exec(text, names)
    return names[name]


def load(x, index, place):
    """x[index], numbered: an element or a view."""


def store(x, index, value, place):
    """x[index] = value, numbered."""


def load_field(x, name, place):
    """x.name or x["name"], numbered where x is a reference to a record."""


def store_field(x, name, value, place):
    """The same, stored to."""


@overload(load_field, prefer_literal=True, **LIKE_CODE)
def load_field_any(x, name, place):
    name = name.literal_value
    return eval(f"lambda x, name, place: load(x._records_.{name}, x._place_, place)" if isinstance(x, ReferenceType) else f"lambda x, name, place: x.{name}")


@overload(store_field, prefer_literal=True, **LIKE_CODE)
def store_field_any(x, name, value, place):
    if isinstance(x, ReferenceType):
        return eval(f"lambda x, name, value, place: store(x._records_.{name.literal_value}, x._place_, value, place)")


def is_logged(x, index):
    return is_element(x, index) and not is_record(x) and x.kind in (LOGGED, NOTED)


@overload(load, **LIKE_CODE)
def load_any(x, index, place):
    if is_logged(x, index):
        return accessor(x, isinstance(index, types.Integer), "load")
    return lambda x, index, place: x[index]


@overload(store, **LIKE_CODE)
def store_any(x, index, value, place):
    if is_logged(x, index):
        return accessor(x, isinstance(index, types.Integer), "store")

    if is_record(x) and isinstance(value, ReferenceType):
        return text_of(["def copy(x, index, value, place):", *(f"    put_one(x.{name}, index, get_one(value._records_.{name}, value._place_, place - 1), place)" for name in dtype_of(x.dtype).names)],
                       "copy", get_one=load, put_one=store)
    return filler(x, index, value, "x, index, value, place", "get_one(value, {}, place - 1)", "put_one(x, {}, {}, place)", get_one=load, put_one=store) if isinstance(x, GuardedType) else None


def change_at(x, index, combine, value, place):
    """As sim.native.checks.change, numbered."""


@overload(change_at, **LIKE_CODE)
def change_logged(x, index, combine, value, place):
    if is_logged(x, index):
        return accessor(x, isinstance(index, types.Integer), "change")


def note_narrowed(x, index, value, place):
    """Note that an atomic on an array of integers is given a number that loses its fraction."""


@overload(note_narrowed, **LIKE_CODE)
def narrowed(x, index, value, place):
    if not (isinstance(x.dtype, types.Integer) and isinstance(value, (types.Float, types.Complex)) and is_logged(x, index)):
        return lambda x, index, value, place: None
    single, code, rank = isinstance(index, types.Integer), kind_number(value), x.ndim
    lines = ["def tell(x, index, value, place):"]
    lines += [f"    i{a} = as_index({'index' if single else f'index[{a}]'})" for a in range(rank)]
    lines += [f"    if {' and '.join(f'-x.shape[{a}] <= i{a} < x.shape[{a}]' for a in range(rank))}:", f"        at = note(x.numbers, x.shadow, place, NARROWED, {rank})"]
    lines += [f"        set_number(at, {a}, i{a} + x.shape[{a}] if i{a} < 0 else i{a})" for a in range(rank)]
    lines += [f"        set_number(at, 5, {code})", "        put(at + 48, 0, value)"]
    names = globals() | IN_TEXT
    exec("\n".join(lines), names)
    return names["tell"]


@always
def branch(state, test, thread, place):
    """What a thread decides at a branch."""
    append(state, DECISIONS, (place << 12 | thread) << 1 | (1 if test else 0))
    return test


@always
def raises_at(state, place):
    """An exception comes from here."""
    set_number(state, AT, int64(place))


@always
def resumed(state, thread):
    """`thread` goes on."""
    set_number(state, ME, thread)


# --- what a thread knows, and what it hands over ----------------------------------------------------------------------------------


@always
def position_of(state):
    return number(state, POSITION)


@always
def grid_shape_of(state):
    return number(state, GRID), number(state, GRID + 1), number(state, GRID + 2)


@always
def block_shape_of(state):
    return number(state, BLOCK), number(state, BLOCK + 1), number(state, BLOCK + 2)


def give(state, position, value):
    """Hand over a value, as the one at `position` (from 0)."""


@overload(give, **LIKE_CODE)
def give_typed(state, position, value):
    code = kind_number(value)

    def give(state, position, value):
        set_number(state, BOX + 3 * position, code)
        put(state + 8 * (BOX + 3 * position + 1), 0, value)
    return give


@always
def taken(state, position, like):
    """What was handed back, of the type of `like`."""
    return get(state + 8 * (BOX + 3 * position + 1), 0, like)


@always
def tick(state):
    """A `while` loop goes round once more; whether Python must look (it has spent its rounds, or as `busy`)."""
    left = number(state, STEPS) - 1
    set_number(state, STEPS, left)
    return left < 0 or busy(state)


@always
def busy(state):
    """A loop goes round once more; whether Python must look: after many turns, or when a buffer is half full."""
    left = number(state, TURNS_LEFT) - 1
    set_number(state, TURNS_LEFT, left)
    return left < 0 or 2 * number(state, LOG + 1) > number(state, LOG + 2)
