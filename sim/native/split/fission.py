"""Loop fission: the split of one thread's statements at its synchronisation points. Each piece, a region,
runs in a loop over the threads.

A block runs its regions one after another. Between two barriers of the block, a warp runs its own regions.
Control flow around a synchronisation point becomes control flow of the whole block, or of the warp: each
thread's region returns the thread's decision, and if the decisions differ the block is `stopped`. A variable
that lives from one region to another is spilled to an array over threads (scalar expansion), unless a region
can rematerialise it from values that do not change. CPU implementations of CUDA and OpenCL work the same way:
Stratton, Stone and Hwu 2008, "MCUDA".
"""

import ast
import copy

from numba import types

from sim.frontend.tree import as_list
from sim.isa.table import BLOCK_WIDE
from sim.native.codegen.symbols import GEOMETRY, home_of, in_text
from sim.native.lower.hoisting import is_stop, names_assigned
from sim.native.lower.liveness import assigned, exposed, loose_exits, reads, surely_assigned
from sim.native.lower.loops import LoopCounter, is_range
from sim.native.lower.module import CannotLower
from sim.native.split.rematerialize import Computable

THREAD, WARP, BLOCK = range(3)
CODES = {"return": "END", "break": "BREAK", "continue": "CONTINUE"}


def level(node):
    """Return the level at which threads synchronise in `node`: BLOCK, WARP, or THREAD if they do not."""
    found = {getattr(part, "stops", None) for part in ast.walk(node)} - {None}
    return BLOCK if found & BLOCK_WIDE else WARP if found else THREAD


