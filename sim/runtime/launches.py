"""Launches that host code has configured, and that are executed later.

Source: CUDA Runtime API, "Execution Control" and "Graph Management".
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sim.runtime.device import Device, HostFunction


@dataclass(frozen=True)
class LaunchAttributes:
    """The attributes of a launch.

    cluster: the blocks per cluster.
    cooperative: whether the threads may wait for the whole grid.
    """

    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


@dataclass(frozen=True)
class PreparedLaunch:
    """A launch that is executed when it is called, with a copy of its arguments."""

    device: "Device"
    function: "HostFunction"
    grid: tuple
    block: tuple
    values: list[bytes]
    shared: int
    attributes: LaunchAttributes

    def __call__(self) -> int:
        return self.device.execute(self)
