"""Set-up of the course: creates .venv and installs the versions pinned in constraints.txt.

This module runs before anything is installed, so it imports only the standard library.
"""

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
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

from course.processes import started

ROOT = Path(__file__).resolve().parents[2]
OLDEST_PYTHON = (3, 11)

# CUDA 13.0 runs on every driver of the CUDA 13 series, and PyTorch's wheels use it too.
# The versions are pinned because pip takes half a minute to choose among a dozen.
CUDA_13 = ("numba-cuda[cu13]", "cuda-toolkit==13.0.3.0", "cuda-bindings==13.5.0", "nvidia-nvjitlink==13.0.88")
NVCC = ("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88")  # for python -m sim run; Linux only
CUDA_12 = ("numba-cuda[cu12]", "cuda-bindings==12.9.10")
NEWEST_12 = 9  # newest minor version of CUDA 12 to install

PIP = "pip==26.3"  # The pip that comes with Python takes twice as long, mostly to choose among wheels.

UV = "uv==0.13.9"  # uv has a built-in address for PyTorch's CPU builds

# download sizes of the steps, measured on Linux for x86
PIP_SIZE = "2 MB"
TORCH_FOR_CPU, COMPILERS = "about 190 MB", "about 250 MB"
PACKAGES, PACKAGES_AND_TORCH = "about 170 MB", "0.4 to 0.7 GB"
TOOLS = "about 30 MB"
# free space in bytes that a set-up needs, without and with the CUDA libraries of PyTorch
# (measured on Linux, with a margin for the files that pip unpacks)
ROOM, ROOM_FOR_CUDA = 3e9, 8e9
ROOM_FOR_TEMPORARY_FILES = 1e9
# Tests of packages, and a second copy of NVRTC (264 MB). jsonschema imports rfc3987_syntax if it is there,
# which builds 38 parsers: 1.7 s of CPU in JupyterLab and in each test process. pip ignores missing files when
# it checks, upgrades or uninstalls a package.
UNUSED = (
    "torch/test", "torch/bin/*Test", "torch/bin/protoc*", "torch/bin/test_*", "nvidia/*/lib/*.alt.so*",
    "rfc3987_syntax", *(f"{package}/**/tests" for package in ("matplotlib", "networkx", "numpy", "sympy")),
)  # fmt: skip
NO_COMPILERS = "course-without-compilers"  # file in .venv that records COMPILERS=no
# The programs of nvcc that write machine code (76 MB). The simulator only needs PTX.
UNUSED_WITHOUT_GPU = "nvidia/*/bin/ptxas", "nvidia/*/bin/nvlink"
LAST_LINES = 16  # number of lines of setup.log to show after a failure

# This command fails in a partly created .venv.
PYTHON_WITH_PIP = f"import sys, pip; sys.exit(sys.version_info < {OLDEST_PYTHON})"

NO_VENV = """Python could not make .venv. On Debian and Ubuntu this installs the part that is missing:
  sudo apt install python3-venv
Then give the same command again."""
NO_INSTALL = """The course could not be installed; the last lines of setup.log are above.
Is there a network, and room on the disk?
Give the same command again, and it goes on where it stopped."""
NO_ROOM = """There is not enough room on the disk of {folder}:
{free:.1f} GB are free, and set-up needs {needed:.1f} GB.
Make room, or move the clone to another disk; TMPDIR names the folder for temporary files.
Give the same command again, and it goes on where it stopped."""
NO_NETWORK = """No packages can be downloaded: {reason}.
Is there a network? Behind a proxy, set HTTPS_PROXY. For another package index, set
PIP_ARGS="--index-url ADDRESS".
Give the same command again, and it goes on where it stopped."""
# parts of the messages of pip, uv and the operating system
SIGNS_OF_NO_ROOM = ("No space left on device", "Disk quota exceeded", "not enough space on the disk")
SIGNS_OF_NO_NETWORK = {
    "ProxyError": "the proxy does not answer",
    "NameResolutionError": "the name of the package index cannot be resolved",
    "Temporary failure in name resolution": "the name of the package index cannot be resolved",
    "getaddrinfo failed": "the name of the package index cannot be resolved",
    "dns error": "the name of the package index cannot be resolved",
    "CERTIFICATE_VERIFY_FAILED": "the certificate of the package index is not trusted",
    "ConnectTimeoutError": "the package index does not answer",
    "ReadTimeoutError": "the package index does not answer",
    "NewConnectionError": "there is no connection to the package index",
    "error sending request": "there is no connection to the package index",
}
NO_NUMBA_CUDA = """
numba-cuda could not be installed, so no kernel can run on a GPU. Every lesson runs in the simulator.
To try again: """


