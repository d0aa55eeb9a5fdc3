"""Applies a finding's advice to the source of a kernel: what its steps say, and nothing else."""

import ast
import inspect
import itertools
import linecache
import re
import textwrap

from sim.observers.facts import assignment

LINES = {
    "barrier": "cuda.syncthreads()",
    "grid barrier": "cuda.cg.this_grid().sync()",
    "fence": "cuda.threadfence()",
}
NUMBER = itertools.count()


def source_of(kernel):
    """Return the text of a kernel, whose `def` line is line 1."""
    lines = textwrap.dedent(inspect.getsource(kernel)).splitlines()
    return lines[next(i for i, line in enumerate(lines) if line.startswith("def")) :]


def compiled(lines, kernel):
    """Return the function of a text, with the globals of a kernel."""
    name = f"<advice {next(NUMBER)}>"
    text = "\n".join(lines) + "\n"
    linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name
    namespace = dict(kernel.__globals__)
    exec(compile(text, name, "exec"), namespace)
    return namespace[kernel.__name__]


def applied(lines, steps):
    """Return the lines of a kernel with steps done, the lowest lines last, so that numbers stay right."""
    lines = list(lines)
    for step in sorted(set(steps), key=lambda step: -step.line):
        lines = EDITS[step.action](lines, step)
    return lines


def indent(line):
    return line[: len(line) - len(line.lstrip())]


def insert(lines, step):
    """Add a line after another statement, as deep as that begins."""
    new = indent(lines[step.at - 1]) + LINES[step.what]
    return [*lines[: step.line], new, *lines[step.line :]]


def before(lines, step):
    at = step.line - 1
    return [*lines[:at], indent(lines[at]) + LINES[step.what], *lines[at:]]


def split(lines, step):
    return split_branch(lines, step) if step.what == "branch" else split_statement(lines, step)


def split_statement(lines, step):
    """`x[i] = value` becomes a read, a barrier for all threads, and the write."""
    at = step.line - 1
    found = assignment(lines[at])
    value = f"{found.target} {found.operator} ({found.value})" if found.operator else found.value
    tree = ast.parse("\n".join(lines))
    guards = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and node.lineno <= step.line <= node.end_lineno
    ]
    space = indent(lines[at])
    read, write = f"{space}taken = {value}", f"{space}{found.target} = taken"
    if not guards:
        return [*lines[:at], read, space + LINES["barrier"], write, *lines[at + 1 :]]
    (guard,) = guards
    assert guard.body[0].lineno == guard.end_lineno == step.line
    header = lines[guard.lineno - 1]
    barrier = indent(header) + LINES["barrier"]
    return [*lines[: at - 1], header, read, barrier, header, write, *lines[at + 1 :]]


def split_branch(lines, step):
    """`if c: A else: B` becomes `if c: A`, a barrier, `if not c: B`."""
    tree = ast.parse("\n".join(lines))
    node = next(n for n in ast.walk(tree) if isinstance(n, ast.If) and n.lineno == step.line)
    space, test = indent(lines[step.line - 1]), ast.unparse(node.test)
    first = lines[node.body[0].lineno - 1 : node.body[-1].end_lineno]
    second = lines[node.orelse[0].lineno - 1 : node.orelse[-1].end_lineno]
    made = [f"{space}if {test}:", *first, space + LINES["barrier"], f"{space}if not ({test}):", *second]
    return [*lines[: step.line - 1], *made, *lines[node.end_lineno :]]


ATOMICS = {"+": "add", "-": "sub", "|": "or_", "&": "and_", "^": "xor", "max": "max", "min": "min"}


def element(target):
    """Return (array, index) of x[index]."""
    found = re.fullmatch(r"(\w+)\[(.*)\]", target)
    return found[1], found[2]


def operation(found, read):
    """Return (name of the atomic, operand) of an update; `read` has the old value."""
    if found.operator:
        return ATOMICS[found.operator], found.value
    value = found.value.replace(found.target, read)
    if match := re.fullmatch(rf"(max|min)\({re.escape(read)}, (.*)\)", value):
        return match[1], match[2]
    return "add", re.fullmatch(rf"{re.escape(read)} \+ (.*)", value)[1]


def atomic(lines, step):
    at = step.line - 1
    found, space = assignment(lines[at]), indent(lines[at])
    if step.what == "read":
        array, index = element(found.value)
        return [
            *lines[:at],
            f"{space}{found.target} = cuda.atomic.add({array}, {index}, 0)",
            *lines[step.line :],
        ]
    array, index = element(found.target)
    if step.what == "store":
        return [*lines[:at], f"{space}cuda.atomic.exch({array}, {index}, {found.value})", *lines[step.line :]]
    if step.at == step.line:
        name, operand = operation(found, found.target)
        return [*lines[:at], f"{space}cuda.atomic.{name}({array}, {index}, {operand})", *lines[step.line :]]
    taken = assignment(lines[step.at - 1])
    name, operand = operation(found, taken.target)
    call = f"{indent(lines[step.at - 1])}{taken.target} = cuda.atomic.{name}({array}, {index}, {operand})"
    return [*lines[: step.at - 1], call, *lines[step.at : at], *lines[step.line :]]


SIZES = {"float32": 4, "int32": 4, "float64": 8, "int64": 8, "uint8": 1, "float16": 2}


def widen(lines, step):
    """Let a view of dynamic shared memory begin at another byte."""
    for at, line in enumerate(lines):
        if found := re.match(rf"\s*{step.what} = (cuda\.shared\.array\(0, (\w+)\))", line):
            begin = -(-step.at // SIZES[found[2]])
            return [*lines[:at], f"{indent(line)}{step.what} = {found[1]}[{begin}:]", *lines[at + 1 :]]
    raise AssertionError(f"no declaration of {step.what}")


EDITS = {"insert": insert, "before": before, "split": split, "atomic": atomic, "widen": widen}
