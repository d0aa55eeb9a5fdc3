"""python -m sim triton SCRIPT [OPTION ...] [-- ARGUMENT ...]: run a Triton program on the simulated GPU.

SCRIPT is a Python file, which needs no changes. Each launch of a Triton kernel is simulated, on CPU tensors.
Findings are printed to stderr as they occur, with the line of the launch and the lines in the kernel. A
summary follows at the end.

Exit status: 0 if neither the program nor its kernels have errors, 1 if they have errors, 2 if the program
cannot run or uses something that the simulator does not support.
"""

import argparse
import runpy
import sys
import traceback
from pathlib import Path

from sim.errors import LaunchError
from sim.launch import ENGINES
from sim.runtime.command import parse_seeds
from sim.runtime.findings import FirstFinding, Log
from sim.sessions import launch_site
from sim.triton_host.session import triton


def make_parser() -> argparse.ArgumentParser:
    """Return the parser for the command `triton`."""
    usage, status = __doc__.split("\n\n")[1:]
    parser = argparse.ArgumentParser("python -m sim triton", description=usage, epilog=status)
    parser.add_argument("script", type=Path, help="a Python file")
    parser.add_argument("--engine", choices=ENGINES, default="auto")
    parser.add_argument("--seeds", type=parse_seeds, default=[0], help="run each launch once per seed: 0,1,2")
    parser.add_argument("--architecture", type=int, default=80, help="80 (default), 86, 89 or 90")
    parser.add_argument("--max-steps", type=int, help="loop iterations until a launch counts as endless")
    parser.add_argument("--benchmarks", action="store_true", help="run each benchmark once, untimed")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write a page per launch with findings")
    parser.add_argument("--first-finding", action="store_true", help="end the program at the first error")
    parser.add_argument("arguments", nargs="*", help="the program's own arguments, after --")
    return parser


def main(given: list[str]) -> int:
    """Execute the command. Return the exit status."""
    at = given.index("--") if "--" in given else len(given)
    options = make_parser().parse_args(given[:at])
    try:
        session = triton(
            architecture=options.architecture,
            engine=options.engine,
            seeds=tuple(options.seeds),
            on_finding="report",
            max_steps=options.max_steps,
            benchmarks=options.benchmarks,
        )
        if not options.script.is_file():
            raise LaunchError(f"{options.script}: no such file")
    except LaunchError as error:
        print(f"python -m sim triton: error: {error}", file=sys.stderr)
        return 2
    if options.report is not None:
        options.report.mkdir(parents=True, exist_ok=True)
    log = Log(options.first_finding, options.report)
    refused = []

    def record_launch(outcome, report):
        refused.extend(["refused"] * (outcome == "refused"))
        if report is not None:
            log.add_launch(report, launch_site())

    session.record_launch = record_launch
    status = run(options.script, [*options.arguments, *given[at + 1 :]], session)
    print(log.summary(str(options.script), status), file=sys.stderr)
    return 2 if refused else int(bool(log.errors or status))


def run(script: Path, arguments: list[str], session) -> int:
    """Run a script as the main program inside a session. Return the script's own exit status."""
    before = sys.argv[:], sys.path[:]
    sys.argv[:] = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        with session:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except FirstFinding:
        return 0
    except Exception:
        traceback.print_exc()
        return 1
    finally:
        sys.argv[:], sys.path[:] = before
    return 0
