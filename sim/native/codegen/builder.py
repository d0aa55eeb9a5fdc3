"""An IR builder and a calling convention that emit few LLVM instructions.

Every LLVM instruction is created in Python, printed as text, parsed and optimised, which takes about 0.05 ms
in total. Numba emits many instructions that the optimiser then removes. This file avoids emitting them.
"""

import operator
from collections import Counter

from llvmlite import ir
from llvmlite.ir.instructions import (
    AllocaInstr,
    Branch,
    CastInstr,
    ExtractValue,
    GEPInstr,
    ICMPInstr,
    InsertValue,
    PhiInstr,
    StoreInstr,
    SwitchInstr,
)
from numba import types
from numba.core.callconv import RETCODE_NONE, RETCODE_OK, CPUCallConv
from numba.core.cpu import CPUContext

COMPARISONS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def constant_of(value):
    """Return the value of an integer constant as a signed Python integer, or None for any other value."""
    if not (isinstance(value, ir.Constant) and isinstance(value.type, ir.IntType)):
        return None
    number, width = value.constant or 0, value.type.width
    if not isinstance(number, int):  # an undefined value
        return None
    return wrapped(number, width)


def wrapped(number, width):
    """Return an integer as a signed integer of `width` bits."""
    number &= (1 << width) - 1
    return number - (1 << width) if number >> (width - 1) else number


class CertainBranch(Branch):
    """A branch that replaces a conditional branch whose condition is a constant."""

    def set_weights(self, weights):
        """Ignore the probabilities of the two targets."""


class Builder(ir.IRBuilder):
    """An IRBuilder for integers that wrap around on overflow, as on a GPU. It computes the results
    of operations on constants, instead of emitting the operations.

    Numba declares that signed sums and products do not overflow. LLVM would then remove the bounds check of
    an index that is computed by an overflowing product.
    """

    def add(self, a, b, name="", flags=()):
        return self.fold(operator.add, a, b, 0) or super().add(a, b, name)

    def sub(self, a, b, name="", flags=()):
        return self.fold(operator.sub, a, b, 0) or super().sub(a, b, name)

    def mul(self, a, b, name="", flags=()):
        return self.fold(operator.mul, a, b, 1) or super().mul(a, b, name)

    def fold(self, function, a, b, neutral):
        """Return the result of an operation if both operands are constants, or if one is the neutral element.
        Return None otherwise."""
        right = constant_of(b)
        if right == neutral:
            return a
        left = constant_of(a)
        if left is None:
            return None
        if right is not None:
            return a.type(wrapped(function(left, right), a.type.width))
        return b if left == neutral and function is not operator.sub else None

    def icmp_signed(self, cmpop, lhs, rhs, name=""):
        left, right = constant_of(lhs), constant_of(rhs)
        if left is None or right is None:
            return super().icmp_signed(cmpop, lhs, rhs, name)
        return ir.IntType(1)(COMPARISONS[cmpop](left, right))

    def select(self, cond, lhs, rhs, name="", flags=()):
        known = constant_of(cond)
        return super().select(cond, lhs, rhs, name, flags) if known is None else lhs if known else rhs

    def not_(self, value, name=""):
        known = constant_of(value)
        return super().not_(value, name) if known is None else value.type(~known)

    def cbranch(self, cond, truebr, falsebr):
        known = constant_of(cond)
        if known is None:
            return super().cbranch(cond, truebr, falsebr)
        certain = CertainBranch(self.block, "br", [truebr if known else falsebr])
        self._set_terminator(certain)
        return certain

    def extract_value(self, aggregate, indices, name="", **options):
        """Return a member of a structure or array. If the member is the operand of an `insertvalue`
        instruction, or zero, return it without an instruction."""
        path = [indices] if isinstance(indices, int) else [*indices]
        source = aggregate
        while isinstance(source, InsertValue):
            if source.indices == path:
                return source.operands[1]
            if source.indices[: len(path)] == path[: len(source.indices)]:
                break  # one of the two paths begins with the other, so the values overlap
            source = source.operands[0]
        if isinstance(source, ir.Constant) and source.constant is None:
            return ir.Constant(member_type(source.type, path), None)
        return super().extract_value(aggregate, indices, name, **options)


def member_type(llvm_type, path):
    """Return the type of the member of a structure or array at a path of indices."""
    for position in path:
        llvm_type = llvm_type.elements[position]
    return llvm_type


def slot(builder, llvm_type):
    """Allocate a stack slot in the entry block. Unlike a slot that Numba allocates, it is not set to 0."""
    with builder.goto_entry_block():
        return builder.alloca(llvm_type)


# instructions whose only effect is their result
WITHOUT_EFFECT = InsertValue, ExtractValue, GEPInstr, CastInstr, ICMPInstr


def remove_unused(module):
    """Remove instructions without an effect from a module if no instruction uses their results. Also remove
    blocks that are never executed, and stack slots that are never read.

    A fifth of the instructions are unused. Most of these pack the arguments of a function into structures,
    from which `Builder.extract_value` then takes the members without an instruction.
    """
    for function in filter(lambda function: function.blocks, module.functions):
        remove_unreachable(function)
        instructions = [instruction for block in function.blocks for instruction in block.instructions]
        unused = unread_slots(instructions)
        uses = Counter(
            id(operand)
            for instruction in instructions
            if instruction not in unused
            for operand in operands_of(instruction)
        )
        # The uses of a value are visited before the value, except for uses in loops. A value with such a use
        # is kept.
        for instruction in reversed(instructions):
            if isinstance(instruction, WITHOUT_EFFECT) and not uses[id(instruction)]:
                unused.add(instruction)
                uses.subtract(map(id, instruction.operands))
        if unused:
            for block in function.blocks:
                block.instructions = [each for each in block.instructions if each not in unused]


