"""*int64 runtime helpers*: functions of compiled code that compute only with int64. Shadow memory, barriers
and iteration limits are implemented with them.

Helpers are translated directly from Python to LLVM (sim.native.codegen.int64_translation), because Numba
takes 10 to 60 ms to compile each function. A helper returns an int64, or a value of the type in its return
annotation: `bool`, or a Numba type of integers or tuples.
"""

import ast
import functools
import inspect
import linecache
import sys
from collections import ChainMap

from llvmlite import ir
from numba import boolean, int64, types
from numba.core import cgutils
from numba.core.registry import cpu_target

from sim.native.codegen.int64_translation import I8, I32, I64, Body, pointer
from sim.native.codegen.linking import LinkedLibrary, intrinsic_of


def int64_helper(function=None, *, inline=True):
    """Turn a function into an int64 runtime helper. Use it as a decorator.

    inline: whether LLVM inlines the helper into its callers always, or never. A helper for a path that is
        rarely taken is not inlined, because each copy of its code takes time to compile.
    """
    if function is None:
        return lambda function: int64_helper(function, inline=inline)
    return make_intrinsic(Function(function, inline))


def variant(function, suffix, **known):
    """Return a helper: a plain function specialised for known values of some parameters.

    function: the plain function.
    suffix: the text that distinguishes the helper's symbol from the symbols of the other variants.
    known: {parameter: constant or helper}.
    """
    return make_intrinsic(Function(function, False, f"_{suffix}", known))


def make_intrinsic(function):
    """Return an intrinsic through which generated code calls the function by name, with integers of any type.

    function: a Function or Primitive. The intrinsic's attribute `helper` refers to it, for calls from LLVM
        code.
    """
    result = {None: int64, bool: boolean}.get(function.result, function.result)

    def code(context, builder, signature, arguments):
        return convert_result(context, builder, function.call(context, builder, *arguments), result)

    signature = result(*[int64] * len(function.parameters))
    made = intrinsic_of(function.name, function.parameters, lambda typing, *given: (signature, code))
    made.helper = function
    return made


def convert_result(context, builder, found, numba_type):
    """Convert the int64 results of a helper to its declared Numba type."""
    if numba_type == boolean:  # one instruction; Numba's cast emits three basic blocks
        return builder.icmp_signed("!=", found, I64(0))
    if not isinstance(numba_type, types.BaseTuple):
        return context.cast(builder, found, int64, numba_type)
    parts = [builder.extract_value(found, position) for position in range(len(numba_type))]
    return context.make_tuple(
        builder, numba_type, [context.cast(builder, part, int64, of) for part, of in zip(parts, numba_type)]
    )


class Function:
    """An int64 runtime helper. It is translated to LLVM on first use.

    library: the library that contains its LLVM code, or None before the first use.
    symbol: its name in LLVM code. The name must be the same in each process, because kernels in the disk
        cache refer to it.
    """

    def __init__(self, function, inline, suffix="", known=()):
        self.name, self.inline = function.__name__, inline
        self.symbol = f"{function.__module__}.{self.name}{suffix}"
        self.function, self.known = function, dict(known)
        self.names, self.result = (
            ChainMap(self.known, function.__globals__),
            function.__annotations__.get("return"),
        )
        code = function.__code__
        self.parameters = [name for name in code.co_varnames[: code.co_argcount] if name not in known]
        self.library = None

    @property
    def tree(self):
        """The syntax tree. It is parsed on first use, because a kernel uses few of the helpers."""
        code = self.function.__code__
        return functions_of(code.co_filename)[code.co_firstlineno]

    def call(self, context, builder, *codes):
        """Emit a call from code compiled by Numba, and link the helper's library into that code."""
        if self.library is None:
            build(self)
        context.active_code_library.add_linking_library(self.library)
        return self.emit(builder, *codes)

    def emit(self, builder, *codes):
        """Emit a call from code in the same library, which needs no linking."""
        return builder.call(self.declare(builder.module), codes)

    def declare(self, module):
        """Declare the helper in an LLVM module, and return the declaration."""
        result = I64
        if isinstance(self.result, types.BaseTuple):
            result = ir.LiteralStructType([I64] * len(self.result))
        signature = ir.FunctionType(result, [I64] * len(self.parameters))
        return cgutils.get_or_insert_function(module, signature, self.symbol)


