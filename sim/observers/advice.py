"""The cause and the fix of a race: a table of patterns, chosen by facts about the two accesses.

The first row of PATTERNS that fits is used. Each row gives the sentence of the cause (if it has none, the
general one is used), the sentence of the fix, and the steps of the fix. A program can apply the steps to the
source, as tests/sim/applied.py does. A row without steps suggests what usually helps. Terms in braces are
keys of sim.observers.words, and are replaced by those of the kernel's language.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.events import ATOMIC, LOAD, STORE, Advice, Step
from sim.observers.facts import Facts
from sim.observers.words import CPP, NUMBA, WORDS

EVERY = "where every thread of the block reaches it"
# the causes where no row gives a special one
BLOCKS = "Blocks run in any order and at the same time, so either may come first."
EITHER, DEPENDS = "Either may come first.", "Either may come first, and the result depends on which."


@dataclass(frozen=True)
class Pattern:
    """A row of the table: `fits` decides whether it is used, `cause`, `fix` and `steps` word it."""

    name: str
    fits: Callable[[Facts], Any]
    fix: str | Callable[[Facts], str]
    cause: Callable[[Facts], str] | str | None = None
    steps: Callable[[Facts], tuple[Step, ...]] = lambda facts: ()


def of_race(facts: Facts) -> tuple[str, str, Advice]:
    """Return (cause, fix, Advice) for a race."""
    row = next(pattern for pattern in PATTERNS if pattern.fits(facts))
    cause = row.cause(facts) if callable(row.cause) else row.cause or general(facts)
    fix = row.fix(facts) if callable(row.fix) else row.fix
    words = WORDS.get(facts.language, WORDS[NUMBA])
    return cause, fix.format(**words), Advice(row.name, row.steps(facts))


def general(facts):
    if facts.several_blocks:
        return BLOCKS
    return EITHER if facts.replaced else DEPENDS


# --- what fits ----------------------------------------------------------------------------------------------


def all_atomic(facts):
    return facts.actions == {ATOMIC}


def written_by_two_views(facts):
    return facts.views and facts.space == "shared" and LOAD not in facts.actions


def two_views(facts):
    return facts.views


def plain_release(facts):
    """Return whether one access is a plain store to an element on which another thread spins with an
    atomic."""
    return facts.spins_on and facts.spins_on.action == "atomic" and STORE in facts.actions


def plain_spin(facts):
    return facts.spins_on and facts.spins_on.action == "load"


def lock_of_some(facts):
    return facts.synchronizes and facts.outside_lock


def updated(facts):
    """Return whether several threads read, modify and write one element. Without an outline, compare line
    numbers."""
    if facts.update:
        return facts.colliding
    return facts.colliding and facts.outline is None and (facts.same_line or reads_before(facts))


def reads_before(facts):
    """Return whether the read is on a line above that of the write."""
    one, other = facts.one, facts.other
    return other.action == "load" and one.function == other.function and other.line < one.line


def overwritten(facts):
    """Return whether several threads store to one element, and the values do not depend on the element."""
    return facts.actions == {STORE} and facts.same_line and (not facts.in_passes or facts.within)


def passes_of_the_grid(facts):
    return facts.several_blocks and facts.colliding and facts.in_passes


def awaited(facts):
    """Return whether a thread has to wait for a message of another thread. In shared memory a barrier of the
    block serves as well, unless the lines are in a branch."""
    without_barriers = not facts.block_barriers and facts.space == "global"
    return facts.synchronizes and (without_barriers or facts.branch)


def in_one_statement(facts):
    """Return whether one statement both reads and writes, in no loop or in a loop that has a barrier."""
    home = facts.outline and facts.outline.function(facts.low)
    if not facts.same_line or home is None or facts.actions != {STORE, LOAD}:
        return False
    kernel = facts.one.function == facts.kernel or "__global__" in facts.outline.lines[home.first]
    return facts.within if facts.loop else kernel


def between(facts):
    """Return whether the source has a barrier between the two lines."""
    return any(facts.low < line < facts.high for line in facts.barriers)


def needs_both(facts):
    """Return whether the two lines are in a loop without any barrier."""
    return facts.loop is not None and not facts.within


# --- fixes and steps ----------------------------------------------------------------------------------------


def moved_view(facts):
    """Return (the view that has to move, the other view, the byte at which the first one has to begin)."""
    spans = sorted(
        (*facts.span(name), site.line, name) for name, site in zip(facts.views, (facts.one, facts.other))
    )
    (_, end, _, stays), (_, _, _, moves) = spans
    return moves, stays, end


def cause_of_views(facts):
    spans = [(name, *facts.span(name)) for name in sorted(facts.views)]
    used = ", ".join(f"{name} uses bytes {first} to {end - 1}" for name, first, end in spans)
    return f"{spans[0][0]} and {spans[1][0]} are two views of the same memory: {used}."


def fix_of_written_views(facts):
    moves, stays, end = moved_view(facts)
    return (
        f"let {moves} begin at byte {end} or later, behind {stays}, and give the launch the bytes for both; a"
        " barrier would only choose which of the two writes is lost"
    )


def fix_of_views(facts):
    moves, stays, end = moved_view(facts)
    apart = f"if it is not meant that they overlap, let {moves} begin at byte {end} or later, behind {stays}"
    if facts.space == "global":
        apart = f"if one array is not meant, pass arrays that do not overlap as {stays} and {moves}"
    return f"{apart}; if it is meant, {usual(facts)}"


def usual(facts):
    """Return the general fix: another launch for a race between blocks, a barrier for one within a block."""
    if facts.several_blocks:
        return (
            "let each block write elements of its own, combine them with {atomics}, or end the kernel and"
            " launch a second one for what comes after"
        )
    return fix_of_barrier(facts)


def fix_of_barrier(facts):
    low, high = facts.low, facts.high
    again = f"behind line {high} and before the loop comes back to line {low}"
    if facts.same_line:
        return f"{{barrier}} between the passes over this line, {EVERY}"
    if facts.one.function != facts.other.function:
        return f"{{barrier}} between the two lines, {EVERY}"
    if between(facts):
        return f"one more {{barrier}}, {again}, {EVERY}"
    if needs_both(facts):
        return f"{{barrier}} between the two lines, and one more {again}, {EVERY}"
    return f"{{barrier}} between the two lines, {EVERY}"


def insert(facts, node, what):
    """Return the Steps that insert `what` after a Node of the outline: one, or none if there is no Node."""
    return () if node is None else (Step("insert", facts.one.function, node.last, what, node.first),)


def steps_of_barrier(facts, what="barrier"):
    outline, low, high, loop = facts.outline, facts.low, facts.high, facts.loop
    if outline is None:
        return ()
    last = loop and outline.part(loop, high)
    behind = insert(facts, last, what) if last and outline.all_reach_end(last) else ()
    if facts.same_line or between(facts):
        return behind
    first = insert(facts, outline.after(low, high), what)
    return first + behind if first and loop is not None and needs_both(facts) else first


def after_line(facts, line, what):
    return insert(facts, facts.outline and facts.outline.innermost(line), what)


def fix_of_arms(facts):
    return (
        f"{{barrier}} between the two arms of the branch at line {facts.branch.first}, outside of both: end"
        " the branch after the arm that must come first, let every thread of the block reach the barrier, and"
        " test again for the other arm"
    )


def fix_of_fence(facts):
    return f"{{fence}} between this write and the atomic that tells of it{reach(facts)}"


def reach(facts):
    return "; {fence_of_block} is for threads of one block only" if facts.several_blocks else ""


def fix_of_lock(facts):
    (site,) = facts.outside_lock
    first, last = facts.lock
    later = "{barrier}, " + EVERY
    if facts.several_blocks:
        later = "the end of the kernel, in a second launch"
    return (
        f"hold the lock on line {site.line} too (it protects lines {first} to {last}), or let that line come"
        f" after {later}"
    )


def steps_of_lock(facts):
    (site,) = facts.outside_lock
    if site.line < facts.lock[0]:
        return ()
    release = facts.lock[1] + 1
    what = "grid barrier" if facts.several_blocks else "barrier"
    return insert(facts, facts.outline.after(release, site.line), what)


def fix_of_update(facts):
    lock = ", or let all hold one lock of atomics" if facts.synchronizes else ""
    return (
        "{an_atomic}, or let each thread write an element of its own, or let one thread do it for all" + lock
    )


def steps_of_update(facts):
    if not facts.is_one_atomic or facts.language not in (NUMBA, CPP):
        return ()
    line, _, read = facts.update
    return (Step("atomic", facts.one.function, line, "update", read),)


def fix_of_passes(facts):
    first = facts.loop.first
    return (
        f"end the kernel after each iteration of the loop at line {first} and launch it again for the next,"
        " or let all blocks meet there: {grid_barrier}; an atomic would not put the iterations in order"
    )


def steps_of_passes(facts):
    return steps_of_barrier(facts, "grid barrier")


def fix_of_waiting(facts):
    last = "; or end the kernel and launch a second one for what comes after" if facts.several_blocks else ""
    return (
        "let one of them wait for an atomic that the other does behind it, after {fence}, or let both hold"
        f" one lock of atomics{last}"
    )


def steps_of_usual(facts):
    """Return the steps of the general fix. Between blocks, a grid barrier marks where the kernel could be
    split."""
    if facts.several_blocks and (facts.same_line or facts.branch):
        return ()
    return steps_of_barrier(facts, "grid barrier" if facts.several_blocks else "barrier")


# --- the table ----------------------------------------------------------------------------------------------

PATTERNS = (
    Pattern(
        "equal writes",
        lambda facts: facts.equal,
        "let one thread write it; or, if it is meant, simulate with observers that include"
        " Races(allow_equal_writes=True)",
        "Both write the same value, so the result is the same whichever comes last.",
    ),
    Pattern(
        "scope of a block",
        lambda facts: facts.scoped,
        "the scope of the whole device: .gpu, or the function without _block in its name",
        "The scope of one is its own block (.cta), so that towards other blocks it is not atomic.",
    ),
    Pattern(
        "atomics of two widths",
        all_atomic,
        "let both work on one array of one dtype, or on bytes of their own",
        "Each is atomic, but their elements overlap without being the same, and such atomics are not atomic"
        " towards each other.",
    ),
    Pattern(
        "overlapping views",
        written_by_two_views,
        fix_of_written_views,
        cause_of_views,
        lambda facts: (Step("widen", facts.one.function, 0, *moved_view(facts)[::2]),),
    ),
    Pattern(
        "compare-and-swap loop",
        lambda facts: facts.taken_before,
        lambda facts: (
            f"take the value on line {facts.taken_before.line} by an atomic too ({{add}} of 0): the loop's"
            " {swap} changes the element while it is read"
        ),
        steps=lambda facts: (Step("atomic", facts.taken_before.function, facts.taken_before.line, "read"),),
    ),
    Pattern(
        "spin by plain reads",
        plain_spin,
        "read the element on which the loop waits by an atomic ({add} of 0) and write it by one ({exchange}),"
        " after {fence}",
    ),
    Pattern(
        "release by a plain store",
        plain_release,
        "write it by an atomic too ({exchange}, or {add} for +=), after {fence}: other threads wait for it by"
        " atomics",
        steps=lambda facts: (
            (Step("atomic", facts.one.function, facts.one.line, "store"),) if not facts.update else ()
        ),
    ),
    Pattern(
        "lock without fences",
        lambda facts: facts.lacks_fence and facts.colliding,
        "{fence} after the atomic that takes the lock, and again before the atomic that gives it back",
        steps=lambda facts: lock_fences(facts),
    ),
    Pattern(
        "message handed on without a fence",
        lambda facts: facts.lacks_fence and facts.fenced,
        lambda facts: (
            "{fence} in the threads that hand the message on, between the atomic that they wait for and"
            f" their own: the writer has its fence{reach(facts)}"
        ),
        steps=lambda facts: tuple(
            Step("before", facts.one.function, line, "fence") for line in facts.handing_on
        ),
    ),
    Pattern(
        "message without a fence",
        lambda facts: facts.lacks_fence,
        fix_of_fence,
        steps=lambda facts: after_line(facts, facts.one.line, "fence"),
    ),
    Pattern("outside the lock", lock_of_some, fix_of_lock, steps=steps_of_lock),
    Pattern("update", updated, fix_of_update, steps=steps_of_update),
    Pattern(
        "overwritten",
        overwritten,
        "let each thread write an element of its own, or let one thread do it for all",
    ),
    Pattern("passes of the grid", passes_of_the_grid, fix_of_passes, steps=steps_of_passes),
    Pattern("views that are read", two_views, fix_of_views, cause_of_views, steps_of_usual),
    Pattern(
        "fence of one thread",
        lambda facts: facts.fenced_by_one,
        lambda facts: (
            f"{{barrier}} between line {facts.one.line} and the fence on line {facts.fenced_by_one}, {EVERY}:"
            " what other threads of the block wrote is behind that fence only if a barrier comes first"
        ),
        steps=lambda facts: after_line(facts, facts.one.line, "barrier"),
    ),
    Pattern("message", awaited, fix_of_waiting),
    Pattern("two blocks", lambda facts: facts.several_blocks, usual, steps=steps_of_usual),
    Pattern(
        "opposite arms",
        lambda facts: facts.branch,
        fix_of_arms,
        steps=lambda facts: (Step("split", facts.one.function, facts.branch.first, "branch"),),
    ),
    Pattern(
        "one statement",
        in_one_statement,
        lambda facts: (
            f"split line {facts.one.line}: read into a variable, then {{barrier}}, {EVERY}, then write"
        ),
        steps=lambda facts: (Step("split", facts.one.function, facts.one.line, "barrier"),),
    ),
    Pattern("barrier", lambda facts: True, fix_of_barrier, steps=steps_of_barrier),
)


def lock_fences(facts):
    if facts.lock is None:
        return ()
    first, last = facts.lock
    return insert(facts, facts.outline.loop(first - 1), "fence") + after_line(facts, last, "fence")
