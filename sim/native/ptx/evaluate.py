"""Symbolic execution of reference implementations, which emits LLVM code.

The evaluator executes Python statements as Python does. A value known during compilation remains a Python
value, so a loop over `range(8)` is unrolled, and a shift by a constant has a known count. Any other value
becomes LLVM code.
"""

import ast
import functools
import inspect
import operator
import textwrap

from sim.isa.ptx_types import REALS
from sim.isa.registers import HELPER_ENTRIES, HELPERS, PAIRS
from sim.native.lower.module import CannotLower
from sim.native.ptx import functions
from sim.native.ptx.arithmetic import Arithmetic
from sim.native.ptx.values import Float, Integer, Predicate

# operator -> (method for integers, LLVM instruction for floats, Python function for known values)
OPERATORS = {
    ast.Add: ("add", "fadd", operator.add),
    ast.Sub: ("sub", "fsub", operator.sub),
    ast.Mult: ("mul", "fmul", operator.mul),
    ast.Div: (None, "fdiv", operator.truediv),
    ast.BitAnd: ("and_", None, operator.and_),
    ast.BitOr: ("or_", None, operator.or_),
    ast.BitXor: ("xor", None, operator.xor),
    ast.LShift: ("shl", None, operator.lshift),
    ast.RShift: ("shr", None, operator.rshift),
    ast.FloorDiv: (None, None, operator.floordiv),
    ast.Mod: (None, None, operator.mod),
}
# comparison -> (LLVM condition, Python function)
COMPARISONS = {
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Is: ("==", operator.is_),
    ast.IsNot: ("!=", operator.is_not),
}
# function of the operator module -> operator
PLAIN = {plain: operation for operation, (*_, plain) in (OPERATORS | COMPARISONS).items()}
# the types of values unknown during compilation
CODE = (Integer, Predicate, Float)
# the Python builtins available to reference implementations
BUILTINS = {known.__name__: known for known in (min, max, abs, int, bool, range, float, type)}


