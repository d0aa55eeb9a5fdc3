"""Recognition of loops that search memory, such as the search for a free slot in a hash table.

Such a loop repeats atomics and loads, and stores nothing before it ends. As long as no thread changes memory,
a few local variables determine what each iteration does. Threads with equal values of these variables then do
the same, whatever values their other variables have.
"""

import ast
from dataclasses import dataclass

from sim.frontend.polling import ASSIGNMENTS, BUILTINS, INDICES, INDIRECT, assignments, decision_of, is_name
from sim.frontend.resolve import ATOMIC, BUILTIN, DTYPE, FUNCTION, VARIABLE, builtin_called, referent_of
from sim.frontend.tree import all_nodes

FENCE = "threadfence"
SWAPS = {"atomic.cas", "atomic.compare_and_swap"}
# Expressions that can raise an exception, or read memory or the thread's index.
UNSAFE = (
    ast.Call,
    ast.Subscript,
    ast.Attribute,
    ast.Div,
    ast.FloorDiv,
    ast.Mod,
    ast.Pow,
    ast.LShift,
    ast.RShift,
)


@dataclass(frozen=True)
class Search:
    """A loop that searches memory.

    names: the variables that determine what an iteration does, as long as memory does not change.
    keys: {key: pairs (array, variable)}. A key is a variable that the loop only compares for equality with
        values from memory. Each pair names an array that contains such values, and the variable to which the
        loop assigns them, or "".
    lines: the lines at which a thread that waits for its turn is certainly still in the loop.
    around: the variables of the `for` loops around the loop. If a thread leaves the loop and returns to it in
        the same call of the function, one of these variables has changed.
    """

    names: frozenset
    keys: dict
    lines: frozenset
    around: tuple


def searches(function):
    """Return {id of a `while` loop: its Search} for the loops of a function that search memory. Other loops
    around them must be loops over a `range`.

    function: an annotated FunctionDef (sim.frontend.resolve).
    """
    found, waiting = {}, [(node, ()) for node in function.body]
    while waiting:
        node, around = waiting.pop()
        if isinstance(node, ast.While):
            found[id(node)] = search_of(node, around)
        elif isinstance(node, ast.If) or is_over_range(node):
            around = around if isinstance(node, ast.If) else (*around, node.target.id)
            waiting += [(part, around) for part in (*node.body, *node.orelse)]
    return {loop: search for loop, search in found.items() if search}


def is_over_range(node):
    """Return whether a node is a `for` loop whose variable has another value in each iteration."""
    if not isinstance(node, ast.For) or builtin_called(node.iter) != "range" or not is_name(node.target):
        return False
    return not any(node.target.id in names for part in node.body for names, _ in assignments(all_nodes(part)))


def search_of(loop, around):
    """Return the Search of one `while` loop, or None if it is not a search.

    around: the variables of the `for` loops around it.
    """
    left = [part for body in bodies(loop.body) if leaves(*body) for part in body[0]]
    outside = {id(node) for part in left for node in all_nodes(part)}
    nodes = [node for node in all_nodes(loop) if id(node) not in outside]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    if not any(call.calls == ATOMIC for call in calls) or not all(map(is_allowed, nodes)):
        return None
    used = deciding_nodes(nodes, calls)
    if any(referent_of(node).name in INDICES for node in used if hasattr(node, "referent")):
        return None  # the iteration also depends on the thread's index
    variables = [node for node in used if is_name(node) and referent_of(node).role == VARIABLE]
    keys = compared_keys(nodes, variables)
    # A thread that waits for its turn at one of these lines may already have left the loop.
    hidden = {line for part in left if has_calls(part) for line in range(part.lineno, part.end_lineno + 1)}
    lines = frozenset(range(loop.lineno, loop.end_lineno + 1)) - hidden
    return Search(frozenset({node.id for node in variables} - keys.keys()), keys, lines, around)


def bodies(statements, nested=False):
    """Yield (statements, whether an inner loop contains them) for the body of a loop and all blocks in it."""
    yield statements, nested
    for node in statements:
        inner = nested or isinstance(node, ast.While | ast.For)
        for part in (getattr(node, "body", ()), getattr(node, "orelse", ())):
            yield from bodies(part, inner) if part else ()


def leaves(statements, nested):
    """Return whether a thread that executes these statements leaves the loop.

    nested: whether another loop within the loop contains them.
    """
    ends = (ast.Return,) if nested else (ast.Return, ast.Break)
    continues = any(isinstance(node, ast.Continue) for part in statements for node in all_nodes(part))
    return not continues and any(isinstance(node, ends) for node in statements)


