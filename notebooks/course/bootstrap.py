"""The set-up: makes .venv and installs what constraints.txt pins. Standard library only, since it runs before
anything is there."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from course.processes import started

ROOT = Path(__file__).resolve().parents[2]
OLDEST_PYTHON = (3, 11)

# CUDA 13.0 is what the oldest driver of its generation reads, and what torch's own wheels bring. One version
# of each: choosing among a dozen takes pip half a minute.
CUDA_13 = ("numba-cuda[cu13]", "cuda-toolkit==13.0.3.0", "cuda-bindings==13.5.0", "nvidia-nvjitlink==13.0.88")
CUDA_12 = ("numba-cuda[cu12]", "cuda-bindings==12.9.10")
NEWEST_12 = 9  # minor version of CUDA 12

PIP = "pip==26.3"  # those that come with Python take twice the time, most of it to choose a wheel

UV = "uv==0.13.9"  # knows where PyTorch publishes its builds without CUDA

# What the steps download, as measured on Linux for x86.
PIP_SIZE = "2 MB"
TORCH_FOR_CPU, COMPILERS = "about 190 MB", "about 200 MB"
PACKAGES, PACKAGES_AND_TORCH = "about 200 MB", "0.4 to 0.7 GB"
LAST_LINES = 16  # of setup.log, shown after a failure

# fails in a .venv that was left half-made
PYTHON_WITH_PIP = f"import sys, pip; sys.exit(sys.version_info < {OLDEST_PYTHON})"

NO_VENV = """Python could not make .venv. On Debian and Ubuntu this installs the part that is missing:
  sudo apt install python3-venv
