"""Execution of one launch of a PTX kernel in compiled code. Memory has the same simulated addresses as in the
interpreter."""

import numpy as np

from sim import events
from sim.context import Context
from sim.engine.scheduler import Scheduler
from sim.engine.schedules import Seeded
from sim.native.codegen.shadow import BARE, EMPTY, GLOBAL, LOCAL, SHARED
from sim.native.lower.module import CannotLower
from sim.native.ptx.copies import make_rings
from sim.native.ptx.mbarriers import make_mbarriers
from sim.native.ptx.memory import OF_BLOCK, READ_ONLY, WRITABLE, Table
from sim.native.ptx.program import COPY_OPERATIONS, MBARRIER_CALLS, compile_kernel
from sim.native.run.launch import Attempt
from sim.native.split.specialize import memoize
from sim.observers import DEFAULT
from sim.ptx.regions import VIEWS
from sim.ptx.run import Run

# operations that need the array of mbarriers
MBARRIER_OPERATIONS = {operation for operation, *_ in MBARRIER_CALLS.values()}
# A block counts as endless if its loops have more iterations than WHILE_LIMIT in total, or more than
# LEAST_LIMIT and the time limit is exceeded.
WHILE_LIMIT, LEAST_LIMIT = 1 << 31, 1 << 29


