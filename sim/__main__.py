"""python -m sim FILE --entry NAME --grid G --block B [ARGUMENT ...]: run a kernel of a .cu or .ptx file on
the simulated GPU, and print its report; exit status 1 if it has errors.

An argument is a number (7 an int, 0.5 a float32, float64:0.5), an array by its dtype and shape, filled with
random numbers (float32[128], int32[8,8], uint8[64]) or with one (float32[128]=0), a file (x.npy), or `empty`
for memory that nobody has written (empty:float32[64])."""

import argparse
import re
import sys
from pathlib import Path

import numpy as np

from sim.errors import LaunchError, SimulatorError
from sim.launch import ENGINES, simulate
from sim.memory.spaces import empty
from sim.ptx.module import load_ptx
from sim.ptx.nvrtc import load_cuda

ARRAY = re.compile(r"(empty:)?(\w+)\[([\d,\s]+)\](?:=(.+))?")


def argument(text, random):
    """The value that an argument of the command line says. Errors: LaunchError."""
    if text.endswith(".npy"):
        return np.load(text)
    if found := ARRAY.fullmatch(text):
        unwritten, dtype, shape, value = found.groups()
        shape = tuple(int(n) for n in shape.split(","))
        try:
            return empty(shape, dtype) if unwritten else filled(shape, np.dtype(dtype), value, random)
        except (TypeError, ValueError, OverflowError) as error:
            raise LaunchError(
                f"argument {text!r}: {error}; wanted float32[128] or int32[8,8]=0, say"
            ) from None
    try:
        dtype, _, number = text.rpartition(":")
        if not dtype and re.fullmatch(r"-?\d+", number):
            return int(number)
        return np.dtype(dtype or "float32").type(number)
    except (TypeError, ValueError):
        raise LaunchError(
            f"argument {text!r} is no number, array or file; wanted 7, 0.5, float32[128], int32[8]=0, x.npy"
        ) from None


def filled(shape, dtype, value, random):
    if value is not None:
        return np.full(shape, dtype.type(value), dtype)
    if dtype.kind in "iu":
        return random.integers(0, 10, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)


def extent(text):
    """2 or 2,3 as a number or a tuple."""
    numbers = tuple(int(n) for n in text.split(","))
    return numbers if len(numbers) > 1 else numbers[0]


def parser():
    about = argparse.ArgumentParser("python -m sim", description=__doc__.partition("\n\n")[0])
    about.add_argument("file", type=Path, help="a .cu file, which NVRTC compiles, or a .ptx file")
    about.add_argument("--entry", help="the kernel's name; may be left out where there is one only")
    about.add_argument("--grid", type=extent, default=1, help="blocks: 4 or 4,2")
    about.add_argument("--block", type=extent, default=32, help="threads of a block: 128 or 16,16")
    about.add_argument("--shared", type=int, default=0, help="bytes of dynamic shared memory")
    about.add_argument("--engine", choices=ENGINES, default="fibers")
    about.add_argument("--seed", type=int, default=0, help="of the schedule and of random arguments")
    about.add_argument("--max-steps", type=int, help="rounds of loops before the launch counts as endless")
    about.add_argument("--option", action="append", default=[], help="one of NVRTC's, such as -DN=8")
    about.add_argument(
        "arguments", nargs="*", metavar="ARGUMENT", help="7, 0.5, float32[128], int32[8]=0, x.npy"
    )
    return about


def main(given=None):
    options = parser().parse_intermixed_args(given)
    try:
        report = run(options)
    except (SimulatorError, OSError, UnicodeDecodeError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(report)
    return int(bool(report.errors))


def run(options):
    """The Report of what the command line asks for."""
    if options.file.suffix == ".cu":
        module = load_cuda(options.file, *options.option)
    else:
        module = load_ptx(options.file.read_text(encoding="utf-8"))
    if options.entry is None and len(module.names) != 1:
        raise LaunchError(f"which kernel? --entry is one of {', '.join(module.names)}")
    random = np.random.default_rng(options.seed)
    arguments = [argument(text, random) for text in options.arguments]
    simulation = simulate(
        module[options.entry or module.names[0]],
        engine=options.engine,
        seed=options.seed,
        on_finding="report",
        max_steps=options.max_steps,
    )
    return simulation[options.grid, options.block, 0, options.shared](*arguments)


if __name__ == "__main__":
    sys.exit(main())
