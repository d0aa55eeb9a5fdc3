"""Lookup of a function's global and free names: numbers, device functions, members of numba.cuda."""

import functools
import importlib
import inspect
import sys
import types

import ml_dtypes
import numpy as np

from sim.isa.conversions import cast
from sim.isa.table import ENTRY_OF_OBJECT, INSTRUCTIONS, name_of

MISSING = object()
CUDA_MODULES = ("numba.cuda", "sim.cuda")  # Modules that a kernel may import as `cuda`.
NAMESPACES = ("atomic", "shared", "local", "const")
PLAIN = (int, float, str, bool, tuple)
LIBRARIES = ("math", "cmath", "numpy", "operator", "_operator")


class Names:
    """The values of the names in a function: free variables first, then globals."""

    def __init__(self, function):
        self.free = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                self.free[name] = cell.cell_contents
            except ValueError:  # The enclosing function has not assigned the variable yet.
                pass
        self.globals = function.__globals__
        self.local = set(function.__code__.co_varnames) | set(function.__code__.co_cellvars)

    def value(self, name):
        """Return the value of a global or free name, or MISSING for a local variable or an unknown name."""
        if name in self.local:
            return MISSING
        if name in self.free:
            return self.free[name]
        return self.globals.get(name, MISSING)

    def resolve(self, path):
        """Return the value of a dotted name such as "cuda.shared.array", or MISSING."""
        # MISSING has no attributes, so `member` returns MISSING for it.
        first, *rest = path.split(".")
        return functools.reduce(member, rest, self.value(first))


def member(owner, name):
    """Return `owner.name`, or MISSING if there is no such attribute."""
    value = getattr(owner, name, MISSING)
    lacks = value is MISSING and owner is sys.modules.get("numba.cuda")
    return stand_ins().get(name, MISSING) if lacks else value


@functools.cache
def stand_ins():
    """Return {name: value} for names that kernels may use but that `numba.cuda` lacks when
    NUMBA_ENABLE_CUDASIM is set."""
    if not sys.modules["numba.cuda"].config.ENABLE_CUDASIM:
        return {}
    names = "stubs", "intrinsics", "cg", "libdevice"
    modules = [importlib.import_module(f"numba.cuda.{name}") for name in names]
    offered = {name: value for module in modules[:2] for name, value in public(vars(module))}
    return offered | {module.__name__.rpartition(".")[2]: module for module in modules[2:]}


# --- numba.cuda ---------------------------------------------------------------------------------------------


def names_in(code):
    """Return all global, free and attribute names that `code`, or a function nested in it, uses."""
    return [name for one in codes_in(code) for name in (*one.co_names, *one.co_freevars)]


