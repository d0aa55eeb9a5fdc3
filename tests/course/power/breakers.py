"""Generates wrong answers to every exercise in the same way.

These answers ignore an argument, work only up to a size, modify an input, use Python code that no GPU
supports, compute a softmax without a maximum, or do not divide the work among threads.
"""

import ast
import copy
import functools
import inspect

import numpy as np
import torch

from course.check.tensors import OffChip
from power import cpp
from power.direct import unshared

SCALARS = {
    *"scale factor n d columns rows keys causal start end m l most threads itemsize stride first".split(),
    *"row bytes flops turns i j i0 j0 c_q c_k loaded heads kernel_size width size splits".split(),
    *"after_c_q tokens layers latent n_q n_k alpha window length rank ranks num_warps parts".split(),
    *"blocks threads shared_bytes s_row g_row column strip".split(),
}
NO_ARRAYS = {
    *"pairs traffic attend decode model t_tile mine exchange merge copier worker buffers fill compute".split()
}  # arguments that are not arrays
# Exercises whose arguments cannot be written to, or are created for a single call.
UNTOUCHABLE = {"ex02_2", "ex03_2", "ex08_2", "ex08_5"}
NOT_ON_A_GPU = {
    "a list": "scratch = [0, 1]",
    "a generator": "scratch = sum(e for e in (1, 2))",
    "numpy on an array": "scratch = np.zeros(2)",
    "a comprehension": "scratch = [e for e in (1, 2)][0]",
}


def breakers(exercise):
    """Yield (label, answer) for answers with correct or almost correct values that violate a requirement.

    A breaker that cannot be applied to this exercise is omitted.
    """
    if cpp.is_cpp(exercise):
        yield from cpp.breakers(exercise)
        return
    yield from unshared(exercise.check)
    for label, cell in rewritten(exercise):
        yield label, exercise.with_cell(cell, label)
    if not (is_kernel(exercise) or in_triton(exercise)):
        yield from destroyers(exercise)


def is_kernel(exercise):
    return "cuda." in exercise.cell and exercise.check != "ex03_2"


def in_triton(exercise):
    return "@triton.jit" in exercise.cell


def rewritten(exercise):
    tree = ast.parse(exercise.cell)
    begin, end = exercise.lines
    plain = ast.unparse(tree)
    holders = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.lineno <= begin and (node.end_lineno or 0) >= end - 1
    ]
    if not holders or exercise.check in ("ex03_2", "ex05_4"):
        return
    name = holders[-1].name
    for label, change in edits(exercise, holders[-1]):
        altered = copy.deepcopy(tree)
        function = [
            node for node in ast.walk(altered) if isinstance(node, ast.FunctionDef) and node.name == name
        ][-1]
        change(function)
        text = ast.unparse(ast.fix_missing_locations(altered))
        if text != plain:
            yield label, text


def edits(exercise, function):
    arguments = [argument.arg for argument in function.args.args]
    arrays = [name for name in arguments if name not in SCALARS and not name.isupper()]
    # excludes Triton's compile-time constants
    for name in [name for name in arguments if not name.isupper()]:
        yield (
            f"ignores {name}",
            functools.partial(
                ignore, name=name, other=next((other for other in arrays if other != name), None)
            ),
        )
    yield "goes round six times at most", cap_loops
    yield from no_maximum()
    if in_triton(exercise):
        for name in arrays:
            yield (
                f"writes into {name} at the end",
                lambda f, name=name: at_the_end(f, f"tl.store({name}, 3.0)"),
            )
    if is_kernel(exercise):
        first = next((name for name in arrays), None)
        size = f"{first}.size" if first else "0"
        yield (
            "stops at 9 elements",
            lambda f: insert(f, f"if {size} > 9:\n    return" + (" m, l" if "l" in arguments else "")),
        )
        for what, statement in NOT_ON_A_GPU.items():
            yield (
                f"uses {what}",
                lambda f, statement=statement: insert(
                    f, f"import numpy as np\n{statement}" if "np." in statement else statement
                ),
            )
        for name in arrays:
            yield (
                f"writes into {name} at the end",
                lambda f, name=name: at_the_end(f, f"{name}[{zeros(exercise, name)}] = 3"),
            )


