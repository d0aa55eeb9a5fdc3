"""Reruns of a launch whose first run is inconclusive.

Every rerun starts with the arguments as they were before the launch. Afterwards, the results of the first run
are restored. There are two kinds of reruns:

    other schedules    Threads act on the results of atomics. Their behaviour then depends on the schedule,
                       and some faults occur only under few schedules. If the launch is large, only its first
                       part runs again. Blocks may start at any time, so this is the beginning of a possible
                       run of the whole launch.
    other values       A thread read unwritten shared memory, a shuffle read a lane that does not
                       participate, or an instruction used a register that no instruction has set. If the
                       launch behaves the same for several values there, the value had no effect. A read of
                       memory is then only a warning. The use of an unset register is dropped. So is a read
                       of an inactive lane, because the last lanes of a shuffle reduction cannot avoid it. If
                       the launch behaves differently, the read of an inactive lane is an error.
"""

import copy
import functools
import hashlib
import time
from dataclasses import replace
from math import inf, prod

import numpy as np

from sim.engine.schedules import FEW, Adversarial, Seeded, adversarial_schedules, schedules_of_first_part
from sim.error_limit import reads_absent_lane, reads_fresh_shared, reads_unset_register
from sim.errors import SimulatorError
from sim.events import Observer
from sim.initial_values import LEAST_POISONS, TRIAL_POISONS, initial_values, values_of_memory
from sim.isa.table import INSTRUCTIONS
from sim.loop_limits import DEFAULT_STEPS
from sim.memory.snapshot import Snapshot
from sim.nouns import plural
from sim.observers import DEFAULT
from sim.observers.races import Races
from sim.sites import SITES

# Budget for all schedules together, in turns: thread resumptions, atomics and fences. It is the maximum of
# MAX_TURNS and of the number in the first run, so a large launch takes about twice as long as its first run.
MAX_TURNS = 40_000
# The same budget in units of `Context.work`, which also counts the accesses, and weights atomics and fences
# by their CPU time.
MAX_WORK = 90_000
# A longer run is not repeated if it executed every access in the kernel's source.
MANY_TURNS, MUCH_WORK = 120_000, 240_000
MAX_LATER_TURNS = 6_000  # the budget after the first FEW schedules, if they found nothing
# If these budgets permit fewer than FEW schedules, the first part of the launch runs under further ones. The
# limit for each of these runs is the maximum of PART_TURNS and of PART_TURNS_PER_THREAD for each thread of a
# block. The limit for all of them together is PARTS_EFFORT (`Context.effort`).
PARTS_EFFORT, PART_TURNS, PART_TURNS_PER_THREAD = 90_000, 10_000, 24
# Kinds of findings that are certain although only a part of the launch has run.
CONCLUSIVE = {"race-shared", "race-global", "out-of-bounds", "misaligned-address", "use-after-free"}
# Limit on the CPU seconds of all reruns together. If the first run took longer and found no error, its time
# is the limit. If reads of unwritten memory are the only errors, the first LEAST_POISONS values are tried in
# any case.
MAX_SECONDS = 8.0
SHORT_WORK = 1 << 14  # the work of a launch that can run several more times without a noticeable delay
HARMLESS = (
    "In this launch its value appears to have no effect: with several other values there, the accesses and"
    " results are the same."
)
COPIED = (
    "In this launch the value is only copied to the results. That is harmless if it is the padding of a"
    " structure, or a member that nothing reads."
)
# kinds of findings that end a launch early, and after which another rerun would take too long
ENDLESS = {"no-progress", "undecided", "deadlock", "invalid-operand"}


class Effects(Observer):
    """A hash over all accesses in a launch, without the values that they write. Only values in global memory
    matter, and global memory is compared after the launch."""

    def launch_started(self, context):
        self.digest = hashlib.blake2b()

    def accesses(self, batch):
        for column in (batch.thread, batch.site, batch.address):
            self.digest.update(np.ascontiguousarray(column))


