"""Simplification of the statements of a PTX kernel before loop fission.

Jumps to the statement that follows are removed, and a register that only contains a copy of a constant or of
another register is replaced by it. Otherwise, loop fission would make a region of every jump next to a
synchronisation point, and spill every copy that several regions read. The generated code of conjugate
gradients in CUDA C++ would have nearly twice as many lines.
"""

import ast
import re
from collections import Counter


def simplify(statements, ptx_types):
    """Return the simplified statements of one thread.

    ptx_types: {variable: its PTX type}.
    """
    # Compiled code sets variables to 0 before their first assignment.
    statements, _ = follow_jumps(statements, {0})
    statements, _ = remove_jumps(remove_last_return(statements), False)
    values = copied_values(statements, ptx_types)
    return ReplaceCopies(values).visit(ast.Module(statements, [])).body


# --- jumps --------------------------------------------------------------------------------------------------
# The variable `go` contains the index of the next basic block (sim.ptx.emit).


def follow_jumps(statements, targets):
    """Find the tests of `go` whose results are known, and replace each of them by the statements that run.

    Return (statements, the set of values that `go` can have after them). The set is empty if no path reaches
    the end of the statements.

    targets: the values that `go` can have before the statements.
    """
    found = []
    for node in statements:
        if not targets:
            break
        match node:
            case ast.Assign([ast.Name("go")], value):
                # The value is an index, or one element of a tuple of indices (`brx`).
                indices = value.value.elts if isinstance(value, ast.Subscript) else [value]
                targets = {*map(ast.literal_eval, indices)}
            case ast.Return():
                targets = set()
            case ast.If(test, body) if reads_go(test):
                chosen = choose(test, targets)
                body, after = follow_jumps(body, chosen)
                if chosen == targets:
                    found, targets = found + body, after
                    continue
                if not chosen:
                    continue
                node, targets = ast.If(test, body, []), targets - chosen | after
            case ast.If(test, body, orelse):
                (body, after), (orelse, otherwise) = (follow_jumps(part, targets) for part in (body, orelse))
                node, targets = ast.If(test, body, orelse), after | otherwise
            case ast.While(test):
                node, targets = follow_loop(node, targets)
                if node is None:
                    continue
        found.append(node)
    return found, targets


def follow_loop(node, targets):
    """Apply `follow_jumps` to a loop. Return (the loop, the set of values that `go` can have after it), or
    (None, `targets`) for a loop that never runs."""
    before, again = set(), choose(node.test, targets)
    if not again:
        return None, targets
    while not again <= before:
        before |= again
        body, after = follow_jumps(node.body, before)
        again = choose(node.test, after)
    targets = targets | after
    return ast.While(node.test, body, []), targets - choose(node.test, targets)


def reads_go(test):
    """Return whether a test compares `go` with the indices of basic blocks."""
    return isinstance(test, ast.Compare) and any(
        isinstance(part, ast.Name) and part.id == "go" for part in ast.walk(test)
    )


def choose(test, targets):
    """Return the values of `go` for which a test is true: `go == 3` or `3 <= go <= 5`."""
    code = compile(ast.Expression(test), "<test>", "eval")
    return {target for target in targets if eval(code, {"go": target})}


def remove_jumps(statements, is_read):
    """Remove the assignments of `go` that no test reads.

    Return (statements, whether the value of `go` before them is read).

    is_read: whether the value of `go` after the statements is read.
    """
    found = []
    for node in reversed(statements):
        match node:
            case ast.Assign([ast.Name("go")]):
                if not is_read:
                    continue
                is_read = False
            case ast.Return():
                is_read = False
            case ast.If(test, body, orelse):
                (body, then), (orelse, otherwise) = (remove_jumps(part, is_read) for part in (body, orelse))
                is_read = then or otherwise or reads_go(test)
                if not body and not orelse:
                    continue
                node = ast.If(test, body or [ast.Pass()], orelse)
            case ast.While(test, body):
                is_read = True
                node = ast.While(test, remove_jumps(body, True)[0] or [ast.Pass()], [])
        found.append(node)
    return found[::-1], is_read


def remove_last_return(statements):
    """Remove each `return` at the end of the statements, or at the end of a branch of their last statement.

    If no `return` precedes a synchronisation point, the regions do not test whether a thread has returned.
    """
    match statements:
        case [*others, ast.Return()]:
            return others
        case [*others, ast.If(test, body, orelse)]:
            body, orelse = remove_last_return(body), remove_last_return(orelse)
            return [*others, ast.If(test, body or [ast.Pass()], orelse)]
    return statements


# --- copies -------------------------------------------------------------------------------------------------


def copied_values(statements, ptx_types):
    """Return {register: the constant or register that it always equals}.

    A register with a single assignment is assigned before each read: if it could be read earlier, it would
    have an initial value, which is a second assignment (sim.ptx.emit.registers_read_unset). If a copy and the
    copied register have one assignment each, they are therefore equal whenever the copy is read.
    """
    nodes = [part for statement in statements for part in ast.walk(statement)]
    stores = (part for part in nodes if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store))
    times = Counter(store.id for store in stores)
    values = {}
    for node in nodes:
        match node:
            case ast.Assign([ast.Name(name)], value) if times[name] == 1:
                if is_copy(name, value, times, ptx_types):
                    values[name] = value
    for name, value in values.items():
        while isinstance(value, ast.Name) and value.id in values:
            value = values[value.id]
        values[name] = value
    return values


def is_copy(name, value, times, ptx_types):
    """Return whether a value that is assigned to a register is a constant, or a register of the same type
    that is assigned at most once."""
    ptx_type = ptx_types.get(name, "")
    match value:
        case ast.Constant(int()):
            return re.fullmatch(r"[su]\d+", ptx_type) is not None
        case ast.Name(source):
            return ptx_type not in ("", "pred") and times[source] <= 1 and ptx_types.get(source) == ptx_type
    return False


class ReplaceCopies(ast.NodeTransformer):
    """A transformer that replaces registers by the values that they copy, and removes the copies."""

    def __init__(self, values):
        self.values = values

    def visit_Name(self, node):
        value = self.values.get(node.id)
        return node if value is None else type(value)(*(getattr(value, field) for field in value._fields))

    def visit_Assign(self, node):
        if isinstance(node.targets[0], ast.Name) and node.targets[0].id in self.values:
            return None
        return self.generic_visit(node)

    def visit_If(self, node):
        node = self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node if node.orelse or not all(isinstance(part, ast.Pass) for part in node.body) else None

    def visit_While(self, node):
        node = self.generic_visit(node)
        node.body = node.body or [ast.Pass()]
        return node
