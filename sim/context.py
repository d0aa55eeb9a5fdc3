"""The state of one launch: what runs, and which tools listen. Nothing here outlives it."""

import functools
import linecache
import sys
import time
import traceback
from array import array

import numpy as np

from sim.errors import LaunchError, Stuck
from sim.events import (
    ADDRESS_BITS,
    ADDRESS_MASK,
    LOAD,
    SITE_SHIFT,
    SITES,
    Access,
    Batch,
    Decisions,
    EnabledEvents,
    Moment,
    Observer,
    Site,
)
from sim.nouns import plural
from sim.progress import Judge, ours

HOOKS = [name for name, hook in vars(Observer).items() if callable(hook) and not name.startswith("_")]
FLUSH_AT = 1 << 20
DEFAULT_STEPS = 1_000_000
# seconds of this process's own time without anything that counts as progress: until threads are looked at
# first, then twice as long each time that something changes; at most
FIRST, PATIENCE = 1.0, 8.0
# where something still changes: so many times as long, and accesses until tools may look at them
MORE, MOST_LOGGED = 8, 1 << 23


class Context:
    """One launch: `thread` runs now, `log` holds its accesses until the next batch."""

    def __init__(self, observers, spec, space, block_shape, schedule, max_steps=None, poison=None):
        self.spec, self.space, self.block_shape = spec, space, block_shape
        self.observers = observers
        check_names(observers)
        # poison: the byte or number of which memory that nobody has written is full, if not the usual one
        self.schedule, self.poison = schedule, poison
        self.alignment = None  # what looks at the addresses of accesses (sim.memory.transfer)
        self.kernel, self.language = "", "Numba"  # its name, and what it is written in
        self.outline = lambda site: None  # a Site -> the Outline of its text, or None
        self.synchronizes = False  # whether threads act on what atomics tell them, or fence
        self.stores = False  # whether the kernel's text stores to arrays of the launch
        self.counts_rounds = False  # whether loops around barriers count their rounds
        self.listeners = {hook: listeners(observers, hook) for hook in HOOKS}
        self.log = array("q") if self.listeners["accesses"] else None
        self.enabled = EnabledEvents(
            bool(self.listeners["accesses"]),
            any(hook.__self__.local for hook in self.listeners["accesses"]),
            bool(self.listeners["unwritten"]),
            bool(self.listeners["branches"]),
        )
        # a site, 12 bits of thread, and whether its branch was taken
        self.decisions = array("q") if self.listeners["branches"] else None
        self.values = []  # what the stores and atomics in the log wrote
        self.segments, self.last_segment = [], -1  # (position in the log, thread): who appended what follows
        self.logged = 0  # accesses that tools have been told
        # whether a batch may hold what several blocks did, in turns
        self.mixes_blocks = not (self.enabled.local or self.enabled.branches)
        self.findings = []
        self.counters: dict = {"threads": 0, "blocks": 0, "barriers": 0}
        self.trace = None  # a Recording, if a tool makes one
        self.silent = {}  # hook that is not called, or not everywhere -> why
        self.unwatched = {}  # notes of accesses that no observer is told of, each once
        self.overwriting = set()  # sites of atomics that do not depend on what they replace: exch
        self.strong = {}  # sites of relaxed and acquiring loads, releasing stores -> LOAD or STORE
        # sites of atomics for their block alone -> LOAD or STORE, which they are to other blocks
        self.of_block = {}
        # (id of code, instruction, action) -> site number, for what is called rather than rewritten
        # id of code -> (the code, the positions of its instructions)
        self.called_from, self.codes = {}, {}
        self.thread, self.entered = None, 0
        # the accessors of an element, by number of dimensions, for what the kernel's text does not say
        self.load = self.store = ()
        self.live, self.judge = (), None  # blocks whose threads take turns; a Judge, while there is doubt
        # whether another engine runs part of the launch now; whether it has written to global memory
        self.away = self.wrote = False
        self.telling = False  # whether a tool is at work, which may take long and ends
        self.max_steps = max_steps
        self.ticking = True  # whether every `while` loop ticks: not those of a kernel without source
        self.restart_progress()

    # --- who listens ----------------------------------------------------------------------------------------

    def announce(self, hook, *facts):
        if not self.listeners[hook]:
            return
        began, self.telling = time.monotonic(), True
        for listener in self.listeners[hook]:
            self.findings.extend(listener(*facts) or ())
        self.telling = False
        if self.since is not None and hook != "access_refused":  # which a loop may bring without end
            self.since += time.monotonic() - began

    def refuse(self, site, what, array, index):
        """An access outside `array`, an IndexError if no tool listens; or with a negative index."""
        if not self.listeners["access_refused"] and any(not -n <= i < n for i, n in zip(index, array.shape)):
            raise IndexError(f"{array.name}{list(index)} is outside its shape {list(array.shape)}")
        self.announce("access_refused", self.witness(what, site), array, index, array.shape)

    def thread_index(self, linear):
        return thread_index(linear, self.block_shape)

    def witness(self, what, site=None, thread=None, value=None):
        """`thread` (the running one, if not given) as a finding's witness."""
        thread = thread or self.thread
        return Access(what, thread.block.index, thread.index, None if site is None else SITES[site], value)

    # --- the log --------------------------------------------------------------------------------------------

    def segment(self, thread):
        """What is logged from here on is `thread`'s."""
        if self.log is None:
            return
        if len(self.log) > FLUSH_AT:
            self.flush()
        self.last_segment += 1
        self.segments.append((len(self.log), thread))

    def event(self, hook, *facts):
        """What may order the running thread's accesses: what it does next is a new segment."""
        if self.listeners[hook]:
            thread = self.thread
            at = Moment(thread.block.index, thread.block.epoch, thread.linear, self.last_segment)
            self.announce(hook, at, *facts)
            self.segment(thread)

    def collective(self, name, block, frame):
        """Threads of `block` do `name` together, where `frame` is."""
        if self.listeners["collective"]:
            self.announce("collective", name, block.index, self.site_of(frame, "call"))

    def flush(self):
        """Hand the log to the tools and empty it. Called before a block's epoch ends, and before another
        block runs if a tool wants the accesses of all blocks in order."""
        if self.log:
            for batch in self.batches():
                self.announce("accesses", batch)
        self.segments.clear()
        if self.decisions:
            words = np.array(self.decisions, np.int64)
            del self.decisions[:]
            block = self.thread.block
            decided = words >> 1 & 4095, words >> 13, words & 1
            self.announce("branches", Decisions(block.index, block.epoch, *decided))

    def batches(self):
        """What is in the log, as a Batch for each block; empties it."""
        words, values = np.array(self.log, np.int64), self.values[:]
        positions, threads = zip(*self.segments)
        starts = np.array(positions)
        lengths, first = np.diff(starts, append=len(words)), self.last_segment - len(starts) + 1
        blocks = dict.fromkeys([thread.block for thread in threads])
        segment = np.repeat(np.arange(first, self.last_segment + 1), lengths)
        thread = np.repeat(np.array([thread.linear for thread in threads], np.int32), lengths)
        position, site = np.arange(len(words)) + self.logged, (words >> SITE_SHIFT).astype(np.int32)
        columns = thread, segment, position, site, words & ADDRESS_MASK, (1 << (words >> ADDRESS_BITS & 15))
        self.logged += len(words)
        del self.log[:]
        self.values.clear()
        if len(blocks) == 1:
            (block,) = blocks
            return [Batch(block.index, block.epoch, *columns, values)]
        number_of = {block: number for number, block in enumerate(blocks)}
        home = np.repeat(np.array([number_of[thread.block] for thread in threads]), lengths)
        homes_of_values = home[site & 3 != LOAD].tolist()
        parts = []
        for block, number in number_of.items():
            mine = home == number
            own = [value for value, at in zip(values, homes_of_values) if at == number]
            parts.append(Batch(block.index, block.epoch, *(column[mine] for column in columns), own))
        return [part for part in parts if len(part.address)]

    def branch(self, taken, site):
        """The running thread decides at a branch."""
        self.decisions.append((site << 12 | self.thread.linear) << 1 | bool(taken))
        return taken

    def unassigned(self, name, zero, site):
        """The value of a variable to which the running thread has assigned nothing."""
        self.announce("unassigned", self.witness("read", site), name)
        return zero

    def columns(self):
        """Return how a report shows the counters of a source line, in the order of the columns."""
        columns = dict.fromkeys(column for observer in self.observers for column in observer.columns)
        return tuple(sorted(columns, key=lambda column: column.order))

    def line(self, site):
        """The counters of the source line of the site with this number: tools add to this dictionary."""
        place = SITES[site].function, SITES[site].line
        return self.counters.setdefault("lines", {}).setdefault(place, {})

    # --- sites ----------------------------------------------------------------------------------------------

    def site(self, action):
        """The number of the place in the kernel that runs now: the first frame out of our own code."""
        frame = sys._getframe(1)
        while ours(frame):
            frame = frame.f_back
        return self.site_of(frame, action)

    def site_of(self, frame, action):
        """The number of the place where `frame` is now."""
        code = frame.f_code
        key = (id(code), frame.f_lasti, action)  # hashing the code itself walks through its instructions
        number = self.called_from.get(key)
        if number is None:
            if id(code) not in self.codes:
                self.codes[id(code)] = code, positions_in(code)
            line, _, column, _ = self.codes[id(code)][1][frame.f_lasti // 2]
            number = self.called_from[key] = SITES.add(site_at(code, line, column or 0, action))
        return number

    def site_of_error(self, error):
        """The number of the place in the kernel that raised `error`; compiled code leaves it there."""
        if hasattr(error, "site"):
            return error.site
        frames = list(traceback.walk_tb(error.__traceback__))
        frame, line = ([(frame, line) for frame, line in frames if not ours(frame)] or frames)[-1]
        return SITES.add(site_at(frame.f_code, line, 0, "loop"))

    def said_of_none(self, error):
        """Which parameters were None, if `error` is of that, as another line of a message."""
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if not ours(frame)]
        if "NoneType" not in str(error) or not frames:
            return ""
        code, given = frames[-1].f_code, frames[-1].f_locals
        none = [name for name in code.co_varnames[: code.co_argcount] if given.get(name, 0) is None]
        wanted = f"wanted an array or a number, or a test: if {none[0]} is not None" if none else ""
        return f"\n  {' and '.join(none)} is None; {wanted}" if none else ""

    # --- progress -------------------------------------------------------------------------------------------

    def restart_progress(self):
        """Something moved: a thread ended. The next look at the clock says when."""
        self.steps, self.judge = self.max_steps or DEFAULT_STEPS, None
        self.since, self.patience = None, first()

    def tick(self, site):
        """A `while` loop goes round once more. When the budget of rounds without progress is spent, ends the
        thread, unless something still changes."""
        self.steps -= 1
        if self.steps < 0 or (not self.steps & 1023 and self.max_steps is None and self.takes_long()):
            self.doubt(site, sys._getframe(1))

    def takes_long(self):
        now = time.process_time()
        if self.since is None:
            self.since = self.moved = now
        return now - self.since > self.patience

    def doubt(self, site, frame):
        """The budget is spent: Stuck(site, whether that is decided) if nothing changes any more, if it takes
        too long, or if the launch says how long it may."""
        if self.max_steps:
            raise Stuck(site, True)
        self.judge, self.steps = self.judge or Judge(self), min(self.steps, 0)
        stuck, now = self.judge.nothing_changes(site, frame), time.process_time()
        spent = now - self.moved > self.longest() or len(self.log or ()) > MOST_LOGGED
        if stuck or stuck is False and spent:
            raise Stuck(site, stuck)
        if stuck is False:
            self.judge, self.steps, self.since = None, DEFAULT_STEPS, now
            self.patience = min(2 * self.patience, PATIENCE)

    def longest(self):
        """Seconds that a loop may take in which something changes; where an error has been found, as where
        nothing does: on a GPU the error may have ended the launch, or made the loop endless."""
        wrong = any(finding.severity == "error" for finding in self.findings)
        return PATIENCE if wrong else MORE * PATIENCE

    @property
    def signs_of_life(self):
        """Something that differs between two moments if anything happened in between. Accesses count only if
        endless loops are seen by their ticks."""
        if self.away or self.telling:
            return object()
        return self.entered, self.steps, self.log and self.ticking and len(self.log)

    def spent(self, decided=True):
        """What a loop has spent without progress, in words."""
        if not decided:
            budget = f"{self.longest():g} s or {MOST_LOGGED:,} accesses"
            return f"Something still changes, but no thread ended within {budget}."
        rounds = plural(self.max_steps or DEFAULT_STEPS, "time")
        budget = rounds if self.max_steps else f"{rounds}, or for {first():g} s"
        return f"No thread ended while the loop went round {budget}."


