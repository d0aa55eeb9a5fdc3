"""Definite assignment: is-set flags for variables that some path leaves unassigned. A flag says whether
this thread has assigned the variable, and uncertain reads check it."""

import ast
import copy

from sim.frontend.tree import as_list, located
from sim.native.codegen.launch_state import MOST_UNSET, THREADS
from sim.native.lower.liveness import assigned


def watch(lowering, tree):
    """Rewrite a function's tree, before it is lowered, so that it sets and checks the flags."""
    room = MOST_UNSET - len(lowering.module.unset)
    found = list(lowering.versions.unassigned(tree.body))[:room]
    walrus = {part.target.id for part in ast.walk(tree) if isinstance(part, ast.NamedExpr)}
    names = sorted({node.id for node in found} - walrus)
    flag_of = {v: lowering.module.fresh_name(f"{v}_is_set") for v in names}
    flags = Flags(lowering, set(map(id, found)), flag_of)
    if names:
        body = [part for statement in tree.body for part in as_list(flags.visit(statement))]
        tree.body = [*flags.set_to(False, names, tree), *body]


class Flags(ast.NodeTransformer):
    """A transformer that sets the flags (by variable) after assignments, and checks them at uncertain
    reads."""

    def __init__(self, lowering, reads, flags):
        self.lowering, self.reads, self.flags = lowering, reads, flags

    def set_to(self, value, names, node):
        return located([ast.parse(f"{self.flags[name]} = {value}").body[0] for name in names], node)

    def visit_Name(self, node):
        if id(node) not in self.reads or node.id not in self.flags or not isinstance(node.ctx, ast.Load):
            return node
        lowering, unset = self.lowering, self.lowering.module.unset
        unset.append((lowering.module.site(lowering.source.site("load", node)), node.id))
        is_set, slot = ast.Name(self.flags[node.id], ast.Load()), ast.Constant(len(unset) - 1)
        given = [lowering.as_name("state", node), copy.copy(node), is_set, slot]
        return ast.fix_missing_locations(lowering.call("check_assigned", given, node))

    def visit_Assign(self, node):
        targets = [node.target] if isinstance(node, ast.For) else node.targets
        set_now = self.set_to(True, sorted(assigned(targets) & self.flags.keys()), node)
        node = self.generic_visit(node)
        if isinstance(node, ast.For):
            node.body[:0] = set_now
            return node
        return [node, *set_now]

    visit_For = visit_Assign


def decode_unassigned(unset, module):
    """Return (site, variable, position of the block, thread) of each read before any assignment that
    occurred in a launch. `unset`: the records in its State."""
    for slot, (place, name) in enumerate(module.unset):
        if unset[slot]:
            position, thread = divmod(unset[slot] - 1, THREADS)
            unset[slot] = 0
            yield module.sites[place], name, position, thread
