"""The solutions of the exercises, taken from the lessons' sources with just the definitions that they
need."""

import ast
import dis
import functools
import linecache
import re
from dataclasses import dataclass
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[3]


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
        """What is checked, if the exercise's cell has this text; `sim` and Numba can read its source."""
        text = f"{self.needs}\n\n\n{cell}\n"
        name = f"<{self.check}: {label} {abs(hash(text))}>"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        names = {"__name__": "lesson"}
        exec(compile(text, name, "exec"), names)
        return names[self.answer]

    @property
    def solution(self):
        return self.with_cell(self.cell, "the solution")


def source(lesson):
    """The text of lesson "05"."""
    (path,) = ROOT.joinpath("solutions").glob(f"{lesson}_*.py")
    return path.read_text(encoding="utf-8")


def cells_of(text):
    """The texts of a lesson's cells, without their first lines."""
    return [cell.partition("\n")[2] for cell in re.split(r"^# %%", text, flags=re.M)]


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


def needed(before, cell):
    """The text of those top-level statements of the cells before that the cell's names need, in order."""
    statements = [(node, text) for text in before for node in parsed(text)]
    made_by = {name: i for i, (node, *_) in enumerate(statements) for name in names_made(node)}
    wanted, open_names = set(), used_names(cell)
    while open_names:
        name = open_names.pop()
        if (i := made_by.get(name)) is not None and i not in wanted:
            wanted.add(i)
            open_names |= used_names(whole(*statements[i]))
    return "\n\n\n".join(whole(*statements[i]) for i in sorted(wanted))


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


def parsed(text):
    return ast.parse(text).body if not text.startswith(" [markdown]") else []


def whole(node, text):
    """A statement's text with its decorators."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def names_made(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


def used_names(text):
    """The names that the code takes from outside its functions."""
    codes, names = [compile(text, "<lesson>", "exec")], set()
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        names |= {
            step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        }
    return names
