"""The cause and the fix of a race. A table of patterns selects them by facts about the two accesses.

The first row of PATTERNS that fits is used. A row consists of a sentence for the cause, a sentence for the
fix, and the steps of the fix. If a row has no sentence for the cause, a general one is used. Some rows have
no steps. Most of the fixes are in sim.observers.fixes and sim.observers.atomic_fixes. A program can apply the
steps to the source, as tests/sim/applied.py does. Terms in braces are keys of sim.observers.words. They are
replaced by the terms of the kernel's language.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.events import ATOMIC, LOAD, STORE, Advice, Step
from sim.observers import atomic_fixes as atomics
from sim.observers import fixes
from sim.observers.facts import Facts
from sim.observers.mbarrier_arms import fix_of_mbarriers
from sim.observers.words import NUMBA, WORDS

# The causes for rows that do not have a cause of their own.
BLOCKS = "Blocks run in any order and at the same time, so either may come first."
CLUSTER = "The blocks of a cluster run at the same time, so either may come first."
EITHER, DEPENDS = "Either may come first.", "Either may come first, and the result depends on which."


# The last part of a fix that inserts a cluster barrier.
REMOTE_ARRIVAL = (
    "; or let the thread that must come first arrive at an mbarrier in the block of the other thread (mapa,"
    " mbarrier.arrive.release.cluster), let the other thread wait there, and initialise this mbarrier for the"
    " arrivals of all blocks"
)

RELAXED = (
    "The arrival between the two is relaxed, or its scope is the block, so it orders no accesses to memory of"
    " the cluster."
)
RELEASE = "arrive with .release and wait with .acquire, in the scope of the cluster"
INIT_FENCE = (
    "let the thread that initialises the mbarrier execute fence.mbarrier_init.release.cluster before it"
    " arrives (cutlass::arch::fence_barrier_init), or "
)

# The patterns of races that a divergence can cause.
DIVERGED = "barrier that some threads miss", "mask of some lanes", "named barrier"


@dataclass(frozen=True)
class Pattern:
    """A row of the table of race patterns.

    fits: a function that returns whether the row applies.
    fix, cause, steps: texts of the advice, or functions that produce it.
    """

    name: str
    fits: Callable[[Facts], Any]
    fix: str | Callable[[Facts], str]
    cause: Callable[[Facts], str] | str | None = None
    steps: Callable[[Facts], tuple[Step, ...]] = lambda facts: ()


def of_race(facts: Facts) -> tuple[str, str, Advice]:
    """Return (sentence for the cause, sentence for the fix, Advice) for a race.

    The patterns read arbitrary source text. If one of them fails, the race still has to be reported. The
    advice is then general, and a RuntimeWarning names the error.
    """
    try:
        return by_pattern(facts, PATTERNS)
    except Exception as error:
        warnings.warn(
            f"the fix of a race is general, because {error!r} prevented a specific one", stacklevel=2
        )
        return by_pattern(facts, [GENERAL])


def by_pattern(facts, patterns):
    """Return the result of `of_race` from the first pattern that fits."""
    row = next(pattern for pattern in patterns if pattern.fits(facts))
    cause = row.cause(facts) if callable(row.cause) else row.cause or general_cause(facts)
    fix = row.fix(facts) if callable(row.fix) else row.fix
    words = {**WORDS.get(facts.language, WORDS[NUMBA]), "everyone": "every thread of the block"}
    if facts.named:
        words |= {
            "barrier": "bar.sync {}, {}".format(*facts.named) + fixes.called_on(facts),
            "everyone": fixes.CALLERS.format(facts.named[1]),
        }
    if facts.in_cluster:
        words |= {
            "barrier": words["cluster_barrier"],
            "everyone": "every thread of all blocks of the cluster",
        }
        fix += REMOTE_ARRIVAL if "{barrier}" in fix else ""
    return (
        cause.format(**words),
        fix.format(**words),
        Advice(row.name, fixes.applicable_steps(facts, row.steps(facts))),
    )


def general_cause(facts):
    if facts.in_cluster:
        return CLUSTER
    if facts.several_blocks:
        return BLOCKS
    return EITHER if facts.replaced else DEPENDS


# --- conditions ---------------------------------------------------------------------------------------------


def are_all_atomic(facts):
    return facts.actions == {ATOMIC}


def has_separate_views(facts):
    """Return whether the accesses write to two arrays in shared memory that overlap by mistake."""
    return facts.views and facts.space == "shared" and LOAD not in facts.actions and not facts.nested_views


def is_plain_release(facts):
    """Return whether one access is a plain store to an element that another thread polls with an atomic."""
    return facts.spins_on and facts.spins_on.action == "atomic" and STORE in facts.actions


def is_plain_spin(facts):
    return facts.spins_on and facts.spins_on.action == "load" and not facts.claim


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


def needs_wait(facts):
    """Return whether a thread has to wait for a message from another thread.

    A block barrier suffices for shared memory, unless the lines are inside a branch. If the writer executes a
    fence before its next atomic, the kernel already sends a message to other blocks.
    """
    sent = facts.several_blocks and facts.fenced
    without_barriers = (sent or not facts.block_barriers) and facts.space == "global"
    return facts.synchronizes and (without_barriers or facts.branch) and not facts.in_cluster


def is_in_phases(facts):
    """Return whether blocks write data in one phase of the kernel that other blocks read in a later phase.

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
    """Return whether blocks write data that other blocks read, on another line of the same loop, and the loop
    contains a grid barrier."""
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


