"""Copies of a kernel for one launch: the same code with new globals, in which `cuda`, `math`, dtypes and
device functions belong to that launch.

The original function and its modules are never modified, so the same object can also be launched on a GPU in
this process. A function is rewritten once per combination of argument types. To bind the rewritten function
to a launch, only a dictionary of globals is built.
"""

import ast
import builtins
import dis
import functools
import operator
import sys
import types
import weakref

import numpy as np

from sim.engine.grid import ITERATIONS
from sim.frontend.accesses import PREFIX
from sim.frontend.inference import Types
from sim.frontend.names import (
    CUDA_MODULES,
    MISSING,
    DType,
    Names,
    captured_values,
    cuda_name,
    dtype_or_none,
    is_number,
    names_in,
    only_signature,
    python_function,
)
from sim.frontend.polling import can_poll, common_loop, deciding_variables, has_loop_around_grid_barrier
from sim.frontend.resolve import GEOMETRIES, referent_of, source_of
from sim.frontend.rewrite import Rewriter
from sim.frontend.searches import searches
from sim.frontend.tree import all_nodes, as_list, located
from sim.frontend.types import Number
from sim.isa.conversions import cast, domain, fits_64_bits
from sim.isa.table import ENTRY_OF_OBJECT, SUSPENDING
from sim.memory.argument import host_array
from sim.memory.array import Array
from sim.memory.declared import constant_array

ONE_NUMBER = int, float, complex, np.generic
# function -> {(parameter types, captured values, enabled events, block shape): Code}
CODES = weakref.WeakKeyDictionary()


def apply_ufunc(ufunc, *operands, **keywords):
    """Call a numpy ufunc inside a kernel. Raise TypeError for arrays, because a thread works on single
    numbers."""
    for given in (*operands, *keywords.values()):
        if isinstance(given, Array):
            name, elements = f"np.{ufunc.__name__}", ", ".join(["x[i]"] * ufunc.nin)
            raise TypeError(
                f"{name} takes numbers in the simulator, and {given.name} is an array; wanted a loop, or an"
                f" element per thread: out[i] = {name}({elements})"
            )
    return domain(ufunc(*operands, **keywords))


def is_one_number(element):
    """Return whether `element` is a number: np.isscalar inside a kernel."""
    return isinstance(element, ONE_NUMBER)


def with_signature(dispatcher, function):
    """Return a copy of a device function that converts its arguments and result to the types in its
    signature."""
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
    """Return a function that converts to a Numba number type. For any other type, return the identity."""
    dtype = dtype_or_none(numba_type)
    return cast(dtype) if dtype is not None and is_number(dtype) else lambda value: value


class Code:
    """The rewritten code object of a function, or the original code object if its source is unavailable.

    It must not contain a reference to the function. CODES maps the function to its Code, so such a reference
    would keep both objects alive forever.
    """

    def __init__(self, function, parameters, enabled, block):
        source = source_of(function)
        self.rewritten = source is not None
        self.constants, self.calls, self.makers = {}, {}, {}
        self.used = self.names = set(names_in(function.__code__))
        self.code, self.polls, self.synchronizes, self.stores = function.__code__, True, False, False
        self.loops_around_grid, self.common_loop = True, range(0)
        self.counts_iterations, self.as_generator, self.comparison_constants = False, None, set()
        self.accessed = set()  # numbers of the sites that access an element
        self.elements, self.dynamic, self.deciding, self.searches = {}, set(), {}, {}  # as in Accesses
        if self.rewritten:
            self.comparison_constants = comparison_constants(function, source.tree)
            self.polls = can_poll(source.tree, parameters)
            self.common_loop = common_loop(source.tree, parameters)
            self.loops_around_grid = has_loop_around_grid_barrier(source.tree)
            self.synchronizes, self.stores = source.acts_on_atomics, source.stores_elsewhere
            self.code = self.rewrite(function, source, parameters, enabled, block)

    def rewrite(self, function, source, parameters, enabled, block):
        """Return the rewritten code object, and set the attributes that depend on the rewritten tree."""
        tree, found = source.tree, Types(source, dict(parameters), block)
        rewriter = Rewriter(source, found, enabled)
        rewriter.deciding = deciding_variables(tree, parameters)
        rewriter.searches = searches(tree)
        rewriter.split_variables(tree.body)
        unassigned = found.versions.unassigned(tree.body)
        rewriter.unassigned = {id(node) for node in unassigned}
        # Remove the defaults: they are already evaluated, and `bind` copies them to the new function.
        tree.args.defaults, tree.args.kw_defaults = [], [None] * len(tree.args.kw_defaults)
        # Assign UNSET at the start, so that a read before the first assignment is detected instead of
        # raising.
        names = sorted({node.id for node in unassigned})
        unset = ast.parse("\n".join(f"{name} = {PREFIX}unset" for name in names)).body
        self.counts_iterations, self.accessed = bool(rewriter.counting), rewriter.accessed
        unset += ast.parse(f"{ITERATIONS} = ()").body if self.counts_iterations else []
        body = [statement for part in tree.body for statement in as_list(rewriter.visit(part))]
        tree.body = [*located(unset, tree), *body]
        self.constants, self.calls, self.makers = rewriter.constants, rewriter.calls, rewriter.makers
        self.elements, self.dynamic = rewriter.elements, rewriter.dynamic
        self.deciding, self.searches = rewriter.deciding_at, rewriter.searches_at
        free = function.__code__.co_freevars
        # A recursive function refers to itself by its global name.
        outside = [] if tree.name in free else [ast.Global([tree.name])]
        arguments = ast.arguments([], [ast.arg(name) for name in free], None, [], [], None, [])
        factory = ast.FunctionDef(PREFIX + "factory", arguments, [*outside, tree], [], None)
        module = ast.fix_missing_locations(ast.Module([ast.copy_location(factory, tree)], []))

        def compile_tree():
            outer = code_named(compile(module, function.__code__.co_filename, "exec"), factory.name)
            return code_named(outer, tree.name)

        code = compile_tree()
        # The names that may denote globals, without the names of attributes.
        self.names = {node.id for node in all_nodes(tree) if isinstance(node, ast.Name)}
        # A switch between generators takes less time than one between greenlets. `Binder.as_generator`
        # decides whether this copy can be used.
        if "syncthreads" in names_in(code):
            tree.body = [BarriersAsYields().visit(statement) for statement in tree.body]
            self.as_generator = compile_tree()
        return code


