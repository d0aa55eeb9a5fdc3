"""Flags that announce data of another block, and that a branch tests once instead of waiting in a loop.

One thread writes data and then a flag. Another thread reads the data if the flag is set. This is correct only
if atomics write and read the flag, if fences separate these atomics from the accesses to the data, and if the
kernel is also correct while the flag is not set.
"""

import re
from dataclasses import dataclass

from sim.events import ATOMIC, LOAD, STORE, Step
from sim.observers.atomic_types import atomic, atomic_load, exists
from sim.observers.statements import (
    ATOMIC_CALL,
    CONDITIONAL,
    FENCE,
    after_brackets,
    assignment,
    elements,
    inside_brackets,
    mentions,
    statements,
)
from sim.observers.tickets import HEADER
from sim.observers.words import NUMBA


@dataclass(frozen=True)
class Signal:
    """A flag that one branch tests, and the data that it announces.

    element: the text of the flag.
    data: the lines before the line `store` that write data.
    store: the line that writes the flag.
    read: the line that reads the flag. Its result decides whether the lines `uses` read the data.
    """

    element: str
    data: tuple[int, ...]
    store: int
    read: int
    uses: tuple[int, ...]


def find_signal(facts):
    """Return the Signal to which two accesses of different blocks belong, or None."""
    outline, load = facts.outline, facts.of_action(LOAD)
    change = facts.of_action(STORE) or facts.of_action(ATOMIC)
    if outline is None or not facts.several_blocks or facts.colliding or None in (load, change):
        return None
    home = outline.function(facts.low)
    lines = [(number, text) for number, line in outline.text(home)[1:] for _, text in statements(line)]
    whole = "\n".join(text for _, text in lines)
    written = [
        (number, name)
        for number, text in lines
        for name in written_arrays(facts, text)
        if not re.search(rf"\b{name}\s*=.*\bshared\b|\b__shared__\b.*\b{name}\b", whole)
    ]
    tests = tests_of(outline, home)
    for store, name in written:
        for read, condition, region in tests:
            found = elements(condition, name)
            # If the write and the test are in different arms of a branch, different threads execute them.
            if len(set(found)) != 1 or store in region or not outline.apart(read, store):
                continue
            data, uses = announced(outline, written, store, name, region)
            of_flag = (change.line, load.line) == (store, read)
            if data and (of_flag or change.line in data and load.line in uses):
                return Signal(found[0], data, store, read, uses)
    return None


def announced(outline, written, store, flag, region):
    """Return (lines, lines): those that write data before the flag, and those that read it in a region.

    written: (line, name of the array) for all writes of the function.
    store: the line that writes the flag.
    flag: the name of the flag.
    region: {line: text} that a test of the flag decides to execute.
    """
    before = [
        (line, name)
        for line, name in written
        if line < store and name != flag and not outline.branch(line, store) and line not in region
    ]
    reads = {name: [line for line, text in region.items() if reads_name(text, name)] for _, name in before}
    data = tuple(sorted({line for line, name in before if reads[name]}))
    return data, tuple(sorted({line for lines in reads.values() for line in lines}))


def reads_name(text, name):
    """Return whether a line reads an element of `name`."""
    found = assignment(text)
    if found is not None and found.is_element and not found.operator:
        text = found.value + found.target[len(found.name) :]
    return mentions(text, name)


def written_arrays(facts, text):
    """Return [name] for the array to which a statement writes, plainly or by an atomic, else []."""
    found, call = facts.assignment(text), ATOMIC_CALL.search(text)
    if found is not None and found.is_element:
        return [found.name]
    return [call[1]] if call else []


def tests_of(outline, home):
    """Return (line, condition, region) for the tests of a function that no loop repeats until they succeed.

    line: the line that reads the elements of the condition.
    region: {line: text} of the lines that are executed only for one result of the test.
    """
    found = []
    for node in branches(home):
        header = HEADER.match(outline.lines[node.first].strip())
        if header is None:
            continue
        condition, rest = condition_of(header[1])
        region = {number: text for number, text in outline.text(node) if number > node.first}
        if rest.strip("{ "):
            region[node.first] = rest
        if outline.ends(node) or leaves_early(node):
            region |= {n: text for n, text in outline.text(home) if n > node.last}
        found.append((node.first, condition, region))
        found += [(line, value, region) for line, value in copies_of(outline, home, node.first, condition)]
    for number, line in outline.text(home):
        for _, text in statements(line):
            one = assignment(text)
            chosen = CONDITIONAL.fullmatch(one.value) if one else None
            if chosen:
                parts = chosen.groupdict()
                test = (parts["test"] or parts["test2"]).strip()
                either = f"{parts['then'] or parts['then2']}; {parts['other'] or parts['other2']}"
                found.append((number, test, {number: either}))
    return found


