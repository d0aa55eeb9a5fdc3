"""The simulator's exceptions. `except SimulatorError` catches all that a caller can receive.

KernelBug and ThreadError report faults in the kernel, LaunchError a mistake by its caller. Any other
exception from a launch is a bug in the simulator.
"""

from typing import TYPE_CHECKING, Any

from sim.pages import reference

if TYPE_CHECKING:
    from sim.events import Access, Finding
    from sim.report import Report


class SimulatorError(Exception):
    """The base class of the simulator's errors. A notebook shows its message without the simulator's stack
    frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchError(SimulatorError, ValueError):
    """A launch that the hardware would refuse, or an unsupported argument.

    No thread has run, unless engine="threads" exceeds the system's thread limit in the middle of a launch.
    """


class RefusedLaunch(LaunchError):
    """A launch that the hardware would refuse. Its text ends with the name of a page; `verdict` does not."""

    page = "refused-launch"

    @property
    def verdict(self) -> str:
        return str(self.args[0])

    def __str__(self) -> str:
        return f"{self.verdict}\n{reference(self.page)}"


class GridTooLarge(RefusedLaunch):
    """A cooperative launch with more blocks than the device holds at a time."""


class KernelBug(SimulatorError):
    """Errors that observers found in a launch. `findings` and the message contain each error once; `report`
    is the complete Report."""

    def __init__(self, report: "Report") -> None:
        self.report, self.findings = report, report.errors
        super().__init__("\n\n".join(finding.message for finding in self.findings))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the report. By default, only the message would be pickled, which cannot recreate the
        exception."""
        return type(self), (self.report,), vars(self)


class ThreadError(SimulatorError):
    """A Python exception raised by a thread of the kernel. It is the `__cause__`; `access` identifies the
    thread and the line. `findings` holds the earlier errors of the launch, which can be the cause."""

    access: "Access | None" = None
    findings: "tuple[Finding, ...]" = ()


class Abandoned(BaseException):
    """Thrown into a suspended thread whose block or launch ends early. It never leaves the engine."""


class Stuck(BaseException):
    """Thrown into a thread that makes no progress. It never leaves the engine.

    The arguments are (site, decided). `decided` is True if the thread can never make progress again. The
    watchdog throws it without arguments.
    """

    decided = True  # the value if the exception has no arguments


class Undecided(Stuck):
    """Thrown by the watchdog into a thread that runs for too long, but may end."""

    decided = False


class OutOfTime(Stuck):
    """Stops a launch that runs for too long after an error. The engine raises it before it resumes a thread,
    or the watchdog throws it into a thread that runs for long. The engine catches it."""


class OutOfTurns(Stuck):
    """Ends a rerun of the first part of a launch. The engine catches it itself."""
