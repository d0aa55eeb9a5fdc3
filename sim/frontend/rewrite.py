"""A kernel's syntax tree, rewritten for the interpreter.

Each access, loop and branch receives a site number. Operators whose rules differ between Numba and Python
become calls: `x * y` becomes `mul(x, y)`, unless the types show that the results are the same. The body of a
`while` loop starts with `tick(19)`. The literal 0.5 becomes a numpy float64. Line numbers still refer to the
source file.
"""

import ast
import functools
import itertools

import numpy as np

from sim.engine.grid import ITERATIONS
from sim.frontend.accesses import PREFIX, Accesses
from sim.frontend.names import is_number
from sim.frontend.resolve import BUILTIN, DECLARATION, PYTHON_TYPES, builtin_called, referent_of
from sim.frontend.tree import BINARY, COMPARISONS, UNARY, SplitByType, integer_of, located, torn_variables
from sim.frontend.types import UINT64, Number, bits, is_float, join
from sim.isa.conversions import HIGHEST, LOWEST, cast, domain, fits_64_bits
from sim.isa.functions import Function
from sim.isa.promotion import SCALAR, SIGNED
from sim.isa.table import INSTRUCTIONS

BY_WIDTH = ("clz", "popc", "abs")  # Functions whose results depend on the width of an integer operand.
NARROW = SIGNED - {int}
# In Numba, these integers combined with float32 yield float32; wider integers yield float64.
SHORT = (np.int8, np.int16)
UNSET = object()  # value of a variable before its first assignment


def held_as(type_):
    """Return the scalar type that the interpreter uses for a Number: an int32, for example, is a Python int.
    Return None for any other type."""
    return None if not isinstance(type_, Number) else int if type_.scalar is np.int32 else type_.scalar


def class_of(type_):
    """Return the Python class of all values of this type in the interpreter, or None if there may be several
    classes."""
    if is_float(type_) or type_ == UINT64:
        return type_.scalar
    return int if bits(type_) is not None and type_.scalar is int else None


