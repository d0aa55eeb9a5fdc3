"""Returns compiler output for a kernel, with or without a GPU: inferred types, and PTX in which to read and
count instructions.

Compilation needs NVIDIA's library libNVVM, which is installed with numba-cuda on Linux and Windows, but no
GPU or driver. If libNVVM is missing, as on macOS, `compiled` and `type_of` use results recorded during the
build of the lessons (recorded/NN_topic.json), and raise NoCompiler for anything that was not recorded.
"""

import functools
import inspect
import json
import math
import os
import re
import textwrap
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numba
import numpy as np
from numba import cuda, types
from numba.cuda import dispatcher
from numba.cuda.compiler import compile_cuda
from numba.cuda.cudadrv import nvvm

ARCHITECTURE = "sm_80"  # the architecture of an A100; newer GPUs also run its PTX


class NoCompiler(RuntimeError):
    """Error that a part of the compiler is missing. A notebook shows only the message."""

    def _render_traceback_(self):
        return [f"NOTHING WAS COMPILED. {self}"]


# Types ------------------------------------------------------------------------------------------------------


def type_of(expression, **arguments):
    """Return the name of the type that Numba infers for an expression in a kernel.

    type_of("i + 1", i=np.int32(5)) returns "int64".
    """
    given = {name: type_of_argument(argument) for name, argument in arguments.items()}
    return compute_or_recall(f"the type of {expression} with {given}", lambda: type_found(expression, given))


def type_found(expression, given):
    require_compiler()
    names = {
        "math": math,
        "cuda": cuda,
        **{name: getattr(np, name) for name in ("int32", "uint32", "int64", "float32", "float64")},
    }
    function = eval(f"lambda {', '.join(given)}: {expression}", names)
    return str(
        compile_cuda(function, None, tuple(given.values()), cc=numbers_of(ARCHITECTURE)).signature.return_type
    )


def type_of_argument(argument):
    """Return the Numba type of a kernel argument.

    A Numba type is returned unchanged, and a tensor is treated as an array.
    """
    if isinstance(argument, types.Type):
        return argument
    return numba.typeof(argument.detach().cpu().numpy() if hasattr(argument, "detach") else argument)


# PTX --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compiled:
    """A kernel compiled for one GPU architecture.

    source: the kernel's source text.
    first: line number of the first line of `source` in its file.
    ptx: PTX text of the compiled kernel.
    names: description of each PTX parameter, in order.
    """

    source: str
    first: int
    architecture: str
    ptx: str
    names: list

    @property
    def instructions(self):
        """The instructions in order, one string each."""
        return [line for line in self.lines() if not line.startswith("$")]

    @property
    def float64(self):
        """The instructions that use a float64."""
        return [line for line in self.instructions if ".f64" in line]

    def float64_by_line(self):
        """Return the kernel's source, each line preceded by its number of float64 instructions."""
        source, first = self.source.splitlines(), self.first
        counts, here = Counter(), 0
        for line in self.ptx.splitlines():
            if place := re.match(r"\t\.loc\t\d+ (\d+)", line):
                here = int(place[1]) - first
            elif re.match(r"\t+(@|[a-z]).*\.f64", line):
                counts[here] += 1
        rows = [f"{counts.pop(number, '') or '':>5}  {line}".rstrip() for number, line in enumerate(source)]
        return "\n".join([*rows, *([f"{counts.total():5}  elsewhere"] if counts else [])])

    @property
    def shared_bytes(self):
        """Static shared memory per block, in bytes."""
        return self.bytes_declared(".shared")

    @property
    def local_bytes(self):
        """Local memory per thread in bytes, for arrays that do not fit in registers."""
        return self.bytes_declared(".local")

    def bytes_declared(self, space):
        return sum(map(int, re.findall(rf"\{space} .*\[(\d+)\];", self.ptx)))

    @property
    def registers(self):
        """Number of 32-bit registers per thread that the assembler allocates.

        Raises NoCompiler if there is no assembler.
        """
        return compute_or_recall(
            f"registers of {digest(self.ptx)} on {self.architecture}", self.registers_assigned
        )

    def registers_assigned(self):
        try:
            from cuda.bindings import nvjitlink
            from cuda.core import Linker, LinkerOptions, ObjectCode

            nvjitlink.version()
        except (ImportError, RuntimeError) as error:
            raise NoCompiler(f"The assembler, nvJitLink, is not here: {error}") from error
        assembler = Linker(
            ObjectCode.from_ptx(self.ptx.encode()),
            options=LinkerOptions(arch=self.architecture, ptxas_options=["-v"]),
        )
        assembler.link("cubin")
        return int(re.search(r"[Uu]sed (\d+) registers", assembler.get_info_log())[1])

    def lines(self):
        """Instructions and branch labels, with parameter numbers replaced by names."""
        body = self.ptx.partition("\n{")[2]
        code = [
            line.strip().rstrip(";").expandtabs(1)
            for line in body.splitlines()
            if re.match(r"\t+(@|[a-z])|\$", line)
        ]
        entry = re.search(r"\.entry (\S+?)\(", self.ptx)[1]
        return [
            re.sub(rf"\[{entry}_param_(\d+)", lambda found: f"[{self.names[int(found[1])]}", line)
            for line in code
        ]

    def read_aloud(self):
        """Return the instructions as text, one per line, each with a Python-like explanation."""
        width = max(map(len, self.instructions)) + 3
        return "\n".join(f"{line:{width}}{spoken(line)}".rstrip() for line in self.lines())


