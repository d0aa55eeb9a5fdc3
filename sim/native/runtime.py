"""A launch by fission, and, where compiled checks find something, the blocks concerned
again by fibers, which explain it."""

import inspect
import signal
import weakref
from dataclasses import replace
from functools import partial
from math import prod

import numpy as np
from numba import typeof, types
from numba.core.errors import NumbaError

from sim.context import thread_index
from sim.engine.base import Outcome
from sim.engine.fiber import Fiber
from sim.engine.grid import Grid
from sim.errors import LaunchError
from sim.events import SPACES, Access
from sim.frontend.names import names_in, outside, python_function
from sim.interpreted import Interpreted
from sim.memory.declared import too_much_shared
from sim.memory.spaces import AddressSpace, Empty, bind_arguments, host_array, named_leaves
from sim.native import checks, unset
from sim.native.arrays import (
    BARE,
    BOUNDED,
    EMPTY,
    GLOBAL,
    LOCAL,
    SHARED,
    Guarded,
    GuardedType,
    array_type,
    bytes_over,
)
from sim.native.checks import (
    BARRIERS,
    BETWEEN,
    FOUND,
    INTERRUPTED,
    KINDS,
    PAIRS,
    POSITION,
    STARTS,
    STOPPED,
    WROTE,
    new_state,
)
from sim.native.front import CannotLower
from sim.native.internal import uncollected
from sim.native.kinds import argument_of, dtype_of
from sim.native.program import first_line, fissioned, lower_for_fission, sizes_of
from sim.native.tally import Home, Tally
from sim.observers import COUNTERS, DEFAULT
from sim.observers.misuse import Misuse, unassigned_variable
from sim.observers.races import Races
from sim.observers.uninitialized import Uninitialized
from sim.retrial import undecided

TRIPS = 1 << 34  # of `for` loops, that a block may make before it counts as endless
ROUNDS = 1_000_000  # of `while` loops
FEW = 1 << 13  # threads: a launch of so many is explained as a whole, and of a larger one so many
ROOM = 1 << 24  # words that one block may write down
MOST_PAIRS = 1 << 16  # of blocks that race with each other
# function -> {(what its globals are, types): Lowered, Fissioned, or CannotLower}
PROGRAMS = weakref.WeakKeyDictionary()


def kind_of_observer(observer):
    return observer if isinstance(observer, type) else type(observer)


def by_fibers(launch, note, walk=Grid):
    outcome = Interpreted(Fiber).run(launch, walk)
    outcome.notes = note, *outcome.notes
    return outcome


def explained(attempt):
    """The Outcome of a launch in which not all is in order: of a small one by fibers as a whole, of a large
    one those blocks."""
    launch, blocks = attempt.launch, attempt.chosen()
    if launch.blocks * launch.threads <= FEW:
        attempt.go_back()
        return by_fibers(launch, "by fission, then explained by fibers")
    concerned = int(np.count_nonzero(attempt.concerned()))
    note = (
        f"by fission; of {launch.blocks:,} blocks {concerned:,} {'is' if concerned == 1 else 'are'} not in"
        " order"
    )
    note += (
        f", and {len(blocks):,} of them explained by fibers: counts of findings are of those"
        if concerned > len(blocks)
        else ", explained by fibers"
    )
    watching = replace(
        launch,
        observers=tuple(observer for observer in launch.observers if kind_of_observer(observer) in DEFAULT),
    )
    outcome = by_fibers(watching, note, partial(Chosen, attempt, blocks))
    if not any(finding.kind == "no-progress" for finding in outcome.findings):
        attempt.advance(launch.blocks)
    outcome.findings = [
        finding for finding in outcome.findings if finding.kind != "unassigned-variable"
    ] + attempt.unassigned  # of all blocks
    counted = attempt.counters()
    outcome.counters |= counted | {"barriers": counted["barriers"] + outcome.counters["barriers"]}
    return outcome


