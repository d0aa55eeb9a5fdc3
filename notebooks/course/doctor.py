"""Diagnosis of the installation: finds components, GPUs and known problems, and suggests a fix for each.

This module imports only the standard library, because it must run in a broken installation.
"""

import ctypes
import os
import platform
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from course.bootstrap import (
    OLDEST_PYTHON,
    ROOT,
    cuda_driver,
    cuda_requirements,
    declined,
    remedy,
    too_old,
    venv_python,
)
from course.processes import started

SHOWN = ("numpy", "torch", "numba", "numba-cuda")
NO_GPU = "no GPU: every lesson runs in the simulator"
# Packages that generate PTX, the newest generation first. The driver must support the CUDA version of the
# package that is installed.
PTX_WRITERS = ("nvidia-nvvm", "nvidia-cuda-nvcc-cu12")
# Each import runs in its own process, because a broken package may crash Python.
# The doctor collects the text that the process prints.
IMPORTS = {
    "simulator": "import numpy, greenlet, ml_dtypes, sim",
    "torch": "import torch; print(torch.version.cuda or '')",
    "numba.cuda": "from numba import cuda",
    "compiled": "from sim.native.codegen import cache as c; print(f'{c.folder()}, {c.size() / 1e6:.1f} MB')",
}


@dataclass(frozen=True)
class Facts:
    """Facts about this machine. CUDA versions are pairs (major, minor); None means that the component is
    missing."""

    python: tuple[int, ...] = (3, 11, 0)
    system: str = "Linux"
    versions: dict[str, str] = field(default_factory=dict)  # package name -> version, for installed packages
    # name in IMPORTS -> last line of the error message of an import that failed
    broken: dict[str, str] = field(default_factory=dict)
    driver: tuple[int, int] | None = None  # newest CUDA version that the driver supports
    gpus: tuple[str, ...] = ()
    torch_cuda: tuple[int, int] | None = None  # CUDA version for which torch was built
    ptx: tuple[int, int] | None = None  # CUDA version of the component that generates PTX
    set_up: bool = True  # whether .venv exists
    declined: bool = False  # whether the user has declined CUDA's compilers, by COMPILERS=no
    compiled: str = ""  # folder and size of the native engine's cache of compiled kernels


@dataclass(frozen=True)
class Problem:
    """A problem and its remedy. `stops` means that no lesson can run until it is fixed."""

    what: str
    remedy: str
    stops: bool = False


def main() -> int:
    """Print the report for this machine.

    Return 1 if a problem prevents lessons from running in the simulator, else 0.
    """
    print("Checking what is installed, which takes a few seconds ...", flush=True)
    facts = examine()
    troubles = diagnose(facts)
    print(*report(facts, troubles), sep="\n", flush=True)
    return int(any(trouble.stops for trouble in troubles))


def report(facts: Facts, troubles: list[Problem]) -> list[str]:
    """Return the lines that the doctor prints."""
    rows = {
        "Python": ".".join(map(str, facts.python)),
        **{name: facts.versions.get(name, "not installed") for name in SHOWN},
    }
    if facts.driver:
        rows["driver"] = f"understands CUDA {dotted(facts.driver)}"
    rows["GPU"] = ", ".join(facts.gpus) or NO_GPU
    if facts.compiled:
        rows["compiled"] = f"kernels of the native engine: {facts.compiled}"
    lines = [f"  {name:<12}{what}" for name, what in rows.items()]
    for trouble in troubles:
        lines += ["", f"  ! {trouble.what}", f"    Remedy: {trouble.remedy}"]
    return [*lines, "", verdict(facts, troubles)]


def verdict(facts: Facts, troubles: list[Problem]) -> str:
    """Return the last line of the report."""
    if any(trouble.stops for trouble in troubles):
        return "No lesson can run before this is fixed."
    return "Ready: every lesson runs in the simulator" + (
        ", and on the GPU." if facts.gpus and not troubles else "."
    )


def diagnose(facts: Facts) -> list[Problem]:
    """Return every known problem that these facts reveal, most severe first."""
    return sorted([*lesson_problems(facts), *gpu_problems(facts)], key=lambda trouble: not trouble.stops)


def lesson_problems(facts: Facts):
    """Return the problems that prevent lessons from running in the simulator."""
    if facts.python < OLDEST_PYTHON:
        yield Problem("Python is too old.", too_old(), stops=True)
    if "simulator" in facts.broken:
        yield Problem(
            f"The simulator cannot be imported: {facts.broken['simulator']}",
            "make setup" + " PIP_ARGS=--force-reinstall" * facts.set_up,
            stops=True,
        )
    if "torch" in facts.broken:
        yield Problem(
            f"torch cannot be imported: {facts.broken['torch']}", remedy(("torch",), facts.set_up), stops=True
        )


