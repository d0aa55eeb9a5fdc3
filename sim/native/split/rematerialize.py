"""Rematerialisation: finds the variables that a region can recompute, so that they need no spill buffer.
Their values depend only on values that never change. A typical example is the index `i = blockIdx.x *
blockDim.x + threadIdx.x`.

The analysis also finds uniform variables, which have the same value in all threads of a block.
"""

import ast
import copy
from collections import Counter

from sim.frontend.tree import all_nodes, has
from sim.native.codegen.arrays import GuardedType, ReferenceType
from sim.native.codegen.symbols import SPECIAL
from sim.native.lower.hoisting import contains_sync
from sim.native.lower.liveness import exposed_reads, names_assigned, names_read
from sim.native.lower.loops import is_range

# Functions of sim.isa with these prefixes are cheaper to recompute than to load from the spill buffer.
CHEAP = ("isa_operator_", "isa_builtins_", "isa_numpy_")
# Functions without side effects, whose results depend only on their arguments.
PURE = {"min", "max", "abs", "len", "int", "float", "bool", "range", "lane_of", "with_site", "from_end"}
# These names have one value for the whole block.
UNIFORM = {"state", "blockIdx", "blockDim", "gridDim"}
# An expression of one of these kinds is pure if its operands are.
COMPUTED = ast.Constant, ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.IfExp, ast.Tuple
COMPUTED += ast.Attribute, ast.Subscript, ast.Slice


class Rematerializer:
    """Analysis of the variables of one kernel.

    `rematerialized` maps each variable that can be recomputed anywhere to its only assignment, in program
    order. `uniform` contains the names that have one value per block, and `loops` contains the counters of
    uniform loops.

    module: the lowered module.
    parameters: the names of the kernel's parameters.
    statements: the kernel's statements for one thread.
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
        """Return the counters of the loops that contain a synchronisation point and run the same iterations
        in all threads.

        A counter that is read outside the loop is left out. A counter also assigned elsewhere is renamed
        within its loop.
        """
        found = set()
        for node in [part for statement in statements for part in all_nodes(statement)]:
            if (
                not isinstance(node, ast.For)
                or not contains_sync(node)
                or not isinstance(node.target, ast.Name)
                or node.target.id in names_assigned(node.body)
            ):
                continue
            # Without the body, only statements elsewhere can read the counter.
            name, body, node.body = node.target.id, node.body, [ast.Pass()]
            is_read_elsewhere = name in exposed_reads(self.statements)
            node.body = body
            if not is_read_elsewhere and self.is_uniform_iteration(node.iter, set()):
                fresh = self.module.fresh_name(name) if self.assignments()[name] > 1 else name
                for part in all_nodes(node):
                    if isinstance(part, ast.Name) and part.id == name:
                        part.id = fresh
                found.add(fresh)
        return found

    def assignments(self):
        """Return {variable: number of the statements, at any depth, that assign it}."""
        found = Counter()
        for node in [part for statement in self.statements for part in all_nodes(statement)]:
            if isinstance(node, (ast.Assign, ast.For, ast.NamedExpr)):
                for target in getattr(node, "targets", None) or [node.target]:
                    found.update(names_assigned([ast.Expr(target)]))
        return found

    def find_rematerializable(self):
        """Return ({variable: its assignment}, uniform names). The assignments are in program order.

        A variable assigned more than once has no single value, so it is not rematerialised.
        """
        rematerialized, times = {}, self.assignments()
        shared = [name for name, declared in self.module.declared.items() if declared.space == "shared"]
        uniform = {*self.parameters, *self.module.arrays, *shared, *UNIFORM}
        for node in [part for statement in self.statements for part in all_nodes(statement)]:
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
                # Declaring the array again would fill it with poison, so only compute its address.
                found.value.func.id = "local_array"
            elif self.is_pure(node.value, self.fixed | set(rematerialized), arrays, calls):
                rematerialized |= dict.fromkeys(names, node)
                if self.is_pure(node.value, uniform, arrays, calls):
                    uniform |= names
        return rematerialized, uniform

    def is_pure(self, node, known, array=False, calls=CHEAP):
        """Return whether an expression has the same value wherever it is evaluated.

        Such an expression consists of constants and of variables in `known`, and does not read memory.

        array: whether the value is an array. A subscript then selects a subarray and loads nothing.
        calls: the prefix, or a tuple of prefixes, of the functions of sim.isa that the expression may call.
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
        # An index or a condition is a number, even inside an expression whose value is an array.
        numbers = (getattr(node, "slice", None), getattr(node, "test", None))
        array = array or isinstance(node, ast.Attribute) and node.attr == "shape"
        return isinstance(node, COMPUTED) and all(
            self.is_pure(part, known, array and part not in numbers, calls)
            for part in ast.iter_child_nodes(node)
            if isinstance(part, ast.expr)
        )

    def is_constant_part(self, node):
        """Return whether a subscript selects from a shape or a constant tuple; neither is in memory."""
        of = node.value
        return (
            isinstance(of, ast.Attribute)
            and of.attr == "shape"
            or isinstance(of, ast.Name)
            and of.id in self.module.constants
        )

    def is_uniform_iteration(self, node, loops):
        """Return whether an iterable yields the same values in every thread of the block.

        A range always does, because generated code checks that all threads agree on its bounds.

        loops: the counters of enclosing uniform loops.
        """
        return self.is_pure(node, {*self.parameters, *UNIFORM, *self.module.arrays} | loops) or is_range(node)

    def is_uniform(self, node):
        """Return whether an expression has the same value in all threads of a block."""
        return self.is_pure(node, self.uniform | self.loops)

    def rematerialize(self, wanted):
        """Return the assignments that recompute the rematerialisable variables among `wanted`.

        The assignments are in the order of their dependencies.
        """
        need = set(wanted)
        # An assignment may read variables that are assigned earlier, so iterate in reverse order.
        for variable in reversed(self.rematerialized):
            if variable in need:
                need |= names_read(self.rematerialized[variable].value)
        lines = [
            ast.unparse(self.rematerialized[variable]) for variable in self.rematerialized if variable in need
        ]
        return list(dict.fromkeys(lines))


def declares_local(node):
    """Return whether an expression declares a local array."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "declare_local"
