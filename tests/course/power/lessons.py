"""Solutions of the exercises, taken from the lessons' sources with the definitions that they need."""

import ast
import functools
import linecache
import re
from dataclasses import dataclass

from course.definitions import cells_of, needed_definitions, source


@dataclass(frozen=True)
class Exercise:
    """An exercise and its solution.

    check: name of the check.
    answer: name of the function or class that is checked.
    cell: text of the exercise's cell.
    needs: text of the definitions that the cell needs, in order.
    lines: (begin, end) of the solution in the cell.
    """

    check: str
    answer: str
    cell: str
    needs: str
    lines: tuple

    def with_cell(self, cell, label):
        """Return the answer for a modified text of the exercise's cell. `sim` and Numba can read its
        source."""
        text = f"{self.needs}\n\n\n{cell}\n"
        name = f"<{self.check}: {label} {abs(hash(text))}>"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        names = {"__name__": "lesson"}
        exec(compile(text, name, "exec"), names)
        return names[self.answer]

    @property
    def solution(self):
        return self.with_cell(self.cell, "the solution")


@functools.cache
def exercises(lesson):
    """Return {"ex05_3": Exercise} for lesson "05"."""
    text = source(lesson)
    cells = cells_of(text)
    checked = dict(re.findall(r"^check\.(ex\d\d_\d+)\((\w+)\)", text, flags=re.M))
    return {check: exercise(cells, check, answer) for check, answer in checked.items()}


def exercise(cells, check, answer):
    number = f"{int(check[2:4])}.{check[5:]}"
    place = next(i for i, cell in enumerate(cells) if f"# BEGIN SOLUTION {number}\n" in cell)
    lines = cells[place].splitlines()
    begin = next(i for i, line in enumerate(lines) if "# BEGIN SOLUTION" in line) + 1
    end = next(i for i, line in enumerate(lines) if "# END SOLUTION" in line) + 1
    return Exercise(
        check, answer, cells[place], needed_definitions(cells[:place], cells[place]), (begin, end)
    )


@functools.cache
def from_solutions(lesson, *names, **others):
    """Return the values of these names in lesson "05", with the definitions that they need.

    Docstrings and the marks of solutions are removed, so that edits change only code.

    others: additional global names that edits of the text use.
    """
    text = without_docstrings(needed_definitions(cells_of(source(lesson)), "\n".join(names)))
    file = f"<lesson {lesson}: {', '.join(names)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    made = {"__name__": "lesson", **others}
    exec(compile(text, file, "exec"), made)
    return [made[name] for name in names]


def without_docstrings(text):
    """Return the same code without docstrings of functions and without `# BEGIN SOLUTION` and `# END
    SOLUTION`."""
    lines = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for first in (node.body[0] for node in functions if ast.get_docstring(node) is not None):
        lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    return (
        "\n".join(line for line in lines if line and not re.match(r" *# (BEGIN|END) SOLUTION", line)) + "\n"
    )
