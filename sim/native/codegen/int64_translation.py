"""Translator from a small subset of Python to LLVM, for int64 runtime helpers (sim.native.codegen.int64).

The subset consists of:

    statements    assignments, `if`, `return`, `for` over `range(n)` or `range(m, n)`
    expressions   arithmetic, comparisons, `min`, `max`, calls of other helpers
    address[i]    the int64 at index i of the array at an address
    address.name  a field of the launch state (sim.native.codegen.launch_state) at an address

As in C, integers wrap around, and division by zero is undefined.
"""

import ast
from collections import Counter
from functools import reduce

from llvmlite import ir

from sim.frontend.tree import all_nodes
from sim.native.codegen.launch_state import FIELDS

I64, I32, I1, I8 = map(ir.IntType, (64, 32, 1, 8))
EXTREMES = {"min": "<", "max": ">"}
OPERATORS = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.LShift: "shl",
    ast.RShift: "ashr",
}
COMPARISONS = {ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">="}


def pointer(builder, address, position, llvm_type):
    """Return a pointer to the element at index `position` of the array of `llvm_type` at an address."""
    return builder.gep(builder.inttoptr(address, llvm_type.as_pointer()), [position])


def emit_boolop(builder, node, test):
    """Emit `and` or `or` with short-circuit evaluation, and return the result as an i1.

    test: a function that emits an operand and returns it as an i1.
    """
    with builder.goto_entry_block():
        holds = builder.alloca(I1)
    end = builder.append_basic_block("decided")
    for part in node.values:
        truth, more = test(part), builder.append_basic_block("more")
        builder.store(truth, holds)
        builder.cbranch(truth, *((more, end) if isinstance(node.op, ast.And) else (end, more)))
        builder.position_at_end(more)
    builder.branch(end)
    builder.position_at_end(end)
    return builder.load(holds)


