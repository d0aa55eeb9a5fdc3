"""What the accesses of a loop log: one number for each array and place in the source, computed once, behind
the assignment of the array, to which an access adds its position."""

import ast
from collections import Counter

from sim.events import SITE_SHIFT
from sim.frontend.tree import located


class Bases(ast.NodeTransformer):
    """The numbers of one function's arrays. `prefix`: of the names that hold them."""

    def __init__(self, versions, prefix):
        times = Counter(version.name for version in versions.all)
        self.once = {name for name, count in times.items() if count == 1} - versions.opaque
        self.prefix, self.statements, self.names = prefix, {}, 0

    def known(self, array):
        """Whether the variable called `array` is assigned in one place, which has a place behind it."""
        return array in self.once

    def name(self, array, site):
        """The name that holds what an access at `site` to `array` adds to its position."""
        self.names += 1
        name = f"{self.prefix}base{self.names}"
        computed = ast.parse(f"{name} = {word(array, site)}").body
        self.statements.setdefault(array, []).extend(computed)
        return name

    def put_in(self, tree):
        """Compute them in `tree`, a function's."""
        parameters = [part.arg for part in ast.walk(tree.args) if isinstance(part, ast.arg)]
        first = [part for name in parameters for part in self.statements.pop(name, ())]
        self.generic_visit(tree)
        tree.body[:0] = located(first, tree)

    def visit_Assign(self, node):
        parts = (part for target in node.targets for part in ast.walk(target))
        names = [part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)]
        behind = [statement for name in names for statement in self.statements.get(name, ())]
        return [node, *located(behind, node)]


def word(array, site):
    """The expression whose value an access at `site` to `array` adds to its position."""
    return f"{site << SITE_SHIFT} + {array}.code"
