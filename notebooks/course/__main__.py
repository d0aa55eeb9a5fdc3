"""Command-line entry point.

`python notebooks/course COMMAND` creates .venv first if necessary. `python -m course COMMAND` uses the
running Python.
"""

import sys

# Older versions cannot parse bootstrap.py, which has this message too.
if sys.version_info < (3, 8):  # noqa: UP036
    sys.exit(
        "The course needs Python 3.11 or newer; this is %d.%d. With a newer one: make setup PYTHON=python3.11"  # noqa: UP031
        % sys.version_info[:2]
    )

from pathlib import Path
from types import ModuleType

if __package__:
    from course.commands import main
else:
    # This file may run by its path before anything is installed. It therefore registers the package `course`
    # without running `course/__init__.py`, whose imports may be missing.
    package = ModuleType("course")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["course"] = package
    from course.command_line import main

sys.exit(main(sys.argv[1:]))