class Rewriter(Accesses):
    """The rewriter for one Source.

    calls: the rewriter adds {name in the rewritten text: (expression for a device function, types of its
        parameters)}.
    makers: the rewriter adds {name in the rewritten text: (site, shape, dtype)} for declarations of local
        memory.
    """

    def split_variables(self, statements):
        """Rename variables, so that each name has only one type."""
        number, versions = itertools.count(1), self.types.versions

        def held(version):
            return held_as(self.types.found.get(version))

        def fresh(name):
            return f"{PREFIX}{name}_{next(number)}"

        SplitByType(statements, versions, held, torn_variables(versions, held), fresh, self.convert)

    # --- numbers --------------------------------------------------------------------------------------------

    def visit_Constant(self, node):
        if type(node.value) is int:
            return self.integer(node.value, node)
        if type(node.value) not in (float, complex):
            return node
        # As a Python float, 0.5 would have the width of the other operand. In Numba, it is a float64.
        wide = np.float64 if type(node.value) is float else np.complex128
        return self.constant(wide(node.value), node)

    def integer(self, value, node):
        """Return the expression for `node`, whose value is the constant integer `value`.

        Numba rejects an integer that fits neither an int64 nor a uint64, so its evaluation raises an error.
        """
        if LOWEST <= value <= HIGHEST:
            return node
        if fits_64_bits(value):
            return self.constant(np.uint64(value), node)
        self.constants[PREFIX + "domain"] = domain
        return self.call("domain", [self.constant(value, node)], node)

    def visit_Name(self, node):
        """Rewrite `laneid` imported from numba.cuda into `cuda.laneid`, because its value differs between
        threads.

        A name that may be unassigned becomes a test against UNSET.
        """
        if not isinstance(node.ctx, ast.Load):
            return node
        if type(referent_of(node).value) is int and not fits_64_bits(referent_of(node).value):
            return self.integer(referent_of(node).value, node)
        if referent_of(node).name == "laneid":
            return ast.copy_location(ast.Attribute(self.name("cuda", node), "laneid", ast.Load()), node)
        if id(node) not in self.unassigned:
            return node
        type_ = self.types.of(node)
        # Numba gives an unassigned variable the value 0 of its type.
        zero = self.constant(type_.scalar(0) if isinstance(type_, Number) else 0, node)
        name = ast.Constant(node.version.name if node.version else node.id)
        otherwise = self.call("unassigned", [name, zero, self.site("load", node)], node)
        is_set = ast.Compare(node, [ast.IsNot()], [self.name("unset", node)])
        return ast.copy_location(ast.IfExp(is_set, node, otherwise), node)

    def visit_BinOp(self, node):
        left, right = self.types.of(node.left), self.types.of(node.right)
        plain = self.types.plain(node.op, node.left, node.right) or type(node.op) not in BINARY
        self.generic_visit(node)
        if plain:
            return node
        operands = [self.with_width(node.left, left, SHORT), self.with_width(node.right, right, SHORT)]
        return self.operation(BINARY[type(node.op)], operands, [left, right], node)

    def visit_Compare(self, node):
        """Rewrite a comparison for which Numba, unlike Python, converts both sides to float64, such as int64
        with uint64."""
        parts = [node.left, *node.comparators]
        if any(type(sign) not in COMPARISONS for sign in node.ops) or all(
            self.types.alike(a, b) for a, b in itertools.pairwise(parts)
        ):
            self.generic_visit(node)
            node.left, *node.comparators = [
                self.recorded(part, i, node) for i, part in enumerate((node.left, *node.comparators))
            ]
            return node
        types_, lefts, rights = (
            [*map(self.types.of, parts)],
            [self.recorded(self.visit(node.left), 0, node)],
            [],
        )
        # In `a < b < c`, a temporary contains b, so that b is evaluated once.
        for i, part in enumerate(parts[1:-1], 1):
            held = ast.copy_location(ast.Name(self.temporary(part), ast.Store()), part)
            given = self.recorded(self.visit(part), i, node)
            rights.append(ast.copy_location(ast.NamedExpr(held, given), part))
            lefts.append(ast.copy_location(ast.Name(held.id, ast.Load()), part))
        rights.append(self.recorded(self.visit(parts[-1]), len(parts) - 1, node))
        pairs = [
            self.operation(COMPARISONS[type(sign)], operands, pair, node)
            for sign, *operands, pair in zip(node.ops, lefts, rights, itertools.pairwise(types_))
        ]
        return pairs[0] if len(pairs) == 1 else ast.copy_location(ast.BoolOp(ast.And(), pairs), node)

    def recorded(self, operand, position, node):
        """Return an operand of a comparison, which is recorded if the run records comparisons.

        position: its position in the comparison, from 0.
        """
        if not self.enabled.comparisons or not all(type(sign) in COMPARISONS for sign in node.ops):
            return operand
        number = self.site("branch", node)
        call = self.call("operand", [number, ast.Constant(position), operand], node)
        enough = ast.Compare(number, [ast.In()], [self.name("compared_enough", node)])
        return ast.copy_location(ast.IfExp(enough, operand, call), node)

    def visit_UnaryOp(self, node):
        if (value := integer_of(node)) is not None:
            return self.integer(value, node)
        type_ = self.types.of(node.operand)
        wide = bits(type_) is not None and (
            # The result of a negation or inversion fits into the type, unless the operand is the lowest value
            # of a narrow integer.
            type_.scalar is int or type_.bits < 8 * type_.scalar(0).itemsize - 1
        )
        plain = wide or is_float(type_) and not isinstance(node.op, ast.Invert)
        self.generic_visit(node)
        if plain or isinstance(node.op, ast.Not):
            return node
        return self.operation(UNARY[type(node.op)], [self.with_width(node.operand, type_)], [type_], node)

    def form(self, entry, types_, node):
        """Return a constant node with the version of an entry of the instruction table for operands of these
        types.

        Return None if the types are not certain.
        """
        classes = tuple(map(class_of, types_))
        if None in classes or len(classes) != entry.count or entry.version(*classes) is None:
            return None
        return self.constant(entry.forms[classes], node)

    def operation(self, name, operands, types_, node):
        """Return a call that applies an operator by Numba's rules, where they differ from Python's."""
        form = self.form(INSTRUCTIONS[f"operator.{name}"], types_, node)
        return ast.copy_location(ast.Call(form or self.name(name, node), operands, []), node)

    def with_width(self, node, type_, narrow=NARROW):
        """Convert `node` back to its narrow integer type, if Numba's result depends on that width.

        The interpreter represents such values as Python ints, which have no width.
        """
        if not isinstance(type_, Number) or type_.scalar not in narrow or type_.bits is None:
            return node
        self.constants[PREFIX + type_.scalar.__name__] = type_.scalar
        return self.call(type_.scalar.__name__, [node], node)

    def convert(self, node, scalar):
        """Return `node` converted to a scalar type, or `node` itself if the type is None (not known)."""
        if scalar is None:
            return node
        name, convert = f"to_{scalar.__name__}", cast(scalar)
        # The conversion must keep UNSET, so that a later read is reported.
        self.constants[PREFIX + name] = lambda value: value if value is UNSET else convert(value)
        return self.call(name, [node], node)

    def unify(self, parts, type_):
        """Convert several expressions to their common type. The program selects one of them at run time."""
        made, wanted = [], held_as(type_)
        for part, held in [(part, held_as(self.types.of(part))) for part in parts]:
            same = None in (wanted, held) or held is wanted
            made.append(self.visit(part) if same else self.convert(self.visit(part), wanted))
        return made

    def visit_BoolOp(self, node):
        node.values = self.unify(node.values, self.types.of(node))
        return node

    @functools.cached_property
    def result(self):
        """The type of the function's result. It is inferred before the first `return` is rewritten, because
        the types of rewritten expressions are not known."""
        return self.types.result()

    def visit_Return(self, node):
        if node.value is not None:
            (node.value,) = self.unify([node.value], join(self.result, self.types.of(node.value)))
        return node

    def is_instance(self, node):
        """Return the result of `isinstance(x, float)` as Numba decides it, from the type of x alone. In
        Numba, an int32 is not an `int` (int64)."""
        named = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        referents, type_ = [referent_of(part) for part in named], self.types.of(node.args[0])
        python = {one.__name__: one for one in PYTHON_TYPES}
        wanted = [python.get(found.name) if found.dtype is None else found.dtype.type for found in referents]
        scalars = {SCALAR.get(one) for one in wanted} - {None}
        tuples = any(found.name == "tuple" for found in referents)
        if isinstance(type_, Number):
            return ast.copy_location(ast.Constant(type_.scalar in scalars), node)

        def decided(value):
            return tuples if isinstance(value, tuple) else SCALAR.get(type(value)) in scalars

        made = ast.Call(self.constant(decided, node), [self.visit(node.args[0])], [])
        return ast.copy_location(made, node)

    def is_item_of_number(self, node):
        """Return whether a call is `number.item()`. Numba returns the number itself."""
        func = node.func
        called = isinstance(func, ast.Attribute) and func.attr == "item" and not node.args
        return called and isinstance(self.types.of(func.value), Number)

    def visit_Call(self, node):
        """Rewrite a call.

        The results of `abs`, `cuda.clz` and similar functions depend on the operand's width, which a Python
        int lacks. So `clz(a[i])` becomes `clz(int32(a[i]))`.
        """
        called = referent_of(node.func)
        if getattr(node, "calls", None) == DECLARATION:
            return self.declaration(node)
        if builtin_called(node) == "isinstance" and len(node.args) == 2:
            return self.is_instance(node)
        if self.is_item_of_number(node):
            return self.visit(node.func.value)
        types_, given = [self.types.of(argument) for argument in node.args], self.types.argument_types(node)
        dtype = called.dtype if len(node.args) == 1 else None
        by_width = (called.entry.name if called.entry else called.name).rpartition(".")[2] in BY_WIDTH
        self.generic_visit(node)
        if dtype is not None and is_number(dtype) and not node.keywords:
            node.func = self.name(f"cast_{dtype}", node)
            self.constants[node.func.id] = cast(dtype)
        elif given:
            name = self.name(f"f{len(self.calls)}", node)
            self.calls[name.id], node.func = (ast.unparse(node.func), tuple(given.items())), name
        node.func.referent = called
        if given:  # The callee is specialised for these types, so its arguments need no explicit type.
            return node
        entry = (
            INSTRUCTIONS.get(f"builtins.{called.name}.{len(types_)}")
            if called.role == BUILTIN
            else called.entry
        )
        if isinstance(entry, Function) and not node.keywords and (form := self.form(entry, types_, node)):
            node.func = form
            return node
        narrow = NARROW if by_width else SHORT
        node.args = [self.with_width(argument, type_, narrow) for argument, type_ in zip(node.args, types_)]
        return node

    def declaration(self, node):
        """Return a call of a prepared function that creates the array, if the shape and dtype of the local
        memory are constants."""
        dtype = referent_of(node.declares.dtype).dtype
        shape = self.types.versions.shape(node.declares.shape)
        if node.declares.space == "shared" and shape == (0,):
            self.dynamic.add((dtype, node.declares.variable))
        if node.declares.space != "local" or dtype is None or dtype.hasobject or shape is None:
            return self.generic_visit(node)
        name = self.name(f"local{len(self.makers)}", node)
        self.makers[name.id] = self.site("call", node).value, shape, dtype
        return ast.copy_location(ast.Call(name, [], []), node)

    # --- branches -------------------------------------------------------------------------------------------

    def visit_If(self, node):
        return self.count_branch(self.generic_visit(node))

    def visit_IfExp(self, node):
        node.body, node.orelse = self.unify([node.body, node.orelse], self.types.of(node))
        node.test = self.visit(node.test)
        return self.count_branch(node)

    def count_branch(self, node):
        """Wrap the test of a branch so that it reports each decision to the observers of branches."""
        if self.enabled.branches:
            node.test = self.call("branch", [node.test, self.site("branch", node.test)], node.test)
        return node

    # --- loops ----------------------------------------------------------------------------------------------

    def visit_For(self, node):
        """Rewrite a `for` loop. Python's `range` yields ints, so convert the target if Numba's range is
        unsigned."""
        type_ = self.types.of_iteration(node.iter)
        unsigned = type_ == Number(np.uint64) and builtin_called(node.iter) == "range"
        self.generic_visit(node)
        if unsigned and isinstance(node.target, ast.Name):
            value = self.convert(ast.Name(node.target.id, ast.Load()), np.uint64)
            node.body[:0] = located([ast.Assign([node.target], value)], node)
        return self.with_iteration_count(node)

    def visit_While(self, node):
        site = self.site("loop", node)
        if id(node) in self.deciding:
            self.deciding_at[site.value] = self.deciding[id(node)]
        if id(node) in self.searches:
            self.searches_at[site.value] = self.searches[id(node)]
        tick = ast.copy_location(ast.Expr(self.call("tick", [site], node)), node)
        # The test of a `while` loop counts as a branch.
        self.visit_If(node)
        node.body.insert(0, tick)
        return self.with_iteration_count(node)

    def with_iteration_count(self, node):
        """Count the iterations of a loop, if barriers require it.

        The variable ITERATIONS is a tuple with one count for each such loop that is active, outermost first.
        """
        if id(node) not in self.counting:
            return node
        enter, more, leave = (
            ast.parse(f"{ITERATIONS} = {text}").body
            for text in (
                f"(*{ITERATIONS}, 0)",
                f"(*{ITERATIONS}[:-1], {ITERATIONS}[-1] + 1)",
                f"{ITERATIONS}[:-1]",
            )
        )
        node.body[:0] = located(more, node)
        return [*located(enter, node), node, *located(leave, node)]
