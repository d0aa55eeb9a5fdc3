"""Lower a PTX kernel: generate the statements of one thread with sim.ptx, omit the code that only the
interpreter needs, and compile the result."""

import re

from numba import int64

from sim.isa.ptx_types import FLOATS
from sim.isa.registers import WIDTHS, Missing, type_name
from sim.isa.table import Like
from sim.native.codegen import cache
from sim.native.lower.module import CannotLower
from sim.native.ptx.common_waits import uses_phases, without_loops
from sim.native.ptx.runs import SPECIAL
from sim.native.ptx.statements import Statements
from sim.native.split.fission import Fission
from sim.native.split.program import CompiledKernel, Lowered, kernel_text
from sim.ptx import atomics, register_kinds
from sim.ptx.emit import INITIAL_VALUES, Writer
from sim.ptx.program import Program
from sim.ptx.regions import RESERVED, VIEWS
from sim.ptx.shared_pointers import stores_shared_pointers
from sim.ptx.special_registers import SPECIALS
from sim.ptx.syntax import Instruction, python_name
from sim.ptx.warps import form_of

COPY_SIZES = {f"cp_async_{size}": size for size in (4, 8, 16)}
WAITS = {"cp_async_commit": "commit", "cp_async_wait": "receive", "cp_async_wait_all": "receive_all"}
# operations that need the rings of asynchronous copies
COPY_OPERATIONS = {"copy", "track", *WAITS.values()}
# mbarrier instruction -> its operation in sim.native.ptx.runs, followed by arguments of the operation
MBARRIER_CALLS = {
    "mbarrier_init": ("initialise",),
    "mbarrier_inval": ("invalidate",),
    "mbarrier_arrive": ("arrive_at",),
    "mbarrier_test_wait": ("wait_at", 0),
    "mbarrier_test_wait_parity": ("wait_at", 1),
    "cp_async_mbarrier_arrive": ("track", 1),
    "cp_async_mbarrier_arrive_noinc": ("track", 0),
}
COMPILED_ATOMICS = {*VIEWS, *atomics.PACKED}  # the PTX types whose atomics are compiled


