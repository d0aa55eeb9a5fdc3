"""CUDA C++ in a string, compiled to PTX by NVRTC, without a GPU, for the simulator to run.

NVRTC comes with numba-cuda on Linux and Windows. Where it is missing, as on macOS, what the build of the
lessons compiled stands in (recorded/NN_topic.json, see course.ptx).
"""

import functools
import os
import re
from pathlib import Path
from tempfile import TemporaryDirectory

from course.ptx import NoCompiler, digest, kept, recorded
from sim import load_ptx
from sim.errors import LaunchError

STUB = re.compile(r'raise NotImplementedError\("(exercise [\d.]+)"\)')
MARK = re.compile(r" *# (BEGIN|END) SOLUTION")
MISSING = (
    "NVRTC, NVIDIA's compiler for CUDA C++, is not here (macOS has none; elsewhere `make setup` installs it)"
)


def cuda_cpp(source, name="kernel.cu", *options, **headers):
    """sim's Module of the kernels in `source`, a str of CUDA C++ that findings call `name`. Without NVRTC a
    text that was not recorded gives way to the solution's, and a line says so.

    options: more of NVRTC's, such as "-DWIDTH=8". headers: tiles="..." is the text of tiles.cuh.

    Errors: NotImplementedError for a stub; LaunchError with the compiler's message; NoCompiler.
    """
    try:
        ptx = ptx_of(source, name, *options, **headers)
    except NoCompiler:
        known = (
            found for what, found in recorded().items() if what.startswith(title(name, options, headers))
        )
        if (found := next(known, None)) is None:
            raise
        print(f"{name}: the solution's, as {MISSING}")
        ptx, source = found["ptx"], found["source"]
    return load_ptx(ptx, source=cleaned(source))


@functools.cache
def ptx_of(source, name="kernel.cu", *options, **headers):
    """The PTX of that text, compiled or recorded. Errors: as cuda_cpp's."""
    text, *others = map(cleaned, (source, *headers.values()))
    what = title(name, options, headers) + digest("".join(map(normal, (text, *others))))
    included = dict(zip(headers, others))
    return kept(what, lambda: {"source": text, "ptx": by_nvrtc(text, name, options, included)})["ptx"]


def title(name, options, headers):
    return f"CUDA C++ {' '.join([name, *options, *headers])}, "


def cleaned(text):
    """The text without a solution's marks, and without the empty line behind its opening quotes. Errors:
    NotImplementedError where a stub stands."""
    if found := STUB.search(text):
        raise NotImplementedError(found[1])
    return "".join(line for line in text.removeprefix("\n").splitlines(True) if not MARK.match(line))


def normal(text):
    """The text without what changes nothing in a line: comments, spaces. Lines stay where they are, as
    findings name them."""
    lines = (re.sub(r"\s*([^\w\s])\s*", r"\1", line.partition("//")[0]) for line in text.splitlines())
    return "\n".join(" ".join(line.split()) for line in lines).rstrip() + "\n"


def by_nvrtc(source, name, options, headers):
    """Compile the text here. Errors: NoCompiler; LaunchError."""
    if not have_nvrtc():
        raise NoCompiler(MISSING)
    from sim.ptx.nvrtc import compile_ptx

    with TemporaryDirectory() as folder:
        for header, text in headers.items():
            (Path(folder) / f"{header}.cuh").write_text(text, encoding="utf-8")
        try:
            return re.sub(
                rf'"[^"]*{re.escape(Path(folder).name)}[/\\]',
                '"',
                compile_ptx(source, name, f"-I{folder}", *options),
            )
        except LaunchError as error:
            raise LaunchError(re.sub(rf"\S*{re.escape(Path(folder).name)}[/\\]", "", str(error))) from None


@functools.cache
def have_nvrtc():
    """Return whether NVRTC is installed; COURSE_NO_COMPILER=1 behaves as if it were not."""
    if os.environ.get("COURSE_NO_COMPILER"):
        return False
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return True