# --- the table ----------------------------------------------------------------------------------------------

PATTERNS = (
    Pattern(
        "equal writes",
        lambda facts: facts.equal,
        "let one thread write it; or, if all are meant to write it, simulate with observers that include"
        " Races(allow_equal_writes=True)",
        "Both write the same value, so the result is the same whichever comes last.",
    ),
    Pattern(
        "scope of a block",
        lambda facts: facts.exceeds_scope,
        "use the scope of the whole device: .gpu, or the function without _block in its name",
        "One of the two atomics has the scope of its own block (.cta): only threads of this block see it as"
        " atomic, and the other access is in another block.",
    ),
    Pattern(
        "relaxed arrival",
        lambda facts: facts.relaxed,
        lambda facts: f"{INIT_FENCE * facts.initialises}{RELEASE}",
        RELAXED,
    ),
    Pattern(
        "atomics of two widths",
        are_all_atomic,
        "let both atomics use one array with one dtype, or let them access bytes that do not overlap",
        "Both accesses are atomics, but their elements overlap and differ in address or size. A GPU may"
        " interleave such atomics, so that an update is lost.",
    ),
    Pattern(
        "statements of one line",
        lambda facts: facts.statements_of_line,
        fixes.fix_of_statements,
        steps=lambda facts: (Step("separate", facts.one.function, facts.low, "statements"),),
    ),
    Pattern(
        "step in an expression",
        lambda facts: facts.stepped,
        lambda facts: (
            f"{{add}} of {facts.stepped[2].strip('+')}1 in place of {facts.stepped[0]} on line {facts.low}:"
            " one atomic, which returns the old value"
        ),
        f"{DEPENDS[:-1]}: several threads take the same value.",
    ),
    Pattern(
        "overlapping views",
        has_separate_views,
        fixes.fix_of_written_views,
        fixes.cause_of_views,
        lambda facts: (Step("widen", facts.one.function, 0, *fixes.moved_view(facts)[::2]),),
    ),
    Pattern(
        DIVERGED[0],
        lambda facts: facts.missed_barrier,
        fixes.fix_of_missed_barrier,
        lambda facts: (
            f"{{barrier}} on line {facts.missed_barrier} would order them, but not all threads of the block"
            " reach it."
        ),
        fixes.steps_of_missed_barrier,
    ),
    Pattern(
        DIVERGED[2],
        lambda facts: facts.incomplete_named_barrier,
        lambda facts: (
            f"correct the barrier on line {facts.incomplete_named_barrier} first, as its finding says"
        ),
        lambda facts: (
            f"The named barrier on line {facts.incomplete_named_barrier} would order them, but its arrivals"
            " do not match."
        ),
    ),
    Pattern(
        "too few buffers",
        lambda facts: facts.buffers,
        fixes.fix_of_buffers,
        lambda facts: f"{facts.buffers[0]} is filled again while other threads still read it.",
        fixes.steps_of_buffers,
    ),
    Pattern(
        "exchanged by both",
        lambda facts: facts.exchange,
        lambda facts: (
            f"let one of the two threads exchange them: if ({facts.exchange[0]}) < ({facts.exchange[1]})"
        ),
        "Both threads exchange the same two elements.",
        lambda facts: (Step("guard", facts.one.function, facts.low, "({}) < ({})".format(*facts.exchange)),),
    ),
    Pattern(
        DIVERGED[1],
        lambda facts: facts.part_of_warp,
        lambda facts: (
            f"name both lanes in the mask of {{warp_barrier}} on line {facts.part_of_warp} (0xffffffff names"
            " all 32)"
        ),
        steps=lambda facts: (Step("mask", facts.one.function, facts.part_of_warp, "0xffffffff"),),
    ),
    Pattern(
        "release by a plain store",
        lambda facts: facts.release,
        atomics.fix_of_release,
        atomics.cause_of_release,
        atomics.steps_of_release,
    ),
    Pattern(
        "compare-and-swap loop",
        lambda facts: facts.plain_read_before_swap,
        lambda facts: (
            f"read the element on line {facts.plain_read_before_swap.line} by an atomic ({{add}} of 0),"
            " because the {swap} in the loop can change it at the same time"
        ),
        steps=atomics.steps_of_first_value,
    ),
    Pattern(
        "spin by plain reads",
        is_plain_spin,
        "read the element on which the loop waits with an atomic ({add} of 0), and write it with an atomic"
        " ({exchange}) after {fence}",
    ),
    Pattern(
        "release by a plain store",
        is_plain_release,
        lambda facts: (
            f"write the element on line {facts.one.line} by an atomic ({{exchange}}, or {{add}} for +=) after"
            " {fence}, because other threads wait for it by atomics"
        ),
        steps=lambda facts: (
            (Step("atomic", facts.one.function, facts.one.line, "store"),) if not facts.update else ()
        ),
    ),
    Pattern("claim", is_claim, atomics.fix_of_claim, steps=atomics.steps_of_claim),
    Pattern(
        "lock without fences",
        lambda facts: facts.one_lock or facts.lacks_fence and facts.colliding,
        "{fence} after the atomic that takes the lock, and again before the atomic that releases it",
        steps=atomics.lock_fences,
    ),
    Pattern(
        "message handed on without a fence",
        lambda facts: facts.lacks_fence and facts.fenced,
        lambda facts: (
            "{fence} in each thread that passes the message on, between the atomic that it waits for and the"
            " atomic with which it signals the next thread; the writer already has a"
            f" fence{atomics.reach_note(facts)}"
        ),
        steps=lambda facts: tuple(
            Step("before", facts.one.function, line, "fence") for line in facts.forwarding_atomics
        ),
    ),
    Pattern(
        "message without a fence",
        lambda facts: facts.lacks_fence,
        atomics.fix_of_fence,
        steps=lambda facts: fixes.insertion_after_line(facts, facts.one.line, "fence"),
    ),
    Pattern("outside the lock", is_outside_lock, atomics.fix_of_lock, steps=atomics.steps_of_lock),
    Pattern(
        "exchange", lambda facts: facts.swapped, atomics.fix_of_exchange, steps=atomics.steps_of_exchange
    ),
    Pattern("ticket", lambda facts: facts.ticket, atomics.fix_of_ticket, steps=atomics.steps_of_ticket),
    Pattern("claim", lambda facts: facts.claim, atomics.fix_of_claim, steps=atomics.steps_of_claim),
    Pattern("claim", lambda facts: facts.claim_by_calls, atomics.fix_of_claim_by_calls),
    Pattern("check", lambda facts: facts.check, atomics.fix_of_check, steps=atomics.steps_of_check),
    Pattern("update", is_update, atomics.fix_of_update, steps=atomics.steps_of_update),
    Pattern(
        "overwritten",
        is_overwritten,
        "let each thread write an element of its own, or let one thread do it for all",
    ),
    Pattern(
        "arrays exchanged between blocks",
        lambda facts: facts.exchanges_arrays,
        fixes.launch_per_iteration,
        "Each iteration reads what other blocks wrote in the previous one, and nothing makes a block wait for"
        " them.",
        fixes.steps_of_alternation,
    ),
    Pattern("passes of the grid", is_pass_of_grid, fixes.fix_of_passes, steps=fixes.steps_of_barrier),
    Pattern(
        "views that are read",
        lambda facts: facts.views,
        fixes.fix_of_views,
        fixes.cause_of_views,
        fixes.steps_of_usual,
    ),
    Pattern(
        "fence of one thread",
        lambda facts: facts.fenced_by_one,
        lambda facts: (
            f"{{barrier}} between line {facts.one.line} and the fence on line {facts.fenced_by_one},"
            f" {fixes.EVERY}: the fence covers the writes of other threads of the block only after a barrier"
        ),
        steps=lambda facts: fixes.insertion_after_line(facts, facts.one.line, "barrier"),
    ),
    Pattern(
        "loop with a grid barrier",
        is_in_loop_with_grid_barrier,
        fixes.fix_of_loop_with_grid_barrier,
        steps=fixes.steps_of_usual,
    ),
    Pattern(
        "kernel with a grid barrier",
        is_in_kernel_with_grid_barrier,
        lambda facts: (
            f"one more {{grid_barrier}}, which every thread of the grid has to reach, between lines"
            f" {facts.low} and {facts.high}{fixes.branch_advice(facts)}"
        ),
        steps=fixes.steps_of_usual,
    ),
    Pattern("phases of blocks", is_in_phases, fixes.fix_of_phases, steps=fixes.steps_of_usual),
    Pattern("message", needs_wait, fixes.fix_of_waiting),
    Pattern("two blocks", lambda facts: facts.several_blocks, fixes.general_fix, steps=fixes.steps_of_usual),
    Pattern("arms with an mbarrier", lambda facts: facts.mbarrier_arms, fix_of_mbarriers),
    Pattern(
        "opposite arms",
        lambda facts: facts.branch or facts.branch_of_calls,
        fixes.fix_of_arms,
        steps=fixes.steps_of_arms,
    ),
    Pattern("one statement", is_in_one_statement, fixes.fix_of_statement, steps=fixes.steps_of_statement),
    Pattern("barrier", lambda facts: True, fixes.fix_of_barrier, steps=fixes.steps_of_barrier),
)

GENERAL = Pattern(
    "general",
    lambda facts: True,
    lambda facts: "end the kernel between the two accesses" if facts.several_blocks else ORDER_BY_BARRIER,
)
ORDER_BY_BARRIER = f"{{barrier}} between the two accesses, {fixes.EVERY}"
