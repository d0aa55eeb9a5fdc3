"""Rematerialisation: finds variables that a region can recompute from values that do not change, so that they
need no spill buffer. Typical examples are indices such as `i = blockIdx.x * blockDim.x + threadIdx.x`.

It also finds uniform variables, which have the same value in all threads of a block.
"""

import ast
import copy
from collections import Counter

from sim.frontend.tree import has
from sim.native.codegen.arrays import GuardedType, ReferenceType
from sim.native.codegen.symbols import SPECIAL
from sim.native.lower.hoisting import contains_sync
from sim.native.lower.liveness import exposed_reads, names_assigned
from sim.native.lower.loops import is_range

# Prefixes of sim.isa functions that are cheaper to recompute than to load from the spill buffer.
CHEAP = ("isa_operator_", "isa_builtins_", "isa_numpy_")
# Functions without side effects, whose result depends on their arguments only.
PURE = {"min", "max", "abs", "len", "int", "float", "bool", "range", "lane_of", "with_site", "from_end"}
# Names with one value for the whole block.
UNIFORM = {"state", "blockIdx", "blockDim", "gridDim"}
# Expressions that are pure if their operands are.
COMPUTED = ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Tuple
COMPUTED += ast.Attribute, ast.Subscript, ast.Slice


class Rematerializer:
    """Analysis of one kernel's variables.

    `rematerialized` maps each variable that can be recomputed anywhere to its only assignment, in program
    order. `uniform` contains the names that have one value per block, and `loops` the counters of uniform
    loops.

    numba_types: {variable: its Numba type}.
    """

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
        """Return the counters of loops that contain a synchronisation point and run the same iterations in
        all threads. A counter that code outside the loop reads is excluded. A counter that has other
        assignments is renamed within its loop."""
        found = set()
        for node in [part for statement in statements for part in ast.walk(statement)]:
            if (
                not isinstance(node, ast.For)
                or not contains_sync(node)
                or not isinstance(node.target, ast.Name)
                or node.target.id in names_assigned(node.body)
            ):
                continue
            # Empty the body for a moment, to see whether any other statement reads the counter.
            name, body, node.body = node.target.id, node.body, [ast.Pass()]
            is_read_elsewhere = name in exposed_reads(self.statements)
            node.body = body
            if not is_read_elsewhere and self.is_uniform_iteration(node.iter, set()):
                fresh = self.module.fresh_name(name) if self.assignments()[name] > 1 else name
                for part in ast.walk(node):
                    if isinstance(part, ast.Name) and part.id == name:
                        part.id = fresh
                found.add(fresh)
        return found

    def assignments(self):
        """Return {variable: number of statements, at any depth, that assign it}."""
        found = Counter()
        for node in [part for statement in self.statements for part in ast.walk(statement)]:
            if isinstance(node, (ast.Assign, ast.For, ast.NamedExpr)):
                for target in getattr(node, "targets", None) or [node.target]:
                    found.update(names_assigned([ast.Expr(target)]))
        return found

    def find_rematerializable(self):
        """Return ({variable: assignment}, uniform names). Only variables with a single assignment qualify.
        The assignments are in program order."""
        rematerialized, times = {}, self.assignments()
        shared = [name for name, declared in self.module.declared.items() if declared.space == "shared"]
        uniform = {*self.parameters, *self.module.arrays, *shared, *UNIFORM}
        for node in [part for statement in self.statements for part in ast.walk(statement)]:
            if not isinstance(node, ast.Assign) or len(node.targets) != 1 or hasattr(node.value, "sync"):
                continue
            names, is_partial = names_assigned([node]), has(node.targets[0], ast.Subscript, ast.Attribute)
            if not names or is_partial or any(times[name] > 1 for name in names):
                continue
            types_ = [self.numba_types.get(name) for name in names]
            arrays = all(isinstance(of, (GuardedType, ReferenceType)) for of in types_)
            calls = "isa_" if arrays else CHEAP
            if declares_local(node.value):
                rematerialized[names.pop()] = found = copy.deepcopy(node)
                # The declaration fills the array with poison; recomputing it must only return the address.
                found.value.func.id = "local_array"
            elif self.is_pure(node.value, self.fixed | set(rematerialized), arrays, calls):
                rematerialized |= dict.fromkeys(names, node)
                if self.is_pure(node.value, uniform, arrays, calls):
                    uniform |= names
        return rematerialized, uniform

    def is_pure(self, node, known, array=False, calls=CHEAP):
        """Return whether an expression has the same value wherever it is evaluated: it consists of constants
        and of variables in `known`, and does not read memory.

        array: the value is an array, so a subscript selects a subarray and loads nothing.
        calls: the prefix (or prefixes) of the sim.isa functions that the expression may call.
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
        # Indices and conditions are numbers, even in an expression whose value is an array.
        numbers = (getattr(node, "slice", None), getattr(node, "test", None))
        array = array or isinstance(node, ast.Attribute) and node.attr == "shape"
        return isinstance(node, COMPUTED) and all(
            self.is_pure(part, known, array and part not in numbers, calls)
            for part in ast.iter_child_nodes(node)
            if isinstance(part, ast.expr)
        )

    def is_constant_part(self, node):
        """Return whether a subscript selects an element of a shape or of a constant tuple."""
        of = node.value
        return (
            isinstance(of, ast.Attribute)
            and of.attr == "shape"
            or isinstance(of, ast.Name)
            and of.id in self.module.constants
        )

    def is_uniform_iteration(self, node, loops):
        """Return whether an iterable yields the same values in every thread of the block. A range counts as
        uniform, because generated code checks that all threads agree on its bounds."""
        return self.is_pure(node, {*self.parameters, *UNIFORM, *self.module.arrays} | loops) or is_range(node)

    def is_uniform(self, node):
        """Return whether an expression has the same value in all threads of a block."""
        return self.is_pure(node, self.uniform | self.loops)


def declares_local(node):
    """Return whether an expression declares a local array."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "declare_local"
