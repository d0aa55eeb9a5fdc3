"""The interpreting engine: every thread runs a rewritten copy of the kernel in Python."""

import builtins
import functools
from dataclasses import dataclass
from enum import Enum

import numpy as np

from sim.context import Context
from sim.coverage import Coverage
from sim.dialect import Cuda
from sim.engine.base import Kernel, Outcome
from sim.engine.collector import collect_rarely
from sim.engine.fiber import Fiber
from sim.engine.generator import GeneratorFiber
from sim.engine.grid import Grid
from sim.engine.pool import FiberPool
from sim.engine.scheduler import Scheduler
from sim.engine.schedules import Seeded
from sim.engine.watchdog import Watchdog
from sim.errors import GridTooLarge, OutOfTime, OutOfTurns, Stuck
from sim.frontend.accesses import PREFIX
from sim.frontend.outline import of_codes
from sim.frontend.rebind import Binder
from sim.frontend.rewrite import UNSET
from sim.frontend.tree import OPERATORS
from sim.frontend.types import type_of_argument
from sim.isa import builtin_functions, mathematics
from sim.isa.conversions import domain
from sim.isa.register_counts import entry_registers
from sim.isa.table import ASYNCHRONOUS, INSTRUCTIONS, SUSPENDING, YIELDING
from sim.loop_limits import FIRST_COMMON_TEST
from sim.memory.accessors import accessors
from sim.memory.argument import arrays_of, of_parts
from sim.memory.array import MAX_FAST_RANK, array_at
from sim.memory.declared import Declarations
from sim.memory.record import Record
from sim.memory.spaces import AddressSpace, bind_arguments
from sim.memory.tensor_map import described_arrays
from sim.nouns import plural
from sim.observers import Pipeline
from sim.reruns import ENDLESS, Reruns
from sim.watched import watched

# Reasons to stop a launch. The time limit applies if the interpreter reruns a launch of compiled code to find
# its errors.
AFTER_ERROR, AFTER_LIMIT = "several seconds after its first error", "after the time limit of the interpreter"
BUILTINS = vars(builtins) | builtin_functions.BUILTINS
# {name in rewritten code: the function that replaces an operator of Python}
CALLED_OPERATORS = {PREFIX + name: INSTRUCTIONS[f"operator.{name}"].call for name in OPERATORS.values()}


@dataclass(frozen=True)
class ThreadProgram:
    """The code run by all threads of a launch, and its properties."""

    fiber: object  # the class of fibers that run threads; None if no thread ever waits
    used: set  # names of the instructions used by the kernel and its device functions
    code: tuple  # code objects, the kernel's first
    notes: tuple  # notes for the report
    comparison_constants: frozenset = frozenset()  # numbers in the kernel's comparisons


