"""simulate(kernel, ...)[grid, block, stream, shared](*arguments): one launch from end to end."""

import inspect
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from typing import Any

from sim.device import DeviceSpec
from sim.engine.base import Engine, Launch
from sim.engine.fiber import Fiber
from sim.engine.os_thread import OSThread
from sim.errors import KernelBug, LaunchError
from sim.events import Index3, Observer
from sim.frontend.names import python_function
from sim.frontend.resolve import source_of
from sim.interpreted import Interpreted
from sim.memory.spaces import check_argument, named_leaves
from sim.observers import DEFAULT
from sim.report import Report, finish


def native() -> Engine:
    """The native engine, which needs Numba and is not imported before it is asked for."""
    try:
        from sim.native.engine import Native
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
            raise
        raise LaunchError(
            'engine="native" compiles kernels with Numba, which is not installed\n  pip install numba, or use'
            ' engine="fibers", which needs no compiler'
        ) from error
    return Native()


ENGINES: dict[str, Callable[[], Engine]] = {
    "fibers": lambda: Interpreted(Fiber),
    "threads": lambda: Interpreted(OSThread),
    "native": native,
}
CHECKED: "weakref.WeakSet[Any]" = weakref.WeakSet()  # kernels that return no value


def simulate(
    kernel: Callable[..., Any],
    *,
    engine: str = "fibers",
    seed: int = 0,
    on_finding: str = "raise",
    observers: Iterable[type[Observer] | Observer] = DEFAULT,
    spec: DeviceSpec = DeviceSpec(),
    max_steps: int | None = None,
) -> "Simulation":
    """Run a Numba CUDA kernel on a simulated GPU: `simulate(kernel)[grid, block, stream, shared](*arguments)`
    returns a Report.

    kernel: a `@cuda.jit` function, which stays as it is and can still be launched on a GPU, or a plain
        function that uses `cuda`; or a kernel of load_ptx.
    engine: "fibers" (greenlets; the default) or "threads" (one operating-system thread per CUDA thread, one
        running at a time): same order, same results;
        or "native" (compiled for the CPU by Numba; sim/native).
    seed: the order in which threads and blocks are resumed. Equal seeds give equal runs.
    on_finding: "raise" raises KernelBug at the end of a launch in which a tool found an error; "report" only
        reports. Warnings never raise.
    observers: the tools (sim.observers), classes or instances of sim.events.Observer; () switches all off,
        and an access outside its array is then an IndexError.
    spec: the simulated device's limits.
    max_steps: how often `while` loops may go round, over all threads, before one of the threads ends; by
        default a million times, or for 8 s.

    Arguments are numpy arrays or CPU tensors of torch (changed in place), numbers, and tuples of them. grid
    and block are numbers or tuples (x, y, z); `stream` is accepted and ignored; `shared` is the number of
    bytes of dynamic shared memory.

    Raises LaunchError before anything runs, KernelBug for what the tools found, ThreadError for an exception
    inside a thread.
    """
    function = kernel if hasattr(kernel, "ready") else python_function(kernel)
    if function is None:
        raise LaunchError(
            "simulate wants a @cuda.jit kernel, a plain Python function or a kernel of load_ptx, got"
            f" {kernel!r}"
        )
    if engine not in ENGINES:
        raise LaunchError(f"engine {engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if on_finding not in ("raise", "report"):
        raise LaunchError(f"on_finding {on_finding!r} is neither 'raise' nor 'report'")
    return Simulation(function, engine, seed, on_finding, tuple(observers), spec, max_steps)


@dataclass(frozen=True)
class Simulation:
    """A kernel and how to simulate it; index it with the launch configuration."""

    function: Any  # a Python function, or a kernel of load_ptx
    engine: str
    seed: int
    on_finding: str
    observers: tuple[type[Observer] | Observer, ...]
    spec: DeviceSpec
    max_steps: int | None

    def __getitem__(self, configuration: tuple[Any, ...]) -> "Configured":
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                "wanted [grid, block], [grid, block, stream] or [grid, block, stream, shared], got"
                f" [{configuration!r}]"
            )
        grid, block, _, shared = (*configuration, 0, 0)[:4]
        return Configured(
            self,
            dimensions("grid", grid, self.spec.max_grid),
            block_dimensions(block, self.spec),
            shared_bytes(shared, self.spec, hasattr(self.function, "ready")),
        )


@dataclass(frozen=True)
class Configured:
    """A simulation with its configuration: call it with the kernel's arguments."""

    simulation: Simulation
    grid: Index3
    block: Index3
    shared: int

    def __call__(self, *arguments: Any) -> Report:
        how, launch = self.simulation, self.launch(arguments)
        outcome = ENGINES[how.engine]().run(launch)
        worded = getattr(launch.function, "worded", list)  # another language has other names for things
        report = Report(
            launch.function.__name__,
            how.engine,
            self.grid,
            self.block,
            how.seed,
            finish(worded(outcome.findings), outcome.code),
            outcome.counters,
            outcome.notes,
            outcome.code,
            outcome.trace,
        )
        if how.on_finding == "raise" and report.errors:
            raise KernelBug(report)
        return report

    def launch(self, arguments: tuple[Any, ...]) -> Launch:
        """What an engine gets."""
        how = self.simulation
        named = dict(zip(argument_names(how.function, arguments), arguments))
        if not hasattr(how.function, "ready"):
            check_returns(how.function)
            for name, value in named_leaves(named.items()):
                check_argument(value, name)
        return Launch(
            how.function,
            named,
            self.grid,
            self.block,
            self.shared,
            how.observers,
            how.spec,
            how.seed,
            how.max_steps,
        )


def check_returns(function: Any) -> None:
    """A LaunchError if a kernel returns a value: on a GPU nothing could take it."""
    if function in CHECKED:
        return
    source = source_of(function)
    returned = None if source is None else source.returned()
    if source is not None and returned is not None:
        site = source.site("call", returned)
        raise LaunchError(
            f"the kernel returns a value: {site.function} line {site.line}  {site.source}\n  wanted `return`"
            " alone: store the result in an array that is an argument, out[i] = ..."
        )
    CHECKED.add(function)


# --- what a launch may ask for ------------------------------------------------------------------------------


def dimensions(what: str, value: Any, limits: Index3) -> Index3:
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


def block_dimensions(value: Any, spec: DeviceSpec) -> Index3:
    block = dimensions("block", value, spec.max_block)
    if prod(block) > spec.max_threads_per_block:
        raise LaunchError(
            f"a block of {' x '.join(map(str, block))} has {prod(block):,} threads; the device takes up to"
            f" {spec.max_threads_per_block:,}"
        )
    return block


def shared_bytes(value: int, spec: DeviceSpec, by_ptx: bool) -> int:
    """Dynamic shared memory; what launches PTX may ask the driver for all that a block can have."""
    if not hasattr(value, "__index__"):
        raise LaunchError(f"{value!r} bytes of dynamic shared memory; wanted an integer")
    most, who = (
        (spec.shared_bytes_per_block, "a block can have")
        if by_ptx
        else (spec.dynamic_shared_bytes, "Numba can ask for")
    )
    if not 0 <= value <= most:
        raise LaunchError(f"{value:,} bytes of dynamic shared memory; {who} 0 to {most:,}")
    return int(value)


def argument_names(function: Any, arguments: tuple[Any, ...]) -> list[str]:
    if hasattr(function, "argument_names"):
        return function.argument_names(arguments)
    try:
        bound = inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise LaunchError(
            f"{function.__name__}{inspect.signature(function)} was launched with {len(arguments)} arguments:"
            f" {error}"
        ) from None
    return list(bound.arguments)
