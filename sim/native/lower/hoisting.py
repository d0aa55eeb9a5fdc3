"""Hoisting of synchronisation points out of expressions. Afterwards, each one is a statement by itself, such
as `syncthreads()` or `x = shfl_xor_sync(mask, value, lane)`.

A synchronisation point inside an expression is executed before the statement, and its result is stored in a
new variable. A conditional expression that contains a synchronisation point becomes an `if` statement. The
test of a `while` loop moves into the loop's body if it contains one. Device functions that contain
synchronisation points are inlined.

In this package, the attribute `sync` of a call node marks a synchronisation point and contains the name of
its instruction. The attribute `inlined_function` marks a call that has to be inlined.
"""

import ast
import copy

from sim.frontend.tree import all_nodes, as_list
from sim.isa.table import INSTRUCTIONS, WARP_WIDE
from sim.native.lower.function import Lowering
from sim.native.lower.liveness import names_assigned
from sim.native.lower.loops import assign
from sim.native.lower.module import CannotLower


def contains_sync(node):
    """Return whether a node contains a synchronisation point, or a call that has to be inlined."""
    return any(hasattr(part, "sync") or hasattr(part, "inlined_function") for part in all_nodes(node))


def find_sync_call(statement):
    """Return the call if a statement consists of a single synchronising call, otherwise None."""
    call = statement.value if isinstance(statement, (ast.Expr, ast.Assign)) else None
    return call if hasattr(call, "sync") else None


def count_results(call):
    """Return the number of elements in a synchronising call's result tuple, or 0 if its result is not a
    tuple."""
    count = len(INSTRUCTIONS[call.sync].results) if call.sync in WARP_WIDE else 1
    return count if count > 1 else 0