class Interpreted:
    """The interpreting engine.

    fiber: the class of fibers for kernels whose threads wait. In other kernels, each thread is a plain call.
    """

    def __init__(self, fiber):
        self.fiber = fiber

    def run(self, launch, make_grid=Grid):
        """Run a launch, repeat it if the first run is inconclusive, and return its Outcome.

        make_grid: a function with Grid's parameters that returns the object that runs the blocks.
        """
        observers = [observer() if isinstance(observer, type) else observer for observer in launch.observers]
        prepare = functools.partial(self.prepare, launch, make_grid)
        context, program, grid = prepare(observers, Seeded(np.random.default_rng(launch.seed)))
        recorder = Pipeline()
        if context.asynchronous:
            recorder.attach(context)
        with Reruns(context, program, observers, launch.arguments) as reruns, FiberPool() as fibers:
            reruns.begin(prepare, functools.partial(run, fibers))
            run(fibers, grid, context, program.fiber)
            further_notes = reruns.run_all()
        left = grid.scheduler.unwatched + len(context.log or ())
        share = context.logged / (context.logged + left) if left else 1.0
        shares, unwatched = watched(observers, share, context.silent, left)
        notes = (*program.notes, *further_notes, *unwatched, *context.notes)
        shown = program.code, context.trace, shares, context.columns()
        return Outcome(context.findings, context.counters, notes, *shown, tuple(recorder.events))

    def prepare(self, launch, make_grid, observers, schedule, poison=None):
        """Return (Context, ThreadProgram, Grid) for one run of the launch, without starting it."""
        if isinstance(launch.function, Kernel):
            return launch.function.prepare(self.fiber, launch, make_grid, observers, schedule, poison)
        # 1. a context for this launch, with the arguments in its memory
        space, block = AddressSpace(), launch.block
        context = Context(observers, launch.spec, space, block, schedule, launch.max_steps, poison)
        values = bind_values(context, launch.arguments)
        # 2. a copy of the kernel bound to this launch
        scheduler, declarations = Scheduler(context), Declarations(context, launch.shared)
        binder = make_binder(context, Cuda(scheduler, declarations, launch.grid, launch.block))
        given = launch.arguments
        parameters = [(a.name, type_of_argument(a, value)) for a, value in zip(given, values)]
        kernel = binder.bind(launch.function, parameters)
        if kernel.__code__ is launch.function.__code__:  # the kernel has no source
            values = [keep_int32(argument, value) for argument, value in zip(given, values)]
        declarations.kernel_code, context.ticking = kernel.__code__, not binder.without_source
        # A thread may spin until another thread acts. Yielding at atomics lets the others run first.
        scheduler.atomics_yield = (binder.any("polls") or schedule.interleaves) and bool(
            binder.used & YIELDING
        )
        describe(context, launch, binder)
        context.common_loop = kernel.__code__, binder.codes[0].common_loop
        if binder.codes[0].common_loop:
            context.loops.next_common_test = FIRST_COMMON_TEST
        # 3. the blocks
        fiber = self.fiber if scheduler.atomics_yield or binder.used & SUSPENDING else None
        if fiber is Fiber and not scheduler.atomics_yield:
            # Resuming a generator costs a tenth of a greenlet switch.
            as_generator = binder.as_generator(launch.function, parameters, kernel)
            fiber, kernel = (GeneratorFiber, as_generator) if as_generator else (fiber, kernel)
        unnumbered = "has no source code, so its operators have Python's types and not Numba's"
        if binder.without_source:
            context.silent["branches"] = f"{binder.without_source[0]} has no source code"
        notes = tuple(f"{name} {unnumbered}" for name in binder.without_source)
        code = tuple(copy.__code__ for copy in binder.functions.values())
        limit = resident_blocks(launch, binder.used)
        grid = make_grid(scheduler, kernel, values, launch.grid, launch.block, limit)
        constants = frozenset().union(*(code.comparison_constants for code in binder.codes))
        return context, ThreadProgram(fiber, binder.used, code, notes, constants), grid


def describe(context, launch, binder):
    """Set the properties of the kernel in the Context of a run."""
    context.cooperative = "this_grid" in binder.used
    context.mbarriers = "mbarrier_init" in binder.used
    context.asynchronous = bool(binder.used & ASYNCHRONOUS)
    context.registers_at_launch = entry_registers(launch.registers, binder.used)
    context.views = binder.views()
    for fact in ("synchronizes", "stores", "counts_iterations", "loops_around_grid"):
        setattr(context, fact, binder.any(fact))
    context.deciding = {site: names for code in binder.codes for site, names in code.deciding.items()}
    context.searches = {site: search for code in binder.codes for site, search in code.searches.items()}
    context.needs_schedules = context.synchronizes
    if context.synchronizes:
        context.coverage = Coverage(number for code in binder.codes for number in code.accessed)
    context.kernel = launch.function.__name__
    context.count_instructions = binder.count_instructions
    context.outline = of_codes(lambda: [copy.__code__ for copy in binder.functions.values()])


