"""Disk cache of compiled kernels, in one folder per user.

The generated text of a kernel is stored in a Python file, whose name contains a hash of everything that
determines the text. The machine code that Numba compiles from the text is pickled into files next to it. Each
file begins with a hash of its contents; a damaged file is ignored and replaced. Kernels that have not been
launched for 60 days are removed.

Loading a pickle can run arbitrary code. The cache therefore refuses a folder that another user can change or
replace.
"""

import functools
import linecache
import os
import pickle
import sys
import tempfile
import types
import warnings
from contextlib import suppress
from pathlib import Path

import llvmlite
import numba
from numba.core.caching import NullCache
from numba.core.codegen import RuntimeLinker
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from sim.private_files import (
    cache_home,
    digest,
    find_permission_problem,
    prune,
    read_hashed,
    usage,
    write_hashed,
)

# The `sim` package. Its sources are part of every cache key.
ROOT = Path(__file__).parents[2]


@functools.cache
def version():
    """Return a hash of the compiler versions and of all sources that can affect compiled code."""
    sources = (
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("viz", "observers")
    )
    compilers = f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode()
    return digest(b"\0".join([compilers, *(path.read_bytes() for path in sources)]))


@functools.cache
def folder():
    """Return the cache folder, which is in NUMBA_CACHE_DIR or in the user's cache directory.

    If other users could change the folder, warn, and use a temporary folder, deleted when the process ends.
    If the folder is not writable, use a temporary folder without a warning.
    """
    path = cache_home() / "sim-native"
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        if problem := find_permission_problem(path):
            warnings.warn(
                f"compiled kernels are not cached, so each process compiles them again: {problem}. Loading a"
                " cached kernel executes its code, so no other user may be able to change the cache folder:"
                " change its permissions, or set NUMBA_CACHE_DIR to another folder",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            # Creating a file proves that the folder is writable.
            with tempfile.TemporaryFile(dir=path):
                prune(path)
                return path
    except OSError:
        pass
    folder.temporary = tempfile.TemporaryDirectory()
    return Path(folder.temporary.name)


def size():
    """Return the total size of the cache in bytes."""
    return usage(folder())[1]


# --- generated text -----------------------------------------------------------------------------------------


def path_of(kernel, key):
    """Return the path of a kernel's file. `key` must contain everything that determines the generated
    text."""
    return folder() / f"{kernel}_{digest((version() + key).encode())[:20]}.py"


def write(path, text):
    """Write generated text to a file."""
    write_hashed(path, text.encode())


def read(path):
    """Return the generated text in a file, or None if the file is missing or damaged."""
    data = read_hashed(path)
    return data and data.decode()


def run_text(text, names, path="<string>"):
    """Execute generated text in the namespace `names`.

    Python's syntax warnings are suppressed: lowering can produce unusual code, such as a call of None in a
    branch that is never taken.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(text, path, "exec"), names)


def load(path, text):
    """Return the module for generated text. The text is executed on the first call.

    The module is registered in sys.modules, because Numba's cache looks it up there.
    """
    if path.stem not in sys.modules:
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        run_text(f"\n{text}", vars(module), path)
        # Numba and `inspect` read source lines from linecache. The first line of the file is its hash, so the
        # text begins on line 2.
        linecache.cache[str(path)] = len(text), None, f"\n{text}".splitlines(True), str(path)
        sys.modules[path.stem] = module
        os.utime(path)
    return sys.modules[path.stem]


# --- machine code -------------------------------------------------------------------------------------------


class MachineCodeCache(NullCache):
    """The disk cache of one function's machine code, with the interface expected by Numba.

    Each signature has its own file.
    """

    def __init__(self, function):
        self.function = function

    def folder(self):
        """Return the folder of the function's source file."""
        return Path(self.function.__code__.co_filename).parent

    def path(self, signature):
        """Return the path of the machine-code file for a signature on this type of CPU."""
        function, machine = self.function, cpu_target.target_context.codegen().magic_tuple()
        key = digest(repr((signature, machine)).encode())[:20]
        name = f"{function.__module__}.{function.__qualname__}-{function.__code__.co_firstlineno}"
        return self.folder() / f"{name}.{key}.nbc"

    def load_overload(self, signature, context):
        """Return the compiled code for a signature, or None if the file is missing or damaged."""
        context.refresh()
        if data := read_hashed(self.path(signature)):
            with suppress(Exception):  # unpickling a damaged file may raise any exception
                reduced, unoptimised = pickle.loads(data)
                result = self.rebuild(context, *reduced)
                result.library.unoptimised = unoptimised
                return result

    def save_overload(self, signature, result):
        """Save the compiled code for a signature."""
        # see sim.native.codegen.linking.QuickLibrary
        self.save(self.path(signature), result, lambda: (self.reduce(result), result.library.unoptimised))

    def load_optimised(self, signature):
        """Return the state of the library with optimised code (sim.native.codegen.tiers) for a signature, or
        None if the file is missing or damaged."""
        if data := read_hashed(self.optimised_path(signature)):
            with suppress(Exception):  # unpickling a damaged file may raise any exception
                return pickle.loads(data)

    def save_optimised(self, result, state):
        """Save the state of the library with the optimised code of a CompileResult."""
        self.save(self.optimised_path(result.signature), result, lambda: state)

    def optimised_path(self, signature):
        return self.path(signature).with_suffix(".optimised.nbc")

    def save(self, path, result, contents):
        """Save the result of `contents()`, unless the code contains an address that is valid only in this
        process.

        Numba emits such an address for mutual recursion, and for recursion with different argument types.
        """
        if not any(name.startswith(RuntimeLinker.PREFIX) for name in global_names(result.library)):
            with suppress(OSError):
                write_hashed(path, dumps(contents()))

    reduce, rebuild = staticmethod(CompileResult._reduce), staticmethod(CompileResult._rebuild)


def global_names(library):
    """Return the names of a compiled library's global variables."""
    return [variable.name for variable in library._final_module.global_variables]
