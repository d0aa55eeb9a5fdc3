"""One launch of a PTX kernel: the memory layout, the values of the arguments, and the objects used by the
generated source."""

import functools
from math import prod

import numpy as np

from sim.engine import named_barrier, warp
from sim.engine.scheduler import BARRIER, GRID
from sim.errors import LaunchError
from sim.memory.declared import check_sizes
from sim.memory.spaces import bind_arguments
from sim.memory.tensor_map import described_arrays
from sim.observers.words import LOCAL_VARIABLE
from sim.ptx import device_runtime
from sim.ptx.argument_bytes import argument_bytes, check_elements, pointer_bytes, takes_pointer
from sim.ptx.calls import function_address
from sim.ptx.copies import AddressMemory
from sim.ptx.grid_sync import HIGH, GridBarrier, workspace
from sim.ptx.heap import Heap
from sim.ptx.memory import Memory
from sim.ptx.origin import plain_name
from sim.ptx.regions import PERSISTENT_SPACES, RESERVED, VIEWS, WINDOWS, ModuleKey
from sim.ptx.shared_pointers import SharedPointers

WORKSPACE = "%envreg1"  # the key of the grid barrier's workspace in Run.allocations
# The probable reason for a trap in a kernel with a grid barrier: cooperative_groups.h executes it.
WITHOUT_GRID = (
    ": the launch is not cooperative, so grid_group::sync() executes a trap\n"
    "  Likely fix: launch the kernel with cudaLaunchCooperativeKernel"
)
STACK = 1 << 16  # bytes of local memory per thread for the calls of a recursive function


class WaitPoint:
    """The position at which a thread waits. It replaces a Python frame.

    f_code, f_lasti: values that identify the position, like the attributes of a frame.
    number: the number of the block barrier at this position, or None.
    aligned: the position in the source of an aligned barrier (Operations.aligned_place), or None for others.
    """

    __slots__ = ("aligned", "f_code", "f_lasti", "number")

    def __init__(self, context, identity, site, number=None, aligned=None):
        self.f_code, self.f_lasti = identity
        self.number, self.aligned = number, aligned
        context.sites.register(self, "call", site)