def is_allowed(node):
    """Return whether a search may contain a node.

    The node must not store to memory, except by an atomic, and its effect must depend only on memory and on
    variables.
    """
    has_else = bool(getattr(node, "orelse", None)) and isinstance(node, ast.While | ast.For)
    if has_else or isinstance(node, (*INDIRECT, ast.Assert, ast.Raise)):
        return False
    if isinstance(node, ast.Subscript | ast.Attribute):
        return isinstance(node.ctx, ast.Load)
    if not isinstance(node, ast.Call):
        return True
    name, of_builtin = referent_of(node.func).name, node.calls == BUILTIN
    computes = name in BUILTINS if of_builtin else node.calls in (FUNCTION, DTYPE, ATOMIC)
    return not node.keywords and (computes or name.startswith(FENCE))


def has_calls(part):
    """Return whether a statement contains a call at which a thread may wait."""
    return any(isinstance(node, ast.Call) and node.calls not in (FUNCTION, DTYPE) for node in all_nodes(part))


def deciding_nodes(nodes, calls):
    """Return the nodes of the expressions that determine what an iteration does, as long as memory does not
    change.

    nodes, calls: the nodes of the loop, and the calls among them.
    """
    assigned = assignments(nodes)
    changing = set().union(*(names for names, _ in assigned))
    # A compare-and-swap that fails does not use its new value.
    new = [call.args[-1] for call in calls if referent_of(call.func).name in SWAPS]
    unused = {id(node) for value in new if is_fixed(value, changing) for node in all_nodes(value)}
    deciding = [node.test for node in nodes if isinstance(node, ast.While | ast.If | ast.IfExp)]
    deciding += [decision_of(node) for node in nodes if isinstance(node, ast.For)]
    deciding += [argument for call in calls for argument in call.args]
    deciding += [value for _, value in assigned if any(isinstance(node, UNSAFE) for node in all_nodes(value))]
    names, before = set(), None
    while names != before:
        before = names
        parts = [*deciding, *(value for targets, value in assigned if targets & names)]
        used = [node for part in parts for node in all_nodes(part) if id(node) not in unused]
        names = {node.id for node in used if is_name(node)}
    return used


def compared_keys(nodes, variables):
    """Return the `keys` of a Search.

    nodes: the nodes of the loop.
    variables: the Name nodes that determine what an iteration does.
    """
    changing, arrays = set().union(*(names for names, _ in assignments(nodes))), {}
    for node in nodes:
        if isinstance(node, (*ASSIGNMENTS, ast.For)):
            array = array_read(node.value) if type(node) is ast.Assign else None
            for name in {part.id for part in all_nodes(node) if is_name(part, ast.Store)}:
                arrays[name] = array if arrays.get(name, array) == array else None
    keys, covered = {}, set()
    for key, other in compared_pairs(nodes):
        variable = other.id if is_name(other) else ""
        array = arrays.get(variable) if variable else array_read(other)
        if array and array not in changing and is_name(key) and key.id not in changing:
            keys.setdefault(key.id, set()).add((array, variable))
            covered.add(id(key))
    others = {node.id for node in variables if id(node) not in covered}
    return {key: frozenset(read) for key, read in keys.items() if key not in others}


def compared_pairs(nodes):
    """Yield (left side, right side) and the reverse for each test of equality among some nodes."""
    for node in nodes:
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            one, other = node.left, node.comparators[0]
            if isinstance(node.ops[0], ast.Eq | ast.NotEq):
                yield from ((one, other), (other, one))
            elif isinstance(node.ops[0], ast.In) and isinstance(other, ast.Tuple):
                yield from ((element, one) for element in other.elts)


def array_read(expression):
    """Return the name of the array from which an expression reads an element, or None."""
    array = None
    if isinstance(expression, ast.Call) and expression.calls == ATOMIC:
        array = expression.args[0]
    elif isinstance(expression, ast.Subscript):
        array = expression.value
    return array.id if is_name(array) and referent_of(array).role == VARIABLE else None


def is_fixed(expression, changing):
    """Return whether an expression has the same value or raises the same exception in each iteration, as long
    as memory does not change.

    changing: the variables that the loop assigns.
    """
    nodes = all_nodes(expression)
    return not any(isinstance(node, ast.Call) or getattr(node, "id", "") in changing for node in nodes)
