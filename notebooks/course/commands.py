"""What each command of the course does, once .venv is there.

lab         open the lessons in JupyterLab (what follows is passed to it: lab --no-browser --port 8899)
test        check what CI checks on each push (what follows is passed to pytest: test -k merge)
test-all    the same with every seed, shape and architecture, as CI does each night
power       what the checks can tell: every wrong answer with 20 seeds, every solution with 1,000 (power
            ex05_3, power 05 --minutes 10)
test-gpu    what needs a GPU: its tests (what follows is passed to pytest), the solutions' notebooks with
            their GPU cells, compare
compare     every kernel by every engine, and the GPU, beside a float64 reference: compare, compare
            flash_forward, compare --ncu --record
bench       on a GPU: the speed and memory of convolutional attention beside PyTorch's; bench --json
            kernels/data/bench.json records it
plots       draw the figures of the README from what bench recorded
setup       make .venv and install the course into it (lab and test do so where it is needed); the variable
            PIP_ARGS is passed to pip
doctor      say what is installed here, whether there is a GPU, and the remedy for every known trouble
build       write the notebooks from solutions/*.py: build, build 01 03, build --check
lint        check the rules of imports, the style and the types of the public API
docs        write the API and the lessons as HTML, links checked: docs, docs FOLDER
bench-sim   compare the simulator's speed with Numba's own simulator
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys

from course.bootstrap import ROOT


def main(arguments: list[str]) -> int:
    """Run one command with its arguments; returns the exit status."""
    command, *rest = arguments or ["help"]
    if command in ("help", "-h", "--help"):
        print(__doc__)
        return 0
    if command not in COMMANDS:
        return refused(
            f"There is no command {command!r}. There are {', '.join(COMMANDS)}; help explains them."
        )
    if asks_for_help(arguments):
        print(help_of(command))
        return 0
    if has_vain_arguments(arguments):
        return refused(f"{command} takes no arguments; given: {' '.join(rest)}")
    # the launches of lessons and tests are small on purpose
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    # and lessons let Numba copy their arrays to the GPU and back
    os.environ.setdefault("NUMBA_CUDA_WARN_ON_IMPLICIT_COPY", "0")
    return COMMANDS[command](rest)


def refused(why: str) -> int:
    """Say why a command cannot be run; the exit status for that."""
    print(why, file=sys.stderr)
    return 2


def asks_for_help(arguments: list[str]) -> bool:
    """Whether `COMMAND --help` was given, and the command has no help of its own."""
    return arguments[1:2] in (["-h"], ["--help"]) and arguments[0] not in PASSING_HELP


def has_vain_arguments(arguments: list[str]) -> bool:
    """Whether arguments were given to a command that takes none."""
    return bool(arguments[1:]) and arguments[0] in WITHOUT_ARGUMENTS


def help_of(command: str) -> str:
    """What the text above says of one command."""
    said = re.search(rf"^{command} +(\S.*(?:\n +\S.*)*)", __doc__, re.MULTILINE)
    return " ".join(said[1].split())


def setup(arguments: list[str]) -> int:
    """Everything is installed already when this runs."""
    print("The course is set up. Next: make lab")
    return 0


def lab(arguments: list[str]) -> int:
    """Doctor, copies of the lessons, JupyterLab."""
    from course import lab

    return lab.main(arguments)


def doctor(arguments: list[str]) -> int:
    """What is here, what is wrong, what helps."""
    from course import doctor

    return doctor.main()


def build(arguments: list[str]) -> int:
    """Notebooks from their sources."""
    from course import build

    return build.main(arguments)


def test(arguments: list[str]) -> int:
    """One run of pytest, a process a core: the tests, the stored notebooks, the rules of imports, the
    freshness of what is built."""
    return run("-m", "pytest", "--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder", *arguments)


def test_all(arguments: list[str]) -> int:
    """`test`, with nothing left out."""
    return test(["--all", *arguments])


def power(arguments: list[str]) -> int:
    """One table of the exercises, and the answers that a check judges wrongly."""
    return run("tests/course/power/survey.py", *arguments)


def test_gpu(arguments: list[str]) -> int:
    """Without a GPU all of it is skipped, and said so, but for what `compare` does on a CPU."""
    from course.doctor import gpu_names

    counters = ["--ncu"] if gpu_names() and shutil.which("ncu") else []
    # each process has a context on the GPU, which takes some hundred MB of its memory
    several = "-m", "pytest", "--numprocesses=4"
    tests = run(*several, "--dist=worksteal", "tests", "-m", "gpu", *arguments)
    return max(tests, run(*several, "--dist=loadfile", "solutions"), compare(counters))


def compare(arguments: list[str]) -> int:
    """One table of differences, with a verdict a row."""
    return run("-m", "kernels.bench.compare", *arguments)


def bench(arguments: list[str]) -> int:
    """One table of times and memory."""
    return run("-m", "kernels.bench", *arguments)


def plots(arguments: list[str]) -> int:
    """Figures of that table."""
    return run("-m", "kernels.bench.plots", *arguments)


def lint(arguments: list[str]) -> int:
    """import-linter, ruff, its formatter and mypy, each even if another finds something."""
    imports = run(
        "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-logo"
    )
    style = max(run("-m", "ruff", "check"), run("-m", "ruff", "format", "--check"))
    return max(imports, style, run("-m", "mypy"))


def docs(arguments: list[str]) -> int:
    """Docstrings and lessons as pages."""
    from course import docs

    return docs.main(arguments)


def bench_sim(arguments: list[str]) -> int:
    """Our simulator and Numba's, the same kernels, one table."""
    return run("tests/sim/bench_sim.py", *arguments)


def run(*arguments: str) -> int:
    """Run this Python with arguments in the project's folder; returns the exit status. Ctrl-C ends it, and
    all processes that it has started, in one line; pytest has words of its own for that."""
    alone = os.name != "nt" and "pytest" not in arguments
    group = {"process_group": 0} if alone else {}
    # what clears up behind them would warn that it had to
    quiet = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]))
    environment = {**os.environ, "PYTHONWARNINGS": quiet}
    child = subprocess.Popen([sys.executable, *arguments], cwd=ROOT, env=environment, **group)
    try:
        return child.wait()
    except KeyboardInterrupt:
        if alone:
            os.killpg(child.pid, signal.SIGTERM)
        child.wait()
        print("\nInterrupted.", file=sys.stderr)
        return 130


COMMANDS = {
    "setup": setup,
    "lab": lab,
    "doctor": doctor,
    "build": build,
    "test": test,
    "test-all": test_all,
    "power": power,
    "test-gpu": test_gpu,
    "compare": compare,
    "bench": bench,
    "plots": plots,
    "lint": lint,
    "docs": docs,
    "bench-sim": bench_sim,
}
# these have options of their own, and a help for them
PASSING_HELP = ("build", "compare", "bench", "power")
WITHOUT_ARGUMENTS = ("setup", "doctor", "plots", "lint", "bench-sim")
