"""Reports of host accesses beyond managed and pinned memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sim.nouns import plural
from sim.runtime.memory import DeviceBuffer

if TYPE_CHECKING:
    from sim.runtime.device import Device

KIND = "host-out-of-bounds"
FIX = "correct the index or the bound of the loop, or allocate more memory"


def report_fault(device: Device, buffer: DeviceBuffer, address: int, write: bool) -> None:
    """Report an access of the host to an address in the unmapped memory near a buffer."""
    is_after = address >= buffer.end
    distance = address - buffer.end if is_after else buffer.base - address
    side = "after the end" if is_after else "before the beginning"
    place = f"{distance:,} bytes {side}" if distance else side
    did = "writes" if write else "reads"
    device.report(KIND, "error", f"the host {did} {address:#x}, {place} of {buffer}", FIX)


def report_overruns(device: Device, buffer: DeviceBuffer) -> None:
    """Report the bytes that the host has written next to a buffer, if there are any."""
    for count, side in zip(buffer.count_overruns(), ("before its beginning", "after its end")):
        if count:
            verdict = f"the host has written outside of {buffer}, up to {plural(count, 'byte')} {side}"
            device.report(KIND, "error", verdict, FIX)
