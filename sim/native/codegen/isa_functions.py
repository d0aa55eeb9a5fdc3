"""Compiled forms of the functions in sim.isa. A form converts its operands, calls the function declared for
Numba by the entry, and converts the result."""

import ast
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

from sim.isa.functions import BITS, LLVM, SAME, VALUE, Function, LookupTable
from sim.isa.promotion import INTEGRAL
from sim.native.codegen.builder import constant_of, quotient, remainder
from sim.native.codegen.int64 import functions_of
from sim.native.codegen.linking import inline_always, intrinsic_of
from sim.native.codegen.scalars import convert, numba_type_of, scalar_of
from sim.native.codegen.symbols import in_text, make_getattr
from sim.native.codegen.translation import Inlined, make_intrinsic


def compiles(entry):
    """Return whether an entry of sim.isa is a Function that has a compiled form."""
    return isinstance(entry, Function) and entry.native is not None


@functools.cache
def function_of(entry):
    """Return the intrinsic called by generated code for an entry of sim.isa. It accepts every combination of
    operand types supported by the entry."""

    def typed(typing, *given):
        scalars = [*map(scalar_of, given)]
        version = None if None in scalars else entry.version(*scalars)
        operand_types = [*map(types.unliteral, given)]
        if version and entry.name in DIVISIONS and version.results in INTEGRAL and is_above_zero(given[-1]):
            operand_types[-1] = given[-1]  # keep the literal type, so that LLVM sees a constant divisor
            version = version._replace(native=DIVISIONS[entry.name])
        return version and typed_call(typing, version, operand_types)

    parameters = [f"x{position}" for position in range(entry.count)]
    return intrinsic_of(in_text(entry.name), parameters, typed, prefer_literal=entry.name in DIVISIONS)


# If the divisor is a positive literal, division by zero cannot occur. Numba's own operators are then correct,
# and faster than the semantics of sim.isa. For signed integers, a few instructions suffice.
DIVISIONS = {"operator.floordiv": operator.floordiv, "operator.mod": operator.mod}
SHORT_DIVISIONS = {operator.floordiv: quotient, operator.mod: remainder}


def is_above_zero(numba_type):
    """Return whether a Numba type is the type of an integer literal greater than 0."""
    return isinstance(numba_type, types.IntegerLiteral) and numba_type.literal_value > 0


__getattr__ = make_getattr(__name__, lambda entry, maker: function_of(entry))


def typed_call(typing, version, given):
    """Return (signature, code generator) for a Version of an entry and operands of these Numba types."""
    operands = [*map(numba_type_of, version.operands)]
    is_tuple = isinstance(version.results, tuple)
    result = tuple(map(numba_type_of, version.results)) if is_tuple else numba_type_of(version.results)
    result = types.BaseTuple.from_types(result) if is_tuple else result
    call = version.native is not VALUE and resolve_call(
        typing, compiled_form(version, result), operands, result
    )

    short = SHORT_DIVISIONS.get(version.native) if are_signed(result, *operands) else None

    def code(context, builder, signature, arguments):
        cast = functools.partial(convert, context, builder)
        given = [*map(cast, signature.args, operands, arguments)]
        if short and (constant_of(given[-1]) or 0) > 0:
            return short(builder, *given)
        return call(context, builder, given) if call else cast(*operands, result, *given)

    return result(*given), code


def are_signed(numba_type, *others):
    """Return whether all types are the same type of signed integers."""
    is_signed = isinstance(numba_type, types.Integer) and numba_type.signed
    return is_signed and all(other == numba_type for other in others)


def resolve_call(typing, function, operands, result=None):
    """Return a function (context, builder, codes) that emits a call to a compiled function. `codes` are the
    LLVM values of the arguments.

    operands: the Numba types of the arguments.
    result: the Numba type to which the result is converted, or None to keep the callee's result type.
    """
    typing.refresh()  # the function may have been registered after Numba's last refresh
    callee = typing.resolve_value_type(function)
    signature = typing.resolve_function_type(callee, tuple(operands), {})

    def call(context, builder, codes):
        called = context.get_function(callee, signature)
        for library in getattr(called, "libs", ()):
            context.active_code_library.add_linking_library(library)
        value = called(builder, codes)
        return value if result is None else convert(context, builder, signature.return_type, result, value)

    return call


# Numba types a call of `max` itself as the maximum of one tuple, so wrap the call with two arguments.
OF_TWO = {max: inline_always(lambda a, b: max(a, b)), min: inline_always(lambda a, b: min(a, b))}