class Chosen(Grid):
    """Walks over some blocks of a launch; those between them run by fission, so that each finds the memory as
    it was."""

    def __init__(self, attempt, blocks, *given):
        super().__init__(*given)
        self.attempt, self.positions = attempt, dict(zip(map(attempt.index_of, blocks), blocks))
        self.order = list(self.positions)
        attempt.go_back()
        self.context.wrote = attempt.wrote

    def new_block(self, index):
        self.context.away = True
        self.attempt.advance(self.positions[index])
        self.context.away, self.attempt.next = False, self.positions[index] + 1
        self.context.progress()
        return super().new_block(index)


def check_writable(given, writes):
    """CannotLower if an argument that the kernel may write (`writes`: their names) is a read-only array:
    compiled code would not ask."""
    for name, value in named_leaves(given.items()):
        array = host_array(value, name)
        if array is not None and not array.flags.writeable and name.partition("[")[0] in writes:
            raise CannotLower(f"argument {name} is a read-only array, and the kernel may write to it")


def in_words(reason):
    return (
        reason.what
        if reason.site is None
        else f"{reason.what} ({reason.site.function} line {reason.site.line}  {reason.site.source})"
    )


def remembered(function, key, make):
    """`make()`, once for each function and key; a CannotLower is remembered too."""
    known = PROGRAMS.setdefault(function, {})
    if key not in known:
        try:
            with uncollected():
                known[key] = make()
        except CannotLower as error:
            known[key] = error
    if isinstance(known[key], CannotLower):
        raise known[key]
    return known[key]


def kind_of(name, value):
    """The Numba type of an argument, its arrays being checked for their bounds only; a Numba type stands for
    an argument of that type."""
    if isinstance(value, types.Array):
        return GuardedType(value.dtype, value.ndim, value.layout == "C", BARE)
    if isinstance(value, types.Type):
        return value
    if isinstance(value, tuple):
        return types.BaseTuple.from_types(
            [kind_of(f"{name}[{i}]", part) for i, part in enumerate(value)], type(value)
        )
    if isinstance(value, list):  # which Numba copies on the CPU alone
        raise CannotLower(f"argument {name} is a list")
    array = host_array(value, name)
    try:
        return typeof(argument_of(value)) if array is None else array_type(array, BARE)
    except (NumbaError, ValueError) as error:
        raise CannotLower(
            f"argument {name} is a {type(value).__name__} that Numba does not know on the CPU:"
            f" {first_line(error)}"
        ) from error


def source(kernel, *arguments):
    """The text that a kernel is lowered to for such arguments (or Numba types). Raises LaunchError if that
    cannot be."""
    function = python_function(kernel)
    try:
        return fission_program(
            function,
            tuple(
                kind_of(name, value)
                for name, value in zip(inspect.signature(function).parameters, arguments, strict=True)
            ),
        ).text
    except CannotLower as reason:
        raise LaunchError(f"{function.__name__} cannot be compiled: {in_words(reason)}") from reason


def fission_program(function, kinds, counted=False):
    dtypes = dtypes_of(function, kinds)
    now = outside(function), dtypes, counted
    lowered = remembered(function, now, lambda: lower_for_fission(function, dtypes, counted))
    return remembered(function, (now, kinds), lambda: fissioned(lowered, function.__name__, kinds))


def dtypes_of(function, kinds):
    """(parameter, dtype) of the arrays among arguments of these types, where the kernel asks an array for its
    dtype."""
    asks = "dtype" in names_in(function.__code__)
    return tuple(
        (name, dtype_of(kind.dtype))
        for name, kind in zip(inspect.signature(function).parameters, kinds)
        if asks and isinstance(kind, GuardedType)
    )


