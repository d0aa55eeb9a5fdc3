"""The protocol of an engine: `engine.run(launch)` returns an Outcome."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from math import prod
from types import CodeType
from typing import Any, Protocol

from sim.device import DeviceSpec
from sim.events import Column, Finding, Index3, Observer, Site
from sim.memory.argument import Argument
from sim.recording import AsyncEvent, Recording


class Kernel(ABC):
    """A kernel from a front end other than Python, such as PTX. A Python kernel is a plain function."""

    __name__: str
    cluster: Index3 | None = None  # blocks per cluster, if the kernel declares them

    @abstractmethod
    def argument_names(self, arguments: tuple[Any, ...]) -> list[str]:
        """Return a name for each argument of a launch. Raise LaunchError for too few or too many
        arguments."""

    @abstractmethod
    def prepare(
        self, fiber: Any, launch: "Launch", make_grid: Any, observers: Any, schedule: Any, poison: Any
    ) -> tuple[Any, Any, Any]:
        """Return (Context, ThreadProgram, Grid) for one run of the launch, without starting it."""

    @abstractmethod
    def reword(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings in the terminology of the kernel's language."""

    seconds_unoptimized = 0.0  # CPU seconds of the checks with unoptimised code (sim.unoptimized_code)

    def unoptimized(self) -> "Kernel | None":
        """Return the kernel compiled without optimisation, or None if this code is not available or cannot
        show further faults."""
        return None

    def removed_variables(self) -> set[str]:
        """Return the names of the shared variables that only the unoptimised code contains."""
        return set()

    def is_own_source(self, site: Site) -> bool:
        """Return whether a site is in the program's own source, and not in a library."""
        return True

    def may_copy_structures(self, site: Site) -> bool:
        """Return whether the function at a site may copy structures, whose padding has no value."""
        return False

    def compiler_warnings(self) -> list[Finding]:
        """Return the warnings of the kernel's compiler about undefined behaviour."""
        return []


@dataclass(frozen=True)
class Launch:
    """A kernel and the configuration of one launch."""

    function: Any  # a Python function, or a Kernel
    arguments: tuple[Argument, ...]
    grid: Index3
    block: Index3
    shared: int  # bytes of dynamic shared memory
    observers: tuple[type[Observer] | Observer, ...]  # classes or instances
    spec: DeviceSpec
    seed: int
    max_steps: int | None
    cluster: Index3 = (1, 1, 1)  # blocks per cluster
    cooperative: bool = True  # whether the launch is cooperative if the kernel needs this
    registers: int | None = None  # registers per thread at launch, if the options of the kernel state them

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """The number of threads in a block."""
        return prod(self.block)


@dataclass
class Outcome:
    """The result of a launch.

    findings: the observers' findings, not yet merged.
    trace: a Recording, or None if none was requested.
    code: the code objects that ran, beginning with the kernel's.
    watched: {observer's name: fraction of the launch that the observer received}.
    columns: how to display the counters of source lines.
    async_events: the bulk copies, wgmma and waits of the first block.
    engine: the name of the engine that ran the launch, if the engine "auto" has chosen it.
    """

    findings: list[Finding] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    code: tuple[CodeType, ...] = ()
    trace: Recording | None = None
    watched: dict[str, float] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    async_events: tuple[AsyncEvent, ...] = ()
    engine: str | None = None


class Engine(Protocol):
    """An engine, which runs a launch from the first block to the last, and modifies the arguments in
    place."""

    def run(self, launch: Launch) -> Outcome:
        """Run a launch. Raise LaunchError if it cannot run, and ThreadError if a thread raises an
        exception."""
        ...
