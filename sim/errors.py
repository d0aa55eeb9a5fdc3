"""All exceptions that the simulator raises. `except SimulatorError` catches every one that a caller may see.

KernelBug and ThreadError report mistakes in the kernel, LaunchError reports mistakes of its caller. Any other
exception that leaves a launch is a bug of the simulator.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.events import Access
    from sim.report import Report


class SimulatorError(Exception):
    """The base class of the simulator's errors. A notebook shows only its message, without the simulator's
    stack frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchError(SimulatorError, ValueError):
    """A launch that the hardware would refuse, or an argument that no kernel can take. No thread has run,
    except where engine="threads" finds too late that the system has too few threads for the launch."""


class KernelBug(SimulatorError):
    """Errors that observers found in a launch. `findings` has each of them once, and so has the message;
    `report` is the whole Report."""

    def __init__(self, report: "Report") -> None:
        self.report, self.findings = report, report.errors
        super().__init__("\n\n".join(finding.message for finding in self.findings))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the report. By default, an exception is pickled with its message, from which it cannot be
        made again."""
        return type(self), (self.report,), vars(self)


class ThreadError(SimulatorError):
    """A Python exception that a thread of the kernel raised. It is the `__cause__`; `access` names the
    thread and the line."""

    access: "Access | None" = None


class Abandoned(BaseException):
    """An exception that is thrown into a suspended thread whose block or launch ends early. It never leaves
    the engine."""


class Stuck(BaseException):
    """An exception that is thrown into a thread that makes no progress. It never leaves the engine.

    Its arguments are (site, decided), where `decided` says that the thread can never get any further. The
    watchdog throws it without arguments.
    """
