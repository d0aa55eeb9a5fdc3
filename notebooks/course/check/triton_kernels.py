"""Launches of Triton kernels that a learner wrote, and limits on their accesses.

kernels.triton.interpreter runs the programs of a kernel in random order. If Triton is installed, the
simulator runs the PTX of the kernel, too.
"""

from math import prod

import numpy as np
import torch

from course.check.harness import compare, fail
from course.check.tensors import YOURS
from course.check.trial import reason
from kernels.triton import tiles
from kernels.triton.interpreter import ProgramBug, interpreted
from kernels.triton.launch import fresh, simulated, type_of
from kernels.triton.optional import triton
from sim import LaunchError

ROUNDED = (
    "The PTX has a product that keeps only 11 bits of each factor. Some versions of Triton, such as 3.6,"
    " compile tl.sum(a * b) to it; 3.9 does not. tl.where, instead of a factor of zeros and ones, is exact"
    " in all versions."
)
# helper functions of the package that an answer may call
PROVIDED = [value for name, value in vars(tiles).items() if hasattr(value, "fn") and name != "convolved"]


def jitted(kernel, name):
    """Reject a plain function where a Triton kernel is required, and the package's own kernels."""
    if not (hasattr(kernel, "fn") and hasattr(kernel, "arg_names")):
        fail(f"{name} is a plain Python function", hint="Write @triton.jit in the line above its def.")
    for other in with_callees(kernel):
        function = other.fn
        if (function.__module__ or "").startswith("kernels.") and not any(other is mine for mine in PROVIDED):
            called = f"{function.__module__}.{function.__name__}"
            fail(f"it calls {called}, which is the package's own solution", hint=YOURS)


def with_callees(kernel, seen=()):
    """Return a list of `kernel` and all Triton functions to which it refers, directly or indirectly."""
    found, function = [*seen, kernel], kernel.fn
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in [*map(function.__globals__.get, function.__code__.co_names), *cells]:
        if hasattr(value, "fn") and hasattr(value, "arg_names") and value not in found:
            found = with_callees(value, found)
    return found


def copies(arguments):
    return [value.copy() if isinstance(value, np.ndarray) else value for value in arguments]


def judged(kernel, grid, arguments, output, wanted, rng, call, *, tolerance=1e-5, hint=None, **constants):
    """Launch the kernel in the interpreter, and reject it unless arguments[output] becomes `wanted` and
    nothing else changes. Return the interpreter's arrays, {name: blocks.Array}.

    hint: a function of the output that returns a text.
    """
    given = copies(arguments)
    order = rng.permutation(prod(grid))
    try:
        arrays = interpreted(kernel, grid, *given, order=order, **constants).arrays
    except ProgramBug as bug:
        fail("the interpreter finds a bug", call=call, hint=str(bug))
    got = given[output]
    for place, (now, before) in enumerate(zip(given, arguments)):
        if place != output % len(given) and isinstance(now, np.ndarray):
            compare(now, before, what="the kernel has changed an input", call=call, tolerance=0)
    advice = hint(got) if hint else None
    compare(got, wanted, what="a wrong result", call=call, tolerance=tolerance, hint=advice)
    return arrays


def at_most(arrays, name, what, limit, call, hint, by="counts"):
    """Reject a launch that accesses an element of an array more than `limit` times.

    limit: a number, or an array with a number for each element.
    by: "counts" for the accesses of all programs together, or "most" for those of a single program.
    """
    found = getattr(arrays[name], by)[what]
    over = np.flatnonzero(found > np.broadcast_to(limit, found.shape))
    if over.size:
        element, times = arrays[name].element(over[0]), found[over[0]]
        who = "all programs together" if by == "counts" else "one program"
        fail(f"correct values, but {who} made {times} {what} of {element}", call=call, hint=hint)


def in_tiles(arrays, name, what, largest, call, hint, most=None):
    """Reject a launch with a tile of more than `largest` elements of an array, or in which a program uses
    more than most[program] tiles of it."""
    for number, size in arrays[name].tiles[what]:
        if size > largest:
            said = (
                f"correct values, but program {number} {what} a tile of {size} elements of {name},"
                f" not {largest}"
            )
            fail(said, call=call, hint=hint)
    for number, limit in enumerate(most or ()):
        times = sum(program == number for program, _ in arrays[name].tiles[what])
        if times > limit:
            said = f"correct values, but program {number} {what} {times} tiles of {name}; {limit} are enough"
            fail(said, call=call, hint=hint)


def owned(arrays, name, owners, call):
    """Reject a launch in which a program other than owners[element] stores an element of an array."""
    found = arrays[name].by["stores"][0]
    over = np.flatnonzero(found != owners)
    if over.size:
        element, does, should = arrays[name].element(over[0]), found[over[0]], owners[over[0]]
        hint = "Program p computes the ROWS rows from ROWS * p on."
        fail(
            f"correct values, but program {does} stores {element}, not program {should}", call=call, hint=hint
        )


def by_triton(kernel, grid, arguments, output, wanted, call, *, tolerance=1e-5, **constants):
    """Compile the kernel with Triton if it is installed, run its PTX in the simulator, and compare the
    results. Return a summary."""
    if triton.__version__ is None:
        return "not compiled: Triton is not here"
    given = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in copies(arguments)]
    try:
        made = fresh(kernel, tuple(map(type_of, given)), 1, **constants)
    except Exception as error:  # every exception from Triton is about the kernel
        while type(error.__cause__) is type(error):  # the last cause in a chain of calls has the line
            error = error.__cause__
        fail("correct in the interpreter, but Triton cannot compile it", call=call, hint=reason(error))
    said = f"compiles for sm_80 by Triton {triton.__version__}"
    how = dict(compiled=lambda *_, **__: made, options=dict(on_finding="report"))
    try:
        report = simulated(kernel, grid, *given, num_warps=1, **how, **constants)
    except LaunchError:  # an instruction that sim does not have
        return said
    for finding in report.errors:
        if finding.kind != "race-shared":  # the compiler decides about shared memory
            fail("sim finds a bug in its PTX", call=call, hint=finding.message)
    hint = ROUNDED if ".tf32" in made.ptx else None
    compare(
        given[output], wanted, what="another result from its PTX", call=call, tolerance=tolerance, hint=hint
    )
    return f"{said} and runs in sim"
