"""Loop fission: splits the statements of one thread at its synchronisation points. The resulting regions each
run in a loop over threads.

A block executes its regions one after another. Between two block-wide barriers, each warp executes regions of
its own, which end at its synchronisation points (shuffles, votes, `syncwarp`). Control flow around a
synchronisation point becomes control flow of the whole block or warp. To decide it, a region returns an exit
code for each thread. If the codes differ, the threads have diverged, and the block stops with an error flag.

A variable whose live range crosses a region boundary is spilled to an array over threads (scalar expansion),
unless the region can rematerialise it. Other CPU implementations of CUDA and OpenCL use the same method; see
Stratton, Stone and Hwu, "MCUDA: An Efficient Implementation of CUDA Kernels for Multi-core CPUs" (2008).
"""

import ast
import copy

from numba import types

from sim.frontend.tree import as_list, has
from sim.isa.table import WARP_WIDE
from sim.native.codegen.symbols import GEOMETRY, home_of, in_text
from sim.native.lower.hoisting import find_sync_call, result_names
from sim.native.lower.liveness import (
    definitely_assigned,
    escaping_exits,
    exposed_reads,
    names_assigned,
    names_read,
)
from sim.native.lower.loops import LoopCounter, is_range
from sim.native.lower.module import CannotLower
from sim.native.split.rematerialize import Rematerializer

# Levels of synchronisation, in increasing order. A statement of a lower level can be part of a region.
THREAD, WARP, BLOCK = range(3)
# exit statement -> exit code of a region (sim.native.codegen.synchronization)
CODES = {"return": "END", "break": "BREAK", "continue": "CONTINUE"}
# synchronising instruction -> its function in sim.native.codegen.synchronization, if it is no block barrier
BARRIERS = {"this_grid": "grid_barrier"}
BARRIERS |= {name: name for name in ("wait_for_phase", "passed_phase", "arrived_at_phase")}


def sync_level(node):
    """Return the highest level at which threads synchronise in a node, or THREAD if they do not.

    The node and its parts remember their levels, because each enclosing statement reads them again.
    """
    if not hasattr(node, "level"):
        sync = getattr(node, "sync", None)
        own = THREAD if sync is None else WARP if sync in WARP_WIDE else BLOCK
        node.level = max([own, *map(sync_level, ast.iter_child_nodes(node))])
    return node.level