def compiled(kernel, *arguments, architecture=ARCHITECTURE):
    """Return the kernel compiled for the given arguments, which are values or Numba types.

    kernel: a function, with or without @cuda.jit.

    Raises NoCompiler if libNVVM is missing and the result was not recorded, and Numba's exception for a
    kernel that Numba cannot compile.
    """
    function, signature = getattr(kernel, "py_func", kernel), types.void(*map(type_of_argument, arguments))
    constants = [
        (repr(cell.cell_contents), type(cell.cell_contents).__name__) for cell in function.__closure__ or ()
    ]
    what = (
        f"{function.__name__}{signature} for {architecture}, {digest(f'{source_of(function)} {constants}')}"
    )
    return Compiled(
        **compute_or_recall(
            what, lambda: asdict(compiled_here(kernel, *arguments, architecture=architecture))
        )
    )


def compiled_here(kernel, *arguments, architecture=ARCHITECTURE):
    """Compile the kernel like `compiled`, but never use a recording."""
    function = getattr(kernel, "py_func", kernel)
    signature = types.void(*map(type_of_argument, arguments))
    require_compiler()
    with another_gpu(architecture):
        ptx, _ = cuda.compile(
            function,
            signature,
            device=False,
            abi="numba",
            output="ptx",
            cc=numbers_of(architecture),
            lineinfo=True,
        )
    ptx = re.sub(r'(?m)^(\t\.file\t\d+) ".*"', r'\1 "kernel.py"', ptx)
    return Compiled(
        source_of(function),
        inspect.getsourcelines(function)[1],
        architecture,
        ptx,
        parameters(function, signature),
    )


def source_of(function):
    """Return the dedented source of a function."""
    return textwrap.dedent(inspect.getsource(function))


# Recorded compiler output, for machines without the compiler ------------------------------------------------

RECORDS = Path(__file__).parent / "recorded"