def branches(node):
    """Return the branches in a Node of an outline."""
    inner = [found for part in node.parts for found in branches(part)]
    return [node, *inner] if node.kind == "branch" else inner


def leaves_early(node):
    """Return whether the first arm of a branch ends with `break`, `continue` or `return`."""
    parts = node.parts[0].parts if node.parts else []
    while parts and parts[-1].kind == "statement" and parts[-1].parts:  # a block in braces
        parts = parts[-1].parts
    return bool(parts) and parts[-1].kind in ("return", "leave")


def condition_of(text):
    """Return (the condition of a branch, the rest of the line) for the text after `if`."""
    text = re.sub(r"\s//.*$|\s#.*$", "", text).strip()
    if text.startswith("("):
        return inside_brackets(text), after_brackets(text)
    condition, _, rest = text.partition(":")
    return condition, rest


def copies_of(outline, home, line, condition):
    """Return [(line, value)] for the assignments above a line of the variables in a condition."""
    found = []
    for number, text in outline.text(home):
        for _, one in statements(text) if number < line else ():
            copied = assignment(one)
            if copied and not copied.is_element and mentions(condition, copied.name):
                found.append((number, copied.value))
    return found


# --- advice -------------------------------------------------------------------------------------------------


def has_fence(facts, first, last):
    """Return whether a line from `first` to `last` contains a fence."""
    return any(FENCE.search(facts.outline.lines[line]) for line in range(first, last + 1))


def is_atomic(facts, line):
    return ATOMIC_CALL.search(facts.outline.lines[line]) is not None


def is_race_on_flag(facts):
    return {facts.one.line, facts.other.line} == {facts.signal.store, facts.signal.read}


def cause_of_signal(facts):
    found, why = facts.signal, "its atomics lack a fence, or their scope is too small"
    if not (is_atomic(facts, found.store) and is_atomic(facts, found.read)):
        why = "plain accesses to it do not order other accesses"
    return (
        f"{found.element} announces the data that line {found.data[-1]} writes, but {why}, and the test on"
        f" line {found.read} does not wait for it."
    )


def fix_of_signal(facts):
    found, on_flag, edits = facts.signal, is_race_on_flag(facts), []
    fence_before, fence_after = fences(facts)
    if not is_atomic(facts, found.store):
        by = f" ({atomic(facts, 'exchange')})" if on_flag else ""
        after = "" if fence_before else " after {fence}"
        edits.append(f"write {found.element} on line {found.store} by an atomic{by}{after}")
    elif not fence_before:
        edits.append(f"execute {{fence}} before the atomic on line {found.store}")
    if not is_atomic(facts, found.read):
        by = atomic_load(facts) if on_flag else "an atomic"
        edits.append(f"read {found.element} on line {found.read} by {by}")
    if not fence_after:
        edits.append(f"execute {{fence}} between this read and the read of the data on line {found.uses[0]}")
    *first, last = edits or ["let both atomics have the scope of the whole device"]
    return (
        f"{', '.join(first)}{', and ' * bool(first)}{last}. The kernel must then be correct even if the flag"
        " is not set yet, because the test does not wait; otherwise, end the kernel and launch a second one"
        " for what comes after the test"
    )


def fences(facts):
    """Return whether the source has a fence between the writes of the data and of the flag, and one between
    the reads of the flag and of the data."""
    found = facts.signal
    return has_fence(facts, found.data[-1] + 1, found.store), has_fence(facts, found.read, found.uses[0])


def steps_of_signal(facts):
    found = facts.signal
    fits = all(exists(facts.language, operation, facts.element_type) for operation in ("add", "exchange"))
    simple = facts.language == NUMBA and is_race_on_flag(facts) and found.uses[0] > found.read
    if not fits or not simple or is_atomic(facts, found.store) or is_atomic(facts, found.read):
        return ()
    function, (fence_before, fence_after) = facts.one.function, fences(facts)
    steps = (
        Step("atomic", function, found.read, "read", found.read, found.element),
        Step("atomic", function, found.store, "store" if fence_before else "release"),
    )
    return steps if fence_after else (*steps, Step("before", function, found.uses[0], "fence"))
