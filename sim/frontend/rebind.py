"""The copy of a kernel whose names are ours: same text, fresh globals in which `cuda`, `math`, dtypes and
device functions belong to one launch.

The original function is never touched and nothing is patched, so the same object can be launched on a GPU in
the same process. The rewritten code is made once for each function and combination of argument types; binding
it to a launch costs a dictionary.
"""

import ast
import builtins
import functools
import operator
import sys
import types
import weakref

import numpy as np

from sim.engine.grid import ROUNDS
from sim.frontend.accesses import PREFIX
from sim.frontend.inference import Types
from sim.frontend.names import (
    CUDA_MODULES,
    MISSING,
    DType,
    Names,
    cuda_name,
    dtype_or_none,
    is_number,
    names_in,
    only_signature,
    outside,
    python_function,
)
from sim.frontend.resolve import GEOMETRIES, source_of, stands_for
from sim.frontend.rewrite import Rewriter
from sim.frontend.tree import as_list, located
from sim.isa.conversions import cast, domain
from sim.isa.table import STANDING_FOR, SUSPENDING
from sim.memory.array import Array
from sim.memory.declared import constant_array
from sim.memory.spaces import host_array

ONE_NUMBER = int, float, complex, np.generic
# function -> {(types of parameters, globals, tools that listen): Code}
CODES = weakref.WeakKeyDictionary()


def of_numbers(ufunc, *operands, **keywords):
    """A ufunc in a kernel."""
    for given in (*operands, *keywords.values()):
        if isinstance(given, Array):
            name, elements = f"np.{ufunc.__name__}", ", ".join(["x[i]"] * ufunc.nin)
            raise TypeError(
                f"{name} takes numbers in the simulator, and {given.name} is an array; wanted a loop, or an"
                f" element per thread: out[i] = {name}({elements})"
            )
    return domain(ufunc(*operands, **keywords))


def is_one_number(element):
    """np.isscalar."""
    return isinstance(element, ONE_NUMBER)


def with_signature(dispatcher, function):
    """A device function's copy, with arguments and result converted as its signature says."""
    signature = only_signature(dispatcher)
    if signature is None:
        return function
    arguments_to, result_to = (
        [conversion(numba_type) for numba_type in signature.args],
        conversion(signature.return_type),
    )

    def converted(*arguments):
        given = zip(arguments_to, arguments, strict=True)
        return result_to(function(*(convert(value) for convert, value in given)))

    return converted


def conversion(numba_type):
    """The conversion to a Numba number type; what is no number stays as it is."""
    dtype = dtype_or_none(numba_type)
    return cast(dtype) if dtype is not None and is_number(dtype) else lambda value: value


class Code:
    """A function's rewritten code object, or its own where it has no source. Keeps no reference to the
    function, which would keep both alive for ever."""

    def __init__(self, function, parameters, heard, block):
        source = source_of(function)
        self.rewritten = source is not None
        self.constants, self.calls, self.makers = {}, {}, {}
        self.used = set(names_in(function.__code__))
        self.code, self.loops, self.synchronizes, self.stores = function.__code__, True, False, False
        self.counts_rounds, self.in_steps, self.compared = False, None, set()
        if self.rewritten:
            self.compared = compared(function, source.tree)
            self.loops = any(isinstance(node, ast.While) for node in ast.walk(source.tree))
            self.synchronizes, self.stores = source.acts_on_atomics, source.stores_elsewhere
            self.code = self.rewrite(function, source, parameters, heard, block)

    def rewrite(self, function, source, parameters, heard, block):
        tree, found = source.tree, Types(source, dict(parameters), block)
        rewriter = Rewriter(source, found, heard)
        rewriter.take_apart(tree.body)
        unassigned = found.versions.unassigned(tree.body)
        rewriter.unassigned = {id(node) for node in unassigned}
        tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kw_defaults)
        names = sorted({node.id for node in unassigned})
        unset = ast.parse("\n".join(f"{name} = {PREFIX}unset" for name in names)).body
        self.counts_rounds = bool(rewriter.counting)
        unset += ast.parse(f"{ROUNDS} = ()").body if self.counts_rounds else []
        body = [statement for part in tree.body for statement in as_list(rewriter.visit(part))]
        tree.body = [*located(unset, tree), *body]
        self.constants, self.calls, self.makers = rewriter.constants, rewriter.calls, rewriter.makers
        free = function.__code__.co_freevars
        # a function that calls itself by its global name
        outside = [] if tree.name in free else [ast.Global([tree.name])]
        arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
        factory = ast.FunctionDef(PREFIX + "factory", arguments, [*outside, tree], [], None)
        module = ast.fix_missing_locations(ast.Module([ast.copy_location(factory, tree)], []))

        def compiled():
            outer = code_named(compile(module, function.__code__.co_filename, "exec"), factory.name)
            return code_named(outer, tree.name)

        code = compiled()
        if "syncthreads" in names_in(code):
            tree.body = [InSteps().visit(statement) for statement in tree.body]
            self.in_steps = compiled()
        return code


def compared(function, tree):
    """The numbers, by themselves or by a name from outside, that stand in a function's comparisons."""
    names, comparisons = Names(function), [n for n in ast.walk(tree) if isinstance(n, ast.Compare)]
    parts = [part for comparison in comparisons for part in ast.walk(comparison)]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    values += [names.value(part.id) for part in parts if isinstance(part, ast.Name)]
    return {value for value in values if type(value) is float or type(value) is int and abs(value) < 1 << 63}


class InSteps(ast.NodeTransformer):
    """Each `cuda.syncthreads()` of a rewritten function becomes a `yield`."""

    def visit_Expr(self, node):
        match node.value:
            case ast.Call(func, [], []) if stands_for(func).name == "syncthreads":
                node.value = ast.copy_location(ast.Yield(), node.value)
        return node

    def visit_FunctionDef(self, node):
        return node


