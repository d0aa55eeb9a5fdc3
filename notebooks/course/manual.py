"""Table of the course's commands, with their descriptions and their arguments for make and for Python.

`help` and CONTRIBUTING.md list them. `help` must work before the set-up, so this module imports only the
standard library.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

IN_PYTHON = "python notebooks/course"  # On Windows, the command is `py notebooks/course`.
WIDTH = 100  # width of the help text, in columns


@dataclass(frozen=True)
class Command:
    """A command: `python notebooks/course NAME ARGUMENTS`, or `make TARGET VARIABLE="ARGUMENTS"`.

    A command without a variable takes no arguments.
    """

    name: str
    what: str
    variable: str = ""
    examples: tuple[str, ...] = ()  # example arguments, shown in the help text
    target: str = ""  # the make target, if its name differs
    own_help: bool = False  # whether the command parses its own options and prints its own help

    @property
    def takes_arguments(self) -> bool:
        return bool(self.variable)

    def in_make(self, arguments: str = "") -> str:
        """Return the command line for make."""
        given = f' {self.variable}="{arguments}"' if arguments else ""
        return f"make {self.target or self.name}{given}"

    def in_python(self, arguments: str = "") -> str:
        """Return the command line for Python."""
        return f"{IN_PYTHON} {self.name} {arguments}".rstrip()


TABLE = (
    Command(
        "setup",
        "make .venv and install the course into it; the variable PIP_ARGS is passed to pip, and COMPILERS=no"
        " leaves out CUDA's compilers",
    ),
    Command(
        "lab",
        "open the next lesson, or the one with this number, in JupyterLab, which gets the other arguments, or"
        " in Visual Studio Code with --code",
        "LAB_ARGS",
        ("10b", "--no-browser --port 8899", "--code"),
    ),
    Command("progress", "list the exercises, and which of them are done in this clone"),
    Command("reset", "start the list of exercises done again; notebooks stay as they are"),
    Command("doctor", "say what is installed, whether there is a GPU, and the remedy for known trouble"),
    Command(
        "build",
        "write the notebooks from solutions/*.py and execute them",
        "LESSONS",
        ("01 03", "--check"),
        target="notebooks",
        own_help=True,
    ),
    Command(
        "test", "check what CI checks on each push; pytest gets the arguments", "TEST_ARGS", ("-k merge",)
    ),
    Command(
        "test-all",
        "check the same with every seed, shape and architecture, as CI does each night",
        "TEST_ARGS",
        ("--part 3/8",),
    ),
    Command(
        "power",
        "judge the checks: every wrong answer with 20 seeds, every solution with 1,000",
        "EXERCISES",
        ("ex05_3", "05 --minutes 10"),
        own_help=True,
    ),
    Command(
        "test-gpu",
        "run what needs a GPU: tests, which get the arguments, then the notebooks, then compare",
        "TEST_ARGS",
        ("-k forward",),
    ),
    Command(
        "compare",
        "compare every kernel, by every engine and the GPU, with float64",
        "COMPARE_ARGS",
        ("flash_forward", "--ncu --record"),
        own_help=True,
    ),
    Command(
        "bench",
        "on a GPU: compare the speed and memory of convolutional attention with PyTorch's",
        "BENCH_ARGS",
        ("--json kernels/data/bench.json",),
        own_help=True,
    ),
    Command("plots", "draw the README's figures from what bench recorded"),
    Command("lint", "check the rules of imports, the style, the spelling and the types of the public API"),
    Command(
        "docs",
        "write the site with the lessons and the API into a folder, and check its links",
        "DOCS",
        ("site",),
    ),
    Command("bench-sim", "compare the simulator's speed with that of Numba's own simulator"),
)
COMMANDS = {command.name: command for command in TABLE}


def help_text(make: bool = False) -> str:
    """Return the list of all commands, in make's or in Python's syntax."""
    program = "make" if make else IN_PYTHON
    lines = [f"usage: {program} COMMAND", ""]
    for command in COMMANDS.values():
        lines += entry(command, make)
    other = IN_PYTHON if make else "make"
    return "\n".join([*lines, "", f"{other} help lists the same for {other}."])


def entry(command: Command, make: bool = False) -> list[str]:
    """Return the help lines of one command: its name, its description and an example of each use."""
    name = command.target if make and command.target else command.name
    said = textwrap.wrap(command.what, WIDTH - 14)
    shown = command.in_make if make else command.in_python
    return [
        f"  {name:<11} {said[0]}",
        *(f"{'':14}{line}" for line in said[1:]),
        *(f"{'':14}  {shown(example)}" for example in command.examples),
    ]


def help_of(command: Command) -> str:
    """Return the help text of one command, with its uses in Python's and make's syntax."""
    uses = [(command.in_python(example), command.in_make(example)) for example in ("", *command.examples)]
    wide = max(len(python) for python, _ in uses)
    return "\n".join([command.what, *(f"  {python:<{wide}}   or  {make}" for python, make in uses)])
