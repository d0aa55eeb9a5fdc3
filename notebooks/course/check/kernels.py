"""How a check launches a learner's kernel in `sim`: in a random order of threads, with a finding or an exception as a failed check."""

import numpy as np

from course.check.harness import compare, fail
from sim import ThreadError, simulate


def launch(kernel, configuration, arguments, rng, call, refused=lambda finding: True, **options):
    """One launch; returns sim's report. options: those of sim.simulate.

    A thread's exception, or a finding that is `refused` (any, a warning too, unless told otherwise), fails the check; a stub stays one.
    """
    try:
        report = simulate(kernel, seed=int(rng.integers(2**31)), on_finding="report", **options)[configuration](*arguments)
    except ThreadError as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise error.__cause__ from None  # the stub
        fail("a thread raises an error", call=call, hint=str(error))
    messages = [finding.message for finding in report.findings if refused(finding)]
    if messages:
        fail("sim finds a bug", call=call, hint="\n\n".join(messages))
    return report


def run(kernel, configuration, inputs, outputs, rng, call, **options):
    """The launch of a kernel(*inputs, *outputs), which may change the outputs alone; returns sim's report."""
    given = copies(inputs)
    report = launch(kernel, configuration, (*given, *outputs), rng, call, **options)
    compare(given, tuple(inputs), what="the kernel has changed an input", call=call, tolerance=0)
    return report


def copies(arguments):
    """The arguments, each array copied."""
    return tuple(argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments)


def names_in(kernel):
    """The names that a kernel's own code uses, @cuda.jit or not: to see by which means it works."""
    return set(getattr(kernel, "py_func", kernel).__code__.co_names)
