"""Runs each command of the course (see `course.manual`), once .venv is there."""

from __future__ import annotations

import os
import shutil
import sys

from course.bootstrap import ROOT
from course.manual import COMMANDS, help_of, help_text
from course.processes import end_on_sigterm, started

HELP = ("help", "-h", "--help")
# what codespell reads; its options are in pyproject.toml
SPELLED = (
    "sim",
    "kernels",
    "notebooks",
    "solutions",
    "tests",
    "docs",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)


def main(arguments: list[str]) -> int:
    """Run one command with its arguments; return the exit status."""
    if said := answer(arguments):
        print(said)
        return 0
    if why := refusal(arguments):
        print(why, file=sys.stderr)
        return 2
    # the launches of lessons and tests are small on purpose
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    # and lessons let Numba copy their arrays to the GPU and back
    os.environ.setdefault("NUMBA_CUDA_WARN_ON_IMPLICIT_COPY", "0")
    end_on_sigterm()
    command, *rest = arguments
    return RUN[command](rest)


def answer(arguments: list[str]) -> str:
    """Return the help that the arguments ask for, or "" if they ask for something else. Commands with options
    of their own have their own help."""
    command, *rest = arguments or ["help"]
    if command in HELP and rest in ([], ["--make"]):
        return help_text(make=bool(rest))
    if command in HELP and len(rest) == 1 and rest[0] in COMMANDS:
        return help_of(COMMANDS[rest[0]])
    if command in COMMANDS and rest[:1] in (["-h"], ["--help"]) and not COMMANDS[command].own_help:
        return help_of(COMMANDS[command])
    return ""


def refusal(arguments: list[str]) -> str:
    """Say why a command cannot be run, or return ""."""
    command, *rest = arguments
    if command in HELP:
        return f"help takes the name of one command, or nothing; given: {' '.join(rest)}"
    if command not in COMMANDS:
        return f"There is no command {command!r}. There are {', '.join(COMMANDS)}; help explains them."
    if rest and not COMMANDS[command].takes_arguments:
        return f"{command} takes no arguments; given: {' '.join(rest)}"
    return ""


def setup(arguments: list[str]) -> int:
    """Do nothing: everything is installed already when this runs."""
    print("The course is set up. Next: make lab")
    return 0


def lab(arguments: list[str]) -> int:
    """Doctor, copies of the lessons, JupyterLab."""
    from course import lab

    return lab.main(arguments)


def progress(arguments: list[str]) -> int:
    """The table of exercises, and where the list of those done is."""
    from course.progress import ledger_path
    from course.progress import progress as table

    print(table(), f"\nThe list of exercises done: {ledger_path()}", sep="\n")
    return 0


def reset(arguments: list[str]) -> int:
    """An empty list of exercises done."""
    from course.progress import reset

    print(reset())
    return 0


def doctor(arguments: list[str]) -> int:
    """Print what is installed, what is wrong, and the remedies."""
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
    """Run import-linter, ruff, its formatter, codespell and mypy, each even if another finds something."""
    imports = run(
        "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-logo"
    )
    style = max(run("-m", "ruff", "check"), run("-m", "ruff", "format", "--check"))
    return max(imports, style, run("-m", "codespell_lib", *SPELLED), run("-m", "mypy"))


def docs(arguments: list[str]) -> int:
    """Docstrings and lessons as pages."""
    from course import docs

    return docs.main(arguments)


def bench_sim(arguments: list[str]) -> int:
    """Our simulator and Numba's, the same kernels, one table."""
    return run("tests/sim/bench_sim.py", *arguments)


def run(*arguments: str) -> int:
    """Run this Python with arguments in the project's folder; return the exit status. Ctrl-C and SIGTERM end
    it and all processes that it has started. It gets Ctrl-C itself only if it is pytest, which then reports
    what it has found so far."""
    # processes that are cut off leave resources behind; Python's tracker clears them up, and would warn
    quiet = ",".join(filter(None, [os.environ.get("PYTHONWARNINGS"), "ignore:resource_tracker"]))
    environment = {**os.environ, "PYTHONWARNINGS": quiet}
    command, with_terminal = [sys.executable, *arguments], "pytest" in arguments
    try:
        with started(command, with_terminal, cwd=ROOT, env=environment) as child:
            return child.wait()
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


RUN = {
    "setup": setup,
    "lab": lab,
    "progress": progress,
    "reset": reset,
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
