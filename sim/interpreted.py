"""Kernels run by Python: a copy of the kernel with names of its launch, in every thread."""

import builtins
import functools
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sim.context import Context
from sim.dialect import Cuda
from sim.engine.base import Outcome
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.engine.scheduler import Scheduler
from sim.engine.schedules import Seeded
from sim.engine.steps import Steps
from sim.engine.watchdog import Watchdog
from sim.errors import LaunchError, Stuck
from sim.frontend.accesses import PREFIX
from sim.frontend.outline import of_codes
from sim.frontend.rebind import Binder
from sim.frontend.rewrite import UNSET
from sim.frontend.tree import OPERATORS
from sim.frontend.types import type_of_argument
from sim.isa import mathematics, operations
from sim.isa.conversions import domain
from sim.isa.table import INSTRUCTIONS, SUSPENDING, YIELDING
from sim.memory.accessors import accessors
from sim.memory.array import MAX_FAST_RANK, Record, array_at, zip_
from sim.memory.declared import Declarations
from sim.memory.spaces import AddressSpace, argument_array, bind_arguments, named_leaves, of_parts
from sim.retrial import Retrial
from sim.watched import watched

BUILTINS = vars(builtins) | operations.BUILTINS | {"zip": zip_}
CALLED_OPERATORS = {PREFIX + name: INSTRUCTIONS[f"operator.{name}"].call for name in OPERATORS.values()}


@dataclass(frozen=True)
class Threads:
    """What every thread runs: in a `fiber` (None: nobody waits); the names of cuda that are `used`, the code
    objects, notes for the report, and the numbers that something is `compared` with."""

    fiber: object
    used: set
    code: tuple
    notes: tuple
    compared: frozenset = frozenset()


class Interpreted:
    """The engine whose threads wait as `fiber` says; where none waits they are plain calls."""

    def __init__(self, fiber):
        self.fiber = fiber

    def run(self, launch, walk=Grid):
        """`walk` goes over the blocks (a Grid, or what makes one)."""
        observers = [observer() if isinstance(observer, type) else observer for observer in launch.observers]
        ready = functools.partial(self.ready, launch, walk)
        context, threads, blocks = ready(observers, Seeded(np.random.default_rng(launch.seed)))
        with Retrial(context, threads, observers) as retrial:
            run(blocks, context, threads.fiber)
            more = retrial.notes(ready, run)
        shares, unwatched = watched(observers, 1.0, context.silent, len(context.log or ()))
        notes = (*threads.notes, *more, *unwatched, *context.unwatched)
        return Outcome(context.findings, context.counters, notes, threads.code, context.trace, shares)

    def ready(self, launch, walk, observers, schedule, poison=None):
        """(context, threads, blocks) of one run of the launch, in which nothing has run yet."""
        if hasattr(launch.function, "ready"):  # a kernel of another front end
            return launch.function.ready(self.fiber, launch, walk, observers, schedule, poison)
        # 1. one context for this launch, and the arguments in its memory
        space, block = AddressSpace(), launch.block
        context = Context(observers, launch.spec, space, block, schedule, launch.max_steps, poison)
        values = bind(context, launch.arguments)
        # 2. a copy of the kernel whose names are this launch's
        scheduler, declarations = Scheduler(context), Declarations(context, launch.shared)
        binder = binder_of(context, Cuda(scheduler, declarations, launch.grid, launch.block))
        parameters = [(name, type_of_argument(value)) for name, value in zip(launch.arguments, values)]
        kernel = binder.bind(launch.function, parameters)
        if kernel.__code__ is not launch.function.__code__:
            values = [held(value) for value in values]
        declarations.kernel_code, context.ticking = kernel.__code__, not binder.without_source
        scheduler.takes_turns = (binder.any("loops") or schedule.interleaves) and bool(binder.used & YIELDING)
        for fact in ("synchronizes", "stores", "counts_rounds"):
            setattr(context, fact, binder.any(fact))
        context.kernel = launch.function.__name__
        context.outline = of_codes(lambda: [copy.__code__ for copy in binder.functions.values()])
        # 3. its blocks
        fiber = self.fiber if scheduler.takes_turns or binder.used & SUSPENDING else None
        if fiber is Fiber and not scheduler.takes_turns:
            as_generator = binder.as_generator(launch.function, parameters, kernel)
            fiber, kernel = (Steps, as_generator) if as_generator else (fiber, kernel)
        unnumbered = "has no source to number, so its operators are Python's own"
        if binder.without_source:
            context.silent["branches"] = f"{binder.without_source[0]} has no source to number"
        notes = tuple(f"{name} {unnumbered}" for name in binder.without_source)
        code = tuple(copy.__code__ for copy in binder.functions.values())
        blocks = walk(scheduler, kernel, values, launch.grid, launch.block, resident(launch, binder.used))
        compared = frozenset().union(*(code.compared for code in binder.codes))
        return context, Threads(fiber, binder.used, code, notes, compared), blocks


