"""Loop fission: the statements of one thread, split wherever threads wait, each piece (a region) in a loop
over the threads.

A block goes through its regions one after another; between two barriers, a warp goes through its own. Control
flow around a place where threads wait becomes control flow of the whole block, or warp: the regions say what
each thread decides, and if they do not all agree the block is `stopped`. A variable that lives from one
region to another is expanded, an array over threads (scalar expansion), unless it can be computed again from
what does not change. Known from CPU implementations of CUDA and OpenCL: Stratton, Stone and Hwu 2008,
"MCUDA".
"""

import ast
import copy

from numba import types

from sim.frontend.tree import as_list
from sim.isa.table import BLOCK_WIDE
from sim.native.again import Computable
from sim.native.front import CannotLower
from sim.native.hoisting import is_stop, names_assigned
from sim.native.loops import LoopCounter, is_range
from sim.native.variables import assigned, exposed, loose_exits, reads, surely_assigned
from sim.native.vocabulary import SPECIAL, in_text

THREAD, WARP, BLOCK = range(3)
CODES = {"return": "END", "break": "BREAK", "continue": "CONTINUE"}


def level(node):
    """Whether threads stop in `node`: for all of their block, for their warp, or not at all."""
    found = {getattr(part, "stops", None) for part in ast.walk(node)} - {None}
    return BLOCK if found & BLOCK_WIDE else WARP if found else THREAD


