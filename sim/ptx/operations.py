"""The functions that the translated source of a kernel calls to execute instructions: loads, stores, atomics,
barriers, fences, warp instructions and calls."""

import functools

from sim.engine.named_barrier import NAMED_BARRIER
from sim.isa import shuffles
from sim.isa.barriers import FENCES, nanosleep
from sim.isa.registers import Missing
from sim.isa.table import INSTRUCTIONS
from sim.ptx import atomics, calls, device_runtime
from sim.ptx.field_updates import FieldUpdates
from sim.ptx.speculative import SpeculativeLoads
from sim.ptx.subwords import Subwords, nbytes_of
from sim.ptx.syntax import python_name
from sim.ptx.undefined import needs_origins
from sim.ptx.unset_registers import undefined_value

CALL = "__syncthreads"  # the functions of CUDA C++ that are aligned barriers begin with this name
PRIVATE = {"const", "local", "param"}  # state spaces whose accesses are not in the access log


class Operations:
    """The part of a Program that names the functions for the instruction being translated, `item`.

    Each method returns the name of a global of the source, and registers the factory that makes the function
    in a launch. It also records the properties that the kernel has because of the instruction.
    """

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

    def aligned_place(self, identity):
        """Return the position in the source of the current instruction, a barrier, or None if the barrier is
        not aligned.

        Copies that a compiler has made of one call have the same position. NVRTC can give several calls on
        one line the same column, so the result for these is `identity`, as without a position.

        identity: a value that only this instruction has.

        Source: PTX ISA 9.7.13.1, "barrier": `bar` is `barrier` with .aligned.
        """
        names, location = self.item.names, self.item.location
        if names[0] == "barrier" and "aligned" not in names:
            return None
        if location is None or not location.line or self.origin.text_at(location).count(CALL) > 1:
            return identity
        return location

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

    def unset_value(self, kind, ptx_type):
        """Return the name of the value of a register that no instruction has set."""
        self.used.add("unset register")
        name = f"unset_{kind}_{ptx_type}"
        return self.shared_name(name, lambda run: undefined_value(kind, ptx_type, run.context.poison))

    def unset_origin(self):
        """Return the name of the origin of a register that no instruction has set and the current instruction
        reads."""
        site = self.site("load")
        return self.new_name("origin", lambda run: (site, None))

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
        relied_on = (
            access.volatile and action == "load" and self.volatile_loads.relies_on(self.item, self.uses)
        )
        self.acts |= action == "load" and not relied_on and self.acts_on(space, access)
        sites = self.site(f"atomic {action}"), self.access_site(action, space)
        rest = ptx_type, space, access, *sites, relied_on
        rest += (nbytes_of(self.subword(self.item)),)
        return self.new_name(action, lambda run: run.memory.make_strong(action, *rest))

    def acts_on(self, space, access):
        """Return whether the value of the current strong load can affect later actions of the thread."""
        # A volatile access to shared memory is weak: threads can synchronise by it only if they wait in a
        # loop.
        if access.volatile and space == "shared":
            return self.uses.waits_for(self.item)
        return not access.volatile or self.uses.acts_on(self.item)

    def atomic(self, access):
        """Return (operand type, name of the function) for an atomic operation."""
        # A grid barrier in PTX adds to a word of memory. In the simulator, it adds to GridBarrier.word.
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
        """Return the name of the function that executes a MemoryInstruction. `reach` and `waits` are as in
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
        aligned = self.aligned_place(place[0])
        return self.new_name("named_barrier", lambda run: run.named_barrier(place, waits, aligned))

    def cluster(self, make):
        """Return the name of the function that executes an instruction of clusters. `make(run)` returns this
        function."""
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
        at = self.wait_point()
        aligned = self.aligned_place(at[0])
        make = lambda run: run.barrier(at, vote, number, aligned)  # noqa: E731
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
            called = python_name(self.text.functions[name].name, "run")
            self.note_call(called)
            return called
        provided = device_runtime.function_name(self, name)
        if provided is None:
            raise Missing(f"{self.item.opcode} of {name}, which the module does not define")
        return provided

    def note_call(self, called):
        """Record the site of a call for the finding about a recursion.

        called: the name of the called function in the generated source, or None for a pointer.
        """
        caller = python_name(self.function.name, "run")
        self.call_sites.setdefault((caller, called), self.site("call"))

    def pointer_call(self, returns, arguments):
        """Return the name of the Callee for an indirect call.

        returns, arguments: the sizes in bytes of the results and of the arguments.
        """
        self.calls_pointers = True
        self.note_call(None)
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