class SetUpError(Exception):
    """Error that ends the set-up. Its message says how to fix the problem."""


def set_up(root: Path, run=None, tools: bool = False) -> None:
    """Create root/.venv and install the course into it, keeping a .venv that works.

    A stamp file is written only after a complete set-up. tools: also install the packages that only tests and
    development need.
    """
    if sys.version_info < OLDEST_PYTHON:
        raise SetUpError(too_old())
    began = time.monotonic()
    without_compilers, cuda = declined(root), compilers(root)
    stamp(root).unlink(missing_ok=True)
    run = run or Logged(root / "setup.log")
    for_cpu = wants_torch_for_cpu(cuda_driver(), platform.system())
    step = Steps(2 + for_cpu + bool(cuda) + 2 * (uv() is None))
    with_cuda = cuda_driver() is not None and platform.system() == "Linux"
    require_room(root, ROOM_FOR_CUDA if with_cuda else ROOM)
    print(f"Setting up {root / '.venv'}, once. Details: setup.log", flush=True)
    with step("the environment .venv"):
        kept = make_venv(root, run)
    print(kept, end="\n" if kept else "", flush=True)
    if without_compilers:
        (root / ".venv" / NO_COMPILERS).touch()
    else:
        (root / ".venv" / NO_COMPILERS).unlink(missing_ok=True)
    upgrade_pip(root, run, step)
    if for_cpu:
        with step(f"PyTorch without CUDA libraries, as there is no NVIDIA driver: {TORCH_FOR_CPU}") as result:
            for_cpu = install_torch_for_cpu(root, run)
            result.append("" if for_cpu else "not to be had here, so the one with CUDA libraries follows")
    # `unpack` has already installed setuptools
    built_with = ["--no-build-isolation"] if unpack(root, run, step, for_cpu, tools) else []
    with step(f"the course, and the packages that are still missing: {missing_size(for_cpu)}"):
        install_course(root, run, "course,dev" if tools else "course", built_with)
    if cuda:
        with step(f"CUDA's compilers NVVM, NVRTC and nvJitLink, which need no GPU: {COMPILERS}"):
            failed = install(root, run, cuda)
        if failed:
            print(NO_NUMBA_CUDA + remedy(cuda), file=sys.stderr)
    remove_unused(root)
    for file in (stamp(root), tools_stamp(root))[: 1 + tools]:
        file.write_text(fingerprint(root), encoding="utf-8")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    taken = size(root / ".venv") / 1e9
    print(f"Set up in {minutes} min {seconds} s; .venv takes {taken:.1f} GB.", flush=True)


def add_tools(root: Path, run=None) -> None:
    """Install the packages that only tests and development need into a root/.venv that is set up."""
    with Steps(1)(f"the tools for tests and development: {TOOLS}"):
        install_course(root, run or Logged(root / "setup.log"), "course,dev", ["--no-build-isolation"])
    tools_stamp(root).write_text(fingerprint(root), encoding="utf-8")


def install_course(root: Path, run, extras: str, options: list[str]) -> None:
    """Install the course with these extras. Raise SetUpError if that fails."""
    failed = install(root, run, [*options, "-e", f"{root}[{extras}]"])
    require_success(failed, reason_in(root / "setup.log") or NO_INSTALL)


