"""Name resolution: parses a function once, and annotates each name with the object that it denotes and each
call with its role.

The interpreter and the compiler read these annotations. Neither of them resolves names itself:

    node.referent    on a Name or an Attribute: its Referent
    node.calls       on a Call: the role of the called name, or ATOMIC, WAIT or a value of CALLS
    node.declares    on a Call that declares an array: its Declaration

To add a role, add a constant to this file. Then add a method `call_ROLE` to each code generator that has
special code for such calls.
"""

import ast
import builtins
import copy
import functools
import inspect
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np

from sim.errors import LaunchError
from sim.events import Site
from sim.frontend.names import (
    CUDA_MODULES,
    MISSING,
    Names,
    device_function,
    dtype_or_none,
    entry_of,
    member,
    name_in_cuda,
)
from sim.frontend.tree import all_nodes, copied, tree_of
from sim.isa.functions import Function
from sim.isa.table import BLOCK_WIDE, WARP_WIDE

# Roles of a name:
VARIABLE = "variable"
MEMBER = "member"  # an attribute of a value (`a.shape`)
BUILTIN = "builtin"
CONSTANT = "constant"  # a number or a tuple of numbers
GEOMETRY = "geometry"  # a geometry variable such as threadIdx
AXIS = "axis"  # one axis of a geometry variable
FUNCTION = "function"  # a Function in the table of sim.isa
DTYPE = "dtype"
CUDA = "cuda"  # another member of numba.cuda
DEVICE = "device"  # a device function
OBJECT = "object"  # any other object
# Roles of calls to members of numba.cuda.
ATOMIC, DECLARATION, LANES, POSITION = "atomic", "declaration", "lanes", "position"
SAME, WAIT = "same", "wait"
CALLS = {
    "shared.array": DECLARATION,
    "local.array": DECLARATION,
    "const.array_like": SAME,
    "grid": POSITION,
    "gridsize": POSITION,
    "lanemask_lt": LANES,
}
GEOMETRIES = {"threadIdx", "blockIdx", "blockDim", "gridDim", "laneid", "warpsize"}
PLAIN = (bool, int, float, complex, str, tuple, type(None), np.generic)
PYTHON_TYPES = (int, float, bool, complex)


class Referent:
    """The object that a name refers to.

    role: one of the role constants.
    value: the object itself, or MISSING.
    name: its name in numba.cuda or in `builtins`.
    entry, dtype, function: the entry in `sim.isa`, the dtype or the Python function that the object
        represents, if any.
    """

    def __init__(self, role, value=MISSING, name="", entry=None, dtype=None, function=None):
        self.role, self.value, self.name = role, value, name
        self.entry, self.dtype, self.function = entry, dtype, function

    def __deepcopy__(self, memo):
        # Referents are shared and immutable, so a copy of a tree contains the same Referents.
        return self

    @property
    def in_cuda(self):
        """The name in numba.cuda, or ""."""
        return "" if self.role == BUILTIN else self.name

    @property
    def calls(self):
        """The role of a call to this object."""
        if self.role is not CUDA:
            return self.role
        first = self.name.partition(".")[0]
        if {first, self.name} & (BLOCK_WIDE | WARP_WIDE):
            return WAIT
        return CALLS.get(self.name, ATOMIC if first == "atomic" else CUDA)


OF_THE_FUNCTION, OF_A_VALUE = Referent(VARIABLE), Referent(MEMBER)


@dataclass
class Declaration:
    """A call to `cuda.shared.array` or `cuda.local.array`. Shape and dtype are expressions, or None if
    omitted.

    variable: the variable that always has this array as its value, or None.
    """

    space: str
    shape: ast.expr | None
    dtype: ast.expr | None
    variable: str | None = None


def declaration_of(node):
    """Return the Declaration of a call that declares an array."""
    given = dict(zip(("shape", "dtype"), node.args))
    given |= {keyword.arg: keyword.value for keyword in node.keywords}
    space = node.func.referent.name.partition(".")[0]
    return Declaration(space, given.get("shape"), given.get("dtype"))


def copied_tree(tree):
    """Return a copy of an annotated syntax tree. Its Declarations refer to expressions of the copy."""
    tree = copied(tree)
    for node in all_nodes(tree):
        if hasattr(node, "declares"):
            node.declares = replace(declaration_of(node), variable=node.declares.variable)
    return tree


