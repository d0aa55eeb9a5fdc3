"""Replay of the access log: calls the observers' hooks for a compiled launch.

Compiled code appends an int64 entry to the *access log* for each access, branch and barrier
(sim.native.codegen.access_log defines the bits). This module decodes the entries with numpy, and passes them
to observers in batches. The observers receive the same calls as from interpreted threads (sim.context).

The log is replayed in chunks, each of which contains whole blocks.
"""

from collections.abc import Sequence

import numpy as np

from sim.context import Context
from sim.engine.base import Outcome
from sim.events import ACTIONS, LOCAL, SITES, SPACE_SHIFT, Batch, Decisions
from sim.hooks import observer_class, overridden_hooks
from sim.isa.conversions import domain
from sim.native.codegen.access_log import (
    BARRIER_OPENS,
    BLOCK_ENDS,
    COLLECTIVE,
    DTYPES,
    SITE_SHIFT,
    SIZE_SHIFT,
    THREAD_SWITCH,
    VALUE,
    VALUE_BITS,
)
from sim.native.codegen.scalars import HALVES
from sim.observers import DEFAULT

BRANCH = ACTIONS["branch"]
MARKER = BRANCH + 1  # the action of a marker entry, which is neither an access nor a branch
DATA_MASK = (1 << SIZE_SHIFT) - 1  # the low bits of an entry: an address, or the data of a marker entry
# the hooks that a replay can call
LOGGED = {"accesses", "branches", "collective", "barrier_opened", "block_ended"}
REPLAYED = LOGGED | {"launch_started", "launch_finished"}


def replay_observers(observers):
    """Return the observers that need the log. Compiled code performs the checks of the observers in DEFAULT
    itself, so they are left out."""
    return [observer for observer in observers if observer_class(observer) not in DEFAULT]


def hooks_without_log(observers):
    """Return {name of an observer: sorted list of its overridden hooks that no replay can call}."""
    found = {
        observer_class(observer).__name__: {*overridden_hooks(observer)} - REPLAYED
        for observer in replay_observers(observers)
    }
    return {name: sorted(hooks) for name, hooks in found.items() if hooks}


def is_logged(observers):
    """Return whether any observer needs the access log."""
    return any({*overridden_hooks(observer)} & LOGGED for observer in replay_observers(observers))