def repeated_dtypes(views):
    """Return the dtypes of which several variables are views, given the (dtype, variable) of all views of a
    function."""
    dtypes = [dtype for dtype, variable in views if variable is not None]
    return {dtype for dtype in dtypes if dtypes.count(dtype) > 1}


def comparison_constants(function, tree):
    """Return the numbers in a function's comparisons: literals, and values of outer names."""
    names, comparisons = Names(function), [n for n in all_nodes(tree) if isinstance(n, ast.Compare)]
    parts = [part for comparison in comparisons for part in all_nodes(comparison)]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    values += [names.value(part.id) for part in parts if isinstance(part, ast.Name)]
    return {value for value in values if type(value) is float or type(value) is int and abs(value) < 1 << 63}


class BarriersAsYields(ast.NodeTransformer):
    """A transformer that replaces each `cuda.syncthreads()` in a rewritten function by `yield`."""

    def visit_Expr(self, node):
        match node.value:
            case ast.Call(func, [], []) if referent_of(func).name == "syncthreads":
                node.value = ast.copy_location(ast.Yield(), node.value)
        return node

    def visit_FunctionDef(self, node):
        return node


def code_named(code, name):
    """Return the code object called `name` among the constants of `code`."""
    return next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


class Namespace:
    """A module, or a class used as one, that binds each member to the launch on first use."""

    def __init__(self, binder, owner):
        self._binder, self._owner = binder, owner

    def __getattr__(self, name):
        value = self._binder.rebind(getattr(self._owner, name))
        setattr(self, name, value)
        return value


