"""The vocabulary that engines and observers share: what can happen in a launch, and what an observer finds in
it.

An engine calls the hooks of an Observer with records: Batch, Moment, Access, Copy, Decisions. Observers
return Findings. Nothing here depends on an engine.
"""

import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.errors import LaunchError

if TYPE_CHECKING:
    from sim.context import Context

Index3 = tuple[int, int, int]

# An access in the log is one integer of 63 bits. From the lowest bit: 36 bits of address, 4 bits of log2(size
# in bytes), 23 bits of the site's number. The two highest bits of an address are the state space. The two
# lowest bits of a site's number are the action.
ADDRESS_BITS = 36
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1
SITE_SHIFT = ADDRESS_BITS + 4
SITE_BITS = 63 - SITE_SHIFT
SPACE_SHIFT = ADDRESS_BITS - 2
SPACES = ("global", "const", "shared", "local")
GLOBAL, CONST, SHARED, LOCAL = range(4)
CONSTANT = "a global array"  # the name of all arrays in constant memory, which are captured global variables
ACTIONS = {"load": 0, "store": 1, "atomic": 2, "loop": 3, "call": 3, "branch": 3}
ACTIONS |= {"atomic load": 2, "atomic store": 2}  # loads and stores with .relaxed, .acquire, .release
LOAD, STORE, ATOMIC, BARRIER = range(4)
# Every kind of finding of the package. `exception` is pytest --cuda-sim's; simulate raises ThreadError.
KINDS = tuple(
    "out-of-bounds negative-index race-shared race-global uninitialized-read barrier-divergence"
    " warp-divergence async-copy misaligned-address invalid-call use-after-free double-free invalid-free leak"
    " deadlock unassigned-variable misuse no-progress exception".split()
)


# the byte that fills undefined integers, and undefined memory whose type is not known (a NaN in every
# floating-point format)
INTEGER_POISON, UNTYPED_POISON = 0xA5, 0xFF


def index_text(index: tuple[int, ...], least: int = 0) -> str:
    """Return the index of a thread or block as people write it: (3, 0, 0) as "3", (3, 1, 0) as "(3, 1)".

    least: the value of an axis that need not be written; 1 if `index` is a shape.
    """
    used = max((axis + 1 for axis, i in enumerate(index) if i > least), default=1)
    return str(index[0]) if used == 1 else f"({', '.join(map(str, index[:used]))})"


@dataclass(frozen=True)
class Site:
    """A place in a kernel's source where an access, a call, a branch or a loop's back edge is."""

    action: str  # "load", "store", "atomic", "atomic load", "atomic store", "loop", "call", "branch"
    function: str
    line: int  # within the function, whose `def` line is line 1
    column: int
    source: str  # the text of the line, without its indentation
    indent: int = 0  # the width of the indentation

    @property
    def kind(self) -> str:
        """The first word of the action: an atomic load is an atomic."""
        return self.action.partition(" ")[0]


