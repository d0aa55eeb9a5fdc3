"""Entry point of the native engine for kernels in Python and in PTX."""

from math import prod

from numba.core.compiler_lock import global_compiler_lock

from sim.engine.base import Kernel
from sim.native.lower.module import CannotLower
from sim.native.run.access_log import hooks_without_log
from sim.native.run.explain import explain, interpret
from sim.native.run.launch import Attempt


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
            with global_compiler_lock:  # Numba's registries are not thread-safe
                attempt = attempt_class(launch.function)(launch)
            attempt.run()
        except CannotLower as reason:
            return interpret(launch, f"interpreted: {reason.message()}")
        return attempt.outcome() if attempt.is_clean else explain(attempt)


def attempt_class(function):
    """Return the class that attempts a launch in compiled code: PtxAttempt for PTX, Attempt for Python."""
    if not isinstance(function, Kernel):
        return Attempt
    from sim.native.ptx.launch import PtxAttempt  # the import takes 50 ms, and Python kernels do not need it

    return PtxAttempt