def codes_in(code):
    """Yield `code` and all code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


def cuda_name(value):
    """Return the name of `value` in numba.cuda, or None if it is not a member. Without Numba, look in
    sim.cuda."""
    if value is MISSING or type(value) in PLAIN:
        return None
    modules = filter(None, map(sys.modules.get, CUDA_MODULES))
    return next(filter(None, (names_by_identity(module).get(id(value)) for module in modules)), None)


@functools.cache
def names_by_identity(module):
    """Return {id: name} for the members of `module` and of its namespaces, such as "atomic.add"."""
    offered = {**(stand_ins() if module.__name__ == "numba.cuda" else {}), **vars(module)}
    home = module.__name__.partition(".")[0]  # Skip modules that `module` only imports, such as numpy.
    named = {
        name: member
        for name, member in public(offered)
        if type(member) not in PLAIN
        and (not isinstance(member, types.ModuleType) or member.__name__.startswith(home))
    }
    inner = {
        f"{space}.{name}": getattr(member, "__func__", member)  # Unwrap a static method.
        for space in NAMESPACES
        for name, member in public(vars(named[space]))
    }
    return {id(member): name for name, member in {**inner, **named}.items()}


def public(members):
    return [(name, member) for name, member in members.items() if not name.startswith("_")]


def name_in_cuda(value):
    """Return the name of `value` in numba.cuda, or None. The constructor of a cooperative-groups grid is
    called "this_grid"."""
    home = getattr(value, "__module__", None) or ""
    of_grid = getattr(value, "__name__", None) == "this_grid" and home.startswith("numba.cuda")
    return name_of(value) or ("this_grid" if of_grid else cuda_name(value))


# module -> prefix of its functions' names in the table of sim.isa
OF_MODULE = {
    "math": "math.",
    "cmath": "cmath.",
    "numba.cuda.libdevice": "libdevice.",
    "numba.cuda._internal.cuda_fp16": "fp16.",
    "numba.cuda.fp16": "fp16.",
}


def entry_of(value):
    """Return the `sim.isa` entry for an object, found by identity or by name; None if there is no entry."""
    if value is MISSING or id(value) in ENTRY_OF_OBJECT:
        return ENTRY_OF_OBJECT.get(id(value))
    before = OF_MODULE.get(getattr(value, "__module__", None))
    return INSTRUCTIONS.get(cuda_name(value) if before is None else before + getattr(value, "__name__", ""))


def device_function(value):
    """Return the Python function of a device function. Return None for any other object, including Numba's
    internal functions."""
    home = getattr(value, "__module__", None) or ""
    # Kernels that Numba contains, also in its tests, count as user kernels.
    kernels = home.startswith(("numba.cuda.kernels.", "numba.cuda.random")) or ".tests." in home
    own = home.partition(".")[0] in ("math", "numpy", "builtins") or home.startswith("numba.") and not kernels
    return None if value is MISSING or own or cuda_name(value) or name_of(value) else python_function(value)


# --- dtypes and functions -----------------------------------------------------------------------------------


class DType:
    """A dtype inside a kernel. A call of it converts a value, and an array declaration uses it as the element
    type."""

    def __init__(self, dtype):
        self.dtype = np.dtype(dtype)
        self.convert = cast(self.dtype)

    def __call__(self, value=0):
        return self.convert(value)

    def __repr__(self):
        return f"<dtype {self.dtype}>"


@functools.cache
def as_dtype(value):
    """Return the numpy dtype for a numpy type, a Numba type, a dtype, a DType or a name; None for anything
    else."""
    if isinstance(value, DType):
        return value.dtype
    if isinstance(value, np.dtype):
        return value
    if isinstance(value, type) and issubclass(value, np.generic):
        return np.dtype(value)
    if value in (int, float, bool, complex):
        return np.dtype(value)
    if isinstance(value, str):
        return dtype_named(value)
    if type(value).__module__.startswith(("numba.core.types", "numba.cuda.types", "numba.cuda._internal")):
        record = getattr(value, "dtype", None)
        return record if isinstance(record, np.dtype) else dtype_named(str(getattr(value, "name", value)))
    if any(base.__name__ == "Type" and base.__module__.startswith("numba") for base in type(value).__mro__):
        return np.dtype(
            object
        )  # An extension of Numba has added this type. The simulator cannot store its values as bytes.
    return None


def dtype_named(name):
    if name.removeprefix("__nv_") == "bfloat16":
        return np.dtype(ml_dtypes.bfloat16)
    try:
        return np.dtype("bool" if name == "boolean" else name)
    except (TypeError, ValueError, SyntaxError):  # numpy raises one of these three for an unknown dtype.
        return None


def dtype_or_none(value):
    """Return `as_dtype(value)`, or None for an unhashable value.

    Functions and modules are excluded first, because the cache of `as_dtype` would keep them alive.
    """
    if isinstance(value, (types.FunctionType, types.ModuleType)) or hasattr(value, "py_func"):
        return None
    try:
        return as_dtype(value)
    except TypeError:
        return None


def python_function(kernel):
    """Return the Python function of a `@cuda.jit` dispatcher, or a plain function itself, or None for any
    other object."""
    # The attribute is `py_func` in numba-cuda, and `fn` in Numba's own simulator.
    function = getattr(kernel, "py_func", None) or getattr(kernel, "fn", kernel)
    return function if isinstance(function, types.FunctionType) else None


def positional(function):
    """Return the names of a function's parameters from its code object.

    Return None if this requires `inspect.signature`, because some parameters are not positional or a
    decorator has changed the signature.
    """
    code = function.__code__
    if hasattr(function, "__wrapped__") or hasattr(function, "__signature__"):
        return None
    if code.co_kwonlyargcount or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS):
        return None
    return list(code.co_varnames[: code.co_argcount])


def only_signature(dispatcher):
    """Return the signature passed to `@cuda.jit("...", device=True)`, or None."""
    compiled = list(getattr(dispatcher, "overloads", {}).values())
    # A dispatcher without a signature compiles a version for each combination of argument types.
    if len(compiled) != 1 or getattr(dispatcher, "_can_compile", True):
        return None
    return compiled[0].signature


def is_number(dtype):
    return dtype.names is None and not dtype.hasobject


# --- captured values ----------------------------------------------------------------------------------------


def captured_values(function, seen=frozenset()):
    """Return a hashable key for the values of the global and free names of a function and of the device
    functions that it calls.

    A rewritten kernel may be reused only as long as this key is the same. `seen` ends the recursion.
    """
    names, mentioned, seen = Names(function), sorted(set(names_in(function.__code__))), seen | {function}
    return tuple(comparison_key(names.value(name), mentioned, seen) for name in mentioned)


def comparison_key(value, mentioned, seen):
    """Return the part of the key for one global: a number itself, a function's code object, the members of a
    module that the kernel mentions, or the identity of any other object.

    The key keeps the code object alive. Otherwise, a new object could have the same address, and its key
    would be equal.
    """
    if isinstance(value, (int, float, complex, str, np.generic)):
        return type(value), value
    if isinstance(value, tuple):
        return value
    if isinstance(value, np.ndarray):
        # Each launch reads the contents of the array, so only its identity and layout matter.
        return id(value), value.shape, value.dtype
    if (function := device_function(value)) is not None:
        return function.__code__, () if function in seen else captured_values(function, seen)
    if isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in (*LIBRARIES, "numba"):
        return tuple(
            comparison_key(getattr(value, name), (), seen) for name in mentioned if hasattr(value, name)
        )
    return id(value)