class SiteTable:
    """The numbers of sites. There is one table in a process, because the code of a rewritten kernel
    contains its sites' numbers and is used by many launches. Equal sites have one number."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.number_of: dict[Site, int] = {}
        self.lock = threading.Lock()

    def add(self, site: Site) -> int:
        """Return the number of a site, a new one if the table does not have the site yet. Errors:
        LaunchError if there is no number left."""
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
    """The action of one thread, or what it waits for, and where. A finding names its threads by these."""

    what: str  # "read", "written", "waits", "returned", ...
    block: Index3
    thread: Index3
    site: Site | None = None
    value: object = None


@dataclass(frozen=True)
class Step:
    """One edit of a kernel's source. `action` is one of these:

    "insert": a `what` ("barrier", "grid barrier", "fence") goes after the statement that begins at line `at`
    and ends at `line`. "before": a `what` goes before `line`. "divide": like "insert", where branches hold
    that statement: each is divided there in two branches of the same condition, and an earlier return becomes
    a branch around what follows it. If `what` is "nothing else", the statement is the barrier. "split": the
    statement at `line` is split into a read, a `what` ("barrier" or "grid barrier") and a write, and the
    branches around it are divided; or the branch that begins there is split into two branches with a barrier
    between their arms, first the arm with line `at` (`what` is "branch" or "branch of the grid"). "guard":
    the statement at `line` runs only if `what` holds. "mask": the mask of the call at `line` becomes `what`.
    "buffers": the array `what` gets one buffer more than `at`. "widen": the view `what` begins at byte `at`.

    "atomic": an atomic replaces the access at `line`. `what` is "update", whose read is at line `at`;
    "store"; "read", of the text `element`; "cas", "min" or "max", which replaces the comparison with
    `element` at line `at`, and the store at `line` is left out; "ticket": the statement at `line` adds to
    `element`, and the atomic goes before line `at`; "returned": `line` uses what the atomic for line `at` has
    returned.
    """

    action: str
    function: str
    line: int
    what: str
    at: int = 0
    element: str = ""


@dataclass(frozen=True)
class Advice:
    """The likely fix of a finding, for programs: the `pattern` of the fault, and the `steps` that remove
    it. There are no steps if no edit is known."""

    pattern: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True)
class Finding:
    """A fault that an observer found.

    kind: one of KINDS.
    severity: "error" or "warning".
    verdict: one clause that says what is wrong.
    accesses: the threads concerned, and what they did.
    array: the array, by its name in the launch.
    index: the element; the lowest one, if several are alike.
    reason: why this is wrong, as a sentence.
    fix: the likely fix.
    count: how many further cases were merged into this finding.
    message: the whole text for people, which the report writes.
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
    # 0 if the threads of `accesses` are in different blocks, 1 if in different warps of one block, 2 if in
    # one warp
    near: int = field(default=0, compare=False)
    advice: Advice | None = field(default=None, compare=False)
    undefined: bool = field(
        default=False, compare=False
    )  # whether the thread continues with an undefined value
    poison: int = field(default=INTEGER_POISON, compare=False)  # the byte that fills the undefined value
    follows: bool = field(default=False, compare=False)  # whether it is a consequence of another finding

    @property
    def key(self) -> tuple[str, str | None, tuple[tuple[str, int, str], ...]]:
        """Kind, array and the unordered (function, line, access) of the threads; equal for findings to be
        merged."""
        places = sorted(
            {(a.site.function, a.site.line, a.what) if a.site else ("", 0, a.what) for a in self.accesses}
        )
        return self.kind, self.array, tuple(places)

    def with_cases(self, times: int) -> "Finding":
        """Return this finding, made to count for as many cases as `times`."""
        return replace(self, count=times - 1)


class Element(NamedTuple):
    """An element of an array. `str(element)` is "x[3, 4]", or "x" if there are no indices, as for a
    record."""

    array: str
    indices: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.array}[{', '.join(map(str, self.indices))}]" if self.indices else self.array


def alias(access: Access, name: str) -> str:
    """Return ", here part" if the line of an access calls the array by another name than the launch does
    (`part` for `arrays[0]`), else an empty text."""
    here = leading_name(access)
    return f", here {here}" if here and "[" in name and here != name.partition("[")[0] else ""


def leading_name(access: Access) -> str:
    """Return the name with which the source text of an access begins, or "" if it begins with none."""
    site = access.site
    here = site and re.match(r"[^\W\d]\w*", site.source[max(site.column - site.indent, 0) :])
    return here[0] if here else ""


