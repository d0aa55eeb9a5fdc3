"""Direct translation of the generated code of Python kernels to LLVM.

Numba reads a function's bytecode, brings it into SSA form, infers types by iteration, and rewrites its own
representation several times before it emits LLVM instructions. The translator infers types in one pass over
the syntax tree, and emits each operator and call by Numba's own implementation. It therefore follows Numba's
rules for all types. Numba compiles a function that the translator does not support.
"""

import ast
import inspect

from numba import boolean, types
from numba.core import cgutils, typing

from sim.native.codegen.builder import constant_of, slot, targets_of
from sim.native.codegen.direct import Body, call_emitted, functions_of, symbol_of
from sim.native.codegen.int64_translation import I1, I64, emit_boolop
from sim.native.codegen.linking import compiled, inline_always, intrinsic_of
from sim.native.codegen.node_types import MISSING, Inference, Untranslatable, folded


def translated(function):
    """Turn a generated function into a Numba intrinsic, which only compiled code can call. This function is a
    decorator."""
    made = make_intrinsic(Source(function))
    made.py_func = function
    return made


def make_intrinsic(source):
    """Return an intrinsic that generates the translations of a Source."""
    parameters = [*inspect.signature(source.function).parameters]
    return intrinsic_of(source.function.__name__, parameters, source.typed)


class Source:
    """A function, and its translation for each tuple of argument types.

    Subclasses may change these attributes:

    names: {name: value} for the names that the function does not assign.
    symbol: the first part of the names of its translations in LLVM code.
    by_numba: the dispatcher that compiles the function if the translator does not support it.
    attributes: the LLVM attributes of the translations.
    """

    def __init__(self, function):
        self.function, self.forms = function, {}
        self.names, self.symbol = function.__globals__, f"{function.__module__}.{function.__name__}"
        self.by_numba, self.attributes = compiled(function), ()

    def tree(self):
        """Return the syntax tree of the function."""
        return functions_of(self.function.__code__.co_filename)[self.function.__name__]

    def typed(self, typing, *given):
        """Return (signature, code generator) for arguments of these Numba types."""
        given = (*map(types.unliteral, given),)
        if given not in self.forms:
            self.forms[given] = self.form(typing, given)
        return self.forms[given]

    def form(self, typing, given):
        try:
            tree = self.tree()
            inferred = Inference(tree, self.names, typing, given)
        except Untranslatable:
            return numba_form(typing, self.by_numba, given)
        symbol = symbol_of(self.symbol, given)

        def emit(context, builder, signature, codes):
            Translation(tree, inferred, context, builder, signature).emit(codes)

        def code(context, builder, signature, codes):
            return call_emitted(context, builder, symbol, signature, codes, emit, *self.attributes)

        return inferred.result(*given), code


class Inlined(Source):
    """A function whose calls LLVM always inlines."""

    def __init__(self, function):
        super().__init__(function)
        self.by_numba, self.attributes = inline_always(function), ("alwaysinline",)


def inlined(function):
    """Turn a runtime function into an intrinsic whose calls LLVM always inlines. Use it as a decorator."""
    return make_intrinsic(Inlined(function))


def numba_form(typing, function, given):
    """Return (signature, code generator) for a function that Numba compiles."""
    callee = typing.resolve_value_type(function)
    signature = typing.resolve_function_type(callee, given, {})

    def code(context, builder, _, codes):
        return context.get_function(callee, signature)(builder, codes)

    return signature.return_type(*given), code


