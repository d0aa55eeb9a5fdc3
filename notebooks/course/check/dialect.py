"""Searches a kernel's bytecode for Python features that no GPU supports, such as lists, generators and numpy
functions on whole arrays. The search needs no compiler."""

import builtins
import dis
from types import CodeType, FunctionType, ModuleType

import numpy as np

from course.check.words import fail

MAKES = {
    "BUILD_LIST": "makes a list",
    "BUILD_SET": "makes a set",
    "BUILD_MAP": "makes a dictionary",
    "BUILD_CONST_KEY_MAP": "makes a dictionary",
    "MAP_ADD": "makes a dictionary",
    "YIELD_VALUE": "is a generator",
    "IMPORT_NAME": "imports a module",
}
CODES = {
    "<listcomp>": "makes a list",
    "<genexpr>": "uses a generator",
    "<setcomp>": "makes a set",
    "<dictcomp>": "makes a dictionary",
}
NOT_ON_A_GPU = (
    "all any dict eval exec filter getattr iter list map next open set setattr sorted str type vars".split()
)
PYTHONS = {getattr(builtins, name) for name in NOT_ON_A_GPU}
ONLY_NUMBERS = (
    "A kernel works on single numbers: use loops, array elements, float32(...), cuda.local.array and"
    " cuda.shared.array instead of lists, generators and operations on whole arrays."
)


def refuse(kernel):
    """Reject a kernel if it or one of its device functions uses features that no GPU supports."""
    for function, what in found(python_function(kernel), set()):
        fail(f"no GPU can run this: {function} {what}", hint=ONLY_NUMBERS)


def python_function(kernel):
    return getattr(kernel, "py_func", kernel)


def of_package(kernel, package, allowed=()):
    """Yield the names of the package's functions that a kernel or one of its device functions calls."""
    for function in called(kernel, {python_function(function) for function in allowed}, package):
        if package_of(function) == package:
            yield f"{function.__module__}.{function.__name__}"


def called(kernel, free=(), package=None):
    """Yield a kernel's Python function and those of its device functions, except the functions in `free`.

    The search does not enter libraries or functions of `package`.
    """
    waiting, seen = [python_function(kernel)], set()
    while waiting:
        function = waiting.pop()
        if not isinstance(function, FunctionType) or function in free or function.__code__ in seen:
            continue
        if is_a_librarys(function):
            continue
        seen.add(function.__code__)
        yield function
        if package_of(function) != package:
            waiting += [python_function(value) for _, value in names(function)]


def package_of(function):
    """Return the name of the top-level package of a function's module."""
    return (function.__module__ or "").partition(".")[0]


def found(function, seen):
    """Yield (function name, description) for the first use of each unsupported feature.

    The search covers `function` and its callees.
    """
    if not isinstance(function, FunctionType) or function.__code__ in seen or is_a_librarys(function):
        return
    seen.add(function.__code__)
    yield from ((function.__name__, what) for what in asks_for(function.__code__))
    for name, value in names(function):
        if what := refused(value):
            yield function.__name__, f"calls {name}{what}"
        yield from found(python_function(value), seen)


def asks_for(code):
    """Yield a description of each operation that needs the Python runtime, in a code object or in code nested
    inside it."""
    steps = [*dis.get_instructions(code)]
    made = [MAKES[step.opname] for step in steps if step.opname in MAKES]
    for _ in filter(ends_a_tuple, steps):
        made.remove(MAKES["BUILD_LIST"])
    yield from made
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from [CODES[part.co_name]] if part.co_name in CODES else asks_for(part)


def ends_a_tuple(step):
    """Return whether an instruction converts a temporary list to a tuple, as in `f(*p, *q)`.

    Numba's compiler sees only the tuple.
    """
    return "LIST_TO_TUPLE" in (step.opname, step.argrepr.removeprefix("INTRINSIC_"))


def names(function):
    """Yield (name as written, value) for the globals, closure variables and module attributes that the code
    uses."""
    outside = {**vars(builtins), **function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    outside |= {name: cell.cell_contents for name, cell in cells if cell != type(cell)()}
    module = None
    for step in dis.get_instructions(function.__code__):
        value = (
            outside.get(step.argval) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF") else None
        )
        if module and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            value, name = getattr(module[1], step.argval, None), f"{module[0]}.{step.argval}"
        else:
            name = step.argval
        module = (name, value) if isinstance(value, ModuleType) else None
        if value is not None and module is None:
            yield name, value


def refused(value):
    """Return why a GPU cannot call this value, or None if it can.

    The reason is "" if the name alone explains the refusal.
    """
    try:
        if value in PYTHONS:
            return ", a Python built-in"
    except TypeError:
        return None
    home = (getattr(value, "__module__", None) or "").partition(".")[0]
    if home == "torch" and callable(value):
        return ", a PyTorch function"
    whole = home == "numpy" and callable(value) and not isinstance(value, (type, np.ufunc, np.generic))
    return ", which works on whole arrays" if whole else None


def is_a_librarys(function):
    return package_of(function) in ("numba", "math", "numpy", "torch", "sim")
