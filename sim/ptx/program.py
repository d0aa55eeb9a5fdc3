"""The translation of a kernel, and of the device functions that it calls, into Python source. Factories
create the objects that the globals of this source denote."""

import functools
import itertools

import numpy as np
from numpy import float32

from sim.errors import LaunchError
from sim.isa.conversions import cast
from sim.isa.ptx_types import REALS
from sim.isa.registers import HELPERS, WIDTHS, Missing
from sim.ptx import calls, special_registers
from sim.ptx.destructors import destructor_of
from sim.ptx.effects import effects_of
from sim.ptx.emit import Writer
from sim.ptx.generators import joining
from sim.ptx.grid_sync import GridSync
from sim.ptx.operations import Operations
from sim.ptx.syntax import python_name
from sim.ptx.timed import timed_registers
from sim.ptx.undefined import has_locals
from sim.ptx.unsupported import refusal_message, refuse
from sim.ptx.volatile import Uses, VolatileLoads

# compiling a barrier or warp instruction takes as long as compiling this number of others
SYNCHRONISATION = 25


class Program(Operations):
    """The translation of one kernel in a Text.

    factories: {name of a global in the source: function (run) that makes the object}.
    arguments: {(parameter position, byte offset, type): name} for the arguments of the Python function.
    function, item: the function and the instruction being translated.
    tracks: whether the source tracks the origins of undefined values (sim.ptx.undefined).
    compares: whether the source records the operands of comparisons (sim.compared_values).
    """

    passes_origins = True  # whether calls pass the origins of undefined values
    exchanges_origins = True  # whether shuffles pass the origins of undefined values
    float_kinds = REALS.keys()  # types that registers contain as numpy floats (sim.ptx.register_kinds)
    follows_copies = True  # whether copies of structures copy the marks of unwritten bytes

    def __init__(self, text, origin, entry, branches, tracks, compares=False):
        self.compares, self.comparisons = compares, itertools.count()
        self.text, self.origin, self.entry, self.branches, self.tracks = text, origin, entry, branches, tracks
        self.factories, self.arguments, self.names = {}, {}, {}
        self.addressed = set()  # the names of the module variables whose addresses the source uses
        self.shared = set()  # the variables in shared memory whose addresses the source uses
        self.local = set()  # the variables in local memory of the functions in the source
        self.analyses = {}  # (class of the analysis, name of a function) -> the analysis
        # Whether the source contains indirect calls. If so, all functions of the module whose addresses are
        # taken are translated, because a pointer can come from an earlier launch of another kernel.
        self.calls_pointers = False
        self.used = set()  # the names of the sim.isa entries that the source uses
        self.acts = False  # whether threads act on the results of atomics
        self.stores = False  # whether the source stores to memory
        self.fenced = False  # whether the source has fences
        self.has_undefined = False  # whether a function has local variables or registers without a value
        self.receives = False  # whether threads receive signals, which fences order (sim.ptx.effects)
        # the ids of the instructions of a destructor, which affect no other thread
        self.unobserved = destructor_of(entry)
        self.accessed = set()  # numbers of the sites that access global or shared memory
        self.polls = False  # whether some loop can wait for another thread (sim.ptx.polling)
        self.timed = {}  # Python name of a function -> its variables that contain times
        # The sites of three kinds of loads: ld.global.nc, loads that only serve to update a bit-field, and
        # loads whose value a thread may discard.
        self.noncoherent, self.field_updates, self.speculative = set(), set(), set()
        self.hoisted = {}  # site of a loop -> site of the load that the compiler moved out of it
        self.call_sites = {}  # as in Context
        # site of a loop -> the variables that decide when it ends, or None (sim.ptx.polling)
        self.deciding = {}
        # `joins` contains the names of functions in which a thread waits, if the kernel itself calls them and
        # they have an attribute `join` (sim.ptx.generators). `joined` contains the names of their sim.isa
        # entries. `waits_elsewhere` is true if a thread can also wait in another function.
        self.joins, self.joined, self.waits_elsewhere = [], set(), False
        self.counter, self.missing = itertools.count(1), []
        self.source = self.translate()

    def translate(self):
        """Return the source. Raise LaunchError with a list of the unsupported instructions."""
        done = {}  # name of a function -> its Python name, or None for a function without a body
        lines = []
        self.pending = [self.entry]
        # Translate the functions that are called directly, and then those whose addresses are taken. The
        # translation of a function can append to `pending`, or set `calls_pointers`.
        while self.pending or self.calls_pointers:
            if self.pending:
                function, by_pointer = self.pending.pop(), False
            elif names := self.text.addressable_functions - done.keys():
                function, by_pointer = self.text.functions[min(names)], True
            else:
                break
            if function.name not in done:
                has_body = function.body is not None
                done[function.name] = python_name(function.name, "run") if has_body else None
                lines += self.translate_function(function, by_pointer) if has_body else []
        if self.missing:
            raise LaunchError(refusal_message(self.entry, self.missing))
        if self.calls_pointers:
            table = {name: done[name] for name in sorted(self.text.addressable_functions)}
            lines.append(calls.function_table(self.text, table))
        return "\n".join(lines)

    def translate_function(self, function, by_pointer):
        """Return the lines of a function.

        A function that can only be called by pointer is allowed to contain unsupported instructions. Only a
        call to it then raises LaunchError.
        """
        self.function = function
        writer = Writer(self, function, self.branches)
        lines = writer.write()
        self.has_undefined |= bool(writer.origins.unset) or has_locals(function)
        names = {writer.names[name] for name in timed_registers(function) & writer.names.keys()}
        self.timed[python_name(function.name, "run")] = frozenset(names)
        self.note_effects(function)
        if by_pointer and writer.missing:
            text = refusal_message(function, writer.missing)
            refused = self.new_name("refused", lambda run: functools.partial(refuse, text))
            lines = [f"{python_name(function.name, 'run')} = {refused}"]
        else:
            self.missing += writer.missing
        return [*lines, ""]

    def analysis(self, kind):
        """Return the analysis `kind`, such as GridSync or Uses, of the current function. It is cached."""
        key = kind, self.function.name
        if key not in self.analyses:
            self.analyses[key] = kind(self.function)
        return self.analyses[key]

    @property
    def grid_sync(self):
        """The GridSync of the current function."""
        return self.analysis(GridSync)

    @property
    def uses(self):
        """The Uses of the current function."""
        return self.analysis(Uses)

    @functools.cached_property
    def volatile_loads(self):
        return VolatileLoads(self.entry, self.text.functions)

    def note_effects(self, function):
        """Record the effects of a function: its stores to memory, whether its threads act on the results of
        atomics, and whether they receive signals."""
        self.used |= {"this_grid"} if self.grid_sync.needed else set()
        barriers = self.grid_sync.arrivals | self.grid_sync.waits | self.unobserved
        stores, acts, receives = effects_of(function, barriers)
        self.stores |= stores
        self.acts |= acts
        self.receives |= receives

    def count_instructions(self):
        """Return the number of instructions of the kernel. A synchronisation counts as SYNCHRONISATION
        instructions, because compiled code has a loop over the threads between any two of them."""
        return len(self.entry.body) + SYNCHRONISATION * len(self.joins)

    @property
    def needs_schedules(self):
        """True if the order of the threads can matter, because they act on the results of atomics, or because
        fences order the signals that they receive. In a destructor, the order does not matter."""
        return self.acts or self.fenced and self.receives

    @property
    def synchronizes(self):
        """True if the kernel has atomics or fences that can order accesses."""
        return self.acts or self.fenced or bool(self.unobserved)

    # --- names ----------------------------------------------------------------------------------------------

    def new_name(self, stem, make):
        """Return a new global name for the object that `make(run)` returns in a launch."""
        name = f"{stem}_{next(self.counter)}"
        self.factories[name] = make
        return name

    def joining_name(self, stem, entry, make, joins=True):
        """Return a new global name for a function in which a thread waits.

        entry: the name of its entry in sim.isa.
        joins: whether the function has an attribute `join` (see Run.waiting_function).
        """
        name = self.new_name(stem, make)
        if joins and self.function is self.entry:
            self.joins.append(name)
            self.joined.add(entry)
        else:
            self.waits_elsewhere = True
        return name

    def shared_name(self, name, make):
        """Register the factory of a global shared by several instructions, and return the name."""
        self.factories.setdefault(name, make)
        return name

    def constant(self, operand, ptx_type):
        """Return a Python expression for an Immediate, as a PTX type. Floats become globals of the launch."""
        if ptx_type == "pred":
            return str(bool(operand.value))
        # The name contains the bit pattern: 0.0 and -0.0 compare equal, but need distinct globals.
        bits, width = operand.bits(WIDTHS[ptx_type]), WIDTHS[ptx_type]
        if ptx_type in self.float_kinds:
            value = np.array(bits, f"u{width // 8}").view(REALS[ptx_type])[()]
            return self.shared_name(f"{ptx_type}_{bits:x}", lambda run: value)
        if ptx_type in REALS:
            return f"{REALS[ptx_type].__name__}_of({bits})"
        # Expressions are combined as text, so a negative number needs parentheses.
        return f"({bits - (1 << width)})" if ptx_type[0] == "s" and bits >> width - 1 else str(bits)

    # --- where things are -----------------------------------------------------------------------------------

    def address(self, symbol):
        """Return the expression for the address of a symbol within its state space."""
        variable = self.variable(symbol.name)
        if variable in self.function.variables and variable.space == "local":
            name = python_name(variable.name)
        elif self.is_kernel_parameter(symbol.name):
            name = self.shared_name(
                python_name(symbol.name, "at"), lambda run: run.parameter_address(symbol.name)
            )
        elif variable is None and symbol.name in self.text.functions:
            # The address is a per-launch constant. As a literal, it would make the compiled code depend on
            # the module's number.
            name = self.shared_name(
                python_name(symbol.name, "code"), lambda run: calls.function_address(self.text, symbol.name)
            )
        elif variable is None:
            raise Missing(f"the address of {symbol.name}, which the module does not declare")
        else:
            self.used |= {"shared"} & {variable.space}
            self.shared |= {variable} if variable.space == "shared" else set()
            name = self.shared_name(python_name(variable.name, "at"), lambda run: run.address(variable))
        return f"({name} + {symbol.offset})" if symbol.offset else f"({name})"

    def variable(self, name):
        """Return the variable with this name in the current function, or else in the module."""
        own = next((v for v in self.function.variables if v.name == name), None)
        if own is None and name in self.text.variables:
            self.addressed.add(name)
        return own or self.text.variables.get(name)

    def reachable_variables(self):
        """Return the module variables addressable by a thread, in the order of their declarations.

        These are the variables that the source uses, and the variables to which the initialisers of these
        variables point.

        A header such as cooperative_groups.h declares a thousand variables that no kernel uses. They would
        fill the simulated address space and slow down each launch.
        """
        return self.text.reachable_variables(self.addressed)

    def push_frame(self, variable):
        """Return the name of the function that allocates the local memory of a call."""
        return self.shared_name(
            python_name(variable.name, "push_frame_v"), lambda run: run.push_frame(variable)
        )

    def pop_frame(self, variable):
        """Return the name of the function that releases the local memory of a call."""
        return self.shared_name(
            python_name(variable.name, "pop_frame_v"), lambda run: run.pop_frame(variable)
        )

    def is_kernel_parameter(self, name):
        """Return whether this is the name of a parameter of the kernel being translated."""
        return self.function.entry and any(p.name == name for p in self.function.parameters)

    def argument(self, name, at, ptx_type):
        """Return the name of the Python argument with the bytes of a kernel parameter from offset `at` on."""
        # Each separately loaded part of a parameter becomes an argument of its own.
        position = next(i for i, p in enumerate(self.function.parameters) if p.name == name)
        return self.arguments.setdefault((position, at, ptx_type), f"argument_{position}_{at}_{ptx_type}")

    def special(self, name):
        """Return the expression for a special register. Raise Missing for an unsupported register."""
        return special_registers.expression(self, name)

    def namespace(self, run):
        """Return all globals needed by the source in one launch."""
        made = {name: make(run) for name, make in self.factories.items()}
        # This is numpy's conversion, in a sixth of the time if the value is already a float32.
        made["float32"] = cast(float32)
        return HELPERS | made | {joining(name): made[name].join for name in self.joins}
