"""The module generated for a kernel, assembled piece by piece during lowering.

The values captured by the kernel (globals and free variables) become constants at the top of the generated
file. `cuda.threadIdx.x` becomes `threadIdx.x`, and device functions become functions of the same file. A
device function is inlined instead if it contains a synchronisation point (a barrier, a shuffle, ...) or
declares shared memory, and each synchronisation point becomes a statement by itself
(sim.native.lower.hoisting).
"""

import ast
import builtins
import importlib
import inspect
import textwrap
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from sim.frontend.names import MISSING, is_number
from sim.frontend.resolve import DECLARATION, DEVICE, MEMBER, WAIT, Source
from sim.frontend.tree import indent_columns, simplify, tree_of
from sim.native.codegen.scalars import HALVES
from sim.native.codegen.symbols import RESERVED, home_of


class CannotLower(Exception):
    """The exception for code without a compiled form. The engine then interprets the launch.

    what: the reason.
    site: the Site of the code, or None.
    """

    def __init__(self, what, site=None):
        super().__init__(what)
        self.what, self.site = what, site

    def message(self):
        """Return the reason and, if known, the line of the kernel that causes it."""
        if self.site is None:
            return self.what
        return f"{self.what} ({self.site.function} line {self.site.line}  {self.site.source})"


@dataclass(frozen=True)
class Declared:
    """A shared or local array declared by the kernel.

    shape: the shape, or None for dynamic shared memory.
    name: the variable of the kernel to which the array is assigned.
    site: the index of the declaration in the module's `sites`.
    is_whole: whether a variable always has the whole array as its value.
    """

    space: str
    shape: tuple | None
    dtype: np.dtype
    name: str
    site: int
    is_whole: bool


@dataclass(eq=False)
class Device:
    """A device function of the generated file.

    needs: the names passed to it as extra parameters: names in SPECIAL, and arrays of the module.
    recursive: whether it calls itself.
    """

    name: str
    tree: ast.FunctionDef = None
    needs: set = field(default_factory=set)
    recursive: bool = False


def fields_of(dtype):
    """Return the field names of a record dtype, including the fields of nested records. Return an empty set
    for any other dtype."""
    names = dtype.base.names or ()
    return {*names}.union(*(fields_of(dtype.base[name]) for name in names))


class GeneratedModule:
    """The parts of a generated module, except for the kernel's own statements.

    taken: the names already in use.
    logs: whether the generated code writes the access log.
    has_sides: whether the generated code can follow one side of a disagreement (sim.native.codegen.sides).
        Code that writes the access log can always follow a side.
    prints: whether the kernel calls `print`.
    unset: a list of (site, variable) for the reads to which some path leads without an assignment.
    block_barrier: the name of the runtime function for a block-wide barrier.
    """

    block_barrier = "barrier"

    def __init__(self, taken, logs=False, has_sides=False):
        self.logs, self.has_sides = logs, logs or has_sides
        self.constants = {}  # name of a constant -> its text
        self.imports = {}  # name of a runtime function -> the module that defines it
        self.devices = {}  # device function -> Device
        self.arrays = {}  # parameter -> ndarray of a global variable
        self.declared = {}  # parameter -> Declared
        self.sites = []
        self.operations = {}  # index of a site -> name of the synchronising instruction there
        self.prints, self.unset = False, []
        # A new name must hide neither a name used by generated code nor a builtin.
        self.taken = {*taken, *RESERVED, *dir(builtins)}

    def fresh_name(self, name):
        """Return `name`, with a numeric suffix if the name is in use. Reserve the result."""
        candidate, number = name, 1
        while candidate in self.taken or home_of(candidate):
            number += 1
            candidate = f"{name}_{number}"
        self.taken.add(candidate)
        return candidate

    def constant(self, name, text):
        """Return the name of a constant with the value `text`.

        Reuse a constant that has the same value if its name begins with `name`.
        """
        for known, value in self.constants.items():
            if value == text and known.startswith(name):
                return known
        name = self.fresh_name(name)
        self.constants[name] = text
        return name

    def stem(self, name):
        """Return `name`, with underscores appended until no other name begins with `<result>_`. Generated
        functions use this prefix, so their names cannot collide with other names."""
        while any(known.startswith(f"{name}_") for known in (*self.taken, *self.constants)):
            name += "_"
        return name

    def library(self, name):
        """Import a runtime function into the generated file, and return its name."""
        self.imports[name] = home_of(name)
        return name

    def array(self, value, name):
        """Return the name of the parameter through which a global array is passed to the kernel."""
        for known, array in self.arrays.items():
            if array is value:
                return known
        name = self.fresh_name(name)
        self.arrays[name] = value
        return name

    def site(self, site):
        """Return the index of a site in `sites`. Append the site if it is new."""
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)