class Binder:
    """Creates copies of functions, rewritten for one launch.

    dialect: the object that replaces `numba.cuda`.
    modules: {name: replacement module}.
    """

    def __init__(self, context, dialect, modules, builtins, given):
        self.context, self.dialect, self.modules = context, dialect, modules
        self.builtins, self.given = builtins, given
        # (id of a function, parameter types) -> copy of the function. A copy is added before it is complete,
        # so that recursion ends.
        self.functions = {}
        self.constants = {}  # id of a global array -> its Array in constant memory
        self.originals = {}  # id of a function -> its code object before it was rewritten
        self.used, self.codes, self.without_source = set(), [], []

    def bind(self, function, parameters=()):
        """Return the copy of `function` for this launch. `parameters` holds (name, type) pairs for the
        parameters with known types."""
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
        # Defaults and closure cells are set below, because they may refer to this function.
        copy = types.FunctionType(code.code, namespace, function.__name__, None, tuple(cells.values()))
        self.functions[known], self.originals[id(function)] = copy, function.__code__
        for name in code.names.intersection(names_in(code.code)):
            value = names.value(name) if name not in names.free else MISSING
            if value is not MISSING:
                namespace[name] = self.rebind(value)
        for name, declared in code.makers.items():
            namespace[name] = self.dialect.local.maker(*declared)
        for name, (path, given) in code.calls.items():
            called = names.resolve(path)
            given = given if only_signature(called) is None else ()
            namespace[name] = with_signature(called, self.bind(python_function(called), given))
        for name, cell in cells.items():
            if name in names.free:
                cell.cell_contents = self.rebind(names.free[name])
        copy.__defaults__ = self.rebind(function.__defaults__)
        copy.__kwdefaults__ = {k: self.rebind(v) for k, v in (function.__kwdefaults__ or {}).items()} or None
        return copy

    def any(self, fact):
        """Return whether this attribute of Code, such as "polls" or "stores", is true for any function of the
        launch."""
        return any(getattr(code, fact) for code in self.codes)

    def count_instructions(self):
        """Return the number of bytecode instructions of the kernel and of the functions that it calls."""
        return sum(len([*dis.get_instructions(code)]) for code in self.originals.values())

    def views(self):
        """Return {site of an access: its view} if dynamic shared memory has several views, and otherwise {}.

        A view is (dtype of the elements, variable). The variable is None unless one function assigns several
        arrays of the dtype to variables. An unknown view is None.
        """
        declared = {view for code in self.codes for view in code.dynamic}
        several = {dtype for code in self.codes for dtype in repeated_dtypes(code.dynamic)}
        if not several and len({dtype for dtype, _ in declared}) < 2:
            return {}
        found = {}
        for code in self.codes:
            own = {view for view in code.dynamic if view[1] and view[0] in repeated_dtypes(code.dynamic)}
            for site, (element, variable) in code.elements.items():
                dtype = np.dtype(element.scalar) if isinstance(element, Number) else None
                view = (dtype, None) if dtype is not None else None
                if dtype in several:
                    view = (dtype, variable) if (dtype, variable) in own else None
                found[site] = view if found.get(site, view) == view else None
        return found

    def as_generator(self, function, parameters, copy):
        """Return a copy of the kernel, rewritten as a generator that yields at each barrier.

        Return None if threads also suspend for another reason, or inside a function that the kernel calls:
        only the kernel's own frame can yield.
        """
        code = self.code(function, tuple(parameters)).as_generator
        mentioned = [code, *(other.__code__ for other in self.functions.values() if other is not copy)]
        if code is None or self.used & SUSPENDING != {"syncthreads"} or self.any("counts_iterations"):
            return None
        if any("syncthreads" in names_in(one) for one in mentioned):
            return None
        return types.FunctionType(code, copy.__globals__, copy.__name__, copy.__defaults__, copy.__closure__)

    def code(self, function, parameters):
        """Return the function's Code for these parameter types, the current values of its globals, the block
        shape, and the events that observers subscribed to."""
        known = CODES.setdefault(function, {})
        enabled, block = self.context.enabled, self.context.block_shape
        key = parameters, captured_values(function), enabled, block
        if key not in known:
            known[key] = Code(function, parameters, enabled, block)
        return known[key]

    def rebind(self, value):
        """Return the launch's replacement for `value`: a global, a free variable, a member of a module or a
        default."""
        python_type = type(value)
        if python_type is int:
            return domain(value) if fits_64_bits(value) else value
        if python_type in (bool, str, type(None)):
            return value
        if python_type in (float, complex) or isinstance(value, np.generic):
            return domain(value)
        if python_type is tuple:
            return tuple(map(self.rebind, value))
        if isinstance(value, types.ModuleType):
            return self.module(value)
        if id(value) in ENTRY_OF_OBJECT:
            self.used.add(ENTRY_OF_OBJECT[id(value)].name)
            return self.dialect.instruction(ENTRY_OF_OBJECT[id(value)])
        name = cuda_name(value)
        dtype = None if name in GEOMETRIES else dtype_or_none(value)
        if dtype is not None and is_number(dtype) and value not in (int, float, bool, complex):
            return DType(dtype)
        if name is not None and hasattr(self.dialect, name.split(".")[0]):
            # Use the name in numba.cuda, even if the kernel uses an alias.
            self.used |= set(name.split("."))
            return operator.attrgetter(name)(self.dialect)
        return self.rebind_object(value)

    def rebind_object(self, value):
        """Return the launch's replacement for an array, a function or any other object."""
        array = host_array(value, "a global array")
        if array is not None:
            if id(value) not in self.constants:
                self.constants[id(value)] = constant_array(self.context, array)
            return self.constants[id(value)]
        if getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return self.builtins[value.__name__]
        if isinstance(value, np.ufunc):
            return functools.partial(apply_ufunc, value)
        if value is np.isscalar:
            return is_one_number
        # A name can be imported directly: `from math import exp`, `from numba.cuda.libdevice import fmul_rn`.
        for module in self.modules.values():
            twin = getattr(module, getattr(value, "__name__", ""), None)
            if twin is not None and getattr(value, "__module__", None) in self.modules:
                return twin
        function = python_function(value)
        return value if function is None else with_signature(value, self.bind(function))

    def module(self, module):
        if module.__name__ in CUDA_MODULES:
            # numba.cuda.random consists of device functions, which are bound like those of the user.
            vars(self.dialect).setdefault("random", Namespace(self, sys.modules.get("numba.cuda.random")))
            return self.dialect
        if module.__name__ in self.modules:
            return self.modules[module.__name__]
        return Namespace(self, module)
