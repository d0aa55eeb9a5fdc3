"""Compiled generators under THE scheduler: a third way, besides a greenlet and an operating-system thread, for one CUDA thread to wait.

What compiled code has written down while a thread ran (accesses, values, branches, refusals) is in buffers; the context takes them for its own.
"""
import time
from dataclasses import dataclass
from itertools import repeat
from math import prod

import numpy as np
from numba import typeof
from numba.core.errors import NumbaError

from sim.isa.operators import domain, stored
from sim.context import PATIENCE
from sim.engine import warp
from sim.engine.grid import Block, Grid
from sim.engine.scheduler import BARRIER, GRID
from sim.errors import SimulatorError, Stuck
from sim.events import ADDRESS_MASK, Access, SITES, SITE_SHIFT
from sim.memory.array import Array
from sim.memory.declared import constant_array
from sim.memory.spaces import poisoned
from sim.native import checks, logged, unset
from sim.native.arrays import LOGGED, NOTED, Guarded
from sim.native.front import CannotLower
from sim.native.generator import LAST
from sim.native.internal import uncollected
from sim.native.kinds import argument_of
from sim.native.logged import BOX, DECISIONS, KINDS, LOG, NOTE, NOTES, VALUES
from sim.native.program import array_rank, first_line, sizes_of
from sim.native.vocabulary import BLOCK_WIDE, WARP_WIDE

