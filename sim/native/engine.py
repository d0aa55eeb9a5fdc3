"""Entry point of the native engine for kernels in Python and in PTX."""

from contextlib import suppress
from math import prod

from numba.core.compiler_lock import global_compiler_lock

from sim.engine.base import Kernel
from sim.native.codegen.int64 import CLOCKS_PER_SECOND
from sim.native.codegen.refreshes import few_refreshes
from sim.native.lower.module import CannotLower
from sim.native.run.access_log import hooks_without_log
from sim.native.run.explain import (
    ends_alone,
    explain,
    find_endless_loop,
    interpret,
    is_decided,
    remains_undecided,
    undecided_outcome,
)
from sim.native.run.launch import FIRST_SECONDS, LAST_SECONDS, Attempt


class Native:
    """The native engine. Implements the engine interface of sim.engine.base."""

    def run(self, launch):
        """Run a launch in compiled code and return its Outcome.

        The interpreter takes over if the kernel cannot be compiled, if an observer needs events that compiled
        code does not log, or if an error needs an explanation.
        """
        for name, hooks in hooks_without_log(launch.observers).items():
            return interpret(
                launch, f"interpreted, as {name} observes {hooks[0]}, which compiled code does not log"
            )
        if prod(launch.cluster) > 1:
            return interpret(launch, "interpreted: compiled code has no clusters of blocks")
        try:
            attempt = make_attempt(launch)
            attempt.compile()
        except CannotLower as reason:
            return interpret(launch, f"interpreted: {reason.message()}")
        return self.complete(attempt)

    def lower(self, launch):
        """Return the Attempt of a launch, which is not compiled yet, or None if the kernel cannot be
        lowered."""
        with suppress(CannotLower):
            return make_attempt(launch)
        return None

    def compile(self, attempt):
        """Compile an Attempt, and return whether that was possible."""
        with suppress(CannotLower):
            attempt.compile()
            return True
        return False

    def complete(self, attempt):
        """Run a compiled Attempt and return its Outcome."""
        try:
            attempt.run()
            attempt = in_fast_code(attempt)
            if attempt.exceeds_first_limit:
                endless, position = find_endless_loop(attempt), attempt.state.position
                if is_decided(endless) and ends_alone(attempt):
                    return endless
                if not is_decided(endless):
                    attempt = run_again(attempt, attempt.certain_iterations, LAST_SECONDS)
                    if endless and remains_undecided(attempt, position):
                        return undecided_outcome(attempt, endless)
        except CannotLower as reason:
            return interpret(attempt.launch, f"interpreted: {reason.message()}")
        return attempt.outcome() if attempt.is_clean else explain(attempt)


def run_again(attempt, while_limit, seconds=FIRST_SECONDS):
    """Run the launch of an Attempt from its start, and return the new Attempt.

    while_limit, seconds: the number of iterations of `while` loops and the CPU seconds after which a block
        counts as endless. Both limits have to be exceeded, or the limit `most_iterations`.
    """
    attempt.restore()
    again = make_attempt(attempt.launch)
    again.while_limit, again.state.first_time = while_limit, int(seconds * CLOCKS_PER_SECOND)
    again.compile()
    again.run()
    return in_fast_code(again)


def in_fast_code(attempt):
    """Return an Attempt that has run. If quick code was too slow to end, return one that has run optimised
    code instead."""
    if not attempt.is_slow:
        return attempt
    attempt.optimise()
    return run_again(attempt, attempt.while_limit, attempt.state.first_time / CLOCKS_PER_SECOND)


@global_compiler_lock  # Numba's registries are not thread-safe
@few_refreshes()
def make_attempt(launch):
    """Return the Attempt of a launch. Raise CannotLower if the kernel cannot be lowered."""
    return attempt_class(launch.function)(launch)


def attempt_class(function):
    """Return the class that attempts a launch in compiled code: PtxAttempt for PTX, Attempt for Python."""
    if not isinstance(function, Kernel):
        return Attempt
    from sim.native.ptx.launch import PtxAttempt  # the import takes 50 ms, and Python kernels do not need it

    return PtxAttempt
