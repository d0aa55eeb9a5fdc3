"""Launches on the native engine: by fission where that can be; what is not in order is explained by an engine that can."""
import functools
import inspect
import weakref
from math import prod

import numpy as np
from numba import typeof, types
from numba.core.errors import NumbaError

from sim.context import thread_index
from sim.errors import LaunchError
from sim.events import Access
from sim.frontend.names import names_in, outside, python_function
from sim.memory.declared import too_much_shared
from sim.memory.spaces import Empty, host_array, named_leaves
from sim.native import unset
from sim.native.arrays import BARE, BOUNDED, EMPTY, GLOBAL, LOCAL, SHARED, Guarded, GuardedType, array_type
from sim.native.checks import BARRIERS, DIRTY, WROTE, new_state
from sim.native.internal import uncollected
from sim.native.front import CannotLower
from sim.native.bodies import Bodies, Body, InStep
from sim.native.program import first_line, fissioned, generators, lower_for_fission, sizes_of
from sim.native.kinds import argument_of, dtype_of
from sim.observers import DEFAULT
from sim.observers.misuse import Misuse, unassigned_variable
from sim.report import finish

TURNS = 1 << 34  # rounds of `for` loops that a block may make before it counts as endless
ROUNDS = 1_000_000  # of `while` loops
PROGRAMS = weakref.WeakKeyDictionary()  # function -> {(what its globals are, types): Lowered, Fissioned, or CannotLower}


def launch(asked, given):
    """The Report of a launch (sim.launch.Launch) with `given` arguments ({name: value})."""
    how, note = asked.simulation, "by generators, as the tools asked for count or record every access"
    if set(map(kind_of_observer, how.observers)) <= set(DEFAULT):
        try:
            attempt = Attempt(asked, given)
            if attempt.run():
                return attempt.report()
            note = "by fission, then explained by generators"
        except CannotLower as reason:
            note = f"by generators: {in_words(reason)}"
    return by_generators(asked, given, note)


def by_generators(asked, given, note):
    """The Report of a launch whose threads are compiled generators."""
    try:
        return asked.scheduled(given, functools.partial(generated, asked), InStep, [note])
    except CannotLower as reason:
        raise cannot_be_compiled(asked.simulation.function, reason) from reason


def check_writable(given, writes):
    """CannotLower if an argument that the kernel may write (`writes`: their names) is a read-only array: compiled code would not ask."""
    for name, value in named_leaves(given.items()):
        array = host_array(value, name)
        if array is not None and not array.flags.writeable and name.partition("[")[0] in writes:
            raise CannotLower(f"argument {name} is a read-only array, and the kernel may write to it")


def in_words(reason):
    return reason.what if reason.site is None else f"{reason.what} ({reason.site.function} line {reason.site.line}  {reason.site.source})"


def generated(asked, scheduler, declarations, given, values):
    """Threads that are compiled generators."""
    function, context = asked.simulation.function, scheduler.context
    watched, told = context.decisions is not None, bool(context.listeners["atomic_done"])
    dtypes = dtypes_of(function, [kind_of(name, value) for name, value in given.items()])
    program = remembered(function, (outside(function), watched, told, dtypes), lambda: generators(function, watched, told, dtypes))
    check_writable(given, program.lowered.writes)
    threads = Bodies(program, context, scheduler, declarations, values, asked.grid, asked.block)
    scheduler.takes_turns, context.synchronizes = program.turns, program.synchronizes
    threads.compile()
    return asked.threads(threads, functools.partial(Body, threads), program.lowered.module.used, program.lowered.code)


def kind_of_observer(observer):
    return observer if isinstance(observer, type) else type(observer)


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
    """The Numba type of an argument, its arrays being checked for their bounds only; a Numba type stands for an argument of that type."""
    if isinstance(value, types.Array):
        return GuardedType(value.dtype, value.ndim, value.layout == "C", BARE)
    if isinstance(value, types.Type):
        return value
    if isinstance(value, tuple):
        return types.BaseTuple.from_types([kind_of(f"{name}[{i}]", part) for i, part in enumerate(value)], type(value))
    array = host_array(value, name)
    try:
        return typeof(argument_of(value)) if array is None else array_type(array, BARE)
    except (NumbaError, ValueError) as error:
        raise CannotLower(f"argument {name} is a {type(value).__name__} that Numba does not know on the CPU: {first_line(error)}") from error


