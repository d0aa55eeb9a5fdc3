"""Local arrays of threads in compiled code, and the poison that fills memory before a thread writes to it."""

from numba import int64, types
from numba.core import cgutils
from numba.extending import intrinsic

from sim.native.codegen.arrays import Array
from sim.native.codegen.elements import fresh_byte
from sim.native.codegen.int64 import int64_helper
from sim.native.codegen.int64_translation import I8, I64
from sim.native.codegen.linking import intrinsic_of
from sim.native.codegen.scalars import dtype_of
from sim.native.codegen.shadow import LOCAL, SHARED
from sim.native.codegen.subscripts import subarray_type

# the names available to generated code
EXPORTED = {"declare_local", "local_array", "fill_poison"}


@intrinsic
def fill_poison(typing, x):
    """Fill an array with poison, the simulator's fill pattern for uninitialised memory."""

    def code(context, builder, signature, arguments):
        poison(Array(context, builder, x, arguments[0]))
        return context.get_dummy_value()

    return types.void(x), code


def poison(array):
    """Emit code that fills an array with poison. The elements of a local array are also marked as
    unwritten."""
    x, builder, count = array.x, array.builder, array.size()
    filled = [(array.members.data, dtype_of(x.dtype).itemsize, fresh_byte(x.dtype))]
    # Local arrays have one shadow byte per element, and 0 marks an unwritten element.
    filled += [(array.shadow(), 1, 0)] if x.watch == LOCAL else []
    for address, each, byte in filled:
        pointer = builder.inttoptr(address, I8.as_pointer())
        if x.watch == SHARED:
            byte = builder.trunc(array.call(fill_byte, array.members.state, I64(byte)), I8)
        cgutils.memset(builder, pointer, builder.mul(count, I64(each)), byte)


@int64_helper
def fill_byte(state, byte):
    """Return the byte that fills unwritten shared memory: `byte` with the bits of `flipped` inverted."""
    return byte ^ state.flipped


def make_row_intrinsic(name, is_fresh):
    """Return the intrinsic (array, thread) that returns the local array of one thread. The local arrays of
    all threads are the rows of one array.

    name: the intrinsic's name.
    is_fresh: whether to fill the row with poison, as the statement that declares the array does.
    """

    def typed(typing, x, thread):
        def code(context, builder, signature, arguments):
            array, axes = Array(context, builder, x, arguments[0]), range(1, x.ndim)
            flat = builder.mul(arguments[1], array.stride(0))
            of_thread = array.subarray(result, flat, [*map(array.extent, axes)], [*map(array.stride, axes)])
            if is_fresh:
                poison(of_thread)
            return of_thread.value

        result = subarray_type(x, thread)
        return result(x, int64), code

    return intrinsic_of(name, ["x", "thread"], typed)


local_array = make_row_intrinsic("local_array", False)
declare_local = make_row_intrinsic("declare_local", True)
