"""Liveness analysis on syntax trees: the variables that statements may read before assigning them, and the
variables that statements assign."""

import ast

from sim.frontend.tree import fields_with_nodes

# EVERYTHING represents the set of all names, which is the neutral element of intersection. `analyze` returns
# it for statements that never complete normally, such as `return`.
EVERYTHING = None


def names_read(node):
    """Return the names read by an expression or a simple statement. `node` may be None."""
    return names_in([node])[0]


def names_assigned(statements):
    """Return the names that statements may assign, at any depth of nesting."""
    return names_in(statements)[1]


def names_in(nodes):
    """Return (names that nodes read, names that they assign), at any depth of nesting."""
    # The generator in `ast` that visits all nodes would take several times as long. A kernel of many regions
    # spends a tenth of its compile time here.
    read, assigned, waiting = set(), set(), list(nodes)
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Name):
            if isinstance(part.ctx, ast.Load):
                read.add(part.id)
            elif isinstance(part.ctx, ast.Store):
                assigned.add(part.id)
        elif isinstance(part, ast.AST):
            waiting += [getattr(part, field, None) for field in fields_with_nodes(type(part))]
        elif isinstance(part, list):
            waiting += part
    return read, assigned


def exposed_reads(statements):
    """Return the names that statements may read before they assign them (upward-exposed reads)."""
    return analyze(statements, set())[0]


def definitely_assigned(statements):
    """Return the names assigned on every path to the end of the statements, or EVERYTHING if no path reaches
    the end."""
    return analyze(statements, set())[1]


def analyze(statements, before):
    """Analyse a list of statements.

    Return (upward-exposed reads, names that are definitely assigned at the end or EVERYTHING).

    before: the names assigned before the statements run.
    """
    all_exposed, definite = set(), set(before)
    for statement in statements:
        exposed, definite = analyze_statement(statement, definite)
        all_exposed |= exposed
        if definite is EVERYTHING:
            break
    return all_exposed, definite


def analyze_statement(node, definite):
    """Analyse one statement, with the same results as `analyze`.

    definite: the names assigned before the statement runs.
    """
    if isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
        return names_read(node) - definite, EVERYTHING
    if isinstance(node, ast.If):
        then, otherwise = analyze(node.body, definite), analyze(node.orelse, definite)
        return names_read(node.test) - definite | then[0] | otherwise[0], intersect(then[1], otherwise[1])
    # A loop body may run zero times, so its assignments are not definite.
    if isinstance(node, ast.While):
        inner = analyze(node.body, definite)[0] | analyze(node.orelse, definite)[0]
        return names_read(node.test) - definite | inner, definite
    if isinstance(node, ast.For):
        inner = analyze(node.body, definite | names_assigned([ast.Expr(node.target)]))
        return names_read(node.iter) - definite | inner[0] | analyze(node.orelse, definite)[0], definite
    if isinstance(node, (ast.FunctionDef, ast.With, ast.Try)):
        return names_read(node) - definite, definite
    read, assigned = names_in([node])
    return read - definite, definite | assigned


def intersect(a, b):
    """Return the names assigned on both of two paths. Either argument can be EVERYTHING."""
    return b if a is EVERYTHING else a if b is EVERYTHING else a & b


def escaping_exits(statements):
    """Return which of "return", "break" and "continue" can transfer control out of these statements."""
    found = set()
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            found.add(type(statement).__name__.lower())
        elif isinstance(statement, (ast.For, ast.While)):
            found |= escaping_exits(statement.body) & {"return"} | escaping_exits(statement.orelse)
        elif isinstance(statement, ast.If):
            found |= escaping_exits(statement.body) | escaping_exits(statement.orelse)
    return found
