"""Analysis of the arrays that a lowered kernel may write. An array that is only read needs no shadow memory
for races, and need not be saved for a rerun."""

import ast

from sim.frontend.tree import all_nodes
from sim.native.codegen.atomics import WRITING
from sim.native.lower.liveness import names_assigned


class Writes:
    """A search for the arrays written by a kernel and by the device functions that it calls.

    The search is conservative: it assumes that a variable refers to every array that occurs in any of its
    assignments.
    """

    def __init__(self, module):
        self.devices = {device.name: device for device in module.devices.values()}
        self.variables = set()
        self.found = {}  # device function -> positions of the parameters that it may write

    def of(self, statements):
        """Return the names of the arrays that statements may write."""
        aliases, written = {}, set()
        self.variables |= names_assigned(statements)
        for node in [part for statement in statements for part in all_nodes(statement)]:
            if isinstance(node, ast.Assign):
                for name in names_assigned(node.targets):
                    aliases.setdefault(name, set()).update(names_in(node.value))
            elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
                written |= names_in(node.value)
            elif isinstance(node, ast.Call):
                written |= self.of_call(node)
            elif isinstance(node, ast.For):
                for name in names_in(node.target):
                    aliases.setdefault(name, set()).update(names_in(node.iter))
        # A written name can be an alias of other names. Follow the aliases until no new name is found.
        grown = set()
        while grown != written:
            grown = set(written)
            written |= {root for name in grown for root in aliases.get(name, ())}
        return written

    def of_call(self, node):
        """Return the names of the arrays that a call may write."""
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in WRITING:
            return names_in(node.args[0])
        if name in self.variables:  # an unknown function, called through a variable, may write any argument
            return {root for argument in node.args for root in names_in(argument)}
        if name not in self.devices:
            return set()
        return {root for position in self.of_device(name) for root in names_in(node.args[position])}

    def of_device(self, name):
        """Return the positions of the parameters that a device function may write."""
        if name not in self.found:
            tree = self.devices[name].tree
            # While the body is being analysed, assume that a recursive call writes all parameters.
            self.found[name] = range(len(tree.args.args))
            written = self.of(tree.body)
            self.found[name] = [
                position for position, argument in enumerate(tree.args.args) if argument.arg in written
            ]
        return self.found[name]


def names_in(node):
    """Return all names that occur in a syntax tree."""
    return {part.id for part in all_nodes(node) if isinstance(part, ast.Name)}
