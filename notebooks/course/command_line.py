"""Entry point of `python notebooks/course COMMAND`, which runs the set-up if necessary and then the command.

This module runs before anything is installed, so it imports only the standard library.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from course import commands
from course.bootstrap import (
    OLDEST_PYTHON,
    ROOT,
    SetUpError,
    add_tools,
    hand_over,
    has_tools,
    is_set_up,
    pip_arguments,
    runs_in_venv,
    set_up,
    venv_python,
    version_note,
)
from course.processes import end_on_sigterm

# Only these commands run the whole set-up; the others report that it is missing.
INSTALLING = ("setup", "lab", "test", "test-all")
# These commands need the tools for tests and development, and install them into a .venv that is set up.
NEED_TOOLS = ("test", "test-all", "test-gpu", "build", "power", "lint")
NOT_SET_UP = """The course is not set up here: make setup (without make: python notebooks/course setup)"""
STALE = """What the course needs has changed since it was set up.
Set up again: make setup (without make: python notebooks/course setup)"""


def main(arguments: list[str]) -> int:
    """Run the set-up if it is needed, then the command in .venv's Python. Return the exit status."""
    # Without UTF-8 mode, Python on Windows cannot write ✓ to a pipe.
    os.environ.setdefault("PYTHONUTF8", "1")
    command = arguments[0] if arguments else "help"
    if commands.answer(arguments) or commands.refusal(arguments):
        return commands.main(arguments)
    with end_on_sigterm():
        return prepare_and_run(command, arguments)


def prepare_and_run(command: str, arguments: list[str]) -> int:
    """Run the set-up if the command needs it, then the command. Return the exit status."""
    with_venv = [str(venv_python(ROOT)), str(Path(__file__).parent), *arguments]
    if sys.version_info < OLDEST_PYTHON and venv_python(ROOT).exists():
        return hand_over(with_venv)
    try:
        ready = is_set_up(ROOT)
        if command in INSTALLING and (not ready or command == "setup" and pip_arguments()):
            set_up(ROOT, tools=command in NEED_TOOLS)
        elif command in NEED_TOOLS and ready and not has_tools(ROOT):
            add_tools(ROOT)
        elif command == "setup" and (kept := version_note(ROOT)):
            print(kept, flush=True)
    except SetUpError as error:
        print(f"\nSet-up stopped. {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            "\nSet-up interrupted. Give the same command again, and it goes on where it stopped.",
            file=sys.stderr,
        )
        return 130
    there = venv_python(ROOT).exists()
    if not is_set_up(ROOT):
        print(STALE if there else NOT_SET_UP, file=sys.stderr)
    if command == "setup" or runs_in_venv(ROOT) or command == "doctor" and not there:
        return commands.main(arguments)
    return hand_over(with_venv) if there else 1
