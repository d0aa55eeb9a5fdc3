"""One launch, from the check of its configuration to its Report.

simulate(kernel, ...)[grid, block, stream, shared](*arguments)
"""

import functools
import inspect
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Literal

from sim.automatic import Automatic
from sim.device import DeviceSpec
from sim.engine.base import Engine, Kernel, Launch
from sim.engine.collector import pause_collector
from sim.engine.fiber import Fiber
from sim.engine.os_thread import OSThread
from sim.errors import KernelBug, LaunchError, RefusedLaunch
from sim.events import Finding, Index3, Observer, Site
from sim.frontend.names import positional, python_function
from sim.frontend.resolve import source_of
from sim.hooks import HOOKS, observer_class
from sim.interpreted import Interpreted
from sim.isa.register_counts import registers_of_dispatcher
from sim.memory.argument import check_argument, classify
from sim.nouns import plural
from sim.observers import DEFAULT
from sim.observers.poison import link_causes
from sim.observers.racy_indices import link_races
from sim.report import Report, merge_findings
from sim.unoptimized_code import UnoptimizedCheck


@functools.cache
def native_engine() -> Engine:
    """Return the compiling engine, imported on first use because it needs Numba.

    Raise LaunchError if Numba is not installed.
    """
    try:
        with pause_collector():
            from sim.native.engine import Native
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("numba", "llvmlite"):
            raise
        raise LaunchError(
            'engine="native" compiles kernels with Numba, which is not installed\n  pip install numba, or use'
            ' engine="fibers", which needs no compiler'
        ) from error
    return Native()


EngineName = Literal["auto", "fibers", "threads", "native"]
OnFinding = Literal["raise", "report"]
ENGINES: dict[EngineName, Callable[[], Engine]] = {
    "auto": lambda: Automatic(native_engine),
    "fibers": lambda: Interpreted(Fiber),
    "threads": lambda: Interpreted(OSThread),
    "native": native_engine,
}
MAX_CLUSTER = 8  # the largest cluster that every GPU of compute capability 9.0 accepts
WITHOUT_RETURN_VALUE: "weakref.WeakSet[Any]" = weakref.WeakSet()  # kernels that have already been checked


def simulate(
    kernel: Callable[..., Any],
    *,
    engine: EngineName = "auto",
    seed: int = 0,
    on_finding: OnFinding = "raise",
    observers: Iterable[type[Observer] | Observer] = DEFAULT,
    spec: DeviceSpec = DeviceSpec(),
    max_steps: int | None = None,
    cluster: int | tuple[int, ...] = 1,
    cooperative: bool = True,
) -> "Simulation":
    """Run a Numba CUDA kernel on a simulated GPU.

    `simulate(kernel)[grid, block, stream, shared](*arguments)` returns a Report.

    kernel: a `@cuda.jit` function, which is not modified and can still be launched on a GPU; a plain function
        that uses `cuda`; or a kernel from load_ptx.
    engine: "fibers" interprets each CUDA thread, usually as a greenlet. "threads" runs each in an
        operating-system thread, one at a time, in the same order and with the same results. "native" compiles
        the kernel for the CPU with Numba (sim/native). "auto" (the default) begins like "fibers", and
        compiles the kernel if its launches take long (sim/automatic.py).
    seed: determines the order in which threads and blocks are resumed. Equal seeds give equal runs.
    on_finding: "raise" raises KernelBug at the end of a launch in which an observer found an error; "report"
        only reports it. Warnings never raise.
    observers: classes or instances of sim.events.Observer (see sim.observers). With (), nothing is observed,
        and an out-of-bounds access raises IndexError.
    spec: the limits of the simulated device.
    max_steps: the maximum number of `while` iterations, summed over all threads, between two thread exits. By
        default, a loop that changes something may run for about 8 s. The limit is 64 s if the loop compares
        a number that approaches a bound, and 12 s if that number rises and falls although no thread waits for
        another. A loop that changes nothing is reported after a million iterations or 1 s. By default, a
        launch also ends 6 s after its first error. A read of unwritten shared memory counts only if its value
        has an effect.
    cluster: the blocks per cluster, an integer or a tuple (x, y, z). A PTX kernel that declares its cluster
        (.reqnctapercluster) needs none.
    cooperative: whether a kernel with a grid barrier is launched cooperatively. If it is False, as after
        `<<<...>>>` in CUDA C++, grid_group::is_valid() is false and grid_group::sync() executes a trap. Numba
        launches such kernels cooperatively, so Python kernels require True.

    Arguments may be numpy arrays, CPU torch tensors, records, numbers, and tuples of these. Arrays, tensors
    and records are modified in place. grid and block are integers or tuples (x, y, z). `stream` is accepted
    and ignored. `shared` is the number of bytes of dynamic shared memory.

    Raise LaunchError before any thread runs, KernelBug for errors found by observers, and ThreadError for an
    exception inside a thread.
    """
    function = kernel if isinstance(kernel, Kernel) else python_function(kernel)
    if function is None:
        raise LaunchError(
            "simulate wants a @cuda.jit kernel, a plain Python function or a kernel of load_ptx, got"
            f" {kernel!r}"
        )
    if engine not in ENGINES:
        raise LaunchError(f"engine {engine!r} is not one of {', '.join(map(repr, ENGINES))}")
    if on_finding not in ("raise", "report"):
        raise LaunchError(f"on_finding {on_finding!r} is neither 'raise' nor 'report'")
    check_count("seed", seed)
    if max_steps is not None:
        check_count("max_steps", max_steps)
    if not isinstance(spec, DeviceSpec):
        raise LaunchError(f"spec is {spec!r}; wanted a sim.DeviceSpec")
    if not (cooperative or isinstance(function, Kernel)):
        raise LaunchError(
            "cooperative=False is only for kernels from PTX or CUDA C++: Numba launches every kernel with a"
            " grid barrier cooperatively\n  leave out cooperative="
        )
    one, given = (1, 1, 1), dimensions("cluster", cluster, (MAX_CLUSTER,) * 3)
    registers, watching = registers_of_dispatcher(kernel), check_observers(observers)
    launch = Launch(
        function, (), one, one, 0, watching, spec, seed, max_steps, given, bool(cooperative), registers
    )
    return Simulation(engine, on_finding, launch)


