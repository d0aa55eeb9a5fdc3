"""Limits on the memory accesses and the synchronisation of a launch.

A contract counts events of the launch. It does not search the source for names.
"""

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
    """Requirements for one launch. A field with its default value imposes no requirement.

    An access is a load, store or atomic of a single element.

    names: the check's names of the arrays, in the order of the kernel's parameters ("x y out").
        By default, these are the kernel's parameter names. "shared" refers to all shared arrays together.
    """

    names: str = ""
    max_per_thread: dict = field(default_factory=dict)  # array -> maximum number of accesses per thread
    max_total: dict = field(default_factory=dict)  # array -> maximum number of accesses by all threads
    min_total: dict = field(default_factory=dict)  # array -> minimum number of accesses by all threads
    # array -> function that maps flat element indices to the global index of the thread that owns the element
    owner: dict[str, Callable] = field(default_factory=dict)
    threads: int = 0  # minimum number of threads that access memory
    # minimum number of threads that load or update a shared element that another thread has written
    helpers: int = 0
    blocks: int = 0  # minimum number of blocks
    # maximum ratio of the busiest thread's accesses to the mean over the active threads
    share: float | None = None
    barriers: tuple | None = None  # (minimum, maximum) number of block-wide barriers per block, on average
    warp_barriers: tuple | None = None  # (minimum, maximum) number of warp-wide barriers, over all warps
    shuffles: tuple | None = None  # (minimum, maximum) number of shuffles, summed over all warps
    atomics: tuple | None = None  # (minimum, maximum) number of atomic operations
    grid_barriers: tuple | None = None  # (minimum, maximum) number of grid-wide barriers
    shared_bytes: int | None = None  # maximum size of the shared arrays of a block, in bytes
    hint: str | None = None  # wording of the requirement in the exercise, for messages

    def enforce(self, kernel, report, call):
        """Reject a launch that violates a requirement. Its results have already been found correct."""
        work = Work(report, self.translation(kernel))
        for what in self.broken(work, report):
            fail(f"the result is correct, but {what}", call=call, hint=self.hint)

    def translation(self, kernel):
        """Return a dict from the kernel's parameter names to the names that the check uses."""
        # PTX kernels have no Python function from which to read parameter names.
        if (names := getattr(kernel, "names", None)) is None:
            code = getattr(kernel, "py_func", kernel).__code__
            names = code.co_varnames[: code.co_argcount]
        return dict(zip(names, self.names.split(), strict=False))

    def broken(self, work, report):
        """Yield a message for each violated requirement."""
        together = report.counters.get("together", {})
        barriers = sum(count for name, count in together.items() if name.startswith("syncthreads"))
        yield from self.too_much_by_one(work)
        yield from self.in_all(work)
        yield from self.not_owned(work)
        yield from self.idle(work)
        if self.shared_bytes is not None and (bytes_used := work.shared_bytes()) > self.shared_bytes:
            yield f"a block uses {bytes_used:,} bytes of shared memory; {self.shared_bytes:,} are enough"
        yield from check_bounds(
            self.barriers, barriers / report.counters["blocks"], "barrier", "in each block"
        )
        yield from check_bounds(
            self.warp_barriers, together.get("syncwarp", 0), "barrier", "of a warp (cuda.syncwarp) in total"
        )
        yield from check_bounds(
            self.shuffles,
            sum(count for name, count in together.items() if name.startswith("shfl")),
            "shuffle",
            "in all warps together",
        )
        yield from check_bounds(
            self.atomics, report.counters.get("atomics", 0), "atomic operation", "in total"
        )
        yield from check_bounds(
            self.grid_barriers,
            together.get(GRID_BARRIER, 0) / report.counters["blocks"],
            "barrier",
            "of the whole grid",
        )

    def too_much_by_one(self, work):
        for name, most in self.max_per_thread.items():
            thread, count = work.busiest(work.of(name))
            if count > most:
                yield (
                    f"{work.who(thread)} accesses elements of {shown(name)} {times(count)}; it only needs to"
                    f" do so {times(most)}"
                )
        if self.share:
            thread, count = work.busiest(work.everything)
            mean = work.everything.sum() / max(1, work.at_work.sum())
            if count > self.share * mean:
                yield (
                    f"{work.who(thread)} performs {count} of the {work.everything.sum()} memory accesses; the"
                    f" average per active thread is {mean:.3g}"
                )

    def in_all(self, work):
        for name, most in self.max_total.items():
            if (count := int(work.of(name).sum())) > most:
                yield (
                    f"the threads access elements of {shown(name)} {times(count)} in total; {times(most)} is"
                    " enough"
                )
        for name, least in self.min_total.items():
            if (count := int(work.of(name).sum())) < least:
                yield (
                    f"the threads access {shown(name)} only {times(count)} in total; to share work"
                    f" through it, they need to do so at least {times(least)}"
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
                        f"{work.who(t)} accesses element {e} of {shown(name)}, which belongs to"
                        f" {work.who(wanted)}"
                    )
                    return

    def idle(self, work):
        if (helpers := work.helpers() if self.helpers else 0) < self.helpers:
            yield (
                f"only {plural(helpers, 'thread')} in all blocks together read from shared memory what"
                f" another thread wrote; at least {self.helpers} must do so to share the work"
            )
        if (threads := int(work.at_work.sum())) < self.threads:
            yield f"only {threads} of {self.threads} threads do any work"
        if (blocks := int(work.at_work.any(axis=1).sum())) < self.blocks:
            yield f"only {blocks} of {self.blocks} blocks do any work"


