"""Compilation of CUDA C++ to PTX with NVRTC, NVIDIA's runtime compiler, which needs no GPU."""

import copy
import functools
import importlib.util
import os
import re
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from sim.errors import LaunchError
from sim.ptx import host_headers
from sim.ptx.compiler_warnings import included, read_log
from sim.ptx.module import Kernel, Module
from sim.ptx.origin import Origin
from sim.ptx.parse import parse

INSTALL = (
    "pip install cuda-bindings nvidia-cuda-nvrtc (numba-cuda[cu13] brings both), or give PTX to load_ptx"
)

HEADERS = (
    "The toolkit's headers come with: pip install nvidia-cuda-runtime nvidia-cuda-cccl (numba-cuda[cu13]"
    ' brings both). Add other folders with load_cuda(path, "-Ifolder")'
)

# cooperative_groups.h includes parts of cuda::std, which take NVRTC 1 to 2 s. With this option, the header
# itself defines the few type traits that it needs, and the PTX of a kernel is the same.
OWN_TRAITS = "-D_CG_LIMIT_INCLUDED_DEPENDENCIES"
# A source is compiled once more, without optimisation, if its compilation took at most this number of CPU
# seconds. The unoptimised code is used if it has at most this number of instructions: the translation of
# 1,000 instructions takes about 0.13 s.
MOST_SECONDS, MOST_INSTRUCTIONS = 0.25, 4000
# a section with debug information (DWARF), which takes longer to parse than the code
DEBUG_SECTION = re.compile(r"^\s*\.section\s+\.debug\w*\s*\{.*?^\s*\}", re.M | re.S)
UNOPTIMIZED = {"-G", "--device-debug"}  # the options that compile without optimisation
HEAP = {"malloc", "free"}  # the names of the functions of the device heap in PTX
# A source that contains one of these texts may depend on cuda::std, or on a type that the header's own traits
# do not count as an integer or a float, although cuda::std does.
NEEDS_STD = re.compile(
    r"cuda::|cuda/|\b_CG_|\bsigned\s+char|int8|int128|wchar_t|char(8|16|32)_t|bf16|bfloat16|float8|fp8"
)


def load_cuda(path: str | Path, *options: str, architecture: str = "compute_80") -> Module:
    """Return the Module of a .cu file, compiled by NVRTC with line numbers.

    `module["name"]` is a kernel, and `module["name<float, 64>"]` an instance of a template. A template is
    instantiated at its first use.

    path: the file.
    options: further options of NVRTC, such as "-Imy_headers" or "-DWIDTH=8". The headers of the CUDA toolkit,
        such as <cooperative_groups.h>, are found in NVIDIA's Python packages or in CUDA_HOME.
    architecture: the architecture of the PTX: compute_80, or sm_90a for the instructions of Hopper. The
        option --gpu-architecture replaces it.

    A warning of the compiler about undefined behaviour, such as a variable that is used before its value is
    set, becomes a warning in the report of each launch of the kernel concerned.

    The optimiser may remove an undefined value together with its use, and an access outside an array that it
    keeps in registers. The first launches of a kernel therefore also run their first and last block in
    unoptimised code, for a limited time (sim.unoptimized_code). `load_cuda(path, "-G")` compiles the whole
    module without optimisation, so that each launch shows such faults in all blocks.

    Raise LaunchError with the compiler's message, or if NVRTC is not installed.
    """
    path = Path(path)
    source, options = path.read_text(encoding="utf-8"), (f"-I{path.parent}", *options)
    headers = tuple(text for _, text in own_headers(source, options))
    return CudaModule(path, source, options, architecture, headers)


