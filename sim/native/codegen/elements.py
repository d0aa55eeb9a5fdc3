"""Access array elements in compiled code: resolve the index, check the access (sim.native.codegen.shadow),
and load or store the element.

The code is emitted as LLVM instructions. Numba would compile a separate function for each combination of
array type and index type.
"""

from functools import reduce

from llvmlite import ir
from numba import boolean, int64, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from sim.memory.spaces import fresh_memory as fresh_bytes
from sim.native.codegen.access_log import DTYPES, SITE_SHIFT, SIZE_SHIFT, VALUE, VALUE_BITS, append
from sim.native.codegen.arrays import Array, GuardedType, is_record
from sim.native.codegen.error_records import MOST_AXES, note_access, note_refused
from sim.native.codegen.int64_translation import I64
from sim.native.codegen.scalars import convert, dtype_of, numba_type_of
from sim.native.codegen.shadow import BARE, INPUT, resolve_index, watch_load, watch_store

# the names available to generated code
EXPORTED = {"from_end"}


# --- indices ------------------------------------------------------------------------------------------------


def index_parts(index):
    """Return the Numba types of an index's components. There is one component per indexed axis."""
    return tuple(index) if isinstance(index, types.BaseTuple) else (index,)


class FromEnd(types.Opaque):
    """The Numba type of the literal index `-back`, which counts from the end of its axis. The type contains
    the value, so the index needs no code."""

    def __init__(self, back):
        self.back = back
        super().__init__(f"FromEnd({back})")


register_model(FromEnd)(models.OpaqueModel)


@intrinsic(prefer_literal=True)
def from_end(typing, back):
    """Return an index that counts `back` elements from the end of an axis."""

    def code(context, builder, signature, arguments):
        return context.get_dummy_value()

    return FromEnd(back.literal_value)(back), code


def is_index(x, index, *also):
    """Return whether an array can be indexed with this type.

    The index must have at most one component per axis. Each must be an integer or a FromEnd.

    x: the type of the array.
    index: the type of the index.
    also: further types allowed for a component.
    """
    parts = index_parts(index)
    return (
        isinstance(x, GuardedType)
        and len(parts) <= x.ndim
        and all(isinstance(part, (types.Integer, FromEnd, *also)) for part in parts)
    )


def is_element(x, index):
    """Return whether an index selects a single element rather than a subarray."""
    return is_index(x, index) and len(index_parts(index)) == x.ndim


def codes_of(builder, index, code):
    """Return the LLVM values of an index's components.

    index: the Numba type of the index.
    code: its LLVM value.
    """
    return cgutils.unpack_tuple(builder, code) if isinstance(index, types.BaseTuple) else [code]


def index_value(context, builder, numba_type, code):
    """Return an index as an i64.

    A uint64 above the range of int64 becomes the largest int64, which is out of range for every array.
    """
    if numba_type != types.uint64:
        return context.cast(builder, code, numba_type, int64)
    most = I64(2**63 - 1)
    return builder.select(builder.icmp_unsigned("<", code, most), code, most)


def axis_position(array, axis, numba_type, code):
    """Return the position along an axis selected by one component of an index.

    An out-of-range component gives an out-of-range position.
    """
    if not isinstance(numba_type, FromEnd):
        return index_value(array.context, array.builder, numba_type, code)
    extent, back = array.extent(axis), I64(numba_type.back)
    # If the axis has fewer elements than that, leave the index negative, so that the bounds check reports it.
    is_inside = array.builder.icmp_signed(">=", extent, back)
    return array.builder.select(is_inside, array.builder.sub(extent, back), I64(-numba_type.back))


# --- elements -----------------------------------------------------------------------------------------------


def locate_element(context, builder, x, value, index, code):
    """Return the Element selected by an index.

    value: the LLVM value of the array, of type `x`.
    code: the LLVM value of the index, of type `index`.
    """
    array, codes = Array(context, builder, x, value), codes_of(builder, index, code)
    parts = zip(index_parts(index), codes, strict=True)
    positions = [axis_position(array, axis, *of) for axis, of in enumerate(parts)]
    return Element(array, positions)


