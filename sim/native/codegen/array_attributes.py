"""Attributes and methods of arrays and records in compiled code: `shape`, `size`, `T`, record fields,
`reshape`, `len`."""

from numba import int64, types
from numba.core.typing.templates import (
    AbstractTemplate,
    AttributeTemplate,
    bound_function,
    infer_getattr,
    infer_global,
    signature,
)
from numba.extending import lower_builtin, lower_getattr_generic

from sim.native.codegen.arrays import Array, GuardedType, ReferenceType, packed, product
from sim.native.codegen.elements import codes_of, column, column_type, field, index_parts, index_value
from sim.native.codegen.int64_translation import I64
from sim.native.codegen.scalars import dtype_of


def int64_type(x):
    """Return int64, the type of `size`, `ndim` and the other integer attributes."""
    return int64


def extents_type(x):
    """Return the type of a shape: one int64 per axis."""
    return types.UniTuple(int64, x.ndim)


def transposed_type(x):
    """Return the type of the transposed array. Its rows are no longer contiguous."""
    return x.replace(rowwise=False, sizes=x.sizes[::-1])


def real_type(x):
    """Return the type of `x.real`, which for a real array is the type of the array itself."""
    return x.replace(dtype=x.dtype.underlying_float) if isinstance(x.dtype, types.Complex) else x


def imaginary_type(x):
    """Return the type of `x.imag`, or None for a real array. None makes Numba reject the attribute."""
    return real_type(x) if isinstance(x.dtype, types.Complex) else None


def itemsize(array):
    """Return the size of one element in bytes, as an i64."""
    return I64(dtype_of(array.x.dtype).itemsize)


def transpose(array):
    """Return the transposed array, a view of the same memory."""
    extents, strides = array.each_axis(array.extent)[::-1], array.each_axis(array.stride)[::-1]
    return array.subarray(transposed_type(array.x), I64(0), extents, strides).value


def strides(array):
    """Return the strides in bytes, as numpy defines them."""
    return [array.builder.mul(stride, I64(array.x.pitch)) for stride in array.each_axis(array.stride)]


# attribute -> (function from a GuardedType to the attribute's Numba type, emitter of its value)
ATTRIBUTES = {
    "shape": (extents_type, lambda array: packed(array.builder, array.each_axis(array.extent))),
    "strides": (extents_type, lambda array: packed(array.builder, strides(array))),
    "size": (int64_type, Array.size),
    "ndim": (int64_type, lambda array: I64(array.x.ndim)),
    "itemsize": (int64_type, itemsize),
    "nbytes": (int64_type, lambda array: array.builder.mul(array.size(), itemsize(array))),
    "T": (transposed_type, transpose),
    "real": (real_type, lambda array: array.element_parts(real_type(array.x), 0).value),
    "imag": (
        imaginary_type,
        lambda array: array.element_parts(real_type(array.x), array.x.dtype.bitwidth // 16).value,
    ),
}


@infer_getattr
class Attributes(AttributeTemplate):
    """Typing rules for the attributes and methods of arrays."""

    key = GuardedType

    def generic_resolve(self, x, name):
        return ATTRIBUTES[name][0](x) if name in ATTRIBUTES else column_type(x, name)

    @bound_function("Guarded.reshape")
    def resolve_reshape(self, x, arguments, keywords):
        """Return the signature of `reshape`, or None if the rows of the array are not contiguous."""
        (shape,) = arguments
        if x.rowwise and all(isinstance(part, types.Integer) for part in index_parts(shape)):
            return signature(x.replace(ndim=len(index_parts(shape)), sizes=None), shape)


@lower_getattr_generic(GuardedType)
def attribute(context, builder, x, value, name):
    """Emit the value of an array's attribute, or the column for a field of a record array."""
    array = Array(context, builder, x, value)
    return ATTRIBUTES[name][1](array) if name in ATTRIBUTES else column(array, name).value


@lower_builtin("Guarded.reshape", GuardedType, types.Any)
def reshape(context, builder, signature, arguments):
    """Emit `reshape`. At most one of the new sizes can be -1.

    The emitted code raises ValueError if the new shape has a different number of elements.
    """
    (x, shape), result = signature.args, signature.return_type
    array = Array(context, builder, x, arguments[0])
    components = zip(index_parts(shape), codes_of(builder, shape, arguments[1]))
    extents = [index_value(context, builder, *part) for part in components]
    for axis, extent in enumerate(extents):
        others = product(builder, extents[:axis] + extents[axis + 1 :])
        # An empty array must not cause a division by zero.
        others = builder.select(builder.icmp_signed("==", others, I64(0)), I64(1), others)
        # As in numpy, a negative size is inferred from the other sizes.
        is_inferred = builder.icmp_signed("<", extent, I64(0))
        extents[axis] = builder.select(is_inferred, builder.sdiv(array.size(), others), extent)
    differs = builder.icmp_signed("!=", product(builder, extents), array.size())
    with builder.if_then(differs, likely=False):
        message = "reshape to a shape with another number of elements"
        context.call_conv.return_user_exc(builder, ValueError, (message,))
    strides = [product(builder, extents[axis + 1 :]) for axis in range(len(extents))]
    return array.subarray(result, I64(0), extents, strides).value


@infer_global(len)
class Length(AbstractTemplate):
    """Typing rule for `len(array)`."""

    def generic(self, arguments, keywords):
        return signature(int64, *arguments) if isinstance(arguments[0], GuardedType) else None


@lower_builtin(len, GuardedType)
def length(context, builder, signature, arguments):
    """Emit `len(array)`."""
    return Array(context, builder, *signature.args, *arguments).extent(0)


@infer_getattr
class Fields(AttributeTemplate):
    """Typing rules for the fields of records."""

    key = ReferenceType

    def generic_resolve(self, x, name):
        column = column_type(x.array, name)
        return column and column.dtype


@lower_getattr_generic(ReferenceType)
def field_of_record(context, builder, x, value, name):
    """Emit a load of a record's field, with the checks of an array access."""
    return field(context, builder, x, value, name).read()
