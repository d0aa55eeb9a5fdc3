"""Applies the steps of a finding's advice to a kernel's source, without any other change."""

import ast
import inspect
import itertools
import linecache
import re
import textwrap

from numba import cuda

from sim.observers.statements import (
    assignment,
    atomic_target,
    elements,
    find_operation,
    statements,
    with_plain_reads,
)
from sim.observers.tickets import find_increment

LINES = {
    "barrier": "cuda.syncthreads()",
    "grid barrier": "cuda.cg.this_grid().sync()",
    "fence": "cuda.threadfence()",
}
NUMBER = itertools.count()
MOST_ROUNDS = 4  # Fixing one race may reveal another one.


def source_of(kernel):
    """Return a kernel's source lines, starting at its `def` line."""
    lines = textwrap.dedent(inspect.getsource(kernel)).splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("def")) :]


def compiled(texts, kernel):
    """Compile source lines to a function that has the globals of `kernel`.

    texts: {name: source lines} of the kernel and of device functions.
    """
    namespace = kernel.__globals__ | inspect.getclosurevars(kernel).nonlocals
    for function, lines in texts.items():
        name = f"<advice {next(NUMBER)}>"
        text = "\n".join(lines) + "\n"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
        exec(compile(text, name, "exec"), namespace)
    for function in texts.keys() - {kernel.__name__}:
        namespace[function] = cuda.jit(device=True)(namespace[function])
    return namespace[kernel.__name__]


def applied(lines, steps):
    """Return the lines of a kernel after applying the steps, from the bottom up so that line numbers stay
    valid.

    All steps of one ticket form a single edit, which is applied first. If two edits overlap, only one is
    applied. The findings for the edited kernel show whether the other edit is still needed.
    """
    steps = sorted(set(steps), key=lambda step: (step.line, step.action, step.what), reverse=True)
    groups = {}
    for step in steps:
        ticket = {"ticket": step.line, "returned": step.at}.get(step.what)
        groups.setdefault(ticket if ticket is not None else step, []).append(step)
    chosen, taken = [], set()
    for group in sorted(groups.values(), key=lambda group: group[0].what not in ("ticket", "returned")):
        span = set().union(*(lines_of(lines, step) for step in group))
        if span.isdisjoint(taken):
            chosen.append((max(span), group))
            taken |= span
    for _, group in sorted(chosen, key=lambda edit: -edit[0]):
        edit = tickets if group[0].what in ("ticket", "returned") else EDITS[group[0].action]
        lines = edit(lines, group if edit is tickets else group[0])
    return lines


def improved(kernel, findings_of):
    """Apply advice until no finding has steps left. Return (kernel, its lines).

    findings_of(kernel): function that returns the findings of the kernel's launch.
    """
    texts = {kernel.__name__: source_of(kernel)}
    for _ in range(MOST_ROUNDS):
        advice = [finding.advice for finding in findings_of(kernel) if finding.advice]
        steps = [step for each in advice for step in each.steps]
        if not steps:
            break
        for name in {step.function for step in steps}:
            lines = texts.get(name) or source_of(kernel.__globals__[name].py_func)
            texts[name] = applied(lines, [step for step in steps if step.function == name])
        kernel = compiled(texts, kernel)
    return kernel, [line for lines in texts.values() for line in lines]


def lines_of(lines, step):
    """Return the lines that an edit rewrites, copies text from, or inserts after."""
    first, last = min(step.line, step.at or step.line), max(step.line, step.at)
    if step.action in ("widen", "buffers"):
        return {0}
    if step.action in ("divide", "split"):
        tree = ast.parse("\n".join(lines))
        held = [n for n in ast.walk(tree) if isinstance(n, ast.If) and n.lineno <= first <= n.end_lineno]
        first, last = min([first, *(n.lineno for n in held)]), max([last, *(n.end_lineno for n in held)])
        if step.action == "divide" and any(isinstance(node, ast.Return) for node in ast.walk(tree)):
            first, last = 1, len(lines)
    return {step.line} if step.action == "insert" else set(range(first, last + 1))


def indent(line):
    return line[: len(line) - len(line.lstrip())]


def insert(lines, step):
    """Insert a line after a statement, with the statement's indentation."""
    new = indent(lines[step.at - 1]) + LINES[step.what]
    return [*lines[: step.line], new, *lines[step.line :]]


def before(lines, step):
    at = step.line - 1
    return [*lines[:at], indent(lines[at]) + LINES[step.what], *lines[at:]]


# --- branches around a barrier ------------------------------------------------------------------------------


def divide(lines, step):
    """Insert a barrier after a statement, and split the branches around it."""
    return divided(lines, step.at, LINES.get(step.what))


