"""Liveness: the variables that statements read before they have certainly assigned them, and the variables
that they assign."""

import ast

EVERYTHING = None  # the assigned names after a statement that never completes, such as `return`


def reads(node):
    """Return the names that a node without a body of statements reads."""
    return (
        {part.id for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
        if node is not None
        else set()
    )


def assigned(statements):
    """Return every variable that the statements may assign."""
    return {
        part.id
        for statement in statements
        for part in ast.walk(statement)
        if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
    }


def exposed_reads(statements):
    """Return the names that may be read before the statements themselves have assigned them."""
    return walk(statements, set())[0]


def definitely_assigned(statements):
    """Return the names that are assigned whenever the statements have run to their end."""
    return walk(statements, set())[1]


def walk(statements, before):
    """Return (names read before they are assigned, names certainly assigned at the end or EVERYTHING) of
    statements that run after `before` is assigned."""
    seen, sure = set(), set(before)
    for statement in statements:
        more, sure = of_statement(statement, sure)
        seen |= more
        if sure is EVERYTHING:
            break
    return seen, sure


def of_statement(node, sure):
    if isinstance(node, (ast.Return, ast.Break, ast.Continue, ast.Raise)):
        return reads(node) - sure, EVERYTHING
    if isinstance(node, ast.If):
        one, other = walk(node.body, sure), walk(node.orelse, sure)
        return reads(node.test) - sure | one[0] | other[0], both(one[1], other[1])
    if isinstance(node, ast.While):
        return reads(node.test) - sure | walk(node.body, sure)[0] | walk(node.orelse, sure)[0], sure
    if isinstance(node, ast.For):
        inner = walk(node.body, sure | assigned([ast.Expr(node.target)]))
        return reads(node.iter) - sure | inner[0] | walk(node.orelse, sure)[0], sure
    if isinstance(node, (ast.FunctionDef, ast.With, ast.Try)):
        return reads(node) - sure, sure
    return reads(node) - sure, sure | assigned([node])


def both(one, other):
    return other if one is EVERYTHING else one if other is EVERYTHING else one & other


def escaping_exits(statements):
    """Return those of "return", "break" and "continue" that leave these statements."""
    found = set()
    for statement in statements:
        if isinstance(statement, (ast.Return, ast.Break, ast.Continue)):
            found.add(type(statement).__name__.lower())
        elif isinstance(statement, (ast.For, ast.While)):
            found |= escaping_exits(statement.body) & {"return"} | escaping_exits(statement.orelse)
        elif isinstance(statement, ast.If):
            found |= escaping_exits(statement.body) | escaping_exits(statement.orelse)
    return found
