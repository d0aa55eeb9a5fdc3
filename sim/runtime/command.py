"""python -m sim run PROGRAM [OPTION ...] [[--] ARGUMENT ...]: run a whole CUDA program on the simulated GPU.

PROGRAM is a .cu file with main(), or a library made by `python -m sim build PROGRAM`. The host code runs
natively, and each kernel launch is simulated. Findings are printed to stderr as they occur, with the line of
the host call and the lines in the kernel. A summary follows at the end.

Exit status: 0 if neither the program nor its kernels have errors, 1 if they have errors, 2 if the program
cannot be built or uses something that the simulator does not support, 3 if the simulator itself failed.
"""

import argparse
import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from sim import diagnostics
from sim.errors import LaunchError
from sim.launch import ENGINES
from sim.observers import DEFAULT
from sim.runtime.build import build

OBSERVERS = [observer.__name__.lower() for observer in DEFAULT]


def make_parser() -> argparse.ArgumentParser:
    """Return the parser for the commands `run` and `build`."""
    usage, status = __doc__.split("\n\n")[1:]
    parser = argparse.ArgumentParser("python -m sim", description=usage, epilog=status)
    commands = parser.add_subparsers(dest="command", required=True)
    running = commands.add_parser("run", description=usage, epilog=status)
    building = commands.add_parser("build", description="Compile a .cu file for `python -m sim run`.")
    for command in (running, building):
        command.add_argument("program", type=Path, help="a .cu file, or a library made by build")
        command.add_argument(
            "--option", action="append", default=[], help="an option of nvcc, such as --option=-DN=8"
        )
    building.add_argument("-o", "--output", type=Path, help="the library to write; PROGRAM.so by default")
    running.add_argument("--engine", choices=ENGINES, default=default_engine())
    running.add_argument(
        "--seeds", type=parse_seeds, default=[0], help="run each launch once per seed: 0,1,2"
    )
    running.add_argument("--observers", type=parse_observers, help=f"some of {','.join(OBSERVERS)}")
    running.add_argument("--max-steps", type=int, help="loop iterations until a launch counts as endless")
    running.add_argument(
        "--multiprocessors", type=int, help="number of multiprocessors; fewer make persistent kernels faster"
    )
    running.add_argument("--report", type=Path, metavar="DIR", help="write a page per launch with findings")
    diagnostics.add_options(running)
    running.add_argument("--first-finding", action="store_true", help="end the program at the first error")
    running.add_argument(
        "arguments",
        nargs="*",
        help="the program's own arguments; put -- before the first one if it begins with -",
    )
    return parser


def default_engine() -> str:
    """Return "native" if Numba is installed, else "fibers"."""
    return "native" if importlib.util.find_spec("numba") else "fibers"


def parse_seeds(text: str) -> list[int]:
    return [int(seed) for seed in text.split(",")]


def parse_observers(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in OBSERVERS:
            raise argparse.ArgumentTypeError(
                f"{name!r} is not an observer; wanted some of {', '.join(OBSERVERS)}"
            )
    return names


def main(given: list[str]) -> int:
    """Execute `run` or `build`. Return the exit status."""
    at = given.index("--") if "--" in given else len(given)
    options = make_parser().parse_args(given[:at])
    try:
        if options.command == "build":
            output = options.output or options.program.with_suffix(".so")
            print(build(options.program, output, tuple(options.option)))
            return 0
        return run(options, [*options.arguments, *given[at + 1 :]])
    except (LaunchError, OSError) as error:
        print(f"python -m sim {options.command}: error: {error}", file=sys.stderr)
        return 2


def settings_of(options: argparse.Namespace, library: Path) -> dict[str, object]:
    """Return the settings of the process that runs a library (sim.runtime.process)."""
    return {
        "library": str(library.resolve()),
        "name": str(options.program),
        "engine": options.engine,
        "seeds": options.seeds,
        "observers": options.observers,
        "max_steps": options.max_steps,
        "multiprocessors": options.multiprocessors,
        "report": str(options.report.resolve()) if options.report else None,
        "first_finding": options.first_finding,
        "format": options.format,
        "output": str(options.output.resolve()) if options.output else None,
    }


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Build the program if it is a .cu file, and run it in a separate process. Return the exit status."""
    diagnostics.check_options(options)
    if options.format in ("sarif", "json") and options.output is None:
        raise LaunchError(
            f"--format {options.format} needs --output FILE, because the program prints to the terminal too"
        )
    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sim-build-") as folder:
        library = options.program
        if library.suffix == ".cu":
            library = build(
                options.program, Path(folder, f"{options.program.stem}.so"), tuple(options.option)
            )
        elif not library.is_file():
            raise LaunchError(f"{library}: no such file")
        settings = json.dumps(settings_of(options, library))
        command = [sys.executable, "-m", "sim.runtime.process", settings, *arguments]
        child = subprocess.Popen(command)
        try:
            status = child.wait()
        except KeyboardInterrupt:  # the child process has also received the signal
            child.kill()
            child.wait()
            print("python -m sim run: interrupted", file=sys.stderr)
            return 130
    if status < 0:
        name = signal.Signals(-status).name
        print(f"sim: {options.program}: the program was ended by {name}", file=sys.stderr)
        return 1
    return status
