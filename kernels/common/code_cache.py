"""Disk cache for the machine code of GPU kernels, so that another process need not compile them again.

An entry's key is a hash of everything on which the machine code depends: the kernel's fingerprint, the types
of its arguments, the GPU's compute capability, and the versions of the compilers and of the driver. An entry
holds the kernel's name in the machine code, and the machine code (a cubin). It begins with a hash of its
contents; a damaged entry counts as absent, and is replaced.

The folder belongs to the current user and has mode 0700, because a user who can replace machine code can run
any code on the GPU.
"""

import functools
import os
import sys
import tempfile
import warnings
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from kernels.common.fingerprint import UnknownObjectError, fingerprint
from sim.private_files import cache_home, digest, find_permission_problem, prune, read_hashed, write_hashed

FOLDER = "attention-kernels"
# packages that take part in compilation; a package that is not installed counts as version ""
COMPILERS = (
    *("numba", "numba-cuda", "llvmlite"),
    *("nvidia-nvvm", "nvidia-cuda-nvcc", "nvidia-nvjitlink", "nvidia-cuda-nvrtc"),
    *("nvidia-cuda-nvcc-cu12", "nvidia-nvjitlink-cu12", "nvidia-cuda-nvrtc-cu12"),
)


class MachineCode(NamedTuple):
    """The name of a kernel in a cubin, and the cubin."""

    name: str
    cubin: bytes


def key_of(kernel, types, capability, driver):
    """Return the key of a kernel's machine code, or None if the kernel cannot be cached.

    types: the Numba types of its arguments.
    capability: the compute capability, for example (9, 0).
    driver: the driver's version.
    """
    try:
        made_of = fingerprint(kernel)
    except UnknownObjectError:
        return None
    name = kernel.py_func.__name__
    facts = (made_of, tuple(map(str, types)), tuple(capability), driver, compilers())
    return f"{name}-{digest(repr(facts).encode())[:40]}"


@functools.cache
def compilers():
    """Return the versions of everything that takes part in compilation."""
    toolkits = [os.environ.get(name) or "" for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX")]
    toolkits += [os.path.realpath("/usr/local/cuda")]
    return sys.version, *map(version_of, COMPILERS), *toolkits


def version_of(package):
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(package)
    return ""


@functools.cache
def folder():
    """Return the cache folder, or None if it is not writable, or if another user could change it.

    It is below NUMBA_CACHE_DIR or the user's cache directory.
    """
    path = cache_home() / FOLDER
    with suppress(OSError):
        path.mkdir(0o700, parents=True, exist_ok=True)
        if problem := find_permission_problem(path):
            warnings.warn(
                f"machine code is not kept, and each process compiles again: {problem}; machine code runs on"
                " the GPU, so only you may be able to change its folder: close it or set NUMBA_CACHE_DIR",
                RuntimeWarning,
                stacklevel=2,
            )
            return None
        path.chmod(0o700)
        with tempfile.TemporaryFile(dir=path):  # check that the folder is writable
            prune(path)
            return path
    return None


def path_of(key):
    """Return the path of an entry, or None if nothing can be cached."""
    return folder() and key and Path(folder()) / f"{key}.cubin"


def load(key):
    """Return the MachineCode of a key, or None if it is absent or damaged."""
    path = path_of(key)
    data = path and read_hashed(path)
    if not data:
        return None
    name, _, cubin = data.partition(b"\n")
    with suppress(OSError):
        os.utime(path)  # `prune` removes entries that have not been used for a long time
    return MachineCode(name.decode(), cubin)


def save(key, code):
    """Store machine code under a key, if anything can be cached."""
    path = path_of(key)
    if path:
        with suppress(OSError):
            write_hashed(path, code.name.encode() + b"\n" + code.cubin)
