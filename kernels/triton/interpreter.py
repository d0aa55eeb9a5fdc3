"""An interpreter for Triton kernels that runs without Triton, in NumPy, and checks every access to an array.

Programs run one after the other. `interpreted` is a runner, like those of `kernels.triton.launch`:
    flash_forward(q, k, v, run=interpreted). It reports the bugs of programs: accesses out of bounds, and
    elements that two programs access without a defined order. It does not model the threads of a program;
    `simulated` does.
"""

import ast
import builtins
import dis
import functools
import inspect
import linecache
import sys
import textwrap
import traceback
from math import prod
from pathlib import Path
from types import CellType, FunctionType
from typing import NamedTuple

import numpy as np
import torch

from kernels.triton import optional
from kernels.triton.blocks import Language, Pointer, Tile
from kernels.triton.counted_array import Array, Found

ALLOWED = "range float int len isinstance tuple print NotImplementedError AssertionError"
ALLOWED = {name: getattr(builtins, name) for name in ALLOWED.split()}
REFUSED = "Break Continue Lambda Dict Set Try Import ImportFrom GeneratorExp DictComp SetComp Yield ClassDef"
REFUSED = tuple(getattr(ast, name) for name in REFUSED.split())


class ProgramBug(Exception):
    """A bug in a program. A notebook shows only the message."""

    def _render_traceback_(self):
        return [f"ProgramBug: {self}"]


class Launch(NamedTuple):
    """The result of a launch. arrays: {name: counted_array.Array}, with counts per element."""

    programs: int
    arrays: dict


def interpreted(kernel, grid, *arguments, num_warps=4, order=None, **constants):
    """Run a kernel in the interpreter, and return a Launch.

    arguments: contiguous tensors and arrays, and numbers.
    order: the program indices in the order in which they run.

    Raise ProgramBug for a bug, and TypeError for many constructs that Triton rejects. num_warps has no
    effect.
    """
    grid = (*grid, 1, 1)[:3]
    arrays, language = {}, Language(grid)
    given = {name: kernel_argument(name, value, arrays) for name, value in zip(kernel.arg_names, arguments)}
    program = Program(kernel, language)
    for number in range(prod(grid)) if order is None else order:
        language.starts(int(number))
        program.run(given | constants)
        for array in arrays.values():
            array.program_ends()
    return Launch(prod(grid), arrays)