def binder_of(context, dialect):
    fast = accessors(context.log, context.values, context.enabled.local)
    context.load, context.store = (
        [fast.get(f"{what}{rank}") for rank in range(MAX_FAST_RANK + 1)] for what in ("load", "store")
    )
    fast |= {name: getattr(context, name) for name in ("tick", "branch", "unassigned")}
    fast |= {"unset": UNSET, "cuda": dialect}
    given = CALLED_OPERATORS | {PREFIX + name: value for name, value in fast.items()}
    modules = {"math": mathematics.math, "cmath": mathematics.cmath}
    modules |= {f"numba.cuda.{name}": getattr(dialect, name) for name in ("libdevice", "cg", "fp16")}
    return Binder(context, dialect, modules, BUILTINS, given)


def run(grid, context, fiber):
    """Run every block, each thread in a `fiber`; without one, from start to end."""
    context.announce("launch_started", context)
    with np.errstate(all="ignore"), Watchdog(context):
        try:
            if fiber is None:
                grid.run_straight()
            else:
                grid.run(fiber)
        except Stuck:
            # it came between two threads
            if all(finding.kind != "no-progress" for finding in context.findings):
                grid.scheduler.stuck(context.thread, None)
    context.announce("launch_finished", context)


def resident(launch, used):
    """How many blocks may be alive at once; a grid that synchronises must fit whole."""
    spec, blocks = launch.spec, launch.blocks
    limit = spec.resident_blocks(launch.threads, launch.shared)
    if "this_grid" in used and blocks > limit:
        raise LaunchError(
            f"the kernel synchronises the whole grid, whose {blocks:,} blocks must all be resident at once\n"
            f"  {spec.name} holds {limit:,} blocks of this size: launch fewer and let each do more"
        )
    return limit


# --- arguments ----------------------------------------------------------------------------------------------


def bind(context, arguments):
    """The arguments as threads see them: arrays checked and named, numbers as Numba types them."""
    found = {name: argument_array(value, name) for name, value in named_leaves(arguments.items())}
    arrays = {name: array for name, array in found.items() if array is not None}
    places = bind_arguments(context.space, arrays)
    return [bound(context, name, value, arrays, places) for name, value in arguments.items()]


def held(value):
    """An argument as a rewritten kernel holds it, whose text knows an int32 by its type."""
    if isinstance(value, tuple):
        return of_parts(value, map(held, value))
    return int(value) if type(value) is np.int32 else value


def bound(context, name, value, arrays, places):
    if isinstance(value, tuple):
        parts = enumerate(value)
        return of_parts(value, (bound(context, f"{name}[{i}]", one, arrays, places) for i, one in parts))
    if name in arrays:
        array, (allocation, offset) = arrays[name], places[name]
        held = array_at(context, allocation, offset, array.dtype, array.shape, array.strides, name)
        return Record(held, ()) if isinstance(value, np.void) else held
    # clz and popc count in the width of a narrow integer
    if value is None or isinstance(value, (Enum, np.int8, np.int16, np.int32)):
        return value
    return domain(value)