def divided(lines, at, barrier):
    """Return the lines with `barrier` after the statement that starts at line `at`.

    The barrier is placed outside all branches up to the enclosing loop or function. If `barrier` is None, the
    statement itself is the barrier.
    """
    tree = ast.parse("\n".join(lines))
    (function,) = tree.body
    body = body_of(function, at)
    if body is function.body:
        function.body = body = without_returns(body, at)
    begin = next(i for i, node in enumerate(body) if node.lineno <= at <= node.end_lineno)
    made, first, second = cut(body[begin], at)
    middle = (
        ast.parse(barrier).body[0] if barrier else first.pop() if first[-1].lineno == at else drop(first, at)
    )
    new = [*made, *first, middle, *second]
    if body is function.body:
        new = [*body[:begin], *new, *body[begin + 1 :]]
        start, end, space = body_start(function), len(lines), "    "
    else:
        start, end, space = body[begin].lineno, body[begin].end_lineno, " " * body[begin].col_offset
    text = ast.unparse(ast.fix_missing_locations(ast.Module(new, [])))
    return [*lines[: start - 1], *textwrap.indent(text, space).splitlines(), *lines[end:]]


def body_start(function):
    return function.body[0].lineno


def body_of(function, at):
    """Return the statements of the innermost loop, or of the function, that contains a line."""
    nodes = (n for n in ast.walk(function) if isinstance(n, (ast.FunctionDef, ast.For, ast.While)))
    return max((n for n in nodes if n.lineno < at <= n.end_lineno), key=lambda node: node.lineno).body


def without_returns(body, at):
    """Return a function's statements without early returns before line `at`.

    Each `if c: ...; return` becomes a branch around the code that follows.
    """
    for i, node in enumerate(body):
        if node.lineno >= at or not isinstance(node, ast.If) or node.end_lineno >= at:
            continue
        if isinstance(node.body[-1], ast.Return):
            rest = without_returns(body[i + 1 :], at)
            kept = node.body[:-1] or [ast.Pass()]
            around = ast.If(node.test, kept, rest)
            if not node.body[:-1]:
                around = ast.If(ast.UnaryOp(ast.Not(), node.test), rest, [])
            around.lineno, around.end_lineno = node.lineno, rest[-1].end_lineno
            around.col_offset = node.col_offset
            return [*body[:i], around]
    return body


def cut(node, at):
    """Return (statements before, statement up to line `at`, rest), each as a list of lines."""
    if not isinstance(node, ast.If) or node.lineno == at:
        return [], [node], []
    guard = f"guard_{node.lineno}"
    arm = node.body if node.body[0].lineno <= at <= node.body[-1].end_lineno else node.orelse
    i = next(i for i, part in enumerate(arm) if part.lineno <= at <= part.end_lineno)
    made, first, second = cut(arm[i], at)
    first, second = [*arm[:i], *first], [*second, *arm[i + 1 :]]
    # This expression is evaluated inside the arm.
    inner = [part for part in made if part.value.__class__ is ast.Call]
    defaults = [ast.parse(f"{part.targets[0].id} = False").body[0] for part in inner]
    first = [*first[: len(arm[:i])], *inner, *first[len(arm[:i]) :]]
    test = ast.Assign(
        [ast.Name(guard, ast.Store())], ast.Call(ast.Name("bool", ast.Load()), [node.test], []), None
    )
    name, is_body = ast.Name(guard, ast.Load()), arm is node.body
    one = ast.If(name, first, node.orelse) if is_body else ast.If(name, node.body, first)
    other = ast.If(name if is_body else ast.UnaryOp(ast.Not(), name), second, [])
    others = [part for part in made if part not in inner]
    one.lineno = other.lineno = node.lineno
    return [*others, *defaults, test], [one], [other] if second else []


def drop(nodes, at):
    """Remove the statement at line `at` from nested nodes and return it."""
    for node in nodes:
        for field in ("body", "orelse"):
            for part in getattr(node, field, []):
                if getattr(part, "lineno", None) == at and not isinstance(part, ast.If):
                    setattr(node, field, [n for n in getattr(node, field) if n is not part] or [ast.Pass()])
                    return part
            found = drop(getattr(node, field, []), at)
            if found:
                return found
    return None


def split(lines, step):
    if not step.what.startswith("branch"):
        return split_statement(lines, step)
    return split_branch(lines, step)


def split_statement(lines, step):
    """Replace `x[i] = value` with a read, a barrier for all threads, and the write."""
    at = step.line - 1
    found, space = assignment(lines[at]), indent(lines[at])
    value = f"{found.target} {found.operator} ({found.value})" if found.operator else found.value
    lines = [*lines[:at], f"{space}taken = {value}", f"{space}{found.target} = taken", *lines[at + 1 :]]
    return divided(lines, step.line, LINES[step.what])


