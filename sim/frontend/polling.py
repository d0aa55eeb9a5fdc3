"""Recognition of loops that can wait for another thread.

Such a loop reads memory, or communicates in another way, and a decision in the loop depends on the value that
it has read. If a loop is not of this kind, other threads cannot influence how long it runs. A loop that
passes a grid barrier in each iteration waits only at that barrier.
"""

import ast

from sim.frontend.resolve import (
    BUILTIN,
    DEVICE,
    DTYPE,
    FUNCTION,
    LANES,
    MEMBER,
    OBJECT,
    POSITION,
    VARIABLE,
    referent_of,
)
from sim.frontend.tree import all_nodes
from sim.frontend.types import Record

COMPUTING = {FUNCTION, DTYPE, POSITION, LANES}  # roles of calls whose results depend only on their operands
BUILTINS = {"abs", "bool", "complex", "float", "int", "len", "max", "min", "range", "round"}
SIZES = {"ndim", "shape", "size"}  # attributes of an array that do not change
ASSIGNMENTS = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr


def can_poll(function, parameters):
    """Return whether some `while` loop of a function can wait for another thread. False is certain.

    function: an annotated FunctionDef (sim.frontend.resolve).
    parameters: (name, type) of its parameters with known types.
    """
    arrays = {one.arg for one in all_nodes(function) if isinstance(one, ast.arg)}
    arrays -= {node.id for node in all_nodes(function) if is_name(node, ast.Store)}
    arrays -= {name for name, type_ in parameters if isinstance(type_, Record)}
    loops = [node for node in all_nodes(function) if isinstance(node, ast.While) and not waits_for_grid(node)]
    return any(depends_on_memory(loop, arrays) for loop in loops)


def has_loop_around_grid_barrier(function):
    """Return whether a `while` loop of a function may contain a grid barrier, directly or in a function that
    the loop calls. Return True in case of doubt."""
    loops = [node for node in all_nodes(function) if isinstance(node, ast.While)]
    calls = [node for loop in loops for node in all_nodes(loop) if isinstance(node, ast.Call)]
    of_methods = {getattr(call.func, "attr", "") for call in calls if call.calls == MEMBER}
    return "sync" in of_methods or any(call.calls in (DEVICE, OBJECT, VARIABLE) for call in calls)


def waits_for_grid(loop):
    """Return whether each iteration of a loop, except perhaps the last one, passes a grid barrier."""
    values = [node.value for node in loop.body if isinstance(node, ast.Expr)]
    calls = [call for call in values if isinstance(call, ast.Call) and call.calls == MEMBER]
    continues = any(isinstance(node, ast.Continue) for node in all_nodes(loop))
    return not continues and any(getattr(call.func, "attr", "") == "sync" for call in calls)


def depends_on_memory(loop, arrays):
    """Return whether a decision in a loop depends on a value that it reads from memory.

    arrays: the names of parameters that are never assigned and are not records.
    """
    nodes, dependent, before = all_nodes(loop), set(), None  # dependent: variables with values from memory
    # A `for` loop assigns the elements of its iterable to its target.
    assigned = [(node, node.value) for node in nodes if isinstance(node, ASSIGNMENTS) and node.value]
    assigned += [(node.target, node.iter) for node in nodes if isinstance(node, ast.For)]
    while dependent != before:
        before = set(dependent)
        for target, value in assigned:
            if reads_memory(value, dependent, arrays):
                dependent |= {part.id for part in all_nodes(target) if is_name(part, ast.Store)}
    decisions = [node.test for node in nodes if isinstance(node, ast.While | ast.If)]
    decisions += [node.iter for node in nodes if isinstance(node, ast.For)]
    return any(reads_memory(decision, dependent, arrays) for decision in decisions)


def reads_memory(expression, read, arrays):
    """Return whether an expression depends on memory, on another thread or on one of the variables in
    `read`."""
    return any(is_read(node, read, arrays) for node in all_nodes(expression))


def is_read(node, read, arrays):
    """Return whether a node of an expression reads something that can change while a loop runs."""
    if isinstance(node, ast.Name):
        return node.id in read
    if isinstance(node, ast.Call):
        builtin = node.calls == BUILTIN and node.func.referent.name in BUILTINS
        return not builtin and node.calls not in COMPUTING
    if isinstance(node, ast.Attribute):
        known = node.attr in SIZES and isinstance(node.value, ast.Name) and node.value.id in arrays
        return referent_of(node).role == MEMBER and not known
    return isinstance(node, ast.Subscript) and not (
        isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    )


def is_name(node, context):
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)
