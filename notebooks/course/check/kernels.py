"""The launch of a learner's kernel in `sim`: in a random order of threads, under its contract. A finding or
an exception is a failed check."""

from math import prod

import numpy as np

from course.check import dialect
from course.check.dialect import python_function as python_function
from course.check.harness import compare, fail
from course.check.trial import launched
from sim import ThreadError, simulate
from sim.nouns import plural
from sim.observers import DEFAULT
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic

EVENTS = 3_000_000  # of a launch under a contract; no check comes near it
STEPS = 50_000  # rounds of while loops, over all threads, before one of them ends


def launch(
    kernel, configuration, arguments, rng, call, refused=lambda finding: True, float64=None, **options
):
    """One launch; returns sim's report. options: those of sim.simulate. float64: the number of instructions
    on float64 that the compiled kernel may have.

    A thread's exception, or a finding that is `refused` (any, a warning too, unless told otherwise), fails
    the check; a stub stays one.
    """
    dialect.refuse(kernel)
    try:
        report = simulate(kernel, seed=int(rng.integers(2**31)), on_finding="report", **options)[
            configuration
        ](*arguments)
    except ThreadError as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise error.__cause__ from None  # the stub
        fail("a thread raises an error", call=call, hint=str(error))
    messages = [finding.message for finding in report.findings if refused(finding)]
    if messages:
        fail("sim finds a bug", call=call, hint=first(messages))
    launched(kernel, arguments, prod(report.grid), float64)
    return report


def first(messages, shown=2):
    """The first messages whole, the others as a number."""
    more = len(messages) - shown
    return "\n\n".join([*messages[:shown], *([f"and {plural(more, 'more finding')}"] if more > 0 else [])])


def run(kernel, configuration, inputs, outputs, rng, call, place=None, **options):
    """The launch of a kernel(*inputs, *outputs), which may change the outputs alone; returns sim's report.
    place: the number of inputs before the outputs."""
    given = copies(inputs)
    arguments = (*given[:place], *outputs, *(given[place:] if place is not None else ()))
    report = launch(kernel, configuration, arguments, rng, call, **options)
    compare(given, tuple(inputs), what="the kernel has changed an input", call=call, tolerance=0)
    return report


def judge(
    kernel,
    configuration,
    inputs,
    outputs,
    wanted,
    rng,
    call,
    contract,
    *,
    tolerance=1e-5,
    what="a wrong result",
    hint=None,
    **options,
):
    """Run the kernel, and reject it unless its outputs are `wanted` (a tuple of as many arrays, worked out
    before), and it keeps to the contract.

    hint: a text, or a function of the outputs that gives one.
    """
    options.setdefault("max_steps", STEPS)
    options["observers"] = (*DEFAULT, *options.get("observers", ()), Trace(limit=EVENTS), Traffic)
    report = run(kernel, configuration, inputs, outputs, rng, call, **options)
    compare(
        outputs,
        wanted,
        what=what,
        call=call,
        tolerance=tolerance,
        hint=hint(*outputs) if callable(hint) else hint,
    )
    contract.enforce(kernel, report, call)
    return report


def jitted(kernel, name):
    """Reject a plain function where a kernel or a device function is expected."""
    if not hasattr(kernel, "py_func"):
        hint = (
            "Without @cuda.jit in the line above its def, it runs in the simulator alone: no GPU, and no"
            " other kernel, can call it."
        )
        fail(f"{name} is a plain Python function", hint=hint)


def copies(arguments):
    """The arguments, each array copied."""
    return tuple(argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments)


def names_in(kernel):
    """The names that a kernel's own code uses, @cuda.jit or not: to see by which means it works."""
    return set(getattr(kernel, "py_func", kernel).__code__.co_names)
