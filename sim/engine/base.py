"""What an engine gets, and what it returns: launch → engine.run(launch) → outcome."""

from dataclasses import dataclass, field
from math import prod
from types import CodeType
from typing import Any, Protocol, runtime_checkable

from sim.device import DeviceSpec
from sim.events import Column, Finding, Index3, Observer, Recording


@runtime_checkable
class Kernel(Protocol):
    """A kernel of another front end, such as PTX. Any other kernel is a Python function."""

    __name__: str

    def argument_names(self, arguments: tuple[Any, ...]) -> list[str]:
        """Return the name of each argument of a launch. Raise LaunchError for too few or too many."""
        ...

    def prepare(
        self, fiber: Any, launch: "Launch", make_grid: Any, observers: Any, schedule: Any, poison: Any
    ) -> tuple[Any, Any, Any]:
        """Return (Context, ThreadProgram, Grid) of one run of the launch that has not begun yet."""
        ...

    def reword(self, findings: list[Finding]) -> list[Finding]:
        """Return the findings in the words of the kernel's language."""
        ...


@dataclass(frozen=True)
class Launch:
    """A kernel and all that a launch of it says. `arguments` are as the caller gave them, by name;
    `observers` classes or instances of sim.events.Observer."""

    function: Any  # a Python function, or a Kernel
    arguments: dict[str, Any]
    grid: Index3
    block: Index3
    shared: int  # bytes of dynamic shared memory
    observers: tuple[type[Observer] | Observer, ...]
    spec: DeviceSpec
    seed: int
    max_steps: int | None

    @property
    def blocks(self) -> int:
        return prod(self.grid)

    @property
    def threads(self) -> int:
        """Of a block."""
        return prod(self.block)


@dataclass
class Outcome:
    """What has become of a launch: `findings` as the tools said them, not yet merged; `trace` a Recording or
    None; `code` the code objects that ran, the kernel's first; `watched` the share of the launch that each
    observer has watched, by name; `columns` how to show the counters of source lines."""

    findings: list[Finding] = field(default_factory=list)
    counters: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    code: tuple[CodeType, ...] = ()
    trace: Recording | None = None
    watched: dict[str, float] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()


class Engine(Protocol):
    """Runs a launch from its first block to its last, changing the arguments in place. Raises LaunchError for
    what cannot run, ThreadError for what a thread raises."""

    def run(self, launch: Launch) -> Outcome: ...