class Replay:
    """The observers of one compiled launch, and totals of the chunks that have been replayed.

    launch: the launch.
    module: the lowered module. The log identifies a site by its index in `module.sites`.
    space: the simulated address space.
    homes: {address of an array's first byte on the host: its Allocation in `space`}.
    index_of: a function that converts the linear index of a block to its index in the grid.
    """

    def __init__(self, launch, module, space, homes, index_of):
        observers = [
            tool() if isinstance(tool, type) else tool for tool in replay_observers(launch.observers)
        ]
        self.context = Context(observers, launch.spec, space, launch.block, None)
        self.listeners, self.local = self.context.listeners, self.context.enabled.local
        self.operations, self.index_of = module.operations, index_of
        # Lookup tables for the action, the site, and the access size in bytes of an entry. The upper 16 bits
        # of the entry, which encode its site and size, are the index.
        kinds = np.arange(1 << 16) >> SITE_SHIFT - SIZE_SHIFT
        actions, sites = np.full(1 << 13, MARKER, np.int8), np.zeros(1 << 13, np.int32)
        actions[: len(module.sites)] = [ACTIONS[site.action] for site in module.sites]
        sites[: len(module.sites)] = self.sites = [SITES.add(site) for site in module.sites]
        self.action, self.site = actions[kinds], sites[kinds]
        self.size = (1 << np.arange(1 << 16) % (1 << SITE_SHIFT - SIZE_SHIFT)).astype(np.int32)
        homes = sorted((low, allocation.base) for low, allocation in homes.items())
        # The array at host address `low[i]` has the simulated address `low[i] + moved[i]`.
        self.low, base = np.array(homes or [(0, 0)], np.int64).T
        self.moved = base - self.low
        self.segments = self.accesses = 0  # totals of the chunks that have been replayed
        self.started, self.skipped, self.blocks = False, 0, launch.blocks
        self.observers = observers

    def start(self):
        """Call the observers' hook `launch_started`, once, before the first chunk."""
        if not self.started:
            self.started = True
            self.context.announce("launch_started", self.context)

    def finish(self):
        """Call the observers' hook `launch_finished`. Return an Outcome with their findings and counters."""
        with np.errstate(all="ignore"):
            self.start()
            self.context.announce("launch_finished", self.context)
        computed = "threads", "blocks", "barriers"
        counters = {name: count for name, count in self.context.counters.items() if name not in computed}
        found, columns = self.context.findings, self.context.columns()
        return Outcome(found, counters, self.notes(), trace=self.context.trace, columns=columns)

    def notes(self):
        """Return a note if some blocks were not replayed because their log overflowed."""
        if not self.skipped:
            return ()
        tools = ", ".join(type(observer).__name__ for observer in self.observers)
        blocks = f"{self.blocks - self.skipped:,} of {self.blocks:,} blocks"
        return (f"{tools} watched {blocks}: the accesses of the others did not fit into the log",)

    @property
    def share(self):
        """The fraction of the launch's blocks replayed so far."""
        return 1 - self.skipped / self.blocks

    def add(self, log):
        """Replay one chunk of the log."""
        with np.errstate(all="ignore"):
            self.start()
            Chunk(self, log).replay()

    def skip(self, log):
        """Replay a chunk except for its last block, which is incomplete because the log overflowed."""
        ends = np.flatnonzero(log >> SITE_SHIFT == BLOCK_ENDS)
        if len(ends):
            self.add(log[: ends[-1] + 1])
        self.skipped += 1


