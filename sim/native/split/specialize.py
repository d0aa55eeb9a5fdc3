"""The programs of a kernel: lowered once for the values of its globals, and compiled once for each tuple
of argument types."""

import inspect
import weakref

import numpy as np
from numba import typeof, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.errors import NumbaError

from sim.engine.collector import pause_collector
from sim.errors import LaunchError
from sim.frontend.names import captured_values, names_in, positional, python_function
from sim.memory.spaces import argument_array
from sim.native.codegen.arrays import GuardedType, ReferenceType, array_type
from sim.native.codegen.scalars import argument_of, dtype_of
from sim.native.codegen.shadow import BARE
from sim.native.lower.module import CannotLower
from sim.native.split.program import first_line, fissioned, lower_for_fission

# function -> {(values of its globals, types): Lowered, Fissioned, or CannotLower}
PROGRAMS = weakref.WeakKeyDictionary()


def remembered(function, key, make):
    """Return `make()`, called once for each function and key. Remember a CannotLower too, and raise it
    again."""
    known = PROGRAMS.setdefault(function, {})
    if key not in known:
        try:
            with pause_collector():
                known[key] = make()
        except CannotLower as error:
            known[key] = error
    if isinstance(known[key], CannotLower):
        raise known[key]
    return known[key]


def argument_type(name, value):
    """Return the Numba type of an argument whose arrays have only their bounds checked. A Numba type
    represents an argument of that type."""
    if isinstance(value, types.Array):
        return GuardedType(value.dtype, value.ndim, value.layout == "C", BARE)
    if isinstance(value, types.Type):
        return value
    if isinstance(value, tuple):
        return types.BaseTuple.from_types(
            [argument_type(f"{name}[{i}]", part) for i, part in enumerate(value)], type(value)
        )
    if isinstance(value, list):  # Numba would copy a list, which a GPU does not support
        raise CannotLower(f"argument {name} is a list")
    array = argument_array(value, name)
    try:
        if array is None:
            return typeof(argument_of(value))
        numba_type = array_type(array, BARE)
        return ReferenceType(numba_type) if isinstance(value, np.void) else numba_type
    except (NumbaError, ValueError) as error:
        raise CannotLower(
            f"argument {name} is a {type(value).__name__} that Numba does not know on the CPU:"
            f" {first_line(error)}"
        ) from error


@global_compiler_lock
def source(kernel, *arguments):
    """Return the text that a kernel is lowered to for these arguments, or for these Numba types. Raise
    LaunchError if the kernel cannot be compiled."""
    function = python_function(kernel)
    try:
        return fission_program(
            function,
            tuple(
                argument_type(name, value)
                for name, value in zip(inspect.signature(function).parameters, arguments, strict=True)
            ),
        ).text
    except CannotLower as reason:
        raise LaunchError(f"{function.__name__} cannot be compiled: {reason.in_words()}") from reason


def fission_program(function, numba_types, counted=False):
    dtypes = dtypes_of(function, numba_types)
    now = captured_values(function), dtypes, counted
    lowered = remembered(function, now, lambda: lower_for_fission(function, dtypes, counted))
    return remembered(
        function, (now, numba_types), lambda: fissioned(lowered, function.__name__, numba_types)
    )


def dtypes_of(function, numba_types):
    """Return (parameter, dtype) of the array arguments whose dtypes the text depends on: records, and all
    arrays if the kernel reads an array's `dtype`."""
    asks = "dtype" in names_in(function.__code__)
    names = positional(function) or inspect.signature(function).parameters
    arrays = [
        (name, dtype_of(numba_type.dtype))
        for name, numba_type in zip(names, numba_types)
        if isinstance(numba_type, GuardedType)
    ]
    return tuple((name, dtype) for name, dtype in arrays if asks or dtype.names)
