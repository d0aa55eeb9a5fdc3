"""What compiled code does at an element of an array: finds it, watches over it (sim.native.checks), reads or
writes it. Written as LLVM's instructions: Numba would compile a function of its own for each type of array
and of index."""

import operator
from functools import reduce

from llvmlite import ir
from numba import boolean, int64, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from sim.memory.spaces import poisoned as fresh_bytes
from sim.native.arrays import GuardedType, ReferenceType, element, is_record, view
from sim.native.checks import BARE, BOUNDED, LOCAL, looked_at, watch_load, watch_store
from sim.native.logged import PLACE_SHIFT, SIZE_SHIFT, append
from sim.native.scalars import converted, dtype_of

OFFERED = {"fresh", "row_of", "poisoned"}
I8, I64 = ir.IntType(8), ir.IntType(64)


def is_element(x, index):
    """Whether `index` names one element of a Guarded: as many integers as there are dimensions."""
    return isinstance(x, GuardedType) and len(parts_of(index)) == x.ndim and is_place(index)


def is_place(index):
    return all(isinstance(part, types.Integer) for part in parts_of(index))


def parts_of(index):
    return tuple(index) if isinstance(index, types.BaseTuple) else (index,)


def index_value(context, builder, numba_type, code):
    """An index as an int64; one that is too large for that stays too large."""
    if numba_type != types.uint64:
        return context.cast(builder, code, numba_type, int64)
    most = I64(2**63 - 1)
    return builder.select(builder.icmp_unsigned("<", code, most), code, most)


@intrinsic
def as_index(typing, position):
    def code(context, builder, signature, arguments):
        return index_value(context, builder, signature.args[0], arguments[0])

    return int64(position), code


class Place:
    """Where in an array (of type `x`) the integers of an index lead, in LLVM's values; with fewer of them
    than dimensions, to a part of it."""

    def __init__(self, context, builder, x, array, index, code):
        self.context, self.builder, self.x = context, builder, x
        self.array = cgutils.create_struct_proxy(x)(context, builder, array)
        codes = cgutils.unpack_tuple(builder, code) if isinstance(index, types.BaseTuple) else [code]
        self.given = [
            index_value(context, builder, numba_type, part)
            for numba_type, part in zip(parts_of(index), codes, strict=True)
        ]

    def side(self, axis):
        known = self.x.sizes[axis]
        return I64(known) if known is not None else self.builder.extract_value(self.array.shape, axis)

    def stride(self, axis):
        """In elements."""
        if not self.x.rowwise:
            return self.builder.extract_value(self.array.strides, axis)
        return reduce(self.builder.mul, map(self.side, range(axis + 1, self.x.ndim)), I64(1))

    def call(self, function, *codes):
        return function.words.call(self.context, self.builder, *codes)

    def looked_at(self, place, axis):
        return self.call(looked_at, place, self.side(axis), self.array.state, I64(int(self.x.watch == BARE)))

    def found(self, lost=None):
        """How many elements behind the first; `lost`: the block where code goes on if there is no such
        element. Without one, a position outside becomes 0."""
        builder, axes = self.builder, range(len(self.given))
        if not self.given:
            return I64(0)
        inside = [builder.icmp_unsigned("<", self.given[axis], self.side(axis)) for axis in axes]
        before, odd = builder.block, builder.append_basic_block("odd")
        here = builder.append_basic_block("here")
        builder.cbranch(reduce(builder.and_, inside), here, odd).set_weights([99, 1])
        builder.position_at_end(odd)
        places = [self.looked_at(self.given[axis], axis) for axis in axes]
        negative = [builder.icmp_signed("<", place, I64(0)) for place in places]
        if lost:
            builder.cbranch(reduce(builder.or_, negative), lost, here)
        else:
            places = [builder.select(test, I64(0), place) for test, place in zip(negative, places)]
            builder.branch(here)
        self.odd = builder.block
        builder.position_at_end(here)
        for axis in axes:
            place = builder.phi(I64)
            place.add_incoming(self.given[axis], before)
            place.add_incoming(places[axis], self.odd)
            places[axis] = place
        return self.flat(places)

    def flat(self, places):
        terms = [self.builder.mul(place, self.stride(axis)) for axis, place in enumerate(places)]
        return reduce(self.builder.add, terms, I64(0))

    def log(self):
        """Write down an access, if there is such an element."""
        builder, inside, places = self.builder, ir.IntType(1)(1), []
        for axis, place in enumerate(self.given):
            side = self.side(axis)
            below = builder.icmp_signed("<", place, I64(0))  # counted from the end
            places.append(builder.select(below, builder.add(place, side), place))
            inside = builder.and_(inside, builder.icmp_unsigned("<", places[axis], side))
        with builder.if_then(inside):
            address = builder.ptrtoint(self.pointer(self.flat(places)), I64)
            size = dtype_of(self.x.dtype).itemsize.bit_length() - 1
            what = I64(self.x.place << PLACE_SHIFT | size << SIZE_SHIFT)
            self.call(append, self.array.state, builder.or_(what, address))

    def access(self, watched, do, otherwise):
        """`do(flat)` at the element, if there is one, else `otherwise`: a value, or None for both. `watched`:
        watch_load, watch_store or watch_atomic."""
        builder = self.builder
        if self.x.place is not None:
            self.log()
        lost = builder.append_basic_block("lost") if self.given else None
        flat = self.found(lost)
        if self.x.watch not in (BARE, BOUNDED):
            self.call(watched, I64(self.x.watch), self.array.shadow, flat, self.array.state)
        value, after = do(flat), builder.block
        if lost is None:
            return value
        builder.branch(lost)
        builder.position_at_end(lost)
        if otherwise is None:
            return None
        result = builder.phi(value.type)
        result.add_incoming(value, after)
        result.add_incoming(otherwise, self.odd)
        return result

    def pointer(self, flat):
        return element(self.context, self.builder, self.x, self.array._getvalue(), flat)