def require_room(root: Path, needed: float) -> None:
    """Raise SetUpError if the disk of root, with what .venv already takes, or the disk of temporary files is
    too small for the set-up."""
    temporary = Path(tempfile.gettempdir())
    for folder, taken, most in (
        (root, size(root / ".venv"), needed),
        (temporary, 0, ROOM_FOR_TEMPORARY_FILES),
    ):
        free = shutil.disk_usage(folder).free + taken
        if free < most:
            raise SetUpError(NO_ROOM.format(folder=folder, free=free / 1e9, needed=most / 1e9))


def size(folder: Path) -> int:
    """Return the size in bytes of all files in a folder, which may be missing."""
    return sum(
        os.lstat(os.path.join(home, name)).st_size for home, _, names in os.walk(folder) for name in names
    )


def reason_in(log: Path) -> str:
    """Return the message for a full disk or a missing network that the log shows, or ""."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    if any(sign in text for sign in SIGNS_OF_NO_ROOM):
        free = shutil.disk_usage(log.parent).free
        return NO_ROOM.format(folder=log.parent, free=free / 1e9, needed=ROOM / 1e9)
    reason = next((SIGNS_OF_NO_NETWORK[sign] for sign in SIGNS_OF_NO_NETWORK if sign in text), None)
    return NO_NETWORK.format(reason=reason) if reason else ""


def remove_unused(root: Path) -> None:
    """Delete the files of packages that nothing in the course uses."""
    patterns = UNUSED if cuda_driver() else (*UNUSED, *UNUSED_WITHOUT_GPU)
    for packages in (*(root / ".venv").glob("lib/python*/site-packages"), root / ".venv/Lib/site-packages"):
        for path in [found for pattern in patterns for found in packages.glob(pattern)]:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def make_venv(root: Path, run) -> str:
    """Create root/.venv unless a working one exists.

    Return a note if the .venv that is kept uses another Python version, or "".
    """
    python = str(venv_python(root))
    half_made = not Path(python).exists() or run([python, "-c", PYTHON_WITH_PIP], trying=True)
    if half_made:
        require_success(run([sys.executable, "-m", "venv", "--clear", str(root / ".venv")]), NO_VENV)
    return version_note(root)


def upgrade_pip(root: Path, run, step) -> None:
    """Install the pinned pip, unless uv is used. Raise SetUpError if this first download shows that there is
    no network or no room."""
    if uv():
        return
    with step(f"a newer pip: {PIP_SIZE}"):
        failed = run([*pip(root), "--retries", "1", "--timeout", "15", PIP], trying=True)
        require_success(failed and bool(reason_in(root / "setup.log")), reason_in(root / "setup.log"))


def unpack(root: Path, run, step, has_torch: bool, tools: bool) -> bool:
    """Install the blocks of constraints.txt in parallel, without `tools` the first two. Return whether this
    succeeded.

    Each block gets its own pip process, because pip uses one core. Dependencies are not resolved here;
    installing the course adds any missing package. uv uses all cores by itself.
    """
    if uv():
        return False
    blocks = pins(root)[: 3 if tools else 2]
    what, size = ("Numba", PACKAGES) if has_torch else ("PyTorch, Numba", PACKAGES_AND_TORCH)
    with step(f"{sum(map(len, blocks))} packages, {what} and Jupyter among them: {size}"):
        return not run(*([*pip(root), "--no-deps", *block] for block in blocks), trying=True)


def wants_torch_for_cpu(driver: tuple[int, int] | None, system: str) -> bool:
    """Return whether to try PyTorch's CPU build first.

    This applies to Linux without an NVIDIA driver, unless the user has set PIP_ARGS. The standard wheel
    cannot be imported there without installing the CUDA libraries as well.
    """
    return system == "Linux" and driver is None and not pip_arguments()


def install_torch_for_cpu(root: Path, run) -> bool:
    """Install PyTorch's CPU build and return whether an index offered it.

    pip searches its configured indexes first. uv is tried next, because it knows the address of PyTorch's
    own index.
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
    """Return the approximate download size of the course step."""
    if uv():
        return PACKAGES if for_cpu else "0.4 to 3 GB"
    brings_cuda = platform.system() == "Linux" and not for_cpu and not pip_arguments()
    return "about 2.5 GB, most of it PyTorch's CUDA libraries" if brings_cuda else "next to nothing"


