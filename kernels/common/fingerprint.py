"""Fingerprints of kernels: a hash of a kernel and of everything from which Numba compiles it.

A kernel is compiled from the bytecode of its function and of all device functions and intrinsics that it
calls, and from the values of the variables that these functions capture. The fingerprint hashes all of these,
so it changes if any of them changes. It does not include line numbers or file names.
"""

import builtins
import functools
import hashlib
import types
from numbers import Number

import numpy as np
from llvmlite import ir
from numba.cuda.dispatcher import CUDADispatcher

from kernels.common.numba_parts import Intrinsic, Type

# libraries whose versions are part of the cache key, so that hashing the names of their objects is enough
LIBRARIES = ("numba", "numpy", "llvmlite", "math", "operator", "builtins", "ml_dtypes")


class UnknownObjectError(TypeError):
    """A captured object that cannot be hashed, because its effect on the machine code is unknown."""


def fingerprint(kernel):
    """Return the fingerprint of a @cuda.jit kernel as hexadecimal text.

    Raise UnknownObjectError if the kernel captures an object of an unknown type.
    """
    reader = Reader()
    reader.read(kernel)
    return reader.hash.hexdigest()


class Reader:
    """A traversal of the objects on which a kernel depends, which hashes each of them once."""

    def __init__(self):
        self.hash, self.seen, self.alive = hashlib.sha256(), {}, []

    def put(self, *texts):
        """Hash texts, each with its length, so that no two sequences of texts have the same bytes."""
        for text in map(str, texts):
            data = text.encode("utf-8", "surrogatepass")
            self.hash.update(b"%d:" % len(data) + data)

    def read(self, value):
        """Hash an object and everything that it refers to."""
        if isinstance(value, (Number, np.generic, np.dtype, str, bytes, type(None), type(...))):
            return self.put(type(value).__name__, repr(value))
        if id(value) in self.seen:  # also stops at cycles, such as a recursive function
            return self.put("seen", self.seen[id(value)])
        self.seen[id(value)] = len(self.seen)
        self.alive.append(value)  # keeps the object alive, so that its id stays unique
        self.read_new(value)

    def read_new(self, value):
        if isinstance(value, CUDADispatcher):
            self.put("kernel")
            self.read_items(value.targetoptions)
            self.read(value.py_func)
        elif isinstance(value, Intrinsic):
            self.put("intrinsic", value._name, value._prefer_literal)
            self.read(value._defn)
        elif isinstance(value, types.FunctionType) and not of_library(value):
            self.read_function(value)
        elif isinstance(value, types.CodeType):
            self.read_code(value)
        elif isinstance(value, (tuple, list)):
            self.put(type(value).__name__, len(value))
            for item in value:
                self.read(item)
        elif isinstance(value, dict):
            self.put("dict", len(value))
            for key, item in value.items():
                self.read(key)
                self.read(item)
        elif isinstance(value, (set, frozenset)):
            self.put("set", *sorted(map(repr, value)))
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self.put("array", value.dtype, value.shape, value.tobytes().hex())
        elif isinstance(value, (Type, ir.Type)):
            self.put(type(value).__name__, value)
        elif isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            self.put("named tuple", value.__name__, *value._fields)
        else:
            self.read_by_name(value)

    def read_by_name(self, value):
        """Hash a module or a library's object by its name."""
        if isinstance(value, functools._lru_cache_wrapper):
            return self.read(value.__wrapped__)
        named = value if hasattr(value, "__qualname__") else type(value)
        home = value.__name__ if isinstance(value, types.ModuleType) else named.__module__
        if (home or "builtins").partition(".")[0].removeprefix("_") not in LIBRARIES:
            raise UnknownObjectError(f"{value!r}")
        self.put(type(value).__name__, home, getattr(named, "__qualname__", ""))

    def read_items(self, named):
        """Hash a dict's items, sorted by name."""
        for name in sorted(named):
            self.put(name)
            self.read(named[name])

    def read_function(self, function):
        self.put("function", function.__module__, function.__qualname__)
        self.read(function.__code__)
        self.read(function.__defaults__)
        self.read_items(function.__kwdefaults__ or {})
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        self.read_items({name: cell.cell_contents for name, cell in cells})
        names = names_of(function.__code__)
        found = {name: function.__globals__[name] for name in names if name in function.__globals__}
        for name in sorted(found):
            self.put(name)
            self.read_global(found[name], names)
        own = {name: vars(builtins)[name] for name in names if name in vars(builtins) and name not in found}
        self.put(*sorted(own))

    def read_global(self, value, names):
        """Hash a global variable. For a module outside the libraries, hash the attributes that the code may
        use."""
        outside = isinstance(value, types.ModuleType) and value.__name__.partition(".")[0] not in LIBRARIES
        if outside:
            self.read_items({name: getattr(value, name) for name in names if hasattr(value, name)})
        else:
            self.read(value)

    def read_code(self, code):
        self.put("code", code.co_code.hex(), code.co_argcount, code.co_flags)
        self.put(*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars)
        self.read(code.co_consts)


def of_library(function):
    """Return whether a function is defined in a library's module, not by `exec` in a nameless namespace."""
    home = function.__globals__.get("__name__")
    return home is not None and home.partition(".")[0] in LIBRARIES


def names_of(code):
    """Return the names of globals and attributes in a code object, and in those nested in it."""
    nested = (const for const in code.co_consts if isinstance(const, types.CodeType))
    return set(code.co_names).union(*map(names_of, nested))
