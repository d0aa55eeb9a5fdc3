"""The front end of compiled kernels: a kernel as statements of one thread, in names that compiled code has.

Globals and free variables become constants at the head of the text, `cuda.threadIdx.x` becomes `threadIdx.x`,
and device functions become functions of the same file. Device functions that contain a synchronisation point
(a barrier, a shuffle, ...) or declare shared memory are inlined, and every synchronisation point becomes a
statement of its own (sim.native.lower.hoisting).
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
    """The error for code that has no compiled form: the reason, and the Site or None."""

    def __init__(self, what, site=None):
        super().__init__(what)
        self.what, self.site = what, site

    def message(self):
        if self.site is None:
            return self.what
        return f"{self.what} ({self.site.function} line {self.site.line}  {self.site.source})"


@dataclass(frozen=True)
class Declared:
    """A shared or local array: its shape (None for the dynamic shared bytes), its dtype, and the variable
    that it is assigned to."""

    space: str
    shape: tuple | None
    dtype: np.dtype
    name: str
    site: int


@dataclass(eq=False)
class Device:
    """A device function of the file: its name, its tree, the names of SPECIAL and the module's arrays that
    it needs besides its parameters, and whether it calls itself."""

    name: str
    tree: ast.FunctionDef = None
    needs: set = field(default_factory=set)
    recursive: bool = False


def fields_of(dtype):
    """Return the names of a record's fields, including nested ones."""
    names = dtype.base.names or ()
    return {*names}.union(*(fields_of(dtype.base[name]) for name in names))


class Parts:
    """The parts of one kernel's text, collected while it is lowered.

    `taken`: names already in use.
    `logs`: whether accesses and branches are numbered for the log.
    `prints`: whether the kernel prints.
    `unset`: (site, variable) of each read that may come before any assignment.
    """

    def __init__(self, taken, logs=False):
        self.logs = logs
        # name -> text; name -> module; function -> Device
        self.constants, self.imports, self.devices = {}, {}, {}
        self.arrays, self.declared = {}, {}  # name -> global ndarray; name -> Declared
        # operations: site -> the operation of a thread there
        self.sites, self.operations = [], {}
        self.prints, self.unset = False, []
        self.taken = {*taken, *RESERVED, *dir(builtins)}

    def fresh_name(self, name):
        """Return an unused name like `name`."""
        candidate, number = name, 1
        while candidate in self.taken or home_of(candidate):
            number += 1
            candidate = f"{name}_{number}"
        self.taken.add(candidate)
        return candidate

    def constant(self, name, text):
        """Return the name of a constant at the head of the file, with the value `text`."""
        for known, same in self.constants.items():
            if same == text and known.startswith(name):
                return known
        name = self.fresh_name(name)
        self.constants[name] = text
        return name

    def stem(self, name):
        """Return `name`, or a name like it. No other name begins with the result and an underscore."""
        while any(known.startswith(f"{name}_") for known in (*self.taken, *self.constants)):
            name += "_"
        return name

    def library(self, name):
        """Return the name of a runtime function, which the file then imports."""
        self.imports[name] = home_of(name)
        return name

    def array(self, value, name):
        """Return the parameter that passes a global array."""
        for known, array in self.arrays.items():
            if array is value:
                return known
        name = self.fresh_name(name)
        self.arrays[name] = value
        return name

    def site(self, site):
        """Return the number of a site, for the text of this kernel."""
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)


class Module(Parts):
    """The Parts of a kernel in Python. `dtypes`: of the kernel's arrays, by parameter."""

    def __init__(self, kernel, logs=False, dtypes=()):
        self.kernel, self.dtypes = kernel, dict(dtypes)
        self.used, self.reachable = set(), {}
        self.reach(kernel)
        taken = {
            name for function, names in self.reachable.items() for name in (*names.local, function.__name__)
        }
        super().__init__(taken | {names.tree.name for names in self.reachable.values()}, logs)

    def has_field(self, name):
        """Return whether arrays of the launch have records with a field of this name."""
        return any(name in fields_of(dtype) for dtype in self.dtypes.values())

    def reach(self, function):
        """Find all functions that `function` calls, and the names of numba.cuda that it uses."""
        if function in self.reachable:
            return
        if "fp16" in function.__code__.co_names:
            import_fp16()
        tree = tree_of(function) or tree_of_lambda(function)
        if tree is None:
            raise CannotLower(f"{function.__name__} has no source text")
        source = self.reachable[function] = Source(function, tree)
        for found in source.referents():
            self.used |= set(found.in_cuda.split(".")) - {""}
            if found.role == DEVICE:
                self.reach(found.function)

    def must_inline(self, function, seen=frozenset()):
        """Return whether `function` has to be inlined, because it contains a synchronisation point or
        declares shared memory."""
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
        """Return the number that a name of the file refers to, or MISSING."""
        try:
            return ast.literal_eval(self.constants[node.id])
        except (AttributeError, KeyError, ValueError):
            return MISSING

    def fresh_function(self, name):
        names = {device.name for device in self.devices.values()}
        return name if name not in names | RESERVED and not home_of(name) else self.fresh_name(name)


def import_fp16():
    """Import cuda.fp16 if possible. A kernel may use the name without an import."""
    with suppress(ImportError):  # Numba without numba-cuda
        importlib.import_module("numba.cuda.fp16")


def tree_of_lambda(function):
    """Return a lambda as a function's tree if it is the only one in its lines, else None."""
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
    """Return `value` as Python text that evaluates to it, or None."""
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
    if np.isfinite(value):
        return repr(value)
    if isinstance(value, complex):
        return f"complex({number_text(value.real)}, {number_text(value.imag)})"
    return f'float("{value}")'
