"""simulate(kernel, ...)[grid, block, stream, shared](*arguments): one launch from end to end."""
import builtins
import functools
import inspect
from dataclasses import dataclass
from enum import Enum
from math import prod

import numpy as np

from sim.isa import mathematics, operators
from sim.context import Context
from sim.device import DeviceSpec
from sim.dialect import Cuda
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.engine.os_thread import OSThread
from sim.engine.schedules import Seeded
from sim.engine.scheduler import Scheduler
from sim.engine.watchdog import Watchdog
from sim.errors import KernelBug, LaunchError, Stuck
from sim.frontend.names import python_function
from sim.frontend.rebind import SUSPENDING, YIELDING, Binder
from sim.frontend.sites import COMPARISONS, OPERATORS, PREFIX, UNARY, UNSET
from sim.frontend.types import NUMBER_BUILTINS, type_of_value
from sim.memory.array import Array, accessors, zip_
from sim.memory.declared import Declarations
from sim.memory.spaces import AddressSpace, bind_arguments, host_array, named_leaves
from sim.observers import DEFAULT
from sim.report import Report, finish
from sim.retrial import Retrial

ENGINES = {"fibers": Fiber, "threads": OSThread, "native": None}  # native has a module of its own
BUILTINS = vars(builtins) | NUMBER_BUILTINS | {"range": operators.range_, "zip": zip_}
NUMBERS = {PREFIX + name: getattr(operators, name) for name in [*OPERATORS.values(), *UNARY.values(), *COMPARISONS.values()]}


