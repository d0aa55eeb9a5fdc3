"""Compile a .cu file with nvcc into a shared library that contains host code and PTX."""

import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from sim.errors import LaunchError
from sim.ptx.compiler_warnings import CompilerWarning, read_log
from sim.runtime.stubs import WRAPPED

INSTALL = (
    "pip install 'kernelwatch[cuda]' brings nvcc (nvidia-cuda-nvcc, nvidia-cuda-crt and nvidia-nvvm of one"
    " version, and the headers); or set CUDA_HOME to a CUDA 13 toolkit"
)
KERNELS_ALONE = "sim.load_cuda checks the kernels of a .cu file without its host code, on every system"
# --no-compress: store PTX as text. -cudart none: the stubs of sim.runtime.stubs replace the runtime library.
# -lineinfo and -g: record source lines of kernels and host calls. --wrap: the stubs also replace some
# functions of the C library.
FLAGS = (
    "--no-compress", "-cudart", "none", "-lineinfo", "-g", "-shared",
    "-Xcompiler", "-fPIC", "-Xlinker", ",".join(f"--wrap={name}" for name in WRAPPED),
)  # fmt: skip
# Overloads for functions whose parameters CUDA 13 has changed, so that programs for CUDA 11 and 12 compile
CUDA_12 = """\
#if defined(__cplusplus) && CUDART_VERSION >= 13000
static inline cudaMemLocation sim_location(int device) {
    cudaMemLocation location = {};
    location.type = device < 0 ? cudaMemLocationTypeHost : cudaMemLocationTypeDevice;
    location.id = device < 0 ? 0 : device;
    return location;
}
static inline cudaError_t cudaMemPrefetchAsync(const void *p, size_t n, int device, cudaStream_t s = 0) {
    return cudaMemPrefetchAsync(p, n, sim_location(device), 0u, s);
}
static inline cudaError_t cudaMemAdvise(const void *p, size_t n, cudaMemoryAdvise advice, int device) {
    return cudaMemAdvise(p, n, advice, sim_location(device));
}
#endif
"""
# Options that link CUDA's libraries. They are dropped, because sim.runtime.stubs replaces these libraries.
LIBRARIES = re.compile(
    r"-l(cuda|cublas|cudnn|cufft|curand|cusparse|cusolver|nccl|nvrtc|npp|nvidia-ml|nvToolsExt)\w*"
)
# The options of nvcc that choose architectures, and the name of an architecture in such an option
ARCHITECTURE_OPTION = re.compile(
    r"(-arch|--gpu-architecture|-code|--gpu-code|-gencode|--generate-code)(=.*)?"
)
ARCHITECTURE = re.compile(r"(?:sm|compute)_((\d+)[af]?)\b")
DEFAULT_ARCHITECTURE = "80"
# The text between a library and the list of the compiler's warnings, which `build` appends to the file. The
# loader ignores bytes after the end of the library.
WARNINGS_FOLLOW = b"\nsim: warnings of the compiler\n"


def find_nvcc() -> Path:
    """Return the path of nvcc, from NVIDIA's Python packages, CUDA_HOME or PATH.

    Raise LaunchError if nvcc is missing, or if this system cannot run it.
    """
    if platform.system() != "Linux":
        raise LaunchError(
            f"nvcc for whole programs needs Linux; this is {platform.system() or 'another system'}\n"
            f"  {KERNELS_ALONE}"
        )
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    found = [path for folder in folders for path in sorted(folder.glob("*/bin/nvcc"), reverse=True)]
    found += [
        Path(os.environ[name], "bin", "nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ
    ]
    found += [Path(path)] if (path := shutil.which("nvcc")) else []
    usable = next((path for path in found if path.is_file()), None)
    if usable is None:
        raise LaunchError(f"nvcc is not installed\n  {INSTALL}\n  {KERNELS_ALONE}")
    if shutil.which("gcc") is None:
        raise LaunchError(
            "nvcc needs the C++ compiler gcc, which is not installed\n  for example: apt install g++"
        )
    return usable


def build(program: Path, library: Path, options: tuple[str, ...] = ()) -> Path:
    """Compile a .cu file into `library`. Return `library`.

    The compiler's warnings about undefined behaviour become findings of the launches (`warnings_of`).

    program: the .cu file.
    library: the shared library to write.
    options: additional options for nvcc, such as "-Iinclude" or "-DN=8".

    Raise LaunchError with the compiler's messages if compilation fails.
    """
    if not program.is_file():
        raise LaunchError(f"{program}: no such file")
    nvcc = find_nvcc()
    if not os.access(nvcc, os.X_OK):
        raise LaunchError(f"{nvcc} is not executable\n  chmod +x {nvcc.parent}/*")
    options = only_ptx([option for option in options if not LIBRARIES.fullmatch(option)])
    with tempfile.TemporaryDirectory(prefix="sim-headers-") as folder:
        header = Path(folder, "sim_cuda12.h")
        header.write_text(CUDA_12)
        flags = [*FLAGS, "-include", str(header), *include_options(nvcc), *options]
        command = [str(nvcc), *flags, "-o", str(library), str(program)]
        made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        messages = (made.stderr or made.stdout).strip()
        raise LaunchError(f"nvcc does not compile {program}:\n{messages}")
    if warnings := read_log(made.stderr + made.stdout):
        with library.open("ab") as file:
            file.write(WARNINGS_FOLLOW + json.dumps([*map(vars, warnings)]).encode())
    return library


def warnings_of(library: Path) -> tuple[CompilerWarning, ...]:
    """Return the warnings about undefined behaviour that nvcc printed when `build` compiled a library."""
    _, found, text = library.read_bytes().rpartition(WARNINGS_FOLLOW)
    return tuple(CompilerWarning(**fields) for fields in json.loads(text)) if found else ()


def only_ptx(options: list[str]) -> list[str]:
    """Return the options of nvcc, changed so that it produces PTX for one architecture and no machine code.

    The architecture is the newest one in the options, such as 90a for -arch=sm_90a. If the options name none,
    it is 80. Machine code is not needed: compiling it takes longer, and ptxas may not be installed.
    """
    kept, chosen = [], []
    for before, option in zip(["", *options], options):
        if (
            ARCHITECTURE_OPTION.fullmatch(option)
            or ARCHITECTURE_OPTION.fullmatch(before)
            and "=" not in before
        ):
            chosen += ARCHITECTURE.findall(option)
        else:
            kept.append(option)
    name, _ = max(chosen, key=lambda found: (int(found[1]), found[0]), default=(DEFAULT_ARCHITECTURE, ""))
    return [f"-gencode=arch=compute_{name},code=compute_{name}", *kept]


def include_options(nvcc: Path) -> list[str]:
    """Return the options that let nvcc find the headers of Thrust and CUB."""
    folder = nvcc.parent.parent / "include" / "cccl"
    return [f"-I{folder}"] if folder.is_dir() else []