def referent(value):
    """Classify an object and return its Referent."""
    if isinstance(value, PLAIN):
        return Referent(CONSTANT, value)
    name, entry = name_in_cuda(value) or "", entry_of(value)
    if name in GEOMETRIES:
        return Referent(GEOMETRY, value, name)
    if isinstance(entry, Function):
        return Referent(FUNCTION, value, name, entry)
    dtype = None if any(value is python_type for python_type in PYTHON_TYPES) else dtype_or_none(value)
    if dtype is not None:
        return Referent(DTYPE, value, name, dtype=dtype)
    if name:
        return Referent(CUDA, value, name, entry)
    own = getattr(value, "__name__", None)
    if isinstance(own, str) and getattr(builtins, own, MISSING) is value:
        return Referent(BUILTIN, value, own, dtype=dtype_or_none(value))
    function = device_function(value)
    return Referent(OBJECT if function is None else DEVICE, value, function=function)


def referent_of(node):
    """Return the Referent of an expression.

    A node that a code generator has added has no Referent, and is treated as an attribute access on a value.
    """
    return getattr(node, "referent", OF_A_VALUE)


class Source(ast.NodeVisitor):
    """A function's syntax tree, annotated with Referents, call roles and declarations.

    local: names of the function's variables.
    known: {parameter: Referent} for parameters with a known value.
    """

    def __init__(self, function, tree, known=()):
        self.function, self.name, self.tree = function, function.__name__, tree
        self.names, self.known, self.local = Names(function), dict(known), tree.variables - set(known)
        self.visit(tree)

    def with_known(self, known):
        """Return a copy of this Source in which the parameters in `known` have the given Referents."""
        if not known:
            return self
        source = copy.copy(self)
        source.tree, source.known, source.local = copied_tree(self.tree), known, self.local - set(known)
        vars(source).pop("all_calls", None)
        source.visit(source.tree)
        return source

    # --- annotations ----------------------------------------------------------------------------------------

    def visit_Name(self, node):
        if node.id in self.local or not isinstance(node.ctx, ast.Load):
            node.referent = OF_THE_FUNCTION
            return
        value = self.names.value(node.id)
        found = None if value is MISSING else referent(value)
        node.referent = found or self.known.get(node.id) or Referent(BUILTIN, name=node.id)

    def visit_Attribute(self, node):
        self.visit(node.value)
        owner = referent_of(node.value)
        if owner.role == GEOMETRY:
            node.referent = Referent(AXIS, name=owner.name)
            return
        value = MISSING if owner.value is MISSING else member(owner.value, node.attr)
        node.referent = missing_attribute(owner, node.attr) if value is MISSING else referent(value)

    def visit_Call(self, node):
        self.generic_visit(node)
        node.calls = referent_of(node.func).calls
        if node.calls == DECLARATION:
            node.declares = declaration_of(node)
            self.check_shape(node)

    def visit_Assign(self, node):
        self.generic_visit(node)
        parts = [(node.targets[0], node.value)]
        if all(isinstance(part, ast.Tuple) for part in parts[0]):
            parts = zip(*(part.elts for part in parts[0]))
        for target, value in parts:
            if hasattr(value, "declares") and isinstance(target, ast.Name) and len(node.targets) == 1:
                stores = (n for n in all_nodes(self.tree) if getattr(n, "id", "") == target.id)
                once = sum(isinstance(name.ctx, ast.Store) for name in stores) == 1
                value.declares.variable = target.id if once else None

    def check_shape(self, node):
        """Raise LaunchError if a declared array's shape contains arithmetic on names.

        Numba requires a compile-time constant, and does not fold such expressions.
        """
        for part in all_nodes(node.declares.shape or ast.Constant(0)):
            operation = isinstance(part, (ast.BinOp, ast.UnaryOp, ast.Call, ast.IfExp))
            computed = operation or getattr(part, "attr", "") == "shape"
            if computed and any(isinstance(name, ast.Name) for name in all_nodes(part)):
                site = self.site("call", node)
                raise LaunchError(
                    f"{ast.unparse(part)} in the shape of a declared array is not a constant for Numba:"
                    f" {site.function} line {site.line}  {site.source}\n  use numbers, or names of numbers"
                    " defined outside the kernel: assign the result to such a name, as in WIDTH = TILE + 1"
                )

    # --- queries --------------------------------------------------------------------------------------------

    def referents(self):
        """Return the Referents of all names and attributes that the function reads."""
        return [
            node.referent
            for node in all_nodes(self.tree)
            if isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Load)
        ]

    def calls(self, *roles):
        """Return the calls with one of these roles."""
        return [node for node in self.all_calls if getattr(node, "calls", None) in roles]

    @functools.cached_property
    def all_calls(self):
        """All calls of the function."""
        return [node for node in all_nodes(self.tree) if isinstance(node, ast.Call)]

    @property
    def acts_on_atomics(self):
        """True if the function uses the result of an atomic or contains a fence, so that its behaviour may
        depend on the schedule."""
        names = (node for node in all_nodes(self.tree) if isinstance(node, ast.Name))
        read = {name.id for name in names if isinstance(name.ctx, ast.Load)}
        # An atomic's result is unused in an expression statement, and in an assignment to names that are
        # never read.
        ignored = {
            id(node.value)
            for node in all_nodes(self.tree)
            if isinstance(node, ast.Expr)
            or isinstance(node, ast.Assign)
            and all(isinstance(target, ast.Name) and target.id not in read for target in node.targets)
        }
        return any(id(call) not in ignored for call in self.calls(ATOMIC)) or any(
            found.name.startswith("threadfence") for found in self.referents()
        )

    @property
    def stores_elsewhere(self):
        """True if the function may store to an array other than those that it declares itself."""
        nodes = all_nodes(self.tree)
        made = [node for node in nodes if getattr(getattr(node, "value", None), "calls", None) == DECLARATION]
        own = {getattr(node.targets[0], "id", "") for node in made if isinstance(node, ast.Assign)}
        subscripts = (node for node in nodes if isinstance(node, ast.Subscript))
        stored = [node.value for node in subscripts if isinstance(node.ctx, ast.Store)]
        # These calls may write to their first argument.
        stored += [node.args[0] for node in self.calls(ATOMIC, WAIT, CUDA) if node.args]
        arrays = (part for part in stored if isinstance(part, (ast.Name, ast.Subscript, ast.Attribute)))
        return any(getattr(part, "id", None) not in own for part in arrays)

    def value_return(self, seen=frozenset()):
        """Return the first `return` statement that returns a value other than None, or None.

        A `return f(x)`, where f is a device function, counts only if f returns a value. `seen` ends the
        recursion.
        """
        for node in returns_of(self.tree):
            function = getattr(getattr(node.value, "func", None), "referent", OF_A_VALUE).function
            nothing = node.value is None or isinstance(node.value, ast.Constant) and node.value.value is None
            source = None if function is None or function in seen else source_of(function)
            if not (nothing or source and source.value_return(seen | {function}) is None):
                return node
        return None

    # --- sites ----------------------------------------------------------------------------------------------

    def site(self, action, node):
        """Return the Site of `node`, with its line number counted from the function's first line."""
        line = self.tree.lines.get(node.lineno, "")
        column, indent = node.col_offset, len(line) - len(line.lstrip())
        return Site(action, self.name, node.lineno - self.tree.lineno + 1, column, line.strip(), indent)