class Run:
    """The objects of one launch to which the source of a Program refers."""

    def __init__(self, context, scheduler, program, launch):
        self.context, self.scheduler, self.program, self.launch = context, scheduler, program, launch
        self.memory = Memory(scheduler, WaitPoint(context, ("turn", 0), 3))
        self.store = launch.function.module.store
        self.allocations = {}  # name of a variable -> its Allocation
        self.dynamic = None
        self.grid = GridBarrier(scheduler)
        self.declared_bytes = {"shared": 0, "local": 0}
        self.stack = STACK
        self.fit_gaps()
        self.lay_out()
        self.shared_pointers = self.memory.shared_pointers = SharedPointers(self)
        self.heap = self.memory.heap = Heap(self, self.store.heap)

    # --- memory ---------------------------------------------------------------------------------------------

    def fit_gaps(self):
        """Choose the number of guard bytes between the shared and between the local variables, so that all
        their addresses fit into the windows of their state spaces."""
        space, threads = self.context.space, self.launch.threads
        static = [v for v in self.program.shared if v.count is not None]
        extern = [v.align for v in self.program.shared if v.count is None]
        shared = [(v.bytes, v.align) for v in [*static, RESERVED]]
        shared += [(self.launch.shared, max(extern))] if extern else []
        space.fit_gaps("shared", shared)
        frames = lambda: [(v.bytes * threads * self.most_frames(v), v.align) for v in self.program.local]  # noqa: E731
        window = space.end("local") - WINDOWS["local"]
        while sum(nbytes for nbytes, _ in frames()) > window // 2 and self.stack > 1:
            self.stack //= 2
        space.fit_gaps("local", frames())

    def lay_out(self):
        """Allocate the module variables reachable from the kernel, and write addresses into their initial
        values. Variables of functions are allocated on first use.

        An earlier launch may have stored the address of any variable that its kernel could reach, so these
        variables are allocated as well.
        """
        reachable = {v.name: v for v in self.program.reachable_variables() if v.space in PERSISTENT_SPACES}
        self.named = reachable.keys()
        variables = self.program.text.variables
        for variable in [*reachable.values(), *(variables[name] for name in self.store.laid_out)]:
            self.address(variable)
            self.store.laid_out[variable.name] = None
        if self.context.space.packs_shared:
            # ptxas places these variables in the order of their declarations, and dynamic memory after them.
            for variable in sorted(self.program.shared, key=lambda variable: variable.line):
                self.address(variable)
        for name in self.store.laid_out:
            self.store.write_pointers(variables[name], functools.partial(self.pointer_to, variables[name]))

    def pointer_to(self, variable, symbol):
        """Return the address to which an initialiser refers. It is the generic address of a variable, or the
        address of a function.

        Raise LaunchError if there is no such variable or function.
        """
        text = self.program.text
        target = text.variables.get(symbol.name)
        if target is not None:
            return self.address(target) + WINDOWS[target.space] + symbol.offset
        if symbol.name in text.functions:
            return function_address(text, symbol.name) + symbol.offset
        raise LaunchError(
            f"PTX line {variable.line}: {symbol.name} is not a variable or function of this module"
        )

    def address(self, variable):
        """Return the address of a variable within its state space."""
        return self.allocation(variable).base - WINDOWS[variable.space]

    def allocation(self, variable):
        """Return the allocation of a variable. It is created on first use."""
        if variable.name not in self.allocations:
            self.allocations[variable.name] = self.allocate(variable)
        return self.allocations[variable.name]

    def allocate(self, variable):
        """Allocate a variable, and return the allocation."""
        space = variable.space
        if space == "shared" and variable.count is None:
            return self.dynamic_shared(variable)
        if space in PERSISTENT_SPACES:
            return self.allocate_of_module(variable)
        # Local memory has a copy for each thread and active call. Shared memory has a copy for each block,
        # which is created on first use.
        nbytes = variable.bytes
        copies = self.launch.threads * self.most_frames(variable) if space == "local" else 1
        allocation = self.reserve(variable, nbytes, copies)
        allocation.reserved = variable is RESERVED
        if space in self.declared_bytes and variable is not RESERVED:
            self.declared_bytes[space] += nbytes
            check_sizes(self.launch.spec, **self.declared_bytes, dynamic=self.launch.shared, asked=True)
        self.memory.make_addressable(allocation)
        return allocation

    def allocate_of_module(self, variable):
        """Return the allocation of a module's variable, whose bytes persist between launches.

        Raise LaunchError if the kernel uses a constant variable not set by the host.
        """
        kernel = self.launch.function.__name__ if variable.name in self.named else ""
        unwritten = self.store.unwritten(variable, kernel)
        allocation = self.reserve(variable, variable.bytes, 1, self.store.root(variable))
        allocation.unwritten = unwritten
        self.memory.make_addressable(allocation)
        return allocation

    def dynamic_shared(self, variable):
        """Return the allocation of the launch's dynamic shared memory. All `extern .shared` arrays refer to
        it."""
        if self.dynamic is None:
            self.dynamic = self.reserve(variable, self.launch.shared, 1)
            # Drivers align dynamic shared memory to 16 bytes.
            self.dynamic.alignment = max(variable.align, 16)
            self.dynamic.last = True
            self.memory.make_addressable(self.dynamic)
        return self.dynamic

    def reserve(self, variable, nbytes, copies, root=None):
        """Reserve memory for a variable, and return the allocation.

        nbytes: the number of bytes of one copy.
        copies: the number of copies.
        root: the bytes, or None for new ones.
        """
        itemsize, shape = self.program.origin.home(variable)
        name, space, align = self.label(variable), variable.space, variable.align
        key = ModuleKey(self.store.number, variable.name)
        return self.memory.reserve(name, space, nbytes, align, itemsize, shape, copies, root, key)

    def label(self, variable):
        """Return the name of a variable for findings. Compilers merge the local variables of a function into
        one depot and drop their names."""
        of_compiler = variable.space == "local" and variable.name.startswith("__local_depot")
        return LOCAL_VARIABLE if of_compiler else plain_name(variable.name)

    def most_frames(self, variable):
        """Return how many calls of the function that declares a local variable can be active at once in one
        thread."""
        return 1 if variable in self.program.entry.variables else max(self.stack // max(variable.bytes, 1), 1)

    def pop_frame(self, variable):
        """Return the function that releases the local memory of a call."""
        return functools.partial(self.memory.pop_frame, self.allocation(variable))

    def push_frame(self, variable):
        """Return the function that allocates the local memory of a call."""
        return functools.partial(self.memory.push_frame, self.allocation(variable))

    # --- arguments ------------------------------------------------------------------------------------------

    def bind(self, arguments):
        """Return the arguments of the Python function: the values loaded by the kernel from its
        parameters."""
        parameters = self.program.entry.parameters
        # A record is a structure, passed by value rather than as a pointer.
        arrays = {a.name: a.array for a in arguments if a.array is not None and not a.is_record}
        for position, nbytes in self.program.origin.element_bytes(self.program.entry).items():
            check_elements(arguments[position].name, arrays, nbytes)
            self.context.element_bytes[arguments[position].name] = nbytes
        reached = arrays | described_arrays(arguments)
        pinned = self.store.pinned.attach(self, reached)
        places = bind_arguments(self.context.space, {n: a for n, a in reached.items() if n not in pinned})
        if self.store.device is not None:
            self.store.device.attach(self)
        for allocation in dict.fromkeys(allocation for allocation, _ in places.values()):
            self.memory.make_addressable(allocation)
        places |= pinned
        # If a parameter cannot be a pointer, an array passed to it is a structure or an error.
        self.bits = [
            pointer_bytes(places[argument.name])
            if argument.name in arrays and takes_pointer(parameter, argument.array)
            else argument_bytes(argument.name, argument.value, parameter)
            for argument, parameter in zip(arguments, parameters)
        ]
        return [self.read_argument(*argument) for argument in self.program.arguments]

    def read_argument(self, position, at, ptx_type):
        """Return the value of a PTX type at byte offset `at` of a parameter.

        position: the position of the parameter.
        """
        dtype = np.dtype(VIEWS[ptx_type])
        value = np.frombuffer(self.bits[position], np.uint8)[at : at + dtype.itemsize].view(dtype)[0]
        return int(value) if dtype.kind in "iu" else value

    def parameter_address(self, name):
        """Return the address of a parameter in constant memory. Some kernels take the address of a
        parameter."""
        key = f"parameter {name}"
        if key not in self.allocations:
            # PTX allows a kernel to take the address of a parameter (`mov` of its name).
            position = [parameter.name for parameter in self.program.entry.parameters].index(name)
            root = np.frombuffer(self.bits[position], np.uint8).copy()
            label = self.launch.arguments[position].name
            identity = ModuleKey(
                self.program.text.number, f"{self.program.entry.name} {name}", permanent=False
            )
            allocation = self.memory.reserve(label, "const", len(root), 16, 1, None, 1, root, identity)
            self.memory.make_addressable(allocation)
            self.allocations[key] = allocation
        return self.allocations[key].base - WINDOWS["const"]

    # --- numbers --------------------------------------------------------------------------------------------

    def extent(self, name, axis):
        """Return the value of a special register that contains a size, such as %ntid.x or %dynamic_smem_size.

        axis: "x", "y" or "z", or None.
        """
        if name == "ntid":
            return self.launch.block["xyz".index(axis)]
        if name == "nctaid":
            return self.launch.grid["xyz".index(axis)]
        if name == "cluster_nctaid":
            return self.launch.cluster["xyz".index(axis)]
        if name == "nclusterid":
            return self.launch.grid["xyz".index(axis)] // self.launch.cluster["xyz".index(axis)]
        if name == "is_explicit_cluster":
            return int(self.launch.function.cluster is not None or prod(self.launch.cluster) > 1)
        if name == "nwarpid":
            return -(-self.launch.threads // 32)
        return self.launch.shared + (name != "dynamic_smem_size") * self.declared_bytes["shared"]

    # --- waiting --------------------------------------------------------------------------------------------

    def wait_point(self, place, number=None, aligned=None):
        """Return the WaitPoint for a pair (identity, site number)."""
        return WaitPoint(self.context, *place, number, aligned)

    def barrier(self, place, vote, number, aligned):
        """Return the function that makes a thread wait at a block barrier."""
        context, at = self.context, self.wait_point(place, number, aligned)
        if vote is not None:
            return lambda predicate: int(self.scheduler.wait(BARRIER, at, (vote, predicate)))

        def join():
            thread = context.thread
            thread.waits, thread.frame, thread.payload = BARRIER, at, None
            return True

        def wait():
            join()
            thread = context.thread
            thread.fiber.suspend()
            if thread.payload is not None:  # join_block_barrier has opened barrier 0 as a named barrier
                context.announce_ordering("passed", thread.payload)

        wait.join = join
        return wait

    def waiting_function(self, join):
        """Return the function that calls `join`, suspends the thread if `join` returns True, and returns the
        thread's result. A kernel that is a generator calls `join` itself (sim.ptx.generators)."""
        context = self.context

        def wait(*arguments):
            thread = context.thread
            if join(*arguments):
                thread.fiber.suspend()
            return thread.result

        wait.join = join
        return wait

    def named_barrier(self, place, waits, aligned):
        """Return the function by which a thread arrives at a named barrier."""
        at = self.wait_point(place, aligned=aligned)

        def meet(number, count=self.launch.threads):
            named_barrier.arrive_at(self.scheduler, number, count, at, waits)

        return with_site(meet, place[1])

    def grid_barrier(self, name, place):
        """Return the implementation of a device function of cooperative groups: the one that returns the
        handle of the grid, or the one that waits for the whole grid."""
        # There is only one grid, so any value but 0 serves as its handle.
        if name == "cudaCGGetIntrinsicHandle":
            return lambda scope: int(self.launch.cooperative)
        at = self.wait_point(place)
        return lambda handle, flags: self.scheduler.wait(GRID, at)

    def workspace_address(self, half):
        """Return the upper or lower 32 bits of the address of the workspace. The driver provides a workspace
        only for a cooperative launch. In other launches the address is 0."""
        address = self.workspace() if self.launch.cooperative else 0
        return address >> 32 if half == HIGH else address & 0xFFFFFFFF

    def workspace(self):
        """Return the address of the workspace of the grid barrier."""
        # The workspace is allocated on first use, because few kernels synchronise the grid.
        if WORKSPACE not in self.allocations:
            self.allocations[WORKSPACE] = workspace(self)
        return self.allocations[WORKSPACE].base

    def workspace_word(self):
        """Return the address of the word that counts arrivals at the grid barrier."""
        return self.workspace() + 4

    def arrive_at_grid(self, address, added):
        """Arrive at the grid barrier. Raise LaunchError if the address is not the address of the
        workspace."""
        workspace = self.allocations.get(WORKSPACE)
        if workspace is None or address != workspace.base + 4:
            raise LaunchError(
                f"the grid barrier of cooperative_groups.h adds to address {address:#x}, which is not in the"
                " workspace of this launch"
            )
        return self.grid.arrive(added)

    def wait_for_grid(self, place):
        """Return the function that waits at the grid barrier."""
        at = self.wait_point(place)
        return self.waiting_function(lambda address: self.grid.join(at))

    def warp_call(self, entry, place, space=None, sites=None):
        """Return the function by which a lane executes a warp instruction.

        space: the state space of the operands if they are in memory, otherwise None.
        sites: {action: site number} for these operands.
        """
        at, scheduler = self.wait_point(place), self.scheduler
        if space is None:
            return self.waiting_function(functools.partial(warp.join, scheduler, entry, at))
        call = self.call_on_memory(entry, at, space, sites)
        return self.with_equal_operands(call, entry, at, sites) if entry.name.startswith("wmma") else call

    def call_on_memory(self, entry, at, space, sites):
        """Return the function that executes a warp instruction whose operands or results are in memory."""
        scheduler, memory = self.scheduler, AddressMemory(self.memory, entry.name, sites)
        if entry.put is not None:

            def put(*given, **more):
                if entry.operands:
                    given = given[0], *warp.arrive(scheduler, entry, at, *given[1:])
                else:
                    warp.arrive(scheduler, entry, at)
                entry.put(memory, space, *given, **more)

            return put
        return lambda *given, **more: warp.arrive(
            scheduler, entry, at, *entry.fetch(memory, space, *given, **more)
        )

    def with_equal_operands(self, function, entry, at, sites):
        """Return a function that first compares the address and the stride that the lanes of a warp pass."""
        context, action = self.context, "load" if entry.put is None else "store"

        def compare(address, stride):
            thread = context.thread
            thread.block.equal_operands.compare(f"wmma.{action}", thread, at, address, stride)

        compare = with_site(compare, sites[action])

        def call(address, *registers, stride=0):
            compare(address, stride)
            return function(address, *registers, stride=stride)

        return call

    def transfer(self, entry, sites, *options):
        """Return the function that executes a MemoryInstruction. Any error that it raises names the site of
        the instruction. The options are the same as for `on_memory`."""
        return with_site(self.on_memory(entry, sites, *options), sites["load"])

    def on_memory(self, entry, sites=None, reach="grid", waits=False):
        """Return the function that executes a MemoryInstruction. `reach` and `waits` are as in
        sim.memory.transfer.Memory."""
        memory = AddressMemory(self.memory, entry.name, sites)
        memory.reach, memory.waits = reach, waits
        return functools.partial(entry.semantics, memory)

    def with_site(self, function, site):
        return with_site(function, site)

    def device_function(self, name, site):
        return functools.partial(getattr(device_runtime, name.strip("_")), self, site)

    def on_heap(self, name, site):
        """Return the function that performs `malloc` or `free` at this site."""
        return functools.partial(getattr(self.heap, name), site)

    def trap(self, place):
        """Return the function that executes a trap."""
        lacks_grid = "this_grid" in self.program.used and not self.launch.cooperative
        return functools.partial(device_runtime.trap, place[1], WITHOUT_GRID if lacks_grid else "")


def with_site(function, site):
    """Return a function that calls `function`, and makes its errors refer to the site of the call in the
    kernel."""

    def call(*arguments):
        try:
            return function(*arguments)
        except ValueError as error:
            error.site = site
            raise

    return call
