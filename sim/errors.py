"""Every exception the simulator raises: one tree, so that `except SimulatorError` catches them all.

The guest's mistakes (KernelBug, ThreadError) and the caller's (LaunchError) have types of their own; anything
else that escapes from a launch is a bug of the simulator itself.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.report import Report


class SimulatorError(Exception):
    """The root of the tree. In a notebook it shows as its message alone: the frames in between are the
    simulator's."""

    def _render_traceback_(self) -> list[str]:
        return [f"{type(self).__name__}: {self}"]


class LaunchError(SimulatorError, ValueError):
    """A launch that the hardware would refuse, or an argument no kernel can take. Nothing has run."""


class KernelBug(SimulatorError):
    """The kernel ran and the tools found errors in it: `findings`; `report` has the rest. The message prints
    each error once."""

    def __init__(self, report: "Report") -> None:
        self.report, self.findings = report, report.errors
        super().__init__("\n\n".join(finding.message for finding in self.findings))


class ThreadError(SimulatorError):
    """A thread of the kernel raised a Python exception, which is this one's `__cause__`."""


class Abandoned(BaseException):
    """Thrown into a suspended thread to unwind it when its block or launch ends early. Never leaves the
    engine."""


class Stuck(BaseException):
    """Thrown into a running thread that makes no progress: (site, whether that is decided), or nothing. Never
    leaves the engine."""