def split_branch(lines, step):
    """Replace `if c: A else: B` with `if c: A`, a barrier, and `if not c: B`.

    B comes first if it contains line `at`.
    """
    tree = ast.parse("\n".join(lines))
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.If) and n.lineno == step.line)
    space, name = indent(lines[step.line - 1]), f"guard_{step.line}"
    arms = [f"if {name}:", node.body], [f"if not {name}:", node.orelse]
    if step.at > node.body[-1].end_lineno:
        arms = arms[::-1]
    texts = []
    for header, body in arms:
        text = textwrap.indent(ast.unparse(ast.Module(body, [])), space + "    ")
        texts.append([space + header, *text.splitlines()])
    made = [f"{space}{name} = bool({ast.unparse(node.test)})", *texts[0], *texts[1]]
    barrier = LINES["barrier" if step.what == "branch" else "grid barrier"]
    return divided([*lines[: step.line - 1], *made, *lines[node.end_lineno :]], step.line + 1, barrier)


def guard(lines, step):
    at = step.line - 1
    return [*lines[:at], f"{indent(lines[at])}if {step.what}:", "    " + lines[at], *lines[step.line :]]


# --- atomics ------------------------------------------------------------------------------------------------

ATOMICS = {"+": "add", "-": "sub", "|": "or_", "&": "and_", "^": "xor", "max": "max", "min": "min"}


def operation(found, read):
    """Return (name of the atomic, operand) for an update, where `read` is the expression for the old
    value."""
    if found.operator:
        return ATOMICS[found.operator], found.value
    value = with_plain_reads(found.value, found.target).replace(found.target, read)
    operator, operand = find_operation(value, read)
    return ATOMICS[operator], operand


def atomic(lines, step):
    at = step.line - 1
    found, space = assignment(lines[at]), indent(lines[at])
    if step.what == "read":
        array, index = atomic_target(step.element)
        read = f"cuda.atomic.add({array}, {index}, 0)"
        left, sign, right = ("", "", lines[at]) if found is None else lines[at].partition("=")
        assert step.element in right
        return [*lines[:at], left + sign + right.replace(step.element, read), *lines[step.line :]]
    if step.what == "swap loop":
        return swap_loop(lines, step, found)
    if step.what == "exchange":
        return exchange(lines, step, found)
    array, index = atomic_target(found.target)
    if step.what in ("cas", "min", "max"):
        return claim(lines, step, found)
    if step.what == "release":
        call = f"{space}cuda.atomic.exch({array}, {index}, {found.value})"
        return [*lines[:at], space + LINES["fence"], call, *lines[step.line :]]
    if step.what == "store":
        return [*lines[:at], f"{space}cuda.atomic.exch({array}, {index}, {found.value})", *lines[step.line :]]
    if step.at == step.line:
        name, operand = operation(found, found.target)
        return [*lines[:at], f"{space}cuda.atomic.{name}({array}, {index}, {operand})", *lines[step.line :]]
    taken = assignment(lines[step.at - 1])
    name, operand = operation(found, taken.target)
    call = f"{indent(lines[step.at - 1])}{taken.target} = cuda.atomic.{name}({array}, {index}, {operand})"
    return [*lines[: step.at - 1], call, *lines[step.at : at], *lines[step.line :]]


def swap_loop(lines, step, found):
    """Replace an update by a loop that computes the new value from the old one, and stores it by a
    compare-and-swap."""
    array, index = atomic_target(found.target)
    seen, taken, space = f"seen_{step.line}", f"taken_{step.line}", indent(lines[step.line - 1])
    value = f"{seen} {found.operator} ({found.value})"
    if not found.operator:
        value = found.value.replace(found.target, seen)
    loop = [
        f"{taken} = cuda.atomic.cas({array}, {index}, 0, 0)",
        "while True:",
        f"    {seen} = {taken}",
        f"    {taken} = cuda.atomic.cas({array}, {index}, {seen}, {value})",
        f"    if {taken} == {seen}:",
        "        break",
    ]
    return [*lines[: step.line - 1], *(space + line for line in loop), *lines[step.line :]]


