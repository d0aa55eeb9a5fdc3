"""The generated module of a kernel, collected while the kernel is lowered.

Globals and free variables of the kernel become constants at the top of the generated file. `cuda.threadIdx.x`
becomes `threadIdx.x`, and device functions become functions of the same file. Device functions that contain a
synchronisation point (a barrier, a shuffle, ...) or declare shared memory are inlined, and each
synchronisation point becomes a statement by itself (sim.native.lower.hoisting).
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
from sim.frontend.resolve import DECLARATION, DEVICE, WAIT, Source
from sim.frontend.tree import indent_columns, simplify, tree_of
from sim.native.codegen.scalars import HALVES
from sim.native.codegen.symbols import RESERVED, home_of


class CannotLower(Exception):
    """The exception for code that has no compiled form, with the reason and its Site (or None). The engine
    then interprets the launch."""

    def __init__(self, what, site=None):
        super().__init__(what)
        self.what, self.site = what, site

    def message(self):
        """Return the reason, followed by the line of the kernel that causes it."""
        if self.site is None:
            return self.what
        return f"{self.what} ({self.site.function} line {self.site.line}  {self.site.source})"


@dataclass(frozen=True)
class Declared:
    """A shared or local array that the kernel declares.

    shape: None for dynamic shared memory.
    name: the kernel's variable to which the array is assigned.
    site: index of the declaration among the module's sites.
    """

    space: str
    shape: tuple | None
    dtype: np.dtype
    name: str
    site: int


@dataclass(eq=False)
class Device:
    """A device function of the generated file.

    needs: names that it takes as extra parameters: names in SPECIAL, and arrays of the module.
    """

    name: str
    tree: ast.FunctionDef = None
    needs: set = field(default_factory=set)
    recursive: bool = False


def fields_of(dtype):
    """Return the field names of a record dtype, including fields of nested records. Return an empty set for
    other dtypes."""
    names = dtype.base.names or ()
    return {*names}.union(*(fields_of(dtype.base[name]) for name in names))


class GeneratedModule:
    """The parts of a generated module: everything except the kernel's own statements.

    taken: names already in use.
    logs: generate code that writes the access log.
    prints: the kernel calls `print`.
    unset: (site, variable) for each read that some path reaches before any assignment.
    """

    def __init__(self, taken, logs=False):
        self.logs = logs
        # constants: name -> text; imports: name -> module that defines it; devices: function -> Device
        self.constants, self.imports, self.devices = {}, {}, {}
        self.arrays, self.declared = {}, {}  # parameter -> global ndarray; parameter -> Declared
        # operations: index of a site -> name of the synchronising instruction there
        self.sites, self.operations = [], {}
        self.prints, self.unset = False, []
        # Never shadow names that generated code uses, nor builtins.
        self.taken = {*taken, *RESERVED, *dir(builtins)}

    def fresh_name(self, name):
        """Return `name`, with a numeric suffix if it is in use, and reserve the result."""
        candidate, number = name, 1
        while candidate in self.taken or home_of(candidate):
            number += 1
            candidate = f"{name}_{number}"
        self.taken.add(candidate)
        return candidate

    def constant(self, name, text):
        """Return the name of a constant with the value `text`. Reuse an existing constant if one has this
        value and a similar name."""
        for known, value in self.constants.items():
            if value == text and known.startswith(name):
                return known
        name = self.fresh_name(name)
        self.constants[name] = text
        return name

    def stem(self, name):
        """Return `name`, extended by underscores until no other name begins with `<result>_`. Names of
        generated functions can then be formed from it without collisions."""
        while any(known.startswith(f"{name}_") for known in (*self.taken, *self.constants)):
            name += "_"
        return name

    def library(self, name):
        """Import a runtime function into the generated file, and return its name."""
        self.imports[name] = home_of(name)
        return name

    def array(self, value, name):
        """Return the name of the parameter that passes a global array to the kernel."""
        for known, array in self.arrays.items():
            if array is value:
                return known
        name = self.fresh_name(name)
        self.arrays[name] = value
        return name

    def site(self, site):
        """Return the index of a site in `sites`, and append the site if it is new."""
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)


class Module(GeneratedModule):
    """The generated module of a Python kernel.

    dtypes: ((parameter, dtype), ...) for array parameters whose dtype the text depends on.
    """

    def __init__(self, kernel, logs=False, dtypes=()):
        self.kernel, self.dtypes = kernel, dict(dtypes)
        # used: names from numba.cuda; reachable: function -> Source, for the kernel and its device functions
        self.used, self.reachable = set(), {}
        self.reach(kernel)
        taken = {
            name for function, names in self.reachable.items() for name in (*names.local, function.__name__)
        }
        super().__init__(taken | {names.tree.name for names in self.reachable.values()}, logs)

    def has_field(self, name):
        """Return whether any array argument has records with a field of this name."""
        return any(name in fields_of(dtype) for dtype in self.dtypes.values())

    def reach(self, function):
        """Add `function`, and every function that it calls, to `reachable`. Raise CannotLower for a function
        without source code."""
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
        """Return whether a device function has to be inlined, because it, or a function that it calls,
        contains a synchronisation point or declares shared memory."""
        source, seen = self.reachable[function], seen | {function}
        return (
            bool(source.calls(WAIT))
            or any(call.func.referent.name == "shared.array" for call in source.calls(DECLARATION))
            or any(
                self.must_inline(call.func.referent.function, seen)
                for call in source.calls(DEVICE)
                if call.func.referent.function not in seen
            )
        )

    def value(self, node):
        """Return the value of a constant of the generated file that `node` names, or MISSING."""
        try:
            return ast.literal_eval(self.constants[node.id])
        except (AttributeError, KeyError, ValueError):
            return MISSING

    def fresh_function(self, name):
        """Return an unused name for a device function."""
        names = {device.name for device in self.devices.values()}
        return name if name not in names | RESERVED and not home_of(name) else self.fresh_name(name)


def import_fp16():
    """Import numba.cuda.fp16 if it is installed. A kernel may use the name without importing it."""
    with suppress(ImportError):  # Numba without numba-cuda
        importlib.import_module("numba.cuda.fp16")


def tree_of_lambda(function):
    """Return a lambda as the tree of a function definition, or None. The lambda must be the only one in its
    source lines, because `inspect` finds lines, not columns."""
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
    """Return a Python expression that evaluates to `value`, or None for an unsupported type."""
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
