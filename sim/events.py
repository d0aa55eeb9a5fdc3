"""The vocabulary of engine and tools: what can happen in a launch, and what a tool may say of it."""

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.device import DeviceSpec
from sim.errors import LaunchError

if TYPE_CHECKING:
    from sim.context import Context

Index3 = tuple[int, int, int]

# An access in the log is one integer: from the lowest bit, 36 bits of address, 4 bits of log2(size in bytes),
# 23 of the site's number. The two highest
# bits of an address tell the space; the two lowest bits of a site's number tell what happens there.
ADDRESS_BITS = 36
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
SITE_SHIFT = ADDRESS_BITS + 4
SITE_BITS = 63 - SITE_SHIFT
SPACE_SHIFT = ADDRESS_BITS - 2
SPACES = ("global", "const", "shared", "local")
GLOBAL, CONST, SHARED, LOCAL = range(4)
CONSTANT = "a global array"  # what all arrays in constant memory are called
ACTIONS = {"load": 0, "store": 1, "atomic": 2, "loop": 3, "call": 3, "branch": 3}
ACTIONS |= {"atomic load": 2, "atomic store": 2}  # relaxed and acquiring loads, relaxed and releasing stores
LOAD, STORE, ATOMIC, BARRIER = range(4)
# Every kind of finding of the package. `exception` is pytest --cuda-sim's; simulate raises ThreadError.
KINDS = tuple(
    "out-of-bounds negative-index race-shared race-global uninitialized-read barrier-divergence"
    " warp-divergence async-copy misaligned-address invalid-call use-after-free double-free invalid-free leak"
    " deadlock unassigned-variable misuse no-progress exception".split()
)


def index_text(index: tuple[int, ...], least: int = 0) -> str:
    """A thread's or block's index as people write it: (3, 0, 0) as 3; (3, 1, 0) as (3, 1). A shape's `least`
    is 1."""
    used = max((axis + 1 for axis, i in enumerate(index) if i > least), default=1)
    return str(index[0]) if used == 1 else f"({', '.join(map(str, index[:used]))})"


@dataclass(frozen=True)
class Site:
    """One place in a kernel's source where something happens: an access, a barrier, a loop's back-edge."""

    action: str  # "load", "store", "atomic", "atomic load", "atomic store", "loop", "call", "branch"
    function: str
    line: int  # within the function, its `def` line being line 1
    column: int
    source: str  # that line of text, without its indentation
    indent: int = 0

    @property
    def kind(self) -> str:
        """The action without its second word: an atomic load is an atomic."""
        return self.action.partition(" ")[0]


class SiteTable:
    """Numbers sites. One for the process, since the code of a rewritten kernel, numbers included, is made
    once and launched often; equal sites have one number."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.number_of: dict[Site, int] = {}
        self.lock = threading.Lock()

    def add(self, site: Site) -> int:
        with self.lock:
            if site not in self.number_of:
                number = len(self.sites) * 4 + ACTIONS[site.action]
                if number >> SITE_BITS:
                    raise LaunchError(
                        f"this process has simulated kernels with {len(self.sites):,} places in their source,"
                        " and numbers no more: start a new one"
                    )
                self.sites.append(site)
                self.number_of[site] = number
            return self.number_of[site]

    def __getitem__(self, number: int) -> Site:
        return self.sites[number >> 2]


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
class Step:
    """One edit of a kernel's source. `action` is one of these:

    "insert": a `what` ("barrier", "grid barrier", "fence") behind the statement that begins at line `at` and
        ends at `line`. "before": a `what` before `line`.
    "split": the statement at `line` ("barrier": into a read, a barrier and a write) or the "branch" that
        begins there (into two, with a barrier between the arms).
    "atomic": what is done at `line` is done by an atomic: an "update", whose read is at line `at`, a "read",
        a "store".
    "widen": the view `what` begins at byte `at`.
    """

    action: str
    function: str
    line: int
    what: str
    at: int = 0


@dataclass(frozen=True)
class Advice:
    """A finding's likely fix for programs: the `pattern` of the fault, and the `steps` that remove it; none
    where no edit is known."""

    pattern: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Finding:
    """One thing a tool found: `kind` and `severity`, where, by whom, why it is wrong, and the likely fix.

    `array` is the name under which the kernel's launch knows the array, `index` the element (lowest one if
    several are alike), `count` how many further cases were merged into this one. `message` is the whole text
    as a person reads it; the report writes it.
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
    # whether the witnesses are in different blocks (0), different warps of one (1) or in one warp (2)
    near: int = field(default=0, compare=False)
    advice: Advice | None = field(default=None, compare=False)
    undefined: bool = field(
        default=False, compare=False
    )  # whether its thread goes on with an undefined value
    follows: bool = field(default=False, compare=False)  # whether it is a consequence of another finding

    @property
    def key(self) -> tuple[str, str | None, tuple[tuple[str, int, str], ...]]:
        """Equal for findings that are the same: kind, array, and the unordered (line, access) pairs."""
        places = sorted(
            {(a.site.function, a.site.line, a.what) if a.site else ("", 0, a.what) for a in self.accesses}
        )
        return self.kind, self.array, tuple(places)

    def again(self, times: int) -> "Finding":
        """The same finding for so many further cases."""
        return replace(self, count=times - 1)