class Reruns:
    """The reruns of one launch. Create this object before the first run, because it copies the arguments.

    context: the Context of the first run.
    program: its ThreadProgram.
    observers: its observers. A rerun uses fresh copies of those in DEFAULT.
    arguments: its Arguments.
    """

    def __init__(self, context, program, observers, arguments):
        used = program.used
        self.constants, self.arguments = program.comparison_constants, arguments
        self.poisons = initial_values(self.constants)
        self.context, self.observers = context, [copy.copy(o) for o in observers if type(o) in DEFAULT]
        finds_races = any(isinstance(o, Races) for o in observers)
        reads_undefined = not used.isdisjoint({"shared", "unset register"}) or any(
            getattr(INSTRUCTIONS.get(name), "reads", None) for name in used
        )
        self.needs_schedules = context.needs_schedules and finds_races
        # a rerun would print everything again
        self.possible = (self.needs_schedules or reads_undefined) and bool(observers) and "print" not in used
        self.before = Snapshot(context.space.writable_bytes()) if self.possible else Snapshot()

    def begin(self, prepare, run):
        """Begin the first run, which can call `try_beginning`.

        prepare(observers, schedule, poison): returns a run that has not started, as (Context, ThreadProgram,
            Grid).
        run(grid, context, fiber): runs all of its blocks.
        """
        self.is_confirmed = False  # whether a trial has shown that the value of a missing lane has an effect
        self.rerun, self.began = functools.partial(self.run_once, prepare, run), time.process_time()
        if self.possible:
            self.context.error_limit.trial = self.try_beginning

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.before = Snapshot()  # the launch's Outcome may outlive this object, so release the copies

    def run_all(self):
        """Perform the reruns that the first run's findings require, and update these findings. Return notes
        for the report."""
        if self.is_confirmed:
            self.context.findings[:] = confirmed(self.context.findings)
        if not self.possible or self.context.ended_early:
            return [format_undecided(int(self.possible))] if self.needs_schedules else []
        now, findings = time.process_time(), self.context.findings
        self.seconds = now - self.began
        self.deadline = now + max(MAX_SECONDS, 0 if self.context.has_errors else self.seconds)
        after = Snapshot(self.context.space.writable_bytes())
        try:
            notes = self.try_schedules(findings) if self.needs_schedules else []
            if any(reads_fresh_shared(f) or can_be_dropped(f) for f in findings):
                notes += self.try_poisons(findings)
            return notes
        finally:
            after.restore()

    def run_once(self, prepare, run, observers, schedule, poison=None, max_turns=inf, lane_poison=None):
        """Run the launch from the start, for about `max_turns` at most. Return the Context of this run."""
        self.before.restore()
        context, program, grid = prepare(observers, schedule, poison)
        context.lane_poison = poison if lane_poison is None else lane_poison
        context.max_turns = max_turns
        # An adversarial schedule delays threads while others poll for them, so raise a low limit.
        context.max_steps = context.max_steps and max(context.max_steps, DEFAULT_STEPS)
        context.loops.restart()
        context.error_limit.trial = lambda: False  # a rerun performs no trials of its own
        run(grid, context, program.fiber)
        return context

    def is_late(self):
        """Return whether another rerun, as long as the first run, would exceed the limit of time."""
        return time.process_time() + self.seconds > self.deadline

    def try_schedules(self, findings):
        """Run under adversarial schedules, and add their findings to `findings`. Return notes."""
        try:
            tried = self.try_whole(findings)
            parts = self.try_parts(findings) if tried < FEW and not findings else 0
        except SimulatorError as error:
            return [f"under another schedule of its threads: {error}"]
        self.context.counters["schedules"] = tried
        return [format_undecided(tried, parts)]

    def try_whole(self, findings):
        """Run the launch under adversarial schedules until the budget is spent, and add their findings to
        `findings`. Return the number of schedules, including that of the first run."""
        tried, left, last = 1, max(MAX_TURNS, self.context.turns), 0
        work_left, last_work = max(MAX_WORK, self.context.work), 0
        is_long = self.context.turns > MANY_TURNS or self.context.work > MUCH_WORK
        if is_long and self.context.coverage and not self.context.coverage.left:
            left = 0
        for schedule in adversarial_schedules(self.context.counters["threads"]):
            if tried == FEW + 1:
                left = 0 if findings else min(left, MAX_LATER_TURNS)
            # A random schedule takes about as many turns as the first run, whose schedule is random, too.
            if self.context.turns > MAX_TURNS and not isinstance(schedule, Adversarial):
                last = max(last, self.context.turns)
            # A run of which less than half fits into a budget would exceed it too far.
            if left <= last / 2 or work_left <= last_work / 2:
                break
            if any(f.kind in ENDLESS for f in findings) or self.is_late():
                break
            context = self.rerun([*map(copy.copy, self.observers)], schedule)
            findings += [replace(finding, run=tried) for finding in context.findings]
            last, last_work = context.turns + 1, context.work
            left, work_left = left - last, work_left - last_work
            tried += 1
            if context.ended_early:
                break
        return tried

    def try_parts(self, findings):
        """Run the first part of the launch under adversarial schedules until there are findings. Add the
        findings whose kinds are in CONCLUSIVE to `findings`. Return the number of schedules."""
        limit = max(PART_TURNS, PART_TURNS_PER_THREAD * prod(self.context.block_shape))
        tried, left = 0, PARTS_EFFORT
        # The first part of a kernel with mbarriers is not run again: MissedPhases checks its waits in program
        # order, under any schedule, and its turns are expensive.
        large = self.context.turns > limit and not self.context.mbarriers
        for schedule in schedules_of_first_part(PARTS_EFFORT // limit) if large else ():
            if left <= 0 or time.process_time() > self.deadline:
                break
            context = self.rerun([*map(copy.copy, self.observers)], schedule, max_turns=limit)
            left -= context.effort
            tried += 1
            findings += [replace(f, run=tried) for f in context.findings if f.kind in CONCLUSIVE]
            if findings or any(finding.kind in ENDLESS for finding in context.findings):
                break
        return tried

    def try_poisons(self, findings):
        """Run with each initial value of unwritten memory, and return notes.

        If all runs have the same effects, turn findings about such reads into warnings, and drop those about
        inactive lanes and unset registers. Otherwise, turn findings about inactive lanes into errors.
        """
        if any(f.kind in ENDLESS for f in findings):
            return []
        decisive = all(
            f.severity != "error" or reads_fresh_shared(f) or reads_unset_register(f) for f in findings
        )
        poisons = iter(self.poisons)
        if any(map(reads_fresh_shared, findings)):
            # Only PTX has untyped memory. The value of an inactive lane has a type.
            is_untyped = self.context.memory is not None and not any(map(reads_absent_lane, findings))
            is_short = self.context.work <= SHORT_WORK
            poisons = values_of_memory(self.constants, self.arguments, is_untyped, is_short)
        tried, left, effects, least = 0, 0, set(), LEAST_POISONS * decisive
        for poison in poisons:
            if tried >= least and self.is_late():
                left = 1 + len(list(poisons))
                break
            found = self.effects_of(poison, findings)
            if found is None:
                return []
            effects.add(found)
            if len(effects) > 1:
                same_accesses = len({accesses for accesses, *_ in effects}) == 1
                findings[:] = [self.softened(f) if same_accesses else f for f in self.judged(findings)]
                return []
            tried += 1
        if tried >= LEAST_POISONS:
            speculative = {SITES[number] for number in self.context.speculative}
            findings[:] = [
                replace(f, severity="warning", reason=HARMLESS) if reads_fresh_shared(f) else f
                for f in findings
                if not (can_be_dropped(f) or reads_fresh_shared(f) and f.accesses[0].site in speculative)
            ]
        return [format_few_poisons(tried, tried + left)] if left else []

    def judged(self, findings):
        """Return the findings, given that the effects of the launch depend on undefined values.

        Because of a race, a thread may have read unwritten memory, and the effects may depend only on that
        value. Reads of inactive lanes are therefore errors only if the effects change with the values of
        these lanes while the initial value of memory stays the same. Otherwise, they are dropped.
        """
        if not any(map(reads_absent_lane, findings)) or self.lanes_matter(findings, values=self.poisons):
            return confirmed(findings)
        return [f for f in findings if not reads_absent_lane(f)]

    def softened(self, finding):
        """Return the finding as a warning if it is about an unset register of a function that may copy
        structures. Different values of this register have led to different results, but to the same accesses.
        """
        if not reads_unset_register(finding) or not self.context.may_copy_structures(
            finding.accesses[0].site
        ):
            return finding
        return replace(finding, severity="warning", reason=COPIED)

    def lanes_matter(self, findings, max_turns=inf, values=TRIAL_POISONS):
        """Return whether the effects depend on the values of inactive lanes while unwritten memory has one
        value. Return True if the effects cannot be compared.

        values: the values of inactive lanes that are tried, until the effects differ or the time is up.
        """
        memory, *_ = TRIAL_POISONS
        effects = set()
        for tried, value in enumerate(values):
            if tried >= len(TRIAL_POISONS) and self.is_late():
                break
            effects.add(self.effects_of(memory, findings, max_turns, value))
            if None in effects or len(effects) > 1:
                return True
        return False

    def effects_of(self, poison, findings, max_turns=inf, lane_poison=None):
        """Run with an initial value of unwritten memory, for about `max_turns` at most, and return a key for
        the effects.

        lane_poison: the value of inactive lanes, or None to use `poison`.

        Return None if the run has other kinds of findings, or if it cannot be compared.
        """
        effects, schedule = Effects(), Seeded(np.random.default_rng(0))
        try:
            observers = [*map(copy.copy, self.observers), effects]
            context = self.rerun(observers, schedule, poison, max_turns, lane_poison)
        except SimulatorError:
            return None
        if context.ended_early or not {f.kind for f in context.findings} <= {f.kind for f in findings}:
            return None
        return effects.digest.digest(), *(hashlib.blake2b(root).digest() for root, _ in self.before.saved)

    def try_beginning(self):
        """Return whether two undefined values have led to different effects of the launch so far. If the only
        doubtful findings are reads of inactive lanes, the values of these lanes must cause the difference.

        The first run calls this method, and continues afterwards.
        """
        after, turns = Snapshot(self.context.space.writable_bytes()), self.context.turns
        findings = self.context.findings
        try:
            effects = {self.effects_of(poison, findings, turns) for poison in TRIAL_POISONS}
            if any(map(reads_fresh_shared, findings)):
                return None in effects or len(effects) > 1
            self.is_confirmed = (
                None not in effects and len(effects) > 1 and self.lanes_matter(findings, turns)
            )
            return self.is_confirmed
        finally:
            after.restore()


def can_be_dropped(finding):
    """Return whether a finding is dropped, and not made a warning, if its undefined value has no effect."""
    return reads_absent_lane(finding) or reads_unset_register(finding)


def confirmed(findings):
    """Return the findings, given that the effects of the launch depend on undefined values.

    Reads of inactive lanes become errors, unless reads of unwritten shared memory could explain the
    dependence.
    """
    if any(map(reads_fresh_shared, findings)):
        return findings
    return [replace(f, severity="error") if reads_absent_lane(f) else f for f in findings]


def format_few_poisons(tried, values):
    """Return the note that not all initial values of unwritten memory were tried."""
    return (
        f"reads of unwritten memory: only {tried} of {values} initial values were tried, because the launch"
        " takes long"
    )


def format_undecided(tried, parts=0):
    """Return the note that not all schedules were tried.

    tried: number of schedules of the whole launch. It is 0 if the kernel cannot run again.
    parts: number of schedules of its first part.
    """
    under = plural(tried, "schedule") if tried else "this schedule only, because the kernel prints"
    under += f", and its first blocks under {parts} more" * (parts > 0)
    smaller = " (a launch of fewer threads runs under more)" * (0 < tried < FEW)
    return (
        f"threads act on the results of atomics: the launch ran under {under}{smaller}; other schedules may"
        " show more errors"
    )