class Fission(Computable):
    """Splits one kernel."""

    def __init__(self, module, name, parameters, statements, numba_types):
        super().__init__(module, parameters, statements, numba_types)
        # kept: what a warp or block hands on, which no region can compute again
        self.name, self.kept = name, set()
        self.ends = any(
            isinstance(part, ast.Return) for statement in self.statements for part in ast.walk(statement)
        )
        self.expanded = {}
        for _ in range(2):  # the first time shows what lives from one region to another
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
        """The lines that run `statements` for a whole block (`at` BLOCK) or warp; `depth`: how many loops of
        theirs stand around."""
        lines, group = [], []
        for statement in statements:
            if level(statement) < at:
                group.append(statement)
                continue
            lines += self.section(group, at, depth) + self.compound(statement, at, depth)
            group = []
        return (lines + self.section(group, at, depth)) or ["pass"]

    def section(self, group, at, depth):
        """The lines that run statements in which nobody waits for the whole block, or warp."""
        if not group or all(isinstance(statement, ast.Pass) for statement in group):
            return []
        exits = loose_exits(group)
        if max(map(level, group)) == WARP:
            name = self.function(f"{self.name}_warp_{len(self.functions) + 1}", self.warp(group))
            call, loop = name, ["for warp in range(-(-threads // 32)):"]
        else:
            call, loop = self.region(group), self.threads(at)
        return self.loop(loop, call, exits, at, depth)

    def threads(self, at):
        """The loop over the threads of a block, or of a warp, that are still there."""
        over = "range(threads)" if at == BLOCK else "lanes_of(warp, threads)"
        self.module.library("enter")
        if at == WARP:
            self.module.library("lanes_of")
        return [
            f"for thread in {over}:",
            *(
                [f"    if {self.module.library('has_returned')}(state, thread):", "        continue"]
                if self.ends
                else []
            ),
            "    threadIdx = enter(state, thread)",
            *([f"    {self.module.library('log_thread')}(state, thread)"] if self.module.sited else []),
        ]

    def loop(self, loop, call, exits, at, depth):
        if not exits:
            return [*loop, f"    {call}"]
        of_warp = loop[0].startswith("for warp")
        join = self.module.library("agree_warps" if of_warp else "agree")
        lines = [
            "answer = NOBODY",
            *loop,
            f"    answer = {join}(state, answer, {call}{'' if of_warp else ', thread'})",
        ]
        self.module.imports["NOBODY"] = "sim.native.regions"
        for name in sorted(exits):
            code = self.module.library(CODES[name])
            leave = (
                f"return {code}"
                if at == WARP and (name == "return" or not depth)
                else "return"
                if name == "return"
                else name
            )
            lines += [f"if answer == {code}:", f"    {leave}"]
        if "return" in exits and at == BLOCK:
            self.module.library("NOBODY")
        return lines

    def warp(self, group):
        self.module.library("GO")
        return [*self.sequence(group, WARP, 0), "return GO"]

    def compound(self, node, at, depth):
        """The lines of a statement in which threads stop."""
        if is_stop(node):
            return self.stop(node, at)
        check = [
            f"if {self.module.library('is_stopped')}(state):",
            f"    return{' END' if at == WARP else ''}",
        ]
        if at == WARP:
            self.module.library("END")
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
                f"while {self.module.library('again')}(state):",
                *indented([*before, *check, *leave, *self.sequence(node.body, at, depth + 1)]),
            ]
        if isinstance(node, ast.For):
            before, iteration = self.spanned(node.iter, at)
            target = (
                node.target.id if isinstance(node.target, ast.Name) and node.target.id in self.loops else None
            )
            counter = target or self.module.fresh("counter")
            if not target:
                self.loops.add(counter)
                node = ast.For(
                    node.target,
                    node.iter,
                    [ast.Assign([copy.deepcopy(node.target)], ast.Name(counter, ast.Load())), *node.body],
                    [],
                )
                ast.fix_missing_locations(node)
            return [
                *before,
                f"for {counter} in {iteration}:",
                *indented([*check, *self.sequence(node.body, at, depth + 1)]),
            ]
        raise CannotLower(f"a thread stops within a `{type(node).__name__.lower()}` statement")

    def asked(self, test, at):
        """(lines, test): what must run before, and the text of a test on which a whole block or warp
        agrees."""
        if self.is_same(test):
            return self.computed_again(reads(test)), ast.unparse(test)
        self.module.imports["NOBODY"] = "sim.native.regions"
        call = self.region([], result=f"1 if {ast.unparse(test)} else 0", asks=test)
        agree, holds = self.module.library("agree"), self.module.library("holds")
        return [
            "answer = NOBODY",
            *self.threads(at),
            f"    answer = {agree}(state, answer, {call}, thread)",
        ], f"{holds}(state, answer)"

    def spanned(self, iteration, at):
        """(lines, iterable): the same for what a loop iterates over."""
        if self.is_same(iteration):
            return self.computed_again(reads(iteration)), ast.unparse(iteration)
        if not is_range(iteration):
            raise CannotLower(
                f"threads stop in a loop over {ast.unparse(iteration)}, which is no range and not the same"
                " for all"
            )
        parts = [ast.unparse(part) for part in iteration.args]
        start, stop, step = ["0", *parts, "1"] if len(parts) == 1 else [*parts, "1"][:3]
        call = self.region(
            [], result=f"{self.module.library('span')}({start}, {stop}, {step})", asks=iteration
        )
        agree = self.module.library("agree_span")
        return [
            "bounds = (0, 0, 0)",
            *self.threads(at),
            f"    bounds = {agree}(state, bounds, {call})",
        ], "range(bounds[0], bounds[1], max_step(bounds[2]))".replace(
            "max_step", self.module.library("step_of")
        )

    def stop(self, node, at):
        """The lines of a place where threads wait: a barrier, or something that the lanes of a warp do
        together."""
        call = node.value
        results = names_assigned(node)
        names = {argument.id for argument in call.args if isinstance(argument, ast.Name)} | set(results)
        self.needed |= names
        self.kept |= names - self.same
        given = [self.held(argument) for argument in call.args] + [
            self.held(ast.Name(result)) for result in results
        ]
        before = self.computed_again(names & self.same)
        if at == BLOCK:
            lines = before + [f"if not {self.module.library('barrier')}(state):", "    return"]
            if self.module.sited:
                lines += [
                    f"{self.module.library('log_together')}(state, {call.site})",
                    f"{self.module.library('log_epoch')}(state)",
                ]
            return (
                lines
                if not given
                else [*lines, f"{self.module.library('all_' + call.stops)}(threads, {', '.join(given)})"]
            )
        if self.module.sited:
            before += [f"{self.module.library('log_warp')}(state, {call.site}, warp, threads)"]
        name = self.module.library(f"{'warp' if results else 'unused'}_{in_text(call.stops)}")
        return [*before, f"{name}({', '.join(['state, warp, threads', *given])})"]

    def held(self, node):
        """What stands for an argument of all lanes: an array over threads, or a number that is the same for
        all."""
        return (
            f"{node.id}_of" if isinstance(node, ast.Name) and node.id in self.expanded else ast.unparse(node)
        )

    # --- regions --------------------------------------------------------------------------------------------

    def region(self, group, result=None, asks=None):
        """A call of a new function that runs `group` for one thread; with `asks`, an expression, it returns
        `result`."""
        wanted = exposed(group) | reads(asks)
        changed = assigned(group)
        needed = wanted | changed - surely(group)
        self.needed |= wanted
        loads = [v for v in self.expanded if v in needed]
        stores = [f"{v}_of[thread] = {v}" for v in self.expanded if v in changed]
        exits = loose_exits(group)
        body = [
            *(f"{v} = {v}_of[thread]" for v in loads),
            *self.computed_again(wanted),
            *self.statements_text(group, stores),
            *stores,
        ]
        if exits:
            self.module.library("GO")
            body.append("return GO")
        if result:
            body.append(f"return {result}")
        return self.function(f"{self.name}_{len(self.functions) + 1}", body)

    def computed_again(self, wanted):
        """Lines that compute those of the `wanted` variables which can be computed again."""
        need = set(wanted)
        for variable in reversed(self.again):
            if variable in need:
                need |= reads(self.again[variable].value)
        lines = [ast.unparse(self.again[variable]) for variable in self.again if variable in need]
        return list(dict.fromkeys(lines))

    def statements_text(self, group, stores):
        """The lines of one thread's statements: `return` and exits from loops of the whole block become
        codes, and loops are counted."""
        group = [
            part
            for statement in group
            for part in as_list(
                Exits(self.module, stores).visit(LoopCounter(self.module).visit(copy.deepcopy(statement)))
            )
        ]
        return [
            line
            for statement in group
            for line in ast.unparse(ast.fix_missing_locations(statement)).split("\n")
        ]

    def function(self, name, body):
        """Add a function with these lines; returns a call of it."""
        tree = ast.parse("\n".join(["def f():", *indented(body)]))
        names = {
            part.id
            for part in ast.walk(tree)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)
        }
        local = {
            part.id
            for part in ast.walk(tree)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        }
        kept = [
            f"{variable}_of = {self.over(dtype)}(kept, {position}, threads)"
            for position, (variable, dtype) in enumerate(self.expanded.items())
            if f"{variable}_of" in names
        ]
        names |= {"kept", "threads"} if kept else set()
        passed = [
            n
            for n in [
                "state",
                "warp",
                "thread",
                "threads",
                "kept",
                *SPECIAL[2:],
                *self.module.arrays,
                *self.module.declared,
                *sorted(self.loops),
                *self.parameters,
            ]
            if n in names and n not in local
        ]
        signature = f"{name}({', '.join(passed)})"
        self.functions.append([f"def {signature}:", *indented([*kept, *body])])
        return signature

    def over(self, dtype):
        """The name of what finds an array over threads of numbers of a type."""
        self.module.imports["over_threads"] = "sim.native.arrays"
        self.module.constants[f"over_{dtype}"] = f'over_threads("{dtype}")'
        return f"over_{dtype}"


class Exits(ast.NodeTransformer):
    """Makes codes of `return`, and of exits from loops of the whole block or warp; before a thread goes on
    there, its variables are stored."""

    def __init__(self, module, stores):
        self.module, self.stores, self.depth = module, stores, 0

    def leave(self, name):
        code = self.module.library(CODES[name])
        stores = [] if name == "return" else [ast.parse(text).body[0] for text in self.stores]
        return [*stores, ast.Return(ast.Name(code, ast.Load()))]

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


def surely(group):
    found = surely_assigned(group)
    return assigned(group) if found is None else found


def indented(lines):
    return ["    " + line for line in lines]
