"""Loop fission: splits the statements of one thread at its synchronisation points. The resulting regions each
run in a loop over threads.

A block executes its regions one after another. Between two block-wide barriers, each warp executes regions of
its own, which end at its synchronisation points (shuffles, votes, `syncwarp`). Control flow around a
synchronisation point becomes control flow of the whole block or warp. To decide it, a region returns an exit
code for each thread. If the codes differ, the threads have diverged, and the block stops with an error flag.
Only at branches around operations with a mask may the lanes of a warp diverge (sim.native.split.branches).

A variable whose live range crosses a region boundary is spilled to an array over threads (scalar expansion),
unless the region can rematerialise it. Other CPU implementations of CUDA and OpenCL use the same method; see
Stratton, Stone and Hwu, "MCUDA: An Efficient Implementation of CUDA Kernels for Multi-core CPUs" (2008).
"""

import ast

from numba import types

from sim.frontend.tree import has
from sim.isa.table import GIVEN, INSTRUCTIONS, WARP_WIDE
from sim.native.codegen.launch_state import DEPTHS
from sim.native.codegen.symbols import in_text
from sim.native.lower.hoisting import find_sync_call, result_names
from sim.native.lower.liveness import escaping_exits, names_assigned, names_read
from sim.native.lower.loops import is_range
from sim.native.lower.module import CannotLower
from sim.native.split.branches import Branches
from sim.native.split.regions import BLOCK, CODES, THREAD, WARP, indent, result_of_test

# synchronising instruction other than a block barrier -> its function in
# sim.native.codegen.synchronization
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


def only_computes(statement):
    """Return whether a statement of a PTX kernel computes registers from registers alone."""
    if isinstance(statement, ast.If):
        return all(map(only_computes, [*statement.body, *statement.orelse]))
    is_constant = isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Constant)
    return is_constant or isinstance(statement, ast.Pass) or getattr(statement, "only_computes", False)


