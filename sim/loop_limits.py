"""Limits on the loops of a launch: the iterations and the CPU time that may pass without progress."""

import sys
import time
from math import inf

from sim.endless_searches import EndlessSearch
from sim.errors import Stuck
from sim.forecast import Forecast
from sim.idle_variables import original_name
from sim.nouns import plural
from sim.progress import (
    EXHAUSTIVE,
    FIRST_LEAP,
    FULL_TABLE,
    MAX_LEAP,
    MOST_STATES,
    Cycle,
    ProgressCheck,
    comparable,
)

DEFAULT_STEPS = 1_000_000  # number of `while` iterations without progress before threads are compared
# CPU seconds without progress before threads are compared. The delay starts at FIRST_PATIENCE and doubles
# after each comparison that finds a change. PATIENCE is the limit for a loop in which something changes.
FIRST_PATIENCE, PATIENCE = 1.0, 8.0
# A loop may run for PATIENCE_FACTOR * PATIENCE seconds, or until the log has MAX_LOGGED accesses, if a
# Forecast predicts that it ends. The factor is BARRIER_FACTOR if barriers of a PTX kernel also open in the
# loop. Without such a prediction, the factor is SEARCH_FACTOR if barriers open, or if the loop waits for no
# other thread and the numbers that it compares both rise and fall. The log cannot be flushed within a loop.
PATIENCE_FACTOR, BARRIER_FACTOR, SEARCH_FACTOR, MAX_LOGGED = 8, 40, 1.5, 1 << 23
# Threads are not compared before each live thread has made LEAST_ITERATIONS iterations on average, or all
# threads together have made MOST_ITERATIONS. A comparison of thousands of threads can take longer than a
# correct loop.
LEAST_ITERATIONS, MOST_ITERATIONS = 32, 1 << 18
# Number of turns before the first examination of a kernel's common loop (sim.engine.attempts).
FIRST_COMMON_TEST = 1 << 14
FAILED_ATOMICS = "Every thread that can run repeats an atomic that changes nothing."
ENDLESS_SEARCHES = (
    "Every thread that can run searches memory, no thread changes this memory any more, and none of these"
    " searches ends."
)
NO_VARIABLES = "Nothing that changes in the loop decides whether it ends."
REPEATED_VARIABLES = (
    "The variables that decide when the loop ends have returned to earlier values, and no other thread can"
    " change them."
)
# A comparison of the threads may prove that nothing changes any more, so it may exceed the limit by this
# factor.
COMPARING = 1.5


