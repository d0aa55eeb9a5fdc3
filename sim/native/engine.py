"""The native engine, for kernels in Python and in PTX."""

from sim.native.lower.module import CannotLower
from sim.native.run.explain import by_fibers, explained, tool_of
from sim.native.run.launch import Attempt
from sim.observers import COUNTERS, DEFAULT


class Native:
    """An engine (sim.engine.base)."""

    def run(self, launch):
        if not set(map(tool_of, launch.observers)) <= {*DEFAULT, *COUNTERS}:
            return by_fibers(launch, "by fibers, as the tools asked for hear of every access")
        try:
            attempt = attempt_of(launch.function)(launch)
            attempt.run()
        except CannotLower as reason:
            return by_fibers(launch, f"by fibers: {reason.in_words()}")
        return attempt.outcome() if attempt.in_order else explained(attempt)


def attempt_of(function):
    if not hasattr(function, "ready"):
        return Attempt
    from sim.native.ptx.launch import PtxAttempt  # 50 ms that a kernel in Python need not wait for

    return PtxAttempt