def gpu_problems(facts: Facts):
    """Return the problems that affect kernels compiled for or run on a GPU. The simulator needs no GPU."""
    yield from numba_cuda_problems(facts)
    if facts.gpus and facts.torch_cuda is None and "torch" not in facts.broken:
        yield Problem(
            "There is a GPU, but this torch was built without CUDA.",
            "delete .venv, then make setup without PIP_ARGS",
        )
    if facts.gpus and facts.driver and facts.torch_cuda and facts.torch_cuda[0] > facts.driver[0]:
        yield Problem(
            f"The driver understands CUDA {dotted(facts.driver)}; this torch was built for"
            f" {dotted(facts.torch_cuda)} and sees no GPU.",
            "update the NVIDIA driver; or delete .venv and give PIP_ARGS the index of a torch built for "
            f"CUDA {facts.driver[0]} (CONTRIBUTING.md shows how)",
        )


def numba_cuda_problems(facts: Facts):
    """Return the problems of numba-cuda, alone or in combination with numpy, the platform or the driver."""
    parts = cuda_requirements(facts.driver, facts.system)
    numpy = number(facts.versions.get("numpy", ""))
    if not parts:
        where = platform_name(facts.system)
        yield Problem(
            f"There is no numba-cuda for {where}.",
            "none is needed in the simulator; a GPU needs Linux or Windows",
        )
    elif "numba-cuda" not in facts.versions and facts.declined:
        yield Problem(
            "CUDA's compilers are left out (COMPILERS=no). Lessons show their recorded output for unchanged"
            " kernels, and cannot compile yours.",
            "make setup COMPILERS=yes",
        )
    elif "numba-cuda" not in facts.versions:
        yield Problem(
            "numba-cuda is not installed: kernels cannot run on a GPU.", remedy(parts, facts.set_up)
        )
    elif numpy and numpy >= (2, 5):
        yield Problem(
            f"numpy {facts.versions['numpy']} is too new for numba-cuda.", remedy(("numpy",), facts.set_up)
        )
    elif "numba.cuda" in facts.broken:
        yield Problem(
            f"numba-cuda cannot be imported: {facts.broken['numba.cuda']}",
            f"{venv_python(Path()) if facts.set_up else 'python'} -m pip uninstall numba-cuda; numba has a"
            " numba.cuda of its own, enough for the simulator",
        )
    elif facts.driver and facts.ptx and facts.ptx > facts.driver:
        yield Problem(
            f"The driver is too old for the PTX version: it understands CUDA {dotted(facts.driver)}, kernels"
            f" are compiled for {dotted(facts.ptx)}.",
            f"update the NVIDIA driver, or: {remedy(parts, facts.set_up)}",
        )


def examine() -> Facts:
    """Collect the facts about this machine."""
    versions = {name: version for name in (*SHOWN, *PTX_WRITERS) if (version := installed(name))}
    said, broken = try_imports()
    return Facts(
        python=tuple(sys.version_info[:3]),
        system=platform.system(),
        versions=versions,
        broken=broken,
        driver=cuda_driver(),
        gpus=gpu_names(),
        torch_cuda=number(said.get("torch", "")),
        set_up=venv_python(ROOT).exists(),
        declined=declined(ROOT),
        compiled=said.get("compiled", ""),
        ptx=next((number(versions[name]) for name in PTX_WRITERS if name in versions), None),
    )


def try_imports() -> tuple[dict[str, str], dict[str, str]]:
    """Try all IMPORTS in parallel.

    Return (outputs of the imports that succeeded, last error lines of those that failed), both by name.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    said, broken = {}, {}
    with ExitStack() as all_end:
        tries = {
            name: all_end.enter_context(started([sys.executable, "-c", code], **pipes))
            for name, code in IMPORTS.items()
        }
        for name, process in tries.items():
            output, complaint = process.communicate()
            if process.returncode == 0:
                said[name] = output.strip()
            else:
                broken[name] = (complaint.strip().splitlines() or [f"exit status {process.returncode}"])[-1]
    return said, broken


def installed(package: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def gpu_names() -> tuple[str, ...]:
    """Return the names of the GPUs that the NVIDIA driver makes available."""
    if cuda_driver() is None:
        return ()
    driver = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    count, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    return tuple(
        name.value.decode() for i in range(count.value) if driver.cuDeviceGetName(name, len(name), i) == 0
    )


def number(version: str) -> tuple[int, int] | None:
    """Parse the version "13.4.92" as (13, 4). Return None if there is no version."""
    major, _, rest = version.partition(".")
    return (int(major), int(rest.partition(".")[0])) if rest else None


def dotted(version: tuple[int, int]) -> str:
    """Format (13, 4) as "13.4"."""
    return ".".join(map(str, version))


def platform_name(system: str) -> str:
    """Return the common name of platform.system()."""
    return {"Darwin": "macOS"}.get(system, system)
