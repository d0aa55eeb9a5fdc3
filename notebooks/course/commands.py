"""Implements the course's commands, which run inside .venv. `course.manual` describes them."""

from __future__ import annotations

import os
import re
import shutil
import sys

from course.bootstrap import ROOT
from course.manual import COMMANDS, help_of, help_text
from course.processes import end_on_sigterm, started

HELP = ("help", "-h", "--help")
LESSON = re.compile(r"\d+[a-z]?", re.IGNORECASE)  # a lesson's number, as the first argument of lab
# Paths that codespell checks. Its options are in pyproject.toml.
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
    """Run one command with its arguments and return the exit status."""
    if said := answer(arguments):
        print(said)
        return 0
    if why := refusal(arguments):
        print(why, file=sys.stderr)
        return 2
    # Lessons and tests launch small grids on purpose.
    os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")
    # Lessons rely on Numba's implicit copies to and from the GPU.
    os.environ.setdefault("NUMBA_CUDA_WARN_ON_IMPLICIT_COPY", "0")
    command, *rest = arguments
    try:
        with end_on_sigterm():
            return RUN[command](rest)
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130


def answer(arguments: list[str]) -> str:
    """Return the help text if the arguments ask for it, else "".

    A command that parses its own options also prints its own help.
    """
    command, *rest = arguments or ["help"]
    if command in HELP and rest in ([], ["--make"]):
        return help_text(make=bool(rest))
    if command in HELP and len(rest) == 1 and rest[0] in COMMANDS:
        return help_of(COMMANDS[rest[0]])
    if command in COMMANDS and rest[:1] in (["-h"], ["--help"]) and not COMMANDS[command].own_help:
        return help_of(COMMANDS[command])
    return ""


def refusal(arguments: list[str]) -> str:
    """Return the reason why a command cannot be run, or ""."""
    command, *rest = arguments
    if command in HELP:
        return f"help takes the name of one command, or nothing; given: {' '.join(rest)}"
    if command not in COMMANDS:
        return f"There is no command {command!r}. There are {', '.join(COMMANDS)}; help explains them."
    if rest and not COMMANDS[command].takes_arguments:
        return f"{command} takes no arguments; given: {' '.join(rest)}"
    if command == "lab" and rest and LESSON.fullmatch(rest[0]):
        from course.progress import lesson_file

        if not lesson_file(rest[0]):
            return f"There is no lesson {rest[0]}. notebooks/ has all lessons, such as lab 01 or lab 10b."
    return ""


def setup(arguments: list[str]) -> int:
    """Do nothing, because everything is already installed at this point."""
    print("The course is set up. Next: make lab")
    return 0


def lab(arguments: list[str]) -> int:
    """Run the doctor, copy the lessons and open JupyterLab at the next lesson or at the one that is named."""
    from course import lab
    from course.progress import lesson_file

    named = lesson_file(arguments[0]) if arguments and LESSON.fullmatch(arguments[0]) else None
    return lab.main(arguments[bool(named) :], named)


def progress(arguments: list[str]) -> int:
    """Print the table of exercises and the path of the progress list."""
    from course.progress import ledger_path
    from course.progress import progress as table

    print(table(), f"\nThe list of exercises done: {ledger_path()}", sep="\n")
    return 0


def reset(arguments: list[str]) -> int:
    """Start an empty progress list."""
    from course.progress import reset

    print(reset())
    return 0


def doctor(arguments: list[str]) -> int:
    """Print what is installed, what is wrong, and how to fix it."""
    from course import doctor

    return doctor.main()


def build(arguments: list[str]) -> int:
    """Build notebooks from their sources."""
    from course import build

    return build.main(arguments)


def test(arguments: list[str]) -> int:
    """Run pytest with one process per core, on a sample of the cases.

    The tests also cover stored notebooks, import rules, and whether generated files are up to date.
    """
    return run("-m", "pytest", "--numprocesses=auto", "--dist=loadfile", "--no-loadscope-reorder", *arguments)


def test_all(arguments: list[str]) -> int:
    """Run `test` on all cases."""
    return test(["--all", *arguments])


def power(arguments: list[str]) -> int:
    """Print a table of exercises with the answers that their checks misjudge."""
    return run("tests/course/power/survey.py", *arguments)


def test_gpu(arguments: list[str]) -> int:
    """Run the tests that need a GPU.

    On a machine without a GPU, these tests are skipped and `compare` runs only its CPU part.
    """
    from course.doctor import gpu_names

    counters = ["--ncu"] if gpu_names() and shutil.which("ncu") else []
    # Each process creates a CUDA context, which takes some hundred MB of GPU memory.
    several = "-m", "pytest", "--numprocesses=4"
    tests = run(*several, "--dist=worksteal", "tests", "-m", "gpu", *arguments)
    return max(tests, run(*several, "--dist=loadfile", "solutions"), compare(counters))


def compare(arguments: list[str]) -> int:
    """Print a table that compares each kernel with its reference, one verdict per row."""
    return run("-m", "kernels.bench.compare", *arguments)


def bench(arguments: list[str]) -> int:
    """Measure and print a table of run times and memory."""
    return run("-m", "kernels.bench", *arguments)


def plots(arguments: list[str]) -> int:
    """Draw the figures from the recorded table."""
    return run("-m", "kernels.bench.plots", *arguments)


def lint(arguments: list[str]) -> int:
    """Run import-linter, ruff, its formatter, codespell and mypy. A tool runs even if an earlier one
    failed."""
    print("Import contracts, style, formatting, spelling, types: up to a minute in total.", flush=True)
    imports = run(
        "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()", "--no-logo"
    )
    style = max(run("-m", "ruff", "check"), run("-m", "ruff", "format", "--check"))
    return max(imports, style, run("-m", "codespell_lib", *SPELLED), run("-m", "mypy"))


def docs(arguments: list[str]) -> int:
    """Write the site."""
    from course import docs

    return docs.main(arguments)


def bench_sim(arguments: list[str]) -> int:
    """Print a table that compares the run time of our simulator with Numba's on the same kernels."""
    return run("tests/sim/bench_sim.py", *arguments)


def run(*arguments: str) -> int:
    """Run Python with these arguments in the project's folder and return the exit status.

    Ctrl-C and SIGTERM stop it and all processes that it has started. pytest also receives Ctrl-C itself, so
    that it can report the results so far.
    """
    # Python's resource tracker cleans up after processes that were stopped, and warns about each resource.
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
