"""CUDA's vector types (float4, int2, ...) in compiled code. They are named tuples. As in sim.isa.vectors,
they are constructed from numbers and shorter vectors."""

from collections import namedtuple

from numba import types
from numba.extending import overload

from sim.isa.vectors import VECTORS
from sim.native.codegen.linking import LIKE_CODE
from sim.native.codegen.scalars import numba_type_of

EXPORTED = {f"cuda_{name}" for name in VECTORS}


def constructor(vector):
    """Return the function that constructs a vector in compiled code.

    vector: the class of the vector type in sim.isa.vectors.
    """
    vector_type, number = namedtuple(vector.__name__, tuple(vector.names)), numba_type_of(vector.dtype)

    def construct(*parts):
        raise NotImplementedError

    @overload(construct, **LIKE_CODE)
    def constructed(*parts):
        numbers = [f"parts[{i}]{member}" for i, part in enumerate(parts) for member in members(part)]
        if len(numbers) != len(vector.names):
            return None
        # Numba does not unroll loops over tuples of mixed types, so generate code with one expression per
        # number.
        exec(
            f"def made(*parts):\n    return vector_type({', '.join(f'number({text})' for text in numbers)})",
            names := {"vector_type": vector_type, "number": number},
        )
        return names["made"]

    return construct


def members(part):
    """Return the suffixes that select the numbers in a constructor argument: `[0]`, `[1]`, ... for a vector,
    "" for a number.

    part: the Numba type of the argument.
    """
    return [f"[{position}]" for position in range(len(part))] if isinstance(part, types.BaseTuple) else [""]


globals().update({f"cuda_{name}": constructor(vector) for name, vector in VECTORS.items()})