Then give the same command again."""
NO_INSTALL = """The course could not be installed; the last lines of setup.log are above.
Is there a network, and room on the disk?
Give the same command again, and it goes on where it stopped."""
NO_NUMBA_CUDA = """
numba-cuda could not be installed, so no kernel can run on a GPU. Every lesson runs in the simulator.
To try again: """


class SetUpError(Exception):
    """The set-up cannot go on; the message says what to do."""


def set_up(root: Path, run=None) -> None:
    """Make root/.venv and install the course into it, keeping a .venv that works. Only a set-up that came to
    its end leaves a stamp."""
    if sys.version_info < OLDEST_PYTHON:
        raise SetUpError(too_old())
    stamp(root).unlink(missing_ok=True)
    run = run or Logged(root / "setup.log")
    cuda = cuda_requirements(cuda_driver(), platform.system())
    for_cpu = wants_torch_for_cpu(cuda_driver(), platform.system())
    step = Steps(2 + for_cpu + bool(cuda) + 2 * (uv() is None))
    print(f"Setting up {root / '.venv'}, once. Details: setup.log", flush=True)
    with step("the environment .venv"):
        kept = make_venv(root, run)
    print(kept, end="\n" if kept else "", flush=True)
    if for_cpu:
        with step(f"PyTorch without CUDA libraries, as there is no NVIDIA driver: {TORCH_FOR_CPU}") as result:
            for_cpu = install_torch_for_cpu(root, run)
            result.append("" if for_cpu else "not to be had here, so the one with CUDA libraries follows")
    built_with = ["--no-build-isolation"] if unpack(root, run, step, for_cpu) else []  # setuptools is there
    with step(f"the course, and the packages that are still missing: {missing_size(for_cpu)}"):
        must(install(root, run, [*built_with, "-e", f"{root}[course,dev]"]), NO_INSTALL)
    if cuda:
        with step(f"CUDA's compilers NVVM, NVRTC and nvJitLink, which need no GPU: {COMPILERS}"):
            failed = install(root, run, cuda)
        if failed:
            print(NO_NUMBA_CUDA + remedy(cuda), file=sys.stderr)
    stamp(root).write_text(fingerprint(root), encoding="utf-8")


def make_venv(root: Path, run) -> str:
    """Make root/.venv unless one is there that works; return what to say of that one, or ""."""
    python = str(venv_python(root))
    half_made = not Path(python).exists() or run([python, "-c", PYTHON_WITH_PIP], trying=True)
    if half_made:
        must(run([sys.executable, "-m", "venv", "--clear", str(root / ".venv")]), NO_VENV)
    return what_is_kept(root)


def unpack(root: Path, run, step, has_torch: bool) -> bool:
    """Install each block of constraints.txt by a pip of its own, all at once, since pip works on one core;
    none looks at what its packages need. Return whether all could be installed: what is missing comes with
    the course. uv uses all cores by itself."""
    if uv():
        return False
    with step(f"a newer pip: {PIP_SIZE}"):
        run([*pip(root), PIP], trying=True)
    blocks = pins(root)
    what, size = ("Numba", PACKAGES) if has_torch else ("PyTorch, Numba", PACKAGES_AND_TORCH)
    with step(f"{sum(map(len, blocks))} packages, {what} and Jupyter among them: {size}"):
        return not run(*([*pip(root), "--no-deps", *block] for block in blocks), trying=True)


def wants_torch_for_cpu(driver: tuple[int, int] | None, system: str) -> bool:
    """Return whether to ask for a PyTorch without CUDA libraries first: on Linux, where the package index has
    only one that needs them even to be imported, unless there is a driver or the user has chosen by
    PIP_ARGS."""
    return system == "Linux" and driver is None and not pip_arguments()


def install_torch_for_cpu(root: Path, run) -> bool:
    """Install the PyTorch that needs no CUDA libraries; return whether it could be had.

    First pip asks the package indexes that it is configured to use. Then uv does, which knows PyTorch's own.
    """
    version = next(pin for block in pins(root) for pin in block if pin.startswith("torch=="))
    if not run([*pip(root), "--no-deps", f"{version}+cpu"], trying=True):
        return True
    python = str(venv_python(root))
    if uv() is None and run([*pip(root), "--no-deps", UV], trying=True):
        return False
    by_uv = [uv()] if uv() else [python, "-m", "uv"]
    wanted = ["--python", python, "--no-deps", "--torch-backend", "cpu", version]
    return not run([*by_uv, "pip", "install", *wanted], trying=True)


def missing_size(for_cpu: bool) -> str:
    """Return about what the step of the course downloads."""
    if uv():
        return PACKAGES if for_cpu else "0.4 to 3 GB"
    brings_cuda = platform.system() == "Linux" and not for_cpu and not pip_arguments()
    return "about 2.5 GB, most of it PyTorch's CUDA libraries" if brings_cuda else "next to nothing"


def pins(root: Path) -> list[list[str]]:
    """The requirements of constraints.txt, a list for each of its blocks."""
    text = (root / "constraints.txt").read_text(encoding="utf-8")
    blocks = [re.findall(r"^[^#\n]+", block, re.MULTILINE) for block in text.split("\n\n")]
    return [block for block in blocks if block]


def install(root: Path, run, what) -> int:
    """Install requirements into root/.venv, by uv where there is one (it knows not all of pip's arguments),
    else or if that fails by pip; the exit status."""
    by_pip = [*pip(root), *what]
    by_uv = [uv(), "pip", *by_pip[by_pip.index("install") :], "--python", by_pip[0]]
    return run(by_uv) and run(by_pip) if uv() else run(by_pip)


def uv() -> str | None:
    """Return the path of uv; None if it is missing, or if the user has given arguments for pip."""
    return None if pip_arguments() else shutil.which("uv")


def pip(root: Path) -> list[str]:
    """Return the command by which root/.venv's pip installs. Bytecode is written at the first import, because
    compiling all of it takes a third of the time. Where PYTHONDONTWRITEBYTECODE forbids that, as in many
    containers, every process would compile PyTorch again, so it is written now."""
    compiling = "--compile" if sys.dont_write_bytecode else "--no-compile"
    started = [str(venv_python(root)), "-m", "pip", "--disable-pip-version-check", "install", compiling]
    return [*started, "-c", str(root / "constraints.txt"), *pip_arguments()]


class Steps:
    """Prints a line for each of a number of steps: its number, what it does and downloads, and how long it
    took."""

    def __init__(self, total: int):
        self.number, self.total = 0, total

    @contextmanager
    def __call__(self, what: str):
        """Within it the step runs; text put into the list that it yields is added to its line."""
        self.number += 1
        print(f"  {self.number}/{self.total}  {what} ... ", end="", flush=True)
        began, result = time.monotonic(), []
        try:
            yield result
        except BaseException:
            print("stopped", flush=True)
            raise
        print(", ".join(filter(None, [f"{time.monotonic() - began:.0f} s", *result])), flush=True)


class Logged:
    """Runs commands, all at once, with what they say in a file; a failure shows its last lines, unless the
    commands were only `trying`. Returns the worst exit status."""

    def __init__(self, log: Path):
        self.log = log
        log.write_text("", encoding="utf-8")

    def __call__(self, *commands: list[str], trying: bool = False) -> int:
        with self.log.open("ab") as log, ExitStack() as all_end:
            children = []
            for command in commands:
                log.write(f"$ {shlex.join(command)}\n".encode())
                log.flush()
                child = started(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
                children.append(all_end.enter_context(child))
            status = max(abs(child.wait()) for child in children)
        if status and not trying:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            print("", *lines[-LAST_LINES:], sep="\n", file=sys.stderr)
        return status


def what_is_kept(root: Path) -> str:
    """Return a line that says so if root/.venv has another Python than the one that runs, else ""."""
    version = venv_version(root)
    if version in (None, sys.version_info[:2]):
        return ""
    return f"Kept: .venv has Python {version[0]}.{version[1]}. For another one delete .venv first."


def venv_version(root: Path) -> tuple[int, int] | None:
    """(major, minor) of the Python in root/.venv, as it was written when it was made; None where that is not
    known."""
    notes = root / ".venv" / "pyvenv.cfg"
    found = (
        re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", notes.read_text(encoding="utf-8"), re.MULTILINE)
        if notes.exists()
        else None
    )
    return (int(found[1]), int(found[2])) if found else None


def must(status: int, message: str) -> None:
    """Raise SetUpError(message) unless a command's exit status is 0."""
    if status:
        raise SetUpError(message)


def is_set_up(root: Path) -> bool:
    """Return whether a set-up of exactly these requirements has been completed."""
    return stamp(root).exists() and stamp(root).read_text(encoding="utf-8") == fingerprint(root)


def fingerprint(root: Path) -> str:
    """A hash of everything that a set-up depends on; another one means that it must be done again."""
    import tomllib  # Python 3.11's: an older Python is told so before it gets here

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    installed = [
        project.get("build-system"),
        project.get("project"),
        project.get("tool", {}).get("setuptools"),
    ]
    pinned = (root / "constraints.txt").read_text(encoding="utf-8")
    cuda = cuda_requirements(cuda_driver(), platform.system())
    parts = installed, pinned, venv_version(root), platform.machine(), str(root), cuda
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def stamp(root: Path) -> Path:
    """The file that a finished set-up leaves behind."""
    return root / ".venv" / "course-setup"


def venv_python(root: Path) -> Path:
    """The Python of root/.venv."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def runs_in_venv(root: Path) -> bool:
    """Return whether this process runs in .venv's Python."""
    return Path(sys.prefix).resolve() == (root / ".venv").resolve()


def pip_arguments() -> list[str]:
    """Return the arguments that the variable PIP_ARGS adds to each pip install."""
    return shlex.split(os.environ.get("PIP_ARGS", ""), posix=os.name != "nt")


def cuda_driver() -> tuple[int, int] | None:
    """The newest CUDA version, (major, minor), that this machine's NVIDIA driver understands; None without a
    driver."""
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
    # newer parts write PTX that this driver cannot read
    return (*CUDA_12, f"cuda-toolkit==12.{min(driver[1], NEWEST_12)}.*")


def remedy(requirements: tuple[str, ...], set_up: bool = True) -> str:
    """Return the command that installs requirements into .venv; it needs no activated environment. Before the
    set-up there is no .venv, and the set-up installs them."""
    if not set_up:
        return "make setup"
    quoted = " ".join(f'"{requirement}"' for requirement in requirements)
    return f"{venv_python(Path())} -m pip install -c constraints.txt {quoted}"


def too_old() -> str:
    """Return the message for a user whose Python is too old."""
    wanted, here = ".".join(map(str, OLDEST_PYTHON)), platform.python_version()
    return (
        f"The course needs Python {wanted} or newer; this is {here}. With a newer one: make setup"
        f" PYTHON=python{wanted}"
    )


def hand_over(command: list[str]) -> int:
    """Become another command, where the system can; elsewhere run it and wait, leaving Ctrl-C to it. Returns
    its exit status."""
    sys.stdout.flush()
    if os.name != "nt":
        os.execv(command[0], command)
    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
