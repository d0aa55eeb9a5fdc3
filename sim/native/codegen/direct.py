"""Direct translation of generated code to LLVM, without Numba. It requires that all types are known in
advance, as they are for kernels in PTX.

Numba takes about 60 ms per region, and a kernel with shuffles has dozens of regions. The translator supports
assignments, `if`, `while`, `for` over `range(n)` or `range(m, n)`, `return`, integer arithmetic and
comparisons, elements of arrays over threads, and calls of intrinsics. No function in PTX raises a Python
exception, so callers do not test the status of a call. Numba still compiles the grid function, because Python
calls it.
"""

import ast
import functools
import inspect
import linecache
from collections import Counter

from llvmlite.ir.instructions import Ret
from numba import boolean, float32, float64, int64, types
from numba.core import cgutils
from numba.core.callconv import RETCODE_OK

from sim.frontend.tree import all_nodes
from sim.native.codegen.arrays import Array, GuardedType
from sim.native.codegen.builder import Builder, constant_of, slot
from sim.native.codegen.int64_translation import COMPARISONS, I1, I64, OPERATORS, emit_boolop
from sim.native.codegen.linking import intrinsic_of
from sim.private_files import digest

TYPES = {"bool": boolean, "float32": float32, "float64": float64}


def direct(numba_types):
    """Return a decorator that turns a generated function into an intrinsic. Only compiled code can call it.

    numba_types: {variable: name of its type} for floats and predicates. Any other variable is int64, or has
        the type of the first value assigned to it.
    """

    def decorate(function):
        translated = Function(function, {name: TYPES[of] for name, of in numba_types.items()})
        return intrinsic_of(function.__name__, translated.parameters, translated.typed)

    return decorate


@functools.cache
def functions_of(path):
    """Return {name: syntax tree} for the functions in a file."""
    tree = ast.parse("".join(linecache.getlines(path)))
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


class Function:
    """A function of generated code. It is translated only if its machine code is not in the disk cache."""

    def __init__(self, function, numba_types):
        self.function, self.numba_types = function, numba_types
        self.parameters = [*inspect.signature(function).parameters]

    @property
    def tree(self):
        """The syntax tree, parsed on first use."""
        return functions_of(self.function.__code__.co_filename)[self.function.__name__]

    def typed(self, typing, *given):
        """Return (signature, code generator) for arguments of these Numba types. Numba expects this pair from
        the typing function of an intrinsic."""
        # A generated function returns an exit code (int64) or nothing.
        nodes = all_nodes(self.tree)
        returns = any(isinstance(node, ast.Return) and node.value is not None for node in nodes)

        def emit(context, builder, signature, codes):
            Body(self, typing, context, builder, signature).emit(codes)

        def code(context, builder, signature, codes):
            symbol = symbol_of(f"{self.function.__module__}.{self.function.__name__}", given)
            return call_emitted(context, builder, symbol, signature, codes, emit, raises=False)

        return (int64 if returns else types.none)(*given), code


def symbol_of(name, given):
    """Return the name in LLVM code of a function for arguments of these Numba types.

    The linker keeps one definition of a name. Machine code from the disk cache may come from several
    processes, so a counter of the process would not make the name unique.
    """
    return f"{name}.{digest(repr(given).encode())[:16]}"


def call_emitted(context, builder, symbol, signature, codes, emit, *attributes, raises=True):
    """Emit a call to the LLVM function `symbol`. Define the function in the current LLVM module if it is
    missing there.

    emit: a function (context, builder, signature, arguments) that emits the function's body.
    attributes: the function's LLVM attributes.
    raises: whether the function can raise a Python exception. If not, its status is not tested.
    """
    convention, argument_types = context.call_conv, signature.args
    llvm_type = convention.get_function_type(signature.return_type, argument_types)
    function = cgutils.get_or_insert_function(builder.module, llvm_type, symbol)
    if not function.blocks:
        # Other modules may contain the same function; the linker keeps one definition.
        function.linkage = "linkonce_odr"
        function.attributes.update(attributes)
        convention.decorate_function(function, [f"x{i}" for i in range(len(argument_types))], argument_types)
        inner = Builder(function.append_basic_block("entry"))
        emit(context, inner, signature, convention.decode_arguments(inner, argument_types, function))
        function.raises = any(constant_of(status) != RETCODE_OK.constant for status in statuses_of(function))
    status, result = convention.call_function(builder, function, signature.return_type, argument_types, codes)
    # A function with Numba's calling convention returns a status. An error status must be passed on to the
    # caller.
    if raises and function.raises:
        with cgutils.if_unlikely(builder, status.is_error):
            convention.return_status_propagate(builder, status)
    return result


def statuses_of(function):
    """Return the statuses with which an LLVM function returns."""
    returns = [block.terminator for block in function.blocks if isinstance(block.terminator, Ret)]
    return [terminator.return_value for terminator in returns]


