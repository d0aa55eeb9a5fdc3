"""Every exception the simulator raises: one tree, so that `except SimulatorError` catches them all.

The guest's mistakes (KernelBug, ThreadError) and the caller's (LaunchError) have types of their own; anything
else that escapes from a launch is a bug of the simulator itself.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sim.events import Access
    from sim.report import Report


class SimulatorError(Exception):
    """The root of the tree. In a notebook it shows as its message alone, without our frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchError(SimulatorError, ValueError):
    """A launch that the hardware would refuse, or an argument no kernel can take. Nothing has run."""


class KernelBug(SimulatorError):
    """The tools found errors: `findings`, once each in the message; `report` has the rest."""

    def __init__(self, report: "Report") -> None:
        self.report, self.findings = report, report.errors
        super().__init__("\n\n".join(finding.message for finding in self.findings))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the report: by default, Exception would pickle the message in its place."""
        return type(self), (self.report,), vars(self)


class ThreadError(SimulatorError):
    """A thread of the kernel raised a Python exception, which is this one's `__cause__`; `access` names the
    thread and the place."""

    access: "Access | None" = None


class Abandoned(BaseException):
    """Thrown into a suspended thread whose block or launch ends early. Never leaves the engine."""


class Stuck(BaseException):
    """Thrown into a stuck thread: (site, whether that is decided), or nothing. Never leaves the engine."""
