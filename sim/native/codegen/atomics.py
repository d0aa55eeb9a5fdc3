"""Operations on memory that Numba lacks on the CPU: atomics, and loads and stores with a hint for the
cache."""

from llvmlite import ir
from numba import int64, types

from sim.isa.atomics import ENTRIES
from sim.isa.functions import SAME
from sim.native.codegen.elements import I64, is_element, place_of
from sim.native.codegen.isa_functions import compiled_copy, compiled_value, resolved
from sim.native.codegen.linking import always, intrinsic_of
from sim.native.codegen.scalars import converted
from sim.native.codegen.shadow import NARROWED, dirty, watch_atomic


def atomic(entry):
    """Return the compiled form of an atomic, for arrays of any type: a read and a write. Threads run one
    at a time, so no other access comes between."""
    meaning = compiled_copy(entry.native) if entry.native is not SAME else compiled_value(entry.meaning)

    def typed(typing, x, *given):
        index = given[0] if entry.indexed else int64
        if not is_element(x, index):
            return None
        change = resolved(typing, meaning, [x.dtype] * (1 + len(entry.operands)), x.dtype)

        def code(context, builder, signature, arguments):
            array, *rest = arguments
            at = rest.pop(0) if entry.indexed else I64(0)
            place, sources = (
                place_of(context, builder, x, array, index, at),
                signature.args[1 + entry.indexed :],
            )
            values = [operand(place, source, value) for source, value in zip(sources, rest)]

            def replace(flat):
                old = place.array.load(flat)
                place.array.store(flat, change(context, builder, [old, *values]))
                return old

            return place.access(watch_atomic, replace, ir.Constant(context.get_value_type(x.dtype), None))

        return x.dtype(x, *given), code

    names = ["x", *["index"] * entry.indexed, *entry.operands]
    return intrinsic_of("atomic", names, typed)


def operand(place, source, value):
    """Return a number converted to the type of the array's elements. If the number loses its fraction, set
    an error flag, so that the interpreter reports it."""
    if isinstance(place.x.dtype, types.Integer) and isinstance(source, (types.Float, types.Complex)):
        place.array.call(dirty, place.array.members.state, I64(NARROWED))
    return converted(place.context, place.builder, source, place.x.dtype, value)


@always
def load(x, index):
    return x[index]


@always
def store(x, index, value):
    x[index] = value


WRITING = {f"atomic_{name}": atomic(entry) for name, entry in ENTRIES.items()}
WRITING |= dict.fromkeys(("cuda_stcg", "cuda_stcs", "cuda_stwb", "cuda_stwt"), store)
IN_TEXT = WRITING | dict.fromkeys(("cuda_ldca", "cuda_ldcg", "cuda_ldcs", "cuda_ldlu", "cuda_ldcv"), load)
globals().update(IN_TEXT)
OFFERED = set(IN_TEXT)
