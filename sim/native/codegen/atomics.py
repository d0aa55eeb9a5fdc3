"""Memory operations that Numba does not support on the CPU: atomics, and accesses with cache hints."""

from llvmlite import ir
from numba import int64, types
from numba.core import cgutils

from sim.isa.atomics import ENTRIES, is_compiled
from sim.isa.functions import SAME
from sim.native.codegen.elements import is_element, locate_element
from sim.native.codegen.int64_translation import I64
from sim.native.codegen.isa_functions import compiled_copy, compiled_value, resolve_call
from sim.native.codegen.linking import inline_always, intrinsic_of
from sim.native.codegen.scalars import Half, convert
from sim.native.codegen.shadow import NARROWED, set_error, watch_atomic


def atomic(entry):
    """Return the intrinsic for an atomic operation.

    The emitted code is a plain load and a plain store. Compiled threads run one after another, so no other
    access can occur in between.
    """
    semantics = compiled_copy(entry.native) if entry.native is not SAME else compiled_value(entry.semantics)

    def typed(typing, x, *given):
        index = given[0] if entry.indexed else int64
        if not is_element(x, index) or not is_compiled(entry, x.dtype, x.ndim):
            return None
        change = resolve_call(typing, semantics, [x.dtype] * (1 + len(entry.operands)), x.dtype)

        def code(context, builder, signature, arguments):
            array, *rest = arguments
            at = rest.pop(0) if entry.indexed else I64(0)
            element, sources = (
                locate_element(context, builder, x, array, index, at),
                signature.args[1 + entry.indexed :],
            )
            values = [convert_operand(element, source, value) for source, value in zip(sources, rest)]

            def replace(flat):
                old = element.array.load(flat)
                element.array.store(flat, change(context, builder, [old, *values]))
                return old

            return element.access(watch_atomic, replace, ir.Constant(context.get_value_type(x.dtype), None))

        return x.dtype(x, *given), code

    names = ["x", *["index"] * entry.indexed, *entry.operands]
    return intrinsic_of("atomic", names, typed)


def convert_operand(element, source, value):
    """Convert an operand of an atomic to the element type.

    Set the error flag NARROWED if a float becomes another number as an integer. The interpreter then reports
    it.
    """
    context, builder, dtype = element.context, element.builder, element.x.dtype
    converted = convert(context, builder, source, dtype, value)
    if isinstance(dtype, types.Integer) and isinstance(source, (types.Float, types.Complex, Half)):
        changed = cgutils.true_bit
        if source in (types.float32, types.float64):
            back = context.cast(builder, converted, dtype, source)
            changed = builder.fcmp_unordered("!=", value, back)
        with builder.if_then(changed):
            element.array.call(set_error, element.array.members.state, I64(NARROWED))
    return converted


@inline_always
def load(x, index):
    """Load an element. The cache hint only affects performance on a GPU, so it is ignored."""
    return x[index]


@inline_always
def store(x, index, value):
    """Store to an element. The cache hint only affects performance on a GPU, so it is ignored."""
    x[index] = value


# name in generated code -> function that writes to its first argument
WRITING = {f"atomic_{name}": atomic(entry) for name, entry in ENTRIES.items()}
WRITING |= dict.fromkeys(("cuda_stcg", "cuda_stcs", "cuda_stwb", "cuda_stwt"), store)
RUNTIME_FUNCTIONS = WRITING | dict.fromkeys(
    ("cuda_ldca", "cuda_ldcg", "cuda_ldcs", "cuda_ldlu", "cuda_ldcv"), load
)
globals().update(RUNTIME_FUNCTIONS)
EXPORTED = set(RUNTIME_FUNCTIONS)
