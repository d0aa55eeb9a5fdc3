"""CUDA C++ to PTX by NVRTC, NVIDIA's run-time compiler, which needs no GPU."""

from pathlib import Path

from sim.errors import LaunchError
from sim.ptx.module import Module, load_ptx

INSTALL = (
    "pip install cuda-bindings nvidia-cuda-nvrtc (numba-cuda[cu13] brings both), or give PTX to load_ptx"
)


def load_cuda(path: str | Path, *options: str, architecture: str = "compute_80") -> Module:
    """The Module of a .cu file: its `extern "C"` and other kernels, compiled by NVRTC with line numbers.

    path: the file.
    options: more of NVRTC's, such as "-I/usr/local/cuda/include" or "-DWIDTH=8".
    architecture: whose PTX is wanted; sim runs what sm_80 has.

    Errors: LaunchError where NVRTC is missing, or with the compiler's message.
    """
    source = Path(path).read_text(encoding="utf-8")
    return load_ptx(compiled(source, Path(path).name, *options, architecture=architecture), source=source)


def compiled(source: str, name: str, *options: str, architecture: str = "compute_80") -> str:
    """The PTX of CUDA C++ that is called `name`. Errors: LaunchError."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise LaunchError(f"{name} needs NVRTC, which is not installed\n  {INSTALL}") from error
    flags = [f"--gpu-architecture={architecture}", "-lineinfo", "--std=c++17", *options]
    try:
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), 0, [], [])
    except RuntimeError as error:  # the library itself
        raise LaunchError(f"{name} needs NVRTC, which cannot be loaded: {error}\n  {INSTALL}") from error
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise LaunchError(f"NVRTC does not compile {name}:\n{read(nvrtc, 'ProgramLog', program)}")
    return without_folder(read(nvrtc, "PTX", program), name)


def read(nvrtc, what, program):
    """The PTX, or the ProgramLog, of a program."""
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    text = b" " * size
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.rstrip(b"\0 ").decode()


def without_folder(ptx, name):
    """The text with the bare name of the file in place of where it was compiled."""
    lines = [
        f'\t.file\t{line.split()[1]} "{name}"' if line.strip().startswith(".file") and name in line else line
        for line in ptx.splitlines()
    ]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"