def first():
    return min(FIRST, PATIENCE)


def thread_index(linear, block_shape):
    """(x, y, z) of the thread with this linear index in its block."""
    x, y, _ = block_shape
    return linear % x, linear // x % y, linear // (x * y)


def check_names(observers):
    """Raise LaunchError if observers of two classes count under one name: a report would add both."""
    owners = {}
    for observer in observers:
        tool = type(observer)
        for name in [name for column in observer.columns for name in column.counted]:
            owner = owners.setdefault(name, tool)
            if owner is not tool:
                raise LaunchError(
                    f"{owner.__name__} and {tool.__name__} both count {name!r} for source lines, and a report"
                    " would add these up\n  rename the counter of one of them"
                )


def listeners(observers, hook):
    """The bound methods of those observers that override `hook`."""
    return [getattr(observer, hook) for observer in observers if hook in overridden(observer)]


def tool_of(observer):
    """The class of an observer, which may be a class or an instance."""
    return observer if isinstance(observer, type) else type(observer)


def overridden(observer):
    """The names of the hooks that an observer overrides, in the order of HOOKS."""
    tool = tool_of(observer)
    return [hook for hook in HOOKS if getattr(tool, hook) is not getattr(Observer, hook)]


@functools.lru_cache(256)
def positions_in(code):
    """(line, its end, column, its end) of each instruction."""
    return list(code.co_positions())


def site_at(code, line, column, action):
    """The Site at a line of `code`, with its text from the file (or notebook cell) of the code."""
    text = linecache.getline(code.co_filename, line)
    indent = len(text) - len(text.lstrip())
    return Site(action, code.co_name, line - code.co_firstlineno + 1, column, text.strip(), indent)
