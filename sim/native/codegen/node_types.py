"""Types of the variables and expressions of a generated function, by Numba's rules.

Numba infers types from bytecode, in SSA form, by iterating until the types no longer change. If all values
assigned to a variable have the same type, one pass over the syntax tree finds the same types. Numba's typing
context resolves each operator, call and attribute.
"""

import ast
import builtins
import functools
import operator
from contextlib import contextmanager
from types import ModuleType

from numba import boolean, types
from numba.core.errors import NumbaError
from numba.cpython.builtins import cast_int, max_vararg, min_vararg

from sim.frontend.tree import OPERATORS, all_nodes
from sim.native.codegen.arrays import GuardedType, ReferenceType
from sim.native.codegen.elements import FromEnd
from sim.native.codegen.linking import CachedTyping

# The types of values that the translator supports. None of them needs reference counting.
VALUES = (
    types.Number,
    types.Boolean,
    types.NoneType,
    types.RangeType,
    types.SliceType,
    GuardedType,
    ReferenceType,
    FromEnd,
)
LOOPS = types.RangeType, types.UniTuple  # the types of values over which a `for` loop can iterate
REAL = types.Integer, types.Boolean, types.Float
CALLABLE = types.Function, types.Dispatcher, types.NumberClass
MISSING = object()


class Untranslatable(Exception):
    """The exception for a function that the translator does not support. Numba then compiles the function."""


def is_supported(numba_type):
    """Return whether the translator supports values of a type."""
    if isinstance(numba_type, types.BaseTuple):
        return all(map(is_supported, numba_type))
    return isinstance(numba_type, VALUES)


def is_real(numba_type):
    """Return whether a type is a boolean, integer or floating-point type."""
    return isinstance(numba_type, REAL)


def folded(node):
    """Return the value of a literal, or of a unary operator with such an operand, else MISSING.

    Python folds these expressions before Numba reads the code.
    """
    if isinstance(node, ast.UnaryOp):
        value = folded(node.operand)
        return MISSING if value is MISSING else operation(node.op)(value)
    return node.value if isinstance(node, ast.Constant) else MISSING


def operation(sign):
    """Return the function of the module `operator` for an AST operator."""
    name = "not_" if isinstance(sign, ast.Not) else OPERATORS.get(type(sign))
    if name is None:
        raise Untranslatable
    return getattr(operator, name)


type_of_int = functools.cache(types.maybe_literal)  # the literal type of an integer


class Variable:
    """A local variable.

    suite: the statement lists that contain its first assignment, as a tuple, with the outermost list first.
    needs_slot: whether it needs a stack slot. It needs none if its only assignment dominates all reads.
    """

    def __init__(self, numba_type, suite):
        self.numba_type, self.suite, self.needs_slot = numba_type, suite, False


