"""Detects outdated definitions.

If a cell fails, the functions from its last successful run remain defined. A check would then judge these
functions instead of the code on the screen.
"""

import ast
import inspect
import re
import sys

from course.brought import nested_code

DEFINES = re.compile(r"^(?:(?:async +)?def|class) +(\w+)|^(\w+) *(?::[^=\n]+)?=(?!=)", re.MULTILINE)


class Cells:
    """Record of the names that the notebook's cells have defined, which IPython updates before and after each
    cell."""

    def __init__(self, names):
        self.names = names  # global variables of the notebook
        self.cell, self.before, self.outdated = "", {}, {}

    def begin(self, info):
        """Store the cell's text and the current values of the names that it defines."""
        self.cell = info.raw_cell
        self.before = {name: self.names[name] for name in defined_names(self.cell) if name in self.names}

    def end(self, result):
        """Mark each name as outdated that still has its old value after an error."""
        error = result.error_before_exec or result.error_in_exec
        for name, value in self.before.items():
            if error and self.names.get(name) is value:
                self.outdated[name] = explain_outdated(error, name)
            else:
                self.outdated.pop(name, None)

    def used(self):
        """Return why a name that the running cell uses, directly or through a function, is outdated. Return
        "" if none is."""
        seen, to_do = set(), [*used_names(self.cell)]
        while self.outdated and to_do:
            name = to_do.pop()
            if name in self.outdated and self.names.get(name) is self.before.get(name, self.names.get(name)):
                return self.outdated[name]
            if name not in seen:
                seen.add(name)
                to_do += called_names(self.names.get(name))
        return ""


def defined_names(text):
    """Return the names that a cell defines at its top level. The text may be invalid Python."""
    return {function or variable for function, variable in DEFINES.findall(text)}


def used_names(text):
    """Return the names that a cell uses."""
    try:
        tree = ast.parse(text)
    except SyntaxError:  # The cell contains IPython commands, so search for words instead.
        return set(re.findall(r"\w+", text))
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def called_names(value):
    """Return the global names that a function uses, or an empty set if the value is not a function."""
    function = inspect.unwrap(getattr(value, "py_func", value)) if callable(value) else None
    code = getattr(function, "__code__", None)
    return {name for part in nested_code(code) for name in part.co_names} if code else set()


def explain_outdated(error, name):
    """Return a message that explains why a name is outdated and how to update it."""
    if isinstance(error, SyntaxError):
        line = f"\n    line {error.lineno}: {(error.text or '').strip()}" if error.lineno else ""
        what = f"has a syntax error, so {name} is still the old one{line}"
    else:
        what = f"stopped with {type(error).__name__} before it got there, so {name} is still the old one"
    return f"the last cell that defines {name} {what}\n  Correct that cell and run it, then this one."


WATCHED = []  # holds the Cells object of this notebook, or nothing outside a notebook


def watch_cells():
    """Start tracking the definitions of a notebook's cells. Outside a notebook, do nothing."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell and not WATCHED:
        cells = Cells(shell.user_ns)
        shell.events.register("pre_run_cell", cells.begin)
        shell.events.register("post_run_cell", cells.end)
        WATCHED.append(cells)


def why_outdated():
    """Return why a name in the running cell is outdated, or "" if none is."""
    return WATCHED[0].used() if WATCHED else ""