def pins(root: Path) -> list[list[str]]:
    """Return the requirements in constraints.txt, one list per block: PyTorch and Numba, the rest of what
    lessons need, the tools, and numba-cuda."""
    text = (root / "constraints.txt").read_text(encoding="utf-8")
    blocks = [re.findall(r"^[^#\n]+", block, re.MULTILINE) for block in text.split("\n\n")]
    return [block for block in blocks if block]


def install(root: Path, run, what) -> int:
    """Install requirements into root/.venv and return the exit status.

    uv is tried first if it is available. pip is the fallback, because uv does not support all of pip's
    arguments.
    """
    by_pip = [*pip(root), *what]
    by_uv = [uv(), "pip", *by_pip[by_pip.index("install") :], "--python", by_pip[0]]
    return run(by_uv) and run(by_pip) if uv() else run(by_pip)


def uv() -> str | None:
    """Return the path of uv, or None if uv is missing or the user has set arguments for pip."""
    return None if pip_arguments() else shutil.which("uv")


def pip(root: Path) -> list[str]:
    """Return the pip command that installs into root/.venv.

    Compiling bytecode takes a third of the installation time, so Python compiles each module when it is first
    imported. If PYTHONDONTWRITEBYTECODE is set, as in many containers, every process would have to compile
    PyTorch again, so pip compiles the bytecode during the installation instead.
    """
    compiling = "--compile" if sys.dont_write_bytecode else "--no-compile"
    started = [str(venv_python(root)), "-m", "pip", "--disable-pip-version-check", "install", compiling]
    return [*started, "-c", str(root / "constraints.txt"), *pip_arguments()]


class Steps:
    """Progress output: one line per step with its number, description, download size and duration."""

    def __init__(self, total: int):
        self.number, self.total = 0, total

    @contextmanager
    def __call__(self, what: str):
        """Run a step within the `with` block. Text appended to the yielded list is added to its line."""
        self.number += 1
        line = f"  {self.number}/{self.total}  {what} ... "
        print(line, end="", flush=True)
        began, result = time.monotonic(), []
        try:
            with ticking(line, began):
                yield result
        except BaseException:
            print("stopped", flush=True)
            raise
        print(", ".join(filter(None, [f"{time.monotonic() - began:.0f} s", *result])), flush=True)


@contextmanager
def ticking(line: str, began: float):
    """Show the seconds since `began` after a line, once per second, in a terminal that is wide enough."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(1):
            print(f"\r{line}{time.monotonic() - began:.0f} s", end="", flush=True)

    ticker = threading.Thread(target=tick, daemon=True)
    if shown := sys.stdout.isatty() and len(line) + 8 < shutil.get_terminal_size().columns:
        ticker.start()
    try:
        yield
    finally:
        ended.set()
        if shown:
            ticker.join()
            print(f"\r{line}", end="", flush=True)


class Logged:
    """Runner that executes commands in parallel and writes their output to a log file.

    A call returns the highest exit status. After a failure it prints the last lines of the output, unless
    `trying` says that a failure is expected.
    """

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


def version_note(root: Path) -> str:
    """Return a note if root/.venv uses another Python version than this process, else ""."""
    version = venv_version(root)
    if version in (None, sys.version_info[:2]):
        return ""
    return f"Kept: .venv has Python {version[0]}.{version[1]}. For another one delete .venv first."


def venv_version(root: Path) -> tuple[int, int] | None:
    """Return the (major, minor) version of root/.venv's Python, recorded when it was created, or None."""
    notes = root / ".venv" / "pyvenv.cfg"
    found = (
        re.search(r"^version(?:_info)? *= *(\d+)\.(\d+)", notes.read_text(encoding="utf-8"), re.MULTILINE)
        if notes.exists()
        else None
    )
    return (int(found[1]), int(found[2])) if found else None


def require_success(status: int, message: str) -> None:
    """Raise SetUpError(message) unless a command's exit status is 0."""
    if status:
        raise SetUpError(message)