def check_count(what: str, value: Any) -> None:
    if not hasattr(value, "__index__") or value < 0:
        raise LaunchError(f"{what} is {value!r}; wanted an integer, 0 or more")


def check_observers(observers: Any) -> tuple[Any, ...]:
    """Return a launch's observers as a tuple. Raise LaunchError for anything that is not an Observer."""
    given = tuple(observers) if isinstance(observers, Iterable) else (observers,)
    for observer in given:
        if not issubclass(observer if isinstance(observer, type) else type(observer), Observer):
            raise LaunchError(
                f"observers has {observer!r}; wanted classes or instances of sim.events.Observer, such as"
                " sim.observers.Races"
            )
        # Engines call a hook only if the class overrides it; attributes of the instance are ignored.
        own = vars(observer) if isinstance(observer, Observer) else {}
        hooks = [hook for hook in HOOKS if hook in own]
        if hooks:
            raise LaunchError(
                f"observers has {observer!r} with {hooks[0]} as an attribute of the instance, which is never"
                f" called; wanted a subclass of Observer with a method {hooks[0]}"
            )
    return given


@dataclass(frozen=True)
class Simulation:
    """A kernel with the options for its simulation. Index it with a launch configuration."""

    engine: EngineName
    on_finding: OnFinding
    launch: Launch  # the launch, without its configuration and arguments

    def __call__(self, *arguments: Any) -> Report:
        raise LaunchError("the grid and the block are missing; wanted simulate(kernel)[grid, block](...)")

    def __getitem__(self, configuration: tuple[Any, ...]) -> Callable[..., Report]:
        if not isinstance(configuration, tuple) or not 2 <= len(configuration) <= 4:
            raise LaunchError(
                "wanted [grid, block], [grid, block, stream] or [grid, block, stream, shared], got"
                f" [{configuration!r}]"
            )
        grid, block, _, shared = (*configuration, 0, 0)[:4]
        spec, by_ptx = self.launch.spec, isinstance(self.launch.function, Kernel)
        grid, block = dimensions("grid", grid, spec.max_grid), block_dimensions(block, spec)
        cluster = cluster_dimensions(self.launch, grid)
        nbytes = shared_bytes(shared, spec, by_ptx)
        launch = replace(self.launch, grid=grid, block=block, shared=nbytes, cluster=cluster)
        return functools.partial(run_launch, self.engine, self.on_finding, launch)


def run_launch(engine: EngineName, on_finding: OnFinding, launch: Launch, *arguments: Any) -> Report:
    """Return the Report of a launch with these arguments. Raise the same errors as `simulate`."""
    names = argument_names(launch.function, arguments)
    classified = tuple(map(classify, names, arguments))
    if not isinstance(launch.function, Kernel):
        refuse_return_value(launch.function)
        for argument in classified:
            check_argument(argument)
    launch = replace(launch, arguments=classified)
    check, began = UnoptimizedCheck(launch), time.process_time()
    outcome = ENGINES[engine]().run(launch)
    removed = check.findings(time.process_time() - began, outcome.findings)
    # A kernel in another language rewords the findings in that language's terminology.
    reword = launch.function.reword if isinstance(launch.function, Kernel) else list
    findings = reword(link_races(link_causes(outcome.findings, launch.block)))
    findings += unreported(reword(removed), findings)
    if isinstance(launch.function, Kernel) and any(
        observer_class(each) in DEFAULT for each in launch.observers
    ):
        findings += unreported(launch.function.compiler_warnings(), findings)
    fields = vars(outcome) | {
        "engine": outcome.engine or engine,
        "findings": merge_findings(findings, outcome.code),
    }
    report = Report(
        launch.function.__name__, grid=launch.grid, block=launch.block, seed=launch.seed, **fields
    )
    if on_finding == "raise" and report.errors:
        raise KernelBug(report)
    return report