def claim(lines, step, found):
    """Replace a check and a store with an atomic.

    `if x[i] == a: ...; x[i] = b` becomes a compare-and-swap in the header, and `if x[i] > b: x[i] = b` an
    atomic minimum.
    """
    array, index = atomic_target(step.element)
    tree = ast.parse("\n".join(lines))
    node = next(n for n in ast.walk(tree) if isinstance(n, (ast.If, ast.While)) and n.lineno == step.at)
    last = node.test.values[-1] if isinstance(node.test, ast.BoolOp) else node.test
    sides = [ast.unparse(last.left), ast.unparse(last.comparators[0])]
    other = next(side for side in sides if side != step.element)
    operands = f"{other}, {found.value}" if step.what == "cas" else found.value
    call = f"cuda.atomic.{step.what}({array}, {index}, {operands})"
    test = ast.unparse(last).replace(step.element, call)
    header = lines[step.at - 1]
    assert header.endswith(f"{ast.unparse(last)}:")
    header = header.removesuffix(f"{ast.unparse(last)}:") + f"{test}:"
    store = [f"{indent(lines[step.line - 1])}pass"] if len(node.body) == 1 else []
    return [*lines[: step.at - 1], header, *lines[step.at : step.line - 1], *store, *lines[step.line :]]


def exchange(lines, step, found):
    """Replace a read and a later store, or `v, x[i] = x[i], v`, by an atomic exchange at the read."""
    array, index = atomic_target(step.element)
    read, call = lines[step.at - 1], f"cuda.atomic.exch({array}, {index}, {{}})"
    if step.at == step.line:
        name = next(part.strip() for part in read.partition(" = ")[0].split(",") if "[" not in part)
        return [*lines[: step.at - 1], f"{indent(read)}{name} = {call.format(name)}", *lines[step.at :]]
    left, sign, right = read.partition(" = ")
    right = right.replace(step.element, call.format(found.value))
    return [*lines[: step.at - 1], left + sign + right, *lines[step.at : step.line - 1], *lines[step.line :]]


def tickets(lines, steps):
    """Insert one atomic before the first of the statements, and use its result in place of the reads."""
    (ticket,) = (step for step in steps if step.what == "ticket")
    source = lines[ticket.line - 1]
    _, operator, operand = find_increment(source)
    array, index = atomic_target(ticket.element)
    old, lines = f"old_{ticket.line}", list(lines)
    for step in steps:
        if step.what == "returned":
            value = old if step.line < ticket.line else f"({old} {operator} {operand})"
            assert ticket.element in elements(lines[step.line - 1], array)
            lines[step.line - 1] = lines[step.line - 1].replace(ticket.element, value)
    taken = assignment(source)
    named = taken and not taken.is_element
    lines[ticket.line - 1 : ticket.line] = [f"{indent(source)}{taken.target} = {old}"] if named else []
    call = f"cuda.atomic.{ATOMICS[operator]}({array}, {index}, {operand})"
    lines.insert(ticket.at - 1, f"{indent(lines[ticket.at - 1])}{old} = {call}")
    return lines


# --- declarations and masks ---------------------------------------------------------------------------------

SIZES = {"float32": 4, "int32": 4, "float64": 8, "int64": 8, "uint8": 1, "float16": 2}


def widen(lines, step):
    """Start a view of dynamic shared memory at another byte."""
    for at, line in enumerate(lines):
        if found := re.match(rf"\s*{step.what} = (cuda\.shared\.array\(0, (\w+)\))", line):
            begin = -(-step.at // SIZES[found[2]])
            return [*lines[:at], f"{indent(line)}{step.what} = {found[1]}[{begin}:]", *lines[at + 1 :]]
    raise AssertionError(f"no declaration of {step.what}")


def buffers(lines, step):
    """Add a buffer to a multi-buffered array.

    The array's shape, its indices, and the variables used as indices change.
    """
    shape = re.compile(rf"(\s*{step.what} = cuda\.shared\.array\(\(?){step.at}\b")
    names = set(re.findall(rf"\b{step.what}\[(\w+)\b", "\n".join(lines)))
    places = "|".join([rf"\b{step.what}\[[^,\]]*", *(rf"^\s*{name} = .*" for name in names)])
    ring = re.compile(rf"((?:{places})% ){step.at}\b")
    lines = [ring.sub(rf"\g<1>{step.at + 1}", line) for line in lines]
    return [shape.sub(rf"\g<1>{step.at + 1}", line) for line in lines]


def separate(lines, step):
    at = step.line - 1
    parts = [indent(lines[at]) + text for _, text in statements(lines[at])]
    return [*lines[:at], *parts, *lines[step.line :]]


def mask(lines, step):
    at = step.line - 1
    return [*lines[:at], re.sub(r"syncwarp\(.*\)", f"syncwarp({step.what})", lines[at]), *lines[step.line :]]


EDITS = {"insert": insert, "before": before, "divide": divide, "split": split, "guard": guard}
EDITS |= {"atomic": atomic, "widen": widen, "buffers": buffers, "mask": mask}
EDITS["separate"] = separate