def is_set_up(root: Path) -> bool:
    """Return whether set-up has been completed for exactly these requirements."""
    return stamp(root).exists() and stamp(root).read_text(encoding="utf-8") == fingerprint(root)


def fingerprint(root: Path) -> str:
    """Return a hash of all inputs of the set-up. If the hash changes, the set-up has to run again."""
    import tomllib  # tomllib exists since Python 3.11; the set-up rejects older versions before it gets here

    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    installed = [
        project.get("build-system"),
        project.get("project"),
        project.get("tool", {}).get("setuptools"),
    ]
    pinned = (root / "constraints.txt").read_text(encoding="utf-8")
    parts = installed, pinned, venv_version(root), platform.machine(), str(root), compilers(root)
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def has_tools(root: Path) -> bool:
    """Return whether the tools for tests and development are installed for exactly these requirements."""
    file = tools_stamp(root)
    return file.exists() and file.read_text(encoding="utf-8") == fingerprint(root)


def stamp(root: Path) -> Path:
    """Return the path of the file that marks a completed set-up."""
    return root / ".venv" / "course-setup"


def tools_stamp(root: Path) -> Path:
    """Return the path of the file that marks a .venv with the tools for tests and development."""
    return root / ".venv" / "course-tools"


def declined(root: Path) -> bool:
    """Return whether the user has declined CUDA's compilers by COMPILERS=no.

    Without COMPILERS, the choice of the last set-up holds. Raise SetUpError for any value but yes and no.
    """
    chosen = os.environ.get("COMPILERS", "")
    if chosen not in ("", "yes", "no"):
        raise SetUpError(f"COMPILERS is yes or no; given: {chosen}")
    return chosen == "no" or not chosen and (root / ".venv" / NO_COMPILERS).exists()


def compilers(root: Path) -> tuple[str, ...]:
    """Return the requirements of CUDA's compilers to install, none if the user has declined them."""
    return () if declined(root) else cuda_requirements(cuda_driver(), platform.system())


def venv_python(root: Path) -> Path:
    """Return the path of root/.venv's Python."""
    return root / ".venv" / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def runs_in_venv(root: Path) -> bool:
    """Return whether this process runs in .venv's Python."""
    return Path(sys.prefix).resolve() == (root / ".venv").resolve()


def pip_arguments() -> list[str]:
    """Return the additional pip arguments that the user has set in PIP_ARGS."""
    return shlex.split(os.environ.get("PIP_ARGS", ""), posix=os.name != "nt")


def cuda_driver() -> tuple[int, int] | None:
    """Return the newest CUDA version (major, minor) that the NVIDIA driver supports, or None without a
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
    """Return the numba-cuda requirements that match this driver. macOS has no such wheels, so its list is
    empty."""
    if system == "Darwin":
        return ()
    if driver is None or driver[0] != 12:
        return (*CUDA_13, *NVCC) if system == "Linux" else CUDA_13
    # Newer CUDA components would generate PTX that this driver cannot load.
    return (*CUDA_12, f"cuda-toolkit==12.{min(driver[1], NEWEST_12)}.*")


def remedy(requirements: tuple[str, ...], set_up: bool = True) -> str:
    """Return a command that installs requirements into .venv, which need not be activated.

    If .venv does not exist yet, return the command that runs the set-up.
    """
    if not set_up:
        return "make setup"
    quoted = " ".join(f'"{requirement}"' for requirement in requirements)
    return f"{venv_python(Path())} -m pip install -c constraints.txt {quoted}"


def too_old() -> str:
    """Return the error message for an unsupported Python version."""
    wanted, here = ".".join(map(str, OLDEST_PYTHON)), platform.python_version()
    return (
        f"The course needs Python {wanted} or newer; this is {here}. With a newer one: make setup"
        f" PYTHON=python{wanted}"
    )


def hand_over(command: list[str]) -> int:
    """Replace this process with another command.

    On systems without exec, run the command as a child, which handles Ctrl-C, and return its exit status.
    """
    sys.stdout.flush()
    if os.name != "nt":
        os.execv(command[0], command)
    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue
