"""The statements of a lowered PTX kernel, prepared for loop fission: synchronisation points are marked, and
other straight-line code is grouped into runs."""

import ast

from sim.isa.registers import WIDTHS
from sim.native.lower.liveness import exposed_reads, names_assigned, names_read
from sim.native.lower.module import GeneratedModule
from sim.native.ptx.runs import SPECIAL, numba_type_of
from sim.native.ptx.simplify import simplify

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
        # Skip the first statement, `thread = current.thread`.
        self.statements = self.suite(simplify(tree.body[1:], source.ptx_types))
        given = [name for name in source.factories if name not in source.calls]  # the per-launch constants
        self.parameters = ["table", *dict.fromkeys([*source.arguments.values(), *given])]
        self.name_runs()

    # --- structure ------------------------------------------------------------------------------------------

    def suite(self, nodes):
        """Return the statements of a block, with a placeholder in place of each run."""
        found, run, waiting = [], [], nodes[::-1]
        while waiting:
            node = waiting.pop()
            if isinstance(node, (ast.Assign, ast.Expr)):
                if around := self.points_around(node):
                    before, after = map(sync_statement, around)
                    found += [*self.run(run), *before, *self.run([node]), *after]
                    run = []
                    continue
                call = self.sync_call(node)
                if call is not None:
                    before, sync = self.split_at_sync(node, call, waiting)
                    found += self.run([*run, *before]) + [sync]
                    run = []
                elif not is_tick(node):
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

    def sync_call(self, node):
        """Return the call of a synchronisation point in a statement, or None."""
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        calls = [call for call in calls if getattr(call.func, "id", "") in self.source.sync_points]
        return calls[0] if calls else None

    def split_at_sync(self, node, call, waiting):
        """Return (statements before, synchronising statement) for a statement with a synchronisation point.

        waiting: the statements that follow, in reverse order. This function changes them: it appends the
            remainder of the statement, and removes copies of results.
        """
        instruction, operands, results = self.source.sync_points[call.func.id]
        if fetch := self.source.fetches.get(call.func.id):
            inputs = [self.variable("given", ptx_type) for ptx_type in operands]
            before = [f"({', '.join(inputs)},) = {fetch}({', '.join(map(ast.unparse, call.args))})"]
        else:
            inputs, before = self.operands(call.args, operands)
        outputs = [self.variable("got", ptx_type) for ptx_type in results]
        replace_node(call, ast.parse(f"({', '.join(outputs)})", mode="eval").body)
        if isinstance(node, ast.Assign):
            waiting.append(node)
            # The reference implementation of `mma` reads an element of C just before it sets that of D.
            in_place = inputs[-len(outputs) :] if instruction.startswith("mma_m16n8") else ()
            outputs = self.receive(outputs, inputs, in_place, waiting)
        target = f"{', '.join(outputs)} = " if outputs else ""
        # A placeholder instead of the instruction's name, which can contain a keyword (redux.sync.and).
        *before, sync = ast.parse("\n".join([*before, f"{target}sync({', '.join(inputs)})"])).body
        sync.value.sync, sync.value.site = instruction, self.source.sync_sites[call.func.id]
        return before, sync

    def operands(self, arguments, ptx_types):
        """Return (the operands of a synchronisation point as text, statements that assign them).

        An integer constant or a register of the operand's type needs no assignment.
        """
        inputs, before = [], []
        for argument, ptx_type in zip(arguments, ptx_types, strict=True):
            text = ast.unparse(argument)
            is_constant = isinstance(argument, ast.Constant) and ptx_type[0] in "su"
            if not is_constant and self.source.ptx_types.get(text) != ptx_type:
                before.append(f"{self.variable('given', ptx_type)} = {text}")
                text = before[-1].partition(" = ")[0]
            inputs.append(text)
        return inputs, before

    def receive(self, outputs, inputs, in_place, waiting):
        """Return the variables to which a synchronisation point stores its results.

        If the statements that follow only copy a result to a register of its type, remove the copy, and let
        the synchronisation point store to the register. In general, it must not store to one of its own
        operands, because it may read the operands of other lanes later.

        outputs: variables for the results.
        inputs: the operands.
        in_place: for each result, the operand that it may overwrite, or nothing.
        waiting: the statements that follow, in reverse order.
        """
        overwritten = dict(zip(outputs, in_place))
        # {temporary variable of the generated code: the result that it contains}
        parts, node = {}, waiting.pop()
        if isinstance(node.targets[0], ast.Tuple):
            parts = {part.id: name for part, name in zip(node.targets[0].elts, outputs, strict=True)}
            following = []
            while waiting and reads_part(waiting[-1], parts):
                following.append(waiting.pop())
        else:
            following = [node]
        new, rest = {}, []
        for statement in following:
            register, name = self.copied_result(statement)
            result = parts.get(name, name)
            if (
                result in outputs
                and result not in new
                and register not in new.values()
                and inputs.count(register) == (overwritten.get(result) == register)
                and self.source.ptx_types.get(register) == self.source.ptx_types[result]
            ):
                new[result] = register
            else:
                rest.append(statement)
        read = set().union(*map(names_read, rest))
        rest = [ast.parse(f"{part} = {parts[part]}").body[0] for part in parts if part in read] + rest
        waiting += reversed(rest)
        return [new.get(result, result) for result in outputs]

    def copied_result(self, node):
        """Return (register, variable) for a statement that copies a variable to a register, or (None, None).

        A mask of the register's width does not change the value.
        """
        match node:
            case ast.Assign([ast.Name(register)], ast.Name(name)):
                return register, name
            case ast.Assign(
                [ast.Name(register)],
                ast.BinOp(ast.Call(ast.Name("int"), [ast.Name(name)]), ast.BitAnd(), ast.Constant(mask)),
            ) if mask == (1 << WIDTHS.get(self.source.ptx_types.get(register), 0)) - 1:
                return register, name
        return None, None

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
            statement.only_computes = all(operation == "float" for operation, *_ in calls.values())

    def numba_types(self):
        """Return {variable: its Numba type}."""
        return {name: numba_type_of(ptx_type) for name, ptx_type in self.source.ptx_types.items()}


def sync_statement(name):
    """Return a list with the statement for a block-wide synchronisation point, or an empty list for None."""
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
            found |= {argument.id for argument in part.args if isinstance(argument, ast.Name)}
    return found


def reads_part(node, parts):
    """Return whether a statement assigns an expression of one of these temporary variables to a register."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and not parts.keys().isdisjoint(names_read(node.value))
    )


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