def compiled_form(version, result):
    """Return the function that computes a Version from operands already converted."""
    if version.native is BITS:
        return reinterpreter(result)
    form = compiled_value(version.semantics if version.native is SAME else version.native)
    return OF_TWO.get(form, form)


# --- compilation of reference implementations ---------------------------------------------------------------


class Reference(Inlined):
    """A reference implementation, translated without Numba where possible.

    function: the copy for compiled code.
    definition: its syntax tree.
    names: the values of its global and captured names.
    symbol: a name that depends on the function's definition, not on the process, because several processes
        share the machine code of kernels.
    """

    def __init__(self, function, definition, names, symbol):
        super().__init__(function)
        self.definition, self.names, self.symbol = definition, names, symbol

    def tree(self):
        """Return the syntax tree. Keyword-only parameters become positional ones, as in the function."""
        of, given = self.definition, self.definition.args
        return ast.FunctionDef(
            of.name, ast.arguments([], given.args + given.kwonlyargs, None, [], [], None, []), of.body, []
        )


@functools.cache
def compiled_copy(function):
    """Return a copy of a Python function for compiled code, in which each called function is replaced by its
    compiled form.

    Numba does not support keyword-only parameters, so they become positional parameters at the end.
    """
    code = function.__code__
    code = code.replace(co_argcount=code.co_argcount + code.co_kwonlyargcount, co_kwonlyargcount=0)
    used = [name for name in code.co_names if name in function.__globals__]
    names = function.__globals__ | {name: compiled_value(function.__globals__[name]) for name in used}
    cells = tuple(CellType(compiled_value(cell.cell_contents)) for cell in function.__closure__ or ())
    copied = FunctionType(code, names, function.__name__, function.__defaults__, cells)
    tree = functions_of(code.co_filename).get(code.co_firstlineno)
    # A lambda expression in a decorator can begin on the same line as the decorated function, so the line
    # alone does not identify the definition.
    if tree is None or tree.name != code.co_name or copied.__defaults__:
        return inline_always(copied)
    names = names | {name: cell.cell_contents for name, cell in zip(code.co_freevars, cells)}
    symbol = f"{function.__module__}.{function.__qualname__}.{hash_of(describe(function))}"
    return make_intrinsic(Reference(copied, tree, names, symbol))


def compiled_value(value):
    """Return the object that compiled code uses in place of a global variable of a reference implementation.

    Entries of sim.isa, lookup tables and functions are replaced. Any other value is returned unchanged.
    """
    value = value.function if isinstance(value, LookupTable) else value
    if isinstance(value, Function):
        value = value.semantics if value.native is SAME else value.native
    if isinstance(value, LLVM):
        return llvm(value)
    return compiled_copy(value) if isinstance(value, FunctionType) else value


@functools.cache
def llvm(form):
    """Return the intrinsic that calls an LLVM intrinsic.

    form: an LLVM (sim.isa.functions), which contains the LLVM intrinsic's name and its constant operands.
    """

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


FLOATS = {"float": "f32", "double": "f64"}


@functools.cache
def reinterpreter(numba_type):
    """Return the intrinsic that reinterprets the bits of a number as a value of this Numba type."""

    @intrinsic
    def reinterpreted(typing, x):
        def code(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(numba_type))

        return numba_type(x), code

    return reinterpreted


def digest(entry):
    """Return a hash of everything that determines an entry's machine code."""
    facts = repr([describe(getattr(entry, fact.name)) for fact in fields(entry)])
    return hash_of(facts)


def hash_of(facts):
    """Return a hash of the text of some facts, without the addresses of objects, which differ between
    processes."""
    anywhere = re.sub(" at 0x[0-9a-f]+", "", str(facts))
    return hashlib.sha256(anywhere.encode()).hexdigest()[:16]


def describe(value, seen=frozenset()):
    """Return nested tuples and strings that identify a value by its content, independently of the process.

    A function is identified by its bytecode and, recursively, by the values to which it refers.

    seen: the functions being described. It ends the recursion at a function that refers to itself.
    """
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
    # The iteration order of a set of strings differs between processes.
    if isinstance(value, (set, frozenset, dict)):
        parts = value.items() if isinstance(value, dict) else value
        return sorted(repr(describe(part, seen)) for part in parts)
    if isinstance(value, (tuple, list)):
        return type(value).__name__, [describe(part, seen) for part in value]
    return value.__name__ if isinstance(value, (FunctionType, ModuleType)) else repr(value)
