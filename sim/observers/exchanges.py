"""Exchanges: a thread reads an element, and then stores a new value that does not depend on the old one.

A kernel that executes `old = heads[c]` and later `heads[c] = i` appends to a list or claims an entry. Without
an atomic, two threads can read the same old value. An atomic exchange reads and writes in one step.
"""

import re
from dataclasses import dataclass

from sim.events import LOAD, STORE
from sim.observers.statements import arguments, assignment, elements, mentions, statement
from sim.observers.tickets import BARRIER, index, is_unchanged


@dataclass(frozen=True)
class Exchange:
    """A read of `element` on line `read`, and the store of `value` on line `line`.

    old: the variable to which the old value is assigned, or None if the line uses the value differently.
    value_is_known: whether `value` is computed before line `read`, so that an exchange can take place there.
    """

    line: int
    read: int
    element: str
    value: str
    old: str | None
    value_is_known: bool


def find_exchange(facts):
    """Return the Exchange to which both accesses belong, or None."""
    outline = facts.outline
    store = facts.of_action(STORE)
    if outline is None or store is None or not facts.colliding:
        return None
    if swapped := swap_with_variable(facts, store):
        return swapped
    found = facts.assignment(facts.statement(store))
    if found is None or not found.is_element or found.operator or mentions(found.value, found.name):
        return None
    lines = {site.line for site in facts.reads if site.function == store.function}
    load = facts.of_action(LOAD)
    if len(lines) != 1 or (load and load.function != store.function):
        return None
    (read,) = lines
    if not follows(outline, read, store.line) or found.target not in facts.elements(
        value_of(outline.lines[read]), found.name
    ):
        return None
    first = read + 1 if assignment(outline.lines[read]) else read
    stays = is_unchanged(outline, read, store.line, index(found.target), found.target.strip("*"))
    if not stays or not is_unchanged(outline, read, first, found.value):
        return None
    taken = assignment(outline.lines[read])
    copied = taken is not None and not taken.is_element and taken.value.strip("()") == found.target
    known = is_unchanged(outline, read, store.line, found.value)
    return Exchange(store.line, read, found.target, found.value, taken.name if copied else None, known)


def follows(outline, read, line):
    """Return whether each thread that executes line `read` executes `line` after it, without a barrier
    between them."""
    if read >= line:
        return False
    one, other = outline.innermost(read), outline.innermost(line)
    same = outline.holders(one, outline.root)[-1] is outline.holders(other, outline.root)[-1]
    between = (outline.lines[number] for number in range(read, line))
    return same and not any(BARRIER.search(text) for text in between)


def value_of(text):
    """Return the part of a line that is evaluated: the line without the element to which it stores."""
    found = assignment(text)
    return found.value if found else statement(text)


def swap_with_variable(facts, store):
    """Return the Exchange in a swap such as `mine, x[i] = x[i], mine`, or None."""
    found = re.fullmatch(r"(.+?[^=!<>])=([^=].*)", facts.statement(store))
    targets, values = (arguments(side.strip()) for side in found.groups()) if found else ((), ())
    if len(targets) != 2 or targets != values[::-1]:
        return None
    variable = next((name for name in targets if re.fullmatch(r"\w+", name)), None)
    element = next((name for name in targets if name != variable and "[" in name), None)
    name = element and re.match(r"\w+", element)
    if variable is None or not name or elements(element, name[0]) != [element]:
        return None
    return Exchange(store.line, store.line, element, variable, variable, True)