class Body:
    """Translator of one function's body. Each value is a pair (Numba type, LLVM value)."""

    def __init__(self, function, typing, context, builder, signature):
        self.function, self.typing, self.context, self.builder = function, typing, context, builder
        # `cells` has the variables with a stack slot, and `values` has the other variables.
        self.signature, self.cells, self.values, self.loops = signature, {}, {}, []
        self.depth = 0  # the number of enclosing `if` statements and loops
        self.assigned = Counter(
            node.id
            for node in all_nodes(function.tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )

    def emit(self, codes):
        """Emit the body. `codes` are the LLVM values of the arguments."""
        for name, *value in zip(self.function.parameters, self.signature.args, codes):
            self.assigned[name] += 1
            self.assign_name(name, value)
        self.run(self.function.tree.body)
        if not self.builder.block.is_terminated:
            self.give_back((int64, I64(0)))

    def run(self, statements):
        """Emit statements up to and including the first one that ends the basic block. The statements after
        it are unreachable, and LLVM allows no instruction after a terminator."""
        for node in statements:
            if self.builder.block.is_terminated:
                return
            getattr(self, f"do_{type(node).__name__.lower()}")(node)

    # --- variables ------------------------------------------------------------------------------------------

    def cell(self, name, numba_type=int64):
        """Return (type, stack slot) of a variable. The slot is allocated on first use."""
        if name not in self.cells:
            numba_type = self.function.numba_types.get(name, numba_type)
            # The slot begins as 0, which is the value of a variable that the executed path has not assigned.
            code = cgutils.alloca_once(self.builder, self.context.get_value_type(numba_type))
            self.cells[name] = numba_type, code
        return self.cells[name]

    def assign_name(self, name, value):
        """Assign a value to a variable.

        A variable needs no stack slot if its only assignment precedes and dominates all reads. This always
        holds for arrays, because an array variable is a parameter or a spill array.
        """
        once = self.assigned[name] == 1 and self.depth == 0 and name not in self.cells
        if once or isinstance(value[0], GuardedType):
            numba_type = self.function.numba_types.get(name, value[0])
            self.values[name] = numba_type, self.cast(value, numba_type)
            return
        numba_type, cell = self.cell(name, value[0])
        self.builder.store(self.cast(value, numba_type), cell)

    def cast(self, value, numba_type):
        source, code = value
        return code if source == numba_type else self.context.cast(self.builder, code, source, numba_type)

    # --- statements -----------------------------------------------------------------------------------------

    def do_assign(self, node):
        (target,), value = node.targets, self.value(node.value)
        if isinstance(target, ast.Name):
            self.assign_name(target.id, value)
        elif isinstance(target, ast.Subscript):
            (numba_type, array), (_, index) = self.value(target.value), self.value(target.slice)
            stored = self.cast(value, numba_type.dtype)
            Array(self.context, self.builder, numba_type, array).store(index, stored)
        else:
            codes = value[1]
            if not isinstance(codes, tuple):
                codes = [self.builder.extract_value(codes, position) for position in range(len(value[0]))]
            for name, *part in zip(target.elts, value[0].types, codes, strict=True):
                self.assign_name(name.id, part)

    def do_expr(self, node):
        self.value(node.value)

    def do_pass(self, node):
        pass

    def do_return(self, node):
        self.give_back(self.value(node.value) if node.value else None)

    def give_back(self, value):
        """Emit a return."""
        returns = self.signature.return_type == int64
        if returns:
            self.context.call_conv.return_value(self.builder, self.cast(value, int64))
        else:
            self.context.call_conv.return_nothing(self.builder)

    def do_if(self, node):
        then, end = map(self.builder.append_basic_block, ("then", "end"))
        otherwise = self.builder.append_basic_block("else") if node.orelse else end
        self.branch(node.test, then, otherwise)
        self.depth += 1
        for block, body in ((then, node.body), (otherwise, node.orelse)):
            if block is not end:
                self.builder.position_at_end(block)
                self.run_branch(body)
                self.go_to(end)
        self.depth -= 1
        self.builder.position_at_end(end)

    def run_branch(self, statements):
        """Emit the statements of one branch of an `if` statement."""
        self.run(statements)

    def branch(self, node, then, otherwise):
        """Emit a conditional branch. Branch directly on the operands of `and`, `or` and `not`."""
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.branch(node.operand, otherwise, then)
        elif isinstance(node, ast.BoolOp):
            for part in node.values[:-1]:
                more = self.builder.append_basic_block("more")
                self.branch(part, *((more, otherwise) if isinstance(node.op, ast.And) else (then, more)))
                self.builder.position_at_end(more)
            self.branch(node.values[-1], then, otherwise)
        else:
            self.builder.cbranch(self.test(node), then, otherwise)

    def go_to(self, block):
        if not self.builder.block.is_terminated:
            self.builder.branch(block)

    def do_while(self, node):
        self.loop(lambda *targets: self.branch(node.test, *targets), node.body)

    def do_for(self, node):
        """Emit a `for` loop. The next value of the loop variable is stored separately, in `following`,
        because the body may assign the loop variable."""
        start, stop = [I64(0), *(self.value(bound)[1] for bound in node.iter.args)][-2:]
        _, counter = self.cell(node.target.id)
        following = slot(self.builder, I64)
        self.builder.store(start, following)

        def emit_branch(body, end):
            position = self.builder.load(following)
            self.builder.store(position, counter)
            self.builder.store(self.builder.add(position, I64(1)), following)
            self.builder.cbranch(self.builder.icmp_signed("<", position, stop), body, end)

        self.loop(emit_branch, node.body)

    def loop(self, emit_branch, statements):
        """Emit a loop.

        emit_branch: a function (body, end) that emits the loop condition, and a branch to one of these
            blocks.
        """
        head, body, end = map(self.builder.append_basic_block, ("head", "body", "end"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        emit_branch(body, end)
        self.builder.position_at_end(body)
        # `continue` branches to the first block, `break` to the second.
        self.loops.append((head, end))
        self.depth += 1
        self.run(statements)
        self.depth -= 1
        self.loops.pop()
        self.go_to(head)
        self.builder.position_at_end(end)

    def do_continue(self, node):
        self.builder.branch(self.loops[-1][0])

    def do_break(self, node):
        self.builder.branch(self.loops[-1][1])

    # --- expressions ----------------------------------------------------------------------------------------

    def value(self, node):
        """Return (Numba type, LLVM value) for an expression."""
        return getattr(self, f"of_{type(node).__name__.lower()}")(node)

    def integer(self, node):
        """Return an expression's value, converted to i64."""
        return self.cast(self.value(node), int64)

    def test(self, node):
        """Return an expression's truth value, as an i1."""
        numba_type, code = self.value(node)
        return code if code.type == I1 else self.builder.icmp_signed("!=", code, code.type(0))

    def of_constant(self, node):
        return (boolean, I1(node.value)) if isinstance(node.value, bool) else (int64, I64(node.value))

    def of_name(self, node):
        if node.id in self.values:
            return self.values[node.id]
        # A name other than a local variable denotes an integer constant, such as an exit code.
        names = self.function.function.__globals__
        if node.id in names and node.id not in self.cells:
            return int64, I64(names[node.id])
        numba_type, cell = self.cell(node.id)
        return numba_type, self.builder.load(cell)

    def of_attribute(self, node):
        numba_type, code = self.value(node.value)
        position = numba_type.fields.index(node.attr)
        return numba_type.types[position], self.builder.extract_value(code, position)

    def of_subscript(self, node):
        (numba_type, array), (_, index) = self.value(node.value), self.value(node.slice)
        return numba_type.dtype, Array(self.context, self.builder, numba_type, array).load(index)

    def of_binop(self, node):
        left, right = self.integer(node.left), self.integer(node.right)
        if isinstance(node.op, ast.FloorDiv):  # the divisor in generated code is always a power of two
            return int64, self.builder.ashr(left, I64(right.constant.bit_length() - 1))
        return int64, getattr(self.builder, OPERATORS[type(node.op)])(left, right)

    def of_unaryop(self, node):
        if isinstance(node.op, ast.Not):
            return boolean, self.builder.not_(self.test(node.operand))
        return int64, self.builder.neg(self.integer(node.operand))

    def of_compare(self, node):
        codes = [*map(self.integer, (node.left, *node.comparators))]
        signs = [COMPARISONS[type(sign)] for sign in node.ops]
        tests = [self.builder.icmp_signed(*test) for test in zip(signs, codes, codes[1:])]
        return boolean, functools.reduce(self.builder.and_, tests)

    def of_boolop(self, node):
        return boolean, emit_boolop(self.builder, node, self.test)

    def of_ifexp(self, node):
        then, otherwise = self.integer(node.body), self.integer(node.orelse)
        return int64, self.builder.select(self.test(node.test), then, otherwise)

    def of_call(self, node):
        given = [*map(self.value, node.args)]
        if node.func.id == "min":
            (_, a), (_, b) = given
            return int64, self.builder.select(self.builder.icmp_signed("<", a, b), a, b)
        called = self.function.function.__globals__[node.func.id]
        signature, code = called._defn(self.typing, *(numba_type for numba_type, _ in given))
        codes = [*map(self.cast, given, signature.args)]
        # Only the operations of a warp or block take arrays as operands.
        if any(isinstance(of, GuardedType) for of in signature.args):
            result = self.call_shared(node.func.id, signature, codes, code)
        else:
            result = code(self.context, self.builder, signature, codes)
        return signature.return_type, result

    def call_shared(self, name, signature, codes, code):
        """Emit a call to a warp or block operation. Its body is large, so it is emitted once per module, as a
        function shared by all calls."""

        def emit(context, builder, signature, codes):
            result = code(context, builder, signature, codes)
            context.call_conv.return_value(builder, result)

        symbol = f"{self.function.function.__module__}.{name}.{signature}"
        return call_emitted(
            self.context, self.builder, symbol, signature, codes, emit, "noinline", raises=False
        )