def make_binder(context, dialect):
    """Return the Binder that binds copies of the kernel and its device functions to this launch."""
    fast = accessors(context.log, context.values, context.enabled.local)
    context.load, context.store = (
        [fast.get(f"{what}{rank}") for rank in range(MAX_FAST_RANK + 1)] for what in ("load", "store")
    )
    fast |= {"tick": context.loops.tick, "branch": context.branch, "unassigned": context.unassigned}
    fast |= {"unset": UNSET, "cuda": dialect, "operand": context.probe and context.probe.operand}
    fast |= {"compared_enough": context.probe and context.probe.done}
    given = CALLED_OPERATORS | {PREFIX + name: value for name, value in fast.items()}
    modules = {"math": mathematics.math, "cmath": mathematics.cmath}
    modules |= {f"numba.cuda.{name}": getattr(dialect, name) for name in ("libdevice", "cg", "fp16")}
    return Binder(context, dialect, modules, BUILTINS, given)


def run(fibers, grid, context, fiber):
    """Run every block, with each thread in a `fiber`. If `fiber` is None, run each thread as a plain call.

    fibers: the FiberPool.
    """
    context.announce("launch_started", context)
    # numpy warns about overflow and division by zero, which are not errors on a GPU
    with np.errstate(all="ignore"), collect_rarely():
        try:
            with Watchdog(context):
                if fiber is None:
                    grid.run_without_waiting()
                else:
                    grid.run(fiber, fibers.of(fiber))
        except OutOfTurns:
            pass
        except OutOfTime:
            context.ended_early = True
            reason = AFTER_ERROR if context.error_limit.is_error_overdue() else AFTER_LIMIT
            context.notes[format_ended_early(reason, grid.ended, grid.blocks)] = None
        except Stuck as error:
            # If the watchdog fired between two threads, nothing has been reported for any thread yet.
            if all(finding.kind not in ENDLESS for finding in context.findings):
                grid.scheduler.report_no_progress(context.thread, None, error.decided)
        context.flush_ended()
    context.announce("launch_finished", context)


def format_ended_early(reason, ended, blocks):
    """Return the note for a launch that was stopped after `ended` of its blocks had ended.

    reason: AFTER_ERROR or AFTER_LIMIT.
    """
    return (
        f"the launch was stopped {reason}, so its results are incomplete:"
        f" {ended:,} of {plural(blocks, 'block')} ran to the end;"
        " simulate(kernel, max_steps=10**9) lets it continue"
    )


def resident_blocks(launch, used):
    """Return the number of blocks that the device holds at a time.

    Raise LaunchError if the launch is cooperative and the grid has more blocks than that.
    """
    spec, blocks = launch.spec, launch.blocks
    limit = spec.resident_blocks(launch.threads, launch.shared)
    if launch.cooperative and "this_grid" in used and blocks > limit:
        raise GridTooLarge(
            f"the kernel synchronises the whole grid, whose {blocks:,} blocks must all be resident at once\n"
            f"  {spec.name} holds {limit:,} blocks of this size: launch fewer blocks, and let each of them do"
            " more work"
        )
    return limit


# --- arguments ----------------------------------------------------------------------------------------------


def bind_values(context, arguments):
    """Return the arguments as threads see them: arrays with addresses, and numbers of Numba's types."""
    arrays = arrays_of(arguments) | described_arrays(arguments)
    addresses = bind_arguments(context.space, arrays)  # {name: (Allocation, offset in bytes)}
    return [bind_value(context, argument, addresses) for argument in arguments]


def keep_int32(argument, value):
    """Return an argument's value with the np.int32 type that the caller passed, also inside tuples.

    A kernel that is not rewritten has no inferred types, so the values must carry them.
    """
    if argument.parts is not None:
        return of_parts(value, map(keep_int32, argument.parts, value))
    return argument.value if type(argument.value) is np.int32 else value


def bind_value(context, argument, addresses):
    """Return one argument as threads see it. Tuples are bound item by item."""
    value, array = argument.value, argument.array
    if argument.parts is not None:
        return of_parts(value, (bind_value(context, part, addresses) for part in argument.parts))
    if array is not None:
        allocation, offset = addresses[argument.name]
        view = array_at(context, allocation, offset, array.dtype, array.shape, array.strides, argument.name)
        return Record(view, ()) if argument.is_record else view
    # clz and popc depend on the width of a narrow integer, so it keeps its type. np.int32 becomes int,
    # because the parameter's inferred type records its width.
    if value is None or isinstance(value, (Enum, np.int8, np.int16)):
        return value
    return domain(value)
