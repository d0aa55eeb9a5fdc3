"""Sequences of a read and a write of one element that a single atomic could replace: tickets, claims and
checks.

A ticket is a counter that threads read and increment in two statements. A claim is a comparison in the
condition of a branch, followed by a store to the same element in the branch. A check is a comparison in the
condition of a branch that contains an atomic on the same array.
"""

import re
from dataclasses import dataclass

from sim.events import ATOMIC, LOAD, SITES, STORE
from sim.observers.statements import (
    ATOMIC_OPERATORS,
    arguments,
    assigned,
    assignment,
    closing_bracket,
    elements,
    mentions,
    statement,
)

ADD = re.compile(r"(?:atomic\.(add|sub)|atomic(Add|Sub))\((.*)\)$")
COMPARISON = re.compile(r"==|!=|<=|>=|(?<![<>-])[<>](?![<>])")
BARRIER = re.compile(r"syncthreads|\bsync\(|syncwarp|debug_barrier")
HEADER = re.compile(r"\}?\s*(?:(?:el(?:se )?)?if|while)\b(.*)$")
EXTREMES = {">": "min", ">=": "min", "<": "max", "<=": "max"}
MIRRORED = {"==": "==", ">": "<", ">=": "<=", "<": ">", "<=": ">="}


@dataclass(frozen=True)
class Ticket:
    """A counter: its `element` is incremented on line `line` and read on other lines."""

    line: int
    first: int  # the first of these lines
    element: str
    reads: tuple[int, ...]  # the lines that read the element
    added: str  # the operator and operand, such as "+ 1"


@dataclass(frozen=True)
class Claim:
    """A store of `value` on line `line`, guarded by a comparison of the element on line `header`."""

    line: int
    header: int
    element: str
    operation: str  # "cas", "min" or "max"
    expected: str
    value: str
    copied: str | None  # the variable compared by the branch instead of the element, or None
    repeats: bool  # whether the comparison is in the header of a loop rather than of a branch


def find_increment(source, assignment=assignment):
    """Return (element, operator, operand) for a statement that adds to an element, plainly or atomically.
    Return None for any other statement.

    assignment: a function that parses an assignment.
    """
    found = assignment(source)
    if found and found.is_element and found.operator:
        return (found.target, found.operator, found.value) if found.operator in ATOMIC_OPERATORS else None
    if (
        found
        and found.is_element
        and (again := re.fullmatch(rf"{re.escape(found.target)} ([+-]) (\w+)", found.value))
    ):
        return found.target, again[1], again[2]
    call = ADD.search(found.value if found else statement(source))
    parts = arguments(call[3]) if call else []
    operator = "+" if call and (call[1] or call[2]).lower() == "add" else "-"
    if call and call[1] and len(parts) == 3:
        return f"{parts[0]}[{parts[1]}]", operator, parts[2]
    if call and call[2] and len(parts) == 2:
        target = parts[0].removeprefix("&")
        return target if parts[0].startswith("&") else f"{target}[0]", operator, parts[1]
    return None


def is_unchanged(outline, first, last, *texts):
    """Return whether no identifier in the texts is assigned on the lines from `first` up to, but not
    including, `last`."""
    between = "\n".join(outline.lines[line] for line in range(first, last))
    names = {name for text in texts for name in re.findall(r"[A-Za-z_]\w*", text)}
    return not any(assigned(name, between) for name in names)


def find_ticket(facts):
    """Return the Ticket to which both accesses belong, or None."""
    outline = facts.outline
    sites = [SITES[row.site] for row in (facts.a, facts.b) if facts.action(row.site) in (STORE, ATOMIC)]
    added = [(site, find_increment(facts.statement(site), facts.assignment)) for site in sites]
    site, increment = next((pair for pair in added if pair[1]), (None, None))
    if outline is None or site is None:
        return None
    element, operator, operand = increment
    name = re.search(r"\w+", element)[0]
    holder = outline.holders(outline.innermost(site.line), outline.root)[-1]
    # Search the source and not the access log, because compiled code can read the element once for several
    # lines.
    lines = [
        line
        for line, text in outline.text(holder)
        if outline.part(holder, line) and reads_element(facts, text, element)
    ]
    barriers = [line for line, text in outline.text(holder) if BARRIER.search(text)]
    reads = [
        line
        for line in lines
        if line != site.line and not any(min(line, site.line) < at < max(line, site.line) for at in barriers)
    ]
    if not reads or not {facts.one.line, facts.other.line} <= {site.line, *reads} or mentions(operand, name):
        return None
    added = element, operator, operand
    if reads[0] > site.line and not any(is_own_value(outline, holder, line, added) for line in reads):
        return None
    first = min(outline.part(holder, reads[0]).first, site.line)
    last = max(reads[-1], site.line) + 1
    fixed = is_unchanged(outline, first, site.line, operand) and is_unchanged(
        outline, first, last, index(element)
    )
    return Ticket(site.line, first, element, tuple(reads), f"{operator} {operand}") if fixed else None


def reads_element(facts, text, element):
    """Return whether a line reads an element. An assignment to it does not count."""
    found = facts.assignment(text)
    assigns = found is not None and found.target == element and not found.operator
    return element in facts.elements(found.value if assigns else text, re.search(r"\w+", element)[0])


def index(element):
    return element.partition("[")[2]


