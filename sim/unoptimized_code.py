"""The check of a launch with unoptimised code of its kernel, for faults that an optimiser removes.

An optimiser may remove an undefined value together with its use. It deletes a store of an undefined value,
chooses the side of a branch that depends on one, and removes an access outside an array that it keeps in
registers. The optimised code then lacks the fault. After a launch of optimised code, the interpreter
therefore also runs the first and the last block in the code that the compiler generates without optimisation.

Memory has the contents from before the launch in this run. Its results are dropped, and so are all findings
that are not certain. A finding is certain if its access is in the program's own source and

    - an undefined value from local memory, from a register, or from a shared variable that the optimised code
      does not contain is used, and different values there lead to different accesses, or to different results
      of a function that does not copy structures, or
    - an access is outside local memory, or outside such a shared variable.
"""

import contextlib
import functools
import hashlib
import time
from dataclasses import replace

import numpy as np

from sim.engine.base import Kernel
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.engine.pool import FiberPool
from sim.engine.schedules import Seeded
from sim.errors import SimulatorError
from sim.hooks import observer_class
from sim.initial_values import TRIAL_POISONS
from sim.interpreted import run
from sim.memory.snapshot import Snapshot
from sim.observers import Bounds, Uninitialized
from sim.reruns import ENDLESS, Effects

# The CPU seconds of the run are the maximum of SECONDS and of SHARE of the launch's own time, but at most
# MOST_SECONDS.
SECONDS, SHARE, MOST_SECONDS = 0.05, 1 / 8, 0.25
# After this number of CPU seconds, the further launches of a kernel are not checked in this way.
SECONDS_OF_KERNEL = 0.3
MOST_BYTES = 1 << 28  # the maximum size of the memory that is copied
FOUND_WHERE = (
    "This was found in unoptimised code. In optimised code, the compiler may have removed the fault."
)
# The undefined values that are tried: all bits 0, all bits 1, and bytes that form a large positive integer of
# every size.
POISONS = *TRIAL_POISONS, b"\x5a"
# Limit on the CPU seconds of a run with another undefined value. Such a run takes as long as the first one,
# unless the value changes it.
TRIAL_SECONDS = 4 * MOST_SECONDS


class UnoptimizedCheck:
    """The check of one launch. Create this object before the launch, because it copies the launch's memory.

    launch: the Launch.
    """

    def __init__(self, launch):
        self.kernel, self.before, self.seconds = None, Snapshot(), 0.0
        kernel, classes = launch.function, {observer_class(each) for each in launch.observers}
        self.observers = [each for each in (Bounds, Uninitialized) if each in classes]
        if not self.observers or not isinstance(kernel, Kernel):
            return
        if kernel.seconds_unoptimized > SECONDS_OF_KERNEL:
            return
        with self.timed(kernel), contextlib.suppress(SimulatorError):  # the launch itself reports such errors
            unoptimized = kernel.unoptimized()
            if unoptimized is None:
                return
            self.launch = replace(launch, function=unoptimized)
            context, *_ = self.prepare(Grid, [])
            arrays = context.space.writable_bytes()
            if sum(array.size for array in arrays) <= MOST_BYTES:
                self.kernel, self.before = kernel, Snapshot(arrays)

    @contextlib.contextmanager
    def timed(self, kernel):
        """Add the time of the `with` statement to the time that the kernel has already been checked."""
        began = time.process_time()
        try:
            yield
        finally:
            kernel.seconds_unoptimized += time.process_time() - began

    def findings(self, seconds, found):
        """Return the certain findings. Memory is the same afterwards.

        seconds: the CPU seconds of the launch.
        found: the findings of the launch.
        """
        if self.kernel is None or any(finding.kind in ENDLESS for finding in found):
            return []
        after = Snapshot([array for array, _ in self.before.saved])
        try:
            with self.timed(self.kernel):
                certain = self.certain_findings(max(SECONDS, min(SHARE * seconds, MOST_SECONDS)))
            return [replace(f, reason=f"{f.reason} {FOUND_WHERE}") for f in certain]
        except SimulatorError:  # a trap, which the launch itself has reported
            return []
        finally:
            after.restore()

    def certain_findings(self, seconds):
        context, grid = self.run_part(seconds)
        ended = {index for unit in grid.order[: grid.ended] for index in unit}
        found = [f for f in context.findings if f.severity == "error" and self.is_certain(f, context)]
        outside = [f for f in found if f.kind == "out-of-bounds"]
        reads = [
            f for f in found if f.kind == "uninitialized-read" and all(a.block in ended for a in f.accesses)
        ]
        if not reads:
            return outside
        accesses, results = zip(*(self.effects(grid.ended, poison) for poison in POISONS))
        if len({*accesses}) == 1:
            # A copy of a structure with padding has different results, too.
            copies = self.kernel.may_copy_structures
            reads = [one for one in reads if len({*results}) > 1 and not copies(one.accesses[0].site)]
        return outside + reads

    def is_certain(self, finding, context):
        """Return whether a finding concerns the program's own source, and memory of which only the
        unoptimised code shows all accesses."""
        site = finding.accesses[0].site
        if site is None or not self.kernel.is_own_source(site):
            return False
        if finding.array is None:  # a register
            return finding.kind == "uninitialized-read"
        spaces = {a.space for a in context.space.allocations if a.name == finding.array}
        if spaces == {"shared"}:
            return finding.array in self.kernel.removed_variables()
        return spaces == {"local"}

    def prepare(self, make_grid, observers, poison=None):
        """Return (Context, ThreadProgram, Grid) for a run in unoptimised code."""
        return self.launch.function.prepare(
            Fiber, self.launch, make_grid, observers, Seeded(np.random.default_rng(0)), poison
        )

    def run_part(self, seconds, units=2, poison=None, observers=()):
        """Run the first units of FirstAndLast for some CPU seconds. Return (Context, Grid)."""
        self.before.restore()
        observers = [*(each() for each in self.observers), *observers]
        make_grid = functools.partial(FirstAndLast, units)
        context, program, grid = self.prepare(make_grid, observers, poison)
        context.lane_poison = context.local_poison = poison
        context.prints = False  # because the launch itself prints
        context.error_limit.trial = lambda: False
        context.error_limit.end_after(seconds)
        with FiberPool() as fibers:
            run(fibers, grid, context, program.fiber)
        return context, grid

    def effects(self, units, poison):
        """Return (key of the accesses, key of the results) of the first units with an undefined value."""
        effects = Effects()
        context, _ = self.run_part(TRIAL_SECONDS, units, poison, [effects])
        memory = [hashlib.blake2b(array).digest() for array, _ in self.before.saved]
        return (effects.digest.digest(), context.ended_early), tuple(memory)


class FirstAndLast(Grid):
    """A grid of which only the first and the last block run. Blocks of one cluster run together. All blocks
    of a kernel that synchronises the grid run.

    units: the number of clusters or single blocks that run, in this order: the first, the last.
    """

    def __init__(self, units, *given):
        super().__init__(*given)
        if not self.context.cooperative:
            ordered = sorted(self.order, key=lambda unit: unit[0][::-1])
            self.order = [ordered[0], *ordered[1:][-1:]][:units]
            self.blocks = sum(map(len, self.order))
