"""Source lines of host calls, from return addresses, by `addr2line` of the GNU binutils."""

import ctypes
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class CallSite:
    """The position of a host call. `line` is 0 if it is unknown."""

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}" if self.line else "an unknown line of the host code"


UNKNOWN = CallSite("", 0)


class CallSites:
    """The source lines of a loaded program.

    library: the program's shared library, with debug information.
    base: the address at which the library is loaded.
    """

    def __init__(self, library: Path, base: int) -> None:
        self.library, self.base, self.known = library, base, {}
        self.size = library.stat().st_size
        # Headers of the toolkit and of the system are not the program's own source.
        homes = (os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH"))
        self.folders = ("/nvidia/", "/cccl/", "/usr/", *filter(None, homes))

    def of_frames(self, frames: list[int]) -> CallSite:
        """Return the innermost position in the program's own source.

        frames: return addresses, innermost first.
        """
        mine = [frame for frame in frames if self.base <= frame < self.base + 4 * self.size]
        sites = (self.of_address(frame - 1) for frame in mine)
        return next((site for site in sites if self.is_own(site)), UNKNOWN)

    def is_own(self, site: CallSite) -> bool:
        """Return whether a position belongs to the program, and not to a header of a library or to code that
        nvcc generated."""
        generated = ".cudafe1." in site.file or site.function.startswith("__device_stub_")
        return bool(site.line) and not generated and not any(part in site.file for part in self.folders)

    def of_address(self, address: int) -> CallSite:
        """Return the position of an instruction."""
        if address not in self.known:
            command = ["addr2line", "-f", "-e", self.library, hex(address - self.base)]
            try:
                answer = subprocess.run(command, capture_output=True, text=True).stdout.split("\n")
            except FileNotFoundError:
                answer = []
            function, place = (*answer, "", "")[:2]
            file, _, line = place.partition(" (")[0].rpartition(":")
            number = int(line) if line.isdigit() else 0
            self.known[address] = CallSite(file, number, function)
        return self.known[address]


def load_address(library: ctypes.CDLL) -> int:
    """Return the address at which a library is loaded: the first field of its `struct link_map`."""
    return ctypes.c_size_t.from_address(library._handle).value