def compute_or_recall(what, compute):
    """Return compute(), or its recorded result if the compiler is missing.

    COURSE_RECORD_PTX names a file to which results are recorded.
    """
    try:
        result = compute()
    except NoCompiler:
        if what not in load_recordings():
            raise
        return load_recordings()[what]
    if file := os.environ.get("COURSE_RECORD_PTX"):
        file = Path(file)
        found = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps(found | {what: result}, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return result


@functools.cache
def load_recordings():
    """Return {query: result} for every lesson, as written by the build."""
    return {
        what: result
        for file in sorted(RECORDS.glob("[0-9]*.json"))
        for what, result in json.loads(file.read_text(encoding="utf-8")).items()
    }


def digest(text):
    return sha256(text.encode()).hexdigest()[:16]


def require_compiler():
    """Raise NoCompiler unless numba-cuda and libNVVM are installed.

    COURSE_NO_COMPILER=1 simulates a machine without libNVVM.
    """
    try:
        if os.environ.get("COURSE_NO_COMPILER"):
            raise nvvm.NvvmSupportError("COURSE_NO_COMPILER is set")
        # Numba's own numba.cuda, with a libNVVM of the system, rejects the instructions that kernels define.
        if find_spec("numba_cuda") is None:
            raise nvvm.NvvmSupportError("numba-cuda is not installed")
        nvvm.NVVM()
    except nvvm.NvvmSupportError as error:
        cure = "On Linux or Windows, `make setup COMPILERS=yes` installs it; macOS has none."
        raise NoCompiler(
            f"NVIDIA's compiler, libNVVM, is not here. {cure} The solution's notebook shows what would stand"
            " here."
        ) from error


@contextmanager
def another_gpu(architecture):
    """Compile device functions for `architecture` inside the `with` block.

    Numba would otherwise ask the current GPU for its architecture, and there may be no GPU.
    """
    stand_in = SimpleNamespace(compute_capability=numbers_of(architecture))
    with patch.object(dispatcher, "get_current_device", lambda: stand_in):
        yield


def numbers_of(architecture):
    """Return the architecture as a tuple: (8, 0) for "sm_80", (9, 0, "a") for "sm_90a"."""
    digits = architecture.removeprefix("sm_")
    number, feature = digits.rstrip("a"), digits.lstrip("0123456789")
    return (*divmod(int(number), 10), *feature)


def parameters(function, signature):
    """Return descriptions of a compiled kernel's parameters: seven or more per array, one per scalar."""
    names = []
    for name, kind in zip(function.__code__.co_varnames, signature.args, strict=False):
        sizes = [f"{part}{axis}" for part in ("shape", "strides") for axis in range(getattr(kind, "ndim", 0))]
        parts = ["meminfo", "parent", "size", "itemsize", "data", *sizes]
        names += [f"{name}.{part}" for part in parts] if isinstance(kind, types.Array) else [name]
    return names


# PTX in words -----------------------------------------------------------------------------------------------

TYPES = {"s": "int", "u": "uint", "f": "float", "b": "bits"}
PLACES = {"tid": "threadIdx", "ntid": "blockDim", "ctaid": "blockIdx", "nctaid": "gridDim"}
COMPARED = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
COMPARED |= {f"{name}u": f"{sign}, or NaN," for name, sign in COMPARED.items()}
# Keyed by the instruction's prefix; the longest matching prefix applies. {0} is the first operand.
SPOKEN = {
    "ld.param": "{0} = {1}",
    "ld.global": "{0} = the {type} at {1}",
    "ld.shared": "{0} = the {type} at {1} in shared memory",
    "st.global": "the {type} at {0} = {1}",
    "st.shared": "the {type} at {0} in shared memory = {1}",
    "mov": "{0} = {1}",
    "cvt": "{0} = {result}({1})",
    "cvta": "{0} = {1}, an address in global memory",
    "mul.wide": "{0} = {1} * {2}, twice as wide as they are",
    "mul": "{0} = {1} * {2}",
    "add": "{0} = {1} + {2}",
    "sub": "{0} = {1} - {2}",
    "div": "{0} = {1} / {2}",
    "fma": "{0} = {1} * {2} + {3}, rounded once",
    "mad": "{0} = {1} * {2} + {3}",
    "max": "{0} = max({1}, {2})",
    "min": "{0} = min({1}, {2})",
    "sqrt": "{0} = sqrt({1})",
    "ex2": "{0} = 2 ** {1}",
    "neg": "{0} = -{1}",
    "not": "{0} = ~{1}",
    "and": "{0} = {1} & {2}",
    "or": "{0} = {1} | {2}",
    "shl": "{0} = {1} << {2}",
    "shr": "{0} = {1} >> {2}",
    "setp": "{0} = {1} {compared} {2}",
    "selp": "{0} = {1} if {3} else {2}",
    "bra": "go to {0}",
    "bar.sync": "wait for the block",
    "ret": "return",
}


def spoken(line):
    """Describe one instruction in words.

    Return "" for a label or an instruction that SPOKEN does not contain.
    """
    guard, operation, operands = re.fullmatch(r"(?:@(!?%\w+) +)?(\S+)\s*(.*)", line).groups()
    beginnings = [name for name in SPOKEN if f"{operation}.".startswith(f"{name}.")]
    if not beginnings:
        return ""
    parts = operation.split(".")
    widths = [f"{TYPES[part[0]]}{part[1:]}" for part in parts if re.fullmatch(r"[sufb](8|16|32|64)", part)]
    values = [value_of(operand) for operand in operands.split(", ")]
    words = SPOKEN[max(beginnings, key=len)].format(
        *values,
        type=widths[-1] if widths else "",
        result=widths[0] if widths else "",
        compared=next((COMPARED[part] for part in parts if part in COMPARED), ""),
    )
    return f"if {'not ' * guard.startswith('!')}{value_of(guard).lstrip('!')}: {words}" if guard else words


def value_of(operand):
    """Format an operand for display.

    %rd1 becomes rd1, %tid.x becomes threadIdx.x, and 0d3FF0000000000000 becomes the float64 1.0.
    """
    operand = operand.strip("[]; ").replace("%", "").lstrip("$")
    number = re.fullmatch(r"0([fd])([0-9A-F]+)", operand)
    if number:
        return str(float(np.frombuffer(bytes.fromhex(number[2]), ">f4" if number[1] == "f" else ">f8")[0]))
    place, dot, axis = operand.partition(".")
    return PLACES.get(place, place) + dot + axis
