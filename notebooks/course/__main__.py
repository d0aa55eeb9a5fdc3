"""Command-line entry point.

`python notebooks/course COMMAND` creates .venv first if necessary. `python -m course COMMAND` uses the
running Python.
"""

import sys
from pathlib import Path
from types import ModuleType

if __package__:
    from course.commands import main
else:
    # Run by its path, perhaps before anything is installed: the package under its name, without its __init__
    # and what that imports.
    package = ModuleType("course")
    package.__path__ = [str(Path(__file__).parent)]
    sys.modules["course"] = package
    from course.command_line import main

sys.exit(main(sys.argv[1:]))
