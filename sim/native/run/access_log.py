"""Replay of the access log of compiled code. Observers of a compiled launch get the same hook calls as from
interpreted threads (sim.context).

A piece of the log contains whole blocks. sim.native.codegen.access_log defines the bits of an entry.
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
MARKER = BRANCH + 1  # the action of an entry that is neither an access nor a branch
DATA_MASK = (1 << SIZE_SHIFT) - 1  # the bits of an address, or of a marker entry's data
LOGGED = {
    "accesses",
    "branches",
    "collective",
    "barrier_opened",
    "block_ended",
}  # the hooks that a log can call
REPLAYED = LOGGED | {"launch_started", "launch_finished"}


def replay_observers(observers):
    """Return the observers that read the log. The checks of DEFAULT are part of compiled code, and read no
    log."""
    return [observer for observer in observers if observer_class(observer) not in DEFAULT]


def hooks_without_log(observers):
    """Return {name of an observer: hooks that it overrides and that no log can call}."""
    found = {
        observer_class(observer).__name__: {*overridden_hooks(observer)} - REPLAYED
        for observer in replay_observers(observers)
    }
    return {name: sorted(hooks) for name, hooks in found.items() if hooks}


def is_logged(observers):
    """Return whether an observer needs a log."""
    return any({*overridden_hooks(observer)} & LOGGED for observer in replay_observers(observers))


class Replay:
    """The observers of one compiled launch, and the blocks replayed so far.

    `module`: the lowered module, whose sites the log numbers.
    `homes`: the first byte of an array in the host's memory -> its Allocation in `space`.
    `index_of`: a function from the position of a block to its index in the grid.
    """

    def __init__(self, launch, module, space, homes, index_of):
        observers = [
            tool() if isinstance(tool, type) else tool for tool in replay_observers(launch.observers)
        ]
        self.context = Context(observers, launch.spec, space, launch.block, None)
        self.listeners, self.local = self.context.listeners, self.context.enabled.local
        self.operations, self.index_of = module.operations, index_of
        # Tables, indexed by the highest 16 bits of an entry, its site and size: action, site, bytes.
        places = np.arange(1 << 16) >> SITE_SHIFT - SIZE_SHIFT
        actions, sites = np.full(1 << 13, MARKER, np.int8), np.zeros(1 << 13, np.int32)
        actions[: len(module.sites)] = [ACTIONS[site.action] for site in module.sites]
        sites[: len(module.sites)] = self.sites = [SITES.add(site) for site in module.sites]
        self.action, self.site = actions[places], sites[places]
        self.size = (1 << np.arange(1 << 16) % (1 << SITE_SHIFT - SIZE_SHIFT)).astype(np.int32)
        homes = sorted((low, allocation.base) for low, allocation in homes.items())
        self.low, base = np.array(homes or [(0, 0)], np.int64).T
        self.moved = base - self.low
        self.segments = self.accesses = 0  # totals of the blocks replayed so far
        self.started, self.skipped, self.blocks = False, 0, launch.blocks
        self.observers = observers

    def start(self):
        if not self.started:
            self.started = True
            self.context.announce("launch_started", self.context)

    def finish(self):
        """Return the Outcome: the observers' findings and counters."""
        with np.errstate(all="ignore"):
            self.start()
            self.context.announce("launch_finished", self.context)
        own = "threads", "blocks", "barriers"
        counters = {name: count for name, count in self.context.counters.items() if name not in own}
        found, shown = self.context.findings, self.context.columns()
        return Outcome(found, counters, self.notes(), trace=self.context.trace, columns=shown)

    def notes(self):
        if not self.skipped:
            return ()
        tools = ", ".join(type(observer).__name__ for observer in self.observers)
        blocks = f"{self.blocks - self.skipped:,} of {self.blocks:,} blocks"
        return (f"{tools} watched {blocks}: the log of the others has no room for their accesses",)

    @property
    def share(self):
        """The fraction of the blocks whose log has been replayed."""
        return 1 - self.skipped / self.blocks

    def add(self, log):
        """Replay a piece of the log."""
        with np.errstate(all="ignore"):
            self.start()
            Piece(self, log).replay()

    def skip(self, log):
        """Replay a piece of the log whose last block is incomplete, and leave that block out."""
        ends = np.flatnonzero(log >> SITE_SHIFT == BLOCK_ENDS)
        if len(ends):
            self.add(log[: ends[-1] + 1])
        self.skipped += 1


