"""The solutions of the exercises, taken from the lessons' sources with just the definitions that they
need."""

import ast
import functools
import linecache
import re
from dataclasses import dataclass

from course.definitions import cells_of, needed, source


@dataclass(frozen=True)
class Exercise:
    """One exercise: the check's name; the name of what is checked; the text of its cell, and of what that
    needs, in order; the lines of the solution within the cell."""

    check: str
    answer: str
    cell: str
    needs: str
    lines: tuple

    def with_cell(self, cell, label):
        """Return the answer if the exercise's cell has this text; `sim` and Numba can read its source."""
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
    """{"ex05_3": Exercise} of lesson "05"."""
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
    return Exercise(check, answer, cells[place], needed(cells[:place], cells[place]), (begin, end))


@functools.cache
def from_solutions(lesson, *names, **others):
    """Return what these names mean in lesson "05", made with just the definitions that they need, and with
    the `others`, which edits of them use. Docstrings and the marks of solutions are left out, so that edits
    change code alone."""
    text = without_docstrings(needed(cells_of(source(lesson)), "\n".join(names)))
    file = f"<lesson {lesson}: {', '.join(names)}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    made = {"__name__": "lesson", **others}
    exec(compile(text, file, "exec"), made)
    return [made[name] for name in names]


def without_docstrings(text):
    """The same code without the lines of its functions' docstrings and without `# BEGIN SOLUTION` and `# END
    SOLUTION`."""
    lines = text.splitlines()
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for first in (node.body[0] for node in functions if ast.get_docstring(node) is not None):
        lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    return (
        "\n".join(line for line in lines if line and not re.match(r" *# (BEGIN|END) SOLUTION", line)) + "\n"
    )
