"""A launch is run again where one run does not show enough, with its arguments as they were; at the end they
are as the first run left them.

Under other schedules, where threads act on what atomics tell them: a finding that hangs on who goes first
shows in one of them. And with other bytes in memory that nobody has written, and from lanes that take no part
in a shuffle, where a thread has read some: if nothing that the launch does hangs on them, a read of memory is
a warning, and one of a lane, which a tree of shuffles cannot help, no finding.
"""

import copy
import functools
import hashlib
from dataclasses import replace

import numpy as np

from sim.context import DEFAULT_STEPS
from sim.engine.schedules import FEW, Seeded, adversarial
from sim.errors import SimulatorError
from sim.events import Observer
from sim.isa.table import INSTRUCTIONS
from sim.observers import DEFAULT
from sim.observers.races import Races

MOST_ENTERED = 30_000  # turns of threads in all further schedules together, or twice as many as in the first
MOST_LATER = 4_000  # turns in the schedules behind the first FEW, if those have found nothing
# what flags, states and keys begin with (first, as few rounds of a loop); and large, positive and negative
POISONS = 0, 1, -1, b"\x5a", b"\xda"
MOST_COMPARED = 8  # of the numbers that the kernel compares something with, as many are tried too
HARMLESS = "In this launch its value reached nothing: with other bytes there, every thread did the same."
ENDLESS = {"no-progress", "deadlock"}


class Effects(Observer):
    """All that the threads of a launch do to memory, as one number."""

    def launch_started(self, context):
        self.digest = hashlib.blake2b()

    def accesses(self, batch):
        for column in (batch.thread, batch.site, batch.address):
            self.digest.update(np.ascontiguousarray(column))
        self.digest.update(repr(batch.values).encode())


class Retrial:
    """The further runs of a launch of these Threads, which was watched by these observers."""

    def __init__(self, context, threads, observers):
        used = threads.used
        self.poisons = [*POISONS, *sorted(threads.compared - {*POISONS})[:MOST_COMPARED]]
        self.context, self.observers = context, [copy.copy(o) for o in observers if type(o) in DEFAULT]
        races = any(isinstance(o, Races) for o in observers)
        fresh = "shared" in used or any(getattr(INSTRUCTIONS.get(name), "reads", None) for name in used)
        self.schedules = context.synchronizes and races
        self.possible = (self.schedules or fresh) and bool(observers) and "print" not in used
        self.before = self.memory() if self.possible else []

    def memory(self):
        """All global arrays that can be written, with their bytes."""
        allocations = self.context.space.allocations
        return [(a.root, a.root.copy()) for a in allocations if a.space == "global" and a.writable]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.before = []

    def notes(self, ready, run):
        """Run again as far as wanted, for the first run's findings; returns what is undecided."""
        if not self.possible:
            return [undecided(0)] if self.schedules else []
        after, findings = self.memory(), self.context.findings
        self.again = functools.partial(self.one, ready, run)
        try:
            notes = self.other_schedules(findings) if self.schedules else []
            if any(harmless(f) or from_absent_lane(f) for f in findings):
                self.other_bytes(findings)
            return notes
        finally:
            restore(after)

    def one(self, ready, run, observers, schedule, poison=None):
        restore(self.before)
        context, threads, grid = ready(observers, schedule, poison)
        # threads are made to wait here
        context.max_steps = context.max_steps and max(context.max_steps, DEFAULT_STEPS)
        context.progress()
        run(grid, context, threads.fiber)
        return context

    def other_schedules(self, findings):
        tried, left = 1, max(MOST_ENTERED, 2 * self.context.entered)
        for schedule in adversarial(self.context.counters["threads"]):
            if tried == FEW + 1:
                left = 0 if findings else min(left, MOST_LATER)
            if left <= 0 or any(f.kind in ENDLESS for f in findings):
                break
            try:
                context = self.again([*map(copy.copy, self.observers)], schedule)
            except SimulatorError as error:
                return [f"under another schedule of its threads: {error}"]
            findings += context.findings
            left -= context.entered + 1
            tried += 1
        self.context.counters["schedules"] = tried
        return [undecided(tried)]

    def other_bytes(self, findings):
        seen = set()
        for poison in self.poisons:
            effects = Effects()
            try:
                observers = [*map(copy.copy, self.observers), effects]
                context = self.again(observers, Seeded(np.random.default_rng(0)), poison)
            except SimulatorError:
                return
            if not {f.kind for f in context.findings} <= {f.kind for f in findings}:
                return
            seen.add((effects.digest.digest(), *(hashlib.blake2b(root).digest() for root, _ in self.before)))
            if len(seen) > 1:
                return
        findings[:] = [
            replace(f, severity="warning", reason=HARMLESS) if harmless(f) else f
            for f in findings
            if not from_absent_lane(f)
        ]


def harmless(finding):
    """Whether this is a finding that may do no harm: a read of shared memory that nobody has written."""
    return finding.kind == "uninitialized-read" and finding.reason.startswith("Fresh shared")


def from_absent_lane(finding):
    """Whether this is a shuffle from a lane that takes no part in it."""
    return finding.kind == "warp-divergence" and finding.severity == "warning"


def restore(memory):
    for root, kept in memory:
        root[...] = kept


def undecided(tried):
    under = f"{tried} schedules" if tried else "this schedule only, as the kernel prints"
    judged = f"threads act on what atomics tell them: judged under {under}"
    return f"{judged}; whether others show more is not decided"