class Element:
    """Code generator for one element of an Array.

    given: the element's position along each axis, not necessarily in range.
    """

    def __init__(self, array, given):
        self.array, self.given = array, given
        self.context, self.builder, self.x = array.context, array.builder, array.x

    def flat_index(self, missing):
        """Return the offset of the element from the first element, in elements.

        missing: the basic block to branch to if the index is out of range.
        """
        builder, axes, extents = self.builder, range(self.x.ndim), self.array.each_axis(self.array.extent)
        # Compared as an unsigned integer, a negative position exceeds every extent.
        is_inside = [builder.icmp_unsigned("<", *of) for of in zip(self.given, extents)]
        # On the fast path, all positions are in range. `slow_path` handles negative and invalid positions.
        before, slow_path = builder.block, builder.append_basic_block("slow_path")
        merge = builder.append_basic_block("merge")
        builder.cbranch(reduce(builder.and_, is_inside), merge, slow_path).set_weights([99, 1])
        builder.position_at_end(slow_path)
        state, wraps = self.array.members.state, I64(int(self.x.watch == BARE))
        positions = [self.array.call(resolve_index, *of, state, wraps) for of in zip(self.given, extents)]
        negative = [builder.icmp_signed("<", at, I64(0)) for at in positions]
        if self.x.site is None:
            builder.cbranch(reduce(builder.or_, negative), missing, merge)
            resolved = self.refused = builder.block
        else:
            resolved, self.refused = builder.block, builder.append_basic_block("refused")
            builder.cbranch(reduce(builder.or_, negative), self.refused, merge)
            builder.position_at_end(self.refused)
            self.note_refused()
            builder.branch(missing)
        builder.position_at_end(merge)
        for axis in axes:
            # Merge the original position with the position resolved by the slow path.
            at = builder.phi(I64)
            at.add_incoming(self.given[axis], before)
            at.add_incoming(positions[axis], resolved)
            positions[axis] = at
        return self.flat(positions)

    def flat(self, positions):
        """Return the offset of the element at these positions, in elements."""
        terms = [self.builder.mul(at, self.array.stride(axis)) for axis, at in enumerate(positions)]
        return reduce(self.builder.add, terms, I64(0))

    def log(self, flat, writes):
        """Append the access to the access log.

        writes: whether the access is a store or atomic. If so, append the new contents of the element as
            well.
        """
        builder, state, dtype = self.builder, self.array.members.state, dtype_of(self.x.dtype)
        address = builder.ptrtoint(self.array.pointer(flat), I64)
        entry = builder.or_(self.header(), address)
        self.array.call(append, state, entry)
        self.array.call(note_access, state, entry, address)
        if not writes:
            return
        header = I64(VALUE << SITE_SHIFT | DTYPES.index(dtype.name) << VALUE_BITS)
        # Each log entry holds at most 4 bytes of the value.
        part_type = ir.IntType(8 * min(dtype.itemsize, 4))
        for offset in range(0, dtype.itemsize, 4):
            part = builder.inttoptr(builder.add(address, I64(offset)), part_type.as_pointer())
            bits = builder.zext(builder.load(part, align=1), I64)
            self.array.call(append, state, builder.or_(header, bits))

    def header(self):
        """Return the bits of a log entry that do not depend on the address."""
        size = dtype_of(self.x.dtype).itemsize.bit_length() - 1
        return I64(self.x.site << SITE_SHIFT | size << SIZE_SHIFT)

    def note_refused(self):
        """Record an access whose index is out of range."""
        given, extents = self.given, self.array.each_axis(self.array.extent)
        if len(given) <= MOST_AXES:
            rest = [I64(0)] * (MOST_AXES - len(given))
            entry = self.builder.or_(self.header(), self.array.members.data)
            codes = entry, I64(len(given)), *given, *rest, *extents, *rest
            self.array.call(note_refused, self.array.members.state, *codes)

    def access(self, check, do, otherwise=None):
        """Emit a checked access: call `do(flat)` if the element exists.

        check: the check of the access, which is watch_load, watch_store or watch_atomic.
        do: a function that emits the access at an offset, and returns its result or None.
        otherwise: the result for an element that does not exist, or None for an access without a result.
        """
        builder, members = self.builder, self.array.members
        # A 0-dimensional array has exactly one element, so no bounds check is needed.
        missing = builder.append_basic_block("missing") if self.given else None
        flat = self.flat_index(missing) if self.given else I64(0)
        watch = self.x.watch
        if self.x.has_shadow or watch == INPUT and check is watch_load:
            shadow = self.array.shadow() if self.x.has_shadow else I64(0)
            self.array.call(check, I64(watch), shadow, flat, members.state)
        value = do(flat)
        # The log entry for a store contains the stored value, so the entry is appended after the access.
        if self.x.site is not None:
            self.log(flat, writes=check is not watch_load)
        after = builder.block
        if missing is None:
            return value
        builder.branch(missing)
        builder.position_at_end(missing)
        if otherwise is None:
            return None
        result = builder.phi(value.type)
        result.add_incoming(value, after)
        result.add_incoming(otherwise, self.refused)
        return result

    def read(self):
        """Emit a checked load. An out-of-range element reads as poison."""
        return self.access(watch_load, self.array.load, poison_of(self.context, self.x.dtype))

    def write(self, numba_type, value):
        """Emit a checked store of a value, which is converted to the element type."""
        value = convert(self.context, self.builder, numba_type, self.x.dtype, value)
        self.access(watch_store, lambda flat: self.array.store(flat, value))


def fresh_byte(numba_type):
    """Return the fill byte for uninitialised memory whose elements have this type."""
    return int(fresh_bytes(1, dtype_of(numba_type))[0])


def poison_of(context, numba_type):
    """Return the result of an invalid load: a constant whose bytes all equal `fresh_byte`."""
    value = context.get_value_type(numba_type)
    if isinstance(numba_type, types.Complex):
        part = poison_of(context, numba_type.underlying_float)
        return ir.Constant(value, [part, part])
    # A boolean is an i1. The byte 0xFF, read as a boolean, is True.
    if numba_type == boolean:
        return value(1)
    size = dtype_of(numba_type).itemsize
    bits = ir.IntType(8 * size)(int.from_bytes([fresh_byte(numba_type)] * size, "little"))
    return bits if isinstance(value, ir.IntType) else bits.bitcast(value)


# --- fields of records --------------------------------------------------------------------------------------


def column_type(x, name):
    """Return the type of the column of a record field.

    Return None if there is no such field, or if it has no compiled form (a subarray or a nested record).
    """
    if is_record(x) and name in dtype_of(x.dtype).names:
        dtype = dtype_of(x.dtype)[name]
        return None if dtype.subdtype or dtype.names else x.replace(dtype=numba_type_of(dtype))
    return None


def column(array, name):
    """Return the column of a record field, as an Array."""
    return array.element_parts(column_type(array.x, name), dtype_of(array.x.dtype).fields[name][1])


def field(context, builder, x, value, name):
    """Return the Element for a field of a record.

    x: the record's ReferenceType.
    value: its LLVM value.
    """
    reference = cgutils.create_struct_proxy(x)(context, builder, value)
    records = Array(context, builder, x.array, reference.records)
    return Element(column(records, name), cgutils.unpack_tuple(builder, reference.index))