def remove_unreachable(function):
    """Remove the blocks of a function that are never executed, because each branch to them has a constant
    condition."""
    reached, waiting = set(), [function.entry_basic_block]
    while waiting:
        block = waiting.pop()
        if block not in reached:
            reached.add(block)
            waiting += targets_of(block.terminator)
    if len(reached) == len(function.blocks):
        return
    function.blocks[:] = [block for block in function.blocks if block in reached]
    for block in function.blocks:
        for phi in block.instructions:
            if isinstance(phi, PhiInstr):
                phi.incomings = [incoming for incoming in phi.incomings if incoming[1] in reached]


def targets_of(terminator):
    """Return the blocks to which a terminator can branch."""
    cases = [block for _, block in terminator.cases] if isinstance(terminator, SwitchInstr) else []
    others = [terminator.default] if isinstance(terminator, SwitchInstr) else terminator.operands
    return [each for each in (*others, *cases) if isinstance(each, ir.Block)]


def unread_slots(instructions):
    """Return the stack slots that no instruction reads, and the stores to them."""
    slots = {instruction for instruction in instructions if isinstance(instruction, AllocaInstr)}
    stores = []
    for instruction in instructions:
        operands = operands_of(instruction)
        if isinstance(instruction, StoreInstr) and operands[1] in slots:
            stores.append(instruction)
            operands = operands[:1]
        slots.difference_update(each for each in operands if isinstance(each, AllocaInstr))
    return slots.union(store for store in stores if store.operands[1] in slots)


def operands_of(instruction):
    """Return the values that an instruction uses."""
    if isinstance(instruction, PhiInstr):
        return [value for value, _ in instruction.incomings]
    return instruction.operands


def quotient(builder, left, right):
    """Emit a division by a positive constant. As in Python, the result is rounded down."""
    shift = shift_of(right)
    if shift is not None:
        return builder.ashr(left, left.type(shift))
    below = builder.icmp_signed("<", builder.srem(left, right), left.type(0))
    return builder.sub(builder.sdiv(left, right), builder.zext(below, left.type))


def remainder(builder, left, right):
    """Emit the remainder of a division by a positive constant. As in Python, it is not negative."""
    if shift_of(right) is not None:
        return builder.and_(left, left.type(right.constant - 1))
    rest = builder.srem(left, right)
    below = builder.icmp_signed("<", rest, left.type(0))
    return builder.select(below, builder.add(rest, right), rest)


def shift_of(divisor):
    """Return the binary logarithm of a constant if it is a power of two, else None."""
    number = constant_of(divisor)
    return None if number & (number - 1) else number.bit_length() - 1


class Status:
    """The status that a called function returns. The instructions that test it are emitted only when a test
    is used.

    code: the status code as an LLVM value.
    excinfoptr: a pointer to the description of the exception.
    is_optional: whether the result can be None, which has a status code of its own.
    """

    def __init__(self, builder, code, excinfoptr, is_optional, all_tests):
        self.builder, self.code, self.excinfoptr, self.is_optional = builder, code, excinfoptr, is_optional
        self.all_tests = all_tests  # a function that emits every test, and returns Numba's own Status

    @property
    def is_none(self):
        return self.builder.icmp_signed("==", self.code, RETCODE_NONE)

    @property
    def is_error(self):
        failed = self.builder.icmp_signed("!=", self.code, RETCODE_OK)
        return self.builder.and_(failed, self.builder.not_(self.is_none)) if self.is_optional else failed

    def __getattr__(self, name):
        return getattr(self.all_tests(), name)


class CallingConvention(CPUCallConv):
    """Numba's calling convention, except that a caller passes on its own pointer to the description of an
    exception. If the callee fails, the caller can therefore return the callee's status unchanged."""

    def call_function(self, builder, callee, resty, argtys, args, attrs=None):
        """Emit a call, and return (its Status, its result)."""
        # A wrapper that Python calls has no such pointer.
        pointer = next((arg for arg in builder.function.args[1:2] if arg.name == "excinfo"), None)
        if attrs or pointer is None:
            return super().call_function(builder, callee, resty, argtys, args, attrs)
        # The caller reads each result before the next call, so all calls that return one type share a slot.
        rooms, of = vars(builder.function).setdefault("rooms", {}), self.get_return_type(resty).pointee
        if of not in rooms:
            rooms[of] = slot(builder, of)
        room = rooms[of]
        given = self._get_arg_packer(argtys).as_arguments(builder, args)
        code = builder.call(callee, [room, pointer, *given])

        def all_tests():
            return self._get_return_status(builder, code, builder.load(pointer))

        status = Status(builder, code, pointer, isinstance(resty, types.Optional), all_tests)
        if resty == types.none:
            return status, self.context.get_dummy_value()
        return status, self.context.get_returned_value(builder, resty, builder.load(room))

    def return_nothing(self, builder):
        """Emit a return from a function without a result."""
        builder.ret(RETCODE_OK)

    def return_status_propagate(self, builder, status):
        """Emit a return of the callee's status, unless the call is in a `try` statement."""
        if not isinstance(status, Status):
            super().return_status_propagate(builder, status)
        elif hasattr(builder, "_CPUCallConv__eh_try_state"):
            in_try = self.check_try_status(builder).in_try
            with builder.if_then(builder.not_(in_try)):
                builder.ret(status.code)
        else:
            builder.ret(status.code)


class Context(CPUContext):
    """Numba's target context, with the calling convention of this file."""

    @property
    def call_conv(self):
        return CallingConvention(self)
