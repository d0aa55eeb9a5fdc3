"""The cache of compiled kernels: a per-user folder. Damaged files are ignored and unused files are removed.

The files are pickles of machine code, so loading one runs code of its author. A folder that another user can
write or replace is therefore not used.

A kernel's text is a file named by a hash of all its inputs. The machine code that Numba compiles from it is
in files next to it. Each file begins with a hash of itself.
"""

import functools
import hashlib
import linecache
import os
import pickle
import shutil
import stat
import sys
import tempfile
import time
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

ROOT = Path(__file__).parents[2]
UNUSED = 60 * 24 * 3600  # seconds after which a kernel that has not been launched is removed
MOST = 1 << 29  # bytes of the whole cache


@functools.cache
def version():
    """Return a hash of the compiler and of all sources that compiled code depends on."""
    sources = (
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("viz", "observers")
    )
    compilers = f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode()
    return digest(b"\0".join([compilers, *(path.read_bytes() for path in sources)]))


@functools.cache
def folder():
    """Return the folder: in NUMBA_CACHE_DIR or the user's cache, if only this user can change it.
    Otherwise warn, and return a folder that is deleted when the process ends."""
    home = (
        os.environ.get("NUMBA_CACHE_DIR")
        or os.environ.get("LOCALAPPDATA")
        or os.environ.get("XDG_CACHE_HOME")
        or Path.home() / ".cache"
    )
    path = Path(home) / "sim-native"
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        if found := open_to_others(path):
            warnings.warn(
                f"compiled kernels are not kept, and each process compiles again: {found}; loading them runs"
                " code, so only you may be able to change their folder: close it, or set NUMBA_CACHE_DIR",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            with tempfile.TemporaryFile(dir=path):
                prune(path)
                return path
    except OSError:
        pass
    folder.temporary = tempfile.TemporaryDirectory()
    return Path(folder.temporary.name)


def open_to_others(path):
    """Return how another user may change the contents of `path`, or "" if nobody else can. The folder must
    belong to this user, be no link, and have no write permission for others. Only this user and the
    administrator may be able to rename the folders above it, as owner or through a write permission for
    everyone without the sticky bit."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return f"{path} is no folder"
    if not hasattr(os, "geteuid"):
        return ""
    mine = path.stat()
    if mine.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if mine.st_mode & 0o022:
        return f"others may write in {path}"
    # The owner of / is the administrator; in a container its user id is not always 0.
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for above in path.resolve().parents:
        found = above.stat()
        if found.st_uid not in trusted:
            return f"{above} belongs to another user"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"everyone may write in {above}, which has no sticky bit"
    return ""


def prune(path):
    """Remove the kernels that have not been launched for a long time, and the oldest ones if the total
    exceeds MOST bytes. The compiled runtime functions of one version are a folder."""
    kernels = {}
    for entry in path.iterdir():
        kernels.setdefault(entry.name.partition(".")[0], []).append((entry, *extent(entry)))
    total = 0
    for entries in sorted(kernels.values(), key=lambda entries: -max(used for _, used, _ in entries)):
        total += sum(nbytes for _, _, nbytes in entries)
        if total > MOST or max(used for _, used, _ in entries) < time.time() - UNUSED:
            for entry, _, _ in entries:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def extent(entry):
    """Return when a file or folder was last used, and its bytes; 0 if another process has just removed it."""
    try:
        found = entry.stat()
        nbytes = sum(extent(file)[1] for file in entry.iterdir()) if entry.is_dir() else found.st_size
        return found.st_mtime, nbytes
    except FileNotFoundError:
        return 0.0, 0


def size():
    """Return the total bytes of the cache."""
    return extent(folder())[1]


# --- files --------------------------------------------------------------------------------------------------


def keep(path, data):
    """Write a file of `data` after a comment with its hash, atomically: another process sees the whole
    file or none."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(f"# {digest(data)}\n".encode() + data)
    os.replace(file.name, path)


def kept(path):
    """Return the data of a file, or None if the file is missing or damaged."""
    with suppress(OSError):
        first, _, data = path.read_bytes().partition(b"\n")
        return data if first == f"# {digest(data)}".encode() else None


def digest(data):
    return hashlib.sha256(data).hexdigest()


# --- text ---------------------------------------------------------------------------------------------------


def path_of(kernel, key):
    """Return the file of the kernel of this name whose text is determined by `key`."""
    return folder() / f"{kernel}_{digest((version() + key).encode())[:20]}.py"


def write(path, text):
    keep(path, text.encode())


def read(path):
    """Return the text of a file, or None if the file is missing or damaged."""
    data = kept(path)
    return data and data.decode()


def run_text(text, names, path="<string>"):
    """Run lowered text in `names`, without Python's warnings about unusual code, such as a call of None
    after `is not None`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(text, path, "exec"), names)


def load(path, text):
    """Return the module whose text is in a file. It is registered in sys.modules, so that Numba's cache
    finds it."""
    if path.stem not in sys.modules:
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        run_text(f"\n{text}", vars(module), path)
        linecache.cache[str(path)] = len(text), None, f"\n{text}".splitlines(True), str(path)
        sys.modules[path.stem] = module
        os.utime(path)
    return sys.modules[path.stem]


# --- machine code from Numba --------------------------------------------------------------------------------


class Kept(NullCache):
    """A cache of the machine code of a function in a kernel's file: next to that file, one file for each
    signature, which begins with a hash of itself. A missing or damaged file is compiled again."""

    def __init__(self, function):
        self.function = function

    def folder(self):
        return Path(self.function.__code__.co_filename).parent

    def path(self, signature):
        function, machine = self.function, cpu_target.target_context.codegen().magic_tuple()
        key = digest(repr((signature, machine)).encode())[:20]
        name = f"{function.__module__}.{function.__qualname__}-{function.__code__.co_firstlineno}"
        return self.folder() / f"{name}.{key}.nbc"

    def load_overload(self, signature, context):
        context.refresh()
        if data := kept(self.path(signature)):
            with suppress(Exception):  # unpickling a damaged file may raise any exception
                return self.rebuilt(context, *pickle.loads(data))

    def save_overload(self, signature, result):
        """Save compiled code, unless it calls an address that is valid in this process only. Numba
        compiles such calls for a function that calls itself through another function or with other
        argument types."""
        if not any(name.startswith(RuntimeLinker.PREFIX) for name in names_of(result.library)):
            with suppress(OSError):
                keep(self.path(signature), dumps(self.reduced(result)))

    reduced, rebuilt = staticmethod(CompileResult._reduce), staticmethod(CompileResult._rebuild)


def names_of(library):
    """Return the names of a compiled library's global variables."""
    return [variable.name for variable in library._final_module.global_variables]
