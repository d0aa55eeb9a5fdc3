"""The contract of a launch: which threads have to work, how often they may access global memory, and which
synchronisation they need. It counts events, not names in a source."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from course.check.words import fail
from sim.events import LOAD, SHARED, SPACE_SHIFT, STORE, index_text
from sim.nouns import plural

GRID_BARRIER = "grid.sync"


@dataclass(frozen=True)
class Contract:
    """The demands on one launch, each a number that the check works out for it; what is left out is not
    demanded.

    Accesses are loads, stores and atomics of single elements. Arrays are called by the names that the check
    gives the kernel's parameters, in their order, in `names` ("x y out"; the kernel's own if left out);
    "shared" stands for all shared arrays together.
    """

    names: str = ""
    each: dict = field(default_factory=dict)  # array -> most accesses by one thread
    most: dict = field(default_factory=dict)  # array -> most accesses by all threads
    least: dict = field(default_factory=dict)  # array -> fewest accesses by all threads
    # array -> function: elements (flat indices) -> the thread of the grid to which each belongs
    owner: dict[str, Callable] = field(default_factory=dict)
    threads: int = 0  # at least this many threads make an access
    helpers: int = 0  # at least this many load or change an element of shared memory that another one writes
    blocks: int = 0  # at least this many blocks
    # the busiest thread makes at most this many times the mean accesses of those that make any
    share: float | None = None
    barriers: tuple | None = None  # (fewest, most) block-wide barriers, in each block on average
    shuffles: tuple | None = None  # (fewest, most) shuffles, in all warps together
    atomics: tuple | None = None  # (fewest, most) atomic operations
    grid_barriers: tuple | None = None  # (fewest, most) barriers of the whole grid
    shared_bytes: int | None = None  # most bytes of the shared arrays that a block uses
    hint: str | None = None  # the demand as the statement words it

    def enforce(self, kernel, report, call):
        """Reject a launch, right so far, that breaks a demand."""
        work = Work(report, self.translation(kernel))
        for what in self.broken(work, report):
            fail(f"right, but {what}", call=call, hint=self.hint)

    def translation(self, kernel):
        """{the kernel's own name of a parameter: the check's}"""
        if (names := getattr(kernel, "names", None)) is None:  # of a kernel of PTX
            code = getattr(kernel, "py_func", kernel).__code__
            names = code.co_varnames[: code.co_argcount]
        return dict(zip(names, self.names.split(), strict=False))

    def broken(self, work, report):
        """Every broken demand, in words."""
        together = report.counters.get("together", {})
        barriers = sum(count for name, count in together.items() if name.startswith("syncthreads"))
        yield from self.too_much_by_one(work)
        yield from self.in_all(work)
        yield from self.not_owned(work)
        yield from self.idle(work)
        if self.shared_bytes is not None and (bytes_used := work.shared_bytes()) > self.shared_bytes:
            yield f"a block uses {bytes_used:,} bytes of shared memory; {self.shared_bytes:,} are enough"
        yield from outside(self.barriers, barriers / report.counters["blocks"], "barrier", "in each block")
        yield from outside(
            self.shuffles,
            sum(count for name, count in together.items() if name.startswith("shfl")),
            "shuffle",
            "by all warps together",
        )
        yield from outside(self.atomics, report.counters.get("atomics", 0), "atomic operation", "in all")
        yield from outside(
            self.grid_barriers,
            together.get(GRID_BARRIER, 0) / report.counters["blocks"],
            "barrier",
            "of the whole grid",
        )

    def too_much_by_one(self, work):
        for name, most in self.each.items():
            thread, count = work.busiest(work.of(name))
            if count > most:
                yield (
                    f"{work.who(thread)} asks for elements of {shown(name)} {times(count)}; {times(most)} is"
                    " its part"
                )
        if self.share:
            thread, count = work.busiest(work.everything)
            mean = work.everything.sum() / max(1, work.at_work.sum())
            if count > self.share * mean:
                yield (
                    f"{work.who(thread)} makes {count} of the {work.everything.sum()} accesses to memory,"
                    f" where a thread makes {mean:.3g} on average"
                )

    def in_all(self, work):
        for name, most in self.most.items():
            if (count := int(work.of(name).sum())) > most:
                yield (
                    f"the threads ask for elements of {shown(name)} {times(count)} in all; {times(most)} is"
                    " enough"
                )
        for name, least in self.least.items():
            if (count := int(work.of(name).sum())) < least:
                yield (
                    f"the threads use {shown(name)} {times(count)} in all; {times(least)} at least, if they"
                    " share their work through it"
                )

    def not_owned(self, work):
        for name, owner in self.owner.items():
            element, thread = work.elements(name)
            for e, t, wanted in zip(
                element.tolist(),
                thread.tolist(),
                np.broadcast_to(owner(element), element.shape).tolist(),
                strict=True,
            ):
                if t != wanted:
                    yield (
                        f"{work.who(t)} asks for element {e} of {shown(name)}, which is the part of"
                        f" {work.who(wanted)}"
                    )
                    return

    def idle(self, work):
        if (helpers := work.helpers() if self.helpers else 0) < self.helpers:
            yield (
                f"only {plural(helpers, 'thread')} of all blocks take from shared memory what"
                " another thread has put"
                f" there; {self.helpers} at least, if they share the work"
            )
        if (threads := int(work.at_work.sum())) < self.threads:
            yield f"only {threads} of {self.threads} threads do any work"
        if (blocks := int(work.at_work.any(axis=1).sum())) < self.blocks:
            yield f"only {blocks} of {self.blocks} blocks do any work"


def outside(bounds, count, what, where):
    """Yield the message for a count that is outside of `bounds`, (least, most), if it is."""
    if bounds is None:
        return
    fewest, most = bounds
    if not fewest <= count <= most:
        limit = f"{most:g} at most" if count > most else f"{fewest:g} at least"
        yield f"with {count:g} {what}{'s' * (count != 1)} {where}".rstrip() + f"; {limit}"


def shown(name):
    return "shared memory" if name == "shared" else name


def times(count):
    return "once" if count == 1 else f"{count:,} times"


class Work:
    """The accesses of a launch by thread, from its trace: tables (blocks of the grid, threads of a block)."""

    def __init__(self, report, translation=None):
        self.trace, self.threads = report.trace, int(np.prod(report.block))
        if self.trace.cut:
            raise RuntimeError(f"the trace was cut: {self.trace.cut} accesses came after its limit")
        self.block, self.grid = report.block, report.grid
        width, height, _ = report.grid
        numbers = np.array([x + width * (y + height * z) for x, y, z in self.trace.blocks], int).reshape(-1)
        self.is_access = self.trace.array >= 0
        self.block_number = numbers[self.trace.block] if len(self.trace) else np.empty(0, int)
        self.names = [
            (translation or {}).get(home.name, home.name) if home.space == "global" else home.space
            for home in self.trace.arrays
        ]
        self.is_shared = (self.trace.address >> SPACE_SHIFT) == SHARED
        self.everything = self.table(
            self.is_access
            & np.isin(self.trace.array, [i for i, name in enumerate(self.names) if name != "local"])
        )
        self.at_work = self.everything > 0

    def table(self, chosen):
        """Return how many of the chosen events each thread of each block made."""
        blocks = int(np.prod(self.grid))
        place = self.block_number[chosen] * self.threads + self.trace.thread[chosen]
        return np.bincount(place, minlength=blocks * self.threads).reshape(blocks, self.threads)

    def chosen(self, name):
        if name == "shared":
            return self.is_shared & self.is_access
        return np.isin(self.trace.array, [i for i, known in enumerate(self.names) if known == name])

    def helpers(self):
        """Return how many threads load or change an element of shared memory that another thread of their
        block writes."""
        chosen = np.flatnonzero(self.chosen("shared"))
        places = [*zip(self.block_number[chosen].tolist(), self.trace.address[chosen].tolist(), strict=True)]
        threads, actions = self.trace.thread[chosen].tolist(), self.trace.action[chosen].tolist()
        writers = defaultdict(set)
        for place, thread, action in zip(places, threads, actions, strict=True):
            if action != LOAD:
                writers[place].add(thread)
        taken = zip(places, threads, actions, strict=True)
        return len({(p[0], t) for p, t, action in taken if action != STORE and writers[p] - {t}})

    def shared_bytes(self):
        """The bytes of the shared arrays that a block makes accesses to, in the block with the most."""
        chosen = self.chosen("shared")
        used = np.unique(np.stack([self.block_number[chosen], self.trace.array[chosen]]), axis=1)
        sizes = np.array([home.itemsize * int(np.prod(home.shape)) for home in self.trace.arrays])
        return int(np.bincount(used[0], sizes[used[1]]).max(initial=0)) if used.size else 0

    def of(self, name):
        """The accesses to one array by thread."""
        return self.table(self.chosen(name))

    def elements(self, name):
        """(element, thread of the grid) of every access to an array; threads count on from block to block."""
        chosen = self.chosen(name)
        return (
            self.trace.element[chosen],
            self.block_number[chosen] * self.threads + self.trace.thread[chosen],
        )

    def busiest(self, table):
        """(the thread of the grid with the most, how many)"""
        return int(table.argmax()), int(table.max(initial=0))

    def who(self, thread):
        """ "thread 3 of block 0" for a thread of the grid."""
        block, t = divmod(thread, self.threads)
        return f"thread {index_text(place(t, self.block))} of block {index_text(place(block, self.grid))}"


def place(number, shape):
    """(x, y, z) of a block in the grid, or of a thread in its block."""
    width, height, _ = shape
    return number % width, number // width % height, number // (width * height)
