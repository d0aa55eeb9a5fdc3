"""Result types of calls, with one method for each role that a called name can have (sim.frontend.resolve)."""

import ast
import functools

import numpy as np

from sim.frontend.intervals import operation
from sim.frontend.names import dtype_or_none, names_in, only_signature
from sim.frontend.resolve import bound_arguments, first_argument, referent_of, source_of
from sim.frontend.types import (
    ANY,
    INT64,
    LENGTHS,
    LONG,
    NONE,
    UNKNOWN,
    ArrayType,
    Number,
    View,
    bits,
    element_type,
    general,
    join,
    natural,
    signed,
    type_of_value,
)
from sim.isa.promotion import SCALAR, SIGNED
from sim.isa.table import BLOCK_WIDE, INSTRUCTIONS, WARP_WIDE, Like

# Types of the functions and attributes of `cuda` whose type does not depend on arguments.
OF_CUDA = {
    "laneid": Number(np.int32, 0, 31),
    "warpsize": Number(np.int32, 32, 32),
    "grid": natural(int, LONG),
    "gridsize": natural(int, LONG),
    "lanemask_lt": Number(np.uint32),
}


class CallTypes:
    """The mixin of the type inference that handles calls.

    The inheriting class provides `of(expression)`, `block` (the block's shape) and `results` (the result
    types of device functions).
    """

    def of_call(self, node):
        """Return the type of a call's result, by the role of the called name."""
        given = [self.of(argument) for argument in node.args]
        return getattr(self, f"call_{getattr(node, 'calls', '')}", lambda *_: ANY)(node, given)

    def call_dtype(self, node, given):
        return of_result(node.func.referent.dtype)

    def call_member(self, node, given):
        """Return the result type of a method call on a number or an array."""
        if not isinstance(node.func, ast.Attribute):
            return ANY
        held, name = self.of(node.func.value), node.func.attr
        if held is UNKNOWN or held == ANY:
            return held
        if name == "item" and isinstance(held, Number):
            return held
        if name == "conjugate" and isinstance(held, Number):
            return Number(held.scalar)
        # The layout of the result is not tracked, so it is a View.
        if name in ("reshape", "ravel") and isinstance(held, ArrayType | View):
            shape = given[0] if len(given) == 1 and isinstance(given[0], tuple) else given
            return View(held.element, len(shape) if name == "reshape" else 1)
        return ANY

    def call_function(self, node, given):
        return of_function(node.func.referent.entry, given)

    def call_object(self, node, given):
        called = referent_of(node.func).value
        if UNKNOWN in given:
            return UNKNOWN
        if not (isinstance(called, np.ufunc) and all(isinstance(number, Number) for number in given)):
            return ANY
        return probe_result_type(called, tuple(number.scalar for number in given))

    def argument_types(self, node):
        """Return {parameter: type} for a call to a device function.

        Return None if the arguments are not known. Also return None if the function declares shared memory.
        All calls must then run the same copy of the function, because each declaration is a single buffer.
        """
        function = referent_of(node.func).function
        if function is None or "shared" in names_in(function.__code__):
            return None
        arguments = bound_arguments(function, node)
        return arguments and {
            name: general(self.of(value) if isinstance(value, ast.AST) else type_of_value(value))
            for name, value in arguments.items()
        }

    def call_device(self, node, _):
        """Return the type of a device function's result."""
        called, given = node.func.referent, self.argument_types(node)
        signature = only_signature(called.value)
        if signature is not None:
            return element_type(dtype) if (dtype := dtype_or_none(signature.return_type)) is not None else ANY
        if given is None or UNKNOWN in given.values():
            return UNKNOWN if given else ANY
        key = called.function, tuple(given.items())
        if key not in self.results:
            self.results[key], source = UNKNOWN, source_of(called.function)  # recursive calls get UNKNOWN
            found = source and type(self)(source, given, self.block, self.results)
            self.results[key] = found.result() if found else ANY
        return self.results[key]

    def call_builtin(self, node, given):
        name = node.func.referent.name
        if name == "len":
            return LENGTHS
        if name in ("min", "max") and len(given) > 1 and all(bits(number) is not None for number in given):
            least = min if name == "min" else max
            ends = least(number.low for number in given), least(number.high for number in given)
            return Number(functools.reduce(join, given).scalar, *ends)
        if len(given) == 1 and isinstance(given[0], tuple) and name in ("min", "max", "sum"):
            given = list(given[0])
        if name == "sum":
            return functools.reduce(functools.partial(operation, ast.Add()), given, INT64)
        if name in ("min", "max"):
            entry = INSTRUCTIONS[f"builtins.{name}.2"]
            return functools.reduce(lambda *pair: of_function(entry, pair), given) if given else ANY
        return of_function(INSTRUCTIONS.get(f"builtins.{name}.{len(given)}"), given)

    def call_position(self, node, given):
        one = OF_CUDA[node.func.referent.name]
        dimensions = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else 0
        return one if dimensions == 1 else (one,) * dimensions if dimensions in (2, 3) else ANY

    def call_wait(self, node, given):
        name = node.func.referent.name
        together = name in WARP_WIDE | BLOCK_WIDE
        return self.of_instruction(INSTRUCTIONS[name], given) if together else OF_CUDA.get(name, ANY)

    def call_atomic(self, node, given):
        return given[0].element if given and isinstance(given[0], ArrayType | View) else ANY

    def call_same(self, node, given):
        return self.of(first_argument(node))

    def call_cuda(self, node, given):
        name = node.func.referent.name
        # because ldca, ldcg and similar functions load an element
        loads = name.rpartition(".")[2].startswith("ld")
        return OF_CUDA.get(name) or (self.call_atomic(node, given) if loads else ANY)

    call_lanes = call_cuda

    def of_instruction(self, entry, given):
        """Return the result type of a warp-wide or block-wide instruction: a tuple if it has several
        results."""
        given = dict(zip(entry.parameters, given))
        results = [
            given.get(result, ANY) if isinstance(result, Like) else Number(SCALAR[result.type])
            for result in entry.results.values()
        ]
        results = [Number(result.scalar) if isinstance(result, Number) else result for result in results]
        return tuple(results) if len(results) > 1 else results[0] if results else NONE

    def call_declaration(self, node, _):
        """Return the type of an array declared by `cuda.shared.array(shape, dtype)` or `cuda.local.array`."""
        local, dtype = node.declares.space == "local", referent_of(node.declares.dtype).dtype
        shape = self.versions.shape(node.declares.shape)
        if dtype is None or dtype.hasobject or not shape:
            return ANY
        # A shape of 0 is a view of the dynamic shared memory, whose size is unknown here.
        if 0 in shape:
            return ANY if local or shape != (0,) else View(element_type(dtype), 1)
        # The fast path tracks written elements of local memory in 8-byte words, so wider elements cannot use
        # it.
        if dtype.names is not None or local and dtype.itemsize > 8:
            return View(element_type(dtype), len(shape))
        return ArrayType(element_type(dtype), len(shape), dtype.itemsize, shape=shape, local=local)


