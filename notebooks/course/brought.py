"""Loader for functions that the learner has written in another lesson of the same folder."""

import ast
import inspect
import io
import json
import linecache
from contextlib import redirect_stdout
from pathlib import Path
from types import CodeType

from course.bootstrap import ROOT
from course.definitions import is_brought

KEPT = ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef
MAGIC = "%", "!"
SIMPLE = "float32", "math.log", "namedtuple", "wgmma"


def brought(lesson, *names):
    """Return these functions from the saved notebook `lesson` ("05_flash_kernel") in the same folder: one
    function, or a list of several.

    If the notebook is missing, or if a function or one of its callees is still a stub, return the published
    solution of that function instead. A printed line names the source of each function.
    """
    mine, solution = (folder / f"{lesson}.ipynb" for folder in (Path.cwd(), ROOT / "solutions"))
    found = {}
    if mine.exists() and any(name in (text := definitions(mine)) for name in names):
        yours = execute_definitions(text, mine)
        written = [name for name in names if name in yours]
        found = {name: yours[name] for name in written if not is_unfinished(yours[name], set())}
        if found:
            print(f"{', '.join(found)}: yours, from {mine.name}")
    if missing := [name for name in names if name not in found]:
        print(
            f"{', '.join(missing)}: the solution's, as {mine.name} beside this notebook is not solved"
            " (or not saved) yet"
        )
        theirs = execute_definitions(definitions(solution), solution)
        found |= {name: theirs[name] for name in missing}
    return found[names[0]] if len(names) == 1 else [found[name] for name in names]


def definitions(notebook):
    """Return the imports, functions, classes and constants of a notebook, in order.

    Functions that the notebook itself brings over are kept. Cells that @live runs and cells with syntax
    errors are skipped.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    known = set()
    return "\n\n\n".join(part for text in texts for part in parts(text, known))


def parts(text, known):
    """Yield the statements of a cell that are kept, and add the names that they define to `known`."""
    text = "\n".join("" if line.startswith(MAGIC) else line for line in text.splitlines())
    try:
        nodes = ast.parse(text).body
    except SyntaxError:
        return
    for node in nodes:
        if not is_kept(node, known):
            continue
        known |= {name.id for name in ast.walk(node) if isinstance(name, ast.Name) and is_stored(name)}
        known |= {alias.asname or alias.name for alias in getattr(node, "names", [])}
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        yield "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def is_stored(name):
    return isinstance(name.ctx, ast.Store)


def is_kept(node, known):
    if isinstance(node, ast.Assign):
        named = all(isinstance(target, (ast.Name, ast.Tuple)) for target in node.targets)
        return named and (is_brought(node) or is_constant(node.value, known))
    live = any(ast.unparse(decorator) == "live" for decorator in getattr(node, "decorator_list", []))
    return isinstance(node, KEPT) and not live


def is_constant(value, known):
    """Return whether an expression consists of literals, known names in capitals, attributes of known
    names, arithmetic and calls of the functions in SIMPLE."""
    if isinstance(value, ast.Call):
        parts = [*value.args, *(keyword.value for keyword in value.keywords)]
        return ast.unparse(value.func) in SIMPLE and all(is_constant(part, known) for part in parts)
    if isinstance(value, ast.Name):
        return value.id.isupper() and value.id in known
    if isinstance(value, ast.Attribute):  # math.inf, reference.masked_scores
        return isinstance(value.value, ast.Name) and value.value.id in known
    if isinstance(value, (ast.Tuple, ast.List, ast.BinOp, ast.UnaryOp)):
        parts = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
        return all(is_constant(part, known) for part in parts)
    return isinstance(value, ast.Constant)


def execute_definitions(text, notebook, **given):
    """Execute the definitions and return {name: value}, with the source registered for inspect.

    given: values of names that the text uses and does not define."""
    # The learner's text and the solution's need different names, because sim reads sources by file name.
    file = f"<{notebook.stem}{'' if notebook.parent == Path.cwd() else ', solution'}>"
    linecache.cache[file] = len(text), None, text.splitlines(keepends=True), file
    names = {"__name__": notebook.stem, **given}
    with redirect_stdout(io.StringIO()):  # the notebook may bring over functions of its own
        exec(compile(text, file, "exec"), names)
    return names


def is_unfinished(function, seen):
    """Return whether a function is a stub or calls a stub in the same notebook."""
    function = inspect.unwrap(getattr(function, "py_func", function))
    code = getattr(function, "__code__", None)
    if not isinstance(code, CodeType) or code in seen or function.__globals__.get("__file__"):
        return False
    seen.add(code)
    names = {name for part in nested_code(code) for name in part.co_names}
    called = [function.__globals__.get(name) for name in names] + [*(function.__defaults__ or ())]
    return "NotImplementedError" in names or any(is_unfinished(part, seen) for part in called if part)


def nested_code(code):
    """Return the code objects of a function and of all functions defined inside it."""
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from nested_code(part)