@dataclass(frozen=True)
class Batch:
    """Accesses of the threads of one block, all in one epoch, in the order in which they happened. The
    columns are parallel arrays of length n.

    An epoch is the time between two barriers of the block. A segment is what one thread does between two
    events that may order its accesses: a wait, a fence, an atomic. Segments are numbered through the launch.
    `values` are the values that the stores and atomics wrote, in order.
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
    """The time of an event that may order a thread's accesses. `segment` is the thread's last segment
    before it."""

    block: Index3
    epoch: int
    thread: int  # linear index within the block
    segment: int


Phase = tuple[Any, int]  # a named barrier or mbarrier, and how often it had completed before


class Copy(NamedTuple):
    """An asynchronous copy to shared memory."""

    address: int
    size: int  # bytes
    site: int  # a number for SITES
    source: int | None = None  # an address, if bytes are read from there
    read: int = 0  # bytes that are read there; the rest of `size` is filled with zeros


@dataclass(frozen=True)
class Decisions:
    """The decisions of the threads of one block at branches, in order, as parallel int64 arrays."""

    block: Index3
    epoch: int
    thread: np.ndarray  # linear index within the block
    site: np.ndarray  # a number for SITES
    taken: np.ndarray  # 0 or 1


Findings = Iterable[Finding] | None  # what a hook may return


@dataclass(frozen=True)
class Column:
    """A column of `report.by_line()`: under `heading`, the sum of the counters called `names`, with the
    counter called `detail` in parentheses. Counters of a column without a heading are not shown. Columns
    with a lower `order` come first; `meaning` is a sentence for below the table."""

    heading: str
    names: tuple[str, ...]
    detail: str = ""
    order: int = 100
    meaning: str = ""

    @property
    def counted(self) -> tuple[str, ...]:
        """The names of all counters of the column."""
        return (*self.names, self.detail) if self.detail else self.names


class EnabledEvents(NamedTuple):
    """The events that a kernel's code has to report, because observers of the launch subscribe to them.

    accesses: accesses to memory.
    local: accesses to local memory too.
    unwritten: reads of local memory that the thread has not written.
    branches: decisions at branches.
    """

    accesses: bool
    local: bool
    unwritten: bool
    branches: bool


class Observer:
    """The base class of observers. Override the hooks for the events that you want; a hook that is not
    overridden costs nothing.

    Every hook may return an iterable of Findings.

    local: whether `accesses` has to contain accesses to local memory. These are many, and each thread has its
        own local memory.
    share: the share of the wanted events that the observer has recorded; if it is below 1, a note of the
        report says so.
    columns: how `report.by_line()` shows the counters that the observer adds to `context.line(site)`.
    """

    local = True
    share: float = 1.0
    columns: tuple[Column, ...] = ()

    def launch_started(self, context: "Context") -> Findings:
        """The arguments are in memory, and no thread has run."""

    def accesses(self, batch: Batch) -> Findings:
        """The threads of one block have accessed memory. All accesses of the batch are in one epoch."""

    def access_refused(
        self, access: Access, array: Any, index: tuple[int, ...], shape: tuple[int, ...]
    ) -> Findings:
        """A thread attempts an access outside of the array or with a negative index. The simulator
        performs the latter and drops the former."""

    def unwritten(self, access: Access, address: int, use: Access | None = None) -> Findings:
        """The running thread reads an element of a local array, or changes it by an atomic, and has not
        written it since it declared the array. The element is at `address`. `use` is the first use of the
        value, if the read alone has no effect."""

    def unassigned(self, access: Access, name: str) -> Findings:
        """The running thread reads the variable `name`, to which it has assigned nothing."""

    def branches(self, decisions: Decisions) -> Findings:
        """The threads of one block have decided at branches, all in one epoch."""

    def collective(self, name: str, block: Index3, site: int) -> Findings:
        """Threads of `block` begin an operation together. For a barrier of the block, all threads have
        arrived. For an operation of a warp, such as a shuffle, the first lane has arrived."""

    def barrier_opened(self, block: Index3, epoch: int) -> Findings:
        """All threads of `block` have arrived at a barrier. This ends `epoch`; its accesses have been
        announced."""

    def grid_barrier_opened(self) -> Findings:
        """All threads of all blocks have arrived at a barrier of the grid."""

    def warp_synchronized(self, block: Index3, threads: tuple[int, ...], segment: int) -> Findings:
        """`threads` (linear indices, in one warp) have all arrived at a syncwarp. `segment` is the last
        segment before it."""

    def warp_exchanged(self, block: Index3, threads: tuple[int, ...], segment: int) -> Findings:
        """`threads` have all arrived at an instruction of their warp that orders no memory, such as a
        shuffle. `segment` is the last segment before it."""

    def fenced(self, at: Moment, reach: str) -> Findings:
        """A thread has passed a fence. `reach` is "block" or "grid"."""

    def atomic_done(self, at: Moment, address: int, wrote: bool, reach: str) -> Findings:
        """A thread has performed an atomic operation at `address`. `reach` is "block" or "grid". `wrote`
        is False for a compare-and-swap that failed."""

    def arrived(self, at: Moment, phase: Phase) -> Findings:
        """A thread has arrived at a named barrier or an mbarrier."""

    def passed(self, at: Moment, phase: Phase) -> Findings:
        """A thread has seen that this phase of a named barrier or an mbarrier is complete: all threads
        have arrived."""

    def copy_sent(self, at: Moment, copy: Copy) -> Findings:
        """A thread has started an asynchronous copy. The access is in the log already."""

    def copies_received(self, at: Moment, copies: list[Copy]) -> Findings:
        """A thread has waited for copies that it had started."""

    def copies_tracked(self, at: Moment, phase: Phase, copies: list[Copy]) -> Findings:
        """An mbarrier will count an arrival in this phase when these copies of the thread are complete."""

    def atomic_narrowed(self, access: Access, array: Any, index: tuple[int, ...]) -> Findings:
        """A thread gives a floating-point value to an atomic on an integer array, where it loses its
        fraction."""

    def block_ended(self, block: Index3, epoch: int) -> Findings:
        """The last thread of `block` has returned, or has been ended. The accesses of the block have been
        announced."""

    def launch_finished(self, context: "Context") -> Findings:
        """Every block has ended."""
