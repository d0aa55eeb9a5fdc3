"""Launches of a learner's kernel in `sim`, with a random thread order.

A finding, an exception or a violated contract fails the check.
"""

from math import prod

import numpy as np

from course.check import dialect
from course.check.dialect import python_function as python_function
from course.check.harness import compare, fail
from course.check.trial import ARCHITECTURE, remember_launch
from sim import LaunchError, ThreadError, simulate
from sim.nouns import plural
from sim.observers import DEFAULT
from sim.observers.trace import Trace
from sim.observers.traffic import Traffic

# limit on accesses for a launch with a contract, far above the number that any check needs
EVENTS = 3_000_000
STEPS = 50_000  # limit on the total number of iterations of while loops before any thread ends


def launch(
    kernel,
    configuration,
    arguments,
    rng,
    call,
    refused=lambda finding: True,
    float64=None,
    architecture=ARCHITECTURE,
    **options,
):
    """Launch a kernel once and return sim's report.

    The check fails if a thread raises an exception, or if a finding is `refused` (by default every finding,
    including warnings). An unfinished stub raises its own NotImplementedError.

    float64: maximum number of float64 instructions in the compiled kernel.
    architecture: GPU architecture for which the kernel must compile.
    options: additional options of sim.simulate.
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
    except LaunchError as error:
        fail("sim refuses the launch", call=call, hint=str(error))
    messages = [finding.message for finding in report.findings if refused(finding)]
    if messages:
        fail("sim finds a bug", call=call, hint=first(messages))
    remember_launch(kernel, arguments, prod(report.grid), float64, architecture)
    return report


def first(messages, shown=2):
    """Return the first messages in full, followed by the number of remaining messages."""
    more = len(messages) - shown
    return "\n\n".join([*messages[:shown], *([f"and {plural(more, 'more finding')}"] if more > 0 else [])])


def run(kernel, configuration, inputs, outputs, rng, call, place=None, **options):
    """Launch kernel(*inputs, *outputs) and return sim's report. The check fails if the kernel modifies an
    input.

    place: number of inputs that come before the outputs.
    """
    given = copies(inputs)
    arguments = (*given[:place], *outputs, *(given[place:] if place is not None else ()))
    report = launch(kernel, configuration, arguments, rng, call, **options)
    for array, before in zip(given, inputs, strict=True):
        what = f"the kernel changed its input{name_of(array, kernel, arguments)}"
        compare(array, before, what=what, call=call, tolerance=0)
    return report


def name_of(array, kernel, arguments):
    """Return a space and the name of the parameter to which an array is passed, or "" if it is unknown."""
    code = getattr(python_function(kernel), "__code__", None)
    names = code.co_varnames[: code.co_argcount] if code else ()
    return next((f" {name}" for name, given in zip(names, arguments, strict=False) if given is array), "")


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
    """Run the kernel, and reject it unless its outputs equal `wanted` and it fulfils the contract.

    wanted: a tuple with the expected value of each output, computed before the call.
    hint: a text, or a function that returns a text for the given outputs.
    """
    options.setdefault("max_steps", STEPS)
    options["observers"] = (*DEFAULT, *options.get("observers", ()), Trace(limit=EVENTS), Traffic)
    report = run(kernel, configuration, inputs, outputs, rng, call, **options)
    alone = len(outputs) == len(wanted) == 1  # then an index is that of the array
    compare(
        outputs[0] if alone else outputs,
        wanted[0] if alone else wanted,
        what=what,
        call=call,
        tolerance=tolerance,
        hint=hint(*outputs) if callable(hint) else hint,
    )
    contract.enforce(kernel, report, call)
    return report


def jitted(kernel, name, allowed=None):
    """Reject a plain function where a kernel or a device function is expected.

    allowed: functions of the package `kernels` that it may call; all others are rejected. None allows all.
    """
    if not hasattr(kernel, "py_func"):
        hint = (
            "Add @cuda.jit in the line above its def. Without it, the function runs only in the simulator:"
            " neither a GPU nor another kernel can call it."
        )
        fail(f"{name} is a plain Python function", hint=hint)
    if allowed is not None:
        own(kernel, name, allowed)


def own(kernel, name, allowed=()):
    """Reject a kernel that calls a function of the package `kernels` other than those in `allowed`."""
    for called in dialect.of_package(kernel, "kernels", allowed):
        hint = "Write this function yourself, or use what you wrote in earlier exercises."
        fail(f"{name} calls {called}, which is the package's own solution", hint=hint)


def copies(arguments):
    """Return the arguments with every array copied."""
    return tuple(argument.copy() if isinstance(argument, np.ndarray) else argument for argument in arguments)


def names_in(kernel):
    """Return the names that a kernel and its device functions use, with or without @cuda.jit."""
    return {name for function in dialect.called(kernel) for name in function.__code__.co_names}
