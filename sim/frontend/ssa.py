"""Static single assignment (SSA) form on the syntax tree. Numba types each version of a variable separately.

Each assignment creates a version. Where control flow merges several versions, another version, called a phi,
represents them. Its type must fit all merged versions. In `m = 0`, `if c: m = x`, `m * m`, the last line
reads a third version of m. Each Name node's `version` attribute is the version that it reads or creates.
"""

import ast
import operator

import numpy as np

from sim.frontend.names import MISSING
from sim.frontend.tree import COMPARISONS, all_nodes, is_literal

# The assignments in these statements and expressions are not tracked.
OPAQUE = (ast.Try, ast.With, ast.Match, ast.Global, ast.Nonlocal, ast.Delete)
OPAQUE += (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
COMPARED = {op: getattr(operator, name) for op, name in COMPARISONS.items()}


class Version:
    """One assignment to the variable `name`, or a phi.

    source: the assigned value as (how, expression, positions in nested tuples). `how` is "value", "element"
        (of an iterable), "parameter", or None if the value is unknown.
    incoming: for a phi, the merged versions: [(place, version, or None if unassigned)]. A place is ("before",
        statement) or ("end", list of statements).
    same: the version that replaces a redundant phi.
    """

    def __init__(self, name, source=None, incoming=None):
        self.name, self.source, self.incoming, self.same = name, source, incoming, None

    def settled(self):
        """Return this version, or its replacement if it is a redundant phi."""
        version = self
        while version.same is not None:
            version = version.same
        return version

    def comes_from(self):
        """Return the (place, version) pairs that a phi merges. A version is None where the variable is
        unassigned."""
        return [(place, version and version.settled()) for place, version in self.incoming]


def stored_names(nodes):
    """Return the names that are assigned or deleted within `nodes`."""
    return {
        part.id
        for node in nodes
        for part in all_nodes(node)
        if isinstance(part, ast.Name) and isinstance(part.ctx, (ast.Store, ast.Del))
    }


def opaque_names(statements):
    """Return the variables whose assignments are not tracked.

    These are variables assigned in nested functions, comprehensions, `with`, `try` and `match`, and by `:=`
    in an operand that is not always evaluated.
    """
    found = set()
    for node in [part for statement in statements for part in all_nodes(statement)]:
        if isinstance(node, (ast.FunctionDef, ast.Lambda)):
            found |= {part.id for part in all_nodes(node) if isinstance(part, ast.Name)}
            found |= {node.name} if isinstance(node, ast.FunctionDef) else set()
        elif isinstance(node, OPAQUE):
            found |= stored_names([node]) | set(getattr(node, "names", ()))
        elif isinstance(node, (ast.IfExp, ast.BoolOp)):
            found |= {part.target.id for part in all_nodes(node) if isinstance(part, ast.NamedExpr)}
    return found


class Versions:
    """The versions of all variables in a list of statements.

    value(node): returns the compile-time value of a global name or an attribute, or MISSING.
    other(test): returns the truth value of a condition if the type inference determines it, otherwise None.
    """

    def __init__(self, parameters, statements, value=lambda node: MISSING, other=lambda test: None):
        self.value, self.other_condition, self.opaque = value, other, opaque_names(statements)
        self.all, self.phis, self.read, self.loops = [], [], [], []
        self.returns = []
        followed = [name for name in parameters if name not in self.opaque]
        first = {name: self.add_version(name, ("parameter", None, ())) for name in followed}
        self.falls_through = self.run(statements, first) is not None
        self.settle()
        self.phis = self.live_phis()

    def unassigned(self, statements):
        """Return the Names in `statements` that may be read before their variable is assigned."""
        stored = stored_names(statements) - self.opaque
        # A phi may be unassigned if any incoming version may be unassigned, so iterate to the fixed point.
        lacking, before = {None}, 0
        while len(lacking) > before:
            before = len(lacking)
            phis = (phi for phi in self.all if phi.incoming is not None)
            lacking |= {phi for phi in phis if any(version in lacking for _, version in phi.comes_from())}
        return [
            node
            for statement in statements
            for node in all_nodes(statement)
            if isinstance(node, ast.Name)
            and isinstance(node.ctx, ast.Load)
            and hasattr(node, "version")
            and version_of(node) in lacking
            and (node.version.name if node.version else node.id) in stored
        ]

    def add_version(self, name, source=None, incoming=None):
        """Create and record a version."""
        version = Version(name, source, incoming)
        self.all.append(version)
        if incoming is not None:
            self.phis.append(version)
        return version

    # --- phis -----------------------------------------------------------------------------------------------

    def settle(self):
        """Replace each phi that merges only one version with that version.

        The removal of one phi can make another redundant, so iterate to the fixed point.
        """
        changed = True
        while changed:
            changed = False
            for phi in self.phis:
                others = {version for _, version in phi.comes_from()} - {phi} if phi.same is None else ()
                if len(others) == 1 and None not in others:
                    phi.same, changed = others.pop(), True

    def live_phis(self):
        """Return the phis that are read, directly or through another live phi."""
        live, waiting = [], [version.settled() for version in self.read]
        while waiting:
            phi = waiting.pop()
            if phi.incoming is not None and phi not in live:
                live.append(phi)
                waiting += [version for _, version in phi.comes_from() if version is not None]
        return [phi for phi in self.phis if phi in live]

    # --- statements: each method returns {variable: version} after it, or None if its end is unreachable ----

    def run(self, statements, now):
        for statement in statements:
            if now is None:
                return None
            now = getattr(self, "of_" + type(statement).__name__.lower(), self.other)(statement, now)
        return now

    def meet(self, ways):
        """Return {variable: version} after several paths merge. A path is (place, {variable: version})."""
        ways = [(place, now) for place, now in ways if now is not None]
        if len(ways) < 2:
            return ways[0][1] if ways else None
        met = {}
        for name in {name for _, now in ways for name in now}:
            versions = [(place, now.get(name)) for place, now in ways]
            alike = all(version is versions[0][1] for _, version in versions)
            met[name] = versions[0][1] if alike else self.add_version(name, incoming=versions)
        return met

    def of_assign(self, node, now):
        self.expression(node.value, now)
        for target in node.targets:
            self.target(target, ("value", node.value, ()), now)
        return now

    def of_return(self, node, now):
        self.expression(node.value, now)
        self.returns.append(node)

    def of_raise(self, node, now):
        self.other(node, now)

    def of_break(self, node, now):
        self.loops[-1][1].append((("before", node), now))

    def of_continue(self, node, now):
        self.loops[-1][0].append((("before", node), now))

    def of_if(self, node, now):
        self.expression(node.test, now)
        node.decision = self.decide(node.test)
        parts = [node.body] * (node.decision is not False) + [node.orelse] * (node.decision is not True)
        return self.meet([(("end", part), self.run(part, dict(now))) for part in parts])

    def of_while(self, node, now):
        """Process a `while` loop. Its test runs before the first iteration and after each iteration. The
        result of the first test may be known even if the others are not."""
        self.expression(node.test, dict(now))
        first = self.decide(node.test)
        return self.loop(node, now, lambda inside: self.expression(node.test, inside), first)

    def of_for(self, node, now):
        self.expression(node.iter, now)
        return self.loop(node, now, lambda inside: None, None)

    def loop(self, node, now, test, first):
        """Process a loop.

        test: a function that processes the loop's condition.
        first: the truth value of the condition before the first iteration, or None if not known.
        """
        # Every variable that the loop assigns gets a phi at the head of the loop. `settle` removes redundant
        # phis.
        head = dict(now)
        # The back edges are added after the body has been processed.
        for name in stored_names([node]) - self.opaque:
            head[name] = self.add_version(name, incoming=[(("before", node), now.get(name))])
        phis = {name: head[name] for name in stored_names([node]) - self.opaque}
        test(head)
        forever = isinstance(node, ast.While) and self.decide(node.test)
        inside = dict(head)
        if isinstance(node, ast.For):
            self.target(node.target, ("element", node.iter, ()), inside)
        self.loops.append(([], []))
        end = self.run(node.body, inside) if first is not False else None
        continues, breaks = self.loops.pop()
        ends = [(("end", node.body), end), *continues]
        rounds = [(place, back) for place, back in ends if back is not None]
        for place, back in rounds:
            for name, phi in phis.items():
                phi.incoming.append((place, back.get(name)))
        # The loop ends normally from its head, or, if the first test is known to be true, only after an
        # iteration.
        ended = None if forever else self.meet(rounds) if first else dict(head)
        return self.meet([(("end", node.orelse), ended and self.run(node.orelse, ended)), *breaks])

    def of_functiondef(self, node, now):
        return now

    def other(self, node, now):
        for part in ast.iter_child_nodes(node):
            if isinstance(part, ast.expr):
                self.expression(part, now)
            elif isinstance(part, ast.stmt):
                now = now and self.run([part], now)
        return now

    # --- compile-time values --------------------------------------------------------------------------------

    def decide(self, test):
        """Return the truth value of a condition that Numba's branch pruning evaluates at compile time, or
        None for any other condition."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            known = self.decide(test.operand)
            return known if known is None else not known
        if isinstance(test, ast.BoolOp):
            known, ends = [self.decide(part) for part in test.values], isinstance(test.op, ast.Or)
            return ends if ends in known else None if None in known else not ends
        if not isinstance(test, ast.Compare):
            value = self.constant(test)
            return None if value is MISSING else bool(value)
        left, right = self.constant(test.left), self.constant(test.comparators[0])
        compared = COMPARED.get(type(test.ops[0])) if len(test.ops) == 1 else None
        if compared is None or {left, right} & {MISSING, None}:
            return self.other_condition(test)
        return bool(compared(left, right))

    def constant(self, node):
        """Return the number (or None) that an expression evaluates to at compile time, or MISSING."""
        value = self.compile_time_value(node)
        return value if isinstance(value, (bool, int, float, type(None))) else MISSING

    def compile_time_value(self, node):
        """Return the compile-time value of an expression, or MISSING.

        Literals and globals have such a value, and so does a variable whose only version is assigned one.
        """
        version = version_of(node)
        if version is not None:
            plain = version.incoming is None and version.source[0] == "value" and version.source[2] == ()
            return self.compile_time_value(version.source[1]) if plain else MISSING
        if isinstance(node, ast.UnaryOp) and is_literal(node):
            return eval(ast.unparse(node), {})
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = self.compile_time_value(node.value)
            return dict(enumerate(owner)).get(node.slice.value, MISSING) if type(owner) is tuple else MISSING
        return node.value if isinstance(node, ast.Constant) else self.value(node)

    def shape(self, node):
        """Return the constant shape (a tuple) that an expression denotes, or None."""
        if isinstance(node, (ast.Tuple, ast.List)):
            sides = [self.shape(element) for element in node.elts]
            plain = all(side and len(side) == 1 for side in sides)
            return tuple(side[0] for side in sides) if plain else None
        value = MISSING if node is None else self.compile_time_value(node)
        value = value if isinstance(value, tuple) else (value,)
        return tuple(map(int, value)) if all(isinstance(side, (int, np.integer)) for side in value) else None

    # --- names ----------------------------------------------------------------------------------------------

    def record_read(self, name, now):
        version = now.get(name)
        if version is not None:
            self.read.append(version)
        return version

    def expression(self, node, now):
        """Record the version that each Name in `node` reads, in evaluation order."""
        if node is None or isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.Name):
            node.version = self.record_read(node.id, now)
        elif isinstance(node, ast.IfExp):
            self.expression(node.test, now)
            node.decision = self.decide(node.test)
            self.expression(node.body if node.decision is not False else None, now)
            self.expression(node.orelse if node.decision is not True else None, now)
        elif isinstance(node, ast.NamedExpr):
            self.expression(node.value, now)
            self.target(node.target, ("value", node.value, ()), now)
        else:
            for part in ast.iter_child_nodes(node):
                self.expression(part, now)

    def target(self, node, source, now):
        """Record the versions that an assignment creates. `source` describes the assigned value, as in
        Version."""
        how, value, positions = source
        if isinstance(node, ast.Name):
            if node.id not in self.opaque:
                node.version = now[node.id] = self.add_version(node.id, source)
        elif isinstance(node, (ast.Tuple, ast.List)):
            for position, part in enumerate(node.elts):
                self.target(part, (how, value, (*positions, position)) if how else (None, None, ()), now)
        elif isinstance(node, ast.Starred):
            self.target(node.value, (None, None, ()), now)
        else:
            self.expression(node, now)


def version_of(node):
    """Return the version that a Name reads or creates, or None if it is not tracked."""
    version = getattr(node, "version", None)
    return version and version.settled()