def kernel_argument(name, value, arrays):
    """Convert an argument to what the kernel receives: a pointer to an array, or a scalar."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if not isinstance(value, np.ndarray):
        return Tile(np.asarray(value, np.float32 if isinstance(value, (float, np.floating)) else np.int32))
    if not value.flags.c_contiguous or value.dtype not in (np.float32, np.int32):
        raise TypeError(f"{name}: a contiguous array of float32 or int32 is wanted; it is {value.dtype}")
    arrays[name] = Array(name, value.shape, value.reshape(-1))
    return Pointer(arrays[name], np.zeros((), np.int64))


class Program:
    """A kernel and the kernels that it calls as plain Python functions, with `language` in place of tl."""

    def __init__(self, kernel, language):
        self.language, self.functions, self.loops = language, {}, {}
        self.builtins = ALLOWED | {"min": extreme(language.minimum), "max": extreme(language.maximum)}
        self.kernel = self.plain(kernel)

    def plain(self, kernel):
        function = kernel.fn
        if function not in self.functions:
            # a placeholder while its names are resolved, in case of recursion
            self.functions[function] = None
            self.loops[function.__code__] = loops(function)
            names = {name: self.seen(name, function) for name in globals_of(function.__code__)}
            names["__builtins__"] = self.builtins
            cells = tuple(CellType(self.meant(cell.cell_contents)) for cell in function.__closure__ or ())
            made = FunctionType(
                function.__code__, names, function.__name__, function.__defaults__, cells or None
            )
            made.__kwdefaults__ = function.__kwdefaults__
            self.functions[function] = made
        return self.functions[function]

    def seen(self, name, function):
        """Return the value of a global name in a kernel."""
        value = function.__globals__.get(name, self.builtins.get(name))
        meant = self.meant(value)
        if meant is value and name not in self.builtins:
            raise TypeError(
                f"{function.__name__} uses {name}: a kernel may use its arguments, tl, functions under"
                " @triton.jit, and a global number that is a tl.constexpr(...)"
            )
        return meant

    def meant(self, value):
        if value is optional.tl:
            return self.language
        if isinstance(value, optional.tl.constexpr):
            return value.value
        return self.plain(value) if hasattr(value, "fn") and hasattr(value, "arg_names") else value

    def run(self, arguments):
        # a debugger or a coverage tool may already have set a trace function
        usual = sys.gettrace()
        sys.settrace(self.enters)
        try:
            self.kernel(**arguments)
        except Found as found:
            kind, does, fix = found.args
            place = self.language.named(self.language.number)
            where = line_of(found, self.loops)
            text = f"{kind}: program {place} {does}\n  {where}\n  Likely fix: {fix}"
            raise ProgramBug(text) from None
        finally:
            sys.settrace(usual)

    # Triton gives each variable of a loop a single type, so a loop must not change the type of a variable.

    def enters(self, frame, event, argument):
        return Types(self.loops[frame.f_code]) if frame.f_code in self.loops else None


class Types:
    """A trace function, called at each line, that rejects variables whose type changes in a loop."""

    def __init__(self, lines):
        self.lines, self.before = lines, {}

    def __call__(self, frame, event, argument):
        if event == "line" and frame.f_lineno in self.lines:
            now = {name: type_of(value) for name, value in frame.f_locals.items()}
            for name, before in self.before.setdefault(frame.f_lineno, now).items():
                if now[name] != before:
                    raise TypeError(
                        f"{name} is {before} before the loop and {now[name]} after a round: a loop keeps a"
                        " variable's type; tl.zeros or tl.full makes a tile to begin with"
                    )
        return self


def type_of(value):
    """Return a type as Triton sees it, as text."""
    if isinstance(value, Tile):
        return repr(value)
    return {bool: "one bool", int: "one int32", float: "one float32"}.get(type(value))


def extreme(function):
    """Return Python's min or max for a kernel, applied element by element to scalars and tiles."""

    def of_two(a, b):
        made = function(a, b)
        return made.to(np.int32) if made.dtype == np.int64 and not made.shape else made

    return lambda *values: functools.reduce(of_two, values)


def globals_of(code):
    """Return the names of the globals that a function uses."""
    return {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")}


def loops(function):
    """Return the line numbers of a function's loops, except those that Triton unrolls.

    Raise TypeError for syntax that Triton does not support.
    """
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, SyntaxError):
        return frozenset()
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, REFUSED):
            what = type(node).__name__.lower()
            raise TypeError(f"line {node.lineno} of {function.__name__}: Triton has no {what}")
        if (
            isinstance(node, ast.While)
            or isinstance(node, ast.For)
            and "static" not in ast.unparse(node.iter)
        ):
            found.add(first + node.lineno - 1)
    return frozenset(found)


def line_of(error, codes):
    """Return the innermost kernel line in an exception's traceback, such as "halo.py line 19  tl.store(...)".

    In a notebook, which has no file, lines are counted from the function's def.
    """
    steps = [(frame, line) for frame, line in traceback.walk_tb(error.__traceback__) if frame.f_code in codes]
    frame, line = steps[-1]
    file, source = frame.f_code.co_filename, linecache.getline(frame.f_code.co_filename, line).strip()
    if Path(file).suffix == ".py" and "ipykernel" not in file:
        return f"{Path(file).name} line {line}  {source}"
    first = frame.f_code.co_firstlineno
    while not linecache.getline(file, first).lstrip().startswith("def") and first < line:
        first += 1
    return f"{frame.f_code.co_name} line {line - first + 1}  {source}"
