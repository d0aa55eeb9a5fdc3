"""Conditions on the Facts about a race, which select a row of the table in sim.observers.advice_patterns."""

from sim.events import ATOMIC, LOAD, STORE
from sim.observers import fixes


def are_all_atomic(facts):
    return facts.actions == {ATOMIC}


def has_separate_views(facts):
    """Return whether the accesses write to two arrays in shared memory that overlap by mistake."""
    return facts.views and facts.space == "shared" and LOAD not in facts.actions and not facts.nested_views


def is_plain_release(facts):
    """Return whether one access is a plain store to an element that another thread polls with an atomic."""
    return facts.spins_on and facts.spins_on.kind == "atomic" and STORE in facts.actions


def is_plain_spin(facts):
    is_claim = facts.claim or facts.claim_by_calls
    return facts.spins_on and facts.spins_on.action == "load" and not is_claim


def is_outside_lock(facts):
    return facts.synchronizes and facts.outside_lock


def is_claim(facts):
    """Return whether a branch tests an element, the code in the branch stores to it, and no lock protects the
    two accesses."""
    return facts.lock is None and not facts.one_lock and facts.claim


def is_update(facts):
    """Return whether several threads read, modify and write one element.

    A thread that reads the element in a statement such as `x[0] = x[0] + v` also writes it, unless the launch
    ends first. Without an outline of the source, compare the line numbers.
    """
    if facts.update:
        line, _, read = facts.update
        in_one_statement = facts.same_line and line == read
        return facts.colliding or ATOMIC in facts.actions or in_one_statement
    return facts.colliding and facts.outline is None and (facts.same_line or reads_before(facts))


def reads_before(facts):
    """Return whether the read is on a line above the write, in the same function."""
    one, other = facts.one, facts.other
    return other.action == "load" and one.function == other.function and other.line < one.line


def is_overwritten(facts):
    """Return whether several threads store to one element, and the values do not depend on the element."""
    return facts.actions == {STORE} and facts.same_line and (not facts.in_passes or facts.barriers_in_loop)


def is_pass_of_grid(facts):
    return facts.several_blocks and facts.colliding and facts.in_passes


def is_copy_without_wait(facts):
    """Return whether one access belongs to an asynchronous copy, and no wait for the copy precedes the
    other access. If a barrier precedes the other access, the race is with a copy of another iteration."""
    waits = facts.copy_waits
    return waits and waits.is_missing and not fixes.has_barrier_between(facts)


def needs_wait(facts):
    """Return whether a thread has to wait for a message from another thread.

    A block barrier suffices for shared memory, unless the lines are inside a branch. If the writer executes a
    fence before its next atomic, the kernel already sends a message to other blocks.
    """
    sent = facts.several_blocks and facts.fenced
    without_barriers = (sent or not facts.block_barriers) and facts.space == "global"
    return facts.synchronizes and (without_barriers or facts.branch) and not facts.in_cluster


def is_in_phases(facts):
    """Return whether blocks write data in one phase of the kernel, and other blocks read it in a later phase.

    The later phase is on a line below, or in the next iteration of a loop that contains a barrier.
    """
    if not facts.several_blocks or facts.colliding or facts.actions != {STORE, LOAD}:
        return False
    if facts.branch or facts.one.function != facts.other.function:
        return False
    waits = facts.synchronizes and (facts.fenced or not facts.block_barriers)
    loop = facts.loop
    again = loop and any(loop.first <= line <= loop.last for line in facts.block_barriers)
    return not waits and (facts.one.line < facts.other.line or again)


def is_in_kernel_with_grid_barrier(facts):
    """Return whether two blocks access memory on two lines of a function that has a grid barrier, but not
    between these lines.

    Return False if the lines are in a branch, or in a loop, where either line may be executed first.
    """
    if not facts.several_blocks or facts.in_cluster or facts.same_line or not facts.in_one_function:
        return False
    return bool(
        facts.barriers and not facts.branch and not facts.loop and not fixes.has_barrier_between(facts)
    )


def is_in_loop_with_grid_barrier(facts):
    """Return whether a loop that contains a grid barrier writes data on one line, and other blocks read the
    data on another line of the loop."""
    fits = facts.several_blocks and not facts.colliding and facts.actions == {STORE, LOAD}
    if not fits or facts.branch or facts.same_line or not facts.in_one_function or facts.loop is None:
        return False
    return bool(facts.barriers_in_loop)


def is_in_one_statement(facts):
    """Return whether one statement reads and writes the element, outside of loops or in a loop with a
    barrier."""
    home = facts.outline and facts.outline.function(facts.low)
    if not facts.same_line or home is None or facts.actions != {STORE, LOAD}:
        return False
    kernel = facts.one.function == facts.kernel or "__global__" in facts.outline.lines[home.first]
    return facts.barriers_in_loop if facts.loop else kernel