class Inference:
    """The types of a function for given argument types.

    The constructor raises Untranslatable for a function that the translator does not support.

    names: the function's globals.
    types: {expression: Numba type}. A literal has a literal type.
    calls: {(node, position): (callee, Signature)} for the operators and calls of a node.
    packed: the calls whose callee takes all arguments as one tuple.
    assigned: {`if` statement or loop: set of the variables that it assigns}.
    result: the type of the result.
    """

    def __init__(self, tree, names, typing, given):
        self.names, self.typing = names, CachedTyping(typing)
        self.variables, self.types, self.calls, self.results, self.suite = {}, {}, {}, [], ()
        self.packed, self.assigned = set(), {}
        self.inner = set()  # the variables assigned in the current `if` statement or loop
        self.local = {argument.arg for argument in tree.args.args} | {
            node.id
            for node in all_nodes(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for argument, numba_type in zip(tree.args.args, given, strict=True):
            self.assign_name(argument.arg, numba_type)
        try:
            if self.run(tree.body):
                self.results.append(types.none)
        # Python raises TypeError for `~2.5`, and Numba ValueError for a captured value without a type.
        except (NumbaError, TypeError, ValueError) as error:
            raise Untranslatable from error
        self.result = self.common(self.results)

    def common(self, numba_types):
        """Return the type of values from different paths, which must be the same on each path.

        Numba would unify different types, but only those of paths that it does not prune.
        """
        found = {*map(types.unliteral, numba_types)}
        if len(found) != 1:
            raise Untranslatable
        return found.pop()

    # --- statements -----------------------------------------------------------------------------------------

    def run(self, statements):
        """Infer the types of a statement list. Return whether its end is reachable."""
        self.suite = (*self.suite, statements)
        reachable = all(self.visit("do", node) for node in statements)
        self.suite = self.suite[:-1]
        return reachable

    def visit(self, prefix, node):
        method = getattr(self, f"{prefix}_{type(node).__name__.lower()}", None)
        if method is None:
            raise Untranslatable
        return method(node)

    def assign_name(self, name, numba_type):
        """Record an assignment to a variable. All assignments must have the same type."""
        numba_type = types.unliteral(numba_type)
        if not is_supported(numba_type):
            raise Untranslatable
        self.inner.add(name)
        variable = self.variables.get(name)
        if variable is None:
            self.variables[name] = Variable(numba_type, self.suite)
            return
        if variable.numba_type != numba_type:
            raise Untranslatable
        variable.needs_slot = True

    def assign(self, target, numba_type):
        if isinstance(target, ast.Name):
            self.assign_name(target.id, numba_type)
        elif isinstance(target, ast.Subscript):
            given = self.value(target.value), self.value(target.slice), numba_type
            self.resolve(target, operator.setitem, *given)
        elif isinstance(target, ast.Tuple) and isinstance(numba_type, types.BaseTuple):
            if len(target.elts) != len(numba_type):
                raise Untranslatable
            for part, of in zip(target.elts, numba_type):
                self.assign(part, of)
        else:
            raise Untranslatable

    def do_assign(self, node):
        numba_type = self.value(node.value)
        for target in node.targets:
            self.assign(target, numba_type)
        return True

    def do_augassign(self, node):
        target = node.target
        in_place = getattr(operator, f"i{OPERATORS[type(node.op)].strip('_')}")
        if isinstance(target, ast.Name):
            self.assign_name(
                target.id, self.resolve(node, in_place, self.read(target), self.value(node.value))
            )
            return True
        raise Untranslatable

    def do_expr(self, node):
        if not isinstance(node.value, ast.Constant):  # the docstring
            self.value(node.value)
        return True

    def do_pass(self, node):
        return True

    def do_return(self, node):
        self.results.append(self.value(node.value) if node.value else types.none)
        return False

    def do_if(self, node):
        known = self.known_test(node.test)
        if known is not MISSING:
            return self.run(node.body if known else node.orelse)
        self.test(node.test)
        with self.assignments(node):
            return self.run(node.body) | self.run(node.orelse)

    @contextmanager
    def assignments(self, node):
        """Record the variables assigned in the `with` block as those that `node` assigns."""
        outer, self.inner = self.inner, set()
        yield
        self.assigned[node] = self.inner
        self.inner = outer | self.inner

    def do_while(self, node):
        self.test(node.test)
        with self.assignments(node):
            return self.loop(node)

    def loop(self, node):
        if node.orelse:
            raise Untranslatable
        self.run(node.body)
        return True

    def do_for(self, node):
        iterated = self.value(node.iter)
        if not (isinstance(iterated, LOOPS) and isinstance(node.target, ast.Name)):
            raise Untranslatable
        with self.assignments(node):
            self.suite = (*self.suite, node.body)
            self.assign_name(node.target.id, iterated.dtype)
            self.suite = self.suite[:-1]
            return self.loop(node)

    def do_continue(self, node):
        return False

    do_break = do_continue

    # --- expressions ----------------------------------------------------------------------------------------

    def value(self, node):
        """Return the type of an expression."""
        found = self.types[node] = self.visit("of", node)
        return found

    def resolve(self, node, called, *given, position=0):
        """Return the type of a call of a Python object, such as `operator.add`.

        position: the index of the call, if the node has several.
        """
        return self.resolve_call(node, position, self.typing.resolve_value_type(called), given, {})

    def resolve_call(self, node, position, callee, given, named):
        """Return the type of a call's result.

        callee: the Numba type of the callee.
        given, named: the types of the arguments.
        """
        if not isinstance(callee, CALLABLE):
            raise Untranslatable
        signature = self.typing.resolve_function_type(callee, given, named)
        if signature is None or signature.recvr or not is_supported(signature.return_type):
            raise Untranslatable
        self.calls[node, position] = callee, signature
        return signature.return_type

    def static(self, node):
        """Return the value of a global name, or of an attribute of a module, else MISSING."""
        if isinstance(node, ast.Name) and node.id not in self.local:
            return self.names.get(node.id, getattr(builtins, node.id, MISSING))
        if isinstance(node, ast.Attribute):
            module = self.static(node.value)
            return getattr(module, node.attr, MISSING) if isinstance(module, ModuleType) else MISSING
        return MISSING

    def known_test(self, node):
        """Return the truth value of a test if it is a constant, else MISSING. Numba does not compile branches
        that are never taken."""
        if isinstance(node, ast.Constant):
            value = node.value
        else:
            value = self.static(node) if isinstance(node, ast.Name) else MISSING
        return bool(value) if isinstance(value, (bool, int)) else MISSING

    def test(self, node):
        """Infer the types of a test."""
        if isinstance(node, ast.BoolOp):
            for part in node.values:
                self.test(part)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.test(node.operand)
        else:
            self.truth(node, self.value(node))

    def truth(self, node, numba_type):
        """Resolve the conversion of a value to its truth value."""
        if types.unliteral(numba_type) != boolean:
            self.resolve(node, bool, types.unliteral(numba_type), position="bool")

    def of_constant(self, node):
        return self.of_literal(node.value)

    def of_literal(self, value):
        """Return the type of a literal or of a captured value, which must be a number or a tuple."""
        if value is MISSING or callable(value) or isinstance(value, (str, ModuleType)):
            raise Untranslatable
        numba_type = (
            type_of_int(value)
            if type(value) is int
            else types.maybe_literal(value) or self.typing.resolve_value_type(value)
        )
        if not is_supported(types.unliteral(numba_type)):
            raise Untranslatable
        return numba_type

    def read(self, node):
        """Return the type of a variable, and record that it is read here."""
        variable = self.variables.get(node.id)
        if variable is None:
            raise Untranslatable
        depth = len(variable.suite)
        if len(self.suite) < depth or any(a is not b for a, b in zip(variable.suite, self.suite)):
            variable.needs_slot = True
        return variable.numba_type

    def of_name(self, node):
        if node.id in self.local:
            return self.read(node)
        return self.of_literal(self.static(node))

    def of_attribute(self, node):
        if (value := self.static(node)) is not MISSING:
            return self.of_literal(value)
        numba_type = self.value(node.value)
        found = self.typing.resolve_getattr(numba_type, node.attr)
        if found is None or not is_supported(found):
            raise Untranslatable
        return found

    def of_subscript(self, node):
        x, index = self.value(node.value), self.value(node.slice)
        if isinstance(x, types.BaseTuple) and isinstance(index, types.IntegerLiteral):
            if not -len(x) <= index.literal_value < len(x):
                raise Untranslatable
            return x[index.literal_value]
        return self.resolve(node, operator.getitem, x, index)

    def of_slice(self, node):
        ends = [node.lower, node.upper, *([node.step] if node.step else [])]
        given = [types.none if end is None else self.value(end) for end in ends]
        return self.resolve(node, slice, *map(types.unliteral, given))

    def of_tuple(self, node):
        return types.BaseTuple.from_types([types.unliteral(self.value(part)) for part in node.elts])

    def of_binop(self, node):
        # Python also folds an operator of two literals.
        if folded(node.left) is not MISSING and folded(node.right) is not MISSING:
            raise Untranslatable
        return self.resolve(node, operation(node.op), self.value(node.left), self.value(node.right))

    def of_unaryop(self, node):
        value = folded(node)
        if value is not MISSING:
            return self.of_literal(value)
        return self.resolve(node, operation(node.op), self.value(node.operand))

    def of_compare(self, node):
        parts = [*map(self.value, (node.left, *node.comparators))]
        for position, (sign, *pair) in enumerate(zip(node.ops, parts, parts[1:])):
            if self.resolve(node, operation(sign), *pair, position=position) != boolean:
                raise Untranslatable
        return boolean

    def of_boolop(self, node):
        for part in node.values:
            self.truth(part, self.value(part))
        return self.common([self.types[part] for part in node.values])

    def of_ifexp(self, node):
        known = self.known_test(node.test)
        if known is not MISSING:
            return types.unliteral(self.value(node.body if known else node.orelse))
        self.test(node.test)
        return self.common([self.value(node.body), self.value(node.orelse)])

    def of_call(self, node):
        called = self.static(node.func)
        if called is MISSING or any(isinstance(part, ast.Starred) for part in node.args):
            raise Untranslatable
        if isinstance(node.func, ast.Attribute):
            module = types.Module(self.static(node.func.value))
            callee = self.typing.resolve_getattr(module, node.func.attr)
        else:
            callee = self.typing.resolve_value_type(called)
        given = tuple(map(self.value, node.args))
        if called is int and len(given) == 1 and is_real(given[0]):
            # Numba would compile a function that calls `cast_int`.
            callee, given = self.typing.resolve_value_type(cast_int), (types.unliteral(given[0]),)
        elif (called is min or called is max) and len(given) > 1 and all(map(is_real, given)):
            # Numba would compile a function that packs the arguments into a tuple.
            callee = self.typing.resolve_value_type(min_vararg if called is min else max_vararg)
            given = (types.BaseTuple.from_types([*map(types.unliteral, given)]),)
            self.packed.add(node)
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        return self.resolve_call(node, 0, callee, given, named)
