"""A search for the loops whose iterations must be counted, because threads may reach the same barrier in
different iterations.

If every barrier in a loop's body is passed exactly once per iteration, threads that have passed the same
number of barriers are in the same iteration. In that case, counting is unnecessary.
"""

import ast

from sim.frontend.resolve import DEVICE, WAIT, source_of
from sim.frontend.tree import all_nodes
from sim.isa.table import BLOCK_WIDE

# How many times a path through some statements passes a barrier: never, exactly once, or an unknown number.
NEVER, ONCE, ANYHOW = range(3)
LOOPS, BRANCHES = (ast.For, ast.While), (ast.IfExp, ast.BoolOp, ast.comprehension)


def loops_to_count(source):
    """Return the ids of the loops in a Source whose iterations must be counted."""
    passes = BarrierPasses()
    loops = [node for node in all_nodes(source.tree) if isinstance(node, LOOPS)]
    return {id(loop) for loop in loops if passes.of_body(loop.body, ast.Continue) == ANYHOW}


class BarrierPasses:
    """An estimate of how many barriers a path passes, with a cache per function."""

    def __init__(self):
        self.cache = {}

    def of_body(self, statements, leave):
        """Return the estimate for a list of statements, which a statement of the kind `leave` (`continue` or
        `return`) can end early."""
        each = [self.of_statement(statement) for statement in statements]
        if not any(each) or ANYHOW in each:
            return max(each, default=NEVER)
        # A statement that leaves early matters only before the last barrier.
        last = len(each) - 1 - each[::-1].index(ONCE)
        return ANYHOW if any(leaves(statement, leave) for statement in statements[:last]) else ONCE

    def of_statement(self, statement):
        parts = all_nodes(statement)
        most = max(self.of_call(part) for part in parts)
        straight = isinstance(statement, (ast.Expr, ast.Assign, ast.Return))
        return most if straight and not any(isinstance(part, BRANCHES) for part in parts) else most and ANYHOW

    def of_call(self, node):
        if not isinstance(node, ast.Call):
            return NEVER
        if node.calls == DEVICE:
            return self.of_function(node.func.referent.function)
        of_grid = isinstance(node.func, ast.Attribute) and node.func.attr == "sync"
        of_block = node.calls == WAIT and node.func.referent.name.split(".")[0] in BLOCK_WIDE
        return ONCE if of_grid or of_block else NEVER

    def of_function(self, function):
        if function not in self.cache:
            self.cache[function] = NEVER  # the value for recursive calls
            source = source_of(function)
            self.cache[function] = NEVER if source is None else self.of_body(source.tree.body, ast.Return)
        return self.cache[function]


def leaves(statement, leave):
    """Return whether `statement` contains a `return`, or a `continue` that belongs to the enclosing loop."""
    if leave is ast.Continue and isinstance(statement, LOOPS):
        return any(leaves(part, leave) for part in statement.orelse)
    return isinstance(statement, leave) or any(
        leaves(part, leave) for part in ast.iter_child_nodes(statement)
    )
