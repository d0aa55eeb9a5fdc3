"""The fixes for races by atomics, fences and locks, as sentences and as steps that a program can apply.

Terms in braces are keys of sim.observers.words.
"""

import re

from sim.events import ATOMIC, Step
from sim.observers import tickets
from sim.observers.atomic_types import OPERATIONS, atomic, atomic_load, exists
from sim.observers.fixes import EVERY, barrier_for, insertion_after_line, insertion_steps
from sim.observers.statements import SUM_CALL, assignment, atomic_target
from sim.observers.words import NUMBA, TRITON


def cause_of_release(facts):
    release = facts.release
    if release.store in (facts.one, facts.other):
        return "The plain store releases a lock that other threads take by atomics, but it orders nothing."
    what = "releases the lock" if release.is_lock else "sets the flag"
    return f"The plain store on {facts.line_of(release.store)} {what}, but it orders nothing."


def fix_of_release(facts):
    release = facts.release
    before, after = facts.fences_of_release
    fences = " before it" * (not before) + " and" * (not before and not after)
    fences += f" after the atomic on {facts.line_of(release.acquire)}" * (not after)
    place = f"{{exchange}} in place of the plain store on {facts.line_of(release.store)}"
    return f"{place}{f', and {{fence}}{fences}' if fences else ''}"


def steps_of_release(facts):
    store = facts.release.store
    return (Step("atomic", store.function, store.line, "store"),)


def fix_of_fence(facts):
    return f"{{fence}} between this write and the atomic that signals it{reach_note(facts)}"


def reach_note(facts):
    if facts.near != 0:
        return ""
    return "; {fence_of_block} is not enough, because it orders the write only for threads of the same block"


def fix_of_lock(facts):
    (site,) = facts.outside_lock
    first, last = facts.lock
    later = "{barrier}, " + EVERY
    if facts.several_blocks:
        later = "the end of the kernel, in a second launch"
    return (
        f"hold the lock on line {site.line} too (it protects lines {first} to {last}), or execute line"
        f" {site.line} only after {later}"
    )


def steps_of_lock(facts):
    (site,) = facts.outside_lock
    # The caller of a device function may call it in a branch. The barrier would then have to be outside of
    # this branch.
    if site.line < facts.lock[0] or site.function != facts.kernel:
        return ()
    release = facts.lock[1] + 1
    return insertion_steps(facts, facts.outline.after(release, site.line), barrier_for(facts))


def fix_of_update(facts):
    if facts.operation and facts.update[0] != facts.update[2]:
        return fix_of_divided_update(facts)
    found = atomic_of_update(facts)
    if found == "{add}" and not (facts.update and SUM_CALL.match(facts.update[1].value)):
        found = "{an_atomic}"
    elif "in a loop" not in found and not found.startswith(("a lock", "an atomic")):
        found = f"one atomic, {found}"
    # Without an atomic for the operation, a lock is simpler than a loop.
    lacks_atomic = facts.update and not facts.operation and not found.startswith("a lock")
    lock = ", or let all threads hold the same lock" if facts.synchronizes or lacks_atomic else ""
    found += of_field(facts)
    return f"{found}, or let each thread write an element of its own, or let one thread do it for all" + lock


def of_field(facts):
    """Return " on s->n" if the `update` changes a field of a structure or record, else ""."""
    target = facts.update[1].target if facts.update else ""
    if facts.language == NUMBA:
        place = atomic_target(target)
        return f" on {place[0]} at {place[1]}" if place and place[0].endswith("]") else ""
    return f" on {target}" if re.search(r"(?:\.|->)\w+$", target) else ""


def atomic_of_update(facts):
    """Return the term for the atomic that performs the `update`. If the source does not show the update,
    return the term for an addition."""
    return atomic(facts, OPERATIONS.get(facts.operation) if facts.update else "add")


def fix_of_divided_update(facts):
    """Return the fix for an update divided into two lines: `k = x[i]`, and later `x[i] = k + 1`."""
    line, found, read = facts.update
    taken = assignment(facts.outline.lines[read]) if facts.outline else None
    name = taken.name if taken else "the variable"
    return (
        f"replace the read of {found.target} on line {read} and the write on line {line} with one atomic,"
        f" {atomic_of_update(facts)}, on line {read}, and assign the old value that it returns to {name}"
    )


def steps_of_update(facts):
    if not facts.update or facts.language == TRITON:
        return ()
    line, _, read = facts.update
    what, operation = "update", OPERATIONS.get(facts.operation, "swap")
    if not facts.operation:
        what = "swap loop"
        if line != read:
            return ()
    fits = exists(facts.language, operation, facts.element_type)
    return (Step("atomic", facts.one.function, line, what, read),) if fits else ()


def steps_of_first_value(facts):
    site = facts.plain_read_before_swap
    element = facts.element_at(site)
    fits = element and exists(facts.language, "add", facts.element_type)
    return (Step("atomic", site.function, site.line, "read", element=element),) if fits else ()


