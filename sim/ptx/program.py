"""The translation of a kernel, and of the device functions that it calls, into Python source. Factories make
the objects to which the globals of this source refer."""

import functools
import itertools

import numpy as np
from numpy import float32

from sim.engine.named_barrier import NAMED_BARRIER
from sim.errors import LaunchError
from sim.isa import shuffles
from sim.isa.barriers import FENCES, nanosleep
from sim.isa.conversions import cast
from sim.isa.ptx_types import REALS
from sim.isa.registers import HELPERS, WIDTHS, Missing
from sim.isa.table import INSTRUCTIONS
from sim.ptx import atomics, calls, device_runtime, special_registers
from sim.ptx.destructors import destructor_of
from sim.ptx.effects import effects_of
from sim.ptx.emit import Writer
from sim.ptx.field_updates import FieldUpdates
from sim.ptx.generators import joining
from sim.ptx.grid_sync import GridSync
from sim.ptx.speculative import SpeculativeLoads
from sim.ptx.subwords import Subwords, nbytes_of
from sim.ptx.syntax import python_name
from sim.ptx.timed import timed_registers
from sim.ptx.undefined import needs_origins
from sim.ptx.unsupported import refusal_message, refuse
from sim.ptx.volatile import Uses

PRIVATE = {"const", "local", "param"}  # state spaces whose accesses are not in the access log