class Chunk:
    """A part of the access log, decoded and replayed as a whole.

    `kind` contains the upper 16 bits of each entry, and `region` the number of thread switches before it. A
    region is the work of one thread between two synchronisation points.
    """

    def __init__(self, launch, log):
        self.launch, self.log = launch, log
        # View each int64 as four 16-bit values, and take the highest one. The byte order is little-endian.
        self.kind = log.view(np.uint16)[3::4].astype(np.intp)
        self.action = launch.action[self.kind]
        # `marks` contains the positions of marker entries; `kinds` and `data` describe these entries.
        marks = np.flatnonzero(self.action == MARKER)
        kinds, data = self.kind[marks] >> SITE_SHIFT - SIZE_SHIFT, log[marks] & DATA_MASK
        switches = kinds == THREAD_SWITCH
        begins, self.thread = np.append(0, marks[switches]), np.append(0, data[switches]).astype(np.int32)
        self.region = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(log)))
        is_event = ~switches & (kinds != VALUE)
        self.events = zip(*(column[is_event].tolist() for column in (marks, kinds, data)))
        self.blocks = iter(data[kinds == BLOCK_ENDS].tolist())
        self.values_at = marks[kinds == VALUE]
        self.announced = [
            (hook, Cursor(*columns()), make)
            for hook, columns, make in (
                ("accesses", self.accesses, self.batch),
                ("branches", self.branches, Decisions),
            )
            if launch.listeners[hook]
        ]

    def accesses(self):
        """Return (positions of the accesses in the chunk, the columns of a Batch except for its values)."""
        launch, at, values = self.launch, np.flatnonzero(self.action < BRANCH), self.values_at
        address = self.log[at]
        address &= DATA_MASK
        address += launch.moved[np.searchsorted(launch.low, address, side="right") - 1]
        if not launch.local:
            # If no observer counts local memory, drop the accesses to it and the values written.
            wanted = address >> SPACE_SHIFT != LOCAL
            if not wanted.all():
                values = values[wanted[np.searchsorted(at, values) - 1]]
                at, address = at[wanted], address[wanted]
        region, kind = self.region[at], self.kind[at]
        position = np.arange(launch.accesses, launch.accesses + len(at))
        thread, segment = self.thread[region], region + launch.segments
        self.values = Cursor(values, (self.log[values],))
        launch.accesses += len(at)
        launch.segments += len(self.thread)
        return at, (thread, segment, position, launch.site[kind], address, launch.size[kind])

    def branches(self):
        """Return (positions of the branches in the chunk, columns of Decisions)."""
        at = np.flatnonzero(self.action == BRANCH)
        thread, site = self.thread[self.region[at]], self.launch.site[self.kind[at]]
        return at, (thread.astype(np.int64), site.astype(np.int64), self.log[at] & 1)

    def replay(self):
        """Call the hooks for all events of the chunk in order."""
        launch, epoch, block = self.launch, 0, None
        for mark, kind, data in self.events:
            # A block logs its index when it ends, so look ahead to the next BLOCK_ENDS entry.
            block = launch.index_of(next(self.blocks)) if block is None else block
            if kind == COLLECTIVE:
                launch.context.announce("collective", launch.operations[data], block, launch.sites[data])
                continue
            self.announce_before(mark, block, epoch)
            if kind == BARRIER_OPENS:
                launch.context.announce("collective", "syncthreads", block, launch.sites[data])
                launch.context.announce("barrier_opened", block, epoch)
                epoch += 1
            else:
                launch.context.announce("block_ended", block, epoch)
                epoch, block = 0, None

    def announce_before(self, mark, block, epoch):
        """Pass the accesses and branches before the entry at position `mark` to the observers, except for
        those passed on by an earlier call."""
        self.mark = mark
        for hook, run, make in self.announced:
            columns = run.before(mark)
            if len(columns[0]):
                self.launch.context.announce(hook, make(block, epoch, *columns))

    def batch(self, block, epoch, *columns):
        """Return a Batch of accesses with the values written."""
        return Batch(block, epoch, *columns, Values(*self.values.before(self.mark)))


class Cursor:
    """A cursor over entries of a chunk.

    at: the positions of the entries in the chunk, in increasing order.
    columns: parallel arrays that describe the entries.
    """

    def __init__(self, at, columns):
        self.at, self.columns, self.taken = at, columns, 0

    def before(self, mark):
        """Return, for each column, the entries between the `mark` of the previous call and this one."""
        first, self.taken = self.taken, int(np.searchsorted(self.at, mark))
        return [column[first : self.taken] for column in self.columns]


class Values(Sequence):
    """The values written by the accesses of a Batch. They are decoded on first use, because most observers do
    not read them."""

    def __init__(self, entries):
        self.entries, self.decoded = entries, None

    def __len__(self):
        return len(self.values())

    def __getitem__(self, position):
        return self.values()[position]

    def values(self):
        """Return the decoded values. Consecutive entries of the same dtype are decoded together."""
        if self.decoded is None:
            # In a VALUE entry, the bits above the 32 bits of the value contain the index of its dtype.
            dtypes = self.entries >> VALUE_BITS & 255
            borders = np.flatnonzero(np.diff(dtypes)) + 1
            runs = zip(np.split(self.entries, borders), np.split(dtypes, borders))
            self.decoded = [
                value for bits, dtype in runs if len(dtype) for value in values_of(bits, DTYPES[dtype[0]])
            ]
        return self.decoded


def values_of(entries, name):
    """Return the values in consecutive entries of one dtype, in the type with which a kernel computes.

    name: the name of the dtype.
    """
    dtype = HALVES[name].numpy if name in HALVES else np.dtype(name)
    # Keep the low bits of each entry. The view then joins the two entries of a 64-bit value.
    return map(domain, entries.astype(f"u{min(dtype.itemsize, 4)}").view(dtype))
