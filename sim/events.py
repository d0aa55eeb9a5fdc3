"""The interface between engines and observers: the events of a launch, and the findings of observers.

An engine calls an Observer's hooks with records: Batch, Moment, Access, Copy, Decisions. Observers return
Findings. This module does not depend on any engine.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sim.findings import INTEGER_POISON as INTEGER_POISON
from sim.findings import KINDS as KINDS
from sim.findings import UNTYPED_POISON as UNTYPED_POISON
from sim.findings import Access as Access
from sim.findings import Element as Element
from sim.findings import Finding as Finding
from sim.findings import alias as alias
from sim.findings import index_text as index_text
from sim.findings import leading_name as leading_name
from sim.sites import ACTIONS as ACTIONS
from sim.sites import ADDRESS_BITS as ADDRESS_BITS
from sim.sites import ADDRESS_MASK as ADDRESS_MASK
from sim.sites import ATOMIC as ATOMIC
from sim.sites import BARRIER as BARRIER
from sim.sites import CONST as CONST
from sim.sites import CONSTANT as CONSTANT
from sim.sites import GLOBAL as GLOBAL
from sim.sites import LOAD as LOAD
from sim.sites import LOCAL as LOCAL
from sim.sites import SHARED as SHARED
from sim.sites import SITE_BITS as SITE_BITS
from sim.sites import SITE_SHIFT as SITE_SHIFT
from sim.sites import SITES as SITES
from sim.sites import SPACE_SHIFT as SPACE_SHIFT
from sim.sites import SPACES as SPACES
from sim.sites import STORE as STORE
from sim.sites import Index3 as Index3
from sim.sites import Site as Site
from sim.sites import SiteTable as SiteTable
from sim.steps import Advice as Advice
from sim.steps import Step as Step

if TYPE_CHECKING:
    from sim.context import Context


@dataclass(frozen=True)
class Batch:
    """Accesses by the threads of one block in one epoch, in execution order. The columns are
    parallel arrays of length n.

    An epoch is the interval between two barriers of the block. A segment is one thread's run of accesses
    between two events that may order them: a wait, a fence, an atomic. Segments are numbered consecutively
    over the launch. `values` holds the values written by stores and atomics, in order.
    """

    block: Index3
    epoch: int
    thread: np.ndarray  # int32, linear index in the block
    segment: np.ndarray  # int64
    position: np.ndarray  # int64, number of earlier accesses in the launch
    site: np.ndarray  # int32, a key into SITES
    address: np.ndarray  # int64, byte address in the simulated address space (sim.memory.spaces)
    size: np.ndarray  # int32, bytes
    values: Sequence[object]

    @property
    def action(self) -> np.ndarray:
        """LOAD, STORE or ATOMIC per access."""
        return self.site & 3

    @cached_property
    def space(self) -> np.ndarray:
        """GLOBAL, CONST, SHARED or LOCAL per access."""
        return self.address >> SPACE_SHIFT


class Moment(NamedTuple):
    """The time of an event that may order a thread's accesses. `segment` is the thread's last segment before
    the event."""

    block: Index3
    epoch: int
    thread: int  # linear index in the block
    segment: int


Phase = tuple[Any, int]  # a named barrier or mbarrier, and the number of phases that it had completed before


class Copy(NamedTuple):
    """An asynchronous copy to shared memory."""

    address: int
    size: int  # bytes
    site: int  # a key into SITES
    source: int | None = None  # the source address, if the copy reads memory
    read: int = 0  # bytes read from the source; the rest of `size` is zero-filled


@dataclass(frozen=True, eq=False)
class AsyncOperation:
    """An operation of the async proxy, such as a bulk copy (TMA) or a wgmma.

    kind: the name of the operation, for findings.
    site: the number of its site.
    reads, writes: the bytes that it accesses, as (address, size) pairs.
    issued: the Moment of its issue. The accesses are in the log, in the segment of this Moment.
    position: the number of earlier accesses in the launch.
    through: how its completion is observed: "mbarrier", "group" (a bulk async-group) or "wgmma".
    barrier: the address of the mbarrier that counts its bytes, or None.
    doubts: pairs (Finding, {address: operation}). The Finding is correct only if each of these operations was
        the last one that wrote its address.
    """

    kind: str
    site: int
    reads: tuple[tuple[int, int], ...]
    writes: tuple[tuple[int, int], ...]
    issued: Moment
    position: int
    through: str = "wgmma"
    barrier: int | None = None
    doubts: tuple[tuple[Finding, dict[int, Any]], ...] = ()


@dataclass(frozen=True)
class Decisions:
    """Branch decisions by the threads of one block, in order, as parallel int64 arrays."""

    block: Index3
    epoch: int
    thread: np.ndarray  # linear index in the block
    site: np.ndarray  # a key into SITES
    taken: np.ndarray  # 0 or 1


Findings = Iterable[Finding] | None  # return type of a hook


@dataclass(frozen=True)
class Column:
    """A column of `report.by_line()`.

    It shows the sum of the counters in `names` under `heading`, with the counter `detail` in parentheses.
    Counters in a column without a heading are hidden. Columns are sorted by `order`. `meaning` is a sentence
    printed below the table.
    """

    heading: str
    names: tuple[str, ...]
    detail: str = ""
    order: int = 100
    meaning: str = ""

    @property
    def all_names(self) -> tuple[str, ...]:
        """Return the names of all counters in the column."""
        return (*self.names, self.detail) if self.detail else self.names


class EnabledEvents(NamedTuple):
    """The events that a kernel must report, because observers of the launch subscribe to them.

    accesses: memory accesses.
    local: accesses to local memory as well.
    unwritten: reads of local memory that the thread has not written.
    branches: decisions at branches.
    comparisons: operands of comparisons, which a rerun records (sim.compared_values).
    """

    accesses: bool
    local: bool
    unwritten: bool
    branches: bool
    comparisons: bool = False


class Observer:
    """The base class of observers. Override the hooks for the events you need; other hooks cost nothing.

    Every hook may return an iterable of Findings.

    local: whether `accesses` should include local memory, which is private to each thread and accessed often.
    lone_barriers: whether the barriers of blocks with one thread, which order nothing, should end epochs. If
        no observer needs that, `barrier_opened` reports few of them.
    share: the fraction of the requested events that the observer recorded. If it is below 1, the report
        contains a note.
    columns: how `report.by_line()` displays the counters that the observer adds to `context.line(site)`.
    checks: whether the observer can report findings. If no observer of a launch can, the report has a note.
    """

    local = True
    lone_barriers = True
    checks = True
    share: float = 1.0
    columns: tuple[Column, ...] = ()

    def launch_started(self, context: "Context") -> Findings:
        """The arguments are in memory, and no thread has run yet."""

    def accesses(self, batch: Batch) -> Findings:
        """Threads of one block have accessed memory, all in one epoch."""

    def access_refused(
        self, access: Access, array: Any, index: tuple[int, ...], shape: tuple[int, ...]
    ) -> Findings:
        """A thread attempts an access with an out-of-bounds index, which is dropped, or a negative index,
        which is performed."""

    def unwritten(self, access: Access, address: int, use: Access | None = None) -> Findings:
        """The current thread reads or atomically updates an element of a local array that it has not written
        since the declaration.

        The element is at `address`. The address is None for a register that no instruction has set. If the
        read alone has no effect, `use` is the first use of its value.
        """

    def unassigned(self, access: Access, name: str) -> Findings:
        """The current thread reads the variable `name` before assigning it."""

    def branches(self, decisions: Decisions) -> Findings:
        """Threads of one block have taken or skipped branches, all in one epoch."""

    def collective(self, name: str, block: Index3, site: int) -> Findings:
        """Threads of `block` start an operation together.

        For a block-wide barrier, all threads have arrived. For a warp operation such as a shuffle, only the
        first lane has.
        """

    def barrier_opened(self, block: Index3, epoch: int) -> Findings:
        """All threads of `block` have arrived at a barrier. It ends `epoch`, whose accesses have been
        reported."""

    def grid_barrier_opened(self) -> Findings:
        """All threads of all blocks have arrived at a grid-wide barrier."""

    def warp_synchronized(self, block: Index3, threads: tuple[int, ...], segment: int) -> Findings:
        """`threads` (linear indices in one warp) have all arrived at a syncwarp. `segment` is the last
        segment before it."""

    def warp_exchanged(self, block: Index3, threads: tuple[int, ...], segment: int) -> Findings:
        """`threads` have all arrived at a warp instruction that does not order memory, such as a shuffle.
        `segment` is the last segment before it."""

    def fenced(self, at: Moment, reach: str) -> Findings:
        """A thread has executed a fence. `reach` is "block" or "grid"."""

    def atomic_done(self, at: Moment, address: int, wrote: bool, reach: str) -> Findings:
        """A thread has performed an atomic at `address`. `reach` is "block" or "grid". `wrote` is False for a
        failed compare-and-swap."""

    def arrived(self, at: Moment, phase: Phase, reach: str | None = "grid") -> Findings:
        """A thread has arrived at a named barrier, an mbarrier or the barrier of a cluster.

        reach: "grid", "block" if the arrival releases only to the thread's own block (.cta), or None if it
            does not release (.relaxed).
        """

    def passed(self, at: Moment, phase: Phase, reach: str | None = "grid") -> Findings:
        """A thread has observed that this phase of a named barrier, an mbarrier or the barrier of a cluster
        is complete: all threads have arrived. `reach` describes the acquire, as in `arrived` the release."""

    def copy_sent(self, at: Moment, copy: Copy) -> Findings:
        """A thread has issued an asynchronous copy. Its store is already in the log."""

    def copies_received(self, at: Moment, copies: list[Copy]) -> Findings:
        """A thread has waited for its own asynchronous copies."""

    def copies_tracked(self, at: Moment, phase: Phase, copies: list[Copy]) -> Findings:
        """An mbarrier will count an arrival in this phase once these copies of the thread are complete."""

    def async_issued(self, operation: AsyncOperation) -> Findings:
        """A thread has issued an operation of the async proxy. Its accesses are already in the log."""

    def async_done(self, at: Moment, operations: list[AsyncOperation], sources: bool) -> Findings:
        """A thread has waited for these operations, or, if `sources`, only until they had read their
        sources."""

    def async_tracked(self, operation: AsyncOperation, phase: Phase) -> Findings:
        """An operation is complete. An mbarrier has counted its bytes in this phase."""

    def bytes_expected(self, at: Moment, phase: Phase, site: int) -> Findings:
        """A thread makes a phase of an mbarrier, other than its first phase, expect bytes (expect_tx)."""

    def phase_ended(
        self, phase: Phase, observations: list[tuple[Moment, int]], arrival: Access | None
    ) -> Findings:
        """An mbarrier has completed a phase.

        observations: (Moment, site) of the waits that observed the end of the previous phase.
        arrival: the last arrival at the mbarrier, or the copy whose bytes completed the phase.
        """

    def registers_changed(self, arrivals: list[Moment], site: int) -> Findings:
        """All threads of a warp group have arrived at a setmaxnreg."""

    def proxy_fenced(self, at: Moment, spaces: tuple[int, ...]) -> Findings:
        """A thread has executed fence.proxy.async for these state spaces."""

    def atomic_narrowed(self, access: Access, array: Any, index: tuple[int, ...]) -> Findings:
        """A thread passes a floating-point value to an atomic on an integer array, which drops the
        fraction."""

    def block_ended(self, block: Index3, epoch: int) -> Findings:
        """The last thread of `block` has returned or was ended. The block's accesses have been reported."""

    def launch_finished(self, context: "Context") -> Findings:
        """All blocks have ended."""