class CudaModule(Module):
    """The kernels of a .cu file. All instances of its templates share the variables of the module."""

    def __init__(
        self, path: Path, source: str, options: tuple[str, ...], architecture: str, headers: tuple[str, ...]
    ) -> None:
        self.compile = functools.partial(
            compile_program, source, path.name, *options, architecture=architecture, folder=path.parent
        )
        self.sources = source, headers, os.path.abspath(path)
        self.instances: dict[str, Kernel] = {}
        # name of a kernel in PTX -> the kernel in unoptimised code, or None
        self.debug: dict[str, Kernel | None] = {}
        self.options = options
        self.expression = ""  # the instance of a template in this module
        began = time.process_time()
        text, _, log = self.compile()
        self.seconds = time.process_time() - began  # CPU seconds of the compilation
        super().__init__(text, *self.sources)
        self.folders = [option[2:] for option in options if option.startswith("-I")]
        self.warnings = read_log(log, path.parent)

    def __getitem__(self, name: str) -> Kernel:
        expression = " ".join(name.split())
        if not re.search("<|::", expression) or expression in self.names:
            return super().__getitem__(name)
        if expression not in self.instances:
            self.instances[expression] = self.instantiate(expression)
        return self.instances[expression]

    def unoptimized(self, name: str) -> Kernel | None:
        """Return the kernel with this name in PTX, compiled without optimisation.

        Return None if compilation or translation would take too long, or if the kernel uses the heap of the
        device.
        """
        if name not in self.debug:
            self.debug[name] = None
            if self.seconds <= MOST_SECONDS and UNOPTIMIZED.isdisjoint(self.options):
                text, *_ = self.compile("-G", expressions=(self.expression,) if self.expression else ())
                module = self.with_text(DEBUG_SECTION.sub("", text))
                functions = module.text.functions
                device = [f for f in functions.values() if not f.entry or f.name == name]
                count = sum(len(function.body or ()) for function in device)
                if HEAP.isdisjoint(functions) and count <= MOST_INSTRUCTIONS:
                    self.debug[name] = Kernel(module, functions[name])
        return self.debug[name]

    def with_text(self, text: str) -> "CudaModule":
        """Return a module with another PTX text of the same source, which shares the variables of this
        module."""
        module = copy.copy(self)
        module.text = parse(text)
        module.origin = Origin(module.text, *self.sources)
        self.store.add_variables(module.text)
        return module

    def instantiate(self, expression: str) -> Kernel:
        """Return the kernel that a C++ expression names, such as "scale<64>" or "space::kernel"."""
        text, lowered, log = self.compile(expressions=(expression,))
        module = self.with_text(text)
        module.debug, module.seconds_unoptimized, module.expression = {}, {}, expression
        module.warnings = read_log(log, os.path.dirname(self.sources[-1]))
        function = module.text.functions.get(lowered[expression])
        if function is None or not function.entry:
            names = ", ".join(self.names) or "none"
            raise LaunchError(f"{expression} is not a kernel; the module has {names}")
        kernel = Kernel(module, function)
        kernel.__name__ = expression
        return kernel