@functools.cache
def functions_of(path):
    """Return {line: syntax tree} for the functions in a file. A function begins at its first decorator."""
    functions, waiting = {}, [ast.parse("".join(linecache.getlines(path)))]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef):
            functions[min(part.lineno for part in (node, *node.decorator_list))] = node
        # Statements that contain a function contain it in one of these lists.
        for field in ("body", "orelse", "finalbody", "handlers"):
            statements = getattr(node, field, ())
            waiting += statements if isinstance(statements, list) else ()
    return functions


def build(helper):
    """Translate a helper, and every helper that it calls, into a new library. Leave out helpers that are
    already in another library."""
    library = LinkedLibrary(cpu_target.target_context.codegen(), helper.symbol)
    module, waiting = library.create_ir_module(library.name), [helper]
    # Helpers can call each other, so set the library before the translation.
    helper.library = library
    while waiting:
        callees = Body(module, waiting.pop()).translate()
        for callee in (each for each in callees if isinstance(each, Function)):
            # A helper belongs to the library of its first caller. Later callers link that library.
            if callee.library is None:
                callee.library = library
                waiting.append(callee)
            elif callee.library is not library:
                library.add_linking_library(callee.library)
    library.add_ir_module(module)
    library.finalize()


# --- primitives ---------------------------------------------------------------------------------------------


class Primitive:
    """A helper of a few LLVM instructions, which are emitted inline at each call."""

    result = library = None

    def __init__(self, emit):
        self.name, self.emit = emit.__name__, emit
        self.parameters = [*inspect.signature(emit).parameters][1:]

    def call(self, context, builder, *codes):
        found = self.emit(builder, *codes)
        return found if found.type == I64 else I64(0)


def primitive(emit):
    """Turn an emitter (builder, *operands) into a helper. Use it as a decorator."""
    return make_intrinsic(Primitive(emit))


def call_c(builder, name, result, *given):
    """Emit a call to a C function of Python or of the C library."""
    signature = ir.FunctionType(result, [value.type for value in given])
    return builder.call(cgutils.get_or_insert_function(builder.module, signature, name), given)


@primitive
def byte(builder, address, position):
    """Load the uint8 at index `position` of the array at an address."""
    return builder.zext(builder.load(pointer(builder, address, position, I8)), I64)


@primitive
def set_byte(builder, address, position, value):
    """Store a uint8 at index `position` of the array at an address."""
    return builder.store(builder.trunc(value, I8), pointer(builder, address, position, I8))


@primitive
def poll_interrupt(builder):
    """Return whether the user has pressed Ctrl-C since the last call.

    The call consumes the signal, so Python's own handler does not run.
    """
    # PyOS_InterruptOccurred requires the GIL, but kernels run without it.
    gil_state = call_c(builder, "PyGILState_Ensure", I32)
    occurred = call_c(builder, "PyOS_InterruptOccurred", I32)
    call_c(builder, "PyGILState_Release", ir.VoidType(), gil_state)
    return builder.zext(occurred, I64)


@primitive
def call_python(builder, function):
    """Call a Python function without arguments, and return whether it raised no exception.

    function: the address of the function. Its result is ignored.
    """
    address, void = I8.as_pointer(), ir.VoidType()
    gil_state = call_c(builder, "PyGILState_Ensure", I32)
    found = call_c(builder, "PyObject_CallNoArgs", address, builder.inttoptr(function, address))
    call_c(builder, "Py_DecRef", void, found)  # accepts NULL
    succeeds = builder.icmp_unsigned("!=", found, address(None))
    with builder.if_then(builder.not_(succeeds)):
        call_c(builder, "PyErr_Clear", void)
    call_c(builder, "PyGILState_Release", void, gil_state)
    return builder.zext(succeeds, I64)


@primitive
def cpu_clock(builder):
    """Return the CPU time of the process in units of 1 / CLOCKS_PER_SECOND seconds, from the C function
    `clock`."""
    now = call_c(builder, "clock", CLOCK)
    return now if CLOCK == I64 else builder.zext(now, I64)


# The C type clock_t is `long`, which has 32 bits on Windows. There, `clock` counts milliseconds.
CLOCK = ir.IntType(32) if sys.platform == "win32" else I64
CLOCKS_PER_SECOND = 1_000 if sys.platform == "win32" else 1_000_000
