"""Liveness analysis on syntax trees: variables that statements may read before assigning them, and variables
that they assign."""

import ast

# Definitely assigned variables after a statement that never completes normally, such as `return`. Stands for
# the set of all names, the neutral element of intersection.
EVERYTHING = None


def names_read(node):
    """Return the names that an expression or simple statement reads. `node` may be None."""
    return (
        {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
        if node is not None
        else set()
    )


def names_assigned(statements):
    """Return the names that the statements may assign, at any depth."""
    return {
        part.id
        for statement in statements
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def exposed_reads(statements):
    """Return the names that statements may read before they assign them (upward-exposed reads)."""
    return analyze(statements, set())[0]


def definitely_assigned(statements):
    """Return the names that are assigned on every path to the end of the statements, or EVERYTHING if no path
    reaches the end."""
    return analyze(statements, set())[1]


def analyze(statements, before):
    """Analyse statements that run after the names in `before` have been assigned.

    Return (upward-exposed reads, names definitely assigned at the end or EVERYTHING).
    """
    seen, sure = set(), set(before)
    for statement in statements:
        more, sure = analyze_statement(statement, sure)
        seen |= more
        if sure is EVERYTHING:
            break
    return seen, sure


def analyze_statement(node, sure):
    """Analyse one statement, as `analyze` does for a list. `sure` contains the names assigned before it."""
    if isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
        return names_read(node) - sure, EVERYTHING
    if isinstance(node, ast.If):
        one, other = analyze(node.body, sure), analyze(node.orelse, sure)
        return names_read(node.test) - sure | one[0] | other[0], intersect(one[1], other[1])
    # A loop body may run zero times, so its assignments are not definite.
    if isinstance(node, ast.While):
        return names_read(node.test) - sure | analyze(node.body, sure)[0] | analyze(node.orelse, sure)[
            0
        ], sure
    if isinstance(node, ast.For):
        inner = analyze(node.body, sure | names_assigned([ast.Expr(node.target)]))
        return names_read(node.iter) - sure | inner[0] | analyze(node.orelse, sure)[0], sure
    if isinstance(node, (ast.FunctionDef, ast.With, ast.Try)):
        return names_read(node) - sure, sure
    return names_read(node) - sure, sure | names_assigned([node])


def intersect(one, other):
    """Return the names that are assigned on both of two paths."""
    return other if one is EVERYTHING else one if other is EVERYTHING else one & other


def escaping_exits(statements):
    """Return the kinds of exits ("return", "break", "continue") that transfer control out of these
    statements."""
    found = set()
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            found.add(type(statement).__name__.lower())
        elif isinstance(statement, (ast.For, ast.While)):
            found |= escaping_exits(statement.body) & {"return"} | escaping_exits(statement.orelse)
        elif isinstance(statement, ast.If):
            found |= escaping_exits(statement.body) | escaping_exits(statement.orelse)
    return found
