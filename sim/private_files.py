"""Stores the files of a disk cache in a folder that only the current user can change.

Each file begins with a hash of its contents, so that a damaged file is recognised. Files that have not been
used for a long time are removed.
"""

import hashlib
import os
import shutil
import stat
import tempfile
import time
from contextlib import suppress
from pathlib import Path

MAX_UNUSED_SECONDS = 60 * 24 * 3600  # a kernel is removed if it has not been launched for 60 days
MAX_BYTES = 1 << 29  # the limit for the whole cache, 512 MiB


def cache_home():
    """Return the folder of caches: NUMBA_CACHE_DIR if it is set, or the user's cache directory."""
    return Path(
        os.environ.get("NUMBA_CACHE_DIR")
        or os.environ.get("LOCALAPPDATA")
        or os.environ.get("XDG_CACHE_HOME")
        or Path.home() / ".cache"
    )


def find_permission_problem(path):
    """Return a message that says how another user could change the contents of `path`, or "" if no other user
    can.

    The folder itself must belong to the current user, must not be a link, and must not be writable by others.
    The folders above it must belong to the current user or the administrator. If they are world-writable,
    they must have the sticky bit, because otherwise other users could rename their entries.
    """
    if not stat.S_ISDIR(path.lstat().st_mode):
        return f"{path} is not a folder"
    # Windows has no user ids.
    if not hasattr(os, "geteuid"):
        return ""
    own = path.stat()
    if own.st_uid != os.geteuid():
        return f"{path} belongs to another user"
    if own.st_mode & 0o022:
        return f"other users can write in {path}"
    # The owner of / is the administrator. Inside a container, this user's id may differ from 0.
    trusted = {0, os.geteuid(), Path("/").stat().st_uid}
    for above in path.resolve().parents:
        info = above.stat()
        if info.st_uid not in trusted:
            return f"{above} belongs to another user"
        if info.st_mode & stat.S_IWOTH and not info.st_mode & stat.S_ISVTX:
            return f"every user can write in {above}, which has no sticky bit"
    return ""


def prune(path):
    """Remove the kernels that have not been launched for a long time. If the cache exceeds its size limit,
    also remove the least recently used kernels.

    The files of one kernel have the same name up to the first dot, and are removed together.
    """
    kernels = {}
    for entry in path.iterdir():
        kernels.setdefault(entry.name.partition(".")[0], []).append((entry, *usage(entry)))
    total = 0
    for entries in sorted(kernels.values(), key=lambda entries: -max(used for _, used, _ in entries)):
        total += sum(nbytes for _, _, nbytes in entries)
        if total > MAX_BYTES or max(used for _, used, _ in entries) < time.time() - MAX_UNUSED_SECONDS:
            for entry, _, _ in entries:
                shutil.rmtree(entry, ignore_errors=True) if entry.is_dir() else entry.unlink(missing_ok=True)


def usage(entry):
    """Return (time of last use, size in bytes) of a file or folder.

    Return (0, 0) if another process has just removed it.
    """
    try:
        info = entry.stat()
        nbytes = sum(usage(file)[1] for file in entry.iterdir()) if entry.is_dir() else info.st_size
        return info.st_mtime, nbytes
    except FileNotFoundError:
        return 0.0, 0


def write_hashed(path, data):
    """Write a line with the hash of `data`, then `data`, to a file.

    The file is replaced atomically, so another process never reads a partial file.
    """
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(f"# {digest(data)}\n".encode() + data)
    os.replace(file.name, path)


def read_hashed(path):
    """Return the data of a file that `write_hashed` wrote, or None if the file is missing or damaged."""
    with suppress(OSError):
        first, _, data = path.read_bytes().partition(b"\n")
        return data if first == f"# {digest(data)}".encode() else None


def digest(data):
    """Return the SHA-256 hash of bytes, as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()