class Fission(Rematerializer):
    """The regions of one kernel, as text.

    The constructor fills `functions` with the definitions of the regions, as lists of lines, and `lines` with
    the body of the block function. `spilled` maps each spilled variable to the name of its dtype.

    name: the kernel's name, the prefix of all region names.
    """

    def __init__(self, module, name, parameters, statements, numba_types):
        super().__init__(module, parameters, statements, numba_types)
        # The operands and results of a synchronisation point are spilled even if they could be
        # rematerialised, because the instruction accesses the values of all lanes in an array over threads.
        self.name, self.sync_operands, self.suffix = name, set(), "_of"
        # The name of a spill array must not collide with a variable, so choose a suffix that no name ends
        # with.
        while any(known.endswith(self.suffix) for known in module.taken):
            self.suffix += "_"
        # A return after the last synchronisation point affects no other thread.
        last = max((i for i, node in enumerate(self.statements) if sync_level(node) > THREAD), default=-1)
        self.ends = has(ast.Module(self.statements[: last + 1], []), ast.Return)
        self.spilled = {}
        # The first pass finds the variables whose live range crosses a region boundary. The second spills
        # them.
        for _ in range(2):
            self.functions, self.needed = [], set()
            self.spill_positions = {
                self.spill_name(variable): (position, dtype)
                for position, (variable, dtype) in enumerate(self.spilled.items())
            }
            self.lines = self.lower_sequence(self.statements, BLOCK, 0)
            self.spilled = {
                variable: self.dtype(variable)
                for variable in sorted(
                    (self.needed & names_assigned(self.statements))
                    - self.loops
                    - (set(self.rematerialized) - self.sync_operands)
                )
            }

    def dtype(self, variable):
        """Return the name of a spilled variable's dtype. Raise CannotLower if the variable is not numeric."""
        numba_type = self.numba_types.get(variable)
        if not isinstance(numba_type, (types.Number, types.Boolean)):
            raise CannotLower(f"{variable} is a {numba_type} and lives across a barrier")
        return str(numba_type)

    # --- code of a block or warp ----------------------------------------------------------------------------

    def lower_sequence(self, statements, at, depth):
        """Return the lines that execute statements for a whole block or warp.

        at: the level, BLOCK or WARP.
        depth: the number of enclosing loops at that level.
        """
        lines, group = [], []
        for statement in statements:
            if sync_level(statement) < at:
                group.append(statement)
                continue
            lines += self.lower_section(group, at, depth) + self.lower_compound(statement, at, depth)
            group = []
        return (lines + self.lower_section(group, at, depth)) or ["pass"]

    def lower_section(self, group, at, depth):
        """Return the lines that execute statements that contain no synchronisation point of level `at`.

        The statements of a block may still contain synchronisation points of its warps.
        """
        if not group or all(isinstance(statement, ast.Pass) for statement in group):
            return []
        exits = escaping_exits(group)
        if max(map(sync_level, group)) == WARP:
            lines = [*self.lower_sequence(group, WARP, 0), "return GO"]
            call = self.add_function(f"{self.name}_warp_{len(self.functions) + 1}", lines)
            loop = ["for warp in range(-(-threads // 32)):"]
        else:
            call, loop = self.add_region(group), self.thread_loop(at)
        return self.wrap_in_loop(loop, call, exits, at, depth)

    def thread_loop(self, at):
        """Return the first lines of a loop over the threads of a block or warp.

        The loop skips threads that have returned, and makes each remaining thread the current one.
        """
        iterable = "range(threads)" if at == BLOCK else "range(32 * warp, min(32 * warp + 32, threads))"
        return [
            f"for thread in {iterable}:",
            *(["    if has_returned(state, thread):", "        continue"] if self.ends else []),
            "    threadIdx = start_thread(state, thread)",
            *(["    log_thread(state, thread)"] if self.module.logs else []),
        ]

    def wrap_in_loop(self, loop, call, exits, at, depth):
        """Return the lines that call a region in a loop, combine the exit codes, and act on the common code.

        loop: the first lines of the loop.
        call: the text of the call.
        exits: the exit statements ("return", "break", "continue") that can end the region.
        """
        if not exits:
            return [*loop, f"    {call}"]
        joined = f"agree(state, exit_code, {call}, thread)"
        if loop[0].startswith("for warp"):
            joined = f"agree_warps(state, exit_code, {call})"
        lines = ["exit_code = NO_THREAD", *loop, f"    exit_code = {joined}"]
        for name in sorted(exits):
            # The code of a warp is a separate function, so its return value tells the block that it leaves a
            # loop of the block.
            leaves_warp = at == WARP and (name == "return" or not depth)
            leave = f"return {CODES[name]}" if leaves_warp else name
            lines += [f"if exit_code == {CODES[name]}:", f"    {leave}"]
        return lines

    def lower_compound(self, node, at, depth):
        """Return the lines for a statement that contains a synchronisation point at level `at`."""
        if find_sync_call(node):
            return self.lower_sync_point(node, at)
        # A stopped block must leave its loops at once, because its threads would also diverge at later
        # barriers.
        check = ["if is_stopped(state):", f"    return{' END' if at == WARP else ''}"]
        if isinstance(node, ast.If):
            before, test = self.uniform_test(node.test, at)
            lines = [*before, f"if {test}:", *indent(self.lower_sequence(node.body, at, depth))]
            return lines + (
                ["else:", *indent(self.lower_sequence(node.orelse, at, depth))] if node.orelse else []
            )
        if isinstance(node, ast.While):
            before, test = self.uniform_test(node.test, at)
            leave = [f"if not {test}:", "    break"] if test != "True" else []
            return [
                f"while count_iteration(state, {'threads' if at == BLOCK else '32'}):",
                *indent([*before, *check, *leave, *self.lower_sequence(node.body, at, depth + 1)]),
            ]
        if isinstance(node, ast.For):
            before, iteration = self.uniform_iterable(node.iter, at)
            body, counter = node.body, ast.unparse(node.target)
            if counter not in self.loops:
                # The threads may assign the loop variable, so the loop of the block has a counter of its own.
                counter = self.module.fresh_name("counter")
                self.loops.add(counter)
                body = [*ast.parse(f"{ast.unparse(node.target)} = {counter}").body, *body]
            inner = [*check, *self.lower_sequence(body, at, depth + 1)]
            return [*before, f"for {counter} in {iteration}:", *indent(inner)]
        raise CannotLower(f"threads synchronise within a `{type(node).__name__.lower()}` statement")

    def uniform_test(self, test, at):
        """Return (lines, expression) for a test that must be uniform across the block or warp.

        The lines evaluate the test for each thread. The expression is the value on which the threads agree.
        """
        if self.is_uniform(test):
            return self.rematerialize(names_read(test)), ast.unparse(test)
        call = self.add_region([], result=f"1 if {ast.unparse(test)} else 0", expression=test)
        joined = f"    exit_code = agree(state, exit_code, {call}, thread)"
        return ["exit_code = NO_THREAD", *self.thread_loop(at), joined], "is_true(state, exit_code)"

    def uniform_iterable(self, iteration, at):
        """Return (lines, expression) for the iterable of a loop, which must be uniform across the block or
        warp.

        Raise CannotLower for an iterable that may differ between threads and is not a range.
        """
        if self.is_uniform(iteration):
            return self.rematerialize(names_read(iteration)), ast.unparse(iteration)
        if not is_range(iteration):
            raise CannotLower(
                f"threads synchronise in a loop over {ast.unparse(iteration)}, which is not a range and may"
                " differ between threads"
            )
        given = ast.unparse(ast.Tuple(iteration.args, ast.Load()))
        call = self.add_region([], result=f"span({given})", expression=iteration)
        joined = f"    bounds = agree_span(state, bounds, {call})"
        lines = ["bounds = (0, 0, 0)", *self.thread_loop(at), joined]
        return lines, "range(bounds[0], bounds[1], step_of(bounds[2]))"

    def lower_sync_point(self, node, at):
        """Return the lines for a synchronisation point: a barrier of the block or an instruction of a
        warp."""
        call, results = node.value, result_names(node)
        names = {argument.id for argument in call.args if isinstance(argument, ast.Name)} | set(results)
        self.needed |= names
        self.sync_operands |= names - self.uniform
        given = [*map(self.operand_text, [*call.args, *map(ast.Name, results)])]
        lines = self.rematerialize(names & self.uniform)
        if at == BLOCK:
            barrier = BARRIERS.get(call.sync, self.module.block_barrier)
            if self.module.records:
                lines += [f"{self.module.library('note_barrier')}(state, {call.site})"]
            lines += [f"if not {barrier}(state):", "    return"]
            if self.module.logs:
                lines += [f"log_barrier(state, {call.site})"]
            return [*lines, f"{in_text(call.sync, 'all')}(threads, {', '.join(given)})"] if given else lines
        if self.module.logs:
            lines += [f"log_warp(state, {call.site}, warp, threads)"]
        # If the kernel ignores the result, the "unused" form of the instruction only runs the checks.
        name = in_text(call.sync, "warp" if results else "unused")
        return [*lines, f"{name}({', '.join(['state, warp, threads', *given])})"]

    def operand_text(self, node):
        """Return the text of an operand: an array over threads if the variable is spilled, otherwise a
        uniform expression."""
        is_spilled = isinstance(node, ast.Name) and node.id in self.spilled
        return self.spill_name(node.id) if is_spilled else ast.unparse(node)

    # --- regions --------------------------------------------------------------------------------------------

    def add_region(self, group, result=None, expression=None):
        """Add a function that runs statements for one thread, and return the text of a call to it.

        group: the statements.
        result: the text of the returned expression, or None.
        expression: the syntax tree of `result`, which shows the variables read.
        """
        wanted = exposed_reads(group) | names_read(expression)
        changed = names_assigned(group)
        # On every path, the region stores each variable that it may assign. If some path does not assign the
        # variable, load its old value first.
        needed = wanted | changed - certain_assignments(group)
        self.needed |= wanted
        loads = [v for v in self.spilled if v in needed]
        stores = [self.spill_call("store", v, v) for v in self.spilled if v in changed]
        exits = escaping_exits(group)
        body = [
            *(f"{v} = {self.spill_call('load', v)}" for v in loads),
            *self.rematerialize(wanted),
            *self.statement_lines(group, stores),
            *stores,
        ]
        if exits or result:
            body.append(f"return {result or 'GO'}")
        return self.add_function(f"{self.name}_{len(self.functions) + 1}", body)

    def rematerialize(self, wanted):
        """Return the assignments that recompute the rematerialisable variables among `wanted`.

        The assignments are in the order of their dependencies.
        """
        need = set(wanted)
        # An assignment may read variables that precede it in `rematerialized`, so collect them backwards.
        for variable in reversed(self.rematerialized):
            if variable in need:
                need |= names_read(self.rematerialized[variable].value)
        lines = [
            ast.unparse(self.rematerialized[variable]) for variable in self.rematerialized if variable in need
        ]
        return list(dict.fromkeys(lines))

    def statement_lines(self, group, stores):
        """Return the lines of statements for one thread. Exits from the region become exit codes, and loops
        count their iterations."""
        counted, exits = LoopCounter(self.module), Exits(stores)
        parts = [exits.visit(counted.visit(copy.deepcopy(statement))) for statement in group]
        return unparse_lines([part for statement in parts for part in as_list(statement)])

    def add_function(self, name, body):
        """Add a function, and return the text of a call to it, which is also its signature.

        The free names of the body become the parameters.

        body: the lines of the function's body.
        """
        tree = ast.parse("\n".join(["def f():", *indent(body)]))
        names, local = names_read(tree), names_assigned([tree])
        for called in sorted(filter(home_of, names)):
            self.module.library(called)
        spill_arrays = [
            f"{spilled} = {self.spill_function('array', dtype)}(spill_buffer, {position}, spill_pitch)"
            for spilled, (position, dtype) in self.spill_positions.items()
            if spilled in names
        ]
        names |= {"spill_buffer", "spill_pitch"} if spill_arrays else set()
        known = ["state", "warp", "thread", "threads", "spill_buffer", "spill_pitch", *GEOMETRY]
        known += [*self.module.arrays, *self.module.declared, *sorted(self.loops), *self.parameters]
        signature = f"{name}({', '.join(part for part in known if part in names - local)})"
        self.functions.append([f"def {signature}:", *indent([*spill_arrays, *body])])
        return signature

    def spill_name(self, variable):
        """Return the name of the array over threads to which a variable is spilled."""
        return variable + self.suffix

    def spill_function(self, what, dtype):
        """Return the name of an intrinsic for spilled variables of this dtype.

        what: "load" or "store" for the value of one thread, or "array" for the values of all threads.
        """
        self.module.imports[f"spill_{what}"] = "sim.native.codegen.arrays"
        return self.module.constant(f"{what}_{dtype}", f'spill_{what}("{dtype}")')

    def spill_call(self, what, variable, *value):
        """Return the text that loads or stores the current thread's value of a spilled variable."""
        position, dtype = self.spill_positions[self.spill_name(variable)]
        given = "spill_buffer", str(position), "spill_pitch", "thread", *value
        return f"{self.spill_function(what, dtype)}({', '.join(given)})"


