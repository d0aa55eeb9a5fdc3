"""The simulated device of one program: its modules, kernels, launches, errors, streams and events."""

import contextlib
import ctypes
import itertools
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any

import numpy as np

from sim.device import DeviceSpec
from sim.errors import GridTooLarge, LaunchError, RefusedLaunch, SimulatorError, ThreadError
from sim.events import ATOMIC, LOAD, STORE
from sim.launch import simulate
from sim.memory.snapshot import Snapshot
from sim.observers import Misuse
from sim.ptx.compiler_warnings import CompilerWarning
from sim.ptx.module import Kernel, Module, load_ptx
from sim.ptx.syntax import Instruction
from sim.runtime import stream_operations
from sim.runtime.call_sites import UNKNOWN, CallSite
from sim.runtime.errors import (
    ASSERT,
    COOPERATIVE_TOO_LARGE,
    INVALID_CONFIGURATION,
    INVALID_VALUE,
    LAUNCH_FAILURE,
    NOT_SUPPORTED,
    SUCCESS,
)
from sim.runtime.findings import HostFinding, Log
from sim.runtime.footprints import Footprint
from sim.runtime.handlers_graphs import Graphs
from sim.runtime.launches import LaunchAttributes, PreparedLaunch
from sim.runtime.memory import DEVICE, DeviceMemory
from sim.runtime.stream_races import StreamRaces
from sim.runtime.streams import Streams

# largest size in bytes of dynamic shared memory that does not require cudaFuncSetAttribute
STATIC_LIMIT = DeviceSpec.dynamic_shared_bytes
WATCHED_LIMIT = 64 << 20  # host memory up to this size in bytes is compared before and after each launch
NOT_WATCHED = "host accesses to memory that a kernel may still use were not detected"
TARGET = re.compile(r"^\.target sm_(\d+)", re.MULTILINE)
# The mangled names of kernels in CUB and Thrust. For some sizes, these libraries launch kernels that have
# nothing to do, and a program cannot change that. Such a launch is not reported as misuse.
LIBRARY = re.compile(r"_ZN(3cub|6thrust)")
SYSTEM_SCOPE = re.compile(r"\.(sys|mmio)\b|\.volatile\b(?!\.(shared|local))")
OF_SIZE = "in some launches, because managed and pinned memory exceeds 64 MiB"
OF_SCOPE = "after launches of kernels with operations of system scope, such as volatile accesses"


@dataclass
class Options:
    """Options for simulating launches, which `simulate` documents. Each launch runs once per seed."""

    engine: str = "fibers"
    seeds: tuple[int, ...] = (0,)
    observers: tuple[Any, ...] = ()
    max_steps: int | None = None


class ProgramModule:
    """The kernels and variables of one fat binary. The PTX is parsed when it is first needed.

    read: a function that returns the PTX, or raises LaunchError.
    warnings: the compiler's warnings about undefined behaviour in the program.
    """

    def __init__(
        self, read: Callable[[], str], memory: DeviceMemory, warnings: tuple[CompilerWarning, ...] = ()
    ) -> None:
        self.read, self.memory, self.warnings = read, memory, warnings
        self.loaded: Module | None = None

    @property
    def module(self) -> Module:
        """Return the Module. Raise LaunchError if its PTX is unusable."""
        return self.parse()

    def parse(self) -> Module:
        if self.loaded is None:
            self.loaded = load_ptx(self.read())
            self.loaded.store.device = self.memory
            self.loaded.warnings = self.warnings
        return self.loaded


@dataclass
class HostFunction:
    """A kernel that the host code can launch.

    shared_limit: the dynamic shared memory that a launch may request, in bytes.
    """

    owner: ProgramModule
    name: str
    shared_limit: int = STATIC_LIMIT
    made: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        """Return the Kernel. Raise LaunchError if its PTX is unusable."""
        if self.made is None:
            module = self.owner.module
            if self.name not in module.text.functions:
                raise LaunchError(f"the program's PTX has no kernel {self.name}")
            self.made = Kernel(module, module.text.functions[self.name])
        return self.made


@dataclass
class HostVariable:
    """A `__device__`, `__constant__` or `__managed__` variable that the host code can access."""

    owner: ProgramModule
    name: str
    nbytes: int