class Evaluator(Arithmetic):
    """An evaluator of Python statements.

    names: {name: a Python value, or a value of sim.native.ptx.values}.
    special: a function (name, arguments) that emits a call not defined in sim.isa, and returns its value. For
        any other call, it returns NotImplemented.
    """

    def __init__(self, context, builder, names, special=None):
        super().__init__(context, builder)
        self.names, self.special = names, special

    # --- statements -----------------------------------------------------------------------------------------

    def run(self, statements):
        """Execute statements. Return the value of the `return` statement, or None if there is none."""
        for position, node in enumerate(statements):
            if isinstance(node, ast.Return):
                return self.value(node.value)
            if isinstance(node, ast.Assign):
                self.assign(node.targets[0], self.value(node.value))
            elif isinstance(node, ast.AugAssign):
                before, by = self.value(node.target), self.value(node.value)
                self.assign(node.target, self.binary(type(node.op), before, by))
            elif isinstance(node, ast.Expr):
                self.value(node.value)
            elif isinstance(node, ast.For):
                for number in self.value(node.iter):
                    self.assign(node.target, number)
                    self.run(node.body)
            elif isinstance(node, ast.If):
                return self.branch(node, statements[position + 1 :])
            else:
                raise CannotLower(f"the statement `{ast.unparse(node)}` has no compiled form")
        return None

    def branch(self, node, rest):
        """Execute an `if` statement and the statements after it.

        If the test is not known during compilation, both paths are emitted, and `select` merges their
        results. This is correct because the statements have no side effects.
        """
        test = self.value(node.test)
        if not isinstance(test, CODE):
            return self.run([*(node.body if test else node.orelse), *rest])
        before = dict(self.names)
        then = self.run([*node.body, *rest])
        # Both paths start with the same values of the variables.
        after, self.names = self.names, dict(before)
        otherwise = self.run([*node.orelse, *rest])
        if then is not None or otherwise is not None:
            return self.select(test, then, otherwise)
        # If only one path assigns a variable, valid code does not read the variable afterwards, so no merge
        # is needed.
        for name in after.keys() & self.names.keys():
            if after[name] is not self.names[name]:
                self.names[name] = self.select(test, after[name], self.names[name])
        return None

    def assign(self, target, value):
        """Assign a value to a variable, or to a tuple of variables."""
        if isinstance(target, ast.Tuple):
            for part, one in zip(target.elts, value, strict=True):
                self.assign(part, one)
        else:
            self.names[target.id] = value

    # --- expressions ----------------------------------------------------------------------------------------

    def value(self, node):
        """Return the value of an expression."""
        return getattr(self, f"eval_{type(node).__name__.lower()}", self.unknown)(node)

    def unknown(self, node):
        """Raise CannotLower for an unsupported expression."""
        raise CannotLower(f"the expression `{ast.unparse(node)}` has no compiled form")

    def eval_constant(self, node):
        return node.value

    def eval_name(self, node):
        if node.id in self.names or node.id in HELPERS:
            return self.names[node.id] if node.id in self.names else HELPERS[node.id]
        raise CannotLower(f"the name `{node.id}` has no compiled form")

    def eval_tuple(self, node):
        return tuple(self.value(part) for part in node.elts)

    def eval_attribute(self, node):
        return getattr(self.value(node.value), node.attr)

    def eval_subscript(self, node):
        """Return an element of a tuple. An index unknown during compilation becomes a chain of selects."""
        values, index = self.value(node.value), self.value(node.slice)
        if not isinstance(index, CODE):
            return values[index]
        # An out-of-range index selects the last element.
        found = values[-1]
        for position in range(len(values) - 2, -1, -1):
            found = self.select(self.compare("==", index, position), values[position], found)
        return found

    def eval_binop(self, node):
        return self.binary(type(node.op), self.value(node.left), self.value(node.right))

    def binary(self, operation, a, b):
        """Return the result of a binary operator or comparison."""
        if operation in COMPARISONS:
            return self.compare_values(operation, a, b)
        whole, floating, plain = OPERATORS[operation]
        if not isinstance(a, CODE) and not isinstance(b, CODE):
            return plain(a, b)
        if isinstance(a, Float) or isinstance(b, Float):
            return self.of_floats(floating, a, b)
        if all(isinstance(x, (Predicate, bool)) for x in (a, b)) and whole in ("and_", "or_", "xor"):
            return Predicate(getattr(self.builder, whole)(self.to_predicate(a), self.to_predicate(b)))
        a, b = self.to_integer(a), self.to_integer(b)
        if whole is None:
            return self.divide("udiv" if operation is ast.FloorDiv else "urem", a, b)
        return getattr(self, whole)(a, b)

    def eval_unaryop(self, node):
        x, operation = self.value(node.operand), type(node.op)
        if not isinstance(x, CODE):
            return {ast.USub: operator.neg, ast.Invert: operator.invert, ast.Not: operator.not_}[operation](x)
        if operation is ast.Not:
            return Predicate(self.builder.not_(self.to_predicate(x)))
        if isinstance(x, Float):
            return self.negate_float(x)
        return self.negate(self.to_integer(x)) if operation is ast.USub else self.invert(self.to_integer(x))

    def eval_compare(self, node):
        parts = [self.value(part) for part in (node.left, *node.comparators)]
        tests = [self.compare_values(type(sign), a, b) for sign, a, b in zip(node.ops, parts, parts[1:])]
        return functools.reduce(self.conjunction, tests)

    def compare_values(self, operation, a, b):
        """Return the result of a comparison."""
        sign, plain = COMPARISONS[operation]
        return self.compare(sign, a, b) if isinstance(a, CODE) or isinstance(b, CODE) else plain(a, b)

    def conjunction(self, a, b):
        """Return `a and b`. Both operands are evaluated, because evaluation has no side effects."""
        if not isinstance(a, CODE) and not isinstance(b, CODE):
            return a and b
        return Predicate(self.builder.and_(self.to_predicate(a), self.to_predicate(b)))

    def eval_boolop(self, node):
        """Return the result of `and` or `or`. All operands are evaluated, because evaluation has no side
        effects."""
        values = [self.value(part) for part in node.values]
        if not any(isinstance(value, CODE) for value in values):
            return all(values) if isinstance(node.op, ast.And) else any(values)
        make = self.builder.and_ if isinstance(node.op, ast.And) else self.builder.or_
        return Predicate(functools.reduce(make, map(self.to_predicate, values)))

    def eval_ifexp(self, node):
        test = self.value(node.test)
        if not isinstance(test, CODE):
            return self.value(node.body if test else node.orelse)
        return self.select(test, self.value(node.body), self.value(node.orelse))

    # --- calls ----------------------------------------------------------------------------------------------

    def eval_call(self, node):
        """Return the result of a function or method call."""
        given = [self.value(part) for part in node.args]
        if isinstance(node.func, ast.Name) and node.func.id not in self.names:
            return self.call_named(node.func.id, given)
        # The callee is a method of a value, such as `x.bit_length()`.
        if isinstance(node.func, ast.Attribute) and isinstance(owner := self.value(node.func.value), CODE):
            if node.func.attr not in functions.BUILTIN:
                raise CannotLower(f"the method {node.func.attr} of a number has no compiled form")
            return functions.BUILTIN[node.func.attr](self, owner, *given)
        # The names in `**options` are not known, so such a call is not supported.
        if any(k.arg is None for k in node.keywords):
            self.unknown(node)
        return self.apply(self.value(node.func), given, {k.arg: self.value(k.value) for k in node.keywords})

    def call_named(self, name, given):
        """Return the result of a call whose callee is a plain name that is not a variable."""
        found = self.special(name, given) if self.special else NotImplemented
        if found is not NotImplemented:
            return found
        if name in functions.TYPES or name in functions.BUILTIN and any(isinstance(x, CODE) for x in given):
            return functions.BUILTIN[name](self, *given)
        if name in PAIRS:
            return self.apply_to_halves(*PAIRS[name], given)
        if name in HELPER_ENTRIES:
            return functions.emit_entry(self, HELPER_ENTRIES[name], given)
        if name in HELPERS:
            return self.apply(HELPERS[name], given, {})
        return self.apply(BUILTINS[name], given, {})

    def apply(self, function, given, more):
        """Return the result of calling a Python function. If all arguments are known, call the function
        itself.

        given: the positional arguments.
        more: the keyword arguments.
        """
        if isinstance(function, functools.partial):
            return self.apply(function.func, [*function.args, *given], {**function.keywords, **more})
        known = functions.BUILTIN.get(name_of(function))
        if known and any(isinstance(value, CODE) for value in given):
            return known(self, *given, **more)
        if not any(isinstance(value, CODE) for value in given):
            return self.coded_half(function(*given, **more))
        if function in PLAIN:
            return self.binary(PLAIN[function], *given)
        if not inspect.isfunction(function):
            raise CannotLower(f"a call of {name_of(function)} has no compiled form")
        return self.inline_call(function, given, more)

    def inline_call(self, function, given, more):
        """Return the result of a call by executing the source of the Python function in a new evaluator."""
        bound = inspect.signature(function).bind(*given, **more)
        bound.apply_defaults()
        cells = zip(function.__code__.co_freevars, (c.cell_contents for c in function.__closure__ or ()))
        # Python looks a name up in the locals, the closure, the globals, and the builtins, in this order.
        names = {**BUILTINS, **function.__globals__, **dict(cells), **bound.arguments}
        inner = Evaluator(self.context, self.builder, names)
        return inner.run(body_of(function))

    def apply_to_halves(self, text, count, ptx_type, result, given):
        """Apply an operation to both 16-bit halves of packed registers, and return the packed results.

        text: a Python expression that computes one half from a, b and c.
        count: the number of operands.
        ptx_type, result: the types of one half of the operands and of the result.
        given: the registers.
        """
        parts = []
        for shift in map(self.to_integer, (0, 16)):
            halves = [self.of_bits(self.shr(self.to_integer(word), shift), ptx_type) for word in given]
            inner = Evaluator(self.context, self.builder, dict(zip("abc"[:count], halves)))
            value = inner.value(parse_expression(text))
            parts.append(self.bits(self.to_float(value, ptx_type)) if result in REALS else value)
        return self.or_(self.shl(parts[1], self.to_integer(16)), parts[0])


def name_of(function):
    """Return the name of a function, or the text of any other object."""
    return getattr(function, "__name__", str(function))


@functools.cache
def parse_expression(text):
    """Return the syntax tree of a Python expression."""
    return ast.parse(text, mode="eval").body


@functools.cache
def body_of(function):
    """Return the statements of a function, as syntax trees.

    A lambda becomes a `return` statement. It must be the only lambda in its source lines.
    """
    try:
        text = textwrap.dedent(inspect.getsource(function))
    except OSError:
        text = ""
    if function.__name__ != "<lambda>" and text:
        return ast.parse(text).body[0].body
    if text.count("lambda") != 1:
        raise CannotLower(f"{name_of(function)} has no source code to compile")
    return [ast.Return(only_lambda(text[text.index("lambda") :]).body)]


def only_lambda(text):
    """Return the syntax tree of the lambda with which a text begins.

    `inspect` returns whole lines, so other code may follow the lambda. Drop characters from the end of the
    text until the rest is valid Python.
    """
    try:
        return next(node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Lambda))
    except SyntaxError:
        return only_lambda(text[:-1])
