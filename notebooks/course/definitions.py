"""Extracts definitions from a lesson's source, together with the definitions that they depend on."""

import ast
import dis
import functools
import re
from types import CodeType

from course.bootstrap import ROOT


def source(lesson):
    """Return the source text of the lesson with this number, such as "05", including its further notebooks
    (08b)."""
    parts = sorted(ROOT.joinpath("solutions").glob(f"{lesson}[a-z_]*.py"))
    return "\n".join(part.read_text(encoding="utf-8") for part in parts)


def cells_of(text):
    """Return the texts of a lesson's cells, without their header lines."""
    return [cell.partition("\n")[2] for cell in re.split(r"^# %%", text, flags=re.M)]


def needed_definitions(before, cell):
    """Return the top-level statements of earlier cells that define the names used in `cell`, in order."""
    statements = [(node, text) for text in before for node in parsed(text)]
    made_by = {}
    for i, (node, _) in enumerate(statements):
        for name in names_made(node):
            if name not in made_by or not is_repeated(node):
                made_by[name] = i
    wanted, open_names = set(), set(used_names(cell))
    while open_names:
        name = open_names.pop()
        if (i := made_by.get(name)) is not None and i not in wanted:
            wanted.add(i)
            open_names |= used_names(statement_source(*statements[i]))
    return "\n\n\n".join(statement_source(*statements[i]) for i in sorted(wanted))


@functools.cache
def parsed(text):
    return ast.parse(text).body if not text.startswith(" [markdown]") else []


def statement_source(node, text):
    """Return a statement's source text, with its decorators."""
    first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def is_repeated(node):
    """Return whether a statement only makes a name of an earlier notebook available again: an import, or
    `brought`."""
    return isinstance(node, (ast.Import, ast.ImportFrom)) or is_brought(node)


def is_brought(node):
    """Return whether a statement is `name = brought(...)`, which loads a function from another notebook."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "brought"
    )


def names_made(node):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [(alias.asname or alias.name).partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign):
        return [name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return []


@functools.cache
def used_names(text):
    """Return the frozenset of the global names that the code uses."""
    codes, names = [compile(text, "<lesson>", "exec")], set()
    while codes:
        code = codes.pop()
        codes += [part for part in code.co_consts if isinstance(part, CodeType)]
        names |= {
            step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
        }
    return frozenset(names)