class Module(GeneratedModule):
    """The generated module of a Python kernel.

    dtypes: ((parameter, dtype), ...) for the array parameters whose dtype affects the generated text.
    """

    def __init__(self, kernel, logs=False, dtypes=(), has_sides=False):
        self.kernel, self.dtypes = kernel, dict(dtypes)
        # `used` contains names from numba.cuda. `reachable` maps the kernel and its device functions to
        # Sources.
        self.used, self.reachable = set(), {}
        self.reach(kernel)
        taken = {
            name for function, names in self.reachable.items() for name in (*names.local, function.__name__)
        }
        super().__init__(taken | {names.tree.name for names in self.reachable.values()}, logs, has_sides)

    def has_field(self, name):
        """Return whether an array argument has records with a field of this name."""
        return any(name in fields_of(dtype) for dtype in self.dtypes.values())

    def reach(self, function):
        """Add a function, and every function that it calls, to `reachable`.

        Raise CannotLower for a function without source code.
        """
        if function in self.reachable:
            return
        if "fp16" in function.__code__.co_names:
            import_fp16()
        tree = tree_of(function) or tree_of_lambda(function)
        if tree is None:
            raise CannotLower(f"{function.__name__} has no source code")
        source = self.reachable[function] = Source(function, tree)
        for found in source.referents():
            self.used |= set(found.in_cuda.split(".")) - {""}
            if found.role == DEVICE:
                self.reach(found.function)

    def must_inline(self, function, seen=frozenset()):
        """Return whether a device function has to be inlined.

        It has to be if it contains a synchronisation point or declares shared memory, or if a function that
        it calls does so.

        seen: the functions being searched. It ends the search at a recursive call.
        """
        source, seen = self.reachable[function], seen | {function}
        return (
            bool(source.calls(WAIT))
            or any(map(self.is_grid_sync, source.calls(MEMBER)))
            or any(call.func.referent.name == "shared.array" for call in source.calls(DECLARATION))
            or any(
                self.must_inline(call.func.referent.function, seen)
                for call in source.calls(DEVICE)
                if call.func.referent.function not in seen
            )
        )

    def is_grid_sync(self, node):
        """Return whether a call, such as `grid.sync()`, is a grid barrier."""
        of_value = node.calls == MEMBER and isinstance(node.func, ast.Attribute)
        return of_value and node.func.attr == "sync" and "this_grid" in self.used

    def value(self, node):
        """Return the value of the generated file's constant named by a node, or MISSING."""
        try:
            return ast.literal_eval(self.constants[node.id])
        except (AttributeError, KeyError, ValueError):
            return MISSING

    def fresh_function(self, name):
        """Return an unused name for a device function. No variable of any function may have this name."""
        used = RESERVED.union(*(source.local for source in self.reachable.values()))
        used |= {device.name for device in self.devices.values()}
        return name if name not in used and not home_of(name) else self.fresh_name(name)


def import_fp16():
    """Import numba.cuda.fp16 if it is installed. A kernel may use the name without importing the module."""
    with suppress(ImportError):  # a version of Numba without numba-cuda
        importlib.import_module("numba.cuda.fp16")


def tree_of_lambda(function):
    """Return a lambda as the syntax tree of a function definition.

    `inspect` finds the lines of a lambda, but not its columns. Return None if these lines contain several
    lambdas, or if the source code is not available.
    """
    try:
        lines, start = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Lambda)]
    if function.__name__ != "<lambda>" or len(found) != 1:
        return None
    ast.increment_lineno(tree, start - 1)
    indent_columns(tree, len(lines[0]) - len(lines[0].lstrip()))
    returns = ast.copy_location(ast.Return(found[0].body), found[0].body)
    return simplify(
        ast.copy_location(ast.FunctionDef("lambda_function", found[0].args, [returns], [], None), found[0]),
        function,
        lines,
    )


def literal(value):
    """Return a Python expression whose value is `value`, or None if the type of the value is not
    supported."""
    if isinstance(value, tuple) and type(value) is tuple:
        parts = [literal(part) for part in value]
        return None if None in parts else f"({', '.join(parts)}{',' * (len(parts) == 1)})"
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value))
    if type(value) in (int, str, type(None)):
        return repr(value)
    if (
        isinstance(value, np.generic)
        and is_number(value.dtype)
        and value.dtype.kind in "iufc"
        and value.dtype.name not in HALVES
    ):
        return f"np.{value.dtype.name}({number_text(value.item())})"
    return number_text(value) if type(value) in (float, complex) else None


def number_text(value):
    """Return a Python expression for a float or complex number, including infinities and NaN."""
    if np.isfinite(value):
        return repr(value)
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    return f'float("{value}")'