class Fission(Branches):
    """The regions of one kernel, and the code that runs them in loops over threads, as text.

    The constructor fills `functions` with the definitions of the regions, as lists of lines, and `lines` with
    the body of the block function.
    """

    def __init__(self, module, name, parameters, statements, numba_types):
        super().__init__(module, name, parameters, statements, numba_types)
        # The operands and results of a synchronisation point are spilled even if they could be
        # rematerialised, because the instruction accesses the values of all lanes in an array over threads.
        self.sync_operands = set()
        # A return after the last synchronisation point affects no other thread.
        last = max((i for i, node in enumerate(self.statements) if sync_level(node) > THREAD), default=-1)
        self.ends = module.has_sides or has(ast.Module(self.statements[: last + 1], []), ast.Return)
        # The first pass finds the variables whose live range crosses a region boundary, and generates no
        # functions. The second spills these variables.
        self.lower_sequence(self.statements, BLOCK, 0)
        crossing = self.needed & names_assigned(self.statements)
        crossing -= self.loops | (set(self.rematerialized) - self.sync_operands)
        self.spill({variable: self.dtype(variable) for variable in sorted(crossing)})
        self.lines = self.lower_sequence(self.statements, BLOCK, 0)

    def dtype(self, variable):
        """Return the name of a spilled variable's dtype. Raise CannotLower if the variable is not numeric."""
        numba_type = self.numba_types.get(variable)
        if not isinstance(numba_type, (types.Number, types.Boolean)):
            raise CannotLower(f"{variable} is a {numba_type} and lives across a barrier")
        return str(numba_type)

    # --- code of a block or warp ----------------------------------------------------------------------------

    def lower_sequence(self, statements, at, depth, test=None):
        """Return the lines that execute statements for a whole block or warp.

        at: the level, BLOCK or WARP.
        depth: the number of enclosing loops at that level.
        test: a test that the threads evaluate at the end of each path, or None.
        """
        lines, group = [], []
        for statement in statements:
            if sync_level(statement) < at:
                group.append(statement)
                continue
            joined = isinstance(statement, ast.If) and self.can_join(group, statement.test)
            lines += [] if joined else self.lower_section(group, at, depth)
            is_last = statement is statements[-1] and isinstance(statement, ast.If)
            is_last = is_last and not self.can_diverge(statement, at)
            lines += self.lower_compound(
                statement, at, depth, group if joined else [], test if is_last else None
            )
            group = []
            if is_last and test is not None:
                return lines
        if test is None:
            return (lines + self.lower_section(group, at, depth)) or ["pass"]
        joined = group if self.can_join(group, test) else []
        lines += [] if joined else self.lower_section(group, at, depth)
        if test in self.votes:
            return lines + self.vote(test, joined)
        return lines + self.uniform_test(test, at, joined)[0]

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

        The loop skips threads that have returned and inactive lanes, and makes each remaining thread the
        current one.
        """
        iterable = "range(threads)" if at == BLOCK else "range(32 * warp, min(32 * warp + 32, threads))"
        skips = self.ends or self.branches
        return [
            f"for thread in {iterable}:",
            *(["    if has_returned(state, thread):", "        continue"] if skips else []),
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
        joined = self.agreement(call, at)
        if loop[0].startswith("for warp"):
            joined = f"agree_warps(state, exit_code, {call})"
        lines = [*self.before_agreement(), "exit_code = NO_THREAD", *loop, f"    exit_code = {joined}"]
        for name in sorted(exits):
            # The code of a warp is a separate function. Its return value is an exit code if the threads leave
            # the kernel or a loop of the block.
            leaves_warp = at == WARP and (name == "return" or not depth)
            leave = f"return {CODES[name]}" if leaves_warp else name
            lines += [f"if exit_code == {CODES[name]}:", f"    {leave}"]
        return lines

    def agreement(self, call, at):
        """Return the text that combines the exit code of a region with the codes of the threads before.

        call: the text of the call of the region.
        """
        if not self.module.has_sides:
            return f"agree(state, exit_code, {call}, thread)"
        return f"agree_on_side(state, exit_code, {call}, thread, {'-1' if at == BLOCK else 'warp'})"

    def before_agreement(self):
        """Return the statements to run before a decision that may depend on data. Only code that can
        follow a side needs such statements."""
        return ["end_side(state)"] if self.module.has_sides else []

    def can_join(self, group, test):
        """Return whether one region can execute a group of statements and evaluate the test after them. This
        saves a loop over the threads, and the variables between the two need no spill array.

        The statements must not access memory: when threads disagree in the test, those before it have
        executed the group, and an error of the others must not be lost.
        """
        computes = any(hasattr(statement, "only_computes") for statement in group)
        return computes and all(map(only_computes, group)) and not self.is_uniform(test)

    def lower_compound(self, node, at, depth, group=(), following=None):
        """Return the lines for a statement that contains a synchronisation point at level `at`.

        group: the statements before it that `can_join` its test.
        following: a test that the threads evaluate after both branches of an `if`, or None.
        """
        if find_sync_call(node):
            return self.lower_sync_point(node, at, depth)
        # A stopped block must leave its loops at once, because its threads would also diverge at later
        # barriers.
        check = ["if is_stopped(state):", f"    return{' END' if at == WARP else ''}"]
        counts = []
        if self.module.has_sides and at == BLOCK:
            # All loops at depth DEPTHS - 1 or more share the last count.
            inner = min(depth, DEPTHS - 1)
            counts = [f"note_loop(state, {inner})"]
            check.append(f"note_iteration(state, {inner})")
        if self.can_diverge(node, at):
            lower = self.lower_branch if isinstance(node, ast.If) else self.lower_loop
            return lower(node, depth, group, check)
        if isinstance(node, ast.If):
            before, test = self.uniform_test(node.test, at, group)
            branches = [self.lower_sequence(part, at, depth, following) for part in (node.body, node.orelse)]
            otherwise = ["else:", *indent(branches[1])] if node.orelse or following else []
            return [*before, f"if {test}:", *indent(branches[0]), *otherwise]
        if isinstance(node, ast.While):
            before, test = self.uniform_test(node.test, at)
            leave = [f"if not {test}:", "    break"] if test != "True" else []
            head = f"while count_iteration(state, {'threads' if at == BLOCK else '32'}):"
            if self.ends_in_group(node.body, node.test, at) and not has(node, ast.Continue):
                # The last region of an iteration also evaluates the test of the next one.
                body = self.lower_sequence(node.body, at, depth + 1, node.test)
                return [*counts, *before, head, *indent([*check, *leave, *body])]
            body = self.lower_sequence(node.body, at, depth + 1)
            return [*counts, head, *indent([*before, *check, *leave, *body])]
        if isinstance(node, ast.For):
            before, iteration = self.uniform_iterable(node, at, depth)
            body, counter = node.body, ast.unparse(node.target)
            if counter not in self.loops:
                # The threads may assign the loop variable, so the loop of the block has a counter of its own.
                counter = self.module.fresh_name("counter")
                self.loops.add(counter)
                body = [*ast.parse(f"{ast.unparse(node.target)} = {counter}").body, *body]
            inner = [*check, *self.lower_sequence(body, at, depth + 1)]
            return [*before, *counts, f"for {counter} in {iteration}:", *indent(inner)]
        raise CannotLower(f"threads synchronise within a `{type(node).__name__.lower()}` statement")

    # --- decisions ------------------------------------------------------------------------------------------

    def ends_in_group(self, statements, test, at):
        """Return whether a path through statements ends with a group that `can_join` a test.

        at: the level, BLOCK or WARP.
        """
        last = max((i for i, node in enumerate(statements) if sync_level(node) >= at), default=-1)
        if group := statements[last + 1 :]:
            return self.can_join(group, test)
        last = statements[-1]
        is_joint = isinstance(last, ast.If) and not self.can_diverge(last, at)
        branches = (last.body, last.orelse) if is_joint else ()
        return any(self.ends_in_group(branch, test, at) for branch in branches if branch)

    def uniform_test(self, test, at, group=()):
        """Return (lines, expression) for a test that must be uniform across the block or warp.

        The lines evaluate the test for each thread. The expression is the value on which the threads agree.

        group: statements that each thread executes before its test.
        """
        if self.is_uniform(test):
            return self.rematerialize(names_read(test)), ast.unparse(test)
        call = self.add_region([*group], result=result_of_test(test), expression=test)
        joined = f"    exit_code = {self.agreement(call, at)}"
        lines = [*self.before_agreement(), "exit_code = NO_THREAD", *self.thread_loop(at), joined]
        return lines, "is_true(state, exit_code)"

    def uniform_iterable(self, loop, at, depth):
        """Return (lines, expression) for the iterable of a `for` loop, which must be uniform across the block
        or warp.

        depth: the number of enclosing loops at that level.

        Raise CannotLower for an iterable that may differ between threads and is not a range.
        """
        iteration = loop.iter
        if self.is_uniform(iteration):
            return self.rematerialize(names_read(iteration)), ast.unparse(iteration)
        if not is_range(iteration):
            raise CannotLower(
                f"threads synchronise in a loop over {ast.unparse(iteration)}, which is not a range and may"
                " differ between threads"
            )
        given = ast.unparse(ast.Tuple(iteration.args, ast.Load()))
        call = self.add_region([], result=f"span({given})", expression=iteration)
        joined, start = f"    bounds = agree_span(state, bounds, {call})", "bounds[0]"
        if self.module.has_sides:
            warp = "-1" if at == BLOCK else "warp"
            joined = f"    bounds = agree_on_span(state, bounds, {call}, thread, {warp})"
            if at == BLOCK and not has(ast.Module(loop.body, []), ast.Break, ast.Return):
                depth = min(depth, DEPTHS - 1)
                start = f"start_near_end(state, bounds[0], step_of(bounds[2]), {depth})"
        lines = [*self.before_agreement(), "bounds = (0, 0, 0)", *self.thread_loop(at), joined]
        return lines, f"range({start}, bounds[1], step_of(bounds[2]))"

    def lower_sync_point(self, node, at, depth):
        """Return the lines for a synchronisation point: a barrier of the block or an instruction of a warp.

        depth: the number of loops of the block or warp around it.
        """
        call, results = node.value, result_names(node)
        names = {argument.id for argument in call.args if isinstance(argument, ast.Name)} | set(results)
        self.needed |= names
        self.sync_operands |= names - self.uniform
        given = [*map(self.operand_text, [*call.args, *map(ast.Name, results)])]
        lines = self.rematerialize(names & self.uniform)
        if at == BLOCK:
            barrier = BARRIERS.get(call.sync, self.module.block_barrier)
            if self.module.has_sides and call.sync not in BARRIERS:
                lines += [f"note_barrier(state, {call.site}, {depth})"]
            # After a divergence, the results of the barrier are those of some threads only.
            if given or call.sync in BARRIERS:
                lines += self.before_agreement()
            lines += [f"if not {barrier}(state):", "    return"]
            if self.module.logs:
                lines += [f"log_barrier(state, {call.site})"]
            return [*lines, f"{in_text(call.sync, 'all')}(threads, {', '.join(given)})"] if given else lines
        if self.module.logs:
            lines += [f"log_warp(state, {call.site}, warp, threads)"]
        if self.module.has_sides:
            takes_mask = INSTRUCTIONS[call.sync].mask == GIVEN
            lines += [f"note_warp(state, {call.site})"] if takes_mask else self.before_agreement()
        # If the kernel ignores the result, the "unused" form of the instruction only runs the checks.
        form = "branch" if self.branches and INSTRUCTIONS[call.sync].mask == GIVEN else "warp"
        name = in_text(call.sync, form if results else "unused")
        return [*lines, f"{name}({', '.join(['state, warp, threads', *given])})"]

    def operand_text(self, node):
        """Return the text of an operand: an array over threads if the variable is spilled, otherwise a
        uniform expression."""
        is_spilled = isinstance(node, ast.Name) and node.id in self.spilled
        return self.spill_name(node.id) if is_spilled else ast.unparse(node)
