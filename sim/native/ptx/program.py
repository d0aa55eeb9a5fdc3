"""Lower a PTX kernel: generate the statements of one thread with sim.ptx, omit the code that only the
interpreter needs, and group the statements into runs."""

import ast
import re

from numba import int64

from sim.isa.ptx_types import FLOATS
from sim.isa.registers import WIDTHS, Missing, type_name
from sim.isa.table import Like
from sim.native.codegen import cache
from sim.native.lower.liveness import exposed_reads, names_assigned, names_read
from sim.native.lower.module import CannotLower, GeneratedModule
from sim.native.ptx.runs import SPECIAL, numba_type_of
from sim.native.split.fission import Fission
from sim.native.split.program import CompiledKernel, Lowered, kernel_text
from sim.ptx import atomics, register_kinds
from sim.ptx.emit import Writer
from sim.ptx.program import Program
from sim.ptx.regions import RESERVED, VIEWS
from sim.ptx.shared_pointers import stores_shared_pointers
from sim.ptx.special_registers import SPECIALS
from sim.ptx.syntax import python_name
from sim.ptx.warps import form_of

COPY_SIZES = {f"cp_async_{size}": size for size in (4, 8, 16)}
WAITS = {"cp_async_commit": "commit", "cp_async_wait": "receive", "cp_async_wait_all": "receive_all"}
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
        # the number in SITES and the PTX type of each memory access and block-wide barrier, by its index
        self.sites, self.site_types = [], []
        self.barriers = {}  # block-wide barrier among the synchronisation points -> index of its site
        self.fetches = {}  # synchronisation point -> name of the function that loads its operands from memory
        self.local_positions = {}  # local variable -> index of its region in the table
        self.narrowest = {"shared": 64, "local": 64}  # state space -> bits of its narrowest access
        self.atomic_widths = set()  # the widths of the kernel's atomics, in bits
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
        if self.records:
            size = WIDTHS[ptx_type] // 8 * count
            return self.add_call("recorded", size, site, operation, *arguments, site)
        return self.add_call(operation, *arguments, site)

    def add_unrecorded(self, *operation):
        """Return a new name for a call to an operation that can set error flags without an access."""
        return self.add_call(*["unrecorded"] * self.records, *operation)

    def transfer_sites(self):
        """Raise Missing: bulk copies, mbarriers and wgmma have no compiled form."""
        raise Missing

    def load(self, ptx_type, space, count):
        """Return the name of a function that loads `count` elements."""
        operation = "load_read_only" if "nc" in self.item.names else "load"
        return self.add_access(operation, "load", ptx_type, space, ptx_type, space, count, count=count)

    def store(self, ptx_type, space, count):
        """Return the name of a function that stores `count` elements."""
        return self.add_access("store", "store", ptx_type, space, ptx_type, space, count, count=count)

    def origin_of_load(self, space, nbytes):
        """Return the name of a function that tests whether loaded bytes are undefined."""
        return self.add_call("origin", space, nbytes)

    def store_undefined(self, space, nbytes):
        """Return the name of a function that marks stored bytes as undefined."""
        return self.add_unrecorded("store_undefined", space, nbytes)

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
        if access.type not in COMPILED_ATOMICS or access.reach == "block" and access.space != "shared":
            raise Missing
        ptx_type, *_ = atomics.atomic_semantics(access)
        self.atomic_widths.add(16 if access.type in atomics.PACKED else WIDTHS[ptx_type])
        name, space = f"atom.{access.operation}.{access.type}", access.space
        return ptx_type, self.add_access("atomic", "atomic", ptx_type, space, name, ptx_type, space)

    def trap(self):
        """Return the name of the function that implements the `trap` instruction."""
        return self.add_call("trap")

    def refuse(self, *_):
        """Raise Missing, for an operation that has no compiled form."""
        raise Missing

    def strong(self, action, ptx_type, space, access):
        """Return the name of the function for a volatile access to shared memory, which counts as weak
        (sim.ptx.memory). Decline any other strong access. Also decline a load in a loop that waits for its
        value to change: compiled threads run one after another, so the loop would never end."""
        loads = action == "load"
        if id(self.item) in self.grid_sync.waits and self.grid_sync.barrier_after(self.item):
            return self.add_call("wait_for_grid")
        if not access.volatile or space != "shared" or loads and self.acts_on(space, access):
            raise Missing
        return (self.load if loads else self.store)(ptx_type, space, 1)

    def transfer(self, name, reach="grid", waits=False):
        """Return the name of the function for a part of cp.async. Raise Missing for other transfers."""
        if name in COPY_SIZES:
            size = COPY_SIZES[name]
            if self.records:
                raise Missing
            ptx_type = f"u{min(8 * size, 64)}"
            sites = [
                self.number_access(*of)
                for of in (("store", ptx_type, "shared"), ("load", ptx_type, "global"))
            ]
            return self.add_call("copy", size, *sites)
        if name not in WAITS:
            raise Missing
        return self.add_call(WAITS[name])

    named_barrier = cluster = fence_call = callee_name = pointer_call = refuse

    # --- synchronisation points -----------------------------------------------------------------------------

    def whole_barrier(self, vote, number):
        """Return the name of a function for a block-wide barrier, optionally with a vote."""
        name = f"barrier_{next(self.counter)}"
        operands, results = (("pred",), ("s64",)) if vote else ((), ())
        self.sync_points[name] = vote.name if vote else "syncthreads", operands, results
        self.barriers[name] = self.number_site("call")
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
        if space:
            site = self.number_access("load", "u32", space)
            self.fetches[name] = self.add_call("row", 8 * len(results), space, site)
        return name