def check_bounds(bounds, count, what, where):
    """Yield a message if `count` is outside `bounds`, a pair (minimum, maximum)."""
    if bounds is None:
        return
    fewest, most = bounds
    if not fewest <= count <= most:
        limit = f"at most {most:g} allowed" if count > most else f"at least {fewest:g} required"
        yield f"it executes {count:g} {what}{'s' * (count != 1)} {where}".rstrip() + f"; {limit}"


def shown(name):
    return "shared memory" if name == "shared" else name


def times(count):
    return "once" if count == 1 else f"{count:,} times"


class Work:
    """Number of accesses per thread in a launch, counted from its trace, as tables of shape (blocks, threads
    per block)."""

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
        """Return a table with the number of selected events that each thread executed."""
        blocks = int(np.prod(self.grid))
        place = self.block_number[chosen] * self.threads + self.trace.thread[chosen]
        return np.bincount(place, minlength=blocks * self.threads).reshape(blocks, self.threads)

    def chosen(self, name):
        if name == "shared":
            return self.is_shared & self.is_access
        return np.isin(self.trace.array, [i for i, known in enumerate(self.names) if known == name])

    def helpers(self):
        """Return the number of threads that load or update a shared element that another thread of their
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
        """Return the largest total size, over all blocks, of the shared arrays that a block accesses."""
        chosen = self.chosen("shared")
        used = np.unique(np.stack([self.block_number[chosen], self.trace.array[chosen]]), axis=1)
        sizes = np.array([home.itemsize * int(np.prod(home.shape)) for home in self.trace.arrays])
        return int(np.bincount(used[0], sizes[used[1]]).max(initial=0)) if used.size else 0

    def of(self, name):
        """Return a table of each thread's accesses to one array."""
        return self.table(self.chosen(name))

    def elements(self, name):
        """Return (element, global thread index) pairs for every access to an array."""
        chosen = self.chosen(name)
        return (
            self.trace.element[chosen],
            self.block_number[chosen] * self.threads + self.trace.thread[chosen],
        )

    def busiest(self, table):
        """Return the global index of the busiest thread and its number of accesses."""
        return int(table.argmax()), int(table.max(initial=0))

    def who(self, thread):
        """Format a global thread index as "thread 3 of block 0"."""
        block, t = divmod(thread, self.threads)
        return f"thread {index_text(place(t, self.block))} of block {index_text(place(block, self.grid))}"


def place(number, shape):
    """Return the (x, y, z) index for the linear index of a block in the grid or a thread in its block."""
    width, height, _ = shape
    return number % width, number // width % height, number // (width * height)