def own_headers(source: str, options: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield (absolute path, text) of every header included by a source through #include "name", directly or
    indirectly.

    options: the options of NVRTC, which name the folders of headers.
    """
    return included(source, [option[2:] for option in options if option.startswith("-I") and len(option) > 2])


def compile_ptx(source: str, name: str, *options: str, architecture: str = "compute_80") -> str:
    """Return the PTX for CUDA C++ source. Raise LaunchError with the compiler's message.

    source: the text of the source.
    name: the name of its file, for messages and findings.
    """
    return compile_program(source, name, *options, architecture=architecture)[0]


def compile_program(
    source: str,
    name: str,
    *options: str,
    architecture: str = "compute_80",
    expressions: tuple[str, ...] = (),
    folder: str | Path = "",
) -> tuple[str, dict[str, str], str]:
    """Return (the PTX for CUDA C++ source, {expression: name in the PTX}, the compiler's log with its
    warnings).

    folder: the folder of the source file, where headers in quotes are looked for first. The default is the
        current folder.
    expressions: kernels in C++, such as "scale<64>". A template is instantiated for each expression that
        names it.

    Raise LaunchError with the compiler's message.
    """
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise LaunchError(f"{name} needs NVRTC, which is not installed\n  {INSTALL}") from error
    # -lineinfo emits the .loc directives that give findings their source lines.
    given = any(option.startswith(("--gpu-architecture", "-arch")) for option in options)
    flags = [] if given else [f"--gpu-architecture={architecture}"]
    flags += ["-lineinfo", "--std=c++17", *options]
    flags += [f"-I{each}" for each in header_folders()]
    # NVRTC searches for headers in the folder of this path. Because of the #line directive, messages contain
    # only the name of the file.
    text, path = f'#line 1 "{name}"\n{source}', os.path.join(folder, name)
    program, done = None, False
    if can_use_own_traits(source, options):
        program, done = try_remedies(nvrtc, text, path, [*flags, OWN_TRAITS], expressions)
    if not done:
        program, done = try_remedies(nvrtc, text, path, flags, expressions)
    log = read_result(nvrtc, "ProgramLog", program).replace(f'"{path}"', f'"{name}"')
    if not done:
        hint = f"\n  {HEADERS}" if "open source file" in log else ""
        what = f"{', '.join(expressions)} in {name}" if expressions else name
        raise LaunchError(f"NVRTC does not compile {what}:\n{log}{hint}")
    lowered = {each: nvrtc.nvrtcGetLoweredName(program, each.encode())[1].decode() for each in expressions}
    return strip_folder(read_result(nvrtc, "PTX", program), name), lowered, log


def can_use_own_traits(source, options):
    """Return whether to compile a source with OWN_TRAITS first, and without them only if this fails."""
    texts = [source, *(text for _, text in own_headers(source, options))]
    uses_groups = any("cooperative_groups" in text for text in texts)
    return uses_groups and not any(NEEDS_STD.search(text) for text in [*texts, *options])


def try_remedies(nvrtc, source, name, flags, expressions):
    """Compile a source. If that fails for a reason that has a remedy, compile it again with the remedy's
    options.

    Return (program, whether NVRTC has compiled it).
    """
    program, done = run_nvrtc(nvrtc, source, name, flags, expressions, {})
    for helps, more in host_headers.REMEDIES:
        if not done and helps(read_result(nvrtc, "ProgramLog", program)):
            flags = [*flags, *more]
            program, done = run_nvrtc(nvrtc, source, name, flags, expressions, host_headers.TEXTS)
    return program, done


def run_nvrtc(nvrtc, source, name, flags, expressions, headers):
    """Return (program, whether NVRTC has compiled it).

    headers: {name: text} of the stand-ins for headers (sim.ptx.host_headers).

    Raise LaunchError if the NVRTC library is missing.
    """
    texts, names = [text.encode() for text in headers.values()], [header.encode() for header in headers]
    try:
        _, program = nvrtc.nvrtcCreateProgram(source.encode(), name.encode(), len(headers), texts, names)
    except RuntimeError as error:  # cuda.bindings is installed, but the NVRTC library is not
        raise LaunchError(f"{name} needs NVRTC, which cannot be loaded: {error}\n  {INSTALL}") from error
    for expression in expressions:
        nvrtc.nvrtcAddNameExpression(program, expression.encode())
    (status,) = nvrtc.nvrtcCompileProgram(program, len(flags), [flag.encode() for flag in flags])
    return program, status == nvrtc.nvrtcResult.NVRTC_SUCCESS


@functools.cache
def header_folders():
    """Return the folders that contain the headers of the CUDA toolkit. The folders in NVIDIA's Python
    packages precede those in CUDA_HOME."""
    spec = importlib.util.find_spec("nvidia")
    packages = [Path(folder) for folder in (spec.submodule_search_locations if spec else None) or ()]
    found = [folder for package in packages for folder in sorted(package.glob("*/include"))]
    found += [Path(os.environ[name], "include") for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    found += [folder / "cccl" for folder in found]
    return tuple(str(folder) for folder in found if folder.is_dir())


def read_result(nvrtc, what, program):
    """Return the PTX or the ProgramLog of an NVRTC program.

    what: "PTX" or "ProgramLog".
    """
    _, size = getattr(nvrtc, f"nvrtcGet{what}Size")(program)
    # NVRTC writes to this memory. Do not use a bytes object of length 1 for an empty log, because Python has
    # only one object for all those with equal contents.
    text = b" " * max(size, 2)
    getattr(nvrtc, f"nvrtcGet{what}")(program, text)
    return text.rstrip(b"\0 ").decode()


def strip_folder(ptx, name):
    """Return the PTX without the folder of the source file in its .file directive."""
    lines = [
        f'\t.file\t{line.split()[1]} "{name}"' if line.strip().startswith(".file") and name in line else line
        for line in ptx.splitlines()
    ]
    return "\n".join(line.rstrip() for line in lines).rstrip() + "\n"
