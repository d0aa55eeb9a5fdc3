"""The vocabulary that engine and tools share: what can happen in a launch, and what a tool may say about it."""
import threading
from dataclasses import dataclass, field

import numpy as np

Index3 = tuple[int, int, int]

# An access in the log is one integer: from the lowest bit, 40 bits of address, 4 bits of log2(size in bytes), then the site's number.
ADDRESS_BITS = 40
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
SITE_SHIFT = ADDRESS_BITS + 4


@dataclass(frozen=True)
class Site:
    """One place in a kernel's source where something happens: an access, a barrier, a loop's back-edge."""

    kind: str  # "load", "store", "atomic", "loop", "call"
    function: str
    line: int  # within the function, its `def` line being line 1
    column: int
    source: str  # that line of text, without its indentation
    indent: int = 0


class SiteTable:
    """Numbers sites. One for the process, since the code of a rewritten kernel, numbers included, is made once and launched often."""

    def __init__(self):
        self.sites, self.lock = [], threading.Lock()

    def add(self, site):
        with self.lock:
            self.sites.append(site)
            return len(self.sites) - 1

    def __getitem__(self, number):
        return self.sites[number]


SITES = SiteTable()


@dataclass(frozen=True)
class Access:
    """Who did, or waits for, what: a finding's witness."""

    what: str  # "read", "written", "waits", "returned", ...
    block: Index3
    thread: Index3
    site: Site | None = None
    value: object = None


@dataclass(frozen=True)
class Finding:
    """One thing a tool found: `kind` and `severity`, where, by whom, why it is wrong, and the likely fix.

    `array` is the name under which the kernel's launch knows the array, `index` the element (lowest one if several are alike), `count` how many
    further cases were merged into this one. `message` is the whole text as a person reads it; the report writes it.
    """

    kind: str
    severity: str  # "error" or "warning"
    verdict: str
    accesses: tuple[Access, ...] = ()
    array: str | None = None
    index: tuple[int, ...] | None = None
    reason: str = ""
    fix: str = ""
    count: int = 0
    message: str = field(default="", compare=False)

    @property
    def key(self):
        """Two findings with equal keys are the same finding: kind, array, and the unordered (line, access) pairs."""
        places = sorted({(a.site.function, a.site.line, a.what) if a.site else ("", 0, a.what) for a in self.accesses})
        return self.kind, self.array, tuple(places)


@dataclass(frozen=True)
class Batch:
    """What the threads of one block did between two moments, in the order in which it happened, as parallel arrays of length n.

    `address` counts bytes in the simulated address space (see sim.memory.spaces); `site` indexes the launch's site table.
    """

    block: Index3
    epoch: int
    thread: np.ndarray  # int32, linear index within the block
    site: np.ndarray  # int32
    address: np.ndarray  # int64
    size: np.ndarray  # int32, bytes


class Observer:
    """A tool: override the moments you want to hear of. A hook that is not overridden costs nothing.

    Every hook may return an iterable of Findings.
    """

    def launch_started(self, context):
        """The arguments are in place and nothing has run."""

    def accesses(self, batch: Batch):
        """A batch of memory accesses of one block, all of one epoch."""

    def access_refused(self, access: Access, array, index: tuple[int, ...], shape: tuple[int, ...]):
        """An access outside its array, or with a negative index, before it is dropped or done."""

    def block_stuck(self, waiting: tuple[Access, ...], block: Index3):
        """Nobody in the block can run any more."""

    def launch_finished(self, context):
        """Every block has ended."""