class Lowering(Program):
    """A Program (sim.ptx.program) that generates statements for compilation.

    Memory operations and synchronisation points become calls of named functions. These attributes record what
    each name refers to:

    calls: {name: (operation of sim.native.ptx.runs, *its arguments)}.
    sync_points: {name: (synchronising instruction, PTX types of its operands, PTX types of its results)}.
    ptx_types: {variable: its PTX type}.
    """

    passes_origins = False  # only calls of functions pass origins, and calls have no compiled form
    exchanges_origins = False  # only the interpreter passes origins through shuffles
    float_kinds = FLOATS.keys()  # registers contain 16-bit floats as integers
    follows_copies = False  # compiled code marks the block, and the interpreter then decides

    def __init__(self, text, origin, entry, records=False):
        self.records = records  # whether accesses with errors are recorded
        self.calls, self.sync_points, self.ptx_types = {}, {}, {"go": "s64", "carry": "u32"}
        # For each memory access and block-wide barrier: its number in SITES, and its PTX type. The position
        # in the lists is the index of the access or barrier.
        self.sites, self.site_types = [], []
        self.copied_sites = set()  # the indices of the stores by asynchronous copies
        self.sync_sites = {}  # synchronisation point -> index of its site
        self.fetches = {}  # synchronisation point -> name of the function that loads its operands from memory
        self.local_positions = {}  # local variable -> index of its region in the table
        self.narrowest = {"shared": 64, "local": 64}  # state space -> bits of its narrowest access
        self.atomic_widths = set()  # the widths of the kernel's atomics, in bits
        self.sends_copies = any(map(is_copy, entry.body))
        if uses_phases(entry):
            entry = without_loops(entry)
        super().__init__(text, origin, entry, False, True)

    def translate(self):
        """Return the Python source of the kernel, and record the PTX type of each variable.

        Raise CannotLower for an instruction that has no compiled form.
        """
        if stores_shared_pointers(self.entry):
            raise CannotLower("a kernel that stores a pointer to shared memory has no compiled form")
        self.function = self.entry
        writer = Writer(self, self.entry, False)
        lines = writer.write()
        for line, opcode in writer.missing:
            raise CannotLower(f"{opcode} (PTX line {line}) has no compiled form")
        registers = {r.name: r for item in self.entry.body for r in register_kinds.registers_in(item)}
        for name, python in writer.names.items():
            holds, ptx_type = writer.kinds[name], registers[name].type
            self.ptx_types[python] = f"u{WIDTHS.get(ptx_type, 64)}" if holds == "int" else holds
        self.ptx_types |= dict.fromkeys(writer.origins.names(), "pred")
        self.note_effects(self.entry)
        return "\n".join(lines)

    # --- names ----------------------------------------------------------------------------------------------

    def constant(self, operand, ptx_type):
        """Return the text of an operand. A floating-point constant becomes a named value."""
        text = super().constant(operand, ptx_type)
        if text in self.factories:
            self.calls[text] = "float", ptx_type, int(text.partition("_")[2], 16)
        return text

    def shared_name(self, name, make):
        """Return the name of a per-launch constant. The constant becomes a parameter of the kernel."""
        self.ptx_types[name] = "u64"
        return super().shared_name(name, make)

    def special(self, name):
        """Return the text of a special register, such as `%tid.x`."""
        stem, _, axis = name.partition(".")
        if f"{stem}_{axis}" in SPECIAL:
            return f"{stem}_{axis}"
        if stem.startswith(("clock", "globaltimer", RESERVED.name)):
            raise Missing(f"%{name}")
        text = SPECIALS.get(stem) or super().special(name)
        return text.replace("thread.lane", "(linear & 31)").replace("thread.warp", "(linear >> 5)")

    def argument(self, name, at, ptx_type):
        """Return the text of a kernel parameter, and record its PTX type."""
        text = super().argument(name, at, ptx_type)
        self.ptx_types[text] = ptx_type
        return text

    def push_frame(self, variable):
        """Return the name of the function that initialises a local variable and returns its address."""
        base = self.shared_name(python_name(variable.name, "at_v"), lambda run: run.address(variable))
        self.ptx_types[python_name(variable.name)] = "u64"
        name = python_name(variable.name, "push_frame_v")
        position = self.local_positions.setdefault(variable.name, len(self.local_positions))
        self.calls[name] = "renew", position, base, variable.bytes
        return name

    # --- memory ---------------------------------------------------------------------------------------------

    @property
    def site_count(self):
        """The number of sites."""
        return len(self.sites)

    def number_access(self, action, ptx_type, space):
        """Return the index of a new access, and update the narrowest width seen in its state space.

        A generic access can address shared or local memory.

        action: "load", "store" or "atomic".
        """
        for of in ("shared", "local"):
            if space in (of, "generic"):
                self.narrowest[of] = min(self.narrowest[of], WIDTHS[ptx_type])
        return self.number_site(action, ptx_type)

    def number_site(self, action, ptx_type=None):
        """Return the index of a new site at the current instruction."""
        self.sites.append(self.site(action))
        self.site_types.append(ptx_type)
        return self.site_count - 1

    def add_call(self, operation, *arguments):
        """Return a new name for a call to an operation in sim.native.ptx.runs with these arguments."""
        name = f"{operation}_{next(self.counter)}"
        self.calls[name] = operation, *arguments
        return name

    def add_access(self, operation, action, ptx_type, space, *arguments, count=1):
        """Return a new name for a call to an operation that accesses memory.

        action: "load", "store" or "atomic".
        arguments: the arguments of the operation, except for the site, which comes last.
        count: the number of elements.
        """
        site = self.number_access(action, ptx_type, space)
        return self.add_call(*self.access_call(operation, ptx_type, count, site, *arguments))

    def access_call(self, operation, ptx_type, count, site, *arguments):
        """Return the call of an access to `count` elements: an operation of sim.native.ptx.runs, and its
        arguments."""
        recorded = ("recorded", WIDTHS[ptx_type] // 8 * count, site) if self.records else ()
        return *recorded, operation, *arguments, site

    def add_unrecorded(self, *operation):
        """Return a new name for a call to an operation that can set error flags without an access."""
        return self.add_call(*["unrecorded"] * self.records, *operation)

    def transfer_sites(self):
        """Raise Missing: bulk copies, mbarriers and wgmma have no compiled form."""
        raise Missing

    def load(self, ptx_type, space, count):
        """Return the name of a function that loads `count` elements."""
        operation = "load_read_only" if "nc" in self.item.names else self.load_operation(space)
        return self.add_access(operation, "load", ptx_type, space, ptx_type, space, count, count=count)

    def load_operation(self, space):
        """Return the operation that loads from a state space."""
        return "load_tile" if self.sends_copies and space == "shared" else "load"

    def store(self, ptx_type, space, count):
        """Return the name of a function that stores `count` elements."""
        return self.add_access("store", "store", ptx_type, space, ptx_type, space, count, count=count)

    def origin_of_load(self, space, nbytes):
        """Return the name of a function that tests whether loaded bytes are undefined."""
        return self.add_call("origin", space, nbytes)

    def store_undefined(self, space, nbytes):
        """Return the name of a function that marks stored bytes as undefined."""
        return self.add_unrecorded("store_undefined", space, nbytes)

    def unset_value(self, kind, ptx_type):
        """Return the value of a register that no instruction has set."""
        return INITIAL_VALUES[kind]

    def unset_origin(self):
        """Return the origin of a register that no instruction has set."""
        return "True"

    def report_undefined(self):
        """Return the name of a function that reports the use of an undefined value."""
        return self.add_unrecorded("report")

    def atomic(self, access):
        """Return (PTX type, name of the function that implements it) for an atomic operation.

        Raise Missing if the operation has no compiled form.
        """
        if id(self.item) in self.grid_sync.arrivals:
            workspace = self.shared_name("grid_workspace", lambda run: run.workspace_word())
            self.ptx_types[workspace] = "u64"
            return "u32", self.add_call("arrive", workspace)
        if id(self.item) in self.unobserved:
            self.atomic_widths.add(32)
            site = self.number_access("atomic", "u32", access.space)
            return "u32", self.add_call("count_down", access.space, site)
        if access.type not in COMPILED_ATOMICS or access.reach == "block" and access.space != "shared":
            raise Missing
        ptx_type, *_ = atomics.atomic_semantics(access)
        self.atomic_widths.add(16 if access.type in atomics.PACKED else WIDTHS[ptx_type])
        name, space = f"atom.{access.operation}.{access.type}", access.space
        return ptx_type, self.add_access("atomic", "atomic", ptx_type, space, name, ptx_type, space)

    def trap(self):
        """Return the name of the function that implements the `trap` instruction."""
        return self.add_call("trap")

    def width_check(self, clamp):
        """Return the name of the function that checks the width of a shuffle (sim.isa.shuffles)."""
        return self.add_unrecorded("check_width", clamp)

    @property
    def operations(self):
        """The names of the operations that the kernel calls."""
        return {operation for operation, *_ in self.calls.values()}

    def refuse(self, *_):
        """Raise Missing, for an operation that has no compiled form."""
        raise Missing

    def strong(self, action, ptx_type, space, access):
        """Return the name of the function for a strong access. Raise Missing if it has no compiled form.

        A volatile access to shared memory counts as weak (sim.ptx.memory). A store with the scope of a block
        orders nothing here, and races like a weak store. All other strong accesses have no compiled form,
        except for the loads of a grid barrier. A load in a loop that waits for its value to change has none
        either: compiled threads run one after another, so the loop would never end.
        """
        loads = action == "load"
        if id(self.item) in self.grid_sync.waits and self.grid_sync.barrier_after(self.item):
            return self.add_call("wait_for_grid")
        for_block = access.reach == "block" and not loads
        is_weak = access.volatile and space == "shared" and not (loads and self.acts_on(space, access))
        if not (for_block or is_weak):
            raise Missing
        return (self.load if loads else self.store)(ptx_type, space, 1)

    def fence_call(self, entry):
        """Return the name of the function for the fence of a destructor. Raise Missing for other fences."""
        if id(self.item) not in self.unobserved:
            raise Missing
        return self.add_call("skip")

    def sleep_call(self):
        """Return the name of a function that does nothing, because compiled code has no clock."""
        return self.add_call("skip")

    def transfer(self, name, reach="grid", waits=False):
        """Return the name of the function for a part of cp.async or of an mbarrier. Raise Missing for other
        transfers."""
        if name in MBARRIER_CALLS:
            return self.phase_call(name, reach)
        if name in COPY_SIZES:
            size = COPY_SIZES[name]
            ptx_type = f"u{min(8 * size, 64)}"
            sites = [
                self.number_access(*of)
                for of in (("store", ptx_type, "shared"), ("load", ptx_type, "global"))
            ]
            self.copied_sites.add(sites[0])
            return self.add_call("copy", self.records, size, *sites)
        if name not in WAITS:
            raise Missing
        return self.add_call(WAITS[name], self.records)

    def phase_call(self, name, reach):
        """Return the name of the function for an instruction of an mbarrier in shared memory. Raise Missing
        if the instruction orders no accesses (.relaxed), or if errors are recorded."""
        if (
            self.records
            or reach is None
            or "shared" not in {part.partition("::")[0] for part in self.item.names}
        ):
            raise Missing
        operation, *rest = MBARRIER_CALLS[name]
        if id(self.item) in self.unobserved:
            operation = "check_exists"
        self.atomic_widths.add(64)
        action = "store" if operation in ("initialise", "invalidate") else "atomic"
        return self.add_call(operation, *rest, self.number_access(action, "u64", "shared"))

    named_barrier = cluster = callee_name = pointer_call = refuse

    # --- synchronisation points -----------------------------------------------------------------------------

    def whole_barrier(self, vote, number):
        """Return the name of a function for a block-wide barrier, optionally with a vote."""
        name = f"barrier_{next(self.counter)}"
        operands, results = (("pred",), ("s64",)) if vote else ((), ())
        self.sync_points[name] = vote.name if vote else "syncthreads", operands, results
        self.sync_sites[name] = self.number_site("call")
        return name

    def warp_call(self, entry, space=None):
        """Return the name of the function that implements a warp instruction.

        entry: its entry in sim.isa.
        space: the state space from which the instruction loads its operands (`ldmatrix`), or None.
        """
        if entry.put is not None or self.item.names[0] == "wmma":
            raise Missing
        given = dict.fromkeys(entry.operands, "u32")
        if not space:
            operands = form_of(self.item.opcode).operands
            given = dict(zip(entry.parameters, map(of_register, operands), strict=True))
        results = entry.results.values()
        results = [given[k] if isinstance(k, Like) else of_register(type_name(k)) for k in results]
        name = f"warp_{next(self.counter)}"
        self.sync_points[name] = entry.name, tuple(given.values()), tuple(results)
        self.sync_sites[name] = self.number_site("call")
        if space:
            site = self.number_access("load", "u32", space)
            load = self.access_call(self.load_operation(space), "u32", 4, site, "u32", space, 4)
            self.fetches[name] = self.add_call("row", 8 * len(results), load)
        return name


def is_copy(item):
    """Return whether an item of a function's body starts an asynchronous copy."""
    return isinstance(item, Instruction) and item.names[0] == "cp" and not {"ca", "cg"}.isdisjoint(item.names)


def of_register(ptx_type):
    """Return the register type for the type of an operand. Untyped bits (b32) become unsigned integers
    (u32)."""
    return ptx_type.replace("b", "u") if ptx_type[0] == "b" else ptx_type


def compile_kernel(kernel, records=False, has_sides=False):
    """Return (Lowering, CompiledKernel) for a kernel loaded by load_ptx.

    records: whether compiled code records the accesses with errors.
    has_sides: whether compiled code can follow one side of a disagreement. Code that records accesses can do
        so, too.

    Raise CannotLower if the kernel has no compiled form, and LaunchError if it is invalid.
    """
    source = Lowering(kernel.module.text, kernel.module.origin, kernel.function, records)
    made = Statements(source)
    made.module.has_sides = records or has_sides
    if source.grid_sync.arrivals:
        made.module.block_barrier = "barrier_after_arrival"
    name = made.module.stem(re.sub(r"\W", "_", kernel.__name__))
    split = Fission(made.module, name, made.parameters, made.statements, made.numba_types())
    made.module.imports["reset_shared"] = "sim.native.ptx.memory"
    made.module.imports["direct"] = "sim.native.codegen.direct"
    others = {name: str(of) for name, of in split.numba_types.items() if of != int64}
    decorator = f"@{made.module.constant('directly', f'direct({others})')}"
    ending = []
    if source.operations & COPY_OPERATIONS:
        end = "end_recorded_copies" if records else "end_copies"
        made.module.imports[end] = "sim.native.ptx.copies"
        ending = [f"{end}(table, threads, state)"]
    around = ["reset_shared(table, state)"], ending
    text = kernel_text(made.module, name, made.parameters, split, decorator, *around)
    path = cache.path_of(name, text)
    cache.write(path, text)
    module = cache.load(path, text)
    effects = source.needs_schedules, source.stores
    whole = Lowered(made.module, made.parameters, made.statements, set(), (), *effects)
    return source, CompiledKernel(whole, text, getattr(module, f"{name}_grid"), module.SPILLED)