class Element(NamedTuple):
    """An element of an array: `str(element)` is "x[3, 4]"; of no indices, as a record's, "x"."""

    array: str
    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.indices))}]" if self.indices else self.array


def alias(access: Access, name: str) -> str:
    """ ", here part" where the line of an access calls the array (or the tuple) otherwise than the launch
    does, as `part` for `arrays[0]`; else nothing."""
    here = word(access)
    return f", here {here}" if here and "[" in name and here != name.partition("[")[0] else ""


def word(access: Access) -> str:
    """The name with which the text of an access begins; "" if with none."""
    site = access.site
    here = site and re.match(r"[^\W\d]\w*", site.source[max(site.column - site.indent, 0) :])
    return here[0] if here else ""


@dataclass(frozen=True)
class Batch:
    """What the threads of one block did between two moments, in the order in which it happened, as parallel
    arrays of length n.

    A segment is what one thread does between two moments at which its place in the order of things may change
    (it waited, fenced, did an atomic); segments are numbered through the launch. `values` are what the stores
    and atomics wrote, in order.
    """

    block: Index3
    epoch: int
    thread: np.ndarray  # int32, linear index within the block
    segment: np.ndarray  # int64
    position: np.ndarray  # int64, how many accesses of the launch came before
    site: np.ndarray  # int32, a number for SITES
    address: np.ndarray  # int64, bytes in the simulated address space (see sim.memory.spaces)
    size: np.ndarray  # int32, bytes
    values: Sequence[object]

    @property
    def action(self) -> np.ndarray:
        """LOAD, STORE or ATOMIC for each access."""
        return self.site & 3

    @cached_property
    def space(self) -> np.ndarray:
        """GLOBAL, CONST, SHARED or LOCAL for each access."""
        return self.address >> SPACE_SHIFT


class Moment(NamedTuple):
    """When a thread did something that may order its accesses: `segment` is the last one before."""

    block: Index3
    epoch: int
    thread: int  # linear index within the block
    segment: int


Phase = tuple[Any, int]  # which barrier of a part of a block, and how often it had opened before


class Copy(NamedTuple):
    """An asynchronous copy to shared memory."""

    address: int
    size: int  # bytes
    site: int  # a number for SITES
    source: int | None = None  # an address, if bytes are read from there
    read: int = 0  # so many


@dataclass(frozen=True)
class Decisions:
    """What threads of one block decided at branches, in order, as parallel int64 arrays."""

    block: Index3
    epoch: int
    thread: np.ndarray  # linear index within the block
    site: np.ndarray  # a number for SITES
    taken: np.ndarray  # 0 or 1


@dataclass(frozen=True)
class Event:
    """One row of a Recording: a load, store or atomic of one thread, or a barrier of a whole block (then
    thread, array and index are None)."""

    action: str  # "load", "store", "atomic", "barrier"
    block: Index3
    epoch: int
    thread: int | None  # linear index within the block
    site: Site
    array: str | None = None
    index: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Home:
    """An array as a Recording knows it: its name, memory space, shape, and bytes an element."""

    name: str
    space: str
    shape: tuple[int, ...]
    itemsize: int


@dataclass(frozen=True, eq=False)
class Recording:
    """What happened, in the order in which it did: a sequence of Events, kept as parallel arrays of length n.

    `action` is LOAD, STORE, ATOMIC or BARRIER; `block` counts in `blocks`, `array` in `arrays` (-1 for a
    barrier), `element` is the flat index within the array's shape, `address` in bytes. `cut` counts events
    that came after the recorder was full.
    """

    threads: Index3  # of a block
    spec: DeviceSpec  # the launch's
    blocks: tuple[Index3, ...]
    arrays: tuple[Home, ...]
    action: np.ndarray
    block: np.ndarray
    epoch: np.ndarray
    thread: np.ndarray
    site: np.ndarray
    array: np.ndarray
    element: np.ndarray
    address: np.ndarray
    cut: int = 0

    def __len__(self) -> int:
        return len(self.action)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickle: numbers of sites hold in one process only, so the Sites go along."""
        numbers, site = np.unique(self.site, return_inverse=True)
        return {**vars(self), "site": site, "sites": [SITES[number] for number in numbers.tolist()]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Number the Sites as this process does."""
        numbers = np.array([SITES.add(site) for site in state.pop("sites")], np.int64)
        vars(self).update(state, site=numbers[state["site"]])

    def __getitem__(self, position: int) -> Event:
        block, epoch = self.blocks[self.block[position]], int(self.epoch[position])
        site = SITES[int(self.site[position])]
        if self.action[position] == BARRIER:
            return Event("barrier", block, epoch, None, site)
        home = self.arrays[self.array[position]]
        index = tuple(map(int, np.unravel_index(self.element[position], home.shape)))
        return Event(site.kind, block, epoch, int(self.thread[position]), site, home.name, index)


