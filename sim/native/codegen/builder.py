"""An IR builder and a calling convention that emit few LLVM instructions.

Every LLVM instruction is created in Python, printed as text, parsed and optimised, which takes about 0.05 ms
in total. Numba emits many instructions that the optimiser then removes. This file avoids emitting them.
"""

from collections import Counter

from llvmlite import ir
from llvmlite.ir.instructions import CastInstr, ExtractValue, GEPInstr, ICMPInstr, InsertValue, PhiInstr
from numba import types
from numba.core import cgutils
from numba.core.callconv import RETCODE_NONE, RETCODE_OK, CPUCallConv
from numba.core.cpu import CPUContext


class Builder(ir.IRBuilder):
    """An IRBuilder for integers that wrap around on overflow, as on a GPU.

    Numba declares that signed sums and products do not overflow. LLVM would then remove the bounds check of
    an index that is computed by an overflowing product.
    """

    def add(self, a, b, name="", flags=()):
        return super().add(a, b, name)

    def sub(self, a, b, name="", flags=()):
        return super().sub(a, b, name)

    def mul(self, a, b, name="", flags=()):
        return super().mul(a, b, name)

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


# instructions whose only effect is their result
WITHOUT_EFFECT = InsertValue, ExtractValue, GEPInstr, CastInstr, ICMPInstr


def remove_unused(module):
    """Remove instructions without an effect from a module if no instruction uses their results.

    A fifth of the instructions are such. Most of them pack the arguments of a function into structures, of
    which `Builder.extract_value` then needs only the members.
    """
    for function in module.functions:
        instructions = [instruction for block in function.blocks for instruction in block.instructions]
        uses = Counter(id(operand) for instruction in instructions for operand in operands_of(instruction))
        unused = set()
        # The uses of a value are visited before the value, except for uses in loops. A value with such a use
        # is kept.
        for instruction in reversed(instructions):
            if isinstance(instruction, WITHOUT_EFFECT) and not uses[id(instruction)]:
                unused.add(instruction)
                uses.subtract(map(id, instruction.operands))
        if unused:
            for block in function.blocks:
                block.instructions = [each for each in block.instructions if each not in unused]


def operands_of(instruction):
    """Return the values that an instruction uses."""
    if isinstance(instruction, PhiInstr):
        return [value for value, _ in instruction.incomings]
    return instruction.operands


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
            rooms[of] = cgutils.alloca_once(builder, of)
        room = rooms[of]
        given = self._get_arg_packer(argtys).as_arguments(builder, args)
        code = builder.call(callee, [room, pointer, *given])

        def all_tests():
            return self._get_return_status(builder, code, builder.load(pointer))

        status = Status(builder, code, pointer, isinstance(resty, types.Optional), all_tests)
        if resty == types.none:
            return status, self.context.get_dummy_value()
        return status, self.context.get_returned_value(builder, resty, builder.load(room))

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