def of_register(ptx_type):
    """Return the register type for the type of an operand. Untyped bits (b32) become unsigned integers
    (u32)."""
    return ptx_type.replace("b", "u") if ptx_type[0] == "b" else ptx_type


class Statements:
    """The statements of a Lowering, prepared for loop fission.

    Synchronisation points are marked, and all other straight-line code is grouped into runs.
    """

    def __init__(self, source):
        self.source, self.module = source, GeneratedModule(set(source.ptx_types) | set(SPECIAL))
        tree = ast.parse(source.source).body[0]
        self.runs = []  # pairs (placeholder statement, statements of the run)
        self.statements = self.suite(tree.body[1:])  # skip the first statement, `thread = current.thread`
        given = [name for name in source.factories if name not in source.calls]  # the per-launch constants
        self.parameters = ["table", *dict.fromkeys([*source.arguments.values(), *given])]
        self.name_runs()

    # --- structure ------------------------------------------------------------------------------------------

    def suite(self, nodes):
        """Return the statements of a block, with a placeholder in place of each run."""
        found, run = [], []
        for node in nodes:
            if isinstance(node, (ast.Assign, ast.Expr)):
                stop = self.split_at_sync(node)
                if stop is not None:
                    before, waits, node = stop
                    found += self.run([*run, *before]) + [waits]
                    run = []
                if node is not None and not is_tick(node):
                    run.append(node)
                continue
            found += self.run(run)
            run = []
            if isinstance(node, (ast.If, ast.While)):
                node.body, node.orelse = self.suite(node.body) or [ast.Pass()], self.suite(node.orelse)
            found.append(ast.Return(None) if isinstance(node, ast.Return) else node)
        return found + self.run(run)

    def run(self, nodes):
        """Return a list with the placeholder for a run of statements.

        An empty run needs none. Statements that are only jumps are returned unchanged.
        """
        if not nodes:
            return []
        if all(is_jump(node) for node in nodes):
            return nodes
        statement = ast.Pass()
        self.runs.append((statement, nodes))
        return [statement]

    def split_at_sync(self, node):
        """Return (statements before, synchronising statement, statement after) for a statement that contains
        a synchronisation point. Return None for any other statement."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        calls = [call for call in calls if getattr(call.func, "id", "") in self.source.sync_points]
        if not calls:
            return None
        (call,) = calls
        instruction, operands, results = self.source.sync_points[call.func.id]
        arguments = [*map(ast.unparse, call.args)]
        inputs = [self.variable("given", ptx_type) for ptx_type in operands]
        outputs = [self.variable("got", ptx_type) for ptx_type in results]
        before = [f"{name} = {argument}" for name, argument in zip(inputs, arguments)]
        if fetch := self.source.fetches.get(call.func.id):
            before = [f"({', '.join(inputs)},) = {fetch}({', '.join(arguments)})"]
        target = f"{', '.join(outputs)} = " if outputs else ""
        # A placeholder instead of the instruction's name, which can contain a keyword (redux.sync.and).
        *before, sync = ast.parse("\n".join([*before, f"{target}sync({', '.join(inputs)})"])).body
        sync.value.sync, sync.value.site = instruction, self.source.barriers.get(calls[0].func.id, 0)
        replace_node(call, ast.parse(f"({', '.join(outputs)})", mode="eval").body)
        return before, sync, node if outputs else None

    def variable(self, name, ptx_type):
        """Return a new variable of this PTX type."""
        name = self.module.fresh_name(name)
        self.source.ptx_types[name] = ptx_type
        return name

    # --- runs -----------------------------------------------------------------------------------------------

    def name_runs(self):
        """Replace each placeholder by a call of its run, and define the runs as constants of the generated
        module.

        The inputs of a run are the variables that it may read before assigning them. Its outputs are the
        variables that it assigns and other code may read.
        """
        wanted = set().union(
            *(exposed_reads(nodes) for _, nodes in self.runs), *map(tested_names, self.statements)
        )
        for number, (statement, nodes) in enumerate(self.runs):
            name, ptx_types = f"run_{number}", self.source.ptx_types
            outputs = {v: ptx_types[v] for v in sorted(names_assigned(nodes) & wanted)}
            read = sorted(exposed_reads(nodes) - set(self.source.calls))
            inputs = {v: "index" if "." in SPECIAL[v] else "u16" for v in read if v in SPECIAL}
            inputs |= {v: ptx_types[v] for v in read if v in ptx_types}
            named = {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}
            calls = {v: self.source.calls[v] for v in sorted(named & set(self.source.calls))}
            # `renew` uses the base address of its variable, and `arrive` the base address of the workspace,
            # but neither function receives this address as an argument.
            bases = {call[2] for call in calls.values() if call[0] == "renew"}
            bases |= {call[1] for call in calls.values() if call[0] == "arrive"}
            inputs |= {v: ptx_types[v] for v in sorted(bases)}
            text = "\n".join(map(ast.unparse, map(ast.fix_missing_locations, nodes)))
            self.module.imports["ptx_run"] = "sim.native.ptx.runs"
            self.module.constants[name] = f'ptx_run("{name}", {inputs}, {outputs}, {calls}, """\n{text}\n""")'
            machine = ["table", "thread", "state"] if calls else []
            arguments = ", ".join([*machine, *(SPECIAL.get(v, v) for v in inputs)])
            to = f"{', '.join(outputs)} = " if outputs else ""
            replace_node(statement, ast.parse(f"{to}{name}({arguments})").body[0])

    def numba_types(self):
        """Return {variable: its Numba type}."""
        return {name: numba_type_of(ptx_type) for name, ptx_type in self.source.ptx_types.items()}


def tested_names(node):
    """Return the names read by the tests and synchronisation points in a statement."""
    found = set()
    for part in ast.walk(node):
        if isinstance(part, (ast.If, ast.While)):
            found |= names_read(part.test)
        elif hasattr(part, "sync"):
            found |= {argument.id for argument in part.args}
    return found


def is_tick(node):
    """Return whether a statement counts a loop iteration. Only the interpreter needs such statements."""
    return isinstance(node, ast.Expr) and getattr(getattr(node.value, "func", None), "id", "") == "tick"


def is_jump(node):
    """Return whether a statement assigns a constant to `go`, the index of the next basic block."""
    constant = isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
    return constant and node.targets[0].id == "go"


def replace_node(node, other):
    """Turn a syntax-tree node into another node in place, so that its parents refer to the other node."""
    node.__class__ = other.__class__
    node.__dict__.update(other.__dict__)


# --- programs -----------------------------------------------------------------------------------------------


def compile_kernel(kernel, records=False):
    """Return (Lowering, CompiledKernel) for a kernel loaded by load_ptx.

    records: whether compiled code records the accesses with errors.

    Raise CannotLower if the kernel has no compiled form, and LaunchError if it is invalid.
    """
    source = Lowering(kernel.module.text, kernel.module.origin, kernel.function, records)
    made = Statements(source)
    made.module.records = records
    if source.grid_sync.arrivals:
        made.module.block_barrier = "barrier_after_arrival"
    name = made.module.stem(re.sub(r"\W", "_", kernel.__name__))
    split = Fission(made.module, name, made.parameters, made.statements, made.numba_types())
    made.module.imports["reset_shared"] = "sim.native.ptx.memory"
    made.module.imports["direct"] = "sim.native.codegen.direct"
    others = {name: str(of) for name, of in split.numba_types.items() if of != int64}
    decorator = f"@{made.module.constant('directly', f'direct({others})')}"
    text = kernel_text(made.module, name, made.parameters, split, decorator, ["reset_shared(table, state)"])
    path = cache.path_of(name, text)
    cache.write(path, text)
    module = cache.load(path, text)
    whole = Lowered(made.module, made.parameters, made.statements, set(), (), source.synchronizes)
    return source, CompiledKernel(whole, text, getattr(module, f"{name}_grid"), module.SPILLED)