class Attempt:
    """One launch by fission. Unless nobody listens, every access is watched."""

    may_raise = True  # whether threads may

    def __init__(self, launch):
        self.launch, self.watched, self.tools = (
            launch,
            bool(launch.observers),
            set(map(kind_of_observer, launch.observers)),
        )
        self.state, self.next = new_state(launch.block), 0  # next: the position of the block that comes next
        self.held = []  # memory that compiled code has the address of
        self.rounds = launch.max_steps or ROUNDS
        self.prepare()
        if self.watched and self.program.lowered.synchronizes and launch.blocks * launch.threads <= FEW:
            raise CannotLower(
                "its threads act on what atomics tell them, which is judged under several schedules"
            )
        self.starts, self.found, self.pairs = (
            np.zeros(launch.blocks, np.int64),
            np.zeros(launch.blocks, np.int64),
            np.empty((MOST_PAIRS, 2), np.int64),
        )
        for position, value in [
            (STARTS, self.hold(self.starts)),
            (FOUND, self.hold(self.found)),
            (PAIRS, self.hold(self.pairs)),
            (PAIRS + 2, MOST_PAIRS),
        ]:
            self.state.numbers[position] = value

    def prepare(self):
        """The compiled kernel, and the arrays that it may write."""
        launch = self.launch
        self.arrays = {
            name: array
            for name, value in named_leaves(launch.arguments.items())
            if (array := host_array(value, name)) is not None
        }
        counted = bool(self.tools & set(COUNTERS))
        self.program = fission_program(
            launch.function, tuple(kind_of(name, value) for name, value in launch.arguments.items()), counted
        )
        lowered = self.program.lowered
        if lowered.module.prints:
            raise CannotLower("it prints, and a block that has a finding runs again")
        check_shared_size(lowered.module, launch.shared, launch.spec)
        self.written = [name for name in self.arrays if name.partition("[")[0] in lowered.writes]
        check_writable(launch.arguments, lowered.writes)
        self.shadows = self.shadows_of_arguments() if self.watched else {}

    # --- memory ---------------------------------------------------------------------------------------------

    def arguments(self):
        """All arguments of the compiled function after `ended`, in order."""
        module, dynamic = self.program.lowered.module, self.dynamic_memory()
        return [
            *(self.guarded(np.ascontiguousarray(array), BOUNDED) for array in module.arrays.values()),
            *(self.declared(declared, dynamic) for declared in module.declared.values()),
            self.kept(),
            *(self.argument(name, value) for name, value in self.launch.arguments.items()),
        ]

    def argument(self, name, value):
        if isinstance(value, tuple):
            parts = [self.argument(f"{name}[{i}]", part) for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if name not in self.arrays:
            return argument_of(value)
        array = self.arrays[name]
        return Guarded(array, *self.shadows.get(name, (BOUNDED if self.watched else BARE, 0)), self.state)

    def shadows_of_arguments(self):
        """{name: (what is checked, address of its shadow)} of the arrays that need more than their bounds
        checked; arrays that overlap share shadow words."""
        shadows = {}
        for group in overlapping(self.arrays):
            watched = any(name in self.written for name in group) or any(
                isinstance(self.arrays[name], Empty) for name in group
            )
            if watched:
                arrays = [self.arrays[name] for name in group]
                low, size = min(address_of(array)[0] for array in arrays), arrays[0].itemsize
                if any(
                    array.itemsize != size
                    or (address_of(array)[0] - low) % size
                    or any(stride % size for stride in array.strides)
                    for array in arrays
                ):
                    raise CannotLower(f"arguments {', '.join(group)} overlap and their elements do not")
                shadow = self.hold(
                    np.zeros(2 * -(-(max(address_of(array)[1] for array in arrays) - low) // size), np.int64)
                )
                kind = EMPTY if all(isinstance(array, Empty) for array in arrays) else GLOBAL
                for name, array in zip(group, arrays):
                    offset = array.__array_interface__["data"][0] - low
                    shadows[name] = kind, shadow + 16 * offset // size
        return shadows

    def hold(self, array):
        """Keep `array` alive; returns its address."""
        self.held.append(array)
        return array.__array_interface__["data"][0]

    def kept(self):
        """The address of the variables that live from one region to another, an array over threads each."""
        return self.hold(np.zeros(self.program.kept * bytes_over(self.launch.threads), np.uint8))

    def guarded(self, array, kind, shadow=None, sizes=None):
        """An array of our own for compiled code, with fresh memory for what watches over it; only the bounds
        are checked if nobody listens."""
        if not self.watched:
            return Guarded(array, BARE, 0, self.state, sizes)
        if kind == SHARED:
            shadow = np.zeros(2 * array.size, np.int64) if shadow is None else shadow
        elif kind == LOCAL:
            shadow = np.zeros(array.size, np.uint8)
        return Guarded(array, kind, 0 if shadow is None else self.hold(shadow), self.state, sizes)

    def dynamic_memory(self):
        """The bytes of dynamic shared memory and their shadow words; all views of them must have elements of
        one size."""
        sizes = {
            np.dtype(d.dtype.rstrip("_")).itemsize
            for d in self.program.lowered.module.declared.values()
            if d.shape is None
        } or {1}
        if len(sizes) > 1:
            raise CannotLower("the dynamic shared memory holds elements of different sizes")
        return np.zeros(self.launch.shared, np.uint8), np.zeros(
            2 * (self.launch.shared // sizes.pop()), np.int64
        )

    def declared(self, declared, dynamic):
        dtype = np.dtype(declared.dtype.rstrip("_"))
        if declared.space == "local":
            return self.guarded(
                np.empty((self.launch.threads, *declared.shape), dtype), LOCAL, sizes=sizes_of(declared)
            )
        if declared.shape is None:
            return self.guarded(
                dynamic[0][: self.launch.shared // dtype.itemsize * dtype.itemsize].view(dtype),
                SHARED,
                dynamic[1],
            )
        return self.guarded(np.empty(declared.shape, dtype), SHARED, sizes=sizes_of(declared))

    # --- the launch -----------------------------------------------------------------------------------------

    def run(self):
        """Run every block, or as far as no block ends the launch."""
        self.saved = {name: self.arrays[name].copy() for name in self.written}
        self.ended, self.given = self.guarded(np.zeros(self.launch.threads, np.uint8), BARE), self.arguments()
        self.tally = (
            Tally(self.launch, self.program.lowered.module, self.homes())
            if self.program.lowered.module.sited
            else None
        )
        self.log = np.empty(ROOM if self.tally else 0, np.int64)
        self.state.numbers[checks.LOG : checks.LOG + 3] = self.log.ctypes.data, 0, len(self.log)
        try:
            self.compile()
        except NumbaError as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error
        try:
            self.advance(self.launch.blocks)
        except Exception:  # the kernel's own: fibers say whose
            if not self.may_raise:
                raise
            self.found[self.state.numbers[POSITION]] |= checks.PARTED
        self.wrote = bool(self.state.numbers[WROTE])
        self.counted, self.tally = self.tally.counters() if self.tally else {}, None
        self.unassigned = list(self.unassigned_variables())
        self.found &= self.heeded()
        empty = not any(array.size for array in self.arrays.values())
        self.in_order = not self.found.any() and (empty or self.wrote or Misuse not in self.tools)

    def heeded(self):
        """The kinds of trouble that a tool asks for, or that no launch can do without."""
        asked = {Races: checks.RACE | BETWEEN, Uninitialized: checks.UNWRITTEN, Misuse: checks.NARROWED}
        return (
            checks.BOUNDS
            | checks.PARTED
            | checks.SPENT
            | sum(kinds for tool, kinds in asked.items() if tool in self.tools)
        )

    def compile(self):
        run = self.program.run
        if not run.overloads:
            with uncollected():
                run.compile(tuple(map(run.typeof_pyval, self.run_arguments(0))))

    def run_arguments(self, stop):
        """What the compiled kernel is given, to run the blocks from the next to `stop`."""
        launch = self.launch
        walk = self.next, stop, launch.grid, launch.block, self.rounds, TRIPS
        return *walk, self.state.address, self.ended, *self.given

    def advance(self, stop):
        """Run the blocks before `stop` that have not run yet."""
        while self.next < stop:
            self.program.run(*self.run_arguments(stop))
            self.next = (
                int(self.state.numbers[POSITION]) + 1 if self.state.numbers[STOPPED] == checks.FULL else stop
            )
            self.count()
        if self.state.numbers[STOPPED] == INTERRUPTED:
            signal.raise_signal(signal.SIGINT)
            raise KeyboardInterrupt

    def count(self):
        """Count what is written down; nobody asks a second time."""
        length, self.state.numbers[checks.LOG + 1] = int(self.state.numbers[checks.LOG + 1]), 0
        if length > len(self.log):
            self.go_back()
            raise CannotLower(f"one block has more than {ROOM:,} accesses to count")
        if self.tally and length:
            self.tally.add(self.log[:length])

    def homes(self):
        """The arrays of the launch, as the tools know them."""
        space, module = AddressSpace(), self.program.lowered.module
        bind_arguments(space, self.arrays)
        homes = [Home(a.name, SPACES.index(a.space), *extent(a.root), a.base) for a in space.allocations]
        named = [
            *(("a global array", "const") for _ in module.arrays),
            *((declared.name, declared.space) for declared in module.declared.values()),
        ]
        for (name, where), guarded in zip(named, self.given):
            memory = guarded.held[0].reshape(-1).view(np.uint8)
            homes.append(
                Home(name, SPACES.index(where), *extent(memory), space.add(name, where, memory, None).base)
            )
        return homes

    def go_back(self):
        """Make the arguments what they were before the launch."""
        for name, array in self.saved.items():
            self.arrays[name][...] = array
        self.next = self.state.numbers[BARRIERS] = 0

    # --- what is to be explained ----------------------------------------------------------------------------

    def index_of(self, position):
        x, y, _ = self.launch.grid
        return position % x, position // x % y, position // (x * y)

    def races(self):
        """(position of a block, position of another that it races with), those that are known."""
        pairs = np.unique(self.pairs[: self.state.numbers[PAIRS + 1]], axis=0)
        pairs = pairs[pairs[:, 1] > 0]
        return np.stack(
            [
                pairs[:, 0],
                np.searchsorted(self.starts[: self.state.numbers[POSITION] + 1], pairs[:, 1], side="right")
                - 1,
            ],
            axis=1,
        )

    def concerned(self):
        """Whether each block has to do with something that is not in order."""
        concerned = self.found != 0
        concerned[self.races()[:, 1]] = True
        return concerned

    def chosen(self):
        """The positions of the blocks to explain: of each kind of trouble some, as many as the threads of all
        may be."""
        races, most = self.races(), max(FEW // self.launch.threads, 2)
        partners = dict(races[::-1].tolist())
        kinds = [np.flatnonzero(self.found & kind)[:most].tolist() for kind in KINDS]
        chosen = set()
        for rank in range(most):
            for kind, blocks in zip(KINDS, kinds):
                if rank < len(blocks) and len(chosen) < most:
                    chosen |= (
                        {blocks[rank], partners.get(blocks[rank], blocks[rank])}
                        if kind == BETWEEN
                        else {blocks[rank]}
                    )
        return sorted(chosen)

    def unassigned_variables(self):
        """Findings of variables that were read and not assigned."""
        if Misuse in self.tools:
            for site, name, block, thread in unset.told(
                self.state.numbers, self.program.lowered.module, self.launch.grid
            ):
                yield unassigned_variable(
                    Access("read", block, thread_index(thread, self.launch.block), site), name
                )

    # --- what it comes to -----------------------------------------------------------------------------------

    def counters(self):
        launch = self.launch
        return {
            "threads": launch.blocks * launch.threads,
            "blocks": launch.blocks,
            "barriers": int(self.state.numbers[BARRIERS]),
            **self.counted,
        }

    def outcome(self):
        notes = (
            "by fission",
            *([undecided(1)] if self.watched and self.program.lowered.synchronizes else []),
        )
        return Outcome(self.unassigned, self.counters(), notes, self.program.lowered.code)


def address_of(array):
    """(first byte, byte behind the last) of an array."""
    return np.lib.array_utils.byte_bounds(array)


def extent(memory):
    """(first byte, byte behind the last) of an array of bytes."""
    first = memory.__array_interface__["data"][0]
    return first, first + memory.size


def overlapping(arrays):
    """The names of `arrays` in groups whose memory overlaps."""
    groups, end = [], 0
    for (low, high), name in sorted((address_of(array), name) for name, array in arrays.items()):
        if groups and low < end:
            groups[-1].append(name)
        else:
            groups.append([name])
        end = max(end, high)
    return groups


def check_shared_size(module, dynamic_bytes, spec):
    """A LaunchError if the block's shared memory is larger than the device's."""
    declared = [d for d in module.declared.values() if d.space == "shared" and d.shape is not None]
    total = dynamic_bytes + sum(prod(d.shape) * np.dtype(d.dtype.rstrip("_")).itemsize for d in declared)
    if total > spec.shared_bytes_per_block:
        raise too_much_shared(total, spec.shared_bytes_per_block)