ROOM = {LOG: (1 << 22, 8), VALUES: (1 << 22, 24), DECISIONS: (1 << 22, 8), NOTES: (1 << 12, 8 * NOTE)}  # entries and bytes of each; untouched memory costs nothing
TURNS = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a compiled thread is, in the form in which the engine asks frames."""

    f_code: object
    f_lasti: int


@dataclass(frozen=True)
class Seen:
    """An array as a finding names it."""

    name: str
    shape: tuple
    dtype: np.dtype


class Buffer:
    """Numbers that compiled code appends to, in the place of the context's own list. `convert` makes the context's words of compiled code's."""

    def __init__(self, numbers, which, convert):
        room, size = ROOM[which]
        self.memory, self.numbers, self.which, self.convert = np.empty(room * size // 8, np.int64), numbers, which, convert
        numbers[which:which + 3] = self.memory.ctypes.data, 0, room

    def __len__(self):
        length = int(self.numbers[self.which + 1])
        if length > self.numbers[self.which + 2]:
            raise SimulatorError('one thread makes more accesses between two stops than the native engine has room for\\n  engine="fibers" runs it')
        return length

    def words(self, width):
        return self.memory[:len(self) * width].reshape(-1, width)

    def __array__(self, dtype=None, copy=None):
        return self.convert(self.words(1)[:, 0])

    def clear(self):
        self.numbers[self.which + 1] = 0

    def keep(self, rows):
        """Let these be all that the buffer holds."""
        self.numbers[self.which + 1] = len(rows)
        self.memory[:rows.size] = rows.ravel()

    def __delitem__(self, _):
        self.clear()


class Values(Buffer):
    """What stores and atomics wrote, as the list of numbers that the context hands to the tools."""

    def __getitem__(self, _):
        words = self.words(3)
        values = np.empty(len(words), object)
        for code in np.unique(words[:, 0]).tolist():
            mine = words[:, 0] == code
            typed = np.ascontiguousarray(words[mine, 1:]).view(np.uint8).reshape(-1, 16)[:, :KINDS[code].itemsize].copy().view(KINDS[code])[:, 0]
            values[mine] = typed.tolist() if KINDS[code].kind in "ib" else list(typed)
        return values.tolist()


class Bodies:
    """The threads of one launch as generators: what the grid takes for the kernel."""

    def __init__(self, program, context, scheduler, declarations, values, grid, block):
        self.program, self.context, self.scheduler, self.declarations = program, context, scheduler, declarations
        self.state = checks.new_state(block, logged.NUMBERS)
        self.numbers = self.state.numbers
        self.numbers[logged.GRID:logged.GRID + 3], self.numbers[logged.BLOCK:logged.BLOCK + 3] = grid, block
        self.numbers[logged.TURNS_LEFT] = TURNS
        module = program.lowered.module
        self.sites = np.array([SITES.add(site) for site in module.sites], np.int64)
        self.places = [Place(self, position) for position in range(len(module.sites))]
        self.counts_steps = bool({"tick", "again", "counted"} & set(module.imports))  # whether it has a `while` loop, or any in a device function
        context.called_from |= {(self, position, "call"): int(number) for position, number in enumerate(self.sites)}
        self.operations = module.operations  # place -> what a thread does there
        context.overwriting |= {int(self.sites[place]) for place, name in self.operations.items() if name == "atomic.exch"}
        self.kind = NOTED if context.log is None else LOGGED
        self.listen()
        self.arrays = []  # by number, as findings name them
        self.constants = [self.guarded(constant_array(context, array)) for array in module.arrays.values()]
        self.arguments = [self.argument(value) for value in values]
        self.bases = {}  # declaration -> (number, address) of its array
        self.grid = grid

    def listen(self):
        """The context's lists become buffers of compiled code."""
        context, numbers = self.context, self.numbers
        self.notes = Buffer(numbers, NOTES, None)
        if context.log is not None:
            context.log = Buffer(numbers, LOG, lambda words: self.sites[words >> SITE_SHIFT] << SITE_SHIFT | words & (1 << SITE_SHIFT) - 1)
            context.values = Values(numbers, VALUES, None)
        if context.decisions is not None:
            context.decisions = Buffer(numbers, DECISIONS, lambda words: self.sites[words >> 13] << 13 | words & 8191)

    # --- memory -----------------------------------------------------------------------------------------------------------

    def argument(self, value):
        if isinstance(value, tuple):
            parts = [self.argument(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return self.guarded(value) if isinstance(value, Array) else argument_of(value)

    def guarded(self, array):
        """An Array as compiled code has it."""
        number = len(self.arrays)
        self.arrays.append(array)
        return Guarded(array.numpy, self.kind, number << 48 | array.code & ADDRESS_MASK, self.state)

    def arguments_in(self, index, shared):
        """The generator's arguments after the thread's number, in the block at `index`, whose declared arrays `shared` keeps."""
        x, y, z = index
        self.numbers[logged.POSITION] = x + self.grid[0] * (y + self.grid[1] * z)
        if "arrays" not in shared:
            dynamic, threads = {}, prod(self.context.block_shape)
            declared = [self.declared(declared, threads, dynamic) for declared in self.program.lowered.module.declared.values()]
            shared["arrays"] = [*self.constants, *declared, *self.arguments]
        return [self.state.address, *shared["arrays"]]

    def declared(self, declared, threads, block):
        dtype, place = np.dtype(declared.dtype.rstrip("_")), self.places[declared.site]
        dynamic, local = declared.shape is None, declared.space == "local"
        nbytes = self.declarations.dynamic_bytes if dynamic else prod(declared.shape) * dtype.itemsize
        shape = (nbytes // dtype.itemsize,) if dynamic else declared.shape
        key = "dynamic" if dynamic else (self, declared)
        if key not in self.bases:
            name, base = self.declarations.place(key, declared.space, dtype, shape, place, threads if local else 1)
            self.bases[key] = len(self.arrays), base
            self.arrays.append(Seen(name, shape, dtype))
        if dynamic:
            memory = block.setdefault(key, poisoned(nbytes, None, self.context.poison))[:nbytes // dtype.itemsize * dtype.itemsize]
        else:
            memory = np.empty(nbytes * threads, np.uint8) if local else poisoned(nbytes, dtype, self.context.poison)
        number, base = self.bases[key]
        array = memory.view(dtype).reshape((threads, *shape) if local else shape)
        return Guarded(array, self.kind, number << 48 | base, self.state, sizes_of(declared))

    # --- threads ----------------------------------------------------------------------------------------------------------

    def start(self, thread):
        """The generator of a thread, which must be asked for its first stop before another block's is made."""
        return self.make(thread.linear, *self.arguments_in(thread.block.index, thread.block.shared))

    def before(self, context):
        """Before compiled code runs: what it may spend, and that it has raised nothing."""
        numbers = self.numbers
        numbers[logged.AT] = -1
        if self.counts_steps:
            numbers[logged.STEPS] = numbers[checks.ROUNDS] = context.steps
            numbers[checks.TURNS] = LAST

    def behind(self, context):
        if self.counts_steps:
            context.steps = int(self.numbers[logged.STEPS])

    def compile(self):
        """Have the generator compiled for these arguments, before any thread runs."""
        declared = [Guarded(np.empty((1,) * array_rank(d), d.dtype.rstrip("_")), self.kind, 0, self.state, sizes_of(d))
                    for d in self.program.lowered.module.declared.values()]
        kinds = tuple(map(typeof, (0, self.state.address, *self.constants, *declared, *self.arguments)))
        try:
            with uncollected():
                self.program.start.compile(kinds)
        except NumbaError as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error
        self.make = self.program.start.overloads[kinds].entry_point  # without Numba's search for the right types

    def heed_notes(self, thread):
        """Pass on what compiled code has noted of `thread`; without a tool that listens, an access outside its array is an error."""
        notes = self.notes.words(NOTE).copy()
        self.notes.keep(notes[notes[:, -1] != thread.linear])
        for place, what, number, rank, *rest, _ in notes[notes[:, -1] == thread.linear].tolist():
            array, site, context = self.arrays[number], int(self.sites[place]), self.context
            if what == logged.NARROWED:
                value = domain(np.array(rest[6:8], np.int64).view(np.uint8)[:KINDS[rest[5]].itemsize].view(KINDS[rest[5]])[0])
                context.announce("atomic_narrowed", context.witness("changed", site, value=value), array, tuple(rest[:rank]))
                continue
            seen = Seen(array.name, tuple(rest[rank:2 * rank]), array.dtype)
            try:
                context.refuse(site, ("read", "written", "changed")[what], seen, tuple(rest[:rank]))
            except IndexError as error:
                error.site = site
                raise

    def heed_unset(self):
        """Pass on which variables were read and not assigned."""
        context = self.context
        for site, name, block, thread in unset.told(self.numbers, self.program.lowered.module, self.grid):
            context.announce("unassigned", Access("read", block, context.thread_index(thread), site), name)

    def look_after(self, place):
        """A loop has gone round often: room in the buffers, and whether it is endless."""
        context, self.numbers[logged.TURNS_LEFT] = self.context, TURNS
        if context.log is not None:
            context.segment(context.thread)
        endless = context.max_steps is None and time.monotonic() - context.since > PATIENCE
        if context.steps < 0 or endless:
            raise Stuck(int(self.sites[place]))

    def value(self, position):
        """What a thread that has stopped hands over, as the interpreted engines have it."""
        dtype = KINDS[int(self.numbers[BOX + 3 * position])]
        return domain(self.box(position, dtype)[0])

    def box(self, position, dtype):
        first = BOX + 3 * position + 1
        return self.numbers[first:first + 2].view(np.uint8)[:dtype.itemsize].view(dtype)


class Body:
    """One thread's generator, with the interface of Fiber. `suspend` only makes a note: it is `resume` that then returns."""

    def __init__(self, threads):
        self.threads = threads

    def begin(self, thread, *_):
        self.thread, self.generator, self.answers, self.stop = thread, None, None, None  # stop: where it has stopped already

    def resume(self):
        """Go on to the next stop at which the thread has to wait."""
        threads, thread, self.suspended = self.threads, self.thread, False
        try:
            while self.stopped(self.next()):
                pass
        except (Exception, Stuck) as error:
            if not hasattr(error, "site") and threads.numbers[logged.AT] >= 0:
                error.site = int(threads.sites[threads.numbers[logged.AT]])
            thread.error, thread.done, self.generator = error, True, None

    def suspend(self):
        self.suspended = True

    def abandon(self):
        self.generator = None

    close = abandon

    def next(self):
        """Run to the next stop."""
        threads, context = self.threads, self.threads.context
        if self.stop is not None:
            code, self.stop = self.stop, None
            return code
        if self.generator is None:
            self.generator = threads.start(self.thread)
        if self.answers:
            self.hand_back(self.thread.result)
        threads.before(context)
        code = next(self.generator, LAST)
        threads.behind(context)
        return code

    def stopped(self, code):
        """What a stop means; whether the thread goes on at once."""
        threads, thread = self.threads, self.thread
        if len(threads.notes):
            threads.heed_notes(thread)
        if threads.numbers[checks.DIRTY]:  # a loop in a device function, which cannot yield
            threads.numbers[checks.DIRTY] = 0
            raise Stuck(int(next(number for number in threads.sites if SITES[int(number)].kind == "loop")))
        if code == LAST:
            threads.heed_unset()
            thread.done = True
            return False
        if code < 0:
            threads.look_after(-1 - code)
            return True
        place, done = divmod(code, 2)
        if done:
            self.changed(threads.operations[place], int(threads.numbers[logged.TOUCHED]))
            return True
        return MOMENTS[threads.operations[place].partition(".")[0]](self, threads.operations[place], threads.places[place])

    def changed(self, name, touched):
        """An atomic has been done; `touched` is twice the address, and one more if the element is another now."""
        address, differs = divmod(touched, 2)
        self.threads.context.event("atomic_done", address, bool(differs) or name not in ("atomic.cas", "atomic.compare_and_swap"))

    # --- moments ----------------------------------------------------------------------------------------------------------

    def barrier(self, name, place):
        vote = name.removeprefix("syncthreads").strip("_")
        self.threads.scheduler.wait(BARRIER, place, (vote, self.threads.value(0)) if vote else None)
        self.answers = np.dtype(np.int32) if vote else None
        return False

    def grid_barrier(self, name, place):
        self.threads.scheduler.wait(GRID, place)
        return False

    def turn(self, name, place):
        self.threads.scheduler.turn(place)
        return not self.suspended

    def fence(self, name, place):
        self.threads.context.event("fenced", "block" if name == "threadfence_block" else "grid")
        return self.turn(name, place)

    def warp_wide(self, name, place):
        """Lanes of a warp do something together: their values, results, and the types of both."""
        threads, value = self.threads, self.threads.value
        mask = warp.CONVERGED if name == "activemask" else value(0)
        if name.startswith("shfl"):
            payload, self.answers = (value(1), value(2)), KINDS[int(threads.numbers[BOX + 3])]
        else:
            payload = {"syncwarp": lambda: None, "activemask": lambda: True}.get(name, lambda: value(1) if name.startswith("match") else bool(value(1)))()
            self.answers = RESULTS.get(name)
        result = warp.arrive(threads.scheduler, warp.OPERATIONS[name], mask, payload, place)
        if not self.suspended:
            self.thread.result = result
        return not self.suspended

    def hand_back(self, result):
        """Give the generator what it has waited for."""
        dtypes, self.answers = self.answers, None
        if dtypes is BOTH:
            for position, (dtype, part) in enumerate(zip(BOTH, result)):
                self.threads.box(position, dtype)[0] = part
        else:
            self.threads.box(0, dtypes)[0] = stored(result, dtypes)


BOTH = np.dtype(np.int32), np.dtype(bool)
RESULTS = {"ballot_sync": np.dtype(np.int32), "match_any_sync": np.dtype(np.int32), "activemask": np.dtype(np.uint32), "match_all_sync": BOTH,
           **dict.fromkeys(("all_sync", "any_sync", "eq_sync"), np.dtype(bool))}
MOMENTS = {**dict.fromkeys(BLOCK_WIDE, Body.barrier), **dict.fromkeys(WARP_WIDE, Body.warp_wide), "grid_sync": Body.grid_barrier, "atomic": Body.turn, "nanosleep": Body.turn,
           **dict.fromkeys(("threadfence", "threadfence_block", "threadfence_system"), Body.fence)}


class InStep(Grid):
    """The walk over the blocks, with a short cut for when nobody listens: as long as all threads of a block meet at plain barriers, nobody asks further."""

    def start(self, index):
        threads, context = self.kernel, self.context
        if any(context.listeners.values()):
            return super().start(index)
        first, *arguments = threads.arguments_in(index, {})
        start, epoch = threads.make, 0
        generators = list(map(start, range(prod(self.shape)), *map(repeat, (first, *arguments))))
        while True:
            threads.before(context)
            order = context.schedule.order(len(generators))
            codes = list(map(next, map(generators.__getitem__, order), repeat(LAST)))
            threads.behind(context)
            alike = codes.count(codes[0]) == len(codes) and not len(threads.notes) and not threads.numbers[checks.DIRTY]
            if alike and codes[0] == LAST:
                context.progress()
                return self.ended(index, len(generators))
            if not alike or threads.operations.get(codes[0] >> 1) != "syncthreads" or codes[0] & 1:
                break
            context.counters["barriers"] += 1
            epoch += 1
        return self.stopped(index, generators, epoch, order, codes, arguments)

    def ended(self, index, threads):
        """A block whose threads have all ended."""
        block = Block(index, (0, 0, 0), self.context.spec.warp_size)
        self.context.counters["blocks"] += 1
        self.context.counters["threads"] += threads
        return block

    def stopped(self, index, generators, epoch, order, codes, arguments):
        """A block whose threads have stopped in different ways, for the scheduler to go on with."""
        block = super().start(index)
        block.epoch = epoch
        block.shared["arrays"] = arguments
        for thread, code in zip(order, codes):
            block.threads[thread].fiber.generator = generators[thread]
            block.threads[thread].fiber.stop = code
        return block
