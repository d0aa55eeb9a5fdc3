"""Compiles CUDA C++ source strings. NVRTC compiles them to PTX without a GPU, and sim runs the PTX.

NVRTC is installed with numba-cuda on Linux and Windows. If it is missing, as on macOS, the module uses PTX
that was recorded when the lessons were built (recorded/NN_topic.json, see course.ptx).
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from course.ptx import NoCompiler, compute_or_recall, digest, load_recordings
from sim import load_ptx
from sim.errors import LaunchError

STUB = re.compile(r'raise NotImplementedError\("(exercise [\d.]+)"\)')
MARK = re.compile(r" *# (BEGIN|END) SOLUTION")
MISSING = (
    "NVRTC, NVIDIA's compiler for CUDA C++, is not here (macOS has none; elsewhere"
    " `make setup COMPILERS=yes` installs it)"
)


def cuda_cpp(source, name="kernel.cu", *options, **headers):
    """Compile a string of CUDA C++ and return its kernels as a Module of sim.

    If NVRTC is missing and the text was not recorded, use the published solution instead and print a message.

    name: file name under which findings refer to the source.
    options: additional NVRTC options, such as "-DWIDTH=8".
    headers: header texts; tiles="..." defines tiles.cuh.

    Raises NotImplementedError for a stub, LaunchError with the compiler's message, and NoCompiler if there is
    neither a compiler nor a recording.
    """
    try:
        ptx = ptx_of(source, name, *options, **headers)
    except NoCompiler:
        known = (
            found
            for what, found in load_recordings().items()
            if what.startswith(title(name, options, headers))
        )
        if (found := next(known, None)) is None:
            raise
        print(f"{name}: the solution's, as {MISSING}")
        ptx, source = found["ptx"], found["source"]
    return load_ptx(ptx, source=without_marks(source))


@functools.cache
def ptx_of(source, name="kernel.cu", *options, **headers):
    """Return the PTX of a CUDA C++ string, freshly compiled or from the recording.

    Raises the same errors as `cuda_cpp`.
    """
    text, *others = map(without_marks, (source, *headers.values()))
    what = title(name, options, headers) + digest("".join(map(without_comments, (text, *others))))
    included = dict(zip(headers, others))
    return compute_or_recall(what, lambda: {"source": text, "ptx": by_nvrtc(text, name, options, included)})[
        "ptx"
    ]


def run_program(source, name):
    """Run a whole CUDA program as `python -m sim run` does, and return its output and the findings.

    Without nvcc, return the output that was recorded when the lesson was built. If the program was changed
    since then, return a message.
    """
    try:
        what = f"output of {name}, " + digest(without_comments(source))
        return compute_or_recall(what, lambda: {"output": by_nvcc(source, name)})["output"]
    except NoCompiler as missing:
        return f"NOTHING WAS RUN. {missing}"


def by_nvcc(source, name):
    """Run a program in a process of its own. Raise NoCompiler if nvcc is missing."""
    from sim.runtime.build import find_nvcc

    if os.environ.get("COURSE_NO_COMPILER"):
        raise NoCompiler("nvcc is not here")
    try:
        find_nvcc()
    except LaunchError as error:
        raise NoCompiler(str(error)) from None
    with TemporaryDirectory() as folder:
        (Path(folder) / name).write_text(source, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "-m", "sim", "run", name],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
        )
    return done.stdout + done.stderr


def title(name, options, headers):
    return f"CUDA C++ {' '.join([name, *options, *headers])}, "


def without_marks(text):
    """Return the text without solution marks and without an empty first line.

    Raises NotImplementedError if the text contains a stub.
    """
    if found := STUB.search(text):
        raise NotImplementedError(found[1])
    return "".join(line for line in text.removeprefix("\n").splitlines(True) if not MARK.match(line))


def without_comments(text):
    """Return the text without comments and extra spaces.

    Line breaks are kept, because findings report line numbers.
    """
    lines = (re.sub(r"\s*([^\w\s])\s*", r"\1", line.partition("//")[0]) for line in text.splitlines())
    return "\n".join(" ".join(line.split()) for line in lines).rstrip() + "\n"


def by_nvrtc(source, name, options, headers):
    """Compile the text with NVRTC. Raise NoCompiler if NVRTC is missing, and LaunchError if it rejects the
    text."""
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
    """Return whether NVRTC is installed. COURSE_NO_COMPILER=1 simulates a machine without NVRTC."""
    if os.environ.get("COURSE_NO_COMPILER"):
        return False
    try:
        from cuda.bindings import nvrtc

        nvrtc.nvrtcVersion()
    except (ImportError, RuntimeError):
        return False
    return True