class Piece:
    """One piece of the log. `kind` is the highest 16 bits of each entry. A `region` is the code of one
    thread between two synchronisation points."""

    def __init__(self, launch, log):
        self.launch, self.log = launch, log
        self.kind = log.view(np.uint16)[3::4].astype(np.intp)
        self.action = launch.action[self.kind]
        marks = np.flatnonzero(self.action == MARKER)
        kinds, facts = self.kind[marks] >> SITE_SHIFT - SIZE_SHIFT, log[marks] & DATA_MASK
        goes_on = kinds == THREAD_SWITCH
        begins, self.thread = np.append(0, marks[goes_on]), np.append(0, facts[goes_on]).astype(np.int32)
        self.region = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(log)))
        told = ~goes_on & (kinds != VALUE)
        self.moments = zip(*(column[told].tolist() for column in (marks, kinds, facts)))
        self.blocks = iter(facts[kinds == BLOCK_ENDS].tolist())
        self.values_at = marks[kinds == VALUE]
        self.announced = [
            (hook, Run(*columns()), make)
            for hook, columns, make in (
                ("accesses", self.accesses, self.batch),
                ("branches", self.branches, Decisions),
            )
            if launch.listeners[hook]
        ]

    def accesses(self):
        """Return (positions in the piece, columns of a Batch except its values)."""
        launch, at, values = self.launch, np.flatnonzero(self.action < BRANCH), self.values_at
        address = self.log[at]
        address &= DATA_MASK
        address += launch.moved[np.searchsorted(launch.low, address, side="right") - 1]
        if not launch.local:
            wanted = address >> SPACE_SHIFT != LOCAL
            if not wanted.all():
                values = values[wanted[np.searchsorted(at, values) - 1]]
                at, address = at[wanted], address[wanted]
        region, kind = self.region[at], self.kind[at]
        position = np.arange(launch.accesses, launch.accesses + len(at))
        thread, segment = self.thread[region], region + launch.segments
        self.values = Run(values, (self.log[values],))
        launch.accesses += len(at)
        launch.segments += len(self.thread)
        return at, (thread, segment, position, launch.site[kind], address, launch.size[kind])

    def branches(self):
        """Return (positions in the piece, columns of Decisions)."""
        at = np.flatnonzero(self.action == BRANCH)
        thread, site = self.thread[self.region[at]], self.launch.site[self.kind[at]]
        return at, (thread.astype(np.int64), site.astype(np.int64), self.log[at] & 1)

    def replay(self):
        launch, epoch, block = self.launch, 0, None
        for mark, kind, fact in self.moments:
            block = launch.index_of(next(self.blocks)) if block is None else block
            if kind == COLLECTIVE:
                launch.context.announce("collective", launch.operations[fact], block, launch.sites[fact])
                continue
            self.announce_before(mark, block, epoch)
            if kind == BARRIER_OPENS:
                launch.context.announce("collective", "syncthreads", block, launch.sites[fact])
                launch.context.announce("barrier_opened", block, epoch)
                epoch += 1
            else:
                launch.context.announce("block_ended", block, epoch)
                epoch, block = 0, None

    def announce_before(self, mark, block, epoch):
        """Announce to the observers all events of the block since the last announcement, up to the entry
        at `mark`."""
        self.mark = mark
        for hook, run, make in self.announced:
            columns = run.before(mark)
            if len(columns[0]):
                self.launch.context.announce(hook, make(block, epoch, *columns))

    def batch(self, block, epoch, *columns):
        return Batch(block, epoch, *columns, Values(*self.values.before(self.mark)))


class Run:
    """Parallel `columns` of entries at increasing positions `at` of a piece. Each entry is taken once."""

    def __init__(self, at, columns):
        self.at, self.columns, self.taken = at, columns, 0

    def before(self, mark):
        """Return the next entries of each column, up to the position `mark`."""
        first, self.taken = self.taken, int(np.searchsorted(self.at, mark))
        return [column[first : self.taken] for column in self.columns]


class Values(Sequence):
    """The values of a Batch. The `entries` of the log are decoded when an observer reads them."""

    def __init__(self, entries):
        self.entries, self.decoded = entries, None

    def __len__(self):
        return len(self.values())

    def __getitem__(self, position):
        return self.values()[position]

    def values(self):
        if self.decoded is None:
            dtypes = self.entries >> VALUE_BITS & 255
            borders = np.flatnonzero(np.diff(dtypes)) + 1
            runs = zip(np.split(self.entries, borders), np.split(dtypes, borders))
            self.decoded = [value for bits, of in runs if len(of) for value in values_of(bits, DTYPES[of[0]])]
        return self.decoded


def values_of(entries, name):
    """Return the values of a dtype in consecutive entries, in the type in which a kernel computes with
    them."""
    dtype = HALVES[name].numpy if name in HALVES else np.dtype(name)
    return map(domain, entries.astype(f"u{min(dtype.itemsize, 4)}").view(dtype))