class Program:
    """The translation of one kernel in a Text.

    factories: {name of a global in the source: function (run) that makes the object}.
    arguments: {(parameter position, byte offset, type): name} for the arguments of the Python function.
    function, item: the function and the instruction being translated.
    tracks: whether the source tracks the origins of undefined values (sim.ptx.undefined).
    """

    passes_origins = True  # whether calls pass the origins of undefined values
    exchanges_origins = True  # whether shuffles pass the origins of undefined values
    float_kinds = REALS.keys()  # the types of floats that registers contain as such (sim.ptx.register_kinds)
    follows_copies = True  # whether copies of structures pass on which bytes are unwritten

    def __init__(self, text, origin, entry, branches, tracks):
        self.text, self.origin, self.entry, self.branches, self.tracks = text, origin, entry, branches, tracks
        self.factories, self.arguments, self.names = {}, {}, {}
        self.addressed = set()  # the names of the module variables whose addresses the source uses
        self.shared = set()  # the variables in shared memory whose addresses the source uses
        self.analyses = {}  # (class of the analysis, name of a function) -> the analysis
        # Whether the source contains indirect calls. If so, all functions of the module whose addresses are
        # taken are translated, because a pointer can come from an earlier launch of another kernel.
        self.calls_pointers = False
        # The names of the sim.isa entries that the source uses; whether threads act on results of atomics;
        # and whether the source stores to memory.
        self.used, self.acts, self.stores = set(), False, False
        # whether the source has fences; whether it receives signals, which fences order (sim.ptx.effects)
        self.fenced, self.receives = False, False
        # the ids of the instructions of a destructor, which affect no other thread
        self.unobserved = destructor_of(entry)
        self.accessed = set()  # numbers of the sites that access global or shared memory
        self.polls = False  # whether some loop can wait for another thread (sim.ptx.polling)
        self.timed = {}  # Python name of a function -> its variables that contain times
        # the sites of ld.global.nc, of loads that only serve to update a bit-field, and of loads whose value
        # a thread may discard
        self.noncoherent, self.field_updates, self.speculative = set(), set(), set()
        self.hoisted = {}  # site of a loop -> site of the load that the compiler moved out of it
        # The names of the functions in which the kernel waits in its own frame, and of their sim.isa entries;
        # and whether a thread can also wait in another way (sim.ptx.generators).
        self.joins, self.joined, self.waits_elsewhere = [], set(), False
        self.counter, self.missing = itertools.count(1), []
        self.source = self.translate()

    def translate(self):
        """Return the source. Raise LaunchError with a list of the unsupported instructions."""
        done, lines = {}, []  # done: name -> Python name, or None for a function without a body
        self.pending = [self.entry]
        # Translate the direct callees first. A function can add further callees, or an indirect call.
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

    def note_effects(self, function):
        """Record the effects of a function: its stores to memory, whether its threads act on the results of
        atomics, and whether they receive signals."""
        self.used |= {"this_grid"} if self.grid_sync.needed else set()
        barriers = self.grid_sync.arrivals | self.grid_sync.waits | self.unobserved
        stores, acts, receives = effects_of(function, barriers)
        self.stores |= stores
        self.acts |= acts
        self.receives |= receives

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
            # The address is a per-launch constant. As a literal, it would make compiled text depend on the
            # module's number.
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

        These are the variables that the source uses, and those to which their initialisers point.

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

    # --- source locations -----------------------------------------------------------------------------------

    def site(self, action):
        """Return the site number of the current instruction, for an action such as "load"."""
        return self.origin.site(self.function, self.item, action)

    def access_site(self, action, space):
        """Return the site number of an access to a state space."""
        number = self.site(action)
        if space not in PRIVATE:
            self.accessed.add(number)
        return number

    def wait_point(self):
        """Return (identity, site number) of the current instruction, at which threads wait."""
        return (self.entry.name, next(self.counter)), self.site("call")

    # --- memory ---------------------------------------------------------------------------------------------

    def load(self, ptx_type, space, count):
        """Return the name of the function that performs a load."""
        site = self.access_site("load", space)
        rest = ptx_type, space, count, site, not self.tracks
        self.noncoherent |= {site} if "nc" in self.item.names else set()
        self.field_updates |= {site} if self.item in self.analysis(FieldUpdates) else set()
        self.speculative |= {site} if self.item in self.analysis(SpeculativeLoads) else set()
        return self.new_name("load", lambda run: run.memory.make_load(*rest))

    def store(self, ptx_type, space, count):
        """Return the name of the function that performs a store."""
        site = self.access_site("store", space)
        return self.new_name("store", lambda run: run.memory.make_store(ptx_type, space, count, site))

    def origin_of_load(self, space, nbytes):
        """Return the name of the function that returns the origin of a loaded value."""
        site = self.site("load")
        return self.new_name("origin", lambda run: run.memory.local.make_origin(space, nbytes, site))

    def store_undefined(self, space, nbytes):
        """Return the name of the function that runs after the store of a possibly undefined value."""
        site = self.site("store")
        return self.new_name("undefined", lambda run: run.memory.local.make_store(space, nbytes, site))

    def report_undefined(self):
        """Return the name of the function that reports the use of an undefined value."""
        site = self.site("load")
        return self.new_name("report", lambda run: lambda origin: run.memory.local.report(origin, site))

    def strong(self, action, ptx_type, space, access):
        """Return the name of the function that performs a strong load or store (see Memory.make_strong)."""
        # The load in the loop of a grid barrier becomes the wait itself, so the loop ends after one
        # iteration.
        if id(self.item) in self.grid_sync.waits:
            place = self.wait_point()
            return self.joining_name("wait_for_grid", "this_grid", lambda run: run.wait_for_grid(place))
        self.used.add("atomic")
        relied_on = access.volatile and action == "load" and self.uses.relies_on(self.item)
        self.acts |= action == "load" and not relied_on and self.acts_on(space, access)
        sites = self.site(f"atomic {action}"), self.access_site(action, space)
        rest = ptx_type, space, access, *sites, relied_on
        rest += (nbytes_of(self.subword(self.item)),)
        return self.new_name(action, lambda run: run.memory.make_strong(action, *rest))

    def acts_on(self, space, access):
        """Return whether the value of the current strong load can affect what the thread does."""
        # A volatile access to shared memory is weak: threads synchronise by it in a waiting loop only.
        if access.volatile and space == "shared":
            return self.uses.waits_for(self.item)
        return not access.volatile or self.uses.acts_on(self.item)

    def atomic(self, access):
        """Return (operand type, name of the function) for an atomic operation."""
        # The addition of a grid barrier changes GridBarrier.word instead of memory.
        if id(self.item) in self.grid_sync.arrivals:
            return "u32", self.shared_name("arrive_at_grid", lambda run: run.arrive_at_grid)
        self.used.add("atomic")
        ptx_type, combine, replaces = atomics.atomic_semantics(access)
        site, writes = self.access_site("atomic", access.space), atomics.write_condition(access)
        rest = access.space, site, access.reach, combine, writes, access.release, replaces
        rest += nbytes_of(self.subword(self.item)), access.type in atomics.PACKED
        name = self.new_name("atomic", lambda run: run.memory.make_atomic(ptx_type, *rest))
        return ptx_type, name

    def subword(self, item):
        """Return the Subword of a strong access, or None."""
        return self.analysis(Subwords).find(item)

    def transfer(self, name, reach="grid", waits=False):
        """Return the name of the function that executes a MemoryInstruction. `reach` and `waits` are those of
        sim.memory.transfer.Memory."""
        entry, sites = INSTRUCTIONS[name], self.transfer_sites()
        self.used.add(name)
        return self.new_name("transfer", lambda run: run.transfer(entry, sites, reach, waits))

    def transfer_sites(self):
        """Return {action: site number} for an instruction with several kinds of accesses."""
        return {action: self.site(action) for action in ("load", "store", "atomic")}

    # --- waiting --------------------------------------------------------------------------------------------

    def named_barrier(self, waits):
        """Return the name of the function that arrives at a named barrier. Its arguments are the barrier's
        number and the number of threads.

        waits: whether the thread waits (`sync`) or only arrives.
        """
        self.used.add(NAMED_BARRIER)
        place = self.wait_point()
        return self.new_name("named_barrier", lambda run: run.named_barrier(place, waits))

    def cluster(self, make):
        """Return the name of a function for an instruction of clusters, which `make(run)` returns."""
        return self.used.add("barrier.cluster") or self.new_name("cluster", make)

    def barrier(self, number, count, vote):
        """Return the name of the function for a barrier with a vote. Raise Missing for a named barrier."""
        # Only votes of the whole block, at barrier 0, are supported.
        if count is not None or getattr(number, "value", 1) != 0:
            raise Missing(f"{self.item.opcode} at a named barrier")
        return self.whole_barrier(vote, number.value)

    def whole_barrier(self, vote, number):
        """Return the name of the function for a barrier of the whole block."""
        self.used.add("syncthreads")
        make = lambda run, at=self.wait_point(): run.barrier(at, vote, number)  # noqa: E731
        return self.joining_name("barrier", "syncthreads", make, vote is None)

    def fence_call(self, entry):
        """Return the name of the function that executes a fence."""
        self.used.add(entry.name)
        self.fenced |= entry in FENCES
        return self.shared_name(entry.name, lambda run: run.on_memory(entry))

    def sleep_call(self):
        """Return the name of the function that executes nanosleep, which advances the clock."""
        self.used.add(nanosleep.name)
        sleep = lambda run: functools.partial(run.context.clock.sleep, run.on_memory(nanosleep))  # noqa: E731
        return self.shared_name(nanosleep.name, sleep)

    def warp_call(self, entry, space=None):
        """Return the name of the function called by a lane to execute a warp instruction.

        space: the state space of the operands if they are in memory, otherwise None.
        """
        self.used.add(entry.name)
        place, sites = self.wait_point(), self.transfer_sites() if space else None
        make = lambda run: run.warp_call(entry, place, space, sites)  # noqa: E731
        return self.joining_name("warp", entry.name, make, space is None)

    # --- calls ----------------------------------------------------------------------------------------------

    def is_defined(self, name):
        """Return whether the module contains the body of a function."""
        return name in self.text.functions and self.text.functions[name].body is not None

    def callee_name(self, name):
        """Return the name of a directly called function. Raise Missing if it does not exist."""
        if self.is_defined(name):
            self.pending.append(self.text.functions[name])
            return python_name(self.text.functions[name].name, "run")
        provided = device_runtime.function_name(self, name)
        if provided is None:
            raise Missing(f"{self.item.opcode} of {name}, which the module does not define")
        return provided

    def pointer_call(self, returns, arguments):
        """Return the name of the Callee for an indirect call.

        returns, arguments: the sizes in bytes of the results and of the arguments.
        """
        self.calls_pointers = True
        rest = self.site("call"), returns, arguments, self.tracks and needs_origins(self.text, self.function)
        code = calls.code_base(self.text)
        return self.new_name("callee", lambda run: calls.Callee(run.context, code, *rest))

    def width_check(self, clamp):
        """Return the name of the function that checks the width of a shuffle (sim.isa.shuffles)."""
        check, site = functools.partial(shuffles.check_width, clamp), self.site("call")
        return self.new_name("check_width", lambda run: run.with_site(check, site))

    def trap(self):
        """Return the name of the function that executes a trap."""
        return self.new_name("trap", lambda run, place=self.wait_point(): run.trap(place))

    def namespace(self, run):
        """Return all globals needed by the source in one launch."""
        made = {name: make(run) for name, make in self.factories.items()}
        # This is numpy's conversion, in a sixth of the time if the value is already a float32.
        made["float32"] = cast(float32)
        return HELPERS | made | {joining(name): made[name].join for name in self.joins}
