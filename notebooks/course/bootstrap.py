"""The set-up: makes .venv and installs what constraints.txt pins. Standard library only, since it runs before anything is there."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OLDEST_PYTHON = (3, 11)

# CUDA 13.0 is what the oldest driver of its generation reads, and what torch's own wheels bring.
CUDA_13 = ("numba-cuda[cu13]", "cuda-toolkit==13.0.*", "cuda-bindings==13.5.0", "nvidia-nvjitlink<13.1")
CUDA_12 = ("numba-cuda[cu12]",)

# Fails in a .venv that was left half-made, or made by another Python.
SAME_PYTHON_WITH_PIP = f"import sys, pip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]})"

NO_VENV = """Python could not make .venv. On Debian and Ubuntu this installs the part that is missing:
  sudo apt install python3-venv
Then give the same command again."""
NO_INSTALL = """pip could not install the course; what it says is above. Is there a network, and room on the disk?
Give the same command again, and it goes on where it stopped."""
NO_NUMBA_CUDA = """
numba-cuda could not be installed, so no kernel can run on a GPU. Every lesson runs in the simulator.
To try again: """


class SetUpError(Exception):
    """The set-up cannot go on; the message says what to do."""


def main(arguments: list[str]) -> int:
    """Set up if that is needed, then run the command with .venv's Python; returns the exit status."""
    from course import commands

    command = arguments[0] if arguments else "help"
    if command not in commands.COMMANDS:
        return commands.main(arguments)
    with_venv = [str(venv_python(ROOT)), str(Path(__file__).parent), *arguments]
    if sys.version_info < OLDEST_PYTHON and venv_python(ROOT).exists():
        return hand_over(with_venv)
    try:
        if not is_set_up(ROOT) or (command == "setup" and pip_arguments()):
            set_up(ROOT)
    except SetUpError as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted. Give the same command again, and it goes on where it stopped.", file=sys.stderr)
        return 130
    if command == "setup" or runs_in_venv(ROOT):
        return commands.main(arguments)
    return hand_over(with_venv)


def set_up(root: Path, run=subprocess.call) -> None:
    """Make root/.venv and install the course into it. Only a set-up that came to its end leaves a stamp."""
    if sys.version_info < OLDEST_PYTHON:
        raise SetUpError(too_old())
    stamp(root).unlink(missing_ok=True)
    print(f"Setting up {root / '.venv'}, once: some minutes, and a download of 0.5 to 4 GB (most of it torch).", flush=True)
    python = str(venv_python(root))
    half_made = not Path(python).exists() or run([python, "-c", SAME_PYTHON_WITH_PIP])
    if half_made:
        must(run([sys.executable, "-m", "venv", "--clear", str(root / ".venv")]), NO_VENV)
    pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "-c", str(root / "constraints.txt"), *pip_arguments()]
    must(run([*pip, "-e", f"{root}[course,dev]"]), NO_INSTALL)
    cuda = cuda_requirements(cuda_driver(), platform.system())
    if cuda and run([*pip, *cuda]):
        print(NO_NUMBA_CUDA + remedy(cuda), file=sys.stderr)
    stamp(root).write_text(fingerprint(root), encoding="utf-8")


def must(status: int, message: str) -> None:
    """Raise SetUpError(message) unless a command's exit status is 0."""
    if status:
        raise SetUpError(message)


def is_set_up(root: Path) -> bool:
    """Whether a finished set-up of these very requirements is there."""
    return stamp(root).exists() and stamp(root).read_text(encoding="utf-8") == fingerprint(root)


def fingerprint(root: Path) -> str:
    """A hash of everything that a set-up depends on; another one means that it must be done again."""
    files = [(root / name).read_bytes() for name in ("pyproject.toml", "constraints.txt")]
    cuda = cuda_requirements(cuda_driver(), platform.system())
    surroundings = repr((sys.version_info[:2], platform.machine(), str(root), cuda)).encode()
    return hashlib.sha256(b"\0".join([*files, surroundings])).hexdigest()


def stamp(root: Path) -> Path:
    """The file that a finished set-up leaves behind."""
    return root / ".venv" / "course-setup"


def venv_python(root: Path) -> Path:
    """The Python of root/.venv."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def runs_in_venv(root: Path) -> bool:
    """Whether this very process is .venv's Python."""
    return Path(sys.prefix).resolve() == (root / ".venv").resolve()


def pip_arguments() -> list[str]:
    """What the variable PIP_ARGS adds to each pip install."""
    return shlex.split(os.environ.get("PIP_ARGS", ""), posix=os.name != "nt")


def cuda_driver() -> tuple[int, int] | None:
    """The newest CUDA version, (major, minor), that this machine's NVIDIA driver understands; None without a driver."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError:
        return None
    version = ctypes.c_int(0)
    if library.cuDriverGetVersion(ctypes.byref(version)) or not version.value:
        return None
    return version.value // 1000, version.value % 1000 // 10


def cuda_requirements(driver: tuple[int, int] | None, system: str) -> tuple[str, ...]:
    """numba-cuda with the CUDA parts that this driver can use; nothing on macOS, which has no wheel of it."""
    if system == "Darwin":
        return ()
    if driver is None or driver[0] != 12:
        return CUDA_13
    # Newer parts write PTX that this driver cannot read.
    return (*CUDA_12, f"cuda-toolkit<12.{driver[1] + 1}")


def remedy(requirements: tuple[str, ...]) -> str:
    """The command that installs requirements into .venv; it needs no activated environment."""
    quoted = " ".join(f'"{requirement}"' for requirement in requirements)
    return f"{venv_python(Path())} -m pip install -c constraints.txt {quoted}"


def too_old() -> str:
    """What to tell whose Python is too old."""
    wanted, here = ".".join(map(str, OLDEST_PYTHON)), platform.python_version()
    return f"The course needs Python {wanted} or newer; this is {here}. With a newer one: make setup PYTHON=python{wanted}"


def hand_over(command: list[str]) -> int:
    """Become another command, where the system can; elsewhere run it and wait, leaving Ctrl-C to it. Returns its exit status."""
    sys.stdout.flush()
    if os.name != "nt":
        os.execv(command[0], command)
    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