def result_names(statement):
    """Return the variables to which a synchronising statement assigns its results, in order."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else ast.Tuple([])
    return [part.id for part in getattr(target, "elts", [target])]


class Hoisting:
    """A transformer for the statements of one kernel.

    Many of its methods take a list `before`, and append to it the statements that must run before the
    statement being rewritten.
    """

    def __init__(self, module):
        # `inlining`, the stack of device functions being inlined, detects recursion.
        self.module, self.inlining = module, []

    def kernel(self, function):
        """Return (parameters, statements) of a kernel."""
        lowering = Lowering(self.module, function)
        parameters = lowering.parameters()
        return parameters, self.block(lowering.body())

    def block(self, statements):
        """Return the rewritten form of a list of statements. One statement can become several."""
        return [part for statement in statements for part in self.statement(statement)]

    def statement(self, node):
        """Return the statements that replace one statement."""
        if not contains_sync(node):
            return [node]
        before = []
        handler = getattr(self, "of_" + type(node).__name__.lower(), None)
        if handler is None:
            raise CannotLower(
                f"threads synchronise within a `{type(node).__name__.lower()}` statement, which has no"
                " compiled form",
                site_in(node, self.module),
            )
        after = handler(node, before)
        for part in before + as_list(after):
            # A new statement gets the line number of the original statement, for findings.
            ast.fix_missing_locations(ast.copy_location(part, node) if not hasattr(part, "lineno") else part)
        return before + as_list(after)

    # --- statements -----------------------------------------------------------------------------------------

    def of_expr(self, node, before):
        """Rewrite an expression statement."""
        if hasattr(node.value, "sync"):
            node.value = self.arguments(node.value, before)
            return node
        value = self.expression(node.value, before)
        return [] if isinstance(value, (ast.Name, ast.Constant)) else ast.Expr(value)

    def of_assign(self, node, before):
        """Rewrite an assignment. The form `x = call(...)` needs no new variable if the call has one
        result."""
        if (
            hasattr(node.value, "sync")
            and len(node.targets) == 1
            and isinstance(node.targets[0], ast.Name)
            and not count_results(node.value)
            and node.value.sync != "this_grid"
        ):
            node.value = self.arguments(node.value, before)
            return node
        node.value = self.expression(node.value, before)
        node.targets = [self.expression(target, before) for target in node.targets]
        return node

    def of_return(self, node, before):
        node.value = self.expression(node.value, before)
        return node

    def of_if(self, node, before):
        node.test = self.expression(node.test, before)
        node.body, node.orelse = self.block(node.body), self.block(node.orelse)
        return node

    def of_while(self, node, before):
        """Rewrite a `while` loop. If its test synchronises, the loop becomes `while True`, and its body
        begins with `if not test: break`."""
        if node.orelse:
            return self.block(remove_else(node, self.module.fresh_name("broken")))
        body = self.block(node.body)
        if contains_sync(node.test):
            first = []
            leave = ast.If(ast.UnaryOp(ast.Not(), self.expression(node.test, first)), [ast.Break()], [])
            node.test, body = ast.Constant(True), [*first, leave, *body]
        node.body = body
        return node

    def of_for(self, node, before):
        """Rewrite a `for` loop. As in Python, its iterable is evaluated once, before the loop."""
        if node.orelse:
            return self.block(remove_else(node, self.module.fresh_name("broken")))
        node.iter = self.expression(node.iter, before)
        node.body = self.block(node.body)
        return node

    # --- expressions ----------------------------------------------------------------------------------------

    def expression(self, node, before):
        """Return an expression equivalent to `node` that contains no synchronisation points.

        Append statements that execute the synchronisation points of `node` to `before`.
        """
        if node is None or not contains_sync(node):
            return node
        if hasattr(node, "inlined_function"):
            return self.inline(node, before)
        if getattr(node, "sync", "") == "this_grid":
            before.append(ast.Expr(node))
            return ast.Constant(0)  # the barrier returns cudaSuccess
        if hasattr(node, "sync"):
            names = ", ".join(self.module.fresh_name("got") for _ in range(count_results(node) or 1))
            made = ast.parse(f"{names} = None").body[0]
            made.value = self.arguments(node, before)
            before.append(made)
            return ast.parse(names, mode="eval").body
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            raise CannotLower(
                "threads synchronise within a lambda or a comprehension, which has no compiled form",
                site_in(node, self.module),
            )
        # Only the selected branch is allowed to execute its synchronisation points.
        if isinstance(node, ast.IfExp) and contains_sync(ast.Tuple([node.body, node.orelse], ast.Load())):
            name, then, otherwise = self.module.fresh_name("chosen"), [], []
            test = self.expression(node.test, before)
            for part, into in ((node.body, then), (node.orelse, otherwise)):
                value = self.expression(part, into)
                into.append(assign(name, value))
            before.append(ast.If(test, then, otherwise))
            return ast.Name(name, ast.Load())
        # `and` and `or` must not execute a synchronisation point once the result is decided.
        if isinstance(node, ast.BoolOp) and any(map(contains_sync, node.values[1:])):
            name = self.module.fresh_name("holds")
            before.append(assign(name, self.expression(node.values[0], before)))
            for value in node.values[1:]:
                more = []
                value = self.expression(value, more)
                test = ast.Name(name, ast.Load())
                test = test if isinstance(node.op, ast.And) else ast.UnaryOp(ast.Not(), test)
                before.append(ast.If(test, [*more, assign(name, value)], []))
            return ast.Name(name, ast.Load())
        # In any other expression, Python evaluates the operands from left to right.
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                value[:] = [
                    self.expression(part, before) if isinstance(part, ast.expr) else part for part in value
                ]
            elif isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, before))
        return node

    def arguments(self, node, before):
        """Replace the arguments of a synchronising call by constants and variables, and return the call.

        Fission spills variables to arrays over threads, so each operand needs a name.
        """
        for position, argument in enumerate(node.args):
            argument = self.expression(argument, before)
            simple = (
                isinstance(argument, ast.Constant)
                or isinstance(argument, ast.Name)
                and argument.id in self.module.constants
            )
            # The first argument of an atomic is an array, which fission cannot spill.
            if not simple and not (node.sync.startswith("atomic") and position == 0):
                name = self.module.fresh_name("given")
                before.append(assign(name, argument))
                argument = ast.Name(name, ast.Load())
            node.args[position] = argument
        return node

    # --- device functions -----------------------------------------------------------------------------------

    def inline(self, node, before):
        """Inline a call to a device function: append its statements to `before`, and return its result.

        Raise CannotLower for recursion.
        """
        function = node.inlined_function
        if function in self.inlining:
            raise CannotLower(
                f"{function.__name__} calls itself, and its threads synchronise", node.call_site
            )
        # Each inlined copy has its own variables.
        local = sorted(self.module.reachable[function].local)
        rename = {name: self.module.fresh_name(f"{name}_{function.__name__}") for name in local}
        lowering = Lowering(self.module, function, rename, node.known_referents)
        body = lowering.body()
        for name, argument in zip(lowering.parameters(), node.args, strict=True):
            before.append(ast.copy_location(assign(name, self.expression(argument, before)), node))
        result = self.module.fresh_name(f"{function.__name__}_result")
        self.inlining.append(function)
        body = self.block(remove_returns(body, result, node.call_site))
        self.inlining.pop()
        before += body
        return ast.Name(result, ast.Load()) if result in names_assigned(body) else ast.Constant(None)


def remove_else(loop, broken):
    """Return statements equivalent to a loop with an `else` clause.

    broken: the name of a new variable, which becomes True before a `break`.
    """
    otherwise, loop.orelse = loop.orelse, []
    loop.body = [part for statement in loop.body for part in record_breaks(statement, broken)]
    return [
        assign(broken, ast.Constant(False)),
        loop,
        ast.If(ast.UnaryOp(ast.Not(), ast.Name(broken, ast.Load())), otherwise, []),
    ]


def record_breaks(statement, broken):
    """Return the statements that replace `statement`: `broken = True` precedes each `break` of the enclosing
    loop. A `break` of an inner loop is unchanged."""
    if isinstance(statement, ast.Break):
        return [assign(broken, ast.Constant(True)), statement]
    for name in (
        ("orelse",) if isinstance(statement, (ast.For, ast.While)) else ("body", "orelse", "finalbody")
    ):
        inner = getattr(statement, name, None) or []
        inner[:] = [part for inside in inner for part in record_breaks(inside, broken)]
    return [statement]


def remove_returns(statements, result, site):
    """Return the statements of a function body, with `result = x` in place of each `return x`.

    The statements after an `if` that contains a `return` move into its branches without a `return`. Raise
    CannotLower for a `return` inside a loop.

    result: the name of the variable.
    site: the Site of the call, for the message.
    """
    for position, statement in enumerate(statements):
        if isinstance(statement, ast.Return):
            given = statement.value and [ast.copy_location(assign(result, statement.value), statement)]
            return [*statements[:position], *(given or [])]
        if not any(isinstance(part, ast.Return) for part in all_nodes(statement)):
            continue
        if not isinstance(statement, ast.If):
            raise CannotLower(
                "a device function in which threads synchronise returns from within a loop, which has no"
                " compiled form",
                site,
            )
        rest = statements[position + 1 :]
        then, otherwise = (
            remove_returns(arm if arm and isinstance(arm[-1], ast.Return) else arm + after, result, site)
            for arm, after in ((statement.body, copy.deepcopy(rest)), (statement.orelse, rest))
        )
        made = ast.If(statement.test, then or [ast.Pass()], otherwise)
        return [*statements[:position], ast.copy_location(made, statement)]
    return statements


def site_in(node, module):
    """Return the Site of the first synchronisation point in a node, or None if it contains none."""
    for part in all_nodes(node):
        if hasattr(part, "site"):
            return module.sites[part.site]
        if hasattr(part, "call_site"):
            return part.call_site
    return None