def source(kernel, *arguments):
    """The text that a kernel is lowered to for such arguments (or Numba types): by fission, or as generators where that cannot be."""
    function = python_function(kernel)
    try:
        kinds = tuple(kind_of(name, value) for name, value in zip(inspect.signature(function).parameters, arguments, strict=True))
        return fission_program(function, kinds).text
    except CannotLower:
        try:
            return generators(function, False, False).text
        except CannotLower as reason:
            raise cannot_be_compiled(function, reason) from reason


def fission_program(function, kinds):
    dtypes = dtypes_of(function, kinds)
    now = outside(function), dtypes
    lowered = remembered(function, now, lambda: lower_for_fission(function, dtypes))
    return remembered(function, (now, kinds), lambda: fissioned(lowered, function.__name__, kinds))


def dtypes_of(function, kinds):
    """(parameter, dtype) of the arrays among arguments of these types, where the kernel asks an array for its dtype."""
    asks = "dtype" in names_in(function.__code__)
    return tuple((name, dtype_of(kind.dtype)) for name, kind in zip(inspect.signature(function).parameters, kinds) if asks and isinstance(kind, GuardedType))


def cannot_be_compiled(function, reason):
    return LaunchError(f"{function.__name__} cannot be compiled: {in_words(reason)}\n  engine=\"fibers\" runs it")


