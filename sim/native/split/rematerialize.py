"""Rematerialisation: variables that a region computes again, so that they need no spill buffer. They
depend only on values that do not change, or are counters of loops that are the same for all threads."""

import ast
import copy
from collections import Counter

from sim.frontend.tree import has
from sim.native.codegen.arrays import GuardedType, ReferenceType
from sim.native.codegen.symbols import SPECIAL
from sim.native.lower.hoisting import contains_sync
from sim.native.lower.liveness import assigned, exposed_reads
from sim.native.lower.loops import is_range

# functions of sim.isa that are cheaper to compute again than to spill
CHEAP = ("isa_operator_", "isa_builtins_", "isa_numpy_")
PURE = {"min", "max", "abs", "len", "int", "float", "bool", "range", "lane_of", "with_site", "from_end"}
UNIFORM = {"state", "blockIdx", "blockDim", "gridDim"}
COMPUTED = ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Tuple
COMPUTED += ast.Attribute, ast.Subscript, ast.Slice


class Rematerializer:
    """The variables of one kernel, and which of them a region can rematerialise. `numba_types` maps each
    to its Numba type."""

    def __init__(self, module, parameters, statements, numba_types):
        self.module, self.numba_types = module, numba_types
        self.parameters, self.statements = parameters, statements
        self.fixed = {
            *parameters,
            *module.arrays,
            *module.declared,
            *SPECIAL,
        }  # names that no statement assigns
        self.loops = self.private_counters(self.statements)
        self.rematerialized, self.uniform = self.find_rematerializable()

    def private_counters(self, statements):
        """Give each loop with a synchronisation point a counter of its own, if no code outside the loop
        reads the variable. Return those counters."""
        found = set()
        for node in [part for statement in statements for part in ast.walk(statement)]:
            if (
                not isinstance(node, ast.For)
                or not contains_sync(node)
                or not isinstance(node.target, ast.Name)
                or node.target.id in assigned(node.body)
            ):
                continue
            name, body, node.body = node.target.id, node.body, [ast.Pass()]
            elsewhere = name in exposed_reads(self.statements)
            node.body = body
            if not elsewhere and self.is_uniform_iteration(node.iter, set()):
                fresh = self.module.fresh_name(name) if self.assignments()[name] > 1 else name
                for part in ast.walk(node):
                    if isinstance(part, ast.Name) and part.id == name:
                        part.id = fresh
                found.add(fresh)
        return found

    def assignments(self):
        """Return for each variable the number of statements, at any depth, that assign it."""
        found = Counter()
        for node in [part for statement in self.statements for part in ast.walk(statement)]:
            if isinstance(node, (ast.Assign, ast.For, ast.NamedExpr)):
                for target in getattr(node, "targets", None) or [node.target]:
                    found.update(assigned([ast.Expr(target)]))
        return found

    def find_rematerializable(self):
        """Return ({variable: statement}, names): the variables that can be rematerialised anywhere, in
        order, and the names of those that are the same for a whole block."""
        rematerialized, times = {}, self.assignments()
        shared = [name for name, declared in self.module.declared.items() if declared.space == "shared"]
        same = {*self.parameters, *self.module.arrays, *shared, *UNIFORM}
        for node in [part for statement in self.statements for part in ast.walk(statement)]:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or hasattr(node.value, "sync"):
                continue
            names, of_part = assigned([node]), has(node.targets[0], ast.Subscript, ast.Attribute)
            if not names or of_part or any(times[name] > 1 for name in names):
                continue
            types_ = [self.numba_types.get(name) for name in names]
            arrays = all(isinstance(of, (GuardedType, ReferenceType)) for of in types_)
            calls = "isa_" if arrays else CHEAP
            if declares_local(node.value):
                rematerialized[names.pop()] = found = copy.deepcopy(node)
                found.value.func.id = "local_array"
            elif self.is_pure(node.value, self.fixed | set(rematerialized), arrays, calls):
                rematerialized |= dict.fromkeys(names, node)
                if self.is_pure(node.value, same, arrays, calls):
                    same |= names
        return rematerialized, same

    def is_pure(self, node, known, array=False, calls=CHEAP):
        """Return whether `node` has the same value wherever it is evaluated: it consists of `known` variables
        and constants, and reads no memory.

        `array`: the value is an array, so a subscript selects a part of one and loads nothing.
        `calls`: the prefix of the functions of sim.isa that the expression may call.
        """
        if isinstance(node, ast.Call):
            name = node.func.id if isinstance(node.func, ast.Name) else ""
            return (
                (name in PURE or name.startswith(calls))
                and all(self.is_pure(part, known, calls=calls) for part in node.args)
                and not node.keywords
            )
        if isinstance(node, ast.Name):
            return node.id in known or node.id in self.module.constants or node.id in self.module.imports
        if isinstance(node, ast.Subscript) and not (array or self.is_constant_part(node)):
            return False
        numbers = (getattr(node, "slice", None), getattr(node, "test", None))
        array = array or isinstance(node, ast.Attribute) and node.attr == "shape"
        return isinstance(node, COMPUTED) and all(
            self.is_pure(part, known, array and part not in numbers, calls)
            for part in ast.iter_child_nodes(node)
            if isinstance(part, ast.expr)
        )

    def is_constant_part(self, node):
        """Return whether a subscript selects from a shape or from a tuple of constants."""
        of = node.value
        return (
            isinstance(of, ast.Attribute)
            and of.attr == "shape"
            or isinstance(of, ast.Name)
            and of.id in self.module.constants
        )

    def is_uniform_iteration(self, node, loops):
        """Return whether the text of `node` shows that it yields the same values to every thread of the
        block."""
        return self.is_pure(node, {*self.parameters, *UNIFORM, *self.module.arrays} | loops) or is_range(node)

    def is_uniform(self, node):
        return self.is_pure(node, self.uniform | self.loops)


def declares_local(node):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "declare_local"