def is_own_value(outline, holder, line, added):
    """Return whether the thread needs the value that its own atomic returns, rather than the final value of
    the element.

    It does if the line compares the element, uses it as an index (perhaps through a variable), or subtracts
    what was added.
    """
    element, text = added[0], outline.lines[line]
    if is_number(text, element) or text_before_addition(*added) in text:
        return True
    found = assignment(text)
    if found is None or found.is_element:
        return False
    later = [text for number, text in outline.text(holder) if number > line and mentions(text, found.target)]
    return any(is_number(text, found.target) for text in later)


def text_before_addition(element, operator, operand):
    """Return the expression for the value that an element had before the addition."""
    return f"{element} {'-' if operator == '+' else '+'} {operand}"


def is_number(text, element):
    """Return whether a line compares an element or uses it as an index."""
    at = re.search(rf"(?<!\w){re.escape(element)}", text).start()
    inside = text[:at].count("[") > text[:at].count("]")
    return inside or COMPARISON.search(statement_or_header(text)) is not None


def statement_or_header(text):
    found = HEADER.match(text.strip())
    return found[1] if found else text


def find_claim(facts):
    """Return the Claim for a load in the condition of a branch and a store in the branch, or None."""
    outline, store = facts.outline, facts.of_action(STORE)
    found = facts.assignment(facts.statement(store)) if outline and store else None
    if found is None or not found.is_element or found.operator:
        return None
    load = facts.of_action(LOAD)
    # Lines are numbered from the `def` of each function, and `outline` contains one function.
    headers = [read.line for read in ([load] if load else facts.reads) if read.function == store.function]
    branches = (branch_with_header(outline, line, store.line) for line in headers)
    branch = next(filter(None, branches), None) or branch_on_copy(outline, found.target, headers, store.line)
    if branch is None:
        return None
    last = conjuncts(outline.lines[branch.first])[-1]
    compared = COMPARISON.search(last)
    if compared is None or compared[0] not in MIRRORED or COMPARISON.search(last[compared.end() :]):
        return None
    operator, sides = compared[0], (last[: compared.start()].strip(), last[compared.end() :].strip())
    copied = copy_of(outline, headers, found.target)
    sides = tuple(found.target if side == copied else side for side in sides)
    if sides[1] == found.target:
        operator, sides = MIRRORED[operator], sides[::-1]
    fixed = is_unchanged(outline, branch.first + 1, store.line, found.value, sides[0])
    if sides[0] != found.target or not fixed:
        return None
    if operator != "==" and (sides[1] != found.value or is_exchange(outline, branch, found)):
        return None
    operation = EXTREMES.get(operator, "cas")
    repeats = branch.kind == "loop"
    return Claim(store.line, branch.first, found.target, operation, sides[1], found.value, copied, repeats)


def is_exchange(outline, branch, stored):
    """Return whether a branch also stores to another element of the array, as in a sort."""
    arm = branch.parts[0] if branch.kind == "branch" else branch
    found = [assignment(text) for _, text in outline.text(arm)]
    others = [one for one in found if one and one.is_element and one.name == stored.name]
    return any(one.target != stored.target for one in others)


def copy_of(outline, lines, element):
    """Return the variable to which a line assigns an element.

    Return None if there is no such variable, or if it is also assigned elsewhere.
    """
    for line in lines:
        found = assignment(outline.lines[line])
        home = outline.function(line)
        if found and not found.is_element and found.value == element and home:
            text = "\n".join(text for _, text in outline.text(home))
            return found.name if len(assigned(found.name, text)) == 1 else None
    return None


def branch_on_copy(outline, element, lines, line):
    """Return the innermost branch around a line if its header compares a copy of the element. Return None
    otherwise."""
    copied = copy_of(outline, lines, element)
    around = [node for node in outline.path(line) if node.kind == "branch"]
    fits = copied and around and mentions(outline.lines[around[-1].first], copied)
    return branch_with_header(outline, around[-1].first, line) if fits else None


def conjuncts(line):
    """Return the conditions in the header of a branch, all of which must be true."""
    test = HEADER.match(line.strip())
    text = re.sub(r"\s//.*$|\s#.*$", "", test[1]).strip() if test else ""
    if text.endswith(":"):
        text = text.removesuffix(":").strip()
    elif text.startswith("("):  # in C++, a statement can follow the condition
        text = text[: closing_bracket(text) + 1]
    if text.startswith("(") and closing_bracket(text) == len(text) - 1:
        text = text[1:-1].strip()
    if re.search(r"\bor\b|\|\|", text):
        return [text] if " and " not in text and "&&" not in text else [""]
    return [part.strip() for part in re.split(r"\band\b|&&", text)]


def branch_with_header(outline, header, line):
    """Return the branch whose header is on line `header` and whose first arm contains `line`, or such a
    `while` loop, or None."""
    for node in outline.path(line):
        if node.first == header and node.kind == "branch" and outline.part(node.parts[0], line):
            return node
        loops = node.kind == "loop" and re.match(r"\W*while\b", outline.lines[header])
        if loops and node.first == header and outline.part(node, line):
            return node
    return None


def find_check(facts):
    """Return (line, element) for a load in the condition of a branch whose body contains an atomic or store
    to the same array. Return None if there is none."""
    outline, load = facts.outline, facts.of_action(LOAD)
    change = facts.of_action(ATOMIC) or facts.of_action(STORE)
    if outline is None or load is None or change is None:
        return None
    inside = branch_with_header(outline, load.line, change.line)
    names = {facts.called(row.site) for row in (facts.a, facts.b)}
    name = names.pop() if len(names) == 1 else None
    found = elements(" ".join(conjuncts(outline.lines[load.line])), name) if inside and name else []
    return (load.line, found[0]) if len(set(found)) == 1 else None
