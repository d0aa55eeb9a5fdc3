"""python -m sim FILE --entry NAME --grid G --block B [ARGUMENT ...]: run a kernel from a .cu or .ptx file on
the simulated GPU and print its report.

An argument is a number (7 is an int; 0.5 is a float32; float64:0.5), an array given by dtype and shape and
filled with random numbers (float32[128], int32[8,8], uint8[64]) or with one number (float32[128]=0), a file
(x.npy), or uninitialized memory (empty:float32[64]).

python -m sim run FILE runs a whole CUDA program, and python -m sim explain NAME explains a kind of finding.

Exit status: 0 if the kernel has no errors, 1 if it has errors, 2 if the input is unusable (a file, an
argument, an option) and nothing has run, 3 if the simulator itself failed.
"""

import argparse
import os
import re
import sys
import traceback
from math import prod
from pathlib import Path

import numpy as np

from sim import diagnostics
from sim.errors import LaunchError, SimulatorError, ThreadError
from sim.events import SPACE_SHIFT
from sim.launch import ENGINES, simulate
from sim.memory.spaces import empty
from sim.ptx.module import load_ptx
from sim.ptx.nvrtc import load_cuda

ARRAY = re.compile(r"(empty:)?(\w+)\[([\d,\s]+)\](?:=(.+))?")


def parse_argument(text, random):
    """Return the value of a command-line argument. Raise LaunchError if it is malformed.

    random: the numpy Generator that fills arrays.
    """
    if text.endswith(".npy"):
        return load_array(text)
    if found := ARRAY.fullmatch(text):
        try:
            return make_array(*found.groups(), random)
        except (TypeError, ValueError, OverflowError, MemoryError) as error:
            raise LaunchError(
                f"argument {text!r}: {error}; wanted for example float32[128] or int32[8,8]=0"
            ) from None
    try:
        dtype, _, number = text.rpartition(":")
        if not dtype and re.fullmatch(r"-?\d+", number):
            return int(number)
        return np.dtype(dtype or "float32").type(number)
    except (TypeError, ValueError, OverflowError) as error:
        raise LaunchError(
            f"argument {text!r} is not a number, array or file ({error}); wanted 7, 0.5, float32[128],"
            " int32[8]=0, x.npy"
        ) from None


def load_array(path):
    """Return the array in a .npy file. Raise LaunchError or OSError."""
    try:
        array = np.load(path)
    except OSError:
        raise
    # numpy does not document its exceptions: ValueError, EOFError, BadZipFile, MemoryError, ...
    except Exception as error:
        raise LaunchError(f"{path}: numpy cannot read an array of numbers from it: {error}") from None
    if not isinstance(array, np.ndarray):
        raise LaunchError(
            f"{path} contains several arrays ({type(array).__name__}); wanted one array, written by np.save"
        )
    return array


def make_array(unwritten, dtype, shape, value, random):
    """Return the array for a text such as "float32[8,8]=0". Raise ValueError if it does not fit into
    memory."""
    if unwritten and value is not None:
        raise ValueError(f"empty memory has no initial values, but {value} is given")
    shape, dtype = tuple(int(n) for n in shape.split(",")), np.dtype(dtype)
    needed, most = prod(shape) * dtype.itemsize, 1 << SPACE_SHIFT
    if needed > most:
        raise ValueError(f"takes {needed:,} bytes, but the simulated GPU has {most:,}")
    return empty(shape, dtype) if unwritten else fill_array(shape, dtype, value, random)


def fill_array(shape, dtype, value, random):
    """Return an array full of `value`, or of random numbers if `value` is None."""
    if value is not None:
        return np.full(shape, dtype.type(value), dtype)
    if dtype.kind in "iu":
        return random.integers(0, 10, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def parse_extent(text):
    """Return an integer for "2" and a tuple for "2,3"."""
    numbers = tuple(int(n) for n in text.split(","))
    return numbers if len(numbers) > 1 else numbers[0]


def make_parser():
    """Return the command-line parser. Its help shows the module docstring without the second
    paragraph."""
    usage, _, others, status = __doc__.split("\n\n")
    parser = argparse.ArgumentParser("python -m sim", description=usage, epilog=f"{others} {status}")
    parser.add_argument("file", type=Path, help="a .cu file, which NVRTC compiles, or a .ptx file")
    parser.add_argument("--entry", help="the kernel's name; optional if the file has only one kernel")
    parser.add_argument("--grid", type=parse_extent, default=1, help="blocks: 4 or 4,2")
    parser.add_argument("--block", type=parse_extent, default=32, help="threads of a block: 128 or 16,16")
    parser.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--seed", type=int, default=0, help="seed of the schedule and of random arguments")
    parser.add_argument("--max-steps", type=int, help="loop iterations until the launch counts as endless")
    diagnostics.add_options(parser)
    parser.add_argument("--option", action="append", default=[], help="an option of NVRTC, such as -DN=8")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="set a __constant__ or __device__ variable before the launch",
    )
    parser.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="7, 0.5, float32[128], int32[8]=0, x.npy"
    )
    return parser