def zeros(exercise, name):
    """Return the index of the first element: a pair if the solution uses pairs as indices."""
    pairs = any(
        isinstance(node, ast.Subscript)
        and ast.unparse(node.value) == name
        and isinstance(node.slice, ast.Tuple)
        for node in ast.walk(ast.parse(exercise.cell))
    )
    return "0, 0" if pairs else "0"


def insert(function, text):
    """Insert statements before the first one, but after the docstring."""
    place = 1 if ast.get_docstring(function) else 0
    function.body[place:place] = ast.parse(text).body


def at_the_end(function, text):
    """Insert a statement at the end, but before a return."""
    place = len(function.body) - isinstance(function.body[-1], ast.Return)
    function.body[place:place] = ast.parse(text).body


class Ignore(ast.NodeTransformer):
    def __init__(self, name, other):
        self.name, self.other = name, other

    def visit_Subscript(self, node):
        if isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and node.value.id == self.name:
            return ast.Constant(0.5)
        return self.generic_visit(node)

    def visit_Attribute(self, node):
        return (
            node
            if isinstance(node.value, ast.Name) and node.value.id == self.name
            else self.generic_visit(node)
        )

    def visit_Name(self, node):
        if node.id != self.name or not isinstance(node.ctx, ast.Load):
            return node
        return (
            ast.Constant(1)
            if self.name in SCALARS
            else ast.Name(self.other, ast.Load())
            if self.other
            else node
        )


def ignore(function, name, other):
    function.body = [Ignore(name, other).visit(statement) for statement in function.body]


class Cap(ast.NodeTransformer):
    def visit_Call(self, node):
        self.generic_visit(node)
        if ast.unparse(node.func) != "range":
            return node
        arguments = [ast.Constant(0), *node.args] if len(node.args) == 1 else node.args
        first, last, *step = arguments
        end = (
            ast.parse(
                f"min({ast.unparse(last)}, {ast.unparse(first)} + 6 *"
                f" ({ast.unparse(step[0]) if step else 1}))"
            )
            .body[0]
            .value
        )
        return ast.Call(node.func, [first, end, *step], [])


def cap_loops(function):
    function.body = [Cap().visit(statement) for statement in function.body]


class NoMaximum(ast.NodeTransformer):
    def __init__(self, stands, what):
        self.stands, self.what = stands, what

    def visit_Call(self, node):
        self.generic_visit(node)
        called = ast.unparse(node.func)
        if (
            self.what == "maximum"
            and called == "max"
            and any(isinstance(a, ast.Name) and a.id in ("m", "m1") for a in node.args)
        ):
            return ast.parse(self.stands).body[0].value
        if self.what == "maximum" and called == "torch.maximum":
            return (
                ast.parse(
                    f"torch.full_like({ast.unparse(node.args[0])},"
                    f" {self.stands.removeprefix('float32(').removesuffix(')')})"
                )
                .body[0]
                .value
            )
        return node

    def visit_UnaryOp(self, node):
        return (
            ast.Constant(float(self.stands))
            if self.what == "infinity" and ast.unparse(node) == "-math.inf"
            else self.generic_visit(node)
        )


def no_maximum():
    for number in (0, -50, 100):
        yield (
            f"{number} for the maximum",
            lambda f, number=number: apply(f, NoMaximum(f"float32({number})", "maximum")),
        )
    for number in (-1e9, -1e4, -10.0):
        yield f"{number:g} for -inf", lambda f, number=number: apply(f, NoMaximum(str(number), "infinity"))


def apply(function, transformer):
    function.body = [transformer.visit(statement) for statement in function.body]


def destroyers(exercise):
    """Yield the solution with an additional write into each of its tensor or array arguments."""
    solution = exercise.solution
    for number, name in enumerate(inspect.signature(solution).parameters):
        if exercise.check in UNTOUCHABLE or name in SCALARS | NO_ARRAYS:
            continue
        yield f"writes into {name} at the end", destroying(solution, number)


def destroying(solution, number):
    def answer(*arguments, **named):
        result = solution(*arguments, **named)
        if number < len(arguments):
            destroy(arguments[number])
        return result

    return answer


def destroy(value):
    if isinstance(value, (tuple, list)):
        for part in value:
            destroy(part)
    elif isinstance(value, OffChip):
        value.hidden += 1
    elif isinstance(value, torch.Tensor):
        value += 1
    elif isinstance(value, np.ndarray) and value.ndim:
        value += 1