def code_named(code, name):
    """The code object called `name` among the constants of `code`."""
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


class Namespace:
    """A module (or a class used as one) whose members come out rebound."""

    def __init__(self, binder, owner):
        self._binder, self._owner = binder, owner

    def __getattr__(self, name):
        value = self._binder.rebound(getattr(self._owner, name))
        setattr(self, name, value)
        return value


class Binder:
    """Binds functions to one launch: `dialect` takes the place of `cuda`, `modules` that of modules."""

    def __init__(self, context, dialect, modules, builtins, given):
        self.context, self.dialect, self.modules = context, dialect, modules
        self.builtins, self.given = builtins, given
        self.functions = {}  # (id of a function, types of its parameters) -> its copy, so that recursion ends
        self.constants = {}  # id of a global array -> our Array
        self.used, self.codes, self.without_source = set(), [], []

    def bind(self, function, parameters=()):
        """The copy of `function` for this launch; `parameters` are (name, type) pairs, as far as known."""
        known = id(function), tuple(parameters)
        if known in self.functions:
            return self.functions[known]
        names = Names(function)
        code = self.code(function, tuple(parameters))
        self.used |= code.used
        self.codes.append(code)
        if not code.rewritten:
            self.without_source.append(function.__name__)
        namespace = {"__name__": function.__module__, "__builtins__": self.builtins}
        namespace |= self.given | code.constants
        cells = {name: types.CellType() for name in code.code.co_freevars}
        copy = types.FunctionType(code.code, namespace, function.__name__, None, tuple(cells.values()))
        self.functions[known] = copy
        for name in set(names_in(code.code)):
            value = names.value(name) if name not in names.free else MISSING
            if value is not MISSING:
                namespace[name] = self.rebound(value)
        for name, declared in code.makers.items():
            namespace[name] = self.dialect.local.maker(*declared)
        for name, (path, given) in code.calls.items():
            called = names.resolve(path)
            given = given if only_signature(called) is None else ()
            namespace[name] = with_signature(called, self.bind(python_function(called), given))
        for name, cell in cells.items():
            if name in names.free:
                cell.cell_contents = self.rebound(names.free[name])
        copy.__defaults__ = self.rebound(function.__defaults__)
        copy.__kwdefaults__ = {k: self.rebound(v) for k, v in (function.__kwdefaults__ or {}).items()} or None
        return copy

    def any(self, fact):
        """Whether a Code of the launch has this attribute: "loops", "stores", ..."""
        return any(getattr(code, fact) for code in self.codes)

    def in_steps(self, function, parameters, copy):
        """`copy`, that of a kernel, as a generator whose steps end at its barriers; None where threads wait
        for anything else, or elsewhere."""
        code = self.code(function, tuple(parameters)).in_steps
        mentioned = [code, *(other.__code__ for other in self.functions.values() if other is not copy)]
        if code is None or self.used & SUSPENDING != {"syncthreads"} or self.any("counts_rounds"):
            return None
        if any("syncthreads" in names_in(one) for one in mentioned):
            return None
        return types.FunctionType(code, copy.__globals__, copy.__name__, copy.__defaults__, copy.__closure__)

    def code(self, function, parameters):
        """The function's code for these types of parameters, for what its globals are now, for the block's
        shape, and for what is heard: accesses, branches."""
        known = CODES.setdefault(function, {})
        heard, block = self.context.heard, self.context.block_shape
        key = parameters, outside(function), heard, block
        if key not in known:
            known[key] = Code(function, parameters, heard, block)
        return known[key]

    def rebound(self, value):
        """What stands for `value`, a global, free variable, module member or default, inside the launch."""
        python_type = type(value)
        if python_type in (int, bool, str, type(None)):
            return value
        if python_type in (float, complex) or isinstance(value, np.generic):
            return domain(value)
        if python_type is tuple:
            return tuple(map(self.rebound, value))
        if isinstance(value, types.ModuleType):
            return self.module(value)
        if id(value) in STANDING_FOR:
            self.used.add(STANDING_FOR[id(value)].name)
            return self.dialect.instruction(STANDING_FOR[id(value)])
        name = cuda_name(value)
        dtype = None if name in GEOMETRIES else dtype_or_none(value)
        if dtype is not None and is_number(dtype) and value not in (int, float, bool, complex):
            return DType(dtype)
        if name is not None and hasattr(self.dialect, name.split(".")[0]):
            self.used |= set(name.split("."))  # also where the kernel calls it otherwise
            return operator.attrgetter(name)(self.dialect)
        return self.other(value)

    def other(self, value):
        """Any other object: an array, a function, something to pass on."""
        array = host_array(value, "a global array")
        if array is not None:
            if id(value) not in self.constants:
                self.constants[id(value)] = constant_array(self.context, array)
            return self.constants[id(value)]
        if getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return self.builtins[value.__name__]
        if isinstance(value, np.ufunc):
            return functools.partial(of_numbers, value)
        if value is np.isscalar:
            return is_one_number
        # `from math import exp`, `from numba.cuda.libdevice import fmul_rn`
        for module in self.modules.values():
            twin = getattr(module, getattr(value, "__name__", ""), None)
            if twin is not None and getattr(value, "__module__", None) in self.modules:
                return twin
        function = python_function(value)
        return value if function is None else with_signature(value, self.bind(function))

    def module(self, module):
        if module.__name__ in CUDA_MODULES:
            vars(self.dialect).setdefault("random", Namespace(self, sys.modules.get("numba.cuda.random")))
            return self.dialect
        if module.__name__ in self.modules:
            return self.modules[module.__name__]
        return Namespace(self, module)
