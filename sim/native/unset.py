"""Variables that not every path assigns: a flag beside each says whether this thread has, and the reads in
question ask it."""

import ast
import copy

from sim.native.state import MOST_UNSET, THREADS


def watch(lowering, tree):
    """Rewrite a function's tree, not lowered yet: its flags are set and asked."""
    found = [
        node for node in lowering.versions.unassigned(tree.body) if len(lowering.module.unset) < MOST_UNSET
    ]
    walrus = {part.target.id for part in ast.walk(tree) if isinstance(part, ast.NamedExpr)}
    flags = {
        name: lowering.module.fresh(f"{name}_is_set") for name in sorted({node.id for node in found} - walrus)
    }
    if flags:
        tree.body = [
            statement
            for part in tree.body
            for statement in Flags(lowering, {id(node) for node in found}, flags).statement(part)
        ]
        tree.body[:0] = [flag(name, False, tree) for name in flags.values()]


def flag(name, value, node):
    made = ast.Assign([own_name(name, ast.Store())], ast.Constant(value))
    return ast.fix_missing_locations(ast.copy_location(made, node))


def own_name(name, context):
    return ast.Name(name, context)


class Flags(ast.NodeTransformer):
    """Sets the flags behind assignments and asks them at the reads in question."""

    def __init__(self, lowering, reads, flags):
        self.lowering, self.reads, self.flags = lowering, reads, flags

    def statement(self, node):
        result = self.visit(node)
        return result if isinstance(result, list) else [result]

    def visit_Name(self, node):
        if id(node) not in self.reads or node.id not in self.flags or not isinstance(node.ctx, ast.Load):
            return node
        module = self.lowering.module
        self.lowering.needs.add("state")
        module.unset.append((module.site(self.lowering.source.site("load", node)), node.id))
        made = ast.Call(
            own_name(module.library("assured"), ast.Load()),
            [
                own_name("state", ast.Load()),
                copy.copy(node),
                own_name(self.flags[node.id], ast.Load()),
                ast.Constant(len(module.unset) - 1),
            ],
            [],
        )
        return ast.fix_missing_locations(ast.copy_location(made, node))

    def visit_Assign(self, node):
        targets = [node.target] if isinstance(node, ast.For) else node.targets
        names = [
            part.id
            for target in targets
            for part in ast.walk(target)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store) and part.id in self.flags
        ]
        set_now = [flag(self.flags[name], True, node) for name in names]
        node = self.generic_visit(node)
        if isinstance(node, ast.For):
            node.body[:0] = set_now
            return node
        return [node, *set_now]

    visit_For = visit_Assign


def told(unset, module, grid):
    """(site, variable, block, thread) of each read before any assignment that a launch has met; `unset`: of
    its State."""
    for slot, (place, name) in enumerate(module.unset):
        if unset[slot]:
            position, thread = divmod(unset[slot] - 1, THREADS)
            unset[slot] = 0
            yield (
                module.sites[place],
                name,
                (position % grid[0], position // grid[0] % grid[1], position // (grid[0] * grid[1])),
                thread,
            )
