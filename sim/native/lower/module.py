"""The front end of compiled kernels: a kernel as statements of one thread, in names that compiled code knows.

Globals and free variables become constants at the head of the text, `cuda.threadIdx.x` becomes `threadIdx.x`,
device functions become functions of the same file. Device functions in which a thread waits (at a barrier, a
shuffle, ...) or that declare shared memory are inlined, and every place where it waits becomes a statement of
its own (sim.native.lower.hoisting).
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
    """Something that has no compiled form: what, and where (a Site, or None)."""

    def __init__(self, what, site=None):
        super().__init__(what)
        self.what, self.site = what, site

    def in_words(self):
        if self.site is None:
            return self.what
        return f"{self.what} ({self.site.function} line {self.site.line}  {self.site.source})"


@dataclass(frozen=True)
class Declared:
    """A shared or local array: its shape (None for the dynamic shared bytes), its dtype, and the name of
    the variable that it is assigned to."""

    space: str
    shape: tuple | None
    dtype: np.dtype
    name: str
    site: int


@dataclass(eq=False)
class Device:
    """A device function of the file: its name, its tree, which of SPECIAL and the module's arrays it needs
    besides its parameters, and whether it calls itself."""

    name: str
    tree: ast.FunctionDef = None
    needs: set = field(default_factory=set)
    recursive: bool = False


def fields_of(dtype):
    """The names of a record's fields, and of those within them."""
    names = dtype.base.names or ()
    return {*names}.union(*(fields_of(dtype.base[name]) for name in names))


class Parts:
    """What the text of one kernel consists of, collected while it is lowered. `taken`: names that something
    has already; `counted`: whether accesses and branches are numbered; `prints`: whether it prints; `unset`:
    (place, variable) of each read that may come before any assignment."""

    def __init__(self, taken, counted=False):
        self.counted = counted
        # name -> text; name -> module; function -> Device
        self.constants, self.imports, self.devices = {}, {}, {}
        self.arrays, self.declared = {}, {}  # name -> global ndarray; name -> Declared
        # operations: site -> what a thread does there
        self.sites, self.operations = [], {}
        self.prints, self.unset = False, []
        self.taken = {*taken, *RESERVED, *dir(builtins)}

    def fresh(self, name):
        """A name like `name` that nothing else has."""
        candidate, number = name, 1
        while candidate in self.taken or home_of(candidate):
            number += 1
            candidate = f"{name}_{number}"
        self.taken.add(candidate)
        return candidate

    def constant(self, name, text):
        """The name at the head of the file that stands for `text`."""
        for known, same in self.constants.items():
            if same == text and known.startswith(name):
                return known
        name = self.fresh(name)
        self.constants[name] = text
        return name

    def stem(self, name):
        """`name`, or one like it, with which and an underscore no other name begins."""
        while any(known.startswith(f"{name}_") for known in (*self.taken, *self.constants)):
            name += "_"
        return name

    def library(self, name):
        """The name of a function of ours, which the file then imports."""
        self.imports[name] = home_of(name)
        return name

    def array(self, value, name):
        """The parameter that brings a global array."""
        for known, array in self.arrays.items():
            if array is value:
                return known
        name = self.fresh(name)
        self.arrays[name] = value
        return name

    def site(self, site):
        """The number of a place in the source, for the text of this kernel."""
        if site not in self.sites:
            self.sites.append(site)
        return self.sites.index(site)


class Module(Parts):
    """The Parts of a kernel in Python. `dtypes`: of the kernel's arrays, by parameter."""

    def __init__(self, kernel, counted=False, dtypes=()):
        self.kernel, self.dtypes = kernel, dict(dtypes)
        self.used, self.reachable = set(), {}
        self.reach(kernel)
        taken = {
            name for function, names in self.reachable.items() for name in (*names.local, function.__name__)
        }
        super().__init__(taken | {names.tree.name for names in self.reachable.values()}, counted)

    def has_field(self, name):
        """Whether arrays of the launch have records with a field of this name."""
        return any(name in fields_of(dtype) for dtype in self.dtypes.values())

    def reach(self, function):
        """Find all functions that `function` calls, and which names of cuda."""
        if function in self.reachable:
            return
        if "fp16" in function.__code__.co_names:
            know_fp16()
        tree = tree_of(function) or tree_of_lambda(function)
        if tree is None:
            raise CannotLower(f"{function.__name__} has no source text")
        source = self.reachable[function] = Source(function, tree)
        for found in source.referents():
            self.used |= set(found.in_cuda.split(".")) - {""}
            if found.role == DEVICE:
                self.reach(found.function)

    def stops(self, function, seen=frozenset()):
        """Whether a thread may stop in `function`, or it declares shared memory: then it is inlined."""
        source, seen = self.reachable[function], seen | {function}
        return (
            bool(source.calls(WAIT))
            or any(call.func.referent.name == "shared.array" for call in source.calls(DECLARATION))
            or any(
                self.stops(call.func.referent.function, seen)
                for call in source.calls(DEVICE)
                if call.func.referent.function not in seen
            )
        )

    def value(self, node):
        """The number that a name of the file stands for, or MISSING."""
        try:
            return ast.literal_eval(self.constants[node.id])
        except (AttributeError, KeyError, ValueError):
            return MISSING

    def fresh_function(self, name):
        names = {device.name for device in self.devices.values()}
        return name if name not in names | RESERVED and not home_of(name) else self.fresh(name)


def know_fp16():
    """A kernel may say cuda.fp16 without having imported it."""
    with suppress(ImportError):  # Numba without numba-cuda
        importlib.import_module("numba.cuda.fp16")


def tree_of_lambda(function):
    """A lambda as a function's tree, where its lines hold no other; None for what is no lambda."""
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
    """`value` as Python text that gives it back, or None."""
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
