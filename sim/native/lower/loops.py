"""Lowering of loops. A loop over an array becomes a loop over its indices, and a potentially endless loop
counts its iterations."""

import ast
import math

from sim.frontend.resolve import builtin_called, referent_of
from sim.frontend.tree import located

CHECK_INTERVAL = 1 << 20  # iterations of `for` loops between two polls; must be a power of two


def assign(target, value):
    """Return an assignment of `value` to a target, which is the name of a variable or a syntax tree."""
    return ast.Assign([ast.Name(target, ast.Store()) if isinstance(target, str) else target], value)


def lower_element_loop(lowering, loop):
    """Turn a loop over an array or tuple into a loop over indices. The iterable can be inside `enumerate` or
    `zip`.

    Return (statements to insert before the loop, first statements of its body). For any other loop, both are
    empty and the loop is unchanged.
    """
    iterable = isinstance(loop.iter, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(
        referent_of(loop.iter).value, tuple
    )
    if not (iterable or pairing_builtin(loop.iter)):
        return [], []
    before, lengths, position = [], [], ast.Name(lowering.module.fresh_name("at"), ast.Load())
    first = ast.Assign([lowering.visit(loop.target)], element(lowering, loop.iter, position, before, lengths))
    # `zip` stops at the shortest iterable.
    ends = lengths[0] if len(lengths) == 1 else ast.Call(ast.Name("min", ast.Load()), lengths, [])
    loop.target = ast.Name(position.id, ast.Store())
    loop.iter = ast.Call(ast.Name("range", ast.Load()), [ends], [])
    return located(before, loop), located([first], loop)


def pairing_builtin(node):
    """Return "enumerate" or "zip" if `node` is a call to that builtin, else ""."""
    name = builtin_called(node)
    return name if name in ("enumerate", "zip") else ""


def element(lowering, node, position, before, lengths):
    """Return an expression for the element of an iterable at index `position`.

    before: a list that receives the statements to run before the loop.
    lengths: a list that receives expressions for the lengths of the iterables.
    """
    builtin = pairing_builtin(node)
    if builtin == "zip":
        parts = [element(lowering, part, position, before, lengths) for part in node.args]
        return ast.Tuple(parts, ast.Load())
    if builtin == "enumerate":
        start = [part.value for part in node.keywords] + node.args[1:]
        count = ast.BinOp(position, ast.Add(), lowering.visit(start[0])) if start else position
        return ast.Tuple([count, element(lowering, node.args[0], position, before, lengths)], ast.Load())
    whole = ast.Name(lowering.module.fresh_name("items"), ast.Load())
    before.append(assign(whole.id, lowering.visit(node)))
    lengths.append(ast.Call(ast.Name("len", ast.Load()), [whole], []))
    if lowering.module.logs:
        # An iteration loads an element, so the load is logged.
        whole = lowering.call("with_site", [whole, lowering.number("load", node)], node)
    return ast.Subscript(whole, position, ast.Load())


class LoopCounter(ast.NodeTransformer):
    """A transformer that counts the iterations of potentially endless loops.

    A `while` loop counts each iteration. A `for` loop subtracts all its iterations from the block's budget
    when it begins; a potentially long loop also polls whether the launch must stop.
    """

    def __init__(self, module):
        self.module = module
        # the maximum number of iterations between two polls in any loop that is nested in the current loop
        # and has been visited
        self.unpolled = 1

    def make_call(self, name, *arguments):
        """Return a call to a runtime function whose first argument is the launch state."""
        function = ast.Name(self.module.library(name), ast.Load())
        return ast.Call(function, [ast.Name("state", ast.Load()), *arguments], [])

    def visit_While(self, node):
        """Insert `count_iteration(state, 1)` into the test of a `while` loop."""
        node, count = self.generic_visit(node), self.make_call("count_iteration", ast.Constant(1))
        forever = isinstance(node.test, ast.Constant) and node.test.value
        node.test = count if forever else ast.BoolOp(ast.And(), [count, node.test])
        return node

    def is_constant(self, node):
        """Return whether an expression is a constant of the generated file."""
        return (
            isinstance(node, ast.Constant) or isinstance(node, ast.Name) and node.id in self.module.constants
        )

    def length(self, node):
        """Return the largest number of iterations of `range(..., node)`, or infinity if `node` is not a
        non-negative integer constant."""
        text = ast.unparse(node)
        text = self.module.constants.get(text, text)
        return int(text) if text.isdecimal() else math.inf

    def visit_For(self, node):
        """Limit the range of a `for` loop by the block's budget, unless its bounds are constants. Let it poll
        if it can be long, together with the loops inside it."""
        around, self.unpolled = self.unpolled, 1
        node = self.generic_visit(node)
        inside, self.unpolled = self.unpolled, around
        if not is_range(node.iter):
            return node
        given = node.iter.args
        total = inside * max(map(self.length, given))
        if total <= CHECK_INTERVAL or not isinstance(node.target, ast.Name):
            self.unpolled = max(around, inside, min(total, CHECK_INTERVAL))
        else:
            # a power of two, so that the remainder takes one instruction
            interval = 1 << (CHECK_INTERVAL // inside).bit_length() - 1
            test = ast.parse(f"if {node.target.id} & {interval - 1} == 0 and poll_stop:\n    break").body[0]
            test.test.values[1] = self.make_call("poll_stop")
            node.body = [*located([test], node), *node.body]
        if not all(map(self.is_constant, given)):
            node.iter = self.make_call("count_range", ast.Tuple(given, ast.Load()))
        return node


def is_range(node):
    """Return whether an expression is a call of `range` without keyword arguments."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and not node.keywords
    )