def source_of(function):
    """Return the Source of a function, or None if its source text is unavailable."""
    tree = tree_of(function)
    return None if tree is None else Source(function, tree)


def returns_of(node):
    """Yield the `return` statements in `node`, but not those of nested functions."""
    for part in ast.iter_child_nodes(node):
        if isinstance(part, ast.Return):
            yield part
        elif not isinstance(part, (ast.FunctionDef, ast.Lambda)):
            yield from returns_of(part)


def missing_attribute(owner, name):
    """Return the Referent of an attribute that does not exist.

    A member of `cuda` is recognised by its name even if the installed Numba version does not have it.
    """
    if isinstance(owner.value, ModuleType) and owner.value.__name__ in CUDA_MODULES:
        return Referent(CUDA, name=name)
    if owner.role == CUDA:
        return Referent(CUDA, name=f"{owner.name}.{name}")
    return OF_A_VALUE


def builtin_called(node):
    """Return the name of the builtin that `node` calls, or "" for any other node."""
    return node.func.referent.name if getattr(node, "calls", "") == BUILTIN else ""


def first_argument(call):
    """Return the expression of a call's first argument, positional or keyword."""
    return (*call.args, *(keyword.value for keyword in call.keywords))[0]


def bound_arguments(function, call):
    """Return {parameter: argument expression, or the parameter's default value} for a call to `function`.

    Return None if the call unpacks arguments (`*values`, `**values`) or does not match the signature.
    """
    named = {keyword.arg: keyword.value for keyword in call.keywords}
    # The call is f(*values) or f(**values).
    if None in named or any(isinstance(part, ast.Starred) for part in call.args):
        return None
    try:
        bound = inspect.signature(function).bind(*call.args, **named)
    except TypeError:
        return None
    bound.apply_defaults()
    return bound.arguments