def main(given=None):
    given = sys.argv[1:] if given is None else given
    if given[:1] in (["run"], ["build"]):  # whole programs
        from sim.runtime import command

        return command.main(given)
    if given[:1] == ["explain"]:
        from sim import pages

        return pages.main(given[1:])
    if given[:1] == ["triton"]:
        from sim.triton_host import command

        return command.main(given[1:])
    options = make_parser().parse_intermixed_args(given)
    try:
        diagnostics.check_options(options)
        try:
            report = run(options)
        except ThreadError as error:  # the kernel executed a trap or failed an assertion
            present([diagnostics.of_error(error)], error, options)
            return 1
        present(diagnostics.of_report(report), report, options)
    except BrokenPipeError:
        raise
    except (SimulatorError, OSError, UnicodeDecodeError, MemoryError) as error:
        print(f"python -m sim: error: {format_error(error, options.file)}", file=sys.stderr)
        return 2
    except Exception:
        traceback.print_exc()
        print("python -m sim: error: the simulator failed; the kernel was not checked", file=sys.stderr)
        return 3
    return int(bool(report.errors))


def present(found, text, options):
    """Print the diagnostics in the format of --format, or the text. With --output, write the diagnostics to
    that file and print the text."""
    if options.output:
        diagnostics.write(found, options.format, options.output)
    print(diagnostics.formatted(found, options.format) if options.format and not options.output else text)


def format_error(error, file):
    """Return a sentence for an error whose own text lacks the file name or the reason."""
    if isinstance(error, UnicodeDecodeError):
        return f"{file}: not UTF-8 text: {error}"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return f"not enough memory: {error}" if isinstance(error, MemoryError) else str(error)


def run(options):
    """Return the Report of the launch that the command line describes. Raise LaunchError or OSError."""
    if options.file.suffix == ".py":
        raise LaunchError(
            f"{options.file}: wanted a .cu or .ptx file; a Python kernel is launched by"
            " sim.simulate(kernel)[grid, block](...)"
        )
    if options.file.suffix == ".cu":
        module = load_cuda(options.file, *options.option)
    else:
        module = load_ptx(options.file.read_text(encoding="utf-8"), path=options.file)
    if not module.names:
        raise LaunchError(f"{options.file} contains no kernel")
    if options.entry is None and len(module.names) != 1:
        raise LaunchError(f"which kernel? --entry is one of {', '.join(module.names)}")
    simulation = simulate(
        module[module.names[0] if options.entry is None else options.entry],
        engine=options.engine,
        seed=options.seed,
        on_finding="report",
        max_steps=options.max_steps,
    )
    # rejects a configuration that no GPU can launch
    launch = simulation[options.grid, options.block, 0, options.shared]
    random = np.random.default_rng(options.seed)
    for text in options.set:
        name, given, value = text.partition("=")
        if not given:
            raise LaunchError(f"--set {text}: wanted NAME=VALUE, such as --set filter=float32[5]=1")
        variables = module.constant if name in module.constant else module.variable
        variables[name] = parse_argument(value, random)
    return launch(*[parse_argument(text, random) for text in options.arguments])


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # a terminal may not support every character
    try:
        status = main()
        sys.stdout.flush()
        sys.exit(status)
    except BrokenPipeError:  # the process that reads the output, such as `head`, has ended
        # At exit, Python would flush the rest of the output, and report that this fails.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)  # the exit status of programs that SIGPIPE ends: 128 + 13
    except KeyboardInterrupt:
        print("python -m sim: interrupted; the kernel was not checked", file=sys.stderr)
        sys.exit(130)