def of_function(entry, given):
    """Return the result type of a Function in `sim.isa`."""
    if UNKNOWN in given:
        return UNKNOWN
    if entry is None or len(given) != entry.count or not all(isinstance(number, Number) for number in given):
        return ANY
    version = entry.version(*(number.scalar for number in given))
    if version is None or version.results is None:
        return ANY
    several = isinstance(version.results, tuple)
    found = [*map(of_result, version.results if several else (version.results,))]
    return tuple(found) if several else found[0]


def of_result(result):
    """Return the Number for a result with this dtype. A narrow signed integer has an interval, because it is
    represented as a Python int."""
    dtype = np.dtype(result)
    scalar = SCALAR.get(dtype.type)
    if scalar is None:
        return ANY
    return Number(scalar) if scalar not in SIGNED - {int} else signed(scalar, 8 * dtype.itemsize - 1)


@functools.cache
def probe_result_type(function, scalars):
    """Return the result type of a numpy function. To find it, call the function with ones of these scalar
    types."""
    try:
        with np.errstate(all="ignore"):
            return type_of_result(function(*(scalar(1) for scalar in scalars)))
    except Exception:  # The function does not accept scalars of these types, so the result type is not known.
        return ANY


def type_of_result(value):
    if isinstance(value, tuple):
        return tuple(map(type_of_result, value))
    return Number(SCALAR[type(value)]) if type(value) in SCALAR else ANY