# --- elements -----------------------------------------------------------------------------------------------


def fresh_byte(numba_type):
    """The byte that memory of this type is full of until it is written."""
    return int(fresh_bytes(1, dtype_of(numba_type))[0])


def poison_of(context, numba_type):
    """What a load gives that finds nothing."""
    value = context.get_value_type(numba_type)
    if isinstance(numba_type, types.Complex):
        part = poison_of(context, numba_type.underlying_float)
        return ir.Constant(value, [part, part])
    if numba_type == boolean:
        return value(1)
    size = dtype_of(numba_type).itemsize
    bits = ir.IntType(8 * size)(int.from_bytes([fresh_byte(numba_type)] * size, "little"))
    return bits if isinstance(value, ir.IntType) else bits.bitcast(value)


@infer_global(operator.getitem)
class Getitem(AbstractTemplate):
    """An element (of records, a reference to it), or the part that fewer integers than dimensions name."""

    def generic(self, arguments, keywords):
        x, index = arguments
        if is_element(x, index):
            return signature(ReferenceType(x.at_place(None)) if is_record(x) else x.dtype, x, index)
        if isinstance(x, GuardedType) and is_place(index) and len(parts_of(index)) < x.ndim:
            return signature(part_type(x, len(parts_of(index))), x, index)


@infer_global(operator.setitem)
class Setitem(AbstractTemplate):
    def generic(self, arguments, keywords):
        x, index, value = arguments
        if is_element(x, index) and not is_record(x) and is_number_like(self.context, value, x.dtype):
            return signature(types.none, x, index, value)


def is_number_like(context, value, wanted):
    """Whether a number, or what Numba takes for one, can become a number of this type."""
    known = isinstance(value, (types.Number, types.Boolean, types.IntEnumMember))
    return known and (isinstance(wanted, types.Complex) or not isinstance(value, types.Complex))


def part_type(x, axes):
    """The type of x[i, j, ...] with so many integers."""
    return GuardedType(x.dtype, x.ndim - axes, x.rowwise, x.watch, x.sizes[axes:], x.pitch)


@lower_builtin(operator.getitem, GuardedType, types.Any)
def getitem(context, builder, signature, arguments):
    x, index = signature.args
    place = Place(context, builder, x, arguments[0], index, arguments[1])
    if isinstance(signature.return_type, GuardedType):
        return part(place, signature.return_type, place.found())
    if isinstance(signature.return_type, ReferenceType):
        reference = cgutils.create_struct_proxy(signature.return_type)(context, builder)
        reference.records, reference.place = arguments[0], cgutils.pack_array(builder, place.given, I64)
        return reference._getvalue()

    def load(flat):
        return context.unpack_value(builder, x.dtype, place.pointer(flat))

    return place.access(watch_load, load, poison_of(context, x.dtype))


@lower_builtin(operator.setitem, GuardedType, types.Any, types.Any)
def setitem(context, builder, signature, arguments):
    x, index, given = signature.args
    value = converted(context, builder, given, x.dtype, arguments[2])
    place = Place(context, builder, x, arguments[0], index, arguments[1])

    def store(flat):
        context.pack_value(builder, x.dtype, value, place.pointer(flat))

    place.access(watch_store, store, None)
    return context.get_dummy_value()


def part(place, result, flat):
    """The part of an array, of type `result`, that a Place leads to, `flat` elements behind the first."""
    axes = range(len(place.given), place.x.ndim)
    sides = [cgutils.pack_array(place.builder, list(map(of, axes)), I64) for of in (place.side, place.stride)]
    return view(place.context, place.builder, place.x, result, place.array._getvalue(), flat, *sides)


# --- memory that nobody has written -------------------------------------------------------------------------


@intrinsic
def poisoned(typing, x):
    """Fill a Guarded with what fresh memory holds."""

    def code(context, builder, signature, arguments):
        fill(context, builder, x, arguments[0])
        return context.get_dummy_value()

    return types.void(x), code


def fill(context, builder, x, value):
    array = cgutils.create_struct_proxy(x)(context, builder, value)
    count = reduce(builder.mul, cgutils.unpack_tuple(builder, array.shape), I64(1))
    size = dtype_of(x.dtype).itemsize
    for address, each, byte in [(array.data, size, fresh_byte(x.dtype))] + [(array.shadow, 1, 0)] * (
        x.watch == LOCAL
    ):
        pointer = builder.inttoptr(address, I8.as_pointer())
        cgutils.memset(builder, pointer, builder.mul(count, I64(each)), byte)


def row(renewed):
    """The intrinsic (array, thread) -> the local array of a thread, out of one for all; `renewed`: as it is
    where the thread declares it."""

    @intrinsic
    def row_of(typing, x, thread):
        of_thread = part_type(x, 1)

        def code(context, builder, signature, arguments):
            place = Place(context, builder, x, arguments[0], thread, arguments[1])
            found = part(place, of_thread, builder.mul(place.given[0], place.stride(0)))
            if renewed:
                fill(context, builder, of_thread, found)
            return found

        return of_thread(x, thread), code

    return row_of


row_of, fresh = row(False), row(True)