class Exits(ast.NodeTransformer):
    """A transformer that replaces each exit from a region by the `return` of an exit code. Exits are
    `return`, and `break` and `continue` of a loop that encloses the region.

    stores: the statements that store the thread's spilled variables. They run before the exit from a loop. A
        thread that returns needs no stores, because it runs no further region.
    """

    def __init__(self, stores):
        self.stores, self.depth = stores, 0

    def leave(self, name):
        stores = self.stores if name != "return" else []
        return ast.parse("\n".join([*stores, f"return {CODES[name]}"])).body

    def visit_Return(self, node):
        return self.leave("return")

    def visit_Break(self, node):
        return node if self.depth else self.leave("break")

    def visit_Continue(self, node):
        return node if self.depth else self.leave("continue")

    def visit_For(self, node):
        """Leave the `break` and `continue` of a loop inside the region unchanged."""
        self.depth += 1
        node = self.generic_visit(node)
        self.depth -= 1
        return node

    visit_While = visit_For

    def visit_FunctionDef(self, node):
        """Leave a nested function unchanged. Its `return` does not end the thread."""
        return node


def unparse_lines(statements):
    """Return the source text of statements as a list of lines."""
    return ast.unparse(ast.fix_missing_locations(ast.Module(statements, []))).split("\n")


def certain_assignments(group):
    """Return the variables assigned on every path through the statements."""
    found = definitely_assigned(group)
    # None means that no path reaches the end, so no path reaches it without the assignments.
    return names_assigned(group) if found is None else found


def indent(lines):
    return ["    " + line for line in lines]
