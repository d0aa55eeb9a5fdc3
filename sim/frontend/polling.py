"""Recognition of loops that can wait for another thread.

Such a loop reads memory, or communicates in another way, and a decision in the loop depends on the value that
it has read. If a loop is not of this kind, other threads cannot influence how long it runs. A loop that
passes a grid barrier in each iteration waits only at that barrier.

All threads enter some loops with the same values. If one thread then waits there forever, so do all threads
that start later.

For some loops, the values of a few local variables alone determine how many iterations follow. If such a loop
begins two iterations with equal values of these variables, it never ends, whatever happens to memory.
"""

import ast

from sim.frontend.resolve import (
    ATOMIC,
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
INDICES = {"threadIdx", "blockIdx", "laneid"}  # attributes of `cuda` that differ between threads
ASSIGNMENTS = ast.Assign, ast.AugAssign, ast.AnnAssign, ast.NamedExpr
# Nodes that can assign variables, or leave a loop, in a way that `deciding_variables` does not follow.
INDIRECT = ast.With, ast.Try, ast.FunctionDef, ast.Lambda, ast.Delete, ast.Nonlocal, ast.Global, ast.Match
INDIRECT += ast.comprehension, ast.NamedExpr, ast.Yield


def can_poll(function, parameters):
    """Return whether some `while` loop of a function can wait for another thread. False is certain.

    function: an annotated FunctionDef (sim.frontend.resolve).
    parameters: (name, type) of its parameters with known types.
    """
    arrays = array_names(function, parameters)
    loops = [node for node in all_nodes(function) if isinstance(node, ast.While) and not waits_for_grid(node)]
    return any(depends_on_memory(loop, arrays) for loop in loops)


def has_loop_around_grid_barrier(function):
    """Return whether a `while` loop of a function may contain a grid barrier, directly or in a function that
    the loop calls. Return True if this is uncertain."""
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
    while dependent != before:
        before = set(dependent)
        for names, value in assignments(nodes):
            if reads_memory(value, dependent, arrays):
                dependent |= names
    decisions = [node.test for node in nodes if isinstance(node, ast.While | ast.If)]
    decisions += [node.iter for node in nodes if isinstance(node, ast.For)]
    return any(reads_memory(decision, dependent, arrays) for decision in decisions)


def assignments(nodes):
    """Return (names of the assigned variables, expression) for each assignment among some nodes.

    A `for` loop assigns the elements of its iterable to its target.
    """
    assigned = [(node, node.value) for node in nodes if isinstance(node, ASSIGNMENTS) and node.value]
    assigned += [(node.target, node.iter) for node in nodes if isinstance(node, ast.For)]
    return [
        ({part.id for part in all_nodes(of) if is_name(part, ast.Store)}, value) for of, value in assigned
    ]


def deciding_variables(function, parameters):
    """Return {id of a `while` loop: names of the variables that the loop assigns and that decide how many
    iterations follow}. Loops in which memory or another thread can influence this are left out, and so are
    loops within other loops, which begin more than once.

    function: an annotated FunctionDef (sim.frontend.resolve).
    parameters: (name, type) of its parameters with known types.
    """
    arrays = array_names(function, parameters)
    outermost, waiting = [], [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.While):
            outermost.append(node)
        elif isinstance(node, ast.If):
            waiting += [*node.body, *node.orelse]
    found = {id(loop): deciding_variables_of(loop, arrays) for loop in outermost}
    return {loop: names for loop, names in found.items() if names is not None}


def deciding_variables_of(loop, arrays):
    """Return the deciding variables of one `while` loop, or None if memory can influence its decisions.

    arrays: the names of parameters that are never assigned and are not records.
    """
    nodes = all_nodes(loop)
    if any(isinstance(node, INDIRECT) for node in nodes):
        return None
    assigned, deciding, before = assignments(nodes), set(), None
    inner = [node for node in nodes if isinstance(node, ast.While | ast.If | ast.For) and node is not loop]
    while deciding != before:
        before = set(deciding)
        # A decision matters if the statements that depend on it can leave a loop or assign a variable that
        # matters.
        decisions = [loop.test, *(decision_of(node) for node in inner if matters(node, deciding))]
        values = [value for names, value in assigned if names & deciding]
        if any(reads_memory(expression, (), arrays) for expression in [*decisions, *values]):
            return None
        deciding |= {node.id for part in [*decisions, *values] for node in all_nodes(part) if is_name(node)}
    return frozenset(deciding & set().union(*(names for names, _ in assigned)))


def common_loop(function, parameters):
    """Return the lines of the common loop of a kernel, or an empty range if there is none.

    Every thread enters this `while` loop before any other access to memory, and with the same values of all
    variables that the loop reads. The loop waits only at one atomic.

    The arguments are the same as for `can_poll`.
    """
    arrays, assigned = array_names(function, parameters), set()
    for node in function.body:
        if isinstance(node, ast.While):
            common = is_common(node, argument_names(function), assigned)
            return range(node.lineno, node.end_lineno + 1) if common else range(0)
        if not isinstance(node, ast.Assign | ast.Expr) or reads_memory(node.value, (), arrays):
            break
        assigned |= {part.id for part in all_nodes(node) if is_name(part, ast.Store)}
    return range(0)


def is_common(loop, arguments, assigned):
    """Return whether all threads that enter a loop compute the same in it, and wait only at one atomic.

    arguments: the names of the function's arguments.
    assigned: the variables that are assigned before the loop.
    """
    nodes = all_nodes(loop)
    calls = [part for part in nodes if isinstance(part, ast.Call) and part.calls != BUILTIN]
    if [call.calls for call in calls] != [ATOMIC]:
        return False
    # Any other name could refer to the position of the thread, which differs between threads.
    known = arguments | {part.id for part in nodes if is_name(part, ast.Store)} | BUILTINS
    known |= {part.id for part in all_nodes(calls[0].func) if is_name(part)}
    used = {part.id for part in nodes if is_name(part, ast.Load)}
    has_index = any(isinstance(part, ast.Attribute) and part.attr in INDICES for part in nodes)
    return used <= known - assigned and not has_index


def decision_of(node):
    """Return the expression that decides about the statements in a loop or branch."""
    return node.iter if isinstance(node, ast.For) else node.test


def matters(node, deciding):
    """Return whether a loop or branch contains a statement that leaves a loop, or that assigns one of the
    variables in `deciding`."""
    inside = all_nodes(node)
    leaves = any(isinstance(part, ast.Break | ast.Continue | ast.Return | ast.Raise) for part in inside)
    return leaves or any(names & deciding for names, _ in assignments(inside))


def array_names(function, parameters):
    """Return the names of the parameters that a function never assigns and that are not records. The
    arguments are the same as for `can_poll`."""
    assigned = {node.id for node in all_nodes(function) if is_name(node, ast.Store)}
    records = {name for name, type_ in parameters if isinstance(type_, Record)}
    return argument_names(function) - assigned - records


def argument_names(function):
    return {one.arg for one in all_nodes(function) if isinstance(one, ast.arg)}


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


def is_name(node, context=ast.expr_context):
    return isinstance(node, ast.Name) and isinstance(node.ctx, context)