Findings = Iterable[Finding] | None  # what a hook may return


@dataclass(frozen=True)
class Column:
    """How `report.by_line()` shows counters of a source line: under `heading`, the sum of the counters called
    `names`, and in parentheses the counter called `beside`. Without a heading they are not shown. Columns
    with a lower `order` come first; `meaning` is a sentence for below the table.
    """

    heading: str
    names: tuple[str, ...]
    beside: str = ""
    order: int = 100
    meaning: str = ""

    @property
    def counted(self) -> tuple[str, ...]:
        """The names of all counters that the column has."""
        return (*self.names, self.beside) if self.beside else self.names


class EnabledEvents(NamedTuple):
    """What the tools of a launch listen to, as far as a kernel's code depends on it: accesses, those to local
    memory too, reads of local memory that is not written, branches."""

    accesses: bool
    local: bool
    unwritten: bool
    branches: bool


class Observer:
    """A tool: override the moments you want to hear of. A hook that is not overridden costs nothing.

    Every hook may return an iterable of Findings. `local`: whether `accesses` must have those to local
    memory, which are many and each thread's own. `share`: which share of the events that it wanted the
    observer has recorded; below 1, a note of the report says so. `columns`: how `report.by_line()` shows the
    counters that the observer adds to `context.line(site)`.
    """

    local = True
    share: float = 1.0
    columns: tuple[Column, ...] = ()

    def launch_started(self, context: "Context") -> Findings:
        """The arguments are in place and nothing has run."""

    def accesses(self, batch: Batch) -> Findings:
        """A batch of memory accesses of one block, all of one epoch."""

    def access_refused(
        self, access: Access, array: Any, index: tuple[int, ...], shape: tuple[int, ...]
    ) -> Findings:
        """An access outside its array, or with a negative index, before it is dropped or done."""

    def unwritten(self, access: Access, address: int) -> Findings:
        """The running thread reads, or changes by an atomic, an element of a local array, at `address`, which
        it has not written since it declared the array."""

    def unassigned(self, access: Access, name: str) -> Findings:
        """The variable `name` is read, and the running thread has assigned nothing to it."""

    def branches(self, decisions: Decisions) -> Findings:
        """What threads of one block decided at branches, all in one epoch."""

    def collective(self, name: str, block: Index3, site: int) -> Findings:
        """Threads of `block` do one thing together: all of them a barrier, which is about to open, or lanes
        of a warp a shuffle, of which the first arrives."""

    def barrier_opened(self, block: Index3, epoch: int) -> Findings:
        """All threads of `block` have arrived at a barrier; `epoch`, all of it announced, ends."""

    def grid_barrier_opened(self) -> Findings:
        """All threads of all blocks have arrived."""

    def warp_synchronized(self, block: Index3, threads: tuple[int, ...], segment: int) -> Findings:
        """`threads` (linear indices, one warp) have met in a syncwarp; `segment` is the last one before."""

    def fenced(self, at: Moment, reach: str) -> Findings:
        """A thread has passed a fence, for its "block" or the whole "grid"."""

    def atomic_done(self, at: Moment, address: int, wrote: bool, reach: str) -> Findings:
        """A thread has done an atomic operation at `address`, one for its "block" or for the whole "grid"; a
        compare-and-swap that fails writes nothing."""

    def arrived(self, at: Moment, phase: Phase) -> Findings:
        """A thread has come to a barrier of a part of its block."""

    def passed(self, at: Moment, phase: Phase) -> Findings:
        """A thread has learned that all have come."""

    def copy_sent(self, at: Moment, copy: Copy) -> Findings:
        """A thread has started an asynchronous copy; the access is in the log already."""

    def copies_received(self, at: Moment, copies: list[Copy]) -> Findings:
        """A thread has waited for copies that it sent."""

    def copies_tracked(self, at: Moment, phase: Phase, copies: list[Copy]) -> Findings:
        """An mbarrier counts an arrival in this phase when the copies that a thread has sent have arrived."""

    def atomic_narrowed(self, access: Access, array: Any, index: tuple[int, ...]) -> Findings:
        """An atomic on an integer `array` was given a floating-point value, which loses its fraction."""

    def block_ended(self, block: Index3, epoch: int) -> Findings:
        """The last thread of `block` has returned, or it was ended; its accesses have been announced."""

    def launch_finished(self, context: "Context") -> Findings:
        """Every block has ended."""
