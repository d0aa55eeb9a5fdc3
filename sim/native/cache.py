"""Where compiled kernels are kept: a folder of the user's own, in which nothing that is damaged is used and
nothing forgotten stays.

A kernel's text is a file named by a hash of all that it relies on, and begins with a hash of itself; what
Numba has compiled of it lies beside it, each file behind a hash of its own.
"""

import functools
import hashlib
import os
import pickle
import stat
import sys
import tempfile
import time
import types
from pathlib import Path

import llvmlite
import numba
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator
from numba.core.codegen import RuntimeLinker

ROOT = Path(__file__).parents[1]
UNUSED = 60 * 24 * 3600  # seconds after which a kernel that nobody has launched is forgotten
MOST = 1 << 29  # bytes
DIGEST = 32  # bytes in front of what Numba has compiled


@functools.cache
def version():
    """A hash of all sources that compiled code may rely on, and of the compiler."""
    sources = (
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path.relative_to(ROOT).parts[0] not in ("viz", "observers")
    )
    compilers = f"{numba.__version__} {llvmlite.__version__} {sys.version}".encode()
    return hashlib.sha256(b"\0".join([compilers, *(path.read_bytes() for path in sources)])).hexdigest()


@functools.cache
def folder():
    """The folder: in NUMBA_CACHE_DIR or the user's cache, if only this user can write there; else one that
    ends with the process."""
    home = (
        os.environ.get("NUMBA_CACHE_DIR")
        or os.environ.get("LOCALAPPDATA")
        or os.environ.get("XDG_CACHE_HOME")
        or Path.home() / ".cache"
    )
    path = Path(home) / "sim-native"
    try:
        path.mkdir(0o700, parents=True, exist_ok=True)
        if is_private(path):
            with tempfile.TemporaryFile(dir=path):
                prune(path)
                return path
    except OSError:
        pass
    folder.temporary = tempfile.TemporaryDirectory()
    return Path(folder.temporary.name)


def is_private(path):
    """Whether `path` is a folder, no link, of this user's, in which nobody else may write."""
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and (
        not hasattr(os, "geteuid") or found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )


def prune(path):
    """Forget the kernels that nobody has launched for long, and the oldest of those that together take more
    than MOST bytes."""
    kernels = {}
    for file in path.iterdir():
        kernels.setdefault(file.name.partition(".")[0], []).append((file, file.stat()))
    total = 0
    for files in sorted(kernels.values(), key=lambda files: -max(found.st_mtime for _, found in files)):
        total += sum(found.st_size for _, found in files)
        if total > MOST or max(found.st_mtime for _, found in files) < time.time() - UNUSED:
            for file, _ in files:
                file.unlink(missing_ok=True)


def size():
    """The bytes that are kept."""
    return sum(file.stat().st_size for file in folder().iterdir())


# --- text ---------------------------------------------------------------------------------------------------


def path_of(kernel, key):
    """The file of the kernel of this name with what makes its text in `key`."""
    return folder() / f"{kernel}_{hashlib.sha256((version() + key).encode()).hexdigest()[:20]}.py"


def write(path, text):
    """Write `text` so that another process sees all of it or nothing."""
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8", newline="\n"
    ) as file:
        file.write(f"# {digest(text.encode())}\n{text}")
    os.replace(file.name, path)


def read(path):
    """The text of a file, or None if it is not there, or not as it was written."""
    try:
        first, _, text = path.read_bytes().decode().partition("\n")
        return text if first == f"# {digest(text.encode())}" else None
    except (OSError, UnicodeDecodeError):
        return None


def digest(data):
    return hashlib.sha256(data).hexdigest()


def load(path, text):
    """The module whose text is in a file; Numba looks for it among the imported ones when it loads what it
    has compiled before."""
    if path.stem not in sys.modules:
        module = types.ModuleType(path.stem)
        module.__file__ = str(path)
        exec(compile(f"\n{text}", path, "exec"), vars(module))
        sys.modules[path.stem] = module
        os.utime(path)
    return sys.modules[path.stem]


# --- what Numba has compiled --------------------------------------------------------------------------------


class Beside(_CacheLocator):
    """Puts what is compiled beside the text, whose name says all about it."""

    def __init__(self, function, file):
        self.line, self.folder = function.__code__.co_firstlineno, os.path.dirname(file)

    def get_cache_path(self):
        return self.folder

    def get_source_stamp(self):
        return ""

    def get_disambiguator(self):
        return str(self.line)

    @classmethod
    def from_function(cls, function, file):
        return cls(function, file)


class Result(CompileResultCacheImpl):
    _locator_classes = [Beside]


class InFolder(Beside):
    """Puts what is compiled of our own functions into the folder too."""

    def get_cache_path(self):
        return str(folder())

    def get_source_stamp(self):
        return version()


class OwnResult(CompileResultCacheImpl):
    _locator_classes = [InFolder]


class Files(IndexDataCacheFile):
    """Numba's files; those that are damaged count as not there, and are written anew."""

    def _load_index(self):
        try:
            return super()._load_index()
        except Exception:  # whatever unpickling may raise
            return {}

    def _save_data(self, name, data):
        data = self._dump(data)
        with self._open_for_write(self._data_path(name)) as file:
            file.write(hashlib.sha256(data).digest() + data)

    def _load_data(self, name):
        data = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            raise OSError(f"{name} is damaged")
        return pickle.loads(data[DIGEST:])


class Kept(FunctionCache):
    """Numba's cache of one function, in our files."""

    _impl_class = Result

    def __init__(self, function):
        super().__init__(function)
        self._cache_file = Files(
            self._cache_path, self._impl.filename_base, self._impl.locator.get_source_stamp()
        )

    def save_overload(self, sig, data):
        """Keep what was compiled, unless it calls by an address that only this process knows: Numba's way for
        a function that reaches itself by another function or by other types of arguments."""
        if not any(name.startswith(RuntimeLinker.PREFIX) for name in names_of(data.library)):
            super().save_overload(sig, data)


def names_of(library):
    """The names of a compiled library's global variables."""
    return [variable.name for variable in library._final_module.global_variables]


class KeptOwn(Kept):
    """The same of a function of ours."""

    _impl_class = OwnResult
