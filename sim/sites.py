"""Sites: the source locations of accesses, calls, branches and loops' back edges in kernels."""

import threading
from dataclasses import dataclass
from math import prod

from sim.errors import LaunchError

Index3 = tuple[int, int, int]

# A log entry is one 63-bit integer. From the lowest bit: 36 bits of address, 4 bits of log2(size in bytes),
# 23 bits of site number. The two highest bits of an address are the state space. The two lowest bits of a
# site number are the action.
ADDRESS_BITS = 36
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
SITE_SHIFT = ADDRESS_BITS + 4
SITE_BITS = 63 - SITE_SHIFT
SPACE_SHIFT = ADDRESS_BITS - 2
SPACES = ("global", "const", "shared", "local")
GLOBAL, CONST, SHARED, LOCAL = range(4)
# name given to every array in constant memory, which is a captured global variable
CONSTANT = "a global array"
ACTIONS = {"load": 0, "store": 1, "atomic": 2, "loop": 3, "call": 3, "branch": 3}
ACTIONS |= {"atomic load": 2, "atomic store": 2}  # loads and stores with .relaxed, .acquire or .release
LOAD, STORE, ATOMIC, BARRIER = range(4)
# In the window of shared memory, bits 28 to 31 of an address are 0 in the memory of the own block. Otherwise,
# they are the rank of a block of the cluster plus 1 (shared::cluster).
RANK_SHIFT = 28
SHARED_BYTES = 1 << RANK_SHIFT


def cluster_rank(address: int) -> int | None:
    """Return the rank of the block whose shared memory contains an address, or None for the own block."""
    if address >> SPACE_SHIFT != SHARED or not address >> RANK_SHIFT & 15:
        return None
    return (address >> RANK_SHIFT & 15) - 1


def local_address(address: int) -> int:
    """Return the address within its block of an address in shared memory."""
    return address & ~(15 << RANK_SHIFT) if address >> SPACE_SHIFT == SHARED else address


def thread_index(linear: int, block_shape: Index3) -> Index3:
    """Return (x, y, z) for the thread with this linear index in its block."""
    x, y, _ = block_shape
    return linear % x, linear // x % y, linear // (x * y)


def block_indices(index: Index3, shape: Index3) -> tuple[Index3, ...]:
    """Return the indices of the blocks in the same cluster as a block, in the order of their ranks."""
    first = [i // n * n for i, n in zip(index, shape)]
    x, y, _ = shape
    return tuple(
        (first[0] + rank % x, first[1] + rank // x % y, first[2] + rank // (x * y))
        for rank in range(prod(shape))
    )


@dataclass(frozen=True)
class Site:
    """A source location in a kernel: an access, a call, a branch or a loop's back edge."""

    action: str  # "load", "store", "atomic", "atomic load", "atomic store", "loop", "call", "branch"
    function: str
    line: int  # line within the function, whose `def` line is line 1
    column: int
    source: str  # the text of the line without indentation
    indent: int = 0  # width of the indentation
    file: str = ""  # path of the source file of a PTX kernel, whose lines count from the start of the file
    # Opcode of an atomic in PTX, or of a load through the read-only cache. One source line can contain
    # atomics of different scopes and operations, or loads of both kinds, and compilers often record no
    # column for them.
    opcode: str = ""
    # Lines of the calls if the access is in a device function that a compiler has inlined, innermost call
    # first; one tuple for each chain of calls.
    calls: tuple[tuple[int, ...], ...] = ()

    @property
    def kind(self) -> str:
        """The first word of the action. An atomic load, for example, is an "atomic"."""
        return self.action.partition(" ")[0]


class SiteTable:
    """The numbering of sites. Equal sites share a number.

    There is one table per process: a rewritten kernel contains its site numbers, and many launches use it.
    """

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.number_of: dict[Site, int] = {}
        self.lock = threading.Lock()

    def add(self, site: Site) -> int:
        """Return the number of a site, and assign one if the site is new. Raise LaunchError if no number is
        left."""
        with self.lock:
            if site not in self.number_of:
                number = len(self.sites) * 4 + ACTIONS[site.action]
                if number >> SITE_BITS:
                    raise LaunchError(
                        f"this process has simulated kernels with {len(self.sites):,} access sites, and more"
                        " cannot be numbered: start a new process"
                    )
                self.sites.append(site)
                self.number_of[site] = number
            return self.number_of[site]

    def __getitem__(self, number: int) -> Site:
        return self.sites[number >> 2]


SITES = SiteTable()