class Attempt:
    """One launch by fission. Unless nobody listens, every access is watched, and whatever is not in order shows in `run`."""

    def __init__(self, asked, given):
        self.asked, self.given, how = asked, given, asked.simulation
        self.watched, self.threads = bool(how.observers), prod(asked.block)
        self.state = new_state(asked.block)
        self.held = []  # memory that compiled code has the address of
        self.arrays = {name: array for name, value in named_leaves(given.items()) if (array := host_array(value, name)) is not None}
        self.program = fission_program(how.function, tuple(kind_of(name, value) for name, value in given.items()))
        lowered = self.program.lowered
        if lowered.module.prints:
            raise CannotLower("it prints, and if it has a finding it runs again")
        check_shared_size(lowered.module, asked.shared, how.spec)
        self.written = [name for name in self.arrays if name.partition("[")[0] in lowered.writes]
        check_writable(given, lowered.writes)
        self.shadows = self.shadows_of_arguments() if self.watched else {}

    # --- memory -----------------------------------------------------------------------------------------------------------

    def arguments(self):
        """All arguments of the compiled function after `ended`, in order."""
        module, dynamic = self.program.lowered.module, self.dynamic_memory()
        return [*(self.guarded(np.ascontiguousarray(array), BOUNDED) for array in module.arrays.values()),
                *(self.declared(declared, dynamic) for declared in module.declared.values()),
                *(self.guarded(np.zeros(self.threads, dtype.rstrip("_")), BARE) for dtype in self.program.over_threads.values()),
                *(self.argument(name, value) for name, value in self.given.items())]

    def argument(self, name, value):
        if isinstance(value, tuple):
            parts = [self.argument(f"{name}[{i}]", part) for i, part in enumerate(value)]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        if name not in self.arrays:
            return argument_of(value)
        array = self.arrays[name]
        return Guarded(array, *self.shadows.get(name, (BOUNDED if self.watched else BARE, 0)), self.state)

    def shadows_of_arguments(self):
        """{name: (what is checked, address of the stamps)} of the arrays that need more than their bounds checked; arrays that overlap share stamps."""
        shadows = {}
        for group in overlapping(self.arrays):
            watched = any(name in self.written for name in group) or any(isinstance(self.arrays[name], Empty) for name in group)
            if watched:
                arrays = [self.arrays[name] for name in group]
                low, size = min(address_of(array)[0] for array in arrays), arrays[0].itemsize
                if any(array.itemsize != size or (address_of(array)[0] - low) % size or any(stride % size for stride in array.strides) for array in arrays):
                    raise CannotLower(f"arguments {', '.join(group)} overlap and their elements do not")
                stamps = self.hold(np.zeros(2 * -(-(max(address_of(array)[1] for array in arrays) - low) // size), np.int64))
                kind = EMPTY if all(isinstance(array, Empty) for array in arrays) else GLOBAL
                for name, array in zip(group, arrays):
                    offset = array.__array_interface__["data"][0] - low
                    shadows[name] = kind, stamps + 16 * offset // size
        return shadows

    def hold(self, array):
        """Keep `array` alive; returns its address."""
        self.held.append(array)
        return array.__array_interface__["data"][0]

    def guarded(self, array, kind, stamps=None, sizes=None):
        """An array of our own for compiled code, with fresh memory for what watches over it; only the bounds are checked if nobody listens."""
        if not self.watched:
            return Guarded(array, BARE, 0, self.state, sizes)
        if kind == SHARED:
            stamps = np.zeros(2 * array.size, np.int64) if stamps is None else stamps
        elif kind == LOCAL:
            stamps = np.zeros(array.size, np.uint8)
        return Guarded(array, kind, 0 if stamps is None else self.hold(stamps), self.state, sizes)

    def dynamic_memory(self):
        """The bytes of dynamic shared memory and their stamps; all views of them must have elements of one size."""
        sizes = {np.dtype(d.dtype.rstrip("_")).itemsize for d in self.program.lowered.module.declared.values() if d.shape is None} or {1}
        if len(sizes) > 1:
            raise CannotLower("the dynamic shared memory holds elements of different sizes")
        return np.zeros(self.asked.shared, np.uint8), np.zeros(2 * (self.asked.shared // sizes.pop()), np.int64)

    def declared(self, declared, dynamic):
        dtype = np.dtype(declared.dtype.rstrip("_"))
        if declared.space == "local":
            return self.guarded(np.empty((self.threads, *declared.shape), dtype), LOCAL, sizes=sizes_of(declared))
        if declared.shape is None:
            return self.guarded(dynamic[0][:self.asked.shared // dtype.itemsize * dtype.itemsize].view(dtype), SHARED, dynamic[1])
        return self.guarded(np.empty(declared.shape, dtype), SHARED, sizes=sizes_of(declared))

    # --- the launch -------------------------------------------------------------------------------------------------------

    def run(self):
        """Run every block; whether all was in order. If not, the arrays are as they were before."""
        saved = {name: self.arrays[name].copy() for name in self.written}
        ended = self.guarded(np.zeros(self.threads, np.uint8), BARE)
        rounds = self.asked.simulation.max_steps or ROUNDS
        arguments = self.arguments()
        try:
            with uncollected():  # the first time it compiles
                self.program.run(0, prod(self.asked.grid), self.asked.grid, self.asked.block, rounds, TURNS, self.state.address, ended, *arguments)
            in_order = not self.state.numbers[DIRTY] and (not self.watched or not self.arrays or bool(self.state.numbers[WROTE]))
        except NumbaError as error:
            raise CannotLower(f"Numba cannot type it: {first_line(error)}") from error
        except Exception:  # the kernel's own: the other engine says whose
            in_order = False
        for name in () if in_order else saved:
            self.arrays[name][...] = saved[name]
        return in_order

    def report(self):
        blocks = prod(self.asked.grid)
        counters = {"threads": blocks * self.threads, "blocks": blocks, "barriers": int(self.state.numbers[BARRIERS])}
        return self.asked.report(finish(self.unassigned()), counters, ["by fission"], self.program.lowered.code)

    def unassigned(self):
        """Findings of variables that were read and not assigned."""
        if Misuse not in map(kind_of_observer, self.asked.simulation.observers):
            return
        for site, name, block, thread in unset.told(self.state.numbers, self.program.lowered.module, self.asked.grid):
            yield unassigned_variable(Access("read", block, thread_index(thread, self.asked.block), site), name)


def address_of(array):
    """(first byte, byte behind the last) of an array."""
    return np.lib.array_utils.byte_bounds(array)


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
