"""The statements of a lowered PTX kernel, prepared for loop fission: synchronisation points are marked, and
other straight-line code is grouped into runs."""

import ast

from sim.native.lower.liveness import exposed_reads, names_assigned, names_read
from sim.native.lower.module import GeneratedModule
from sim.native.ptx.runs import SPECIAL, numba_type_of

# operation -> the synchronisation points of the block before and after it (sim.native.split.fission)
AROUND = {"arrive_at": (None, "arrived_at_phase"), "wait_at": ("wait_for_phase", "passed_phase")}


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
                if around := self.points_around(node):
                    before, after = map(sync_statement, around)
                    found += [*self.run(run), *before, *self.run([node]), *after]
                    run = []
                    continue
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

    def points_around(self, node):
        """Return the synchronisation points before and after a statement in which a thread arrives or waits
        at an mbarrier. Return None for any other statement."""
        names = {part.func.id for part in ast.walk(node) if isinstance(part, ast.Call)}
        operations = {self.source.calls[name][0] for name in names & self.source.calls.keys()}
        return next((AROUND[operation] for operation in operations & AROUND.keys()), None)

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


def sync_statement(name):
    """Return a list with the statement of a synchronisation point of the block. It is empty for None."""
    if name is None:
        return []
    (statement,) = ast.parse("sync()").body
    statement.value.sync, statement.value.site = name, 0
    return [statement]


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