class PtxAttempt(Attempt):
    """An attempt to run one launch of a PTX kernel in compiled code."""

    may_raise = False

    @property
    def most_iterations(self):
        """The number of iterations of all loops after which a block counts as endless."""
        return self.launch.max_steps or WHILE_LIMIT

    @property
    def certain_iterations(self):
        return self.launch.max_steps or LEAST_LIMIT

    def prepare(self):
        """Lower the kernel and allocate its memory.

        Raise CannotLower if the interpreter has to run the launch.
        """
        launch = self.launch
        if not self.observer_classes <= set(DEFAULT):
            raise CannotLower(
                "only the interpreter supports observers of PTX kernels other than the default checks"
            )
        launch.function.check(launch)
        self.source, self.program = memoize(
            launch.function.function,
            ("compiled", self.records, self.has_sides),
            lambda: compile_kernel(launch.function, self.records, self.has_sides),
        )
        self.lay_out()
        self.used = self.source.used
        if not all(piece.freed for piece in self.layout.heap.pieces.values()):
            raise CannotLower("an earlier launch has not freed all of its heap memory")

    @property
    def instructions(self):
        """The number of instructions of the kernel."""
        return len(self.launch.function.function.body)

    @property
    def checks(self):
        """Nothing, because the table of memory regions contains the checks."""
        return ()

    def lay_out(self):
        """Allocate memory and bind the parameters. The interpreter's code does this, so that both engines use
        the same simulated addresses."""
        launch = self.launch
        space, order = launch.function.module.address_space(), Seeded(np.random.default_rng(0))
        context = Context([], launch.spec, space, launch.block, order)
        # No thread runs in this Run. It only lays out memory and binds the arguments.
        self.layout = Run(context, Scheduler(context), self.source, launch)
        values = dict(zip(self.source.arguments.values(), self.layout.bind(launch.arguments)))
        for name, make in self.source.factories.items():
            if name not in self.source.calls:
                values[name] = make(self.layout)
        self.values = {name: as_number(values[name], self.source.ptx_types[name]) for name in values}
        # A fixed region exists once per launch. It is either a host array (`keep` is not None) or a variable
        # of the module.
        fixed = [region.allocation for region in self.layout.memory.fixed]
        self.arrays = {a.name: a.root for a in fixed if a.keep is not None}
        self.variables = [a for a in fixed if a.keep is None]
        writes = self.source.stores
        self.written = [name for name, root in self.arrays.items() if writes and root.flags.writeable]

    def run(self):
        """Run the blocks, and report their accesses to the memory of a whole program."""
        super().run()
        if self.device is not None:
            self.device.add_compiled(self.table.accessed())

    @property
    def can_record(self):
        return super().can_record and not self.has_mbarriers

    def homes(self):
        """Return (simulated address space, {}), because compiled code uses the simulated addresses."""
        return self.layout.memory.space, {}

    def number_of_site(self, index):
        """Return the number of a site in SITES. `index` is its index among the kernel's sites."""
        return self.source.sites[index]

    def operation_at(self, index):
        """Return the name of the instruction at a synchronisation point. `index` is the index of its site."""
        name = next(name for name, site in self.source.sync_sites.items() if site == index)
        return self.source.sync_points[name][0]

    def dtype_of_site(self, index):
        """Return the dtype of the elements that an access reads or writes."""
        return np.dtype(VIEWS[self.source.site_types[index]])

    def is_copied(self, index):
        """Return whether an access is the store of an asynchronous copy."""
        return index in self.source.copied_sites

    def written_arrays(self):
        """Return the arguments that the kernel may write, and the variables of the module."""
        return super().written_arrays() + [a.root for a in self.variables if a.writable]

    # --- memory ---------------------------------------------------------------------------------------------

    def arguments(self):
        """Build the table of memory regions. Return the arguments of the grid function that follow
        `spill_buffer`."""
        # A kernel can wait for copies although it sends none.
        operations = self.source.operations
        copies, phases = operations & COPY_OPERATIONS, operations & MBARRIER_OPERATIONS
        self.has_mbarriers = bool(phases)
        if copies and self.is_cooperative:
            raise CannotLower("it has asynchronous copies and grid barriers")
        if phases and self.is_cooperative:
            raise CannotLower("it has mbarriers and grid barriers")
        self.rings = make_rings(self.launch.threads) if copies else None
        mbarriers = make_mbarriers(self.launch.threads) if phases else None
        mixed = len(self.source.atomic_widths) > 1
        table = Table(self.source.site_count, self.layout.memory.space, mixed, self.rings, mbarriers)
        for name in self.source.local_positions:
            allocation = self.layout.allocations[name]
            self.add_own(table, allocation, LOCAL, self.launch.threads, stride=allocation.root.size)
        for region in self.layout.memory.fixed:
            self.add_fixed(table, region.allocation)
        for allocation in self.layout.memory.slots[events.SHARED]:
            self.add_own(table, allocation, SHARED, 1, fixed=OF_BLOCK)
        self.table, self.values["table"] = table, table.write()
        self.references.append(table)
        self.device = self.layout.store.device
        return [self.values[name] for name in self.program.lowered.parameters]

    def add_fixed(self, table, allocation):
        """Add a region of global or constant memory. Such a region exists once per launch."""
        changes = allocation.space == "global" and self.source.stores
        empty = allocation.unwritten is not None
        watch = BARE if not self.watched else EMPTY if empty else GLOBAL if changes else BARE
        itemsize = min((np.asarray(a).itemsize for a in allocation.keep or ()), default=1)
        fixed = WRITABLE if allocation.writable else READ_ONLY
        table.add(allocation, allocation.root, watch, itemsize, fixed)

    def kinds_of_checks(self):
        return self.table.kinds_of_checks()

    def add_own(self, table, allocation, watch, copies, **how):
        """Add a region of which each block or thread has its own copy.

        table: the Table.
        allocation: the region's Allocation.
        watch: the kind of check (sim.native.codegen.shadow).
        copies: the number of copies to allocate. One suffices for shared memory, because blocks run one after
            another.
        how: further arguments of Table.add.
        """
        memory = self.of_block(np.full(allocation.root.size * copies, 0xFF, np.uint8))
        itemsize = self.source.narrowest[allocation.space] // 8
        shadows = table.add(allocation, memory, watch if self.watched else BARE, itemsize, **how)
        for shadow in shadows:
            self.of_block(shadow)


def as_number(value, ptx_type):
    """Return a per-launch constant packaged as an argument for compiled code. An integer becomes the int64
    with the same 64 bits."""
    if ptx_type in ("f32", "f64"):
        return value
    return int(np.uint64(int(value) & (1 << 64) - 1).astype(np.int64))