class Body(ast.NodeVisitor):
    """Translator of one helper's body.

    A variable has a stack slot, which LLVM promotes to a register, unless its only assignment precedes and
    dominates all reads. `cells` has the variables with a slot, and `values` those without. `depth` is the
    number of enclosing `if` statements and loops.
    """

    def __init__(self, module, function):
        self.function, self.callees = function, []
        code = function.declare(module)
        code.attributes.add("alwaysinline" if function.inline else "noinline")
        self.builder = ir.IRBuilder(code.append_basic_block("entry"))
        self.cells, self.values, self.depth = {}, {}, -1
        self.assigned = Counter(
            part.id
            for part in all_nodes(function.tree)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)
        )
        for name, value in zip(function.parameters, code.args):
            if self.assigned[name]:
                self.builder.store(value, self.cell(name))
            else:
                self.values[name] = value

    def cell(self, name):
        """Return the stack slot of a variable. It is allocated on first use."""
        # A slot allocated inside a loop would grow the stack in each iteration, so allocate it in the entry
        # block.
        if name not in self.cells:
            with self.builder.goto_entry_block():
                self.cells[name] = self.builder.alloca(I64, name=name)
        return self.cells[name]

    def translate(self):
        """Translate the helper, and return the helpers called by it."""
        self.run(self.function.tree.body)
        if not self.builder.block.is_terminated:
            self.emit_return(I64(0))
        return self.callees

    def run(self, statements):
        self.depth += 1
        for statement in statements:
            self.visit(statement)
        self.depth -= 1

    def generic_visit(self, node):
        """Raise TypeError for syntax outside the subset."""
        raise TypeError(f"{self.function.name}: int64 helpers do not support {ast.unparse(node)}")

    def int64_value(self, node):
        """Return an expression's value as an i64."""
        value = self.visit(node)
        return self.builder.zext(value, I64) if value.type == I1 else value

    def test(self, node):
        """Return an expression's truth value as an i1."""
        value = self.visit(node)
        return value if value.type == I1 else self.builder.icmp_signed("!=", value, I64(0))

    # --- statements -----------------------------------------------------------------------------------------

    def visit_Assign(self, node):
        pairs = [(node.targets[0], node.value)]
        if isinstance(node.value, ast.Tuple):
            pairs = zip(node.targets[0].elts, node.value.elts, strict=True)
        # Evaluate all values before the first store, because `a, b = b, a` reads the variables that it
        # assigns.
        for target, value in [(target, self.int64_value(value)) for target, value in pairs]:
            name = target.id if isinstance(target, ast.Name) else None
            if self.depth == 0 and self.assigned[name] == 1 and name not in self.cells:
                self.values[name] = value
            else:
                self.builder.store(value, self.pointer_to(target))

    def visit_AugAssign(self, node):
        self.visit_Assign(ast.Assign([node.target], ast.BinOp(node.target, node.op, node.value)))

    def visit_Expr(self, node):
        if not isinstance(node.value, ast.Constant):  # the docstring
            self.visit(node.value)

    def visit_Pass(self, node):
        pass

    def visit_Return(self, node):
        parts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value or ast.Constant(0)]
        self.emit_return(*map(self.int64_value, parts))

    def emit_return(self, *parts):
        result = self.builder.function.function_type.return_type
        if result == I64:
            self.builder.ret(parts[0])
            return
        # LLVM builds a structure by inserting its members into an undefined value, one at a time.
        structure = ir.Constant(result, ir.Undefined)
        for position, part in enumerate(parts):
            structure = self.builder.insert_value(structure, part, position)
        self.builder.ret(structure)

    def visit_If(self, node):
        name = node.test.id if isinstance(node.test, ast.Name) else None
        if name in self.function.known:  # omit the branch that is never taken
            self.run(node.body if self.function.known[name] else node.orelse)
            return
        with self.builder.if_else(self.test(node.test)) as (then, otherwise):
            with then:
                self.run(node.body)
            with otherwise:
                self.run(node.orelse)

    def visit_For(self, node):
        # `range(n)` starts at 0.
        start, stop = [I64(0), *map(self.int64_value, node.iter.args)][-2:]
        cell, builder = self.cell(node.target.id), self.builder
        head, body, end = map(builder.append_basic_block, ("head", "body", "end"))
        builder.store(start, cell)
        builder.branch(head)
        builder.position_at_end(head)
        builder.cbranch(builder.icmp_signed("<", builder.load(cell), stop), body, end)
        builder.position_at_end(body)
        self.run(node.body)
        builder.store(builder.add(builder.load(cell), I64(1)), cell)
        builder.branch(head)
        builder.position_at_end(end)

    # --- expressions ----------------------------------------------------------------------------------------

    def visit_Constant(self, node):
        return (I1 if isinstance(node.value, bool) else I64)(int(node.value))

    def visit_Name(self, node):
        if node.id in self.values:
            return self.values[node.id]
        cell = self.cells.get(node.id)
        return I64(int(self.function.names[node.id])) if cell is None else self.builder.load(cell)

    def visit_Attribute(self, node):
        return self.builder.load(self.pointer_to(node))

    visit_Subscript = visit_Attribute

    def pointer_to(self, node):
        """Return a pointer to a variable, to a field of the launch state, or to an element of the array at an
        address."""
        if isinstance(node, ast.Name):
            return self.cell(node.id)
        if isinstance(node, ast.Attribute):
            # Offsets are in bytes, and every field consists of int64 values.
            position = I64(FIELDS[node.attr].offset // 8)
            return pointer(self.builder, self.int64_value(node.value), position, I64)
        # A field with several int64 values is an array inside the structure. Any other subscripted field
        # contains an address.
        if isinstance(node.value, ast.Attribute) and FIELDS[node.value.attr].size > 8:
            return self.builder.gep(self.pointer_to(node.value), [self.int64_value(node.slice)])
        return pointer(self.builder, self.int64_value(node.value), self.int64_value(node.slice), I64)

    def visit_BinOp(self, node):
        left, right = self.int64_value(node.left), self.int64_value(node.right)
        # LLVM's division truncates towards zero, but Python's rounds down.
        if not isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            return getattr(self.builder, OPERATORS[type(node.op)])(left, right)
        return self.divide(left, right, isinstance(node.op, ast.Mod))

    def divide(self, left, right, wants_remainder):
        """Emit floor division or modulo with Python's semantics: the remainder has the sign of the
        divisor."""
        builder = self.builder
        quotient, remainder = builder.sdiv(left, right), builder.srem(left, right)
        differs = builder.icmp_signed("<", builder.xor(remainder, right), I64(0))
        below = builder.and_(differs, builder.icmp_signed("!=", remainder, I64(0)))
        if wants_remainder:
            return builder.select(below, builder.add(remainder, right), remainder)
        return builder.sub(quotient, builder.zext(below, I64))

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Not):
            return self.builder.not_(self.test(node.operand))
        return {ast.USub: self.builder.neg, ast.Invert: self.builder.not_}[type(node.op)](
            self.int64_value(node.operand)
        )

    def visit_Compare(self, node):
        parts = [*map(self.int64_value, [node.left, *node.comparators])]
        tests = [
            self.builder.icmp_signed(COMPARISONS[type(op)], *pair)
            for op, *pair in zip(node.ops, parts, parts[1:])
        ]
        return reduce(self.builder.and_, tests)

    def visit_BoolOp(self, node):
        return emit_boolop(self.builder, node, self.test)

    def visit_IfExp(self, node):
        with self.builder.goto_entry_block():
            chosen = self.builder.alloca(I64)
        with self.builder.if_else(self.test(node.test)) as (then, otherwise):
            for branch, part in ((then, node.body), (otherwise, node.orelse)):
                with branch:
                    self.builder.store(self.int64_value(part), chosen)
        return self.builder.load(chosen)

    def visit_Call(self, node):
        given, name = [*map(self.int64_value, node.args)], node.func.id
        if name in EXTREMES:
            a, b = given
            return self.builder.select(self.builder.icmp_signed(EXTREMES[name], a, b), a, b)
        callee = self.function.names[name].helper
        self.callees.append(callee)
        return callee.emit(self.builder, *given)
