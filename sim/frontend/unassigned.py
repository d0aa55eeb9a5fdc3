"""Which reads of a function's variables come where not every path has assigned one (definite assignment)."""
import ast

SCOPES = ast.FunctionDef, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp


def maybe_unassigned(tree):
    """The Names of a FunctionDef, read or augmented, whose variable may have no value there."""
    walk = Walk(variables(tree))
    walk.block(tree.body, set())
    return walk.found


def variables(tree):
    """The names that the function assigns, except parameters and what a function or comprehension within it mentions as well."""
    own = {part.id for part in ast.walk(tree) if isinstance(part, ast.Name) and not isinstance(part.ctx, ast.Load)}
    inner = {part.id for scope in ast.walk(tree) if isinstance(scope, SCOPES) and scope is not tree for part in ast.walk(scope) if isinstance(part, ast.Name)}
    outer = {name for part in ast.walk(tree) if isinstance(part, (ast.Global, ast.Nonlocal)) for name in part.names}
    return own - inner - outer - {argument.arg for argument in ast.walk(tree.args) if isinstance(argument, ast.arg)}


class Walk:
    """Follows the paths through a function. What is assigned is a set of names, or None where no path leads."""

    def __init__(self, names):
        self.names, self.found, self.breaks = names, [], []

    def block(self, statements, assigned):
        for statement in statements:
            assigned = self.statement(statement, assigned)
        return assigned

    def statement(self, node, assigned):
        return getattr(self, "of_" + type(node).__name__.lower(), self.plain)(node, assigned)

    def plain(self, node, assigned):
        """What is read within `node`, and then what is assigned."""
        if assigned is None:
            return None
        names = [part for part in ast.walk(node) if isinstance(part, ast.Name) and part.id in self.names]
        augmented = [node.target] if isinstance(node, ast.AugAssign) else []
        self.found += [part for part in names if part.id not in assigned and (isinstance(part.ctx, ast.Load) or part in augmented)]
        return assigned | {part.id for part in names if isinstance(part.ctx, ast.Store)} if not isinstance(node, ast.AnnAssign) or node.value else assigned

    def ends(self, node, assigned):
        self.plain(node, assigned)

    of_return = of_raise = ends

    def of_break(self, node, assigned):
        self.breaks[-1].append(assigned)

    def of_continue(self, node, assigned):
        return None

    def of_if(self, node, assigned):
        assigned = self.plain(node.test, assigned)
        return meet(self.block(node.body, assigned), self.block(node.orelse, assigned))

    def of_while(self, node, assigned):
        assigned = self.plain(node.test, assigned)
        forever = isinstance(node.test, ast.Constant) and node.test.value
        return self.loop(node, assigned, None if forever else assigned)

    def of_for(self, node, assigned):
        assigned = self.plain(node.iter, assigned)
        return self.loop(node, self.plain(node.target, assigned), assigned)

    def loop(self, node, inside, behind):
        self.breaks.append([])
        self.block(node.body, inside)
        behind = self.block(node.orelse, behind)
        for broken in self.breaks.pop():
            behind = meet(behind, broken)
        return behind

    def of_with(self, node, assigned):
        for item in node.items:
            assigned = self.plain(item, assigned)
        return self.block(node.body, assigned)

    def of_try(self, node, assigned):
        behind = self.block(node.orelse, self.block(node.body, assigned))
        for handler in node.handlers:
            behind = meet(behind, self.block(handler.body, assigned))
        return self.block(node.finalbody, behind)


def meet(one, other):
    """What is assigned where two paths come together."""
    return one & other if one is not None and other is not None else other if one is None else one
