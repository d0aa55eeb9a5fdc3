"""Every first-order mutation of a solution: one operator, constant, condition, bound, argument or statement
changed."""

import ast
import copy
from collections import Counter

from power import cpp

OPERATORS = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Add, ast.Div],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Mod: [ast.FloorDiv],
    ast.Pow: [ast.Mult],
    ast.BitXor: [ast.Add],
}
COMPARISONS = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
}
OTHER_NAME = {
    "min": "max",
    "max": "min",
    "maximum": "minimum",
    "amax": "amin",
    "shfl_xor_sync": "shfl_down_sync",
    "shfl_down_sync": "shfl_up_sync",
    "shfl_up_sync": "shfl_down_sync",
    "x": "y",
    "y": "x",
    "blockDim": "gridDim",
    "gridDim": "blockDim",
    "blockIdx": "threadIdx",
    "threadIdx": "blockIdx",
}
STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While)


def mutations(exercise):
    """Yield (label, text of the cell) for every mutation of an exercise's solution.

    Mutations with the same text count once. The second mutation with the same label gets the suffix " (2)".
    """
    labels = Counter()
    for label, text in (cpp.altered_cells if cpp.is_cpp(exercise) else altered_cells)(exercise):
        labels[label] += 1
        yield label + (f" ({labels[label]})" if labels[label] > 1 else ""), text


def altered_cells(exercise):
    tree, (begin, end) = ast.parse(exercise.cell), exercise.lines
    seen = {ast.unparse(tree)}
    places = [node for node in ast.walk(tree) if begin < getattr(node, "lineno", 0) < end]
    for number, node in enumerate(places):
        for what, change in changes(node):
            altered = copy.deepcopy(tree)
            twin = [other for other in ast.walk(altered) if begin < getattr(other, "lineno", 0) < end][number]
            replace(altered, twin, change(twin))
            text = ast.unparse(ast.fix_missing_locations(altered))
            if text not in seen:
                seen.add(text)
                yield f"line {node.lineno - begin}: {what} in {ast.unparse(node).splitlines()[0][:60]}", text


def replace(tree, old, new):
    """Replace the node `old` with `new` in a tree."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, field, new)
            elif isinstance(value, list) and any(item is old for item in value):
                value[[item is old for item in value].index(True)] = new


def changes(node):
    """Yield (description, function that maps a copy of the node to its replacement)."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)):
        for other in OPERATORS.get(type(node.op), []):
            yield (
                f"{type(node.op).__name__} becomes {other.__name__}",
                lambda twin, other=other: altered(twin, op=other()),
            )
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, (ast.Sub, ast.Div, ast.MatMult, ast.FloorDiv, ast.Mod)
    ):
        yield "operands swapped", lambda twin: altered(twin, left=twin.right, right=twin.left)
    if isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARISONS.get(type(operator), []):
                yield (
                    f"{type(operator).__name__} becomes {other.__name__}",
                    lambda twin, place=place, other=other: altered(twin, ops=put(twin.ops, place, other())),
                )
    if isinstance(node, ast.Constant):
        yield from constants(node)
    if isinstance(node, ast.IfExp):
        yield "always the first choice", lambda twin: twin.body
        yield "always the second choice", lambda twin: twin.orelse
    if isinstance(node, ast.If):
        yield "condition always true", lambda twin: altered(twin, test=ast.Constant(True))
        yield "condition turned round", lambda twin: altered(twin, test=ast.UnaryOp(ast.Not(), twin.test))
    if isinstance(node, ast.BoolOp):
        yield (
            "and, or exchanged",
            lambda twin: altered(twin, op=ast.Or() if isinstance(twin.op, ast.And) else ast.And()),
        )
        for place in range(len(node.values)):
            yield (
                f"condition {place + 1} dropped",
                lambda twin, place=place: (
                    altered(twin, values=twin.values[:place] + twin.values[place + 1 :])
                    if len(twin.values) > 2
                    else twin.values[1 - place]
                ),
            )
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign dropped", lambda twin: twin.operand
    if isinstance(node, STATEMENTS):
        yield "statement dropped", lambda twin: ast.Pass()
    if isinstance(node, ast.Call):
        yield from calls(node)
    if isinstance(node, ast.Tuple) and len(node.elts) > 1 and isinstance(node.ctx, ast.Load):
        for place in range(len(node.elts) - 1):
            yield (
                f"parts {place + 1} and {place + 2} swapped",
                lambda twin, place=place: altered(twin, elts=swapped(twin.elts, place)),
            )
    if isinstance(node, ast.Attribute) and node.attr in OTHER_NAME:
        yield (
            f"{node.attr} becomes {OTHER_NAME[node.attr]}",
            lambda twin: altered(twin, attr=OTHER_NAME[twin.attr]),
        )
    if isinstance(node, ast.Name) and node.id in OTHER_NAME and node.id in ("min", "max"):
        yield f"{node.id} becomes {OTHER_NAME[node.id]}", lambda twin: altered(twin, id=OTHER_NAME[twin.id])


def constants(node):
    if isinstance(node.value, bool):
        yield "turned round", lambda twin: ast.Constant(not twin.value)
    elif isinstance(node.value, int):
        yield "1 more", lambda twin: ast.Constant(twin.value + 1)
        yield "1 less", lambda twin: ast.Constant(twin.value - 1)
    elif isinstance(node.value, float):
        yield "1 more", lambda twin: ast.Constant(twin.value + 1)
        yield "half as much", lambda twin: ast.Constant(twin.value / 2)


def calls(node):
    either_way = ast.unparse(node.func).endswith(("min", "max", "maximum", "minimum"))
    for place in range(0 if either_way else len(node.args) - 1):
        yield (
            f"arguments {place + 1} and {place + 2} swapped",
            lambda twin, place=place: altered(twin, args=swapped(twin.args, place)),
        )
    if ast.unparse(node.func) == "range" and len(node.args) == 3:
        yield "no step", lambda twin: altered(twin, args=twin.args[:2])
    if ast.unparse(node.func) == "range" and len(node.args) > 1:
        yield "from 0", lambda twin: altered(twin, args=[ast.Constant(0), *twin.args[1:]])
    for place in range(len(node.keywords)):
        yield (
            f"without {node.keywords[place].arg}",
            lambda twin, place=place: altered(
                twin, keywords=twin.keywords[:place] + twin.keywords[place + 1 :]
            ),
        )


def altered(node, **fields):
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def put(items, place, item):
    return [*items[:place], item, *items[place + 1 :]]


def swapped(items, place):
    return [*items[:place], items[place + 1], items[place], *items[place + 2 :]]
