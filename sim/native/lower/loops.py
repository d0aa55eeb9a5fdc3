"""Loops of kernels: over arrays, they become loops over positions; those that may be endless count their
rounds."""

import ast

from sim.frontend.resolve import builtin_called, referent_of
from sim.frontend.tree import located

LONG = 1 << 20  # rounds after which a `for` loop looks for Ctrl-C


def assign(target, value):
    return ast.Assign([ast.Name(target, ast.Store()) if isinstance(target, str) else target], value)


def over_elements(lowering, loop):
    """Make a loop over an array (or a tuple; through `enumerate` and `zip` too) one over positions; returns
    what comes before it, and first in its body."""
    iterable = isinstance(loop.iter, (ast.Name, ast.Attribute, ast.Subscript)) and not isinstance(
        referent_of(loop.iter).value, tuple
    )
    if not (iterable or pairing(loop.iter)):
        return [], []
    before, lengths, position = [], [], ast.Name(lowering.module.fresh("at"), ast.Load())
    first = ast.Assign([lowering.visit(loop.target)], element(lowering, loop.iter, position, before, lengths))
    ends = lengths[0] if len(lengths) == 1 else ast.Call(ast.Name("min", ast.Load()), lengths, [])
    loop.target = ast.Name(position.id, ast.Store())
    loop.iter = ast.Call(ast.Name("range", ast.Load()), [ends], [])
    return located(before, loop), located([first], loop)


def pairing(node):
    """ "enumerate" or "zip" if `node` is a call of it, else ""."""
    name = builtin_called(node)
    return name if name in ("enumerate", "zip") else ""


def element(lowering, node, position, before, lengths):
    """The element at `position` of what a loop goes over; `before` gets what must be evaluated first,
    `lengths` how many there are."""
    called = pairing(node)
    if called == "zip":
        parts = [element(lowering, part, position, before, lengths) for part in node.args]
        return ast.Tuple(parts, ast.Load())
    if called == "enumerate":
        start = [part.value for part in node.keywords] + node.args[1:]
        count = ast.BinOp(position, ast.Add(), lowering.visit(start[0])) if start else position
        return ast.Tuple([count, element(lowering, node.args[0], position, before, lengths)], ast.Load())
    whole = ast.Name(lowering.module.fresh("items"), ast.Load())
    before.append(assign(whole.id, lowering.visit(node)))
    lengths.append(ast.Call(ast.Name("len", ast.Load()), [whole], []))
    if lowering.module.counted:
        whole = lowering.call("logged", [whole, lowering.number("load", node)], node)
    return ast.Subscript(whole, position, ast.Load())


class LoopCounter(ast.NodeTransformer):
    """Lets loops that may be endless count their rounds."""

    def __init__(self, module):
        self.module = module

    def called(self, name, *arguments):
        function = ast.Name(self.module.library(name), ast.Load())
        return ast.Call(function, [ast.Name("state", ast.Load()), *arguments], [])

    def visit_While(self, node):
        node, count = self.generic_visit(node), self.called("again")
        forever = isinstance(node.test, ast.Constant) and node.test.value
        node.test = count if forever else ast.BoolOp(ast.And(), [count, node.test])
        return node

    def is_constant(self, node):
        return (
            isinstance(node, ast.Constant) or isinstance(node, ast.Name) and node.id in self.module.constants
        )

    def is_small(self, node):
        text = ast.unparse(node)
        text = self.module.constants.get(text, text)
        return text.isdecimal() and int(text) <= LONG

    def visit_For(self, node):
        node = self.generic_visit(node)
        if not is_range(node.iter):
            return node
        given, (zero, one) = node.iter.args, map(ast.Constant, (0, 1))
        if isinstance(node.target, ast.Name) and not all(map(self.is_small, given)):
            test = ast.parse(f"if {node.target.id} & {LONG - 1} == 0 and interrupted:\n    break").body[0]
            test.test.values[1] = self.called("interrupted")
            node.body = [*located([test], node), *node.body]
        if not all(map(self.is_constant, given)):
            bounds = [zero, *given, one] if len(given) == 1 else [*given, one][:3]
            node.iter = self.called("counted", *bounds)
        return node


def is_range(node):
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "range"
        and not node.keywords
    )
