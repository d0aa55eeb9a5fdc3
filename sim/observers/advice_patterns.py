"""The table of race patterns: the facts that select a pattern, the sentences of its advice and their steps.

A row consists of a sentence for the cause, a sentence for the fix, and the steps of the fix. If a row has no
sentence for the cause, a general one is used. Some rows have no steps. Most of the fixes are in
sim.observers.fixes and sim.observers.atomic_fixes. A program can apply the steps to the source, as
tests/sim/applied.py does. Terms in braces are keys of sim.observers.words.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.events import Step
from sim.observers import advice_conditions as conditions
from sim.observers import atomic_fixes as atomics
from sim.observers import double_checks, fixes, signals
from sim.observers.atomic_types import atomic, atomic_load
from sim.observers.copies import END
from sim.observers.early_waits import fix_of_early_wait
from sim.observers.facts import Facts
from sim.observers.mbarrier_arms import fix_of_mbarriers

DEPENDS = "Either may come first, and the result depends on which."

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
        conditions.are_all_atomic,
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
            f"{atomic(facts, 'add')} of {facts.stepped[2].strip('+')}1 in place of {facts.stepped[0]} on line"
            f" {facts.low}: one atomic, which returns the old value"
        ),
        f"{DEPENDS[:-1]}: several threads take the same value.",
    ),
    Pattern(
        "overlapping views",
        conditions.has_separate_views,
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
        "wait for the wrong parity",
        lambda facts: facts.early_wait,
        fix_of_early_wait,
        "The wait at the mbarrier between the two accesses tested the wrong parity, so it ended too early.",
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
            f"read the element on line {facts.plain_read_before_swap.line} by {atomic_load(facts)},"
            " because the {swap} in the loop can change it at the same time"
        ),
        steps=atomics.steps_of_first_value,
    ),
    Pattern(
        "spin by plain reads",
        conditions.is_plain_spin,
        lambda facts: (
            f"read the element on which the loop waits with {atomic_load(facts)}, and write it with an atomic"
            f" ({atomic(facts, 'exchange')}) after {{fence}}"
        ),
    ),
    Pattern(
        "release by a plain store",
        conditions.is_plain_release,
        lambda facts: (
            f"write the element on line {facts.one.line} by an atomic ({atomic(facts, 'exchange')}, or"
            f" {atomic(facts, 'add')} for +=) after {{fence}}, because other threads wait for it by atomics"
        ),
        steps=lambda facts: (
            (Step("atomic", facts.one.function, facts.one.line, "store"),) if not facts.update else ()
        ),
    ),
    Pattern(
        "double-checked lock",
        lambda facts: facts.double_check,
        double_checks.fix_of_double_check,
        double_checks.cause_of_double_check,
        double_checks.steps_of_double_check,
    ),
    Pattern("claim", conditions.is_claim, atomics.fix_of_claim, steps=atomics.steps_of_claim),
    Pattern(
        "lock without fences",
        lambda facts: facts.one_lock or facts.lacks_fence and facts.colliding,
        atomics.fix_of_lock_fences,
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
    Pattern("outside the lock", conditions.is_outside_lock, atomics.fix_of_lock, steps=atomics.steps_of_lock),
    Pattern(
        "exchange", lambda facts: facts.swapped, atomics.fix_of_exchange, steps=atomics.steps_of_exchange
    ),
    Pattern("ticket", lambda facts: facts.ticket, atomics.fix_of_ticket, steps=atomics.steps_of_ticket),
    Pattern("claim", lambda facts: facts.claim, atomics.fix_of_claim, steps=atomics.steps_of_claim),
    Pattern("claim", lambda facts: facts.claim_by_calls, atomics.fix_of_claim_by_calls),
    Pattern("check", lambda facts: facts.check, atomics.fix_of_check, steps=atomics.steps_of_check),
    Pattern("update", conditions.is_update, atomics.fix_of_update, steps=atomics.steps_of_update),
    Pattern(
        "overwritten",
        conditions.is_overwritten,
        "let each thread write an element of its own, or let one thread do it for all",
    ),
    Pattern(
        "flag tested once",
        lambda facts: facts.signal,
        signals.fix_of_signal,
        signals.cause_of_signal,
        signals.steps_of_signal,
    ),
    Pattern(
        "arrays exchanged between blocks",
        lambda facts: facts.exchanges_arrays,
        fixes.launch_per_iteration,
        "Each iteration reads what other blocks wrote in the previous one, and nothing makes a block wait for"
        " them.",
        fixes.steps_of_alternation,
    ),
    Pattern(
        "passes of the grid", conditions.is_pass_of_grid, fixes.fix_of_passes, steps=fixes.steps_of_barrier
    ),
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
        conditions.is_in_loop_with_grid_barrier,
        fixes.fix_of_loop_with_grid_barrier,
        steps=fixes.steps_of_usual,
    ),
    Pattern(
        "kernel with a grid barrier",
        conditions.is_in_kernel_with_grid_barrier,
        lambda facts: (
            f"one more {{grid_barrier}}, which every thread of the grid has to reach, between lines"
            f" {facts.low} and {facts.high}{fixes.branch_advice(facts)}"
        ),
        steps=fixes.steps_of_usual,
    ),
    Pattern("phases of blocks", conditions.is_in_phases, fixes.fix_of_phases, steps=fixes.steps_of_usual),
    Pattern("message", conditions.needs_wait, fixes.fix_of_waiting),
    Pattern("two blocks", lambda facts: facts.several_blocks, fixes.general_fix, steps=fixes.steps_of_usual),
    Pattern(
        "copy without a wait",
        conditions.is_copy_without_wait,
        fixes.fix_of_copy,
        lambda facts: (
            f"Such a copy may {'read its source' if facts.copy_waits.is_source else 'write its bytes'}"
            f" at any time until {END[facts.copy_waits.is_tracked]}."
        ),
    ),
    Pattern("arms with an mbarrier", lambda facts: facts.mbarrier_arms, fix_of_mbarriers),
    Pattern("opposite arms", fixes.is_in_arms, fixes.fix_of_arms, steps=fixes.steps_of_arms),
    Pattern(
        "one statement",
        conditions.is_in_one_statement,
        fixes.fix_of_statement,
        steps=fixes.steps_of_statement,
    ),
    Pattern("barrier", lambda facts: True, fixes.fix_of_barrier, steps=fixes.steps_of_barrier),
)

GENERAL = Pattern(
    "general",
    lambda facts: True,
    lambda facts: "end the kernel between the two accesses" if facts.several_blocks else ORDER_BY_BARRIER,
)
ORDER_BY_BARRIER = f"{{barrier}} between the two accesses, {fixes.EVERY}"