class Fission(Computable):
    """The regions of one kernel, as text."""

    def __init__(self, module, name, parameters, statements, numba_types):
        super().__init__(module, parameters, statements, numba_types)
        # kept: operands and results of synchronisation points. They need an array over threads, so no region
        # computes them again.
        self.name, self.kept, self.suffix = name, set(), "_of"
        while any(known.endswith(self.suffix) for known in module.taken):
            self.suffix += "_"
        self.ends = any(
            isinstance(part, ast.Return) for statement in self.statements for part in ast.walk(statement)
        )
        self.expanded = {}
        for _ in range(2):  # the first pass finds the variables that live across regions
            self.functions, self.needed = [], set()
            self.lines = self.sequence(self.statements, BLOCK, 0)
            self.expanded = {
                variable: self.dtype(variable)
                for variable in sorted(
                    (self.needed & assigned(self.statements)) - self.loops - (set(self.again) - self.kept)
                )
            }

    def dtype(self, variable):
        numba_type = self.numba_types.get(variable)
        if not isinstance(numba_type, (types.Number, types.Boolean)):
            raise CannotLower(f"{variable} is a {numba_type} and lives across a barrier")
        return str(numba_type)

    # --- the text of a whole block --------------------------------------------------------------------------

    def sequence(self, statements, at, depth):
        """Return the lines that run `statements` for a whole block (`at` BLOCK) or warp (`at` WARP).
        `depth`: the number of enclosing loops at that level."""
        lines, group = [], []
        for statement in statements:
            if level(statement) < at:
                group.append(statement)
                continue
            lines += self.section(group, at, depth) + self.compound(statement, at, depth)
            group = []
        return (lines + self.section(group, at, depth)) or ["pass"]

    def section(self, group, at, depth):
        """Return the lines that run statements without a synchronisation point of the level `at`."""
        if not group or all(isinstance(statement, ast.Pass) for statement in group):
            return []
        exits = loose_exits(group)
        if max(map(level, group)) == WARP:
            lines = [*self.sequence(group, WARP, 0), "return GO"]
            call = self.function(f"{self.name}_warp_{len(self.functions) + 1}", lines)
            loop = ["for warp in range(-(-threads // 32)):"]
        else:
            call, loop = self.region(group), self.threads(at)
        return self.loop(loop, call, exits, at, depth)

    def threads(self, at):
        """Return the head of the loop over the threads of a block, or of a warp, that have not returned."""
        over = "range(threads)" if at == BLOCK else "range(32 * warp, min(32 * warp + 32, threads))"
        return [
            f"for thread in {over}:",
            *(["    if has_returned(state, thread):", "        continue"] if self.ends else []),
            "    threadIdx = enter(state, thread)",
            *(["    log_thread(state, thread)"] if self.module.counted else []),
        ]

    def loop(self, loop, call, exits, at, depth):
        if not exits:
            return [*loop, f"    {call}"]
        of_warp = loop[0].startswith("for warp")
        joined = f"agree_warps(state, answer, {call})" if of_warp else f"agree(state, answer, {call}, thread)"
        lines = ["answer = NOBODY", *loop, f"    answer = {joined}"]
        for name in sorted(exits):
            told = at == WARP and (name == "return" or not depth)
            lines += [f"if answer == {CODES[name]}:", f"    {f'return {CODES[name]}' if told else name}"]
        return lines

    def compound(self, node, at, depth):
        """Return the lines of a statement that contains a synchronisation point."""
        if is_stop(node):
            return self.stop(node, at)
        check = ["if is_stopped(state):", f"    return{' END' if at == WARP else ''}"]
        if isinstance(node, ast.If):
            before, test = self.asked(node.test, at)
            lines = [*before, f"if {test}:", *indented(self.sequence(node.body, at, depth))]
            return lines + (
                ["else:", *indented(self.sequence(node.orelse, at, depth))] if node.orelse else []
            )
        if isinstance(node, ast.While):
            before, test = self.asked(node.test, at)
            leave = [f"if not {test}:", "    break"] if test != "True" else []
            return [
                "while again(state):",
                *indented([*before, *check, *leave, *self.sequence(node.body, at, depth + 1)]),
            ]
        if isinstance(node, ast.For):
            before, iteration = self.spanned(node.iter, at)
            body, counter = node.body, ast.unparse(node.target)
            if counter not in self.loops:
                counter = self.module.fresh("counter")
                self.loops.add(counter)
                body = [*ast.parse(f"{ast.unparse(node.target)} = {counter}").body, *body]
            inner = [*check, *self.sequence(body, at, depth + 1)]
            return [*before, f"for {counter} in {iteration}:", *indented(inner)]
        raise CannotLower(f"a thread stops within a `{type(node).__name__.lower()}` statement")

    def asked(self, test, at):
        """Return (lines, test): the lines that evaluate a test for each thread, and the text of a test on
        which the whole block or warp agrees."""
        if self.is_same(test):
            return self.computed_again(reads(test)), ast.unparse(test)
        call = self.region([], result=f"1 if {ast.unparse(test)} else 0", asks=test)
        joined = f"    answer = agree(state, answer, {call}, thread)"
        return ["answer = NOBODY", *self.threads(at), joined], "holds(state, answer)"

    def spanned(self, iteration, at):
        """Return (lines, iterable) for the iterable of a loop, on which the whole block or warp agrees."""
        if self.is_same(iteration):
            return self.computed_again(reads(iteration)), ast.unparse(iteration)
        if not is_range(iteration):
            raise CannotLower(
                f"threads stop in a loop over {ast.unparse(iteration)}, which is no range and not the same"
                " for all"
            )
        parts = [ast.unparse(part) for part in iteration.args]
        start, stop, step = ["0", *parts, "1"] if len(parts) == 1 else [*parts, "1"][:3]
        call = self.region([], result=f"span({start}, {stop}, {step})", asks=iteration)
        joined = f"    bounds = agree_span(state, bounds, {call})"
        lines = ["bounds = (0, 0, 0)", *self.threads(at), joined]
        return lines, "range(bounds[0], bounds[1], step_of(bounds[2]))"

    def stop(self, node, at):
        """Return the lines of a synchronisation point: a barrier, or an instruction of a warp."""
        call, results = node.value, names_assigned(node)
        names = {argument.id for argument in call.args if isinstance(argument, ast.Name)} | set(results)
        self.needed |= names
        self.kept |= names - self.same
        given = [*map(self.held, [*call.args, *map(ast.Name, results)])]
        lines = self.computed_again(names & self.same)
        if at == BLOCK:
            lines += ["if not barrier(state):", "    return"]
            if self.module.counted:
                lines += [f"log_barrier(state, {call.site})"]
            return [*lines, f"{in_text(call.stops, 'all')}(threads, {', '.join(given)})"] if given else lines
        if self.module.counted:
            lines += [f"log_warp(state, {call.site}, warp, threads)"]
        name = in_text(call.stops, "warp" if results else "unused")
        return [*lines, f"{name}({', '.join(['state, warp, threads', *given])})"]

    def held(self, node):
        """Return the text of an argument of all lanes: an array over threads, or an expression that is the
        same for all."""
        expanded = isinstance(node, ast.Name) and node.id in self.expanded
        return self.over(node.id) if expanded else ast.unparse(node)

    # --- regions --------------------------------------------------------------------------------------------

    def region(self, group, result=None, asks=None):
        """Add a function that runs `group` for one thread, and return a call of it. The function returns
        the expression `result` if there is one; `asks` is the tree of that expression."""
        wanted = exposed(group) | reads(asks)
        changed = assigned(group)
        needed = wanted | changed - surely(group)
        self.needed |= wanted
        loads = [v for v in self.expanded if v in needed]
        stores = [f"{self.over(v)}[thread] = {v}" for v in self.expanded if v in changed]
        exits = loose_exits(group)
        body = [
            *(f"{v} = {self.over(v)}[thread]" for v in loads),
            *self.computed_again(wanted),
            *self.statements_text(group, stores),
            *stores,
        ]
        if exits or result:
            body.append(f"return {result or 'GO'}")
        return self.function(f"{self.name}_{len(self.functions) + 1}", body)

    def computed_again(self, wanted):
        """Return the lines that rematerialise those of the `wanted` variables that a region can compute."""
        need = set(wanted)
        for variable in reversed(self.again):
            if variable in need:
                need |= reads(self.again[variable].value)
        lines = [ast.unparse(self.again[variable]) for variable in self.again if variable in need]
        return list(dict.fromkeys(lines))

    def statements_text(self, group, stores):
        """Return the lines of one thread's statements. `return` and exits from loops of the whole block
        become exit codes, and loops count their iterations."""
        counted, exits = LoopCounter(self.module), Exits(stores)
        parts = [exits.visit(counted.visit(copy.deepcopy(statement))) for statement in group]
        return lines_of([part for statement in parts for part in as_list(statement)])

    def function(self, name, body):
        """Add a function with these lines, and return a call of it."""
        tree = ast.parse("\n".join(["def f():", *indented(body)]))
        names, local = reads(tree), assigned([tree])
        for called in sorted(filter(home_of, names)):
            self.module.library(called)
        kept = [
            f"{self.over(variable)} = {self.finder(dtype)}(kept, {position}, threads)"
            for position, (variable, dtype) in enumerate(self.expanded.items())
            if self.over(variable) in names
        ]
        names |= {"kept", "threads"} if kept else set()
        known = ["state", "warp", "thread", "threads", "kept", *GEOMETRY, *self.module.arrays]
        known += [*self.module.declared, *sorted(self.loops), *self.parameters]
        signature = f"{name}({', '.join(part for part in known if part in names - local)})"
        self.functions.append([f"def {signature}:", *indented([*kept, *body])])
        return signature

    def over(self, variable):
        """Return the name of the array over threads of a spilled variable."""
        return variable + self.suffix

    def finder(self, dtype):
        """Return the name of the intrinsic that finds an array over threads of this element type in the
        spill buffer."""
        self.module.imports["over_threads"] = "sim.native.codegen.arrays"
        return self.module.constant(f"over_{dtype}", f'over_threads("{dtype}")')


class Exits(ast.NodeTransformer):
    """A transformer that replaces `return`, and exits from loops of the whole block or warp, by exit
    codes. The thread's spilled variables are stored before it leaves a loop."""

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
        self.depth += 1
        node = self.generic_visit(node)
        self.depth -= 1
        return node

    visit_While = visit_For

    def visit_FunctionDef(self, node):
        return node


def lines_of(statements):
    """Return the text of statements, as lines."""
    return ast.unparse(ast.fix_missing_locations(ast.Module(statements, []))).split("\n")


def surely(group):
    found = surely_assigned(group)
    return assigned(group) if found is None else found


def indented(lines):
    return ["    " + line for line in lines]