def unreported(warnings: list[Finding], findings: list[Finding]) -> list[Finding]:
    """Return the findings in `warnings`, which come from the compiler or from unoptimised code, except for
    those about a line where the launch itself has shown an error of the same kind."""
    errors = [f for f in findings if f.severity == "error"]
    shown = {(f.kind, site.function, site.line) for f in errors for site in sites_of(f)}
    return [w for w in warnings if shown.isdisjoint((w.kind, s.function, s.line) for s in sites_of(w))]


def sites_of(finding: Finding) -> list[Site]:
    return [site for site in (finding.site, *(a.site for a in finding.accesses)) if site is not None]


def refuse_return_value(function: Any) -> None:
    """Raise LaunchError if a kernel returns a value, which no caller on a GPU could receive."""
    if function in WITHOUT_RETURN_VALUE:
        return
    with pause_collector():
        source = source_of(function)
    if source is not None and (returned := source.value_return()) is not None:
        site = source.site("call", returned)
        raise RefusedLaunch(
            f"the kernel returns a value: {site.function} line {site.line}  {site.source}\n  wanted `return`"
            " alone: store the result in an array that is an argument, out[i] = ..."
        )
    WITHOUT_RETURN_VALUE.add(function)


# --- limits of a configuration ------------------------------------------------------------------------------


def dimensions(what: str, value: Any, limits: Index3) -> Index3:
    """Return `value`, an integer or a tuple of up to three, as (x, y, z). Raise LaunchError if it exceeds
    `limits`."""
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
            raise RefusedLaunch(f"{what}.{axis} is {n:,}; the device takes 1 to {limit:,}")
    return full


def block_dimensions(value: Any, spec: DeviceSpec) -> Index3:
    block = dimensions("block", value, spec.max_block)
    if prod(block) > spec.max_threads_per_block:
        raise RefusedLaunch(
            f"a block of {' x '.join(map(str, block))} has {plural(prod(block), 'thread')}; the"
            " device takes up to"
            f" {spec.max_threads_per_block:,}"
        )
    return block


def cluster_dimensions(launch: Launch, grid: Index3) -> Index3:
    """Return the blocks per cluster of a launch. Raise LaunchError if they do not divide the grid, or if the
    kernel
    declares others."""
    declared = launch.function.cluster if isinstance(launch.function, Kernel) else None
    cluster = launch.cluster
    if declared and cluster not in ((1, 1, 1), declared):
        raise RefusedLaunch(
            f"the kernel was compiled for clusters of {declared} blocks, got {cluster}\n  leave out cluster=,"
            " or compile the kernel without __cluster_dims__"
        )
    cluster = declared or cluster
    if prod(cluster) > MAX_CLUSTER:
        raise RefusedLaunch(
            f"a cluster of {prod(cluster)} blocks; every device takes up to {MAX_CLUSTER}\n  launch clusters"
            f" whose dimensions have a product of at most {MAX_CLUSTER}, got {cluster}"
        )
    if any(n % size for n, size in zip(grid, cluster)):
        wanted = tuple(-(-n // size) * size for n, size in zip(grid, cluster))
        raise RefusedLaunch(
            f"a grid of {grid} blocks cannot be divided into clusters of {cluster}\n  each dimension of the"
            f" grid must be a multiple of the cluster's: launch {wanted} blocks, and let the additional"
            " blocks only take part in the barriers of their cluster"
        )
    return cluster


def shared_bytes(value: int, spec: DeviceSpec, by_ptx: bool) -> int:
    """Return the number of bytes of dynamic shared memory. Raise LaunchError above the limit.

    Numba never requests more than the default limit from the driver; a launcher of PTX may request a block's
    maximum.
    """
    if not hasattr(value, "__index__"):
        raise LaunchError(f"{value!r} bytes of dynamic shared memory; wanted an integer")
    most, who = spec.dynamic_shared_bytes, "Numba can ask for"
    if by_ptx:
        most, who = spec.shared_bytes_per_block, "a block can have"
    if not 0 <= value <= most:
        raise RefusedLaunch(f"{value:,} bytes of dynamic shared memory; {who} 0 to {most:,}")
    return int(value)


def argument_names(function: Any, arguments: tuple[Any, ...]) -> list[str]:
    if isinstance(function, Kernel):
        return function.argument_names(arguments)
    names = positional(function)
    if names is not None and len(arguments) == len(names):
        return names
    try:
        bound = inspect.signature(function).bind(*arguments)
    except TypeError as error:
        raise LaunchError(
            f"{function.__name__}{inspect.signature(function)} was launched with"
            f" {plural(len(arguments), 'argument')}:"
            f" {error}"
        ) from None
    return list(bound.arguments)