def simulate(kernel, *, engine="fibers", seed=0, on_finding="raise", observers=DEFAULT, spec=DeviceSpec(), max_steps=None):
    """Run a Numba CUDA kernel on a simulated GPU: `simulate(kernel)[grid, block, stream, shared](*arguments)` returns a Report.

    kernel: a `@cuda.jit` function, which stays as it is and can still be launched on a GPU, or a plain function that uses `cuda`.
    engine: "fibers" (greenlets; the default) or "threads" (one operating-system thread per CUDA thread, one running at a time): same order, same results;
        or "native" (compiled for the CPU by Numba; sim/native).
    seed: the order in which threads and blocks are resumed. Equal seeds give equal runs.
    on_finding: "raise" raises KernelBug at the end of a launch in which a tool found an error; "report" only reports. Warnings never raise.
    observers: the tools (sim.observers), classes or instances of sim.events.Observer; () switches all off, and an access outside its array is then an IndexError.
    spec: the simulated device's limits.
    max_steps: how often `while` loops may go round, over all threads, before one of the threads ends; by default a million times, or for 8 s.

    Arguments are numpy arrays or CPU tensors of torch (changed in place), numbers, and tuples of them. grid and block are numbers or tuples (x, y, z);
    `stream` is accepted and ignored; `shared` is the number of bytes of dynamic shared memory.

    Raises LaunchError before anything runs, KernelBug for what the tools found, ThreadError for an exception inside a thread.
    """
    if python_function(kernel) is None:
        raise LaunchError(f"simulate wants a @cuda.jit kernel or a plain Python function, got {kernel!r}")
    if engine not in ENGINES:
        raise LaunchError(f"engine {engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if on_finding not in ("raise", "report"):
        raise LaunchError(f"on_finding {on_finding!r} is neither 'raise' nor 'report'")
    return Simulation(python_function(kernel), engine, seed, on_finding, tuple(observers), spec, max_steps)


@dataclass(frozen=True)
class Simulation:
    """A kernel and how to simulate it; index it with the launch configuration."""

    function: object
    engine: str
    seed: int
    on_finding: str
    observers: tuple
    spec: DeviceSpec
    max_steps: int | None

    def __getitem__(self, configuration):
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(f"wanted [grid, block], [grid, block, stream] or [grid, block, stream, shared], got [{configuration!r}]")
        grid, block, _, shared = (*configuration, 0, 0)[:4]
        return Launch(self, dimensions("grid", grid, self.spec.max_grid), block_dimensions(block, self.spec), shared_bytes(shared, self.spec))


@dataclass(frozen=True)
class Threads:
    """What every thread runs: `kernel`, in a `fiber` (None: nobody waits); the names of cuda that are `used`, the code objects, and notes for the report."""

    kernel: object
    fiber: object
    used: set
    code: tuple
    notes: tuple = ()


@dataclass(frozen=True)
class Launch:
    """A simulation with its configuration: call it with the kernel's arguments."""

    simulation: Simulation
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int

    def __call__(self, *arguments):
        how = self.simulation
        given = dict(zip(argument_names(how.function, arguments), arguments))
        report = native().launch(self, given) if how.engine == "native" else self.scheduled(given, self.interpreted)
        if how.on_finding == "raise" and report.errors:
            raise KernelBug(report)
        return report

    def scheduled(self, given, prepare, grid_type=Grid, notes=()):
        """The Report of a launch whose threads run one at a time; `prepare` says what each of them runs."""
        observers = [observer() if isinstance(observer, type) else observer for observer in self.simulation.observers]
        ready = functools.partial(self.ready, given, prepare, grid_type)
        context, threads, grid = ready(observers, Seeded(np.random.default_rng(self.simulation.seed)))
        with Retrial(context, threads.used, observers) as retrial:
            self.run(grid, context, threads.fiber)
            more = retrial.notes(ready, self.run)
        return self.report(finish(context.findings), context.counters, (*notes, *threads.notes, *more), threads.code, context.trace)

    def ready(self, given, prepare, grid_type, observers, schedule, poison=None):
        """(context, threads, grid) of one run of the launch, in which nothing has run yet."""
        how = self.simulation
        # 1. one context for this launch, and the arguments in its memory
        context = Context(observers, how.spec, AddressSpace(), self.block, schedule, how.max_steps, poison)
        values = bind(context, given)
        # 2. a copy of the kernel whose names are this launch's
        scheduler = Scheduler(context)
        threads = prepare(scheduler, Declarations(context, self.shared), given, values)
        # 3. its blocks
        return context, threads, grid_type(scheduler, threads.kernel, values, self.grid, self.block, self.resident(threads.used, how.spec))

    def interpreted(self, scheduler, declarations, given, values):
        """Threads that Python runs: a copy of the kernel with names of this launch."""
        context, function = scheduler.context, self.simulation.function
        binder = self.binder(context, Cuda(scheduler, declarations, self.grid, self.block))
        kernel = binder.bind(function, [(name, type_of_value(value)) for name, value in zip(given, values)])
        declarations.kernel_code, context.ticking = kernel.__code__, not binder.without_source
        scheduler.takes_turns, context.synchronizes = binder.loops and bool(binder.used & YIELDING), binder.synchronizes
        waits = scheduler.takes_turns or binder.used & SUSPENDING
        notes = tuple(f"{name} has no source to number, so its operators are Python's own" for name in binder.without_source)
        return Threads(kernel, ENGINES[self.simulation.engine] if waits else None, binder.used, tuple(copy.__code__ for copy in binder.functions.values()), notes)

    threads = staticmethod(Threads)

    def report(self, findings, counters, notes=(), code=(), trace=None):
        how = self.simulation
        return Report(how.function.__name__, how.engine, self.grid, self.block, how.seed, findings, counters, tuple(notes), code, trace)

    def binder(self, context, dialect):
        given = NUMBERS | {PREFIX + name: function for name, function in accessors(context.log, context.values).items()}
        given |= {PREFIX + "tick": context.tick, PREFIX + "branch": context.branch, PREFIX + "unassigned": context.unassigned, PREFIX + "unset": UNSET, PREFIX + "cuda": dialect}
        modules = {"math": mathematics.math, "cmath": mathematics.cmath, "numba.cuda.libdevice": dialect.libdevice, "numba.cuda.cg": dialect.cg, "numba.cuda.fp16": dialect.fp16}
        return Binder(context, dialect, modules, BUILTINS, given)

    def run(self, grid, context, fiber):
        """Run every block, each thread in a `fiber`; without one, from start to end."""
        context.announce("launch_started", context)
        with np.errstate(all="ignore"), Watchdog(context):
            try:
                if fiber is None:
                    grid.run_straight()
                else:
                    grid.run(fiber)
            except Stuck:
                if all(finding.kind != "no-progress" for finding in context.findings):  # it came between two threads
                    grid.scheduler.stuck(context.thread, None)
        context.announce("launch_finished", context)

    def resident(self, used, spec):
        """How many blocks may be alive at once; a grid that synchronises must fit whole."""
        blocks, limit = prod(self.grid), spec.resident_blocks(prod(self.block), self.shared)
        if "this_grid" in used and blocks > limit:
            raise LaunchError(f"the kernel synchronises the whole grid, whose {blocks:,} blocks must all be resident at once\n"
                              f"  {spec.name} holds {limit:,} blocks of this size: launch fewer and let each do more")
        return limit


def native():
    """The native engine, which needs Numba and is not imported before somebody asks for it."""
    try:
        from sim.native import runtime
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
            raise
        raise LaunchError('engine="native" compiles kernels with Numba, which is not installed\n  pip install numba, or use engine="fibers", which needs no compiler') from error
    return runtime


# --- what a launch may ask for ------------------------------------------------------------------------------------------------


def dimensions(what, value, limits):
    """`value` (a number or up to three) as (x, y, z) within `limits`."""
    given = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    try:
        numbers = tuple(n.__index__() for n in given)
    except AttributeError:
        raise LaunchError(f"{what} {value!r} must be an integer or a tuple of up to three integers") from None
    if not 1 <= len(numbers) <= 3:
        raise LaunchError(f"{what} {value!r} has {len(numbers)} dimensions; wanted one to three")
    full = (*numbers, 1, 1)[:3]
    for axis, n, limit in zip("xyz", full, limits):
        if not 1 <= n <= limit:
            raise LaunchError(f"{what}.{axis} is {n:,}; the device takes 1 to {limit:,}")
    return full


def block_dimensions(value, spec):
    block = dimensions("block", value, spec.max_block)
    if prod(block) > spec.max_threads_per_block:
        raise LaunchError(f"a block of {' x '.join(map(str, block))} has {prod(block):,} threads; the device takes up to {spec.max_threads_per_block:,}")
    return block


def shared_bytes(value, spec):
    if not 0 <= value <= spec.dynamic_shared_bytes:
        raise LaunchError(f"{value:,} bytes of dynamic shared memory; Numba can ask for 0 to {spec.dynamic_shared_bytes:,}")
    return int(value)


def argument_names(function, arguments):
    try:
        bound = inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise LaunchError(f"{function.__name__}{inspect.signature(function)} was launched with {len(arguments)} arguments: {error}") from None
    return list(bound.arguments)


def bind(context, arguments):
    """The kernel's arguments as its threads see them: arrays checked and named, numbers as Numba types them."""
    arrays = {}
    for name, value in named_leaves(arguments.items()):
        array = host_array(value, name)
        if array is not None:
            arrays[name] = array
    places = bind_arguments(context.space, arrays)
    return [bound(context, name, value, arrays, places) for name, value in arguments.items()]


def bound(context, name, value, arrays, places):
    if isinstance(value, tuple):
        parts = [bound(context, f"{name}[{i}]", part, arrays, places) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if name in arrays:
        array, (allocation, offset) = arrays[name], places[name]
        return Array(context, allocation, offset, array.dtype, array.shape, array.strides, name)
    if value is None or isinstance(value, (Enum, np.void, np.int8, np.int16, np.int32)):  # clz and popc count in the width of a narrow integer
        return value
    if isinstance(value, (int, float, complex, np.bool_, np.number)) or type(value).__module__ == "ml_dtypes":
        return operators.domain(value)
    raise LaunchError(f"argument {name} is a {type(value).__name__}; a kernel takes numpy arrays, CPU tensors, numbers and tuples of them")