def fix_of_ticket(facts):
    found = facts.ticket
    where = f"in place of line {found.line}"
    if found.first < found.line:
        where = f"before line {found.first}, and delete line {found.line}"
    uses = "; ".join(use_of_old_value(facts.outline.lines[line], line, found) for line in found.reads)
    by = atomic(facts, OPERATIONS[found.added[0]])
    return f"execute one atomic ({by}), which returns the old value, {where}; {uses}"


def use_of_old_value(text, line, found):
    """Return the advice for a line that reads the counter of a Ticket (sim.observers.tickets)."""
    taken_back = tickets.text_before_addition(found.element, *found.added.split(" ", 1))
    if line > found.line and taken_back in text:
        return f"on line {line}, replace {taken_back} with the old value"
    return (
        f"on line {line}, replace {found.element} with the old value{f' {found.added}' * (line > found.line)}"
    )


def steps_of_ticket(facts):
    found = facts.ticket
    change = Step("atomic", facts.one.function, found.line, "ticket", found.first, found.element)
    reads = (
        Step("atomic", facts.one.function, line, "returned", found.line, found.element)
        for line in found.reads
    )
    return (change, *reads)


def fix_of_claim(facts):
    found = facts.claim
    how = atomic(facts, "swap" if found.operation == "cas" else found.operation)
    done = "" if found.line == found.header else f" and delete line {found.line}"
    if found.copied:
        return (
            f"compare and write {found.element} by one atomic, {how}, in place of {found.copied} in line"
            f" {found.header} and of the store on line {found.line}"
        )
    if found.repeats:
        return (
            f"compare and write {found.element} by one atomic, {how}, in place of the loop at line"
            f" {found.header}: another thread can write between a test and the store"
        )
    return (
        f"compare and write {found.element} by one atomic, {how}, on line {found.header}: let the branch test"
        f" the old value that it returns{done}"
    )


def fix_of_claim_by_calls(facts):
    calls = facts.calls
    lines = f"line {calls.low}" if calls.low == calls.high else f"lines {calls.low} and {calls.high}"
    return (
        "test and write the element by one atomic ({max}, {min} or {swap}) in place of the two calls on"
        f" {lines}{calls.place}: another thread can write between the test and the store"
    )


def fix_of_exchange(facts):
    found = facts.swapped
    by = f"one atomic, {atomic(facts, 'exchange')}, "
    use = "and assign the old value that it returns to "
    use += found.old or f"a variable, which replaces {found.element}"
    if found.read == found.line:
        return f"read and write {found.element} with {by}on line {found.line}, {use}"
    place = f"on line {found.line}"
    if found.value_is_known:
        place = f"on line {found.read}" if found.old else f"before line {found.read}"
    return (
        f"replace the read of {found.element} on line {found.read} and the write on line {found.line} with"
        f" {by}{place}, {use}"
    )


def steps_of_exchange(facts):
    found = facts.swapped
    known = found.value_is_known and facts.language == NUMBA
    if not known or not exists(NUMBA, "exchange", facts.element_type):
        return ()
    return (Step("atomic", facts.one.function, found.line, "exchange", found.read, found.element),)


def steps_of_claim(facts):
    found = facts.claim
    operation = "swap" if found.operation == "cas" else found.operation
    if found.copied or not exists(facts.language, operation, facts.element_type):
        return ()
    return (Step("atomic", facts.one.function, found.line, found.operation, found.header, found.element),)


def fix_of_check(facts):
    line, element = facts.check
    change = facts.one if facts.other.line == line else facts.other
    by = (
        ""
        if change.kind == "atomic"
        else f", and write it on line {change.line} by another ({atomic(facts, 'exchange')})"
    )
    return (
        f"read {element} on line {line} by {atomic_load(facts)}{by}, if the kernel is correct with the"
        " old and with the new value"
    )


def steps_of_check(facts):
    line, element = facts.check
    if ATOMIC not in facts.actions or not exists(facts.language, "add", facts.element_type):
        return ()
    return (Step("atomic", facts.one.function, line, "read", line, element),)


def fix_of_lock_fences(facts):
    take = give = ""
    if facts.lock_atomics:
        take, give = (f" on {facts.line_of(site)}" for site in facts.lock_atomics)
    return (
        f"{{fence}} after the atomic that takes the lock{take}, and again before the atomic that releases"
        f" it{give}"
    )


def lock_fences(facts):
    if facts.lock is None:
        return steps_of_lock_in_functions(facts)
    first, last = facts.lock
    return insertion_steps(facts, facts.outline.loop(first - 1), "fence") + insertion_after_line(
        facts, last, "fence"
    )


def steps_of_lock_in_functions(facts):
    """Return the Steps that insert the fences in the functions that take and release a lock."""
    take, give = facts.lock_atomics or (None, None)
    outline = take and facts.outline_of(take)
    loop = outline and outline.loop(take.line)
    if loop is None:
        return ()
    return (
        Step("insert", take.function, loop.last, "fence", loop.first),
        Step("before", give.function, give.line, "fence"),
    )
