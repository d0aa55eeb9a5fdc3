"""One generator for each thread: the kernel's statements as they are, with a `yield` wherever the thread stops.

A `yield` gives twice the number of a place in the source, and one more when an atomic has been done there. Loops give a negative number now and then, so that Python looks after them.
"""
import ast
import copy

from sim.native.flat import is_stop
from sim.native.loops import is_range
from sim.native.vocabulary import TURNING

SHORT = 1024  # rounds
LAST = 1 << 62  # instead of a place: the end
INT32 = {"syncthreads_count", "syncthreads_and", "syncthreads_or", "ballot_sync", "match_any_sync"}
FLAGS = {"all_sync", "any_sync", "eq_sync"}
LIKE = {**dict.fromkeys(INT32, "numba.int32(0)"), **dict.fromkeys(FLAGS, "False"), "activemask": "numba.uint32(0)"}


class Yields(ast.NodeTransformer):
    """Puts a `yield` into flat statements wherever a thread stops. `turns`: whether atomics let others go first; `told`: whether somebody hears of them."""

    def __init__(self, module, turns, told):
        self.module, self.turns, self.told = module, turns, told

    def lines(self, text):
        return ast.parse(text).body

    def visit_Expr(self, node):
        return self.stop(node, None) if is_stop(node) else node

    def visit_Assign(self, node):
        return self.stop(node, node.targets[0].id) if is_stop(node) else node

    def stop(self, node, result):
        call = node.value
        if call.stops.startswith("atomic"):
            return self.atomic(node, call)
        if call.stops in TURNING or call.stops.startswith("threadfence"):
            return self.lines(f"yield {2 * call.site}\n{self.resumed()}") + ([ast.Assign(node.targets, ast.Constant(0))] if result else [])
        give = "".join(f"{self.module.library('give')}(state, {position}, {ast.unparse(argument)})\n" for position, argument in enumerate(call.args))
        take = self.taken(call, result) if result else ""
        return self.lines(f"{give}yield {2 * call.site}\n{self.resumed()}\n{take}")

    def resumed(self):
        return f"{self.module.library('resumed')}(state, thread)"

    def taken(self, call, result):
        self.module.library("taken")
        if call.stops == "match_all_sync":
            return f"{result} = (taken(state, 0, numba.int32(0)), taken(state, 1, False))"
        like = LIKE.get(call.stops) or ast.unparse(call.args[1])
        return f"{result} = taken(state, 0, {like})"

    def atomic(self, node, call):
        before = self.lines(f"yield {2 * call.site}\n{self.resumed()}") if self.turns else []
        name = self.module.library(f"{call.func.id}_at")
        changed = ast.Call(ast.Name(name, ast.Load()), [*call.args, ast.Constant(call.site)], [])
        done = ast.Assign(node.targets, changed) if isinstance(node, ast.Assign) else ast.Expr(changed)
        after = self.lines(f"if {self.module.library('touched')}(state):\n    yield {2 * call.site + 1}") if self.told else []
        return [*before, done, *after]

    def visit_While(self, node):
        return self.looked_after(node, "tick")

    def visit_For(self, node):
        return self.generic_visit(node) if self.is_short(node) else self.looked_after(node, "busy")

    def is_short(self, node):
        """Whether a loop surely ends soon: over a small range of constants."""
        if not is_range(node.iter):
            return False
        texts = [self.module.constants.get(ast.unparse(part), ast.unparse(part)) for part in node.iter.args]
        return all(text.isdecimal() and int(text) <= SHORT for text in texts)

    def looked_after(self, node, how):
        node = self.generic_visit(node)
        site = getattr(node, "loop_site", 0)
        node.body = self.lines(f"if {self.module.library(how)}(state):\n    yield {-1 - site}") + node.body
        return node

    def visit_FunctionDef(self, node):
        return node

    visit_Lambda = visit_FunctionDef


def generator_lines(module, statements, turns, told):
    """The body of the generator."""
    for name in ("position_of", "grid_shape_of", "block_shape_of", "dim3", "block_index", "enter"):
        module.library(name)
    yields = Yields(module, turns, told)
    body = [part for statement in copy.deepcopy(statements) for part in as_list(yields.visit(statement))]
    lines = ["gridDim, blockDim = dim3(grid_shape_of(state)), dim3(block_shape_of(state))", "blockIdx = block_index(position_of(state), gridDim)",
             "threadIdx = enter(state, thread)", f"{yields.resumed()}"]
    lines += [line for statement in body for line in ast.unparse(ast.fix_missing_locations(statement)).split("\n")]
    stops = any(isinstance(part, ast.Yield) for statement in body for part in ast.walk(statement))
    return lines if stops else ["if thread < 0:", f"    yield {LAST}", *lines]  # Numba wants a `yield` that can be reached


def as_list(result):
    return result if isinstance(result, list) else [result]
