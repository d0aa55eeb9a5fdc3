"""Cache of a kernel's programs. A kernel is lowered once for each set of captured values, and compiled once
for each tuple of argument types."""

import inspect
import weakref

from numba import types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError

from sim.engine.collector import pause_collector
from sim.errors import LaunchError
from sim.frontend.names import captured_values, names_in, positional, python_function
from sim.memory.argument import classify
from sim.native.codegen.arrays import GuardedType, ReferenceType, array_type
from sim.native.codegen.scalars import dtype_of, type_of_number
from sim.native.codegen.shadow import BARE
from sim.native.lower.module import CannotLower
from sim.native.split.program import compile_kernel, first_line, lower_kernel

# function -> {cache key: Lowered, CompiledKernel, or the raised CannotLower}. The weak keys allow a kernel to
# be garbage-collected.
PROGRAMS = weakref.WeakKeyDictionary()


def memoize(function, key, make):
    """Return `make()`. It is called only once for each function and key.

    If it raises CannotLower, the error is cached as well, and raised again.
    """
    programs = PROGRAMS.setdefault(function, {})
    if key not in programs:
        try:
            with pause_collector():
                programs[key] = make()
        except CannotLower as error:
            programs[key] = error
    if isinstance(programs[key], CannotLower):
        raise programs[key]
    return programs[key]


def argument_type(argument):
    """Return the Numba type of a launch argument. Arrays get the type without race checks, BARE.

    Raise CannotLower if Numba has no CPU type for the value.
    """
    if argument.parts is not None:
        return types.BaseTuple.from_types([*map(argument_type, argument.parts)], type(argument.value))
    try:
        if argument.array is None:
            return type_of_number(argument.value)
        numba_type = array_type(argument.array, BARE)
        return ReferenceType(numba_type) if argument.is_record else numba_type
    except (NumbaError, ValueError) as error:
        raise CannotLower(
            f"argument {argument.name} is a {type(argument.value).__name__}, which Numba does not support on"
            f" the CPU: {first_line(error)}"
        ) from error


def example_type(argument):
    """Return the Numba type for an argument of `source`, which is either an example value or a Numba type."""
    value = argument.value
    if isinstance(value, types.Array):
        return GuardedType(value.dtype, value.ndim, value.layout == "C", BARE)
    if isinstance(value, types.Type):
        return value
    if argument.parts is not None:
        return types.BaseTuple.from_types([*map(example_type, argument.parts)], type(value))
    if isinstance(value, list):  # Numba supports lists on the CPU, but not on a GPU
        raise CannotLower(f"argument {argument.name} is a list")
    return argument_type(argument)


@global_compiler_lock
def source(kernel, *arguments):
    """Return the Python text to which a kernel is lowered.

    kernel: the kernel.
    arguments: an example value, or the Numba type, for each parameter.

    Raise LaunchError if the kernel cannot be compiled.
    """
    function = python_function(kernel)
    named = zip(inspect.signature(function).parameters, arguments, strict=True)
    try:
        return compiled_program(function, tuple(example_type(classify(*pair)) for pair in named)).text
    except CannotLower as reason:
        raise LaunchError(f"{function.__name__} cannot be compiled: {reason.message()}") from reason


def compiled_program(function, numba_types, logs=False, has_sides=False):
    """Return the CompiledKernel of a function for these argument types.

    logs: whether the compiled code writes the access log.
    has_sides: whether the compiled code can follow one side of a disagreement.
    """
    dtypes = dtypes_of(function, numba_types)
    # The key contains the captured values: the kernel is lowered again if a global that it reads changes.
    now = captured_values(function), dtypes, logs, has_sides
    lowered = memoize(function, now, lambda: lower_kernel(function, dtypes, logs, has_sides))
    return memoize(
        function, (now, numba_types), lambda: compile_kernel(lowered, function.__name__, numba_types)
    )


def dtypes_of(function, numba_types):
    """Return ((parameter, dtype), ...) for the array arguments whose dtypes affect the lowered text.

    These are the arrays of records, and all arrays if the kernel reads an attribute called `dtype`.
    """
    reads_dtype = "dtype" in names_in(function.__code__)
    names = positional(function) or inspect.signature(function).parameters
    arrays = [
        (name, dtype_of(numba_type.dtype))
        for name, numba_type in zip(names, numba_types)
        if isinstance(numba_type, GuardedType)
    ]
    return tuple((name, dtype) for name, dtype in arrays if reads_dtype or dtype.names)
