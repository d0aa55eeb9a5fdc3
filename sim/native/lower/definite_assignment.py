"""Definite assignment: finds reads of variables to which the thread has not assigned a value.

A static analysis finds each read that some path reaches before any assignment. For each variable of such a
read, the generated code maintains a flag per thread. Assignments set the flag, and the read checks it.
"""

import ast
import copy

from sim.frontend.tree import all_nodes, as_list, located
from sim.native.codegen.launch_state import MAX_UNSET, THREADS
from sim.native.lower.liveness import names_assigned


def insert_checks(lowering, tree):
    """Insert flags and checks into a function's tree, before the tree is lowered.

    A launch can record MAX_UNSET reads. Further reads are not checked.

    lowering: the Lowering of the function.
    """
    room = MAX_UNSET - len(lowering.module.unset)
    found = list(lowering.versions.unassigned(tree.body))[:room]
    # An assignment expression (`:=`) cannot set a flag, because it is not a statement. Skip its variable.
    walrus = {part.target.id for part in all_nodes(tree) if isinstance(part, ast.NamedExpr)}
    names = sorted({node.id for node in found} - walrus)
    flag_of = {v: lowering.module.fresh_name(f"{v}_is_set") for v in names}
    flags = Flags(lowering, set(map(id, found)), flag_of)
    if names:
        body = [part for statement in tree.body for part in as_list(flags.visit(statement))]
        tree.body = [*flags.set_to(False, names, tree), *body]


class Flags(ast.NodeTransformer):
    """A transformer that sets a variable's flag after each assignment and checks it before each uncertain
    read.

    lowering: the Lowering of the function.
    reads: the `id` of each Name node that reads an uncertain variable.
    flags: {variable: name of its flag}.
    """

    def __init__(self, lowering, reads, flags):
        self.lowering, self.reads, self.flags = lowering, reads, flags

    def set_to(self, value, names, node):
        """Return the statements that assign `value` to the flags of these variables."""
        return located([ast.parse(f"{self.flags[name]} = {value}").body[0] for name in names], node)

    def visit_Name(self, node):
        """Replace an uncertain read by `check_assigned(state, value, is_set, slot)`.

        `slot` is the index of the read in `module.unset`.
        """
        if id(node) not in self.reads or node.id not in self.flags or not isinstance(node.ctx, ast.Load):
            return node
        lowering, unset = self.lowering, self.lowering.module.unset
        unset.append((lowering.module.site(lowering.source.site("load", node)), node.id))
        is_set, slot = ast.Name(self.flags[node.id], ast.Load()), ast.Constant(len(unset) - 1)
        given = [lowering.as_name("state", node), copy.copy(node), is_set, slot]
        return ast.fix_missing_locations(lowering.call("check_assigned", given, node))

    def visit_Assign(self, node):
        """Insert statements that set the flags of the variables assigned by an assignment or a loop
        header."""
        targets = [node.target] if isinstance(node, ast.For) else node.targets
        set_now = self.set_to(True, sorted(names_assigned(targets) & self.flags.keys()), node)
        node = self.generic_visit(node)
        if isinstance(node, ast.For):
            node.body[:0] = set_now
            return node
        return [node, *set_now]

    visit_For = visit_Assign


def decode_unassigned(unset, module):
    """Yield (site, variable, linear block index, thread) for each recorded read of an unassigned variable,
    and clear the records.

    unset: the array of records in the launch's State.
    module: the lowered module.
    """
    for slot, (site, name) in enumerate(module.unset):
        if unset[slot]:
            position, thread = divmod(unset[slot] - 1, THREADS)
            unset[slot] = 0
            yield module.sites[site], name, position, thread
