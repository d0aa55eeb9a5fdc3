"""Double-checked locks: a branch tests a flag without the lock, takes the lock, and tests the flag again.

If the flag is set, threads read the data without taking the lock. This is correct only if atomics read and
write the flag, and fences separate these atomics from the accesses to the data.
"""

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from sim.events import Step
from sim.observers.atomic_types import atomic, atomic_load, exists
from sim.observers.tickets import conjuncts


@dataclass(frozen=True)
class DoubleCheck:
    """A branch that tests `element` without a lock, and contains a branch that tests it with the lock.

    branch: the outer branch (Node).
    inner: the line of the header of the inner branch.
    store: the line in the inner branch that stores to the element.
    is_last: whether no other store to memory follows in the inner branch.
    """

    branch: Any
    inner: int
    element: str
    store: int
    is_last: bool


def find_double_check(facts):
    """Return the DoubleCheck that contains the first access, if the other access is the first test or comes
    after the branch without the lock. Return None otherwise."""
    outline, site = facts.outlines[0], facts.one
    if outline is None or not facts.lock_atomics or site.action != "store":
        return None
    branches = [node for node in outline.path(site.line) if node.kind == "branch"]
    for outer, inner in combinations(branches, 2):
        found = [(line, facts.assignment(text)) for line, text in outline.text(inner)]
        stores = [(line, one.target) for line, one in found if one and one.is_element and not one.operator]
        for line, element in stores:
            tested = all(tests(facts, outline.lines[node.first], element) for node in (outer, inner))
            if tested and follows(facts, outer):
                return DoubleCheck(outer, inner.first, element, line, stores[-1][0] == line)
    return None


def tests(facts, header, element):
    """Return whether the header of a branch tests an element."""
    name = re.search(r"\w+", element)[0]
    return element in facts.elements(" ".join(conjuncts(header)), name)


def follows(facts, branch):
    """Return whether the second access is in the header of a branch, after the branch, or in another
    function."""
    line = facts.other.line
    return facts.other.function != facts.one.function or line == branch.first or line > branch.last


def cause_of_double_check(facts):
    found = facts.double_check
    return (
        f"The double-checked lock tests {found.element} on line {found.branch.first} before it is taken, and"
        " the plain accesses to this element order nothing."
    )


def fix_of_double_check(facts):
    found, line = facts.double_check, facts.double_check.branch.first
    return (
        f"read {found.element} on lines {line} and {found.inner} by {atomic_load(facts)}, execute {{fence}}"
        f" after the branch at line {line}, and write {found.element} on line {found.store} by an atomic"
        f" ({atomic(facts, 'exchange')}) after {{fence}} and after all other writes that the lock protects"
    )


def steps_of_double_check(facts):
    """Return the Steps, if no other write has to be moved before the write to the flag."""
    found, function, branch = facts.double_check, facts.one.function, facts.double_check.branch
    fits = all(exists(facts.language, operation, facts.element_type) for operation in ("add", "exchange"))
    if not found.is_last or not fits:
        return ()
    return (
        Step("atomic", function, branch.first, "read", element=found.element),
        Step("atomic", function, found.inner, "read", element=found.element),
        Step("insert", function, branch.last, "fence", branch.first),
        Step("atomic", function, found.store, "release"),
    )