class LoopLimits:
    """The budgets of a run for loop iterations and CPU seconds without progress.

    The end of a thread is progress, and restores both budgets. Once a budget is spent, the threads are
    compared (sim.progress). The launch then ends if nothing that threads can see changes any more, or if
    something has kept changing for too long.
    """

    def __init__(self, context):
        self.context = context
        # the number of turns after which sim.engine.attempts examines the kernel's common loop again, and the
        # number of these examinations so far
        self.next_common_test, self.common_tests = inf, 0
        # the CPU seconds for which a loop may run while something changes, in place of `time_limit`, or None
        self.given_limit = None
        self.holds_blocks = False  # whether no further blocks may start for now
        # A function, or None. It is called whenever a comparison of the threads has found a change. It may
        # raise an exception to end the run.
        self.when_changed = None
        self.restart()

    def restart(self):
        """Reset the budgets for loop iterations and seconds, because a thread ended or another event shows
        progress."""
        self.steps = self.context.max_steps or DEFAULT_STEPS
        # While threads are being compared: a ProgressCheck and an EndlessSearch. Otherwise, None.
        self.progress_check = self.search = None
        self.proof = ""  # a sentence that explains why it is certain that a loop is endless
        self.own_cycles = {}  # thread -> a Cycle of its own variables (see `repeats_itself`)
        # For the test of sim.engine.attempts: whether it has proven that nothing changes any more; the value
        # of `steps` below which it runs again; whether the comparison of threads was postponed for it.
        self.is_endless, self.next_test, self.postponed = False, 1, False
        # A Forecast from the samples since the last reset, and whether it predicts that a loop ends in time.
        self.forecast, self.ends, self.leap = None, False, FIRST_LEAP
        self.exhausted = False  # whether an exhaustive comparison has been made
        # CPU time of the last change (None until the clock is first read), and seconds that may pass without
        # one
        self.since, self.patience = None, first_patience()
        # the remaining iterations at the time of the last change, and whether barriers have opened since then
        self.steps_then, self.around_barrier = self.steps, False

    def barrier_opened(self):
        """Record that a barrier of a PTX kernel has opened. A loop around it may run for longer.

        A loop in which states repeat is endless in spite of its barriers.
        """
        self.around_barrier = True

    def phase_ended(self):
        """Postpone the comparison of threads, because the end of an mbarrier's phase is progress. Do not
        postpone it after an error, so that the launch ends soon."""
        if self.since is not None and not self.context.has_errors:
            self.since, self.steps_then = time.process_time(), self.steps

    def exclude(self, seconds):
        """Do not count these CPU seconds, which an observer took, against the kernel. After an error they
        count, because the launch has to end soon."""
        if self.since is not None and not self.context.has_errors:
            self.since += seconds

    def tick(self, site):
        """Count an iteration of a `while` loop.

        Once the budget is spent, end the current thread, unless something visible to threads still changes.
        """
        self.steps -= 1
        # The clock is read only every 1024 iterations.
        if self.steps < 0 or (not self.steps & 1023 and self.context.max_steps is None and self.is_slow()):
            self.check_stuck(site, sys._getframe(1))

    def is_test_due(self):
        """Return whether it is time for the test in sim.engine.attempts, which finds out whether anything can
        still change."""
        if self.context.max_steps or self.is_endless:
            return False
        if self.steps > 0 and not self.steps & 1023 and self.is_slow():
            self.steps = 0
        return self.steps < self.next_test

    def tested(self, is_endless):
        """Store the result of the test by sim.engine.attempts.

        If it is False, the next test takes place when each thread has had time for an iteration. The
        intervals between tests grow.
        """
        self.is_endless, self.next_test = is_endless, 2 * self.steps - self.alive()
        if is_endless:
            self.proof = FAILED_ATOMICS
            self.steps = -1  # the next iteration of a loop ends the launch

    def alive(self):
        """Return the number of threads that have started and not ended."""
        return sum(block.alive for block in self.context.live)

    def is_slow(self):
        """Return whether the CPU time since the last change exceeds the current patience."""
        now = time.process_time()
        self.start_clock(now)
        if now - self.since <= self.patience:
            return False
        least = LEAST_ITERATIONS * self.alive()
        return self.steps_then - self.steps >= min(least, MOST_ITERATIONS)

    def start_clock(self, now):
        """Count CPU seconds from `now` on, if none have been counted since the last reset."""
        if self.since is None:
            # `moved` is the time of the last progress. A change that is no progress resets only `since`.
            self.since = self.moved = now
            self.steps_then = self.steps

    def check_stuck(self, site, frame):
        """Decide whether the current thread is stuck in the loop at `site`. `frame` is its stack frame.

        Raise Stuck(site, True) if nothing changes any more, or if the caller's max_steps are used up. Raise
        Stuck(site, False) if something has kept changing for longer than `time_limit()`.
        """
        context, now = self.context, time.process_time()
        if context.max_steps or self.is_endless:
            raise Stuck(site, True)
        if self.repeats_itself(site, frame):
            # In code from PTX, `go` selects the next block. It is no variable of the kernel.
            variables = self.context.deciding[site] - {"go"}
            self.proof = REPEATED_VARIABLES if variables else NO_VARIABLES
            raise Stuck(site, True)
        self.start_clock(now)
        self.forecast = self.forecast or Forecast()
        if context.thread.failed_atomic is not None and not self.postponed:
            # Let each thread first repeat its atomic. The test by sim.engine.attempts is faster than a
            # comparison of the threads.
            self.postponed, self.since = True, now
            self.steps = self.steps_then = min(self.steps, self.alive())
            return
        if self.progress_check is None:
            for block in context.live:
                block.wake_parked(every=True)
            self.progress_check = ProgressCheck(context, self.most_states())
            self.search = EndlessSearch(context)
        self.steps = min(self.steps, 0)
        if self.search.is_endless(site, frame):
            self.proof = ENDLESS_SEARCHES
            raise Stuck(site, True)
        check = self.progress_check
        stuck = check.nothing_changes(site, frame)
        if self.forecast.is_due(now, self.patience / 2 if stuck is False else inf):
            self.forecast.take(now, context, frame)
            self.ends = now - self.moved + self.forecast.seconds_left() <= self.longest()
        factor = COMPARING if stuck is None else 1
        late = now - self.moved > factor * self.time_limit()
        if stuck or late or stuck is False and len(context.log or ()) > MAX_LOGGED:
            raise Stuck(site, bool(stuck))
        if stuck is False:
            if check.times_a_wait():
                context.clock.advance(self.leap)
                self.leap = min(self.leap << 10, 1 << MAX_LEAP)
            self.progress_check, self.steps, self.since = None, DEFAULT_STEPS, now
            self.steps_then = DEFAULT_STEPS
            self.patience = min(2 * self.patience, PATIENCE / 4)
            if self.when_changed:
                self.when_changed()

    def repeats_itself(self, site, frame):
        """Return whether the current thread begins two iterations of its loop with equal values of the
        variables that alone decide how many iterations follow (sim.frontend.polling). It then never leaves
        the loop."""
        names = self.context.deciding.get(site)
        if names is None:
            return False
        # The rewriter may have split a variable by its types, into variables with numbers.
        values = {name: value for name, value in frame.f_locals.items() if original_name(name) in names}
        cycle = self.own_cycles.setdefault(self.context.thread, Cycle())
        return cycle.returns(lambda: (frame, site, *values, *map(comparable, values.values())))

    def most_states(self):
        """Return the number of distinct states that the next comparison may record.

        A comparison that records EXHAUSTIVE states takes about a second, and one that records FULL_TABLE
        states takes as long as the time limit permits. It is made only once, and only if threads seem to
        search for something (see `searches` and `all_fail`).
        """
        all_fail = self.all_fail()
        if not self.exhausted and (all_fail or self.searches()):
            self.exhausted = True
            return FULL_TABLE if all_fail else EXHAUSTIVE
        return MOST_STATES if self.patience >= PATIENCE / 4 else 0

    def all_fail(self):
        """Return whether the last atomic of each thread that can run has changed nothing. These threads seem
        to search memory for an element that no thread will provide, such as a free slot of a hash table."""
        threads = [thread for block in self.context.live for thread in block.threads]
        runnable = [one for one in threads if not one.done and one.waits in (None, "turn")]
        return bool(runnable) and all(one.failed_atomic is not None for one in runnable)

    def searches(self):
        """Return whether threads seem to search: a number that they compare rises and falls, and they do not
        wait for other threads. A search may end, although the number does not approach a bound."""
        return self.forecast.wanders and not self.context.synchronizes

    def time_limit(self):
        """Return the number of seconds that a loop may run while something changes.

        The limit is higher if the Forecast predicts that the loop ends, but not after an error: on a GPU,
        that error may have ended the launch or caused the endless loop.
        """
        if self.given_limit is not None:
            return self.given_limit
        if self.context.has_errors:
            return PATIENCE
        if self.ends:
            return self.longest()
        searches = self.around_barrier or self.forecast is not None and self.searches()
        return PATIENCE * (SEARCH_FACTOR if searches else 1)

    def longest(self):
        """Return the number of seconds that a loop may run if it is predicted to end."""
        return PATIENCE * (BARRIER_FACTOR if self.around_barrier else PATIENCE_FACTOR)

    def format_budget(self, decided=True):
        """Return a sentence with the iterations or the time that a loop used up without progress.

        decided: whether it is certain that nothing changes any more.
        """
        if not decided:
            budget = f"{self.time_limit():g} s or {MAX_LOGGED:,} accesses"
            return f"Something still changes, but no thread ended within {budget}."
        if self.proof:
            return self.proof
        max_steps = self.context.max_steps
        budget = f"{plural(max_steps or DEFAULT_STEPS, 'iteration')} of the loop"
        budget += "" if max_steps else f", or for {first_patience():g} s"
        return f"No thread ended during {budget}."


def first_patience():
    """Return the CPU seconds without progress before threads are compared for the first time."""
    return min(FIRST_PATIENCE, PATIENCE)