@dataclass
class Device:
    """The state of the simulated device.

    call: the call site of the current host call.
    functions, variables: maps from the host address, or the handle, that identifies a kernel or variable.
    driver_modules: maps from the handle of a module that the driver API has loaded.
    blas_streams: maps from the handle of a cuBLAS context to its stream.
    error: the last error of a call; the next cudaGetLastError returns it.
    sticky: the error that every call returns after a kernel has aborted, or 0 if no kernel has.
    unchecked: failed calls whose error the program has not read, with their function and error code.
    pending: the stack of launch configurations that `<<<...>>>` has pushed.
    warnings: the warnings of nvcc about undefined behaviour in the program.
    entry_point: the function that returns the address of a function of the driver API, or None.
    """

    options: Options
    log: Log
    spec: DeviceSpec = field(default_factory=DeviceSpec)
    call: CallSite = UNKNOWN
    functions: dict[int, HostFunction] = field(default_factory=dict)
    variables: dict[int, HostVariable] = field(default_factory=dict)
    modules: list[ProgramModule] = field(default_factory=list)
    driver_modules: dict[int, ProgramModule] = field(default_factory=dict)
    blas_streams: dict[int, int] = field(default_factory=dict)
    error: int = 0
    sticky: int = 0
    unchecked: dict[CallSite, tuple[str, int]] = field(default_factory=dict)
    pending: list[tuple] = field(default_factory=list)
    handles: itertools.count = field(default_factory=lambda: itertools.count(0x100))
    events: dict[int, float | None] = field(default_factory=dict)
    streams: Streams = field(default_factory=Streams)
    graphs: Graphs = field(default_factory=Graphs)
    races: StreamRaces = field(default_factory=StreamRaces)
    could_not_run: bool = False
    limits: dict[int, int] = field(default_factory=dict)
    launch_site: CallSite | None = None
    text: Any = None
    warnings: tuple[CompilerWarning, ...] = ()
    entry_point: Callable[[str], int | None] = lambda name: None

    def __post_init__(self) -> None:
        self.memory = DeviceMemory()

    # --- errors ---------------------------------------------------------------------------------------------

    def fail(self, code: int) -> int:
        """Record the error of the current host call, and return it."""
        self.error = code
        return code

    def report(self, kind: str, severity: str, verdict: str, fix: str = "") -> None:
        """Record a finding about the current host call."""
        self.log.add_host(HostFinding(kind, severity, verdict, self.call, fix))

    def take_error(self, clear: bool) -> int:
        """Return the last error.

        clear: whether to reset the last error to success; a sticky error remains.
        """
        code = self.sticky or self.error
        self.unchecked.clear()
        if clear:
            self.error = 0
        return code

    # --- launches -------------------------------------------------------------------------------------------

    def register_module(self, read: Callable[[], str]) -> ProgramModule:
        """Return a new module. `read` returns its PTX."""
        self.modules.append(ProgramModule(read, self.memory, self.warnings))
        return self.modules[-1]

    def compute_capability(self) -> int:
        """Return the newest architecture of the program's PTX, such as 90, and at least 80."""
        newest = 80
        for module in self.modules:
            with contextlib.suppress(LaunchError):
                found = TARGET.search(module.read())
                newest = max(newest, int(found[1]) if found else 0)
        return newest

    def submit(self, stream: int, action: Callable[[], int]) -> int:
        """Execute an operation of a stream, or append it to the graph that the stream is capturing."""
        capture = self.graphs.capturing.get(stream)
        if capture is not None:
            capture.add(self.new_handle(), stream, action, self.call)
            return SUCCESS
        self.streams.issue(stream)
        return stream_operations.execute(self, action)

    def prepare(
        self,
        function: HostFunction,
        grid: tuple,
        block: tuple,
        arguments: int,
        shared: int,
        attributes: LaunchAttributes,
    ) -> Callable[[], int]:
        """Return a function that executes a launch, or reports that its arguments are invalid.

        arguments: the address of an array of pointers to the arguments.
        """
        try:
            values = argument_values(function.kernel, arguments)
        except LaunchError as error:
            refused = error  # because Python deletes `error` after the except block
            return lambda: self.refuse(refused, INVALID_CONFIGURATION)
        return PreparedLaunch(self, function, grid, block, values, shared, attributes)

    def execute(self, launch: PreparedLaunch) -> int:
        """Simulate a launch. Return an error code."""
        if self.sticky:
            return self.sticky
        function, shared, values = launch.function, launch.shared, launch.values
        try:
            kernel = function.kernel
            configured = [self.configure(launch, seed) for seed in self.options.seeds]
            if shared > function.shared_limit:
                raise LaunchError(
                    f"{kernel.__name__} asks for {shared:,} bytes of dynamic shared memory; without"
                    f" cudaFuncSetAttribute(…, cudaFuncAttributeMaxDynamicSharedMemorySize, {shared}) a"
                    f" launch can have {function.shared_limit:,}"
                )
        except LaunchError as error:
            return self.refuse(
                error, INVALID_VALUE if shared > function.shared_limit else INVALID_CONFIGURATION
            )
        try:
            self.name_buffers(kernel, values)
            with self.watched_host_memory(kernel):
                self.run(configured, values)
        except ThreadError as error:  # the kernel executed a trap or failed an assertion
            self.log.launches += 1
            self.report("kernel-abort", "error", str(error))
            self.sticky = ASSERT if "assertion failed" in str(error) else LAUNCH_FAILURE
        except RefusedLaunch as error:
            too_large = isinstance(error, GridTooLarge)
            return self.refuse(error, COOPERATIVE_TOO_LARGE if too_large else INVALID_CONFIGURATION)
        except MemoryError as error:
            self.could_not_run = True
            reason = f"the simulator has too little memory for this launch: {error}"
            advice = "  try --engine fibers, or smaller arrays"
            return self.refuse(LaunchError(f"{reason}\n{advice}"), NOT_SUPPORTED)
        except SimulatorError as error:
            self.could_not_run = True
            return self.refuse(error, NOT_SUPPORTED)
        return SUCCESS

    @contextlib.contextmanager
    def watched_host_memory(self, kernel: Kernel) -> Iterator[None]:
        """After a launch, protect the host memory that it has accessed, until the host waits.

        Do not protect the memory of a kernel that may exchange data with the host while both run.
        """
        mapped = [b for b in self.memory.buffers.values() if b.kind != DEVICE]
        large = sum(b.root.size for b in mapped) > WATCHED_LIMIT
        if mapped and (large or has_system_scope(kernel)):
            self.log.notes[f"{NOT_WATCHED} {OF_SIZE if large else OF_SCOPE}"] = None
            mapped = []
        before = [buffer.root.copy() for buffer in mapped]
        footprint = self.memory.footprint = Footprint() if mapped else None
        try:
            yield
        finally:
            self.memory.footprint = None
        for buffer, old in zip(mapped, before):
            changed = buffer.base + np.flatnonzero(buffer.root != old)
            footprint.add_rows(STORE, np.stack([changed, changed + 1], 1))
        for buffer in mapped:
            for verb, actions in (("writes", (STORE, ATOMIC)), ("reads", (LOAD,))):
                ranges = footprint.within(actions, *buffer.protectable())
                if len(ranges):
                    what = f"{kernel.__name__} {verb} {buffer}"
                    offset = buffer.root.ctypes.data - buffer.base
                    self.streams.watch(ranges + offset, verb == "writes", what, self.call)

    def configure(self, launch: PreparedLaunch, seed: int) -> Any:
        """Return the function that runs a launch. Raise LaunchError if the configuration is invalid."""
        kernel, grid, block = launch.function.kernel, launch.grid, launch.block
        options, observers = self.options, self.options.observers
        if LIBRARY.match(kernel.function.name):
            observers = tuple(observer for observer in observers if observer is not Misuse)
        if self.graphs.footprint is not None:
            if self.races.can_record(prod(grid) * prod(block)):
                observers += (self.graphs.footprint,)
            else:
                self.log.notes[stream_operations.NOT_RECORDED] = None
        simulation = simulate(
            kernel,
            engine=options.engine,
            seed=seed,
            on_finding="report",
            observers=observers,
            spec=self.spec,
            max_steps=options.max_steps,
            cluster=launch.attributes.cluster,
            cooperative=launch.attributes.cooperative,
        )
        return simulation[grid, block, 0, launch.shared]

    def refuse(self, error: Exception, code: int) -> int:
        """Report a launch that did not run, and return the error code."""
        self.log.launches += 1
        verdict = error.verdict if isinstance(error, RefusedLaunch) else str(error)
        self.report("refused-launch", "error", verdict)
        return self.fail(code)

    def run(self, configured: list, values: list[bytes]) -> None:
        """Run a launch once for each seed, each time with the same initial memory. Keep the last run's
        results."""
        stores = [module.loaded.store for module in self.modules if module.loaded is not None]
        roots = [buffer.root for buffer in self.memory.buffers.values()]
        roots += [root for store in stores for root in store.roots.values()]
        before = Snapshot(roots if len(configured) > 1 else ())
        for turn, run in enumerate(configured):
            if turn:
                before.restore()
            self.log.add_launch(run(*values), self.call)
        self.memory.launch_finished()

    def name_buffers(self, kernel: Kernel, values: list[bytes]) -> None:
        """Name each buffer after the parameter that points to it."""
        sizes = kernel.module.origin.element_bytes(kernel.function)
        self.memory.names = {}
        for position, (name, value) in enumerate(zip(kernel.argument_names(values), values)):
            if len(value) != 8:
                continue
            buffer = self.memory.find(int.from_bytes(value, "little"))
            if buffer is not None:
                self.memory.names.setdefault(buffer.base, (name, sizes.get(position, 0)))

    # --- time and handles -----------------------------------------------------------------------------------

    def new_handle(self) -> int:
        """Return the handle of a new stream, event or memory pool."""
        return next(self.handles)

    def now(self) -> float:
        """Return the current time in milliseconds, on the clock that events use."""
        return time.perf_counter() * 1e3


@cache
def has_system_scope(kernel: Kernel) -> bool:
    """Return whether a kernel, or a device function of its module, contains operations of system scope, with
    which it can communicate with the running host. Volatile accesses have system scope, except in shared and
    local memory."""
    functions = (f for f in kernel.module.text.functions.values() if f is kernel.function or not f.entry)
    opcodes = {item.opcode for f in functions for item in f.body or () if isinstance(item, Instruction)}
    return any(map(SYSTEM_SCOPE.search, opcodes))


def argument_values(kernel: Kernel, arguments: int) -> list[bytes]:
    """Return the bytes of each argument of a launch, from an array of pointers to them."""
    parameters = kernel.function.parameters
    if parameters and not arguments:
        raise LaunchError(f"{kernel.__name__} is launched without arguments, but has {len(parameters)}")
    pointers = (ctypes.c_void_p * len(parameters)).from_address(arguments) if parameters else ()
    return [ctypes.string_at(at, p.bytes) for at, p in zip(pointers, parameters)]
