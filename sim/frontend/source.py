"""A function's own text as a syntax tree, and what its global and free names stand for."""
import ast
import functools
import importlib
import inspect
import sys
import textwrap

MISSING = object()


def tree_of(function):
    """The function's FunctionDef without its decorators, or None where there is no source (built by exec, a lambda, a C function)."""
    try:
        lines, start = inspect.getsourcelines(function)
        text = "".join(lines)
        tree = ast.parse(textwrap.dedent(text))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return None
    node = tree.body[0]
    if not isinstance(node, ast.FunctionDef):
        return None
    ast.increment_lineno(node, max(start, 1) - 1)
    indent_columns(node, len(text) - len(text.lstrip()))
    node.decorator_list, node.returns = [], None
    return node


def indent_columns(tree, indent):
    """Undo what dedenting did to the columns, so that they are the file's."""
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.col_offset += indent
            node.end_col_offset += indent


class Names:
    """What a function's names stand for: its free variables first, then its globals, then the builtins."""

    def __init__(self, function):
        self.free = {}
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            try:
                self.free[name] = cell.cell_contents
            except ValueError:  # not assigned yet
                pass
        self.globals = function.__globals__
        self.local = set(function.__code__.co_varnames) | set(function.__code__.co_cellvars)

    def value(self, name):
        if name in self.local:
            return MISSING
        if name in self.free:
            return self.free[name]
        return self.globals.get(name, MISSING)

    def resolve(self, node):
        """What a Name or a chain of attributes on one (`cuda.shared.array`) stands for, or MISSING."""
        if isinstance(node, ast.Name):
            return self.value(node.id)
        if isinstance(node, ast.Attribute):
            owner = self.resolve(node.value)
            return MISSING if owner is MISSING else member(owner, node.attr)
        return MISSING


def member(owner, name):
    """`owner.name`, or MISSING."""
    value = getattr(owner, name, MISSING)
    return stand_ins().get(name, MISSING) if value is MISSING and owner is sys.modules.get("numba.cuda") else value


@functools.cache
def stand_ins():
    """What `cuda` offers to kernels and lacks outside them when NUMBA_ENABLE_CUDASIM is set."""
    if not sys.modules["numba.cuda"].config.ENABLE_CUDASIM:
        return {}
    modules = [importlib.import_module(f"numba.cuda.{name}") for name in ("stubs", "intrinsics", "cg", "libdevice")]
    offered = {name: value for module in modules[:2] for name, value in vars(module).items() if not name.startswith("_")}
    return offered | {module.__name__.rpartition(".")[2]: module for module in modules[2:]}


def path(node):
    """The dotted text of a Name or chain of attributes ("cuda.shared.array"), or ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = path(node.value)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def acts_on_atomics(tree):
    """Whether a function uses what an atomic gives back, or fences: then what its threads do may hang on who goes first."""
    ignored = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    names = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call) and id(node) not in ignored]
    fences = [node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.Attribute)) and (getattr(node, "attr", None) or getattr(node, "id", "")).startswith("threadfence")]
    return bool(fences) or any("atomic" in name.split(".") for name in names)
