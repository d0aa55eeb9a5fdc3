"""Where compiled kernels are kept: a folder of the user's own, in which nothing that is damaged is used and
nothing forgotten stays.

The files are pickles of machine code: to load them is to run code of their author. So a folder that another
user can write or replace is not used.

A kernel's text is a file named by a hash of all that it relies on, what Numba has compiled of it lies beside
it; each begins with a hash of itself.
"""

import functools
import hashlib
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
UNUSED = 60 * 24 * 3600  # seconds after which a kernel that nobody has launched is forgotten
MOST = 1 << 29  # bytes


@functools.cache
def version():
    """A hash of all sources that compiled code may rely on, and of the compiler."""
    sources = (
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("viz", "observers")
    )
    compilers = f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode()
    return digest(b"\0".join([compilers, *(path.read_bytes() for path in sources)]))


@functools.cache
def folder():
    """Return the folder: in NUMBA_CACHE_DIR or the user's cache, if only this user can change it. Else warn,
    and return one that ends with the process."""
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
    """Return how somebody else may change what is in `path`, "" if nobody can: it must be this user's folder,
    no link, without write permission for others; and nobody but this user and the administrator may rename
    the folders above it, as owner or by a write permission for everyone without the sticky bit."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return f"{path} is no folder"
    if not hasattr(os, "geteuid"):
        return ""
    mine = path.stat()
    if mine.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if mine.st_mode & 0o022:
        return f"others may write in {path}"
    # the owner of / is the administrator: not always number 0, in a container
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for above in path.resolve().parents:
        found = above.stat()
        if found.st_uid not in trusted:
            return f"{above} belongs to another user"
        if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
            return f"everyone may write in {above}, which has no sticky bit"
    return ""


def prune(path):
    """Forget the kernels that nobody has launched for long, and the oldest of those that together take more
    than MOST bytes; a folder is what was compiled of our own functions."""
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
    """When a file or folder was last used, and its bytes; 0 if another process has just removed it."""
    try:
        found = entry.stat()
        nbytes = sum(extent(file)[1] for file in entry.iterdir()) if entry.is_dir() else found.st_size
        return found.st_mtime, nbytes
    except FileNotFoundError:
        return 0.0, 0


def size():
    """The bytes that are kept."""
    return extent(folder())[1]


# --- files --------------------------------------------------------------------------------------------------


def keep(path, data):
    """Write a file of `data` behind a comment with its hash, so that another process sees all of it or
    nothing."""
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(f"# {digest(data)}\n".encode() + data)
    os.replace(file.name, path)


def kept(path):
    """What was written to a file, or None if it is not there, or not as it was written."""
    with suppress(OSError):
        first, _, data = path.read_bytes().partition(b"\n")
        return data if first == f"# {digest(data)}".encode() else None


def digest(data):
    return hashlib.sha256(data).hexdigest()


# --- text ---------------------------------------------------------------------------------------------------


def path_of(kernel, key):
    """The file of the kernel of this name with what makes its text in `key`."""
    return folder() / f"{kernel}_{digest((version() + key).encode())[:20]}.py"


def write(path, text):
    keep(path, text.encode())


def read(path):
    """The text of a file, or None if it is not there, or not as it was written."""
    data = kept(path)
    return data and data.decode()


def run_text(text, names, path="<string>"):
    """Run lowered text in `names`, without a word on what is odd in it: calls of None behind `is not None`,
    say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(text, path, "exec"), names)


def load(path, text):
    """The module whose text is in a file; Numba looks for it among the imported ones when it loads what it
    has compiled before."""
    if path.stem not in sys.modules:
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        run_text(f"\n{text}", vars(module), path)
        sys.modules[path.stem] = module
        os.utime(path)
    return sys.modules[path.stem]


# --- what Numba has compiled --------------------------------------------------------------------------------


class Kept(NullCache):
    """What Numba has compiled of a function of a kernel's file: beside it, for each signature a file behind a
    hash of itself. One that is not there, or not as it was written, is made anew."""

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
            with suppress(Exception):  # whatever unpickling may raise
                return self.rebuilt(context, *pickle.loads(data))

    def save_overload(self, signature, result):
        """Keep what was compiled, unless it calls by an address that only this process knows: Numba's way for
        a function that reaches itself by another function or by other types of arguments."""
        if not any(name.startswith(RuntimeLinker.PREFIX) for name in names_of(result.library)):
            with suppress(OSError):
                keep(self.path(signature), dumps(self.reduced(result)))

    reduced, rebuilt = staticmethod(CompileResult._reduce), staticmethod(CompileResult._rebuild)


def names_of(library):
    """The names of a compiled library's global variables."""
    return [variable.name for variable in library._final_module.global_variables]
