"""Functions of sim.isa in compiled code: convert the operands, call the form that the entry gives for
Numba, convert the result."""

import functools
import hashlib
import operator
import re
from dataclasses import fields
from types import CellType, CodeType, FunctionType, ModuleType

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from sim.isa.functions import BITS, LLVM, OPAQUE_IDENTITY, SAME, VALUE, Function, LookupTable
from sim.isa.promotion import INTEGRAL
from sim.native.codegen.linking import inline_always, intrinsic_of
from sim.native.codegen.scalars import convert, numba_type_of, scalar_of
from sim.native.codegen.symbols import in_text, offering


def compiles(entry):
    """Return whether an entry is a Function with a compiled form."""
    return isinstance(entry, Function) and entry.native is not None


@functools.cache
def function_of(entry):
    """Return the function of an entry, for operands of any types that it takes."""

    def typed(typing, *given):
        scalars = [*map(scalar_of, given)]
        found, plain = None if None in scalars else entry.version(*scalars), [*map(types.unliteral, given)]
        if found and entry.name in DIVISIONS and found.results in INTEGRAL and is_above_zero(given[-1]):
            plain[-1] = given[-1]  # a Version exists for this literal
            found = found._replace(native=DIVISIONS[entry.name])
        return found and typed_call(typing, found, plain)

    parameters = [f"x{position}" for position in range(entry.count)]
    return intrinsic_of(in_text(entry.name), parameters, typed, prefer_literal=entry.name in DIVISIONS)


# LLVM's own instruction is correct for a literal above 0
DIVISIONS = {"operator.floordiv": operator.floordiv, "operator.mod": operator.mod}


def is_above_zero(numba_type):
    return isinstance(numba_type, types.IntegerLiteral) and numba_type.literal_value > 0


__getattr__ = offering(__name__, lambda entry, maker: function_of(entry))


def typed_call(typing, version, given):
    """Return (signature, code) of a Version for operands of these types."""
    operands = [*map(numba_type_of, version.operands)]
    several = isinstance(version.results, tuple)
    result = tuple(map(numba_type_of, version.results)) if several else numba_type_of(version.results)
    result = types.BaseTuple.from_types(result) if several else result
    call = version.native is not VALUE and resolve_call(
        typing, compiled_form(version, result), operands, result
    )

    def code(context, builder, signature, arguments):
        cast = functools.partial(convert, context, builder)
        given = [*map(cast, signature.args, operands, arguments)]
        return call(context, builder, given) if call else cast(*operands, result, *given)

    return result(*given), code


def resolve_call(typing, function, operands, result=None):
    """Return the function (context, builder, codes) that calls a compiled function with LLVM values of
    these types. It converts the result to the type `result`, if one is given."""
    typing.refresh()  # the function may be newer than Numba's last refresh
    callee = typing.resolve_value_type(function)
    signature = typing.resolve_function_type(callee, tuple(operands), {})

    def call(context, builder, codes):
        called = context.get_function(callee, signature)
        for library in getattr(called, "libs", ()):
            context.active_code_library.add_linking_library(library)
        found = called(builder, codes)
        return found if result is None else convert(context, builder, signature.return_type, result, found)

    return call


# Numba would take the operands of these for a tuple
OF_TWO = {max: inline_always(lambda a, b: max(a, b)), min: inline_always(lambda a, b: min(a, b))}


def compiled_form(version, result):
    """Return the function that compiled code calls with converted operands."""
    if version.native is BITS:
        return reinterpreter(result)
    form = compiled_value(version.semantics if version.native is SAME else version.native)
    return OF_TWO.get(form, form)


# --- compilation by Numba -----------------------------------------------------------------------------------


@functools.cache
def compiled_copy(function):
    """Return a copy of a function, and of the plain functions that it calls, for compiled code.
    Keyword-only parameters become positional, and come last."""
    code = function.__code__
    code = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
    used = [name for name in code.co_names if name in function.__globals__]
    names = function.__globals__ | {name: compiled_value(function.__globals__[name]) for name in used}
    cells = tuple(CellType(compiled_value(cell.cell_contents)) for cell in function.__closure__ or ())
    return inline_always(FunctionType(code, names, function.__name__, function.__defaults__, cells))


def compiled_value(value):
    if value is OPAQUE_IDENTITY:
        return opaque_identity
    value = value.function if isinstance(value, LookupTable) else value
    if isinstance(value, Function):
        value = value.semantics if value.native is SAME else value.native
    if isinstance(value, LLVM):
        return llvm(value)
    return compiled_copy(value) if isinstance(value, FunctionType) else value


@functools.cache
def llvm(form):
    """Return the LLVM intrinsic called `form`, as a function for compiled code."""

    def code(context, builder, signature, arguments):
        operands = [value.type for value in arguments]
        constants = [ir.Constant(ir.IntType(width), value) for width, value in form.more]
        of_all = ir.FunctionType(operands[0], [*operands, *(constant.type for constant in constants)])
        suffix = f"i{operands[0].width}" if isinstance(operands[0], ir.IntType) else FLOATS[str(operands[0])]
        function = cgutils.get_or_insert_function(builder.module, of_all, f"llvm.{form.name}.{suffix}")
        return builder.call(function, [*arguments, *constants])

    def typed(typing, x, *more):
        x = types.unliteral(x)
        return x(x, *[x] * len(more)), code

    return intrinsic_of("called", ["x", "y", "z"] if form.name == "fma" else ["x"], typed)


@intrinsic
def opaque_identity(typing, x):
    def code(context, builder, signature, arguments):
        integer = arguments[0].type
        return builder.asm(ir.FunctionType(integer, [integer]), "", "=r,0", arguments, False)

    return x(x), code


FLOATS = {"float": "f32", "double": "f64"}


@functools.cache
def reinterpreter(numba_type):
    """Return the function that reads the bits of a number as another type's."""

    @intrinsic
    def reinterpreted(typing, x):
        def code(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(numba_type))

        return numba_type(x), code

    return reinterpreted


def digest(entry):
    """Return the cache key of an entry's machine code, as text."""
    facts = repr([describe(getattr(entry, fact.name)) for fact in fields(entry)])
    anywhere = re.sub(" at 0x[0-9a-f]+", "", facts)  # remove addresses: they differ in each process
    return hashlib.sha256(anywhere.encode()).hexdigest()[:16]


def describe(value, seen=frozenset()):
    """Return a text of a function and of the functions that it calls; of any other value, its text."""
    value = value.function if isinstance(value, LookupTable) else getattr(value, "__wrapped__", value)
    if isinstance(value, FunctionType) and value not in seen:
        names = value.__globals__
        outside = [names[name] for name in value.__code__.co_names if name in names]
        outside += [cell.cell_contents for cell in value.__closure__ or ()]
        return describe(value.__code__), [describe(other, seen | {value}) for other in outside]
    if isinstance(value, functools.partial):
        return describe(value.func, seen), describe(value.args, seen), sorted(value.keywords.items())
    if isinstance(value, CodeType):
        return value.co_code, value.co_names, value.co_varnames, [describe(part) for part in value.co_consts]
    if isinstance(value, (set, frozenset, dict)):  # the order of a set differs in each process
        parts = value.items() if isinstance(value, dict) else value
        return sorted(repr(describe(part, seen)) for part in parts)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [describe(part, seen) for part in value]
    return value.__name__ if isinstance(value, (FunctionType, ModuleType)) else repr(value)