class Translation(Body):
    """Translator of one function's body. Each value is a pair (Numba type, LLVM value)."""

    def __init__(self, tree, inferred, context, builder, signature):
        self.tree, self.inferred, self.context, self.builder = tree, inferred, context, builder
        self.signature, self.cells, self.values, self.loops = signature, {}, {}, []
        # `known` has the current values of variables with a stack slot, so that reads need no load.
        self.depth, self.known = 0, {}

    def emit(self, codes):
        """Emit the body. `codes` are the LLVM values of the arguments."""
        for argument, *value in zip(self.tree.args.args, self.signature.args, codes):
            self.assign_name(argument.arg, value)
        self.run(self.tree.body)
        if not self.builder.block.is_terminated:
            # The end is reachable only if the function returns nothing, or if LLVM does not know that a
            # branch before it is always taken.
            if self.signature.return_type == types.none:
                self.give_back((types.none, self.context.get_dummy_value()))
            else:
                self.builder.unreachable()

    # --- variables ------------------------------------------------------------------------------------------

    def assign_name(self, name, value):
        variable = self.inferred.variables[name]
        code = self.cast(value, variable.numba_type)
        if not variable.needs_slot:
            self.values[name] = variable.numba_type, code
        else:
            self.known[name] = code
            self.builder.store(code, self.cell(name))

    def forget(self, node):
        """Forget the values of the variables that an `if` statement or a loop assigns."""
        for name in self.inferred.assigned[node]:
            self.known.pop(name, None)

    def cell(self, name):
        """Return the stack slot of a variable. It is allocated on first use, and initialised to 0. This
        is the value of a variable that the executed path has not assigned."""
        if name not in self.cells:
            numba_type = self.context.get_value_type(self.inferred.variables[name].numba_type)
            self.cells[name] = cgutils.alloca_once(self.builder, numba_type)
        return self.cells[name]

    def cast(self, value, numba_type):
        # The value of a literal type is a constant of the type without the literal.
        source, target = types.unliteral(value[0]), types.unliteral(numba_type)
        if source == target:
            return value[1]
        return self.context.cast(self.builder, value[1], source, target)

    # --- calls ----------------------------------------------------------------------------------------------

    def call(self, node, *given, position=0, **named):
        """Emit a call that `Inference.resolve` has resolved. Return (type, value) of its result."""
        callee, signature = self.inferred.calls[node, position]
        implementations = vars(self.context).setdefault("sim_implementations", {})
        implementation = implementations.get((callee, signature))
        if implementation is None:
            implementation = self.context.get_function(callee, signature)
            implementations[callee, signature] = implementation
        codes = self.fold(signature, given, named)
        return signature.return_type, implementation(self.builder, codes)

    def fold(self, signature, given, named):
        """Return the LLVM values of the arguments, in the order and with the types of a signature."""
        if signature.pysig is None:
            return [*map(self.cast, given, signature.args)]

        def packed(index, parameter, values):
            parts = [*map(self.cast, values, signature.args[index])]
            return self.context.make_tuple(self.builder, signature.args[index], parts)

        return typing.fold_arguments(
            signature.pysig,
            given,
            named,
            lambda index, parameter, value: self.cast(value, signature.args[index]),
            lambda index, parameter, value: self.context.get_constant_generic(
                self.builder, signature.args[index], value
            ),
            packed,
        )

    # --- statements -----------------------------------------------------------------------------------------

    def do_assign(self, node):
        value = self.value(node.value)
        for target in node.targets:
            self.assign(target, value)

    def assign(self, target, value):
        if isinstance(target, ast.Name):
            self.assign_name(target.id, value)
        elif isinstance(target, ast.Subscript):
            self.call(target, self.value(target.value), self.value(target.slice), value)
        else:
            for part, of, code in zip(target.elts, value[0], cgutils.unpack_tuple(self.builder, value[1])):
                self.assign(part, (of, code))

    def do_augassign(self, node):
        value = self.call(node, self.of_name(node.target), self.value(node.value))
        self.assign_name(node.target.id, value)

    def do_expr(self, node):
        if not isinstance(node.value, ast.Constant):
            self.value(node.value)

    def do_return(self, node):
        none = types.none, self.context.get_dummy_value()
        self.give_back(self.value(node.value) if node.value else none)

    def give_back(self, value):
        result = self.signature.return_type
        if result == types.none:
            self.context.call_conv.return_nothing(self.builder)
            return
        code = self.context.get_return_value(self.builder, result, self.cast(value, result))
        self.context.call_conv.return_value(self.builder, code)

    def do_if(self, node):
        known = self.inferred.known_test(node.test)
        if known is not MISSING:
            self.run(node.body if known else node.orelse)
            return
        super().do_if(node)
        self.forget(node)

    def run_branch(self, statements):
        before = dict(self.known)
        super().run_branch(statements)
        self.known = before

    def do_while(self, node):
        self.forget(node)
        super().do_while(node)
        self.forget(node)

    def do_for(self, node):
        """Emit a `for` loop."""
        self.forget(node)
        if isinstance(self.inferred.types[node.iter], types.UniTuple):
            self.for_tuple(node)
        else:
            self.for_range(node)
        self.forget(node)

    def for_range(self, node):
        """Emit a `for` loop over a range. As in Numba, the number of iterations is computed first, unless
        the loop counts up by 1."""
        builder, (numba_type, start, stop, step) = self.builder, self.range(node.iter)
        by_one = is_one(step) and numba_type.signed
        count = None if by_one else self.count(start, stop, step)
        before, new = builder.block, len(builder.function.blocks)
        head, body, end = map(builder.append_basic_block, ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        position = builder.phi(start.type)
        counter = position if by_one else builder.phi(start.type)
        ends = ("<", counter, stop) if by_one else (">", counter, counter.type(0))
        builder.cbranch(builder.icmp_signed(*ends), body, end)
        builder.position_at_end(body)
        values = {position: (start, builder.add(position, step))}
        if not by_one:
            values[counter] = count, builder.sub(counter, counter.type(1))
        self.assign_name(node.target.id, (numba_type, position))
        self.run_loop(node.body, head, end)
        # Only the block before the loop and the blocks of the loop can branch to its head.
        for block in (before, *builder.function.blocks[new:]):
            if block.is_terminated and head in targets_of(block.terminator):
                for phi, (at_first, later) in values.items():
                    phi.add_incoming(at_first if block is before else later, block)

    def for_tuple(self, node):
        """Emit a `for` loop over a tuple."""
        builder, (numba_type, code) = self.builder, self.value(node.iter)
        elements, following = slot(builder, code.type), slot(builder, I64)
        builder.store(code, elements)
        builder.store(I64(0), following)
        head, body, end = map(builder.append_basic_block, ("head", "body", "end"))
        builder.branch(head)
        builder.position_at_end(head)
        position = builder.load(following)
        builder.cbranch(builder.icmp_signed("<", position, I64(len(numba_type))), body, end)
        builder.position_at_end(body)
        builder.store(builder.add(position, I64(1)), following)
        element = builder.load(builder.gep(elements, [I64(0), position]))
        self.assign_name(node.target.id, (numba_type.dtype, element))
        self.run_loop(node.body, head, end)

    def range(self, node):
        """Return the element type, the start, the stop and the step of a range."""
        numba_type = self.inferred.types[node].dtype
        if self.inferred.static(getattr(node, "func", None)) is range:
            signature = self.inferred.calls[node, 0][1]
            ends = [self.cast(self.value(part), of) for part, of in zip(node.args, signature.args)]
            zero, one = (ends[0].type(number) for number in (0, 1))
            return numba_type, *([zero, *ends, one] if len(ends) == 1 else [*ends, one][:3])
        _, state = self.value(node)
        return numba_type, *(self.builder.extract_value(state, position) for position in range(3))

    def count(self, start, stop, step):
        """Return the number of iterations of a range. A step of 0 raises ValueError, as in Numba."""
        builder, zero, one = self.builder, step.type(0), step.type(1)
        difference = builder.sub(stop, start)
        rises = builder.icmp_signed(">", difference, zero)
        if is_one(step):
            return builder.select(rises, difference, zero)
        if (constant_of(step) or 0) > 0:
            rounded = builder.add(difference, step.type(constant_of(step) - 1))
            return builder.select(rises, builder.udiv(rounded, step), zero)
        if not getattr(step, "constant", 0):
            with builder.if_then(builder.icmp_unsigned("==", step, zero), likely=False):
                message = "range() arg 3 must not be zero"
                self.context.call_conv.return_user_exc(builder, ValueError, (message,))
        differs = builder.xor(rises, builder.icmp_signed(">", step, zero))
        rest = builder.srem(difference, step)
        rest = builder.select(rises, rest, builder.neg(rest))
        uneven = builder.select(builder.icmp_signed(">", rest, zero), one, zero)
        return builder.select(differs, zero, builder.add(builder.sdiv(difference, step), uneven))

    def run_loop(self, statements, head, end):
        """Emit the body of a loop, whose block is the current one."""
        self.loops.append((head, end))
        self.run(statements)
        self.loops.pop()
        self.go_to(head)
        self.builder.position_at_end(end)

    # --- expressions ----------------------------------------------------------------------------------------

    def constant(self, value):
        """Return (type, value) of a number or tuple that is known during compilation."""
        if value is None:
            return types.none, self.context.get_dummy_value()
        numba_type = types.unliteral(self.inferred.typing.resolve_value_type(value))
        return numba_type, self.context.get_constant_generic(self.builder, numba_type, value)

    def test(self, node):
        """Return an expression's truth value, as an i1."""
        if isinstance(node, ast.BoolOp):
            return emit_boolop(self.builder, node, self.test)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return self.builder.not_(self.test(node.operand))
        return self.truth(node, self.value(node))

    def truth(self, node, value):
        if types.unliteral(value[0]) == boolean:
            return value[1]
        return self.call(node, value, position="bool")[1]

    def of_constant(self, node):
        return self.constant(node.value)

    def of_name(self, node):
        if node.id in self.values:
            return self.values[node.id]
        if node.id in self.inferred.variables:
            code = self.known.get(node.id) or self.builder.load(self.cell(node.id))
            return self.inferred.variables[node.id].numba_type, code
        return self.constant(self.inferred.static(node))

    def of_attribute(self, node):
        if (value := self.inferred.static(node)) is not MISSING:
            return self.constant(value)
        numba_type, code = self.value(node.value)
        found = self.inferred.types[node]
        emit = self.context.get_getattr(numba_type, node.attr)
        return found, emit(self.context, self.builder, numba_type, code, node.attr)

    def of_subscript(self, node):
        if (node, 0) in self.inferred.calls:
            return self.call(node, self.value(node.value), self.value(node.slice))
        position = self.inferred.types[node.slice].literal_value
        numba_type, code = self.value(node.value)
        return numba_type[position], self.builder.extract_value(code, position % len(numba_type))

    def of_slice(self, node):
        ends = [node.lower, node.upper, *([node.step] if node.step else [])]
        return self.call(node, *(self.constant(None) if end is None else self.value(end) for end in ends))

    def of_tuple(self, node):
        parts, numba_type = [*map(self.value, node.elts)], self.inferred.types[node]
        return numba_type, self.context.make_tuple(
            self.builder, numba_type, [*map(self.cast, parts, numba_type)]
        )

    def of_binop(self, node):
        return self.call(node, self.value(node.left), self.value(node.right))

    def of_unaryop(self, node):
        value = folded(node)
        return self.call(node, self.value(node.operand)) if value is MISSING else self.constant(value)

    def of_compare(self, node):
        """Emit comparisons. An operand is evaluated only if all comparisons before it are true."""
        left, right = self.value(node.left), self.value(node.comparators[0])
        found = self.call(node, left, right)
        if len(node.ops) == 1:
            return found
        slot, end = cgutils.alloca_once(self.builder, I1), self.builder.append_basic_block("compared")
        for position, part in enumerate(node.comparators[1:], 1):
            more = self.builder.append_basic_block("more")
            self.builder.store(found[1], slot)
            self.builder.cbranch(found[1], more, end)
            self.builder.position_at_end(more)
            left, right = right, self.value(part)
            found = self.call(node, left, right, position=position)
        self.builder.store(found[1], slot)
        self.builder.branch(end)
        self.builder.position_at_end(end)
        return boolean, self.builder.load(slot)

    def of_boolop(self, node):
        """Emit `and` or `or`. The result is one of the operands."""
        numba_type, builder = types.unliteral(self.inferred.types[node]), self.builder
        slot = cgutils.alloca_once(builder, self.context.get_value_type(numba_type))
        end = builder.append_basic_block("decided")
        for part in node.values:
            value = self.value(part)
            builder.store(value[1], slot)
            if part is not node.values[-1]:
                more = builder.append_basic_block("more")
                targets = (more, end) if isinstance(node.op, ast.And) else (end, more)
                builder.cbranch(self.truth(part, value), *targets)
                builder.position_at_end(more)
        builder.branch(end)
        builder.position_at_end(end)
        return numba_type, builder.load(slot)

    def of_ifexp(self, node):
        known = self.inferred.known_test(node.test)
        if known is not MISSING:
            return self.value(node.body if known else node.orelse)
        builder, numba_type, found = self.builder, self.inferred.types[node], []
        then, otherwise, end = map(builder.append_basic_block, ("then", "else", "end"))
        builder.cbranch(self.test(node.test), then, otherwise)
        for block, part in ((then, node.body), (otherwise, node.orelse)):
            builder.position_at_end(block)
            found.append((self.cast(self.value(part), numba_type), builder.block))
            builder.branch(end)
        builder.position_at_end(end)
        value = builder.phi(found[0][0].type)
        for incoming in found:
            value.add_incoming(*incoming)
        return numba_type, value

    def of_call(self, node):
        named = {keyword.arg: self.value(keyword.value) for keyword in node.keywords}
        given = [*map(self.value, node.args)]
        if node in self.inferred.packed:
            (numba_type,) = self.inferred.calls[node, 0][1].args
            parts = [*map(self.cast, given, numba_type)]
            given = [(numba_type, self.context.make_tuple(self.builder, numba_type, parts))]
        return self.call(node, *given, **named)


def is_one(step):
    """Return whether an LLVM value is the constant 1."""
    return getattr(step, "constant", None) == 1
