"""Parts of arrays in compiled code, and what else an array can be asked: slices, rows of records, its size,
its transpose."""

import operator

from numba import types
from numba.extending import overload, overload_attribute, overload_method

from sim.native.arrays import GuardedType, ReferenceType, field_of, is_record, viewer
from sim.native.checks import BARE, looked_at
from sim.native.elements import as_index, is_element, parts_of
from sim.native.internal import LIKE_CODE, always
from sim.native.scalars import dtype_of

OFFERED = {"from_end"}
IN_TEXT = as_index, looked_at  # what occurs in functions made from text


def text_of(lines, name, result=None):
    """The function `name` that these lines define; in them, `view` makes a view of type `result`."""
    names = globals() | {"view": result and viewer(result)}
    exec("\n".join(lines), names)
    return names[name]


# --- elements counted from the end, fields ------------------------------------------------------------------


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
        return field_getter(x, index.literal_value)
    has_slices = any(isinstance(part, types.SliceType) for part in parts_of(index))
    return part_of(x, index) if isinstance(x, GuardedType) and has_slices else None


@overload(operator.setitem, **LIKE_CODE)
def setitem(x, index, value):
    if isinstance(x, ReferenceType) and isinstance(index, types.StringLiteral):
        return field_setter(x, index.literal_value)
    if getattr(x, "place", None) is not None:  # of several elements not each is written down
        return None
    if is_record(x) and is_element(x, index) and isinstance(value, ReferenceType):
        fields = [f"    x[{name!r}][index] = value[{name!r}]" for name in dtype_of(x.dtype).names]
        return text_of(["def copy(x, index, value):", *fields], "copy")
    partial = isinstance(x, GuardedType) and not is_element(x, index)
    return filler(x, index, value) if partial else None


def field_getter(x, name):
    """The function (array of records or one record, name of a field) -> column or number."""
    parts = field_of(getattr(x, "array", x), name)
    if isinstance(x, GuardedType):
        return parts and (lambda x, index: parts(x))
    return parts and (lambda x, index: parts(x._records_)[x._place_])


def field_setter(x, name):
    """The function (record, name of a field, number)."""
    parts = field_of(x.array, name)

    def set_field(x, index, value):
        parts(x._records_)[x._place_] = value

    return parts and set_field


def filler(x, index, value):
    """The function (array, slices, value): write every element of that part, the same number or those of an
    array of as many dimensions or fewer."""
    parts = parts_of(index)
    if not all(isinstance(part, (types.Integer, types.SliceType)) for part in parts) or not isinstance(
        value, (types.Number, types.Boolean, GuardedType)
    ):
        return None
    rank = x.ndim - sum(isinstance(part, types.Integer) for part in parts)
    own = range(value.ndim if isinstance(value, GuardedType) else 0)
    place = tuple_text(f"i{axis + rank - len(own)} if value.shape[{axis}] != 1 else 0" for axis in own)
    lines = [
        "def fill(x, index, value):",
        "    x = x[index]",
        *(f"{'    ' * (axis + 1)}for i{axis} in range(x.shape[{axis}]):" for axis in range(rank)),
    ]
    store = f"x[{tuple_text(f'i{axis}' for axis in range(rank))}] = {f'value[{place}]' if own else 'value'}"
    return text_of([*lines, "    " * (rank + 1) + store], "fill")


# --- parts of arrays ----------------------------------------------------------------------------------------


@always
def whole(position, length, state, wraps):
    """An index of a view: one that is outside becomes 0, and the launch `dirty`."""
    return position if 0 <= position < length else max(looked_at(position, length, state, wraps), 0)


def part_of(x, index):
    """The function (array, index) -> view."""
    parts = parts_of(index)
    if len(parts) > x.ndim or not all(isinstance(part, (types.Integer, types.SliceType)) for part in parts):
        return None
    lines, flat, shape, strides, sizes = [], [], [], [], []
    for axis, part in enumerate(parts):
        given = f"index[{axis}]" if isinstance(index, types.BaseTuple) else "index"
        side, stride = x.side(axis), x.stride(axis)
        if isinstance(part, types.Integer):
            flat.append(f"whole(as_index({given}), {side}, x.state, {x.watch == BARE}) * ({stride})")
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
    result = GuardedType(x.dtype, len(shape), False, x.watch, tuple(sizes), x.pitch)
    back = f"    return view(x, {' + '.join(flat)}, {tuple_text(shape)}, {tuple_text(strides)})"
    return text_of(["def part(x, index):", *lines, back], "part", result)


def tuple_text(parts):
    return f"({''.join(f'{part}, ' for part in parts)})"


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
    result = GuardedType(x.dtype, x.ndim, False, x.watch, x.sizes[::-1], x.pitch)
    back = f"    return view(x, 0, {tuple_text(map(x.side, axes))}, {tuple_text(map(x.stride, axes))})"
    return text_of(["def transpose(x):", back], "transpose", result)


@overload_attribute(GuardedType, "itemsize", **LIKE_CODE)
def itemsize(x):
    size = dtype_of(x.dtype).itemsize
    return lambda x: size


@overload_attribute(GuardedType, "strides", **LIKE_CODE)
def strides(x):
    """In bytes."""
    in_bytes = tuple_text(f"{x.stride(axis)} * {x.pitch}" for axis in range(x.ndim))
    return text_of(["def strides(x):", f"    return {in_bytes}"], "strides")


@overload_attribute(GuardedType, "nbytes", **LIKE_CODE)
def nbytes(x):
    return lambda x: x.size * x.itemsize


@overload_method(GuardedType, "reshape", **LIKE_CODE)
def reshaped(x, shape):
    """The same elements in another shape (a number or a tuple), of which one size may be -1; for an array
    whose rows lie one behind another."""
    if not x.rowwise:
        return None
    axes = range(len(shape) if isinstance(shape, types.BaseTuple) else 1)
    result = GuardedType(x.dtype, len(axes), True, x.watch, pitch=x.pitch)
    lines = ["def reshape(x, shape):"]
    lines += [
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
    lines += [f"    return view(x, 0, {tuple_text(f'n{a}' for a in axes)}, {tuple_text(strides)})"]
    return text_of(lines, "reshape", result)
